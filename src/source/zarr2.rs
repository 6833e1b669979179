//! Arrays and groups of Zarr v2, whose chunks are files.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::array::{Array, ArrayFormat};
use super::compact_json::CompactJson;
use super::document::{document_at, read_document};
use super::error::NodeError;
use crate::format::codec::parse_chain;
use crate::format::sharding::ShardedArray;
use crate::format::zarr2::{self, NoTwin, ZATTRS};
use crate::store::SourceArray;
use crate::store::formats::unsharded;
use crate::store::storage::Storage;

/// Returns the layout of an array, with its metadata in Zarr v3 form or the reason why there is no
/// such form. The chunks can be located in either case.
pub fn layout_and_twin(
    document: &Value,
    zattrs: Option<&Value>,
) -> Result<(ShardedArray, Result<Value, NoTwin>), NodeError> {
    let layout = zarr2::layout(document)?;
    match zarr2::to_zarr3(document, zattrs) {
        Ok(twin) => {
            let chain = parse_chain(twin.get("codecs"))?;
            Ok((ShardedArray::unsharded(&twin, chain)?, Ok(twin)))
        }
        Err(NoTwin::Metadata(error)) => Err(error.into()),
        Err(error) => Ok((layout, Err(error))),
    }
}

/// Returns the array in `directory`, whose document is at `path`; each file is one chunk.
pub fn array(storage: &dyn Storage, directory: &Path, path: PathBuf) -> Result<Array, NodeError> {
    let document = read_document(storage, &path)?;
    let zattrs = document_at(storage, &directory.join(ZATTRS))?;
    let (layout, twin) = layout_and_twin(&document, zattrs.as_ref())?;
    let (path, document) = (directory.to_owned(), Some((path, CompactJson::new(&document))));
    let source = SourceArray { id: 0, path, layout, format: unsharded() };
    let twin = twin.as_ref().ok().map(CompactJson::new);
    Ok(Array { source, format: ArrayFormat::Zarr2, document, sharded: None, twin })
}

/// Returns the metadata of the group in `directory`, whose document is at `path`, in Zarr v3 form.
/// It includes the attributes but not the consolidated metadata of other nodes.
pub fn group(storage: &dyn Storage, directory: &Path, path: &Path) -> Result<Value, NodeError> {
    let zgroup = read_document(storage, path)?;
    let zattrs = document_at(storage, &directory.join(ZATTRS))?;
    Ok(zarr2::group_to_zarr3(&zgroup, zattrs.as_ref())?)
}
