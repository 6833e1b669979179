//! Opening, reading and closing of files.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::access::Caller;
use super::decoded::{DecodedFile, Pages};
use super::form::Form;
use super::live::{Bytes, LiveFile, LiveState, Place, Shown};
use super::nodes::At;
use super::open::{Behind, ChunkBase, OpenFile};
use super::{ArrayView, Attr, Fs, FsError, OpenHow, Result, Target};
use crate::format::Coords;
use crate::format::flat::FlatFile;
use crate::store::storage::{FileKind, Need, Stat, StorageFile};
use crate::store::{Chunk, ChunkReader, Freshness};

/// Number of attempts at a lookup of a chunk whose shard changes during it.
const OPEN_ATTEMPTS: usize = 4;

/// Open file.
pub(super) enum Handle {
    Chunk(Box<OpenChunk>),
    /// A file that is passed through, or a file of the overlay.
    Open(Arc<OpenFile>),
    /// A decoded chunk.
    Decoded(Box<DecodedFile>),
    /// A whole array.
    Flat(Arc<ArrayView>, FlatFile),
    /// A rewritten `zarr.json`, or the counters as they were when the file was opened.
    Text(Arc<[u8]>),
}

/// Open chunk. Reads return the bytes that it had when it was opened, or an error, but never a
/// mixture.
pub(super) struct OpenChunk {
    array: Arc<ArrayView>,
    coords: Coords,
    reader: ChunkReader,
    /// Lineage of its shard, if this mount may change it ([`crate::store::ShardStore::line_of`]).
    line: Option<u64>,
    /// `true` once bytes of `reader` were returned.
    served: AtomicBool,
    /// Shard whose bytes were returned instead, after it had been changed in place.
    moved_to: Mutex<Option<Stat>>,
    /// `Stat` of the file of `reader` when the chunk was found in it again after its ctime had
    /// changed.
    touched: Mutex<Option<Stat>>,
}

/// Result of opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Handle of the open file.
    pub handle: u64,
    /// Policy for what the kernel has cached of the file: its pages and its size.
    pub pages: Pages,
}

impl Fs {
    /// Opens a file for reading.
    pub fn open(&self, ino: u64) -> Result<Opened> {
        self.stats.operations.open.count();
        self.open_as(ino, &Caller::own())
    }

