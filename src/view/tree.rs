//! Numbering of an array's chunk files and of the directories above them.
//!
//! ```text
//! separator "/":  depth 0        `c`, or the array's own directory where keys have no prefix
//!                 depth 1        a directory for each first coordinate
//!                 ...
//!                 depth rank     the chunk files
//! separator ".", and rank 0:     chunk files only, in the array's own directory
//!
//! Names of chunk files may end in a suffix: `c/0/1.npy`.
//!
//! node number =  nodes of all lesser depths  +  place among its depth in C order
//! ```

use crate::format::Coords;
use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::error::MetadataError;
use crate::format::limits::MAX_TREE_NODES;

/// Names of one array's chunks.
#[derive(Debug)]
pub struct ChunkTree {
    keys: KeyEncoding,
    /// Suffix of the names of chunk files.
    suffix: &'static str,
    /// Number of chunks along each axis.
    grid: Vec<u64>,
    /// Number of the first node of each depth.
    bases: Vec<u64>,
    nodes: u64,
}

impl ChunkTree {
    /// Creates the tree of an array with the chunk grid `grid` and the suffix `suffix` of chunk
    /// file names.
    ///
    /// # Errors
    ///
    /// Fails if the tree has more than [`MAX_TREE_NODES`] nodes.
    pub fn new(
        keys: KeyEncoding,
        suffix: &'static str,
        grid: Vec<u64>,
    ) -> Result<Self, MetadataError> {
        let limit = || MetadataError::Limit { what: "chunks", limit: MAX_TREE_NODES };
        let mut bases = Vec::with_capacity(grid.len() + 1);
        let (mut nodes, mut of_depth) = (0_u64, 1_u64);
        for depth in 0..=grid.len() {
            bases.push(nodes);
            nodes = nodes.checked_add(of_depth).ok_or_else(limit)?;
            of_depth =
                of_depth.checked_mul(grid.get(depth).copied().unwrap_or(0)).ok_or_else(limit)?;
        }
        if nodes <= MAX_TREE_NODES {
            Ok(Self { keys, suffix, grid, bases, nodes })
        } else {
            Err(limit())
        }
    }

    /// Returns the number of nodes; node numbers are less than it.
    pub fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns the number of dimensions: the depth of the chunk files.
    pub fn rank(&self) -> usize {
        self.grid.len()
    }

    /// Returns the encoding of the names.
    pub fn keys(&self) -> KeyEncoding {
        self.keys
    }

    /// Returns the number of chunks along each axis.
    pub fn grid(&self) -> &[u64] {
        &self.grid
    }

    /// Returns whether all chunk files are in the array's own directory.
    pub fn is_flat(&self) -> bool {
        self.keys.separator == Separator::Dot || self.grid.is_empty()
    }

    /// Returns the depth of the nodes in the array's own directory.
    pub fn top_depth(&self) -> usize {
        if self.is_flat() { self.rank() } else { usize::from(self.keys.prefix != Prefix::Apart) }
    }

    /// Returns the number of the node at `coords`, of which there are as many as its depth.
    pub fn number(&self, coords: &[u64]) -> u64 {
        let axes = coords.iter().zip(&self.grid);
        self.bases[coords.len()] + axes.fold(0, |place, (coord, extent)| place * extent + coord)
    }

    /// Returns the coordinates of a node; `None` if there is no node with that number.
    pub fn coords(&self, number: u64) -> Option<Coords> {
        if number >= self.nodes {
            return None;
        }
        let depth = self.bases.partition_point(|base| *base <= number).checked_sub(1)?;
        let mut place = number - self.bases[depth];
        let mut coords = vec![0; depth];
        for (coord, extent) in coords.iter_mut().zip(&self.grid).rev() {
            *coord = place.checked_rem(*extent)?;
            place /= extent;
        }
        Some(coords)
    }

    /// Returns the coordinates of the node called `name` in the array's own directory; `None` if
    /// there is none.
    pub fn top(&self, name: &str) -> Option<Coords> {
        if self.is_flat() {
            let coords = self.keys.parse_flat(name.strip_suffix(self.suffix)?, self.rank())?;
            let within = coords.iter().zip(&self.grid).all(|(coord, extent)| coord < extent);
            return within.then_some(coords);
        }
        match self.keys.prefix {
            Prefix::Apart => (name == "c").then(Vec::new),
            Prefix::None | Prefix::Joined => self.child(&[], name),
        }
    }

    /// Returns the coordinates of the node called `name` in the directory `parent`; `None` if there
    /// is none.
    pub fn child(&self, parent: &[u64], name: &str) -> Option<Coords> {
        let extent = *self.grid.get(parent.len())?;
        let coord = self.coordinate(parent.len(), name).filter(|coord| *coord < extent)?;
        Some([parent, &[coord]].concat())
    }

    /// Returns the coordinate along an axis that a name in a directory above chunks stands for,
    /// inside the grid or not; `None` if the name is not a coordinate.
    pub fn coordinate(&self, axis: usize, name: &str) -> Option<u64> {
        let is_chunk = axis + 1 == self.rank();
        let part = if is_chunk { name.strip_suffix(self.suffix)? } else { name };
        self.keys.parse_part(axis, part)
    }

    /// Returns the name of a node in its directory.
    pub fn name(&self, coords: &[u64]) -> String {
        let name = match coords.split_last() {
            Some((coord, above)) if !self.is_flat() => self.keys.part(above.len(), *coord),
            _ => self.keys.chunk_key(coords),
        };
        if coords.len() == self.rank() { name + self.suffix } else { name }
    }

