//! What an inode number refers to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::Coords;
use crate::format::flat::FlatFile;
use crate::fs::error::{FsError, Result};
use crate::fs::form::Form;
use crate::fs::node::{ArrayView, NodeKind};
use crate::fs::state::control_files::ControlFile;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::LiveFile;
use crate::fs::state::paths::Found;
use crate::store::storage::StorageFile;
use crate::view::inode::{self, InodeRange};

/// Object that an inode number refers to.
pub(in crate::fs) enum Target {
    /// The directory `.shardfs`.
    ControlDirectory,
    /// A file in `.shardfs`.
    Control(ControlFile),
    /// A path in the source.
    Path(Arc<Path>),
    /// An open file of the source that has no name any more.
    Nameless(Arc<dyn StorageFile>),
    /// A chunk, or a directory above chunks: as many coordinates as its depth.
    Tree(Arc<ArrayView>, Coords),
    /// A file of a whole array.
    Flat(Arc<ArrayView>, FlatFile),
    /// A file of the overlay, not yet committed to its shard.
    Live(Arc<LiveFile>),
}

impl Fs {
    /// Returns the path in the source of the directory of the shards below the directory at
    /// `coords`.
    pub(in crate::fs) fn shard_directory(&self, array: &ArrayView, coords: &[u64]) -> PathBuf {
        let layout = &array.source.layout;
        array.source.path.join(layout.keys.key(&layout.shard_of(coords)))
    }

    pub(in crate::fs) fn target(&self, ino: u64) -> Result<Target> {
        if let Some(overlay) = &self.overlay
            && let Some(file) = overlay.names().by_ino(ino)
        {
            return Ok(Target::Live(file));
        }
        if let Some((range, number)) = InodeRange::split(ino)
            && !self.paths.has_adopted(ino)
        {
            let Some(array) = self.nodes.array(range)? else {
                let since = self.nodes.directory_since(range, number)?;
                return since
                    .map(|(array, coords)| Target::Tree(array, coords))
                    .ok_or(FsError::Stale);
            };
            if let Form::Flat(_) = array.form {
                let file = FlatFile::ALL.into_iter().find(|file| *file as u64 == number);
                return file.map(|file| Target::Flat(array, file)).ok_or(FsError::Stale);
            }
            let coords = array.tree.coords(number).ok_or(FsError::Stale)?;
            return Ok(Target::Tree(array, coords));
        }
        if ino == inode::CONTROL_DIRECTORY {
            return Ok(Target::ControlDirectory);
        }
        if let Some(file) = ControlFile::by_ino(ino) {
            return Ok(Target::Control(file));
        }
        match self.paths.find(ino).ok_or(FsError::Stale)? {
            Found::Open(file) => Ok(Target::Nameless(file)),
            Found::Paths(names) => {
                let path = self.one_of(&names)?;
                Ok(match self.above_chunks(&path)? {
                    Some((array, coords)) => Target::Tree(array, coords),
                    None => Target::Path(path),
                })
            }
        }
    }

    /// Returns the directory above chunks that one of the source has become, if its array was made since the kernel
    /// looked it up: it does not look it up again before it creates something in it.
    fn above_chunks(&self, path: &Path) -> Result<Option<(Arc<ArrayView>, Coords)>> {
        let Some(directory) = path.parent().filter(|_| self.makes_shards()) else {
            return Ok(None);
        };
        let (above, node) = self.nodes.governing(directory)?;
        let NodeKind::Sharded(array) = &node.kind else { return Ok(None) };
        let coords = path.strip_prefix(above).ok().and_then(|below| array.above_chunks(below));
        Ok(coords.map(|coords| (Arc::clone(array), coords)))
    }

    /// Returns a name of a file that still exists: other processes may have removed some of
    /// `names`.
    fn one_of(&self, names: &[Arc<Path>]) -> Result<Arc<Path>> {
        let is_there = |path: &&Arc<Path>| self.storage.lstat(path).is_ok();
        let several = names.len() > 1;
        let there = if several { names.iter().find(is_there) } else { None };
        there.or(names.first()).cloned().ok_or(FsError::Stale)
    }

    /// Returns the path of a directory in the view.
    pub(in crate::fs) fn directory_path(&self, target: &Target) -> Result<PathBuf> {
        match target {
            Target::Path(path) => Ok(path.to_path_buf()),
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                Ok(array.path(coords))
            }
            Target::ControlDirectory => Err(FsError::NotPermitted),
            _ => Err(FsError::NotDirectory),
        }
    }
}
