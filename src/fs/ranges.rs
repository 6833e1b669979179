//! Inode ranges of arrays.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use parking_lot::RwLock;

use crate::format::Coords;
use crate::format::chunk_key::KeyEncoding;
use crate::format::error::MetadataError;
use crate::fs::node::{ArrayIds, are_of_others};
use crate::view::inode::InodeRange;
use crate::view::tree::ChunkTree;

/// Number of inode ranges to try for an array before it is refused.
const ATTEMPTS: u64 = 1 << 10;

/// Array that has an inode range.
struct Known {
    directory: Box<Path>,
    /// Hash of everything that the meaning of a node number depends on.
    layout_hash: u64,
    /// Its directory and its document, as they were last.
    ids: ArrayIds,
    /// What its node numbers mean. `None` where nothing can be created.
    outline: Option<Outline>,
}

/// What the node numbers of an array mean.
#[derive(Debug, Clone)]
pub(super) struct Outline {
    /// Encoding of its chunk keys.
    pub keys: KeyEncoding,
    /// Number of chunks along each axis.
    pub grid: Box<[u64]>,
}

impl Outline {
    /// Returns the coordinates of the directory above chunks that has a number; `None` if a chunk has it.
    fn directory(self, number: u64) -> Option<Coords> {
        let rank = self.grid.len();
        let tree = ChunkTree::new(self.keys, "", self.grid.into()).ok()?;
        tree.coords(number).filter(|coords| coords.len() < rank)
    }
}

/// Arrays that have inode ranges. The kernel may ask for any of them at any time, so as little as possible is
/// kept of each.
pub(super) struct Ranges {
    known: RwLock<HashMap<InodeRange, Known>>,
    /// `true` in a mount that others may use: what the kernel has cached of an array must not be shown as
    /// another one's that is put in its place.
    shared: bool,
}

impl Ranges {
    /// Creates the ranges of a mount, which others may use if it is `shared`.
    pub(super) fn new(shared: bool) -> Self {
        Self { known: RwLock::default(), shared }
    }

    /// Returns the directory of the array that has a range.
    pub(super) fn directory(&self, range: InodeRange) -> Option<Box<Path>> {
        self.known.read().get(&range).map(|known| known.directory.clone())
    }

    /// Returns the coordinates of a directory above chunks by a number that it had before the shape of its array
    /// changed; the tree of that is `now`. The kernel knows the directory by its old number for a while, and
    /// looks the name up once more only for some of what is done in it: not before it creates a directory there.
    /// `None` if the number is that of no directory which is still there.
    pub(super) fn directory_since(
        &self,
        (range, number): (InodeRange, u64),
        ids: ArrayIds,
        now: &ChunkTree,
    ) -> Option<Coords> {
        let known = self.known.read();
        let before = known.get(&range)?;
        if self.shared && are_of_others(ids, before.ids) {
            return None;
        }
        let outline = before.outline.clone()?;
        drop(known);
        if (outline.keys, outline.grid.len()) != (now.keys(), now.rank()) {
            return None;
        }
        let coords = outline.directory(number)?;
        coords.iter().zip(now.grid()).all(|(coord, extent)| coord < extent).then_some(coords)
    }

