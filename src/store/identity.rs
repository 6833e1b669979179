//! Access to the source as another user: sets the ids by which the kernel checks a thread's file
//! accesses, its groups and its umask.
//!
//! ```text
//! identity.act(work)    umask, groups, fsgid, fsuid of the thread are set
//!                       work()          the source's filesystem checks them; new files are theirs
//!                       all are restored, also when work panics
//! ```
//!
//! All four belong to the calling thread alone: other threads keep the rights of the process. While
//! the user id is not root's, the kernel drops the capabilities that override permissions.

use std::cell::Cell;
use std::io;
use std::sync::{Arc, OnceLock};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::fs::Mode;
use rustix::process::{getegid, geteuid, getgroups, umask};
use rustix::thread::set_thread_groups;

/// Invalid id: setting it changes nothing and returns the present one.
const NO_ID: u32 = u32::MAX;

/// User, as seen by the source's filesystem.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id, also that of new files.
    pub gid: u32,
    /// Supplementary groups; those of this process if `None`.
    pub groups: Option<Arc<[u32]>>,
    /// Permission bits that are removed from new files.
    pub umask: u32,
}

impl Identity {
    /// Returns the identity of this process, with the umask of the user it acts for.
    pub(crate) fn own(umask: u32) -> Self {
        let own = Own::get();
        Self { uid: own.uid, gid: own.gid, groups: None, umask }
    }

    /// Runs `work` as this user.
    ///
    /// # Errors
    /// This process may not act as that user; `work` was not run.
    pub(crate) fn act<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let _acting = Acting::begin(self)?;
        Ok(work())
    }
}

/// Identity of this process, to which every thread returns.
struct Own {
    uid: u32,
    gid: u32,
    groups: Vec<rustix::fs::Gid>,
}

impl Own {
    fn get() -> &'static Self {
        static OWN: OnceLock<Own> = OnceLock::new();
        OWN.get_or_init(|| Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: getgroups().unwrap_or_default(),
        })
    }
}

/// Guard of a thread that acts as another user; dropping it restores the identity.
struct Acting {
    umask: Mode,
    ids: bool,
    groups: bool,
}

impl Acting {
    fn begin(identity: &Identity) -> io::Result<Self> {
        own_umask_of_thread()?;
        let own = Own::get();
        let mut acting = Self {
            umask: umask(Mode::from_raw_mode(identity.umask & 0o777)),
            ids: false,
            groups: false,
        };
        // If one of them fails, dropping the guard undoes those before.
        if let Some(groups) = &identity.groups {
            let groups: Vec<_> = groups.iter().copied().map(rustix::fs::Gid::from_raw).collect();
            set_thread_groups(&groups)?;
            acting.groups = true;
        }
        if (identity.uid, identity.gid) != (own.uid, own.gid) {
            acting.ids = true;
            set_ids(identity.uid, identity.gid)?;
        }
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let own = Own::get();
        let ids = if self.ids { set_ids(own.uid, own.gid) } else { Ok(()) };
        let groups = if self.groups { set_thread_groups(&own.groups) } else { Ok(()) };
        umask(self.umask);
        if let Err(error) = ids.and(groups.map_err(io::Error::from)) {
            // Whatever this thread did next would be done with another user's rights.
            log::error!(
                "a thread cannot return to the rights of this process: {error}; it ends now"
            );
            std::process::abort();
        }
    }
}

/// Sets the ids by which the kernel checks file accesses of this thread. The group goes first: it
/// can be changed as long as the user is still root.
fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    setfsgid(Gid::from_raw(gid));
    setfsuid(Uid::from_raw(uid));
    // These calls report no failure, but return the previous id.
    let is_gid = setfsgid(Gid::from_raw(NO_ID)).as_raw();
    let is_uid = setfsuid(Uid::from_raw(NO_ID)).as_raw();
    if (is_uid, is_gid) == (uid, gid) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Gives the thread a umask of its own; initially all threads share that of the process.
fn own_umask_of_thread() -> io::Result<()> {
    thread_local! {
        static IS_OWN: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_OWN.get() {
        unshare(CloneFlags::CLONE_FS)?;
        IS_OWN.set(true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn ids() -> (u32, u32) {
        let uid = setfsuid(Uid::from_raw(NO_ID)).as_raw();
        (uid, setfsgid(Gid::from_raw(NO_ID)).as_raw())
    }

    #[test]
    fn only_new_files_of_the_acting_thread_get_its_umask() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |name: &str, identity: Option<&Identity>| {
            let path = directory.path().join(name);
            let make = || std::fs::File::create(&path).unwrap();
            drop(identity.map_or_else(make, |identity| identity.act(make).unwrap()));
            path.metadata().unwrap().permissions().mode() & 0o777
        };
        let before = mode("before", None);
        assert_eq!(mode("acting", Some(&Identity::own(0o027))), 0o640);
        assert_eq!(mode("after", None), before);
    }

    #[test]
    fn a_thread_is_itself_again_after_a_panic() {
        if !geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let other = Identity { uid: 12345, gid: 23456, groups: Some([34567].into()), umask: 0o022 };
        let path = directory.path().join("file");
        let before = (ids(), getgroups().unwrap());
        let acted = std::panic::catch_unwind(|| {
            other.act(|| {
                std::fs::write(&path, b"").unwrap();
                assert_eq!(ids(), (12345, 23456));
                assert_eq!(getgroups().unwrap(), [rustix::fs::Gid::from_raw(34567)]);
                panic!("on the way");
            })
        });
        assert!(acted.is_err());
        assert_eq!((ids(), getgroups().unwrap()), before);
        let made = path.metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (12345, 23456));
    }

    #[test]
    fn the_rights_of_root_do_not_come_along() {
        if !geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secret");
        std::fs::write(&secret, b"secret").unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
        let read = |groups: &[u32]| {
            let other = Identity { uid: 12345, gid: 23456, groups: Some(groups.into()), umask: 0 };
            other.act(|| std::fs::read(&secret)).unwrap().is_ok()
        };
        assert!(!read(&[]));
        assert!(read(&[0]));
        assert!(std::fs::read(&secret).is_ok());
    }
}
