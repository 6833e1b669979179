//! Inode numbers: the same in every mount of a source, and computed rather than stored.
//!
//! ```text
//!  63  62  60 59  57 56                                                      0
//! | 1 | class | view | hash of the array's path and layout | number in its tree | tree nodes
//! | 0 | view |         hash of the path, or a number below 2^40                 | others
//!
//! class:           0   1   2   3   4   5   6   7
//! bits of number: 20  26  32  38  44  50  56  60      the rest of the 57 bits is hash
//! view:           three bits, 0 if the mount shows one view: then the largest class has them
//! ```
//!
//! An array takes the smallest class that its tree fits into, so hashes rarely collide; on a
//! collision the next free range is taken. So is one for another array in the place of one before, in a
//! mount that others may use.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Inode number of the mount's root.
pub const ROOT: u64 = 1;
/// Inode number of `.shardfs`.
pub const CONTROL_DIRECTORY: u64 = 2;
/// Inode number of `.shardfs/stats.json`.
pub const STATS_FILE: u64 = 3;
/// Inode number of `.shardfs/waiting.txt`.
pub const WAITING_FILE: u64 = 4;
/// Inode number of `.shardfs/log`.
pub const LOG_FILE: u64 = 5;
/// Inode number of `.shardfs/not-shown.txt`.
pub const NOT_SHOWN_FILE: u64 = 6;
/// Inode number of `.shardfs/leftover.txt`.
pub const LEFTOVER_FILE: u64 = 7;
/// Inode number of `.shardfs/metrics`.
pub const METRICS_FILE: u64 = 8;
/// First inode number of files that exist in the mount alone.
const FIRST_LIVE: u64 = 16;
/// First inode number of paths.
const FIRST_PATH: u64 = 1 << 40;

const TREE_BIT: u64 = 1 << 63;
const CLASS_SHIFT: u32 = 60;
/// Shift of the view's number in a number of a tree.
const TREE_VIEW_SHIFT: u32 = 57;
/// Shift of the view's number in any other number.
const PATH_VIEW_SHIFT: u32 = 60;
const NUMBER_BITS: [u32; 8] = [20, 26, 32, 38, 44, 50, 56, 60];

/// Maximum number of views of a mount: they are numbered from 1.
pub const MAX_VIEWS: usize = 7;

/// Maximum number of nodes of an array's tree in a mount of several views.
pub const MAX_NODES_IN_VIEW: u64 = 1 << TREE_VIEW_SHIFT;

/// Returns the number that a mount of several views has for an inode of view `view`.
pub fn in_view(view: u64, ino: u64) -> u64 {
    ino | view << if ino & TREE_BIT == 0 { PATH_VIEW_SHIFT } else { TREE_VIEW_SHIFT }
}

/// Returns the view that an inode of a mount of several views belongs to, and its number in that
/// view. View 0 means none.
pub fn split_view(ino: u64) -> (u64, u64) {
    let shift = if ino & TREE_BIT == 0 { PATH_VIEW_SHIFT } else { TREE_VIEW_SHIFT };
    (ino >> shift & low_bits(3), ino & !(low_bits(3) << shift))
}

/// Range of the inode numbers of one array's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InodeRange {
    base: u64,
}

impl InodeRange {
    /// Returns the range selected by `hash` for a tree of `nodes` nodes, at most 2^60; `attempt`
    /// counts the ranges that were already taken.
    pub fn new(nodes: u64, hash: u64, attempt: u64) -> Self {
        let fits = |bits: &u32| nodes <= 1 << bits;
        let class = NUMBER_BITS.iter().position(fits).unwrap_or(NUMBER_BITS.len() - 1);
        let bits = NUMBER_BITS[class];
        let place = hash.wrapping_add(attempt) & low_bits(TREE_VIEW_SHIFT.saturating_sub(bits));
        Self { base: TREE_BIT | (class as u64) << CLASS_SHIFT | place << bits }
    }

