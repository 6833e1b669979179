//! Reading of open files.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::flat::FlatFile;
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::form::Form;
use crate::fs::node::ArrayView;
use crate::fs::read::openers::OPEN_ATTEMPTS;
use crate::fs::read::stored::{read_text, torn};
use crate::fs::state::decoded_file::SharedItems;
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::{Handle, OpenChunk, OpenDecoded};
use crate::fs::state::live_file::{Behind, Bytes, LiveFile, OpenFile, Place};
use crate::fs::state::opener::Opener;
use crate::fs::state::target::Target;
use crate::number::to_usize;
use crate::requester;
use crate::store::storage::{Need, Stat};
use crate::store::{Chunk, ChunkReader, Freshness};

impl Fs {
    /// Returns the result of a read of an open file if it is in memory already; `None` if it must
    /// be read into a buffer.
    pub fn read_shared(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        length: usize,
    ) -> Option<SharedItems> {
        let handle = self.handles.get(to_usize(handle))?;
        let Handle::Decoded(open) = &*handle else { return None };
        // A process has begun to write to the chunk.
        if !self.is_replaced(ino, &handle) && self.live(ino).is_some() {
            return None;
        }
        let shared = open.file.shared(offset, length)?;
        if !self.is_as_opened(ino, open).ok()? {
            return None;
        }
        if offset == 0 {
            self.note_request(ino, Some(&handle));
        }
        self.stats.operations.read.count();
        self.stats.operations.read_bytes.add(shared.range.len() as u64);
        Some(shared)
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
        let handle = handle.and_then(|handle| self.handles.get(to_usize(handle)));
        if !self.config.store.immutable {
            self.filled.fill(ino);
        }
        let read = match &handle {
            Some(handle) if self.is_replaced(ino, handle) => {
                self.read_handle(ino, handle, offset, buffer)?
            }
            Some(handle) => match (&**handle, self.live(ino)) {
                // Opened before a process began to write to it, which has written.
                (Handle::Chunk(_) | Handle::Decoded(_), Some(file))
                    if !matches!(file.state().shown(), Bytes::Stored(_)) =>
                {
                    let opener = handle.opener().map(|opener| &**opener);
                    if let Some(array) = handle.array() {
                        self.permit_written(opener, array, &file)?;
                    }
                    self.read_live(&file, opener, offset, buffer)?
                }
                // It was a chunk when it was opened, and is passed through now.
                (Handle::Chunk(_) | Handle::Decoded(_), None) if self.paths.has_adopted(ino) => {
                    self.read_inode(ino, handle.opener(), offset, buffer)?
                }
                _ => self.read_handle(ino, handle, offset, buffer)?,
            },
            None => self.read_inode(ino, None, offset, buffer)?,
        };
        if offset == 0 {
            self.note_request(ino, handle.as_deref());
        }
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
                    self.read_behind(ino, open, file, offset, buffer)
                }
            },
            Handle::Decoded(open) => match self.is_as_opened(ino, open)? {
                true => Ok(open.file.read(offset, buffer)),
                false => {
                    let chunk = (&*open.array, &*open.coords);
                    self.read_stored(chunk, open.opener.as_deref(), offset, buffer)
                }
            },
            Handle::Flat(open) => {
                self.read_whole(&open.array, open.file, open.opener.as_deref(), offset, buffer)
            }
            Handle::Text(open) => Ok(read_text(&open.text, offset, buffer)),
        }
    }

    /// Reads from an open file of the overlay. One that is a stored chunk may have been changed by
    /// another process since it was opened: what is read would be of another version than what was read
    /// before, and cut off at the length that the kernel has cached.
    fn read_behind(
        &self,
        ino: u64,
        open: &OpenFile,
        file: &LiveFile,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let opener = open.opener.as_deref();
        let bytes = self.shown_to(opener, file)?;
        // After that: it is closed before there are bytes that its opener may not read.
        if !matches!(bytes, Bytes::Stored(_)) {
            open.check_readable()?;
        }
        let read = self.read_bytes(bytes, opener, offset, buffer)?;
        let Bytes::Stored(place) = file.state().shown() else { return Ok(read) };
        let Place { array, coords } = &place;
        if self.is_as_based(open, &place)? {
            return Ok(read);
        }
        let shard = array.source.layout.shard_of(coords);
        self.identities.served_older(self.shard_identity(array, &shard), ino);
        Err(torn(array, coords, std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Returns whether a chunk holds what it did when a file of the overlay was opened on it, or what
    /// was written through this mount since.
    fn is_as_based(&self, open: &OpenFile, place: &Place) -> Result<bool> {
        let Place { array, coords } = place;
        let (source, path) = (&array.source, array.path(coords));
        let Some(base) = open.base_of(&path) else { return Ok(true) };
        let shard = source.layout.shard_of(coords);
        let chunk = self.store.chunk(source, coords, Freshness::Recent)?;
        let is_known = |chunk: Chunk| {
            let found = chunk.shard.version();
            open.was_found_in(found)
                || self.store.is_of_lineage(source, &shard, found, base.lineage())
        };
        if chunk.is_some_and(is_known) {
            return Ok(true);
        }
        // This reads all of the chunk.
        let now = self.store.base(source, coords, Freshness::Recent)?;
        let is_same = now.is_same_chunk(&base);
        if is_same {
            open.found_in(now.shard(), &base);
        }
        Ok(is_same)
    }

    /// Reads what has an inode number now: from a file that was never opened, because the kernel was
    /// configured to omit opens, or from one that is another than when it was opened.
    fn read_inode(
        &self,
        ino: u64,
        opener: Option<&Arc<Opener>>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let readable = opener.map(|opener| &**opener);
        match self.target(ino)? {
            Target::ControlDirectory => Err(FsError::IsDirectory),
            Target::Control(file) => {
                Ok(read_text(&self.control_text_at(file, offset), offset, buffer))
            }
            Target::Path(path) => {
                let opened = self.open_path(&path, &Caller::own(), opener)?;
                self.read_handle(ino, &opened, offset, buffer)
            }
            Target::Nameless(file) => Ok(file.read_at(buffer, offset)?),
            Target::Live(file) => self.read_live(&file, readable, offset, buffer),
            Target::Flat(array, file) => self.read_whole(&array, file, readable, offset, buffer),
            Target::Tree(array, coords)
                if self.config.store.immutable && array.decoded_form().is_none() =>
            {
                let reader = self.chunk_reader(&array, &coords, Freshness::Recent);
                if let Err(FsError::NotFound) = &reader
                    && let Some(chunk) = self.absent_chunk(&array)?
                {
                    return Ok(read_text(&chunk, offset, buffer));
                }
                let read = reader?.read(buffer, offset);
                read.map_err(|error| torn(&array, &coords, error))
            }
            Target::Tree(array, coords) => {
                self.read_stored((&array, &coords), readable, offset, buffer)
            }
        }
    }

    fn read_whole(
        &self,
        array: &Arc<ArrayView>,
        file: FlatFile,
        opener: Option<&Opener>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Form::Flat(form) = &array.form else { return Err(FsError::Stale) };
        let mut chunks = |place: &[u64], range| self.chunk_row(array, form, opener, place, range);
        form.read(file, offset, buffer, self.most_chunks(form), &mut chunks)
    }

    /// Reads from an open chunk. If its shard was changed in place since, the bytes just read may
    /// be anything: they are read again through the new index, unless old ones have been returned, or are in
    /// the kernel's pages, whoever has read them.
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
            open.served.fetch_or(has_bytes(&read), Ordering::Relaxed);
            return read.map_err(failed);
        }
        // The kernel's pages get the contents that the chunk had when it was opened, whatever it
        // holds by now.
        let shard = open.array.source.layout.shard_of(&open.coords);
        self.identities.served_older(self.shard_identity(&open.array, &shard), ino);
        if let Some(read) = self.read_touched(ino, open, offset, buffer)? {
            return read.map_err(failed);
        }
        for attempt in 1..=OPEN_ATTEMPTS {
            let (array, coords) = (&open.array, &open.coords);
            let read = self.attempt(attempt, array, coords, Freshness::Again, |reader| {
                self.read_moved(ino, open, &reader, offset, buffer)
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

    /// Returns whether an open decoded chunk is still what it was when it was opened; not if it was
    /// changed through this mount.
    ///
    /// # Errors
    ///
    /// `Torn` if others have changed it: what it was may not fill pages of what it is now.
    fn is_as_opened(&self, ino: u64, open: &OpenDecoded) -> Result<bool> {
        // Another file has been put in its place: this one stays what it was.
        if self.config.store.immutable || self.commits.replaced(ino) != open.replaced {
            return Ok(true);
        }
        let source = &open.array.source;
        let chunk = self.store.chunk(source, &open.coords, Freshness::Recent)?;
        // A chunk that is gone has no pages that could be mixed with these.
        let Some(now) = chunk.map(|chunk| chunk.shard.version()) else { return Ok(true) };
        if open.shard == Some(now) {
            return Ok(true);
        }
        let shard = source.layout.shard_of(&open.coords);
        let is_own = match open.lineage {
            Some(lineage) => self.store.is_of_lineage(source, &shard, now, lineage),
            None => self.overlay.is_some() && open.shard.is_none(),
        };
        if is_own {
            return Ok(false);
        }
        // Its shard may have been replaced by a copy, or changed elsewhere.
        let form = open.array.decoded_form().ok_or(FsError::Stale)?;
        let file = self.open_decoded_file(&open.array, form, &open.coords)?;
        match (&file.header, file.items()) == (&open.file.header, open.file.items()) {
            true => Ok(true),
            false => Err(torn(&open.array, &open.coords, std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Reads from an open chunk if only the ctime of its file has changed: the file was replaced or
    /// linked, its owner or permissions were changed, or it was written to and its mtime restored.
    /// So the chunk is looked up in the file once more. `None` if its bytes are not certain to be
    /// those that it was opened with.
    fn read_touched(
        &self,
        ino: u64,
        open: &OpenChunk,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<Option<std::io::Result<usize>>> {
        for _ in 0..OPEN_ATTEMPTS {
            let read = open.reader.read(buffer, offset);
            let now = open.reader.stat_now()?;
            let mut touched = requester::lock(&open.touched)?;
            let before = touched.unwrap_or(*open.reader.shard());
            if touched.is_some_and(|touched| touched.version() == now.version()) {
                open.served.fetch_or(has_bytes(&read), Ordering::Relaxed);
                return Ok(Some(read));
            }
            if !now.version().has_same_content(&before.version()) {
                return Ok(None);
            }
            let attributes = |stat: &Stat| (stat.links, stat.mode, stat.uid, stat.gid);
            let is_explained = attributes(&before) != attributes(&now);
            // Other bytes of the same length cannot be distinguished from those already returned.
            if !is_explained && self.has_shown(ino, open) {
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

    /// Returns whether who has a chunk open may have seen bytes that it held before: those that were read
    /// through this handle, or by anyone into the kernel's pages.
    fn has_shown(&self, ino: u64, open: &OpenChunk) -> bool {
        let is_from_pages = || !open.is_direct && self.filled.was_given_before(ino);
        open.served.load(Ordering::Relaxed) || is_from_pages()
    }

    /// Reads an open chunk from its current location: breaks with the result, or with `None` if the
    /// contents are not those that the chunk was opened with.
    fn read_moved(
        &self,
        ino: u64,
        open: &OpenChunk,
        reader: &ChunkReader,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<ControlFlow<Option<std::io::Result<usize>>>> {
        let version = reader.shard().version();
        self.permit_shard(
            open.opener.as_deref(),
            Need::Read,
            (&open.array, &open.coords),
            version,
        )?;
        let mut moved_to = requester::lock(&open.moved_to)?;
        // Commits of this mount move chunks without putting other files in their places.
        let source = &open.array.source;
        let shard = source.layout.shard_of(&open.coords);
        let same = self.commits.replaced(ino) == open.replaced
            && open
                .lineage
                .is_some_and(|lineage| self.store.is_of_lineage(source, &shard, version, lineage));
        let is_expected = match *moved_to {
            Some(known) => known == version && !open.served.load(Ordering::Relaxed),
            None => !self.has_shown(ino, open),
        };
        if !same && (!is_expected || reader.nbytes() != open.reader.nbytes()) {
            return Ok(ControlFlow::Break(None));
        }
        let read = reader.read(buffer, offset);
        if !reader.unchanged()? {
            return Ok(ControlFlow::Continue(()));
        }
        if same {
            open.served.fetch_or(has_bytes(&read), Ordering::Relaxed);
        } else {
            *moved_to = Some(version);
        }
        Ok(ControlFlow::Break(Some(read)))
    }
}

/// Returns whether a read has brought bytes.
fn has_bytes(read: &std::io::Result<usize>) -> bool {
    read.as_ref().is_ok_and(|read| *read > 0)
}
