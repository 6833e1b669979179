//! Arrays and groups of Zarr v2, whose chunks are files: as they are stored, and decoded.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardfs::format::zarr2::Missing;
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, Pages, View, ViewConfig};
use shardfs::source::{Format, Node, Source};
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{PosixStorage, SetStat};
use shardfs::store::{ShardStore, StoreConfig};
use shardfs::view::inode::ROOT;

use crate::support::foreign::{Found, ino, json_of, names, numbers, shown};

fn config(view: View) -> FsConfig {
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let view = ViewConfig { view, ..ViewConfig::default() };
    FsConfig { store, view, ..FsConfig::default() }
}

fn start(storage: &Arc<MemoryStorage>, config: FsConfig) -> Result<Fs, String> {
    Fs::new(storage.clone(), config, Arc::default()).map_err(|e| e.to_string())
}

fn all(storage: &Arc<MemoryStorage>, view: View) -> Found {
    shown(&start(storage, config(view)).unwrap())
}

/// An array of 3 x 4 numbers, 2 x 3 in a chunk; the first axis varies fastest, and so does the most
/// significant byte.
fn zarray() -> Value {
    json!({"zarr_format": 2, "shape": [3, 4], "chunks": [2, 3], "dtype": ">i2", "order": "F",
        "compressor": null, "filters": null, "fill_value": -1})
}

/// A hierarchy: a group, an array with two of its four chunks, one of a type that Zarr v3 has not, and a folder.
fn hierarchy() -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::default());
    let put = |name: &str, document: &Value| storage.replace(name, document.to_string());
    put(".zgroup", &json!({"zarr_format": 2}));
    put(".zattrs", &json!({"title": "numbers"}));
    put("g/.zgroup", &json!({"zarr_format": 2}));
    put("g/a/.zarray", &zarray());
    put("g/a/.zattrs", &json!({"unit": "m"}));
    storage.replace("g/a/0.0", [0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6]);
    storage.replace("g/a/1.0", [0, 7, 255, 255, 0, 8, 255, 255, 0, 9, 255, 255]);
    storage.replace("g/a/notes.txt", *b"notes");
    let mut objects = zarray();
    (objects["dtype"], objects["filters"]) = (json!("|O"), json!([{"id": "pickle"}]));
    put("objects/.zarray", &objects);
    storage.replace("objects/0.0", *b"objects");
    storage.replace("folder/readme", *b"read me");
    storage
}

#[test]
fn chunks_of_zarr_v2_are_decoded() {
    let mut found = all(&hierarchy(), View::Raw);
    let twin = json_of(&mut found, "g/a/array.json");
    assert_eq!((&twin["zarr_format"], &twin["shape"]), (&json!(3), &json!([3, 4])));
    assert_eq!(twin["attributes"], json!({"unit": "m"}));
    assert_eq!(json_of(&mut found, "group.json")["attributes"], json!({"title": "numbers"}));
    let expected = ["folder/readme", "g/a/0.0.raw", "g/a/1.0.raw", "g/a/notes.txt", "g/group.json"];
    assert_eq!(names(&found), expected);
    assert_eq!(found["g/a/0.0.raw"], Ok(numbers(&[1, 2, 3, 4, 5, 6])));
    assert_eq!(found["g/a/1.0.raw"], Ok(numbers(&[7, 8, 9, -1, -1, -1])));
    let flat = all(&hierarchy(), View::Flat);
    let whole = numbers(&[1, 2, 3, -1, 4, 5, 6, -1, 7, 8, 9, -1]);
    assert_eq!(flat["g/a/array.raw"], Ok(whole));
}

#[test]
fn an_array_of_zarr_v2_can_be_the_root() {
    let storage = Arc::new(MemoryStorage::default());
    let mut zarray = zarray();
    zarray["dimension_separator"] = json!("/");
    storage.replace(".zarray", zarray.to_string());
    storage.replace("0/1", [0, 10, 0, 11, 255, 255, 255, 255, 255, 255, 255, 255]);
    let found = all(&storage, View::Npy);
    assert_eq!(names(&found), ["0/1.npy", "array.json"]);
    assert!(found["0/1.npy"].as_ref().unwrap().ends_with(&numbers(&[10, -1, -1, 11, -1, -1])));
    let config = FsConfig { format: Some(Format::Zarr), ..config(View::Raw) };
    assert_eq!(names(&shown(&start(&storage, config).unwrap())), ["0/1.raw", "array.json"]);
}

#[test]
fn views_of_encoded_chunks_show_zarr_v2_as_it_is_stored() {
    let storage = hierarchy();
    let files = storage.files().into_iter();
    let stored: Found =
        files.map(|(path, _, bytes)| (path.to_str().unwrap().to_owned(), Ok(bytes))).collect();
    for view in [View::Zarr3, View::Zarr2] {
        assert_eq!(all(&storage, view), stored, "{}", view.name());
    }
}

