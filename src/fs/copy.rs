//! Copies of files that are durable nowhere else.

use std::fs;
use std::path::PathBuf;

use crate::text::shown;

/// Copy of a file that is durable nowhere else.
#[derive(Debug)]
pub(super) struct Copy(pub(super) PathBuf);

impl Copy {
    /// Removes the copy when it is no longer needed.
    pub(super) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.0) {
            log::warn!("{}: it is needed no more, and cannot be removed: {error}", shown(&self.0));
        }
    }
}
