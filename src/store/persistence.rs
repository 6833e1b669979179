//! Trying again what fails as others are changing it all the time.

use std::thread;
use std::time::{Duration, Instant};

/// Time for which it is tried again: on a busy machine a reader is seldom faster than several writers.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Attempts at the same thing, with pauses.
pub(crate) struct Persistence {
    began: Instant,
    pause: Duration,
}

impl Persistence {
    /// Begins, before the first attempt or after some.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), pause: PAUSES.0 }
    }

    /// Waits before another attempt. Returns whether there is to be one.
    pub(crate) fn again(&mut self) -> bool {
        if self.began.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
        true
    }
}
