//! Arrays and groups of Zarr v3.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::array::{Array, ArrayFormat};
use super::compact_json::CompactJson;
use super::error::NodeError;
use crate::format::back::is_sharded;
use crate::format::codec::Codec;
use crate::format::document::{Dialect, Shown, show};
use crate::format::error::MetadataError;
use crate::format::metadata::NodeMetadata;
use crate::format::sharding::ShardedArray;
use crate::store::SourceArray;
use crate::store::formats::{ShardFormat, indexed, unsharded};

/// Node that a document describes.
pub enum Described {
    /// A group. In consolidated metadata, unsharded twins take the place of sharded arrays.
    Group(Value),
    /// A sharded array and its unsharded twin.
    Sharded(Box<ShardedArray>, Value),
    /// An array whose chunks are files: its codec chain and metadata.
    Unsharded(Vec<Codec>, Value),
}

/// Parses a document into the node it describes, at a level of nested sharding; `None` is the
/// innermost.
pub fn describe(document: Value, level: Option<usize>) -> Result<Described, MetadataError> {
    Ok(match show(document.clone(), level, Dialect::V3)? {
        Shown::Array(layout, twin) => Described::Sharded(layout, twin),
        Shown::Group(twin) => Described::Group(twin),
        Shown::AsStored => match NodeMetadata::parse(&document)? {
            NodeMetadata::Group => Described::Group(document),
            NodeMetadata::Array(chain) => Described::Unsharded(chain, document),
        },
    })
}

/// Returns the array that `document`, read from `path`, describes.
pub fn array(
    directory: &Path,
    path: PathBuf,
    document: &Value,
    level: Option<usize>,
) -> Result<Array, NodeError> {
    let (layout, format, twin) = shards(document.clone(), level)?;
    let source = SourceArray { id: 0, path: directory.to_owned(), layout, format };
    let kept = CompactJson::new(document);
    let sharded = is_sharded(document).then(|| kept.clone());
    let twin = if sharded.is_some() { CompactJson::new(&twin) } else { kept.clone() };
    let document = Some((path, kept));
    Ok(Array { source, format: ArrayFormat::Zarr3, document, sharded, twin: Some(twin) })
}

/// Returns the layout of an array, its format and its unsharded twin.
pub fn shards(
    document: Value,
    level: Option<usize>,
) -> Result<(ShardedArray, Arc<dyn ShardFormat>, Value), MetadataError> {
    match describe(document, level)? {
        Described::Sharded(layout, twin) => Ok((*layout, indexed(), twin)),
        Described::Unsharded(chain, document) => {
            let layout = ShardedArray::unsharded(&document, chain)?;
            Ok((layout, unsharded(), document))
        }
        Described::Group(_) => Err(MetadataError::Missing("codecs")),
    }
}
