//! A mount point that the process behind it must not leave dead.

use std::path::{Path, PathBuf};

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
}

impl Attached {
    /// Takes charge of what was just mounted on `mountpoint`.
    pub(super) fn new(mountpoint: &Path) -> Self {
        Self { mountpoint: mountpoint.to_owned(), connection: table::connection(mountpoint) }
    }

    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub(super) fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// Returns whether the mount is on its mount point still, in the namespace of this process.
    pub(super) fn is_there(&self) -> bool {
        table::connection(&self.mountpoint) == self.connection
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

impl Drop for Attached {
    fn drop(&mut self) {
        self.detach();
    }
}
