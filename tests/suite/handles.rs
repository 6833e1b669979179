//! Open files of chunks while others are released, committed, or changed by somebody else.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, SetAttr, WriteConfig, WriteHow};
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::Timestamp;
use shardfs::view::inode::ROOT;

use crate::power;
use crate::support::{IndexKind, Model};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const APPEND: WriteHow = WriteHow { append: true, mapped: false };
const WRITE: WriteHow = WriteHow { append: false, mapped: false };
const MAPPED: WriteHow = WriteHow { append: false, mapped: true };
const TO_WRITE: OpenHow = OpenHow { write: true, truncate: false, exclusive: false };

/// Says that something is done, also if it is for a panic: others go on until then.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Mount {
    storage: Arc<MemoryStorage>,
    model: Model,
    fs: Fs,
    unsaved: tempfile::TempDir,
}

/// A shard of two chunks, each of ten bytes of its number.
fn mount(sync: bool) -> Mount {
    let level = power::level(&[2], IndexKind::Usual, false);
    let chunks = [0_u8, 1].map(|n| (vec![n.into()], vec![n; 10])).into();
    let (shape, chunk, keys) = (vec![2], vec![1], ("default", "/"));
    let model = Model { shape, chunk, levels: vec![level], keys, chunks };
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("zarr.json", model.metadata().to_string());
    storage.replace("c/0", model.shard(&[0]).unwrap());
    let unsaved = tempfile::tempdir().unwrap();
    let writing =
        WriteConfig { sync, unsaved: unsaved.path().join("unsaved"), ..WriteConfig::default() };
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let config = FsConfig { store, writing, writable: true, ..FsConfig::default() };
    let fs = Fs::new(Arc::clone(&storage) as Arc<_>, config, Arc::default()).unwrap();
    Mount { storage, model, fs, unsaved }
}

impl Mount {
    fn ino(&self, chunk: &str) -> u64 {
        let directory = self.fs.lookup(ROOT, OsStr::new("c")).unwrap().unwrap().attr.ino;
        self.fs.lookup(directory, OsStr::new(chunk)).unwrap().unwrap().attr.ino
    }

    fn open(&self, chunk: &str) -> (u64, u64) {
        let ino = self.ino(chunk);
        (ino, self.fs.open_for(ino, TO_WRITE, &CALLER).unwrap().handle)
    }

    fn write(&self, (ino, handle): (u64, u64), bytes: &[u8], how: WriteHow) -> Result<(), i32> {
        self.fs.write_as(ino, handle, 0, bytes, how).map(drop).map_err(|error| error.errno())
    }

    fn close(&self, (ino, handle): (u64, u64)) {
        self.fs.flush(ino, handle).unwrap();
        self.fs.release(handle);
    }

    fn content(&self, chunk: &str) -> Vec<u8> {
        let ino = self.ino(chunk);
        let handle = self.fs.open(ino).unwrap().handle;
        let mut buffer = vec![0; 1 << 20];
        let read = self.fs.read(ino, Some(handle), 0, &mut buffer).unwrap();
        self.fs.release(handle);
        buffer.truncate(read);
        buffer
    }

    /// Somebody else gives chunk 0 other bytes.
    fn others(&mut self, bytes: &[u8]) {
        self.model.chunks.insert(vec![0], bytes.to_vec());
        self.storage.replace("c/0", self.model.shard(&[0]).unwrap());
    }
}

#[test]
fn what_is_written_while_an_earlier_handle_is_released_is_kept() {
    const TIMES: usize = 5000;
    let mount = mount(true);
    let (release, released) = mpsc::channel();
    std::thread::scope(|scope| {
        let mount = &mount;
        // The kernel does not wait for it.
        scope.spawn(move || released.into_iter().for_each(|handle| mount.fs.release(handle)));
        for _ in 0..TIMES {
            let (ino, handle) = mount.open("0");
            mount.write((ino, handle), b"x", APPEND).unwrap();
            mount.fs.flush(ino, handle).unwrap();
            release.send(handle).unwrap();
        }
        drop(release);
    });
    assert_eq!(mount.content("0").len(), 10 + TIMES);
}

#[test]
fn the_date_of_a_chunk_stays_while_others_of_its_shard_are_committed() {
    const TIMES: usize = 3000;
    let mount = mount(true);
    let written = mount.open("0");
    mount.write(written, b"x", APPEND).unwrap();
    mount.close(written);
    let reader = mount.fs.open(written.0).unwrap().handle;
    let date = |handle| mount.fs.getattr(written.0, handle).unwrap().0.mtime;
    let expected = date(None);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mount = &mount;
        scope.spawn(|| {
            let _done = Done(&is_done);
            let opened = mount.open("1");
            for _ in 0..TIMES {
                mount.write(opened, b"x", APPEND).unwrap();
                mount.fs.flush(opened.0, opened.1).unwrap();
            }
            mount.fs.release(opened.1);
        });
        while !is_done.load(Ordering::Relaxed) {
            assert_eq!(date(None), expected);
            assert_eq!(date(Some(reader)), expected, "of an open file");
            let opened = mount.fs.open(written.0).unwrap().handle;
            assert_eq!(date(Some(opened)), expected, "of one that was opened just now");
            mount.fs.release(opened);
        }
    });
    assert_eq!(date(Some(reader)), expected);
}

