//! Parts of objects that were fetched, or are being fetched, in memory. Who needs bytes that are being
//! fetched waits for them: nothing is requested twice.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::{Condvar, Mutex};

use crate::requester;

/// Parts that begin before the one that is looked for, and may hold it.
const BEFORE: usize = 16;

/// Part of a version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The version, by its number.
    pub object: u64,
    /// Offset of the first byte.
    pub from: u64,
    /// Offset past the last byte.
    pub to: u64,
}

/// Bytes of a part, which may begin before what was asked for and end after it.
#[derive(Debug, Clone)]
pub(super) struct Fetched {
    /// Offset of the first byte in the object.
    pub from: u64,
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// Where a part begins: its object, and its offset there.
type Start = (u64, u64);

/// Fetched parts, within a budget of bytes.
pub(super) struct Windows {
    state: Mutex<State>,
    budget: usize,
}

struct State {
    kept: BTreeMap<Start, (u64, Arc<Vec<u8>>)>,
    /// The same parts, in the order of their use.
    used: LruCache<Start, ()>,
    bytes: usize,
    under_way: BTreeMap<Start, (u64, Arc<UnderWay>)>,
}

/// A fetch that some threads wait for.
#[derive(Default)]
struct UnderWay {
    result: Mutex<Option<Result<Fetched, i32>>>,
    done: Condvar,
}

/// Returns the start of the part that holds all of another.
fn covering<T>(parts: &BTreeMap<Start, (u64, T)>, part: Part) -> Option<Start> {
    let before = parts.range(..=(part.object, part.from)).rev().take(BEFORE);
    let mut before = before.take_while(|((object, _), _)| *object == part.object);
    before.find(|(_, (to, _))| *to >= part.to).map(|(start, _)| *start)
}

impl State {
    fn kept(&mut self, part: Part) -> Option<Fetched> {
        let start = covering(&self.kept, part)?;
        self.used.promote(&start);
        let (_, bytes) = self.kept.get(&start)?;
        Some(Fetched { from: start.1, bytes: Arc::clone(bytes) })
    }

    fn keep(&mut self, part: Part, bytes: &Arc<Vec<u8>>, budget: usize) {
        let start = (part.object, part.from);
        // What lies within it is not needed any more, and would hide it from those who look for what holds a part.
        let within = self.kept.range(start..(part.object, part.to));
        let within = within.filter(|(_, (to, _))| *to <= part.to).map(|(start, _)| *start);
        for start in within.collect::<Vec<_>>() {
            self.used.pop(&start);
            self.bytes -= self.kept.remove(&start).map_or(0, |(_, bytes)| bytes.len());
        }
        if let Some((_, old)) = self.kept.insert(start, (part.to, Arc::clone(bytes))) {
            self.bytes -= old.len();
        }
        self.bytes += bytes.len();
        self.used.put(start, ());
        while self.bytes > budget && self.kept.len() > 1 {
            let Some((oldest, ())) = self.used.pop_lru() else { break };
            if let Some((_, old)) = self.kept.remove(&oldest) {
                self.bytes -= old.len();
            }
        }
    }
}

impl Windows {
    /// Creates an empty cache of `budget` bytes.
    pub(super) fn new(budget: usize) -> Self {
        let (kept, used, under_way) = (BTreeMap::new(), LruCache::unbounded(), BTreeMap::new());
        Self { state: Mutex::new(State { kept, used, bytes: 0, under_way }), budget }
    }

    /// Returns a part: from what was fetched, from what is being fetched, or by `fetch`, which begins
    /// that. The fetch goes on for others if this thread stops waiting.
    ///
    /// # Errors
    /// Those of the fetch; EINTR if the process that waits for this thread is to end.
    pub(super) fn get(
        self: &Arc<Self>,
        part: Part,
        fetch: impl FnOnce(Fetching),
    ) -> io::Result<Fetched> {
        let mut state = self.state.lock();
        if let Some(fetched) = state.kept(part) {
            return Ok(fetched);
        }
        let shared = covering(&state.under_way, part)
            .and_then(|start| state.under_way.get(&start).map(|(_, shared)| Arc::clone(shared)));
        if let Some(shared) = shared {
            drop(state);
            return shared.wait();
        }
        let fetching = self.register(&mut state, part);
        drop(state);
        let shared = Arc::clone(&fetching.shared);
        fetch(fetching);
        shared.wait()
    }

