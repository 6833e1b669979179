//! Pushing of chunks into the kernel's page cache before they are requested.
//!
//! ```text
//! request for a chunk ---> Readers: is it in order? ---> window of chunks ---> queue
//! thread of the mount <--- queue;  for each chunk: read, is its shard unchanged? ---> kernel;
//!                                  is it still unchanged? if not, the pages are dropped again
//! ```
//!
//! What is pushed counts as the answer to a read. A chunk is pushed only while every page that the
//! kernel may have of it holds the same contents ([`Identities::may_push`]), so an open file is
//! never a mixture of two versions. Nothing is pushed in writable mounts, since a page could be
//! written to after its chunk was read, and before it is pushed. Where the kernel does not report
//! opens, a push may wait for a read ([`Ahead`]).
//!
//! [`Ahead`]: crate::fs::state::push_queue::Ahead
//! [`Identities::may_push`]: crate::fs::state::page_policy::Identities::may_push

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use crate::fs::error::Result;
use crate::fs::form::View;
use crate::fs::node::ArrayView;
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::Handle;
use crate::fs::state::push_queue::Job;
use crate::fs::state::readahead::{WINDOW_BYTES, Window};
use crate::fs::state::target::Target;
use crate::memory::zeroed;
use crate::number::to_usize;
use crate::store::{Chunk, ChunkReader, Freshness};
use crate::view::inode::InodeRange;

/// Maximum length of a chunk that is pushed as it is stored. What pushing spares is a request for
/// each chunk, and it costs another copy: measured, it takes up to half of the time from chunks of
/// 32 and 64 KiB, and makes reading chunks of 128 KiB and more slower.
const MAX_NBYTES: u64 = 96 << 10;

/// Maximum length of a decoded chunk that is pushed. Decoding costs more than the request that is
/// spared, and takes the CPU from it: nothing is gained from 64 KiB on.
const MAX_DECODED_NBYTES: u64 = 48 << 10;

/// The kernel's page cache.
pub trait PageCache {
    /// Puts the contents of a file there; returns whether the kernel knows the inode.
    fn push(&self, ino: u64, content: &[u8]) -> io::Result<bool>;

    /// Drops what is there of a file.
    fn drop_pages(&self, ino: u64);
}

/// Chunks of a view that are to be pushed.
pub struct PushAhead {
    fs: Weak<Fs>,
    jobs: Receiver<Job>,
}

impl PushAhead {
    /// Starts to look for readers of a view that take chunks in order. `None` for a view in which
    /// nothing is pushed. A push may wait for a read only if `may_wait`.
    pub fn start(fs: &Arc<Fs>, may_wait: bool) -> Option<Self> {
        let waits = fs.config.store.immutable && !may_wait;
        if fs.overlay.is_some() || waits || fs.view() == View::Flat {
            return None;
        }
        Some(Self { fs: Arc::downgrade(fs), jobs: fs.ahead.start()? })
    }

    /// Pushes chunks until the mount ends. No thread that answers requests may run this: the kernel
    /// holds pages locked while it waits for an answer.
    pub fn run(self, cache: &dyn PageCache) {
        while let Ok(job) = self.jobs.recv() {
            let Some(fs) = self.fs.upgrade() else { return };
            fs.push_window(&job, cache);
        }
    }
}

/// What becomes of a chunk that is to be pushed.
enum Pushed {
    /// It is in the page cache.
    Done,
    /// It is left to the reader's own request.
    Left,
    /// Neither it nor those behind it can be pushed.
    Refused,
}

impl Fs {
    /// Called when the beginning of a file is requested: finds out whether its reader takes chunks
    /// in order, and queues the next ones. Of an open chunk nothing is looked up: its reader waits.
    pub(in crate::fs) fn note_request(&self, ino: u64, handle: Option<&Handle>) {
        if !self.ahead.is_on() || InodeRange::split(ino).is_none() {
            return;
        }
        match handle {
            Some(Handle::Chunk(open)) => self.note_reader(&open.array, &open.coords),
            Some(Handle::Decoded(open)) => self.note_reader(&open.array, &open.coords),
            Some(_) => (),
            None => {
                if let Ok(Target::Tree(array, coords)) = self.target(ino) {
                    self.note_reader(&array, &coords);
                }
            }
        }
    }

    fn note_reader(&self, array: &Arc<ArrayView>, coords: &[u64]) {
        if coords.len() == array.tree.rank() {
            let used = self.ahead.requested(array, array.tree.number(coords));
            self.stats.ahead.used_bytes.add(used);
        }
    }

