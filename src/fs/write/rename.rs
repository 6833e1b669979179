//! Renaming of files.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::fs::attr::Entry;
use crate::fs::caller::{Caller, Owner};
use crate::fs::error::{FsError, Result};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Behind, Bytes, Held, LiveFile, LiveGuard, Number, OpenFile};
use crate::fs::state::opener::Opener;
use crate::fs::state::overlay::{Hidden, What};
use crate::fs::state::paths::Taken;
use crate::fs::state::target::Target;
use crate::fs::write::content::Prepared;
use crate::fs::write::passthrough::{Moved, moved_by, overwrite};
use crate::fs::write::slot::{Slot, outside_grid};
use crate::store::storage::{FileKind, Need, Stat, StorageFile};

/// Time within which the kernel says that a file was closed to which something was written. Where requests wait in
/// several queues, others may overtake it.
const RELEASED: Duration = Duration::from_secs(2);
/// The same for one that was only read, which may as well be open.
const RELEASED_TO_READ: Duration = Duration::from_millis(500);
/// Longest time between two looks whether it has said so.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

impl Fs {
    /// Renames a file or a directory.
    pub fn rename(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        no_replace: bool,
        caller: &Caller,
    ) -> Result<()> {
        self.overlay()?;
        self.make_room()?;
        let (source, target) = (self.slot(from.0, from.1)?, self.slot(to.0, to.1)?);
        let moved = self.peek(from.0, from.1)?.ok_or(FsError::NotFound)?;
        let there = self.peek(to.0, to.1)?;
        if there.is_some() && no_replace {
            return Err(FsError::Exists);
        }
        self.rename_slots(&source, &moved, &target, there.as_ref(), caller)?;
        self.relieve_after_name();
        Ok(())
    }

    fn rename_slots(
        &self,
        from: &Slot,
        moved: &Entry,
        to: &Slot,
        there: Option<&Entry>,
        caller: &Caller,
    ) -> Result<()> {
        let (Some(from_path), Some(to_path)) = (from.path(), to.path()) else {
            return Err(match to {
                Slot::Outside { path, grid } => outside_grid(path, grid),
                _ => FsError::NotPermitted,
            });
        };
        self.check_slot(from)?;
        self.check_slot(to)?;
        // Two names of one file stay two names.
        if there.is_some_and(|there| there.attr.ino == moved.attr.ino) {
            return Ok(());
        }
        let is_directory = |entry: &Entry| entry.attr.kind == FileKind::Directory;
        match (is_directory(moved), there.map(is_directory)) {
            (true, Some(false)) => return Err(FsError::NotDirectory),
            (false, Some(true)) => return Err(FsError::IsDirectory),
            _ => (),
        }
        match (from, to) {
            (Slot::Source(from), Slot::Source(to)) => {
                self.rename_in_source(from, to, moved, caller)?;
                self.after_names(&[from, to])
            }
            // EXDEV makes callers copy and delete instead.
            _ if is_directory(moved) => Err(FsError::CrossDevice),
            // A document is durable when it is written; what it is renamed to may not be.
            (Slot::Document(_), Slot::Document(_) | Slot::Chunk(..) | Slot::Scratch(_)) => {
                Err(FsError::CrossDevice)
            }
            (Slot::Source(from), Slot::Document(to)) => {
                // Others follow links, and wait for pipes.
                if moved.attr.kind != FileKind::File {
                    return Err(FsError::CrossDevice);
                }
                let (content, stat) = self.source_content(from, caller)?;
                let limited = self.limited(caller);
                self.write_document(to, &content, &moved_by(limited.as_slice(), &stat))?;
                self.leave_document(to)?;
                self.remove_source_file(from, caller)?;
                // Later writes through open handles do not change the document.
                self.paths.open_files(moved.attr.ino).iter().for_each(|open| open.leave());
                self.paths.renamed(from, to);
                self.after_names(&[from])
            }
            _ => {
                let mut reader = None;
                if let Slot::Chunk(_, place) = from {
                    self.permit_change(place, caller)?;
                    let target = Target::Tree(Arc::clone(&place.array), place.coords.clone());
                    reader = self.permit_opening(&target, Need::Read, caller)?;
                    self.check_removable(place)?;
                }
                if let Slot::Chunk(_, place) = to {
                    self.permit_change(place, caller)?;
                }
                match (from, to) {
                    // An object is put when it is closed, and would be another one by then.
                    (Slot::Source(_), _) if self.is_object_being_written(moved.attr.ino) => {
                        return Err(FsError::CrossDevice);
                    }
                    (Slot::Source(from), to) => {
                        // In this order: who stores a document takes them so.
                        let _moves = self.moves.lock();
                        let _turn = self.name_in_source();
                        self.check_no_shard_now(from)?;
                        let by = self.access.identity(caller)?;
                        let (stat, file) = self.become_live(from, to, moved, caller)?;
                        self.unname_source(from, Hidden { stat, by }, to_path, &file)?;
                    }
                    (from, Slot::Source(to)) => {
                        self.rename_to_source(from, to, reader.as_deref(), caller)?;
                    }
                    (from, to) => self.rename_live(from, to, reader.as_deref(), caller)?,
                }
                self.after_change(to_path)?;
                self.after_change(from_path)?;
                // Directories of chunks may be none in the source.
                let in_source = |slot: &&Slot| matches!(slot, Slot::Source(_) | Slot::Document(_));
                let names = [from, to].into_iter().filter(in_source).filter_map(Slot::path);
                self.after_names(&names.collect::<Vec<_>>())
            }
        }
    }

