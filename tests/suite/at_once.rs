//! Operations on the same files at the same time: what one of them decides on is still true when it
//! acts.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::{Value, json};
use shardfs::fs::{
    Caller, Fs, FsConfig, FsError, OpenHow, SetAttr, View, ViewConfig, Views, WriteConfig,
};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::Storage;
use shardfs::view::inode::ROOT;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const VIEWS: [(&str, View); 3] =
    [("zarr3", View::Zarr3), ("zarr2", View::Zarr2), ("raw", View::Raw)];
/// Lookups of a single operation, at most.
const LOOKUPS: u64 = 40;

/// Long enough for a thread to come to the lock that it is to wait for.
fn wait() {
    std::thread::sleep(Duration::from_millis(100));
}

/// A writable mount of several views of one array, `a`.
struct Mount {
    storage: Arc<MemoryStorage>,
    views: Views,
    unsaved: tempfile::TempDir,
}

/// A file that is open for writing.
#[derive(Clone, Copy)]
struct Open {
    ino: u64,
    handle: u64,
}

impl Mount {
    /// An array of eight chunks of `nbytes` bytes, four of them in a shard.
    fn new(nbytes: u64) -> Arc<Self> {
        let storage = Arc::new(MemoryStorage::default());
        let inner = json!([{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 9}}]);
        let index = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": [nbytes * 8],
            "data_type": "uint8", "fill_value": 0, "attributes": {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes * 4]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [nbytes], "codecs": inner, "index_codecs": index}}]});
        storage.replace("a/zarr.json", document.to_string());
        storage.replace("zarr.json", json!({"zarr_format": 3, "node_type": "group"}).to_string());
        let unsaved = tempfile::tempdir().unwrap();
        let views = VIEWS.map(|(_, view)| {
            let view = ViewConfig { view, is_one_of_several: true, ..ViewConfig::default() };
            // Nothing is believed: each request looks.
            let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
            let writing =
                WriteConfig { unsaved: unsaved.path().to_owned(), ..WriteConfig::default() };
            let config = FsConfig { view, writable: true, store, writing, ..FsConfig::default() };
            let storage = Arc::clone(&storage) as Arc<dyn Storage>;
            Arc::new(Fs::new(storage, config, Arc::new(Stats::default())).unwrap())
        });
        let mount = Arc::new(Self { storage, views: Views::new(views.to_vec()), unsaved });
        for view in [View::Zarr3, View::Raw] {
            let (parent, name) = mount.parent(view, "a/c");
            mount.fs(view).mkdir(parent, name, 0o755, &CALLER).unwrap();
        }
        mount
    }

    fn fs(&self, view: View) -> &Arc<Fs> {
        let number = VIEWS.iter().position(|(_, other)| *other == view).unwrap();
        &self.views.all()[number]
    }

    /// The number of a file, as its view has it.
    fn ino(&self, view: View, path: &str) -> Option<u64> {
        path.split('/').try_fold(ROOT, |above, name| {
            let entry = self.fs(view).lookup(above, OsStr::new(name)).unwrap()?;
            Some(entry.attr.ino)
        })
    }

    fn parent<'a>(&self, view: View, path: &'a str) -> (u64, &'a OsStr) {
        let (directory, name) = path.rsplit_once('/').unwrap();
        (self.ino(view, directory).unwrap(), OsStr::new(name))
    }

    /// Opens a file to write it anew, and creates it where there is none.
    fn open(&self, view: View, path: &str) -> Open {
        self.try_open(view, path).unwrap()
    }

    fn try_open(&self, view: View, path: &str) -> Result<Open, FsError> {
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (parent, name) = self.parent(view, path);
        let (entry, opened) = self.fs(view).create(parent, name, 0o644, how, &CALLER)?;
        Ok(Open { ino: entry.attr.ino, handle: opened.handle })
    }

    fn write(&self, view: View, open: Open, at: u64, bytes: &[u8]) {
        self.fs(view).write(open.ino, open.handle, at, bytes).unwrap();
    }

    /// Writes all of a file.
    fn write_whole(&self, view: View, open: Open, bytes: &[u8]) {
        self.write(view, open, 0, bytes);
        let set = SetAttr { size: Some(bytes.len() as u64), ..SetAttr::default() };
        self.fs(view).setattr(open.ino, Some(open.handle), &set, &CALLER).unwrap();
    }

    fn close(&self, view: View, open: Open) -> Result<(), FsError> {
        let closed = self.fs(view).flush(open.ino, open.handle);
        self.fs(view).release(open.handle);
        closed
    }

    fn store(&self, view: View, path: &str, bytes: &[u8]) {
        let open = self.open(view, path);
        self.write(view, open, 0, bytes);
        self.close(view, open).unwrap();
    }

    fn read(&self, view: View, path: &str) -> Option<Vec<u8>> {
        let ino = self.ino(view, path)?;
        let fs = self.fs(view);
        let open = fs.open(ino).unwrap();
        let mut bytes = vec![0; 1 << 24];
        let read = fs.read(ino, Some(open.handle), 0, &mut bytes).unwrap();
        fs.release(open.handle);
        bytes.truncate(read);
        Some(bytes)
    }

    fn commit(&self) {
        self.views.all().iter().for_each(|fs| fs.commit(Path::new("")).unwrap());
    }

    fn document(&self) -> Value {
        let files = self.storage.files();
        let (.., text) = files.iter().find(|(path, ..)| path == Path::new("a/zarr.json")).unwrap();
        serde_json::from_slice(text).unwrap()
    }

    /// Runs `act` before the `nth` lookup in the source from now, in another thread, and goes on
    /// once it has ended, or waits for something that is locked.
    fn meanwhile<T: Send + 'static>(
        self: &Arc<Self>,
        nth: u64,
        act: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Meanwhile<T> {
        let mount = Arc::clone(self);
        let ((begun, has_begun), (sender, result)) = (channel(), channel());
        self.storage.act_before(nth, move || {
            begun.send(()).unwrap();
            let (ended, end) = channel();
            std::thread::spawn(move || {
                let _ = sender.send(act(&mount));
                let _ = ended.send(());
            });
            let _ = end.recv_timeout(Duration::from_millis(50));
        });
        Meanwhile { has_begun, result }
    }
}

