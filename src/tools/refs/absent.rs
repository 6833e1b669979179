//! Chunks that do not exist, where readers of Zarr v2 would take their absence for other values: each
//! gets a reference that holds it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::nodes::node_path;
use super::{Config, Ended, Problem, RefsError};
use crate::format::fill_chunk::FillChunk;
use crate::format::zarr2::{self, Array2, Missing};
use crate::source::{Array, ArrayFormat, Node};
use crate::store::entries::{Place, Span};
use crate::store::{Freshness, ShardStore, SourceArray, StoreError};

/// Bytes of text for the absent chunks of one array, at most: references are read as a whole.
const MAX_TEXT: u64 = 16 << 20;

/// What becomes of the chunks of each array that do not exist, by its path in the hierarchy.
pub type Decided = BTreeMap<PathBuf, Missing>;

/// Decides for each array, and names those whose missing values readers will see otherwise.
pub fn decide(
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
        let (text, is_misread) = match (&array.twin(), array.format) {
            (Some(_), ArrayFormat::Zarr2) => (text_as_stored(array), false),
            (Some(twin), _) => match zarr2::array(twin, Missing::Auto) {
                Ok(two) => (text(&two), two.is_misread),
                Err(_) => continue,
            },
            (None, _) => continue,
        };
        let mut missing = Missing::Auto;
        if let Some(text) = text {
            let absent = absent_chunks(store, &array.source)?;
            if absent.saturating_mul(text.len() as u64) > MAX_TEXT {
                missing = Missing::Absent;
            }
        }
        let path = node_path(array);
        if is_misread || missing == Missing::Absent && array.format != ArrayFormat::Zarr2 {
            misread.push(Problem::Misread(path.clone()));
        }
        decided.insert(path, missing);
    }
    Ok((decided, misread))
}

/// What was decided of the array at a path.
pub fn decided(all: &Decided, path: &Path) -> Missing {
    all.get(path).copied().unwrap_or_default()
}

/// What stands in the references for a chunk that does not exist; None if nothing has to.
pub fn text(two: &Array2) -> Option<String> {
    inlined(&two.filled.as_ref()?.absent)
}

/// The same for an array that is stored as Zarr v2. One without a fill value has nothing where a chunk
/// does not exist: zarr-python 3 reads, and does not store, zeros there, version 2 reads anything.
pub fn text_as_stored(array: &Array) -> Option<String> {
    let (_, zarray) = array.document.as_ref()?;
    let has_none = zarray.value().get("fill_value").is_none_or(Value::is_null);
    has_none.then(|| FillChunk::of(&array.twin()?)).flatten().and_then(|it| inlined(&it))
}

fn inlined(chunk: &FillChunk) -> Option<String> {
    Some(format!("\"base64:{}\"", STANDARD.encode(chunk.encoded().ok()?)))
}

/// How many chunks of the grid do not exist. Those that cannot be read do.
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
        // Whoever refers to them meets the error again.
        drop(counted);
        Ok::<(), Ended>(())
    });
    match listed {
        Ok(()) | Err(Ended::Stopped) => Ok(absent),
        Err(Ended::Failed(error)) => Err(error),
    }
}
