//! Writes to files of the overlay.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::fs::error::{FsError, Result};
use crate::fs::read::openers::OPEN_ATTEMPTS;
use crate::fs::read::overlay_files::{MAX_CHUNK_BYTES, SPOOL_PIECE, own_file};
use crate::fs::request::Writers;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, LiveGuard, LiveState, OpenFile, Place};
use crate::fs::state::opener::Opener;
use crate::fs::state::overlay::{Kept, Names, Stage};
use crate::memory::zeroed;
use crate::number::to_usize;
use crate::store::content::Content;
use crate::store::storage::{Need, PosixFile, Version};
use crate::store::{Freshness, StoreError};

/// Stage for a change of a chunk that is about to be made.
#[derive(Clone)]
pub(in crate::fs) enum Prepared {
    /// The one that the chunk's name had.
    OfName(Stage),
    /// A new one.
    New(Stage),
}

impl Fs {
    /// Records the state of a chunk before it is changed. Only undamaged shards can be written to.
    pub(in crate::fs) fn stage(&self, place: &Place) -> Result<Stage> {
        self.check_writable(place)?;
        let mut freshness = Freshness::Now;
        for other in self.others() {
            // Changes made in another view of this mount are committed first.
            other.commit(&place.array.source.path)?;
            freshness = Freshness::Again;
        }
        let base = self.store.base_of_change(&place.array.source, &place.coords, freshness)?;
        Ok(Stage { base, change: None })
    }

    /// Records the state of the chunks that a file stands for before it is changed.
    ///
    /// # Errors
    ///
    /// `Stale` if one of the `writers` has opened the chunk before another process changed it: what
    /// it writes may be derived from the older contents.
    fn begin_change(&self, file: &Arc<LiveFile>, writers: &Writers) -> Result<()> {
        self.stage_names(file)?;
        let mut names = self.overlay()?.names();
        let mut state = file.state();
        // Checked for a single chunk only: of several names it is unknown on which the file was
        // opened.
        let [path] = &state.names[..] else { return Ok(()) };
        let Some(name) = names.get_mut(path) else { return Ok(()) };
        let (Some(Stage { base, change }), Some(place)) = (&name.stage, name.place.clone()) else {
            return Ok(());
        };
        if writers.open.iter().all(|open| open.is_based_on(path, base, writers.mapped)) {
            return Ok(());
        }
        if change.is_none() && !state.dirty {
            (name.stage, state.staged) = (None, false);
        }
        drop((state, names));
        let shard = place.array.source.layout.shard_of(&place.coords);
        self.identities.served_older(self.shard_identity(&place.array, &shard), file.ino);
        Err(FsError::Stale)
    }

    /// Prepares a change of a chunk: returns the stage that its name has, or a new one.
    pub(in crate::fs) fn prepare(&self, path: &Path, place: &Place) -> Result<Prepared> {
        let staged = self.overlay()?.names().get(path).and_then(|name| name.stage.clone());
        staged.map_or_else(
            || self.stage(place).map(Prepared::New),
            |stage| Ok(Prepared::OfName(stage)),
        )
    }

    /// Locks the names to record a change of a chunk. Returns the stage to record it in if the name
    /// has none.
    pub(in crate::fs) fn names_with(
        &self,
        path: &Path,
        place: &Place,
        mut prepared: Prepared,
    ) -> Result<(MutexGuard<'_, Names>, Stage)> {
        loop {
            let names = self.overlay()?.names();
            let is_staged = || names.get(path).is_some_and(|name| name.stage.is_some());
            match prepared {
                Prepared::New(stage) => return Ok((names, stage)),
                Prepared::OfName(stage) if is_staged() => return Ok((names, stage)),
                // A commit has ended it since: it knows the chunk only as it was before that.
                Prepared::OfName(_) => drop(names),
            }
            prepared = Prepared::New(self.stage(place)?);
        }
    }

    pub(in crate::fs) fn stage_names(&self, file: &Arc<LiveFile>) -> Result<()> {
        let unstaged = |names: &Names, paths: &[PathBuf]| {
            let place = |path: &PathBuf| {
                let name = names.get(path).filter(|name| name.stage.is_none())?;
                Some((path.clone(), name.place.clone()?))
            };
            paths.iter().find_map(place)
        };
        loop {
            let next = {
                let names = self.overlay()?.names();
                let mut state = file.state();
                let next = unstaged(&names, &state.names);
                state.staged = next.is_none();
                next
            };
            let Some((path, place)) = next else { return Ok(()) };
            let stage = self.stage(&place)?;
            if let Some(name) = self.overlay()?.names().of_file(&path, file) {
                name.stage.get_or_insert(stage);
            }
        }
    }

