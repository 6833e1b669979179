//! Chunk files whose bytes are in shards.

/// Such files, by the number of the chunk in the grid. There may be millions: each takes 24 bytes.
#[derive(Default)]
pub(super) struct KnownFiles {
    /// By number.
    sorted: Vec<Known>,
    /// Those of this pass that are not among them yet.
    new: Vec<Known>,
}

struct Known {
    number: u64,
    /// Hash of its version.
    version: u64,
    /// The last pass that has found it.
    pass: u32,
}

impl KnownFiles {
    /// Returns the hash of the version of which a shard has the bytes. [`KnownFiles::settle`] was called since the
    /// last file was added.
    pub(super) fn version(&self, number: u64) -> Option<u64> {
        self.place(number).map(|at| self.sorted[at].version)
    }

    /// Records that a pass has found a file, if a shard has the bytes of this version. Returns whether one has.
    pub(super) fn finds(&mut self, number: u64, version: u64, pass: u32) -> bool {
        let known = self.place(number).map(|at| &mut self.sorted[at]);
        let Some(known) = known.filter(|known| known.version == version) else { return false };
        known.pass = pass;
        true
    }

    /// Adds a file that a pass has found, or another version of one.
    pub(super) fn add(&mut self, number: u64, version: u64, pass: u32) {
        let known = Known { number, version, pass };
        match self.place(number) {
            Some(at) => self.sorted[at] = known,
            None => self.new.push(known),
        }
    }

    /// Sorts the files that were added in; each of them was added once since the last time.
    pub(super) fn settle(&mut self) {
        match self.sorted.is_empty() {
            true => std::mem::swap(&mut self.sorted, &mut self.new),
            false => self.sorted.append(&mut self.new),
        }
        self.new = Vec::new();
        self.sorted.sort_unstable_by_key(|known| known.number);
    }

    /// Returns the numbers of the files that a pass has not found.
    pub(super) fn gone(&self, pass: u32) -> Vec<u64> {
        self.sorted.iter().filter(|known| known.pass != pass).map(|known| known.number).collect()
    }

    /// Removes the files that a pass has not found.
    pub(super) fn keep(&mut self, pass: u32) {
        self.sorted.retain(|known| known.pass == pass);
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len() + self.new.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.sorted.binary_search_by_key(&number, |known| known.number).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_the_version_that_was_added_last() {
        let mut files = KnownFiles::default();
        [5, 3, 9].into_iter().for_each(|number| files.add(number, number * 10, 1));
        files.settle();
        assert_eq!([3, 4, 5].map(|number| files.version(number)), [Some(30), None, Some(50)]);
        assert!(files.finds(3, 30, 2));
        assert!(!files.finds(5, 51, 2));
        assert!(!files.finds(4, 40, 2));
        files.add(5, 51, 2);
        files.add(4, 40, 2);
        files.settle();
        assert_eq!([4, 5, 9].map(|number| files.version(number)), [Some(40), Some(51), Some(90)]);
        assert_eq!(files.len(), 4);
        assert_eq!(files.gone(2), [9]);
        files.keep(2);
        assert!(files.gone(2).is_empty());
        assert_eq!(files.len(), 3);
    }
}
