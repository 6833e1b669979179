//! What users with limited rights may read through files that they have opened.
//!
//! This process reads the source with all its rights, by paths that lead elsewhere once others have put a
//! link, another file or another directory in their places. So whatever is read for such a user is compared
//! with what was permitted when the file was opened:
//!
//! ```text
//! open   is the shard that the path leads to permitted? ---> Opener: the user, and that shard
//! read   bytes of a shard ---> is it one of those? ---no---> is the one there now permitted, and is it
//!                                                            the one that the bytes are from?
//! ```

use std::path::Path;
use std::sync::Arc;

use crate::fs::caller::{Caller, Permitted};
use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::LiveFile;
use crate::fs::state::opener::Opener;
use crate::fs::state::target::Target;
use crate::source::describing;
use crate::store::storage::{Need, Stat, Version, if_present};

/// Number of attempts at a lookup of a chunk whose shard changes during it.
pub(in crate::fs) const OPEN_ATTEMPTS: usize = 4;

/// Maximum number of shards of an array whose whole files users with limited rights may open.
const MAX_SHARDS: usize = 10_000;

impl Fs {
    /// Returns a caller with limited rights as who opens a new file. `None` for one who may do anything.
    pub(in crate::fs) fn opener(&self, caller: &Caller) -> Option<Arc<Opener>> {
        self.limited(caller).map(|author| Arc::new(Opener::new(author)))
    }

    /// Checks that a caller may open a file; returns the caller if that one has limited rights.
    pub(in crate::fs) fn permit_opening(
        &self,
        target: &Target,
        need: Need,
        caller: &Caller,
    ) -> Result<Option<Arc<Opener>>> {
        let Some(author) = self.limited(caller) else { return Ok(None) };
        let opener = Opener::new(author);
        if let Target::Flat(array, _) = target {
            self.permit_array(&opener, array)?;
        } else if let Permitted::File(file) = self.permit_content(target, need, caller)? {
            opener.permit(file.version(), need);
        }
        Ok(Some(Arc::new(opener)))
    }

    /// Checks that a user may read all shards of an array.
    fn permit_array(&self, opener: &Opener, array: &ArrayView) -> Result<()> {
        let mut left = MAX_SHARDS;
        self.store.each_shard(&array.source, &mut |shard: &[u64]| {
            left = left.checked_sub(1).ok_or(FsError::Denied)?;
            let path = array.source.shard_path(shard);
            if let Permitted::File(file) = self.permit_author(&opener.author, &path, Need::Read)? {
                opener.permit(file.version(), Need::Read);
            }
            Ok(())
        })
    }

    /// Checks that a user who has opened a file may access the shard that bytes of a chunk are from. Anything
    /// is permitted without an `opener`.
    ///
    /// # Errors
    ///
    /// `Denied`, or `Stale` if the shard is no longer where the user would find it.
    pub(in crate::fs) fn permit_shard(
        &self,
        opener: Option<&Opener>,
        need: Need,
        (array, coords): (&ArrayView, &[u64]),
        shard: Version,
    ) -> Result<()> {
        let is_new = |opener: &&Opener| !opener.is_permitted(shard, need);
        let Some(opener) = opener.filter(is_new) else { return Ok(()) };
        let path = array.source.shard_path_of(coords);
        self.permit_author(&opener.author, &path, need)?.check(shard.id())?;
        opener.permit(shard, need);
        Ok(())
    }

    /// Returns whether bytes of a chunk are from a shard in the directory of its array, or from behind a link in
    /// it. Always, in a mount that others may not use.
    ///
    /// # Errors
    ///
    /// `Stale` if they are from elsewhere: the path to the shard has led there.
    pub(in crate::fs) fn is_in_array(
        &self,
        (array, coords): (&ArrayView, &[u64]),
        shard: Version,
    ) -> Result<bool> {
        if !self.has_rights() || !self.access.acts() {
            return Ok(true);
        }
        let path = array.source.shard_path_of(coords);
        let opened = if array.place.is_some() { self.find_array(array)? } else { None };
        let storage = match &opened {
            Some(opened) => &**opened,
            None => self.storage.posix().ok_or(FsError::ReadOnly)?,
        };
        if storage.is_linked(&path)? {
            return Ok(false);
        }
        match if_present(storage.stat(&path))? {
            Some(there) if there.id() == shard.id() => Ok(true),
            _ => Err(FsError::Stale),
        }
    }

    /// Checks that a user who has a chunk of `array` open as it is stored may read what is written to it: that
    /// may be a chunk of another array, which has been put in the place of the one.
    pub(in crate::fs) fn permit_written(
        &self,
        opener: Option<&Opener>,
        array: &ArrayView,
        file: &LiveFile,
    ) -> Result<()> {
        let Some(opener) = opener else { return Ok(()) };
        let Some(now) = self.place_of(file) else { return Ok(()) };
        if now.array.place.is_some() && now.array.place == array.place {
            return Ok(());
        }
        let path = now.array.source.shard_path_of(&now.coords);
        match self.permit_in_array(&now.array, &path, Need::Read, &opener.author)? {
            Permitted::Nothing => Err(FsError::Stale),
            Permitted::File(_) | Permitted::Anything => Ok(()),
        }
    }

    /// Checks that a user who has a file of the overlay open may read the bytes that were loaded into it from a
    /// shard behind a link: whoever may put a link in the place of a shard may not read what it leads to.
    pub(in crate::fs) fn permit_linked(
        &self,
        opener: Option<&Opener>,
        file: &LiveFile,
        shard: Version,
    ) -> Result<()> {
        let Some(opener) = opener else { return Ok(()) };
        match self.place_of(file) {
            _ if opener.is_permitted(shard, Need::Read) => Ok(()),
            Some(now) => {
                let chunk = (&*now.array, &*now.coords);
                self.permit_shard(Some(opener), Need::Read, chunk, shard)
            }
            // Without a name there is no way to it.
            None => Err(FsError::Stale),
        }
    }

    /// Checks that a user may read a document of the view, which was generated from `document`.
    pub(in crate::fs) fn permit_document(
        &self,
        opener: Option<&Opener>,
        path: &Path,
        document: &Stat,
    ) -> Result<()> {
        let is_new = |opener: &&Opener| !opener.is_permitted(document.version(), Need::Read);
        let Some(opener) = opener.filter(is_new) else { return Ok(()) };
        let above = || path.parent().unwrap_or(Path::new("")).to_owned();
        let directory = self.nodes.described_by(path)?.unwrap_or_else(above);
        let usual = self.document_of(path)?;
        let mut is_among = false;
        for there in std::iter::once(usual).chain(describing(&directory)) {
            let permitted = self.permit_author(&opener.author, &there, Need::Read)?;
            is_among |= permitted.check(document.id()).is_ok();
        }
        if is_among {
            return Ok(());
        }
        // It is read anew for the next attempt.
        self.nodes.forget(&directory);
        Err(FsError::Stale)
    }
}
