//! Writers who leave a shard's length and mtime as they were, on a real filesystem: only its ctime
//! tells, and no byte of theirs is read through an index that was read before.

use std::ffi::OsStr;
use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use shardfs::fs::{Fs, FsConfig, FsError, View, ViewConfig};
use shardfs::stats::Stats;
use shardfs::store::local::LocalStorage;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{Stat, Storage, StorageFile, Timestamp, Visit};
use shardfs::view::inode::ROOT;

use crate::support::{IndexKind, Level, Model};

const CHUNKS: u64 = 4;

/// A source with one shard, mounted with the usual options.
struct Source {
    directory: tempfile::TempDir,
    model: Model,
    fs: Fs,
}

/// Chunk `n` of a version holds this byte alone. Lengths differ, and their sum does not.
fn byte(version: u64, n: u64) -> u8 {
    u8::try_from(version % 16 * CHUNKS + n).unwrap()
}

fn lengths(version: u64) -> [usize; 4] {
    if version.is_multiple_of(2) { [40, 20, 30, 10] } else { [20, 40, 10, 30] }
}

impl Source {
    fn new() -> Self {
        let level = Level {
            per_shard: vec![CHUNKS],
            order: vec![0],
            index: IndexKind::Usual,
            at_start: false,
            after: vec![],
        };
        let chunks = std::collections::BTreeMap::new();
        let (shape, chunk) = (vec![CHUNKS], vec![1]);
        let keys = ("default", "/");
        let mut model = Model { shape, chunk, levels: vec![level], keys, chunks };
        set(&mut model, 0);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("zarr.json"), model.metadata().to_string()).unwrap();
        std::fs::create_dir(directory.path().join("c")).unwrap();
        std::fs::write(directory.path().join("c/0"), model.shard(&[0]).unwrap()).unwrap();
        let storage = LocalStorage::open_root(directory.path(), Arc::default()).unwrap();
        let fs = Fs::new(Arc::new(storage), FsConfig::default(), Arc::new(Stats::default()));
        Self { directory, model, fs: fs.unwrap() }
    }

    fn shard(&self) -> PathBuf {
        self.directory.path().join("c/0")
    }

    /// Writes the shard anew in its place, and puts its mtime back.
    fn write_over(&mut self, version: u64) {
        let mtime = self.shard().metadata().unwrap().modified().unwrap();
        set(&mut self.model, version);
        write_over(&self.shard(), &self.model, mtime);
    }

    fn open(&self, n: u64) -> (u64, u64) {
        open(&self.fs, n)
    }

    fn read(&self, opened: (u64, u64)) -> Result<Vec<u8>, i32> {
        read(&self.fs, opened)
    }
}

fn set(model: &mut Model, version: u64) {
    for (n, length) in (0..CHUNKS).zip(lengths(version)) {
        model.chunks.insert(vec![n], vec![byte(version, n); length]);
    }
}

fn write_over(shard: &Path, model: &Model, mtime: SystemTime) {
    let mut file = OpenOptions::new().write(true).open(shard).unwrap();
    file.write_all(&model.shard(&[0]).unwrap()).unwrap();
    file.set_times(FileTimes::new().set_modified(mtime)).unwrap();
}

/// Opens a chunk as the kernel does: what has changed since it was looked up is looked up again.
fn open(fs: &Fs, n: u64) -> (u64, u64) {
    let find = || {
        let c = fs.lookup(ROOT, OsStr::new("c")).unwrap().unwrap().attr.ino;
        fs.lookup(c, OsStr::new(&n.to_string())).unwrap().unwrap().attr.ino
    };
    for _ in 0..100 {
        let chunk = find();
        match fs.open(chunk) {
            Err(FsError::Stale | FsError::Outdated) => (),
            opened => return (chunk, opened.unwrap().handle),
        }
    }
    panic!("it is another one each time");
}

fn read(fs: &Fs, (ino, handle): (u64, u64)) -> Result<Vec<u8>, i32> {
    let mut buffer = vec![0; 100];
    let read = fs.read(ino, Some(handle), 0, &mut buffer).map_err(|error| error.errno())?;
    buffer.truncate(read);
    Ok(buffer)
}

#[test]
fn what_was_written_over_with_its_old_mtime_is_read_through_its_own_index() {
    let mut source = Source::new();
    for version in 1..40 {
        // Everything is known of the version before.
        for n in 0..CHUNKS {
            let opened = source.open(n);
            source.read(opened).unwrap();
            source.fs.release(opened.1);
        }
        source.write_over(version);
        for n in 0..CHUNKS {
            let opened = source.open(n);
            // Where its length is another, the chunk cannot be read as it was opened.
            if let Ok(found) = source.read(opened) {
                assert!(
                    found.iter().all(|it| *it == byte(version, n)),
                    "{version}, {n}: {found:?}"
                );
            }
            source.fs.release(opened.1);
        }
    }
}

