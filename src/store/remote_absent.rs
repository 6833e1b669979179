//! What stands for sources on the network where shardfs is built without them: no URL is one.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::storage::{PosixFile, PosixStorage, Stat, Storage, StorageFile, Visit};
use crate::stats::Stats;
pub use crate::store::remote_options::RemoteOptions;

/// Place of a source on the network, of which there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceUrl(Infallible);

/// What a source is given as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A path of this machine.
    Path(PathBuf),
    /// A place on the network.
    Url(SourceUrl),
}

/// Reason why a URL names no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this shardfs was built without sources on the network (the feature \"remote\")")]
pub struct UrlError;

/// Reason why a store cannot be reached at all.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(UrlError);

/// How the name begins of the object with which a store is tried out.
pub const TRIAL: &str = ".shardfs-";

/// Path of the note of a single writer.
pub const WRITER_NOTE: &str = ".shardfs/writer";

/// Reason why nothing is written to a store.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProbeError(UrlError);

impl ProbeError {
    /// Returns whether the source can be read all the same.
    pub fn is_readable(&self) -> bool {
        false
    }
}

/// Says whether a file may be put.
pub type Check = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Upload that was not completed, of which there is none.
#[derive(Debug, Clone)]
pub struct UnfinishedUpload {
    /// Path of the object that it was to become.
    pub path: PathBuf,
    /// When it was begun.
    pub since: Option<SystemTime>,
}

/// Storage of a source on the network, of which there is none.
pub struct RemoteStorage(Infallible);

impl Place {
    /// Returns the path that a source is given as.
    ///
    /// # Errors
    /// It is a URL.
    pub fn of(source: &Path) -> Result<Self, UrlError> {
        let is_url = source.to_str().is_some_and(|text| text.contains("://")) && !source.exists();
        if is_url { Err(UrlError) } else { Ok(Self::Path(source.to_owned())) }
    }
}

impl SourceUrl {
    /// Returns whether another place is this one, or below it.
    pub fn holds(&self, _: &Self) -> bool {
        match self.0 {}
    }

    /// Returns the bucket as a whole, and the key in it.
    pub fn in_bucket(&self) -> (Self, PathBuf) {
        match self.0 {}
    }

    /// Returns the URL without its last name.
    pub fn parent(&self) -> String {
        match self.0 {}
    }

    /// Returns whether a web server is asked.
    pub fn is_on_web(&self) -> bool {
        match self.0 {}
    }

    /// Returns the last name of the URL.
    pub fn name(&self) -> &str {
        match self.0 {}
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

impl RemoteStorage {
    /// Sets up the connection to a source.
    pub fn new(url: &SourceUrl, _: &RemoteOptions, _: Arc<Stats>) -> Result<Self, SetupError> {
        match url.0 {}
    }

    /// Tries out whether several hosts can write to the store.
    pub fn check_writable(&self) -> Result<(), ProbeError> {
        match self.0 {}
    }

    /// Returns an error unless commands can find out what is in the store, and change it.
    pub fn check_listed(&self) -> Result<(), ProbeError> {
        match self.0 {}
    }

    /// Returns an error if another process has said lately that it alone writes to the store.
    pub fn check_unwritten(&self, _: &Path) -> Result<(), ProbeError> {
        match self.0 {}
    }

    /// Returns what tells the store apart from others with buckets of the same name.
    pub fn address(&self) -> &str {
        match self.0 {}
    }

    /// Says that nothing more is written.
    pub fn end_alone(&self) {
        match self.0 {}
    }

    /// Returns a storage of the whole bucket.
    pub fn of_bucket(&self) -> Self {
        match self.0 {}
    }

    /// Returns the operations that change files, for those who share them.
    pub fn shared_files(self: &Arc<Self>) -> Arc<dyn PosixStorage> {
        match self.0 {}
    }

    /// Puts an object.
    pub fn put_object(&self, _: &Path, _: &[u8], _: Option<&str>) -> io::Result<String> {
        match self.0 {}
    }

    /// Creates a file that is put when it is closed.
    pub fn new_file(
        &self,
        _: &Path,
        _: Option<String>,
        _: Check,
    ) -> io::Result<Arc<dyn PosixFile>> {
        match self.0 {}
    }

    /// Returns the uploads that were not completed.
    pub fn unfinished_uploads(&self) -> io::Result<Vec<UnfinishedUpload>> {
        match self.0 {}
    }

    /// Gives an upload up.
    pub fn abort_upload(&self, _: &UnfinishedUpload) -> io::Result<()> {
        match self.0 {}
    }

    /// Returns a storage of the object alone that the source's URL names.
    pub fn only_object(&self) -> io::Result<Option<(Self, OsString)>> {
        match self.0 {}
    }
}

impl Storage for RemoteStorage {
    fn open(&self, _: &Path) -> io::Result<Arc<dyn StorageFile>> {
        match self.0 {}
    }

    fn stat(&self, _: &Path) -> io::Result<Stat> {
        match self.0 {}
    }

    fn list(&self, _: &Path, _: u64, _: &mut Visit<'_>) -> io::Result<()> {
        match self.0 {}
    }
}
