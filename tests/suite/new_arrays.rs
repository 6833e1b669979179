//! Arrays that are created through a mount, and stored sharded by its rule.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

use crate::power::Rng;
use crate::power::mounted::{CALLER, User, mount_as};

/// Sixteen chunks of four bytes.
fn document() -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": [64], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}], "attributes": {"unit": "m"}})
}

fn group() -> Value {
    json!({"zarr_format": 3, "node_type": "group", "attributes": {}})
}

/// A source with a group, mounted so that shards have at most sixteen bytes.
fn mounted(storage: &Arc<MemoryStorage>) -> Fs {
    mount_as(
        storage,
        WriteConfig { new_shards: NewShards::of_at_most(16), ..WriteConfig::default() },
    )
}

fn source() -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("zarr.json", group().to_string());
    storage
}

fn stored(storage: &MemoryStorage, path: &str) -> Option<Vec<u8>> {
    let found = storage.files().into_iter().find(|(name, ..)| name == Path::new(path))?;
    Some(found.2)
}

fn is_sharded(storage: &MemoryStorage, path: &str) -> bool {
    let document: Value = serde_json::from_slice(&stored(storage, path).unwrap()).unwrap();
    document["codecs"][0]["name"] == "sharding_indexed"
}

fn shown(user: &User<'_>, path: &str) -> Value {
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

/// All chunks by number, and the bytes that they have.
fn chunks() -> impl Iterator<Item = (String, Vec<u8>)> {
    (0_u8..16).map(|n| (format!("a/c/{n}"), vec![n; 3 + usize::from(n % 3)]))
}

/// Checks that a mount which makes no shards finds an array whole, and nothing but shards in the source.
fn check_whole(storage: &Arc<MemoryStorage>, what: &str) {
    assert!(is_sharded(storage, "a/zarr.json"), "{what}");
    let files = storage.files();
    let below: Vec<_> = files.iter().filter(|(path, ..)| path.starts_with("a")).collect();
    let names = below.iter().map(|(path, ..)| path.display().to_string());
    let names: Vec<String> = names.filter(|name| !name.contains(".shardfs/")).collect();
    assert_eq!(names, ["a/c/0", "a/c/1", "a/c/2", "a/c/3", "a/zarr.json"], "{what}");
    assert!(!below.iter().any(|(path, ..)| path.starts_with("a/.shardfs/gathered")), "{what}");
    let fs = mount_as(storage, WriteConfig::default());
    let user = User(&fs);
    assert_eq!(shown(&user, "a/zarr.json"), document(), "{what}");
    chunks().for_each(|(path, bytes)| assert_eq!(user.read(&path), Some(bytes), "{what}, {path}"));
}

#[test]
fn the_order_in_which_files_come_changes_nothing() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut files: Vec<(String, Vec<u8>)> = chunks().collect();
        files.push(("a/zarr.json".to_owned(), document().to_string().into_bytes()));
        files.push(("zarr.json".to_owned(), group().to_string().into_bytes()));
        for at in (1..files.len()).rev() {
            files.swap(at, rng.below(at + 1));
        }
        let storage = Arc::new(MemoryStorage::default());
        let fs = mounted(&storage);
        let user = User(&fs);
        for (path, bytes) in &files {
            user.write(path, bytes, rng.one_in(4));
        }
        assert_eq!(shown(&user, "a/zarr.json"), document(), "{seed}");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{seed}, {path}");
        }
        assert_eq!(fs.end_commits(), 0, "{seed}");
        check_whole(&storage, &format!("seed {seed}"));
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
fn a_chunk_that_is_being_written_when_the_document_comes_is_waited_for() {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
    let (parent, name) = user.made_parent("a/c/7");
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
    let (ino, handle) = (entry.attr.ino, opened.handle);
    thread::scope(|scope| {
        scope.spawn(|| user.write("a/zarr.json", document().to_string().as_bytes(), false));
        thread::sleep(Duration::from_millis(150));
        fs.write(ino, handle, 0, &[7; 4]).unwrap();
        fs.flush(ino, handle).unwrap();
        fs.release(handle);
    });
    assert_eq!(fs.end_commits(), 0);
    check_whole(&storage, "one was open");
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
        assert_eq!(stored(&storage, "a/c/1").unwrap(), shard, "{view:?}");
    }
}

