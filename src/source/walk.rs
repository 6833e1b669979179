//! Iteration over the nodes of a source in path order. Nodes are found one at a time and not kept,
//! because a hierarchy may have any number of them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::apart;
use super::array::Array;
use super::config::{Format, Probe};
use super::document::METADATA_FILE;
use super::error::NodeError;
use super::found::{Found, FoundKind, Unusable};
use super::links::{OutwardLinks, UnfollowedLinks};
use super::probe::INDICATIONS;
use super::unfinished::unfinished_by;
use crate::store::gather::made::is_unplaced;
use crate::store::storage::{FileKind, Storage, kind_of};
use crate::store::work::WORK_DIRECTORY;
use crate::text::shown;

/// A node of a source.
#[derive(Debug, Clone)]
pub enum Node {
    /// A group; holds its directory relative to the source's root.
    Group(PathBuf),
    /// An array.
    Array(Arc<Array>),
    /// A node whose metadata cannot be used or a directory that cannot be read.
    Bad(BadNode),
    /// A directory with the work directory of a mount, which may hold a journal, but no Zarr array.
    Journal(PathBuf),
}

/// Node whose metadata cannot be used, or directory that cannot be read.
#[derive(Debug, Clone)]
pub struct BadNode {
    /// The node's directory relative to the source's root.
    pub directory: PathBuf,
    /// What the error is about, relative to the source's root: a document, or the directory.
    pub path: PathBuf,
    /// The error.
    pub error: Arc<NodeError>,
}

impl Display for BadNode {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", shown(&self.path), self.error)
    }
}

impl Node {
    /// Returns the node's directory relative to the source's root.
    pub fn directory(&self) -> &Path {
        match self {
            Self::Group(directory) | Self::Journal(directory) => directory,
            Self::Bad(bad) => &bad.directory,
            Self::Array(array) => &array.source.path,
        }
    }
}

/// Iterator over the nodes of a source.
pub struct Nodes<'a> {
    storage: &'a dyn Storage,
    probe: Probe,
    /// Identifier of the next array.
    next_id: &'a AtomicU64,
    /// Pending steps; the last is taken next.
    steps: Vec<Step>,
    /// Nodes found but not yet returned.
    found: VecDeque<Node>,
    links: &'a OutwardLinks,
    /// Links to arrays and groups outside of the source, which are not followed.
    unfollowed: UnfollowedLinks,
}

/// A pending step of the walk.
enum Step {
    /// Visit a directory.
    Directory(PathBuf),
    /// Visit the named entries of a directory; the last name is taken next.
    Below(PathBuf, Vec<OsString>),
    /// Find out whether an array is to be in a directory that is none.
    Unplaced(PathBuf),
    /// Visit arrays whose documents are apart from them, each as its data path and document path;
    /// the last is taken next.
    Apart(Vec<(PathBuf, PathBuf)>),
}

impl Iterator for Nodes<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        loop {
            if let Some(node) = self.found.pop_front() {
                return Some(node);
            }
            let Some(step) = self.steps.pop() else {
                self.links.tell(&self.unfollowed);
                return None;
            };
            match step {
                Step::Directory(directory) => self.look(directory),
                Step::Below(directory, mut names) => {
                    let Some(name) = names.pop() else { continue };
                    let path = directory.join(&name);
                    let work = (name == WORK_DIRECTORY).then(|| directory.clone());
                    self.steps.push(Step::Below(directory, names));
                    match work {
                        None => self.steps.push(Step::Directory(path)),
                        Some(directory) => {
                            self.found.push_back(Node::Journal(directory.clone()));
                            self.steps.push(Step::Unplaced(directory));
                        }
                    }
                }
                // Once whoever goes on with it has got the directory.
                Step::Unplaced(directory) => {
                    if is_unplaced(self.storage, &directory) {
                        self.bad(directory, NodeError::Unplaced);
                    }
                }
                Step::Apart(mut documents) => {
                    let Some((data, path)) = documents.pop() else { continue };
                    self.steps.push(Step::Apart(documents));
                    match self.found(&data, &path) {
                        Ok(Found { kind: FoundKind::Array(array), room: _room, .. }) => {
                            self.add(array.into_array(data, path));
                        }
                        // It is none of an array.
                        Ok(_) => (),
                        Err(unusable) => self.unusable(data, *unusable),
                    }
                }
            }
        }
    }
}

