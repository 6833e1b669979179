//! Lookups and attributes as a caller may see them.

use std::ffi::OsStr;

use crate::fs::attr::{Attr, Entry};
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::state::fs::Fs;
use crate::store::storage::Need;

impl Fs {
    /// Looks a name up for a caller. The kernel must not cache entries that other users may not
    /// look up; it caches the absence of what is `None`, and not that of `NotFound`.
    pub fn lookup_for(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<Option<Entry>> {
        let is_shown = self.permit_directory(parent, Need::Find, caller)?;
        let Some(entry) = self.lookup(parent, name)? else {
            let lasts = is_shown && !self.may_reappear(parent, name);
            return if lasts { Ok(None) } else { Err(FsError::NotFound) };
        };
        // In an immutable mount files are not opened before they are read.
        let need = if self.config.store.immutable { Need::Read } else { Need::Find };
        let permitted = self.permit(&self.target(entry.attr.ino)?, need, caller);
        if permitted.is_err() {
            self.forget(entry.attr.ino, 1);
        }
        let lasting = permitted? && is_shown && entry.lasting;
        Ok(Some(Entry { lasting, ..entry }))
    }

    /// Returns the attributes of an inode, or of an open file, for a caller, and whether the kernel
    /// may cache them.
    pub fn getattr_for(
        &self,
        ino: u64,
        handle: Option<u64>,
        caller: &Caller,
    ) -> Result<(Attr, bool)> {
        let is_shown = match handle {
            // The permission was checked when the file was opened.
            Some(_) => !self.is_behind(ino),
            None => self.permit(&self.target(ino)?, Need::Find, caller)?,
        };
        let (attr, lasting) = self.getattr(ino, handle)?;
        Ok((attr, lasting && is_shown))
    }
}
