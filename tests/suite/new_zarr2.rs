//! Arrays that are created in the view zarr2 of a mount with a rule for new ones: stored sharded, in Zarr v3.

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
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{Storage, Timestamp};

use crate::power::Rng;
use crate::power::mounted::{CALLER, User};

/// Sixteen chunks of four bytes.
fn zarray() -> Value {
    json!({"zarr_format": 2, "shape": [64], "chunks": [4], "dtype": "|u1", "compressor": null, "filters": null,
        "fill_value": 0, "order": "C", "dimension_separator": "."})
}

fn zgroup() -> Value {
    json!({"zarr_format": 2})
}

fn mounted(storage: &Arc<MemoryStorage>, view: View, new_shards: NewShards) -> Fs {
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let view = ViewConfig { view, ..ViewConfig::default() };
    let writing = WriteConfig { new_shards, ..WriteConfig::default() };
    let config = FsConfig { store, view, writable: true, writing, ..FsConfig::default() };
    Fs::new(storage.clone(), config, Arc::default()).unwrap()
}

/// An empty source, in which shards have at most sixteen bytes.
fn creating() -> (Arc<MemoryStorage>, Fs) {
    let storage = Arc::new(MemoryStorage::default());
    let fs = mounted(&storage, View::Zarr2, NewShards::of_at_most(16));
    (storage, fs)
}

fn stored(storage: &MemoryStorage, path: &str) -> Option<Vec<u8>> {
    let found = storage.files().into_iter().find(|(name, ..)| name == Path::new(path))?;
    Some(found.2)
}

fn document(storage: &MemoryStorage, path: &str) -> Value {
    serde_json::from_slice(&stored(storage, path).unwrap()).unwrap()
}

fn is_sharded(document: &Value) -> bool {
    document["codecs"][0]["name"] == "sharding_indexed"
}

/// Names of the files of the source, without those of commits.
fn names(storage: &MemoryStorage) -> Vec<String> {
    let files = storage.files();
    let names = files.iter().map(|(path, ..)| path.display().to_string());
    names.filter(|name| !name.contains(".shardfs")).collect()
}

fn shown(user: &User<'_>, path: &str) -> Value {
    serde_json::from_slice(&user.read(path).unwrap()).unwrap()
}

fn put(user: &User<'_>, path: &str, document: &Value) {
    user.write(path, document.to_string().as_bytes(), false);
}

/// All chunks by number, and the bytes that they have.
fn chunks() -> impl Iterator<Item = (u8, Vec<u8>)> {
    (0_u8..16).map(|n| (n, vec![n; 4]))
}

/// Writes a file through the mount, and returns its error.
fn refused(fs: &Fs, path: &str, content: &[u8]) -> FsError {
    let (parent, name) = User(fs).made_parent(path);
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
    fs.write(entry.attr.ino, opened.handle, 0, content).unwrap();
    let error = fs.flush(entry.attr.ino, opened.handle).unwrap_err();
    fs.release(opened.handle);
    error
}

#[test]
fn a_new_array_of_zarr_v2_is_stored_in_shards_of_zarr_v3() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, ".zgroup", &zgroup());
    put(&user, "a/.zarray", &zarray());
    put(&user, "a/.zattrs", &json!({"unit": "m"}));
    for (n, bytes) in chunks() {
        user.write(&format!("a/{n}"), &bytes, false);
    }
    assert_eq!(shown(&user, "a/.zarray"), zarray());
    assert_eq!(fs.end_commits(), 0);
    assert_eq!(names(&storage), ["a/0", "a/1", "a/2", "a/3", "a/zarr.json", "zarr.json"]);
    let array = document(&storage, "a/zarr.json");
    assert!(is_sharded(&array));
    assert_eq!(array["attributes"], json!({"unit": "m"}));
    assert_eq!(document(&storage, "zarr.json")["node_type"], "group");
    // A mount that makes no shards of its own shows both forms.
    for view in [View::Zarr2, View::Zarr3] {
        let fs = mounted(&storage, view, NewShards::default());
        let user = User(&fs);
        assert!(chunks().all(|(n, bytes)| user.read(&format!("a/{n}")) == Some(bytes)));
        if view == View::Zarr2 {
            assert_eq!(shown(&user, "a/.zarray"), zarray());
            assert_eq!(shown(&user, "a/.zattrs"), json!({"unit": "m"}));
            assert_eq!(shown(&user, ".zgroup"), zgroup());
        }
    }
}

