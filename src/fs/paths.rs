//! Inode numbers of what is passed through: groups, metadata, unsharded arrays, other files.
//!
//! They are hashes of paths, so the paths have to be remembered as long as the kernel knows the
//! number. Chunks and the directories above them are not in here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::view::inode;

/// Paths by inode number.
#[derive(Default)]
pub struct Paths(Mutex<HashMap<u64, Known>>);

struct Known {
    path: Arc<Path>,
    /// How many times the kernel was told of it, less what it has forgotten.
    lookups: u64,
}

impl Paths {
    /// The path of an inode number that the kernel knows.
    pub fn path(&self, ino: u64) -> Option<Arc<Path>> {
        if ino == inode::ROOT {
            return Some(Path::new("").into());
        }
        self.lock().get(&ino).map(|known| Arc::clone(&known.path))
    }

    /// The inode number of a path, which the kernel is about to be told; none that something else
    /// has taken.
    pub fn remember(&self, path: &Path, is_taken: impl Fn(u64) -> bool) -> u64 {
        let mut table = self.lock();
        for attempt in 0.. {
            let ino = inode::of_path(path, attempt);
            if ino == inode::ROOT {
                return ino;
            }
            if is_taken(ino) {
                continue;
            }
            let known = table.entry(ino).or_insert_with(|| Known { path: path.into(), lookups: 0 });
            if &*known.path == path {
                known.lookups += 1;
                return ino;
            }
        }
        inode::ROOT
    }

    /// A number passes to another table; the kernel goes on using it.
    pub fn take(&self, ino: u64) {
        self.lock().remove(&ino);
    }

    /// What had its path at or below `from` has it at or below `to` now, under the same number.
    pub fn renamed(&self, from: &Path, to: &Path) {
        let mut table = self.lock();
        // What was there is gone; its number leads nowhere.
        table.retain(|_, known| !known.path.starts_with(to));
        for known in table.values_mut() {
            if let Ok(below) = known.path.strip_prefix(from) {
                let path = if below.as_os_str().is_empty() { to.into() } else { to.join(below) };
                known.path = path.into();
            }
        }
    }

    /// The inode number that a listing shows for a path.
    pub fn number(path: &Path) -> u64 {
        inode::of_path(path, 0)
    }

    /// The kernel has forgotten `lookups` of the times it was told of an inode number.
    pub fn forget(&self, ino: u64, lookups: u64) {
        let mut table = self.lock();
        if let Some(known) = table.get_mut(&ino) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                table.remove(&ino);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_until_it_is_forgotten_as_often_as_it_was_remembered() {
        let paths = Paths::default();
        let ino = paths.remember(Path::new("a"), |_| false);
        assert_eq!(paths.remember(Path::new("a"), |_| false), ino);
        paths.forget(ino, 1);
        assert_eq!(paths.path(ino).as_deref(), Some(Path::new("a")));
        paths.forget(ino, 1);
        assert_eq!(paths.path(ino), None);
        assert_eq!(paths.remember(Path::new(""), |_| false), inode::ROOT);
        assert_eq!(paths.path(inode::ROOT).as_deref(), Some(Path::new("")));
    }
}
