//! Groups of shards that are committed together: as many as open files and bytes allow.

use std::collections::{BTreeMap, VecDeque};

use crate::format::Coords;
use crate::format::sharding::Location;
use crate::store::content::Content;
use crate::store::{SourceArray, StagedChunk};

/// Maximum number of new bytes in a group, unless a single shard has more.
const MAX_BYTES: u64 = 256 << 20;

/// Shards with their members: the number of a chunk in the commit, and its location.
pub(super) type Group = VecDeque<(Coords, Vec<(usize, Location)>)>;

/// Queue of the shards of a commit, from which groups are taken.
pub(super) struct Groups<'a> {
    shards: Group,
    contents: &'a [Content],
    /// Maximum number of shards in a group.
    most: usize,
}

impl<'a> Groups<'a> {
    /// Creates the queue for some chunks, with at most `most` shards in a group.
    pub(super) fn new(
        array: &SourceArray,
        chunks: &[StagedChunk],
        contents: &'a [Content],
        most: usize,
    ) -> Self {
        let mut by_shard: BTreeMap<Coords, Vec<(usize, Location)>> = BTreeMap::new();
        for (at, chunk) in chunks.iter().enumerate() {
            let location = array.layout.locate(&chunk.coords);
            by_shard.entry(location.shard.clone()).or_default().push((at, location));
        }
        let mut shards: Group = by_shard.into_iter().collect();
        if array.format.is_numbered() {
            // Chunks are removed from the end backwards, and added from the front forwards.
            let is_removed = |members: &[(usize, Location)]| {
                members.last().is_some_and(|(at, _)| chunks[*at].content.is_none())
            };
            let (removed, written): (Group, Group) =
                shards.into_iter().partition(|(_, members)| is_removed(members));
            shards = removed.into_iter().rev().chain(written).collect();
        }
        Self { shards, contents, most: most.max(1) }
    }

    /// Takes the next group. `None` once the queue is empty.
    pub(super) fn next(&mut self) -> Option<Group> {
        let (mut group, mut nbytes) = (Group::new(), 0_u64);
        while group.len() < self.most
            && let Some((_, members)) = self.shards.front()
        {
            let more = members.iter().map(|(at, _)| self.contents[*at].nbytes());
            nbytes = more.fold(nbytes, u64::saturating_add);
            if !group.is_empty() && nbytes > MAX_BYTES {
                break;
            }
            group.extend(self.shards.pop_front());
        }
        (!group.is_empty()).then_some(group)
    }

    /// Puts shards that a group has left over back into the queue; the next group is smaller.
    pub(super) fn put_back(&mut self, left: Group) {
        if !left.is_empty() {
            self.most = self.most.saturating_sub(left.len()).div_ceil(2).max(1);
        }
        left.into_iter().rev().for_each(|shard| self.shards.push_front(shard));
    }

    /// Takes all remaining shards.
    pub(super) fn rest(&mut self) -> Group {
        std::mem::take(&mut self.shards)
    }
}
