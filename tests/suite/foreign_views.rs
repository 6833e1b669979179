//! Arrays of other formats in views that decode, and in the view of Zarr v2: those that real software
//! wrote, where the corpus is there (`SHARDFS_CORPUS`, or `../shared/corpus` beside this repository),
//! and some that are made byte by byte.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use shardfs::format::json;
use shardfs::format::npy::Header;
use shardfs::format::zarr2::Missing;
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, View, ViewConfig};
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::view::inode::ROOT;

use crate::support::foreign::{
    Found, Layout, bcolz, blosc, bloscpack, ino, json_of, names, numbers, shown,
};

const NPY: ViewConfig = of(View::Npy);
const RAW: ViewConfig = of(View::Raw);
const CLIPPED: ViewConfig = ViewConfig { clip: true, ..RAW };
const FLAT: ViewConfig = of(View::Flat);
const ZARR2: ViewConfig = of(View::Zarr2);

const fn of(view: View) -> ViewConfig {
    ViewConfig {
        view,
        is_one_of_several: false,
        big_endian: false,
        clip: false,
        missing: Missing::Auto,
        keep_fill: false,
    }
}

fn config(view: ViewConfig, file: Option<&str>) -> FsConfig {
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    FsConfig { store, view, file: file.map(Into::into), ..FsConfig::default() }
}

fn start(storage: &Arc<MemoryStorage>, config: FsConfig) -> Result<Fs, String> {
    Fs::new(storage.clone(), config, Arc::default()).map_err(|e| e.to_string())
}

fn mount(storage: &Arc<MemoryStorage>, view: ViewConfig, file: Option<&str>) -> Fs {
    start(storage, config(view, file)).unwrap()
}

fn all(storage: &Arc<MemoryStorage>, view: ViewConfig, file: Option<&str>) -> Found {
    shown(&mount(storage, view, file))
}

/// A file of NumPy's: its shape, NumPy's name of its items, and their bytes.
fn npy(file: &[u8]) -> (Vec<u64>, String, Vec<u8>) {
    let (header, start) = Header::parse(file).unwrap();
    (header.shape, header.descr, file[start..].to_vec())
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

// --- what real software wrote ---------------------------------------------------------------------

const FAMILIES: [&str; 4] = ["draft2022", "bloscpack", "blz", "bcolz"];

fn corpus() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    let corpus = std::env::var_os("SHARDFS_CORPUS").map_or_else(beside, PathBuf::from);
    corpus.join("manifests").is_dir().then_some(corpus)
}

/// The manifests of a family; none if there is no corpus.
fn manifests(corpus: &Path) -> Vec<Value> {
    let files = FAMILIES.iter().flat_map(|family| {
        let family = std::fs::read_dir(corpus.join("manifests").join(family));
        family.into_iter().flatten().map(|entry| entry.unwrap().path())
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files.iter().map(|file| json::parse(&std::fs::read(file).unwrap()).unwrap()).collect()
}

/// A store of the corpus: all its files, and which of them is mounted if it is one.
fn store(corpus: &Path, manifest: &Value) -> (Arc<MemoryStorage>, Option<String>) {
    let path = corpus.join(manifest["store"].as_str().unwrap());
    let storage = Arc::new(MemoryStorage::default());
    if path.is_file() {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        storage.replace(&name, std::fs::read(&path).unwrap());
        return (storage, Some(name));
    }
    let mut directories = vec![path.clone()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let found = entry.unwrap().path();
            if found.is_dir() {
                directories.push(found);
            } else {
                let name = found.strip_prefix(&path).unwrap().to_str().unwrap();
                storage.replace(name, std::fs::read(&found).unwrap());
            }
        }
    }
    (storage, None)
}

/// One array of the corpus.
struct Array<'a> {
    manifest: &'a Value,
    /// NumPy's name of its items.
    descr: String,
    item: usize,
    /// In the view.
    directory: String,
    shape: Vec<u64>,
    chunk_shape: Vec<u64>,
}

