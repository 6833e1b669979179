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
//!
//! That is how it is on a filesystem. In a store of [`objects`] shards are replaced.

mod base;
mod counted;
mod group;
mod members;
mod new_version;
mod objects;
mod prepare;
mod publish;
mod run;
mod setbacks;
mod settle;
mod staged;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use self::group::Groups;
use self::staged::{Commit, refused};
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
        if let Some(objects) = self.storage.objects() {
            let contents = contents_of(chunks);
            let outcomes = self.commit_objects(objects, array, chunks, &contents);
            self.count(&outcomes, &contents);
            return outcomes;
        }
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
        let contents = contents_of(chunks);
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
        self.count(&outcomes, &contents);
        outcomes
    }

    fn count(&self, outcomes: &[Outcome], contents: &[Content]) {
        let count = &self.stats.commits;
        for (chunk, content) in outcomes.iter().zip(contents) {
            match chunk {
                Ok(()) => count.chunks.count(),
                Err(_) => count.failed.count(),
            }
            count.chunk_bytes.add(if chunk.is_ok() { content.nbytes() } else { 0 });
        }
        if outcomes.iter().any(Result::is_ok) {
            *self.stats.last_commit.lock() = Some(SystemTime::now());
        }
    }

    /// Removes the journal of an array, unless its record is still needed.
    pub fn finish_commits(&self, array: &SourceArray) -> Result<(), StoreError> {
        let commits = self.commits.arrays.lock().remove(&array.id);
        let Some(commits) = commits else { return Ok(()) };
        // Objects have none.
        let Some(storage) = self.storage.posix() else { return Ok(()) };
        let _turn = commits.turn.lock();
        let mut journal = Self::lock_journal(storage, array, &commits)?;
        Self::settle(storage, array, &mut commits.state.lock(), &mut journal)?;
        journal.remove()
    }
}

/// Returns the contents of chunks; empty ones of those to be removed.
fn contents_of(chunks: &[StagedChunk]) -> Vec<Content> {
    let empty = || Content::Memory(Arc::default());
    chunks.iter().map(|chunk| chunk.content.clone().unwrap_or_else(empty)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::*;
    use crate::format::sharding::parse_document;
    use crate::store::formats::indexed;
    use crate::store::local::LocalStorage;
    use crate::store::storage::Storage;
    use crate::store::{Freshness, StoreConfig};

    #[test]
    fn a_shard_keeps_its_chunks_if_its_directory_gets_another_name_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("a")).unwrap();
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": [4],
            "data_type": "uint8", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "sharding_indexed", "configuration": {
                "chunk_shape": [2], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}}]});
        let layout = parse_document(&document, None).unwrap().unwrap();
        let array = SourceArray { id: 0, path: PathBuf::from("a"), layout, format: indexed() };
        let storage = Arc::new(LocalStorage::open_root(directory.path(), Arc::default()).unwrap());
        let opened = storage.writable().unwrap().within(Path::new("a")).unwrap().unwrap();
        let store = ShardStore::new(storage, StoreConfig::default(), Arc::default());
        let staged = |coord: u64| StagedChunk {
            coords: vec![coord],
            content: Some(Content::Memory(Arc::new(b"xy".to_vec()))),
            base: store.base(&array, &[coord], Freshness::Again).unwrap(),
            maker: None,
            with: Vec::new(),
        };
        let first = store.commit_in(&*opened, &array, &[staged(0)], Policy::Auto);
        assert!(first.iter().all(Result::is_ok), "{first:?}");
        let second = staged(1);
        let before = std::fs::read(directory.path().join("a/c/0")).unwrap();
        std::fs::rename(directory.path().join("a"), directory.path().join("b")).unwrap();
        // Nothing is found by its path; the shard in the open directory has a chunk.
        let outcomes = store.commit_in(&*opened, &array, &[second], Policy::Auto);
        assert!(matches!(outcomes[0].as_ref().unwrap_err().as_ref(), StoreError::Changing { .. }));
        assert_eq!(std::fs::read(directory.path().join("b/c/0")).unwrap(), before);
    }
}