/// What is done at the same time as something else.
struct Meanwhile<T> {
    has_begun: Receiver<()>,
    result: Receiver<T>,
}

impl<T> Meanwhile<T> {
    /// Waits for its end and returns what came of it; `None` if it has not begun, as there were not as
    /// many lookups.
    fn result(self) -> Option<T> {
        self.has_begun.try_recv().ok()?;
        Some(self.result.recv().unwrap())
    }
}

/// Bytes that are slow to compress.
fn noise(nbytes: u64) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..nbytes).map(|_| next() & 63).collect()
}

/// Closes an open chunk in another thread, and runs `act` while its bytes are being encoded. Returns whether they still
/// were when it had ended.
fn while_encoded(mount: &Arc<Mount>, open: Open, act: impl FnOnce()) -> bool {
    let other = Arc::clone(mount);
    let closing = std::thread::spawn(move || other.close(View::Raw, open).unwrap());
    wait();
    act();
    let was_in_time = !closing.is_finished();
    closing.join().unwrap();
    was_in_time
}

/// Runs a test until it was in time, which it may not be on a busy machine.
fn until_in_time(test: impl Fn() -> bool) {
    assert!((0..20).any(|_| test()), "it was encoded before anything else was done");
}

const SLOW: u64 = 1 << 23;

