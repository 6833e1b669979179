//! Versions of documents in a store of objects, as programs have read or written them here: what they write next is
//! made of these.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::bounded::bounded;

/// Number of documents that are remembered.
// Evaluated by the compiler, which rejects zero.
const MOST: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// Time for which a document that was refused stays so, unless it is read: the kernel repeats a `rename` that has failed
/// with ESTALE, and no program would hear of it.
const REFUSED: Duration = Duration::from_secs(10);

/// Device and inode number of a version.
type Id = (u64, u64);

/// Version of a document, and when another one was refused that was made of it.
type Version = (Id, Option<Instant>);

/// Versions of documents.
pub(in crate::fs) struct Served(Mutex<LruCache<PathBuf, Version>>);

impl Default for Served {
    fn default() -> Self {
        Self(Mutex::new(bounded(MOST)))
    }
}

impl Served {
    /// Records the version of a document that a program has read or written.
    pub(in crate::fs) fn note(&self, document: &Path, version: Id) {
        self.0.lock().put(document.to_owned(), (version, None));
    }

    /// Returns the version of a document that was read or written last. `None` if that was never, or long ago, or if a
    /// program was told some time ago that there is another one by now.
    pub(in crate::fs) fn last(&self, document: &Path) -> Option<Id> {
        let (version, refused) = *self.0.lock().get(document)?;
        refused.is_none_or(|at| at.elapsed() < REFUSED).then_some(version)
    }

    /// Records that what was made of the last version is refused.
    pub(in crate::fs) fn refuse(&self, document: &Path) {
        if let Some((_, refused)) = self.0.lock().get_mut(document) {
            refused.get_or_insert_with(Instant::now);
        }
    }
}
