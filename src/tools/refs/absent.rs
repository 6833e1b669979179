//! References for absent chunks, needed where Zarr v2 readers would interpret the absence as other
//! values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::config::Config;
use super::error::{Problem, RefsError};
use crate::format::fill_chunk::FillChunk;
use crate::format::zarr2::{self, Array2, Missing};
use crate::source::apart::node_path;
use crate::source::{Array, Node};
use crate::store::entries::{Place, Span};
use crate::store::{Freshness, ShardStore, SourceArray, StoreError};

/// Maximum length in bytes of the text for the absent chunks of one array; references are read as a
/// whole.
const MAX_TEXT: u64 = 16 << 20;

/// Treatment of the absent chunks of an array.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Treatment {
    /// Policy for presenting them.
    pub missing: Missing,
    /// `true` if there are any for which a text is needed. It may be hundreds of megabytes long.
    pub has_absent: bool,
}

/// Treatment of the absent chunks of each array, by the array's path in the hierarchy.
pub(super) type Decided = BTreeMap<PathBuf, Treatment>;

/// Decides the treatment for each array, and returns it with a problem for each array whose missing
/// values will be misread.
pub(super) fn decide(
    found: &[Node],
    store: &ShardStore,
    config: &Config,
) -> Result<(Decided, Vec<Problem>), RefsError> {
    let (mut decided, mut misread) = (Decided::new(), Vec::new());
    let arrays = found.iter().filter_map(|node| match node {
        Node::Array(array) if config.zarr2 => Some(array),
        _ => None,
    });
    for array in arrays {
        let (chunk, is_misread) = match (&array.twin(), array.is_zarr2()) {
            (Some(_), true) => (chunk_as_stored(array), false),
            (Some(twin), _) => match zarr2::array(twin, Missing::Auto) {
                Ok(two) => (two.filled.map(|filled| filled.absent), two.is_misread),
                Err(_) => continue,
            },
            (None, _) => continue,
        };
        let (mut missing, mut has_absent) = (Missing::Auto, false);
        if let Some(chunk) = chunk {
            let absent = absent_chunks(store, &array.source)?;
            has_absent = absent > 0;
            if has_absent
                && let Some(text) = inlined(&chunk)
                && absent.saturating_mul(text.len() as u64) > MAX_TEXT
            {
                missing = Missing::Absent;
            }
        }
        let path = node_path(array);
        if is_misread || missing == Missing::Absent && !array.is_zarr2() {
            misread.push(Problem::Misread(path.clone()));
        }
        decided.insert(path, Treatment { missing, has_absent });
    }
    Ok((decided, misread))
}

/// Returns the decision for the array at a path.
pub(super) fn decided(all: &Decided, path: &Path) -> Treatment {
    all.get(path).copied().unwrap_or_default()
}

/// Returns the reference for an absent chunk; `None` if none is needed.
pub(super) fn text(two: &Array2) -> Option<String> {
    inlined(&two.filled.as_ref()?.absent)
}

/// Returns the reference for an absent chunk of an array that is stored as Zarr v2; `None` if none
/// is needed.
pub(super) fn text_as_stored(array: &Array) -> Option<String> {
    inlined(&chunk_as_stored(array)?)
}

/// Returns the chunk that stands in for absent ones of an array that is stored as Zarr v2; `None` if
/// none is needed. Without a fill value the contents of an absent chunk are undefined: zarr-python 3
/// reads zeros, and does not store chunks of zeros; version 2 reads arbitrary values.
fn chunk_as_stored(array: &Array) -> Option<FillChunk> {
    let (_, zarray) = array.document.as_ref()?;
    let has_none = zarray.value().get("fill_value").is_none_or(Value::is_null);
    has_none.then(|| FillChunk::of(&array.twin()?)).flatten()
}

fn inlined(chunk: &FillChunk) -> Option<String> {
    Some(format!("\"base64:{}\"", STANDARD.encode(chunk.encoded().ok()?)))
}

/// Returns the number of chunks of the grid that do not exist. Unreadable chunks count as existing.
fn absent_chunks(store: &ShardStore, array: &SourceArray) -> Result<u64, StoreError> {
    let grid = array.layout.chunk_grid();
    let mut absent = grid.iter().fold(1_u64, |all, extent| all.saturating_mul(*extent));
    let listed = store.each_shard(array, &mut |coords| {
        let axes = coords.iter().zip(&array.layout.shard_grid);
        let (first, extents): (Vec<u64>, Vec<u64>) = axes.map(|(at, axis)| axis.span(*at)).unzip();
        let whole = Span { first: &first, extents: &extents };
        absent = absent.saturating_sub(whole.chunks_within(&grid));
        let Ok(Some(shard)) = store.shard(array, coords, Freshness::Now) else { return Ok(()) };
        let counted = store.each_place(array, coords, &shard, &mut |span, place| {
            if let Place::Empty = place {
                absent = absent.saturating_add(span.chunks_within(&grid));
            }
            Ok::<(), StoreError>(())
        });
        // An error is met again when the chunks are referenced.
        drop(counted);
        Ok::<(), StoreError>(())
    });
    listed.map(|()| absent)
}
