//! The sharding storage transformer of the draft of February 2022, as written by zarr-python 2.13
//! to 2.18 with its experimental Zarr v3.
//!
//! ```text
//! zarr.json                       the hierarchy: zarr_format is a URI
//! meta/root/a/b.array.json        an array; sharded if it has storage_transformers
//! meta/root/a.group.json
//! data/root/a/b/c0/1              a shard of it; its chunks are c0/2, c0/3, c1/2 and so on
//!
//! shard   | chunks, in any order, gaps allowed | index |
//! index   (offset, nbytes) of each chunk, little-endian u64, chunks per shard in C order,
//!         without a checksum; both words 2^64-1: the chunk is empty
//! ```
//!
//! This is a shard of `sharding_indexed` whose index codecs are `bytes` alone. Only the location
//! and the content of the metadata and the prefix of keys differ.

mod twin;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::chunk_key::{KeyEncoding, Prefix, Separator};
use super::error::{MetadataError, shape};
use super::index::{IndexCodecs, IndexLocation};
use super::sharding::{PlainShards, ShardedArray};

pub use self::twin::{NoTwin, to_zarr3};

/// Directory of the data of the root node, relative to the hierarchy.
const DATA: &str = "data/root";
/// Directory of the metadata of nodes below the root, relative to the hierarchy.
const METADATA: &str = "meta/root";
/// Suffix that follows the array's name in the name of its document.
const ARRAY_SUFFIX: &str = ".array.json";
/// Suffix of the name of a group's document.
const GROUP_SUFFIX: &str = ".group.json";
/// URIs of the transformer: as written by zarr-python, and as given in two places of the draft.
const EXTENSIONS: [&str; 3] = [
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage-transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
];
/// Member of an array's document that lists its storage transformers.
pub(super) const TRANSFORMERS: &str = "storage_transformers";

/// Returns whether a `zarr.json` is that of a hierarchy of the draft. Fails if it is one that
/// cannot be read.
pub fn is_hierarchy(document: &Value) -> Result<bool, MetadataError> {
    let format = document.get("zarr_format").and_then(Value::as_str);
    if !format.is_some_and(|uri| uri.contains("zarr/spec/protocol/core/3.0")) {
        return Ok(false);
    }
    match document.get("metadata_key_suffix").and_then(Value::as_str) {
        Some(".json") | None => Ok(true),
        Some(_) => Err(MetadataError::invalid("metadata_key_suffix", "\".json\"")),
    }
}

/// Returns whether a path has the form of an array's document.
pub fn is_document(path: &Path) -> bool {
    array_name(path).is_some() && path.ancestors().skip(1).any(|above| above.ends_with("meta"))
}

/// Returns the name before the suffix of an array's document; `None` if the path has another
/// suffix.
fn array_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)?.strip_suffix(ARRAY_SUFFIX)
}

/// Returns the hierarchies in which `directory` may hold an array's data, each with the path of the
/// array's document.
pub fn documents(directory: &Path) -> impl Iterator<Item = (&Path, PathBuf)> {
    directory.ancestors().filter(|above| above.ends_with(DATA)).filter_map(|data| {
        let (hierarchy, node) = (data.parent()?.parent()?, directory.strip_prefix(data).ok()?);
        let mut document = hierarchy.join(METADATA).join(node).into_os_string();
        // The document of the root node is beside the directory "meta/root", not in it.
        if node.as_os_str().is_empty() {
            document = hierarchy.join(METADATA).into_os_string();
        }
        document.push(ARRAY_SUFFIX);
        Some((hierarchy, document.into()))
    })
}

/// Returns the hierarchies in which `path` may be an array's document, each with the directory of
/// the array's data.
pub fn described(path: &Path) -> impl Iterator<Item = (&Path, PathBuf)> {
    let name = array_name(path);
    let above = path.ancestors().skip(1).filter(|above| above.ends_with("meta"));
    above.filter_map(move |metadata| {
        let hierarchy = metadata.parent()?;
        let below = path.strip_prefix(metadata).ok()?.with_file_name(name?);
        below.starts_with("root").then(|| (hierarchy, hierarchy.join("data").join(below)))
    })
}

