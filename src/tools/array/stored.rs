//! Arrays and groups in stores of objects, which commands create, resize and delete there.
//!
//! ```text
//! create    zarr.json                     if there is none
//! resize    zarr.json                     if it still is what was read; then chunks outside, by commits
//! delete    .shardfs/job.json             from now on the same command goes on
//!           zarr.json                     gone: no reader takes the rest for an array
//!           everything else, and .shardfs/job.json last
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::consolidated::{Change, update};
use super::delete::Kind;
use super::error::{ArrayError, io_error};
use crate::format::json::to_text;
use crate::format::marker::describe;
use crate::source::{METADATA_FILE, NodeError, document_at};
use crate::store::remote::{RemoteOptions, RemoteStorage, SourceUrl};
use crate::store::storage::Current;
use crate::tools::objects::{
    Found, Mark, each_file, explained, is_document, objects, remove, remove_all,
    remove_all_of_other,
};

/// Times that the document of a group is updated which other commands update as well.
const ATTEMPTS: usize = 16;

/// Document as it was read, with its entity tag: only that version is replaced.
pub(super) struct Read {
    pub document: Value,
    tag: String,
}

/// Place of a node in a store of objects.
pub(crate) struct Stored {
    /// The URL.
    pub name: PathBuf,
    url: SourceUrl,
    /// How the store is reached.
    pub remote: RemoteOptions,
    /// The place as the root of a storage.
    pub storage: Arc<RemoteStorage>,
}

impl Stored {
    /// Opens a place, at which nothing need be.
    pub(crate) fn open(url: &SourceUrl, remote: &RemoteOptions) -> Result<Self, ArrayError> {
        let name = PathBuf::from(url.to_string());
        let storage = RemoteStorage::new(url, remote, Arc::default());
        let storage = storage
            .map_err(|error| ArrayError::Setup { path: name.clone(), error: Box::new(error) })?;
        let listed = storage.check_listed();
        listed.map_err(|error| ArrayError::Unwritable { path: name.clone(), error })?;
        Ok(Self { name, url: url.clone(), remote: remote.clone(), storage: Arc::new(storage) })
    }

    /// Returns an error unless the store can be written to on conditions, which is tried out.
    pub(super) fn check_writable(&self) -> Result<(), ArrayError> {
        let tried = self.storage.check_writable();
        tried.map_err(|error| ArrayError::Unwritable { path: self.name.clone(), error })
    }

    /// Returns an error if there is anything.
    pub(crate) fn check_absent(&self) -> Result<(), ArrayError> {
        let name = self.name.clone();
        match Found::of(&self.storage).map_err(io_error(&self.name))? {
            Found::Nothing => Ok(()),
            Found::Unfinished(job, _) => Err(ArrayError::UnfinishedInStore(name, describe(&job))),
            Found::Node => Err(ArrayError::ExistsInStore(name)),
            Found::Other => Err(ArrayError::NotReplaced(name)),
        }
    }

    /// Creates an array with the metadata `document` where nothing is.
    pub(crate) fn create(&self, document: &Value) -> Result<(), ArrayError> {
        self.check_writable()?;
        self.check_absent()?;
        let put = self.storage.put_object(Path::new(METADATA_FILE), &to_text(document), None);
        put.map_err(|error| match error.raw_os_error() {
            // Another one was faster.
            Some(libc::ESTALE) => ArrayError::ExistsInStore(self.name.clone()),
            _ => io_error(&self.name)(error),
        })?;
        // Begun at the same moment: whoever has put the mark may not have seen the document.
        if let Some((job, _)) = Mark::of(&self.storage).map_err(self.failed())? {
            remove(&self.storage, Path::new(METADATA_FILE)).map_err(self.failed())?;
            return Err(ArrayError::UnfinishedInStore(self.name.clone(), describe(&job)));
        }
        self.update_above(Change::Created(document))
    }

    /// Returns a function that wraps an error of a request.
    fn failed(&self) -> impl FnOnce(io::Error) -> ArrayError + '_ {
        |error| io_error(&self.name)(explained(error).0)
    }

    /// Returns the metadata document of the node.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub(super) fn document(&self) -> Result<Read, ArrayError> {
        let name = || self.name.clone();
        if let Some((job, _)) = Mark::of(&self.storage).map_err(self.failed())? {
            return Err(ArrayError::UnfinishedInStore(name(), describe(&job)));
        }
        let bad = |error| ArrayError::Metadata { path: self.name.join(METADATA_FILE), error };
        if let Some(found) = read(&self.storage, Path::new(METADATA_FILE)).map_err(bad)? {
            return Ok(found);
        }
        Err(match Found::of(&self.storage).map_err(io_error(&self.name))? {
            Found::Nothing => ArrayError::Absent(name()),
            // It has no `zarr.json`.
            Found::Node => ArrayError::OtherFormat(name()),
            Found::Other | Found::Unfinished(..) => ArrayError::NotANode(name()),
        })
    }

    /// Puts the metadata document in the place of the one that was read.
    ///
    /// # Errors
    /// ESTALE if that is another one by now; those of the requests.
    pub(super) fn replace(&self, read: &Read) -> io::Result<()> {
        let replaced = replace(&self.storage, Path::new(METADATA_FILE), read);
        replaced.map_err(|error| explained(error).0)
    }

    /// Returns an error unless all names can be listed.
    pub(super) fn check_lists(&self) -> Result<(), ArrayError> {
        each_file(&self.storage, &mut |_| ()).map_err(self.failed())
    }

    /// Lets the consolidated metadata of all groups above the node say what it is now, as
    /// [`super::consolidated::update_above`] does in directories.
    pub(super) fn update_above(&self, change: Change<'_>) -> Result<(), ArrayError> {
        let (bucket, node) = self.url.in_bucket();
        if node.as_os_str().is_empty() {
            return Ok(());
        }
        let name = PathBuf::from(bucket.to_string());
        let storage = self.storage.of_bucket();
        let mut updated = Ok(());
        for group in node.ancestors().skip(1) {
            let Some(below) = node.strip_prefix(group).ok().and_then(Path::to_str) else {
                continue;
            };
            if let Err(error) = update_group(&storage, group, below, change) {
                updated = Err(ArrayError::Stale { group: name.join(group), error });
            }
        }
        updated
    }
}

