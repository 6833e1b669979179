//! Small sources on disk for tests, with every byte of a shard written by hand.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::format::index::EMPTY;
use crate::source::{OpenConfig, Source};

/// Index entry of an empty chunk.
pub(crate) const NONE: (u64, u64) = (EMPTY, EMPTY);

/// Returns the codecs of an array whose shards have chunks of `chunk_shape`.
pub(crate) fn sharding(chunk_shape: &Value, codecs: &Value) -> Value {
    json!([{"name": "sharding_indexed", "configuration":
        {"chunk_shape": chunk_shape, "codecs": codecs, "index_codecs": ["bytes", "crc32c"]}}])
}

/// Returns the metadata of an array of bytes.
pub(crate) fn array(shape: &Value, shard: &Value, codecs: &Value) -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs})
}

/// Creates an array of eight bytes in shards of two chunks of two bytes: `abcd` in `c/0`, `ef` in
/// `c/1`.
pub(crate) fn plain() -> TempDir {
    let document = array(&json!([8]), &json!([4]), &sharding(&json!([2]), &json!(["bytes"])));
    let directory = with_files(&[("zarr.json", document.to_string().as_bytes())]);
    put(directory.path(), "c/0", &shard(b"abcd", &[(0, 2), (2, 2)]));
    put(directory.path(), "c/1", &shard(b"ef", &[(0, 2), NONE]));
    directory
}

/// Creates a group with consolidated metadata of three arrays: `sound`, `broken`, whose metadata
/// cannot be used, and `broken/below`, which is not in the source.
pub(crate) fn consolidated() -> TempDir {
    let array = array(&json!([8]), &json!([4]), &sharding(&json!([2]), &json!(["bytes"])));
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {},
        "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata":
            {"sound": array, "broken": array, "broken/below": array}}});
    with_files(&[
        ("zarr.json", group.to_string().as_bytes()),
        ("sound/zarr.json", array.to_string().as_bytes()),
        ("broken/zarr.json", b"{"),
    ])
}

/// Creates a group with consolidated metadata that lists the array `waves` of eight bytes and
/// symbolic links: `alias` and `absolute` to the array, `folder` to the group itself, `nowhere`.
pub(crate) fn linked() -> TempDir {
    let array = array(&json!([8]), &json!([4]), &sharding(&json!([2]), &json!(["bytes"])));
    let node = json!({"zarr_format": 3, "node_type": "group", "attributes": {}});
    let mut group = node.clone();
    group["consolidated_metadata"] = json!({"kind": "inline", "must_understand": false, "metadata": {
            "waves": array, "alias": array, "absolute": array, "folder": node, "nowhere": array}});
    let directory = with_files(&[
        ("zarr.json", group.to_string().as_bytes()),
        ("waves/zarr.json", array.to_string().as_bytes()),
        ("waves/c/0", &shard(b"abcd", &[(0, 2), (2, 2)])),
    ]);
    let top = directory.path().canonicalize().unwrap();
    let absolute = top.join("waves");
    for (link, target) in
        [("alias", Path::new("waves")), ("absolute", &absolute), ("folder", Path::new("."))]
    {
        std::os::unix::fs::symlink(target, top.join(link)).unwrap();
    }
    std::os::unix::fs::symlink("nothing", top.join("nowhere")).unwrap();
    directory
}

/// Creates a bcolz array of five numbers in three files of two, the second of which is missing.
pub(crate) fn without_chunk_file() -> TempDir {
    let chunk = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).unwrap();
        let lengths = [length, length, length + 16].map(u32::to_le_bytes).concat();
        [&b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\x01\x02\x01"[..], &lengths, bytes].concat()
    };
    with_files(&[
        ("meta/sizes", br#"{"shape": [5], "nbytes": 5}"#),
        ("meta/storage", br#"{"dtype": "uint8", "chunklen": 2, "dflt": 0}"#),
        ("data/__0.blp", &chunk(b"ab")),
        ("data/__2.blp", &chunk(b"e")),
    ])
}

/// Creates a directory with files in it.
pub(crate) fn with_files(files: &[(&str, &[u8])]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    files.iter().for_each(|(path, content)| put(directory.path(), path, content));
    directory
}

/// Writes a file and creates the directories above it.
pub(crate) fn put(directory: &Path, path: &str, content: &[u8]) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Returns an index with its checksum.
pub(crate) fn index(entries: &[(u64, u64)]) -> Vec<u8> {
    let words = entries.iter().flat_map(|(offset, nbytes)| [offset, nbytes]);
    let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Returns a shard with its index at the end.
pub(crate) fn shard(body: &[u8], entries: &[(u64, u64)]) -> Vec<u8> {
    [body, &index(entries)].concat()
}

/// Opens the source in a directory.
pub(crate) fn open(directory: &TempDir) -> Source {
    Source::open(directory.path(), OpenConfig::default()).unwrap()
}