    /// Returns the range that an inode number is in and the node's number; `None` if it is not in a
    /// tree.
    pub fn split(ino: u64) -> Option<(Self, u64)> {
        if ino & TREE_BIT == 0 {
            return None;
        }
        let class = ino >> CLASS_SHIFT & low_bits(3);
        let bits =
            NUMBER_BITS.iter().zip(0..).find(|(_, at)| *at == class).map(|(bits, _)| *bits)?;
        let number = ino & low_bits(bits);
        Some((Self { base: ino & !low_bits(bits) }, number))
    }

    /// Returns a number that identifies the range.
    pub fn id(self) -> u64 {
        self.base
    }

    /// Returns the inode number of a node.
    pub fn ino(self, number: u64) -> u64 {
        self.base | number
    }
}

/// Returns the inode number of a path; `attempt` counts the numbers that were already taken.
pub fn of_path(path: &Path, attempt: u64) -> u64 {
    if path.as_os_str().is_empty() {
        return ROOT;
    }
    let hash = stable_hash([path.as_os_str().as_bytes()]).wrapping_add(attempt);
    let hash = hash & low_bits(PATH_VIEW_SHIFT);
    if hash < FIRST_PATH { hash | FIRST_PATH } else { hash }
}

/// Returns the inode number of the `number`-th file that exists in the mount alone. After 2^40
/// files numbers are reused.
pub fn of_live(number: u64) -> u64 {
    FIRST_LIVE + number % (FIRST_PATH - FIRST_LIVE)
}

/// Returns whether an inode number is that of a file that exists in the mount alone.
pub fn is_live(ino: u64) -> bool {
    (FIRST_LIVE..FIRST_PATH).contains(&ino)
}

/// Returns a hash that is stable across mounts and versions: FNV-1a over the parts and their
/// lengths, with the final mix of SplitMix64.
pub fn stable_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        hash = (part.len() as u64).to_le_bytes().iter().chain(part).fold(hash, step);
    }
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

const fn low_bits(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn inode_numbers_split_into_what_they_were_made_of(
            nodes in 1_u64..=1 << 60, hash: u64, attempt in 0_u64..9, place: u64,
        ) {
            let range = InodeRange::new(nodes, hash, attempt);
            let number = place % nodes;
            prop_assert_eq!(InodeRange::split(range.ino(number)), Some((range, number)));
        }

        #[test]
        fn a_view_and_its_inode_number_are_found_again(
            nodes in 1_u64..=MAX_NODES_IN_VIEW, hash: u64, view in 0_u64..=MAX_VIEWS as u64, path: String,
        ) {
            let of_tree = InodeRange::new(nodes, hash, 0).ino(nodes - 1);
            for ino in [of_tree, of_path(Path::new(&path), 0), of_live(hash), ROOT, STATS_FILE] {
                prop_assert_eq!(split_view(in_view(view, ino)), (view, ino));
            }
        }
    }

    #[test]
    fn the_next_range_is_another_one() {
        assert_ne!(InodeRange::new(1 << 30, 7, 0), InodeRange::new(1 << 30, 7, 1));
        // There is only one range of the largest class.
        assert_eq!(InodeRange::new(1 << 60, 7, 0), InodeRange::new(1 << 60, 7, 1));
    }

    #[test]
    fn paths_have_numbers_of_their_own() {
        assert_eq!(of_path(Path::new(""), 0), ROOT);
        assert_eq!(InodeRange::split(of_path(Path::new("a/b"), 0)), None);
        assert_ne!(of_path(Path::new("a/b"), 0), of_path(Path::new("a/b"), 1));
    }

    #[test]
    fn the_hash_is_what_it_always_was() {
        assert_eq!(stable_hash([&b"ab"[..], b"c"]), stable_hash([&b"ab"[..], b"c"]));
        assert_ne!(stable_hash([&b"ab"[..], b"c"]), stable_hash([&b"a"[..], b"bc"]));
        assert_eq!(stable_hash([&b"volume.zarr"[..]]), STABLE);
    }

    /// Computed once; if it changes, inode numbers of all mounts change.
    const STABLE: u64 = 11_052_836_925_615_747_650;
}
