//! What an interrupted gathering has left: it goes on, or nothing of it stays.

use std::time::Duration;

use super::keys::Item;
use super::made::{PLACING, check_private, clear, read_document};
use super::{GatherError, Gathering, Passed, Where};
use crate::store::error::StoreError;
use crate::store::io_error;
use crate::store::journal::Journal;
use crate::store::owner::Owner;
use crate::store::recover::recover_within;
use crate::store::storage::{FileKind, if_present};
use crate::text::shown;

/// Goes on where a process was interrupted that gathered the chunk files in a directory. Returns whether the array
/// is in its place by that.
///
/// # Errors
/// It cannot go on: something has come in its way.
pub(crate) fn recover(place: Where<'_>) -> Result<bool, GatherError> {
    let Some(posix) = place.storage.posix() else { return Ok(false) };
    let made = place.made();
    match if_present(posix.lstat(&made)) {
        Ok(Some(stat)) if stat.kind == FileKind::Directory => (),
        // Of a directory that this user may not search, others are in charge.
        _ => return Ok(false),
    }
    check_private(posix, &made)?;
    let journal = match Journal::lock_within(posix, place.directory, Duration::ZERO) {
        // A process that has not ended gathers them.
        Err(StoreError::Locked { .. }) => return Ok(false),
        journal => journal?,
    };
    let document = match read_document(posix, &made) {
        Ok(Some(document)) => document,
        found => {
            let cleared = found.and_then(|_| clear(posix, &made));
            return match cleared {
                Ok(()) => Ok(journal.remove().map(|()| false)?),
                Err(error) => {
                    journal.leave();
                    Err(error.into())
                }
            };
        }
    };
    let mut gathering = Gathering::new(place, &document, journal)?;
    let gone_on = gathering.go_on();
    match gone_on {
        Ok(()) => {
            gathering.end(Ok(()))?;
            log::info!(
                "{}: its chunk files, which came before its metadata, are in shards",
                shown(place.directory)
            );
            Ok(true)
        }
        Err(error) => {
            gathering.journal.leave();
            Err(error)
        }
    }
}

impl Gathering<'_> {
    /// Returns the user to whom the shards belong that were made. `None` if there are none.
    fn owner_of_shards(&self) -> Result<Option<u32>, GatherError> {
        let mut owner = None;
        self.shards.walk(self.posix, &self.array.path, &mut |item| {
            if let (Item::File(path, _), None) = (item, owner) {
                owner = Some(self.posix.lstat(&path).map_err(io_error(&path))?.uid);
            }
            Ok::<(), StoreError>(())
        })?;
        Ok(owner)
    }

    fn go_on(&mut self) -> Result<(), GatherError> {
        recover_within(self.posix, Owner::Array(&self.array), Duration::ZERO)?;
        let placing = self.array.path.join(PLACING);
        let is_placing = if_present(self.posix.lstat(&placing)).map_err(io_error(&placing))?;
        if is_placing.is_none() {
            self.owner = self.owner_of_shards()?;
            // What is in a shard need not be what is in its file by now.
            if let Passed::Other(path) = self.last_pass()? {
                return Err(StoreError::InTheWay { path }.into());
            }
            self.store.finish_commits(&self.array)?;
        }
        self.carry_on()?;
        Ok(())
    }
}
