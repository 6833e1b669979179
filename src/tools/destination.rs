//! Destination of a copy: a directory that is either complete or marked as unfinished.
//!
//! ```text
//! DEST/.shardfs/job.json    description of the job; locked while a process is working on it
//! DEST/...                  chunks and shards, as they are done
//! DEST/**/zarr.json         last of all, once everything else is durable
//! DEST/.shardfs             removed
//! ```
//!
//! Without metadata no reader takes the directory for an array whose missing chunks would read as
//! fill values. The same command, run again, resumes where it was interrupted.
//!
//! An array or group to be replaced stays in place until the new one, which is built aside
//! ([`super::aside`]), is complete; then the two are exchanged.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self as fd, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde_json::Value;

use super::aside::{
    Aside, AsideError, FileId, Marker, Permissions, Place, Purpose, is_draft, new_id, sweep,
};
use crate::format::json;
use crate::format::marker::describe;
use crate::source::NODE_DOCUMENTS;
use crate::store::content::Content;
use crate::store::local::LocalStorage;
use crate::store::put::put_new_file;
use crate::store::storage::{FileKind, PosixFile, PosixStorage, Storage};
use crate::store::work::{WORK_DIRECTORY, is_new_name};
use crate::text::shown;

/// Permissions that the owner of a copy has in any case: else it could not be read back or resumed.
const OWN_FILE: u32 = 0o600;
/// The same, of a directory.
const OWN_DIRECTORY: u32 = 0o700;

/// A directory that is being written.
pub(crate) struct Destination {
    /// Path as given by the user.
    pub name: PathBuf,
    /// Storage of the destination's files.
    pub storage: Arc<dyn PosixStorage>,
    /// `true` if an earlier attempt is resumed.
    pub is_resumed: bool,
    /// Storage of the files that are copied, whose permissions the copies get.
    source: Arc<dyn Storage>,
    root: OwnedFd,
    /// `None` once the destination is complete.
    made: Option<Made>,
}

/// Location in which the copy is built.
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

/// Advice to the user after a failed copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// No advice.
    None,
    /// The copy can be resumed.
    GoOn,
    /// The previous contents were not touched.
    Untouched,
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::GoOn => "; the same command, without --force, continues from here",
            Self::Untouched => "; what was there before is as it was",
        })
    }
}

/// Error of opening or writing a destination.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestinationError {
    /// The destination exists.
    #[error("{}: it exists; --force replaces it", shown(.0))]
    Exists(PathBuf),
    /// The destination exists and is not a Zarr node, so it is not removed.
    #[error(
        "{}: it exists and is no Zarr array or group: remove it yourself if it can go", shown(.0)
    )]
    NotZarr(PathBuf),
    /// The destination is the unfinished result of another job.
    #[error(
        "{}: it holds the unfinished result of another command, {other}, or of its source as it was \
         then; --force starts anew",
        shown(.path)
    )]
    OtherJob {
        /// Path of the destination.
        path: PathBuf,
        /// Description of the other job.
        other: String,
    },
    /// Another process is writing the destination.
    #[error("{}: another process is writing it", shown(.0))]
    Busy(PathBuf),
    /// The old contents cannot be moved aside, or cannot be removed.
    #[error(transparent)]
    Aside(#[from] AsideError),
    /// The copy is complete, but the old contents could not be removed.
    #[error("{}: it is complete; what it has replaced cannot be removed: {error}", shown(.path))]
    Left {
        /// Path of the destination.
        path: PathBuf,
        /// The error.
        error: AsideError,
    },
    /// The destination cannot be written.
    #[error("{}: {error}{hint}", shown(.path))]
    Io {
        /// Path of the destination or of a file in it.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
        /// Advice to the user.
        hint: Hint,
    },
}

impl Destination {
    /// Opens a destination of a copy of `source`: creates it, or resumes one that was begun by the
    /// same `job`. An existing one is replaced only with `force`, and only if it is a Zarr node or
    /// unfinished; in that case nothing is resumed.
    pub(crate) fn open(
        path: &Path,
        source: &Arc<dyn Storage>,
        job: &Value,
        force: bool,
    ) -> Result<Self, DestinationError> {
        let at = |root, made, is_resumed| Self::at(path, source, root, made, is_resumed);
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
                    return at(root, Made::Here(work, marker), true).map_err(failed);
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
                return at(root, Made::Aside(Box::new(aside), old), false).map_err(failed);
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
        at(root, Made::Here(work, marker), false).map_err(failed)
    }