impl<'a> Array<'a> {
    fn of(manifest: &'a Value) -> Option<Self> {
        let list = |value: &Value| -> Vec<u64> {
            value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
        };
        let (node, family) = (manifest["node"].as_str()?, manifest["family"].as_str()?);
        let directory = match family {
            "draft2022" => format!("data/root/{node}/"),
            _ if node.is_empty() => String::new(),
            _ => format!("{node}/"),
        };
        let named = match family {
            "bloscpack" => manifest["metadata"].get("dtype")?,
            _ => &manifest["data_type"],
        };
        let data_type = shardfs::format::numpy::DataType::parse(named.as_str()?)?;
        let stored = shardfs::format::data_type::DataType::parse(&json!(data_type.name)).unwrap();
        let (mut shape, mut chunk_shape) =
            (list(&manifest["shape"]), list(&manifest["levels"][0]["chunk_shape"]));
        if family == "bloscpack" {
            // The manifest counts bytes.
            shape[0] /= data_type.nbytes;
            chunk_shape[0] /= data_type.nbytes;
        }
        let (descr, item) = (stored.descr(false), stored.nbytes());
        Some(Self { manifest, descr, item, directory, shape, chunk_shape })
    }

    fn chunks(&self) -> impl Iterator<Item = (&Value, Vec<u64>)> {
        let chunks = self.manifest["levels"][0]["chunks"].as_array().unwrap().iter();
        chunks.filter(|chunk| chunk["present"] == json!(true)).map(|chunk| {
            let grid = chunk["grid"].as_array().unwrap();
            (chunk, grid.iter().map(|n| n.as_u64().unwrap()).collect())
        })
    }

    /// In the view of Zarr v3; those of Zarr v2 have no prefix.
    fn key(&self, coords: &[u64], is_zarr2: bool) -> String {
        let draft = self.manifest["family"] == "draft2022";
        let grid = &self.manifest["metadata"]["chunk_grid"];
        let separator = grid["separator"].as_str().unwrap_or("/");
        let numbers: Vec<_> = coords.iter().map(ToString::to_string).collect();
        let numbers = match numbers.is_empty() {
            true => "0".to_owned(),
            false => numbers.join(separator),
        };
        match (is_zarr2, draft) {
            (true, _) => numbers,
            (false, true) => format!("c{numbers}"),
            (false, false) => format!("c/{numbers}"),
        }
    }

    /// Checks the items of a chunk's file against the manifest: what a short chunk lacks is fill value.
    fn check(&self, chunk: &Value, items: &[u8], is_clipped: bool, name: &str) {
        let whole = self.nbytes(&self.chunk_shape);
        let stored = chunk["decoded_nbytes"].as_u64();
        let stored = stored.map_or(whole, |nbytes| usize::try_from(nbytes).unwrap());
        if !is_clipped {
            assert_eq!(items.len(), whole, "{name}");
            assert!(items[stored..].iter().all(|byte| *byte == 0), "{name}: filled up");
        }
        let stored = stored.min(items.len());
        assert_eq!(json!(sha256(&items[..stored])), chunk["decoded_sha256"], "{name}");
    }

    fn nbytes(&self, extents: &[u64]) -> usize {
        usize::try_from(extents.iter().product::<u64>()).unwrap() * self.item
    }

    fn clipped(&self, coords: &[u64]) -> Vec<u64> {
        let axes = self.shape.iter().zip(&self.chunk_shape).zip(coords);
        axes.map(|((extent, edge), at)| (extent - at * edge).min(*edge)).collect()
    }

    /// Files of the array's directory, without the directory's name.
    fn files(&self, found: &Found) -> BTreeMap<String, Result<Vec<u8>, i32>> {
        let own = found.iter().filter_map(|(path, bytes)| {
            Some((path.strip_prefix(&self.directory)?.to_owned(), bytes.clone()))
        });
        let documents = ["meta/", "__attrs__", "header.json", "metadata.json"];
        own.filter(|(name, _)| !documents.iter().any(|it| name.starts_with(it))).collect()
    }

