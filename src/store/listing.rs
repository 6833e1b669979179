//! Listing of an array's shards, from the source's shard directories.
//!
//! A directory is listed in windows of sorted numbers, so that a directory of any length takes
//! bounded memory, and a listing can continue from a number rather than from where some reader
//! stopped.

use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::error::{Damage, StoreError, UNREACHABLE};
use super::storage::{FileKind, Stat};
use super::window::WINDOW_SHARDS;
pub(crate) use super::window::Window;
use super::{ShardStore, SourceArray, io_error};
use crate::format::Coords;
use crate::format::chunk_key::Separator;
use crate::format::grid::{ShardAxis, unravel};

/// Granularity of directory dates: a directory that changed so recently before it was listed may
/// change again with the same date.
const DATE_GRANULARITY: Duration = Duration::from_millis(50);

/// Function called with the coordinates of each shard, and for each directory that cannot be listed
/// with the leading coordinates of its shards and the error.
pub(crate) type Each<'a, E> = dyn FnMut(Result<&[u64], (&[u64], StoreError)>) -> Result<(), E> + 'a;

impl ShardStore {
    /// Returns a window, beginning at or before `from`, of the directory below the leading shard
    /// coordinates `prefix`. Its numbers are the next coordinate if keys have a directory for each
    /// axis, and the shard's number in C order if all shards lie in one directory.
    pub fn shard_window(
        &self,
        array: &SourceArray,
        prefix: &[u64],
        from: u64,
    ) -> Result<Arc<Window>, StoreError> {
        if !array.format.has_keys() {
            let most = if prefix.is_empty() { self.shards_now(array)? } else { None };
            return Ok(Arc::new(Window::of_all(array, prefix, from, most)));
        }
        let flat = is_flat(array);
        if !self.storage.can_list() {
            return Ok(Arc::new(Window::of_grid(array, prefix, from, flat)));
        }
        let path =
            if flat { array.path.clone() } else { array.path.join(array.layout.keys.key(prefix)) };
        let key = (array.id, path);
        let cached = self.windows.lock().get(&key).filter(|window| window.covers(from));
        if let Some(window) = cached
            && (self.config.immutable || self.is_listed(&key.1, &window))
        {
            return Ok(window);
        }
        let Some(directory) = self.shard_directory(&key.1)? else {
            return Ok(Arc::new(Window::empty(from)));
        };
        let mut lowest = Lowest { from, limit: WINDOW_SHARDS, heap: BinaryHeap::new(), cut: false };
        let visit = &mut |item: super::storage::DirItem<'_>| {
            let name = item.name.to_str();
            if let Some(number) = name.and_then(|name| shard_number(array, prefix, name)) {
                lowest.add(number);
            }
            ControlFlow::Continue(())
        };
        self.storage.list(&key.1, 0, visit).map_err(io_error(&key.1))?;
        // Only a filesystem dates a directory by the changes of its names.
        let is_dated = self.storage.posix().is_some();
        let settled = is_dated
            && SystemTime::now()
                .duration_since(directory.mtime.into())
                .is_ok_and(|age| age > DATE_GRANULARITY);
        let window = Arc::new(Window {
            from,
            complete: !lowest.cut,
            numbers: lowest.heap.into_sorted_vec(),
            directory: settled.then_some(directory),
        });
        let bytes = size_of::<Window>() + window.numbers.len() * size_of::<u64>();
        self.windows.lock().put(key, Arc::clone(&window), bytes);
        Ok(window)
    }

    /// Returns the attributes of a directory of shards. `None` if there is none. Something else in
    /// its place is damage.
    pub fn shard_directory(&self, path: &Path) -> Result<Option<Stat>, StoreError> {
        if !self.storage.can_list() {
            // It exists as far as the shards below it do.
            return self.storage.stat(Path::new("")).map(Some).map_err(io_error(path));
        }
        let damage = match self.storage.stat(path) {
            Ok(stat) if stat.kind == FileKind::Directory => return Ok(Some(stat)),
            Ok(stat) => Damage::NotADirectory(stat.kind),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) if !self.is_dangling(path)? => return Ok(None),
                Some(errno) if UNREACHABLE.contains(&errno) => Damage::Unreachable(error),
                _ => return Err(io_error(path)(error)),
            },
        };
        let error = StoreError::Damaged { shard: path.to_owned(), damage: Arc::new(damage) };
        self.report(&error);
        Err(error)
    }

    /// Calls `act` with the coordinates of each shard, as they are found; an error stops the
    /// listing.
    pub fn each_shard<E: From<StoreError>>(
        &self,
        array: &SourceArray,
        act: &mut dyn FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each_shard_below(array, &[], &mut |found| act(found.map_err(|(_, error)| error)?))
    }

    /// Like [`Self::each_shard`], for the shards that begin with the leading coordinates `prefix`,
    /// in C order. A directory of shards that cannot be listed is passed to `act` as an error, and
    /// the listing continues after it.
    pub fn each_shard_below<E>(
        &self,
        array: &SourceArray,
        prefix: &[u64],
        act: &mut Each<'_, E>,
    ) -> Result<(), E> {
        if is_flat(array) {
            self.each_flat_shard(array, prefix, act)
        } else {
            self.each_nested_shard(array, &mut prefix.to_vec(), act)
        }
    }

    fn each_flat_shard<E>(
        &self,
        array: &SourceArray,
        prefix: &[u64],
        act: &mut Each<'_, E>,
    ) -> Result<(), E> {
        let shards: Coords = array.layout.shard_grid.iter().map(ShardAxis::shards).collect();
        // The numbers of the shards below a prefix are adjacent.
        let below: u64 = shards[prefix.len()..].iter().product();
        let first = prefix.iter().zip(&shards).fold(0, |number, (at, extent)| number * extent + at);
        let (mut from, end) = (first * below, (first + 1) * below);
        loop {
            let window = match self.shard_window(array, &[], from) {
                Ok(window) => window,
                Err(error) => return act(Err((prefix, error))),
            };
            for number in window.from(from).iter().take_while(|number| **number < end) {
                act(Ok(&unravel(*number, &shards)))?;
            }
            match window.numbers.last() {
                Some(last) if !window.complete && last + 1 < end => from = last + 1,
                _ => return Ok(()),
            }
        }
    }

    fn each_nested_shard<E>(
        &self,
        array: &SourceArray,
        prefix: &mut Coords,
        act: &mut Each<'_, E>,
    ) -> Result<(), E> {
        if prefix.len() == array.layout.rank() {
            return act(Ok(prefix));
        }
        let mut from = 0;
        loop {
            let window = match self.shard_window(array, prefix, from) {
                Ok(window) => window,
                Err(error) => return act(Err((prefix, error))),
            };
            for number in window.from(from) {
                prefix.push(*number);
                let done = self.each_nested_shard(array, prefix, act);
                prefix.pop();
                done?;
            }
            match window.numbers.last() {
                Some(last) if !window.complete => from = last + 1,
                _ => return Ok(()),
            }
        }
    }

    /// Returns the shards below the leading shard coordinates `prefix`, at most `limit` and one
    /// more, of an array whose keys have a directory for each axis.
    pub fn shards_below(
        &self,
        array: &SourceArray,
        prefix: &[u64],
        limit: usize,
    ) -> Result<Vec<Vec<u64>>, StoreError> {
        if prefix.len() == array.layout.rank() {
            return Ok(vec![prefix.to_vec()]);
        }
        let mut found = Vec::new();
        let window = self.shard_window(array, prefix, 0)?;
        for number in &window.numbers {
            let mut next = prefix.to_vec();
            next.push(*number);
            found.extend(self.shards_below(array, &next, limit - found.len().min(limit))?);
            if found.len() > limit {
                break;
            }
        }
        Ok(found)
    }

    fn is_listed(&self, path: &Path, window: &Window) -> bool {
        let Some(directory) = &window.directory else {
            return false;
        };
        self.storage.has_version(path, &directory.version())
    }
}

