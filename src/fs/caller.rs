//! Callers of operations, and what this process may do as them.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::bounded::bounded;
use crate::fs::config::FsConfig;
use crate::fs::error::{FsError, Result};
use crate::store::identity::Identity;
use crate::store::storage::Stat;

/// Time for which the groups of a caller are cached.
const TRUSTED: Duration = Duration::from_secs(1);

/// Maximum number of callers to remember.
// Evaluated by the compiler, which rejects zero.
const MAX_CALLERS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

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

/// User who has changed a document, with the rights at that moment: what the change leads to may be
/// done later, when the process has ended and its number is another one's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Author {
    /// The process that made the change.
    pub caller: Caller,
    /// Identity with which the source is accessed for him; `None` if it cannot be determined, which
    /// permits nothing.
    pub identity: Option<Identity>,
}

impl Author {
    /// Returns whether it is the same user with the same rights, whatever the process.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let ids = |author: &Self| (author.caller.uid, author.caller.gid);
        ids(self) == ids(other) && self.identity == other.identity
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
    /// Checks that a file, by device and inode number, is the one that access was permitted to.
    ///
    /// # Errors
    ///
    /// `Stale` if another file has taken its place.
    pub(super) fn check(&self, file: (u64, u64)) -> Result<()> {
        match self {
            Self::Anything => Ok(()),
            Self::File(permitted) if permitted.id() == file => Ok(()),
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
    pub(super) acts: bool,
    /// User who mounted.
    pub(super) own: u32,
    /// Supplementary groups of callers, and the times when they were read.
    pub(super) groups: Mutex<LruCache<Caller, (Instant, Groups)>>,
}

impl Access {
    pub(super) fn new(config: &FsConfig) -> Self {
        // If the mount sets another owner, the rights are those of the attributes shown.
        let is_shown_as_stored = config.ownership.uid.or(config.ownership.gid).is_none();
        Self {
            acts: is_shown_as_stored && may_act(),
            own: Identity::own(0).uid,
            groups: Mutex::new(bounded(MAX_CALLERS)),
        }
    }

    /// Returns whether the source is accessed with the rights of callers.
    pub(super) fn acts(&self) -> bool {
        self.acts
    }

    /// Returns the permissions that a caller may give a file. Files are this process's user's where it
    /// does not act as the caller: set-user-ID would let the caller act as that user.
    pub(super) fn permitted_mode(&self, mode: u32, caller: &Caller) -> u32 {
        match self.acts || caller.uid == self.own {
            true => mode & 0o7777,
            false => mode & 0o1777,
        }
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

    pub(super) fn groups(&self, caller: &Caller) -> Result<Groups> {
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
pub(super) fn groups_of(thread: u32) -> io::Result<Groups> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    let groups = line.ok_or_else(unknown)?.split_ascii_whitespace().map(str::parse);
    groups.collect::<std::result::Result<_, _>>().map_err(|_: std::num::ParseIntError| unknown())
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
