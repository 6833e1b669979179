//! Place in a store of objects as the destination of a copy.
//!
//! Each shard is put as a whole once it is complete, on the condition that it still is what this process has found
//! there. There is no lock: a second process with the same job does the same, and one with another job takes the mark,
//! without which nothing is put and nothing completed. An array or group that is there is not replaced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::error::{DestinationError, Hint};
use crate::format::json;
use crate::format::marker::describe;
use crate::store::StoreConfig;
use crate::store::remote::{RemoteOptions, RemoteStorage, SourceUrl};
use crate::store::storage::{Current, PosixFile, PosixStorage, Storage};
use crate::tools::objects::{
    Found, Mark, explained, is_node_now, objects, remove, remove_all_of_other,
};

/// Objects that are being written.
pub(super) struct Objects {
    remote: Arc<RemoteStorage>,
    /// The same, for those who write files.
    files: Arc<dyn PosixStorage>,
    reading: StoreConfig,
    mark: Arc<Mark>,
    /// `true` if there may be objects of an earlier attempt.
    is_resumed: bool,
    /// Documents that were put, and their entity tags.
    documents: Mutex<Vec<(PathBuf, String)>>,
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
        let mark = |job: &Value, before: Option<&Mark>| {
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
            // No reader takes it for an array, so it can be removed. If that is interrupted, this job has not begun.
            Found::Unfinished(_, before) => {
                let removal = json!({"command": "delete", "source": name.to_string_lossy()});
                let before = mark(&removal, Some(&before))?;
                remove_all_of_other(&remote).map_err(failed)?;
                (mark(job, Some(&before))?, false)
            }
            Found::Node => return Err(DestinationError::InStore(path())),
            Found::Other => return Err(DestinationError::NotZarr(path())),
            Found::Nothing => {
                let mark = mark(job, None)?;
                // Made at the same moment: whoever has made it may not have seen the mark.
                if is_node_now(&remote).map_err(failed)? {
                    mark.remove(&remote).map_err(failed)?;
                    return Err(DestinationError::InStore(path()));
                }
                (mark, false)
            }
        };
        let remote = Arc::new(remote);
        let files = RemoteStorage::shared_files(&remote);
        let (mark, documents) = (Arc::new(mark), Mutex::default());
        Ok((Self { remote, files, reading, mark, is_resumed, documents }, is_resumed))
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
        let (error, goes_on) = explained(error);
        (error, if goes_on { Hint::GoOn } else { Hint::None })
    }

    /// Returns the entity tag of the object of an earlier attempt, if there may be one.
    fn there(&self, path: &Path) -> io::Result<Option<String>> {
        if !self.is_resumed {
            return Ok(None);
        }
        let there = objects(&self.remote)?.current(path)?;
        let untagged = || io::Error::other("the store gives it no entity tag");
        there.map(|Current { tag, .. }| tag.ok_or_else(untagged)).transpose()
    }

    /// Creates a file where none is.
    ///
    /// # Errors
    /// EEXIST if there is one.
    pub(super) fn create(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        match self.there(path)? {
            None => self.file(path, None),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EEXIST)),
        }
    }

    /// Creates a file, which replaces the object of an earlier attempt if there is one.
    pub(super) fn create_anew(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.file(path, self.there(path)?)
    }

    /// Creates a file that is put in the place of the one with an entity tag, as long as the mark is there.
    fn file(&self, path: &Path, base: Option<String>) -> io::Result<Arc<dyn PosixFile>> {
        let (remote, mark) = (Arc::clone(&self.remote), Arc::clone(&self.mark));
        self.remote.new_file(path, base, Box::new(move || mark.check_lately(&remote)))
    }

    /// Puts a document, with which a node is complete, unless an earlier attempt has done so.
    pub(super) fn put_document(&self, path: &Path, document: &Value) -> io::Result<()> {
        self.mark.check(&self.remote)?;
        let text = json::to_text(document);
        match self.remote.put_object(path, &text, None) {
            Ok(tag) => {
                self.documents.lock().push((path.to_owned(), tag));
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) && self.is_resumed => {
                let mut there = vec![0; text.len() + 1];
                let read = self.remote.open(path)?.read_at(&mut there, 0)?;
                if there[..read] == text { Ok(()) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    /// Completes the copy, of which everything else must be there.
    pub(super) fn finish(self) -> io::Result<()> {
        let Self { remote, mark, documents, .. } = self;
        let Err(error) = mark.remove(&remote) else { return Ok(()) };
        if error.raw_os_error() == Some(libc::ECANCELED) {
            // What has taken the mark may have removed chunks before it saw the documents.
            for (path, tag) in documents.into_inner() {
                let now = objects(&remote)?.current(&path)?;
                if now.is_some_and(|now| now.tag.as_ref() == Some(&tag)) {
                    remove(&remote, &path)?;
                }
            }
        }
        Err(error)
    }
}
