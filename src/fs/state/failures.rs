//! Changes that were given up after their file was closed, remembered until they have been reported
//! to everyone entitled to the error.
//!
//! Each failure has a number. Opening a file or a directory records the first number to report
//! through the new handle: the oldest failure that has not been reported yet, and all later ones.
//! `fsync` of the handle reports, once, what has failed at or below its path. A failure that was
//! reported is not reported to later openers again, unless an older one has not been reported yet.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::fs::error::{FsError, Result};
use crate::store::StoreError;
use crate::text::{Line, shown};

/// Maximum number of failures to keep one by one. Beyond it the oldest are joined: they count for
/// their common ancestor directory, and for everything in it.
const MOST: usize = 4096;

/// Failures of a mount.
#[derive(Debug, Default)]
pub(in crate::fs) struct Failures(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    failures: VecDeque<Failure>,
    /// Number of failures so far.
    count: u64,
    /// Failures to report by open handle; a handle that is not in the table gets all.
    handles: HashMap<u64, Since>,
}

/// First failures to report through an open handle.
#[derive(Debug, Clone, Copy, Default)]
struct Since {
    /// Number of the first one to report by `fsync`.
    unreported: u64,
    /// Number of the first one to report by `close`.
    opened: u64,
}

#[derive(Debug)]
struct Failure {
    number: u64,
    path: PathBuf,
    error: Arc<StoreError>,
    /// `true` if it joins several failures: everything below `path` may have failed.
    is_joined: bool,
    /// `true` once it was reported to a process.
    is_reported: bool,
    /// `true` while it is in the list of uncommitted changes: until that is read after it was
    /// reported.
    is_listed: bool,
}

impl Failure {
    /// Returns whether the failure concerns something at or below `path`.
    fn is_below(&self, path: &Path) -> bool {
        self.path.starts_with(path) || self.is_joined && path.starts_with(&self.path)
    }
}

impl Known {
    /// Returns the number of the first failure to report to a new opener.
    fn sample(&self) -> u64 {
        let unreported = self.failures.iter().find(|failure| !failure.is_reported);
        unreported.map_or(self.count, |failure| failure.number)
    }

    /// Joins the two oldest failures into one.
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

    /// Records that the change of `path` was given up.
    pub(in crate::fs) fn record(&self, path: &Path, error: &Arc<StoreError>) {
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

    /// Registers an open file or directory.
    pub(in crate::fs) fn opened(&self, handle: u64) {
        let mut known = self.known();
        let since = Since { unreported: known.sample(), opened: known.count };
        if since.opened > 0 {
            known.handles.insert(handle, since);
        }
    }

    /// Unregisters a handle.
    pub(in crate::fs) fn closed(&self, handle: u64) {
        self.known().handles.remove(&handle);
    }

    /// Reports failures at or below any of `paths` and marks them as reported.
    ///
    /// # Errors
    ///
    /// Returns the first failure that was not reported through `handle`; without a handle, the
    /// first from the oldest unreported one on.
    pub(in crate::fs) fn report<'a>(
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

    /// Checks for failures of any of `paths` since the handle was opened. They do not count as
    /// reported: few programs check the result of `close`.
    pub(in crate::fs) fn check<'a>(
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

    /// Returns a line for each failure that was not reported yet, or whose reason was not read
    /// since.
    pub(in crate::fs) fn list(&self) -> String {
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

    fn is_reported(failures: &Failures, handle: Option<u64>, path: &str) -> bool {
        failures.report(handle, [Path::new(path)]).is_err()
    }

    #[test]
    fn whoever_had_it_open_is_told_once_and_later_openers_only_if_nobody_was() {
        let failures = Failures::default();
        failures.opened(1);
        failures.opened(2);
        failed(&failures, "a/c/0");
        failures.opened(3);
        assert!(!is_reported(&failures, Some(1), "a/c/1"), "of another file");
        failures.opened(4);
        assert!(is_reported(&failures, Some(2), "a"));
        assert!(!is_reported(&failures, Some(2), "a"), "once");
        assert!(is_reported(&failures, Some(3), "a/c/0"));
        assert!(is_reported(&failures, Some(4), ""));
        failures.opened(5);
        assert!(!is_reported(&failures, Some(5), ""));
        assert!(!is_reported(&failures, None, ""));
        failed(&failures, "a/c/0");
        assert!(is_reported(&failures, Some(5), "") && is_reported(&failures, Some(2), "a"));
    }

    #[test]
    fn a_failure_is_listed_until_it_was_reported_and_then_read() {
        let failures = Failures::default();
        failed(&failures, "a/c/0");
        assert!(failures.list().starts_with("a/c/0: given up: "));
        assert!(is_reported(&failures, None, ""));
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
            assert!(is_reported(&failures, None, path), "{path}");
        }
    }
}
