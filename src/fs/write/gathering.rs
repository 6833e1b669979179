//! Chunk files that come before the metadata of their array, as `cp -r`, `tar` and `rsync` bring them: when it comes,
//! they are gathered in shards.
//!
//! ```text
//! pass               without locks: most files, while others come
//! documents, names   locked: no file comes or goes; those that are being written are waited for
//! pass               what has come since
//! decide, place      store/gather
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::format::json;
use crate::fs::error::{FsError, Result};
use crate::fs::node::NodeKind;
use crate::fs::state::fs::Fs;
use crate::fs::state::overlay::{Overlay, What};
use crate::fs::write::passthrough::Writing;
use crate::store::StoreError;
use crate::store::access_list::inherited;
use crate::store::content::Content;
use crate::store::gather::{GatherError, Gathering, Passed, Where};
use crate::store::put::{put_file, put_moved_document};
use crate::store::storage::{FileKind, PosixStorage, Storage, Xattrs, if_present};
use crate::text::shown;

/// Attempts at least to find a moment in which no chunk file is being written: short ones, for those who write wait, too,
/// if all threads do that answer requests.
const ATTEMPTS: usize = 4;
/// Time for which such a moment is looked for.
const MOST_PATIENCE: Duration = Duration::from_secs(8);
/// Time for which chunk files are waited for that are being written, or are about to be renamed, each time.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same while no file can be created: those that were begun are finished.
const SHORT_PATIENCE: Duration = Duration::from_millis(200);
/// Interval of looks at whether they still are.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// The reason why chunk files stay as they are, if they do.
type Gathered = std::result::Result<(), GatherError>;

impl Fs {
    /// Puts the chunk files in a directory into shards of the array that `sharded` describes, and stores that as its
    /// document, durably.
    ///
    /// # Errors
    ///
    /// Those after which it goes on when the directory is next used: the files are in shards, which are not in their
    /// place.
    pub(in crate::fs) fn gather(
        &self,
        (path, directory): (&Path, &Path),
        sharded: &Value,
        by: &Writing<'_>,
    ) -> Result<Gathered> {
        if self.storage.posix().is_none() {
            let why = "a store of objects cannot put several files in their places at once";
            return Ok(Err(GatherError::Unfit { path: directory.to_owned(), why }));
        }
        let opened = self.storage.writable()?.within(directory)?;
        if self.access.acts()
            && let Some(opened) = &opened
        {
            self.permit_all_in((&**opened, directory), directory, by.authors)?;
        }
        let storage: Arc<dyn Storage> = match opened {
            Some(opened) => opened,
            None => Arc::clone(&self.storage),
        };
        let (config, stats) = (&self.config.store, &self.stats);
        let place = Where { source: &self.storage, storage: &storage, directory, config, stats };
        let mut gathering = match Gathering::begin(place, sharded) {
            Ok(gathering) => gathering,
            // What it puts there must not be described as anything else.
            Err(GatherError::Store(error @ StoreError::Locked { .. })) => return Err(error.into()),
            Err(error @ GatherError::Decided(_)) => return Err(unfinished(&error, path)),
            Err(error) => return Ok(Err(error)),
        };
        let others_have = || no_other(path);
        if self.has_array(path)? {
            // What has chunk keys are shards by now.
            gathering.give_up();
            return Ok(Err(others_have()));
        }
        let (began, mut why) = (Instant::now(), in_use(directory));
        for attempt in 0.. {
            if attempt >= ATTEMPTS && began.elapsed() > MOST_PATIENCE {
                break;
            }
            let passed = gathering.pass();
            match passed.and_then(|passed| self.permit_owner(&gathering, by).map(|()| passed)) {
                Ok(Passed::All) => (),
                Ok(Passed::Other(other)) => {
                    let is_gone = || matches!(if_present(self.storage.lstat(&other)), Ok(None));
                    if !within(PATIENCE, is_gone) {
                        why = no_chunk(other);
                        break;
                    }
                }
                Err(error) => {
                    why = error;
                    break;
                }
            }
            // Others must not wait for those who have files open.
            within(PATIENCE, || !self.is_used_below(directory, &gathering));
            let _documents = self.documents();
            let _names = self.no_name_in_source();
            if !within(SHORT_PATIENCE, || !self.is_used_below(directory, &gathering)) {
                continue;
            }
            match gathering.last_pass() {
                Ok(Passed::All) if self.is_free_of_document(path)? => {
                    let put = |posix: &dyn PosixStorage, at: &Path| {
                        put(posix, (at, directory), sharded, by)
                    };
                    let decided = match gathering.decide(put) {
                        Ok(decided) => decided,
                        Err(error @ GatherError::Decided(_)) => {
                            return Err(unfinished(&error, path));
                        }
                        Err(error) => return Ok(Err(error)),
                    };
                    let place = || decided.place().map_err(|error| unplaced(error, path));
                    let placed = self.in_all_views(directory, place);
                    // Groups describe the array in another way.
                    self.forget_nodes(Path::new(""));
                    return placed.map(Ok);
                }
                Ok(Passed::All) => {
                    why = match self.has_array(path)? {
                        true => others_have(),
                        false => no_group(path),
                    };
                    break;
                }
                Ok(Passed::Other(other)) => {
                    why = no_chunk(other);
                }
                Err(error) => {
                    why = error;
                    break;
                }
            }
        }
        gathering.give_up();
        Ok(Err(why))
    }