/// A mount of real files, whose locks keep other mounts away.
fn mount_local(top: &Path, new_shards: NewShards) -> Fs {
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

/// As long as there are chunk files: another process, such as another mount, writes one and creates one.
#[test]
fn chunk_files_that_another_process_changes_while_their_array_is_made_are_in_it_as_they_are() {
    let mut changed = 0;
    for nth in 1.. {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().skip(1).for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let (acts, done) = (Arc::clone(&storage), Arc::new(AtomicBool::new(false)));
        let was_in_time = Arc::clone(&done);
        storage.act_before(nth, move || {
            let files = acts.files();
            // Once there are no more of them, names are those of shards.
            if files.iter().any(|(path, ..)| path == Path::new("a/c/9")) {
                acts.replace("a/c/5", [99; 4]);
                acts.replace("a/c/0", [98; 4]);
                was_in_time.store(true, Ordering::Relaxed);
            }
        });
        user.write("a/zarr.json", document().to_string().as_bytes(), false);
        assert_eq!(fs.end_commits(), 0, "{nth}");
        drop(fs);
        let is_over = storage.operations() < nth;
        if done.load(Ordering::Relaxed) {
            changed += 1;
            assert!(is_sharded(&storage, "a/zarr.json"), "{nth}");
            let fs = mount_as(&storage, WriteConfig::default());
            let user = User(&fs);
            for (n, (path, bytes)) in chunks().enumerate() {
                let bytes = match n {
                    0 => vec![98; 4],
                    5 => vec![99; 4],
                    _ => bytes,
                };
                assert_eq!(user.read(&path), Some(bytes), "{nth}, {path}");
            }
        }
        if is_over {
            break;
        }
    }
    assert!(changed > 20, "{changed}");
}

/// Each with its own locks, as in two processes.
#[test]
fn two_mounts_that_bring_the_files_of_one_array_lose_none_of_them() {
    for round in 0..20 {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("zarr.json"), group().to_string()).unwrap();
        let mount = |new_shards: NewShards| mount_local(top.path(), new_shards);
        std::fs::create_dir_all(top.path().join("a/c")).unwrap();
        let mount = &mount;
        thread::scope(|scope| {
            for half in [0, 1] {
                scope.spawn(move || {
                    let fs = mount(NewShards::of_at_most(16));
                    let directory = |path: &str| {
                        let found = path.split('/').try_fold(1, |above, name| {
                            let entry = fs.lookup(above, OsStr::new(name)).ok()??;
                            Some(entry.attr.ino)
                        });
                        found.map(|ino| (ino, ""))
                    };
                    for n in half * 8..half * 8 + 8 {
                        let name: &'static str = Box::leak(n.to_string().into_boxed_str());
                        let bytes = chunks().nth(n).unwrap().1;
                        create(&fs, || Some((directory("a/c")?.0, name)), &bytes);
                    }
                    let text = document().to_string();
                    create(&fs, || Some((directory("a")?.0, "zarr.json")), text.as_bytes());
                    assert_eq!(fs.end_commits(), 0, "{round}");
                });
            }
        });
        let fs = mount(NewShards::default());
        let user = User(&fs);
        assert_eq!(shown(&user, "a/zarr.json"), document(), "{round}");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{round}, {path}");
        }
    }
}