#[test]
fn a_chunk_that_is_removed_while_its_bytes_are_encoded_stays_removed() {
    until_in_time(|| {
        let mount = Mount::new(SLOW);
        let open = mount.open(View::Raw, "a/c/0.raw");
        mount.write(View::Raw, open, 0, &noise(SLOW));
        let was_in_time = while_encoded(&mount, open, || {
            let (parent, name) = mount.parent(View::Raw, "a/c/0.raw");
            mount.fs(View::Raw).unlink(parent, name, &CALLER).unwrap();
        });
        mount.commit();
        assert_eq!(mount.ino(View::Raw, "a/c/0.raw"), None);
        was_in_time
    });
}

#[test]
fn a_chunk_that_takes_the_name_of_one_that_is_being_encoded_keeps_its_bytes() {
    until_in_time(|| {
        let mount = Mount::new(SLOW);
        let sevens = vec![7; usize::try_from(SLOW).unwrap()];
        mount.store(View::Raw, "a/c/1.raw", &sevens);
        mount.commit();
        let open = mount.open(View::Raw, "a/c/0.raw");
        mount.write(View::Raw, open, 0, &noise(SLOW));
        let was_in_time = while_encoded(&mount, open, || {
            let (from, to) =
                (mount.parent(View::Raw, "a/c/1.raw"), mount.parent(View::Raw, "a/c/0.raw"));
            mount.fs(View::Raw).rename(from, to, false, &CALLER).unwrap();
        });
        mount.commit();
        assert!(mount.read(View::Raw, "a/c/0.raw") == Some(sevens));
        assert_eq!(mount.ino(View::Raw, "a/c/1.raw"), None);
        was_in_time
    });
}

/// Begins a commit, and holds it up until something is sent.
fn hold(mount: &Arc<Mount>) -> (Sender<()>, std::thread::JoinHandle<()>) {
    let ((begun, has_begun), (go_on, when)) = (channel(), channel());
    mount.storage.act_before(1, move || {
        begun.send(()).unwrap();
        when.recv().unwrap();
    });
    let other = Arc::clone(mount);
    let commit = std::thread::spawn(move || other.fs(View::Raw).commit(Path::new("")).unwrap());
    has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    (go_on, commit)
}

#[test]
fn a_chunk_that_is_written_again_after_a_refused_close_is_whole() {
    let mount = Mount::new(8192);
    mount.store(View::Raw, "a/c/0.raw", &[1; 8192]);
    mount.commit();
    mount.store(View::Raw, "a/c/1.raw", &[2; 8192]);
    let (go_on, commit) = hold(&mount);
    let open = mount.open(View::Raw, "a/c/0.raw");
    mount.write(View::Raw, open, 0, &[3; 5000]);
    let error = mount.fs(View::Raw).flush(open.ino, open.handle).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    // What the kernel asks for later.
    let other = Arc::clone(&mount);
    let released = std::thread::spawn(move || other.fs(View::Raw).release(open.handle));
    wait();
    let open = mount.open(View::Raw, "a/c/0.raw");
    mount.write(View::Raw, open, 0, &[4; 4096]);
    go_on.send(()).unwrap();
    commit.join().unwrap();
    released.join().unwrap();
    mount.write(View::Raw, open, 4096, &[4; 4096]);
    mount.close(View::Raw, open).unwrap();
    mount.commit();
    assert!(mount.read(View::Raw, "a/c/0.raw") == Some(vec![4; 8192]));
}

#[test]
fn a_chunk_is_renamed_with_what_was_closed_in_another_view() {
    let mount = Mount::new(100);
    mount.store(View::Raw, "a/c/0.raw", &[1; 100]);
    mount.commit();
    mount.store(View::Raw, "a/c/0.raw", &[2; 100]);
    let (from, to) = (mount.parent(View::Zarr3, "a/c/0"), mount.parent(View::Zarr3, "a/c/1"));
    mount.fs(View::Zarr3).rename(from, to, false, &CALLER).unwrap();
    mount.commit();
    assert_eq!(mount.read(View::Raw, "a/c/1.raw"), Some(vec![2; 100]));
    assert_eq!(mount.ino(View::Raw, "a/c/0.raw"), None);
}

