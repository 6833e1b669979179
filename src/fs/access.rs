//! Access control: callers, and the rights with which the source is accessed for them.
//!
//! The kernel checks permissions by the attributes that the mount shows: owner, group, permissions
//! (`default_permissions`), and in a mount that other users may access the access control lists.
//! The rest is checked here:
//!
//! ```text
//! what is passed through     the kernel, and then the source's filesystem, as the caller
//! a chunk                    the kernel, by its shard; when it is opened also the source's
//!                            filesystem, as the caller
//! behind a link that the     the source's filesystem, as the caller, for every lookup; the kernel
//! mount follows by itself    caches neither names nor attributes
//! a file of a whole array    when it is opened: all its shards, as the caller
//! ```
//!
//! A process that is not root cannot act as the caller. Then the kernel's check decides, and other
//! users are refused access to files behind a link.

use std::ffi::OsStr;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::live::Place;
use super::nodes::{ArrayView, At};
use super::{Attr, Entry, Fs, FsConfig, FsError, Result, Target};
use crate::store::identity::Identity;
use crate::store::storage::{Need, SetStat, Stat, Storage};
use crate::text::shown;

/// Time for which the groups of a caller are cached.
const TRUSTED: Duration = Duration::from_secs(1);
/// Maximum number of callers to remember.
// Evaluated by the compiler, which rejects zero.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Maximum number of shards of an array whose flat files other users may open.
const MAX_SHARDS: u64 = 10_000;
/// User and group used to test whether this process may act as other users.
const ANYBODY: u32 = 65534;

/// Process that sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Thread that sent the request.
    pub pid: u32,
    /// Permission bits to clear in new files.
    pub umask: u32,
}

impl Caller {
    /// Returns this process itself.
    pub fn own() -> Self {
        let Identity { uid, gid, umask, .. } = Identity::own(0);
        Self { uid, gid, pid: std::process::id(), umask }
    }

    /// Returns the owner of files that the caller creates.
    pub fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }
}

/// File that a caller may access.
#[derive(Debug, Clone, Copy)]
pub(super) enum Permitted {
    /// Any file.
    Anything,
    /// This file only.
    File(Stat),
    /// None: there was no file.
    Nothing,
}

impl Permitted {
    /// Checks that the file is the one that access was permitted to.
    ///
    /// # Errors
    ///
    /// `Stale` if another file has taken its place.
    pub(super) fn check(&self, file: &Stat) -> Result<()> {
        match self {
            Self::Anything => Ok(()),
            Self::File(permitted) if permitted.id() == file.id() => Ok(()),
            Self::File(_) | Self::Nothing => Err(FsError::Stale),
        }
    }
}

/// Owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

type Groups = Arc<[u32]>;

/// Rights of this process, and cached groups of callers.
pub(super) struct Access {
    /// `true` if this process acts as the caller.
    acts: bool,
    /// User who mounted.
    own: u32,
    /// Supplementary groups of callers, and the times when they were read.
    groups: Mutex<LruCache<Caller, (Instant, Groups)>>,
}

impl Access {
    pub(super) fn new(config: &FsConfig) -> Self {
        // If the mount sets another owner, the rights are those of the attributes shown.
        let is_shown_as_stored = config.ownership.uid.or(config.ownership.gid).is_none();
        Self {
            acts: is_shown_as_stored && may_act(),
            own: Identity::own(0).uid,
            groups: Mutex::new(LruCache::new(MAX_CALLERS)),
        }
    }

    /// Returns whether the source is accessed with the rights of callers.
    pub(super) fn acts(&self) -> bool {
        self.acts
    }

    /// Returns the identity with which the source is accessed for a caller.
    pub(super) fn identity(&self, caller: &Caller) -> Result<Identity> {
        let Caller { uid, gid, umask, .. } = *caller;
        if !self.acts {
            return Ok(Identity::own(umask));
        }
        // Root's groups have no effect.
        let groups = if uid == 0 { None } else { Some(self.groups(caller)?) };
        Ok(Identity { uid, gid, groups, umask })
    }

