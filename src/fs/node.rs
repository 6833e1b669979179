//! A node as a view shows it: the meaning of a directory.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::format::Coords;
use crate::format::grid::ShardAxis;
use crate::fs::form::Form;
use crate::store::SourceArray;
use crate::store::storage::{Stat, is_absent};
use crate::view::inode::InodeRange;
use crate::view::tree::ChunkTree;

/// Sharded array as the mount shows it.
#[derive(Debug)]
pub struct ArrayView {
    /// Locations of its chunks in the source.
    pub source: SourceArray,
    /// Names of its chunks.
    pub tree: ChunkTree,
    /// Inode numbers of its chunks.
    pub inodes: InodeRange,
    /// Form of its chunk files.
    pub form: Form,
    /// `true` if a chunk that equals the fill value is stored, because an absent one may stand for
    /// something else.
    pub keeps_fill: bool,
    /// Hash of its data type.
    pub(super) data_type: u64,
    /// Device and inode number of its directory; `None` if there is none yet.
    pub(super) place: Option<(u64, u64)>,
    /// Device and inode number of its document; `None` if there is none.
    pub(super) described_by: Option<(u64, u64)>,
}

impl ArrayView {
    /// Returns the coordinates of the directory above chunks at a path below the array's directory. `None` if it is
    /// none.
    pub(in crate::fs) fn above_chunks(&self, below: &Path) -> Option<Coords> {
        let mut names = below.iter().map(OsStr::to_str);
        let top = self.tree.top(names.next()??)?;
        let coords = names.try_fold(top, |coords, name| self.tree.child(&coords, name?))?;
        (coords.len() < self.tree.rank()).then_some(coords)
    }

    /// Returns the approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        let runs = self.source.layout.shard_grid.iter().map(ShardAxis::memory);
        size_of::<Self>() + runs.sum::<usize>()
    }

    /// Returns whether this is still the array that `known` was, though possibly of another shape:
    /// what was written to a chunk of that one is what a chunk of this one holds.
    pub(super) fn is_still(&self, known: &Self) -> bool {
        let (source, before) = (&self.source, &known.source);
        if source.format.name() != before.format.name() {
            return false;
        }
        // The file of a whole array is replaced whenever it is written.
        if !source.format.has_keys() {
            return true;
        }
        let ids = |array: &Self| (array.place, array.described_by);
        !are_of_others(ids(self), ids(known))
            && self.data_type == known.data_type
            && source.layout.has_same_chunks(&before.layout)
    }

    /// Returns the path of a chunk, or of a directory above chunks, in the view.
    pub fn path(&self, coords: &[u64]) -> PathBuf {
        self.source.path.join(self.tree.path(coords))
    }

    /// Returns whether the view hides a name in the array's directory: shards, their lock files, and other files
    /// of the format of its shards.
    pub fn hides(&self, name: &OsStr) -> bool {
        let (SourceArray { layout, format, .. }, rank) = (&self.source, self.tree.rank());
        let is = |claims: &dyn Fn(&str) -> bool| name.to_str().is_some_and(claims);
        if is(&|name| self.tree.claims(name)) {
            return false;
        }
        // The file of the whole array replaces them all.
        let is_shard = format.has_keys() && is(&|name| layout.keys.claims(name, rank));
        is_shard || is(&|name| self.source.is_lock_name(name)) || format.hides(name)
    }
}

/// Kind of a directory.
#[derive(Debug, Clone)]
pub enum NodeKind {
    /// Not a node of its own: it belongs to the node of the directory above.
    Inherited,
    /// A group or an array that is shown as it is stored.
    AsStored,
    /// A hierarchy whose documents are in a directory of their own ([`apart`]).
    Apart,
    /// A sharded array.
    Sharded(Arc<ArrayView>),
    /// A node whose metadata cannot be used.
    Bad,
    /// An array that the view hides.
    Unshown,
}

/// Directory of the hierarchy.
#[derive(Debug)]
pub(super) struct Node {
    /// Kind of the directory.
    pub kind: NodeKind,
    /// Rewritten `zarr.json`; `None` if the view shows that of the source.
    pub document: Option<Arc<[u8]>>,
    /// Documents that the source does not have, by name.
    pub extra: Vec<(OsString, Arc<[u8]>)>,
    /// Documents of the source that the view hides because it has others in their place.
    pub hidden: &'static [&'static str],
    /// `Stat` of the stored document.
    pub stat: Option<Stat>,
    /// Device and inode number of the directory itself, for an array that is shown, or was shown
    /// until its `zarr.json` was removed.
    pub(super) place: Option<(u64, u64)>,
    /// Time at which it was last compared with the source.
    pub(super) checked: Instant,
    /// Number of changes of which arrays are shown as they are stored, before it was loaded. Metadata of a group depends
    /// on that.
    pub(super) revision: u64,
}

impl Node {
    /// Creates a node that has no documents other than those of the source.
    pub(super) fn plain(kind: NodeKind, stat: Option<Stat>, checked: Instant) -> Self {
        let (document, extra, hidden, place) = (None, Vec::new(), [].as_slice(), None);
        Self { kind, document, extra, hidden, stat, place, checked, revision: 0 }
    }
}

impl Node {
    /// Returns whether the view replaces or hides a document of the source.
    pub(super) fn replaces(&self, name: &OsStr) -> bool {
        let has_other = self.extra.iter().any(|(other, _)| other == name);
        has_other || self.hides(name)
    }

    /// Returns whether the view has other documents than the source.
    pub(super) fn is_translated(&self) -> bool {
        !self.hidden.is_empty()
    }

    /// Returns whether the view hides a document of the source.
    pub(super) fn hides(&self, name: &OsStr) -> bool {
        self.hidden.iter().any(|hidden| name == *hidden)
    }
}

/// Device and inode numbers of an array's directory and of its document, if there are such.
pub(super) type ArrayIds = (Option<(u64, u64)>, Option<(u64, u64)>);

/// Returns whether these are the directory and the document of another array than those `before`. Some
/// filesystems give a directory another number while its document keeps its own.
pub(super) fn are_of_others(now: ArrayIds, before: ArrayIds) -> bool {
    let differ = now.0.zip(before.0).is_some_and(|(now, before)| now != before);
    differ && (now.1.is_none() || now.1 != before.1)
}

/// Result of resolving a path in the view.
pub(super) enum At {
    /// A document in another form than the source's, or one that the source does not have, with the
    /// attributes of the file that it is generated from.
    Text(Arc<[u8]>, Stat),
    /// Nothing, whatever the source has there.
    Hidden,
    /// The file of the source.
    Stored,
}

/// Returns the node with a new check time if its document still has the same version.
pub(super) fn unchanged(
    node: &Node,
    stat: Result<&Stat, &std::io::Error>,
    checked: Instant,
) -> Option<Node> {
    let same = match (&node.stat, stat) {
        (Some(before), Ok(now)) => before.version() == now.version(),
        (None, Err(error)) => matches!(node.kind, NodeKind::Inherited) && is_absent(error),
        _ => false,
    };
    let again = || Node {
        kind: node.kind.clone(),
        document: node.document.clone(),
        extra: node.extra.clone(),
        hidden: node.hidden,
        stat: node.stat,
        place: node.place,
        checked,
        revision: node.revision,
    };
    same.then(again)
}