    /// Returns whether a file of a store of objects is open for writing.
    fn is_object_being_written(&self, ino: u64) -> bool {
        let held = || {
            let open = self.paths.open_files(ino).into_iter();
            let written = open.filter(|open| open.is_writable && open.source().is_some());
            written.map(|open| open.held()).max().unwrap_or(Held::No)
        };
        self.storage.posix().is_none() && is_held(held)
    }

    /// Gives a file of the mount another name outside the source.
    fn rename_live(
        &self,
        from: &Slot,
        to: &Slot,
        reader: Option<&Opener>,
        caller: &Caller,
    ) -> Result<()> {
        let prepared = self.prepare_to_leave(from)?;
        let file = self.brought_here(|| self.file_of(from), reader)?;
        self.name_file(to, &file, caller)?;
        self.unname_file(from, prepared, caller)?;
        if let Slot::Document(_) = to {
            // Later writes through open handles do not change the document.
            file.state().open_files().iter().for_each(|open| open.leave());
        }
        Ok(())
    }

    /// Prepares the removal of a file's old name, before the file's bytes are read: what others write
    /// to the chunk from now on, in another view, too, is not removed.
    fn prepare_to_leave(&self, from: &Slot) -> Result<Option<Prepared>> {
        match from {
            Slot::Chunk(path, place) => self.prepare(path, place).map(Some),
            _ => Ok(None),
        }
    }

    /// Gives a file of the mount a name that is passed through; open handles follow to the file of
    /// the source.
    fn rename_to_source(
        &self,
        from: &Slot,
        to: &Path,
        reader: Option<&Opener>,
        caller: &Caller,
    ) -> Result<()> {
        let prepared = self.prepare_to_leave(from)?;
        let file = self.brought_here(|| self.file_of(from), reader)?;
        // It cannot be a file of the mount and of the source at once.
        if file.state().names.iter().any(|name| Some(&**name) != from.path()) {
            return Err(FsError::CrossDevice);
        }
        let turn = self.free_name(to, FileKind::File)?;
        let moved = self.move_to_source(to, &file, caller)?;
        drop(turn);
        self.become_source(&file, (from, to), (moved, prepared), caller)
    }

    /// Turns a file of the source into one of the mount called `to`, to which open handles follow.
    /// Returns its `Stat` in the source and the new file. The turn of `moves` is the caller's.
    fn become_live(
        &self,
        from: &Path,
        to: &Slot,
        moved: &Entry,
        caller: &Caller,
    ) -> Result<(Stat, Arc<LiveFile>)> {
        // Other names that stay in the source would be names of another file from then on.
        if moved.attr.kind != FileKind::File || self.storage.lstat(from)?.has_hard_links() {
            return Err(FsError::CrossDevice);
        }
        loop {
            let openers = self.paths.open_files(moved.attr.ino);
            let held: Vec<_> = openers.iter().map(|open| open.hold()).collect();
            let Some(mut known) = self.paths.take(moved.attr.ino, &openers) else { continue };
            match self.make_live((from, to), moved, &openers, &mut known, caller) {
                Ok((stat, file)) => {
                    for mut behind in held {
                        *behind = Behind::Live(Arc::clone(&file));
                    }
                    return Ok((stat, file));
                }
                Err(error) => {
                    self.paths.give_back(moved.attr.ino, known);
                    return Err(error);
                }
            }
        }
    }