    fn groups(&self, caller: &Caller) -> Result<Groups> {
        let key = Caller { umask: 0, ..*caller };
        let lock = || self.groups.lock();
        if let Some((at, groups)) = lock().get(&key)
            && at.elapsed() < TRUSTED
        {
            return Ok(Arc::clone(groups));
        }
        let groups = groups_of(caller.pid).map_err(|error| {
            // Membership in a group may restrict access, so unknown groups cannot be ignored.
            log::warn!("groups of process {} of user {}: {error}", caller.pid, caller.uid);
            FsError::Denied
        })?;
        lock().put(key, (Instant::now(), Arc::clone(&groups)));
        Ok(groups)
    }
}

/// Returns whether this process may act as other users.
fn may_act() -> bool {
    let anybody =
        Identity { uid: ANYBODY, gid: ANYBODY, groups: Some(Arc::default()), umask: 0o077 };
    rustix::process::geteuid().is_root() && anybody.act(|| ()).is_ok()
}

/// Returns the supplementary groups of a thread.
fn groups_of(thread: u32) -> io::Result<Groups> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    let groups = line.ok_or_else(unknown)?.split_ascii_whitespace().map(str::parse);
    groups.collect::<std::result::Result<_, _>>().map_err(|_: std::num::ParseIntError| unknown())
}

