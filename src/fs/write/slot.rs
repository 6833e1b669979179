//! Classification of the names in a directory of the view.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::Coords;
use crate::format::chunk_key::Prefix;
use crate::fs::error::{FsError, Result};
use crate::fs::form::View;
use crate::fs::node::{ArrayView, At, NodeKind};
use crate::fs::state::control_files::DIRECTORY_NAME;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::Place;
use crate::fs::state::target::Target;
use crate::store::storage::if_present;
use crate::store::work::SHARD_LOCK;

/// Maximum length of a file's name in bytes.
const NAME_MAX: usize = 255;

/// Kind of object that a name in a directory of the view refers to, whether or not it exists.
pub(in crate::fs) enum Slot {
    /// A chunk.
    Chunk(PathBuf, Place),
    /// A directory above chunks.
    Above(PathBuf, Place),
    /// A chunk, or a directory above chunks, outside the array's shape.
    Outside {
        /// Its path.
        path: PathBuf,
        /// Number of chunks along each axis.
        grid: Coords,
    },
    /// Any other name in a directory above chunks, and temporary names of chunks.
    Scratch(PathBuf),
    /// A metadata document.
    Document(PathBuf),
    /// A path of the source.
    Source(PathBuf),
    /// `.shardfs` or a file in it, or a name that the view hides.
    Control,
}

impl Slot {
    pub(in crate::fs) fn path(&self) -> Option<&Path> {
        match self {
            Self::Chunk(path, _)
            | Self::Above(path, _)
            | Self::Scratch(path)
            | Self::Document(path)
            | Self::Source(path) => Some(path),
            Self::Outside { .. } | Self::Control => None,
        }
    }
}

/// Returns the error of a chunk that its array has no place for, which the log names.
pub(in crate::fs) fn outside_grid(path: &Path, grid: &[u64]) -> FsError {
    let error = FsError::OutsideGrid { path: path.to_owned(), grid: grid.to_vec() };
    log::warn!("{error}: nothing is made there");
    error
}

fn outside(path: PathBuf, array: &ArrayView) -> Slot {
    Slot::Outside { path, grid: array.source.layout.chunk_grid() }
}

impl Fs {
    pub(in crate::fs) fn slot(&self, parent: u64, name: &OsStr) -> Result<Slot> {
        let target = self.target(parent)?;
        let directory = match self.directory_path(&target) {
            Err(FsError::NotPermitted) => return Ok(Slot::Control),
            directory => directory?,
        };
        let path = directory.join(name);
        let text = name.to_str();
        match target {
            Target::Tree(array, coords) => {
                let coord = text.and_then(|name| array.tree.coordinate(coords.len(), name));
                let child = text.and_then(|name| array.tree.child(&coords, name));
                match child {
                    Some(coords) => Ok(in_tree(path, Place { array, coords })),
                    None if coord.is_some() => Ok(outside(path, &array)),
                    None => scratch(path, name),
                }
            }
            // Hidden in each directory of the source.
            _ if name == DIRECTORY_NAME => Ok(Slot::Control),
            // So is that of a shard in the source, whose name it may have.
            _ if self.is_lock_of_chunk(&directory, name)? => scratch(path, name),
            _ if self.is_hidden(&path)? && !self.is_own_document(&path) => Ok(Slot::Control),
            _ if self.is_document(&path) => Ok(Slot::Document(path)),
            // A document that the view has made is there.
            _ if matches!(self.nodes.at(&path)?, At::Text(..)) => Ok(Slot::Control),
            _ => {
                if let NodeKind::Sharded(array) = &self.nodes.node(&directory)?.kind
                    && let Some(text) = text
                    && array.tree.claims(text)
                {
                    let array = Arc::clone(array);
                    return Ok(match array.tree.top(text) {
                        Some(coords) => in_tree(path, Place { array, coords }),
                        None => outside(path, &array),
                    });
                }
                if let NodeKind::Sharded(array) = &self.nodes.node(&directory)?.kind
                    && array.tree.top_depth() == array.tree.rank()
                    && self.resembles_chunk(name, array.tree.prefix())
                    && if_present(self.storage.lstat(&path))?.is_none()
                {
                    return scratch(path, name);
                }
                Ok(Slot::Source(path))
            }
        }
    }

