//! Objects that are about to be opened: their first or last bytes are requested before they are
//! needed, many at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::client::Answer;
use crate::number::to_usize;
use crate::requester;
use crate::store::byte_cache::ByteCache;

/// Budget for what was requested, in bytes: what is given up before it is taken is requested twice, and a
/// listing asks for up to 64 indexes at once, of 1 MiB at most.
const BYTES: usize = 66 << 20;
/// Bytes of it that each object takes besides.
const EACH: usize = 256;

/// Answer to the request by which an object is to be opened; `None` if there was none.
type Result = Option<Answer>;

/// An object that is about to be opened.
pub(super) struct Opening {
    /// When it was requested.
    pub at: Instant,
    state: Mutex<State>,
    done: Condvar,
}

enum State {
    Asked,
    Done(Box<Result>),
}

/// Objects that are about to be opened.
pub(super) struct Openings {
    /// Time for which an answer can be used.
    trusted: Duration,
    known: Mutex<ByteCache<PathBuf, Arc<Opening>>>,
}

impl Openings {
    /// Creates an empty table whose answers can be used for a time.
    pub(super) fn new(trusted: Duration) -> Self {
        Self { trusted, known: Mutex::new(ByteCache::new(BYTES)) }
    }

    /// Returns an opening for which `nbytes` are to be requested now. `Err` if they were requested before:
    /// whether that has brought an answer.
    pub(super) fn begin(
        &self,
        path: &Path,
        nbytes: u64,
    ) -> std::result::Result<Arc<Opening>, bool> {
        let mut known = self.known.lock();
        if let Some(opening) = known.get(path)
            && opening.at.elapsed() < self.trusted
        {
            return Err(matches!(&*opening.state.lock(), State::Done(answer) if answer.is_some()));
        }
        let (at, state) = (Instant::now(), Mutex::new(State::Asked));
        let opening = Arc::new(Opening { at, state, done: Condvar::new() });
        let bytes = to_usize(nbytes).saturating_add(EACH);
        known.put(path.to_owned(), Arc::clone(&opening), bytes);
        Ok(opening)
    }

    /// Forgets what was requested of an object: it is older than what is known by now.
    pub(super) fn forget(&self, path: &Path) {
        self.known.lock().remove(path);
    }

    /// Takes the answer to the request for an object, and when that was sent. Waits for it. `None` if
    /// there is none, or the process that waits for this thread is to end.
    pub(super) fn take(&self, path: &Path) -> Option<(Instant, Answer)> {
        let opening = {
            let mut known = self.known.lock();
            let opening = known.get(path)?;
            known.remove(path);
            opening
        };
        if opening.at.elapsed() >= self.trusted {
            return None;
        }
        let mut state = opening.state.lock();
        loop {
            match &mut *state {
                State::Asked => {
                    let waited = opening.done.wait_for(&mut state, requester::LOOK);
                    if waited.timed_out() && requester::is_ending() {
                        return None;
                    }
                }
                State::Done(answer) => return answer.take().map(|answer| (opening.at, answer)),
            }
        }
    }
}

/// Ends an opening for those who wait for it, even if it is dropped.
pub(super) struct Finish(pub Arc<Opening>);

impl Finish {
    pub(super) fn with(self, answer: Option<Answer>) {
        *self.0.state.lock() = State::Done(Box::new(answer));
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, State::Asked) {
            *state = State::Done(Box::new(None));
        }
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_listing_asks_for_at_once_stays_until_it_is_taken() {
        let openings = Openings::new(Duration::from_secs(600));
        let path = |number: usize| PathBuf::from(number.to_string());
        let asked: Vec<_> = (0..64).map(|number| openings.begin(&path(number), 1 << 20)).collect();
        assert!(asked.iter().all(std::result::Result::is_ok));
        assert!((0..64).all(|number| openings.begin(&path(number), 1 << 20).is_err()));
        // Beyond the budget, what was asked for first goes.
        (64..200).for_each(|number| drop(openings.begin(&path(number), 1 << 20)));
        assert!(openings.begin(&path(0), 1 << 20).is_ok());
    }
}
