//! Files of an object store that are made, changed and removed through a mount: each is put as a whole when it is
//! closed, on the condition that nobody else has changed it.

#![cfg(feature = "remote")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use shardfs::fs::{Fs, FsConfig, FsError, NewShards, OpenHow, Opened, SetAttr, WriteConfig};
use shardfs::store::StoreConfig;
use shardfs::store::storage::Storage;

use crate::power::mounted::{CALLER, User};
use crate::support::bucket::{LONG, asked, bucket, files, server};
use crate::support::object_server::{Asked, Fault, Server};

fn nowhere() -> &'static Path {
    Path::new("/nonexistent")
}

fn mount_of(storage: Arc<dyn Storage>) -> Fs {
    mount_with(storage, NewShards::default())
}

fn mount_with(storage: Arc<dyn Storage>, new_shards: NewShards) -> Fs {
    let store = StoreConfig {
        trusted: Duration::from_millis(10),
        is_written: true,
        pause: Duration::ZERO,
        ..StoreConfig::default()
    };
    let writing =
        WriteConfig { unsaved: nowhere().to_owned(), new_shards, ..WriteConfig::default() };
    let config = FsConfig { store, writable: true, writing, ..FsConfig::default() };
    Fs::new(storage, config, Arc::default()).unwrap()
}

/// A mount of a host that believes for long what it has found.
fn mount(server: &Server) -> Fs {
    mount_of(bucket(server, "", LONG))
}

/// What a host finds that has just come.
fn found(server: &Server, path: &str) -> Option<Vec<u8>> {
    User(&mount(server)).read(path)
}

/// Keys of all objects.
fn keys(server: &Server) -> BTreeSet<String> {
    let storage = bucket(server, "", Duration::ZERO);
    let (mut left, mut found) = (vec![String::new()], BTreeSet::new());
    while let Some(directory) = left.pop() {
        let visit = &mut |item: shardfs::store::storage::DirItem<'_>| {
            let name = item.name.to_str().unwrap();
            let path =
                if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
            match item.kind.unwrap() {
                shardfs::store::storage::FileKind::Directory => left.push(path),
                _ => drop(found.insert(path)),
            }
            ControlFlow::Continue(())
        };
        storage.list(Path::new(&directory), 0, visit).unwrap();
    }
    found
}

fn puts(server: &Server) -> usize {
    asked(server).iter().filter(|asked| asked.starts_with("PUT")).count()
}

fn errno<T>(result: Result<T, FsError>) -> i32 {
    result.map(drop).unwrap_err().errno()
}

/// A file that is open for writing.
struct Open<'a> {
    fs: &'a Fs,
    ino: u64,
    handle: u64,
}

impl<'a> Open<'a> {
    fn new(fs: &'a Fs, path: &str, truncate: bool) -> Self {
        let how = OpenHow { write: true, truncate, ..OpenHow::default() };
        let (parent, name) = User(fs).made_parent(path);
        // As many as there are writers of one file.
        for _ in 0..8 {
            let (ino, opened) = match User(fs).ino(path) {
                Some(ino) => (ino, fs.open_for(ino, how, &CALLER)),
                None => {
                    let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
                    (entry.attr.ino, Ok(opened))
                }
            };
            match opened {
                Ok(Opened { handle, .. }) => return Self { fs, ino, handle },
                // Others have put another version since it was looked up: the kernel does so again.
                Err(FsError::Stale) => (),
                Err(error) => panic!("{path}: {error}"),
            }
        }
        panic!("{path}: another version each time");
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.fs.write(self.ino, self.handle, offset, bytes).unwrap();
    }

    fn flush(&self) -> Result<(), FsError> {
        self.fs.flush(self.ino, self.handle)
    }

    fn close(self) -> Result<(), FsError> {
        let flushed = self.flush();
        self.fs.release(self.handle);
        flushed
    }
}

