//! Directory as the destination of a copy.
//!
//! An array or group to be replaced stays in place until the new one, which is built aside
//! ([`crate::tools::aside`]), is complete; then the two are exchanged.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as fd, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde_json::Value;

use super::error::{DestinationError, Hint};
use crate::format::marker::describe;
use crate::source::NODE_DOCUMENTS;
use crate::store::local::LocalStorage;
use crate::store::storage::{FileKind, Storage};
use crate::store::work::WORK_DIRECTORY;
use crate::tools::aside::{
    Aside, FileId, Marker, Permissions, Place, Purpose, is_draft, new_id, sweep,
};

/// Permissions of a directory that its owner has in any case.
pub(super) const OWN_DIRECTORY: u32 = 0o700;

/// A directory that is being written.
pub(super) struct Directory {
    root: OwnedFd,
    made: Made,
}

/// Location in which it is built.
enum Made {
    /// In its final place, with a marker in the given work directory.
    Here(OwnedFd, Marker),
    /// In a hidden directory beside the node that it will replace.
    Aside(Box<Aside>, FileId),
}

/// Present contents of a place.
enum Found {
    Nothing,
    /// An empty directory.
    Empty,
    /// An unfinished copy: its work directory and marker.
    Unfinished(OwnedFd, Marker),
    /// A Zarr node.
    Node(FileId),
    Other,
}

impl Directory {
    /// Opens it, as [`super::Destination::open`] does. Returns whether an earlier attempt is resumed.
    pub(super) fn open(
        path: &Path,
        source: &Arc<dyn Storage>,
        job: &Value,
        force: bool,
    ) -> Result<(Self, bool), DestinationError> {
        let at = |root, made, is_resumed| Ok((Self { root, made }, is_resumed));
        let failed =
            |error| DestinationError::Io { path: path.to_owned(), error, hint: Hint::None };
        make_parent(path).map_err(failed)?;
        let place = Place::of(path).map_err(failed)?;
        sweep(&place)?;
        let busy = || DestinationError::Busy(path.to_owned());
        match Found::at(&place).map_err(failed)? {
            Found::Unfinished(work, marker) => {
                if !marker.try_lock().map_err(failed)? {
                    return Err(busy());
                }
                if marker.what == *job && !force {
                    let root = place.open_directory().map_err(failed)?;
                    return at(root, Made::Here(work, marker), true);
                }
                if !force {
                    let (path, other) = (path.to_owned(), describe(&marker.what));
                    return Err(DestinationError::OtherJob { path, other });
                }
                // No reader takes an unfinished copy for an array, so it can be removed at once.
                let old = place.open_directory().map_err(failed)?;
                let permissions = Permissions::of(old.as_fd()).map_err(failed)?;
                let aside = Aside::begin(&place, Purpose::Delete)?;
                aside.take()?;
                drop(marker);
                aside.remove()?;
                let root = place.make_directory(OWN_DIRECTORY).map_err(failed)?;
                permissions.give(root.as_fd()).map_err(failed)?;
            }
            Found::Node(old) if force => {
                let aside = Aside::begin(&place, Purpose::Replace)?;
                let (_, root) = aside.make_new()?;
                return at(root, Made::Aside(Box::new(aside), old), false);
            }
            Found::Node(_) => return Err(DestinationError::Exists(path.to_owned())),
            Found::Other => return Err(DestinationError::NotZarr(path.to_owned())),
            Found::Nothing | Found::Empty => (),
        }
        let mode = mode_of_directory(&**source, Path::new("")).unwrap_or(OWN_DIRECTORY);
        let begun = begin(&place, job, mode).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => busy(),
            _ => failed(error),
        })?;
        let (root, work, marker) = begun;
        at(root, Made::Here(work, marker), false)
    }

    /// Returns a storage of its files.
    pub(super) fn storage(&self) -> io::Result<LocalStorage> {
        LocalStorage::at(self.root.as_fd(), Arc::default())
    }

    /// Returns what is advised after a failure.
    pub(super) fn hint(&self) -> Hint {
        match self.made {
            Made::Aside(..) => Hint::Untouched,
            Made::Here(..) => Hint::GoOn,
        }
    }

    /// Makes everything that was written durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fd::syncfs(&self.root)?)
    }

    /// Removes the marker, or exchanges the copy with the old node. `failed` wraps an error.
    pub(super) fn finish(
        self,
        name: &Path,
        failed: impl FnOnce(io::Error) -> DestinationError,
    ) -> Result<(), DestinationError> {
        let Self { root, made } = self;
        match made {
            Made::Here(work, marker) => {
                let finish = || {
                    marker.remove(work.as_fd())?;
                    match fd::unlinkat(&root, WORK_DIRECTORY, AtFlags::REMOVEDIR) {
                        // Files of other origin in the work directory are kept.
                        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => (),
                        Err(error) => return Err(error.into()),
                    }
                    Ok(fd::fsync(&root)?)
                };
                finish().map_err(failed)
            }
            Made::Aside(aside, old) => {
                fd::syncfs(&root).map_err(io::Error::from).map_err(failed)?;
                aside.publish(Some(old))?;
                let path = name.to_owned();
                aside.remove().map_err(|error| DestinationError::Left { path, error })
            }
        }
    }
}

