//! Who asks, and with whose rights the source is touched for them.
//!
//! The kernel checks permissions by what the mount shows: owner, group, permissions
//! (`default_permissions`), and in a mount that others may use the access control lists. What is left:
//!
//! ```text
//! what is passed through     the kernel, and then the source's filesystem, as the caller
//! a chunk                    the kernel, by its shard; when it is opened also the source's, as the caller
//! behind a link that the     the source's filesystem, as the caller, for every lookup; neither names nor
//! mount follows by itself    attributes are left to the kernel's cache
//! a file of a whole array    when it is opened: all its shards, as the caller
//! ```
//!
//! A process that is not root cannot act as the caller. There the kernel's check counts, and what is
//! behind a link is refused to others.

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
use crate::store::Container;
use crate::store::identity::Identity;
use crate::store::storage::{Need, SetStat, Stat, Storage};
use crate::text::shown;

/// How long what was found out about a caller is believed.
const TRUSTED: Duration = Duration::from_secs(1);
/// Callers to remember.
// The compiler evaluates it, and would refuse zero.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// A file of a whole array is for others only if it has no more shards.
const MAX_SHARDS: u64 = 10_000;
/// A user and a group to try out whether this process may act as others.
const ANYBODY: u32 = 65534;

/// The process behind a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The thread that asks.
    pub pid: u32,
    /// Permission bits that its new files do not get.
    pub umask: u32,
}

impl Caller {
    /// This process itself.
    pub fn own() -> Self {
        let Identity { uid, gid, umask, .. } = Identity::own(0);
        Self { uid, gid, pid: std::process::id(), umask }
    }

    /// The owner of what it makes.
    pub fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }
}

/// What a caller may have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Permitted {
    /// Whatever is there.
    Anything,
    /// This file.
    File(Stat),
    /// Nothing was there.
    Nothing,
}

impl Permitted {
    /// Fails if another file has taken the place of the one that was looked at.
    pub(super) fn check(&self, file: &Stat) -> Result<()> {
        match self {
            Self::Anything => Ok(()),
            Self::File(permitted) if permitted.id() == file.id() => Ok(()),
            Self::File(_) | Self::Nothing => Err(FsError::Stale),
        }
    }
}

/// The owner of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

type Groups = Arc<[u32]>;

/// What is known about callers.
pub(super) struct Access {
    /// Whether this process acts as the caller.
    acts: bool,
    /// The user who mounted.
    own: u32,
    /// Further groups of callers, and when they were read.
    groups: Mutex<LruCache<Caller, (Instant, Groups)>>,
}

impl Access {
    pub(super) fn new(config: &FsConfig) -> Self {
        // Where the owner is said to be another one, so are the rights: those that are shown.
        let is_shown_as_stored = config.ownership.uid.or(config.ownership.gid).is_none();
        Self {
            acts: is_shown_as_stored && may_act(),
            own: Identity::own(0).uid,
            groups: Mutex::new(LruCache::new(MAX_CALLERS)),
        }
    }

    /// Whether the source is touched with the rights of callers.
    pub(super) fn acts(&self) -> bool {
        self.acts
    }

    /// The user as whom the source is touched for a caller.
    pub(super) fn identity(&self, caller: &Caller) -> Result<Identity> {
        let Caller { uid, gid, umask, .. } = *caller;
        if !self.acts {
            return Ok(Identity::own(umask));
        }
        // Root's groups decide nothing.
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
            // A member of a group may have fewer rights than others.
            log::warn!("groups of process {} of user {}: {error}", caller.pid, caller.uid);
            FsError::Denied
        })?;
        lock().put(key, (Instant::now(), Arc::clone(&groups)));
        Ok(groups)
    }
}

/// Whether this process may act as other users.
fn may_act() -> bool {
    let anybody =
        Identity { uid: ANYBODY, gid: ANYBODY, groups: Some(Arc::default()), umask: 0o077 };
    rustix::process::geteuid().is_root() && anybody.act(|| ()).is_ok()
}

/// The further groups of a thread.
fn groups_of(thread: u32) -> io::Result<Groups> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    let groups = line.ok_or_else(unknown)?.split_ascii_whitespace().map(str::parse);
    groups.collect::<std::result::Result<_, _>>().map_err(|_: std::num::ParseIntError| unknown())
}

