//! Documents in a store of objects that are asked for, whatever is known of them.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::bounded::bounded;
use crate::store::storage::ObjectStorage;

/// Time after which a document is asked for again.
const SECOND: Duration = Duration::from_secs(1);

/// Number of documents that are remembered.
// Evaluated by the compiler, which rejects zero.
const MOST: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();

/// When documents were asked for.
pub(super) struct Asked(Mutex<LruCache<PathBuf, Instant>>);

impl Default for Asked {
    fn default() -> Self {
        Self(Mutex::new(bounded(MOST)))
    }
}

impl Asked {
    /// Asks for a document, at most once a second. What is found is known from then on.
    pub(super) fn ask(&self, objects: &dyn ObjectStorage, document: PathBuf) -> io::Result<()> {
        let at = Instant::now();
        if self.is_recent(&document) {
            return Ok(());
        }
        objects.current(&document)?;
        self.0.lock().put(document, at);
        Ok(())
    }

    fn is_recent(&self, document: &Path) -> bool {
        self.0.lock().get(document).is_some_and(|at| at.elapsed() < SECOND)
    }
}
