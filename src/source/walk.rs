//! Iteration over the nodes of a source in path order. Nodes are found one at a time and not kept,
//! because a hierarchy may have any number of them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::array::{Array, ArrayFormat};
use super::config::{Format, OpenConfig};
use super::document::{METADATA_FILE, document_at, read_document};
use super::error::NodeError;
use super::{bloscpack, blz, zarr2, zarr3};
use crate::format::draft2022;
use crate::format::metadata::NodeMetadata;
use crate::format::zarr2::{ZARRAY, ZGROUP};
use crate::store::formats::superchunks::SIZES;
use crate::store::storage::{FileKind, Storage, if_present, kind_of};
use crate::store::work::WORK_DIRECTORY;

/// A node of a source.
#[derive(Debug, Clone)]
pub enum Node {
    /// A group; holds its directory relative to the source's root.
    Group(PathBuf),
    /// An array.
    Array(Arc<Array>),
    /// A node whose metadata cannot be used or a directory that cannot be read, with the error.
    Bad(PathBuf, Arc<NodeError>),
    /// A directory with the work directory of a mount, which may hold a journal, but no Zarr array.
    Journal(PathBuf),
}

impl Node {
    /// Returns the node's directory relative to the source's root.
    pub fn directory(&self) -> &Path {
        match self {
            Self::Group(directory) | Self::Bad(directory, _) | Self::Journal(directory) => {
                directory
            }
            Self::Array(array) => &array.source.path,
        }
    }
}

/// Iterator over the nodes of a source.
pub struct Nodes<'a> {
    storage: &'a dyn Storage,
    config: OpenConfig,
    /// Identifier of the next array.
    next_id: &'a AtomicU64,
    /// Pending steps; the last is taken next.
    steps: Vec<Step>,
    /// Nodes found but not yet returned.
    found: VecDeque<Node>,
}

/// A pending step of the walk.
pub(super) enum Step {
    /// Visit a directory.
    Directory(PathBuf),
    /// Visit the named entries of a directory; the last name is taken next.
    Below(PathBuf, Vec<OsString>),
    /// Visit arrays of a hierarchy of the draft of 2022, each as its data path and document path;
    /// the last is taken next.
    Draft(Vec<(PathBuf, PathBuf)>),
    /// Visit a file that is an array by itself.
    File(OsString),
}

impl Iterator for Nodes<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        loop {
            if let Some(node) = self.found.pop_front() {
                return Some(node);
            }
            match self.steps.pop()? {
                Step::Directory(directory) => self.look(directory),
                Step::Below(directory, mut names) => {
                    let Some(name) = names.pop() else { continue };
                    let path = directory.join(&name);
                    let next = match name == WORK_DIRECTORY {
                        true => Err(Node::Journal(directory.clone())),
                        false => Ok(Step::Directory(path)),
                    };
                    self.steps.push(Step::Below(directory, names));
                    match next {
                        Ok(step) => self.steps.push(step),
                        Err(node) => self.found.push_back(node),
                    }
                }
                Step::Draft(mut documents) => {
                    let Some((data, path)) = documents.pop() else { continue };
                    self.steps.push(Step::Draft(documents));
                    let array = read_document(self.storage, &path).and_then(|document| {
                        super::draft2022::array(&data, path, document, self.config.level)
                    });
                    self.add(data, array.map(Some));
                }
                Step::File(name) => self.bloscpack(Path::new(&name)),
            }
        }
    }
}

impl<'a> Nodes<'a> {
    pub(super) fn new(
        storage: &'a dyn Storage,
        config: OpenConfig,
        next_id: &'a AtomicU64,
        first: Step,
    ) -> Self {
        Self { storage, config, next_id, steps: vec![first], found: VecDeque::new() }
    }
}

