//! Arrays of the Zarr v3 draft of 2022.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::array::{Array, ArrayFormat};
use super::compact_json::CompactJson;
use super::error::NodeError;
use super::zarr3::shards;
use crate::format::back::is_sharded;
use crate::format::draft2022;
use crate::format::error::MetadataError;
use crate::format::sharding::ShardedArray;
use crate::store::SourceArray;
use crate::store::formats::indexed;

/// Returns the array of the draft of 2022 whose data is in `directory` and whose document, read
/// from `path`, is `document`.
pub fn array(
    directory: &Path,
    path: PathBuf,
    document: Value,
    level: Option<usize>,
) -> Result<Array, NodeError> {
    let keys = draft2022::keys(&document)?;
    let is_sharded = is_sharded(&document);
    let layout = draft2022::parse(&document)?;
    // The data type or compressor may have no name in Zarr v3.
    let sharded = draft2022::to_zarr3(&document).ok();
    let twin = sharded.clone().map(|sharded| shards(sharded, level)).transpose()?;
    let (shards, layout, twin) = match (twin, layout) {
        (Some((layout, shards, twin)), _) => (shards, layout, Some(twin)),
        (None, Some(layout)) if is_sharded => (indexed(), layout, None),
        (None, _) => return Err(MetadataError::Missing("data_type of Zarr v3").into()),
    };
    let layout = ShardedArray { keys, ..layout };
    let source = SourceArray { id: 0, path: directory.to_owned(), layout, format: shards };
    let (format, document) = (ArrayFormat::Draft2022, Some((path, CompactJson::new(&document))));
    let sharded = sharded.filter(|_| is_sharded).as_ref().map(CompactJson::new);
    Ok(Array { source, format, document, sharded, twin: twin.as_ref().map(CompactJson::new) })
}
