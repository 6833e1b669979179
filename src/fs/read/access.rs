//! Access control: the rights with which the source is accessed for a caller.
//!
//! The kernel checks permissions by the attributes that the mount shows: owner, group, permissions
//! (`default_permissions`), and in a mount that other users may access the access control lists.
//! The rest is checked here:
//!
//! ```text
//! what is passed through     the kernel, and then the source's filesystem, as the caller
//! a chunk                    the kernel, by its shard; when it is opened, and when it is another
//!                            shard's later ([`super::openers`]), also the source's filesystem, as
//!                            the caller
//! behind a link that the     the source's filesystem, as the caller, for every lookup; the kernel
//! mount follows by itself    caches neither names nor attributes
//! a file of a whole array    when it is opened: all its shards, as the caller; later each that is
//!                            another by then
//! ```
//!
//! A process that is not root cannot act as the caller. Then the kernel's check decides, and other
//! users are refused access to files behind a link.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::caller::{Author, Caller, Permitted};
use crate::fs::error::{FsError, Result};
use crate::fs::node::{ArrayView, At};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{LiveFile, Place};
use crate::fs::state::target::Target;
use crate::store::access_list::{Inherited, inherited};
use crate::store::identity::Identity;
use crate::store::storage::{Need, PosixStorage, SetStat, Stat, StorageFile};
use crate::text::shown;

