//! Arrays of the Zarr v3 draft of 2022.

use serde_json::Value;

use super::array::ArrayFormat;
use super::error::{NoTwin, NodeError};
use super::found::{FoundArray, FoundKind, StoredForms};
use super::zarr3::located;
use crate::format::draft2022;
use crate::format::sharding::ShardedArray;
use crate::store::formats::indexed;

/// Returns the array that a document of the draft of 2022 describes, at a level of nested sharding.
pub(super) fn array(
    document: Value,
    level: Option<usize>,
    keeps_stored: bool,
) -> Result<FoundKind, NodeError> {
    // Errors in the metadata of a sharded array count, whatever else the array says.
    let layout = draft2022::parse(&document)?;
    let keeps_sharded = keeps_stored && draft2022::is_sharded(&document);
    let mut forms = StoredForms::default();
    let (layout, format, twin) = match (draft2022::to_zarr3(&document), layout) {
        (Ok(sharded), _) => {
            forms = StoredForms::None { sharded: keeps_sharded.then(|| sharded.clone()) };
            let (layout, format, twin) = located(sharded, level)?;
            (layout, format, Ok(twin))
        }
        // The data type or compressor may have no name in Zarr v3: the shards are found all the same.
        (Err(why), Some(layout)) => (layout, indexed(), Err(NoTwin::from(why))),
        (Err(why), None) => return Err(NoTwin::from(why).into()),
    };
    let layout = ShardedArray { keys: draft2022::keys(&document)?, ..layout };
    let array = FoundArray::of_document(ArrayFormat::Draft2022, layout, format, twin);
    let stored = keeps_stored.then_some(document);
    Ok(FoundKind::Array(Box::new(FoundArray { stored, forms, ..array })))
}
