//! Destination of a copy, which is either complete or marked as unfinished.
//!
//! ```text
//! DEST/.shardfs/job.json    description of the job; of a directory it is locked while a process works on it
//! DEST/...                  chunks and shards, as they are done
//! DEST/**/zarr.json         last of all, once everything else is durable
//! DEST/.shardfs             removed
//! ```
//!
//! Without metadata no reader takes it for an array whose missing chunks would read as fill values. The same
//! command, run again, resumes where it was interrupted.

mod directory;
mod error;
mod objects;

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use self::directory::{Directory, OWN_DIRECTORY, mode_of_directory};
pub(crate) use self::error::DestinationError;
use self::error::Hint;
use self::objects::Objects;
use crate::format::json;
use crate::store::StoreConfig;
use crate::store::content::Content;
use crate::store::put::put_new_file;
use crate::store::remote::{RemoteOptions, SourceUrl};
use crate::store::storage::{PosixFile, PosixStorage, Storage};
use crate::store::work::{WORK_DIRECTORY, is_new_name};

/// Permissions that the owner of a copy has in any case: else it could not be read back or resumed.
const OWN_FILE: u32 = 0o600;

/// What is being written.
pub(crate) struct Destination {
    /// Path or URL as given by the user.
    pub name: PathBuf,
    /// Storage of the destination's files.
    pub storage: Arc<dyn PosixStorage>,
    /// `true` if an earlier attempt is resumed.
    pub is_resumed: bool,
    /// Storage of the files that are copied, whose permissions the copies get.
    source: Arc<dyn Storage>,
    kind: Kind,
}

/// What the copy is built in.
enum Kind {
    Directory(Directory),
    Objects(Objects),
}

impl Destination {
    /// Opens a directory as the destination of a copy of `source`: creates it, or resumes one that was begun by the
    /// same `job`. An existing one is replaced only with `force`, and only if it is a Zarr node or
    /// unfinished; in that case nothing is resumed.
    pub(crate) fn open(
        path: &Path,
        source: &Arc<dyn Storage>,
        job: &Value,
        force: bool,
    ) -> Result<Self, DestinationError> {
        let (directory, is_resumed) = Directory::open(path, source, job, force)?;
        let failed =
            |error| DestinationError::Io { path: path.to_owned(), error, hint: Hint::None };
        let storage = Arc::new(directory.storage().map_err(failed)?);
        let (name, source, kind) =
            (path.to_owned(), Arc::clone(source), Kind::Directory(directory));
        Ok(Self { name, storage, is_resumed, source, kind })
    }

    /// The same for a place in a store of objects, which is tried out first. Nothing there is replaced but, with `force`,
    /// what is unfinished.
    pub(crate) fn open_url(
        url: &SourceUrl,
        remote: &RemoteOptions,
        source: &Arc<dyn Storage>,
        job: &Value,
        force: bool,
    ) -> Result<Self, DestinationError> {
        let name = PathBuf::from(url.to_string());
        let (objects, is_resumed) = Objects::open(&name, url, remote, job, force)?;
        let storage = objects.storage();
        let (source, kind) = (Arc::clone(source), Kind::Objects(objects));
        Ok(Self { name, storage, is_resumed, source, kind })
    }

    /// Returns how shards of the copy are read back.
    pub(crate) fn reading(&self) -> StoreConfig {
        match &self.kind {
            Kind::Directory(_) => StoreConfig::default(),
            Kind::Objects(objects) => objects.reading(),
        }
    }

    /// Returns whether it is in a store, whose requests take long.
    pub(crate) fn is_in_store(&self) -> bool {
        matches!(self.kind, Kind::Objects(_))
    }

    /// Returns a function that wraps an error on a path below the destination.
    pub(crate) fn failed(
        &self,
        below: &Path,
    ) -> impl FnOnce(io::Error) -> DestinationError + use<> {
        let path = self.name.join(below);
        let hint = match &self.kind {
            Kind::Directory(directory) => Some(directory.hint()),
            Kind::Objects(_) => None,
        };
        move |error| {
            let (error, hint) = match hint {
                Some(hint) => (error, hint),
                None => Objects::explained(error),
            };
            DestinationError::Io { path, error, hint }
        }
    }

    /// Creates a file and the directories above it. Others have the permissions `mode`, that of
    /// what is copied, less the umask.
    pub(crate) fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        if let Kind::Objects(objects) = &self.kind {
            return objects.create(path);
        }
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
        if let Kind::Objects(objects) = &self.kind {
            return objects.create_anew(path);
        }
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
        if let Kind::Objects(_) = self.kind {
            // There are no directories but those of what is in them.
            return Ok(());
        }
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
        match &self.kind {
            Kind::Directory(directory) => directory.sync().map_err(self.failed(Path::new(""))),
            // Each object is from its answer on.
            Kind::Objects(_) => Ok(()),
        }
    }

    /// Writes the document at a path atomically and durably, with the permissions `mode` of what it
    /// is made of.
    pub(crate) fn put_document(
        &self,
        path: &Path,
        document: &Value,
        mode: u32,
    ) -> Result<(), DestinationError> {
        let put = || match &self.kind {
            Kind::Objects(objects) => objects.put_document(path, document),
            Kind::Directory(_) => {
                self.make_above(path)?;
                self.clear_work(path.parent().unwrap_or(Path::new("")))?;
                let content = Content::Memory(Arc::new(json::to_text(document)));
                put_new_file(&*self.storage, path, &content, mode & 0o777 | OWN_FILE)
            }
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
    pub(crate) fn finish(self) -> Result<(), DestinationError> {
        let failed = self.failed(Path::new(WORK_DIRECTORY));
        match self.kind {
            Kind::Directory(directory) => directory.finish(&self.name, failed),
            Kind::Objects(objects) => objects.finish().map_err(failed),
        }
    }
}
