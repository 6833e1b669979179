//! A lookup that fails below is no absence: whichever operation fails, an array is never taken for a
//! plain directory, nor a file for none.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, View, ViewConfig, WriteConfig};
use shardfs::source::{Node, Source};
use shardfs::store::memory::MemoryStorage;
use shardfs::store::{ShardStore, StoreConfig};
use shardfs::view::inode::ROOT;

use crate::power;
use crate::support::foreign;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// A group with consolidated metadata, a sharded array, one of bcolz and one of Zarr v2.
fn storage() -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::default());
    let case = power::plain(false).swap_remove(0);
    let array = case.model.metadata();
    storage.replace("zarr.json", group(&array).to_string());
    storage.replace("a/zarr.json", array.to_string());
    for (path, bytes) in case.files(&case.model.chunks) {
        storage.replace(path.to_str().unwrap(), bytes);
    }
    foreign::bcolz(&storage, "b/");
    let zarray = json!({"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1",
        "compressor": null, "filters": null, "fill_value": 0, "order": "C"});
    storage.replace("v2/.zarray", zarray.to_string());
    storage.replace("v2/0", vec![7]);
    storage.replace("plain/file", vec![1, 2, 3]);
    storage
}

fn group(array: &Value) -> Value {
    json!({"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata":
        {"kind": "inline", "must_understand": false, "metadata": {"a": array}}})
}

fn mount(storage: &Arc<MemoryStorage>, writable: bool, view: View) -> (Fs, tempfile::TempDir) {
    let unsaved = tempfile::tempdir().unwrap();
    let writing = WriteConfig { unsaved: unsaved.path().join("unsaved"), ..WriteConfig::default() };
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let view = ViewConfig { view, ..ViewConfig::default() };
    let config = FsConfig { store, writable, writing, view, ..FsConfig::default() };
    (Fs::new(storage.clone(), config, Arc::default()).unwrap(), unsaved)
}

/// The content of a file; `None` if there is no such name, the errno of any other error.
fn content(fs: &Fs, path: &str) -> Result<Option<Vec<u8>>, i32> {
    let mut at = ROOT;
    for name in Path::new(path) {
        match fs.lookup(at, name).map_err(|error| error.errno())? {
            Some(entry) => at = entry.attr.ino,
            None => return Ok(None),
        }
    }
    foreign::read(fs, at).map(Some)
}

