//! Failures of requests in the log: one of a kind in a while. A store that refuses a reader refuses all of its
//! requests, as fast as they are made.

use std::fmt::Display;
use std::io;
use std::mem::{Discriminant, discriminant};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::error::RequestError;
use crate::bounded::bounded;

/// Time after the report of a failure for which others of its kind are counted.
const QUIET: Duration = Duration::from_secs(10);

/// Kinds that are remembered.
// Evaluated by the compiler, which rejects zero.
const KINDS: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// What failures have in common of which one is reported. Some texts say what was asked for, and differ each
/// time.
type Kind = (Discriminant<RequestError>, Option<String>);

/// Failures that were reported last.
pub(super) struct Reports {
    reported: Mutex<LruCache<Kind, Report>>,
    /// Those who try something out, and tell what came of it.
    trials: AtomicUsize,
}

/// While it is held, failures are in the log with `-v` alone.
pub(super) struct Trial<'a>(&'a AtomicUsize);

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Report {
    at: Instant,
    /// Failures of its kind since.
    left_out: u64,
}

impl Default for Reports {
    fn default() -> Self {
        Self { reported: Mutex::new(bounded(KINDS)), trials: AtomicUsize::new(0) }
    }
}

impl Reports {
    /// Begins to try something out, in which requests may fail.
    pub(super) fn begin_trial(&self) -> Trial<'_> {
        self.trials.fetch_add(1, Ordering::Relaxed);
        Trial(&self.trials)
    }

    /// Turns the error of a request for `what` into one of reading a file, and reports it if it says something
    /// about the store.
    pub(super) fn failed(&self, what: &dyn Display, error: &RequestError) -> io::Error {
        if self.trials.load(Ordering::Relaxed) > 0 {
            log::debug!("{what}: {error}");
        } else if error.is_failure() {
            match self.due(error, QUIET) {
                Some(0) => log::error!("{what}: {error}"),
                Some(more) => log::error!("{what}: {error} (as {more} others before it)"),
                None => log::debug!("{what}: {error}"),
            }
        }
        error.to_io()
    }

    /// Returns how many failures of this kind were left out before this one, which is reported. `None` if it is
    /// left out, too.
    fn due(&self, error: &RequestError, quiet: Duration) -> Option<u64> {
        let text = match error {
            RequestError::Denied(text) | RequestError::NotListed(text) => Some(text.clone()),
            RequestError::Other(text) | RequestError::Unsigned(text) => Some(text.clone()),
            _ => None,
        };
        let mut reports = self.reported.lock();
        let kind = (discriminant(error), text);
        if let Some(report) = reports.get_mut(&kind) {
            if report.at.elapsed() < quiet {
                report.left_out += 1;
                return None;
            }
            let left_out = std::mem::take(&mut report.left_out);
            report.at = Instant::now();
            return Some(left_out);
        }
        reports.put(kind, Report { at: Instant::now(), left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_failures_of_a_kind_one_is_reported_and_the_others_are_counted() {
        let reports = Reports::default();
        let due = |error: &RequestError| reports.due(error, QUIET);
        let wrong = |n: u64| RequestError::Wrong(format!("{n} bytes from 0"));
        assert_eq!(due(&wrong(0)), Some(0));
        assert!((1..100).all(|n| due(&wrong(n)).is_none()));
        let denied = |why: &str| RequestError::Denied(why.to_owned());
        assert_eq!(due(&denied("InvalidToken")), Some(0));
        assert_eq!(due(&denied("AccessDenied")), Some(0), "another reason");
        assert_eq!(due(&denied("AccessDenied")), None);
        assert_eq!(reports.due(&wrong(7), Duration::ZERO), Some(99), "some time later");
        assert_eq!(reports.due(&wrong(7), Duration::ZERO), Some(0));
    }
}
