//! Writes to files of the overlay: creating, opening, changing and closing them.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::access::Owner;
use super::decoded::Encoded;
use super::live::{
    Bytes, Change, LiveFile, LiveState, Name, Names, Overlay, Place, Shown, Stage, What,
};
use super::open::OpenFile;
use super::unsaved::chunk_path;
use super::{Attr, Entry, Fs, FsError, Result};
use crate::memory::zeroed;
use crate::store::Freshness;
use crate::store::content::Content;
use crate::store::spool::{Spool, SpoolFile};
use crate::store::storage::{FileKind, LastRead, Stat, StorageFile, Timestamp};
use crate::text::shown;

/// Maximum length of a chunk file in bytes.
const MAX_CHUNK_BYTES: u64 = 1 << 40;
/// Number of bytes to copy at once from memory to a file.
const SPOOL_PIECE: usize = 1 << 20;
/// Permissions of a chunk file, whatever the writer asked for: those of its shard apply.
const CHUNK_MODE: u32 = 0o644;

/// Origin of written data.
#[derive(Default)]
pub(super) struct Writers {
    /// Open files that may have written it.
    pub open: Vec<Arc<OpenFile>>,
    /// `true` if it comes from the kernel's pages.
    pub mapped: bool,
}

/// Changes to a file's attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<Timestamp>,
    /// Time of the last change of the contents.
    pub mtime: Option<Timestamp>,
    /// `true` if both times are set to now, for which permission to write to the file is enough.
    pub is_now: bool,
}

/// Returns the current time as a file timestamp.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}

impl Fs {
    /// Returns the overlay.
    ///
    /// # Errors
    ///
    /// `ReadOnly` if the mount is not writable.
    pub(super) fn overlay(&self) -> Result<&Overlay> {
        self.overlay.as_ref().ok_or(FsError::ReadOnly)
    }

    /// Creates a file without a name and without contents.
    pub(super) fn new_file(
        &self,
        ino: Option<u64>,
        mode: u32,
        owner: Owner,
    ) -> Result<Arc<LiveFile>> {
        let state = LiveState {
            bytes: Bytes::Here(Content::Memory(Arc::default())),
            shown: Shown::Written,
            writes: 0,
            mode: mode & 0o7777,
            uid: owner.uid,
            gid: owner.gid,
            mtime: now(),
            names: Vec::new(),
            openers: Vec::new(),
            is_copied: false,
            dirty: true,
            staged: false,
            copy: None,
        };
        Ok(self.overlay()?.file(ino.filter(|ino| !self.paths.has_adopted(*ino)), state))
    }

    /// Returns the overlay's file of an existing chunk, creating it if needed.
    pub(super) fn chunk_file(&self, path: &Path, place: &Place) -> Result<Arc<LiveFile>> {
        match self.overlay()?.names().get(path).map(|name| name.what.clone()) {
            Some(What::File(file)) => return Ok(file),
            Some(What::Removed | What::Directory) => return Err(FsError::NotFound),
            None => (),
        }
        check_writable(place)?;
        let entry = self.tree_entry(&place.array, &place.coords, Freshness::Now)?;
        let attr = entry.ok_or(FsError::NotFound)?.attr;
        let state = LiveState {
            bytes: Bytes::Stored(place.clone()),
            shown: Shown::Written,
            writes: 0,
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            mtime: attr.mtime,
            names: Vec::new(),
            openers: Vec::new(),
            is_copied: false,
            dirty: false,
            staged: false,
            copy: None,
        };
        let ino = Some(attr.ino).filter(|ino| !self.paths.has_adopted(*ino));
        let file = self.overlay()?.file(ino, state);
        let mut names = self.overlay()?.names();
        // Another thread may have created it first.
        if let Some(What::File(other)) = names.get(path).map(|name| name.what.clone()) {
            names.drop_unused(&file);
            return Ok(other);
        }
        names.put(path, What::File(Arc::clone(&file)), Some(place.clone()));
        // The kernel may have forgotten the number in the meantime.
        names.know(&file);
        Ok(file)
    }

