//! Sharded arrays that were made through this mount, and are shown as they are stored.
//!
//! Whoever makes a sharded array goes on with shards: they must not be taken for the chunks of its unsharded twin. So
//! the directory shows what is stored in it, the shards and the document that was written, as long as this mount
//! lasts. Later mounts show the array's chunks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::text::shown;

/// Most arrays of one mount that are remembered.
pub(super) const MOST: usize = 100_000;

/// Most lines of them that are listed.
const MOST_LINES: usize = 10_000;

/// Why the view does not show their chunks.
pub(super) const WHY: &str = "the array was made sharded through this mount, which shows it as it is stored; later mounts show its chunks";

/// The directories of such arrays.
///
/// A directory is one of them by its path alone. Whatever others put there is shown as it is stored, too: its document
/// and its files always fit each other.
#[derive(Debug, Default)]
pub(super) struct AsWritten {
    directories: Mutex<BTreeSet<PathBuf>>,
    /// Number of changes.
    revision: AtomicU64,
}

impl AsWritten {
    /// Notes the directory of an array. Returns whether there is room for it, or it was noted before.
    pub(super) fn note(&self, directory: &Path) -> bool {
        let mut directories = self.directories.lock();
        if directories.contains(directory) {
            return true;
        }
        let has_room = directories.len() < MOST;
        if has_room {
            directories.insert(directory.to_owned());
            self.revision.fetch_add(1, Ordering::Release);
        }
        has_room
    }

    /// Notes that such an array is not in a directory any more. Returns whether there was one.
    pub(super) fn forget(&self, directory: &Path) -> bool {
        let was_there = self.directories.lock().remove(directory);
        if was_there {
            self.revision.fetch_add(1, Ordering::Release);
        }
        was_there
    }

    /// Returns the number of changes so far: what was derived from them before another one has to be derived anew.
    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Returns whether a directory is that of such an array.
    pub(super) fn has(&self, directory: &Path) -> bool {
        self.directories.lock().contains(directory)
    }

    /// Returns whether any is below a directory.
    pub(super) fn has_below(&self, top: &Path) -> bool {
        within(&self.directories.lock(), top).any(|path| path != top)
    }

    /// Returns a line for each of them, 10,000 at most.
    pub(super) fn text(&self) -> String {
        let directories = self.directories.lock();
        let line = |path: &PathBuf| format!("{}: {WHY}\n", shown(path));
        let all: String = directories.iter().take(MOST_LINES).map(line).collect();
        if directories.len() <= MOST_LINES { all } else { all + "...\n" }
    }

    /// Notes that a directory was renamed, in place of another one, or removed.
    pub(super) fn moved(&self, from: &Path, to: Option<&Path>) {
        let mut directories = self.directories.lock();
        let of = |directories: &BTreeSet<PathBuf>, top: &Path| -> Vec<PathBuf> {
            within(directories, top).cloned().collect()
        };
        let there = to.map(|to| of(&directories, to)).unwrap_or_default();
        let moved = of(&directories, from);
        for path in there.iter().chain(&moved) {
            directories.remove(path);
        }
        for below in moved.iter().filter_map(|path| path.strip_prefix(from).ok()) {
            // Not `to/`, if it is the directory itself.
            directories.extend(to.map(|to| to.components().chain(below.components()).collect()));
        }
        if !there.is_empty() || !moved.is_empty() {
            self.revision.fetch_add(1, Ordering::Release);
        }
    }
}

/// Returns the directories at and below `top`: paths are in the order of their components.
fn within<'a>(
    directories: &'a BTreeSet<PathBuf>,
    top: &'a Path,
) -> impl Iterator<Item = &'a PathBuf> {
    directories.range(top.to_owned()..).take_while(move |path| path.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(paths: &[&str]) -> AsWritten {
        let arrays = AsWritten::default();
        assert!(paths.iter().all(|path| arrays.note(Path::new(path))));
        arrays
    }

    fn all(arrays: &AsWritten) -> Vec<String> {
        arrays.directories.lock().iter().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn an_array_goes_with_its_directory() {
        let arrays = noted(&["g/a", "g/b/c", "h/a", "gg", "g.x"]);
        let turns = |from: &str, to: Option<&str>| {
            let before = arrays.revision();
            arrays.moved(Path::new(from), to.map(Path::new));
            arrays.revision() - before
        };
        assert_eq!(turns("g", Some("h")), 1);
        assert_eq!(all(&arrays), ["g.x", "gg", "h/a", "h/b/c"]);
        assert_eq!(turns("h/a", Some("x")), 1);
        assert!(arrays.has(Path::new("x")));
        assert_eq!(turns("h", None), 1);
        assert_eq!(turns("h", Some("y")), 0);
        assert_eq!(all(&arrays), ["g.x", "gg", "x"]);
        assert!(arrays.forget(Path::new("x")));
        assert!(!arrays.forget(Path::new("x")));
    }

    #[test]
    fn arrays_below_a_directory_are_those_in_it() {
        let arrays = noted(&["g/b/c", "g.x", "gg/a"]);
        let has_below = |top: &str| arrays.has_below(Path::new(top));
        assert_eq!(
            ["", "g", "g/b", "g/b/c", "g.x", "g/a"].map(has_below),
            [true, true, true, false, false, false]
        );
    }

    #[test]
    fn no_more_than_the_limit_are_noted() {
        let arrays = AsWritten::default();
        assert!((0..MOST).all(|n| arrays.note(Path::new(&n.to_string()))));
        assert!(!arrays.note(Path::new("one more")));
        assert!(arrays.note(Path::new("7")));
        assert!(!arrays.has(Path::new("one more")));
    }
}
