//! What is mounted where, and for whom.

use std::path::PathBuf;

/// Users that can access a mount besides the user who mounted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// No other user.
    #[default]
    Owner,
    /// Root.
    Root,
    /// All users, subject to the permissions.
    Everybody,
}

/// Parameters of a mount.
#[derive(Debug, Clone)]
pub struct MountSpec {
    /// Name of the source in /proc/mounts.
    pub name: String,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// Users that can access the mount.
    pub access: Access,
    /// Number of threads that answer requests.
    pub threads: usize,
    /// `true` if the mount is writable.
    pub writable: bool,
}