impl Fs {
    /// Works on the filesystem of the source for a caller, with the caller's rights if this process
    /// can assume them.
    ///
    /// # Errors
    ///
    /// `ReadOnly` if files of the source cannot be changed.
    pub(in crate::fs) fn on_behalf<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&dyn PosixStorage) -> io::Result<T>,
    ) -> Result<T> {
        let storage = self.storage.files().ok_or(FsError::ReadOnly)?;
        let identity = self.access.identity(caller)?;
        Ok(identity.act(|| work(storage))??)
    }

    /// Opens a file of the source for reading, with the caller's rights if this process can assume
    /// them.
    pub(in crate::fs) fn open_on_behalf(
        &self,
        caller: &Caller,
        path: &Path,
    ) -> Result<Arc<dyn StorageFile>> {
        let identity = self.access.identity(caller)?;
        Ok(identity.act(|| self.storage.open(path))??)
    }

    /// Returns whether the source has rights that are to be checked.
    pub(in crate::fs) fn has_rights(&self) -> bool {
        self.config.shared && self.storage.posix().is_some()
    }

    /// Checks that a caller may list a directory; returns whether the kernel may cache what is
    /// below it.
    pub(in crate::fs) fn permit_listing(&self, ino: u64, caller: &Caller) -> Result<bool> {
        self.permit_directory(ino, Need::Read, caller)
    }

    /// Returns whether a node is behind a link that the mount follows by itself.
    pub(in crate::fs) fn is_behind(&self, ino: u64) -> bool {
        let is_behind = |target: &Target| {
            let path = self.taken_from(target)?;
            Some(self.is_hidden_way(target, &path))
        };
        self.has_rights() && self.target(ino).is_ok_and(|target| is_behind(&target) == Some(true))
    }

    pub(in crate::fs) fn permit_directory(
        &self,
        ino: u64,
        need: Need,
        caller: &Caller,
    ) -> Result<bool> {
        if !self.has_rights() {
            return Ok(true);
        }
        match self.target(ino)? {
            // The path may lead elsewhere than when the kernel checked it.
            Target::Path(path) if self.access.acts && !self.is_trusted(caller) => {
                match self.on_behalf(caller, |storage| storage.access(&path, need)) {
                    Err(error) if error.errno() == libc::ENOENT => Ok(true),
                    permitted => permitted.map(|_| true),
                }
            }
            target => self.permit(&target, need, caller),
        }
    }

    /// Checks that a caller may follow the link that the mount follows by itself on the way to a
    /// node, and has the access `need` behind it. Returns whether there is no such link.
    pub(in crate::fs) fn permit(
        &self,
        target: &Target,
        need: Need,
        caller: &Caller,
    ) -> Result<bool> {
        if !self.has_rights() {
            return Ok(true);
        }
        let Some(path) = self.taken_from(target) else { return Ok(true) };
        if !self.is_hidden_way(target, &path) {
            return Ok(true);
        }
        self.permit_path(&path, need, caller).map(|_| false)
    }

    /// Checks that a caller may read, or write, the contents of a file.
    pub(in crate::fs) fn permit_content(
        &self,
        target: &Target,
        need: Need,
        caller: &Caller,
    ) -> Result<Permitted> {
        let Some(author) = self.limited(caller) else { return Ok(Permitted::Anything) };
        let Some(path) = self.taken_from(target) else { return Ok(Permitted::Anything) };
        let place = match target {
            Target::Live(file) => self.place_of(file),
            Target::Tree(array, coords) => {
                Some(Place { array: Arc::clone(array), coords: coords.clone() })
            }
            _ => None,
        };
        // What is stored is compared with what was permitted when it is found; what is not is the array's
        // that it was written to.
        let is_compared = matches!((need, target), (Need::Read, Target::Tree(..)));
        let Some(Place { array, coords }) = place.as_ref().filter(|_| !is_compared) else {
            return self.permit_author(&author, &path, need);
        };
        let permitted = self.permit_in_array(array, &path, need, &author)?;
        if let (Permitted::Nothing, Target::Tree(..)) = (permitted, target) {
            // A chunk that is shown although it has no shard: writing to it creates one.
            let above = coords.split_last().map_or(&[][..], |(_, above)| above);
            let above = self.nearest_directory(array, above)?.0;
            if let Permitted::Nothing = self.permit_in_array(array, &above, need, &author)? {
                return Err(FsError::Stale);
            }
        }
        Ok(permitted)
    }

    /// Checks that a user may access a file of an array, in the directory that its chunks will be
    /// committed to, wherever the path leads by then.
    pub(in crate::fs) fn permit_in_array(
        &self,
        array: &ArrayView,
        path: &Path,
        need: Need,
        author: &Author,
    ) -> Result<Permitted> {
        let by_path = || self.permit_author(author, path, need);
        let directory = &array.source.path;
        let is_bound = self.access.acts && array.place.is_some();
        let opened = if is_bound { self.find_array(array)? } else { None };
        let Some(opened) = opened else { return by_path() };
        let identity = author.identity.as_ref().ok_or(FsError::Denied)?;
        let opened = (&*opened, &**directory);
        if opened.0.is_linked(path).unwrap_or(false) {
            // What is committed takes the link's place.
            let above = path.parent().unwrap_or(directory);
            if let Permitted::Nothing = self.permit_within(opened, identity, above, need)? {
                return Err(FsError::Denied);
            }
            return by_path();
        }
        self.permit_within(opened, identity, path, need)
    }

    /// Checks that a user finds a directory that is open, and may access a file in it.
    pub(in crate::fs) fn permit_within(
        &self,
        opened: (&dyn PosixStorage, &Path),
        identity: &Identity,
        path: &Path,
        need: Need,
    ) -> Result<Permitted> {
        let there = opened.0.stat(opened.1)?;
        self.permit_as(identity, opened.1, Need::Find)?.check(there.id())?;
        Self::permit_in(opened.0, identity, path, need)
    }

    /// Opens the directory of an array as [`Self::open_array`] does.
    ///
    /// # Errors
    ///
    /// `Stale` if others have put another array in its place, which is loaded for the next attempt.
    pub(in crate::fs) fn find_array(
        &self,
        array: &ArrayView,
    ) -> Result<Option<Arc<dyn PosixStorage>>> {
        self.open_array(array).map_err(|error| match error.raw_os_error() {
            Some(libc::ESTALE) => {
                self.nodes.forget(&array.source.path);
                FsError::Stale
            }
            _ => error.into(),
        })
    }

    /// Opens the directory of an array, in which its chunks are committed. `None` where the storage has no
    /// such thing.
    ///
    /// # Errors
    ///
    /// ESTALE if others have put another array in its place.
    pub(in crate::fs) fn open_array(
        &self,
        array: &ArrayView,
    ) -> io::Result<Option<Arc<dyn PosixStorage>>> {
        let path = &array.source.path;
        let Some(storage) = self.storage.posix() else { return Ok(None) };
        let Some(opened) = storage.within(path)? else { return Ok(None) };
        let there = opened.stat(path)?.id();
        // A directory that has come to be since.
        if array.place.is_none() || array.place == Some(there) {
            return Ok(Some(opened));
        }
        // Some filesystems give a directory another number while its document keeps its own.
        let document = self.nodes.document_path(path)?;
        let is_described = |stat: Stat| array.described_by == Some(stat.id());
        let is_it = document.starts_with(path) && opened.stat(&document).is_ok_and(is_described);
        match is_it {
            true => Ok(Some(opened)),
            false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        }
    }

    /// Checks that a caller may write to the shard of a chunk.
    pub(in crate::fs) fn permit_change(&self, place: &Place, caller: &Caller) -> Result<()> {
        let target = Target::Tree(Arc::clone(&place.array), place.coords.clone());
        self.permit_content(&target, Need::Write, caller).map(drop)
    }

    /// Checks that a caller may give a file a name that is passed through, as the source's directory
    /// is now: the kernel has checked it as it was shown.
    pub(in crate::fs) fn permit_name(&self, path: &Path, caller: &Caller) -> Result<()> {
        if !self.has_rights() {
            return Ok(());
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        self.permit_path(directory, Need::Write, caller).map(drop)
    }

    pub(in crate::fs) fn permit_path(
        &self,
        path: &Path,
        need: Need,
        caller: &Caller,
    ) -> Result<Permitted> {
        match self.is_trusted(caller) {
            true => Ok(Permitted::Anything),
            false => self.permit_author(&self.author(caller), path, need),
        }
    }

    pub(in crate::fs) fn permit_author(
        &self,
        author: &Author,
        path: &Path,
        need: Need,
    ) -> Result<Permitted> {
        if !self.access.acts {
            return if self.is_linked(path)? {
                Err(FsError::Denied)
            } else {
                Ok(Permitted::Anything)
            };
        }
        self.permit_as(author.identity.as_ref().ok_or(FsError::Denied)?, path, need)
    }

    pub(in crate::fs) fn permit_as(
        &self,
        identity: &Identity,
        path: &Path,
        need: Need,
    ) -> Result<Permitted> {
        let storage = self.storage.posix().ok_or(FsError::ReadOnly)?;
        Self::permit_in(storage, identity, path, need)
    }

    fn permit_in(
        storage: &dyn PosixStorage,
        identity: &Identity,
        path: &Path,
        need: Need,
    ) -> Result<Permitted> {
        /// The file does not exist, or is damaged, which the store reports.
        const NOT_A_FILE: [i32; 4] = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EXDEV];
        match identity.act(|| storage.access(path, need)).flatten().map_err(FsError::from) {
            Err(error) if NOT_A_FILE.contains(&error.errno()) => Ok(Permitted::Nothing),
            permitted => permitted.map(Permitted::File),
        }
    }

    /// Returns a user who may not do everything, as the author of a change: what it leads to is done as
    /// far as that user may do it. `None` for one who may do everything.
    pub(in crate::fs) fn limited(&self, caller: &Caller) -> Option<Author> {
        let is_limited = self.has_rights() && !self.is_trusted(caller);
        is_limited.then(|| self.author(caller))
    }

    /// Returns a caller as the author of a change, or as who has opened a file.
    pub(in crate::fs) fn author(&self, caller: &Caller) -> Author {
        Author { caller: *caller, identity: self.access.identity(caller).ok() }
    }

    /// Returns whether a caller has all the rights that this process has.
    pub(in crate::fs) fn is_trusted(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.access.own
    }

    /// Returns whether the path to a file of the source contains links or directories that the
    /// mount does not show.
    fn is_hidden_way(&self, target: &Target, path: &Path) -> bool {
        matches!(target, Target::Tree(array, _) if array.source.format.is_numbered())
            || self.is_linked(path).unwrap_or(true)
    }

    pub(in crate::fs) fn is_linked(&self, path: &Path) -> io::Result<bool> {
        self.storage.posix().map_or(Ok(false), |storage| storage.is_linked(path))
    }

    /// Returns the file of the source that the mount accesses by itself for a node; `None` if there
    /// is none.
    fn taken_from(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Path(path) => match self.nodes.at(path) {
                Ok(At::Text(..)) => self.document_of(path).ok(),
                _ => None,
            },
            _ => self.shards_of(target),
        }
    }

    /// Returns the path of the document that a document of the view is generated from.
    pub(in crate::fs) fn document_of(&self, path: &Path) -> Result<PathBuf> {
        let described = match self.nodes.described_by(path)? {
            Some(described) => described,
            None => path.parent().unwrap_or(Path::new("")).to_owned(),
        };
        Ok(self.nodes.document_path(&described)?)
    }

    /// Returns the path of the shard of a chunk, or of the directory of the shards below a
    /// directory; `None` for other nodes.
    pub(in crate::fs) fn shards_of(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                Some(array.source.shard_path_of(coords))
            }
            Target::Tree(array, coords) if array.source.format.has_keys() => {
                Some(self.shard_directory(array, coords))
            }
            Target::Tree(array, _) => Some(array.source.path.clone()),
            Target::Live(file) => {
                let Place { array, coords } = self.place_of(file)?;
                self.shards_of(&Target::Tree(array, coords))
            }
            _ => None,
        }
    }

    /// Returns the chunk that a file of the overlay is by one of its names.
    pub(in crate::fs) fn place_of(&self, file: &LiveFile) -> Option<Place> {
        let paths = file.state().names.clone();
        let names = self.overlay.as_ref()?.names();
        paths.iter().find_map(|path| names.get(path)?.place.clone())
    }

    /// Returns the path that the attributes of a directory are taken from if its shards' directory
    /// does not exist; `None` for other nodes.
    pub(in crate::fs) fn shown_for(&self, target: &Target) -> Result<Option<PathBuf>> {
        match target {
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                Ok(Some(self.nearest_directory(array, coords)?.0))
            }
            _ => Ok(None),
        }
    }

    /// Returns the directory of the shards below a directory above chunks, with its attributes, or
    /// as long as it does not exist the nearest one above it. Whoever may write to that one may
    /// create it, and no other user.
    pub(in crate::fs) fn nearest_directory(
        &self,
        array: &ArrayView,
        coords: &[u64],
    ) -> Result<(PathBuf, Stat)> {
        let mut path = self.shard_directory(array, coords);
        while array.source.format.has_keys() && path != array.source.path {
            if let Some(stat) = self.store.shard_directory(&path)? {
                return Ok((path, stat));
            }
            path.pop();
        }
        let stat = self.storage.stat(&array.source.path)?;
        Ok((array.source.path.clone(), stat))
    }

    /// Returns the access control list that a new file in a directory of the view will have: until
    /// it is committed no user may do more with it. `None` if it will have none.
    pub(in crate::fs) fn inherited_in(&self, parent: u64, mode: u32) -> Result<Option<Inherited>> {
        let Some(storage) = self.storage.posix().filter(|_| self.has_rights()) else {
            return Ok(None);
        };
        let directory = match self.target(parent)? {
            Target::Tree(array, coords) => self.nearest_directory(&array, &coords)?.0,
            Target::Path(path) => path.to_path_buf(),
            _ => return Ok(None),
        };
        Ok(inherited(storage, &directory, mode)?)
    }

    /// Gives a new file to the caller if it could not be created with the caller's rights.
    pub(in crate::fs) fn own(&self, path: &Path, caller: &Caller) {
        if self.access.acts || !rustix::process::geteuid().is_root() {
            return;
        }
        let Some(storage) = self.storage.posix() else { return };
        let parent = path.parent().and_then(|parent| self.storage.stat(parent).ok());
        // New files in the directory inherit its group.
        let is_group_kept = parent.is_some_and(|parent| parent.mode & libc::S_ISGID != 0);
        let gid = (!is_group_kept).then_some(caller.gid);
        let set = SetStat { uid: Some(caller.uid), gid, ..SetStat::default() };
        if let Err(error) = storage.give_new(path, &set) {
            log::debug!("{}: {error}", shown(&path));
        }
    }
}
