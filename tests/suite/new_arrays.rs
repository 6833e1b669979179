//! Arrays that are created through a mount, and stored sharded by its rule.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use shardfs::fs::{
    Fs, FsConfig, FsError, NewShards, OpenHow, SetAttr, View, ViewConfig, WriteConfig,
};
use shardfs::store::StoreConfig;
use shardfs::store::local::LocalStorage;
use shardfs::store::memory::{Change, MemoryStorage};
use shardfs::store::storage::Timestamp;

use crate::gathering::{check_whole, chunks, create};
use crate::power::Rng;
use crate::power::mounted::{CALLER, User, mount_as};

/// Sixteen chunks of four bytes.
pub(crate) fn document() -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": [64], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}], "attributes": {"unit": "m"}})
}

pub(crate) fn group() -> Value {
    json!({"zarr_format": 3, "node_type": "group", "attributes": {}})
}

/// A source with a group, mounted so that shards have at most sixteen bytes.
pub(crate) fn mounted(storage: &Arc<MemoryStorage>) -> Fs {
    mount_as(
        storage,
        WriteConfig { new_shards: NewShards::of_at_most(16), ..WriteConfig::default() },
    )
}

pub(crate) fn source() -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("zarr.json", group().to_string());
    storage
}

pub(crate) fn stored(storage: &MemoryStorage, path: &str) -> Option<Vec<u8>> {
    let found = storage.files().into_iter().find(|(name, ..)| name == Path::new(path))?;
    Some(found.2)
}

pub(crate) fn is_sharded(storage: &MemoryStorage, path: &str) -> bool {
    let document: Value = serde_json::from_slice(&stored(storage, path).unwrap()).unwrap();
    document["codecs"][0]["name"] == "sharding_indexed"
}

pub(crate) fn shown(user: &User<'_>, path: &str) -> Value {
    serde_json::from_slice(&user.read(path).unwrap()).unwrap()
}

#[test]
fn a_new_array_is_stored_in_shards_and_shown_as_it_was_written() {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    user.write("a/zarr.json", document().to_string().as_bytes(), true);
    assert!(is_sharded(&storage, "a/zarr.json"));
    assert_eq!(shown(&user, "a/zarr.json"), document());
    for n in 0_u8..16 {
        user.write(&format!("a/c/{n}"), &[n; 4], false);
    }
    assert_eq!(fs.end_commits(), 0);
    let files = storage.files();
    let shards = files.iter().filter(|(path, ..)| path.starts_with("a/c")).count();
    assert_eq!(shards, 4);
    // Another mount, which makes no shards of its own.
    let fs = mount_as(&storage, WriteConfig::default());
    let user = User(&fs);
    assert_eq!(shown(&user, "a/zarr.json"), document());
    assert!((0_u8..16).all(|n| user.read(&format!("a/c/{n}")) == Some(vec![n; 4])));
}

#[test]
fn it_does_not_matter_by_which_steps_the_document_comes() {
    let text = document().to_string();
    let (one, other) = text.as_bytes().split_at(40);
    for steps in ["rename", "link", "two writes", "emptied before", "flushed between"] {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        match steps {
            "rename" => {
                user.write("a/zarr.json.partial", text.as_bytes(), false);
                user.rename("a/zarr.json.partial", "a/zarr.json");
            }
            "link" => {
                user.write("a/zarr.partial", text.as_bytes(), false);
                user.link("a/zarr.partial", "a/zarr.json");
                user.unlink("a/zarr.partial");
            }
            _ => {
                let (parent, name) = user.made_parent("a/zarr.json");
                let how = OpenHow { write: true, truncate: true, exclusive: false };
                let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
                let (ino, handle) = (entry.attr.ino, opened.handle);
                if steps == "emptied before" {
                    fs.flush(ino, handle).unwrap();
                }
                fs.write(ino, handle, 0, one).unwrap();
                if steps == "flushed between" {
                    fs.flush(ino, handle).unwrap();
                }
                fs.write(ino, handle, 40, other).unwrap();
                fs.flush(ino, handle).unwrap();
                fs.release(handle);
            }
        }
        assert!(is_sharded(&storage, "a/zarr.json"), "{steps}");
        assert_eq!(shown(&user, "a/zarr.json"), document(), "{steps}");
        assert_eq!(fs.end_commits(), 0, "{steps}");
    }
}

/// The kernel looks no directory up again before it creates something in it.
#[test]
fn directories_that_were_made_before_the_document_get_chunks_by_their_old_numbers() {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    let (root, name) = user.made_parent("a");
    let a = fs.mkdir(root, name, 0o755, &CALLER).unwrap().attr.ino;
    let c = fs.mkdir(a, OsStr::new("c"), 0o755, &CALLER).unwrap().attr.ino;
    user.write("a/zarr.json", document().to_string().as_bytes(), false);
    assert_ne!(user.ino("a/c"), Some(c), "it is a directory above chunks");
    assert!(fs.getattr(c, None).is_ok() && fs.lookup(c, OsStr::new("5")).unwrap().is_none());
    create(&fs, || Some((c, "5")), &[5; 4]);
    assert_eq!(user.read("a/c/5"), Some(vec![5; 4]));
    assert_eq!(fs.end_commits(), 0);
    assert!(stored(&storage, "a/c/1").is_some() && stored(&storage, "a/c/5").is_none());
}

