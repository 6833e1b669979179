//! What an array is checked against, and how thoroughly.

use std::sync::Arc;

use crate::format::pipeline::{Pipeline, PipelineError};
use crate::source::Array;

/// Extent of the verification.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyConfig {
    /// `true` to decode chunks and verify checksums over whole shards, which reads all bytes.
    pub decode: bool,
}

/// An array with what its chunks are checked against.
pub(super) struct Checks {
    pub array: Arc<Array>,
    pub pipeline: Result<Pipeline, PipelineError>,
    pub grid: Vec<u64>,
}

impl Checks {
    pub(super) fn new(array: Arc<Array>) -> Self {
        let twin = array.twin();
        let pipeline = match &twin {
            Some(twin) => Pipeline::parse(twin),
            None => Err(PipelineError::NoArrayToBytes),
        };
        let has_short_end = holds_blosc(&array);
        let shape = || {
            let shape = twin.as_ref()?.get("shape")?.as_array()?;
            shape.iter().map(serde_json::Value::as_u64).collect::<Option<Vec<_>>>()
        };
        let pipeline = pipeline.map(|pipeline| match shape().filter(|_| has_short_end) {
            Some(shape) => pipeline.with_short_end(&shape),
            None => pipeline,
        });
        let grid = array.source.layout.chunk_grid();
        Self { array, pipeline, grid }
    }
}

/// Returns whether chunks are Blosc buffers, whatever their items.
pub(super) fn holds_blosc(array: &Array) -> bool {
    array.source.format.holds_blosc()
}

/// Returns whether the array's format allows a file to be absent, as empty chunks.
pub(super) fn has_empty_chunks(array: &Array) -> bool {
    !array.source.format.is_numbered()
}
