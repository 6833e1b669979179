//! Names in a storage in memory, and what they stand for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What stands for paths, in the order of their bytes: comparing their components one by one took a quarter of the
/// time of simulated crashes.
#[derive(Debug)]
pub(super) struct Names<T>(BTreeMap<OsString, T>);

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Names<T> {
    pub(super) fn get(&self, path: &Path) -> Option<&T> {
        self.0.get(key(path))
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.0.contains_key(key(path))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what the path has stood for.
    pub(super) fn insert(&mut self, path: &Path, value: T) -> Option<T> {
        self.0.insert(key(path).to_owned(), value)
    }

    /// Returns what the path has stood for.
    pub(super) fn remove(&mut self, path: &Path) -> Option<T> {
        self.0.remove(key(path))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &T)> {
        self.0.iter().map(|(path, value)| (Path::new(path), value))
    }

    fn from(&self, first: &OsStr) -> impl Iterator<Item = (&OsString, &T)> {
        self.0.range::<OsStr, _>((Bound::Included(first), Bound::Unbounded))
    }

    /// Visits the paths below a directory, relative to it.
    pub(super) fn below(&self, directory: &Path, mut visit: impl FnMut(&Path)) {
        let top = top_of(directory);
        for (path, _) in self.from(&top) {
            match path.as_bytes().strip_prefix(top.as_bytes()) {
                Some(below) => visit(Path::new(OsStr::from_bytes(below))),
                None => break,
            }
        }
    }

    /// Returns whether there is a path below a directory.
    pub(super) fn has_below(&self, directory: &Path) -> bool {
        let top = top_of(directory);
        let next = self.from(&top).next();
        next.is_some_and(|(path, _)| path.as_bytes().starts_with(top.as_bytes()))
    }
}

/// Returns a path without a separator at its end, as a path has that was joined with nothing.
fn key(path: &Path) -> &OsStr {
    let mut bytes = path.as_os_str().as_bytes();
    while let Some(rest) = bytes.strip_suffix(b"/") {
        bytes = rest;
    }
    OsStr::from_bytes(bytes)
}

/// Returns what the paths below a directory begin with.
fn top_of(directory: &Path) -> OsString {
    let mut top = key(directory).to_owned();
    if !top.is_empty() {
        top.push("/");
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_at_the_end_of_a_path_is_no_part_of_a_name() {
        let mut names = Names::default();
        names.insert(&Path::new("a/b").join(""), 1);
        names.insert(Path::new("a/b.c"), 2);
        names.insert(Path::new("a/b/d"), 3);
        assert_eq!(names.get(Path::new("a/b")), Some(&1));
        assert!(names.has_below(Path::new("a/b/")));
        assert!(!names.has_below(Path::new("a/b.c")));
        let mut below = Vec::new();
        names.below(Path::new("a/b/"), |path| below.push(path.to_owned()));
        assert_eq!(below, [Path::new("d")]);
        names.below(Path::new(""), |path| below.push(path.to_owned()));
        assert_eq!(below.len(), 4);
        assert_eq!(names.remove(Path::new("a/b/d/")), Some(3));
        assert!(!names.has_below(Path::new("a/b")));
    }
}