impl<'a> Nodes<'a> {
    pub(super) fn new(
        storage: &'a dyn Storage,
        probe: Probe,
        next_id: &'a AtomicU64,
        links: &'a OutwardLinks,
    ) -> Self {
        let steps = vec![Step::Directory(PathBuf::new())];
        let (found, unfollowed) = (VecDeque::new(), UnfollowedLinks::default());
        Self { storage, probe, next_id, steps, found, links, unfollowed }
    }
}

impl Nodes<'_> {
    /// Queues an array.
    fn add(&mut self, mut array: Array) -> Arc<Array> {
        array.source.id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let array = Arc::new(array);
        self.found.push_back(Node::Array(Arc::clone(&array)));
        array
    }

    /// Queues a directory that cannot be used.
    fn bad(&mut self, directory: PathBuf, error: NodeError) {
        let (path, error) = (directory.clone(), Arc::new(error));
        self.found.push_back(Node::Bad(BadNode { directory, path, error }));
    }

    /// Queues a node whose metadata cannot be used.
    fn unusable(&mut self, directory: PathBuf, Unusable { path, error, .. }: Unusable) {
        // This error names the document itself.
        let names_itself = matches!(error, NodeError::Superchunks(..));
        let path = if names_itself { directory.clone() } else { path };
        self.found.push_back(Node::Bad(BadNode { directory, path, error: Arc::new(error) }));
    }

    /// Visits a directory, or the file that is opened as the source.
    fn look(&mut self, directory: PathBuf) {
        let path = match &self.probe.file {
            Some(file) => PathBuf::from(file),
            None => directory.join(METADATA_FILE),
        };
        let mut is_group = false;
        match self.found(&directory, &path) {
            Ok(Found { kind, path, room, .. }) => match kind {
                FoundKind::Array(array) => {
                    let may_have_nodes = array.has_document;
                    let array = self.add(array.into_array(directory.clone(), path));
                    drop(room);
                    if may_have_nodes {
                        self.below(directory, false, |name| {
                            name != WORK_DIRECTORY && !array.claims(name)
                        });
                    }
                    return;
                }
                FoundKind::Apart => return self.look_at_hierarchy(directory),
                FoundKind::Group(_) => {
                    is_group = true;
                    self.found.push_back(Node::Group(directory.clone()));
                }
                FoundKind::Nothing | FoundKind::AsStored => (),
            },
            Err(unusable) => {
                // Without usable metadata, the names of chunks are unknown.
                let is_array = unusable.is_array;
                self.unusable(directory.clone(), *unusable);
                if is_array {
                    return;
                }
            }
        }
        // Nothing beside a file that is opened as the source belongs to it.
        if self.probe.file.is_none() {
            self.below(directory, is_group, |_| true);
        }
    }

    fn found(&self, directory: &Path, path: &Path) -> Result<Found, Box<Unusable>> {
        self.probe.node(self.storage, directory, path, self.storage.stat(path))
    }

    /// Visits the entries of a directory that are meant. Those of an array's directory that do not
    /// belong to its chunks are: Zarr does not provide for nodes there, but some writers create them.
    fn below(&mut self, directory: PathBuf, is_group: bool, is_meant: impl Fn(&OsStr) -> bool) {
        let (mut names, mut links) = (Vec::new(), Vec::new());
        let listed = self.each_entry(&directory, &is_meant, &mut |name, kind| match kind {
            Some(FileKind::Directory) => names.push(name.to_owned()),
            Some(FileKind::Symlink) => links.push(directory.join(name)),
            _ => (),
        });
        if let Err(error) = listed {
            return self.bad(directory, error);
        }
        if names.is_empty() && is_group && !self.storage.can_list() {
            return self.bad(directory, NodeError::NotListed);
        }
        links.sort_unstable();
        links.iter().for_each(|link| self.links.examine(link, &mut self.unfollowed));
        if names.iter().any(|name| name == WORK_DIRECTORY)
            && let Some(command) = unfinished_by(self.storage, &directory)
        {
            return self.bad(directory, NodeError::Unfinished(command));
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        names.shrink_to_fit();
        self.steps.push(Step::Below(directory, names));
    }

    /// Visits a hierarchy that keeps the documents of its arrays together.
    fn look_at_hierarchy(&mut self, hierarchy: PathBuf) {
        let mut directories = vec![apart::metadata_directory(&hierarchy)];
        let mut documents = Vec::new();
        while let Some(directory) = directories.pop() {
            let listed = self.each_entry(&directory, &|_| true, &mut |name, kind| {
                let path = directory.join(name);
                if kind == Some(FileKind::Directory) {
                    directories.push(path);
                } else if let Some(data) = apart::data_of(&hierarchy, &path) {
                    documents.push((data, path));
                }
            });
            if let Err(error) = listed {
                self.bad(directory, error);
            }
        }
        documents.sort_unstable_by(|one, other| other.cmp(one));
        self.found.push_back(Node::Group(hierarchy));
        self.steps.push(Step::Apart(documents));
    }

    /// Calls `act` with the name and kind of each entry of a directory for which `is_meant` returns
    /// `true`.
    fn each_entry(
        &self,
        directory: &Path,
        is_meant: &dyn Fn(&OsStr) -> bool,
        act: &mut dyn FnMut(&OsStr, Option<FileKind>),
    ) -> Result<(), NodeError> {
        let mut failed = Ok(());
        let visit = &mut |item: crate::store::storage::DirItem<'_>| {
            if is_meant(item.name) {
                match kind_of(self.storage, directory, &item) {
                    Ok(kind) => act(item.name, kind),
                    Err(error) => {
                        failed = Err(error);
                        return ControlFlow::Break(());
                    }
                }
            }
            ControlFlow::Continue(())
        };
        self.storage.list(directory, 0, visit)?;
        Ok(failed?)
    }
}