#[test]
fn it_does_not_matter_by_which_steps_the_metadata_comes() {
    let text = zarray().to_string();
    for steps in ["rename", "two writes", "empty first", "attributes first"] {
        let (storage, fs) = creating();
        let user = User(&fs);
        match steps {
            "rename" => {
                user.write("a/.zarray.partial", text.as_bytes(), false);
                user.rename("a/.zarray.partial", "a/.zarray");
            }
            "two writes" => {
                user.write("a/.zarray", &text.as_bytes()[..40], false);
                user.write("a/.zarray", text.as_bytes(), false);
            }
            "empty first" => {
                user.write("a/.zarray", b"", false);
                user.write("a/.zarray", text.as_bytes(), false);
            }
            _ => {
                put(&user, "a/.zattrs", &json!({"unit": "m"}));
                put(&user, "a/.zarray", &zarray());
                assert_eq!(shown(&user, "a/.zattrs"), json!({"unit": "m"}));
            }
        }
        assert_eq!(shown(&user, "a/.zarray"), zarray(), "{steps}");
        assert_eq!(fs.end_commits(), 0, "{steps}");
        assert_eq!(names(&storage), ["a/zarr.json"], "{steps}");
        assert!(is_sharded(&document(&storage, "a/zarr.json")), "{steps}");
    }
}

#[test]
fn the_order_in_which_files_of_zarr_v2_come_changes_nothing() {
    let (zattrs, of_group) =
        (json!({"unit": "m", "_ARRAY_DIMENSIONS": ["x"]}), json!({"title": "t"}));
    let array = {
        let mut array = zarray();
        array["fill_value"] = Value::Null;
        array
    };
    let consolidated = json!({"zarr_consolidated_format": 1, "metadata": {
        ".zgroup": zgroup(), ".zattrs": of_group, "a/.zarray": array, "a/.zattrs": zattrs}});
    for seed in 0..80 {
        let mut rng = Rng(seed);
        let mut files: Vec<(String, Vec<u8>)> =
            chunks().map(|(n, bytes)| (format!("a/{n}"), bytes)).collect();
        for (path, document) in [
            (".zgroup", &zgroup()),
            (".zattrs", &of_group),
            (".zmetadata", &consolidated),
            ("a/.zarray", &array),
            ("a/.zattrs", &zattrs),
        ] {
            files.push((path.to_owned(), document.to_string().into_bytes()));
        }
        for at in (1..files.len()).rev() {
            files.swap(at, rng.below(at + 1));
        }
        let (storage, fs) = creating();
        let user = User(&fs);
        for (path, bytes) in &files {
            user.write(path, bytes, rng.one_in(4));
        }
        let what = format!("seed {seed}");
        let check = |user: &User<'_>| {
            assert_eq!(shown(user, "a/.zarray"), array, "{what}");
            assert_eq!(shown(user, "a/.zattrs"), zattrs, "{what}");
            assert_eq!(shown(user, ".zattrs"), of_group, "{what}");
            assert_eq!(shown(user, ".zmetadata"), consolidated, "{what}");
            for (n, bytes) in chunks() {
                assert_eq!(user.read(&format!("a/{n}")), Some(bytes), "{what}, {n}");
            }
        };
        check(&user);
        assert_eq!(fs.end_commits(), 0, "{what}");
        let expected = ["a/0", "a/1", "a/2", "a/3", "a/zarr.json", "zarr.json"];
        assert_eq!(names(&storage), expected, "{what}");
        let group = document(&storage, "zarr.json");
        let described = &group["consolidated_metadata"]["metadata"]["a"];
        let stored = document(&storage, "a/zarr.json");
        assert!(is_sharded(&stored), "{what}");
        assert_eq!(described["codecs"], stored["codecs"], "{what}");
        assert_eq!(described["attributes"], json!({"unit": "m"}), "{what}");
        check(&User(&mounted(&storage, View::Zarr2, NewShards::default())));
    }
}

