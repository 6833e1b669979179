//! Prefetch of decoded chunks: threads that decode what a reader is likely to need next, or needs
//! at once.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::bounded::bounded;
use crate::cpus::Cpus;
use crate::format::Coords;
use crate::format::flat::FlatForm;
use crate::format::grid::unravel;
use crate::format::pipeline::Pipeline;
use crate::fs::form::Form;
use crate::fs::node::ArrayView;
use crate::store::ShardStore;

/// Maximum number of chunks in the queue; further ones are left to their readers.
const WAITING: usize = 1024;

/// Number of chunk files to prefetch for a reader that opens them in sequence.
const FILES_AHEAD: usize = 8;

/// Number of remembered rows of chunks that were queued, so that a row is not queued for each row
/// of items.
// Evaluated by the compiler, which rejects zero.
const ANNOUNCED: std::num::NonZeroUsize = std::num::NonZeroUsize::new(4096).unwrap();

/// Time for which a queued row is remembered: its chunks may have been evicted since.
const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

/// Chunk to decode.
struct Job {
    array: Arc<ArrayView>,
    coords: Coords,
}

/// Prefetcher of decoded chunks.
pub(in crate::fs) struct Prefetch {
    store: Arc<ShardStore>,
    /// Size of the cache of decoded chunks in bytes.
    budget: usize,
    /// CPUs for the threads, one for each. Who queues the first chunk may be bound to one alone, as the
    /// thread of a ring is. `None` if they cannot be determined.
    cpus: Option<Cpus>,
    queue: OnceLock<SyncSender<Job>>,
    /// Number of the chunk, or row of chunks, that was last requested, by array.
    last: Mutex<HashMap<u64, u64>>,
    announced: Mutex<LruCache<(u64, u64), Instant>>,
}

impl Prefetch {
    /// Creates a prefetcher that decodes with `store`, which caches `budget` bytes.
    pub(in crate::fs) fn new(store: Arc<ShardStore>, budget: usize) -> Self {
        let cpus = Cpus::allowed().inspect_err(|error| log::debug!("unknown CPUs: {error}"));
        Self {
            store,
            budget,
            cpus: cpus.ok(),
            queue: OnceLock::new(),
            last: Mutex::default(),
            announced: Mutex::new(bounded(ANNOUNCED)),
        }
    }

    /// Queues a chunk for decoding.
    pub(in crate::fs) fn announce(&self, array: &Arc<ArrayView>, coords: Coords) {
        let queue = self.queue.get_or_init(|| start(&self.store, self.cpus));
        // If the queue is full, or no thread could be started, the reader decodes the chunk.
        let _ = queue.try_send(Job { array: Arc::clone(array), coords });
    }

    /// Returns whether a number equals or follows the last one of an array, and records it as the
    /// last.
    fn is_sequential(&self, array: &ArrayView, number: u64) -> bool {
        let mut last = self.last.lock();
        let before = last.insert(array.source.id, number);
        before.is_some_and(|before| number.wrapping_sub(before) <= 1)
    }

    /// Called when the file of a chunk is opened: prefetches the next ones of a sequential reader.
    pub(in crate::fs) fn opened(&self, array: &Arc<ArrayView>, coords: &[u64]) {
        let nbytes = pipeline(array).map_or(usize::MAX, Pipeline::nbytes);
        // Prefetched chunks must not be evicted before they are read.
        let ahead = (self.budget / 2 / nbytes.max(1)).min(FILES_AHEAD);
        let grid = array.tree.grid();
        let number = ravel(coords, grid);
        if !self.is_sequential(array, number) {
            return;
        }
        let all: u64 = grid.iter().product();
        for number in (number + 1..all).take(ahead) {
            if self.is_new(array, number) {
                self.announce(array, unravel(number, grid));
            }
        }
    }

    /// Called when a row of chunks of a whole array is read; `was_kept` is `true` if nothing had to
    /// be decoded. Prefetches the next row of chunks, or once those of this plane are cached, a row
    /// of the next plane.
    pub(in crate::fs) fn read_row(
        &self,
        array: &Arc<ArrayView>,
        form: &FlatForm,
        place: &[u64],
        was_kept: bool,
    ) {
        let (above, last) = form.grid().split_at(form.grid().len().saturating_sub(1));
        let number = ravel(place, above);
        if !self.is_sequential(array, number) && !was_kept {
            return;
        }
        let row = last.iter().product::<u64>();
        let rows_of_plane: u64 = above.iter().skip(1).product();
        let chunk = form.pipeline().nbytes() as u64;
        let fits = |rows: u64| row.saturating_mul(rows).saturating_mul(chunk) <= self.budget as u64;
        let ahead = if was_kept { rows_of_plane } else { 1 };
        let next = number.saturating_add(ahead);
        let exists = next < above.iter().product();
        if exists && fits(ahead.saturating_mul(2)) && self.is_new(array, next) {
            let place = unravel(next, above);
            (0..row).for_each(|last| self.announce(array, [&place[..], &[last]].concat()));
        }
    }

    fn is_new(&self, array: &ArrayView, number: u64) -> bool {
        let key = (array.source.id, number);
        let mut announced = self.announced.lock();
        let is_known = announced.get(&key).is_some_and(|at| at.elapsed() < ANNOUNCED_FOR);
        if !is_known {
            announced.put(key, Instant::now());
        }
        !is_known
    }
}

/// Returns the number of a position in C order.
fn ravel(coords: &[u64], grid: &[u64]) -> u64 {
    coords.iter().zip(grid).fold(0, |number, (coord, extent)| number * extent + coord)
}

/// Starts the threads, one for each CPU.
fn start(store: &Arc<ShardStore>, cpus: Option<Cpus>) -> SyncSender<Job> {
    let (sender, receiver) = sync_channel(WAITING);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..cpus.map_or(1, |cpus| cpus.count()) {
        let (store, receiver) = (Arc::clone(store), Arc::clone(&receiver));
        let worker = thread::Builder::new().name("decode".to_owned());
        let run = move || {
            if let Some(Err(error)) = cpus.map(|cpus| cpus.bind()) {
                log::debug!("a thread that decodes stays on one CPU: {error}");
            }
            work(&store, &receiver);
        };
        if let Err(error) = worker.spawn(run) {
            log::warn!("no thread to decode ahead: {error}");
        }
    }
    sender
}

/// Decodes queued chunks until the mount ends.
fn work(store: &ShardStore, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().recv();
        let Ok(Job { array, coords }) = job else { return };
        if let Some(pipeline) = pipeline(&array) {
            // The error is ignored: the reader meets it again.
            let _ = store.decoded_unless_busy(&array.source, pipeline, &coords);
        }
    }
}

fn pipeline(array: &ArrayView) -> Option<&Pipeline> {
    match &array.form {
        Form::Decoded(form) => Some(form.pipeline()),
        Form::Flat(form) => Some(form.pipeline()),
        Form::Encoded | Form::Filled(_) => None,
    }
}