#[test]
fn what_is_wrong_with_a_document_of_zarr_v2_is_said_of_that_document() {
    let storage = Arc::new(MemoryStorage::default());
    let mut zarray = zarray();
    zarray["chunks"] = json!([0, 3]);
    storage.replace(".zarray", zarray.to_string());
    let error = start(&storage, config(View::Raw)).err().unwrap();
    assert!(error.starts_with(".zarray: "), "{error}");
    // As it is stored, nobody has to understand it.
    assert_eq!(names(&all(&storage, View::Zarr3)), [".zarray"]);
    // Below a root that can be used it is a node without its data.
    let storage = hierarchy();
    storage.replace("g/a/.zarray", *b"{");
    let found = all(&storage, View::Raw);
    assert_eq!(found["g/a/0.0"], Err(libc::EIO));
    assert_eq!(found["g/a/.zarray"], Ok(b"{".to_vec()));
    // The attributes are a document of their own.
    let storage = hierarchy();
    storage.replace(".zattrs", *b"[");
    let error = start(&storage, config(View::Raw)).err().unwrap();
    assert!(error.starts_with(".zattrs: "), "{error}");
}

#[test]
fn a_document_of_zarr_v2_that_is_a_link_to_nothing_is_an_error() {
    for document in [".zarray", ".zgroup"] {
        let storage = Arc::new(MemoryStorage::default());
        storage.put_symlink(document, "lost");
        storage.replace("0.0", *b"a chunk");
        let error = start(&storage, config(View::Raw)).err().unwrap();
        assert!(error.starts_with(&format!("{document}: ")), "{error}");
        // Commands say the same.
        let store = ShardStore::new(storage.clone(), StoreConfig::default(), Arc::default());
        let source = Source::over(Path::new("source"), storage.clone(), store);
        let found: Vec<Node> = source.nodes().collect();
        assert!(matches!(&found[..], [Node::Bad(..)]), "{found:?}");
    }
}

#[test]
fn a_source_is_refused_if_it_is_not_of_the_format_that_is_named() {
    let of = |storage: &Arc<MemoryStorage>, format| {
        start(storage, FsConfig { format: Some(format), ..config(View::Zarr3) }).map(|_| ())
    };
    let refused = Err("it is not of the format that --format names".to_owned());
    let storage = hierarchy();
    assert_eq!(of(&storage, Format::Zarr), Ok(()));
    assert_eq!(of(&storage, Format::Bloscpack), refused);
    assert_eq!(of(&storage, Format::Draft2022), refused);
    // The root has no document, and nothing below is of that format.
    assert_eq!(of(&storage, Format::Blz), refused);
    storage.replace("zarr.json", json!({"zarr_format": 3, "node_type": "group"}).to_string());
    assert_eq!(of(&storage, Format::Zarr), Ok(()));
    assert_eq!(of(&storage, Format::Blz), refused);
}

#[test]
fn an_array_of_zarr_v2_that_is_made_changed_or_removed_is_noticed() {
    let storage = hierarchy();
    let fs = start(&storage, config(View::Raw)).unwrap();
    let size = |path: &str| {
        let (above, name) = path.rsplit_once('/').unwrap();
        let entry = fs.lookup(ino(&fs, above), OsStr::new(name)).unwrap();
        entry.map(|entry| entry.attr.size)
    };
    assert_eq!((size("folder/readme"), size("folder/0.0.raw")), (Some(7), None));
    storage.replace("folder/0.0", [0; 12]);
    storage.replace("folder/.zarray", zarray().to_string());
    assert_eq!((size("folder/0.0.raw"), size("folder/0.0")), (Some(12), None));
    let mut longer = zarray();
    longer["dtype"] = json!("<i4");
    storage.replace("folder/.zarray", longer.to_string());
    assert_eq!(size("folder/0.0.raw"), Some(24));
    storage.replace("g/a/.zattrs", json!({"unit": "km"}).to_string());
    let mut found = shown(&fs);
    assert_eq!(json_of(&mut found, "g/a/array.json")["attributes"], json!({"unit": "km"}));
}

#[test]
fn attributes_of_zarr_v2_are_as_new_and_as_private_as_the_file_they_are_in() {
    let storage = hierarchy();
    let fs = start(&storage, config(View::Raw)).unwrap();
    let attr = || fs.getattr(ino(&fs, "g/a/array.json"), None).unwrap().0;
    let before = attr();
    storage.replace("g/a/.zattrs", json!({"unit": "k"}).to_string());
    let after = attr();
    assert!(after.size == before.size && after.mtime > before.mtime);
    let private = SetStat { mode: Some(0o600), ..SetStat::default() };
    storage.set_stat(Path::new("g/a/.zattrs"), &private).unwrap();
    assert_eq!(attr().mode & 0o777, 0o600);
}

