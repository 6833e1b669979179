//! Files that have the name of a document and are none.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::store::storage::{Stat, Version};

/// Maximum number of remembered directories.
const MAX_DIRECTORIES: usize = 10_000;

/// Directories in which a file has the name of a document but arbitrary contents, with the version of that
/// file; `None` while it is being written. They were written through this mount, where there was no array.
#[derive(Debug, Default)]
pub(super) struct PlainFiles {
    directories: Mutex<HashMap<PathBuf, Option<Version>>>,
}

impl PlainFiles {
    /// Records such a file.
    pub(super) fn set(&self, directory: &Path, version: Option<Version>) {
        let mut directories = self.directories.lock();
        if directories.len() < MAX_DIRECTORIES || directories.contains_key(directory) {
            directories.insert(directory.to_owned(), version);
        }
    }

    /// Records that there is none any more.
    pub(super) fn unset(&self, directory: &Path) {
        self.directories.lock().remove(directory);
    }

    /// Returns whether such a file is recorded, and is still the one that `stat` finds.
    pub(super) fn is_set(&self, directory: &Path, stat: impl Fn() -> io::Result<Stat>) -> bool {
        let known = || self.directories.lock().get(directory).copied();
        let Some(mut before) = known() else { return false };
        loop {
            // While it is being written, any file there is such a file.
            let Some(written) = before else { return true };
            if stat().is_ok_and(|stat| written.has_same_content(&stat.version())) {
                return true;
            }
            // Another one may have replaced it through this mount meanwhile: then that one counts.
            match known() {
                Some(now) if now != before => before = now,
                _ => return false,
            }
        }
    }
}