fn names(fs: &Fs, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let ino = User(fs).ino(path).unwrap();
    let listed = fs.readdir((ino, None), 0, shardfs::fs::Listing::Names, &mut |entry| {
        names.push(entry.name.to_str().unwrap().to_owned());
        ControlFlow::Continue(())
    });
    listed.unwrap();
    names.retain(|name| ![".", ".."].contains(&&**name) && !name.starts_with(".shardfs"));
    names
}

#[test]
fn a_file_is_put_by_one_request_when_it_is_closed() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let open = Open::new(&fs, "new.txt", false);
    (0..5).for_each(|n| open.write(n * 4, b"abcd"));
    assert_eq!(puts(&server), 0);
    // It is there for this mount alone.
    assert_eq!(User(&fs).read("new.txt").unwrap().len(), 20);
    assert!(names(&fs, "").contains(&"new.txt".to_owned()));
    assert_eq!(found(&server, "new.txt"), None);
    open.flush().unwrap();
    assert_eq!(puts(&server), 1);
    // Nothing was written since.
    open.close().unwrap();
    assert_eq!(puts(&server), 0);
    assert_eq!(found(&server, "new.txt"), Some(b"abcd".repeat(5)));
    assert_eq!(User(&fs).read("new.txt"), Some(b"abcd".repeat(5)));
    assert_eq!(names(&fs, "").iter().filter(|name| *name == "new.txt").count(), 1);
    // An empty one.
    Open::new(&fs, "none", false).close().unwrap();
    assert_eq!(found(&server, "none"), Some(Vec::new()));
}

#[test]
fn a_file_is_changed_in_the_middle_at_its_end_and_in_its_length() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let change = |act: &dyn Fn(&Open<'_>)| {
        let open = Open::new(&fs, "notes.txt", false);
        act(&open);
        open.close().unwrap();
        let now = found(&server, "notes.txt").unwrap();
        assert_eq!(User(&fs).read("notes.txt").unwrap(), now);
        String::from_utf8(now).unwrap()
    };
    // Opened for writing, and not written to.
    asked(&server);
    change(&|_| ());
    assert_eq!(puts(&server), 0);
    assert_eq!(change(&|open| open.write(7, b"THROUGH")), "passed THROUGH");
    assert_eq!(change(&|open| open.write(16, b"end")), "passed THROUGH\0\0end");
    let set = |open: &Open<'_>, size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(open.ino, Some(open.handle), &set, &CALLER).unwrap();
    };
    assert_eq!(change(&|open| set(open, 6)), "passed");
    assert_eq!(change(&|open| set(open, 0)), "");
    let open = Open::new(&fs, "notes.txt", true);
    open.write(0, b"anew");
    open.close().unwrap();
    assert_eq!(found(&server, "notes.txt"), Some(b"anew".to_vec()));
    // By its name, without a close.
    let (ino, size) = (User(&fs).ino("notes.txt").unwrap(), Some(2));
    fs.setattr(ino, None, &SetAttr { size, ..SetAttr::default() }, &CALLER).unwrap();
    assert_eq!(found(&server, "notes.txt"), Some(b"an".to_vec()));
    // Modes and dates are those of the store; it has no owners.
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(ino, None, &set, &CALLER).unwrap();
    let set = SetAttr { uid: Some(4711), ..SetAttr::default() };
    assert_eq!(errno(fs.setattr(ino, None, &set, &CALLER)), libc::EPERM);
}

#[test]
fn what_others_have_put_since_a_file_was_opened_is_not_replaced() {
    let server = server(&files(), "");
    let (fs, other) = (mount(&server), mount(&server));
    for (path, truncate) in [("notes.txt", false), ("notes.txt", true), ("new", false)] {
        let open = Open::new(&fs, path, truncate);
        open.write(0, b"ours");
        User(&other).write(path, b"of others", false);
        assert_eq!(errno(open.close()), libc::ESTALE, "{path}");
        assert_eq!(found(&server, path), Some(b"of others".to_vec()), "{path}");
        assert_eq!(User(&fs).read(path), Some(b"of others".to_vec()), "{path}");
        User(&fs).write(path, b"ours, then", false);
        assert_eq!(found(&server, path), Some(b"ours, then".to_vec()), "{path}");
    }
}