#[test]
fn what_a_mount_shows_is_there_or_in_error() {
    let storage = storage();
    let views = [View::Zarr3, View::Zarr2, View::Npy, View::Raw, View::Flat];
    let views = views.into_iter().map(|view| (view, false)).chain([(View::Zarr3, true)]);
    for (view, writable) in views {
        let clean = foreign::shown(&mount(&storage, writable, view).0);
        assert!(clean.contains_key("plain/file") && clean.len() > 5, "{:?}", clean.keys());
        for (path, expected) in &clean {
            for nth in 1.. {
                let (fs, _unsaved) = mount(&storage, writable, view);
                storage.fail_nth(nth);
                let before = storage.operations();
                let found = content(&fs, path);
                let all = storage.operations() - before;
                storage.fail(0, power::NO_FAULT);
                match &found {
                    Ok(found) => assert_eq!(
                        found.as_ref(),
                        expected.as_ref().ok(),
                        "{view:?}: {path}, {nth}"
                    ),
                    Err(errno) => assert_ne!(*errno, libc::ENOENT, "{view:?}: {path}, {nth}"),
                }
                if nth > all {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_file_that_others_make_beside_a_lookup_is_there_or_not_yet() {
    let all = storage();
    let shown = foreign::shown(&mount(&all, false, View::Zarr3).0);
    let files = all.files();
    let (shard, ..) = files.iter().find(|(path, ..)| path.starts_with("a/c")).unwrap();
    let shard = shard.to_str().unwrap();
    all.remove(shard);
    let without = foreign::shown(&mount(&all, false, View::Zarr3).0);
    let chunk = shown.keys().find(|path| !without.contains_key(*path)).unwrap();
    for (made, looked_for) in [(shard, chunk.as_str()), ("a/zarr.json", "a/zarr.json")] {
        let (.., bytes) = files.iter().find(|(path, ..)| path == Path::new(made)).unwrap();
        for nth in 1.. {
            let storage = storage();
            storage.remove(made);
            let (fs, _unsaved) = mount(&storage, false, View::Zarr3);
            let before = storage.operations();
            storage.appear(nth, made, bytes.clone());
            let found = content(&fs, looked_for);
            let operations = storage.operations() - before;
            let expected = shown[looked_for].clone().unwrap();
            assert!(
                matches!(&found, Ok(None)) || found == Ok(Some(expected.clone())),
                "{nth}: {found:?}"
            );
            if nth > operations {
                break;
            }
            assert_eq!(content(&fs, looked_for), Ok(Some(expected)), "{nth}, afterwards");
        }
    }
}

/// Puts a file that is called like a document, and is none, into `plain`.
fn put_plain_document(fs: &Fs, text: &[u8]) {
    let above = fs.lookup(ROOT, OsStr::new("plain")).unwrap().unwrap().attr.ino;
    let (new, name) = (OsStr::new("new"), OsStr::new("zarr.json"));
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let (entry, opened) = fs.create(above, new, 0o644, how, &CALLER).unwrap();
    fs.write(entry.attr.ino, opened.handle, 0, text).unwrap();
    fs.flush(entry.attr.ino, opened.handle).unwrap();
    fs.release(opened.handle);
    fs.rename((above, new), (above, name), false, &CALLER).unwrap();
}

#[test]
fn a_file_is_read_while_what_is_called_like_a_document_beside_it_is_replaced() {
    // Lookups before the document is replaced for the first time, and from then on until it is once more.
    const MOST: u64 = 15;
    let replaced = Arc::new(AtomicU64::new(0));
    for (first, second) in (1..=MOST).flat_map(|first| (1..=MOST).map(move |next| (first, next))) {
        let storage = storage();
        let (fs, _unsaved) = mount(&storage, true, View::Zarr3);
        put_plain_document(&fs, b"x");
        let fs = Arc::new(fs);
        let replace = |text: &'static [u8]| {
            let (fs, replaced) = (Arc::clone(&fs), Arc::clone(&replaced));
            move || {
                put_plain_document(&fs, text);
                replaced.fetch_add(1, Ordering::Relaxed);
            }
        };
        let (once, again, disk) = (replace(b"xx"), replace(b"xxx"), Arc::clone(&storage));
        storage.act_before(first, move || {
            once();
            disk.act_before(second, again);
        });
        assert_eq!(content(&fs, "plain/file"), Ok(Some(vec![1, 2, 3])), "{first}, {second}");
    }
    assert!(replaced.load(Ordering::Relaxed) > MOST);
}

#[test]
fn no_array_is_missing_among_the_nodes_of_a_source_without_an_error() {
    let storage = storage();
    let nodes = || {
        let store = ShardStore::new(storage.clone(), StoreConfig::default(), Arc::default());
        let source = Source::over(Path::new("s"), storage.clone(), store);
        let of = |node: Node| (node.directory().to_owned(), format!("{node:?}"));
        source.nodes().map(of).collect::<BTreeMap<_, _>>()
    };
    let all: BTreeSet<_> = nodes().into_keys().collect();
    assert_eq!(all.len(), 4, "{all:?}");
    let before = storage.operations();
    nodes();
    for nth in 1..=storage.operations() - before {
        storage.fail_nth(nth);
        let found = nodes();
        let is_told = found.values().any(|node| node.starts_with("Bad"));
        let is_array = |path: &Path| found[path].starts_with("Array");
        let arrays = ["a", "b", "v2"].map(Path::new);
        let are_all = arrays.iter().all(|path| found.contains_key(*path) && is_array(path));
        assert!(are_all || is_told, "operation {nth}: {:?}", found.keys());
    }
}

#[test]
fn consolidated_metadata_never_says_unsharded_of_a_sharded_array() {
    for nth in 1.. {
        let storage = storage();
        let (fs, _unsaved) = mount(&storage, true, View::Zarr3);
        let shown = content(&fs, "zarr.json").unwrap().unwrap();
        let mut group: Value = serde_json::from_slice(&shown).unwrap();
        group["attributes"]["unit"] = "m".into();
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) =
            fs.create(ROOT, OsStr::new("zarr.json"), 0o644, how, &CALLER).unwrap();
        let ino = entry.attr.ino;
        fs.write(ino, opened.handle, 0, group.to_string().as_bytes()).unwrap();
        storage.fail_nth(nth);
        let before = storage.operations();
        let _ = fs.flush(ino, opened.handle);
        let all = storage.operations() - before;
        storage.fail(0, power::NO_FAULT);
        let files = storage.files();
        let (_, _, stored) =
            files.iter().find(|(path, ..)| path == Path::new("zarr.json")).unwrap();
        let stored: Value = serde_json::from_slice(stored).unwrap();
        let array = &stored["consolidated_metadata"]["metadata"]["a"];
        assert!(array.to_string().contains("sharding_indexed"), "operation {nth}: {stored}");
        if nth > all {
            assert_eq!(stored["attributes"]["unit"], "m");
            break;
        }
    }
}
