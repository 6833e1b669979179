//! Files of an array whose chunk keys lie outside its shard grid, such as a resize has kept.

use std::ops::ControlFlow;
use std::path::Path;

use crate::source::{Array, Source};
use crate::store::listing::is_flat;
use crate::store::storage::FileKind;

/// Counts the files whose names are chunk keys outside the shard grid. A directory that cannot be
/// listed counts as empty: the search for shards in it reports that.
pub(crate) fn strays(source: &Source, array: &Array) -> u64 {
    if !array.source.format.has_keys() {
        return 0;
    }
    let count = &mut 0;
    let walk = Walk { source, array };
    if is_flat(&array.source) {
        walk.flat(count);
    } else {
        walk.below(&array.source.path.join(array.source.layout.keys.key(&[])), 0, false, count);
    }
    *count
}

struct Walk<'a> {
    source: &'a Source,
    array: &'a Array,
}

impl Walk<'_> {
    fn each_name(&self, directory: &Path, act: &mut dyn FnMut(&str)) {
        let _ = self.source.storage.list(directory, 0, &mut |item| {
            item.name.to_str().into_iter().for_each(&mut *act);
            ControlFlow::Continue(())
        });
    }

    /// Counts in the array's own directory, where keys have no slashes.
    fn flat(&self, count: &mut u64) {
        let layout = &self.array.source.layout;
        self.each_name(&self.array.source.path, &mut |name| {
            let coords = layout.keys.parse_flat(name, layout.rank()).unwrap_or_default();
            let mut axes = coords.iter().zip(&layout.shard_grid);
            *count += u64::from(axes.any(|(coord, axis)| *coord >= axis.shards()));
        });
    }

    /// Counts below a directory, whose names are coordinates along `axis`. `is_outside` says
    /// whether one of the coordinates above is beyond the grid.
    fn below(&self, directory: &Path, axis: usize, is_outside: bool, count: &mut u64) {
        let layout = &self.array.source.layout;
        let Some(grid) = layout.shard_grid.get(axis) else { return };
        let is_last = axis + 1 == layout.rank();
        let mut directories = Vec::new();
        self.each_name(directory, &mut |name| {
            let Some(number) = layout.keys.parse_part(axis, name) else { return };
            let is_outside = is_outside || number >= grid.shards();
            if !is_last {
                directories.push((name.to_owned(), is_outside));
            }
            *count += u64::from(is_last && is_outside);
        });
        for (name, is_outside) in directories {
            let path = directory.join(name);
            let kind = self.source.storage.lstat(&path).map(|stat| stat.kind);
            // Inside the grid links to directories of shards are followed.
            if !is_outside || matches!(kind, Ok(FileKind::Directory)) {
                self.below(&path, axis + 1, is_outside, count);
            }
        }
    }
}
