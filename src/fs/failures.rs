//! Changes that were given up after their writer had closed the file: remembered until everybody who
//! may ask has been told.
//!
//! Each failure has a number. Who opens a file or a directory remembers the first one that he is to be
//! told of: what nobody was told of yet, and everything later. His `fsync` reports, once, what has
//! happened at or below his path. A new opener is not told again of what somebody was told.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::{FsError, Result};
use crate::store::StoreError;
use crate::text::{Line, shown};

/// Failures to remember one by one. Beyond, the oldest are joined: they count for the directory above
/// them all, and for everything in it.
const MOST: usize = 4096;

/// The failures of a mount.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    failures: VecDeque<Failure>,
    /// Failures so far.
    count: u64,
    /// What each open handle is to be told; everything if it is not in here.
    handles: HashMap<u64, Since>,
}

/// Numbers from which on an open handle is told.
#[derive(Debug, Clone, Copy, Default)]
struct Since {
    /// By `fsync`.
    unreported: u64,
    /// By `close`.
    opened: u64,
}

#[derive(Debug)]
struct Failure {
    number: u64,
    path: PathBuf,
    error: Arc<StoreError>,
    /// Several failures in one: everything below `path` may have failed.
    is_joined: bool,
    /// Somebody was told.
    is_reported: bool,
    /// It stands in the list of what waits: until that was read after somebody was told.
    is_listed: bool,
}

impl Failure {
    /// Whether it happened to something at or below `path`.
    fn is_below(&self, path: &Path) -> bool {
        self.path.starts_with(path) || self.is_joined && path.starts_with(&self.path)
    }
}

impl Known {
    /// The first number that a new opener is to be told of.
    fn sample(&self) -> u64 {
        let unreported = self.failures.iter().find(|failure| !failure.is_reported);
        unreported.map_or(self.count, |failure| failure.number)
    }

    /// The two oldest become one.
    fn join_oldest(&mut self) {
        let (Some(first), Some(second)) = (self.failures.pop_front(), self.failures.front_mut())
        else {
            return;
        };
        let common = second.path.ancestors().find(|above| first.path.starts_with(above));
        second.path = common.unwrap_or(Path::new("")).to_owned();
        second.is_joined = true;
        second.is_reported &= first.is_reported;
        second.is_listed |= first.is_listed;
    }
}

impl Failures {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// The change of `path` was given up.
    pub(super) fn record(&self, path: &Path, error: &Arc<StoreError>) {
        let mut known = self.known();
        known.failures.retain(|failure| failure.path != path || failure.is_joined);
        let number = known.count;
        known.count += 1;
        known.failures.push_back(Failure {
            number,
            path: path.to_owned(),
            error: Arc::clone(error),
            is_joined: false,
            is_reported: false,
            is_listed: true,
        });
        while known.failures.len() > MOST {
            known.join_oldest();
        }
    }

    /// A file or a directory was opened.
    pub(super) fn opened(&self, handle: u64) {
        let mut known = self.known();
        let since = Since { unreported: known.sample(), opened: known.count };
        if since.opened > 0 {
            known.handles.insert(handle, since);
        }
    }

    /// It was closed.
    pub(super) fn closed(&self, handle: u64) {
        self.known().handles.remove(&handle);
    }

    /// Fails with what has happened at or below any of `paths` that the handle was not told of;
    /// without a handle, that nobody was told of.
    pub(super) fn report<'a>(
        &self,
        handle: Option<u64>,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<()> {
        let mut known = self.known();
        if known.failures.is_empty() {
            return Ok(());
        }
        let from = match handle {
            Some(handle) => known.handles.get(&handle).copied().unwrap_or_default().unreported,
            None => known.sample(),
        };
        let (mut first, count) = (Ok(()), known.count);
        for path in paths {
            let new = known.failures.iter_mut().filter(|failure| failure.number >= from);
            for failure in new.filter(|failure| failure.is_below(path)) {
                failure.is_reported = true;
                first = first.and(Err(FsError::Commit(Arc::clone(&failure.error))));
            }
        }
        if let Some(handle) = handle {
            known.handles.insert(handle, Since { unreported: count, opened: count });
        }
        first
    }

    /// Fails with what has happened to any of `paths` since the handle was opened. Nobody counts as
    /// told: few look at what `close` returns.
    pub(super) fn check<'a>(
        &self,
        handle: u64,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<()> {
        let known = self.known();
        let from = known.handles.get(&handle).copied().unwrap_or_default().opened;
        let new = || known.failures.iter().filter(|failure| failure.number >= from);
        let failed = paths.into_iter().find_map(|path| new().find(|one| one.is_below(path)));
        failed.map_or(Ok(()), |failure| Err(FsError::Commit(Arc::clone(&failure.error))))
    }

    /// A line for each failure that nobody was told of, or whose reason nobody has read since.
    pub(super) fn list(&self) -> String {
        let mut text = String::new();
        for failure in &mut self.known().failures {
            if failure.is_listed {
                // Writing to a string cannot fail.
                let _ =
                    writeln!(text, "{}: given up: {}", shown(&failure.path), Line(&failure.error));
                failure.is_listed = !failure.is_reported;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(failures: &Failures, path: &str) {
        let error = StoreError::Compressed { shard: path.into() };
        failures.record(Path::new(path), &Arc::new(error));
    }

    fn told(failures: &Failures, handle: Option<u64>, path: &str) -> bool {
        failures.report(handle, [Path::new(path)]).is_err()
    }

    #[test]
    fn whoever_had_it_open_is_told_once_and_later_openers_only_if_nobody_was() {
        let failures = Failures::default();
        failures.opened(1);
        failures.opened(2);
        failed(&failures, "a/c/0");
        failures.opened(3);
        assert!(!told(&failures, Some(1), "a/c/1"), "of another file");
        failures.opened(4);
        assert!(told(&failures, Some(2), "a"));
        assert!(!told(&failures, Some(2), "a"), "once");
        assert!(told(&failures, Some(3), "a/c/0"));
        assert!(told(&failures, Some(4), ""));
        failures.opened(5);
        assert!(!told(&failures, Some(5), ""));
        assert!(!told(&failures, None, ""));
        failed(&failures, "a/c/0");
        assert!(told(&failures, Some(5), "") && told(&failures, Some(2), "a"));
    }

    #[test]
    fn a_failure_is_listed_until_it_was_reported_and_then_read() {
        let failures = Failures::default();
        failed(&failures, "a/c/0");
        assert!(failures.list().starts_with("a/c/0: given up: "));
        assert!(told(&failures, None, ""));
        assert!(failures.list().starts_with("a/c/0: given up: "));
        assert_eq!(failures.list(), "");
    }

    #[test]
    fn what_is_too_much_to_remember_is_reported_all_the_same() {
        let failures = Failures::default();
        for number in 0..=MOST {
            failed(&failures, &format!("a/c/{number}"));
        }
        failed(&failures, "b/0");
        assert_eq!(failures.known().failures.len(), MOST);
        for path in ["a/c/0", "a/c/1", "a/c/2", "a/c/4000", "b"] {
            failures.opened(1);
            failures.known().failures.iter_mut().for_each(|failure| failure.is_reported = false);
            assert!(told(&failures, None, path), "{path}");
        }
    }
}