    fn check_view(&self, found: &Found, view: ViewConfig) {
        let mut files = self.files(found);
        let case = &self.manifest["case"];
        let suffix = match view.view {
            View::Npy => ".npy",
            View::Raw => ".raw",
            _ => "",
        };
        for (chunk, coords) in self.chunks() {
            let key = self.key(&coords, view.view == View::Zarr2);
            let name = format!("{case} {:?} {key}{suffix}", view.view);
            let file = files.remove(&format!("{key}{suffix}"));
            let file = file.unwrap_or_else(|| panic!("{name}: not shown")).unwrap();
            let is_short = self.manifest["family"] != "draft2022" && self.is_short(chunk);
            match view.view {
                View::Zarr2 if is_short => {
                    // A Blosc buffer of a whole chunk.
                    let whole = self.nbytes(&self.chunk_shape);
                    assert_eq!(&file[4..8], &u32::try_from(whole).unwrap().to_le_bytes(), "{name}");
                }
                View::Zarr2 => assert_eq!(json!(sha256(&file)), chunk["sha256"], "{name}"),
                View::Npy => {
                    let (shape, descr, items) = npy(&file);
                    assert_eq!((shape, &descr), (self.chunk_shape.clone(), &self.descr), "{name}");
                    self.check(chunk, &items, false, &name);
                }
                _ if view.clip => {
                    let nbytes = self.nbytes(&self.clipped(&coords));
                    assert_eq!(file.len(), nbytes, "{name}");
                    if is_short || self.clipped(&coords) == self.chunk_shape {
                        self.check(chunk, &file, true, &name);
                    }
                }
                _ => self.check(chunk, &file, false, &name),
            }
        }
        let documents: &[&str] = match view.view {
            View::Zarr2 => &[".zarray", ".zattrs"],
            _ => &["array.json"],
        };
        assert!(files.contains_key(documents[0]), "{case}: {:?}", files.keys());
        files.retain(|name, _| !documents.contains(&name.as_str()));
        assert!(files.is_empty(), "{case} {:?}: {:?} as well", view.view, files.keys());
    }

    fn is_short(&self, chunk: &Value) -> bool {
        let whole = self.nbytes(&self.chunk_shape) as u64;
        chunk["decoded_nbytes"].as_u64().is_some_and(|nbytes| nbytes < whole)
    }

    fn check_flat(&self, found: &Found) {
        let case = &self.manifest["case"];
        let raw = found[&format!("{}array.raw", self.directory)].clone().unwrap();
        let header = found[&format!("{}array.npy", self.directory)].clone().unwrap();
        assert_eq!(npy(&header), (self.shape.clone(), self.descr.clone(), raw.clone()), "{case}");
        assert_eq!(json!(sha256(&raw)), self.manifest["crosscheck"]["assembled_sha256"], "{case}");
    }
}

#[test]
fn what_real_software_wrote_is_shown_in_every_view() {
    let Some(corpus) = corpus() else { return };
    let mut checked = BTreeMap::new();
    for manifest in manifests(&corpus) {
        let family = manifest["family"].as_str().unwrap().to_owned();
        let (storage, file) = store(&corpus, &manifest);
        let Some(array) = Array::of(&manifest) else {
            for view in [NPY, RAW, FLAT, ZARR2] {
                let refused = start(&storage, config(view, file.as_deref())).err();
                assert_eq!(refused.as_deref(), Some("its data type is not known"));
            }
            continue;
        };
        for view in [NPY, RAW, CLIPPED, ZARR2] {
            array.check_view(&all(&storage, view, file.as_deref()), view);
        }
        array.check_flat(&all(&storage, FLAT, file.as_deref()));
        *checked.entry(family).or_insert(0) += 1;
    }
    let of = |family: &str| checked.get(family).copied();
    let expected = [Some(6), Some(2), Some(2), Some(4)];
    assert_eq!(FAMILIES.map(of), expected);
}