/// Returns the path of a node in the tree of its hierarchy, prefixed by the directory of the
/// hierarchy. The node is given by its document and the directory of its data.
pub fn node_of(document: &Path, directory: &Path) -> Option<PathBuf> {
    let (hierarchy, _) = described(document).find(|(_, data)| data == directory)?;
    let node = directory.strip_prefix(hierarchy.join(DATA)).ok()?;
    Some(hierarchy.join(node))
}

/// Returns the possible paths of the document of a group, given the group's path in the tree of a
/// hierarchy, as returned by [`node_of`].
pub fn group_documents(directory: &Path) -> impl Iterator<Item = PathBuf> {
    directory.ancestors().filter_map(|hierarchy| {
        let node = directory.strip_prefix(hierarchy).ok()?;
        let mut document = hierarchy.join(METADATA);
        if !node.as_os_str().is_empty() {
            document.push(node);
        }
        let mut document = document.into_os_string();
        document.push(GROUP_SUFFIX);
        Some(document.into())
    })
}

/// Returns the data directory of the array with the given document; `None` if that is not below
/// `meta/root` of the hierarchy.
pub fn data_of(hierarchy: &Path, document: &Path) -> Option<PathBuf> {
    described(document).find(|(found, _)| *found == hierarchy).map(|(_, directory)| directory)
}

/// Directory of all documents of a hierarchy.
pub fn metadata_directory(hierarchy: &Path) -> PathBuf {
    hierarchy.join("meta")
}