    /// Records the state of a chunk before it is changed. Only undamaged shards can be written to.
    pub(super) fn stage(&self, place: &Place) -> Result<Stage> {
        check_writable(place)?;
        let mut freshness = Freshness::Now;
        for other in self.others() {
            // Changes made in another view of this mount are committed first.
            other.commit(&place.array.source.path)?;
            freshness = Freshness::Again;
        }
        let base = self.store.base(&place.array.source, &place.coords, freshness)?;
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
        let shard = place.array.source.layout.locate(&place.coords).shard;
        self.identities.served_older(self.shard_identity(&place.array, &shard), file.ino);
        Err(FsError::Stale)
    }

    fn stage_names(&self, file: &Arc<LiveFile>) -> Result<()> {
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
            if let Some(name) = self.overlay()?.names().get_mut(&path) {
                name.stage.get_or_insert(stage);
            }
        }
    }

    /// Loads the bytes of a file from its shard into the overlay.
    pub(super) fn bring_here(&self, file: &LiveFile) -> Result<()> {
        let mut freshness = Freshness::Now;
        loop {
            let (place, writes) = match &*file.state() {
                LiveState { bytes: Bytes::Stored(place), writes, .. } => (place.clone(), *writes),
                _ => return Ok(()),
            };
            let Some(bytes) = self.stored_bytes(&place, freshness)? else {
                freshness = Freshness::Again;
                continue;
            };
            let mut state = file.state();
            match state.bytes {
                // Written and committed in the meantime: the contents are different now.
                Bytes::Stored(_) if state.writes != writes => freshness = Freshness::Again,
                Bytes::Stored(_) => {
                    state.bytes = Bytes::Here(Content::Memory(Arc::new(bytes)));
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }

    /// Returns the bytes of a chunk's file as they are stored; `None` if they were changed during
    /// the read.
    fn stored_bytes(&self, place: &Place, freshness: Freshness) -> Result<Option<Vec<u8>>> {
        let Place { array, coords } = place;
        if let Some(form) = array.decoded_form() {
            return Ok(Some(self.open_decoded_file(array, form, coords)?.to_vec()));
        }
        let reader = self.chunk_reader(array, coords, freshness);
        if let (Err(FsError::NotFound), Some(chunk)) = (&reader, array.absent_chunk()?) {
            return Ok(Some(chunk.to_vec()));
        }
        let reader = reader?;
        if reader.nbytes() > MAX_CHUNK_BYTES {
            return Err(FsError::TooLarge);
        }
        let mut bytes = zeroed(reader.nbytes()).map_err(std::io::Error::from)?;
        let read = reader.read(&mut bytes, 0)?;
        Ok((read == bytes.len() && reader.unchanged()?).then_some(bytes))
    }

    /// Writes to a file, at its end if `offset` is `None`.
    pub(super) fn write_live(
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
        let in_source = |file: &dyn StorageFile| match offset {
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
                    // Below the limit for files in memory: it fits.
                    let at = usize::try_from(offset).unwrap_or(usize::MAX);
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
    pub(super) fn truncate_live(
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
        let in_source = |file: &dyn StorageFile| file.set_length(length);
        self.change(file, writers, in_source, |content, limit| {
            match content {
                Content::Memory(bytes) if length <= limit => {
                    Arc::make_mut(bytes).resize(usize::try_from(length).unwrap_or(0), 0);
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
                state.written();
                return Ok(());
            }
        }
    }

    fn change(
        &self,
        file: &Arc<LiveFile>,
        writers: &Writers,
        in_source: impl FnOnce(&dyn StorageFile) -> std::io::Result<()>,
        change: impl FnOnce(&mut Content, u64) -> std::io::Result<()>,
    ) -> Result<()> {
        // A single file must not take all the memory available to all of them.
        let limit = self.config.writing.dirty_limit / 4;
        self.make_room()?;
        loop {
            self.begin_change(file, writers)?;
            self.bring_here(file)?;
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
            state.written();
            return Ok(());
        }
    }

    /// Stages the contents of a file for commit, under all names that are chunks.
    pub(super) fn publish(&self, file: &Arc<LiveFile>) -> Result<()> {
        if !file.state().dirty {
            return Ok(());
        }
        self.stage_names(file)?;
        let turn = file.turn();
        let (paths, bytes, writes) = {
            let state = file.state();
            (state.names.clone(), state.bytes.clone(), state.writes)
        };
        let Bytes::Here(content) = bytes else {
            file.state().dirty = false;
            return Ok(());
        };
        self.name_spool_file_of(&paths, &content)?;
        let mut changes = Vec::new();
        for path in &paths {
            changes.extend(self.encoded_as(path, file, &content)?.map(|encoded| (path, encoded)));
        }
        {
            // In one critical section: a commit of older contents must not mark these as committed.
            let mut names = self.overlay()?.names();
            let mut state = file.state();
            for (path, Encoded { chunk, shown }) in changes {
                let number = names.next_number();
                if let Some(name) = names.get_mut(path)
                    && let Some(stage) = &mut name.stage
                {
                    stage.change = Some(Change { content: chunk, number });
                    // The error of the previous contents, which will not be retried.
                    name.error = None;
                }
                state.shown = shown;
            }
            state.dirty = state.writes != writes;
        }
        drop(turn);
        if let Some(path) = paths.iter().find(|path| self.is_document(path)) {
            self.publish_document(path, file, &content)?;
        }
        self.relieve()
    }

    /// Encodes the contents of a file for the chunk with that name; `None` if the name is not that
    /// of a chunk.
    fn encoded_as(
        &self,
        path: &Path,
        file: &LiveFile,
        content: &Content,
    ) -> Result<Option<Encoded>> {
        let place = match self.overlay()?.names().get(path) {
            Some(Name { place: Some(place), stage: Some(_), .. }) => place.clone(),
            _ => return Ok(None),
        };
        // A refusal that was logged before, with the same contents since, is not logged again.
        let is_told = matches!(file.state().shown, Shown::Stored(_));
        let encoded = self.encoded(&place, content).inspect_err(|error| {
            // A shell closes a file once before it writes to it.
            let level = match is_told || content.nbytes() == 0 {
                true => log::Level::Debug,
                false => log::Level::Warn,
            };
            log::log!(level, "{error}");
        });
        encoded.map(Some).inspect_err(|_| file.state().shown = Shown::Stored(place))
    }

    /// Discards what was written to a chunk file and cannot become a chunk: the stored contents are
    /// kept.
    fn revert(&self, file: &Arc<LiveFile>) {
        let names = file.state().names.clone();
        for path in names {
            // Contents that were closed before are not affected.
            let committed = self.commit(&path);
            let Ok(overlay) = self.overlay() else { return };
            let mut names = overlay.names();
            let Some(name) = names.get_mut(&path) else { continue };
            let Some(place) = name.place.clone() else { continue };
            if place.array.decoded_form().is_none() {
                continue;
            }
            let change = name.stage.take().and_then(|stage| stage.change);
            file.state().staged = false;
            if let (Some(change), Err(FsError::Commit(error))) = (change, committed) {
                self.save(&chunk_path(&place), Some(&**file), change.content.as_ref(), &error);
                self.failures.record(&path, &error);
                names.break_promises(&path, &error);
            }
            let mut state = file.state();
            if matches!(&state.bytes, Bytes::Here(content) if content.nbytes() == 0) {
                log::warn!("{}: it is not written: it has no bytes", shown(&path));
            }
            (state.bytes, state.shown, state.dirty) = (Bytes::Stored(place), Shown::Written, false);
        }
    }

    /// Commits uncommitted data once it exceeds `--dirty-limit`.
    ///
    /// # Errors
    ///
    /// Fails if the commit fails and the limit is still exceeded: writers continue only when there
    /// is room again.
    pub(super) fn relieve(&self) -> Result<()> {
        if !self.is_over_limit() {
            return Ok(());
        }
        let committed = self.commit(Path::new(""));
        if self.is_over_limit() { committed } else { Ok(()) }
    }

    /// Does the same for operations that add no data themselves, only after a commit has failed.
    pub(super) fn make_room(&self) -> Result<()> {
        if self.commits.is_failing() { self.relieve() } else { Ok(()) }
    }

    fn is_over_limit(&self) -> bool {
        let limit = self.config.writing.dirty_limit;
        self.overlay.as_ref().is_some_and(|overlay| overlay.dirty() > limit)
    }

    /// Returns the attributes of a file of the overlay.
    pub(super) fn live_attr(&self, file: &LiveFile) -> Result<Attr> {
        let (bytes, mode, uid, gid, mtime, links) = {
            let state = file.state();
            let links = u32::try_from(state.names.len()).unwrap_or(u32::MAX);
            (state.shown(), state.mode, state.uid, state.gid, state.mtime, links)
        };
        let size = match bytes {
            Bytes::Here(content) => content.nbytes(),
            Bytes::Moved(stored) => return self.open_attr(file.ino, &*stored),
            Bytes::Stored(Place { array, coords }) => {
                let mut entry = self.tree_entry(&array, &coords, Freshness::Recent)?;
                if entry.is_none() {
                    entry = self.tree_entry(&array, &coords, Freshness::Again)?;
                }
                let attr = entry.ok_or(FsError::NotFound)?.attr;
                return Ok(Attr { ino: file.ino, links, ..attr });
            }
        };
        let stat = Stat {
            dev: 0,
            ino: file.ino,
            kind: FileKind::File,
            mode,
            uid,
            gid,
            links: 1,
            size,
            mtime,
            ctime: mtime,
            atime: LastRead(mtime),
        };
        Ok(Attr { links, ..self.config.ownership.attr(file.ino, &stat) })
    }

    /// Returns whether what is written to a file may turn out to be refused.
    pub(super) fn is_refusable(&self, file: &LiveFile) -> bool {
        self.view().is_decoded() || file.state().names.iter().any(|name| self.is_document(name))
    }

    /// Returns the entry of a file of the overlay, and counts a lookup for the reply to the kernel.
    pub(super) fn live_entry(&self, file: &LiveFile) -> Result<Entry> {
        let attr = self.live_attr(file)?;
        self.overlay()?.names().told(file.ino);
        let lasting = !self.is_refusable(file);
        Ok(Entry { attr, generation: 0, lasting })
    }

    /// Reads from a file of the overlay.
    pub(super) fn read_live(
        &self,
        file: &LiveFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let bytes = file.state().shown();
        match bytes {
            Bytes::Here(content) => Ok(content.read_at(buffer, offset)?),
            Bytes::Moved(file) => Ok(file.read_at(buffer, offset)?),
            Bytes::Stored(place) => self.read_stored(&place.array, &place.coords, offset, buffer),
        }
    }

    /// Changes the attributes of a file of the overlay.
    pub(super) fn set_live_attr(
        &self,
        file: &Arc<LiveFile>,
        set: &SetAttr,
        writers: &Writers,
    ) -> Result<()> {
        if let Some(length) = set.size {
            self.truncate_live(file, length, writers)?;
            if !self.overlay()?.names().has(file) {
                return Err(FsError::Stale);
            }
            // Truncated by path, not through an open file: no close will stage it.
            if !file.state().is_open() {
                self.publish(file).inspect_err(|_| self.revert(file))?;
            }
        }
        if let (Bytes::Stored(place), Some(mtime)) = (file.state().bytes.clone(), set.mtime) {
            let chunk = self.store.chunk(&place.array.source, &place.coords, Freshness::Recent)?;
            match chunk {
                Some(chunk) => self.set_chunk_date(&place, &chunk.shard, mtime),
                None if self.filler(&place.array)?.is_some() => (),
                None => return Err(FsError::NotFound),
            }
        }
        let mut state = file.state();
        let is_chunk = state.names.iter().any(|name| !self.is_document(name))
            && matches!(state.bytes, Bytes::Stored(_));
        if let Some(mode) = set.mode.filter(|_| !is_chunk) {
            state.mode = mode & 0o7777;
        }
        if let Some(mtime) = set.mtime {
            state.mtime = mtime;
        }
        // The owner is that of the shard.
        let other = |wanted: Option<u32>, has: u32| wanted.is_some_and(|wanted| wanted != has);
        if other(set.uid, state.uid) || other(set.gid, state.gid) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }

    /// Adds an open handle to a file.
    pub(super) fn opened(&self, file: &Arc<LiveFile>, open: &Arc<OpenFile>) -> Result<()> {
        let mut state = file.state();
        // Opened by a name that is passed through by now.
        if let Bytes::Moved(_) = state.bytes {
            return Err(FsError::Stale);
        }
        state.openers.push(Arc::downgrade(open));
        Ok(())
    }

    /// Removes an open handle from a file, and reverts or drops the file if it was the last one.
    pub(super) fn closed(&self, file: &Arc<LiveFile>, open: &Arc<OpenFile>) {
        // Stages what was written without a flush, for instance through a mapping.
        if let Err(error) = self.publish(file) {
            log::debug!("{error}");
        }
        let last = {
            let mut state = file.state();
            state.openers.retain(|other| other.as_ptr() != Arc::as_ptr(open));
            !state.is_open()
        };
        if last && file.state().dirty && !self.publish_empty(file) {
            self.revert(file);
        }
        let Some(overlay) = &self.overlay else { return };
        let mut names = overlay.names();
        if last {
            // Documents are in the source now, or were refused.
            let documents = file.state().names.clone();
            for name in documents.iter().filter(|name| self.is_document(name)) {
                file.state().dirty = false;
                names.take(name);
                // The kernel may have cached what was refused.
                self.identities.disturb(file.ino);
            }
        }
        names.drop_unused(file);
    }
}

/// Checks that a chunk can be written; chunks of shards that are compressed as a whole are
/// read-only.
pub(super) fn check_writable(place: &Place) -> Result<()> {
    let source = &place.array.source;
    // Other formats have chunks of different lengths, which are shown padded to the same length.
    let is_made_equal = place.array.decoded_form().is_some() && !source.format.has_keys();
    match source.is_writable() && !is_made_equal {
        true => Ok(()),
        false => Err(FsError::ReadOnly),
    }
}

/// Moves contents into a spool file that is not shared, copying the bytes if needed.
fn own_file<'a>(
    content: &'a mut Content,
    spool: &Spool,
) -> std::io::Result<(&'a SpoolFile, &'a mut u64)> {
    let is_own = matches!(content, Content::File { file, .. } if Arc::strong_count(file) == 1);
    if !is_own {
        let file = spool.create()?;
        let (mut buffer, mut at, nbytes) = (vec![0; SPOOL_PIECE], 0, content.nbytes());
        while at < nbytes {
            let read = content.read_at(&mut buffer, at)?;
            file.file().write_all_at(&buffer[..read], at)?;
            at += read as u64;
        }
        *content = Content::File { file: Arc::new(file), nbytes };
    }
    match content {
        Content::File { file, nbytes } => Ok((file, nbytes)),
        // Unreachable: moved to a file above.
        Content::Memory(_) => Err(std::io::ErrorKind::Other.into()),
    }
}

/// Returns the permissions of a new chunk file.
pub(super) fn chunk_mode(mode: u32) -> u32 {
    mode & 0o666 | CHUNK_MODE & 0o600
}