#[test]
fn a_file_whose_answer_is_lost_is_put_once_and_told_as_it_is() {
    let server = server(&files(), "");
    let fs = mount(&server);
    for (n, fault) in (0_u8..).zip([Fault::Done, Fault::NoAnswer, Fault::Status(503, None)]) {
        for path in ["notes.txt", &format!("new{n}")] {
            let (fault, left) = (fault.clone(), AtomicUsize::new(1));
            server.fail(move |asked: &Asked| {
                let fails = asked.0 == "PUT" && left.swap(0, Ordering::Relaxed) == 1;
                fails.then(|| fault.clone())
            });
            User(&fs).write(path, &[n; 9], false);
            server.behave();
            assert_eq!(found(&server, path), Some(vec![n; 9]), "{path}");
        }
    }
    server.fail(|asked: &Asked| (asked.0 == "PUT").then_some(Fault::Refused("AccessDenied")));
    let open = Open::new(&fs, "notes.txt", true);
    open.write(0, b"refused");
    assert_eq!(errno(open.close()), libc::EACCES);
    server.behave();
    assert_eq!(found(&server, "notes.txt"), Some(vec![2; 9]));
    assert_eq!(User(&fs).read("notes.txt"), Some(vec![2; 9]));
}

#[test]
fn a_file_is_renamed_also_over_another_and_while_it_is_open() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let user = User(&fs);
    user.rename("notes.txt", "renamed");
    assert_eq!(user.ino("notes.txt"), None);
    assert_eq!(found(&server, "renamed"), Some(b"passed through".to_vec()));
    user.write("other", b"other", false);
    user.rename("other", "renamed");
    assert_eq!(found(&server, "renamed"), Some(b"other".to_vec()));
    let open = Open::new(&fs, "open", false);
    open.write(0, b"begun");
    user.rename("open", "d/e");
    open.write(5, b" and ended");
    open.close().unwrap();
    assert_eq!(found(&server, "d/e"), Some(b"begun and ended".to_vec()));
    let all = keys(&server);
    assert!(["notes.txt", "other", "open"].iter().all(|name| !all.contains(*name)), "{all:?}");
    // Callers copy directories, and have no links.
    let (root, name) = user.parent("d").unwrap();
    let to = (root, OsStr::new("e"));
    assert_eq!(errno(fs.rename((root, name), to, false, &CALLER)), libc::EXDEV);
    let ino = user.ino("renamed").unwrap();
    assert_eq!(errno(fs.link(ino, root, OsStr::new("link"), &CALLER)), libc::EPERM);
    assert_eq!(errno(fs.symlink(root, OsStr::new("link"), Path::new("x"), &CALLER)), libc::EPERM);
}

#[test]
fn a_file_that_was_removed_while_it_was_open_is_not_put() {
    let server = server(&files(), "");
    let fs = mount(&server);
    for path in ["notes.txt", "new"] {
        let open = Open::new(&fs, path, false);
        open.write(0, b"still");
        User(&fs).unlink(path);
        assert_eq!(User(&fs).ino(path), None);
        open.write(5, b" here");
        let mut bytes = [0; 10];
        assert_eq!(fs.read(open.ino, Some(open.handle), 0, &mut bytes).unwrap(), 10);
        assert_eq!(&bytes, b"still here");
        open.close().unwrap();
        assert_eq!(found(&server, path), None);
    }
}