#[test]
fn an_open_chunk_never_gives_bytes_of_two_versions() {
    let mut source = Source::new();
    let (unread, read) = (source.open(0), source.open(1));
    assert_eq!(source.read(read), Ok(vec![byte(0, 1); 20]));
    // With the same lengths: nothing but the ctime tells.
    source.write_over(2);
    assert_eq!(source.read(unread), Ok(vec![byte(2, 0); 40]));
    assert_eq!(source.read(read), Err(libc::EIO));
}

/// Whoever has a chunk open takes from the kernel's pages what others have read.
#[test]
fn bytes_that_a_chunk_holds_later_are_not_added_to_pages_that_others_have_filled() {
    for keeps_mtime in [true, false] {
        let mut source = Source::new();
        let (first, second, unread) = (source.open(0), source.open(0), source.open(2));
        assert_eq!(source.read(first), Ok(vec![byte(0, 0); 40]));
        source.write_over(2);
        if !keeps_mtime {
            let shard = OpenOptions::new().write(true).open(source.shard()).unwrap();
            shard.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
        }
        assert_eq!(source.read(second), Err(libc::EIO), "mtime kept: {keeps_mtime}");
        assert_eq!(source.read(second), Err(libc::EIO));
        // Nothing of this one was read: it is found where it is now.
        assert_eq!(source.read(unread), Ok(vec![byte(2, 2); 30]));
        assert_eq!(source.read(unread), Ok(vec![byte(2, 2); 30]));
    }
}

#[test]
fn an_open_chunk_goes_on_when_its_shard_is_replaced_linked_or_gets_other_permissions() {
    let source = Source::new();
    let opened = source.open(1);
    let old = Ok(vec![byte(0, 1); 20]);
    assert_eq!(source.read(opened), old);
    std::fs::hard_link(source.shard(), source.directory.path().join("linked")).unwrap();
    assert_eq!(source.read(opened), old);
    std::fs::set_permissions(source.shard(), Permissions::from_mode(0o600)).unwrap();
    assert_eq!(source.read(opened), old);
    std::fs::remove_file(source.directory.path().join("linked")).unwrap();
    assert_eq!(source.read(opened), old);
    let mut model = source.model.clone();
    set(&mut model, 1);
    let new = source.directory.path().join("new");
    File::create(&new).unwrap().write_all(&model.shard(&[0]).unwrap()).unwrap();
    std::fs::rename(new, source.shard()).unwrap();
    assert_eq!(source.read(opened), old);
    assert_eq!(source.read(opened), old);
}

#[test]
fn a_file_that_was_written_over_and_then_lost_its_name_is_not_read_through_the_old_index() {
    let mut source = Source::new();
    let opened = source.open(1);
    source.read(opened).unwrap();
    source.write_over(1);
    std::fs::remove_file(source.shard()).unwrap();
    assert_eq!(source.read(opened), Err(libc::EIO));
}

/// A write over a shard is no single step, so whoever reads in its middle may see its halves. Before and
/// after it there is one version, though nothing but the ctime tells them apart.
#[test]
fn readers_between_the_writes_of_others_see_no_chunk_as_another() {
    let source = Source::new();
    let ended = AtomicBool::new(false);
    // Odd while the shard is written over.
    let writes = AtomicU64::new(0);
    let compared = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (fs, ended, writes, compared) = (&source.fs, &ended, &writes, &compared);
            scope.spawn(move || {
                for n in (first..).map(|n| n % CHUNKS) {
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                    let before = writes.load(Ordering::SeqCst);
                    let Some(opened) = open_if_sound(fs, n) else { continue };
                    let found = read(fs, opened);
                    let is_between = before % 2 == 0 && before == writes.load(Ordering::SeqCst);
                    if let (Ok(found), true) = (found, is_between) {
                        compared.fetch_add(1, Ordering::Relaxed);
                        let is_own = |it: &u8| u64::from(*it) % CHUNKS == n && *it == found[0];
                        assert!(found.iter().all(is_own), "{n}: {found:?}");
                    }
                    fs.release(opened.1);
                }
            });
        }
        let (mut model, shard) = (source.model.clone(), source.shard());
        let mtime = shard.metadata().unwrap().modified().unwrap();
        let begun = Instant::now();
        // Readers who do not come to it on a busy machine are given more of them.
        let is_enough = |version| {
            version > 400
                && (compared.load(Ordering::Relaxed) > 0 || begun.elapsed().as_secs() > 60)
        };
        for version in (1..).take_while(|version| !is_enough(*version)) {
            set(&mut model, version);
            writes.fetch_add(1, Ordering::SeqCst);
            write_over(&shard, &model, mtime);
            writes.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(version % 7 * 300));
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(compared.into_inner() > 0);
}

/// A shard that is being written over may be damaged for the moment.
fn open_if_sound(fs: &Fs, n: u64) -> Option<(u64, u64)> {
    let c = fs.lookup(ROOT, OsStr::new("c")).ok()??.attr.ino;
    let chunk = fs.lookup(c, OsStr::new(&n.to_string())).ok()??.attr.ino;
    Some((chunk, fs.open(chunk).ok()?.handle))
}

