//! Users who have opened files.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::fs::caller::Author;
use crate::store::storage::{Need, Version};

/// Maximum number of shards that are remembered for an open file. Access to others is checked each time.
const MAX_PERMITTED: usize = 256;

/// User with limited rights who has opened a file. What the file shows may be in another file of the source
/// by the time it is read, to which that user has no access.
#[derive(Debug)]
pub(in crate::fs) struct Opener {
    /// The user, with the rights at the time of the open.
    pub(in crate::fs) author: Author,
    /// Files of the source in the versions to which access was permitted, and for which. Another file may
    /// have a number that was one of these.
    permitted: Mutex<HashSet<(Version, bool)>>,
}

impl Opener {
    /// Creates the opener of a file, to whom nothing has been permitted yet.
    pub(in crate::fs) fn new(author: Author) -> Self {
        Self { author, permitted: Mutex::default() }
    }

    /// Returns whether access to a file of the source was permitted.
    pub(in crate::fs) fn is_permitted(&self, file: Version, need: Need) -> bool {
        self.permitted.lock().contains(&(file, need == Need::Write))
    }

    /// Records that access to a file of the source was permitted.
    pub(in crate::fs) fn permit(&self, file: Version, need: Need) {
        let mut permitted = self.permitted.lock();
        if permitted.len() >= MAX_PERMITTED {
            permitted.clear();
        }
        permitted.insert((file, need == Need::Write));
    }
}
