//! Where a copy of a source goes: a directory that is complete or says that it is not.
//!
//! ```text
//! DEST/.shardfs/job.json    what is being made of what; locked as long as somebody is at it
//! DEST/...                  chunks and shards, as they are done
//! DEST/**/zarr.json         last of all, once everything else is safe
//! DEST/.shardfs             removed
//! ```
//!
//! Without its metadata nobody takes the directory for an array, whose missing chunks would read as
//! fill values. The same command, called again, goes on where it was stopped.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::format::json;
use crate::fs::METADATA_FILE;
use crate::store::content::Content;
use crate::store::journal::WORK_DIRECTORY;
use crate::store::local::LocalStorage;
use crate::store::put::put_file;
use crate::store::storage::{Storage, StorageFile};
use crate::text::shown;

/// Name of the note of what is being made.
const JOB: &str = "job.json";
/// Names by which a directory is known as a node of Zarr.
const NODE_NAMES: [&str; 3] = [METADATA_FILE, ".zarray", ".zgroup"];
/// Permissions of files, less the process's umask.
const MODE: u32 = 0o666;

/// A directory that is being written.
pub struct Destination {
    /// As the user called it.
    pub name: PathBuf,
    root: PathBuf,
    /// Its files.
    pub storage: Arc<dyn Storage>,
    /// Something of it was written before.
    pub is_resumed: bool,
    /// Locked until it is dropped.
    _job: File,
}

/// Why nothing is written to a destination.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// It is there.
    #[error("{}: it exists; --force replaces it", shown(.0))]
    Exists(PathBuf),
    /// It is there, and it is not ours to remove.
    #[error(
        "{}: it exists and is no Zarr array or group: remove it yourself if it can go", shown(.0)
    )]
    NotZarr(PathBuf),
    /// Another command has begun it.
    #[error(
        "{}: it holds the unfinished result of another command, {other}; --force starts anew",
        shown(.path)
    )]
    OtherJob {
        /// The destination.
        path: PathBuf,
        /// What was to be made of what.
        other: String,
    },
    /// Another process is at it.
    #[error("{}: another process is writing it", shown(.0))]
    Busy(PathBuf),
    /// One would be in the other.
    #[error("{}: source and destination must not lie in each other", shown(.0))]
    Inside(PathBuf),
    /// It cannot be written.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// The destination, or what is in it.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

impl Destination {
    /// Begins a directory, or goes on with one that the same `job` has begun. One that exists is
    /// replaced only with `force`, and only if it is a Zarr array or group, or an unfinished one; then
    /// nothing is gone on with.
    pub fn open(
        path: &Path,
        source: &Path,
        job: &Value,
        force: bool,
    ) -> Result<Self, DestinationError> {
        let failed = |error| DestinationError::Io { path: path.to_owned(), error };
        check_apart(path, source)?;
        let text = json::to_text(job);
        let found = match fs::read(path.join(WORK_DIRECTORY).join(JOB)) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // Something else is in the place of the directory.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => None,
            Err(error) => return Err(failed(error)),
        };
        // Nothing is written before the note is safe: one that is empty stands for nothing.
        let is_same = |found: &Vec<u8>| found.is_empty() || *found == text;
        let is_resumed = !force && found.as_ref().is_some_and(is_same);
        if !is_resumed {
            make_room(path, found, force)?;
            fs::create_dir_all(path.join(WORK_DIRECTORY)).map_err(failed)?;
        }
        let job = lock_job(path, &text)?;
        let root = path.canonicalize().map_err(failed)?;
        let storage = LocalStorage::open_root(&root, Arc::default()).map_err(failed)?;
        let storage = Arc::new(storage);
        Ok(Self { name: path.to_owned(), root, storage, is_resumed, _job: job })
    }

    /// An error on something in it.
    pub fn failed(&self, below: &Path) -> impl FnOnce(io::Error) -> DestinationError {
        let path = self.name.join(below);
        |error| DestinationError::Io { path, error }
    }

    /// Makes a file, and the directories above it.
    pub fn create(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        match self.storage.create(path, MODE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(Path::new(""));
                fs::create_dir_all(self.root.join(parent))?;
                self.storage.create(path, MODE)
            }
            made => made,
        }
    }

    /// Makes a file in the place of one that is not as it should be.
    pub fn create_anew(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        match self.storage.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.create(path),
        }
    }

    /// Returns once everything that was written is safe.
    pub fn sync(&self) -> Result<(), DestinationError> {
        let sync = || Ok(rustix::fs::syncfs(File::open(&self.root)?)?);
        sync().map_err(self.failed(Path::new("")))
    }

    /// Writes the document at a path, for it to be seen at once and safe.
    pub fn put_document(&self, path: &Path, document: &Value) -> Result<(), DestinationError> {
        let put = || {
            let parent = path.parent().unwrap_or(Path::new(""));
            fs::create_dir_all(self.root.join(parent))?;
            let content = Content::Memory(Arc::new(json::to_text(document)));
            put_file(&*self.storage, path, &content)
        };
        put().map_err(self.failed(path))
    }

    /// It is complete.
    pub fn finish(self) -> Result<(), DestinationError> {
        let directory = self.root.join(WORK_DIRECTORY);
        let finish = || {
            fs::remove_file(directory.join(JOB))?;
            fs::remove_dir(&directory)?;
            File::open(&self.root)?.sync_all()
        };
        finish().map_err(self.failed(Path::new(WORK_DIRECTORY)))
    }
}