/// Returns whether all shards of an array lie in its own directory.
pub(crate) fn is_flat(array: &SourceArray) -> bool {
    array.layout.keys.separator == Separator::Dot || array.layout.rank() == 0
}

/// Returns the number of the shard, or the coordinate, that a name in a shard directory stands for.
/// `None` if it stands for none in the shard grid.
fn shard_number(array: &SourceArray, prefix: &[u64], name: &str) -> Option<u64> {
    let grid = &array.layout.shard_grid;
    if is_flat(array) {
        let coords = array.layout.keys.parse_flat(name, grid.len())?;
        coords.iter().zip(grid).try_fold(0, |number, (coord, axis)| {
            (*coord < axis.shards()).then(|| number * axis.shards() + coord)
        })
    } else {
        let shards = grid.get(prefix.len())?.shards();
        array.layout.keys.parse_part(prefix.len(), name).filter(|coord| *coord < shards)
    }
}

/// Collector that keeps the lowest numbers added.
struct Lowest {
    from: u64,
    limit: usize,
    heap: BinaryHeap<u64>,
    /// `true` if a number was dropped.
    cut: bool,
}

impl Lowest {
    fn add(&mut self, number: u64) {
        if number < self.from {
            return;
        }
        self.heap.push(number);
        if self.heap.len() > self.limit {
            self.heap.pop();
            self.cut = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_numbers_are_kept() {
        let mut lowest = Lowest { from: 3, limit: 3, heap: BinaryHeap::new(), cut: false };
        for number in [9, 1, 7, 3, 8, 2, 5] {
            lowest.add(number);
        }
        assert_eq!((lowest.heap.into_sorted_vec(), lowest.cut), (vec![3, 5, 7], true));
    }
}