#[test]
fn a_directory_is_there_as_long_as_something_is_in_it_or_the_mount_that_made_it() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let user = User(&fs);
    let (parent, name) = user.made_parent("a/b/c");
    fs.mkdir(parent, name, 0o755, &CALLER).unwrap();
    assert_eq!(errno(fs.mkdir(parent, name, 0o755, &CALLER)), libc::EEXIST);
    assert_eq!((names(&fs, "a"), names(&fs, "a/b")), (vec!["b".into()], vec!["c".into()]));
    assert!(names(&fs, "").contains(&"a".to_owned()) && names(&fs, "a/b/c").is_empty());
    assert_eq!(User(&mount(&server)).ino("a"), None);
    let remove = |path: &str| {
        let (parent, name) = user.parent(path).unwrap();
        fs.rmdir(parent, name, &CALLER)
    };
    assert_eq!(errno(remove("a/b")), libc::ENOTEMPTY);
    user.write("a/b/c/file", b"x", false);
    assert_eq!(errno(remove("a/b/c")), libc::ENOTEMPTY);
    assert_eq!(names(&fs, "a/b/c"), ["file"]);
    user.unlink("a/b/c/file");
    assert!(user.ino("a/b/c").is_some(), "it stays until it is removed");
    ["a/b/c", "a/b", "a"].iter().for_each(|path| remove(path).unwrap());
    assert_eq!(user.ino("a"), None);
    assert!(keys(&server).iter().all(|key| !key.starts_with("a/")));
    // Others have put something there.
    user.made_parent("d/e");
    server.put("d/f", "x");
    assert_eq!(errno(remove("d")), libc::ENOTEMPTY);
}

#[test]
fn a_file_that_is_being_written_is_listed_once_though_nothing_is_believed() {
    let server = server(&files(), "");
    let fs = mount_of(bucket(&server, "", Duration::ZERO));
    let open = Open::new(&fs, "notes.txt", false);
    open.write(0, b"x");
    let new = Open::new(&fs, "d/new", false);
    let all = names(&fs, "");
    for name in ["notes.txt", "d"] {
        assert_eq!(all.iter().filter(|found| *found == name).count(), 1, "{all:?}");
    }
    assert_eq!(names(&fs, "d"), ["new"]);
    open.close().unwrap();
    new.close().unwrap();
    assert_eq!(names(&fs, "d"), ["new"]);
}

fn unsharded(shape: [u64; 2]) -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": [{"name": "bytes"}],
        "attributes": {}})
}

#[test]
fn arrays_and_groups_are_made_through_the_mount() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let user = User(&fs);
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}).to_string();
    // As zarr-python writes a document.
    user.write("g/zarr.json.partial", group.as_bytes(), false);
    user.rename("g/zarr.json.partial", "g/zarr.json");
    user.write("g/a/zarr.json", unsharded([4, 4]).to_string().as_bytes(), false);
    user.write("g/a/c/0/1", b"1234", false);
    assert_eq!(found(&server, "g/zarr.json"), Some(group.into_bytes()));
    assert_eq!(found(&server, "g/a/c/0/1"), Some(b"1234".to_vec()));
    let all = keys(&server);
    assert!(all.contains("g/a/zarr.json") && !all.contains("g/zarr.json.partial"), "{all:?}");
}

