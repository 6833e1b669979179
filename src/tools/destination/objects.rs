//! Place in a store of objects as the destination of a copy.
//!
//! Each shard is put as a whole once it is complete, on the condition that it still is what this process has found
//! there. There is no lock: a second process with the same job does the same, and one with another job takes the mark,
//! without which nothing is completed. An array or group that is there is not replaced.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::error::{DestinationError, Hint};
use crate::format::json;
use crate::format::marker::describe;
use crate::store::StoreConfig;
use crate::store::content::Content;
use crate::store::put::put_new_file;
use crate::store::remote::{RemoteOptions, RemoteStorage, SourceUrl};
use crate::store::storage::{PosixFile, PosixStorage};
use crate::tools::objects::{Found, Mark, remove_all};

/// Objects that are being written.
pub(super) struct Objects {
    remote: Arc<RemoteStorage>,
    files: Arc<dyn PosixStorage>,
    reading: StoreConfig,
    mark: Mark,
    /// `true` if there may be objects of an earlier attempt.
    is_resumed: bool,
}

impl Objects {
    /// Opens it, as [`super::Destination::open_url`] does. Returns whether an earlier attempt is resumed.
    pub(super) fn open(
        name: &Path,
        url: &SourceUrl,
        remote: &RemoteOptions,
        job: &Value,
        force: bool,
    ) -> Result<(Self, bool), DestinationError> {
        let path = || name.to_owned();
        let failed = |error| DestinationError::Io { path: path(), error, hint: Hint::None };
        let reading = remote.reading();
        let remote = RemoteStorage::new(url, remote, Arc::default());
        let remote = remote
            .map_err(|error| DestinationError::Setup { path: path(), error: Box::new(error) })?;
        let tried = remote.check_listed().and_then(|()| remote.check_writable());
        tried.map_err(|error| DestinationError::Unwritable { path: path(), error })?;
        let mark = |before: Option<&Mark>| {
            Mark::put(&remote, job, before).map_err(|error| match error.raw_os_error() {
                // Another one was faster.
                Some(libc::ESTALE) => DestinationError::Busy(path()),
                _ => failed(error),
            })
        };
        let (mark, is_resumed) = match Found::of(&remote).map_err(failed)? {
            Found::Unfinished(what, mark) if what == *job && !force => (mark, true),
            Found::Unfinished(what, _) if !force => {
                return Err(DestinationError::OtherJob { path: path(), other: describe(&what) });
            }
            // No reader takes it for an array, so it can be removed.
            Found::Unfinished(_, before) => {
                let mark = mark(Some(&before))?;
                remove_all(&remote).map_err(failed)?;
                (mark, false)
            }
            Found::Node => return Err(DestinationError::InStore(path())),
            Found::Other => return Err(DestinationError::NotZarr(path())),
            Found::Nothing => (mark(None)?, false),
        };
        let remote = Arc::new(remote);
        let files = RemoteStorage::shared_files(&remote);
        Ok((Self { remote, files, reading, mark, is_resumed }, is_resumed))
    }

    /// Returns a storage of its files.
    pub(super) fn storage(&self) -> Arc<dyn PosixStorage> {
        Arc::clone(&self.files)
    }

    /// Returns how shards are read back.
    pub(super) fn reading(&self) -> StoreConfig {
        self.reading.clone()
    }

    /// Returns what an error means here, and what is advised.
    pub(super) fn explained(error: io::Error) -> (io::Error, Hint) {
        let with = |text| io::Error::new(error.kind(), text);
        match error.raw_os_error() {
            Some(libc::EFBIG) => {
                let text = "an object of more than 1 GiB is not put: make the shards smaller, and begin \
                            anew with --force";
                (with(text), Hint::None)
            }
            Some(libc::ESTALE) => (with("another process has written it meanwhile"), Hint::GoOn),
            _ => (error, Hint::GoOn),
        }
    }

    /// Creates a file, which replaces the object of an earlier attempt if there is one.
    pub(super) fn create_anew(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        if !self.is_resumed {
            return self.remote.new_file(path);
        }
        match self.files.create(path, 0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = self.files.open_writable(path)?;
                file.set_length(0)?;
                Ok(file)
            }
            created => created,
        }
    }

    /// Puts a document, with which a node is complete.
    pub(super) fn put_document(&self, path: &Path, document: &Value) -> io::Result<()> {
        self.mark.check(&self.remote)?;
        let text = json::to_text(document);
        match self.is_resumed {
            true => put_new_file(&*self.files, path, &Content::Memory(Arc::new(text)), 0o666),
            false => self.remote.put_object(path, &text, None).map(drop),
        }
    }

    /// Completes the copy, of which everything else must be there.
    pub(super) fn finish(self) -> io::Result<()> {
        self.mark.remove(&self.remote)
    }
}
