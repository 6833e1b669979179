//! How long things take, counted in buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets in nanoseconds: from a chunk in memory to a commit to a store far away.
const BOUNDS: [u64; 14] = [
    10_000,
    25_000,
    100_000,
    250_000,
    1_000_000,
    2_500_000,
    10_000_000,
    25_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    2_500_000_000,
    10_000_000_000,
    60_000_000_000,
];

/// Times, each of which is in the first bucket whose bound it does not exceed. Any thread may add to it.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One for each bound, and one for what exceeds all of them.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
    /// Number of timers that run.
    running: AtomicU64,
}

/// Contents of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// All times together, in seconds.
    pub sum: f64,
    /// Number of times.
    pub count: u64,
    /// Upper bound of each bucket in seconds, infinite for the last one, and the number of times in it alone.
    pub buckets: Vec<(f64, u64)>,
}

/// Time that is running; it is added when this is dropped.
#[derive(Debug)]
pub struct Timer<'a> {
    histogram: &'a Histogram,
    began: Instant,
}

impl Histogram {
    /// Starts a time, which lasts until what is returned is dropped.
    pub fn time(&self) -> Timer<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Timer { histogram: self, began: Instant::now() }
    }

    /// Adds a time.
    pub fn add(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = BOUNDS.partition_point(|bound| *bound < nanoseconds);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns the number of times that are running.
    pub fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Returns all times together, in whole milliseconds.
    pub fn milliseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed) / 1_000_000
    }

    /// Sets it to what has as many digits as there can be.
    #[cfg(test)]
    pub(super) fn fill(&self) {
        let count = u64::MAX / (BOUNDS.len() as u64 + 1);
        self.buckets.iter().for_each(|bucket| bucket.store(count, Ordering::Relaxed));
        self.nanoseconds.store(u64::MAX, Ordering::Relaxed);
        self.running.store(u64::MAX, Ordering::Relaxed);
    }

    /// Returns the current contents.
    pub fn get(&self) -> Observed {
        let bounds = BOUNDS.iter().map(|bound| Duration::from_nanos(*bound).as_secs_f64());
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64();
        Observed { sum, count, buckets }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.histogram.add(self.began.elapsed());
        self.histogram.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::default();
        for nanoseconds in [0, 10_000, 10_001, 60_000_000_000, 60_000_000_001] {
            histogram.add(Duration::from_nanos(nanoseconds));
        }
        let observed = histogram.get();
        let full = observed.buckets.iter().filter(|(_, count)| *count > 0);
        let full: Vec<_> = full.copied().collect();
        assert_eq!(full, [(0.000_01, 2), (0.000_025, 1), (60.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(observed.count, 5);
        assert!((observed.sum - 120.000_02).abs() < 0.000_01, "{}", observed.sum);
    }

    #[test]
    fn a_timer_adds_its_time_when_it_ends() {
        let histogram = Histogram::default();
        let timer = histogram.time();
        assert_eq!((histogram.get().count, histogram.running()), (0, 1));
        drop(timer);
        assert_eq!((histogram.get().count, histogram.running()), (1, 0));
    }
}
