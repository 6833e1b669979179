//! How long answers take to begin, and after which time one is late: its request may be stuck in one
//! connection or one machine of the store, while another would answer at once.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Answers that are remembered.
const REMEMBERED: usize = 64;
/// An answer is late after this many times what half of the answers take.
const TIMES_MEDIAN: u32 = 8;

/// Times that the last answers took to begin.
#[derive(Debug)]
pub(super) struct Latency {
    last: Mutex<VecDeque<Duration>>,
    /// An answer is late after this time at the earliest.
    least: Duration,
}

impl Latency {
    /// Returns that of a store which has not answered yet. No answer is late before `least`.
    pub(super) fn new(least: Duration) -> Self {
        Self { last: Mutex::default(), least }
    }

    /// Records an answer.
    pub(super) fn note(&self, took: Duration) {
        let mut last = self.last.lock();
        if last.len() == REMEMBERED {
            last.pop_front();
        }
        last.push_back(took);
    }

    /// Returns the time after which an answer is late.
    pub(super) fn late_after(&self) -> Duration {
        let mut last: Vec<Duration> = self.last.lock().iter().copied().collect();
        let middle = last.len() / 2;
        match last.is_empty() {
            true => self.least,
            false => (*last.select_nth_unstable(middle).1 * TIMES_MEDIAN).max(self.least),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_secs(1);

    #[test]
    fn an_answer_is_late_when_it_takes_many_times_what_others_do() {
        let latency = Latency::new(LEAST);
        assert_eq!(latency.late_after(), LEAST);
        latency.note(Duration::from_millis(30));
        assert_eq!(latency.late_after(), LEAST);
        (0..200).for_each(|_| latency.note(Duration::from_millis(500)));
        assert_eq!(latency.late_after(), Duration::from_secs(4));
        // What a few take says nothing about the others.
        (0..20).for_each(|_| latency.note(Duration::from_secs(60)));
        assert_eq!(latency.late_after(), Duration::from_secs(4));
        (0..200).for_each(|_| latency.note(Duration::from_millis(5)));
        assert_eq!(latency.late_after(), LEAST);
        assert_eq!(latency.last.lock().len(), REMEMBERED);
    }
}
