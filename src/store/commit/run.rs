//! One group of a commit, from its locks to the journal cleared.

use super::group::Group;
use super::staged::{Commit, Work};
use crate::store::StoreError;
use crate::store::loaded::ShardId;
use crate::store::lock::{clear_note, note_locks};

/// Maximum length of a record in bytes, without its head; changes that would exceed it make new
/// files.
const MAX_RECORD: u64 = 256 << 20;

impl<'a> Commit<'a> {
    /// Commits a group of shards. Returns those left for the next group, for want of open files or
    /// of time.
    pub(super) fn run(mut self, group: Group) -> Group {
        let keys: Vec<Vec<u8>> = group.iter().map(|(shard, _)| self.key(shard)).collect();
        let keys = keys.iter().map(Vec::as_slice);
        if let Err(error) = note_locks(self.storage, &self.array.path, keys) {
            return self.fail_group(&group, error);
        }
        let ids: Vec<ShardId> =
            group.iter().map(|(coords, _)| self.array.shard_id(coords)).collect();
        self.store.stats.commits.commits.count();
        let store = self.store;
        let left = match self.array.format.length(self.storage, &self.array.path) {
            Ok(None) => self.commit_shards(group),
            Ok(Some(length)) => self.commit_counted(group, &length),
            Err(error) => self.fail_group(&group, error),
        };
        clear_note(self.storage, &self.array.path);
        for id in ids {
            store.commits.set_busy(id, false);
        }
        left
    }

    fn commit_shards(&mut self, group: Group) -> Group {
        let mut budget = MAX_RECORD;
        let (shards, left) = self.prepare_group(group, &mut budget);
        let touched: Vec<usize> = shards.iter().flat_map(|shard| &shard.chunks).copied().collect();
        let (recorded, others): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|shard| matches!(shard.work, Work::Journal(..)));
        let mut done = self.commit_recorded(recorded);
        done.extend(self.commit_others(others));
        self.sync_directories(&done);
        self.note_attempts(&touched);
        left
    }

    /// Fails all chunks of a group; nothing is left of it.
    fn fail_group(&mut self, group: &Group, error: StoreError) -> Group {
        let members = group.iter().flat_map(|(_, members)| members);
        let all: Vec<usize> = members.map(|(at, _)| *at).collect();
        self.fail(&all, error);
        Group::new()
    }
}