impl Found {
    fn at(place: &Place) -> io::Result<Self> {
        let Some(stat) = place.stat()? else { return Ok(Self::Nothing) };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Ok(Self::Other);
        }
        let directory = place.open_directory()?;
        let work = open_work(&directory)?;
        if let Some(work) = work
            && let Some(marker) = Marker::find(work.as_fd())?
        {
            return Ok(Self::Unfinished(work, marker));
        }
        if is_empty(&directory)? {
            return Ok(Self::Empty);
        }
        let is_file = |name: &str| {
            let stat = fd::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
        };
        Ok(if NODE_DOCUMENTS.into_iter().any(is_file) {
            Self::Node(FileId::from(&stat))
        } else {
            Self::Other
        })
    }
}

/// Opens the work directory in a directory; `None` if there is none, or if it is a symbolic link or
/// a mount point.
fn open_work(directory: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match fd::openat2(directory, WORK_DIRECTORY, flags, Mode::empty(), within) {
        Ok(work) => Ok(Some(work)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a directory is empty, except for a work directory with drafts of a marker.
fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    let names = |directory: &OwnedFd| -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in fd::Dir::read_from(directory)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(name);
            }
            // More entries than an empty destination can have.
            if names.len() > 1 && names.iter().any(|name| !is_draft(name)) {
                break;
            }
        }
        Ok(names)
    };
    match &names(directory)?[..] {
        [] => Ok(true),
        [work] if work == WORK_DIRECTORY.as_bytes() => match open_work(directory)? {
            Some(work) => Ok(names(&work)?.iter().all(|name| is_draft(name))),
            None => Ok(false),
        },
        _ => Ok(false),
    }
}

/// Returns the permissions of a directory that is made like one of the source; `None` if there is
/// no such directory.
pub(super) fn mode_of_directory(source: &dyn Storage, path: &Path) -> Option<u32> {
    let stat = source.stat(path).ok().filter(|stat| stat.kind == FileKind::Directory)?;
    Some(stat.mode & 0o777 | OWN_DIRECTORY)
}

/// Creates the directories above a path.
fn make_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::create_dir_all(parent),
        _ => Ok(()),
    }
}

/// Begins a copy in an empty place: creates its directory, with permissions `mode`, the work
/// directory and the marker.
fn begin(place: &Place, job: &Value, mode: u32) -> io::Result<(OwnedFd, OwnedFd, Marker)> {
    let (root, is_new) = match place.make_directory(mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            (place.open_directory()?, false)
        }
        made => (made?, true),
    };
    begin_in(&root, job).map(|(work, marker)| (root, work, marker)).inspect_err(|_| {
        // Without a marker nothing says that it is an unfinished copy.
        if is_new {
            place.remove_empty_directory();
        }
    })
}

