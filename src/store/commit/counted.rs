//! Commits to arrays that record their length in a document of its own: each chunk is a file, and
//! the document counts them.

use std::collections::BTreeMap;
use std::path::Path;

use super::group::Group;
use super::staged::{Commit, Old, Shard, Work};
use crate::format::chunk_error::Refusal;
use crate::format::plan::{Blob, Source};
use crate::store::formats::{Length, LengthChanges};
use crate::store::{StoreError, io_error};

impl<'a> Commit<'a> {
    /// Commits the chunks of a group. Chunks that extend the array are written before the document,
    /// chunks that shorten it are removed after it. Returns the shards left for the next group.
    pub(super) fn commit_counted(&mut self, mut group: Group, length: &Length) -> Group {
        self.leave_misplaced(&mut group, length);
        let (shards, left) = self.prepare_group(group, &mut 0);
        let touched: Vec<usize> = shards.iter().flat_map(|shard| &shard.chunks).copied().collect();
        // Chunks that they build upon may have failed.
        let wanted = length.change(&self.changes_of(&shards));
        let (misplaced, shards): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|shard| wanted.refused.contains_key(&self.number(shard)));
        for shard in misplaced {
            self.withdraw(&shard);
            if let Some(why) = wanted.refused.get(&self.number(&shard)) {
                self.refuse_shard(&shard, *why);
            }
        }
        if wanted.rows < length.rows() {
            self.shorten(shards, length, wanted.rows);
        } else {
            self.lengthen(shards, length);
        }
        self.note_attempts(&touched);
        left
    }

    /// Commits chunks first, then the document that counts them.
    fn lengthen(&mut self, shards: Vec<Shard<'a>>, length: &Length) {
        let done = self.commit_others(shards);
        self.sync_directories(&done);
        let durable: Vec<&Shard<'_>> = done.iter().filter(|shard| self.is_durable(shard)).collect();
        let found = length.change(&self.changes_of(durable.iter().copied()));
        let is_counted = |shard: &&&Shard<'_>| !found.refused.contains_key(&self.number(shard));
        let (durable, behind): (Vec<_>, Vec<_>) = durable.iter().partition(is_counted);
        for shard in behind {
            self.refuse_shard(shard, Refusal::FailedBefore);
        }
        if found.rows == length.rows() {
            return;
        }
        let longer = self.longer(&durable, length);
        if let Err(error) = self.write_length(length, found.rows, longer) {
            let counted = |shard: &&&Shard<'_>| self.number(shard) + 1 >= length.shards();
            let chunks: Vec<usize> =
                durable.iter().filter(counted).flat_map(|shard| shard.chunks.clone()).collect();
            self.fail(&chunks, error);
        }
    }

    /// Writes the document first, then removes the chunks that it no longer counts.
    fn shorten(&mut self, shards: Vec<Shard<'a>>, length: &Length, rows: u64) {
        let longer = self.longer(&shards.iter().collect::<Vec<_>>(), length);
        if let Err(error) = self.write_length(length, rows, longer) {
            let chunks: Vec<usize> =
                shards.iter().flat_map(|shard| shard.chunks.iter().copied()).collect();
            shards.iter().for_each(|shard| self.withdraw(shard));
            return self.fail(&chunks, error);
        }
        let done = self.commit_others(shards);
        self.sync_directories(&done);
    }

    /// Removes contents that cannot be chunks, and chunks that have no place in an array of that
    /// length, from the group.
    fn leave_misplaced(&mut self, group: &mut Group, length: &Length) {
        let mut changes = LengthChanges::new();
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
        refused.extend(length.change(&changes).refused);
        group.retain(|(coords, members)| {
            let number = coords.first().copied().unwrap_or(0);
            let Some(why) = refused.get(&number).copied() else { return true };
            let all: Vec<usize> = members.iter().map(|(at, _)| *at).collect();
            let (shard, position) = (self.array.shard_path(coords), vec![0; coords.len()]);
            self.fail(&all, StoreError::Refused { shard, position, why });
            false
        });
    }

    /// Returns the decoded length of a staged chunk in bytes. `None` if it is to be removed.
    fn decoded(&self, at: usize) -> Result<Option<u32>, Refusal> {
        let Some(content) = &self.chunks[at].content else { return Ok(None) };
        match self.array.format.check(content) {
            Ok(Ok(None)) => Err(Refusal::UnknownLength),
            Ok(decoded) => decoded,
            Err(_) => Err(Refusal::Unreadable),
        }
    }

    fn changes_of<'b>(&self, shards: impl IntoIterator<Item = &'b Shard<'b>>) -> LengthChanges {
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

    fn is_durable(&self, shard: &Shard<'_>) -> bool {
        shard.chunks.iter().all(|at| self.outcomes[*at].is_ok())
    }

    /// Returns by how many bytes the compressed chunks have grown.
    fn longer(&self, shards: &[&Shard<'_>], length: &Length) -> i64 {
        shards.iter().fold(0_i64, |longer, shard| {
            let new = shard.chunks.last().map_or(0, |at| self.contents[*at].nbytes());
            let old = shard.old.as_ref().map_or(0, |old| length.chunk_nbytes(old.stat.size));
            longer.saturating_add_unsigned(new).saturating_sub_unsigned(old)
        })
    }

    fn refuse_shard(&mut self, shard: &Shard<'_>, why: Refusal) {
        let position = vec![0; self.array.layout.rank()];
        self.fail(&shard.chunks, StoreError::Refused { shard: shard.path.clone(), position, why });
    }

    /// Discards what was prepared for a shard.
    fn withdraw(&self, shard: &Shard<'_>) {
        if let Work::Replace(temporary, _) = &shard.work {
            // If it cannot be removed, the next mount removes it.
            let _ = self.storage.remove_file(temporary);
        }
        self.leave(shard, false, false);
    }

    /// Replaces the document by one for an array of `rows` rows, durably.
    fn write_length(&mut self, length: &Length, rows: u64, longer: i64) -> Result<(), StoreError> {
        let path = self.array.path.join(length.document);
        let storage = self.storage;
        let open = || {
            let file = storage.open_writable(&path)?;
            Ok(Old { stat: file.stat()?, file, is_linked: false })
        };
        let old = open().map_err(io_error(&path))?;
        let text = length.document_for(rows, longer);
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
}