    /// Returns whether a name is that of the lock file of a chunk in the directory of its array: TensorStore writes a chunk
    /// to it, and renames it.
    fn is_lock_of_chunk(&self, directory: &Path, name: &OsStr) -> Result<bool> {
        if !name.as_encoded_bytes().ends_with(SHARD_LOCK.as_bytes()) {
            return Ok(false);
        }
        let node = self.nodes.node(directory)?;
        let NodeKind::Sharded(array) = &node.kind else { return Ok(false) };
        let is_lock = name.to_str().is_some_and(|name| array.source.is_lock_name(name));
        let tree = &array.tree;
        Ok(is_lock && tree.top_depth() == tree.rank() && self.resembles_chunk(name, tree.prefix()))
    }

    /// Checks that what has, or is to have, a name can be changed: of an object that is mounted by itself nothing can
    /// but chunks, and what is beside them.
    ///
    /// # Errors
    ///
    /// `ReadOnly` if it cannot.
    pub(in crate::fs) fn check_slot(&self, slot: &Slot) -> Result<()> {
        match slot {
            Slot::Source(_) | Slot::Document(_) => self.check_passed_through(),
            _ => Ok(()),
        }
    }

    /// Checks that what is passed through can be changed.
    ///
    /// # Errors
    ///
    /// `ReadOnly` if files of the source cannot be changed.
    pub(in crate::fs) fn check_passed_through(&self) -> Result<()> {
        self.storage.files().map(drop).ok_or(FsError::ReadOnly)
    }

    /// Returns whether a name is that of a file which is about to become a chunk. In a store of objects also as rsync
    /// calls them, `.NAME.XXXXXX`: each would be put, fetched and removed.
    fn resembles_chunk(&self, name: &OsStr, prefix: Prefix) -> bool {
        let of_rsync = |name: &str| {
            let (name, random) = name.strip_prefix('.')?.rsplit_once('.')?;
            let is_random =
                random.len() == 6 && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
            is_random.then(|| name.to_owned())
        };
        let shown = name.to_str().and_then(of_rsync);
        let is_shown = |name: &str| resembles_chunk(OsStr::new(name), prefix);
        resembles_chunk(name, prefix)
            || self.storage.posix().is_none() && shown.as_deref().is_some_and(is_shown)
    }

    /// Returns whether a path has the name of a document that the view has beside those of the source.
    fn is_own_document(&self, path: &Path) -> bool {
        self.view() == View::Zarr2 && self.is_document(path)
    }

    /// Returns whether the view hides a path, whatever the source has there.
    fn is_hidden(&self, path: &Path) -> Result<bool> {
        Ok(matches!(self.nodes.at(path)?, At::Hidden))
    }
}

/// Returns whether a name begins like a chunk key, as those of temporary files and lock files do.
fn resembles_chunk(name: &OsStr, prefix: Prefix) -> bool {
    match (prefix, name.as_encoded_bytes()) {
        (Prefix::None, [first, ..]) | (Prefix::Joined, [b'c', first, ..]) => first.is_ascii_digit(),
        (Prefix::Apart, [b'c', b'.', ..]) => true,
        _ => false,
    }
}

/// Returns the slot of a name beside chunks. What is there may have to be saved as a file.
fn scratch(path: PathBuf, name: &OsStr) -> Result<Slot> {
    match name.len() <= NAME_MAX {
        true => Ok(Slot::Scratch(path)),
        false => Err(FsError::NameTooLong),
    }
}

fn in_tree(path: PathBuf, place: Place) -> Slot {
    if place.coords.len() == place.array.tree.rank() {
        Slot::Chunk(path, place)
    } else {
        Slot::Above(path, place)
    }
}
