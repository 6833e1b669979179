//! Fill values of arrays that were created in Zarr v2 and are stored in Zarr v3.
//!
//! xarray creates an array first and names its dimensions afterwards. From then on its fill value means a missing value
//! as well, unless there is none, which Zarr v3 cannot say.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;

/// Arrays that are remembered: those whose attributes are still to come.
// Evaluated by the compiler, which rejects zero.
const MOST: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The fill values, by the directory of the array.
pub(in crate::fs) struct CreatedFills(Mutex<LruCache<PathBuf, Value>>);

impl Default for CreatedFills {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MOST)))
    }
}

impl CreatedFills {
    /// Notes the fill value of an array that was created in a directory: null if it has none. `None` if that is
    /// no array.
    pub(in crate::fs) fn note(&self, directory: &Path, fill_value: Option<Value>) {
        let mut fills = self.0.lock();
        match fill_value {
            Some(fill_value) => drop(fills.put(directory.to_owned(), fill_value)),
            None => drop(fills.pop(directory)),
        }
    }

    /// Returns the fill value of the array in a directory. `None` if it is not known to be created in Zarr v2.
    pub(in crate::fs) fn of(&self, directory: &Path) -> Option<Value> {
        self.0.lock().peek(directory).cloned()
    }
}
