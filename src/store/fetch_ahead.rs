//! Fetching of chunks before they are read, where each request takes long: the next ones in the order
//! of the grid, in which programs copy an array and libraries read it.
//!
//! ```text
//! reader of a chunk --> Streams: does it continue one? --> window of chunks behind it
//!     shard of each: loaded   --> ranges, joined --> StorageFile::fetch_ahead
//!                    not yet  --> Storage::announce: its index comes meanwhile; the window ends here
//! ```
//!
//! Nothing here waits for an answer: what is not known yet is planned by the next reader of the
//! stream. A reader that jumps about gets what it reads, and nothing else is fetched.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::array::SourceArray;
use super::config::Freshness;
use super::loaded::{Body, LoadedShard};
use super::shard_store::ShardStore;
use super::streams::Window;
use crate::format::Coords;
use crate::format::grid::unravel;
use crate::format::index::{ByteRange, product};
use crate::format::sharding::Location;

/// Chunks that are looked at for one window.
const MOST_CHUNKS: u64 = 8192;
/// Length of a chunk of which nothing is known yet, in bytes.
const USUAL_CHUNK: u64 = 32 << 10;
/// Shards whose indexes are requested ahead for one window.
const MOST_SHARDS: usize = 64;

impl ShardStore {
    /// Called when a chunk is about to be read, by a program or to be compared with what replaces it: requests those
    /// behind it if they are taken in order.
    pub(super) fn fetch_ahead_of(&self, array: &SourceArray, coords: &[u64]) {
        if !self.storage.pins_versions() || !array.format.has_index() {
            return;
        }
        let grid = array.layout.chunk_grid();
        let Some(chunks) = product(&grid) else { return };
        let number = coords.iter().zip(&grid).fold(0, |number, (at, extent)| number * extent + at);
        let Some(window) = self.streams.read(array.id, number) else { return };
        let (until, is_whole) = self.request(array, &grid, chunks, window);
        self.streams.requested(window, until, is_whole);
    }

    /// Returns whether it pays to say which shards are needed next ([`Self::announce`]).
    pub fn has_slow_requests(&self) -> bool {
        self.storage.pins_versions()
    }

    /// Requests the indexes of shards that are listed next.
    pub fn announce(&self, array: &SourceArray, shards: &[Coords]) {
        let mut announced = Vec::new();
        for shard in shards.iter().take(MOST_SHARDS).filter(|_| self.storage.pins_versions()) {
            self.shard_if_there(array, shard, &mut announced);
        }
    }

    /// Requests the chunks of a window. Returns the number of the first chunk behind those that were
    /// requested, and whether these are all of the window.
    fn request(
        &self,
        array: &SourceArray,
        grid: &[u64],
        chunks: u64,
        window: Window,
    ) -> (u64, bool) {
        let mut ranges: BTreeMap<Coords, Vec<ByteRange>> = BTreeMap::new();
        let (mut left, mut until, mut announced) = (window.nbytes, window.from, Vec::new());
        let mut usual = USUAL_CHUNK;
        let end = chunks.min(window.from.saturating_add(MOST_CHUNKS));
        for number in window.from..end {
            let location = array.layout.locate(&unravel(number, grid));
            let known = self.shard_if_there(array, &location.shard, &mut announced);
            let Some(shard) = known else {
                left = left.saturating_sub(usual);
                if left == 0 || announced.len() >= MOST_SHARDS {
                    break;
                }
                continue;
            };
            let nbytes = match shard.and_then(|shard| range_of(array, &shard, &location)) {
                None => 0,
                // Nothing is requested behind a shard that is not there yet.
                Some(range) if announced.is_empty() => {
                    usual = range.nbytes;
                    ranges.entry(location.shard).or_default().push(range);
                    range.nbytes
                }
                Some(range) => range.nbytes,
            };
            if announced.is_empty() {
                until = number + 1;
            }
            left = left.saturating_sub(nbytes);
            if left == 0 {
                break;
            }
        }
        for (shard, ranges) in ranges {
            let version =
                self.shards.lock().get(&array.shard_id(&shard)).map(|it| it.stat.version());
            let file = version.and_then(|version| self.shard_file(array, &shard, version).ok()?);
            file.iter().for_each(|file| file.fetch_ahead(&ranges));
        }
        (until, announced.is_empty())
    }

    /// Returns a shard if that takes no request, `Some(None)` if there is none. Otherwise its index
    /// is requested, and its coordinates are added to `announced`.
    #[allow(clippy::option_option, reason = "a shard that is absent is known")]
    fn shard_if_there(
        &self,
        array: &SourceArray,
        shard: &[u64],
        announced: &mut Vec<Coords>,
    ) -> Option<Option<Arc<LoadedShard>>> {
        if let Some(loaded) = self.shards.lock().get(&array.shard_id(shard)) {
            return Some(Some(loaded));
        }
        if announced.iter().any(|other| other == shard) {
            return None;
        }
        let extents = array.layout.chunks_per_shard(0, shard);
        let expected = array.format.expected(&array.layout, &extents);
        if expected
            .is_some_and(|expected| self.storage.announce(&array.shard_path(shard), expected))
        {
            return Some(self.shard(array, shard, Freshness::Recent).ok().flatten());
        }
        announced.push(shard.to_vec());
        None
    }
}

/// Returns the range of a shard that holds a chunk, or the shard nested in it that does. `None` if it
/// is empty, or cannot be read.
fn range_of(array: &SourceArray, shard: &LoadedShard, location: &Location) -> Option<ByteRange> {
    let (level, position) = (array.layout.levels.first()?, location.positions.first()?);
    match shard.inner(level, position).ok()?? {
        Body::InFile { offset, nbytes } => Some(ByteRange { offset, nbytes }),
        Body::InMemory { .. } => None,
    }
}
