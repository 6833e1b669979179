//! The sharding storage transformer: the draft of February 2022, as zarr-python 2.13 to 2.18 wrote
//! it with its experimental Zarr v3.
//!
//! ```text
//! zarr.json                       the hierarchy: zarr_format is a URI
//! meta/root/a/b.array.json        an array; storage_transformers make it a sharded one
//! meta/root/a.group.json
//! data/root/a/b/c0/1              a shard of it; its chunks are c0/2, c0/3, c1/2 and so on
//!
//! shard   | chunks, in any order, gaps allowed | index |
//! index   (offset, nbytes) of each chunk, little-endian u64, chunks per shard in C order,
//!         without a checksum; both words 2^64-1: the chunk is empty
//! ```
//!
//! That is a shard of `sharding_indexed` whose index codecs are `bytes` alone; what differs is
//! where the metadata is, what it says, and how keys begin.

mod twin;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::chunk_key::{KeyEncoding, Prefix, Separator};
use super::error::{MetadataError, shape};
use super::index::{IndexCodecs, IndexLocation};
use super::sharding::{PlainShards, ShardedArray};

pub use self::twin::{NoTwin, to_zarr3};

/// Where the data of the root node is, from the hierarchy's directory.
const DATA: &str = "data/root";
/// Where the metadata of nodes below the root is.
const METADATA: &str = "meta/root";
/// What the document of an array is called after the array's name.
const ARRAY_SUFFIX: &str = ".array.json";
/// What the name of a group's document ends with.
const GROUP_SUFFIX: &str = ".group.json";
/// The transformer's URI: as it is written, and as the draft has it in its two places.
const EXTENSIONS: [&str; 3] = [
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage-transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
];
/// Its member that lists them.
pub(super) const TRANSFORMERS: &str = "storage_transformers";

/// Whether a `zarr.json` is that of such a hierarchy. Fails if it is one that cannot be read.
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

/// Whether a path is called like an array's document.
pub fn is_document(path: &Path) -> bool {
    array_name(path).is_some() && path.ancestors().skip(1).any(|above| above.ends_with("meta"))
}

/// The name before the suffix of an array's document.
fn array_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)?.strip_suffix(ARRAY_SUFFIX)
}

/// The directories of hierarchies in which `directory` can be that of an array's data, each with
/// the path of the array's document.
pub fn documents(directory: &Path) -> impl Iterator<Item = (&Path, PathBuf)> {
    directory.ancestors().filter(|above| above.ends_with(DATA)).filter_map(|data| {
        let (hierarchy, node) = (data.parent()?.parent()?, directory.strip_prefix(data).ok()?);
        let mut document = hierarchy.join(METADATA).join(node).into_os_string();
        // "meta/root/" with nothing after it is the root node, beside that directory.
        if node.as_os_str().is_empty() {
            document = hierarchy.join(METADATA).into_os_string();
        }
        document.push(ARRAY_SUFFIX);
        Some((hierarchy, document.into()))
    })
}

/// The directories of hierarchies in which `path` can be an array's document, each with the
/// directory of the array's data.
pub fn described(path: &Path) -> impl Iterator<Item = (&Path, PathBuf)> {
    let name = array_name(path);
    let above = path.ancestors().skip(1).filter(|above| above.ends_with("meta"));
    above.filter_map(move |metadata| {
        let hierarchy = metadata.parent()?;
        let below = path.strip_prefix(metadata).ok()?.with_file_name(name?);
        below.starts_with("root").then(|| (hierarchy, hierarchy.join("data").join(below)))
    })
}

/// Where the node with this document and this directory of data is in its hierarchy's tree, the
/// hierarchy's own directory before it.
pub fn node_of(document: &Path, directory: &Path) -> Option<PathBuf> {
    let (hierarchy, _) = described(document).find(|(_, data)| data == directory)?;
    let node = directory.strip_prefix(hierarchy.join(DATA)).ok()?;
    Some(hierarchy.join(node))
}

/// Where the document of a group can be whose place in the tree of a hierarchy is given that way.
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

/// The path of an array's document, below `meta/root`, as that of its data.
pub fn data_of(hierarchy: &Path, document: &Path) -> Option<PathBuf> {
    described(document).find(|(found, _)| *found == hierarchy).map(|(_, directory)| directory)
}

/// Directory of the documents below the root node's own, which is beside it.
pub fn metadata_directory(hierarchy: &Path) -> PathBuf {
    hierarchy.join("meta")
}

/// Whether an array's document says that it is sharded.
pub fn is_sharded(document: &Value) -> bool {
    document.get(TRANSFORMERS).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

/// Reads the layout of an array; None if it is not sharded.
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

/// How the keys of an array's chunks, and of its shards, are made.
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

/// Makes the metadata of an array that of its unsharded twin.
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
