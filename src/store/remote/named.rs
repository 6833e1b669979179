//! Nodes that the documents of groups name, in a store whose names cannot be listed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::byte_cache::ByteCache;

/// Memory for the names of nodes, in bytes.
const NAMES_BYTES: usize = 16 << 20;

/// Memory that a name takes besides its text, in bytes.
const EACH: usize = 64;

/// Paths of nodes.
pub(super) type Nodes = Arc<BTreeSet<String>>;

/// Nodes that documents name, by the paths of these, and when they were read.
pub(super) struct NamedNodes {
    /// Time for which a document is believed.
    trusted: Duration,
    by_document: Mutex<ByteCache<PathBuf, (Instant, Nodes)>>,
}

impl NamedNodes {
    /// Creates an empty table.
    pub(super) fn new(trusted: Duration) -> Self {
        Self { trusted, by_document: Mutex::new(ByteCache::new(NAMES_BYTES)) }
    }

    /// Returns the nodes that a document names, if it was read a short time ago.
    pub(super) fn known(&self, document: &Path) -> Option<Nodes> {
        let (at, nodes) = self.by_document.lock().get(document)?;
        (at.elapsed() < self.trusted).then_some(nodes)
    }

    /// Records which nodes a document names, which was read at some time.
    pub(super) fn note(&self, document: &Path, at: Instant, nodes: BTreeSet<String>) -> Nodes {
        let nbytes = nodes.iter().map(|name| name.len() + EACH).sum::<usize>() + EACH;
        let nodes = Arc::new(nodes);
        self.by_document.lock().put(document.to_owned(), (at, Arc::clone(&nodes)), nbytes);
        nodes
    }
}