/// xarray creates an array, and names its dimensions then.
#[test]
fn a_fill_value_is_the_missing_value_of_an_array_whose_dimensions_are_named_later() {
    for (fill_value, missing) in [(json!(9), Some(9)), (json!(0), Some(0)), (Value::Null, None)] {
        let (storage, fs) = creating();
        let user = User(&fs);
        let mut array = zarray();
        array["fill_value"] = fill_value.clone();
        put(&user, "a/.zarray", &array);
        put(&user, "a/.zattrs", &json!({"_ARRAY_DIMENSIONS": ["x"]}));
        assert_eq!(shown(&user, "a/.zarray")["fill_value"], fill_value);
        let stored = document(&storage, "a/zarr.json");
        assert_eq!(stored["attributes"].get("_FillValue").and_then(Value::as_i64), missing);
        assert_eq!(stored["dimension_names"], json!(["x"]));
        // It is resized with what its client knows.
        array["shape"] = json!([32]);
        put(&user, "a/.zarray", &array);
        assert_eq!(shown(&user, "a/.zarray")["shape"], json!([32]));
    }
}

#[test]
fn what_zarr_v3_cannot_say_is_refused_and_leaves_nothing() {
    let (storage, fs) = creating();
    for (member, value) in [
        ("compressor", json!({"id": "of nobody"})),
        ("dtype", json!([["a", "<i2"]])),
        ("fill_value", json!(256)),
        ("_NCZARR_ARRAY", json!({})),
    ] {
        let mut array = zarray();
        array[member] = value;
        let error = refused(&fs, "a/.zarray", array.to_string().as_bytes());
        assert!(matches!(error, FsError::Refused { .. }), "{member}: {error}");
    }
    let error = refused(&fs, "g/.zgroup", br#"{"zarr_format": 3}"#);
    assert_eq!(error.to_string(), "g/.zgroup: zarr_format must be 2");
    assert_eq!(names(&storage), [""; 0]);
}

/// NetCDF-C does that: the text that it has written is shorter than the one that is shown.
#[test]
fn a_document_that_is_written_over_without_being_cut_off_is_whole() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "g/.zgroup", &zgroup());
    put(&user, "g/.zattrs", &json!({"a": 1, "b": [2, 3]}));
    let over = |path: &str, text: &[u8]| {
        let (ino, how) = (user.ino(path).unwrap(), OpenHow { write: true, ..OpenHow::default() });
        let opened = fs.open_for(ino, how, &CALLER).unwrap();
        fs.write(ino, opened.handle, 0, text).unwrap();
        let flushed = fs.flush(ino, opened.handle);
        fs.release(opened.handle);
        flushed
    };
    over("g/.zgroup", br#"{"zarr_format": 2}"#).unwrap();
    over("g/.zattrs", br#"{"a": 7}"#).unwrap();
    assert_eq!(shown(&user, "g/.zattrs"), json!({"a": 7}));
    assert_eq!(document(&storage, "g/zarr.json")["attributes"], json!({"a": 7}));
    // A part of one is none.
    over("g/.zattrs", br#"{"a": 7, "#).unwrap_err();
}

/// As `cp -p` and Python's `copytree` do it, once a file is closed.
#[test]
fn documents_have_attributes_that_can_be_set() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zarray", &zarray());
    put(&user, "a/.zattrs", &json!({"unit": "m"}));
    for name in [".zarray", ".zattrs"] {
        let ino = user.ino(&format!("a/{name}")).unwrap();
        let mtime = Some(Timestamp { seconds: 1000, nanoseconds: 5 });
        let set = SetAttr { mode: Some(0o640), mtime, ..SetAttr::default() };
        fs.setattr(ino, None, &set, &CALLER).unwrap();
        let attr = fs.getattr(ino, None).unwrap().0;
        assert_eq!(attr.mode & 0o777, 0o640, "{name}");
    }
    assert_eq!(storage.stat(Path::new("a/zarr.json")).unwrap().mode & 0o777, 0o640);
}

#[test]
fn what_zarr_v3_cannot_say_is_stored_as_it_is_written_where_a_rule_says_so() {
    let storage = Arc::new(MemoryStorage::default());
    let off = NewShards::of_at_most(16).except("plain*").unwrap();
    let fs = mounted(&storage, View::Zarr2, off);
    let user = User(&fs);
    let records = with(zarray(), json!({"dtype": [["a", "<i2"]], "fill_value": null}));
    put(&user, "plain/.zarray", &records);
    put(&user, "plain2/.zarray", &zarray());
    assert_eq!(shown(&user, "plain/.zarray"), records);
    assert_eq!(names(&storage), ["plain/.zarray", "plain2/zarr.json"]);
    assert!(!is_sharded(&document(&storage, "plain2/zarr.json")));
}

#[test]
fn a_hierarchy_of_zarr_v2_stays_one() {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace(".zgroup", zgroup().to_string());
    storage.replace("old/.zarray", zarray().to_string());
    let fs = mounted(&storage, View::Zarr2, NewShards::of_at_most(16));
    let user = User(&fs);
    put(&user, "new/.zarray", &zarray());
    put(&user, "old/.zarray", &zarray());
    user.write("new/3", &[3; 4], false);
    assert_eq!(fs.end_commits(), 0);
    assert_eq!(names(&storage), [".zgroup", "new/.zarray", "new/3", "old/.zarray"]);
}

#[test]
fn without_a_rule_documents_are_stored_as_they_are_written() {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace(".zgroup", zgroup().to_string());
    let fs = mounted(&storage, View::Zarr2, NewShards::default());
    put(&User(&fs), "g/.zgroup", &zgroup());
    assert_eq!(names(&storage), [".zgroup", "g/.zgroup"]);
}

#[test]
fn arrays_of_one_chunk_are_stored_unsharded_in_zarr_v3() {
    let (storage, fs) = creating();
    let user = User(&fs);
    let mut scalar = zarray();
    (scalar["shape"], scalar["chunks"]) = (json!([]), json!([]));
    user.write("s/0", &[7], false);
    put(&user, "s/.zarray", &scalar);
    assert_eq!(shown(&user, "s/.zarray"), scalar);
    assert_eq!(user.read("s/0"), Some(vec![7]));
    assert_eq!(fs.end_commits(), 0);
    assert_eq!(names(&storage), ["s/0", "s/zarr.json"]);
    assert!(!is_sharded(&document(&storage, "s/zarr.json")));
}

#[test]
fn an_array_can_be_removed_and_made_anew() {
    let (storage, fs) = creating();
    let user = User(&fs);
    for round in 0_u8..3 {
        put(&user, "a/.zarray", &zarray());
        put(&user, "a/.zattrs", &json!({"round": round}));
        user.write("a/5", &[round; 4], round == 1);
        for name in [".zarray", ".zattrs", "5"] {
            user.unlink(&format!("a/{name}"));
        }
        let (root, name) = user.parent("a").unwrap();
        fs.rmdir(root, name, &CALLER).unwrap();
        assert!(fs.lookup(root, OsStr::new("a")).unwrap().is_none());
    }
    assert_eq!(fs.end_commits(), 0);
    assert_eq!(names(&storage), [""; 0]);
}

fn with(mut document: Value, members: Value) -> Value {
    let members = members.as_object().unwrap().clone();
    document.as_object_mut().unwrap().extend(members);
    document
}

fn named() -> Value {
    json!({"_ARRAY_DIMENSIONS": ["x"]})
}

fn remove(user: &User<'_>, path: &str) {
    let (parent, name) = user.parent(path).unwrap();
    user.0.rmdir(parent, name, &CALLER).unwrap();
}

#[test]
fn attributes_that_come_at_the_same_moment_as_their_array_are_stored() {
    for round in 0..30_u64 {
        let (storage, fs) = creating();
        let user = User(&fs);
        user.made_parent("a/x");
        thread::scope(|scope| {
            scope.spawn(|| put(&user, "a/.zarray", &zarray()));
            thread::sleep(Duration::from_micros(round * 7));
            put(&user, "a/.zattrs", &with(named(), json!({"unit": "m"})));
        });
        assert_eq!(fs.end_commits(), 0);
        assert_eq!(names(&storage), ["a/zarr.json"], "{round}");
        let array = document(&storage, "a/zarr.json");
        assert_eq!(array["attributes"], json!({"unit": "m", "_FillValue": 0}), "{round}");
        assert_eq!(array["dimension_names"], json!(["x"]), "{round}");
    }
}

/// `cp -r` creates files that are not there, and fails where they are.
#[test]
fn chunks_of_an_array_without_a_fill_value_are_not_there_before_they_are_written() {
    let (_, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zarray", &with(zarray(), json!({"fill_value": null})));
    put(&user, "a/.zattrs", &named());
    assert_eq!(shown(&user, "a/.zarray")["fill_value"], Value::Null);
    assert_eq!(user.ino("a/3"), None);
    put(&user, "s/.zarray", &with(zarray(), json!({"shape": [], "chunks": []})));
    assert_eq!(user.ino("s/.zattrs"), None);
}

#[test]
fn an_empty_list_of_attributes_is_shown_as_one() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "g/.zgroup", &zgroup());
    assert_eq!(user.ino("g/.zattrs"), None);
    put(&user, "g/.zattrs", &json!({}));
    assert_eq!(shown(&user, "g/.zattrs"), json!({}));
    user.unlink("g/.zattrs");
    assert_eq!(user.ino("g/.zattrs"), None);
    assert_eq!(document(&storage, "g/zarr.json").get("attributes"), None);
}