    /// Returns whether there is no document at a path, and removes one that is empty.
    fn is_free_of_document(&self, path: &Path) -> Result<bool> {
        match if_present(self.storage.lstat(path))? {
            None => Ok(true),
            // What is no metadata yet is about to be.
            Some(stat)
                if stat.kind == FileKind::File
                    && (stat.size == 0 || json::parse(&self.stored_document(path)?).is_err()) =>
            {
                self.storage.writable()?.remove_file(path)?;
                Ok(true)
            }
            Some(_) => Ok(false),
        }
    }

    /// Makes a directory an array while whoever asks what it is, in whatever view, waits. What `place` returns are
    /// directories above chunks that were there before: they go on being shown, for whoever has made them is about to
    /// create chunks there.
    pub(in crate::fs) fn in_all_views(
        &self,
        directory: &Path,
        place: impl FnOnce() -> Result<Vec<PathBuf>>,
    ) -> Result<()> {
        let others: Vec<_> = self.others().collect();
        let views = || others.iter().map(|other| &**other).chain([self]);
        let _held: Vec<_> = views().map(|view| view.nodes.hold(directory)).collect();
        let made = place()?;
        views().filter(|view| view.overlay.is_some()).try_for_each(|view| {
            let kept = view.keep_made(directory, &made);
            match kept {
                // The array is there, whatever other views make of it.
                Err(error) if !std::ptr::eq(view, self) => {
                    let (directory, view) = (shown(&directory), view.view().name());
                    log::warn!(
                        "{directory}: what was made in it is not there in the view {view}: {error}"
                    );
                    Ok(())
                }
                kept => kept,
            }
        })
    }

    /// Shows directories above chunks of an array that is held, and no others that were made when there was another
    /// array.
    fn keep_made(&self, directory: &Path, made: &[PathBuf]) -> Result<()> {
        let node = self.nodes.held_node(directory)?;
        let NodeKind::Sharded(array) = &node.kind else { return Ok(()) };
        let is_above_chunks = |path: &&PathBuf| {
            path.strip_prefix(directory).is_ok_and(|below| array.above_chunks(below).is_some())
        };
        let mut names = self.overlay()?.names();
        names.take_directories(directory);
        for path in made.iter().filter(is_above_chunks) {
            names.put(path, What::Directory, None);
        }
        Ok(())
    }

    /// Checks that the files belong to the users who write the document, for they are removed.
    fn permit_owner(
        &self,
        gathering: &Gathering<'_>,
        by: &Writing<'_>,
    ) -> std::result::Result<(), GatherError> {
        let is_its = |uid| by.authors.iter().all(|author| author.caller.uid == uid);
        match gathering.owner().filter(|owner| self.access.acts() && !is_its(*owner)) {
            None => Ok(()),
            Some(_) => Err(GatherError::Unfit {
                path: gathering.directory().to_owned(),
                why: "the chunk files belong to another user than the one who has written the metadata",
            }),
        }
    }

    /// Returns whether a chunk file is being written, or waits for its removal.
    fn is_used_below(&self, directory: &Path, gathering: &Gathering<'_>) -> bool {
        let is_chunk = |path: &Path| {
            let below = path.strip_prefix(directory).ok();
            below.and_then(|below| below.iter().next()).is_some_and(|top| gathering.claims(top))
        };
        let is_used_in = |view: &Self| {
            // Directories are those of another array that was here.
            let waits = |overlay: &Overlay| {
                let names = overlay.names();
                let mut all = names.all(directory);
                all.any(|(path, name)| !matches!(name.what, What::Directory) && is_chunk(&path))
            };
            view.paths.is_written_below(directory, &is_chunk)
                || view.overlay.as_ref().is_some_and(waits)
        };
        is_used_in(self) || self.others().any(|other| is_used_in(&other))
    }
}

/// Waits until something is so. Returns whether it is.
fn within(time: Duration, is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > time {
            return false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    true
}

fn no_chunk(path: PathBuf) -> GatherError {
    GatherError::Unfit { path, why: "it is not a chunk of the array" }
}

fn no_other(path: &Path) -> GatherError {
    GatherError::Unfit { path: path.to_owned(), why: "others have written it" }
}

fn no_group(path: &Path) -> GatherError {
    GatherError::Unfit { path: path.to_owned(), why: "it is the metadata of a group" }
}

/// Returns the error of a document where another array is to be.
fn unfinished(error: &GatherError, path: &Path) -> FsError {
    log::error!("{}: it is not stored: {error}", shown(&path));
    StoreError::InTheWay { path: path.to_owned() }.into()
}

/// Returns the error of a document whose array is made, and not in its place.
fn unplaced(error: GatherError, path: &Path) -> FsError {
    match error {
        GatherError::Store(error) => error.into(),
        error => unfinished(&error, path),
    }
}

fn in_use(directory: &Path) -> GatherError {
    GatherError::Unfit { path: directory.to_owned(), why: "some of them are being written" }
}

/// Writes the document of an array that is made elsewhere, with the attributes that it would have in its directory.
fn put(
    posix: &dyn PosixStorage,
    (at, directory): (&Path, &Path),
    document: &Value,
    by: &Writing<'_>,
) -> io::Result<()> {
    let content = Content::Memory(Arc::new(json::to_text(document)));
    let Some(attributes) = &by.attributes else { return put_file(posix, at, &content) };
    let list = by.asked.map(|asked| inherited(posix, directory, asked)).transpose()?;
    let lists = list.flatten().map_or_else(Xattrs::new, |list| list.xattrs());
    put_moved_document(posix, at, &content, (attributes, &lists))
}
