//! The journal of an array, locked, and settled: no unfinished commit is left in it.

use std::sync::atomic::Ordering;

use crate::store::commit_state::{ArrayCommits, CommitsOfArray};
use crate::store::journal::Journal;
use crate::store::lock::{PATIENCE, SHORT_PATIENCE, has_note};
use crate::store::owner::Owner;
use crate::store::recover::{Found, recover_locked};
use crate::store::storage::PosixStorage;
use crate::store::{ShardStore, SourceArray, StoreError};

impl ShardStore {
    /// Locks the journal of an array, waiting for commits of other processes. The caller has the turn.
    ///
    /// # Errors
    /// `Locked` if another process holds the lock for too long: once that is long, and then short.
    pub(super) fn lock_journal<'s>(
        storage: &'s dyn PosixStorage,
        array: &SourceArray,
        commits: &CommitsOfArray,
    ) -> Result<Journal<'s>, StoreError> {
        let is_held = commits.is_held.load(Ordering::Relaxed);
        let patience = if is_held { SHORT_PATIENCE } else { PATIENCE };
        let journal = Journal::lock_within(storage, &array.path, patience);
        let is_held = matches!(journal, Err(StoreError::Locked { .. }));
        commits.is_held.store(is_held, Ordering::Relaxed);
        journal
    }

    /// Rolls a commit that the journal shows to be unfinished forward or back.
    pub(super) fn settle(
        storage: &dyn PosixStorage,
        array: &SourceArray,
        state: &mut ArrayCommits,
        journal: &mut Journal<'_>,
    ) -> Result<(), StoreError> {
        // A killed process has left at least a note of its locks.
        let is_left = journal.found().is_some() || has_note(storage, &array.path)?;
        if !state.swept || is_left {
            let found = recover_locked(storage, Owner::Array(array), journal)?;
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
        Ok(())
    }
}
