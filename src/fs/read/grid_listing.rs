//! Directory listings in a view that shows every chunk of the grid, whether it exists or not.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::format::grid::unravel;
use crate::fs::node::ArrayView;
use crate::fs::read::lister::{Lister, Listing};
use crate::fs::state::overlay::What;
use crate::store::Freshness;
use crate::store::storage::FileKind;

impl Lister<'_> {
    /// Lists the names below the directory at `coords`, from a coordinate on.
    pub(in crate::fs) fn all_children(
        &mut self,
        array: &Arc<ArrayView>,
        coords: &[u64],
        from: u64,
    ) -> ControlFlow<()> {
        let axis = coords.len();
        for coord in from..array.tree.grid().get(axis).copied().unwrap_or(0) {
            let child = [coords, &[coord]].concat();
            if axis + 1 == array.tree.rank() {
                self.grid_chunk(array, &child, coord + 1)?;
            } else {
                self.directory(array, &child, coord + 1)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Lists all chunks of an array whose chunks are in one directory, in C order.
    pub(in crate::fs) fn all_flat(&mut self, array: &Arc<ArrayView>, from: u64) -> ControlFlow<()> {
        let grid = array.tree.grid();
        for number in from..grid.iter().product() {
            self.grid_chunk(array, &unravel(number, grid), number + 1)?;
        }
        ControlFlow::Continue(())
    }

    fn grid_chunk(&mut self, array: &ArrayView, coords: &[u64], next: u64) -> ControlFlow<()> {
        // The kernel caches what is listed: uncommitted changes take precedence over what is
        // stored.
        match self.fs.staged_at(&array.path(coords)) {
            Some(What::Removed) => return ControlFlow::Continue(()),
            Some(What::File(file)) => {
                return self.live(OsStr::new(&array.tree.name(coords)), &file, next);
            }
            Some(What::Directory) | None => (),
        }
        let entry = match self.listing {
            Listing::Names => None,
            // Errors are left to the lookup that follows.
            Listing::Entries => {
                self.fs.tree_entry(array, coords, Freshness::Recent).unwrap_or(None)
            }
        };
        self.node(array, coords, FileKind::File, next, entry)
    }
}