#[test]
fn a_scalar_has_the_attributes_that_were_written() {
    let scalar = with(zarray(), json!({"shape": [], "chunks": [], "fill_value": 7}));
    let (storage, fs) = creating();
    let user = User(&fs);
    for (path, attributes) in [("a", json!({"unit": "m"})), ("b", json!({"_ARRAY_DIMENSIONS": []}))]
    {
        put(&user, &format!("{path}/.zarray"), &scalar);
        put(&user, &format!("{path}/.zattrs"), &attributes);
        assert_eq!(shown(&user, &format!("{path}/.zarray")), scalar);
    }
    assert_eq!(shown(&user, "a/.zattrs"), json!({"unit": "m"}));
    assert_eq!(document(&storage, "a/zarr.json")["attributes"], json!({"unit": "m"}));
    // The fill value is the missing value of arrays that xarray makes.
    assert_eq!(document(&storage, "b/zarr.json")["attributes"], json!({"_FillValue": 7}));
    assert_eq!(document(&storage, "b/zarr.json")["dimension_names"], json!([]));
}

/// TensorStore replaces an array without removing its directory.
#[test]
fn documents_that_are_removed_one_by_one_leave_the_others() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zarray", &zarray());
    put(&user, "a/.zattrs", &json!({"unit": "m"}));
    user.unlink("a/.zarray");
    assert_eq!(shown(&user, "a/.zattrs"), json!({"unit": "m"}));
    // Its chunks may be in shards: it is the same array, or none.
    let other = with(zarray(), json!({"dtype": "<f8"}));
    refused(&fs, "a/.zarray", other.to_string().as_bytes());
    put(&user, "a/.zarray", &zarray());
    assert_eq!(document(&storage, "a/zarr.json")["attributes"], json!({"unit": "m"}));
    // Nothing depends on the metadata of a group: it goes with its last document.
    put(&user, "g/.zgroup", &zgroup());
    put(&user, "g/.zattrs", &json!({"k": 1}));
    user.unlink("g/.zgroup");
    assert_eq!(shown(&user, "g/.zattrs"), json!({"k": 1}));
    user.unlink("g/.zattrs");
    assert_eq!(stored(&storage, "g/zarr.json"), None);
    put(&user, "g/.zarray", &zarray());
    assert!(is_sharded(&document(&storage, "g/zarr.json")));
    assert_eq!(fs.end_commits(), 0);
}

