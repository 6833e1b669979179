//! The names in an archive, in order.
//!
//! ```text
//! a/zarr.json
//! b/c/0        <- what is in b is the run that begins with "b/"; what is in b/c the one with "b/c/"
//! b/c/1
//! b/zarr.json
//! ```

use std::ops::ControlFlow;

/// Function called for each name in a directory: whether it is a directory, and where to go on behind it.
pub(super) type Act<'a> = dyn FnMut(&[u8], bool, u64) -> ControlFlow<()> + 'a;

/// Maximum length of a name, and of what is between two slashes of it, in bytes: no file has a longer one.
const LONGEST_NAME: usize = 4095;
const LONGEST_PART: usize = 255;

/// Names of entries, with what they are.
pub(super) struct Names<T> {
    /// All names, one behind the other.
    text: Vec<u8>,
    entries: Vec<Named<T>>,
}

struct Named<T> {
    start: usize,
    length: u32,
    /// `None` for a directory, which may have an entry of its own.
    entry: Option<T>,
}

/// What has a name.
pub(super) enum Found<'a, T> {
    /// A directory, with its name, which ends with a slash, or is empty.
    Directory(Directory),
    /// A file.
    File(&'a T),
}

/// Directory: a run of entries, and the length of the name that all of these begin with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Directory {
    first: usize,
    end: usize,
    prefix: usize,
}

/// A name leads out of the archive, or is none that a file can have.
#[derive(Debug)]
pub(super) struct LeadsOut;

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { text: Vec::new(), entries: Vec::new() }
    }
}

impl<T> Names<T> {
    /// Adds an entry of the central directory.
    pub(super) fn add(&mut self, name: &[u8], entry: T) -> Result<(), LeadsOut> {
        let (name, is_directory) = match name.strip_suffix(b"/") {
            Some(directory) => (directory, true),
            None => (name, false),
        };
        let is_part = |part: &[u8]| {
            !part.is_empty() && part != b"." && part != b".." && part.len() <= LONGEST_PART
        };
        let length = u32::try_from(name.len()).map_err(|_| LeadsOut)?;
        if name.len() > LONGEST_NAME {
            return Err(LeadsOut);
        }
        if name.contains(&0)
            || name.contains(&b'\\')
            || !name.split(|byte| *byte == b'/').all(is_part)
        {
            return Err(LeadsOut);
        }
        let start = self.text.len();
        self.text.extend(name);
        self.entries.push(Named { start, length, entry: (!is_directory).then_some(entry) });
        Ok(())
    }

    /// Puts all names in order. Returns those that are not kept: older entries of the same name, and files that have
    /// the name of a directory.
    pub(super) fn settle(&mut self) -> Vec<Vec<u8>> {
        let text = &self.text;
        let name = |named: &Named<T>| &text[named.start..][..named.length as usize];
        // Of equal names the last one comes first.
        self.entries.reverse();
        self.entries.sort_by(|one, other| ordered(name(one)).cmp(ordered(name(other))));
        let mut dropped = Vec::new();
        let mut kept: Vec<Named<T>> = Vec::with_capacity(self.entries.len());
        for named in std::mem::take(&mut self.entries) {
            let own = name(&named);
            // One that is a directory, or has something below it, is just before: they are in order.
            let is_same = kept.last().is_some_and(|before| name(before) == own);
            let is_below_file = kept
                .last()
                .is_some_and(|before| before.entry.is_some() && is_below(own, name(before)));
            if is_below_file && let Some(file) = kept.pop() {
                dropped.push(name(&file).to_vec());
            }
            match (is_same, named.entry.is_some()) {
                (true, true) => dropped.push(own.to_vec()),
                (true, false) => (),
                (false, _) => kept.push(named),
            }
        }
        kept.shrink_to_fit();
        self.entries = kept;
        dropped
    }

    fn name(&self, number: usize) -> &[u8] {
        let named = &self.entries[number];
        &self.text[named.start..][..named.length as usize]
    }