#[test]
fn arrays_are_made_sharded_where_there_is_a_rule_and_their_metadata_comes_first() {
    let server = Server::start();
    let fs = mount_with(bucket(&server, "", LONG), NewShards::of_at_most(16));
    let user = User(&fs);
    user.write("a/zarr.json", unsharded([8, 8]).to_string().as_bytes(), false);
    let names = (0..4).flat_map(|row| (0..4).map(move |column| format!("a/c/{row}/{column}")));
    let names: Vec<_> = names.collect();
    names.iter().for_each(|name| user.write(name, name.as_bytes(), false));
    fs.commit(Path::new("")).unwrap();
    assert_eq!(stored(&server, "a/zarr.json")["codecs"][0]["name"], "sharding_indexed");
    assert_eq!(keys(&server).iter().filter(|key| key.starts_with("a/c/")).count(), 4);
    let now = mount(&server);
    for name in &names {
        assert_eq!(User(&now).read(name).as_deref(), Some(name.as_bytes()), "{name}");
    }
    // They would have to be put in their places all at once.
    user.write("b/c/0/0", b"1234", false);
    user.write("b/zarr.json", unsharded([8, 8]).to_string().as_bytes(), false);
    user.write("b/c/0/1", b"5678", false);
    assert_eq!(stored(&server, "b/zarr.json")["codecs"][0]["name"], "bytes");
    assert_eq!(found(&server, "b/c/0/0"), Some(b"1234".to_vec()));
    assert_eq!(found(&server, "b/c/0/1"), Some(b"5678".to_vec()));
    // Of two hosts that make an array at once one does.
    let other = mount_with(bucket(&server, "", LONG), NewShards::of_at_most(16));
    assert_eq!(User(&other).ino("c/zarr.json"), None);
    user.write("c/zarr.json", unsharded([8, 8]).to_string().as_bytes(), false);
    let late = Open::new(&other, "c/zarr.json", true);
    late.write(0, unsharded([2, 2]).to_string().as_bytes());
    assert_eq!(errno(late.close()), libc::ESTALE);
    assert_eq!(stored(&server, "c/zarr.json")["shape"], json!([8, 8]));
}

#[test]
fn an_array_whose_directories_were_made_before_it_can_be_removed() {
    let server = Server::start();
    let fs = mount_with(bucket(&server, "", LONG), NewShards::of_at_most(64));
    let user = User(&fs);
    let (parent, name) = user.made_parent("a/c/0");
    fs.mkdir(parent, name, 0o755, &CALLER).unwrap();
    user.write("a/zarr.json", unsharded([8, 8]).to_string().as_bytes(), false);
    user.write("a/c/0/0", b"1234", true);
    user.unlink("a/c/0/0");
    for path in ["a/c/0", "a/c"] {
        let (parent, name) = user.parent(path).unwrap();
        fs.rmdir(parent, name, &CALLER).unwrap();
    }
    user.unlink("a/zarr.json");
    let (parent, name) = user.parent("a").unwrap();
    fs.rmdir(parent, name, &CALLER).unwrap();
    assert_eq!((user.ino("a"), keys(&server).len()), (None, 0));
}

/// Reads a document, and writes what `change` makes of it.
fn change(fs: &Fs, path: &str, change: impl Fn(&mut Value)) -> Result<(), FsError> {
    let mut document: Value = serde_json::from_slice(&User(fs).read(path).unwrap()).unwrap();
    change(&mut document);
    let open = Open::new(fs, path, true);
    open.write(0, document.to_string().as_bytes());
    open.close()
}

fn stored(server: &Server, path: &str) -> Value {
    let storage = bucket(server, "", LONG);
    let mut bytes = vec![0; 1 << 16];
    let read = storage.open(Path::new(path)).unwrap().read_at(&mut bytes, 0).unwrap();
    serde_json::from_slice(&bytes[..read]).unwrap()
}

#[test]
fn the_document_of_a_sharded_array_is_changed_and_stays_that_of_a_sharded_one() {
    let server = server(&files(), "");
    let (fs, other) = (mount(&server), mount(&server));
    let path = "sharded/zarr.json";
    User(&other).read(path);
    change(&fs, path, |document| document["attributes"] = json!({"a": 1})).unwrap();
    let now = stored(&server, path);
    assert_eq!(now["attributes"], json!({"a": 1}));
    let mut codecs = now["codecs"].as_array().unwrap().iter();
    assert!(codecs.any(|codec| codec["name"] == "sharding_indexed"), "{now}");
    // The other host has read what was there before.
    let stale = change(&other, path, |document| document["attributes"] = json!({"b": 2}));
    assert_eq!(errno(stale), libc::ESTALE);
    assert_eq!(stored(&server, path), now);
    change(&other, path, |document| document["attributes"]["b"] = json!(2)).unwrap();
    assert_eq!(stored(&server, path)["attributes"], json!({"a": 1, "b": 2}));
    // Chunks go on being those of its shards.
    User(&fs).write("sharded/c/0/0", b"chunk", true);
    assert_eq!(found(&server, "sharded/c/0/0"), Some(b"chunk".to_vec()));
}