#[test]
fn a_shard_is_not_taken_for_the_chunk_file_that_had_its_name_in_any_view() {
    for view in [View::Zarr3, View::Zarr2, View::Raw] {
        let storage = source();
        chunks().for_each(|(path, bytes)| storage.replace(&path, bytes));
        let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
        let view_config = ViewConfig { view, ..ViewConfig::default() };
        let config = FsConfig { store, writable: true, view: view_config, ..FsConfig::default() };
        let other = Fs::new(storage.clone(), config, Arc::default()).unwrap();
        let known = User(&other).ino("a/c/1").unwrap();
        let fs = mounted(&storage);
        User(&fs).write("a/zarr.json", document().to_string().as_bytes(), false);
        let shard = stored(&storage, "a/c/1").unwrap();
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let opened = other.open_for(known, how, &CALLER);
        assert!(matches!(opened, Err(FsError::Stale)), "{view:?}");
        assert!(matches!(other.open(known), Err(FsError::Stale)), "{view:?}");
        // The kernel looks the name up again; ENOENT would be believed.
        assert!(matches!(other.getattr(known, None), Err(FsError::Stale)), "{view:?}");
        let now =
            SetAttr { mtime: Some(Timestamp { seconds: 1, nanoseconds: 0 }), ..SetAttr::default() };
        let set = other.setattr(known, None, &now, &CALLER);
        assert!(matches!(set, Err(FsError::Stale)), "{view:?}");
        let set = other.setxattr(known, OsStr::new("user.x"), b"1", 0, &CALLER);
        assert!(matches!(set, Err(FsError::Stale)), "{view:?}: {set:?}");
        assert_eq!(stored(&storage, "a/c/1").unwrap(), shard, "{view:?}");
    }
}

/// A mount of real files, whose locks keep other mounts away.
pub(crate) fn mount_local(top: &Path, new_shards: NewShards) -> Fs {
    let storage = LocalStorage::open_root(top, Arc::default()).unwrap();
    let writing = WriteConfig { new_shards, ..WriteConfig::default() };
    let config = FsConfig { writable: true, writing, ..FsConfig::default() };
    Fs::new(Arc::new(storage), config, Arc::default()).unwrap()
}

/// Locks are those of real files.
#[test]
fn a_document_that_two_write_at_once_makes_one_array() {
    for round in 0..20 {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("zarr.json"), group().to_string()).unwrap();
        let mount = |new_shards: NewShards| mount_local(top.path(), new_shards);
        let fs = mount(NewShards::of_at_most(16));
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let a = user.ino("a").unwrap();
        thread::scope(|scope| {
            for name in ["one.part", "other.part"] {
                let fs = &fs;
                scope.spawn(move || {
                    create(fs, || Some((a, name)), document().to_string().as_bytes());
                    let to = (a, OsStr::new("zarr.json"));
                    fs.rename((a, OsStr::new(name)), to, false, &CALLER).unwrap();
                });
            }
        });
        assert_eq!(fs.end_commits(), 0, "{round}");
        drop(fs);
        let text = std::fs::read(top.path().join("a/zarr.json")).unwrap();
        let stored: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(stored["codecs"][0]["name"], "sharding_indexed", "{round}");
        let fs = mount(NewShards::default());
        let user = User(&fs);
        assert_eq!(shown(&user, "a/zarr.json"), document(), "{round}");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{round}, {path}");
        }
    }
}

#[test]
fn an_empty_document_is_none_yet() {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
    for array in ["a", "b"] {
        let path = format!("{array}/zarr.json");
        user.write(&path, b"", false);
        user.write(&path, document().to_string().as_bytes(), false);
    }
    assert_eq!(fs.end_commits(), 0);
    assert!(is_sharded(&storage, "b/zarr.json"));
    check_whole(&storage, "empty before");
}

#[test]
fn what_is_an_array_already_is_stored_as_it_is_written() {
    let storage = source();
    storage.replace("old/zarr.json", document().to_string());
    let fs = mounted(&storage);
    let user = User(&fs);
    let mut changed = document();
    changed["attributes"] = json!({"unit": "s"});
    user.write("old/zarr.json", changed.to_string().as_bytes(), false);
    assert!(!is_sharded(&storage, "old/zarr.json"));
    // Directories alone are no chunks, and a group becomes an array where it has none.
    let (parent, name) = user.made_parent("b/c");
    fs.mkdir(parent, name, 0o755, &CALLER).unwrap();
    user.write("b/zarr.json", group().to_string().as_bytes(), false);
    user.write("b/zarr.json", document().to_string().as_bytes(), false);
    assert!(is_sharded(&storage, "b/zarr.json"));
    assert!(user.ino("b/c").is_some(), "it was made by whoever is about to put chunks there");
    // One chunk would be one shard.
    let mut small = document();
    small["shape"] = json!([4]);
    user.write("small/zarr.json", small.to_string().as_bytes(), false);
    assert!(!is_sharded(&storage, "small/zarr.json"));
}