    fn at(
        path: &Path,
        source: &Arc<dyn Storage>,
        root: OwnedFd,
        made: Made,
        is_resumed: bool,
    ) -> io::Result<Self> {
        let storage = Arc::new(LocalStorage::at(root.as_fd(), Arc::default())?);
        let (name, source, made) = (path.to_owned(), Arc::clone(source), Some(made));
        Ok(Self { name, storage, is_resumed, source, root, made })
    }

    /// Returns a function that wraps an error on a path below the destination.
    pub(crate) fn failed(&self, below: &Path) -> impl FnOnce(io::Error) -> DestinationError {
        let path = self.name.join(below);
        let hint = match self.made {
            Some(Made::Aside(..)) => Hint::Untouched,
            _ => Hint::GoOn,
        };
        move |error| DestinationError::Io { path, error, hint }
    }

    /// Creates a file and the directories above it. Others have the permissions `mode`, that of
    /// what is copied, less the umask.
    pub(crate) fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        let mode = mode & 0o777 | OWN_FILE;
        match self.storage.create(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_above(path)?;
                self.storage.create(path, mode)
            }
            made => made,
        }
    }

    /// Creates a file, replacing an existing one.
    pub(crate) fn create_anew(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        match self.storage.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.create(path, mode),
        }
    }

    /// Creates missing directories above a path.
    fn make_above(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.pop();
        above.into_iter().rev().try_for_each(|path| self.make_directory(path, path))
    }

    /// Creates a directory, unless it exists, and those above it: with the permissions of the
    /// directory `like` of the source, or if there is none, of the directory above.
    pub(crate) fn make_like(&self, path: &Path, like: &Path) -> Result<(), DestinationError> {
        let made = self.make_above(path).and_then(|()| self.make_directory(path, like));
        made.map_err(self.failed(path))
    }

    fn make_directory(&self, path: &Path, like: &Path) -> io::Result<()> {
        let above = path.parent().unwrap_or(Path::new(""));
        let mode = match mode_of_directory(&*self.source, like) {
            Some(mode) => mode,
            None => self.storage.stat(above)?.mode & 0o777 | OWN_DIRECTORY,
        };
        match self.storage.make_directory(path, mode) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes everything that was written durable.
    pub(crate) fn sync(&self) -> Result<(), DestinationError> {
        let synced = fd::syncfs(&self.root).map_err(io::Error::from);
        synced.map_err(self.failed(Path::new("")))
    }

    /// Writes the document at a path atomically and durably, with the permissions `mode` of what it
    /// is made of.
    pub(crate) fn put_document(
        &self,
        path: &Path,
        document: &Value,
        mode: u32,
    ) -> Result<(), DestinationError> {
        let put = || {
            self.make_above(path)?;
            self.clear_work(path.parent().unwrap_or(Path::new("")))?;
            let content = Content::Memory(Arc::new(json::to_text(document)));
            put_new_file(&*self.storage, path, &content, mode & 0o777 | OWN_FILE)
        };
        put().map_err(self.failed(path))
    }

    /// Removes drafts of documents left by an earlier attempt that was killed. No other process
    /// writes any here.
    fn clear_work(&self, directory: &Path) -> io::Result<()> {
        let work = directory.join(WORK_DIRECTORY);
        let mut left = Vec::new();
        let listed = self.storage.list(&work, 0, &mut |item| {
            if is_new_name(item.name) {
                left.push(work.join(item.name));
            }
            ControlFlow::Continue(())
        });
        match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed?,
        }
        left.iter().try_for_each(|path| self.storage.remove_file(path))
    }

    /// Completes the destination: removes the marker, or exchanges the copy with the old node.
    pub(crate) fn finish(mut self) -> Result<(), DestinationError> {
        match self.made.take() {
            Some(Made::Here(work, marker)) => {
                let finish = || {
                    marker.remove(work.as_fd())?;
                    match fd::unlinkat(&self.root, WORK_DIRECTORY, AtFlags::REMOVEDIR) {
                        // Files of other origin in the work directory are kept.
                        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => (),
                        Err(error) => return Err(error.into()),
                    }
                    Ok(fd::fsync(&self.root)?)
                };
                finish().map_err(self.failed(Path::new(WORK_DIRECTORY)))
            }
            Some(Made::Aside(aside, old)) => {
                self.sync()?;
                aside.publish(Some(old))?;
                let path = self.name.clone();
                aside.remove().map_err(|error| DestinationError::Left { path, error })
            }
            None => Ok(()),
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
fn mode_of_directory(source: &dyn Storage, path: &Path) -> Option<u32> {
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
