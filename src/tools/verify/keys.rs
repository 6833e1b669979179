//! Enumeration of the names in an array's directory that are chunk keys, or should be.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::format::Coords;
use crate::format::chunk_key::Prefix;
use crate::format::grid::ShardAxis;
use crate::store::journal::is_work_file;
use crate::store::listing::is_flat;
use crate::store::work::WORK_DIRECTORY;

use crate::source::{Array, Source};
use crate::store::StoreError;
use crate::store::storage::{DirItem, FileKind};
use crate::tools::parallel::Stopped;

/// Files that a mount shows in its `.shardfs`, and no array has in its own.
const OF_MOUNTS: [&str; 3] = ["stats.json", "metrics", "not-shown.txt"];

/// A name in an array's directory.
pub(super) enum Key<'a> {
    /// The key of a shard, with its coordinates.
    Shard(&'a [u64]),
    /// A chunk key outside the shard grid.
    Stray(PathBuf),
    /// A numbered file beyond the array's length.
    Beyond(PathBuf),
    /// A lock file of a writer.
    Lock(PathBuf),
    /// A temporary file of a writer.
    Temporary(PathBuf),
    /// A name that is not a chunk key in a place where only keys belong.
    Other(PathBuf),
    /// A directory of shards that cannot be listed.
    Bad(StoreError),
}

/// Function that is called for each name.
type Act<'a> = dyn FnMut(Key<'_>) -> Result<(), Stopped> + 'a;

/// Calls `act` with every name in an array's directory that is a chunk key or looks like one.
pub(super) fn each_key(source: &Source, array: &Array, act: &mut Act<'_>) -> Result<(), Stopped> {
    let walk = Walk { source, array };
    let format = &array.source.format;
    if let Some(directory) = format.numbered_in() {
        walk.numbered(directory, act)?;
    }
    if !format.has_keys() {
        return walk.shards(&[], act);
    }
    walk.own_directory(act)?;
    walk.work_directory(act)?;
    if is_flat(&array.source) { walk.shards(&[], act) } else { walk.below(&mut Vec::new(), act) }
}

struct Walk<'a> {
    source: &'a Source,
    array: &'a Array,
}