    /// Returns whether a part is there, or being fetched.
    pub(super) fn has(&self, part: Part) -> bool {
        let state = self.state.lock();
        covering(&state.kept, part).is_some() || covering(&state.under_way, part).is_some()
    }

    /// Begins the fetch of a part. `None` if it is there already, or being
    /// fetched.
    pub(super) fn begin(self: &Arc<Self>, part: Part) -> Option<Fetching> {
        let mut state = self.state.lock();
        let is_known = state.kept(part).is_some() || covering(&state.under_way, part).is_some();
        (!is_known).then(|| self.register(&mut state, part))
    }

    fn register(self: &Arc<Self>, state: &mut State, part: Part) -> Fetching {
        let shared = Arc::new(UnderWay::default());
        // A shorter one that begins there as well ends by itself: whoever waits for it holds it.
        state.under_way.insert((part.object, part.from), (part.to, Arc::clone(&shared)));
        Fetching { windows: Arc::clone(self), part, shared }
    }
}

impl UnderWay {
    fn wait(&self) -> io::Result<Fetched> {
        let mut result = self.result.lock();
        while result.is_none() {
            if self.done.wait_for(&mut result, requester::LOOK).timed_out()
                && result.is_none()
                && requester::is_ending()
            {
                return Err(io::Error::from_raw_os_error(libc::EINTR));
            }
        }
        match &*result {
            Some(Ok(fetched)) => Ok(fetched.clone()),
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(*errno)),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

/// A fetch under way. It ends for those who wait for it, even if it is dropped.
pub(super) struct Fetching {
    windows: Arc<Windows>,
    part: Part,
    shared: Arc<UnderWay>,
}

impl Fetching {
    /// Ends the fetch with its result, for those who wait for it, and for those who need it later.
    pub(super) fn end(self, fetched: io::Result<Arc<Vec<u8>>>) {
        let fetched = fetched.map(|bytes| Fetched { from: self.part.from, bytes });
        if let Ok(Fetched { bytes, .. }) = &fetched {
            self.windows.state.lock().keep(self.part, bytes, self.windows.budget);
        }
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        *self.shared.result.lock() = Some(fetched.map_err(errno));
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.shared.result.lock().get_or_insert(Err(libc::EIO));
        let mut state = self.windows.state.lock();
        let start = (self.part.object, self.part.from);
        let is_own = |(_, shared): &(u64, Arc<UnderWay>)| Arc::ptr_eq(shared, &self.shared);
        if state.under_way.get(&start).is_some_and(is_own) {
            state.under_way.remove(&start);
        }
        drop(state);
        self.shared.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn part(from: u64, to: u64) -> Part {
        Part { object: 1, from, to }
    }

    fn never(_: Fetching) {
        panic!("it is there")
    }

    fn brings(bytes: impl IntoIterator<Item = u8>) -> impl FnOnce(Fetching) {
        let bytes = bytes.into_iter().collect();
        move |fetching| fetching.end(Ok(Arc::new(bytes)))
    }

    fn fails(fetching: Fetching) {
        fetching.end(Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
    }

    #[test]
    fn what_several_need_at_once_is_fetched_once() {
        let (windows, fetched, begun) =
            (Arc::new(Windows::new(100)), AtomicUsize::new(0), Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    begun.wait();
                    let found = windows.get(part(0, 3), |fetching| {
                        fetched.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(20));
                        fetching.end(Ok(Arc::new(vec![1, 2, 3])));
                    });
                    assert_eq!(*found.unwrap().bytes, [1, 2, 3]);
                });
            }
        });
        assert_eq!(fetched.into_inner(), 1);
        assert!(windows.state.lock().under_way.is_empty());
    }