    fn push_window(&self, job: &Job, cache: &dyn PageCache) {
        let Job { array, window } = job;
        let (id, mut marker, mut room) = (array.source.id, Some(window.marker), WINDOW_BYTES);
        // Shard that is known to be no other user's.
        let mut inside = None;
        let chunks = |number: u64| Some((number, array.tree.coords(number)?));
        self.decode_ahead(array, window);
        for (number, coords) in window.numbers.clone().filter_map(chunks) {
            if !self.ahead.readers().is_ahead(id, number) {
                continue;
            }
            // Whether its shard has changed is found out once it is pushed.
            let chunk = match self.store.chunk(&array.source, &coords, Freshness::Recent) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => continue,
                // Its reader meets the error.
                Err(_) => return self.ahead.readers().refused(id, number),
            };
            let nbytes = array.file_nbytes(&coords, chunk.nbytes());
            if nbytes > max_nbytes(array) {
                return self.ahead.readers().refused(id, number);
            }
            if nbytes > room {
                return self.ahead.readers().cut(id, number);
            }
            if marker.is_some_and(|marker| number >= marker) {
                marker = None;
                continue;
            }
            let version = chunk.shard.version();
            if inside != Some(version) {
                if !self.is_in_array((array, &coords), version).unwrap_or(false) {
                    continue;
                }
                inside = Some(version);
            }
            match self.push(array, &coords, &chunk, cache) {
                Pushed::Done => {
                    room -= nbytes;
                    self.stats.ahead.chunks.count();
                    self.stats.ahead.bytes.add(nbytes);
                    self.ahead.readers().pushed(id, number, nbytes);
                }
                Pushed::Left => (),
                Pushed::Refused => return self.ahead.readers().refused(id, number),
            }
        }
    }

    /// Lets other threads decode the chunks of a window, unless they are too many to be kept.
    fn decode_ahead(&self, array: &Arc<ArrayView>, window: &Window) {
        let Some(form) = array.decoded_form() else { return };
        let nbytes = form.pipeline().nbytes() as u64;
        let budget = (self.config.store.decoded_size / 2) as u64;
        if nbytes > MAX_DECODED_NBYTES {
            return;
        }
        let chunks = window.numbers.clone().filter_map(|number| array.tree.coords(number));
        for coords in chunks.take(to_usize(budget.min(WINDOW_BYTES) / nbytes.max(1))) {
            self.prefetch.announce(array, coords);
        }
    }

    fn push(
        &self,
        array: &Arc<ArrayView>,
        coords: &[u64],
        chunk: &Chunk,
        cache: &dyn PageCache,
    ) -> Pushed {
        let ino = array.inodes.ino(array.tree.number(coords));
        if !self.may_push(array, coords, &chunk.shard, ino) {
            return Pushed::Left;
        }
        // Before its opens wait for the push: this may take as long as a network does.
        let content = match self.content_to_push(array, coords, chunk) {
            Ok(Some(content)) => content,
            Ok(None) => return Pushed::Left,
            Err(_) => return Pushed::Refused,
        };
        let Some(_push) = self.ahead.begin(ino) else { return Pushed::Left };
        // Who has had it open meanwhile may have filled its pages.
        if !self.may_push(array, coords, &chunk.shard, ino) {
            return Pushed::Left;
        }
        self.filled.fill(ino);
        let is_known = cache.push(ino, &content);
        if !self.is_unchanged(array, coords, chunk) {
            // There may be some of what it holds now beside them.
            cache.drop_pages(ino);
        }
        match is_known {
            Ok(true) => Pushed::Done,
            Ok(false) => Pushed::Refused,
            Err(error) => {
                log::debug!("{}: not pushed: {error}", array.tree.path(coords));
                Pushed::Refused
            }
        }
    }

    /// Returns the contents of a chunk's file; `None` if they must be requested, or the file that they are
    /// from has changed since the chunk was found.
    fn content_to_push(
        &self,
        array: &Arc<ArrayView>,
        coords: &[u64],
        chunk: &Chunk,
    ) -> Result<Option<Vec<u8>>> {
        let content = match array.decoded_form() {
            // Its pages are dropped by each open.
            Some(_) if self.shows_all(array) => None,
            Some(form) => {
                let file = self.decoded_file(array, form, coords, Freshness::Recent)?;
                let content = file.map(|file| file.to_vec());
                content.filter(|_| self.is_unchanged(array, coords, chunk))
            }
            None => match self.store.reader(&array.source, coords, chunk)? {
                Some(reader) => Some(read_all(&reader)?).filter(|_| is_as_opened(&reader)),
                None => None,
            },
        };
        Ok(content)
    }

    /// Returns whether the shard of a chunk is still as it was when the chunk was found.
    fn is_unchanged(&self, array: &ArrayView, coords: &[u64], chunk: &Chunk) -> bool {
        let now = self.store.chunk(&array.source, coords, Freshness::Again);
        now.is_ok_and(|now| now.is_some_and(|now| now.shard.version() == chunk.shard.version()))
    }
}

/// Returns the maximum length of a chunk's file that is pushed.
fn max_nbytes(array: &ArrayView) -> u64 {
    if array.decoded_form().is_some() { MAX_DECODED_NBYTES } else { MAX_NBYTES }
}

/// Returns whether the file that a chunk was read from is still as it was when the chunk was found: what was
/// read is no mixture.
fn is_as_opened(reader: &ChunkReader) -> bool {
    reader.unchanged().unwrap_or(false)
}

/// Reads a chunk as it is stored.
fn read_all(reader: &ChunkReader) -> Result<Vec<u8>> {
    let mut content = zeroed(reader.nbytes()).map_err(io::Error::from)?;
    let read = reader.read(&mut content, 0)?;
    content.truncate(read);
    Ok(content)
}
