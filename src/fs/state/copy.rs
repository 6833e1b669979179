//! Copies of files that are durable nowhere else.

use std::fs;
use std::path::PathBuf;

use crate::text::shown;

/// Durable copy of a file that is durable nowhere else, removed when it is dropped.
#[derive(Debug)]
pub(in crate::fs) struct Copy {
    /// Directory in the spool that holds nothing else; empty if the copy is to stay.
    pub(in crate::fs) directory: PathBuf,
}

impl Copy {
    /// Leaves the copy where it is when the mount ends.
    pub(in crate::fs) fn stay(mut self) {
        let directory = std::mem::take(&mut self.directory);
        log::error!("what is below {} could not be saved elsewhere", shown(&directory));
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if !self.directory.as_os_str().is_empty()
            && let Err(error) = fs::remove_dir_all(&self.directory)
        {
            let path = shown(&self.directory);
            log::warn!("{path}: it is needed no more, and cannot be removed: {error}");
        }
    }
}
