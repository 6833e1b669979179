//! A mount point that the process behind it must not leave dead.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::UnmountFlags;

use super::error::MountError;
use super::table;
use super::unmounting::{unmount_now, unmount_patiently};
use crate::text::shown;

/// A mount of this process, detached when this is dropped. One that has gone by then is left alone,
/// and so is another one in its place.
pub(super) struct Attached {
    mountpoint: PathBuf,
    /// Number of the FUSE connection; `None` if it cannot be determined.
    connection: Option<u32>,
    /// Number of the mount that no other one ever has; `None` before Linux 6.8.
    unique: Option<u64>,
}

impl Attached {
    /// Takes charge of what was just mounted on `mountpoint`.
    pub(super) fn new(mountpoint: &Path) -> Self {
        let connection = table::connection(mountpoint);
        Self { mountpoint: mountpoint.to_owned(), connection, unique: unique_number(mountpoint) }
    }

    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub(super) fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// Returns whether the mount is on its mount point still, in the namespace of this process.
    pub(super) fn is_there(&self) -> bool {
        // Whoever mounts anew at once gets the connection's number again.
        let is_it = || self.unique.is_none() || unique_number(&self.mountpoint) == self.unique;
        table::connection(&self.mountpoint) == self.connection && is_it()
    }

    /// Unmounts it unless it is busy for longer than a moment.
    pub(super) fn unmount(&self) -> Result<(), MountError> {
        unmount_patiently(&self.mountpoint, UnmountFlags::empty())
    }

    /// Detaches it if it is there still.
    pub(super) fn detach(&self) {
        if self.is_there()
            && let Err(error) = unmount_now(&self.mountpoint, UnmountFlags::DETACH)
            && self.is_there()
        {
            log::error!("{}: the mount is left: {error}", shown(&self.mountpoint));
        }
    }
}

/// Returns the number of the topmost mount on a mount point that no other mount gets until the system is
/// started anew; `None` if the kernel has none. Nothing is requested of the filesystem that is mounted.
fn unique_number(mountpoint: &Path) -> Option<u64> {
    /// `STATX_MNT_ID_UNIQUE`.
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(CWD, mountpoint, flags, MNT_ID_UNIQUE).ok()?;
    let is_known = found.stx_mask & MNT_ID_UNIQUE.bits() != 0;
    is_known.then_some(found.stx_mnt_id)
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.detach();
    }
}