#[test]
fn an_array_that_others_put_in_the_place_of_another_is_shown_as_it_is() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zarray", &with(zarray(), json!({"fill_value": null})));
    assert_eq!(shown(&user, "a/.zarray")["fill_value"], Value::Null);
    let mut other = document(&storage, "a/zarr.json");
    other["fill_value"] = json!(7);
    storage.replace("a/zarr.json", other.to_string());
    assert_eq!(shown(&user, "a/.zarray")["fill_value"], 7);
}

#[test]
fn a_fill_value_goes_with_the_directory_of_its_array() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zarray", &with(zarray(), json!({"fill_value": 5})));
    user.unlink("a/.zarray");
    remove(&user, "a");
    put(&user, "t/.zarray", &with(zarray(), json!({"fill_value": 7})));
    user.rename("t", "a");
    put(&user, "a/.zattrs", &named());
    assert_eq!(shown(&user, "a/.zarray")["fill_value"], 7);
    assert_eq!(document(&storage, "a/zarr.json")["attributes"], json!({"_FillValue": 7}));
}

#[test]
fn documents_of_zarr_v2_that_are_left_beside_zarr_json_are_not_there() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zarray", &zarray());
    storage.replace("a/.zattrs", r#"{"old": 1}"#);
    storage.replace("a/.zgroup", zgroup().to_string());
    assert_eq!(user.ino("a/.zattrs"), None);
    put(&user, "a/.zattrs", &json!({"new": 1}));
    assert_eq!(shown(&user, "a/.zattrs"), json!({"new": 1}));
    for name in [".zattrs", ".zarray"] {
        user.unlink(&format!("a/{name}"));
    }
    remove(&user, "a");
    assert_eq!(fs.end_commits(), 0);
    assert_eq!(names(&storage), [""; 0]);
}

