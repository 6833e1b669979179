//! Users who have opened files.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::fs::caller::Author;
use crate::store::storage::Stat;

/// Maximum number of shards of an array whose whole files users with limited rights may open.
pub(in crate::fs) const MAX_SHARDS: usize = 10_000;

/// User with limited rights who has opened a file. What the file shows may be in another file of the source
/// by the time it is read, to which that user has no access.
#[derive(Debug)]
pub(in crate::fs) struct Opener {
    /// The user, with the rights at the time of the open.
    pub(in crate::fs) author: Author,
    /// Files of the source, by device and inode number, to which access was permitted.
    permitted: Mutex<HashSet<(u64, u64)>>,
}

impl Opener {
    /// Creates the opener of a file that shows `permitted`.
    pub(in crate::fs) fn new(author: Author) -> Self {
        Self { author, permitted: Mutex::default() }
    }

    /// Returns whether access to a file of the source was permitted.
    pub(in crate::fs) fn is_permitted(&self, file: (u64, u64)) -> bool {
        self.permitted.lock().contains(&file)
    }

    /// Records that access to a file of the source was permitted.
    pub(in crate::fs) fn permit(&self, file: &Stat) {
        let mut permitted = self.permitted.lock();
        // Of those that have been replaced again and again: they are found permitted once more.
        if permitted.len() > MAX_SHARDS {
            permitted.clear();
        }
        permitted.insert(file.id());
    }
}
