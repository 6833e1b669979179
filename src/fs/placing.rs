//! Directories that become arrays: whoever asks what one is waits until it has become one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// Directories of which it is not to be asked what they are.
#[derive(Debug, Default)]
pub(super) struct Placing {
    directories: Mutex<Vec<PathBuf>>,
    done: Condvar,
    /// Number of times that one has begun or ended to become an array, one after the other: even if none is about to.
    turns: AtomicU64,
}

impl Placing {
    /// Lets everyone wait who asks for a directory, until [`Self::end`].
    pub(super) fn begin(&self, directory: &Path) {
        let mut directories = self.directories.lock();
        directories.push(directory.to_owned());
        self.turns.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets everyone go on.
    pub(super) fn end(&self, directory: &Path) {
        let mut directories = self.directories.lock();
        directories.retain(|other| other != directory);
        self.turns.fetch_add(1, Ordering::AcqRel);
        self.done.notify_all();
    }

    /// Waits as long as a directory becomes an array. What is found out from then on holds as long as
    /// [`Self::turns`] is what is returned.
    pub(super) fn wait(&self, directory: &Path) -> u64 {
        let turns = self.turns();
        if turns.is_multiple_of(2) {
            return turns;
        }
        let mut directories = self.directories.lock();
        while directories.iter().any(|other| other == directory) {
            self.done.wait(&mut directories);
        }
        self.turns()
    }

    /// Returns how often a directory has begun or ended to become an array.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_asks_for_a_directory_waits_and_others_do_not() {
        let placing = Arc::new(Placing::default());
        let (a, b) = (Path::new("a"), Path::new("b"));
        let before = placing.wait(a);
        placing.begin(a);
        assert_ne!(placing.turns(), before);
        placing.wait(b);
        let waits = Arc::clone(&placing);
        let waiting = std::thread::spawn(move || waits.wait(a));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        placing.end(a);
        assert_eq!(waiting.join().unwrap(), placing.turns());
    }
}
