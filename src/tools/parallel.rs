//! Ordered parallel processing: one thread finds items, others work on them, and the results are
//! handed over in the order in which the items were found.
//!
//! ```text
//! find --(at most a few for each thread)--> work, work, ... --(reordered)--> take
//! ```
//!
//! The number of items in progress is bounded, and so is memory, however many there are. After an
//! error no more items are found, and those in progress are finished.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::ScopedJoinHandle;

use parking_lot::Mutex;

/// Maximum number of items queued for each thread, in either direction.
const AHEAD: usize = 4;

/// Returns the number of threads to use: one for each processor of the machine.
pub(crate) fn threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Function that queues an item for processing; it returns an error if processing has stopped.
pub(crate) type Give<'a, T> = dyn FnMut(T) -> Result<(), Stopped> + 'a;

/// Error that stops the finder because processing has failed elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

/// Calls `find` in a thread of its own, `work` in `threads` other threads for every item, and
/// `take` in the calling thread for every result, in order.
///
/// # Errors
/// The first error of `work` or `take`, in the order of the items, ends it and is returned;
/// otherwise that of `find`.
pub(crate) fn in_order<T: Send, R: Send, E: Send>(
    threads: NonZeroUsize,
    find: impl FnOnce(&mut Give<'_, T>) -> Result<(), E> + Send,
    work: impl Fn(T) -> Result<R, E> + Sync,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let window = threads.get().saturating_mul(AHEAD);
    // One token for each item in progress, returned when its result was taken.
    let (free, tokens) = channel();
    // Cannot fail: the receiver is still in scope.
    (0..window).for_each(|_| free.send(()).unwrap_or(()));
    let (things, queue) = sync_channel(window);
    let (done, results) = channel();
    let queue = Mutex::new(queue);
    std::thread::scope(|scope| {
        let finder = scope.spawn(move || find(&mut numbered(&things, &tokens)));
        let worker = |_| {
            let (queue, work, done) = (&queue, &work, done.clone());
            scope.spawn(move || {
                while let Some((number, thing)) = next(queue) {
                    if done.send((number, work(thing))).is_err() {
                        break;
                    }
                }
            })
        };
        let workers: Vec<_> = (0..threads.get()).map(worker).collect();
        drop(done);
        let taken = take_in_order(&results, &free, &mut take);
        // Closes the channels, so that the finder and the workers end.
        drop((free, results));
        // Drains the queue, to unblock a finder whose items are no longer taken.
        while next(&queue).is_some() {}
        let found = joined(finder);
        // Not left to the scope, which would detach them. In glibc 2.36, pthread_detach of a thread that
        // ends in this moment may free a later one instead, which then cannot be joined.
        workers.into_iter().for_each(joined);
        taken.and(found)
    })
}

/// Returns a function that numbers items and waits for a token before it queues each.
fn numbered<'a, T>(
    things: &'a SyncSender<(u64, T)>,
    tokens: &'a Receiver<()>,
) -> impl FnMut(T) -> Result<(), Stopped> + 'a {
    let mut number = 0;
    move |thing| {
        tokens.recv().map_err(|_| Stopped)?;
        things.send((number, thing)).map_err(|_| Stopped)?;
        number += 1;
        Ok(())
    }
}

/// Waits for a thread, and returns what it did, or goes on with its panic.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn next<T>(queue: &Mutex<Receiver<T>>) -> Option<T> {
    queue.lock().recv().ok()
}

fn take_in_order<R, E>(
    results: &Receiver<(u64, Result<R, E>)>,
    free: &std::sync::mpsc::Sender<()>,
    take: &mut dyn FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let (mut waiting, mut expected) = (BTreeMap::new(), 0_u64);
    for (number, result) in results {
        waiting.insert(number, result);
        while let Some(result) = waiting.remove(&expected) {
            expected += 1;
            take(result?)?;
            // Fails if the finder has ended, which is no error.
            let _ = free.send(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();

    fn count(give: &mut Give<'_, u64>, to: u64) -> Result<(), String> {
        for number in 0..to {
            if give(number).is_err() {
                break;
            }
        }
        Ok(())
    }

    #[test]
    fn results_come_in_order_and_few_are_under_way() {
        let (under_way, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let mut taken = Vec::new();
        let work = |number: u64| {
            most.fetch_max(under_way.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_micros(number * 7919 % 300));
            Ok(number)
        };
        let take = |number| {
            under_way.fetch_sub(1, Ordering::SeqCst);
            taken.push(number);
            Ok(())
        };
        in_order(FOUR, |give| count(give, 500), work, take).unwrap();
        assert!(taken.into_iter().eq(0..500));
        assert!(most.into_inner() < 4 * AHEAD as u64);
    }

    #[test]
    fn the_first_error_in_order_ends_it() {
        let work = |number: u64| match number {
            20.. => Err(format!("bad {number}")),
            _ => Ok(number),
        };
        let mut taken = 0;
        let take = |_| {
            taken += 1;
            Ok(())
        };
        let error = in_order(FOUR, |give| count(give, u64::MAX), work, take).unwrap_err();
        assert_eq!((error.as_str(), taken), ("bad 20", 20));
    }

    #[test]
    fn an_error_of_the_taker_or_of_the_finder_ends_it() {
        let refuse = |_| Err("enough".to_owned());
        let error = in_order(FOUR, |give| count(give, u64::MAX), Ok, refuse).unwrap_err();
        assert_eq!(error, "enough");
        let find = |give: &mut Give<'_, u64>| count(give, 3).and(Err("lost".to_owned()));
        assert_eq!(in_order(FOUR, find, Ok, |_| Ok(())).unwrap_err(), "lost");
    }
}