// --- what is made byte by byte --------------------------------------------------------------------

/// The attributes of a path in the view.
const EMPTY: [u8; 16] = [0xff; 16];

/// The document of an array of 3 x 4 numbers, 2 x 3 in a chunk; the first axis varies fastest, and so
/// does the most significant byte.
fn document() -> Value {
    json!({"shape": [3, 4], "data_type": ">i2", "fill_value": -1, "attributes": {"unit": "m"},
        "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "/"},
        "chunk_memory_layout": "F", "extensions": [],
        "storage_transformers": [{
            "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
            "type": "indexed", "configuration": {"chunks_per_shard": [2, 1]}}]})
}

/// A hierarchy of the draft: a sharded array `g/a`, the chunk (0, 0) without its transformer as `plain`,
/// and one of objects.
fn draft() -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::default());
    let hierarchy = json!({"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_key_suffix": ".json", "extensions": []});
    let put = |name: &str, document: &Value| storage.replace(name, document.to_string());
    put("zarr.json", &hierarchy);
    put("meta/root/g.group.json", &json!({"attributes": {}}));
    put("meta/root/g/a.array.json", &document());
    let mut plain = document();
    plain.as_object_mut().unwrap().remove("storage_transformers");
    put("meta/root/plain.array.json", &plain);
    plain["data_type"] = json!({"extension": "objects", "type": "|O", "fallback": null});
    put("meta/root/objects.array.json", &plain);
    let first = [0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6];
    let entry = |at: u64| [at, 12].map(u64::to_le_bytes).concat();
    let second = [0, 7, 0, 10, 0, 8, 0, 11, 0, 9, 0, 12];
    storage.replace("data/root/g/a/c0/0", [&first[..], &second, &entry(0), &entry(12)].concat());
    storage.replace("data/root/g/a/c0/1", [&second[..], &entry(0), &EMPTY].concat());
    storage.replace("data/root/plain/c0/0", first);
    storage.replace("data/root/objects/c0/0", *b"objects");
    storage
}

#[test]
fn a_draft_array_is_shown_decoded_and_its_document_is_not() {
    let mut found = all(&draft(), NPY, None);
    let twin = json_of(&mut found, "data/root/g/a/array.json");
    assert_eq!((&twin["shape"], &twin["data_type"]), (&json!([3, 4]), &json!("int16")));
    assert_eq!(twin["attributes"], json!({"unit": "m"}));
    assert_eq!(twin["codecs"][1]["configuration"], json!({"endian": "big"}));
    let expected = [
        "data/root/g/a/c0/0.npy",
        "data/root/g/a/c0/1.npy",
        "data/root/g/a/c1/0.npy",
        "data/root/plain/array.json",
        "data/root/plain/c0/0.npy",
        "meta/root/g.group.json",
        "zarr.json",
    ];
    assert_eq!(names(&found), expected);
    let chunk = |name: &str| npy(found[name].as_ref().unwrap());
    let shown = |items: &[i16]| (vec![2, 3], "<i2".to_owned(), numbers(items));
    assert_eq!(chunk("data/root/g/a/c0/0.npy"), shown(&[1, 2, 3, 4, 5, 6]));
    assert_eq!(chunk("data/root/g/a/c1/0.npy"), shown(&[7, 8, 9, 10, 11, 12]));
    assert_eq!(chunk("data/root/plain/c0/0.npy"), shown(&[1, 2, 3, 4, 5, 6]));
    let clipped = all(&draft(), CLIPPED, None);
    assert_eq!(clipped["data/root/g/a/c1/0.raw"], Ok(numbers(&[7, 8, 9])));
    let filled = all(&draft(), ViewConfig { missing: Missing::Fill, ..RAW }, None);
    assert_eq!(filled["data/root/g/a/c1/1.raw"], Ok(numbers(&[-1; 6])));
    let flat = all(&draft(), FLAT, None);
    let whole = numbers(&[1, 2, 3, 7, 4, 5, 6, 10, 7, 8, 9, -1]);
    assert_eq!(flat["data/root/g/a/array.raw"], Ok(whole));
}

