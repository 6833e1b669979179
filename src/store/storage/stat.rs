//! Attributes of the objects of a storage, and the versions by which a change is recognized.

use std::fmt;
use std::time::{Duration, SystemTime};

/// Point in time as filesystems store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let (since, sign) = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => (since, 1),
            Err(before) => (before.duration(), -1),
        };
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX) * sign;
        match (sign, since.subsec_nanos()) {
            (-1, nanoseconds @ 1..) => {
                Self { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds }
            }
            (_, nanoseconds) => Self { seconds, nanoseconds },
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds < 0 {
            Self::UNIX_EPOCH.checked_sub(seconds)
        } else {
            Self::UNIX_EPOCH.checked_add(seconds)
        };
        let fraction = Duration::from_nanos(u64::from(time.nanoseconds));
        whole.and_then(|whole| whole.checked_add(fraction)).unwrap_or(Self::UNIX_EPOCH)
    }
}

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::CharDevice | Self::BlockDevice => "a device",
        })
    }
}

/// Attributes of a file. A storage without owners and links reports those that the mount is to
/// show; its inode number is one that no other state of any object has, like a hash of the key and
/// the entity tag.
#[derive(Debug, Clone, Copy)]
pub struct Stat {
    /// Device that holds the file.
    pub dev: u64,
    /// Inode number on that device.
    pub ino: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub links: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the content or the attributes.
    pub ctime: Timestamp,
    /// Last read.
    pub atime: Timestamp,
}

impl Stat {
    /// Returns device and inode number, which no two files share at one time.
    pub fn id(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Returns whether the file has other hard links. Always `false` for a directory.
    pub fn has_hard_links(&self) -> bool {
        self.kind != FileKind::Directory && self.links > 1
    }

    /// Returns the version of the file that these attributes are of.
    pub fn version(&self) -> Version {
        let Self { kind, size, mtime, ctime, .. } = *self;
        Version { object: self.id(), kind, size, mtime, ctime }
    }
}

/// Version of an object: two reads of it under equal versions find the same bytes, unless it was
/// changed twice within a tick of the clock ([`Self::is_unsettled`]). What is kept of an object is
/// used as long as the object has the same version. Reading does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    /// The file, by device and inode number.
    object: (u64, u64),
    kind: FileKind,
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}

/// Longest tick of the clock by which filesystems date changes.
const TICK: Duration = Duration::from_millis(10);

impl Version {
    /// Returns device and inode number of the file.
    pub fn id(&self) -> (u64, u64) {
        self.object
    }

    /// Returns whether the content is dated by the change itself, and its date was not set since.
    pub fn has_date_of_change(&self) -> bool {
        self.mtime == self.ctime
    }

    /// Returns the last change of the content.
    pub fn mtime(&self) -> Timestamp {
        self.mtime
    }

    /// Returns whether both are of one file of which at most the ctime has changed in between. That
    /// happens when it is renamed, linked, unlinked, or given another owner or permissions; but
    /// also when a writer changes its content and puts the mtime back (`touch -r`, `cp -p`,
    /// `rsync --inplace --times`). So this alone does not prove that the content is unchanged.
    pub fn has_same_content(&self, other: &Self) -> bool {
        Self { ctime: other.ctime, ..*self } == *other
    }

    /// Returns whether another change at `now` might leave the version as it is.
    pub fn is_unsettled(&self, now: SystemTime) -> bool {
        now.duration_since(self.ctime.into()).is_ok_and(|since| since < TICK)
    }
}

/// Changes to a file's attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetStat {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// `true` if both times are to be set to the current time, which every process that may write
    /// to the file is allowed to do.
    pub is_now: bool,
    /// `true` to update the ctime even if nothing else is changed.
    pub ctime: bool,
}

/// Access that a file is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// To look it up.
    Find,
    /// To read it.
    Read,
    /// To write to it.
    Write,
}

/// Free and used space of the filesystem below a source.
#[derive(Debug, Clone, Copy, Default)]
pub struct Space {
    /// Block size in bytes.
    pub block_size: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for unprivileged users.
    pub available: u64,
    /// Total number of inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
}

impl Space {
    /// What a store has that does not say how much it takes.
    pub const ENDLESS: Self = Self {
        block_size: 4096,
        blocks: 1 << 40,
        free: 1 << 40,
        available: 1 << 40,
        files: 1 << 40,
        free_files: 1 << 40,
    };
}
