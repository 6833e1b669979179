//! Attributes of objects and directories, as files have them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use object_store::ObjectMeta;
use object_store::path::Path as Key;

use crate::store::storage::{FileKind, SetStat, Stat, Timestamp};

/// Time after a change in which another one may have the same date, with some room for other clocks.
const SECOND: Duration = Duration::from_secs(2);

/// Longest entity tag, in bytes.
const LONGEST_TAG: usize = 1 << 10;

/// What tells two versions of an object apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Object {
    /// Length in bytes.
    pub nbytes: u64,
    /// Entity tag, as the store spells it; `None` if it has none.
    pub tag: Option<String>,
    /// Last change, in seconds: listings are more precise than answers to requests for an object.
    pub modified: i64,
}

/// To whom everything in a store belongs, and when directories were changed: stores know neither.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub uid: u32,
    pub gid: u32,
    /// Number that stands for the store, as the device of its files.
    pub store: u64,
    /// Time of the mount.
    pub since: Timestamp,
}

impl Owner {
    /// Checks that nothing is given to another owner.
    ///
    /// # Errors
    /// EPERM if it is.
    pub(super) fn check(&self, set: &SetStat) -> io::Result<()> {
        let is_other = |wanted: Option<u32>, has| wanted.is_some_and(|wanted| wanted != has);
        match is_other(set.uid, self.uid) || is_other(set.gid, self.gid) {
            true => Err(io::Error::from_raw_os_error(libc::EPERM)),
            false => Ok(()),
        }
    }
}

impl Object {
    /// Returns what the store says of an object.
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        // Requests name it, and can name nothing else.
        let is_tag = |tag: &String| {
            (1..=LONGEST_TAG).contains(&tag.len())
                && tag.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        let tag = meta.e_tag.clone().filter(is_tag);
        Self { nbytes: meta.size, tag, modified: meta.last_modified.timestamp() }
    }

    /// Returns whether both are the same version. Dates count only where there are no tags.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.tag, &other.tag) {
            (Some(tag), Some(other_tag)) => {
                self.nbytes == other.nbytes && bare(tag) == bare(other_tag)
            }
            _ => self.nbytes == other.nbytes && self.modified == other.modified,
        }
    }

    /// Returns whether another change may have left tag and length as they are: many web servers make the tag
    /// of the length and the second of the last change. The clock of the store may be ahead.
    pub(super) fn is_unsettled(&self, now: SystemTime) -> bool {
        let modified = Timestamp { seconds: self.modified, nanoseconds: 0 };
        now.duration_since(modified.into()).map_or(true, |since| since < SECOND)
    }

    /// Returns the entity tag that requests name. `None` if it is none that a server compares.
    pub(super) fn strong_tag(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }

    /// Returns a number that no other version of any object has, as far as a hash can tell.
    pub(super) fn id(&self, key: &Key) -> u64 {
        let mut hasher = DefaultHasher::new();
        key.as_ref().hash(&mut hasher);
        self.nbytes.hash(&mut hasher);
        match &self.tag {
            Some(tag) => bare(tag).hash(&mut hasher),
            None => self.modified.hash(&mut hasher),
        }
        // The other half of the numbers is that of directories.
        hasher.finish() & (u64::MAX >> 1)
    }

    /// Returns the attributes of the object as a file.
    pub(super) fn stat(&self, key: &Key, owner: Owner) -> Stat {
        let time = Timestamp { seconds: self.modified, nanoseconds: 0 };
        Stat {
            mtime: time,
            ctime: time,
            atime: time,
            ..stat(FileKind::File, self.id(key), self.nbytes, owner)
        }
    }
}

/// Returns a number for a file that no version of an object has, nor another such file.
pub(super) fn new_number(path: &FilePath) -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    (SystemTime::now(), COUNT.fetch_add(1, Ordering::Relaxed)).hash(&mut hasher);
    hasher.finish() & (u64::MAX >> 1)
}

/// Returns the attributes of a directory.
pub(super) fn directory(key: &str, owner: Owner) -> Stat {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    stat(FileKind::Directory, hasher.finish() | 1 << 63, 0, owner)
}

fn stat(kind: FileKind, ino: u64, size: u64, owner: Owner) -> Stat {
    let Owner { uid, gid, store, since } = owner;
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    let (mtime, ctime, atime) = (since, since, since);
    Stat { dev: store, ino, kind, mode, uid, gid, links: 1, size, mtime, ctime, atime }
}

/// Returns a tag without quotation marks, with which some stores spell it and some do not.
pub(super) fn bare(tag: &str) -> &str {
    tag.trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(nbytes: u64, tag: Option<&str>, modified: i64) -> Object {
        Object { nbytes, tag: tag.map(str::to_owned), modified }
    }

    #[test]
    fn versions_are_told_apart_by_tag_and_by_date_only_where_there_is_none() {
        let one = object(5, Some("\"a\""), 1);
        assert!(one.is_same(&object(5, Some("a"), 2)));
        assert!(!one.is_same(&object(5, Some("b"), 1)));
        assert!(!one.is_same(&object(6, Some("a"), 1)));
        assert!(object(5, None, 1).is_same(&object(5, None, 1)));
        assert!(!object(5, None, 1).is_same(&object(5, None, 2)));
    }

    #[test]
    fn an_object_that_was_just_changed_may_change_again_unseen() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(object(5, None, 100).is_unsettled(at(101)));
        assert!(object(5, None, 100).is_unsettled(at(90)), "another clock");
        assert!(!object(5, None, 100).is_unsettled(at(102)));
    }

    #[test]
    fn numbers_follow_key_and_version() {
        let (key, other) = (Key::from("a"), Key::from("b"));
        let one = object(5, Some("\"a\""), 1);
        assert_eq!(one.id(&key), object(5, Some("a"), 2).id(&key));
        assert_ne!(one.id(&key), one.id(&other));
        assert_ne!(one.id(&key), object(5, Some("c"), 1).id(&key));
    }
}
