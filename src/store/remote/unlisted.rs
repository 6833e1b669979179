//! What a store has whose names cannot be listed: a web server, or a bucket that lets read its objects alone.
//! Single names are tried, and metadata tells of others.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::directories::show;
use super::names::Name;
use super::storage::RemoteStorage;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::named_nodes::named_nodes;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::memory::zeroed;
use crate::store::storage::{Storage, Visit, if_present};

/// Document of Zarr v3.
const ZARR_JSON: &str = "zarr.json";

/// Documents of which it is remembered which nodes they name.
// Evaluated by the compiler, which rejects zero.
const NAMING: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Names by which it is found out whether a web server has a directory: it lists none.
const NODE_DOCUMENTS: [&str; 3] = [ZARR_JSON, ZARRAY, ZGROUP];

/// Documents in a directory that has one of the others.
const DOCUMENTS_BESIDE: [(&str, &str); 3] =
    [(ZARRAY, ZATTRS), (ZGROUP, ZATTRS), (ZGROUP, ZMETADATA)];

/// Paths of nodes.
type Nodes = Arc<BTreeSet<String>>;

impl RemoteStorage {
    /// Finds out what a web server has at a path. It is a directory if there is a document of a node
    /// in it.
    pub(super) fn find_on_web(&self, path: &Path) -> io::Result<Option<Name>> {
        let at = Instant::now();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_document = name.starts_with('.') || name.ends_with(".json");
        // A server may refuse some of these names, and have the object.
        let (mut is_directory, mut refused) = (false, None);
        for document in NODE_DOCUMENTS.iter().filter(|_| !is_document) {
            match self.head(&path.join(document)) {
                Ok(found) => is_directory = found.is_some(),
                Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                    refused = refused.or(Some(error));
                }
                Err(error) => return Err(error),
            }
            if is_directory {
                break;
            }
        }
        let found = match is_directory {
            true => Some(Name::Directory),
            false => self.head(path)?.map(Name::Object),
        };
        if let (None, Some(error)) = (&found, refused) {
            return Err(error);
        }
        self.names.note(path, at, found.clone());
        Ok(found)
    }

    /// Visits the documents in a directory of a web server, which does not tell what else is there, and the nodes
    /// below it that they name.
    pub(super) fn list_documents(
        &self,
        path: &Path,
        from: u64,
        visit: &mut Visit<'_>,
    ) -> io::Result<()> {
        let mut found: Vec<(String, Name)> = Vec::new();
        for name in NODE_DOCUMENTS {
            if let Some(what) = self.find(&path.join(name))? {
                found.push((name.to_owned(), what));
            }
        }
        for (document, name) in DOCUMENTS_BESIDE {
            let has = |name: &str| found.iter().any(|(other, _)| other == name);
            if has(document)
                && !has(name)
                && let Some(what) = self.find(&path.join(name))?
            {
                found.push((name.to_owned(), what));
            }
        }
        let nodes = self.nodes_named_above(path)?;
        found.extend(nodes.into_iter().map(|name| (name, Name::Directory)));
        for ((name, what), next) in found.iter().zip(1..) {
            if next > from && show(visit, name, what, next).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the names in a directory of nodes that the documents in it, and in those above it, name.
    fn nodes_named_above(&self, directory: &Path) -> io::Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for above in directory.ancestors() {
            let below = directory.strip_prefix(above).unwrap_or(directory);
            for document in [ZARR_JSON, ZMETADATA, ZATTRS] {
                for node in self.nodes_named_in(&above.join(document))?.iter() {
                    let next = Path::new(node).strip_prefix(below).ok();
                    let next = next.and_then(|rest| rest.iter().next()?.to_str());
                    names.extend(next.map(str::to_owned));
                }
            }
        }
        Ok(names)
    }

    /// Returns the paths of nodes that a document names, none if there is no such document.
    fn nodes_named_in(&self, document: &Path) -> io::Result<Nodes> {
        if let Some(nodes) = self.named.known(document) {
            return Ok(nodes);
        }
        let at = Instant::now();
        let mut text = Vec::new();
        if let Some(file) = if_present(self.open_as_file(document))? {
            let nbytes = file.stat()?.size;
            if nbytes <= MAX_METADATA_BYTES {
                text = zeroed(nbytes)?;
                let read = file.read_at(&mut text, 0)?;
                text.truncate(read);
            }
        }
        Ok(self.named.note(document, at, named_nodes(&text)))
    }
}

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

    fn known(&self, document: &Path) -> Option<Nodes> {
        let mut known = self.by_document.lock();
        let (at, nodes) = known.get(document)?;
        (at.elapsed() < self.trusted).then(|| Arc::clone(nodes))
    }

    fn note(&self, document: &Path, at: Instant, nodes: BTreeSet<String>) -> Nodes {
        let nodes = Arc::new(nodes);
        self.by_document.lock().put(document.to_owned(), (at, Arc::clone(&nodes)));
        nodes
    }
}