    /// Returns the range of an array with so many nodes, and whether it was assigned by this call. In a
    /// shared mount another array that has the place of one before has another range, as long as there are
    /// any.
    ///
    /// # Errors
    ///
    /// Other arrays have all the ranges that this one could have.
    pub(super) fn take(
        &self,
        nodes: u64,
        directory: &Path,
        layout_hash: u64,
        ids: ArrayIds,
        outline: Option<Outline>,
    ) -> Result<(InodeRange, bool), MetadataError> {
        let mut known = self.known.write();
        let this =
            || Known { directory: directory.into(), layout_hash, ids, outline: outline.clone() };
        let mut oldest = None;
        for attempt in 0..ATTEMPTS {
            let range = InodeRange::new(nodes, layout_hash, attempt);
            match known.entry(range) {
                Entry::Occupied(mut there)
                    if there.get().layout_hash == layout_hash
                        && *there.get().directory == *directory =>
                {
                    if !self.shared || !are_of_others(ids, there.get().ids) {
                        let (place, document) = there.get().ids;
                        there.get_mut().ids = (ids.0.or(place), ids.1.or(document));
                        return Ok((range, false));
                    }
                    oldest.get_or_insert(range);
                }
                Entry::Occupied(_) => (),
                Entry::Vacant(free) => {
                    free.insert(this());
                    return Ok((range, true));
                }
            }
        }
        let what = "arrays with as many chunks";
        let range = oldest.ok_or(MetadataError::Limit { what, limit: ATTEMPTS })?;
        known.insert(range, this());
        Ok((range, true))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;
    use crate::format::chunk_key::{Prefix, Separator};

    const HASH: u64 = 7;

    fn take(ranges: &Ranges, place: u64, document: u64) -> InodeRange {
        let ids = (Some((1, place)), Some((1, document)));
        ranges.take(100, Path::new("a"), HASH, ids, None).unwrap().0
    }

    #[test]
    fn a_directory_of_an_array_whose_shape_has_changed_is_known_by_its_old_number() {
        let keys = KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash };
        let tree = |grid: &[u64]| ChunkTree::new(keys, "", grid.to_vec()).unwrap();
        let (ranges, ids) = (Ranges::new(true), (Some((1, 1)), None));
        let before = tree(&[3, 4]);
        let outline = Some(Outline { keys, grid: before.grid().into() });
        let range = ranges.take(100, Path::new("a"), HASH, ids, outline).unwrap().0;
        let since = |coords: &[u64], ids, now: &ChunkTree| {
            ranges.directory_since((range, before.number(coords)), ids, now)
        };
        assert_eq!(since(&[], ids, &tree(&[5, 4])), Some(vec![]));
        assert_eq!(since(&[2], ids, &tree(&[5, 4])), Some(vec![2]));
        assert_eq!(since(&[2], ids, &tree(&[2, 4])), None, "outside");
        assert_eq!(since(&[2, 1], ids, &tree(&[5, 4])), None, "a chunk");
        assert_eq!(since(&[2], ids, &tree(&[5])), None, "another rank");
        assert_eq!(since(&[2], (Some((1, 2)), None), &tree(&[5, 4])), None, "of others");
    }

    #[test]
    fn another_array_in_the_same_place_has_another_range_where_others_may_use_the_mount() {
        let ranges = Ranges::new(true);
        let first = take(&ranges, 1, 2);
        let other = take(&ranges, 3, 4);
        assert_ne!(first, other);
        assert_eq!(take(&ranges, 1, 2), first, "it is there again");
        assert_eq!(take(&ranges, 3, 4), other);
        let own = Ranges::new(false);
        assert_eq!(take(&own, 1, 2), take(&own, 3, 4));
    }

    #[test]
    fn an_array_keeps_its_range_when_its_document_or_the_number_of_its_directory_changes() {
        let ranges = Ranges::new(true);
        let first = take(&ranges, 1, 2);
        assert_eq!(take(&ranges, 1, 5), first, "the document was replaced");
        assert_eq!(take(&ranges, 6, 5), first, "the directory was copied up");
        assert_ne!(take(&ranges, 1, 2), first, "neither is the same");
        // The first one's document has had a second name.
        let linked = Ranges::new(true);
        let of = |ids| linked.take(100, Path::new("a"), HASH, ids, None).unwrap().0;
        let first = of((Some((1, 1)), None));
        assert_ne!(of((Some((1, 2)), Some((1, 3)))), first);
        assert_eq!(of((None, None)), first, "nothing is known of it");
        assert_ne!(of((Some((1, 2)), Some((1, 3)))), first);
    }

    #[test]
    fn ranges_that_are_used_up_by_one_place_are_used_again() {
        let ranges = Ranges::new(true);
        let first = take(&ranges, 0, 0);
        for n in 1..ATTEMPTS {
            assert_ne!(take(&ranges, n, n), first);
        }
        assert_eq!(take(&ranges, ATTEMPTS, ATTEMPTS), first);
    }
}