impl Nodes<'_> {
    fn may_be(&self, format: Format) -> bool {
        self.config.format.is_none_or(|wanted| wanted == format)
    }

    /// Queues a found node; returns the array if it is one.
    fn add(
        &mut self,
        directory: PathBuf,
        found: Result<Option<Array>, NodeError>,
    ) -> Option<Arc<Array>> {
        match found {
            Ok(Some(mut array)) => {
                array.source.id = self.next_id.fetch_add(1, Ordering::Relaxed);
                let array = Arc::new(array);
                self.found.push_back(Node::Array(Arc::clone(&array)));
                Some(array)
            }
            Ok(None) => None,
            Err(error) => {
                self.bad(directory, error);
                None
            }
        }
    }

    fn bad(&mut self, directory: PathBuf, error: NodeError) {
        self.found.push_back(Node::Bad(directory, Arc::new(error)));
    }

    fn bloscpack(&mut self, name: &Path) {
        let storage = self.storage;
        let found = storage
            .stat(name)
            .map_err(NodeError::from)
            .and_then(|stat| bloscpack::array(storage, name.as_os_str(), &stat, false))
            .map(|found| Some(found.into_array(Path::new(""), ArrayFormat::Bloscpack)));
        self.add(PathBuf::new(), found);
    }

    fn look(&mut self, directory: PathBuf) {
        let path = directory.join(METADATA_FILE);
        let document = document_at(self.storage, &path);
        if let Some(document) = document.transpose() {
            match document {
                Ok(document) => match NodeMetadata::parse(&document) {
                    _ if draft2022::is_hierarchy(&document).unwrap_or(false) => {
                        return self.look_at_draft(directory);
                    }
                    Ok(NodeMetadata::Group) => self.found.push_back(Node::Group(directory.clone())),
                    Ok(NodeMetadata::Array(_)) => {
                        let array = zarr3::array(&directory, path, &document, self.config.level);
                        let array = self.add(directory.clone(), array.map(Some));
                        return self.below_array(directory, array);
                    }
                    Err(error) => {
                        let is_array = document.get("node_type").is_some_and(|it| it == "array");
                        self.bad(directory.clone(), error.into());
                        if is_array {
                            return;
                        }
                    }
                },
                Err(error) => self.bad(directory.clone(), error),
            }
        } else if self.superchunks(&directory) || self.zarr2(&directory) {
            return;
        }
        self.below(directory, |_| true);
    }

    /// Queues the Zarr v2 node in a directory, if there is one. Returns `true` if it is an array,
    /// `false` for a group or no node.
    fn zarr2(&mut self, directory: &Path) -> bool {
        if !self.may_be(Format::Zarr) {
            return false;
        }
        let path = directory.join(ZARRAY);
        let array = match if_present(self.storage.lstat(&path)) {
            Ok(Some(_)) => Some(zarr2::array(self.storage, directory, path)),
            Ok(None) => None,
            Err(error) => Some(Err(error.into())),
        };
        if let Some(array) = array {
            let array = self.add(directory.to_owned(), array.map(Some));
            self.below_array(directory.to_owned(), array);
            return true;
        }
        match if_present(self.storage.lstat(&directory.join(ZGROUP))) {
            Ok(Some(_)) => self.found.push_back(Node::Group(directory.to_owned())),
            Ok(None) => (),
            Err(error) => self.bad(directory.to_owned(), error.into()),
        }
        false
    }

    /// Visits entries of an array's directory that do not belong to its chunks: nodes below an
    /// array, which Zarr does not provide for but some writers create.
    fn below_array(&mut self, directory: PathBuf, array: Option<Arc<Array>>) {
        // Without usable metadata, the names of chunks are unknown.
        if let Some(array) = array {
            self.below(directory, |name| name != WORK_DIRECTORY && !array.claims(name));
        }
    }

    fn below(&mut self, directory: PathBuf, is_meant: impl Fn(&OsStr) -> bool) {
        let mut names = Vec::new();
        let listed = self.each_entry(&directory, &is_meant, &mut |name, kind| {
            if kind == Some(FileKind::Directory) {
                names.push(name.to_owned());
            }
        });
        if let Err(error) = listed {
            return self.bad(directory, error);
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        names.shrink_to_fit();
        self.steps.push(Step::Below(directory, names));
    }

    /// Visits a hierarchy of the draft of 2022, which keeps the documents of its arrays together.
    fn look_at_draft(&mut self, hierarchy: PathBuf) {
        let mut directories = vec![draft2022::metadata_directory(&hierarchy)];
        let mut documents = Vec::new();
        while let Some(directory) = directories.pop() {
            let listed = self.each_entry(&directory, &|_| true, &mut |name, kind| {
                let path = directory.join(name);
                if kind == Some(FileKind::Directory) {
                    directories.push(path);
                } else if let Some(data) = draft2022::data_of(&hierarchy, &path) {
                    documents.push((data, path));
                }
            });
            if let Err(error) = listed {
                self.bad(directory, error);
            }
        }
        documents.sort_unstable_by(|one, other| other.cmp(one));
        self.found.push_back(Node::Group(hierarchy));
        self.steps.push(Step::Draft(documents));
    }

    /// Queues the BLZ or bcolz array, or the column of a table, in a directory. Returns whether
    /// there is one.
    fn superchunks(&mut self, directory: &Path) -> bool {
        if !self.may_be(Format::Blz) {
            return false;
        }
        let found = match if_present(self.storage.stat(&directory.join(SIZES))) {
            Ok(Some(_)) => match blz::array(self.storage, directory, false) {
                // A table: its columns are found below it.
                Ok(None) => return false,
                found => found,
            },
            Ok(None) => match blz::column(self.storage, directory) {
                Ok(Some((_, found))) => found.map(Some),
                Ok(None) => return false,
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        };
        let array =
            found.map(|found| found.map(|found| found.into_array(directory, ArrayFormat::Blz)));
        self.add(directory.to_owned(), array);
        true
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
/// folder of arrays or a folder of such folders. The search is breadth-first, so that nearby nodes
/// are found soon.
pub fn holds_nodes(storage: &dyn Storage) -> io::Result<bool> {
    /// Maximum number of directories to discover before the folder is considered to hold no nodes.
    const LOOKED_AT: usize = 10_000;
    /// Names of files whose presence indicates a node.
    const NAMES: [&str; 4] = [METADATA_FILE, SIZES, ZARRAY, ZGROUP];
    let mut directories = VecDeque::from([PathBuf::new()]);
    let mut known = directories.len();
    while let Some(directory) = directories.pop_front() {
        if NAMES.iter().any(|name| storage.stat(&directory.join(name)).is_ok()) {
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