#[test]
fn chunks_outside_a_smaller_shape_are_removed() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let before = keys(&server);
    change(&fs, "sharded/zarr.json", |document| document["shape"] = json!([2, 4])).unwrap();
    change(&fs, "sharded/zarr.json", |document| document["shape"] = json!([8, 4])).unwrap();
    assert_eq!(found(&server, "sharded/c/0/1"), Some(vec![1; 10]));
    for row in 2..8 {
        assert_eq!(found(&server, &format!("sharded/c/{row}/0")), None, "{row}");
    }
    // A shard is 4 chunks high.
    let gone: Vec<_> = before.difference(&keys(&server)).cloned().collect();
    assert_eq!(gone, ["sharded/c/1/0", "sharded/c/1/1"]);
}

#[test]
fn an_array_that_was_removed_leaves_nothing() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let user = User(&fs);
    // As `rm -r` does.
    for row in 0..8 {
        for column in 0..4 {
            let path = format!("sharded/c/{row}/{column}");
            if user.ino(&path).is_some() {
                user.unlink(&path);
            }
        }
        let directory = format!("sharded/c/{row}");
        let (parent, name) = user.parent(&directory).unwrap();
        fs.rmdir(parent, name, &CALLER).unwrap();
    }
    let (parent, name) = user.parent("sharded/c").unwrap();
    fs.rmdir(parent, name, &CALLER).unwrap();
    user.unlink("sharded/zarr.json");
    let (parent, name) = user.parent("sharded").unwrap();
    let removed = fs.rmdir(parent, name, &CALLER);
    assert!(removed.is_ok(), "{removed:?}: {:?}", keys(&server));
    assert_eq!(user.ino("sharded"), None);
    let left: Vec<_> =
        keys(&server).into_iter().filter(|key| key.starts_with("sharded/")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs.end_commits(), 0);
}

/// It would be taken for a shard.
#[test]
fn a_file_is_not_put_into_an_array_that_others_have_made_since() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let open = Open::new(&fs, "made/c/0/0", false);
    open.write(0, b"a chunk");
    let document = stored(&server, "sharded/zarr.json").to_string();
    server.put("made/zarr.json", document);
    // What was asked for is believed for a second.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(errno(open.close()), libc::ESTALE);
    assert!(!keys(&server).contains("made/c/0/0"));
}

#[test]
fn a_chunk_becomes_a_file_and_a_file_a_chunk() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let user = User(&fs);
    user.rename("sharded/c/0/0", "taken.out");
    assert_eq!(found(&server, "taken.out"), Some(vec![0; 10]));
    user.write("put.in", b"put in", false);
    user.rename("put.in", "sharded/c/0/1");
    fs.commit(Path::new("")).unwrap();
    assert_eq!(found(&server, "sharded/c/0/0"), None);
    assert_eq!(found(&server, "sharded/c/0/1"), Some(b"put in".to_vec()));
    assert!(!keys(&server).contains("put.in"));
}

