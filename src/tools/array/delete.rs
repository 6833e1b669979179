//! Deleting an array or a group.
//!
//! It is renamed first, to a hidden name beside it. So nobody sees a part of it, and what an interrupted
//! deletion leaves is found by that name and goes with the next one.

use std::fs::{DirEntry, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{ArrayError, Place, document_in, io_error, is_of_other_format};
use crate::store::journal::{JOURNAL, WORK_DIRECTORY};
use crate::store::local::try_lock;

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An array.
    Array,
    /// A group.
    Group,
}

impl Kind {
    /// By its metadata.
    pub fn of(document: &Value) -> Option<Self> {
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

/// What is to be deleted.
#[derive(Debug)]
pub struct Deletion {
    place: Place,
    /// None if there are only leftovers of a deletion that was interrupted.
    pub kind: Option<Kind>,
    /// Files below it, directories not counted.
    pub files: u64,
    /// Their lengths together, in bytes.
    pub nbytes: u64,
    /// What deletions that were interrupted have left, hidden directories beside it.
    pub leftovers: Vec<PathBuf>,
    journals: Vec<PathBuf>,
}

impl Deletion {
    /// Looks at the array at `path`, or with `recursive` the array or group.
    pub fn find(path: &Path, recursive: bool) -> Result<Self, ArrayError> {
        let place = Place::of(path)?;
        let whole = place.path();
        let leftovers = leftovers(&place)?;
        let mut found =
            Self { place, kind: None, files: 0, nbytes: 0, leftovers, journals: Vec::new() };
        match whole.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if found.leftovers.is_empty() {
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
        Ok(found)
    }

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }

    fn count(&mut self, top: &Path) -> Result<(), ArrayError> {
        let mut directories = vec![top.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in directory.read_dir().map_err(io_error(&directory))? {
                let entry: DirEntry = entry.map_err(io_error(&directory))?;
                let path = entry.path();
                // Of a symbolic link itself.
                let metadata = entry.metadata().map_err(io_error(&path))?;
                if metadata.is_dir() {
                    directories.push(path);
                    continue;
                }
                self.files += 1;
                self.nbytes = self.nbytes.saturating_add(metadata.len());
                if directory.ends_with(WORK_DIRECTORY) && path.ends_with(JOURNAL) {
                    self.journals.push(path);
                }
            }
        }
        Ok(())
    }

    /// Renames it, unless somebody commits to one of its arrays.
    pub(super) fn hide(self) -> Result<Hidden, ArrayError> {
        let Self { place, kind, mut leftovers, journals, .. } = self;
        if kind.is_none() {
            return Ok(Hidden { place, directories: leftovers });
        }
        let path = place.path();
        // Held until it has its other name: who waits for one does not find it any more then.
        let _locks = journals.iter().map(|journal| lock(journal)).collect::<Result<Vec<_>, _>>()?;
        let prefix = place.beside("deleted");
        let hidden = tempfile::Builder::new().prefix(&prefix).tempdir_in(&place.parent);
        let hidden = hidden.map_err(io_error(&place.parent))?;
        // It takes the place of the empty directory.
        std::fs::rename(&path, hidden.path()).map_err(io_error(&path))?;
        leftovers.push(hidden.keep());
        place.sync()?;
        Ok(Hidden { place, directories: leftovers })
    }

    /// Deletes it, and what was left of earlier ones.
    pub fn run(self) -> Result<(), ArrayError> {
        self.hide()?.remove()
    }
}

/// What nobody sees any more.
pub(super) struct Hidden {
    place: Place,
    directories: Vec<PathBuf>,
}

impl Hidden {
    pub(super) fn remove(self) -> Result<(), ArrayError> {
        for directory in &self.directories {
            match std::fs::remove_dir_all(directory) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                removed => removed.map_err(io_error(directory))?,
            }
        }
        self.place.sync()
    }
}

/// The journal of an array, locked. None if it went away.
fn lock(journal: &Path) -> Result<Option<File>, ArrayError> {
    let file = match OpenOptions::new().read(true).write(true).open(journal) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(journal)(error)),
    };
    match try_lock(&file).map_err(io_error(journal))? {
        true => Ok(Some(file)),
        false => {
            let array = journal.parent().and_then(Path::parent).unwrap_or(journal);
            Err(ArrayError::Busy(array.to_owned()))
        }
    }
}

fn leftovers(place: &Place) -> Result<Vec<PathBuf>, ArrayError> {
    let prefix = place.beside("deleted");
    let mut found = Vec::new();
    for entry in place.parent.read_dir().map_err(io_error(&place.parent))? {
        let entry = entry.map_err(io_error(&place.parent))?;
        let is_left = entry.file_name().as_bytes().starts_with(prefix.as_bytes())
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        found.extend(is_left.then(|| entry.path()));
    }
    Ok(found)
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
        let journal = File::create(array.join(WORK_DIRECTORY).join(JOURNAL)).unwrap();
        assert!(try_lock(&journal).unwrap());
        let refused = Deletion::find(&array, false).unwrap().run().unwrap_err();
        assert!(matches!(refused, ArrayError::Busy(_)), "{refused}");
        assert!(array.join("zarr.json").exists());
        drop(journal);
        Deletion::find(&array, false).unwrap().run().unwrap();
        assert_eq!(top.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn what_an_interrupted_deletion_has_left_goes_with_the_next_one() {
        let top = tempfile::tempdir().unwrap();
        let left = top.path().join(".a.shardfs-deleted-x1y2z3");
        std::fs::create_dir_all(left.join("c/0")).unwrap();
        std::fs::create_dir(top.path().join(".ab.shardfs-deleted-x1y2z3")).unwrap();
        let found = Deletion::find(&top.path().join("a"), false).unwrap();
        assert_eq!((found.kind, found.leftovers.len()), (None, 1));
        found.run().unwrap();
        assert!(!left.exists());
        assert_eq!(top.path().read_dir().unwrap().count(), 1);
    }
}