#[test]
fn what_another_process_writes_to_a_chunk_that_is_being_renamed_is_not_removed() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        mount.store(View::Raw, "a/c/0.raw", &[1; 100]);
        mount.commit();
        let (from, to) =
            (mount.parent(View::Raw, "a/c/0.raw"), mount.parent(View::Raw, "a/c/5.raw"));
        let other = Mount::new(100);
        other.store(View::Raw, "a/c/0.raw", &[2; 100]);
        other.commit();
        let shard = |(path, ino, bytes): (std::path::PathBuf, u64, Vec<u8>)| {
            (path == Path::new("a/c/0")).then_some((ino, bytes))
        };
        let (_, bytes) = other.storage.files().into_iter().find_map(shard).unwrap();
        let replaced = mount.meanwhile(nth, move |mount| mount.storage.replace("a/c/0", bytes));
        let renamed = mount.fs(View::Raw).rename(from, to, false, &CALLER);
        if replaced.result().is_none() {
            assert!(nth > 3);
            return;
        }
        let committed = renamed.and_then(|()| mount.fs(View::Raw).commit(Path::new("")));
        let found = ["a/c/0.raw", "a/c/5.raw"].map(|path| mount.read(View::Raw, path));
        assert!(
            found.contains(&Some(vec![2; 100])),
            "{nth}: {committed:?}, {:?}",
            found.map(|bytes| bytes.map(|bytes| bytes[0]))
        );
    }
}

#[test]
fn a_chunk_that_is_removed_while_it_is_opened_is_not_there_again() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        mount.store(View::Raw, "a/c/0.raw", &[1; 100]);
        mount.commit();
        let (ino, (parent, name)) =
            (mount.ino(View::Raw, "a/c/0.raw").unwrap(), mount.parent(View::Raw, "a/c/0.raw"));
        let removed = mount.meanwhile(nth, move |mount| {
            mount.fs(View::Raw).unlink(parent, name, &CALLER).unwrap();
        });
        let how = OpenHow { write: true, ..OpenHow::default() };
        let opened = mount.fs(View::Raw).open_for(ino, how, &CALLER);
        if removed.result().is_none() {
            assert!(nth > 1);
            return;
        }
        assert_eq!(mount.ino(View::Raw, "a/c/0.raw"), None, "{nth}: {:?}", opened.is_ok());
    }
}

#[test]
fn a_chunk_that_is_opened_while_it_is_removed_can_be_read() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        mount.store(View::Raw, "a/c/0.raw", &[1; 100]);
        mount.commit();
        let (ino, (parent, name)) =
            (mount.ino(View::Raw, "a/c/0.raw").unwrap(), mount.parent(View::Raw, "a/c/0.raw"));
        let opened = mount.meanwhile(nth, move |mount| {
            let how = OpenHow { write: true, ..OpenHow::default() };
            let opened = mount.fs(View::Raw).open_for(ino, how, &CALLER);
            opened.ok().map(|opened| opened.handle)
        });
        mount.fs(View::Raw).unlink(parent, name, &CALLER).unwrap();
        mount.commit();
        let Some(handle) = opened.result() else {
            assert!(nth > 1);
            return;
        };
        let Some(handle) = handle else { continue };
        let mut bytes = [0; 200];
        let read = mount.fs(View::Raw).read(ino, Some(handle), 0, &mut bytes).unwrap();
        assert_eq!(bytes[..read], [1; 100], "{nth}");
        mount.fs(View::Raw).release(handle);
        assert_eq!(mount.ino(View::Raw, "a/c/0.raw"), None, "{nth}");
    }
}

fn with_attribute(mount: &Mount, view: View, path: &str, name: &str) -> Vec<u8> {
    let text = mount.read(view, path).unwrap();
    let mut document: Value = serde_json::from_slice(&text).unwrap();
    document["attributes"][name] = json!(1);
    document.to_string().into_bytes()
}