    /// Returns the path of a node relative to the array's own directory, for which it is empty.
    pub fn path(&self, coords: &[u64]) -> String {
        if coords.len() == self.rank() {
            self.keys.chunk_key(coords) + self.suffix
        } else {
            self.keys.key(coords)
        }
    }

    /// Returns whether a name in the array's own directory is that of a chunk or of a directory
    /// above chunks, inside the grid or not.
    pub fn claims(&self, name: &str) -> bool {
        match self.is_flat() {
            true => name.strip_suffix(self.suffix).is_some_and(|key| self.claims_key(key)),
            // In rank 1 without a prefix the chunks are in the array's own directory.
            false if self.top_depth() == self.rank() => self.coordinate(0, name).is_some(),
            false => self.claims_key(name),
        }
    }

    fn claims_key(&self, name: &str) -> bool {
        self.keys.claims(name, self.rank())
    }

    /// Returns the prefix of chunk keys.
    pub fn prefix(&self) -> Prefix {
        self.keys.prefix
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn tree(name: &str, separator: &str, grid: &[u64]) -> ChunkTree {
        let keys = json!({"name": name, "configuration": {"separator": separator}});
        ChunkTree::new(KeyEncoding::parse(Some(&keys)).unwrap(), "", grid.to_vec()).unwrap()
    }

    #[test]
    fn names_lead_to_nodes_and_back() {
        let slash = tree("default", "/", &[3, 4]);
        assert_eq!((slash.nodes(), slash.top_depth()), (1 + 3 + 12, 0));
        assert_eq!(slash.top("c"), Some(vec![]));
        assert_eq!(slash.name(&[]), "c");
        assert_eq!(slash.child(&[], "2"), Some(vec![2]));
        assert_eq!(slash.child(&[2], "3"), Some(vec![2, 3]));
        for (parent, name) in [(&[][..], "3"), (&[2], "4"), (&[2], "03"), (&[2, 3], "0")] {
            assert_eq!(slash.child(parent, name), None);
        }
        let unprefixed = tree("v2", "/", &[3, 4]);
        assert_eq!((unprefixed.top("1"), unprefixed.top_depth()), (Some(vec![1]), 1));
        let flat = tree("default", ".", &[3, 4]);
        assert_eq!((flat.top("c.2.3"), flat.top("c.3.0")), (Some(vec![2, 3]), None));
        assert_eq!(flat.name(&[2, 3]), "c.2.3");
        assert_eq!(tree("v2", "/", &[]).name(&[]), "0");
        assert_eq!(tree("default", "/", &[]).top("c"), Some(vec![]));
    }

    #[test]
    fn names_of_chunk_files_can_have_a_suffix() {
        let with_suffix = |prefix, separator, grid: &[u64]| {
            let keys = KeyEncoding { prefix, separator };
            ChunkTree::new(keys, ".npy", grid.to_vec()).unwrap()
        };
        let slash = with_suffix(Prefix::Apart, Separator::Slash, &[3, 4]);
        assert_eq!((slash.child(&[2], "3.npy"), slash.child(&[2], "3")), (Some(vec![2, 3]), None));
        assert_eq!((slash.child(&[], "2"), slash.child(&[], "2.npy")), (Some(vec![2]), None));
        assert_eq!((slash.name(&[2]), slash.name(&[2, 3])), ("2".into(), "3.npy".into()));
        assert_eq!((slash.path(&[2]), slash.path(&[2, 3])), ("c/2".into(), "c/2/3.npy".into()));
        assert!(slash.claims("c") && !slash.claims("c.npy"));
        let flat = with_suffix(Prefix::None, Separator::Dot, &[3, 4]);
        assert_eq!((flat.top("2.3.npy"), flat.top("2.3")), (Some(vec![2, 3]), None));
        assert!(flat.claims("9.9.npy") && !flat.claims("9.9"));
        let single = with_suffix(Prefix::None, Separator::Slash, &[3]);
        assert_eq!((single.top("2.npy"), single.path(&[2])), (Some(vec![2]), "2.npy".into()));
        assert!(single.claims("7.npy") && !single.claims("7"));
        let rank_0 = with_suffix(Prefix::Apart, Separator::Slash, &[]);
        assert_eq!((rank_0.top("c.npy"), rank_0.path(&[])), (Some(vec![]), "c.npy".into()));
    }

    #[test]
    fn a_grid_without_chunks_has_directories_only() {
        let empty = tree("default", "/", &[2, 0, 5]);
        assert_eq!(empty.nodes(), 3);
        assert_eq!(empty.coords(2), Some(vec![1]));
        assert_eq!(empty.coords(3), None);
    }

    #[test]
    fn an_absurd_grid_is_refused() {
        let keys = KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash };
        for grid in [vec![1 << 60], vec![1 << 40, 1 << 40], vec![u64::MAX]] {
            ChunkTree::new(keys, "", grid).unwrap_err();
        }
        ChunkTree::new(keys, "", vec![1 << 32, 1 << 26]).unwrap();
    }

    proptest! {
        #[test]
        fn numbers_and_coordinates_are_one_to_one(grid in prop::collection::vec(1_u64..5, 0..5)) {
            let tree = tree("default", "/", &grid);
            for number in 0..tree.nodes() {
                prop_assert_eq!(tree.number(&tree.coords(number).unwrap()), number);
            }
            prop_assert_eq!(tree.coords(tree.nodes()), None);
        }
    }
}
