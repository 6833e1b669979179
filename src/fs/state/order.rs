//! Commit order of uncommitted changes: what a rename removes goes only after what it creates is
//! durable, wherever the two are.
//!
//! ```text
//! A -> B    B is changed, and promises that the file is durable there
//!           A is removed, once that promise is kept
//! B -> C    B's promises pass to C, and B is removed once another one of C is kept
//! ```
//!
//! A promise is kept by the commit of the change, or by the user deleting the file. It is broken
//! when the change is given up because another process has written the chunk: then the old name is
//! not removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::store::StoreError;

/// Promise that a file will be durable under another name than the one that it loses.
#[derive(Debug)]
pub(in crate::fs) struct Promise(Mutex<Fate>);

#[derive(Debug)]
enum Fate {
    /// The promise depends on the file with this name.
    Open(PathBuf),
    Kept,
    Broken(Arc<StoreError>),
}

impl Promise {
    /// Creates a promise of the file called `path`.
    pub(in crate::fs) fn of(path: &Path) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Fate::Open(path.to_owned()))))
    }

    fn fate(&self) -> MutexGuard<'_, Fate> {
        self.0.lock()
    }

    /// Returns the name that the promise depends on; `None` once it is settled.
    pub(in crate::fs) fn path(&self) -> Option<PathBuf> {
        match &*self.fate() {
            Fate::Open(path) => Some(path.clone()),
            Fate::Kept | Fate::Broken(_) => None,
        }
    }

    pub(in crate::fs) fn is_open(&self) -> bool {
        matches!(*self.fate(), Fate::Open(_))
    }

    /// Returns the error that broke the promise; `None` if it is not broken.
    pub(in crate::fs) fn broken(&self) -> Option<Arc<StoreError>> {
        match &*self.fate() {
            Fate::Broken(error) => Some(Arc::clone(error)),
            Fate::Open(_) | Fate::Kept => None,
        }
    }

    pub(in crate::fs) fn pass_to(&self, path: &Path) {
        self.settle(Fate::Open(path.to_owned()));
    }

    pub(in crate::fs) fn keep(&self) {
        self.settle(Fate::Kept);
    }

    pub(in crate::fs) fn break_for(&self, error: &Arc<StoreError>) {
        self.settle(Fate::Broken(Arc::clone(error)));
    }

    fn settle(&self, settled: Fate) {
        let mut fate = self.fate();
        if matches!(*fate, Fate::Open(_)) {
            *fate = settled;
        }
    }
}

/// Uncommitted change, as a node in the order of commits.
#[derive(Debug)]
pub(in crate::fs) struct Step<G> {
    /// Group: changes of one group happen together, in one disk operation.
    pub group: G,
    /// Numbers of the steps that must come before; `None` for a prerequisite that is not among the
    /// steps.
    pub after: Vec<Option<usize>>,
}

/// Returns for each step whether it can be taken now, together with all others that can: it depends
/// only on steps of its own group that can be taken as well.
pub(in crate::fs) fn ready<G: PartialEq>(steps: &[Step<G>]) -> Vec<bool> {
    let mut ready = vec![true; steps.len()];
    let mut waiting = vec![Vec::new(); steps.len()];
    let mut held = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        for before in step.after.iter().flatten() {
            waiting[*before].push(at);
        }
        let is_apart =
            |before: &Option<usize>| before.is_none_or(|before| steps[before].group != step.group);
        if step.after.iter().any(is_apart) {
            ready[at] = false;
            held.push(at);
        }
    }
    while let Some(at) = held.pop() {
        for other in &waiting[at] {
            if std::mem::replace(&mut ready[*other], false) {
                held.push(*other);
            }
        }
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(of: &[(u8, &[Option<usize>])]) -> Vec<Step<u8>> {
        of.iter().map(|(group, after)| Step { group: *group, after: after.to_vec() }).collect()
    }

    #[test]
    fn what_waits_for_another_group_comes_later_and_what_waits_for_its_own_with_it() {
        // 1 -> 0 within a shard, 3 -> 2 across shards.
        let steps = steps(&[(1, &[]), (1, &[Some(0)]), (2, &[]), (1, &[Some(2)])]);
        assert_eq!(ready(&steps), [true, true, true, false]);
    }

    #[test]
    fn what_waits_for_something_that_is_held_is_held_too() {
        let steps = steps(&[(1, &[None]), (1, &[Some(0)]), (1, &[Some(1)]), (2, &[])]);
        assert_eq!(ready(&steps), [false, false, false, true]);
    }

    #[test]
    fn chunks_of_a_shard_change_places_at_once_and_those_of_two_shards_not() {
        assert_eq!(ready(&steps(&[(1, &[Some(1)]), (1, &[Some(0)])])), [true, true]);
        assert_eq!(ready(&steps(&[(1, &[Some(1)]), (2, &[Some(0)])])), [false, false]);
    }

    #[test]
    fn a_promise_passes_on_until_it_is_kept_or_broken() {
        let promise = Promise::of(Path::new("b"));
        promise.pass_to(Path::new("c"));
        assert_eq!(promise.path().as_deref(), Some(Path::new("c")));
        promise.keep();
        promise.pass_to(Path::new("d"));
        let error = StoreError::Compressed { shard: "s".into() };
        promise.break_for(&Arc::new(error));
        assert!(!promise.is_open() && promise.broken().is_none());
    }
}