    /// Creates a file of the mount called `to` from a file of the source whose open handles are
    /// locked.
    fn make_live(
        &self,
        (from, to): (&Path, &Slot),
        moved: &Entry,
        openers: &[Arc<OpenFile>],
        known: &mut Taken,
        caller: &Caller,
    ) -> Result<(Stat, Arc<LiveFile>)> {
        let attr = &moved.attr;
        let stat = self.storage.lstat(from)?;
        let (content, _) = self.source_content(from, caller)?;
        let owner = Owner { uid: attr.uid, gid: attr.gid };
        let number = Number { ino: attr.ino, generation: moved.generation };
        let file = self.new_file(Some(number), attr.mode, owner)?;
        {
            let mut state = file.state();
            state.bytes = Bytes::Here(content);
            state.mtime = stat.mtime;
            state.openers = openers.iter().map(Arc::downgrade).collect();
        }
        self.overlay()?.names().set_lookups(&file, known.lookups());
        match self.name_file(to, &file, caller) {
            Ok(()) => Ok((stat, file)),
            Err(error) => {
                // The kernel has looked it up, or forgotten it, in the meantime.
                known.set_lookups(self.overlay()?.names().release(&file));
                Err(error)
            }
        }
    }

    /// Moves the open handles of a file of the mount to the file of the source that it has become,
    /// and removes its old name. If that fails, the file stays in the mount as it is; the name that it
    /// was to get has its bytes all the same.
    fn become_source(
        &self,
        file: &Arc<LiveFile>,
        (from, to): (&Slot, &Path),
        (mut moved, prepared): (Moved, Option<Prepared>),
        caller: &Caller,
    ) -> Result<()> {
        let _turn = self.moves.lock();
        let stat = moved.file.stat()?;
        let openers = loop {
            let openers = file.state().open_files();
            let held: Vec<_> = openers.iter().map(|open| open.hold()).collect();
            if file.state().open_files().len() > openers.len() {
                continue;
            }
            let leave = || file.state().open_files().iter().for_each(|open| open.leave());
            drop(copy_writes(file, &mut moved)?);
            self.unname_file(from, prepared.clone(), caller)?;
            // Now only pages of mappings that were closed have been written.
            let mut state = copy_writes(file, &mut moved).inspect_err(|_| leave())?;
            (state.bytes, state.dirty) = (Bytes::Moved(Arc::clone(&moved.file)), false);
            // Some may have been opened meanwhile: no more from now on.
            let openers = state.open_files();
            drop((state, held));
            for open in &openers {
                *open.hold() = Behind::Source(Arc::clone(&moved.file) as Arc<dyn StorageFile>);
            }
            break openers;
        };
        openers.iter().for_each(|open| open.stay());
        self.paths.adopt(file, to, &stat, &openers);
        let lookups = self.overlay()?.names().release(file);
        self.paths.looked_up(file.ino, lookups.saturating_sub(1));
        Ok(())
    }

    /// Hides a file of the source that was renamed; it is removed once it is durable under its new
    /// name.
    fn unname_source(&self, from: &Path, hidden: Hidden, to: &Path, file: &LiveFile) -> Result<()> {
        let mut names = self.overlay()?.names();
        let mut after = names.take_links(from);
        if file.state().names.iter().any(|name| name == to) {
            after.push(names.promise(to));
        }
        names.hide(from, hidden, after);
        Ok(())
    }