impl Fs {
    /// Touches the source for a caller: with the caller's rights where this process can have them.
    pub(super) fn on_behalf<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce(&dyn Storage) -> io::Result<T>,
    ) -> Result<T> {
        let identity = self.access.identity(caller)?;
        Ok(identity.act(|| work(&*self.storage))??)
    }

    /// Looks a name up for a caller. What others may not find is not left to the kernel's cache.
    pub fn lookup_for(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<Option<Entry>> {
        let is_shown = self.permit_directory(parent, Need::Find, caller)?;
        let Some(entry) = self.lookup(parent, name)? else {
            return if is_shown { Ok(None) } else { Err(FsError::NotFound) };
        };
        // Files that nobody changes are not opened before they are read.
        let need = if self.config.store.immutable { Need::Read } else { Need::Find };
        let permitted = self.permit(&self.target(entry.attr.ino)?, need, caller);
        if permitted.is_err() {
            self.forget(entry.attr.ino, 1);
        }
        let lasting = permitted? && is_shown && entry.lasting;
        Ok(Some(Entry { lasting, ..entry }))
    }

    /// Attributes for a caller.
    pub fn getattr_for(
        &self,
        ino: u64,
        handle: Option<u64>,
        caller: &Caller,
    ) -> Result<(Attr, bool)> {
        let is_shown = match handle {
            // Who has opened it has been permitted to.
            Some(_) => !self.is_behind(ino),
            None => self.permit(&self.target(ino)?, Need::Find, caller)?,
        };
        let (attr, lasting) = self.getattr(ino, handle)?;
        Ok((attr, lasting && is_shown))
    }

    /// Fails unless a caller may list a directory. Whether all on the way to it is shown.
    pub(super) fn permit_listing(&self, ino: u64, caller: &Caller) -> Result<bool> {
        self.permit_directory(ino, Need::Read, caller)
    }

    /// Whether a node is behind a link that the mount follows by itself.
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
            // Its path may lead elsewhere than when the kernel checked it.
            Target::Path(path) if self.access.acts && !self.is_trusted(caller) => {
                match self.on_behalf(caller, |storage| storage.access(&path, need)) {
                    Err(error) if error.errno() == libc::ENOENT => Ok(true),
                    permitted => permitted.map(|_| true),
                }
            }
            target => self.permit(&target, need, caller),
        }
    }

    /// Fails if something is behind a link that the mount follows by itself, and the caller may not
    /// follow that, or not do what is needed. Whether there is no such link.
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

    /// Fails if a caller may not read, or write, what is in a file.
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

    /// Fails if a caller may not write to the shard of a chunk.
    pub(super) fn permit_change(&self, place: &Place, caller: &Caller) -> Result<()> {
        let target = Target::Tree(Arc::clone(&place.array), place.coords.clone());
        self.permit_content(&target, Need::Write, caller).map(drop)
    }

    /// Fails if a caller may not read all shards of an array.
    fn permit_array(&self, array: &ArrayView, caller: &Caller) -> Result<()> {
        let mut left = MAX_SHARDS;
        self.store.each_shard(&array.source, &mut |shard: &[u64]| {
            left = left.checked_sub(1).ok_or(FsError::Denied)?;
            self.permit_path(&array.source.shard_path(shard), Need::Read, caller).map(drop)
        })
    }

    fn permit_path(&self, path: &Path, need: Need, caller: &Caller) -> Result<Permitted> {
        /// Nothing is there, or damage, which the store reports.
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

    /// Whether a caller has all the rights that this process has.
    fn is_trusted(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.access.own
    }

    /// Whether there is more on the way to a file of the source than the mount shows on its own.
    fn is_hidden_way(&self, target: &Target, path: &Path) -> bool {
        let is_apart =
            |array: &ArrayView| matches!(array.source.container, Container::Superchunks { .. });
        matches!(target, Target::Tree(array, _) if is_apart(array))
            || self.storage.is_linked(path).unwrap_or(true)
    }

    /// The file of the source that the mount takes something from by itself.
    fn taken_from(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Path(path) => match self.nodes.at(path) {
                Ok(At::Text(..)) => self.document_of(path).ok(),
                _ => None,
            },
            _ => self.shards_of(target),
        }
    }

    /// The document that a document of the view is made of.
    pub(super) fn document_of(&self, path: &Path) -> Result<PathBuf> {
        let described = match self.nodes.described_by(path)? {
            Some(described) => described,
            None => path.parent().unwrap_or(Path::new("")).to_owned(),
        };
        Ok(self.nodes.document_path(&described)?)
    }

    /// The shard of a chunk, or the directory of the shards below a directory.
    pub(super) fn shards_of(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                let shard = array.source.layout.locate(coords).shard;
                Some(array.source.shard_path(&shard))
            }
            Target::Tree(array, coords) if array.source.container.has_keys() => {
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

    /// What the attributes of a directory are taken from whose shards' directory does not exist.
    pub(super) fn shown_for(&self, target: &Target) -> Option<PathBuf> {
        match target {
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                Some(array.source.path.clone())
            }
            _ => None,
        }
    }

    /// Gives a caller what was made for them, where it could not be made with their rights.
    pub(super) fn own(&self, path: &Path, caller: &Caller) {
        if self.access.acts || !rustix::process::geteuid().is_root() {
            return;
        }
        let parent = path.parent().and_then(|parent| self.storage.stat(parent).ok());
        // What is made there has the directory's group already.
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