    #[test]
    fn a_longer_part_holds_shorter_ones() {
        let windows = Arc::new(Windows::new(100));
        windows.get(part(10, 20), brings(10..20)).unwrap();
        windows.get(part(12, 13), never).unwrap();
        // One that begins later hides none that is longer.
        windows.begin(part(14, 22)).unwrap().end(Ok(Arc::new((14..22).collect())));
        let found = windows.get(part(15, 19), never).unwrap();
        assert_eq!(found.bytes[usize::try_from(15 - found.from).unwrap()], 15);
        assert_eq!(windows.get(part(11, 20), never).unwrap().from, 10);
        assert!(windows.begin(part(16, 22)).is_none());
        assert!(windows.begin(part(16, 23)).is_some());
        // Of another object nothing is known.
        assert!(windows.begin(Part { object: 2, ..part(12, 13) }).is_some());
    }

    #[test]
    fn short_parts_that_were_there_hide_no_longer_one() {
        let windows = Arc::new(Windows::new(1000));
        for from in (100..180).step_by(2) {
            windows.get(part(from, from + 1), brings([0])).unwrap();
        }
        windows.get(part(50, 250), brings(50..250)).unwrap();
        assert_eq!(windows.get(part(190, 200), never).unwrap().from, 50);
        let state = windows.state.lock();
        assert_eq!((state.kept.len(), state.used.len(), state.bytes), (1, 1, 200));
    }

    #[test]
    fn what_is_fetched_ahead_is_waited_for() {
        let windows = Arc::new(Windows::new(100));
        let fetching = windows.begin(part(0, 3)).unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| windows.get(part(1, 2), never).unwrap().bytes.len());
            thread::sleep(Duration::from_millis(20));
            fetching.end(Ok(Arc::new(vec![1, 2, 3])));
            assert_eq!(reader.join().unwrap(), 3);
        });
    }

    #[test]
    fn a_fetch_that_failed_is_tried_again() {
        let windows = Arc::new(Windows::new(100));
        let failed = windows.get(part(0, 3), fails);
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
        drop(windows.begin(part(0, 3)).unwrap());
        assert_eq!(*windows.get(part(0, 3), brings([9; 3])).unwrap().bytes, [9; 3]);
    }

    #[test]
    fn a_thread_that_unwinds_leaves_no_one_waiting() {
        let windows = Arc::new(Windows::new(100));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = windows.get(part(0, 3), |_fetching| panic!("in a test"));
        }));
        assert!(caught.is_err());
        assert_eq!(*windows.get(part(0, 3), brings([9; 3])).unwrap().bytes, [9; 3]);
    }

    #[test]
    fn the_least_recently_used_parts_make_room() {
        let windows = Arc::new(Windows::new(6));
        for from in [0, 10] {
            windows.get(part(from, from + 3), brings([0; 3])).unwrap();
        }
        windows.get(part(0, 3), never).unwrap();
        windows.get(part(20, 23), brings([0; 3])).unwrap();
        windows.get(part(0, 3), never).unwrap();
        assert!(windows.begin(part(10, 13)).is_some());
        assert_eq!(windows.state.lock().bytes, 6);
    }

    #[test]
    fn who_is_to_end_waits_no_longer_and_others_get_what_was_fetched() {
        let windows = Arc::new(Windows::new(100));
        let mut begun = None;
        // No process has this number: it has ended.
        let serving = requester::serve(u32::MAX >> 1);
        let waited = windows.get(part(0, 3), |fetching| begun = Some(fetching));
        assert_eq!(waited.unwrap_err().raw_os_error(), Some(libc::EINTR));
        drop(serving);
        begun.unwrap().end(Ok(Arc::new(vec![1, 2, 3])));
        assert_eq!(*windows.get(part(0, 3), never).unwrap().bytes, [1, 2, 3]);
    }
}