#[test]
fn a_document_is_put_over_the_version_that_was_read_whatever_is_known_since() {
    let server = server(&files(), "");
    let (storage, other) = (bucket(&server, "", LONG), mount(&server));
    let fs = mount_of(Arc::clone(&storage));
    let path = "sharded/zarr.json";
    let mut document: Value = serde_json::from_slice(&User(&fs).read(path).unwrap()).unwrap();
    document["attributes"] = json!({"ours": 1});
    change(&other, path, |document| document["attributes"] = json!({"other": 1})).unwrap();
    // A commit asks which array is there.
    storage.objects().unwrap().current(Path::new(path)).unwrap();
    let write = || {
        let open = Open::new(&fs, path, true);
        open.write(0, document.to_string().as_bytes());
        // Each descriptor that is closed is told.
        let first = errno(open.flush());
        (first, errno(open.close()))
    };
    assert_eq!(write(), (libc::ESTALE, libc::ESTALE));
    assert_eq!(stored(&server, path)["attributes"], json!({"other": 1}));
    // As is a program that keeps in memory what it has written last.
    change(&fs, path, |document| document["attributes"] = json!({"a": 1})).unwrap();
    change(&other, path, |document| document["attributes"]["b"] = json!(2)).unwrap_err();
    change(&other, path, |document| document["attributes"]["b"] = json!(2)).unwrap();
    assert_eq!(write().0, libc::ESTALE);
    assert_eq!(stored(&server, path)["attributes"], json!({"a": 1, "b": 2}));
}

#[test]
fn a_file_that_others_have_replaced_is_neither_renamed_nor_shown_as_it_was() {
    let server = server(&files(), "");
    let fs = mount_of(bucket(&server, "", Duration::ZERO));
    let user = User(&fs);
    // One that is open, and not written to.
    let open = Open::new(&fs, "notes.txt", false);
    server.put("notes.txt", "of others");
    assert_eq!(user.read("notes.txt"), Some(b"of others".to_vec()));
    user.rename("notes.txt", "renamed");
    assert_eq!(found(&server, "renamed"), Some(b"of others".to_vec()));
    fs.release(open.handle);
    let open = Open::new(&fs, "renamed", false);
    open.write(0, b"ours");
    server.put("renamed", "of others");
    let (root, name) = user.parent("renamed").unwrap();
    let to = (root, OsStr::new("again"));
    assert_eq!(errno(fs.rename((root, name), to, false, &CALLER)), libc::ESTALE);
    assert_eq!(found(&server, "renamed"), Some(b"of others".to_vec()));
    assert_eq!(found(&server, "again"), None);
}

#[test]
fn who_has_a_file_open_for_reading_reads_what_is_written_to_it() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let ino = User(&fs).ino("notes.txt").unwrap();
    let reader = fs.open(ino).unwrap();
    let open = Open::new(&fs, "notes.txt", false);
    open.write(0, b"PASSED");
    let read = || {
        let mut bytes = [0; 14];
        let read = fs.read(ino, Some(reader.handle), 0, &mut bytes).unwrap();
        String::from_utf8(bytes[..read].to_vec()).unwrap()
    };
    assert_eq!(read(), "PASSED through");
    assert_eq!(fs.getattr(ino, Some(reader.handle)).unwrap().0.size, 14);
    open.close().unwrap();
    assert_eq!(read(), "PASSED through");
    // By its name, while it is open for reading.
    let set = SetAttr { size: Some(4), ..SetAttr::default() };
    fs.setattr(ino, None, &set, &CALLER).unwrap();
    assert_eq!(found(&server, "notes.txt"), Some(b"PASS".to_vec()));
    fs.setattr(ino, None, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, &CALLER).unwrap();
    fs.fsync(ino, reader.handle).unwrap();
    fs.release(reader.handle);
}

#[test]
fn what_a_file_was_put_as_without_an_answer_is_known_later() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let open = Open::new(&fs, "notes.txt", true);
    open.write(0, b"first");
    // It is put, and no answer comes, to whatever is asked next either.
    server.fail(|asked: &Asked| match &*asked.0 {
        "PUT" => Some(Fault::Done),
        _ => Some(Fault::Refused("AccessDenied")),
    });
    open.flush().unwrap_err();
    server.behave();
    open.write(5, b", second");
    open.close().unwrap();
    assert_eq!(found(&server, "notes.txt"), Some(b"first, second".to_vec()));
}