#[test]
fn a_date_that_is_set_while_others_of_the_shard_are_committed_is_kept() {
    const TIMES: usize = 1000;
    let mount = mount(true);
    let ino = mount.ino("0");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mount, _done) = (&mount, Done(&is_done));
        scope.spawn(|| {
            let opened = mount.open("1");
            while !is_done.load(Ordering::Relaxed) {
                mount.write(opened, b"x", WRITE).unwrap();
                mount.fs.flush(opened.0, opened.1).unwrap();
            }
            mount.fs.release(opened.1);
        });
        for seconds in 0..TIMES {
            let mtime = Timestamp { seconds: seconds as i64, nanoseconds: 0 };
            let set = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
            mount.fs.setattr(ino, None, &set, &CALLER).unwrap();
            assert_eq!(mount.fs.getattr(ino, None).unwrap().0.mtime, mtime);
        }
    });
}

#[test]
fn a_date_that_is_set_while_the_chunk_is_committed_is_kept() {
    const TIMES: usize = 1000;
    let mount = mount(false);
    let ino = mount.ino("0");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mount, _done) = (&mount, Done(&is_done));
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                mount.fs.commit(Path::new("")).unwrap();
            }
        });
        for seconds in 0..TIMES {
            let opened = mount.open("0");
            mount.write(opened, b"x", WRITE).unwrap();
            mount.close(opened);
            let mtime = Timestamp { seconds: seconds as i64, nanoseconds: 0 };
            let set = SetAttr { mtime: Some(mtime), ..SetAttr::default() };
            mount.fs.setattr(ino, None, &set, &CALLER).unwrap();
            mount.fs.commit(Path::new("")).unwrap();
            assert_eq!(mount.fs.getattr(ino, None).unwrap().0.mtime, mtime);
        }
    });
}

/// The kernel says that a handle has ended at any time after its last close.
#[test]
fn the_end_of_a_handle_stages_nothing_of_another_one_that_is_being_written() {
    let mount = mount(false);
    let stored = || {
        let files = mount.storage.files().into_iter();
        files.filter(|(path, ..)| path == Path::new("c/0")).map(|(.., bytes)| bytes).next()
    };
    for (truncate, begun) in [(true, &b""[..]), (true, b"ha"), (false, b"ha")] {
        let before = mount.open("0");
        mount.write(before, b"whole", WRITE).unwrap();
        mount.fs.flush(before.0, before.1).unwrap();
        mount.fs.commit(Path::new("")).unwrap();
        let expected = stored();
        let how = OpenHow { truncate, ..TO_WRITE };
        let writer = (before.0, mount.fs.open_for(before.0, how, &CALLER).unwrap().handle);
        if !begun.is_empty() {
            mount.write(writer, begun, WRITE).unwrap();
        }
        let reader = mount.fs.open(before.0).unwrap().handle;
        mount.fs.flush(before.0, reader).unwrap();
        mount.fs.release(reader);
        mount.fs.release(before.1);
        mount.fs.commit(Path::new("")).unwrap();
        assert_eq!(stored(), expected, "truncated: {truncate}, then {begun:?}");
        mount.write(writer, b"other", WRITE).unwrap();
        mount.close(writer);
        mount.fs.commit(Path::new("")).unwrap();
        assert_eq!(&mount.content("0")[..5], b"other");
    }
}

#[test]
fn what_is_written_while_a_commit_ends_is_kept() {
    const TIMES: usize = 5000;
    let mount = mount(false);
    let opened = mount.open("0");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                mount.fs.flush(opened.0, opened.1).unwrap();
                mount.fs.commit(Path::new("")).unwrap();
            }
        });
        (0..TIMES).for_each(|_| mount.write(opened, b"x", APPEND).unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    mount.close(opened);
    mount.fs.commit(Path::new("")).unwrap();
    assert_eq!(mount.content("0").len(), 10 + TIMES);
}