    /// Returns what has this name: the empty one is that of the archive itself.
    pub(super) fn find(&self, name: &[u8]) -> Option<Found<'_, T>> {
        if name.is_empty() {
            let whole = Directory { first: 0, end: self.entries.len(), prefix: 0 };
            return Some(Found::Directory(whole));
        }
        let first = self.first_from(name);
        let at = self.entries.get(first)?;
        let found = self.name(first);
        match &at.entry {
            Some(entry) if found == name => return Some(Found::File(entry)),
            _ if found == name || is_below(found, name) => (),
            _ => return None,
        }
        let count = self.entries[first..].partition_point(|named| {
            let other = &self.text[named.start..][..named.length as usize];
            other == name || is_below(other, name)
        });
        // Its own entry is none of what is in it.
        let own = usize::from(found == name);
        let directory =
            Directory { first: first + own, end: first + count, prefix: name.len() + 1 };
        Some(Found::Directory(directory))
    }

    /// Returns the number of the first name that is not before this one.
    fn first_from(&self, name: &[u8]) -> usize {
        self.entries.partition_point(|named| {
            let other = &self.text[named.start..][..named.length as usize];
            ordered(other).lt(ordered(name))
        })
    }

    /// Calls `act` for each name in a directory, from where an earlier call has said, or from the start (0).
    pub(super) fn list(&self, directory: Directory, from: u64, act: &mut Act<'_>) {
        let Directory { first, end, prefix } = directory;
        // Positions count from 1: 0 is the start.
        let mut at = usize::try_from(from).unwrap_or(usize::MAX).saturating_sub(1).max(first);
        while at < end {
            let name = &self.name(at)[prefix..];
            let part = name.split(|byte| *byte == b'/').next().unwrap_or_default();
            let whole = &self.name(at)[..prefix + part.len()];
            let count = self.entries[at..end].partition_point(|named| {
                let other = &self.text[named.start..][..named.length as usize];
                other == whole || is_below(other, whole)
            });
            let is_directory = part.len() < name.len() || self.entries[at].entry.is_none();
            let next = at + count.max(1);
            if act(part, is_directory, next as u64 + 1).is_break() {
                return;
            }
            at = next;
        }
    }
}

/// The order of names: what is in a directory comes right behind it, before names that go on otherwise.
fn ordered(name: &[u8]) -> impl Iterator<Item = u8> + '_ {
    // No name has a byte 0.
    name.iter().map(|byte| if *byte == b'/' { 0 } else { *byte })
}

/// Returns whether a name is in a directory, or below it.
fn is_below(name: &[u8], directory: &[u8]) -> bool {
    name.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn names(of: &[&str]) -> (Names<()>, Vec<String>) {
        let mut names = Names::default();
        of.iter().for_each(|name| names.add(name.as_bytes(), ()).unwrap());
        let dropped = names.settle();
        (names, dropped.into_iter().map(|name| String::from_utf8(name).unwrap()).collect())
    }

    /// The names in a directory, listed `step` at a time, with whether they are directories.
    fn listed(names: &Names<()>, directory: &str, step: usize) -> Option<BTreeMap<String, bool>> {
        let Found::Directory(directory) = names.find(directory.as_bytes())? else { return None };
        let (mut found, mut from) = (BTreeMap::new(), 0);
        loop {
            let (mut left, start) = (step, from);
            names.list(directory, from, &mut |name, is_directory, next| {
                if left == 0 {
                    return ControlFlow::Break(());
                }
                (left, from) = (left - 1, next);
                let name = String::from_utf8(name.to_vec()).unwrap();
                assert!(found.insert(name, is_directory).is_none(), "twice");
                ControlFlow::Continue(())
            });
            if from == start {
                return Some(found);
            }
        }
    }

    #[test]
    fn directories_are_found_by_what_is_in_them() {
        let (names, dropped) = names(&[
            "b/c/1",
            "a.b",
            "a/zarr.json",
            "b/zarr.json",
            "b/c/0",
            "a0",
            "e/",
            "b/c.d",
            "a/",
        ]);
        assert!(dropped.is_empty(), "{dropped:?}");
        let of = |list: &[(&str, bool)]| -> Option<BTreeMap<String, bool>> {
            Some(list.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect())
        };
        for step in [1, 2, 100] {
            let top = of(&[("a", true), ("a.b", false), ("a0", false), ("b", true), ("e", true)]);
            assert_eq!(listed(&names, "", step), top);
            assert_eq!(listed(&names, "a", step), of(&[("zarr.json", false)]));
            let b = of(&[("c", true), ("c.d", false), ("zarr.json", false)]);
            assert_eq!(listed(&names, "b", step), b);
            assert_eq!(listed(&names, "b/c", step), of(&[("0", false), ("1", false)]));
            assert_eq!(listed(&names, "e", step), of(&[]));
        }
        let is_file = |name: &str| matches!(names.find(name.as_bytes()), Some(Found::File(_)));
        assert!(is_file("a.b") && is_file("b/c/0") && !is_file("b/c") && !is_file("e"));
        for absent in ["c", "a/zarr", "b/c/2", "b/", "zarr.json", "b/c/0/x", "a."] {
            assert!(names.find(absent.as_bytes()).is_none(), "{absent}");
        }
    }

    #[test]
    fn of_names_that_clash_one_is_kept() {
        let (found, dropped) = names(&["a", "b", "a", "c/d", "c", "b/"]);
        assert_eq!(dropped, ["a", "b", "c"].map(str::to_owned));
        assert_eq!(listed(&found, "", 9).unwrap().len(), 3);
        assert!(matches!(found.find(b"c"), Some(Found::Directory(_))));
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        for name in ["../a", "/a", "a/../b", "a//b", "", "/", ".", "a/.", "a\\b", "a\0b"] {
            let refused = Names::default().add(name.as_bytes(), ());
            assert!(refused.is_err(), "{name:?}");
        }
    }
}