#[test]
fn attributes_that_are_private_stay_so_and_those_that_are_none_stop_the_array() {
    let (storage, fs) = creating();
    let user = User(&fs);
    put(&user, "a/.zattrs", &json!({"secret": 1}));
    let private = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(user.ino("a/.zattrs").unwrap(), None, &private, &CALLER).unwrap();
    put(&user, "a/.zarray", &zarray());
    assert_eq!(storage.stat(Path::new("a/zarr.json")).unwrap().mode & 0o777, 0o600);
    let deep = format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200));
    user.write("b/.zattrs", deep.as_bytes(), false);
    let error = refused(&fs, "b/.zarray", zarray().to_string().as_bytes());
    assert!(error.to_string().starts_with("b/.zattrs: not valid JSON"), "{error}");
}

#[test]
fn consolidated_metadata_that_describes_what_cannot_be_stored_stays_where_it_is() {
    let (storage, fs) = creating();
    let user = User(&fs);
    let records = with(zarray(), json!({"dtype": [["a", "<i2"]]}));
    let consolidated = json!({"zarr_consolidated_format": 1, "metadata": {
        ".zgroup": zgroup(), "a/.zarray": records}});
    put(&user, ".zmetadata", &consolidated);
    put(&user, ".zgroup", &zgroup());
    assert_eq!(names(&storage), [".zmetadata", "zarr.json"]);
    assert_eq!(document(&storage, ".zmetadata"), consolidated);
    assert_eq!(document(&storage, "zarr.json").get("consolidated_metadata"), None);
    // An array has none, in whatever order it comes.
    let none = json!({"zarr_consolidated_format": 1, "metadata": {}});
    put(&user, "b/.zarray", &zarray());
    refused(&fs, "b/.zmetadata", none.to_string().as_bytes());
    put(&user, "c/.zmetadata", &none);
    put(&user, "c/.zarray", &zarray());
    for array in ["b", "c"] {
        let stored = document(&storage, &format!("{array}/zarr.json"));
        assert_eq!(stored.get("consolidated_metadata"), None, "{array}");
    }
    assert_eq!(document(&storage, "c/.zmetadata"), none);
}
