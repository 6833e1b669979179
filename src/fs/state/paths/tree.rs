//! Paths and their inode numbers, as a tree: each name stands in memory once, and a directory is renamed
//! without a look at what is below it.
//!
//! The kernel may know millions of files. So a name takes 48 bytes, and 6 to 12 in the table that finds it;
//! names of more than 16 bytes take as much again as they are long.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;
use smallvec::SmallVec;

use crate::view::inode;

/// Place of the root in the slab: nothing was there before it.
const ROOT: u32 = 0;

/// Name of a path that has an inode number, for as long as it has it. Renaming a directory above it does not
/// change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name(NonZeroU32);

pub(super) struct Tree {
    nodes: Slab<Node>,
    /// Places of all nodes but the root, by the name and the node above.
    by_name: HashTable<u32>,
    hasher: RandomState,
}

/// One component of a path.
struct Node {
    above: u32,
    /// One of the nodes below; they are linked among themselves in both directions.
    first: Option<NonZeroU32>,
    next: Option<NonZeroU32>,
    previous: Option<NonZeroU32>,
    /// Inode number of the path that ends here; `None` if only longer ones have one.
    number: Option<NonZeroU64>,
    name: SmallVec<[u8; 16]>,
}

impl Default for Tree {
    fn default() -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node::new(ROOT, b""));
        Self { nodes, by_name: HashTable::new(), hasher: RandomState::new() }
    }
}

impl Tree {
    /// Returns the name of a path that has a number.
    pub(super) fn find(&self, path: &Path) -> Option<Name> {
        let node = self.node_of(path)?;
        self.node(node.get()).number.map(|_| Name(node))
    }

    /// Returns the number of a path.
    pub(super) fn get(&self, path: &Path) -> Option<u64> {
        self.node_of(path).and_then(|node| self.node(node.get()).number).map(NonZeroU64::get)
    }

    /// Gives a path other than the root its number, instead of one that it may have. Returns its name; `None` for the
    /// root, for the number 0, and if there are 2^32 names.
    pub(super) fn insert(&mut self, path: &Path, number: u64) -> Option<Name> {
        let number = NonZeroU64::new(number)?;
        let node = NonZeroU32::new(self.make(path)?)?;
        self.node_mut(node.get()).number = Some(number);
        Some(Name(node))
    }

    /// Takes the number of a path away.
    pub(super) fn remove(&mut self, name: Name) {
        let Name(node) = name;
        self.node_mut(node.get()).number = None;
        self.prune(node.get());
    }

    /// Returns the path of a name, relative to the root.
    pub(super) fn path(&self, name: Name) -> Arc<Path> {
        let mut parts: SmallVec<[&[u8]; 16]> = SmallVec::new();
        let mut at = name.0.get();
        while at != ROOT {
            let node = self.node(at);
            parts.push(&node.name);
            at = node.above;
        }
        parts.reverse();
        Path::new(&OsString::from_vec(parts.join(&b'/'))).into()
    }

    /// Returns the last component of a path, and the number of the directory above; `None` if that has none.
    pub(super) fn parts(&self, name: Name) -> Option<(u64, OsString)> {
        let node = self.node(name.0.get());
        let above = match node.above {
            ROOT => inode::ROOT,
            above => self.node(above).number?.get(),
        };
        Some((above, OsString::from_vec(node.name.to_vec())))
    }

    /// Visits the names at or below a path, each with its path's number.
    pub(super) fn below(&self, above: &Path) -> impl Iterator<Item = (Name, u64)> {
        let top = if above.as_os_str().is_empty() {
            Some(ROOT)
        } else {
            self.node_of(above).map(NonZeroU32::get)
        };
        let all = std::iter::successors(top, move |&at| self.after(at, top?));
        all.filter_map(|at| Some((Name(NonZeroU32::new(at)?), self.node(at).number?.get())))
    }