    fn rename_in_source(
        &self,
        from: &Path,
        to: &Path,
        moved: &Entry,
        caller: &Caller,
    ) -> Result<()> {
        let is_directory = moved.attr.kind == FileKind::Directory;
        // What other views have below it would look for its array in vain.
        let others = self.others().filter(|other| is_directory && other.overlay.is_some());
        let others: Vec<_> = others.collect();
        let views = || others.iter().map(|other| &**other).chain([self]);
        if is_directory {
            let open = views().flat_map(|view| view.open_below(from)).collect::<Vec<_>>();
            is_held(|| open.iter().map(|file| file.state().held()).max().unwrap_or(Held::No));
            views().try_for_each(|view| view.commit_below(from))?;
        }
        let turn = self.free_name(to, moved.attr.kind)?;
        self.check_no_shard_now(from)?;
        // Others may have put something there since.
        let below = views().map(|view| match is_directory {
            true => view.below_renamed(from),
            false => Ok(Below::default()),
        });
        let below = below.collect::<Result<Vec<_>>>()?;
        self.on_behalf(caller, |storage| storage.rename(from, to))?;
        views().zip(below).try_for_each(|(view, below)| view.take_along(below, (from, to)))?;
        self.nodes_moved(from, Some(to));
        self.paths.renamed(from, to);
        drop(turn);
        self.tell_of_zarr2(to);
        self.forget_nodes(from);
        self.forget_nodes(to);
        Ok(())
    }

    /// Commits the uncommitted changes of arrays below a directory that is to be renamed where they are.
    ///
    /// # Errors
    ///
    /// EBUSY if files of the mount below it are in use, or wait to be removed.
    fn commit_below(&self, from: &Path) -> Result<()> {
        self.commit(from)?;
        for array in self.nodes.committed() {
            if array.source.path.starts_with(from) {
                self.store.finish_commits(&array.source)?;
            }
        }
        self.below_renamed(from).map(drop)
    }

    /// Returns the files of the mount below a directory that are open.
    fn open_below(&self, directory: &Path) -> Vec<Arc<LiveFile>> {
        let Ok(overlay) = self.overlay() else { return Vec::new() };
        let names = overlay.names();
        let open = names.all(directory).filter_map(|(_, name)| match &name.what {
            What::File(file) if file.state().is_open() => Some(Arc::clone(file)),
            What::File(_) | What::Directory | What::Removed => None,
        });
        open.collect()
    }

    /// Returns the names below a directory that go along when it is renamed.
    ///
    /// # Errors
    ///
    /// EBUSY if files of the mount below it are in use, wait to be committed or to be removed.
    fn below_renamed(&self, from: &Path) -> Result<Below> {
        let mut below = Below::default();
        let names = self.overlay()?.names();
        for (path, name) in names.all(from) {
            match &name.what {
                What::Directory => below.made.push(path),
                What::File(file) if names.is_idle(file) => below.idle.push(Arc::clone(file)),
                // Not EXDEV: a copy of a sharded array is an unsharded one.
                What::File(_) | What::Removed => return Err(in_use()),
            }
        }
        Ok(below)
    }

    /// Gives what is at or below a name that was renamed its new names.
    fn take_along(&self, below: Below, (from, to): (&Path, &Path)) -> Result<()> {
        let mut names = self.overlay()?.names();
        for path in below.made {
            names.take(&path);
            if let Ok(below) = path.strip_prefix(from) {
                names.put(&to.join(below), What::Directory, None);
            }
        }
        below.idle.iter().for_each(|file| names.take_idle(file));
        names.move_links(from, to);
        Ok(())
    }
}

/// Names of the mount below a directory that is renamed.
#[derive(Default)]
struct Below {
    /// Directories that the source does not have.
    made: Vec<PathBuf>,
    /// Files that the kernel alone knows.
    idle: Vec<Arc<LiveFile>>,
}

/// Returns whether files are open, by what `held` says of them, and waits until those are known to be closed that may be.
fn is_held(held: impl Fn() -> Held) -> bool {
    let (began, mut pause) = (Instant::now(), Duration::from_millis(1));
    loop {
        let patience = match held() {
            Held::No => return false,
            Held::ToRead => RELEASED_TO_READ,
            Held::Perhaps => RELEASED,
            Held::Surely => return true,
        };
        if began.elapsed() > patience {
            return true;
        }
        thread::sleep(pause);
        pause = BETWEEN_LOOKS.min(2 * pause);
    }
}

fn in_use() -> FsError {
    io::Error::from_raw_os_error(libc::EBUSY).into()
}

/// Copies what was written to a file of the mount after `moved` was made from it, and returns its
/// locked state.
fn copy_writes<'a>(file: &'a LiveFile, moved: &mut Moved) -> Result<LiveGuard<'a>> {
    let state = file.state();
    if let Bytes::Here(content) = &state.bytes
        && state.writes != moved.writes
    {
        overwrite(&*moved.file, content)?;
        moved.file.sync()?;
        moved.writes = state.writes;
    }
    Ok(state)
}