#[test]
fn a_chunk_is_not_written_by_who_opened_it_before_others_changed_it() {
    for how in [WriteHow::default(), APPEND, MAPPED] {
        let mut mount = mount(false);
        let (before, other) = (mount.open("0"), mount.open("1"));
        mount.others(&[8; 10]);
        assert_eq!(mount.write(before, b"x", how), Err(libc::ESTALE));
        assert_eq!(mount.content("0"), [8; 10]);
        // Of a chunk that is as it was nothing is refused.
        mount.write(other, b"y", how).unwrap();
        let now = mount.open("0");
        mount.fs.read(now.0, Some(now.1), 0, &mut [0; 10]).unwrap();
        mount.write(now, b"x", how).unwrap();
        // Nor once it was written here.
        if !how.mapped {
            assert_eq!(mount.write(before, b"x", how), Err(libc::ESTALE));
            mount.fs.fsync(now.0, now.1).unwrap();
            assert_eq!(mount.write(before, b"x", how), Err(libc::ESTALE));
            let set = SetAttr { size: Some(3), ..SetAttr::default() };
            assert!(mount.fs.setattr(before.0, Some(before.1), &set, &CALLER).is_err());
        }
        mount.close(now);
        mount.fs.commit(Path::new("")).unwrap();
        let content = if how.append { &[&[8; 10], &b"x"[..]] } else { &[&b"x"[..], &[8; 9]] };
        assert_eq!(mount.content("0"), content.concat());
    }
}

#[test]
fn who_has_written_to_a_chunk_goes_on_until_others_change_it() {
    let mut mount = mount(false);
    let opened = mount.open("0");
    for round in 1..4 {
        mount.write(opened, b"x", APPEND).unwrap();
        mount.fs.fsync(opened.0, opened.1).unwrap();
        assert_eq!(mount.content("0").len(), 10 + round);
    }
    mount.others(b"theirs");
    assert_eq!(mount.write(opened, b"x", APPEND), Err(libc::ESTALE));
    assert_eq!(mount.write(opened, b"x", APPEND), Err(libc::ESTALE));
    assert_eq!(mount.content("0"), b"theirs");
}

#[test]
fn what_was_written_to_a_mapping_and_is_lost_is_reported_to_who_syncs() {
    for is_ahead in [false, true] {
        let mut mount = mount(false);
        let opened = mount.open("0");
        mount.others(b"theirs");
        if is_ahead {
            let now = mount.open("0");
            mount.write(now, b"y", WriteHow::default()).unwrap();
        }
        assert_eq!(mount.write(opened, b"x", MAPPED), Err(libc::ESTALE));
        let synced = mount.fs.fsyncdir(ROOT, None).map_err(|error| error.errno());
        assert_eq!(synced, Err(libc::ESTALE), "{is_ahead}");
        mount.fs.fsyncdir(ROOT, None).unwrap();
    }
}

#[test]
fn a_chunk_that_is_open_for_writing_has_the_date_of_its_shard_until_it_is_written() {
    let mut mount = mount(false);
    let (ino, _) = mount.open("0");
    mount.others(b"theirs");
    let now = mount.fs.getattr(ino, None).unwrap().0;
    let other = mount.fs.getattr(mount.ino("1"), None).unwrap().0;
    assert_eq!((now.mtime, now.size), (other.mtime, 6));
}

#[test]
fn who_has_lost_against_others_writes_no_more_and_all_that_was_written_is_saved() {
    let mut mount = mount(false);
    let ino = mount.ino("0");
    let how = OpenHow { truncate: true, ..TO_WRITE };
    let opened = (ino, mount.fs.open_for(ino, how, &CALLER).unwrap().handle);
    mount.write(opened, b"first", APPEND).unwrap();
    mount.fs.flush(opened.0, opened.1).unwrap();
    mount.others(b"theirs");
    mount.write(opened, b", second", APPEND).unwrap();
    assert!(mount.fs.commit(Path::new("")).is_err());
    assert_eq!(mount.write(opened, b", third", APPEND), Err(libc::ESTALE));
    assert_eq!(mount.content("0"), b"theirs");
    let saved = mount.unsaved.path().join("unsaved/c/0");
    assert_eq!(std::fs::read(saved).unwrap(), b"first, second");
}

#[test]
fn a_chunk_is_that_of_the_array_which_is_there_whatever_others_have_open() {
    let mut mount = mount(false);
    let before = mount.open("0");
    let level = power::level(&[2], IndexKind::Usual, false);
    let chunks = [0_u8, 1].map(|n| (vec![n.into()], vec![n + 7; 6])).into();
    let (shape, chunk, keys) = (vec![4], vec![2], ("default", "/"));
    mount.model = Model { shape, chunk, levels: vec![level], keys, chunks };
    mount.storage.replace("zarr.json", mount.model.metadata().to_string());
    mount.storage.replace("c/0", mount.model.shard(&[0]).unwrap());
    assert_eq!(mount.content("0"), [7; 6]);
    let ino = mount.ino("0");
    assert_ne!(ino, before.0);
    // What is written goes to no file of the array before.
    let refused = mount.fs.open_for(ino, TO_WRITE, &CALLER);
    assert_eq!(refused.map(drop).map_err(|error| error.errno()), Err(libc::ESTALE));
    mount.close(before);
    let now = mount.open("0");
    mount.write(now, b"now", WriteHow::default()).unwrap();
    mount.close(now);
    mount.fs.commit(Path::new("")).unwrap();
    assert_eq!(mount.content("0"), b"now\x07\x07\x07");
}
