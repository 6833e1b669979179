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
//! written to after its chunk was read, and before it is pushed, and where the kernel does not
//! report opens ([`Ahead`]).
//!
//! [`Ahead`]: crate::fs::state::ahead::Ahead
//! [`Identities::may_push`]: crate::fs::state::identity::Identities::may_push

use std::io;
use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use crate::fs::error::Result;
use crate::fs::form::View;
use crate::fs::node::ArrayView;
use crate::fs::state::ahead::Job;
use crate::fs::state::fs::Fs;
use crate::fs::state::readers::WINDOW_BYTES;
use crate::fs::state::target::Target;
use crate::memory::zeroed;
use crate::store::storage::Stat;
use crate::store::{ChunkReader, Freshness};

/// Maximum length of a chunk that is pushed. Of longer ones the kernel itself reads ahead.
const MAX_NBYTES: u64 = WINDOW_BYTES / 2;

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
    /// nothing is pushed.
    pub fn start(fs: &Arc<Fs>) -> Option<Self> {
        if fs.overlay.is_some() || fs.config.store.immutable || fs.view() == View::Flat {
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

/// Contents of a chunk's file.
struct Ready {
    content: Vec<u8>,
    /// Shard of which they were made.
    shard: Stat,
    /// Reader of the chunk; `None` if it was decoded.
    reader: Option<ChunkReader>,
}

/// What becomes of a chunk that is to be pushed.
enum Pushed {
    /// It is in the page cache; holds its length.
    Done(u64),
    /// It is left to the reader's own request.
    Left,
    /// Neither it nor those behind it can be pushed.
    Refused,
}

impl Fs {
    /// Called when the beginning of a file is requested: finds out whether its reader takes chunks
    /// in order, and queues the next ones.
    pub(in crate::fs) fn note_request(&self, ino: u64) {
        if !self.ahead.is_on() {
            return;
        }
        let Ok(Target::Tree(array, coords)) = self.target(ino) else { return };
        if coords.len() < array.tree.rank() {
            return;
        }
        let are_absent =
            |numbers: Range<u64>| numbers.into_iter().all(|it| self.is_absent(&array, it));
        let used = self.ahead.requested(&array, array.tree.number(&coords), are_absent);
        self.stats.ahead.used_bytes.add(used);
    }

    /// Returns whether a chunk is known not to exist.
    fn is_absent(&self, array: &ArrayView, number: u64) -> bool {
        let Some(coords) = array.tree.coords(number) else { return false };
        !self.shows_all(array)
            && matches!(self.store.chunk(&array.source, &coords, Freshness::Recent), Ok(None))
    }

    fn push_window(&self, job: &Job, cache: &dyn PageCache) {
        let (array, mut marker) = (&job.array, Some(job.window.marker));
        let chunks = |number: u64| Some((number, array.tree.coords(number)?));
        if array.decoded_form().is_some() {
            for (_, coords) in job.window.numbers.clone().filter_map(chunks) {
                self.prefetch.announce(array, coords);
            }
        }
        for (number, coords) in job.window.numbers.clone().filter_map(chunks) {
            if !self.ahead.readers().is_ahead(array.source.id, number) {
                continue;
            }
            let is_marker = marker.is_some_and(|marker| number >= marker);
            if is_marker && !self.is_absent(array, number) {
                marker = None;
                continue;
            }
            match self.push(array, &coords, number, cache) {
                Pushed::Done(nbytes) => {
                    self.stats.ahead.chunks.count();
                    self.stats.ahead.bytes.add(nbytes);
                    self.ahead.readers().pushed(array.source.id, number, nbytes);
                }
                Pushed::Left => (),
                Pushed::Refused => {
                    self.ahead.readers().refused(array.source.id, number);
                    return;
                }
            }
        }
    }

    fn push(
        &self,
        array: &Arc<ArrayView>,
        coords: &[u64],
        number: u64,
        cache: &dyn PageCache,
    ) -> Pushed {
        let ino = array.inodes.ino(number);
        let Some(_push) = self.ahead.begin(ino) else { return Pushed::Left };
        let ready = match self.ready_to_push(array, coords, ino) {
            Ok(Some(ready)) => ready,
            Ok(None) => return Pushed::Left,
            // Its reader meets the error.
            Err(_) => return Pushed::Refused,
        };
        let nbytes = ready.content.len() as u64;
        if nbytes > MAX_NBYTES {
            return Pushed::Refused;
        }
        let is_known = cache.push(ino, &ready.content);
        if !self.is_unchanged(array, coords, &ready) {
            // There may be some of what it holds now beside them.
            cache.drop_pages(ino);
        }
        match is_known {
            Ok(true) => Pushed::Done(nbytes),
            Ok(false) => Pushed::Refused,
            Err(error) => {
                log::debug!("{}: not pushed: {error}", array.tree.path(coords));
                Pushed::Refused
            }
        }
    }

    /// Returns the contents of a chunk that may be pushed; `None` if it does not exist, or must be
    /// requested.
    fn ready_to_push(
        &self,
        array: &Arc<ArrayView>,
        coords: &[u64],
        ino: u64,
    ) -> Result<Option<Ready>> {
        let chunk = self.store.chunk(&array.source, coords, Freshness::Now)?;
        let Some(chunk) = chunk.filter(|chunk| self.may_push(array, coords, &chunk.shard, ino))
        else {
            return Ok(None);
        };
        let ready = match array.decoded_form() {
            // Its pages are dropped by each open.
            Some(_) if self.shows_all(array) => return Ok(None),
            Some(form) => {
                let file = self.decoded_file(array, form, coords, Freshness::Recent)?;
                let content = file.map(|file| file.to_vec());
                content.map(|content| Ready { content, shard: chunk.shard, reader: None })
            }
            None => {
                let reader = self.store.reader(&array.source, coords, &chunk)?;
                reader.map(stored_content).transpose()?
            }
        };
        Ok(ready.filter(|ready| self.is_unchanged(array, coords, ready)))
    }

    /// Returns whether the shard of a chunk is still as it was when the chunk was read.
    fn is_unchanged(&self, array: &ArrayView, coords: &[u64], ready: &Ready) -> bool {
        if let Some(reader) = &ready.reader {
            return reader.unchanged().unwrap_or(false);
        }
        let now = self.store.chunk(&array.source, coords, Freshness::Again);
        now.is_ok_and(|now| now.is_some_and(|now| now.shard.version() == ready.shard.version()))
    }
}

/// Reads a chunk as it is stored, or more of it than is ever pushed.
fn stored_content(reader: ChunkReader) -> Result<Ready> {
    let nbytes = reader.nbytes().min(MAX_NBYTES + 1);
    let mut content = zeroed(nbytes).map_err(io::Error::from)?;
    let read = reader.read(&mut content, 0)?;
    content.truncate(read);
    Ok(Ready { content, shard: *reader.shard(), reader: Some(reader) })
}
