//! The journal of an array, locked, and settled: no unfinished commit is left in it.

use crate::store::commit_state::ArrayCommits;
use crate::store::journal::Journal;
use crate::store::lock::has_note;
use crate::store::owner::Owner;
use crate::store::recover::{Found, recover_locked};
use crate::store::{ShardStore, SourceArray, StoreError};

impl ShardStore {
    /// Locks the journal of an array, waiting for other commits to it, and rolls an unfinished one
    /// forward or back.
    pub(super) fn settle(
        &self,
        array: &SourceArray,
        state: &mut ArrayCommits,
    ) -> Result<Journal<'_>, StoreError> {
        let storage = self.posix(array)?;
        let mut journal = Journal::lock(storage, &array.path)?;
        // A killed process has left at least a note of its locks.
        let is_left = journal.found().is_some() || has_note(storage, &array.path)?;
        if !state.swept || is_left {
            let found = recover_locked(storage, Owner::Array(array), &mut journal)?;
            state.stuck = false;
            state.unsettled.clear();
            if found.iter().any(|(_, found)| *found == Found::Lost) {
                state.keep(journal.found());
            }
            state.swept = true;
        } else {
            // The record is gone: its shards were dealt with, and it was cleared as far as
            // possible, or another process has done so.
            state.stuck = false;
            state.unsettled.clear();
        }
        Ok(journal)
    }
}
