//! Writes to open files, close and fsync.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fs::error::{FsError, Result};
use crate::fs::request::{WriteHow, Writers};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Behind, Bytes, LiveFile, OpenFile};
use crate::fs::state::order::Promise;
use crate::fs::state::overlay::Name;
use crate::fs::state::target::Target;
use crate::fs::write::pending::Unblocked;
use crate::store::StoreError;
use crate::store::storage::{PosixFile, StorageFile};
use crate::text::shown;

impl Fs {
    /// Writes to an open file.
    pub fn write(&self, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.write_as(ino, handle, offset, data, WriteHow::default()).map(drop)
    }

    /// Writes to an open file with the options that the kernel passes. Returns the number of bytes written:
    /// of a file that is passed through it may be less than all, where the next write finds out why.
    pub fn write_as(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> Result<usize> {
        self.stats.operations.write.count();
        let mut nbytes = data.len();
        // Which of the writers has filled a mapped page is unknown.
        let writers = |file: &LiveFile, open: &Arc<OpenFile>| Writers {
            open: if how.mapped { file.state().open_files() } else { vec![Arc::clone(open)] },
            mapped: how.mapped,
            by_name: None,
        };
        let at = (!how.append).then_some(offset);
        match self.open_handle(handle) {
            Some(open) => {
                open.check_written()?;
                if !how.mapped {
                    open.was_closed.store(false, Ordering::Relaxed);
                }
                let source = match (&*open.behind(), at) {
                    (Behind::Live(file), at) => {
                        let writers = writers(file, &open);
                        if !how.mapped {
                            open.is_writing.store(true, Ordering::Relaxed);
                        }
                        let written = self.write_live(file, at, data, &writers);
                        if let (true, Err(error)) = (how.mapped, &written) {
                            self.note_lost_page(file, error);
                        }
                        written?;
                        None
                    }
                    (Behind::Source(file), at) => {
                        match at {
                            // Of a mapped page the kernel takes no less for an answer.
                            Some(at) if how.mapped => file.writable()?.write_at(data, at)?,
                            at => nbytes = file.writable()?.write_some(data, at)?,
                        }
                        Some(Arc::clone(file))
                    }
                };
                // This looks for what is behind the handle itself: not while that is locked.
                if let Some(file) = source {
                    self.check_not_gathered(ino, &*file)?;
                }
            }
            // The kernel writes back mapped pages after the file was closed.
            None => {
                let file = self.live(ino).ok_or(FsError::BadHandle)?;
                let writers =
                    Writers { open: file.state().open_files(), mapped: true, by_name: None };
                let written = self.write_live(&file, at, data, &writers);
                written.inspect_err(|error| self.note_lost_page(&file, error))?;
            }
        }
        self.stats.operations.write_bytes.add(nbytes as u64);
        Ok(nbytes)
    }

    /// Refuses to call a change of a file of the source done that came too late: another mount had put the file's
    /// bytes into a shard by then, and removed it. One that has lost its name otherwise goes when it is closed.
    ///
    /// # Errors
    ///
    /// `Stale` if the name of the file is that of a chunk by now.
    pub(in crate::fs) fn check_not_gathered(&self, ino: u64, file: &dyn StorageFile) -> Result<()> {
        if file.stat()?.links > 0 {
            return Ok(());
        }
        match self.target(ino)? {
            Target::Path(path) => self.check_no_shard_now(&path),
            Target::Tree(..) => Err(FsError::Stale),
            _ => Ok(()),
        }
    }

    /// Records the loss of a mapped page that could not be written. The process that filled it may
    /// never call `fsync`.
    fn note_lost_page(&self, file: &LiveFile, error: &FsError) {
        let FsError::Stale = error else { return };
        let names = file.state().names.clone();
        for path in names {
            let place = match self.overlay().map(|overlay| overlay.names().get(&path).cloned()) {
                Ok(Some(Name { place: Some(place), .. })) => place,
                _ => continue,
            };
            let location = place.array.source.layout.locate(&place.coords);
            let shard = place.array.source.shard_path(&location.shard);
            let error = StoreError::Stale { shard, position: location.positions.concat() };
            log::error!("{}: what was written to a mapping is lost: {error}", shown(&path));
            self.failures.record(&path, &Arc::new(error));
        }
    }

    /// Returns the file behind a handle that is open for writing.
    fn writable_handle(&self, ino: u64, handle: u64) -> Result<Behind> {
        match self.open_handle(handle) {
            Some(open) => Ok(open.behind().clone()),
            None => self.live(ino).map(Behind::Live).ok_or(FsError::BadHandle),
        }
    }

    /// Handles FLUSH, sent for each close of a descriptor.
    pub fn flush(&self, ino: u64, handle: u64) -> Result<()> {
        if let Some(open) = self.open_handle(handle) {
            open.was_closed.store(true, Ordering::Relaxed);
        }
        let file = match self.writable_handle(ino, handle) {
            Ok(Behind::Live(file)) => file,
            Ok(Behind::Source(file)) => return self.flush_source(ino, handle, &*file),
            Err(_) => return Ok(()),
        };
        // What fails, and has failed before, is reported by this close as by any other: it may be the only one.
        if self.awaits_contents(handle, &file) {
            self.stage_names(&file)?;
        } else {
            match self.open_handle(handle) {
                Some(open) if !open.is_writable => self.publish_beside(&file, &open)?,
                open => {
                    open.iter().for_each(|it| it.is_writing.store(false, Ordering::Relaxed));
                    self.publish(&file)?;
                }
            }
            self.check_chunks(&file)?;
            if self.config.writing.sync {
                self.commit_file(&file)?;
            }
        }
        let names = file.state().names.clone();
        self.failures.check(handle, names.iter().map(PathBuf::as_path))?;
        // Uncommitted changes that are retried and have failed so far.
        let overlay = self.overlay()?.names();
        let error = names.iter().find_map(|name| overlay.get(name)?.error.clone());
        error.map_or(Ok(()), |error| Err(FsError::Commit(error)))
    }

    /// Hands over a file of the source at a close of a descriptor that may have written to it, and makes it durable if
    /// the mount has `-o sync`. Its name is durable since it was created.
    fn flush_source(&self, ino: u64, handle: u64, file: &dyn StorageFile) -> Result<()> {
        if !self.open_handle(handle).is_some_and(|open| open.is_writable) {
            return Ok(());
        }
        if self.storage.objects().is_some() {
            self.check_is_no_shard(ino)?;
        }
        let file = file.writable()?;
        Ok(if self.config.writing.sync { file.sync_all() } else { file.closed() }?)
    }

    /// Hands over a file of the source that was written to since its last close, as the pages of a mapping are. Errors
    /// are in the log alone.
    pub(in crate::fs) fn hand_over(&self, ino: u64, handle: u64) {
        if self.storage.objects().is_none() {
            return;
        }
        if let Ok(Behind::Source(file)) = self.writable_handle(ino, handle)
            && let Err(error) = self.flush_source(ino, handle, &*file)
        {
            log::debug!("{error}");
        }
    }

    /// Checks that a file is not about to be put in the place of a shard: others may have made an array there since it
    /// was created.
    fn check_is_no_shard(&self, ino: u64) -> Result<()> {
        match self.target(ino)? {
            Target::Path(path) => self.check_no_shard_now(&path),
            _ => Ok(()),
        }
    }

    /// Returns whether a chunk that was emptied by an open is about to be written: a shell that redirects to it
    /// closes a descriptor of it before the program begins whose output it gets. Committed meanwhile, the chunk
    /// would be empty after a crash, and its old contents lost. What is empty once more, or closed for good, is
    /// meant to be.
    fn awaits_contents(&self, handle: u64, file: &LiveFile) -> bool {
        let Some(open) = self.open_handle(handle).filter(|_| !self.config.writing.sync) else {
            return false;
        };
        let (bytes, names) = {
            let state = file.state();
            (state.bytes.clone(), state.names.clone())
        };
        let is_empty = matches!(&bytes, Bytes::Here(content) if content.nbytes() == 0);
        let is_chunk = |path: &PathBuf| {
            let place = self.overlay().ok()?.names().get(path)?.place.clone()?;
            // Whatever can be refused when it is empty is refused at once.
            Some(place.array.decoded_form().is_none() && place.array.source.format.has_keys())
        };
        is_empty
            && names.iter().all(|name| is_chunk(name) == Some(true))
            && !open.was_closed_empty.swap(true, Ordering::Relaxed)
    }

    /// Answers FLUSH and FSYNC once the last commit has begun.
    ///
    /// # Errors
    ///
    /// Fails if something that was written to the file is not in the source, or not yet.
    pub fn check_committed(&self, ino: u64, handle: u64) -> Result<()> {
        let file = match self.writable_handle(ino, handle) {
            Ok(Behind::Live(file)) => file,
            // A version of an object is what it is.
            Ok(Behind::Source(file)) => {
                return Ok(file.posix().map_or(Ok(()), PosixFile::sync)?);
            }
            Err(_) => return Ok(()),
        };
        if file.state().dirty {
            return Err(FsError::Ended);
        }
        let names = file.state().names.clone();
        self.failures.check(handle, names.iter().map(PathBuf::as_path))?;
        let overlay = self.overlay()?.names();
        let mut waiting = names.iter().filter_map(|name| {
            let name = overlay.get(name)?;
            name.stage.as_ref()?.change.as_ref()?;
            Some(name.error.clone())
        });
        match waiting.next() {
            Some(error) => Err(error.map_or(FsError::Ended, FsError::Commit)),
            None => Ok(()),
        }
    }

    /// Reports to the writer at close a chunk that can never be committed as it is.
    fn check_chunks(&self, file: &LiveFile) -> Result<()> {
        let names = file.state().names.clone();
        for name in names {
            let waiting = self.overlay()?.names().get(&name).and_then(|name| {
                let place = name.place.as_ref();
                let place = place.filter(|place| !place.array.source.format.has_keys())?;
                Some((place.clone(), name.stage.as_ref()?.change.as_ref()?.content.clone()?))
            });
            if let Some((place, content)) = waiting {
                place.array.source.check_chunk(&place.coords, &content)?;
            }
        }
        Ok(())
    }

    /// Returns once what was written to a file is durable.
    ///
    /// # Errors
    ///
    /// Fails if the file could not be made durable, or if its change was given up since; errors of
    /// other files are not reported.
    pub fn fsync(&self, ino: u64, handle: u64) -> Result<()> {
        match self.writable_handle(ino, handle) {
            Ok(Behind::Source(file)) => {
                if self.storage.objects().is_some() {
                    self.check_is_no_shard(ino)?;
                }
                // Names and permissions as well, whatever was asked for. A version of an object is what it is.
                file.posix().map_or(Ok(()), PosixFile::sync_all)?;
                self.commit_copies(ino)
            }
            Ok(Behind::Live(file)) => {
                self.publish(&file)?;
                let committed = self.commit_file(&file);
                let names = file.state().names.clone();
                // What is reported counts as reported: only once no other error is.
                committed.and_then(|()| {
                    self.failures.report(Some(handle), names.iter().map(PathBuf::as_path))
                })
            }
            // Opened read-only, as a chunk that is stored in its shard.
            Err(_) => match self.target(ino)? {
                Target::Tree(array, coords) => {
                    self.failures.report(Some(handle), [&*array.path(&coords)])
                }
                _ => Ok(()),
            },
        }
    }

    /// Commits the chunks that a file stands for, together with other uncommitted changes of the
    /// same array.
    ///
    /// # Errors
    ///
    /// Fails if one of its own chunks is still uncommitted.
    fn commit_file(&self, file: &LiveFile) -> Result<()> {
        let names = file.state().names.clone();
        names.iter().map(|path| self.commit_name(path)).fold(Ok(()), Result::and)
    }

    /// Commits the chunks to which a file of the source was linked: each is a copy of it.
    ///
    /// # Errors
    ///
    /// Fails if one of them is still uncommitted, and once if it was given up.
    fn commit_copies(&self, ino: u64) -> Result<()> {
        let commit = |promise: &Promise| {
            let committed = promise.path().map_or(Ok(()), |path| self.commit_name(&path));
            promise.broken().map_or(committed, |error| Err(FsError::Commit(error)))
        };
        // One error can be returned; the others are kept for the next call.
        let (mut returned, mut unreported) = (Ok(()), Vec::new());
        for promise in self.paths.copies(ino) {
            let committed = commit(&promise);
            match &returned {
                Ok(()) => returned = committed,
                Err(_) if committed.is_err() => unreported.push(promise),
                Err(_) => (),
            }
        }
        self.paths.forget_settled_copies(ino, &unreported);
        returned
    }

    /// Commits the chunk of this name.
    fn commit_name(&self, path: &Path) -> Result<()> {
        /// Limit of commits, each of which finds another change that was made during the one before.
        const ATTEMPTS: usize = 4;
        let waiting = || {
            let names = self.overlay()?.names();
            let Some(name) = names.get(path) else { return Ok(None) };
            let change = name.stage.as_ref().and_then(|stage| stage.change.as_ref());
            let place = name.place.clone().zip(change.map(|change| change.number));
            Ok::<_, FsError>(place.map(|(place, number)| (place, number, name.error.clone())))
        };
        let mut last = Ok(());
        for _ in 0..ATTEMPTS {
            let Some((place, number, _)) = waiting()? else { return Ok(()) };
            // Changes of the same array are committed together: one record, one acquisition of the
            // lock.
            let committed = self.commit(&place.array.source.path);
            let Some((_, now, error)) = waiting()? else { return Ok(()) };
            match (error, committed) {
                (Some(error), _) => return Err(FsError::Commit(error)),
                (None, committed) if now == number => {
                    // It waits for another file that was renamed or linked from there.
                    let busy = std::io::Error::from_raw_os_error(libc::EBUSY);
                    return committed.and(Err(FsError::Io(busy)));
                }
                // It may be the error of this chunk, which went when the next change was made, or
                // that of another.
                (None, committed) => last = committed,
            }
        }
        last
    }

    /// Returns once everything below a directory is durable.
    ///
    /// # Errors
    ///
    /// Fails if something could not be made durable, or was given up since the directory was
    /// opened, or has not been reported yet.
    pub fn fsyncdir(&self, ino: u64, handle: Option<u64>) -> Result<()> {
        let target = self.target(ino)?;
        let path = match &target {
            Target::ControlDirectory => return Ok(()),
            target => self.directory_path(target)?,
        };
        let committed =
            self.commit(&path).and_then(|()| self.commit_for(&path, Unblocked::ForChunks));
        let synced = match &target {
            Target::Path(path) => {
                self.storage.posix().map_or(Ok(()), |storage| storage.sync_directory(path))
            }
            _ => Ok(()),
        };
        if committed.as_ref().is_err_and(|error| !error.is_given_up()) {
            return committed;
        }
        synced?;
        // What is reported counts as reported: only once no other error is.
        self.failures.report(handle, [&*path]).and(committed)
    }
}
