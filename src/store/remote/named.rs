//! Nodes that the documents of groups name, in a store whose names cannot be listed.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

/// Documents of which it is remembered which nodes they name.
// Evaluated by the compiler, which rejects zero.
const NAMING: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Paths of nodes.
pub(super) type Nodes = Arc<BTreeSet<String>>;

/// Nodes that documents name, by the paths of these, and when they were read.
pub(super) struct NamedNodes {
    /// Time for which a document is believed.
    trusted: Duration,
    by_document: Mutex<LruCache<PathBuf, (Instant, Nodes)>>,
}

impl NamedNodes {
    /// Creates an empty table.
    pub(super) fn new(trusted: Duration) -> Self {
        Self { trusted, by_document: Mutex::new(LruCache::new(NAMING)) }
    }

    /// Returns the nodes that a document names, if it was read a short time ago.
    pub(super) fn known(&self, document: &Path) -> Option<Nodes> {
        let mut known = self.by_document.lock();
        let (at, nodes) = known.get(document)?;
        (at.elapsed() < self.trusted).then(|| Arc::clone(nodes))
    }

    /// Records which nodes a document names, which was read at some time.
    pub(super) fn note(&self, document: &Path, at: Instant, nodes: BTreeSet<String>) -> Nodes {
        let nodes = Arc::new(nodes);
        self.by_document.lock().put(document.to_owned(), (at, Arc::clone(&nodes)));
        nodes
    }
}
