//! Who asks, and with whose rights the source is touched for them.
//!
//! The kernel checks permissions by what the mount shows (`default_permissions`). Where the process
//! is root, what is passed through is done once more with the caller's own rights: the source's
//! filesystem then checks what the mount cannot show, and new files are the caller's.

use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use super::{Fs, FsConfig, FsError, Result};
use crate::store::identity::Identity;
use crate::store::storage::{SetStat, Storage};
use crate::text::shown;

/// How long what was found out about a caller is believed.
const TRUSTED: Duration = Duration::from_secs(1);
/// Callers to remember.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
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
    /// Further groups of callers, and when they were read.
    groups: Mutex<LruCache<Caller, (Instant, Groups)>>,
}

impl Access {
    pub(super) fn new(config: &FsConfig) -> Self {
        // Where the owner is said to be another one, so are the rights: those that are shown.
        let is_shown_as_stored = config.ownership.uid.or(config.ownership.gid).is_none();
        Self {
            acts: is_shown_as_stored && may_act(),
            groups: Mutex::new(LruCache::new(MAX_CALLERS)),
        }
    }

    /// The user as whom the source is touched for a caller.
    fn identity(&self, caller: &Caller) -> Result<Identity> {
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
        let lock = || self.groups.lock().unwrap_or_else(PoisonError::into_inner);
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