/// A storage whose clock stands still: no date tells one change from the next.
struct Stopped {
    storage: MemoryStorage,
    clock: Arc<Mutex<Timestamp>>,
}

struct StoppedFile(Arc<dyn StorageFile>, Arc<Mutex<Timestamp>>);

fn dated(stat: Stat, clock: &Mutex<Timestamp>) -> Stat {
    let now = *clock.lock().unwrap();
    Stat { mtime: now, ctime: now, ..stat }
}

impl Storage for Stopped {
    fn open(&self, path: &Path) -> std::io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(StoppedFile(self.storage.open(path)?, Arc::clone(&self.clock))))
    }

    fn stat(&self, path: &Path) -> std::io::Result<Stat> {
        Ok(dated(self.storage.stat(path)?, &self.clock))
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> std::io::Result<()> {
        self.storage.list(path, from, visit)
    }
}

impl StorageFile for StoppedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn stat(&self) -> std::io::Result<Stat> {
        Ok(dated(self.0.stat()?, &self.1))
    }
}

#[test]
fn a_decoded_chunk_is_decoded_anew_if_its_shard_may_have_changed_within_a_tick() {
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [2],
        "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1],
            "codecs": ["bytes"], "index_codecs": ["bytes"]}}]});
    let index = [0, 1, 1, 1].map(u64::to_le_bytes).concat();
    for _ in 0..100 {
        let storage = MemoryStorage::default();
        storage.replace("zarr.json", document.to_string());
        storage.replace("c/0", [&[1, 1], index.as_slice()].concat());
        let clock = Arc::new(Mutex::new(SystemTime::now().into()));
        let stopped = Arc::new(Stopped { storage, clock: Arc::clone(&clock) });
        let view = ViewConfig { view: View::Raw, ..ViewConfig::default() };
        let config = FsConfig { view, ..FsConfig::default() };
        let fs = Fs::new(stopped.clone(), config, Arc::new(Stats::default())).unwrap();
        let c = fs.lookup(ROOT, OsStr::new("c")).unwrap().unwrap().attr.ino;
        let look_up = || fs.lookup(c, OsStr::new("0.raw")).unwrap().unwrap().attr.ino;
        let chunk = look_up();
        let read = || {
            // Where an open says so, the kernel looks the name up again.
            let handle = fs.open(chunk).or_else(|_| fs.open(look_up())).unwrap().handle;
            let found = read(&fs, (chunk, handle));
            fs.release(handle);
            found
        };
        let began = Instant::now();
        *clock.lock().unwrap() = SystemTime::now().into();
        assert_eq!(read(), Ok(vec![1]));
        stopped.storage.change("c/0", |bytes| bytes[0] = 2);
        // Otherwise it was not within the tick.
        if began.elapsed() < Duration::from_millis(5) {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(read(), Ok(vec![2]));
            return;
        }
    }
    panic!("too slow to do anything within a tick");
}

#[test]
fn a_document_that_becomes_that_of_a_sharded_array_is_never_shown_as_it_is_stored() {
    let unsharded = json!({"zarr_format": 3, "node_type": "array", "shape": [2],
        "data_type": "uint8", "fill_value": 0, "codecs": ["bytes"],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"}});
    let mut sharded = unsharded.clone();
    sharded["codecs"] = json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [1],
        "codecs": ["bytes"], "index_codecs": ["bytes"]}}]);
    let group = json!({"zarr_format": 3, "node_type": "group"});
    for before in [None, Some(&unsharded), Some(&group)] {
        let storage = Arc::new(MemoryStorage::default());
        storage.replace("zarr.json", group.to_string());
        storage.replace("x/notes", "");
        before.iter().for_each(|text| storage.replace("x/zarr.json", text.to_string()));
        let fs = Fs::new(storage.clone(), FsConfig::default(), Arc::new(Stats::default())).unwrap();
        let x = fs.lookup(ROOT, OsStr::new("x")).unwrap().unwrap().attr.ino;
        assert_eq!(fs.lookup(x, OsStr::new("zarr.json")).unwrap().is_some(), before.is_some());
        assert!(fs.lookup(x, OsStr::new("notes")).unwrap().is_some());
        storage.replace("x/zarr.json", sharded.to_string());
        let document = fs.lookup(x, OsStr::new("zarr.json")).unwrap().unwrap().attr;
        let handle = fs.open(document.ino).unwrap().handle;
        let mut text = vec![0; 4096];
        let read = fs.read(document.ino, Some(handle), 0, &mut text).unwrap();
        fs.release(handle);
        assert_eq!(read as u64, document.size);
        let shown: serde_json::Value = serde_json::from_slice(&text[..read]).unwrap();
        assert_eq!(shown["codecs"], json!([{"name": "bytes"}]), "{before:?}");
    }
}