/// Reads a document; `None` if there is none.
fn read(storage: &RemoteStorage, path: &Path) -> Result<Option<Read>, NodeError> {
    let Some(Current { tag, .. }) = objects(storage)?.current(path)? else { return Ok(None) };
    let tag = tag.ok_or_else(|| io::Error::other("the store gives it no entity tag"))?;
    // The version that was just found, or an error.
    let document = document_at(storage, path)?;
    Ok(document.map(|document| Read { document, tag }))
}

/// Replaces a document that was read.
fn replace(storage: &RemoteStorage, path: &Path, read: &Read) -> io::Result<()> {
    storage.put_object(path, &to_text(&read.document), Some(&read.tag)).map(drop)
}

/// Updates the document of a group, if it has one that lists nodes, again if others do so at the same time.
fn update_group(
    storage: &RemoteStorage,
    group: &Path,
    below: &str,
    change: Change<'_>,
) -> io::Result<()> {
    let path = group.join(METADATA_FILE);
    for _ in 0..ATTEMPTS {
        let mut found = match read(storage, &path) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            // Who may use a part of a bucket alone does not know what is above it.
            Err(NodeError::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(());
            }
            Err(NodeError::Io(error)) if is_stale(&error) => continue,
            Err(error) => return Err(io::Error::other(error)),
        };
        if !update(&mut found.document, below, change) {
            return Ok(());
        }
        match replace(storage, &path, &found) {
            Err(error) if is_stale(&error) => (),
            done => return done,
        }
    }
    Err(io::Error::from_raw_os_error(libc::ESTALE))
}

fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESTALE)
}

/// A node in a store of objects that is to be deleted, and what is below it.
pub(crate) struct StoredDeletion {
    stored: Stored,
    /// Kind of the node; `None` if it is what an interrupted command has left.
    pub kind: Option<Kind>,
    /// Number of objects. Their lengths would take a request each.
    pub files: u64,
    /// Mark of the interrupted command.
    left: Option<Mark>,
}

impl StoredDeletion {
    /// Examines what is at a place: an array, or with `recursive` a group or an array with other nodes below it, or what
    /// an interrupted command has left.
    pub(crate) fn find(stored: Stored, recursive: bool) -> Result<Self, ArrayError> {
        let name = || stored.name.clone();
        let (kind, left) = match Found::of(&stored.storage).map_err(io_error(&stored.name))? {
            Found::Unfinished(_, mark) => (None, Some(mark)),
            _ => match Kind::of(&stored.document()?.document) {
                None => return Err(ArrayError::NotANode(name())),
                Some(Kind::Group) if !recursive => return Err(ArrayError::NotRecursive(name())),
                kind => (kind, None),
            },
        };
        let (mut files, mut has_nodes) = (0, false);
        let count = &mut |path: PathBuf| {
            has_nodes |= is_document(&path) && path.components().count() > 1;
            files += 1;
        };
        each_file(&stored.storage, count).map_err(io_error(&stored.name))?;
        if has_nodes && !recursive {
            return Err(ArrayError::NodesBelow(name()));
        }
        Ok(Self { stored, kind, files, left })
    }

    /// Returns the URL of the node.
    pub(crate) fn name(&self) -> &Path {
        &self.stored.name
    }

    /// Returns what tells its store apart from others with buckets of the same name.
    pub(crate) fn address(&self) -> &str {
        self.stored.storage.address()
    }

    /// Deletes the node.
    pub(crate) fn run(self) -> Result<(), ArrayError> {
        let Self { stored, left, .. } = self;
        let (storage, failed) = (&stored.storage, || stored.failed());
        let job = json!({"command": "delete", "source": stored.name.to_string_lossy()});
        let mark = Mark::put(storage, &job, left.as_ref()).map_err(failed())?;
        if let Err(error) = storage.check_unwritten(&Mark::path()) {
            // It is as it was, unless an interrupted command has left it so.
            if left.is_none() {
                mark.remove(storage).map_err(failed())?;
            }
            return Err(ArrayError::Unwritable { path: stored.name.clone(), error });
        }
        remove(storage, Path::new(METADATA_FILE)).map_err(failed())?;
        let updated = stored.update_above(Change::Deleted);
        let removed = match left {
            Some(_) => remove_all_of_other(storage),
            None => remove_all(storage),
        };
        removed.and_then(|()| mark.remove(storage)).map_err(failed())?;
        updated
    }
}
