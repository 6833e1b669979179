//! Setbacks of a commit to a store of objects: how long to wait after each, and when to give up.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::StoreError;
use crate::store::commit_state::Commits;

/// Attempts to replace a shard that fail for another reason than that other writers have replaced it.
const ATTEMPTS: u32 = 12;

/// Time for which other writers replace a shard before every attempt, until it is given up.
const CONTENDED: Duration = Duration::from_secs(60);

/// Attempts that are lost to other writers, at least, before a shard is given up.
const LOST: u32 = 4;

/// Time without an answer of the store after which no further attempt is made: what could not be committed is tried
/// again with the next commit.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same once the mount ends: what could not be committed is saved elsewhere.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Progress of a commit: when the store has answered last. One that does not is not waited for once for each
/// shard.
pub(super) struct Progress<'a> {
    commits: &'a Commits,
    last: Mutex<Instant>,
    is_over: AtomicBool,
    /// `true` once a shard was given up to other writers: the rest is not waited for that long.
    is_contended: AtomicBool,
}

/// Attempts to replace one shard that have failed.
pub(super) struct Setbacks {
    /// When the first attempt was lost to other writers.
    since: Instant,
    lost: u32,
    failed: u32,
    /// Longest pause after the next one that fails.
    pause: Duration,
    /// Longest pause after one that was lost, at least.
    least: Duration,
}

impl<'a> Progress<'a> {
    pub(super) fn begin(commits: &'a Commits) -> Self {
        let is_over = commits.is_given_up.load(Ordering::Relaxed);
        let (last, is_over) = (Mutex::new(Instant::now()), AtomicBool::new(is_over));
        Self { commits, last, is_over, is_contended: AtomicBool::default() }
    }

    pub(super) fn note(&self) {
        *self.last.lock() = Instant::now();
    }

    /// Returns whether no further attempt is to be made: there was no progress for too long.
    pub(super) fn is_over(&self) -> bool {
        let is_ending = self.is_ending();
        let patience = if is_ending { LAST_PATIENCE } else { PATIENCE };
        if self.last.lock().elapsed() > patience {
            self.is_over.store(true, Ordering::Relaxed);
            self.commits.is_given_up.store(is_ending, Ordering::Relaxed);
        }
        self.is_over.load(Ordering::Relaxed)
    }

    /// Returns whether a shard is given up to other writers, to whom so many attempts were lost since then.
    fn is_lost(&self, lost: u32, since: Instant) -> bool {
        let patience = if self.is_ending() { LAST_PATIENCE } else { CONTENDED };
        if since.elapsed() > patience {
            self.is_contended.store(true, Ordering::Relaxed);
        }
        lost >= LOST && self.is_contended.load(Ordering::Relaxed)
    }

    fn is_ending(&self) -> bool {
        self.commits.is_ending.load(Ordering::Relaxed)
    }
}

impl Setbacks {
    /// Begins with none. `pause` is the longest pause after the first that fails.
    pub(super) fn none(pause: Duration) -> Self {
        Self { since: Instant::now(), lost: 0, failed: 0, pause, least: pause / 4 }
    }

    /// Returns how many attempts were lost to other writers.
    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// Records that an attempt, which has taken this time, has failed with an error. Returns after which pause
    /// another one may be made; `None` if none is to be made.
    pub(super) fn add(
        &mut self,
        error: &StoreError,
        took: Duration,
        progress: &Progress<'_>,
    ) -> Option<Duration> {
        if !matches!(error, StoreError::Contended { .. } | StoreError::Changing { .. }) {
            self.failed += 1;
            let pause = random_part(self.pause);
            self.pause = (self.pause * 2).min(MAX_PAUSE);
            return (self.failed < ATTEMPTS).then_some(pause);
        }
        if self.lost == 0 {
            self.since = Instant::now();
        }
        self.lost = self.lost.saturating_add(1);
        // Whoever waits ever longer loses ever more often: those that have won hold back (`Turns`).
        let pause = random_part(took.max(self.least).min(MAX_PAUSE));
        (!progress.is_lost(self.lost, self.since)).then_some(pause)
    }
}

/// Returns a random part of a time, so that writers that have met do not meet again.
fn random_part(most: Duration) -> Duration {
    most.mul_f64(chance())
}

/// Returns a random number from 0 to 1.
pub(super) fn chance() -> f64 {
    // The state of each is random.
    let number = RandomState::new().hash_one(0) >> 32;
    number as f64 / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;
    use crate::store::io_error;

    #[test]
    fn pauses_after_failures_double_and_twelve_are_too_many() {
        let commits = Commits::default();
        let (mut setbacks, progress) =
            (Setbacks::none(Duration::from_secs(1)), Progress::begin(&commits));
        let error = io_error(&PathBuf::from("c/0"))(io::Error::from_raw_os_error(libc::EIO));
        for nth in 0..11 {
            let pause = setbacks.add(&error, Duration::ZERO, &progress).unwrap();
            assert!(
                pause <= Duration::from_secs(1 << nth.min(3)).min(MAX_PAUSE),
                "{nth}: {pause:?}"
            );
        }
        assert_eq!(setbacks.add(&error, Duration::ZERO, &progress), None);
        assert_eq!(setbacks.lost(), 0);
    }

    #[test]
    fn pauses_after_lost_attempts_are_no_longer_than_those_and_are_made_for_a_minute() {
        let commits = Commits::default();
        let progress = Progress::begin(&commits);
        let mut setbacks = Setbacks::none(Duration::from_millis(50));
        let lost = StoreError::Contended { shard: PathBuf::from("c/0") };
        let took = Duration::from_secs(1);
        for _ in 0..100 {
            assert!(setbacks.add(&lost, took, &progress).unwrap() <= took);
        }
        assert_eq!(setbacks.lost(), 100);
        setbacks.since -= CONTENDED + took;
        assert_eq!(setbacks.add(&lost, took, &progress), None);
        // The next shard of the same commit gets some attempts only.
        let mut setbacks = Setbacks::none(Duration::from_millis(50));
        let pauses = (0..LOST).map(|_| setbacks.add(&lost, took, &progress));
        assert_eq!(pauses.filter(Option::is_some).count(), 3);
    }

    #[test]
    fn a_mount_that_ends_gives_a_shard_up_to_others_sooner() {
        let commits = Commits::default();
        let progress = Progress::begin(&commits);
        let mut setbacks = Setbacks::none(Duration::ZERO);
        let lost = StoreError::Contended { shard: PathBuf::from("c/0") };
        for _ in 0..10 {
            setbacks.add(&lost, Duration::ZERO, &progress);
        }
        setbacks.since -= LAST_PATIENCE * 2;
        assert!(setbacks.add(&lost, Duration::ZERO, &progress).is_some());
        commits.is_ending.store(true, Ordering::Relaxed);
        assert_eq!(setbacks.add(&lost, Duration::ZERO, &progress), None);
    }
}
