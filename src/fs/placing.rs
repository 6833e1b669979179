//! Directories that become arrays: whoever asks what one is waits until it has become one.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// Number of turns of which the directory is remembered.
const REMEMBERED: usize = 32;

/// Directories of which it is not to be asked what they are.
#[derive(Debug, Default)]
pub(super) struct Placing {
    known: Mutex<Known>,
    done: Condvar,
    /// Number of times that one has begun or ended to become an array, one after the other: even if none is about to.
    turns: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    /// Those that are about to become arrays.
    held: Vec<PathBuf>,
    /// Those of the last turns, the latest one last.
    latest: VecDeque<PathBuf>,
}

impl Known {
    fn turn(&mut self, directory: &Path) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(directory.to_owned());
    }
}

impl Placing {
    /// Lets everyone wait who asks for a directory, until [`Self::end`].
    pub(super) fn begin(&self, directory: &Path) {
        let mut known = self.known.lock();
        known.held.push(directory.to_owned());
        known.turn(directory);
        self.turns.fetch_add(1, Ordering::AcqRel);
    }

    /// Lets everyone go on.
    pub(super) fn end(&self, directory: &Path) {
        let mut known = self.known.lock();
        known.held.retain(|other| other != directory);
        known.turn(directory);
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
        let mut known = self.known.lock();
        while known.held.iter().any(|other| other == directory) {
            self.done.wait(&mut known);
        }
        self.turns()
    }

    /// Returns how often a directory has begun or ended to become an array.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Returns whether a directory, or one above it, may have begun or ended to become an array after so many turns.
    pub(super) fn has_turned(&self, directory: &Path, since: u64) -> bool {
        if self.turns() == since {
            return false;
        }
        let known = self.known.lock();
        let missed = usize::try_from(self.turns() - since).unwrap_or(usize::MAX);
        let is_above = |other: &PathBuf| directory.starts_with(other);
        missed > known.latest.len() || known.latest.iter().rev().take(missed).any(is_above)
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

    #[test]
    fn a_turn_concerns_what_is_below() {
        let placing = Placing::default();
        let before = placing.turns();
        let turn = |directory: &str| {
            placing.begin(Path::new(directory));
            placing.end(Path::new(directory));
        };
        let has_turned = |directory: &str| placing.has_turned(Path::new(directory), before);
        assert!(!has_turned("a/b"));
        turn("a/b");
        assert!(has_turned("a/b") && has_turned("a/b/c/0"));
        assert!(["", "a", "a/c", "a/bc"].iter().all(|directory| !has_turned(directory)));
        assert!(!placing.has_turned(Path::new("a/b"), placing.turns()));
        // Of those before them nothing is known any more.
        (0..REMEMBERED / 2).for_each(|_| turn("x"));
        assert!(has_turned("a/c"));
    }
}