/// Returns whether an array's document makes it a sharded array.
pub fn is_sharded(document: &Value) -> bool {
    document.get(TRANSFORMERS).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

/// Parses the layout of an array; `None` if it is not sharded.
pub fn parse(document: &Value) -> Result<Option<ShardedArray>, MetadataError> {
    if document.as_object().is_none() {
        return Err(MetadataError::NotAnObject);
    }
    if !is_sharded(document) {
        return Ok(None);
    }
    let chunks_per_shard = chunks_per_shard(document)?;
    let shape_of_array = shape(document.get("shape"), "shape")?;
    let chunk_shape = shape(grid(document)?.get("chunk_shape"), "chunk_shape")?;
    let shards = PlainShards {
        keys: keys(document)?,
        shape: shape_of_array,
        chunk_shape,
        chunks_per_shard,
        index_codecs: IndexCodecs::BARE,
        index_location: IndexLocation::End,
    };
    ShardedArray::plain(shards).map(Some)
}

/// Returns the encoding of the keys of an array's chunks, which is also that of its shards.
pub fn keys(document: &Value) -> Result<KeyEncoding, MetadataError> {
    let separator = match grid(document)?.get("separator").and_then(Value::as_str) {
        Some("/") | None => Separator::Slash,
        Some(".") => Separator::Dot,
        Some(_) => return Err(MetadataError::invalid("separator", "\"/\" or \".\"")),
    };
    Ok(KeyEncoding { prefix: Prefix::Joined, separator })
}

fn grid(document: &Value) -> Result<&Value, MetadataError> {
    let grid = document.get("chunk_grid").ok_or(MetadataError::Missing("chunk_grid"))?;
    match grid.get("type").and_then(Value::as_str) {
        Some("regular") => Ok(grid),
        _ => Err(MetadataError::invalid("chunk_grid", "regular")),
    }
}

fn chunks_per_shard(document: &Value) -> Result<Vec<u64>, MetadataError> {
    let transformers = document.get(TRANSFORMERS).and_then(Value::as_array);
    let Some([transformer]) = transformers.map(Vec::as_slice) else {
        return Err(MetadataError::invalid(TRANSFORMERS, "one sharding transformer"));
    };
    let extension = transformer.get("extension").and_then(Value::as_str).unwrap_or_default();
    if !EXTENSIONS.contains(&extension) {
        return Err(MetadataError::Extension(extension.to_owned()));
    }
    if transformer.get("type").and_then(Value::as_str) != Some("indexed") {
        return Err(MetadataError::invalid("type of the sharding transformer", "\"indexed\""));
    }
    let configuration = transformer.get("configuration");
    let chunks = shape(configuration.and_then(|c| c.get("chunks_per_shard")), "chunks_per_shard")?;
    if chunks.contains(&0) {
        return Err(MetadataError::invalid("chunks_per_shard", "a list of numbers above 0"));
    }
    let rank = document.get("shape").and_then(Value::as_array).map_or(0, Vec::len);
    // zarr-python writes [1] for arrays without dimensions.
    if rank == 0 && chunks == [1] { Ok(Vec::new()) } else { Ok(chunks) }
}

/// Replaces the metadata of an array by that of its unsharded twin.
pub fn unshard(document: &mut Value) {
    if let Value::Object(members) = document {
        members.shift_remove(TRANSFORMERS);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn array(shape: &Value, chunk: &Value, per_shard: &Value) -> Value {
        json!({"shape": shape, "data_type": "<i4", "fill_value": 0, "attributes": {},
            "chunk_grid": {"type": "regular", "chunk_shape": chunk, "separator": "/"},
            "chunk_memory_layout": "C", "extensions": [],
            "storage_transformers": [{"extension": EXTENSIONS[0], "type": "indexed",
                "configuration": {"chunks_per_shard": per_shard}}]})
    }

    #[test]
    fn a_sharded_array_is_read() {
        let layout =
            parse(&array(&json!([7, 9]), &json!([2, 3]), &json!([2, 2]))).unwrap().unwrap();
        assert_eq!((layout.chunk_grid(), layout.chunk_shape()), (vec![4, 3], &[2, 3][..]));
        assert_eq!(layout.keys.chunk_key(&[1, 0]), "c1/0");
        let scalar = parse(&array(&json!([]), &json!([]), &json!([1]))).unwrap().unwrap();
        assert_eq!((scalar.rank(), scalar.keys.chunk_key(&[])), (0, "c0".to_owned()));
    }

    #[test]
    fn an_array_without_a_transformer_is_not_sharded() {
        let mut document = array(&json!([7]), &json!([2]), &json!([2]));
        unshard(&mut document);
        assert!(parse(&document).unwrap().is_none() && document.get(TRANSFORMERS).is_none());
    }

    #[test]
    fn each_defect_is_named() {
        let refused = |change: &dyn Fn(&mut Value), message: &str| {
            let mut document = array(&json!([7, 9]), &json!([2, 3]), &json!([2, 2]));
            change(&mut document);
            assert_eq!(parse(&document).unwrap_err().to_string(), message);
        };
        refused(
            &|d| d[TRANSFORMERS][0]["configuration"]["chunks_per_shard"] = json!([0, 2]),
            "chunks_per_shard must be a list of numbers above 0",
        );
        refused(
            &|d| d[TRANSFORMERS][0]["configuration"]["chunks_per_shard"] = json!([2]),
            "chunks_per_shard has 1 entry, the array has 2 dimensions",
        );
        refused(
            &|d| d[TRANSFORMERS][0]["extension"] = json!("https://example.org/x"),
            "extension \"https://example.org/x\" must be understood and is not known",
        );
        refused(
            &|d| d["chunk_grid"]["chunk_shape"] = json!([2]),
            "chunk_shape has 1 entry, the array has 2 dimensions",
        );
    }

    #[test]
    fn documents_and_data_have_their_places() {
        let one = |directory: &str| {
            let mut found = documents(Path::new(directory));
            let (hierarchy, document) = found.next().unwrap();
            assert!(found.next().is_none());
            (hierarchy.to_str().unwrap().to_owned(), document.to_str().unwrap().to_owned())
        };
        assert_eq!(one("data/root/a/b"), (String::new(), "meta/root/a/b.array.json".to_owned()));
        assert_eq!(one("h/data/root"), ("h".to_owned(), "h/meta/root.array.json".to_owned()));
        assert_eq!(documents(Path::new("data/a")).count(), 0);
        for document in ["meta/root/a/b.array.json", "meta/root.array.json"] {
            let (hierarchy, directory) = described(Path::new(document)).next().unwrap();
            let back: Vec<_> = documents(&directory).collect();
            assert_eq!(back, [(hierarchy, PathBuf::from(document))]);
        }
        assert_eq!(described(Path::new("meta/root/a.group.json")).count(), 0);
        assert!(!is_document(Path::new("data/root/a.array.json")));
    }
}
