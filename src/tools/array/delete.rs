//! Deleting an array or a group.
//!
//! The node is first moved aside ([`crate::tools::aside`]), so it is never seen partially deleted.
//! What an interrupted deletion leaves there is found and removed by the next one.

use std::fs::{DirEntry, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::consolidated::{Change, update_above};
use super::error::{ArrayError, io_error};
use super::node::{check_finished, document_in, place_of};
use crate::source::{NODE_DOCUMENTS, is_of_other_format};
use crate::store::journal::LOCK;
use crate::store::local::try_lock;
use crate::store::work::WORK_DIRECTORY;
use crate::tools::aside::{Aside, Leftovers, Place, Purpose};

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An array.
    Array,
    /// A group.
    Group,
}

impl Kind {
    /// Determines the kind from the node's metadata; `None` if it is not a Zarr v3 node.
    pub(crate) fn of(document: &Value) -> Option<Self> {
        if document.get("zarr_format").and_then(Value::as_u64) != Some(3) {
            return None;
        }
        match document.get("node_type").and_then(Value::as_str) {
            Some("array") => Some(Self::Array),
            Some("group") => Some(Self::Group),
            _ => None,
        }
    }
}

/// A node to be deleted, and its contents.
#[derive(Debug)]
pub(crate) struct Deletion {
    place: Place,
    /// Kind of the node; `None` if there are only leftovers of interrupted commands.
    pub kind: Option<Kind>,
    /// Number of files below the node, not counting directories.
    pub files: u64,
    /// Total length of the files, in bytes.
    pub nbytes: u64,
    /// `true` if there are other nodes below an array.
    has_nodes: bool,
    /// Hidden directories beside the node, left by interrupted commands.
    leftovers: Leftovers,
    /// Locks of arrays, relative to the node's directory.
    locks: Vec<PathBuf>,
}

impl Deletion {
    /// Examines the array at `path`; with `recursive` it may also be a group, or an array with other
    /// nodes below it.
    pub(crate) fn find(path: &Path, recursive: bool) -> Result<Self, ArrayError> {
        let place = place_of(path)?;
        let whole = place.path();
        let leftovers = Leftovers::find(&place).map_err(io_error(path))?;
        let (kind, files, nbytes, has_nodes) = (None, 0, 0, false);
        let mut found =
            Self { place, kind, files, nbytes, has_nodes, leftovers, locks: Vec::new() };
        match whole.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if found.leftovers.count() == 0 {
                    return Err(ArrayError::Absent(path.to_owned()));
                }
                return Ok(found);
            }
            Err(error) => return Err(io_error(path)(error)),
            Ok(metadata) if metadata.is_symlink() => {
                return Err(ArrayError::Link(path.to_owned()));
            }
            Ok(metadata) if !metadata.is_dir() => {
                return Err(ArrayError::NotANode(path.to_owned()));
            }
            Ok(_) => (),
        }
        check_finished(path)?;
        let kind = match document_in(&whole)? {
            Some(document) => Kind::of(&document),
            None if is_of_other_format(&whole) => {
                return Err(ArrayError::OtherFormat(path.to_owned()));
            }
            None => None,
        };
        match kind {
            None => return Err(ArrayError::NotANode(path.to_owned())),
            Some(Kind::Group) if !recursive => {
                return Err(ArrayError::NotRecursive(path.to_owned()));
            }
            Some(_) => found.kind = kind,
        }
        found.count(&whole)?;
        if found.has_nodes && !recursive {
            return Err(ArrayError::NodesBelow(path.to_owned()));
        }
        Ok(found)
    }

    fn count(&mut self, top: &Path) -> Result<(), ArrayError> {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in directory.read_dir().map_err(io_error(&directory))? {
                let entry: DirEntry = entry.map_err(io_error(&directory))?;
                let path = entry.path();
                // For a symbolic link these are the attributes of the link itself.
                let metadata = entry.metadata().map_err(io_error(&path))?;
                if metadata.is_dir() {
                    directories.push(path);
                    continue;
                }
                let is_document = NODE_DOCUMENTS.iter().any(|name| entry.file_name() == *name);
                self.has_nodes |= is_document && directory != top;
                self.files += 1;
                self.nbytes = self.nbytes.saturating_add(metadata.len());
                if directory.ends_with(WORK_DIRECTORY) && path.ends_with(LOCK) {
                    self.locks.extend(path.strip_prefix(top).ok().map(Path::to_owned));
                }
            }
        }
        Ok(())
    }

    /// Returns the absolute path of the node.
    pub(crate) fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// Returns the number of hidden directories left by interrupted commands.
    pub(crate) fn leftovers(&self) -> usize {
        self.leftovers.count()
    }

    /// Returns an error if a commit to one of the arrays, which are in `directory` by now, is in
    /// progress. The locks are checked one at a time: there may be more of them than files can be
    /// open.
    pub(super) fn check_idle(&self, directory: &Path) -> Result<(), ArrayError> {
        for lock in &self.locks {
            if !is_idle(&directory.join(lock))? {
                let array = lock.parent().and_then(Path::parent).unwrap_or(Path::new(""));
                return Err(ArrayError::Busy(self.place.path().join(array)));
            }
        }
        Ok(())
    }

    /// Deletes the node and the leftovers of interrupted commands.
    pub(crate) fn run(self) -> Result<(), ArrayError> {
        let path = self.place.path();
        let consolidated = if self.kind.is_some() {
            self.check_idle(&path)?;
            let aside = Aside::begin(&self.place, Purpose::Delete)?;
            aside.take()?;
            // A commit may have begun meanwhile. From now on none can find the array by its name.
            if let Err(busy) = self.check_idle(&aside.old_path()) {
                aside.give_back()?;
                aside.remove()?;
                return Err(busy);
            }
            let updated = update_above(&path, Change::Deleted);
            aside.remove()?;
            updated
        } else {
            // The interrupted command may not have come to it.
            update_above(&path, Change::Deleted)
        };
        self.leftovers.remove(&self.place)?;
        consolidated
    }
}

