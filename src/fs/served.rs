//! Versions of documents in a store of objects, as programs have read or written them here: what they write next is
//! made of these.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use lru::LruCache;
use parking_lot::Mutex;

use crate::bounded::bounded;

/// Number of documents that are remembered.
// Evaluated by the compiler, which rejects zero.
const MOST: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();

/// Device and inode number of a version.
type Id = (u64, u64);

/// Versions of documents.
pub(in crate::fs) struct Served(Mutex<LruCache<PathBuf, Id>>);

impl Default for Served {
    fn default() -> Self {
        Self(Mutex::new(bounded(MOST)))
    }
}

impl Served {
    /// Records the version of a document that a program has read or written.
    pub(in crate::fs) fn note(&self, document: &Path, version: Id) {
        self.0.lock().put(document.to_owned(), version);
    }

    /// Returns the version of a document that was read or written last. `None` if that was never, or long ago.
    pub(in crate::fs) fn last(&self, document: &Path) -> Option<Id> {
        self.0.lock().get(document).copied()
    }

    /// Forgets a document: whoever writes it next has been told that it is another one.
    pub(in crate::fs) fn forget(&self, document: &Path) {
        self.0.lock().pop(document);
    }
}
