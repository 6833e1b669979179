//! Inode ranges of arrays.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use parking_lot::RwLock;

use crate::format::error::MetadataError;
use crate::fs::node::{ArrayIds, are_of_others};
use crate::view::inode::InodeRange;

/// Number of inode ranges to try for an array before it is refused.
const ATTEMPTS: u64 = 1 << 10;

/// Array that has an inode range.
struct Known {
    directory: Box<Path>,
    /// Hash of everything that the meaning of a node number depends on.
    layout_hash: u64,
    /// Its directory and its document, as they were last.
    ids: ArrayIds,
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
    ) -> Result<(InodeRange, bool), MetadataError> {
        let mut known = self.known.write();
        let this = || Known { directory: directory.into(), layout_hash, ids };
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

    const HASH: u64 = 7;

    fn take(ranges: &Ranges, place: u64, document: u64) -> InodeRange {
        let ids = (Some((1, place)), Some((1, document)));
        ranges.take(100, Path::new("a"), HASH, ids).unwrap().0
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
        let of = |ids| linked.take(100, Path::new("a"), HASH, ids).unwrap().0;
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
