//! Unmounting, as root or through fusermount3.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::error::MountError;
use super::{fusermount, table, users};

/// Duration and interval of attempts to unmount a mount that is briefly busy: other mounts, `df`
/// and file managers access every mount now and then.
const PASSING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(20));

/// Unmounts; a user of the mount that is gone in a moment does not count.
pub(super) fn unmount_patiently(mountpoint: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let began = Instant::now();
    loop {
        // Before the attempt, the last of which is made once that time has passed.
        let passed = began.elapsed();
        match unmount_now(mountpoint, flags) {
            Err(MountError::Busy { .. }) if passed < PASSING.0 => {
                std::thread::sleep(PASSING.1);
            }
            Err(MountError::Busy { path, .. }) => {
                let users = users::of(&path);
                return Err(MountError::Busy { path, users });
            }
            done => return done,
        }
    }
}

/// Unmounts, at once or not at all.
pub(super) fn unmount_now(mountpoint: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let flags = flags | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let own = rustix::process::getuid().as_raw();
            match table::user(mountpoint) {
                Some(user) if user != own => Err(MountError::OfAnother(mountpoint.to_owned())),
                _ => fusermount::unmount(mountpoint, flags),
            }
        }
        Err(rustix::io::Errno::BUSY) => Err(MountError::busy(mountpoint)),
        Err(error) => Err(MountError::Unmount { path: mountpoint.to_owned(), error: error.into() }),
    }
}