#[test]
fn an_array_that_is_removed_and_made_anew_is_sharded_again() {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    for round in 1_u8..3 {
        user.write("a/zarr.json", document().to_string().as_bytes(), false);
        user.write("a/c/1", &[round; 4], false);
        user.write("a/c/15", &[round; 4], true);
        assert!(is_sharded(&storage, "a/zarr.json"));
        assert_eq!(user.read("a/c/15"), Some(vec![round; 4]));
        ["a/c/1", "a/c/15"].iter().for_each(|path| user.unlink(path));
        fs.rmdir(user.ino("a").unwrap(), OsStr::new("c"), &CALLER).unwrap();
        user.unlink("a/zarr.json");
        fs.rmdir(user.ino("").unwrap(), OsStr::new("a"), &CALLER).unwrap();
        assert!(!storage.files().iter().any(|(path, ..)| path.starts_with("a")), "{round}");
    }
}

/// 96 chunks of so many bytes.
fn of_96(chunk: usize) -> Value {
    let mut document = document();
    document["shape"] = json!([96 * chunk]);
    document["chunk_grid"]["configuration"]["chunk_shape"] = json!([chunk]);
    document
}

/// A microscope, or a simulation: chunks come in order, and are committed in between.
#[test]
fn a_stream_of_chunks_is_written_once() {
    const CHUNK: usize = 1 << 16;
    for at_start in [false, true] {
        let storage = source();
        let rule = NewShards::of_at_most(32 * CHUNK as u64);
        let new_shards = if at_start { rule.with_index_at_start() } else { rule };
        let fs = mount_as(&storage, WriteConfig { new_shards, ..WriteConfig::default() });
        let user = User(&fs);
        let document = of_96(CHUNK);
        user.write("a/zarr.json", document.to_string().as_bytes(), false);
        storage.take_history();
        let (mut rng, mut asked) = (Rng(3), 0);
        for n in 0..96 {
            let length = CHUNK / 2 + rng.below(CHUNK / 2);
            let bytes = rng.bytes(length);
            asked += bytes.len();
            user.write(&format!("a/c/{n}"), &bytes, false);
            if n % 5 == 4 {
                fs.commit(Path::new("")).unwrap();
            }
        }
        assert_eq!(fs.end_commits(), 0);
        let bytes_of = |change: Change| match change {
            Change::Write { bytes, .. } => bytes.len(),
            _ => 0,
        };
        let written: usize = storage.take_history().into_iter().map(bytes_of).sum();
        assert!(written * 100 <= asked * 102, "{written} bytes for {asked}, {at_start}");
        let files = storage.files();
        let shards = files.iter().filter(|(path, ..)| path.starts_with("a/c"));
        let (count, stored) =
            shards.fold((0, 0), |(count, all), (.., bytes)| (count + 1, all + bytes.len()));
        assert_eq!(count, 3);
        // At the end, each commit leaves an index behind, for smaller chunks to come; at the start it has its place.
        let indexes = 3 * (32 * 16 + 4);
        let most = asked + if at_start { indexes } else { 8 * indexes };
        assert!(stored <= most, "{stored} bytes of {asked}, {at_start}");
    }
}

/// TensorStore makes each chunk durable that it writes.
#[test]
fn a_stream_of_durable_chunks_leaves_little_behind() {
    const CHUNK: usize = 1000;
    let storage = source();
    let new_shards = NewShards::of_at_most(32 * CHUNK as u64);
    let fs = mount_as(&storage, WriteConfig { new_shards, ..WriteConfig::default() });
    let user = User(&fs);
    let document = of_96(CHUNK);
    user.write("a/zarr.json", document.to_string().as_bytes(), false);
    for n in 0_u8..96 {
        user.write(&format!("a/c/{n}"), &[n; CHUNK], true);
    }
    assert_eq!(fs.end_commits(), 0);
    for (path, _, bytes) in storage.files().iter().filter(|(path, ..)| path.starts_with("a/c")) {
        let least = 32 * (CHUNK + 16) + 4;
        assert!(bytes.len() <= least * 9 / 8, "{}: {} bytes", path.display(), bytes.len());
    }
    let fs = mount_as(&storage, WriteConfig::default());
    let user = User(&fs);
    assert!((0_u8..96).all(|n| user.read(&format!("a/c/{n}")) == Some(vec![n; CHUNK])));
}
