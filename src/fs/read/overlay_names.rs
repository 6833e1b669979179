//! What the overlay says of names: made, removed, waiting to be committed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use crate::format::grid::unravel;
use crate::format::{Coords, zarr2};
use crate::fs::error::Result;
use crate::fs::form::View;
use crate::fs::node::ArrayView;
use crate::fs::read::lister::OTHER;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::LiveFile;
use crate::fs::state::overlay::What;
use crate::source::{METADATA_FILE, apart};

/// First position after files that exist in the mount alone.
pub(in crate::fs) const SCRATCH: u64 = OTHER + (1 << 60);

/// Names of the overlay in a directory above chunks.
#[derive(Default)]
pub(in crate::fs) struct Staged {
    /// Names that are coordinates.
    pub(in crate::fs) coords: BTreeMap<u64, What>,
    /// Other files.
    pub(in crate::fs) others: Vec<Scratch>,
}

/// File that exists in the mount alone: its number, its name and the file.
pub(in crate::fs) type Scratch = (u64, OsString, Arc<LiveFile>);

impl Fs {
    pub(in crate::fs) fn is_removed(&self, path: &Path) -> bool {
        matches!(self.staged_at(path), Some(What::Removed))
    }

    /// Returns the object that the overlay has at a path; `None` if it has none.
    pub(in crate::fs) fn staged_at(&self, path: &Path) -> Option<What> {
        self.overlay.as_ref()?.names().get(path).map(|name| name.what.clone())
    }

    /// Returns whether the overlay has a directory, or something in it.
    pub(in crate::fs) fn is_made(&self, array: &ArrayView, coords: &[u64]) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        let path = array.path(coords);
        let names = overlay.names();
        if names.is_empty() {
            return false;
        }
        names.all(&path).any(|(_, name)| !matches!(name.what, What::Removed))
    }

    /// Returns files in an array's own directory that exist in the mount alone.
    pub(in crate::fs) fn scratch_in(&self, directory: &Path) -> Vec<Scratch> {
        let Some(overlay) = &self.overlay else { return Vec::new() };
        let names = overlay.names();
        let mut files: Vec<Scratch> = names
            .below(directory)
            .filter_map(|(name, entry)| match &entry.what {
                What::File(file) if entry.place.is_none() && name != METADATA_FILE => {
                    Some((entry.number, name.clone(), Arc::clone(file)))
                }
                _ => None,
            })
            .collect();
        files.sort_by_key(|(number, ..)| *number);
        files
    }

    pub(in crate::fs) fn staged_below(&self, array: &ArrayView, coords: &[u64]) -> Staged {
        let mut staged = Staged::default();
        let Some(overlay) = &self.overlay else { return staged };
        let path = array.path(coords);
        let names = overlay.names();
        for (name, entry) in names.below(&path) {
            let child = name.to_str().and_then(|name| array.tree.child(coords, name));
            match (child.as_deref().and_then(<[u64]>::last), &entry.what) {
                (Some(coord), what) => drop(staged.coords.insert(*coord, what.clone())),
                (None, What::File(file)) => {
                    staged.others.push((entry.number, name.clone(), Arc::clone(file)));
                }
                _ => (),
            }
        }
        staged.others.sort_by_key(|(number, ..)| *number);
        // Directories with something in them.
        for name in names.directories_below(&path) {
            let child = name.to_str().and_then(|name| array.tree.child(coords, name));
            if let Some(coord) = child.as_deref().and_then(<[u64]>::last) {
                staged.coords.entry(*coord).or_insert(What::Directory);
            }
        }
        staged
    }

    /// Returns the overlay's chunks of an array whose chunks are in one directory.
    pub(in crate::fs) fn staged_flat(&self, array: &ArrayView) -> BTreeMap<Coords, What> {
        let Some(overlay) = &self.overlay else { return BTreeMap::new() };
        let names = overlay.names();
        let chunks = names.below(&array.source.path).filter_map(|(_, entry)| {
            let place = entry.place.as_ref()?;
            Some((place.coords.clone(), entry.what.clone()))
        });
        chunks.collect()
    }

    /// Returns whether a path has the name of a metadata document of the view.
    pub(in crate::fs) fn is_document(&self, path: &Path) -> bool {
        match self.view() {
            View::Zarr3 => path.ends_with(METADATA_FILE) || apart::is_document(path),
            View::Zarr2 => zarr2_name(path).is_some(),
            // Their documents are read-only.
            View::Npy | View::Raw | View::Flat => false,
        }
    }

    /// Removes a name of the overlay, and its file if that is no longer needed.
    pub(in crate::fs) fn remove_name(&self, path: &Path) -> Result<()> {
        let mut names = self.overlay()?.names();
        if let Some(What::File(file)) = names.get(path).map(|name| name.what.clone()) {
            names.leave(path, &file);
        }
        let Some(What::File(file)) = names.take(path).map(|name| name.what) else { return Ok(()) };
        let _copy = {
            let mut state = file.state();
            let is_needed = !state.names.is_empty();
            state.dirty &= is_needed;
            if is_needed { None } else { state.copy.take() }
        };
        names.drop_unused(&file);
        drop(names);
        Ok(())
    }
}

/// Returns the chunks of a shard below the directory at `coords`, which intersects the shard.
pub(in crate::fs) fn chunks_below<'a>(
    array: &'a ArrayView,
    coords: &'a [u64],
    shard: &'a [u64],
) -> impl Iterator<Item = Coords> + 'a {
    let axes = array.source.layout.shard_grid.iter().zip(shard).zip(array.tree.grid());
    let spans: Vec<(u64, u64)> = axes
        .skip(coords.len())
        .map(|((axis, shard), extent)| {
            let (first, edge) = axis.span(*shard);
            (first, (first + edge).min(*extent).saturating_sub(first))
        })
        .collect();
    let lengths: Coords = spans.iter().map(|span| span.1).collect();
    let count: u64 = lengths.iter().product();
    (0..count).map(move |place| {
        let rest = unravel(place, &lengths);
        let rest = rest.iter().zip(&spans).map(|(place, (first, _))| first + place);
        coords.iter().copied().chain(rest).collect()
    })
}

/// Returns the name of a Zarr v2 document; `None` if a path has another name.
pub(in crate::fs) fn zarr2_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str().filter(|name| zarr2::is_document(name))
}