    /// Moves all names at or below `from` to the same place at or below `to`. There are none at or below `to`, and
    /// neither path is above the other one.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        let (Some(node), Some(name)) = (self.node_of(from), to.file_name()) else { return };
        let before = self.node(node.get()).above;
        let Some(above) = self.make(to.parent().unwrap_or(Path::new(""))) else { return };
        self.unlink(node);
        self.node_mut(node.get()).name = SmallVec::from_slice(name.as_bytes());
        self.link(node, above);
        self.prune(before);
    }

    /// Returns the node behind another one, in an order in which each is followed by those below it; `None` after the
    /// last one below `top`.
    fn after(&self, at: u32, top: u32) -> Option<u32> {
        if let Some(first) = self.node(at).first {
            return Some(first.get());
        }
        let mut at = at;
        while at != top {
            let node = self.node(at);
            if let Some(next) = node.next {
                return Some(next.get());
            }
            at = node.above;
        }
        None
    }

    fn node_of(&self, path: &Path) -> Option<NonZeroU32> {
        let mut node = None;
        for part in path {
            node = Some(self.child(node.map_or(ROOT, NonZeroU32::get), part)?);
        }
        node
    }

    fn child(&self, above: u32, name: &OsStr) -> Option<NonZeroU32> {
        let hash = self.hash(above, name.as_bytes());
        let found =
            self.by_name.find(hash, |&at| self.node(at).is_called(above, name.as_bytes()))?;
        NonZeroU32::new(*found)
    }

    /// Returns the node of a path, made if needed; `None` if there are 2^32 already.
    fn make(&mut self, path: &Path) -> Option<u32> {
        let mut node = ROOT;
        for part in path {
            node = match self.child(node, part) {
                Some(there) => there.get(),
                None => self.make_child(node, part)?,
            };
        }
        Some(node)
    }

    fn make_child(&mut self, above: u32, name: &OsStr) -> Option<u32> {
        let node = u32::try_from(self.nodes.vacant_key()).ok().and_then(NonZeroU32::new)?;
        self.nodes.insert(Node::new(above, name.as_bytes()));
        self.link(node, above);
        Some(node.get())
    }

    /// Enters a node as the first one below another.
    fn link(&mut self, node: NonZeroU32, above: u32) {
        let next = self.node_mut(above).first.replace(node);
        if let Some(next) = next {
            self.node_mut(next.get()).previous = Some(node);
        }
        let entered = self.node_mut(node.get());
        (entered.above, entered.next, entered.previous) = (above, next, None);
        let hash = self.hash_of(node.get());
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.by_name.insert_unique(hash, node.get(), |&at| hash_of(hasher, &nodes[at as usize]));
    }

    /// Takes a node away from the one above it.
    fn unlink(&mut self, node: NonZeroU32) {
        let hash = self.hash_of(node.get());
        if let Ok(there) = self.by_name.find_entry(hash, |&at| at == node.get()) {
            there.remove();
        }
        let Node { above, next, previous, .. } = *self.node(node.get());
        match previous {
            Some(previous) => self.node_mut(previous.get()).next = next,
            None => self.node_mut(above).first = next,
        }
        if let Some(next) = next {
            self.node_mut(next.get()).previous = previous;
        }
    }

    /// Removes a node and those above it, as far as no path with a number needs them.
    fn prune(&mut self, node: u32) {
        let mut at = node;
        while let Some(node) = NonZeroU32::new(at) {
            let Node { above, first, number, .. } = *self.node(at);
            if first.is_some() || number.is_some() {
                break;
            }
            self.unlink(node);
            self.nodes.remove(at as usize);
            at = above;
        }
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    fn hash(&self, above: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((above, name))
    }

    fn hash_of(&self, at: u32) -> u64 {
        hash_of(&self.hasher, self.node(at))
    }
}

impl Node {
    fn new(above: u32, name: &[u8]) -> Self {
        let name = SmallVec::from_slice(name);
        Self { above, first: None, next: None, previous: None, number: None, name }
    }

    fn is_called(&self, above: u32, name: &[u8]) -> bool {
        self.above == above && *self.name == *name
    }
}

fn hash_of(hasher: &RandomState, node: &Node) -> u64 {
    hasher.hash_one((node.above, &*node.name))
}

#[cfg(test)]
mod tests;