fn check_apart(path: &Path, source: &Path) -> Result<(), DestinationError> {
    let failed = |error| DestinationError::Io { path: path.to_owned(), error };
    let source = source.canonicalize().map_err(failed)?;
    // One that is not there yet is in a directory that is.
    let there = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let whole = there.canonicalize().map_err(failed)?;
    if whole.starts_with(&source) || path.exists() && source.starts_with(&whole) {
        return Err(DestinationError::Inside(path.to_owned()));
    }
    Ok(())
}

/// Sees to it that there is nothing at `path`, or an empty directory.
fn make_room(path: &Path, job: Option<Vec<u8>>, force: bool) -> Result<(), DestinationError> {
    let failed = |error| DestinationError::Io { path: path.to_owned(), error };
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(failed)?,
    };
    if metadata.is_dir() && job.is_none() && is_empty(path).map_err(failed)? {
        return Ok(());
    }
    match job {
        Some(other) if !force => {
            let (path, other) = (path.to_owned(), describe(&other));
            return Err(DestinationError::OtherJob { path, other });
        }
        None if !force => return Err(DestinationError::Exists(path.to_owned())),
        _ => (),
    }
    let is_ours = job.is_some() || NODE_NAMES.iter().any(|name| path.join(name).is_file());
    if !metadata.is_dir() || !is_ours {
        return Err(DestinationError::NotZarr(path.to_owned()));
    }
    // One that somebody is at keeps what it has.
    if job.is_some() {
        drop(lock(path)?);
    }
    fs::remove_dir_all(path).map_err(failed)
}

/// Whether nothing is in a directory, but perhaps the place of a note that was never written.
fn is_empty(path: &Path) -> io::Result<bool> {
    let is_work = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name() == WORK_DIRECTORY);
    let only_work = fs::read_dir(path)?.map(is_work).collect::<io::Result<Vec<bool>>>()?;
    match only_work[..] {
        [] => Ok(true),
        [true] => Ok(fs::read_dir(path.join(WORK_DIRECTORY))?.next().is_none()),
        _ => Ok(false),
    }
}

/// What a note of a job says.
fn describe(job: &[u8]) -> String {
    let job = json::parse(job).unwrap_or_default();
    let text = |name: &str| job.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
    format!("`shardfs {} {}`", text("command"), text("source"))
}

fn lock(path: &Path) -> Result<File, DestinationError> {
    let failed = |error| DestinationError::Io { path: path.to_owned(), error };
    let mut how = File::options();
    let how = how.read(true).write(true).create(true).truncate(false);
    let file = how.open(path.join(WORK_DIRECTORY).join(JOB)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DestinationError::Busy(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Locks the note of a job and writes it.
fn lock_job(path: &Path, text: &[u8]) -> Result<File, DestinationError> {
    let failed = |error| DestinationError::Io { path: path.to_owned(), error };
    let mut file = lock(path)?;
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.write_all(text)?;
        file.sync_all()
    };
    write(&mut file).map_err(failed)?;
    Ok(file)
}
