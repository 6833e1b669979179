//! What is at a place in a store of objects, which commands make, complete and remove there.
//!
//! Nothing takes the place of several objects at once, so what is not complete says so:
//!
//! ```text
//! PLACE/.shardfs/job.json    while a copy or a deletion is not complete ([`crate::format::marker`])
//! PLACE/zarr.json            last when something is made, first when it is removed
//! PLACE/...
//! ```
//!
//! There are no locks. Who has marked a place looks whether the mark still is its own before it makes an array of it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

use super::aside::new_id;
use crate::format::marker::{MARKER, MAX_BYTES, parse, to_text};
use crate::memory::zeroed;
use crate::source::NODE_DOCUMENTS;
use crate::store::remote::{RemoteStorage, TRIAL, WRITER_NOTE};
use crate::store::storage::{
    Current, DirItem, FileKind, ObjectStorage, Storage, if_present, kind_of,
};
use crate::store::work::WORK_DIRECTORY;

/// Threads that copy to a store or remove what is there, unless told otherwise: they wait for it most of the time.
// Evaluated by the compiler, which rejects zero.
pub(crate) const THREADS: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// Time for which a mark is believed to be there still.
const TRUSTED: Duration = Duration::from_millis(100);

/// Time after which whoever had the mark before has noticed that it was taken, unless it is putting a long object.
const NOTICED: Duration = Duration::from_secs(1);

/// Present contents of a place.
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// What a command has begun: its job, and the mark that says so.
    Unfinished(Value, Mark),
    /// A Zarr node.
    Node,
    /// Something else.
    Other,
}

impl Found {
    /// Finds out what is in the root of a storage.
    pub(crate) fn of(storage: &RemoteStorage) -> io::Result<Self> {
        if let Some((job, mark)) = Mark::of(storage)? {
            return Ok(Self::Unfinished(job, mark));
        }
        for name in NODE_DOCUMENTS {
            if if_present(storage.lstat(Path::new(name)))?.is_some() {
                return Ok(Self::Node);
            }
        }
        let has_work = Cell::new(false);
        let is_expected = |item: &DirItem<'_>| {
            let is_work = item.name == WORK_DIRECTORY;
            has_work.set(has_work.get() || is_work);
            is_work || is_of_trial(item)
        };
        let is_empty = has_only(storage, Path::new(""), is_expected)?
            && (!has_work.get() || has_only(storage, Path::new(WORK_DIRECTORY), is_note)?);
        // An object of that name would be hidden by what is made below it.
        let is_free = is_empty && storage.only_object()?.is_none();
        Ok(if is_free { Self::Nothing } else { Self::Other })
    }
}

