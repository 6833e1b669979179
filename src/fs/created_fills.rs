//! Fill values of arrays that were created in Zarr v2 and are stored in Zarr v3.
//!
//! xarray creates an array first and names its dimensions afterwards. From then on its fill value means a missing value
//! as well, unless there is none, which Zarr v3 cannot say.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;

use crate::bounded::bounded;
use crate::format::zarr2::{self, Missing};

/// Arrays that are remembered: those whose attributes are still to come.
// Evaluated by the compiler, which rejects zero.
const MOST: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The fill values, by the directory of the array.
pub(super) struct CreatedFills(Mutex<LruCache<PathBuf, Value>>);

impl Default for CreatedFills {
    fn default() -> Self {
        Self(Mutex::new(bounded(MOST)))
    }
}

impl CreatedFills {
    /// Notes the fill value of an array that was created in a directory: null if it has none. `None` if that is
    /// no array.
    pub(super) fn note(&self, directory: &Path, fill_value: Option<Value>) {
        let mut fills = self.0.lock();
        match fill_value {
            Some(fill_value) => drop(fills.put(directory.to_owned(), fill_value)),
            None => drop(fills.pop(directory)),
        }
    }

    /// Notes that a directory was renamed, in place of another one, or removed.
    pub(super) fn moved(&self, from: &Path, to: Option<&Path>) {
        let mut fills = self.0.lock();
        if fills.is_empty() {
            return;
        }
        let is_in = |path: &&PathBuf, top: &Path| path.starts_with(top);
        if let Some(to) = to {
            let there: Vec<_> =
                fills.iter().map(|(path, _)| path).filter(|it| is_in(it, to)).cloned().collect();
            there.iter().for_each(|path| drop(fills.pop(path)));
        }
        let moved: Vec<_> =
            fills.iter().map(|(path, _)| path).filter(|it| is_in(it, from)).cloned().collect();
        for path in moved {
            let fill_value = fills.pop(&path);
            if let (Some(to), Ok(below), Some(fill_value)) =
                (to, path.strip_prefix(from), fill_value)
            {
                fills.put(to.join(below), fill_value);
            }
        }
    }

    /// Returns how missing chunks of the array in a directory are presented, where `configured` is the mount's policy.
    /// Another array may have been put there since, with the unsharded metadata `twin`.
    pub(super) fn missing(
        &self,
        directory: &Path,
        twin: Option<&Value>,
        configured: Missing,
    ) -> Missing {
        match self.of(directory, twin) {
            Some(fill_value) => zarr2::created(Some(&fill_value), configured),
            None => configured,
        }
    }

    /// Returns the fill value of the array in a directory. `None` if it is not known to be created in Zarr v2.
    pub(super) fn of(&self, directory: &Path, twin: Option<&Value>) -> Option<Value> {
        let fill_value = self.0.lock().peek(directory).cloned()?;
        let is_it = twin.is_none_or(|twin| zarr2::may_be_created_with(twin, &fill_value));
        is_it.then_some(fill_value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_known_of_an_array_goes_with_its_directory() {
        let fills = CreatedFills::default();
        for (path, fill) in [("g/a", 1), ("g/b", 2), ("h/a", 3), ("gg", 4)] {
            fills.note(Path::new(path), Some(json!(fill)));
        }
        let of = |path: &str| fills.of(Path::new(path), None).and_then(|fill| fill.as_u64());
        fills.moved(Path::new("g"), Some(Path::new("h")));
        assert_eq!(["g/a", "h/a", "h/b", "gg"].map(of), [None, Some(1), Some(2), Some(4)]);
        fills.moved(Path::new("h/a"), None);
        assert_eq!(["h/a", "h/b"].map(of), [None, Some(2)]);
    }
}
