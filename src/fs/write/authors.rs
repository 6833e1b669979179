//! Authors of changes that are stored later, and the directories that these are stored in.
//!
//! Where a change is stored, this process has all rights. A path may lead elsewhere by then: whoever may
//! write to the directory above can exchange two in it, one of them another user's. So what a change is
//! permitted for, and what it is stored in, is one directory, which is open meanwhile.

use std::path::Path;

use crate::fs::attr::Attr;
use crate::fs::caller::{Author, Caller, Permitted};
use crate::fs::error::{FsError, Result};
use crate::fs::state::fs::Fs;
use crate::store::identity::Identity;
use crate::store::storage::{Need, PosixStorage};

impl Fs {
    /// Checks that a caller may give names to files in a directory that is open, and take them.
    pub(in crate::fs) fn permit_in_directory(
        &self,
        opened: (&dyn PosixStorage, &Path),
        caller: &Caller,
    ) -> Result<()> {
        match self.limited(caller) {
            None => Ok(()),
            Some(_) if !self.access.acts() => {
                self.permit_path(opened.1, Need::Write, caller).map(drop)
            }
            Some(author) => self.permit_all_in(opened, opened.1, &[author]),
        }
    }

    /// Returns whether all of these users may write to a file or a directory of the source. Where this
    /// process cannot act as the caller, the attributes that the mount shows decide, as they do for chunks.
    pub(in crate::fs) fn may_all_write(&self, path: &Path, authors: &[Author]) -> bool {
        let may_as = |identity: &Identity| self.permit_as(identity, path, Need::Write).is_ok();
        let may = |author: &Author| match self.access.acts {
            true => author.identity.as_ref().is_some_and(may_as),
            false => self
                .storage
                .stat(path)
                .is_ok_and(|stat| may_write(&author.caller, &self.config.ownership.attr(0, &stat))),
        };
        authors.iter().all(may)
    }

    /// Checks that all of these users may write to a file or a directory of the source, in a directory that is
    /// open. For a process that acts as them.
    ///
    /// # Errors
    ///
    /// `Denied` if one of them may not, or something else if that cannot be found out.
    pub(in crate::fs) fn permit_all_in(
        &self,
        opened: (&dyn PosixStorage, &Path),
        path: &Path,
        authors: &[Author],
    ) -> Result<()> {
        for author in authors {
            let identity = author.identity.as_ref().ok_or(FsError::Denied)?;
            match self.permit_within(opened, identity, path, Need::Write) {
                // It has just been there: nothing may be a link that leads nowhere, or away.
                Ok(Permitted::Nothing) | Err(FsError::Stale) => return Err(FsError::Denied),
                permitted => permitted.map(drop)?,
            }
        }
        Ok(())
    }
}

/// Returns whether the permission bits of a file let a caller write to it. Supplementary groups and
/// access control lists do not count.
fn may_write(caller: &Caller, file: &Attr) -> bool {
    let bit = match (caller.uid == file.uid, caller.gid == file.gid) {
        (true, _) => 0o200,
        (false, true) => 0o020,
        (false, false) => 0o002,
    };
    file.mode & bit != 0
}