    pub(super) fn open_as(&self, ino: u64, caller: &Caller) -> Result<Opened> {
        let target = self.target(ino)?;
        let permitted = self.permit_content(&target, Need::Read, caller)?;
        let (handle, pages) = match target {
            Target::ControlDirectory => return Err(FsError::IsDirectory),
            Target::Control(file) => {
                (Handle::Text(self.control_text(file).into()), Pages::Bypassed)
            }
            Target::Live(file) => {
                return self.open_live(&file, OpenHow::default());
            }
            // No timestamp changes when one of its shards does.
            Target::Flat(array, file) => (Handle::Flat(array, file), Pages::Dropped),
            Target::Path(path) => self.open_at(ino, &path, caller)?,
            Target::Nameless(file) => (self.open_nameless(ino, file, false), Pages::Kept),
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                return Err(FsError::IsDirectory);
            }
            Target::Tree(array, coords) if array.decoded_form().is_some() => {
                self.open_decoded(ino, &array, &coords)?
            }
            Target::Tree(array, coords) => {
                let reader = match (
                    self.chunk_reader(&array, &coords, Freshness::Now),
                    array.absent_chunk()?,
                ) {
                    // The chunk may be created at any time.
                    (Err(FsError::NotFound), Some(chunk)) => {
                        return self.insert_handle(Handle::Text(chunk), Pages::Bypassed);
                    }
                    (reader, _) => reader?,
                };
                permitted.check(reader.shard())?;
                let shard = array.source.layout.locate(&coords).shard;
                let pages = self.chunk_pages(&array, &coords, reader.shard(), ino);
                let (served, moved_to) = (AtomicBool::new(false), Mutex::new(None));
                let touched = Mutex::new(None);
                let line = || self.store.line_of(&array.source, &shard, reader.shard());
                let line = if self.overlay.is_some() { line() } else { None };
                let chunk = OpenChunk { array, coords, reader, line, served, moved_to, touched };
                (Handle::Chunk(Box::new(chunk)), pages)
            }
        };
        self.insert_handle(handle, pages)
    }

    pub(super) fn insert_handle(&self, handle: Handle, pages: Pages) -> Result<Opened> {
        let handle = self.handles.insert(handle).ok_or_else(|| FsError::Io(too_many()))?;
        if self.overlay.is_some() {
            self.failures.opened(handle as u64);
        }
        Ok(Opened { handle: handle as u64, pages })
    }

    fn insert_live(
        &self,
        file: &Arc<LiveFile>,
        is_writable: bool,
        pages: Pages,
        base: Option<ChunkBase>,
    ) -> Result<Opened> {
        let open = OpenFile::new(Behind::Live(Arc::clone(file)), is_writable);
        if let Some(base) = base {
            if pages == Pages::Kept {
                // They are those of the chunk in its current state.
                file.state().open_files().iter().for_each(|other| other.set_mapped_base(&base));
            }
            open.set_fresh_base(base);
        }
        {
            // A file without open handles may have been dropped since it was found: writes to it
            // would be lost.
            let names = self.overlay()?.names();
            if !names.has(file) {
                return Err(FsError::Stale);
            }
            self.opened(file, &open)?;
        }
        let opened = self.insert_handle(Handle::Open(Arc::clone(&open)), pages);
        if opened.is_err() {
            self.closed(file, &open);
        }
        opened
    }

    /// Opens a file of the overlay, or one that is still open though its bytes are in the shard.
    pub(super) fn open_live(&self, file: &Arc<LiveFile>, how: OpenHow) -> Result<Opened> {
        // Before the page policy is chosen: no page may be older than the base.
        let base = match how {
            OpenHow { write: true, truncate: false, .. } => self.base_of(file)?,
            _ => None,
        };
        let pages = match how {
            // A write to a document may be refused: the kernel must not cache it.
            _ if self.is_refusable(file) => Pages::Bypassed,
            // Truncation leaves the kernel without pages.
            OpenHow { truncate: true, .. } => Pages::Kept,
            _ => match self.live_pages(file) {
                Pages::Bypassed if how.write => Pages::Dropped,
                pages => pages,
            },
        };
        self.insert_live(file, how.write, pages, base)
    }

    /// Returns the chunk that a file stands for; `None` if the file differs from what is stored.
    fn base_of(&self, file: &LiveFile) -> Result<Option<ChunkBase>> {
        let Bytes::Stored(place) = file.state().bytes.clone() else { return Ok(None) };
        Ok(Some((place.array.path(&place.coords), self.stage(&place)?.base)))
    }

    /// Returns the page cache policy of a file of the overlay, or of one that is still open though
    /// its bytes are in the shard.
    fn live_pages(&self, file: &LiveFile) -> Pages {
        let Place { array, coords } = match &*file.state() {
            LiveState { shown: Shown::Written, bytes: Bytes::Stored(place), .. } => place.clone(),
            LiveState { shown: Shown::Written, .. } => return Pages::Kept,
            // The pages hold what was written.
            _ => return Pages::Dropped,
        };
        match self.store.chunk(&array.source, &coords, Freshness::Now) {
            Ok(Some(chunk)) => self.chunk_pages(&array, &coords, &chunk.shard, file.ino),
            // Errors are reported by each read.
            Ok(None) | Err(_) => Pages::Dropped,
        }
    }

    /// Opens another handle of a file of the source that has no name.
    pub(super) fn open_nameless(
        &self,
        ino: u64,
        file: Arc<dyn StorageFile>,
        is_writable: bool,
    ) -> Handle {
        let open = OpenFile::new(Behind::Source(file), is_writable);
        self.paths.opened_again(ino, &open);
        Handle::Open(open)
    }

    /// Returns the open file behind a handle; `None` if it cannot change between source and
    /// overlay.
    pub(super) fn open_handle(&self, handle: u64) -> Option<Arc<OpenFile>> {
        match &*self.handles.get(usize::try_from(handle).ok()?)? {
            Handle::Open(open) => Some(Arc::clone(open)),
            _ => None,
        }
    }

    /// Returns whether reads through a handle follow changes by other processes, where an open
    /// chunk keeps its contents; and whether it is a file of the source.
    pub fn follows(&self, handle: u64) -> (bool, bool) {
        let open = self.open_handle(handle);
        (open.is_some(), open.is_some_and(|open| open.source().is_some()))
    }

    /// Returns the file of the source behind a handle; `None` if it is another kind of file.
    pub(super) fn source_handle(&self, handle: u64) -> Option<Arc<dyn StorageFile>> {
        self.open_handle(handle)?.source()
    }

    /// Returns the file of the overlay with an inode number; `None` if there is none.
    pub(super) fn live(&self, ino: u64) -> Option<Arc<LiveFile>> {
        self.overlay.as_ref()?.names().by_ino(ino)
    }

    /// Closes an open file.
    pub fn release(&self, handle: u64) {
        let open = self.open_handle(handle);
        self.failures.closed(handle);
        if let Ok(handle) = usize::try_from(handle) {
            self.handles.remove(handle);
        }
        if let Some(open) = open
            && let Some(file) = open.live()
        {
            self.closed(&file, &open);
        }
    }

    /// Reads at `offset` into `buffer`; returns the number of bytes read, which is less than the
    /// length of `buffer` only at the end of the file. Without a handle the inode is read in its
    /// current state.
    pub fn read(
        &self,
        ino: u64,
        handle: Option<u64>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        self.stats.operations.read.count();
        let handle = handle.and_then(|handle| usize::try_from(handle).ok());
        let read = match handle.and_then(|handle| self.handles.get(handle)) {
            Some(handle) => match (&*handle, self.live(ino)) {
                // Opened before a process began to write to it.
                (Handle::Chunk(_) | Handle::Decoded(_), Some(file)) => {
                    self.read_live(&file, offset, buffer)?
                }
                // It was a chunk when it was opened, and is passed through now.
                (Handle::Chunk(_) | Handle::Decoded(_), None) if self.paths.has_adopted(ino) => {
                    self.read_inode(ino, offset, buffer)?
                }
                _ => self.read_handle(ino, &handle, offset, buffer)?,
            },
            None => self.read_inode(ino, offset, buffer)?,
        };
        self.stats.operations.read_bytes.add(read as u64);
        Ok(read)
    }

    fn read_handle(
        &self,
        ino: u64,
        handle: &Handle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        match handle {
            Handle::Chunk(chunk) => self.read_chunk(ino, chunk, offset, buffer),
            Handle::Open(open) => match &*open.behind() {
                Behind::Source(file) => Ok(file.read_at(buffer, offset)?),
                Behind::Live(file) => {
                    if let Some(base) = open.take_fresh_base() {
                        let others = file.state().open_files();
                        others.iter().for_each(|other| other.set_mapped_base(&base));
                    }
                    self.read_live(file, offset, buffer)
                }
            },
            Handle::Decoded(file) => Ok(file.read(offset, buffer)),
            Handle::Flat(array, file) => self.read_whole(array, *file, offset, buffer),
            Handle::Text(text) => Ok(read_text(text, offset, buffer)),
        }
    }

    /// Reads from a file that was never opened, because the kernel was configured to omit opens.
    fn read_inode(&self, ino: u64, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.target(ino)? {
            Target::ControlDirectory => Err(FsError::IsDirectory),
            Target::Control(file) => Ok(read_text(&self.control_text(file), offset, buffer)),
            Target::Path(path) => {
                self.read_handle(ino, &self.open_path(&path, &Caller::own())?, offset, buffer)
            }
            Target::Nameless(file) => Ok(file.read_at(buffer, offset)?),
            Target::Live(file) => self.read_live(&file, offset, buffer),
            Target::Flat(array, file) => self.read_whole(&array, file, offset, buffer),
            Target::Tree(array, coords)
                if self.config.store.immutable && array.decoded_form().is_none() =>
            {
                match (self.chunk_reader(&array, &coords, Freshness::Recent), array.absent_chunk()?)
                {
                    (Err(FsError::NotFound), Some(chunk)) => Ok(read_text(&chunk, offset, buffer)),
                    (reader, _) => {
                        let read = reader?.read(buffer, offset);
                        read.map_err(|error| torn(&array, &coords, error))
                    }
                }
            }
            Target::Tree(array, coords) => self.read_stored(&array, &coords, offset, buffer),
        }
    }

    /// Reads from a chunk in its current state.
    pub(super) fn read_stored(
        &self,
        array: &ArrayView,
        coords: &[u64],
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        if let Some(form) = array.decoded_form() {
            return Ok(self.open_decoded_file(array, form, coords)?.read(offset, buffer));
        }
        let mut freshness = Freshness::Recent;
        for attempt in 1..=OPEN_ATTEMPTS {
            let read = self.attempt(attempt, array, coords, freshness, |reader| {
                let read = reader.read(buffer, offset);
                Ok(reader.unchanged()?.then_some(read))
            });
            if let (Err(FsError::NotFound), Some(chunk)) = (&read, array.absent_chunk()?) {
                // It may have been created since the lookup.
                if self.store.chunk(&array.source, coords, Freshness::Again)?.is_none() {
                    return Ok(read_text(&chunk, offset, buffer));
                }
                freshness = Freshness::Again;
                continue;
            }
            if let Some(read) = read? {
                return read.map_err(|error| torn(array, coords, error));
            }
            freshness = Freshness::Again;
        }
        Err(torn(array, coords, std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Passes a reader of a chunk to `act`. The last attempt excludes commits of this mount, which
    /// may have caused the earlier ones to fail.
    fn attempt<T>(
        &self,
        attempt: usize,
        array: &ArrayView,
        coords: &[u64],
        freshness: Freshness,
        act: impl FnOnce(ChunkReader) -> Result<T>,
    ) -> Result<T> {
        if attempt < OPEN_ATTEMPTS || self.overlay.is_none() {
            return act(self.chunk_reader(array, coords, freshness)?);
        }
        self.store.quiet_reader(&array.source, coords, act)?.ok_or(FsError::NotFound)?
    }

    fn open_decoded(
        &self,
        ino: u64,
        array: &Arc<ArrayView>,
        coords: &[u64],
    ) -> Result<(Handle, Pages)> {
        let form = array.decoded_form().ok_or(FsError::Stale)?;
        self.ahead.opened(array, coords);
        let file = self.decoded_file(array, form, coords, Freshness::Now)?;
        let file = file.ok_or(FsError::NotFound)?;
        let chunk = self.store.chunk(&array.source, coords, Freshness::Recent)?;
        let pages = |chunk: Chunk| self.chunk_pages(array, coords, &chunk.shard, ino);
        // An absent chunk may be created at any time, and its file has the same length as before.
        let is_settled = !self.shows_all(array) && self.overlay.is_none();
        let pages = match chunk.map(pages).filter(|_| is_settled) {
            Some(Pages::Kept) => Pages::Kept,
            _ => Pages::Dropped,
        };
        Ok((Handle::Decoded(Box::new(file)), pages))
    }

    fn read_whole(
        &self,
        array: &Arc<ArrayView>,
        file: FlatFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Form::Flat(form) = &array.form else { return Err(FsError::Stale) };
        self.read_flat(array, form, file, offset, buffer)
    }

    fn open_at(&self, ino: u64, path: &Path, caller: &Caller) -> Result<(Handle, Pages)> {
        if let Handle::Open(open) = self.open_path(path, caller)? {
            let pages = self.source_pages(ino, &open)?;
            return Ok((Handle::Open(open), pages));
        }
        let attr = self.path_attr(path)?;
        let changed = self.identities.changed_recently(ino, self.path_content(&attr, None));
        Ok((self.open_path(path, caller)?, Pages::kept_if(!changed)))
    }

    /// Registers a file of the source opened under an inode number, which refers to that file from
    /// now on. Returns the page cache policy.
    pub(super) fn source_pages(&self, ino: u64, open: &Arc<OpenFile>) -> Result<Pages> {
        let stat = open.source().ok_or(FsError::Stale)?.stat()?;
        self.paths.opened(ino, &stat, open)?;
        let content = self.fingerprint(&stat);
        if self.identities.changed_recently(ino, content) && !open.is_writable {
            return Ok(Pages::Bypassed);
        }
        let has_pages = self.paths.has_pages(ino, content);
        Ok(if has_pages { Pages::Kept } else { Pages::Dropped })
    }

    fn open_path(&self, path: &Path, caller: &Caller) -> Result<Handle> {
        if let At::Text(text, _) = self.nodes.at(path)? {
            return Ok(Handle::Text(text));
        }
        // The attributes are checked first: they are refused where the bytes must not be shown.
        match self.path_attr(path)?.kind {
            FileKind::File => {
                let file = self.on_behalf(caller, |storage| storage.open(path))?;
                Ok(Handle::Open(OpenFile::new(Behind::Source(file), false)))
            }
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }

    /// Looks a chunk up and opens its shard.
    pub(super) fn chunk_reader(
        &self,
        array: &ArrayView,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<ChunkReader> {
        if coords.len() < array.tree.rank() {
            return Err(FsError::IsDirectory);
        }
        let mut freshness = freshness;
        for _ in 0..OPEN_ATTEMPTS {
            let chunk: Option<Chunk> = self.store.chunk(&array.source, coords, freshness)?;
            let chunk = chunk.ok_or(FsError::NotFound)?;
            if let Some(reader) = self.store.reader(&array.source, coords, &chunk)? {
                return Ok(reader);
            }
            freshness = Freshness::Again;
        }
        let reader = self.store.quiet_reader(&array.source, coords, |reader| reader)?;
        reader.ok_or(FsError::NotFound)
    }

    /// Reads from an open chunk. If its shard was changed in place since, the bytes just read may
    /// be anything: they are read again through the new index, unless old ones have been returned.
    fn read_chunk(
        &self,
        ino: u64,
        open: &OpenChunk,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let failed = |error| torn(&open.array, &open.coords, error);
        let read = open.reader.read(buffer, offset);
        if self.config.store.immutable || open.reader.unchanged()? {
            open.served.store(true, Ordering::Relaxed);
            return read.map_err(failed);
        }
        // The kernel's pages get the contents that the chunk had when it was opened, whatever it
        // holds by now.
        let shard = open.array.source.layout.locate(&open.coords).shard;
        self.identities.served_older(self.shard_identity(&open.array, &shard), ino);
        if let Some(read) = self.read_touched(open, offset, buffer)? {
            return read.map_err(failed);
        }
        for attempt in 1..=OPEN_ATTEMPTS {
            let (array, coords) = (&open.array, &open.coords);
            let read = self.attempt(attempt, array, coords, Freshness::Again, |reader| {
                self.read_moved(open, &reader, offset, buffer)
            });
            match read {
                // Not ENOENT, which means an empty chunk: this one had bytes when it was opened.
                Err(FsError::NotFound) => break,
                Err(error) => return Err(error),
                Ok(ControlFlow::Continue(())) => (),
                Ok(ControlFlow::Break(Some(read))) => return read.map_err(failed),
                Ok(ControlFlow::Break(None)) => break,
            }
        }
        Err(failed(std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Reads from an open chunk if only the ctime of its file has changed: the file was replaced or
    /// linked, its owner or permissions were changed, or it was written to and its mtime restored.
    /// So the chunk is looked up in the file once more. `None` if its bytes are not certain to be
    /// those that it was opened with.
    fn read_touched(
        &self,
        open: &OpenChunk,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<std::io::Result<usize>>> {
        for _ in 0..OPEN_ATTEMPTS {
            let read = open.reader.read(buffer, offset);
            let now = open.reader.stat_now()?;
            let mut touched = open.touched.lock();
            let before = touched.unwrap_or(*open.reader.shard());
            if touched.is_some_and(|touched| touched.unchanged(&now)) {
                open.served.store(true, Ordering::Relaxed);
                return Ok(Some(read));
            }
            if !now.same_content(&before) {
                return Ok(None);
            }
            let attributes = |stat: &Stat| (stat.links, stat.mode, stat.uid, stat.gid);
            let is_explained = attributes(&before) != attributes(&now);
            // Other bytes of the same length cannot be distinguished from those already returned.
            if !is_explained && open.served.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let source = &open.array.source;
            match self.store.found_again(source, &open.coords, &open.reader)? {
                Some(stat) => *touched = Some(stat),
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Reads an open chunk from its current location: breaks with the result, or with `None` if the
    /// contents are not those that the chunk was opened with.
    fn read_moved(
        &self,
        open: &OpenChunk,
        reader: &ChunkReader,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<ControlFlow<Option<std::io::Result<usize>>>> {
        let mut moved_to = open.moved_to.lock();
        // Commits of this mount move chunks without changing them.
        let source = &open.array.source;
        let shard = source.layout.locate(&open.coords).shard;
        let same = open
            .line
            .is_some_and(|line| self.store.is_of_line(source, &shard, reader.shard(), line));
        let expected = moved_to.is_none_or(|stat| stat.unchanged(reader.shard()));
        let served = open.served.load(Ordering::Relaxed);
        if !same && (served || !expected || reader.nbytes() != open.reader.nbytes()) {
            return Ok(ControlFlow::Break(None));
        }
        let read = reader.read(buffer, offset);
        if !reader.unchanged()? {
            return Ok(ControlFlow::Continue(()));
        }
        if same {
            open.served.store(true, Ordering::Relaxed);
        } else {
            *moved_to = Some(*reader.shard());
        }
        Ok(ControlFlow::Break(Some(read)))
    }

    /// Returns the attributes of an open file, as it was when it was opened; `None` if its handle
    /// keeps none.
    pub(super) fn handle_attr(&self, ino: u64, handle: u64) -> Option<Attr> {
        let handle = self.handles.get(usize::try_from(handle).ok()?)?;
        match &*handle {
            Handle::Chunk(chunk) => {
                if let Some(file) = self.live(ino) {
                    return self.live_attr(&file).ok();
                }
                if self.paths.has_adopted(ino) {
                    return None;
                }
                let (shard, nbytes) = (chunk.reader.shard(), chunk.reader.nbytes());
                Some(self.chunk_entry(&chunk.array, &chunk.coords, shard, nbytes).attr)
            }
            Handle::Open(open) => match &*open.behind() {
                Behind::Live(file) => self.live_attr(file).ok(),
                Behind::Source(file) => self.open_attr(ino, &**file).ok(),
            },
            Handle::Text(_) | Handle::Decoded(_) | Handle::Flat(..) => None,
        }
    }
}

fn read_text(text: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|offset| text.get(offset..));
    let rest = rest.unwrap_or_default();
    let length = rest.len().min(buffer.len());
    buffer[..length].copy_from_slice(&rest[..length]);
    length
}

/// Maps the error of a read of a chunk: a file that ended early was truncated during the read.
fn torn(array: &ArrayView, coords: &[u64], error: std::io::Error) -> FsError {
    if error.kind() != std::io::ErrorKind::UnexpectedEof {
        return error.into();
    }
    let key = array.tree.path(coords);
    let error = FsError::Torn { array: array.source.path.clone(), key };
    log::error!("{error}");
    error
}

fn too_many() -> std::io::Error {
    std::io::Error::from_raw_os_error(libc::ENFILE)
}