#[test]
fn a_document_that_two_processes_open_at_once_is_one_file() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        let path = "a/zarr.json";
        let written = with_attribute(&mount, View::Zarr3, path, "by the other");
        let ino = mount.ino(View::Zarr3, path).unwrap();
        let how = OpenHow { write: true, ..OpenHow::default() };
        let other = mount.meanwhile(nth, move |mount| {
            let opened = mount.fs(View::Zarr3).open_for(ino, how, &CALLER).unwrap();
            Open { ino, handle: opened.handle }
        });
        let opened = mount.fs(View::Zarr3).open_for(ino, how, &CALLER).unwrap();
        let open = Open { ino, handle: opened.handle };
        let Some(other) = other.result() else {
            // It does not look so often.
            assert!(nth > 3);
            return;
        };
        mount.write_whole(View::Zarr3, other, &written);
        mount.close(View::Zarr3, other).unwrap();
        mount.close(View::Zarr3, open).unwrap();
        assert_eq!(mount.document()["attributes"]["by the other"], 1, "{nth}");
    }
}

#[test]
fn documents_that_are_parts_of_one_are_stored_one_after_the_other() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        let zattrs = mount.open(View::Zarr2, "a/.zattrs");
        mount.write(View::Zarr2, zattrs, 0, br#"{"unit": "m"}"#);
        let text = mount.read(View::Zarr2, "a/.zarray").unwrap();
        let mut zarray: Value = serde_json::from_slice(&text).unwrap();
        zarray["shape"] = json!([900]);
        let other = mount.open(View::Zarr2, "a/.zarray");
        mount.write(View::Zarr2, other, 0, zarray.to_string().as_bytes());
        let closed = mount.meanwhile(nth, move |mount| mount.close(View::Zarr2, other));
        mount.close(View::Zarr2, zattrs).unwrap();
        let Some(closed) = closed.result() else {
            assert!(nth > 3);
            return;
        };
        closed.unwrap();
        let stored = mount.document();
        assert_eq!(
            (&stored["attributes"]["unit"], &stored["shape"][0]),
            (&json!("m"), &json!(900))
        );
    }
}

#[test]
fn what_was_written_to_a_document_last_is_stored_last() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        let path = "a/zarr.json";
        let texts = ["first", "second"].map(|name| with_attribute(&mount, View::Zarr3, path, name));
        let [first, second] = [(); 2].map(|()| mount.open(View::Zarr3, path));
        mount.write(View::Zarr3, first, 0, &texts[0]);
        let closed = mount.meanwhile(nth, move |mount| {
            mount.write_whole(View::Zarr3, second, &texts[1]);
            mount.close(View::Zarr3, second)
        });
        mount.close(View::Zarr3, first).unwrap();
        let Some(closed) = closed.result() else {
            assert!(nth > 3);
            return;
        };
        closed.unwrap();
        assert_eq!(mount.document()["attributes"], json!({"second": 1}), "{nth}");
    }
}

/// A document with another shape.
fn with_shape(mount: &Mount, view: View, path: &str, extent: u64) -> Vec<u8> {
    let mut document: Value = serde_json::from_slice(&mount.read(view, path).unwrap()).unwrap();
    document["shape"] = json!([extent]);
    document.to_string().into_bytes()
}

