//! How many requests are under way at once: more while the store answers, fewer when it says that
//! they are too many (additive increase, multiplicative decrease).

use std::future;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Requests that are under way at first.
const FIRST: f64 = 16.0;
/// Requests that are under way at least, however often the store refuses some.
const LEAST: f64 = 2.0;
/// Good answers that let one more request be sent at once.
const ANSWERS_FOR_ONE_MORE: f64 = 64.0;
/// Time within which several refusals count as one: they answer requests that were sent together.
const ONE_REFUSAL: Duration = Duration::from_millis(200);
/// Time after a refusal in which none is sent that is not needed.
const CALM_AFTER: Duration = Duration::from_secs(10);

/// Limit on the requests that are under way. Who waits longest is next.
#[derive(Debug)]
pub(super) struct Limits {
    state: Mutex<State>,
    slots: Semaphore,
}

#[derive(Debug)]
struct State {
    /// Requests that may be under way.
    most: f64,
    /// Upper limit of `most`.
    cap: f64,
    /// Slots that there are, in use or not: more than `most` until those in use are given back.
    slots: usize,
    /// Time of the last refusal that counted.
    refused: Option<Instant>,
    /// When something of an answer has come last.
    progressed: Option<Instant>,
}

/// Right to have one request under way.
pub(super) struct Permit<'a> {
    limits: &'a Limits,
    slot: Option<SemaphorePermit<'a>>,
}

impl State {
    /// Returns the number of slots that there are to be.
    fn wanted(&self) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small number that is positive"
        )]
        let wanted = self.most as usize;
        wanted
    }
}

impl Limits {
    /// Creates a limit that never exceeds `cap` requests.
    pub(super) fn new(cap: usize) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a number of requests")]
        let cap = (cap as f64).max(LEAST);
        let (most, refused, progressed) = (FIRST.min(cap), None, None);
        let mut state = State { most, cap, slots: 0, refused, progressed };
        state.slots = state.wanted();
        Self { slots: Semaphore::new(state.slots), state: Mutex::new(state) }
    }

    /// Waits until a request may be sent.
    pub(super) async fn acquire(&self) -> Permit<'_> {
        match self.slots.acquire().await {
            Ok(slot) => Permit { limits: self, slot: Some(slot) },
            // It is never closed.
            Err(_) => future::pending().await,
        }
    }

    /// Records that something of an answer has come.
    pub(super) fn progressed(&self) {
        self.state.lock().progressed = Some(Instant::now());
    }

    /// Returns when something of an answer has come last, if anything has.
    pub(super) fn last_progress(&self) -> Option<Instant> {
        self.state.lock().progressed
    }

    /// Records a good answer.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        state.progressed = Some(Instant::now());
        state.most = (state.most + 1.0 / ANSWERS_FOR_ONE_MORE).min(state.cap);
        let more = state.wanted().saturating_sub(state.slots);
        state.slots += more;
        self.slots.add_permits(more);
    }

    /// Returns whether the store has lately refused requests because there were too many.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        self.state.lock().refused.is_some_and(|last| now.duration_since(last) < CALM_AFTER)
    }

    /// Records that the store has refused a request because there are too many.
    pub(super) fn refused(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.refused.is_some_and(|last| now.duration_since(last) < ONE_REFUSAL) {
            return;
        }
        state.refused = Some(now);
        state.most = (state.most / 2.0).max(LEAST);
        // Those in use go when they are given back.
        let excess = state.slots.saturating_sub(state.wanted());
        state.slots -= self.slots.forget_permits(excess);
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.limits.state.lock();
        if state.slots > state.wanted()
            && let Some(slot) = self.slot.take()
        {
            slot.forget();
            state.slots -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(limits: &Limits) -> f64 {
        limits.state.lock().most
    }

    /// Takes all slots that are free.
    fn taken(limits: &Limits) -> Vec<Permit<'_>> {
        let slot = || limits.slots.try_acquire().ok();
        std::iter::from_fn(slot).map(|slot| Permit { limits, slot: Some(slot) }).collect()
    }

    #[test]
    fn requests_under_way_are_limited() {
        let limits = Limits::new(64);
        let mut first = taken(&limits);
        assert_eq!(first.len(), 16);
        first.pop();
        assert_eq!(taken(&limits).len(), 1);
        assert_eq!(taken(&Limits::new(5)).len(), 5);
        // A single request that waits for another is no reason to never send one.
        assert_eq!(taken(&Limits::new(0)).len(), 2);
    }

    #[test]
    fn a_lower_limit_holds_once_requests_under_way_have_ended() {
        let (limits, start) = (Limits::new(64), Instant::now());
        let mut first = taken(&limits);
        limits.refused(start);
        first.truncate(9);
        assert_eq!(taken(&limits).len(), 0);
        first.truncate(7);
        assert_eq!(taken(&limits).len(), 1);
        drop(first);
        assert_eq!(taken(&limits).len(), 8);
        // Of those that are free, it holds at once.
        limits.refused(start + ONE_REFUSAL);
        assert_eq!(taken(&limits).len(), 4);
        (0..64).for_each(|_| limits.answered());
        assert_eq!(taken(&limits).len(), 5);
    }

    #[test]
    fn the_limit_rises_slowly_and_falls_fast() {
        let (limits, start) = (Limits::new(20), Instant::now());
        (0..64).for_each(|_| limits.answered());
        assert!((most(&limits) - 17.0).abs() < 1e-9);
        (0..640).for_each(|_| limits.answered());
        assert!((most(&limits) - 20.0).abs() < 1e-9);
        // Refusals of requests that were sent together count once.
        (0..9).for_each(|_| limits.refused(start));
        assert!((most(&limits) - 10.0).abs() < 1e-9);
        (1..9).for_each(|n| limits.refused(start + n * ONE_REFUSAL));
        assert!((most(&limits) - LEAST).abs() < 1e-9);
    }

    #[test]
    fn a_store_that_refuses_is_left_alone_for_a_while() {
        let (limits, start) = (Limits::new(20), Instant::now());
        assert!(!limits.is_refused(start));
        limits.refused(start);
        assert!(limits.is_refused(start + CALM_AFTER / 2));
        assert!(!limits.is_refused(start + CALM_AFTER));
    }
}