    /// Loads the bytes of a file from its shard into the overlay, where they stay meanwhile, as
    /// [`Self::bring_here`] does.
    pub(in crate::fs) fn keep_here(
        &self,
        file: &Arc<LiveFile>,
        by: &[(&Opener, Need)],
    ) -> Result<Kept<'_>> {
        let kept = self.overlay()?.keep(Arc::clone(file));
        self.bring_here(&kept, by)?;
        Ok(kept)
    }

    /// Loads the bytes of a file from its shard into the overlay. They may go back at once, unless
    /// they are changed.
    ///
    /// # Errors
    ///
    /// `Denied` or `Stale` if one of the users for whom it is done does not have the access to the shard
    /// that is needed. Who else has the file open, and may not read the shard, reads no more of the file.
    pub(in crate::fs) fn bring_here(&self, file: &LiveFile, by: &[(&Opener, Need)]) -> Result<()> {
        self.bring(file, by, false)
    }

    /// Does the same, for a change that is `mapped` if it comes from the kernel's pages.
    fn bring(&self, file: &LiveFile, by: &[(&Opener, Need)], mapped: bool) -> Result<()> {
        /// Number of times that the chunk is read anew, for others have changed its shard meanwhile.
        const READS: usize = 16;
        let (mut freshness, mut attempt, mut read) = (Freshness::Now, 1, 1);
        loop {
            let (place, writes) = match &*file.state() {
                LiveState { bytes: Bytes::Stored(place), writes, .. } => (place.clone(), *writes),
                _ => return Ok(()),
            };
            let Some((content, shard)) = self.stored_content(&place, freshness)? else {
                if read == READS {
                    let shard = place.array.source.shard_path_of(&place.coords);
                    return Err(StoreError::Changing { shard }.into());
                }
                (freshness, read) = (Freshness::Again, read + 1);
                continue;
            };
            let is_linked = match self.permit_load(&place, shard, by) {
                // A commit has replaced the shard since.
                Err(FsError::Stale) if attempt < OPEN_ATTEMPTS => {
                    (freshness, attempt) = (Freshness::Again, attempt + 1);
                    continue;
                }
                permitted => !permitted?,
            };
            if let Some(shard) = shard.filter(|_| is_linked && mapped) {
                self.permit_mapped(file, &place, shard)?;
            }
            let mut state = self.with_checked_readers(file, &place, shard)?;
            match state.bytes {
                // Written and committed in the meantime: the contents are different now.
                Bytes::Stored(_) if state.writes != writes => freshness = Freshness::Again,
                Bytes::Stored(_) => {
                    state.bytes = Bytes::Here(content);
                    state.behind_link = shard.filter(|_| is_linked);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }

    /// Checks that the bytes of a chunk were loaded from a shard of its array, and that those for whom this is
    /// done may have them. Returns whether the shard is not behind a link.
    fn permit_load(
        &self,
        place: &Place,
        shard: Option<Version>,
        by: &[(&Opener, Need)],
    ) -> Result<bool> {
        let Some(shard) = shard else { return Ok(true) };
        let chunk = (&*place.array, &*place.coords);
        for (opener, need) in by {
            self.permit_shard(Some(opener), *need, chunk, shard)?;
        }
        self.is_in_array(chunk, shard)
    }

    /// Checks that all users who have a file open for writing, and so may have changed its pages, may write to
    /// the shard behind a link that is to be loaded into it.
    fn permit_mapped(&self, file: &LiveFile, place: &Place, shard: Version) -> Result<()> {
        let writable = file.state().open_files().into_iter().filter(|open| open.is_writable);
        for open in writable.collect::<Vec<_>>() {
            let chunk = (&*place.array, &*place.coords);
            self.permit_shard(open.opener.as_deref(), Need::Write, chunk, shard)?;
        }
        Ok(())
    }

    /// Closes a file to reads of those who have it open and may not read a shard that is to be loaded into
    /// it; returns the locked state, in which no others have it open.
    fn with_checked_readers<'a>(
        &self,
        file: &'a LiveFile,
        place: &Place,
        shard: Option<Version>,
    ) -> Result<LiveGuard<'a>> {
        let chunk = (&*place.array, &*place.coords);
        let mut checked: Vec<Arc<OpenFile>> = Vec::new();
        loop {
            let state = file.state();
            let is_new = |open: &Arc<OpenFile>| {
                open.opener.is_some() && !checked.iter().any(|known| Arc::ptr_eq(known, open))
            };
            let new: Vec<_> = state.open_files().into_iter().filter(is_new).collect();
            let Some(shard) = shard.filter(|_| !new.is_empty()) else { return Ok(state) };
            // Not with the file locked.
            drop(state);
            for open in &new {
                match self.permit_shard(open.opener.as_deref(), Need::Read, chunk, shard) {
                    Err(error) if is_refusal(&error) => open.close_to_reads(true),
                    permitted => {
                        permitted?;
                        open.close_to_reads(false);
                    }
                }
            }
            checked.extend(new);
        }
    }

    /// Returns the contents of a chunk's file as they are stored, and the version of the shard that they are
    /// from if there is one; `None` if they were changed during the read.
    fn stored_content(
        &self,
        place: &Place,
        freshness: Freshness,
    ) -> Result<Option<(Content, Option<Version>)>> {
        let in_memory = |bytes: Vec<u8>| Content::Memory(Arc::new(bytes));
        let Place { array, coords } = place;
        if let Some(form) = array.decoded_form() {
            let file = self.open_decoded_file(array, form, coords)?;
            return Ok(Some((in_memory(file.to_vec()), file.shard)));
        }
        let reader = self.chunk_reader(array, coords, freshness);
        if let Err(FsError::NotFound) = &reader
            && let Some(chunk) = self.absent_chunk(array)?
        {
            return Ok(Some((in_memory(chunk.to_vec()), None)));
        }
        let reader = reader?;
        if reader.nbytes() > MAX_CHUNK_BYTES {
            return Err(FsError::TooLarge);
        }
        let content = self.read_content(reader.nbytes(), |buffer, at| reader.read(buffer, at));
        // An object that was replaced since it was opened.
        if matches!(&content, Err(error) if error.errno() == libc::ESTALE) {
            return Ok(None);
        }
        let content = content?;
        let is_whole = content.nbytes() == reader.nbytes() && reader.unchanged()?;
        Ok(is_whole.then(|| (content, Some(reader.shard().version()))))
    }

    /// Reads `nbytes` bytes, or fewer if they end before: into memory, or into a spool file if a
    /// single file must not take so much memory.
    pub(in crate::fs) fn read_content(
        &self,
        nbytes: u64,
        read: impl Fn(&mut [u8], u64) -> std::io::Result<usize>,
    ) -> Result<Content> {
        if nbytes <= self.file_limit() {
            let mut bytes = zeroed(nbytes).map_err(std::io::Error::from)?;
            let found = read(&mut bytes, 0)?;
            bytes.truncate(found);
            return Ok(Content::Memory(Arc::new(bytes)));
        }
        let (file, mut at) = (self.spool.create()?, 0);
        let mut buffer = vec![0; SPOOL_PIECE];
        while at < nbytes {
            let length = buffer.len().min(to_usize(nbytes - at));
            let found = read(&mut buffer[..length], at)?;
            if found == 0 {
                break;
            }
            file.file().write_all_at(&buffer[..found], at)?;
            at += found as u64;
        }
        Ok(Content::File { file: Arc::new(file), nbytes: at })
    }

    /// Returns the number of bytes of a single file that are kept in memory at most: it must not
    /// take all the memory available to all of them.
    fn file_limit(&self) -> u64 {
        self.config.writing.dirty_limit / 4
    }

    /// Writes to a file, at its end if `offset` is `None`.
    pub(in crate::fs) fn write_live(
        &self,
        file: &Arc<LiveFile>,
        offset: Option<u64>,
        data: &[u8],
        writers: &Writers,
    ) -> Result<()> {
        // Writing nothing does not extend a file.
        if data.is_empty() {
            return Ok(());
        }
        let in_source = |file: &dyn PosixFile| match offset {
            Some(offset) => file.write_at(data, offset),
            None => file.append(data),
        };
        self.change(file, writers, in_source, |content, limit| {
            let offset = offset.unwrap_or(content.nbytes());
            let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_CHUNK_BYTES);
            let end = end.ok_or_else(|| std::io::Error::from_raw_os_error(libc::EFBIG))?;
            let nbytes = content.nbytes().max(end);
            match content {
                Content::Memory(bytes) if nbytes <= limit => {
                    let bytes = Arc::make_mut(bytes);
                    let at = to_usize(offset);
                    if bytes.len() == at {
                        bytes.extend_from_slice(data);
                        return Ok(());
                    }
                    if bytes.len() < at + data.len() {
                        bytes.resize(at + data.len(), 0);
                    }
                    bytes[at..at + data.len()].copy_from_slice(data);
                }
                _ => {
                    let (file, length) = own_file(content, &self.spool)?;
                    file.file().write_all_at(data, offset)?;
                    *length = nbytes;
                }
            }
            Ok(())
        })
    }

    /// Truncates a file, or extends it with zeros.
    pub(in crate::fs) fn truncate_live(
        &self,
        file: &Arc<LiveFile>,
        length: u64,
        writers: &Writers,
    ) -> Result<()> {
        if length > MAX_CHUNK_BYTES {
            return Err(FsError::TooLarge);
        }
        if length == 0 {
            return self.empty_live(file, writers);
        }
        let in_source = |file: &dyn PosixFile| file.set_length(length);
        self.change(file, writers, in_source, |content, limit| {
            match content {
                Content::Memory(bytes) if length <= limit => {
                    Arc::make_mut(bytes).resize(to_usize(length), 0);
                }
                _ => {
                    let (file, nbytes) = own_file(content, &self.spool)?;
                    file.file().set_len(length)?;
                    *nbytes = length;
                }
            }
            Ok(())
        })
    }

    fn empty_live(&self, file: &Arc<LiveFile>, writers: &Writers) -> Result<()> {
        loop {
            self.begin_change(file, writers)?;
            let mut state = file.state();
            if let Bytes::Moved(file) = &state.bytes {
                return Ok(file.set_length(0)?);
            }
            if state.staged {
                state.bytes = Bytes::Here(Content::Memory(Arc::default()));
                state.behind_link = None;
                written(&mut state, writers);
                return Ok(());
            }
        }
    }

    fn change(
        &self,
        file: &Arc<LiveFile>,
        writers: &Writers,
        in_source: impl FnOnce(&dyn PosixFile) -> std::io::Result<()>,
        change: impl FnOnce(&mut Content, u64) -> std::io::Result<()>,
    ) -> Result<()> {
        let limit = self.file_limit();
        self.make_room()?;
        loop {
            self.begin_change(file, writers)?;
            self.bring(file, &writers.needs(), writers.mapped)?;
            let mut state = file.state();
            if !state.staged {
                // Committed in the meantime: start over from the committed state.
                continue;
            }
            let content = match &mut state.bytes {
                Bytes::Here(content) => content,
                Bytes::Stored(_) => continue,
                Bytes::Moved(file) => return Ok(in_source(&**file)?),
            };
            change(content, limit)?;
            written(&mut state, writers);
            return Ok(());
        }
    }

    /// Commits uncommitted data once it exceeds `--dirty-limit`.
    ///
    /// # Errors
    ///
    /// Fails if the commit fails and the limit is still exceeded: writers continue only when there
    /// is room again.
    pub(in crate::fs) fn relieve(&self) -> Result<()> {
        if !self.is_over_limit() {
            return Ok(());
        }
        let complete = self.commit_complete();
        let limit = self.config.writing.dirty_limit;
        // Only if there is room for some time: the next write would need a commit again.
        if self.is_over(limit / 2) {
            // One that fails keeps no other one from being committed.
            let all = self.commit(Path::new(""));
            return if self.is_over(limit) { complete.and(all) } else { Ok(()) };
        }
        Ok(())
    }

    /// Does the same after a file has got a name, for which its bytes may have been loaded. If the
    /// commit fails, the next operation is refused: this one is done.
    pub(in crate::fs) fn relieve_after_name(&self) {
        if let Err(error) = self.relieve() {
            log::debug!("{error}");
        }
    }

    /// Does the same for operations that add no data themselves, only after a commit has failed.
    pub(in crate::fs) fn make_room(&self) -> Result<()> {
        if self.commits.is_failing() { self.relieve() } else { Ok(()) }
    }

    fn is_over_limit(&self) -> bool {
        self.is_over(self.config.writing.dirty_limit)
    }

    /// Returns whether more bytes are uncommitted.
    fn is_over(&self, limit: u64) -> bool {
        self.overlay.as_ref().is_some_and(|overlay| overlay.dirty() > limit)
    }
}

/// Returns whether access was refused, or what was permitted is no longer there.
fn is_refusal(error: &FsError) -> bool {
    [libc::EACCES, libc::EPERM, libc::ESTALE].contains(&error.errno())
}

/// Marks a file as just written, in the critical section of the change: whoever stores what is there stores
/// it for these writers.
fn written(state: &mut LiveState, writers: &Writers) {
    state.written();
    writers.open.iter().filter_map(|open| open.author()).for_each(|it| state.written_by(it));
}