#[test]
fn metadata_that_was_removed_is_made_anew() {
    let server = server(&files(), "");
    let fs = mount(&server);
    let user = User(&fs);
    let group = |n: u64| {
        json!({"zarr_format": 3, "node_type": "group", "attributes": {"n": n}}).to_string()
    };
    user.write("g/zarr.json", group(1).as_bytes(), false);
    assert_eq!(user.read("g/zarr.json"), Some(group(1).into_bytes()));
    user.unlink("g/zarr.json");
    user.write("g/zarr.json", group(2).as_bytes(), false);
    assert_eq!(found(&server, "g/zarr.json"), Some(group(2).into_bytes()));
    // Another host has made it meanwhile.
    let other = mount(&server);
    user.unlink("g/zarr.json");
    User(&other).write("g/zarr.json", group(3).as_bytes(), false);
    let open = Open::new(&fs, "g/zarr.json", true);
    open.write(0, group(4).as_bytes());
    assert_eq!(errno(open.close()), libc::ESTALE);
    assert_eq!(found(&server, "g/zarr.json"), Some(group(3).into_bytes()));
}

#[test]
fn several_who_open_a_file_of_one_mount_write_to_the_same_one() {
    let server = server(&files(), "");
    let fs = mount(&server);
    std::thread::scope(|scope| {
        for n in 0..8_u8 {
            let fs = &fs;
            scope.spawn(move || {
                let open = Open::new(fs, "notes.txt", false);
                open.write(n.into(), &[n]);
                open.close().unwrap();
            });
        }
    });
    let now = found(&server, "notes.txt").unwrap();
    assert_eq!((now.len(), &now[..8]), (14, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
}

#[test]
fn a_file_that_was_refused_is_not_shown_though_it_is_still_open() {
    let server = server(&files(), "");
    let (fs, other) = (mount(&server), mount(&server));
    let (writer, holder) = (Open::new(&fs, "notes.txt", false), Open::new(&fs, "notes.txt", false));
    writer.write(0, b"ours");
    User(&other).write("notes.txt", b"of others", false);
    assert_eq!(errno(writer.close()), libc::ESTALE);
    assert_eq!(User(&fs).read("notes.txt"), Some(b"of others".to_vec()));
    User(&fs).write("notes.txt", b"ours, then", false);
    assert_eq!(found(&server, "notes.txt"), Some(b"ours, then".to_vec()));
    assert_eq!(errno(holder.close()), libc::ESTALE);
    // What is removed is what is there, and not what was refused.
    let holder = Open::new(&fs, "refused", false);
    holder.write(0, b"ours");
    User(&other).write("refused", b"of others", false);
    assert_eq!(errno(holder.flush()), libc::ESTALE);
    User(&fs).unlink("refused");
    assert_eq!(found(&server, "refused"), None);
    holder.close().unwrap_err();
    // What others have made since it was looked for is found when it is opened.
    assert_eq!(User(&fs).ino("late"), None);
    User(&other).write("late", b"of others", false);
    User(&fs).write("late", b"ours", false);
    assert_eq!(found(&server, "late"), Some(b"ours".to_vec()));
}

#[test]
fn a_file_that_is_being_written_when_the_mount_ends_is_saved_and_not_put() {
    let server = server(&files(), "");
    let unsaved = tempfile::tempdir().unwrap();
    let store = StoreConfig { is_written: true, ..StoreConfig::default() };
    let writing = WriteConfig { unsaved: unsaved.path().to_owned(), ..WriteConfig::default() };
    let config = FsConfig { store, writable: true, writing, ..FsConfig::default() };
    let fs = Fs::new(bucket(&server, "", LONG), config, Arc::default()).unwrap();
    let open = Open::new(&fs, "notes.txt", true);
    open.write(0, b"a half");
    assert_eq!(fs.end_commits(), 1);
    assert_eq!(found(&server, "notes.txt"), Some(b"passed through".to_vec()));
    let mut saved = BTreeSet::new();
    crate::power::mounted::contents(unsaved.path(), &mut saved);
    assert_eq!(saved, BTreeSet::from([b"a half".to_vec()]));
    assert_eq!(errno(open.close()), libc::EIO);
}