impl Fs {
    /// Accesses the source for a caller, with the caller's rights if this process can assume them.
    pub(super) fn on_behalf<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&dyn Storage) -> io::Result<T>,
    ) -> Result<T> {
        let identity = self.access.identity(caller)?;
        Ok(identity.act(|| work(&*self.storage))??)
    }

    /// Looks a name up for a caller. The kernel must not cache entries that other users may not
    /// look up.
    pub fn lookup_for(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<Option<Entry>> {
        let is_shown = self.permit_directory(parent, Need::Find, caller)?;
        let Some(entry) = self.lookup(parent, name)? else {
            return if is_shown { Ok(None) } else { Err(FsError::NotFound) };
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

    /// Checks that a caller may list a directory; returns whether the kernel may cache what is
    /// below it.
    pub(super) fn permit_listing(&self, ino: u64, caller: &Caller) -> Result<bool> {
        self.permit_directory(ino, Need::Read, caller)
    }

    /// Returns whether a node is behind a link that the mount follows by itself.
    pub(super) fn is_behind(&self, ino: u64) -> bool {
        let is_behind = |target: &Target| {
            let path = self.taken_from(target)?;
            Some(self.is_hidden_way(target, &path))
        };
        self.config.shared && self.target(ino).is_ok_and(|target| is_behind(&target) == Some(true))
    }

    fn permit_directory(&self, ino: u64, need: Need, caller: &Caller) -> Result<bool> {
        if !self.config.shared {
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
    fn permit(&self, target: &Target, need: Need, caller: &Caller) -> Result<bool> {
        if !self.config.shared {
            return Ok(true);
        }
        let Some(path) = self.taken_from(target) else { return Ok(true) };
        if !self.is_hidden_way(target, &path) {
            return Ok(true);
        }
        self.permit_path(&path, need, caller).map(|_| false)
    }

    /// Checks that a caller may read, or write, the contents of a file.
    pub(super) fn permit_content(
        &self,
        target: &Target,
        need: Need,
        caller: &Caller,
    ) -> Result<Permitted> {
        if !self.config.shared || self.is_trusted(caller) {
            return Ok(Permitted::Anything);
        }
        if let Target::Flat(array, _) = target {
            return self.permit_array(array, caller).map(|()| Permitted::Anything);
        }
        match self.taken_from(target) {
            Some(path) => self.permit_path(&path, need, caller),
            None => Ok(Permitted::Anything),
        }
    }

    /// Checks that a caller may write to the shard of a chunk.
    pub(super) fn permit_change(&self, place: &Place, caller: &Caller) -> Result<()> {
        let target = Target::Tree(Arc::clone(&place.array), place.coords.clone());
        self.permit_content(&target, Need::Write, caller).map(drop)
    }

    /// Checks that a caller may read all shards of an array.
    fn permit_array(&self, array: &ArrayView, caller: &Caller) -> Result<()> {
        let mut left = MAX_SHARDS;
        self.store.each_shard(&array.source, &mut |shard: &[u64]| {
            left = left.checked_sub(1).ok_or(FsError::Denied)?;
            self.permit_path(&array.source.shard_path(shard), Need::Read, caller).map(drop)
        })
    }

    fn permit_path(&self, path: &Path, need: Need, caller: &Caller) -> Result<Permitted> {
        /// The file does not exist, or is damaged, which the store reports.
        const NOT_A_FILE: [i32; 4] = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EXDEV];
        if self.is_trusted(caller) {
            return Ok(Permitted::Anything);
        }
        if !self.access.acts {
            let is_linked = self.storage.is_linked(path)?;
            return if is_linked { Err(FsError::Denied) } else { Ok(Permitted::Anything) };
        }
        match self.on_behalf(caller, |storage| storage.access(path, need)) {
            Err(error) if NOT_A_FILE.contains(&error.errno()) => Ok(Permitted::Nothing),
            permitted => permitted.map(Permitted::File),
        }
    }

    /// Returns whether a caller has all the rights that this process has.
    fn is_trusted(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.access.own
    }

    /// Returns whether the path to a file of the source contains links or directories that the
    /// mount does not show.
    fn is_hidden_way(&self, target: &Target, path: &Path) -> bool {
        matches!(target, Target::Tree(array, _) if array.source.format.is_numbered())
            || self.storage.is_linked(path).unwrap_or(true)
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
    pub(super) fn document_of(&self, path: &Path) -> Result<PathBuf> {
        let described = match self.nodes.described_by(path)? {
            Some(described) => described,
            None => path.parent().unwrap_or(Path::new("")).to_owned(),
        };
        Ok(self.nodes.document_path(&described)?)
    }

    /// Returns the path of the shard of a chunk, or of the directory of the shards below a
    /// directory; `None` for other nodes.
    pub(super) fn shards_of(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                let shard = array.source.layout.locate(coords).shard;
                Some(array.source.shard_path(&shard))
            }
            Target::Tree(array, coords) if array.source.format.has_keys() => {
                Some(self.shard_directory(array, coords))
            }
            Target::Tree(array, _) => Some(array.source.path.clone()),
            Target::Live(file) => {
                let paths = file.state().names.clone();
                let names = self.overlay.as_ref()?.names();
                let place = paths.iter().find_map(|path| names.get(path)?.place.clone());
                drop(names);
                self.shards_of(&Target::Tree(Arc::clone(&place.as_ref()?.array), place?.coords))
            }
            _ => None,
        }
    }

    /// Returns the path that the attributes of a directory are taken from if its shards' directory
    /// does not exist; `None` for other nodes.
    pub(super) fn shown_for(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                Some(array.source.path.clone())
            }
            _ => None,
        }
    }

    /// Gives a new file to the caller if it could not be created with the caller's rights.
    pub(super) fn own(&self, path: &Path, caller: &Caller) {
        if self.access.acts || !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = path.parent().and_then(|parent| self.storage.stat(parent).ok());
        // New files in the directory inherit its group.
        let is_group_kept = parent.is_some_and(|parent| parent.mode & libc::S_ISGID != 0);
        let gid = (!is_group_kept).then_some(caller.gid);
        let set = SetStat { uid: Some(caller.uid), gid, ..SetStat::default() };
        if let Err(error) = self.storage.set_stat(path, &set) {
            log::debug!("{}: {error}", shown(&path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_thread_are_those_that_the_kernel_knows() {
        let own = rustix::process::getgroups().unwrap();
        let own: Vec<u32> = own.into_iter().map(rustix::fs::Gid::as_raw).collect();
        let mut found = groups_of(std::process::id()).unwrap().to_vec();
        found.sort_unstable();
        let mut own = own;
        own.sort_unstable();
        assert_eq!(found, own);
        assert!(groups_of(0).is_err());
    }
}