/// Returns whether a directory without metadata of its own has a node anywhere below it, such as a
/// folder of arrays or a folder of such folders: of this format, if one is given. The search is
/// breadth-first, so that nearby nodes are found soon.
pub fn holds_nodes(storage: &dyn Storage, format: Option<Format>) -> io::Result<bool> {
    /// Maximum number of directories to discover before the folder is considered to hold no nodes.
    const LOOKED_AT: usize = 10_000;
    let mut directories = VecDeque::from([PathBuf::new()]);
    let mut known = directories.len();
    while let Some(directory) = directories.pop_front() {
        let mut indications =
            INDICATIONS.iter().filter(|(_, of)| format.is_none_or(|format| format == *of));
        if indications.any(|(name, _)| storage.stat(&directory.join(name)).is_ok()) {
            return Ok(true);
        }
        // It is one as soon as a writable mount uses it.
        if is_unplaced(storage, &directory) {
            return Ok(true);
        }
        let listed = storage.list(&directory, 0, &mut |item| {
            let path = directory.join(item.name);
            let is_directory = match item.kind {
                Some(kind) => kind == FileKind::Directory,
                None => storage.lstat(&path).is_ok_and(|stat| stat.kind == FileKind::Directory),
            };
            if is_directory {
                known += 1;
                directories.push_back(path);
            }
            if known < LOOKED_AT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        // A subdirectory that this user cannot read has no nodes usable by this user.
        if directory.as_os_str().is_empty() {
            listed?;
        }
    }
    Ok(false)
}
