//! Commits to arrays of superchunk files: each chunk is a file of its own, and `meta/sizes` holds
//! the length of the array ([`crate::format::superchunks`]).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::bloscpack::decoded;
use super::group::Group;
use super::{Commit, Old, Shard, Work};
use crate::format::bloscpack::{SUPERCHUNK_BYTES, superchunk_header};
use crate::format::json;
use crate::format::plan::{Blob, Piece, Source};
use crate::format::sharding::Location;
use crate::format::superchunks::{Changes, Extent};
use crate::store::{SIZES, StoreError, io_error};

impl<'a> Commit<'a> {
    /// Commits the chunks of a group. Chunks that extend the array are written before the sizes,
    /// chunks that shorten it are removed after them. Returns the shards left for the next group.
    pub(super) fn commit_superchunks(&mut self, group: Group, extent: Extent) -> Group {
        let (sizes, extent) = match self.store.sizes(self.array, extent) {
            Ok(sizes) => sizes,
            Err(error) => {
                let all: Vec<usize> =
                    group.iter().flat_map(|(_, members)| members).map(|it| it.0).collect();
                self.fail(&all, error);
                return Group::new();
            }
        };
        let mut group = group;
        self.leave_misplaced(&mut group, extent);
        let (shards, left) = self.prepare_group(group, &mut 0);
        let touched: Vec<usize> = shards.iter().flat_map(|shard| &shard.chunks).copied().collect();
        // Chunks that they build upon may have failed.
        let wanted = extent.change(&self.changes_of(&shards));
        let (misplaced, shards): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|shard| wanted.refused.contains_key(&self.number(shard)));
        for shard in misplaced {
            self.withdraw(&shard);
            if let Some(why) = wanted.refused.get(&self.number(&shard)) {
                self.refuse_shard(&shard, why);
            }
        }
        if wanted.rows < extent.rows {
            self.shorten(shards, &sizes, Extent { rows: wanted.rows, ..extent });
        } else {
            self.lengthen(shards, &sizes, extent);
        }
        self.note_attempts(&touched);
        left
    }

    /// Commits chunks first, then the sizes that count them.
    fn lengthen(&mut self, shards: Vec<Shard<'a>>, sizes: &Value, extent: Extent) {
        let done = self.commit_others(shards);
        self.sync_directories(&done);
        let safe: Vec<&Shard<'_>> = done.iter().filter(|shard| self.is_safe(shard)).collect();
        let found = extent.change(&self.changes_of(safe.iter().copied()));
        let is_counted = |shard: &&&Shard<'_>| !found.refused.contains_key(&self.number(shard));
        let (safe, behind): (Vec<_>, Vec<_>) = safe.iter().partition(is_counted);
        for shard in behind {
            self.refuse_shard(shard, "a chunk before it could not be written");
        }
        if found.rows == extent.rows {
            return;
        }
        let longer = self.longer(&safe);
        if let Err(error) = self.write_sizes(sizes, Extent { rows: found.rows, ..extent }, longer) {
            let counted = |shard: &&&Shard<'_>| self.number(shard) + 1 >= extent.nchunks();
            let chunks: Vec<usize> =
                safe.iter().filter(counted).flat_map(|shard| shard.chunks.clone()).collect();
            self.fail(&chunks, error);
        }
    }

    /// Writes the sizes first, then removes the chunks that they no longer count.
    fn shorten(&mut self, shards: Vec<Shard<'a>>, sizes: &Value, extent: Extent) {
        let longer = self.longer(&shards.iter().collect::<Vec<_>>());
        if let Err(error) = self.write_sizes(sizes, extent, longer) {
            let chunks: Vec<usize> =
                shards.iter().flat_map(|shard| shard.chunks.iter().copied()).collect();
            shards.iter().for_each(|shard| self.withdraw(shard));
            return self.fail(&chunks, error);
        }
        let done = self.commit_others(shards);
        self.sync_directories(&done);
    }

    /// Removes chunks that are not Blosc buffers or have no place in an array of that length from
    /// the group.
    fn leave_misplaced(&mut self, group: &mut Group, extent: Extent) {
        let mut changes = Changes::new();
        let mut refused = BTreeMap::new();
        for (coords, members) in &*group {
            let number = coords.first().copied().unwrap_or(0);
            // If a chunk is given twice, the last one counts.
            let Some((at, _)) = members.last() else { continue };
            match self.decoded(*at) {
                Ok(decoded) => drop(changes.insert(number, decoded)),
                Err(why) => drop(refused.insert(number, why)),
            }
        }
        refused.extend(extent.change(&changes).refused);
        group.retain(|(coords, members)| {
            let Some(why) = refused.get(&coords.first().copied().unwrap_or(0)) else { return true };
            let all: Vec<usize> = members.iter().map(|(at, _)| *at).collect();
            let (shard, position) = (self.array.shard_path(coords), vec![0; coords.len()]);
            self.fail(&all, StoreError::Refused { shard, position, why });
            false
        });
    }

    /// Returns the decoded length of a staged chunk in bytes. `None` if it is to be removed.
    fn decoded(&self, at: usize) -> Result<Option<u32>, &'static str> {
        let Some(content) = &self.chunks[at].content else { return Ok(None) };
        match decoded(content) {
            Ok(decoded) => decoded.map(Some),
            Err(_) => Err("it cannot be read where it waits"),
        }
    }

    fn changes_of<'b>(&self, shards: impl IntoIterator<Item = &'b Shard<'b>>) -> Changes {
        let shards = shards.into_iter();
        let change = |shard: &Shard<'_>| {
            let decoded = shard.chunks.last().and_then(|at| self.decoded(*at).ok())?;
            Some((self.number(shard), decoded))
        };
        shards.filter_map(change).collect()
    }

    fn number(&self, shard: &Shard<'_>) -> u64 {
        let coords = shard.chunks.last().map(|at| &self.chunks[*at].coords);
        coords.and_then(|coords| coords.first()).copied().unwrap_or(0)
    }

    fn is_safe(&self, shard: &Shard<'_>) -> bool {
        shard.chunks.iter().all(|at| self.outcomes[*at].is_ok())
    }

    /// Returns by how many bytes the compressed chunks have grown.
    fn longer(&self, shards: &[&Shard<'_>]) -> i64 {
        let one = |shard: &&Shard<'_>| {
            let new = shard.chunks.last().map_or(0, |at| self.contents[*at].nbytes());
            let old = shard.old.as_ref().map_or(0, |old| old.stat.size);
            let old = old.saturating_sub(SUPERCHUNK_BYTES as u64);
            i64::try_from(new).unwrap_or(0) - i64::try_from(old).unwrap_or(0)
        };
        shards.iter().map(one).fold(0, i64::saturating_add)
    }

    fn refuse_shard(&mut self, shard: &Shard<'_>, why: &'static str) {
        let position = vec![0; self.array.layout.rank()];
        self.fail(&shard.chunks, StoreError::Refused { shard: shard.path.clone(), position, why });
    }

    /// Discards what was prepared for a shard.
    fn withdraw(&self, shard: &Shard<'_>) {
        if let Work::Replace(temporary, _) = &shard.work {
            // If it cannot be removed, the next mount removes it.
            let _ = self.store.storage.remove_file(temporary);
        }
        self.leave(shard, false, false);
    }

    /// Replaces `meta/sizes`, durably.
    fn write_sizes(
        &mut self,
        before: &Value,
        extent: Extent,
        longer: i64,
    ) -> Result<(), StoreError> {
        let path = self.array.path.join(SIZES);
        let storage = &*self.store.storage;
        let open = || {
            let file = storage.open_writable(&path)?;
            Ok(Old { stat: file.stat()?, file, is_linked: false })
        };
        let old = open().map_err(io_error(&path))?;
        let text = json::to_text(&extent.sizes(before, longer));
        let blob = Blob::of(text.len() as u64, Source::Bytes(text.into()));
        let Work::Replace(temporary, _) = self.write_new(&path, Some(&old), None, &blob)? else {
            return Ok(());
        };
        let publish = || {
            storage.rename(&temporary, &path).inspect_err(|_| {
                let _ = storage.remove_file(&temporary);
            })?;
            storage.sync_directory(path.parent().unwrap_or(Path::new("")))
        };
        publish().map_err(io_error(&path))
    }

    /// Returns the superchunk file for a chunk. `None` if it is to be removed.
    pub(super) fn superchunk(&self, members: &[(usize, Location)]) -> Option<Blob> {
        let (at, _) = members.last()?;
        let content = self.chunks[*at].content.as_ref()?;
        let mut file = Blob::of(SUPERCHUNK_BYTES as u64, Source::Bytes(superchunk_header().into()));
        file.nbytes += content.nbytes();
        file.pieces.push(Piece { nbytes: content.nbytes(), from: Source::Staged(*at) });
        Some(file)
    }
}
