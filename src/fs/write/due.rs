//! Commits that leave out shards which are being filled, where each commit puts a shard as a whole.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use crate::fs::error::Result;
use crate::fs::state::filling::found;
use crate::fs::state::fs::Fs;

impl Fs {
    /// Commits what is due at an interval: all but shards that wait for more chunks (see
    /// [`filling`](crate::fs::state::filling)).
    ///
    /// # Errors
    ///
    /// As those of [`Fs::commit`].
    pub fn commit_due(&self) -> Result<()> {
        self.commit_but(Path::new(""), |names| match self.puts_whole_shards() {
            true => {
                let (now, interval) = (Instant::now(), self.config.writing.interval);
                self.commits.filling.lock().wait(found(names), now, interval)
            }
            false => HashSet::new(),
        })
    }

    /// Commits all but shards that may still be filled, where each commit puts a shard as a whole.
    ///
    /// # Errors
    ///
    /// As those of [`Fs::commit`].
    pub(in crate::fs) fn commit_complete(&self) -> Result<()> {
        if !self.puts_whole_shards() {
            return Ok(());
        }
        self.commit_but(Path::new(""), |names| found(names).into_keys().collect())
    }

    /// Returns whether each commit puts a shard as a whole, however little of it is new.
    fn puts_whole_shards(&self) -> bool {
        self.storage.objects().is_some_and(|objects| objects.part_limits().is_none())
    }
}
