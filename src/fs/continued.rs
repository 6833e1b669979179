//! Gathering of chunk files that an interrupted mount has begun: whoever uses the directory next goes on.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::bounded::bounded;
use crate::stats::Stats;
use crate::store::StoreConfig;
use crate::store::gather::Where;
use crate::store::gather::found::recover;
use crate::store::gather::made::is_unplaced;
use crate::store::storage::Storage;
use crate::text::shown;

/// Directories whose errors are remembered.
// Evaluated by the compiler, which rejects zero.
const LOGGED: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Time for which another process is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval of looks at whether it has ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Continues what interrupted mounts have left.
pub(super) struct Continued {
    config: StoreConfig,
    stats: Arc<Stats>,
    /// Errors that were logged, by directory.
    logged: Mutex<LruCache<PathBuf, String>>,
}

impl Continued {
    pub(super) fn new(config: &StoreConfig) -> Self {
        let logged = Mutex::new(bounded(LOGGED));
        Self { config: config.clone(), stats: Arc::default(), logged }
    }

    /// Goes on in a directory, if there is anything. Returns whether there was.
    pub(super) fn go_on(&self, storage: &Arc<dyn Storage>, directory: &Path) -> bool {
        if !Where::has_any(&**storage, directory) {
            return false;
        }
        let opened = storage.posix().map(|posix| posix.within(directory)).transpose();
        let opened = opened.ok().flatten().flatten().map(|opened| opened as Arc<dyn Storage>);
        let source = storage;
        let storage = opened.unwrap_or_else(|| Arc::clone(source));
        let (config, stats) = (&self.config, &self.stats);
        match recover(Where { source, storage: &storage, directory, config, stats }) {
            Ok(_) => {
                self.logged.lock().pop(directory);
                wait_for_others(&**source, directory);
            }
            Err(error) => {
                let text = error.to_string();
                let mut logged = self.logged.lock();
                if logged.get(directory) != Some(&text) {
                    log::error!(
                        "{}: chunk files cannot be put into shards: {text}",
                        shown(directory)
                    );
                    logged.put(directory.to_owned(), text);
                }
            }
        }
        true
    }
}

/// Waits as long as another process puts an array into its place: meanwhile nothing in the directory is what it seems.
fn wait_for_others(storage: &dyn Storage, directory: &Path) {
    let began = Instant::now();
    while is_unplaced(storage, directory) && began.elapsed() < PATIENCE {
        std::thread::sleep(BETWEEN_LOOKS);
    }
}