#[test]
fn a_chunk_of_zarr_v2_that_equals_the_fill_value_is_stored() {
    for fill_value in [Value::Null, json!(0), json!(-1)] {
        let storage = hierarchy();
        let mut zarray = zarray();
        zarray["fill_value"] = fill_value.clone();
        storage.replace("g/a/.zarray", zarray.to_string());
        let fs = start(&storage, FsConfig { writable: true, ..config(View::Raw) }).unwrap();
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let chunk = ino(&fs, "g/a/0.0.raw");
        let handle = fs.open_for(chunk, how, &Caller::own()).unwrap().handle;
        let fill = i16::try_from(fill_value.as_i64().unwrap_or(0)).unwrap();
        fs.write(chunk, handle, 0, &numbers(&[fill; 6])).unwrap();
        fs.release(handle);
        fs.fsyncdir(ROOT, None).unwrap();
        let stored = storage.files().into_iter().find(|(path, ..)| path.ends_with("g/a/0.0"));
        assert_eq!(stored.unwrap().2, fill.to_be_bytes().repeat(6), "{fill_value}");
    }
}

#[test]
fn nothing_takes_the_place_of_a_document_that_the_view_has_made() {
    let storage = hierarchy();
    let fs = start(&storage, FsConfig { writable: true, ..config(View::Raw) }).unwrap();
    let before = storage.files();
    let (folder, array) = (ino(&fs, "folder"), ino(&fs, "g/a"));
    for (above, name) in [(array, "array.json"), (ino(&fs, "g"), "group.json")] {
        let to = (above, OsStr::new(name));
        let from = (folder, OsStr::new("readme"));
        assert_eq!(fs.rename(from, to, false, &Caller::own()).unwrap_err().errno(), libc::EPERM);
    }
    drop(fs);
    assert_eq!(storage.files(), before);
}

#[test]
fn a_decoded_chunk_of_zarr_v2_can_be_written() {
    let storage = hierarchy();
    let fs = start(&storage, FsConfig { writable: true, ..config(View::Raw) }).unwrap();
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let chunk = ino(&fs, "g/a/0.0.raw");
    let handle = fs.open_for(chunk, how, &Caller::own()).unwrap().handle;
    fs.write(chunk, handle, 0, &numbers(&[20, 21, 22, 23, 24, 25])).unwrap();
    fs.release(handle);
    let new = OsStr::new("0.1.raw");
    let made = fs.create(ino(&fs, "g/a"), new, 0o644, how, &Caller::own()).unwrap();
    fs.write(made.0.attr.ino, made.1.handle, 0, &numbers(&[30; 6])).unwrap();
    fs.release(made.1.handle);
    fs.fsyncdir(ROOT, None).unwrap();
    drop(fs);
    let stored = |name: &str| storage.files().into_iter().find(|(path, ..)| path.ends_with(name));
    assert_eq!(stored("g/a/0.0").unwrap().2, [0, 20, 0, 23, 0, 21, 0, 24, 0, 22, 0, 25]);
    assert_eq!(stored("g/a/0.1").unwrap().2, [0, 30].repeat(6));
    // Readers of Zarr v2 find the documents that they had.
    assert_eq!(stored("g/a/.zarray").unwrap().2, zarray().to_string().into_bytes());
}

/// The kernel goes on with the length of the absent chunk for a second.
#[test]
fn a_chunk_that_appears_where_an_absent_one_was_shown_is_not_read_with_its_length() {
    // Within that second, which may be over on a busy machine.
    assert!((0..20).any(|_| read_where_absent() < Duration::from_secs(1)));
}

/// Reads a chunk that appears where an absent one was shown. Returns how long ago that was.
fn read_where_absent() -> Duration {
    let storage = Arc::new(MemoryStorage::default());
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": [1000],
        "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [500]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]});
    storage.replace("zarr.json", document.to_string());
    storage.replace("c/1", *b"chunk 1");
    let view = ViewConfig { view: View::Zarr2, missing: Missing::Fill, ..ViewConfig::default() };
    let fs = start(&storage, FsConfig { view, ..FsConfig::default() }).unwrap();
    let begun = Instant::now();
    let absent = fs.lookup(ROOT, OsStr::new("0")).unwrap().unwrap().attr;
    let chunk = vec![7; usize::try_from(absent.size).unwrap() + 30];
    storage.replace("c/0", chunk.clone());
    // Until the source is asked again.
    std::thread::sleep(Duration::from_millis(20));
    let refused = fs.open(absent.ino).map_err(|error| error.errno());
    let shown = fs.lookup(ROOT, OsStr::new("0")).unwrap();
    let opened = fs.open(absent.ino).unwrap();
    let took = begun.elapsed();
    if took < Duration::from_secs(1) {
        assert_eq!(refused.err(), Some(libc::ESTALE), "the kernel is to look its name up");
        assert_eq!((shown.is_some(), opened.pages), (true, Pages::Bypassed));
    }
    let mut buffer = vec![0; 1000];
    let read = fs.read(absent.ino, Some(opened.handle), 0, &mut buffer).unwrap();
    assert_eq!(buffer[..read], chunk);
    took
}
