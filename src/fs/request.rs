//! What callers ask for: how to open a file, what to set, how to write.

use std::sync::Arc;

use crate::fs::state::live_file::OpenFile;
use crate::fs::state::opener::Opener;
use crate::store::storage::{Need, Timestamp};

/// Options for opening a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Open for writing.
    pub write: bool,
    /// Truncate the file to no contents.
    pub truncate: bool,
    /// Fail if the file exists.
    pub exclusive: bool,
}

/// Options of a write to an open file.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteHow {
    /// Write at the current end of the file, whatever length the kernel has cached.
    pub append: bool,
    /// The data comes from mapped pages.
    pub mapped: bool,
}

/// Origin of written data.
#[derive(Default)]
pub(super) struct Writers {
    /// Open files that may have written it.
    pub open: Vec<Arc<OpenFile>>,
    /// `true` if it comes from the kernel's pages.
    pub mapped: bool,
    /// User with limited rights who changes the length by name.
    pub by_name: Option<Arc<Opener>>,
}

impl Writers {
    /// Returns the users with limited rights among them, and the access that each needs to the shard that is
    /// changed. None of pages, of which it is unknown who has written them.
    pub(super) fn needs(&self) -> Vec<(&Opener, Need)> {
        if self.mapped {
            return Vec::new();
        }
        let writable = self.open.iter().filter(|open| open.is_writable);
        let opened = writable.filter_map(|open| open.opener.as_deref());
        let by_name = self.by_name.as_deref();
        opened.chain(by_name).map(|opener| (opener, Need::Write)).collect()
    }
}

/// Changes to a file's attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<Timestamp>,
    /// Time of the last change of the contents.
    pub mtime: Option<Timestamp>,
    /// `true` if both times are set to now, for which permission to write to the file is enough.
    pub is_now: bool,
}