/// Returns whether there is a node in the root of a storage now, whatever is known of it.
pub(crate) fn is_node_now(storage: &RemoteStorage) -> io::Result<bool> {
    for name in NODE_DOCUMENTS {
        if objects(storage)?.current(Path::new(name))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether nothing is in a directory but what `is_expected`.
fn has_only(
    storage: &RemoteStorage,
    directory: &Path,
    is_expected: impl Fn(&DirItem<'_>) -> bool,
) -> io::Result<bool> {
    let mut has_other = false;
    let listed = storage.list(directory, 0, &mut |item| match is_expected(&item) {
        true => ControlFlow::Continue(()),
        false => {
            has_other = true;
            ControlFlow::Break(())
        }
    });
    if_present(listed)?;
    Ok(!has_other)
}

/// Returns whether an object in the work directory says who writes there.
fn is_note(item: &DirItem<'_>) -> bool {
    Path::new(WORK_DIRECTORY).join(item.name) == Path::new(WRITER_NOTE)
}

/// Returns whether an object was left by a process that has tried the store out, and was killed.
fn is_of_trial(item: &DirItem<'_>) -> bool {
    item.name.to_str().is_some_and(|name| name.starts_with(TRIAL))
}

/// Mark of a place at which a command is at work, or was.
pub(crate) struct Mark {
    /// Entity tag of its object, which no other one has.
    tag: String,
    /// When it was seen last.
    seen: Mutex<Instant>,
}

impl Mark {
    fn new(tag: String) -> Self {
        Self { tag, seen: Mutex::new(Instant::now()) }
    }

    /// Returns the path of the mark.
    pub(crate) fn path() -> PathBuf {
        Path::new(WORK_DIRECTORY).join(MARKER)
    }

    /// Returns the mark of a place, and the job that it describes; `None` if there is none.
    pub(crate) fn of(storage: &RemoteStorage) -> io::Result<Option<(Value, Self)>> {
        let Some(Current { tag: Some(tag), .. }) = objects(storage)?.current(&Self::path())? else {
            return Ok(None);
        };
        let file = storage.open(&Self::path())?;
        let nbytes = file.stat()?.size;
        if nbytes > MAX_BYTES {
            return Ok(None);
        }
        let mut text = zeroed(nbytes)?;
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        Ok(parse(&text).map(|(_, job)| (job, Self::new(tag))))
    }

    /// Marks a place, in the stead of the mark that was found there, or of none.
    ///
    /// # Errors
    /// ESTALE if another process has done so meanwhile; those of the requests.
    pub(crate) fn put(
        storage: &RemoteStorage,
        job: &Value,
        before: Option<&Self>,
    ) -> io::Result<Self> {
        let before = before.map(|before| before.tag.as_str());
        let text = to_text(&new_id()?, job);
        Ok(Self::new(storage.put_object(&Self::path(), &text, before)?))
    }

    /// Returns an error if another process has removed or replaced it.
    ///
    /// # Errors
    /// ECANCELED if that is so; those of the request.
    pub(crate) fn check(&self, storage: &RemoteStorage) -> io::Result<()> {
        let at = Instant::now();
        match objects(storage)?.current(&Self::path())? {
            Some(Current { tag: Some(tag), .. }) if tag == self.tag => {
                *self.seen.lock() = at;
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }

    /// The same if it was not seen for a moment.
    pub(crate) fn check_lately(&self, storage: &RemoteStorage) -> io::Result<()> {
        let is_recent = self.seen.lock().elapsed() < TRUSTED;
        if is_recent { Ok(()) } else { self.check(storage) }
    }

    /// Removes it, if it still is the same.
    pub(crate) fn remove(&self, storage: &RemoteStorage) -> io::Result<()> {
        self.check(storage)?;
        remove(storage, &Self::path())
    }
}

/// Says what an error means at such a place, and whether the same command may go on.
pub(crate) fn explained(error: io::Error) -> (io::Error, bool) {
    let (text, goes_on) = match error.raw_os_error() {
        Some(libc::ECANCELED) => {
            ("another command has begun to write or to delete it: nothing more is put there", false)
        }
        Some(libc::ESTALE) => ("another process has changed it meanwhile", true),
        Some(libc::EFBIG) => {
            ("an object of more than 1 GiB is not put; shards can be made smaller", false)
        }
        _ => return (error, true),
    };
    (io::Error::new(error.kind(), text), goes_on)
}

/// Returns the operations on the objects of a store.
pub(crate) fn objects(storage: &RemoteStorage) -> io::Result<&dyn ObjectStorage> {
    storage.objects().ok_or_else(|| io::Error::from_raw_os_error(libc::EROFS))
}

/// Removes an object, if it is there.
pub(crate) fn remove(storage: &RemoteStorage, path: &Path) -> io::Result<()> {
    objects(storage)?.remove(path)
}

/// Removes all objects of a place but its mark. Metadata goes first, that of nodes below as well: what is left of them
/// when this is interrupted is no array.
pub(crate) fn remove_all(storage: &RemoteStorage) -> io::Result<()> {
    // Others may be put meanwhile, and one may have the name of a directory.
    let mut before = Vec::new();
    loop {
        let mut paths = Vec::new();
        each_file(storage, &mut |path| paths.push(path))?;
        paths.retain(|path| *path != Mark::path() && path != Path::new(WRITER_NOTE));
        if paths.is_empty() {
            return Ok(());
        }
        if paths == before {
            return Err(io::Error::other("objects that were removed are there again"));
        }
        before.clone_from(&paths);
        let (documents, others): (Vec<_>, Vec<_>) =
            paths.into_iter().partition(|path| is_document(path));
        remove_each(storage, &documents)?;
        remove_each(storage, &others)?;
    }
}

/// The same of a place whose mark was taken from another command, which may be at work still.
pub(crate) fn remove_all_of_other(storage: &RemoteStorage) -> io::Result<()> {
    remove_all(storage)?;
    thread::sleep(NOTICED);
    remove_all(storage)
}

/// Returns whether a path is that of a document that makes a directory a node.
pub(crate) fn is_document(path: &Path) -> bool {
    NODE_DOCUMENTS.iter().any(|document| path.ends_with(document))
}

fn remove_each(storage: &RemoteStorage, paths: &[PathBuf]) -> io::Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while failed.lock().is_none()
            && let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed))
        {
            if let Err(error) = remove(storage, path) {
                *failed.lock() = Some(error);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.get().min(paths.len()) {
            // Where no thread can be started, this one does it all.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Visits the paths of all objects.
pub(crate) fn each_file(storage: &RemoteStorage, visit: &mut dyn FnMut(PathBuf)) -> io::Result<()> {
    let mut directories = VecDeque::from([PathBuf::new()]);
    while let Some(directory) = directories.pop_front() {
        let mut failed = Ok(());
        let listed = storage.list(&directory, 0, &mut |item| {
            let path = directory.join(item.name);
            match kind_of(storage, &directory, &item) {
                Ok(Some(FileKind::Directory)) => directories.push_back(path),
                Ok(Some(_)) => visit(path),
                Ok(None) => (),
                Err(error) => {
                    failed = Err(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        if_present(listed)?;
        failed?;
    }
    Ok(())
}