#[test]
fn chunks_of_an_array_that_grows_again_are_not_removed_as_those_outside_its_smaller_shape() {
    let mut tested = false;
    for nth in 1..2 * LOOKUPS {
        let mount = Mount::new(100);
        for n in 0..8 {
            mount.store(View::Raw, &format!("a/c/{n}.raw"), &[1; 100]);
        }
        mount.commit();
        let [smaller, larger] =
            [("a/zarr.json", View::Zarr3, 100), ("a/.zarray", View::Zarr2, 800)]
                .map(|(path, view, extent)| (path, with_shape(&mount, view, path, extent)));
        let open = mount.open(View::Zarr3, smaller.0);
        mount.write(View::Zarr3, open, 0, &smaller.1);
        let smaller = mount.meanwhile(nth, move |mount| {
            if mount.document()["shape"][0] != 100 {
                return false;
            }
            mount.store(View::Zarr2, larger.0, &larger.1);
            // If that took long, the other has made it smaller once more.
            let Ok(chunk) = mount.try_open(View::Raw, "a/c/6.raw") else { return false };
            mount.write(View::Raw, chunk, 0, &[7; 100]);
            mount.close(View::Raw, chunk).unwrap();
            // Files in memory have no locks: it may fail where the other removal is under way.
            let _ = mount.fs(View::Raw).commit(Path::new(""));
            true
        });
        let closed = mount.close(View::Zarr3, open);
        let Some(was_smaller) = smaller.result() else {
            assert!(tested);
            return;
        };
        if closed.is_err() {
            continue;
        }
        tested |= was_smaller;
        mount.commit();
        if was_smaller {
            assert!(mount.read(View::Raw, "a/c/6.raw") == Some(vec![7; 100]), "{nth}");
        }
    }
}

#[test]
fn fsync_waits_for_a_close_that_is_storing_the_document() {
    for nth in 1..LOOKUPS {
        let mount = Mount::new(100);
        let path = "a/zarr.json";
        let text = with_attribute(&mount, View::Zarr3, path, "new");
        let [first, second] = [(); 2].map(|()| mount.open(View::Zarr3, path));
        mount.write_whole(View::Zarr3, first, &text);
        let stored = mount.meanwhile(nth, move |mount| {
            mount.fs(View::Zarr3).fsync(second.ino, second.handle).unwrap();
            mount.document()["attributes"].clone()
        });
        mount.close(View::Zarr3, first).unwrap();
        let Some(stored) = stored.result() else {
            assert!(nth > 3);
            return;
        };
        assert_eq!(stored, json!({"new": 1}), "{nth}");
    }
}

#[test]
fn what_was_written_to_a_decoded_chunk_after_its_last_close_is_saved_when_it_is_given_up() {
    let mount = Mount::new(100);
    mount.store(View::Raw, "a/c/0.raw", &[1; 100]);
    let ino = mount.ino(View::Raw, "a/c/0.raw").unwrap();
    let how = OpenHow { write: true, ..OpenHow::default() };
    let open = mount.fs(View::Raw).open_for(ino, how, &CALLER).unwrap();
    mount.write(View::Raw, Open { ino, handle: open.handle }, 0, &[2; 100]);
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let config = FsConfig { writable: true, store, ..FsConfig::default() };
    let storage = Arc::clone(&mount.storage) as Arc<dyn Storage>;
    let others = Fs::new(storage, config, Arc::new(Stats::default())).unwrap();
    let directory = ["a", "c"].iter().fold(ROOT, |above, name| {
        let entry = others.lookup(above, OsStr::new(name)).unwrap();
        entry.map_or_else(
            || others.mkdir(above, OsStr::new(name), 0o755, &CALLER).unwrap().attr.ino,
            |entry| entry.attr.ino,
        )
    });
    let (entry, chunk) = others.create(directory, OsStr::new("0"), 0o644, how, &CALLER).unwrap();
    others.write(entry.attr.ino, chunk.handle, 0, b"of others").unwrap();
    others.fsync(entry.attr.ino, chunk.handle).unwrap();
    others.release(chunk.handle);
    assert!(mount.fs(View::Raw).commit(Path::new("")).is_err());
    let saved = std::fs::File::open(mount.unsaved.path().join("a/c/0")).unwrap();
    let mut items = Vec::new();
    flate2::read::GzDecoder::new(saved).read_to_end(&mut items).unwrap();
    assert!(items == [2; 100]);
    mount.fs(View::Raw).release(open.handle);
}
