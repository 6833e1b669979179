//! Commits: publishing staged chunks in the shards of an array.
//!
//! ```text
//! lock the journal; roll an unfinished commit forward or back
//! for each shard:  lock it, read its index, compare with the staged changes' base, plan
//! new files:       written and synced under other names
//! the journal:     one record for all shards that change in place, synced
//! those shards:    written, synced
//! new files:       renamed; removed shards: unlinked; directories synced
//! clear the journal
//! ```
//!
//! Many shards are committed in groups, one after the other ([`group`]): a group holds a number of
//! open files and of locks that does not grow with the work.
//!
//! At any moment recovery finds each shard old or new. A shard that fails does not affect the
//! others, and can be committed again: after an error no visible state of it counts as durable, and
//! a record that could not be rolled back is dealt with first.

mod base;
mod counted;
mod group;
mod prepare;
mod publish;
mod run;
mod settle;
mod staged;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::group::Groups;
use self::staged::Commit;
pub use self::staged::{Maker, Outcome, StagedChunk};
use super::content::Content;
use super::error::StoreError;
use super::lock::MAX_PAUSE;
use super::storage::PosixStorage;
use super::{ShardStore, SourceArray};
use crate::format::plan::Policy;

/// Duration of a group's commit after which others are given a moment to take the lock.
const LONG: Duration = Duration::from_millis(100);

impl ShardStore {
    /// Commits chunks of an array and returns once they are durable, with an outcome for each.
    pub fn commit(
        &self,
        array: &SourceArray,
        chunks: &[StagedChunk],
        policy: Policy,
    ) -> Vec<Outcome> {
        match self.posix(array) {
            Ok(storage) => self.commit_in(storage, array, chunks, policy),
            Err(error) => refused(chunks, error),
        }
    }

    /// Commits like [`Self::commit`], in a storage with the array's directory: that of the source, or the
    /// directory that is open ([`PosixStorage::within`]).
    pub fn commit_in(
        &self,
        storage: &dyn PosixStorage,
        array: &SourceArray,
        chunks: &[StagedChunk],
        policy: Policy,
    ) -> Vec<Outcome> {
        let empty = || Content::Memory(Arc::default());
        let contents = chunks.iter().map(|chunk| chunk.content.clone().unwrap_or_else(empty));
        let contents: Vec<Content> = contents.collect();
        let mut outcomes: Vec<Outcome> = chunks.iter().map(|_| Ok(())).collect();
        let mut groups = Groups::new(array, chunks, &contents, self.open_files.in_commit);
        let mut last: Option<Duration> = None;
        while let Some(group) = groups.next() {
            // Other processes look for a moment in which the lock is free.
            if last.is_some_and(|last| last > LONG) {
                std::thread::sleep(2 * MAX_PAUSE);
            }
            let began = Instant::now();
            let commits = self.commits.of_array(array);
            // Released after each group: others wait for a turn.
            let _turn = commits.turn.lock();
            let journal = self.with_files(|| Self::lock_journal(storage, array, &commits));
            let mut state = commits.state.lock();
            let journal = journal.and_then(|mut journal| {
                self.with_files(|| Self::settle(storage, array, &mut state, &mut journal))?;
                Ok(journal)
            });
            match journal {
                Ok(journal) => {
                    let (state, outcomes) = (&mut *state, &mut outcomes);
                    let (store, contents) = (self, &*contents);
                    let commit = Commit {
                        store,
                        storage,
                        array,
                        chunks,
                        contents,
                        policy,
                        state,
                        journal,
                        outcomes,
                    };
                    groups.put_back(commit.run(group));
                }
                Err(error) => {
                    self.report(&error);
                    let error = Arc::new(error);
                    for (at, _) in group.into_iter().chain(groups.rest()).flat_map(|one| one.1) {
                        outcomes[at] = Err(Arc::clone(&error));
                    }
                }
            }
            last = Some(began.elapsed());
        }
        let count = &self.stats.commits;
        for (chunk, content) in outcomes.iter().zip(&contents) {
            match chunk {
                Ok(()) => count.chunks.count(),
                Err(_) => count.failed.count(),
            }
            count.chunk_bytes.add(if chunk.is_ok() { content.nbytes() } else { 0 });
        }
        outcomes
    }

    /// Removes the journal of an array, unless its record is still needed.
    pub fn finish_commits(&self, array: &SourceArray) -> Result<(), StoreError> {
        let commits = self.commits.arrays.lock().remove(&array.id);
        let Some(commits) = commits else { return Ok(()) };
        let _turn = commits.turn.lock();
        let storage = self.posix(array)?;
        let mut journal = Self::lock_journal(storage, array, &commits)?;
        Self::settle(storage, array, &mut commits.state.lock(), &mut journal)?;
        journal.remove()
    }
}

/// Returns the outcomes of a commit none of whose chunks can be committed.
fn refused(chunks: &[StagedChunk], error: StoreError) -> Vec<Outcome> {
    let error = Arc::new(error);
    chunks.iter().map(|_| Err(Arc::clone(&error))).collect()
}
