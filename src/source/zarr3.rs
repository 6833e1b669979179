//! Arrays and groups of Zarr v3.

use std::sync::Arc;

use serde_json::Value;

use super::array::ArrayFormat;
use super::document::METADATA_FILE;
use super::error::NodeError;
use super::found::{FoundArray, FoundKind, StoredForms};
use crate::format::document::{Dialect, Shown, show};
use crate::format::error::MetadataError;
use crate::format::from_twin::is_sharded;
use crate::format::metadata::NodeMetadata;
use crate::format::sharding::ShardedArray;
use crate::store::formats::{ShardFormat, indexed, unsharded};

/// Documents of a node.
pub(super) const DOCUMENTS: &[&str] = &[METADATA_FILE];

/// Returns the node that a document describes, at a level of nested sharding; `None` is the
/// innermost. Arrays come with the stored document if it `keeps_stored`, groups with metadata if not.
pub(super) fn node(
    document: Value,
    level: Option<usize>,
    keeps_stored: bool,
) -> Result<FoundKind, NodeError> {
    match NodeMetadata::parse(&document)? {
        NodeMetadata::Group if !keeps_stored => {
            Ok(FoundKind::Group(Some(match show(document.clone(), level, Dialect::V3)? {
                Shown::Group(twin) => twin,
                _ => document,
            })))
        }
        NodeMetadata::Group => Ok(FoundKind::Group(None)),
        NodeMetadata::Array(_) => {
            let stored = keeps_stored.then(|| document.clone());
            let is_sharded = is_sharded(&document);
            let forms = if is_sharded { StoredForms::Sharded } else { StoredForms::Twin };
            let (layout, format, twin) = located(document, level)?;
            let array = FoundArray::of_document(ArrayFormat::Zarr3, layout, format, Ok(twin));
            Ok(FoundKind::Array(Box::new(FoundArray { stored, forms, ..array })))
        }
    }
}

/// Returns the sharded array that a document describes, or the group whose metadata repeats that of
/// sharded arrays. Their twins are in the form of the document. Anything else stays as it is
/// stored: grids and codecs without shards need not be known.
pub(super) fn sharded(
    document: Value,
    level: Option<usize>,
    dialect: Dialect,
) -> Result<FoundKind, NodeError> {
    Ok(match show(document, level, dialect)? {
        Shown::AsStored => FoundKind::AsStored,
        Shown::Group(twin) => FoundKind::Group(Some(twin)),
        Shown::Array(layout, twin) => {
            let kind = match dialect {
                Dialect::V3 => ArrayFormat::Zarr3,
                Dialect::Draft2022 => ArrayFormat::Draft2022,
            };
            let array = FoundArray::of_document(kind, *layout, indexed(), Ok(twin));
            FoundKind::Array(Box::new(array))
        }
    })
}

/// Returns the layout of an array, the format of its shards, and its unsharded twin.
pub(super) fn located(
    document: Value,
    level: Option<usize>,
) -> Result<(ShardedArray, Arc<dyn ShardFormat>, Value), NodeError> {
    match (NodeMetadata::parse(&document)?, show(document.clone(), level, Dialect::V3)?) {
        (_, Shown::Array(layout, twin)) => Ok((*layout, indexed(), twin)),
        (NodeMetadata::Array(chain), _) => {
            let layout = ShardedArray::unsharded(&document, chain).map_err(NodeError::Grid)?;
            Ok((layout, unsharded(), document))
        }
        (NodeMetadata::Group, _) => Err(MetadataError::Missing("codecs").into()),
    }
}