/// Creates the work directory and the marker in the directory of a copy.
fn begin_in(root: &OwnedFd, job: &Value) -> io::Result<(OwnedFd, Marker)> {
    let is_new = match fd::mkdirat(root, WORK_DIRECTORY, Mode::from_raw_mode(0o777)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    let mark = || {
        let work = open_work(root)?.ok_or(io::ErrorKind::NotADirectory)?;
        let marker = Marker::create(work.as_fd(), new_id()?, job)?;
        fd::fsync(root)?;
        Ok((work, marker))
    };
    mark().inspect_err(|_| {
        if is_new {
            // It stays if another process has put its marker there.
            let _ = fd::unlinkat(root, WORK_DIRECTORY, AtFlags::REMOVEDIR);
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools::aside::marker::MARKER;
    use crate::tools::destination::Destination;

    fn job(command: &str) -> Value {
        json!({"command": command, "source": "/elsewhere"})
    }

    fn open(path: &Path, command: &str, force: bool) -> Result<Destination, DestinationError> {
        let source = LocalStorage::open_root(Path::new("/"), Arc::default()).unwrap();
        let source: Arc<dyn Storage> = Arc::new(source);
        Destination::open(path, &source, &job(command), force)
    }

    fn names(path: &Path) -> Vec<String> {
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let names = std::fs::read_dir(path).unwrap().map(name);
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_the_same_job_goes_on_and_only_one_at_a_time() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("above/dest");
        let first = open(&path, "pack", false).unwrap();
        assert!(!first.is_resumed);
        first.create(Path::new("c/0/1"), 0o666).unwrap();
        assert!(matches!(open(&path, "pack", false), Err(DestinationError::Busy(_))));
        assert!(matches!(open(&path, "pack", true), Err(DestinationError::Busy(_))));
        drop(first);
        assert!(matches!(open(&path, "unpack", false), Err(DestinationError::OtherJob { .. })));
        let again = open(&path, "pack", false).unwrap();
        assert!(again.is_resumed);
        again.finish().unwrap();
        assert_eq!(names(&path), ["c"]);
    }

    #[test]
    fn a_directory_without_our_note_is_not_gone_on_with_and_not_removed() {
        for (name, text) in [("job.json", "{}"), ("job.json", ""), ("job.json.x", "")] {
            let top = tempfile::tempdir().unwrap();
            let path = top.path().join("dest");
            std::fs::create_dir_all(path.join(".shardfs")).unwrap();
            std::fs::write(path.join(".shardfs").join(name), text).unwrap();
            std::fs::write(path.join("README"), "mine").unwrap();
            assert!(matches!(open(&path, "pack", false), Err(DestinationError::NotZarr(_))));
            assert!(matches!(open(&path, "pack", true), Err(DestinationError::NotZarr(_))));
            assert_eq!(names(&path), [".shardfs", "README"]);
        }
    }

    #[test]
    fn a_work_directory_that_is_a_link_is_not_ours() {
        let top = tempfile::tempdir().unwrap();
        let other = top.path().join("other");
        drop(open(&other, "pack", false).unwrap());
        let path = top.path().join("dest");
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink("../other/.shardfs", path.join(".shardfs")).unwrap();
        assert!(matches!(open(&path, "pack", false), Err(DestinationError::NotZarr(_))));
        assert!(matches!(open(&path, "pack", true), Err(DestinationError::NotZarr(_))));
        assert_eq!(names(&other.join(".shardfs")), [MARKER]);
    }

    #[test]
    fn the_old_one_stays_until_the_new_one_is_complete() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("dest");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("zarr.json"), "{}").unwrap();
        std::fs::write(path.join("old"), "x").unwrap();
        let new = open(&path, "pack", true).unwrap();
        new.create(Path::new("new"), 0o666).unwrap();
        assert_eq!(names(&path), ["old", "zarr.json"]);
        // Abandoned, as after an error.
        drop(new);
        assert_eq!((names(&path).len(), names(top.path()).len()), (2, 1));
        let new = open(&path, "pack", true).unwrap();
        new.create(Path::new("new"), 0o666).unwrap();
        new.finish().unwrap();
        assert_eq!(
            (names(&path), names(top.path())),
            (vec!["new".to_owned()], vec!["dest".to_owned()])
        );
    }

    #[test]
    fn an_old_one_that_others_have_replaced_meanwhile_stays() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("dest");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("zarr.json"), "{}").unwrap();
        let new = open(&path, "pack", true).unwrap();
        std::fs::rename(&path, top.path().join("moved")).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("mine"), "x").unwrap();
        let error = new.finish().unwrap_err();
        assert!(error.to_string().contains("others have replaced it meanwhile"), "{error}");
        assert_eq!((names(&path), names(top.path()).len()), (vec!["mine".to_owned()], 2));
    }
}