impl Walk<'_> {
    fn path(&self) -> &Path {
        &self.array.source.path
    }

    fn grid(&self) -> &[ShardAxis] {
        &self.array.source.layout.shard_grid
    }

    fn shards(&self, prefix: &[u64], act: &mut Act<'_>) -> Result<(), Stopped> {
        let store = &self.source.store;
        store.each_shard_below(&self.array.source, prefix, &mut |found| match found {
            Ok(coords) => act(Key::Shard(coords)),
            Err((_, error)) => act(Key::Bad(error)),
        })
    }

    /// Calls `act` for each name in a directory. Errors are ignored: the search for shards in the
    /// directory reports them.
    fn each_name(
        &self,
        directory: &Path,
        act: &mut dyn FnMut(&DirItem<'_>) -> Result<(), Stopped>,
    ) -> Result<(), Stopped> {
        let mut done = Ok(());
        let visit = &mut |item: DirItem<'_>| {
            done = act(&item);
            if done.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let _ = self.source.storage.list(directory, 0, visit);
        done
    }

    /// Visits the array's own directory, which holds documents, and all shards if their keys have
    /// no slashes.
    fn own_directory(&self, act: &mut Act<'_>) -> Result<(), Stopped> {
        let keys = self.array.source.layout.keys;
        self.each_name(self.path(), &mut |item| {
            let path = self.path().join(item.name);
            let coords = item.name.to_str().filter(|_| is_flat(&self.array.source));
            match coords.and_then(|name| keys.parse_flat(name, self.grid().len())) {
                Some(coords) if self.is_inside(&coords) => Ok(()),
                Some(_) => act(Key::Stray(path)),
                None => other(item.name, path, false, act),
            }
        })
    }

    /// Visits the files that interrupted commits have left. What a mount shows of itself has the same name.
    fn work_directory(&self, act: &mut Act<'_>) -> Result<(), Stopped> {
        let work = self.path().join(WORK_DIRECTORY);
        let is_there = |name: &&str| self.source.storage.lstat(&work.join(name)).is_ok();
        if OF_MOUNTS.iter().all(is_there) {
            return Ok(());
        }
        self.each_name(&work, &mut |item| match is_work_file(item.name) {
            true => Ok(()),
            false => act(Key::Temporary(work.join(item.name))),
        })
    }

    fn is_inside(&self, coords: &[u64]) -> bool {
        coords.iter().zip(self.grid()).all(|(coord, axis)| *coord < axis.shards())
    }

    /// Visits a directory of shards, or of such directories.
    fn below(&self, prefix: &mut Coords, act: &mut Act<'_>) -> Result<(), Stopped> {
        let (store, axis) = (&self.source.store, prefix.len());
        let Some(grid) = self.grid().get(axis) else { return act(Key::Shard(prefix)) };
        self.strays(prefix, act)?;
        let mut from = 0;
        loop {
            let window = match store.shard_window(&self.array.source, prefix, from) {
                Ok(window) => window,
                Err(error) => return act(Key::Bad(error)),
            };
            for number in window.from(from) {
                prefix.push(*number);
                let done = self.below(prefix, act);
                prefix.pop();
                done?;
            }
            match window.numbers.last() {
                Some(last) if !window.complete && last + 1 < grid.shards() => from = last + 1,
                _ => return Ok(()),
            }
        }
    }

    /// Visits the names in a directory of shards that are not those of shards.
    fn strays(&self, prefix: &[u64], act: &mut Act<'_>) -> Result<(), Stopped> {
        let keys = self.array.source.layout.keys;
        let axis = prefix.len();
        // Other files in the array's own directory are not our concern.
        let is_own = axis == 0 && keys.prefix != Prefix::Apart;
        let directory = self.path().join(keys.key(prefix));
        self.each_name(&directory, &mut |item| {
            let path = directory.join(item.name);
            match item.name.to_str().and_then(|name| keys.parse_part(axis, name)) {
                Some(number) if number < self.grid()[axis].shards() => Ok(()),
                Some(_) => self.stray(path, axis + 1, act),
                None if is_own => Ok(()),
                None => other(item.name, path, true, act),
            }
        })
    }

    /// Visits a path outside the grid, which is `axis` coordinates below the array's directory.
    fn stray(&self, path: PathBuf, axis: usize, act: &mut Act<'_>) -> Result<(), Stopped> {
        let rank = self.grid().len();
        let kind = self.source.storage.lstat(&path).map(|stat| stat.kind);
        match (kind, axis < rank) {
            (Ok(FileKind::Directory), true) => self.each_name(&path, &mut |item| {
                let below = path.join(item.name);
                let name = item.name.to_str();
                match name.and_then(|name| self.array.source.layout.keys.parse_part(axis, name)) {
                    Some(_) => self.stray(below, axis + 1, act),
                    None => other(item.name, below, true, act),
                }
            }),
            (_, true) => act(Key::Other(path)),
            (_, false) => act(Key::Stray(path)),
        }
    }

    fn numbered(&self, directory: &Path, act: &mut Act<'_>) -> Result<(), Stopped> {
        let directory = self.path().join(directory);
        let shards = self.grid().first().map_or(0, ShardAxis::shards);
        let format = &self.array.source.format;
        self.each_name(&directory, &mut |item| match item
            .name
            .to_str()
            .and_then(|name| format.number_of(name))
        {
            Some(number) if number >= shards => act(Key::Beyond(directory.join(item.name))),
            _ => Ok(()),
        })
    }
}

/// Reports a name that is not a chunk key.
fn other(name: &OsStr, path: PathBuf, among_keys: bool, act: &mut Act<'_>) -> Result<(), Stopped> {
    let ends = |end: &str| name.as_encoded_bytes().ends_with(end.as_bytes());
    if ends(".__lock") {
        act(Key::Lock(path))
    } else if ends(".partial") || ends(".tmp") {
        act(Key::Temporary(path))
    } else if among_keys {
        act(Key::Other(path))
    } else {
        Ok(())
    }
}