/// Returns whether the lock of a journal is free.
fn is_idle(lock: &Path) -> Result<bool, ArrayError> {
    let mut how = OpenOptions::new();
    // A lock of another member of the group can only be written to.
    let how = how.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match how.open(lock) {
        Ok(file) => try_lock(&file).map_err(io_error(lock)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        // A symbolic link is not a lock.
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => Ok(true),
        Err(error) => Err(io_error(lock)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(directory: &Path, kind: &str) {
        std::fs::create_dir_all(directory).unwrap();
        let document = format!(r#"{{"zarr_format": 3, "node_type": "{kind}"}}"#);
        std::fs::write(directory.join("zarr.json"), document).unwrap();
    }

    #[test]
    fn an_array_goes_with_all_that_is_in_it() {
        let top = tempfile::tempdir().unwrap();
        let array = top.path().join("a");
        node(&array, "array");
        std::fs::create_dir_all(array.join("c/0")).unwrap();
        std::fs::write(array.join("c/0/0"), "12345").unwrap();
        let found = Deletion::find(&array, false).unwrap();
        assert_eq!((found.kind, found.files, found.nbytes), (Some(Kind::Array), 2, 45));
        found.run().unwrap();
        assert_eq!(top.path().read_dir().unwrap().count(), 0);
        let error = Deletion::find(&array, false).unwrap_err();
        assert!(matches!(error, ArrayError::Absent(_)), "{error}");
    }

    #[test]
    fn an_array_with_nodes_below_it_goes_only_when_asked() {
        let top = tempfile::tempdir().unwrap();
        let array = top.path().join("a");
        node(&array, "array");
        node(&array.join("below/b"), "array");
        let refused = Deletion::find(&array, false).unwrap_err();
        assert!(matches!(refused, ArrayError::NodesBelow(_)), "{refused}");
        let found = Deletion::find(&array, true).unwrap();
        assert_eq!((found.kind, found.files), (Some(Kind::Array), 2));
        found.run().unwrap();
        assert!(!array.exists());
    }

    #[test]
    fn what_is_no_node_stays() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        node(&path("group/array"), "array");
        node(&path("group"), "group");
        std::fs::create_dir(path("plain")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        std::fs::create_dir(path("old")).unwrap();
        std::fs::write(path("old/.zarray"), "{}").unwrap();
        std::os::unix::fs::symlink("group/array", path("link")).unwrap();
        let refused = |name: &str| Deletion::find(&path(name), false).unwrap_err();
        assert!(matches!(refused("group"), ArrayError::NotRecursive(_)));
        assert!(matches!(refused("plain"), ArrayError::NotANode(_)));
        assert!(matches!(refused("file"), ArrayError::NotANode(_)));
        assert!(matches!(refused("old"), ArrayError::OtherFormat(_)));
        assert!(matches!(refused("link"), ArrayError::Link(_)));
        Deletion::find(&path("group"), true).unwrap().run().unwrap();
        assert!(!path("group").exists());
    }

    #[test]
    fn an_array_that_is_written_to_stays() {
        let top = tempfile::tempdir().unwrap();
        let array = top.path().join("a");
        node(&array, "array");
        std::fs::create_dir(array.join(WORK_DIRECTORY)).unwrap();
        let lock = std::fs::File::create(array.join(WORK_DIRECTORY).join(LOCK)).unwrap();
        assert!(try_lock(&lock).unwrap());
        let refused = Deletion::find(&array, false).unwrap().run().unwrap_err();
        assert!(matches!(refused, ArrayError::Busy(_)), "{refused}");
        assert!(array.join("zarr.json").exists());
        drop(lock);
        Deletion::find(&array, false).unwrap().run().unwrap();
        assert_eq!(top.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn what_an_interrupted_deletion_has_left_goes_with_the_next_one() {
        let top = tempfile::tempdir().unwrap();
        let array = top.path().join("a");
        node(&array, "array");
        let place = Place::of(&array).unwrap();
        let aside = Aside::begin(&place, Purpose::Delete).unwrap();
        aside.take().unwrap();
        let left = aside.path();
        assert_eq!(Leftovers::find(&place).unwrap().count(), 0, "somebody is at it");
        // Leaves the state of a killed process.
        aside.abandon();
        std::fs::create_dir(top.path().join(".a.shardfs-deleted-x1y2z3")).unwrap();
        let found = Deletion::find(&array, false).unwrap();
        assert_eq!((found.kind, found.leftovers()), (None, 1));
        found.run().unwrap();
        assert!(!left.exists());
        assert_eq!(top.path().read_dir().unwrap().count(), 1);
    }
}
