//! Decoding ahead: threads that decode what a reader will want next, or wants at once.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::form::Form;
use super::nodes::ArrayView;
use crate::format::Coords;
use crate::format::flat::FlatForm;
use crate::format::grid::unravel;
use crate::format::pipeline::Pipeline;
use crate::store::ShardStore;

/// Chunks that wait to be decoded at most; more are left to their readers.
const WAITING: usize = 1024;
/// Chunk files that are decoded ahead of a reader who takes one after the other.
const FILES_AHEAD: usize = 8;
/// Rows of chunks that were announced are remembered, so that none is announced for each row of items.
// The compiler evaluates it, and would refuse zero.
const ANNOUNCED: std::num::NonZeroUsize = std::num::NonZeroUsize::new(4096).unwrap();
/// For so long: they may have been dropped again since.
const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

/// A chunk to be decoded.
struct Job {
    array: Arc<ArrayView>,
    coords: Coords,
}

/// Decodes ahead of readers.
pub(super) struct Ahead {
    store: Arc<ShardStore>,
    /// Bytes of decoded chunks that are kept.
    budget: usize,
    queue: OnceLock<SyncSender<Job>>,
    /// The chunk, or row of chunks, that was wanted last, by array.
    last: Mutex<HashMap<u64, u64>>,
    announced: Mutex<LruCache<(u64, u64), Instant>>,
}

impl Ahead {
    /// Decodes with `store`, which keeps `budget` bytes.
    pub(super) fn new(store: Arc<ShardStore>, budget: usize) -> Self {
        let announced = Mutex::new(LruCache::new(ANNOUNCED));
        Self { store, budget, queue: OnceLock::new(), last: Mutex::default(), announced }
    }

    /// A chunk will be wanted.
    pub(super) fn announce(&self, array: &Arc<ArrayView>, coords: Coords) {
        let queue = self.queue.get_or_init(|| start(&self.store));
        // Where the queue is full, or no thread could be started, its reader decodes it.
        let _ = queue.try_send(Job { array: Arc::clone(array), coords });
    }

    /// Whether a number follows the one that was told last of an array, or is the same.
    fn is_sequential(&self, array: &ArrayView, number: u64) -> bool {
        let mut last = self.last.lock();
        let before = last.insert(array.source.id, number);
        before.is_some_and(|before| number.wrapping_sub(before) <= 1)
    }

    /// The file of a chunk was opened: whoever takes one after the other will open the next ones.
    pub(super) fn opened(&self, array: &Arc<ArrayView>, coords: &[u64]) {
        let nbytes = pipeline(array).map_or(usize::MAX, Pipeline::nbytes);
        // What is decoded ahead must not be dropped before it is read.
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

    /// A row of chunks of a whole array is read; `was_kept`: nothing had to be decoded for that. The
    /// next row of chunks will be wanted, and once those of this plane are there, the next plane's.
    pub(super) fn read_row(
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

/// The number of a place in C order.
fn ravel(coords: &[u64], grid: &[u64]) -> u64 {
    coords.iter().zip(grid).fold(0, |number, (coord, extent)| number * extent + coord)
}

/// Starts the threads, one for each processor.
fn start(store: &Arc<ShardStore>) -> SyncSender<Job> {
    let (sender, receiver) = sync_channel(WAITING);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..thread::available_parallelism().map_or(1, std::num::NonZero::get) {
        let (store, receiver) = (Arc::clone(store), Arc::clone(&receiver));
        let worker = thread::Builder::new().name("decode".to_owned());
        if let Err(error) = worker.spawn(move || work(&store, &receiver)) {
            log::warn!("no thread to decode ahead: {error}");
        }
    }
    sender
}

/// Decodes until the mount ends.
fn work(store: &ShardStore, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().recv();
        let Ok(Job { array, coords }) = job else { return };
        if let Some(pipeline) = pipeline(&array) {
            // Its reader meets the error again.
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