#[test]
fn a_draft_array_is_one_of_zarr_v2_and_others_are_as_stored() {
    let mut found = all(&draft(), ZARR2, None);
    let zarray = json_of(&mut found, "data/root/g/a/.zarray");
    let expected = json!({"zarr_format": 2, "shape": [3, 4], "chunks": [2, 3], "dtype": ">i2",
        "compressor": null, "fill_value": -1, "order": "F", "filters": null,
        "dimension_separator": "/"});
    assert_eq!(zarray, expected);
    assert_eq!(json_of(&mut found, "data/root/g/a/.zattrs"), json!({"unit": "m"}));
    let expected = [
        "data/root/g/a/0/0",
        "data/root/g/a/0/1",
        "data/root/g/a/1/0",
        "data/root/objects/c0/0",
        "data/root/plain/.zarray",
        "data/root/plain/.zattrs",
        "data/root/plain/0/0",
        "meta/root/g.group.json",
        "meta/root/objects.array.json",
        "zarr.json",
    ];
    assert_eq!(names(&found), expected);
    assert_eq!(found["data/root/g/a/0/0"], found["data/root/plain/0/0"]);
}

#[test]
fn shards_of_a_draft_array_are_decoded_where_they_are_what_is_shown() {
    let config = FsConfig { level: Some(0), ..config(RAW, None) };
    let found = shown(&start(&draft(), config).unwrap());
    let shard = numbers(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(found["data/root/g/a/c0/0.raw"], Ok(shard));
    let half = [[7, 8, 9, 10, 11, 12], [-1; 6]].concat();
    assert_eq!(found["data/root/g/a/c0/1.raw"], Ok(numbers(&half)));
}

#[test]
fn a_decoded_chunk_of_a_draft_array_can_be_written() {
    let storage = draft();
    let fs = start(&storage, FsConfig { writable: true, ..config(RAW, None) }).unwrap();
    let write = |ino: u64, bytes: &[u8]| {
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let handle = fs.open_for(ino, how, &Caller::own()).unwrap().handle;
        fs.write(ino, handle, 0, bytes).unwrap();
        fs.release(handle);
    };
    write(ino(&fs, "data/root/g/a/c0/0.raw"), &numbers(&[20, 21, 22, 23, 24, 25]));
    write(ino(&fs, "data/root/plain/c0/0.raw"), &numbers(&[30, 31, 32, 33, 34, 35]));
    fs.fsyncdir(ROOT, None).unwrap();
    drop(fs);
    let found = all(&storage, RAW, None);
    assert_eq!(found["data/root/g/a/c0/0.raw"], Ok(numbers(&[20, 21, 22, 23, 24, 25])));
    assert_eq!(found["data/root/g/a/c1/0.raw"], Ok(numbers(&[7, 8, 9, 10, 11, 12])));
    let stored = storage.files().into_iter().find(|(path, ..)| path.ends_with("plain/c0/0"));
    assert_eq!(stored.unwrap().2, [0, 30, 0, 33, 0, 31, 0, 34, 0, 32, 0, 35]);
}

/// They are made of other documents, to which there is no way back.
#[test]
fn documents_of_zarr_v2_cannot_be_changed_where_no_zarr_json_is_stored() {
    let bcolz_only = Arc::new(MemoryStorage::default());
    bcolz(&bcolz_only, "");
    for (storage, directory) in [(draft(), "data/root/g/a/"), (bcolz_only, "")] {
        let before = storage.files();
        let fs = start(&storage, FsConfig { writable: true, ..config(ZARR2, None) }).unwrap();
        let errno = |result: shardfs::fs::Result<()>| result.unwrap_err().errno();
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        for name in [".zarray", ".zattrs"] {
            let document = ino(&fs, &format!("{directory}{name}"));
            assert_eq!(errno(fs.open_for(document, how, &Caller::own()).map(drop)), libc::EROFS);
            let above = directory.strip_suffix('/').map_or(ROOT, |path| ino(&fs, path));
            assert_eq!(errno(fs.unlink(above, OsStr::new(name), &Caller::own())), libc::EROFS);
        }
        drop(fs);
        assert_eq!(storage.files(), before);
    }
}

#[test]
fn nothing_takes_the_place_of_a_document_that_is_not_shown() {
    for view in [ZARR2, NPY] {
        let storage = draft();
        let before = storage.files();
        let fs = start(&storage, FsConfig { writable: true, ..config(view, None) }).unwrap();
        let (above, name) = (ino(&fs, "meta/root/g"), OsStr::new("a.array.json"));
        assert!(fs.lookup(above, name).unwrap().is_none());
        let (how, caller) = (OpenHow { write: true, ..OpenHow::default() }, Caller::own());
        let refused = fs.create(above, name, 0o644, how, &caller).map(drop).unwrap_err();
        assert_eq!(refused.errno(), libc::EPERM);
        let group = (ino(&fs, "meta/root"), OsStr::new("g.group.json"));
        assert!(fs.rename(group, (above, name), false, &Caller::own()).is_err());
        drop(fs);
        assert_eq!(storage.files(), before);
    }
}

/// `0.5` as the last chunk's missing row has it.
fn halves(count: usize) -> Vec<u8> {
    0.5_f64.to_le_bytes().repeat(count)
}

#[test]
fn a_short_last_chunk_is_filled_up_with_the_fill_value_or_clipped() {
    for writable in [false, true] {
        let storage = Arc::new(MemoryStorage::default());
        bcolz(&storage, "");
        let all = |view| {
            let fs = start(&storage, FsConfig { writable, ..config(view, None) }).unwrap();
            shown(&fs)
        };
        let found = all(RAW);
        assert_eq!(found["c/1/0.raw"], Ok(vec![1; 48]));
        assert_eq!(found["c/2/0.raw"], Ok([vec![2; 24], halves(3)].concat()));
        let documents = ["__attrs__", "array.json", "meta/sizes", "meta/storage"];
        let chunks = ["c/0/0.raw", "c/1/0.raw", "c/2/0.raw"];
        assert_eq!(names(&found), [&documents[..2], &chunks, &documents[2..]].concat());
        let found = all(ViewConfig { clip: true, ..NPY });
        let (shape, descr, items) = npy(found["c/2/0.npy"].as_ref().unwrap());
        assert_eq!((shape, &*descr, items), (vec![1, 3], "<f8", vec![2; 24]));
        let whole = [vec![0; 48], vec![1; 48], vec![2; 24]].concat();
        assert_eq!(all(FLAT)["array.raw"], Ok(whole));
        // Nothing beyond the array, however far it could grow.
        let found = all(ViewConfig { missing: Missing::Fill, ..RAW });
        assert_eq!(found.keys().filter(|name| name.starts_with("c/")).count(), 3);
    }
}

#[test]
fn the_only_chunk_may_be_short_as_well() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    storage.replace("meta/sizes", br#"{"shape": [1, 3]}"#.to_vec());
    let superchunk = [&b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0"[..], &blosc(&[7; 24])].concat();
    storage.replace("data/__0.blp", superchunk);
    let found = all(&storage, RAW, None);
    assert_eq!(found["c/0/0.raw"], Ok([vec![7; 24], halves(3)].concat()));
    assert_eq!(found.get("c/1/0.raw"), None);
}

/// Only the last chunk may be short.
#[test]
fn a_short_chunk_before_the_last_is_an_error() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    let superchunk = [&b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0"[..], &blosc(&[7; 24])].concat();
    storage.replace("data/__0.blp", superchunk);
    let found = all(&storage, RAW, None);
    assert_eq!(found["c/0/0.raw"], Err(libc::EIO));
    assert_eq!(found["c/1/0.raw"], Ok(vec![1; 48]));
}

#[test]
fn decoded_chunks_of_other_formats_are_only_read() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    let fs = start(&storage, FsConfig { writable: true, ..config(NPY, None) }).unwrap();
    let how = OpenHow { write: true, ..OpenHow::default() };
    let refused = fs.open_for(ino(&fs, "c/0/0.npy"), how, &Caller::own()).map(drop).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    let refused = fs.unlink(ino(&fs, "c/0"), OsStr::new("0.npy"), &Caller::own()).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
}

#[test]
fn a_bloscpack_file_of_numbers_is_shown_in_every_view() {
    for metadata in [Some(false), Some(true)] {
        for digest in 0..9 {
            let storage = Arc::new(MemoryStorage::default());
            let layout = Layout { digest, offsets: true, metadata, known: true };
            storage.replace("x.blp", bloscpack(layout));
            storage.replace("beside.txt", *b"not shown");
            let found = all(&storage, RAW, Some("x.blp"));
            let documents = ["header.json", "metadata.json"];
            let chunks = ["c/0.raw", "c/1.raw", "c/2.raw", "c/3.raw", "c/4.raw"];
            let expected = [&["array.json"][..], &chunks, &documents].concat();
            assert_eq!(names(&found), expected);
            assert_eq!(found["c/3.raw"], Ok(vec![4; 24]));
            assert_eq!(found["c/4.raw"], Ok([vec![9; 16], vec![0; 8]].concat()));
            assert_eq!(all(&storage, CLIPPED, Some("x.blp"))["c/4.raw"], Ok(vec![9; 16]));
            let found = all(&storage, ZARR2, Some("x.blp"));
            assert_eq!(found["4"], Ok(blosc(&[vec![9; 16], vec![0; 8]].concat())));
            let flat = all(&storage, FLAT, Some("x.blp"));
            assert_eq!(flat["array.raw"].as_ref().unwrap().len(), 4 * 24 + 16);
        }
    }
}

#[test]
fn a_bloscpack_file_of_nobody_knows_what_has_no_such_view() {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("beside.txt", *b"not shown");
    let layout = Layout { digest: 0, offsets: true, metadata: None, known: true };
    storage.replace("x.blp", bloscpack(layout));
    for view in [NPY, RAW, FLAT, ZARR2] {
        let refused = start(&storage, config(view, Some("x.blp"))).err();
        assert_eq!(refused.as_deref(), Some("its data type is not known"));
        // One of several is empty.
        let view = ViewConfig { is_one_of_several: true, ..view };
        assert_eq!(all(&storage, view, Some("x.blp")), Found::new());
    }
}

#[test]
fn an_array_that_becomes_another_is_shown_as_that() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    let fs = [FLAT, CLIPPED].map(|view| mount(&storage, view, None));
    assert_eq!(shown(&fs[0])["array.raw"].as_ref().unwrap().len(), 120);
    assert_eq!(shown(&fs[1])["c/2/0.raw"].as_ref().unwrap().len(), 24);
    // As many chunks as before.
    storage.replace("meta/sizes", br#"{"shape": [6, 3], "nbytes": 144}"#.to_vec());
    let superchunk = [&b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0"[..], &blosc(&[3; 48])].concat();
    storage.replace("data/__2.blp", superchunk);
    assert_eq!(shown(&fs[0])["array.raw"].as_ref().unwrap()[96..], [3; 48]);
    assert_eq!(shown(&fs[1])["c/2/0.raw"], Ok(vec![3; 48]));
    let storage = draft();
    let fs = mount(&storage, NPY, None);
    let descr = || npy(shown(&fs)["data/root/plain/c0/0.npy"].as_ref().unwrap()).1;
    assert_eq!(descr(), "<i2");
    let mut plain = document();
    plain.as_object_mut().unwrap().remove("storage_transformers");
    plain["data_type"] = json!(">u2");
    plain["fill_value"] = json!(0);
    storage.replace("meta/root/plain.array.json", plain.to_string());
    assert_eq!(descr(), "<u2");
}
