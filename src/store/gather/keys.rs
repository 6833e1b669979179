//! Files in a directory that are called by chunk keys.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::format::Coords;
use crate::format::chunk_key::{KeyEncoding, Separator};
use crate::store::storage::{DirItem, FileKind, PosixStorage, if_present, kind_of};
use crate::store::{StoreError, io_error};

/// Keys of an array's chunks, or of its shards.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    keys: KeyEncoding,
    /// Number of keys along each axis.
    grid: Vec<u64>,
}

/// Something in a directory, or in those of its keys.
pub(super) enum Item {
    /// A file that has a key within the grid.
    File(PathBuf, Coords),
    /// Anything else whose name begins like a key.
    Other(PathBuf),
    /// A directory of keys, after all that was in it.
    Left {
        /// Its path.
        directory: PathBuf,
        /// `true` if there was nothing in it.
        was_empty: bool,
    },
}

type Visit<'a, E> = dyn FnMut(Item) -> Result<(), E> + 'a;

impl Keys {
    /// Creates the keys of a grid. `None` if it has too many to be numbered.
    pub(super) fn new(keys: KeyEncoding, grid: Vec<u64>) -> Option<Self> {
        grid.iter().try_fold(1_u64, |all, extent| all.checked_mul((*extent).max(1)))?;
        Some(Self { keys, grid })
    }

    /// Returns the number of a place in the grid, in C order.
    pub(super) fn number(&self, coords: &[u64]) -> u64 {
        coords.iter().zip(&self.grid).fold(0, |number, (coord, extent)| number * extent + coord)
    }

    /// Returns the place with a number.
    pub(super) fn coords(&self, mut number: u64) -> Coords {
        let mut coords = vec![0; self.grid.len()];
        for (coord, extent) in coords.iter_mut().zip(&self.grid).rev() {
            *coord = number % extent.max(&1);
            number /= extent.max(&1);
        }
        coords
    }

    /// Returns the path of a file, in a directory.
    pub(super) fn path(&self, directory: &Path, coords: &[u64]) -> PathBuf {
        directory.join(self.keys.chunk_key(coords))
    }

    /// Returns whether a name in the array's directory is a key, or begins one, inside the grid or not.
    pub(super) fn claims(&self, name: &str) -> bool {
        self.keys.claims(name, self.grid.len())
    }

    /// Visits everything in a directory whose name is a key or begins like one, and what is below.
    pub(super) fn walk<E: From<StoreError>>(
        &self,
        storage: &dyn PosixStorage,
        directory: &Path,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        self.walk_in(storage, directory, "", visit)
    }

    /// Visits what is in the directory called `key` in `top`.
    fn walk_in<E: From<StoreError>>(
        &self,
        storage: &dyn PosixStorage,
        top: &Path,
        key: &str,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let directory = if key.is_empty() { top.to_owned() } else { top.join(key) };
        let (mut names, mut failed) = (Vec::new(), Ok(()));
        let collect = &mut |item: DirItem<'_>| {
            // Beside the keys there may be other files.
            let is_key = |name: &str| self.claims(name);
            if !key.is_empty() || item.name.to_str().is_some_and(is_key) {
                match kind_of(storage, &directory, &item) {
                    Ok(kind) => names.extend(kind.map(|kind| (item.name.to_owned(), kind))),
                    Err(error) => failed = Err(error),
                }
            }
            if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let listed = if_present(storage.list(&directory, 0, collect));
        listed.and(failed).map_err(io_error(&directory))?;
        let was_empty = names.is_empty();
        for (name, kind) in names {
            let below = name.to_str().map(|name| match key {
                "" => name.to_owned(),
                key => format!("{key}/{name}"),
            });
            let coords = below.as_deref().and_then(|key| self.parse(key));
            match (below, coords, kind) {
                (_, Some(coords), FileKind::File) if self.is_whole(&coords) => {
                    visit(Item::File(directory.join(&name), coords))?;
                }
                (Some(key), Some(coords), FileKind::Directory) if self.is_above(&coords) => {
                    self.walk_in(storage, top, &key, visit)?;
                }
                _ => visit(Item::Other(directory.join(&name)))?,
            }
        }
        match key {
            "" => Ok(()),
            _ => visit(Item::Left { directory, was_empty }),
        }
    }

    /// Returns the coordinates in a key, or in the beginning of one.
    fn parse(&self, key: &str) -> Option<Coords> {
        let coords = self.keys.parse_leading(key, self.grid.len())?;
        let mut axes = coords.iter().zip(&self.grid);
        axes.all(|(coord, extent)| coord < extent).then_some(coords)
    }

    fn is_whole(&self, coords: &[u64]) -> bool {
        coords.len() == self.grid.len()
    }

    fn is_above(&self, coords: &[u64]) -> bool {
        coords.len() < self.grid.len() && self.keys.separator == Separator::Slash
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::chunk_key::Prefix;
    use crate::store::memory::MemoryStorage;
    use crate::text::shown;

    /// What is found, one word for each.
    fn found(keys: &Keys, files: &[&str]) -> Vec<String> {
        let storage = MemoryStorage::default();
        files.iter().for_each(|path| storage.replace(&format!("a/{path}"), "x"));
        let mut found = Vec::new();
        keys.walk(&storage, Path::new("a"), &mut |item| {
            found.push(match item {
                Item::File(path, coords) => format!("{} {coords:?}", shown(&path)),
                Item::Other(path) => format!("{} other", shown(&path)),
                Item::Left { directory, .. } => format!("{} left", shown(&directory)),
            });
            Ok::<(), StoreError>(())
        })
        .unwrap();
        found
    }

    #[test]
    fn keys_are_told_from_other_names() {
        let keys = |prefix, separator, grid: &[u64]| {
            Keys::new(KeyEncoding { prefix, separator }, grid.to_vec()).unwrap()
        };
        let slash = keys(Prefix::Apart, Separator::Slash, &[2, 3]);
        assert_eq!(
            found(&slash, &["zarr.json", "0", "c/0/2", "c/0/3", "c/0/.2.part", "c/1/0/0", "c/x"]),
            [
                "a/c/0/.2.part other",
                "a/c/0/2 [0, 2]",
                "a/c/0/3 other",
                "a/c/0 left",
                "a/c/1/0 other",
                "a/c/1 left",
                "a/c/x other",
                "a/c left",
            ]
        );
        let flat = keys(Prefix::None, Separator::Dot, &[2, 3]);
        assert_eq!(found(&flat, &["0.1", "2.0", "1.2.part"]), ["a/0.1 [0, 1]", "a/2.0 other"]);
        let scalar = keys(Prefix::Apart, Separator::Slash, &[]);
        assert_eq!(found(&scalar, &["c"]), ["a/c []"]);
        assert_eq!(found(&scalar, &["c/0"]), ["a/c other"]);
    }

    #[test]
    fn places_have_numbers() {
        let keys = KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash };
        let grid = Keys::new(keys, vec![3, 1, 4]).unwrap();
        assert!((0..12).all(|number| grid.number(&grid.coords(number)) == number));
        assert_eq!(grid.coords(7), [1, 0, 3]);
        assert!(Keys::new(keys, vec![1 << 40, 1 << 40]).is_none());
    }
}
