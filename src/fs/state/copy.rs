//! Copies of files that are durable nowhere else.

use std::fs;
use std::path::PathBuf;

use crate::text::shown;

/// Copy of a file that is durable nowhere else.
#[derive(Debug)]
pub(in crate::fs) struct Copy(pub(in crate::fs) PathBuf);

impl Copy {
    /// Removes the copy when it is no longer needed.
    pub(in crate::fs) fn remove(self) {
        if let Err(error) = fs::remove_file(&self.0) {
            log::warn!("{}: it is needed no more, and cannot be removed: {error}", shown(&self.0));
        }
    }
}
