//! How many requests are under way at once: more while the store answers, fewer when it says that
//! they are too many (additive increase, multiplicative decrease).

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

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

/// Limit on the requests that are under way.
#[derive(Debug)]
pub(super) struct Limits {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    /// Requests that may be under way.
    most: f64,
    /// Upper limit of `most`.
    cap: f64,
    under_way: usize,
    /// Time of the last refusal that counted.
    refused: Option<Instant>,
}

/// Right to have one request under way.
pub(super) struct Permit<'a>(&'a Limits);

impl Limits {
    /// Creates a limit that never exceeds `cap` requests.
    pub(super) fn new(cap: usize) -> Self {
        #[allow(clippy::cast_precision_loss, reason = "a number of requests")]
        let cap = (cap as f64).max(LEAST);
        let state = State { most: FIRST.min(cap), cap, under_way: 0, refused: None };
        Self { state: Mutex::new(state), freed: Notify::new() }
    }

    /// Waits until a request may be sent.
    pub(super) async fn acquire(&self) -> Permit<'_> {
        loop {
            // Registered before the check, so that no release in between is missed.
            let freed = self.freed.notified();
            if self.try_acquire() {
                return Permit(self);
            }
            freed.await;
        }
    }

    fn try_acquire(&self) -> bool {
        let mut state = self.state.lock();
        #[allow(clippy::cast_precision_loss, reason = "a number of requests")]
        let is_free = (state.under_way as f64) < state.most.floor();
        state.under_way += usize::from(is_free);
        is_free
    }

    /// Records a good answer.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        let before = state.most.floor();
        state.most = (state.most + 1.0 / ANSWERS_FOR_ONE_MORE).min(state.cap);
        let has_more = state.most.floor() > before;
        drop(state);
        if has_more {
            self.freed.notify_one();
        }
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
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(limits: &Limits) -> f64 {
        limits.state.lock().most
    }

    fn taken(limits: &Limits) -> usize {
        (0..1000).take_while(|_| limits.try_acquire()).count()
    }

    #[test]
    fn requests_under_way_are_limited() {
        let limits = Limits::new(64);
        assert_eq!(taken(&limits), 16);
        drop(Permit(&limits));
        assert_eq!(taken(&limits), 1);
        assert_eq!(taken(&Limits::new(5)), 5);
        // A single request that waits for another is no reason to never send one.
        assert_eq!(taken(&Limits::new(0)), 2);
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