/// What has chunk keys in its directory are shards, or chunk files that are going.
#[test]
fn nothing_is_written_into_an_array_that_waits_for_its_place() {
    let is_there = |storage: &MemoryStorage, path: &str| stored(storage, path).is_some();
    let mut waits = false;
    for nth in (1..).take_while(|nth| *nth < 2000) {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let acts = Arc::clone(&storage);
        storage.act_before(nth, move || {
            let is_decided = is_there(&acts, "a/.shardfs/gathered/zarr.json");
            if is_decided && is_there(&acts, "a/c/9") {
                acts.replace("a/c/notes", "in the way");
            }
        });
        let (parent, name) = user.made_parent("a/zarr.json");
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
        fs.write(entry.attr.ino, opened.handle, 0, document().to_string().as_bytes()).unwrap();
        let closed = fs.flush(entry.attr.ino, opened.handle);
        fs.release(opened.handle);
        if !is_there(&storage, "a/c/notes") {
            continue;
        }
        assert!(closed.is_err(), "{nth}");
        waits = true;
        let c = user.ino("a/c").unwrap();
        for name in ["1", "5", "15"] {
            let found = fs.lookup(c, OsStr::new(name));
            assert!(matches!(found, Err(FsError::BadMetadata(_))), "{nth}, {name}: {found:?}");
            let created = fs.create(c, OsStr::new(name), 0o644, how, &CALLER);
            assert!(created.is_err(), "{nth}, {name}");
        }
        storage.remove("a/c/notes");
        assert_eq!(user.read("a/c/5"), Some(chunks().nth(5).unwrap().1), "{nth}");
        drop(fs);
        check_whole(&storage, "no longer in the way");
        break;
    }
    assert!(waits);
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
fn chunk_files_among_others_are_stored_as_they_are() {
    for other in ["a/c/notes", "a/c/16", "a/c/3.part"] {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        user.write("a/c/3", &[3; 4], false);
        user.write(other, b"other", false);
        user.write("a/zarr.json", document().to_string().as_bytes(), false);
        assert!(!is_sharded(&storage, "a/zarr.json"), "{other}");
        assert_eq!(user.read("a/c/3"), Some(vec![3; 4]), "{other}");
        assert_eq!(stored(&storage, other).as_deref(), Some(&b"other"[..]), "{other}");
        let is_left = |(path, ..): &(PathBuf, _, _)| path.starts_with("a/.shardfs");
        assert!(!storage.files().iter().any(is_left), "{other}");
    }
}

#[test]
fn an_error_of_the_source_leaves_chunk_files_or_an_array() {
    for nth in 1.. {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let (parent, name) = user.made_parent("a/zarr.json");
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
        let (ino, handle) = (entry.attr.ino, opened.handle);
        fs.write(ino, handle, 0, document().to_string().as_bytes()).unwrap();
        storage.fail_nth(nth);
        let closed = fs.flush(ino, handle);
        let was_late = storage.fail_no_more();
        fs.release(handle);
        fs.end_commits();
        drop(fs);
        // Whatever happened, all bytes are there, and an array that is there is whole.
        let fs = mount_as(&storage, WriteConfig::default());
        let user = User(&fs);
        let found = user.read("a/zarr.json");
        assert!(found.is_some() || closed.is_err(), "{nth}: it is not there, and no error");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{nth}, {path}, {closed:?}");
        }
        let is_left = |(path, ..): &(PathBuf, _, _)| path.starts_with("a/.shardfs/gathered");
        assert!(!storage.files().iter().any(is_left), "{nth}, {closed:?}");
        if was_late {
            assert!(nth > 50, "{nth}");
            break;
        }
    }
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

#[test]
fn a_chunk_that_comes_while_its_array_is_made_is_a_file_or_in_a_shard_and_not_both() {
    for round in 0..300 {
        let storage = source();
        let fs = mounted(&storage);
        let (parent, c) = {
            let user = User(&fs);
            let (root, name) = user.made_parent("a");
            let a = fs.mkdir(root, name, 0o755, &CALLER).unwrap().attr.ino;
            (a, fs.mkdir(a, OsStr::new("c"), 0o755, &CALLER).unwrap().attr.ino)
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                create(&fs, || Some((parent, "zarr.json")), document().to_string().as_bytes());
            });
            // The directory is another one once the array is there.
            let place = || match fs.lookup(parent, OsStr::new("c")) {
                Err(FsError::Stale) => None,
                found => Some((found.unwrap().map_or(c, |entry| entry.attr.ino), "5")),
            };
            create(&fs, place, &[5; 4]);
        });
        assert_eq!(fs.end_commits(), 0, "{round}");
        let sharded = is_sharded(&storage, "a/zarr.json");
        assert_eq!(stored(&storage, "a/c/5").is_none(), sharded, "{round}");
        let fs = mount_as(&storage, WriteConfig::default());
        assert_eq!(User(&fs).read("a/c/5"), Some(vec![5; 4]), "{round}, sharded: {sharded}");
    }
}

/// Creates a file in a place as the kernel does for a process: anew where it is another by now.
fn create(fs: &Fs, place: impl Fn() -> Option<(u64, &'static str)>, content: &[u8]) {
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let created = || {
        let (parent, name) = place()?;
        match fs.create(parent, OsStr::new(name), 0o644, how, &CALLER) {
            Err(FsError::Stale | FsError::NotFound) => None,
            created => Some(created.unwrap()),
        }
    };
    let (entry, opened) = (0..100).find_map(|_| created()).unwrap();
    fs.write(entry.attr.ino, opened.handle, 0, content).unwrap();
    fs.flush(entry.attr.ino, opened.handle).unwrap();
    fs.release(opened.handle);
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
