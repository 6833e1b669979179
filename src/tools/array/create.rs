//! Creating an array.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags};
use serde_json::Value;

use super::consolidated::{Change, update_above};
use super::delete::{Deletion, Kind};
use super::error::{ArrayError, io_error};
use super::node::{check_finished, document_in, place_of};
use crate::format::json;
use crate::source::METADATA_FILE;
use crate::store::content::Content;
use crate::store::local::LocalStorage;
use crate::store::put::put_file;
use crate::tools::aside::{Aside, FileId, Permissions, Place, Purpose, sweep};

/// Destination at which an array is to be created.
#[derive(Debug)]
pub(crate) struct Destination {
    place: Place,
    /// The array that it replaces, if any.
    replaces: Option<Deletion>,
}

impl Destination {
    /// Checks `directory`, which must not exist; with `force` it may also be an array without other
    /// nodes below it, or an empty directory.
    pub(crate) fn find(directory: &Path, force: bool) -> Result<Self, ArrayError> {
        let place = place_of(directory)?;
        let path = place.path();
        let Ok(found) = path.symlink_metadata() else {
            return Ok(Self { place, replaces: None });
        };
        check_finished(directory)?;
        if !force {
            return Err(ArrayError::Exists(directory.to_owned()));
        }
        let not_replaced = || ArrayError::NotReplaced(directory.to_owned());
        if !found.is_dir() {
            return Err(not_replaced());
        }
        if path.read_dir().map_err(io_error(&path))?.next().is_none() {
            return Ok(Self { place, replaces: None });
        }
        // A document that cannot be read does not identify an array.
        let document = document_in(&path).ok().flatten().ok_or_else(not_replaced)?;
        match Kind::of(&document) {
            Some(Kind::Array) => match Deletion::find(directory, false) {
                Err(ArrayError::NodesBelow(path)) => Err(ArrayError::NotReplacedAbove(path)),
                found => Ok(Self { place, replaces: Some(found?) }),
            },
            _ => Err(not_replaced()),
        }
    }

    /// Returns the absolute path of the destination.
    pub(crate) fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// Returns whether an existing array is replaced.
    pub(crate) fn replaces(&self) -> bool {
        self.replaces.is_some()
    }
}

/// Creates an array with the metadata `document`. The array becomes visible only once all of it is
/// written and durable; what it replaces stays in place until then. Directory and document have the
/// owner and the permissions of those that they replace.
pub(crate) fn create(destination: Destination, document: &Value) -> Result<(), ArrayError> {
    let Destination { place, replaces } = destination;
    let path = place.path();
    sweep(&place)?;
    let aside = Aside::begin(&place, Purpose::Replace)?;
    let (new, directory) = aside.make_new()?;
    if replaces.is_some() {
        keep_permissions(&place, directory.as_fd()).map_err(io_error(&new))?;
    }
    let storage = LocalStorage::at(directory.as_fd(), Arc::default()).map_err(io_error(&new))?;
    let content = Content::Memory(Arc::new(json::to_text(document)));
    put_file(&storage, Path::new(METADATA_FILE), &content).map_err(io_error(&path))?;
    let old = match &replaces {
        Some(old) => {
            old.check_idle(&path)?;
            place.stat().map_err(io_error(&path))?
        }
        None => None,
    };
    aside.publish(old.as_ref().map(FileId::from))?;
    let consolidated = update_above(&path, Change::Created(document));
    aside.remove()?;
    consolidated
}

/// Makes an empty metadata document with the permissions of the one at the place. What is put in its
/// place keeps them.
fn keep_permissions(place: &Place, new: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let old = fs::openat(place.open_directory()?, METADATA_FILE, flags, Mode::empty());
    // A symbolic link has no permissions.
    let Ok(old) = old else { return Ok(()) };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = fs::openat(new, METADATA_FILE, flags, Mode::from_raw_mode(0o600))?;
    Permissions::of(old.as_fd())?.give(file.as_fd())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn array() -> Value {
        json!({"zarr_format": 3, "node_type": "array"})
    }

    fn make(path: &Path, force: bool) -> Result<(), ArrayError> {
        create(Destination::find(path, force)?, &array())
    }

    #[test]
    fn an_array_is_made_where_nothing_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        make(&path, false).unwrap();
        assert_eq!(document_in(&path).unwrap(), Some(array()));
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        let exists = make(&path, false).unwrap_err();
        assert!(exists.to_string().ends_with("exists; --force replaces an array that is there"));
        let missing = make(&directory.path().join("b/c"), false).unwrap_err();
        assert!(missing.to_string().ends_with("/b: there is no such directory; make it first"));
    }

    #[test]
    fn only_an_array_or_an_empty_directory_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        make(&path("array"), false).unwrap();
        std::fs::write(path("array").join("old"), "x").unwrap();
        make(&path("array"), true).unwrap();
        assert!(!path("array").join("old").exists());
        std::fs::create_dir(path("empty")).unwrap();
        make(&path("empty"), true).unwrap();
        std::fs::create_dir(path("files")).unwrap();
        std::fs::write(path("files").join("mine"), "x").unwrap();
        std::fs::create_dir(path("group")).unwrap();
        let group = r#"{"zarr_format": 3, "node_type": "group"}"#;
        std::fs::write(path("group").join("zarr.json"), group).unwrap();
        std::fs::write(path("file"), "x").unwrap();
        make(&path("above"), false).unwrap();
        make(&path("above/array"), false).unwrap();
        let refused = make(&path("above"), true).unwrap_err();
        assert!(matches!(refused, ArrayError::NotReplacedAbove(_)), "{refused}");
        assert!(path("above/array/zarr.json").exists());
        std::os::unix::fs::symlink("array", path("link")).unwrap();
        for name in ["files", "group", "file", "link"] {
            let refused = make(&path(name), true).unwrap_err();
            assert!(matches!(refused, ArrayError::NotReplaced(_)), "{name}: {refused}");
            assert!(path(name).exists());
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 7);
    }
}
