//! Parts of objects that were fetched, in memory. Who needs a part that is being fetched waits for
//! it: it is requested once.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::store::byte_cache::ByteCache;

/// Part of a version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fetch {
    /// The version, by its number.
    pub object: u64,
    /// Offset of the first byte.
    pub from: u64,
    /// Offset past the last byte.
    pub to: u64,
}

/// Fetched parts, within a budget of bytes.
pub(super) struct Windows {
    kept: Mutex<ByteCache<Fetch, Arc<Vec<u8>>>>,
    under_way: Mutex<HashMap<Fetch, Arc<UnderWay>>>,
}

/// A fetch that some threads wait for.
#[derive(Default)]
struct UnderWay {
    result: Mutex<Option<Result<Arc<Vec<u8>>, i32>>>,
    done: Condvar,
}

impl Windows {
    /// Creates an empty cache of `budget` bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self { kept: Mutex::new(ByteCache::new(budget)), under_way: Mutex::default() }
    }

    /// Returns a part, from the cache or by `fetch`, which is called by one thread at a time for
    /// each part.
    pub(super) fn get(
        &self,
        part: Fetch,
        fetch: impl FnOnce() -> io::Result<Vec<u8>>,
    ) -> io::Result<Arc<Vec<u8>>> {
        let (shared, is_first) = {
            let mut under_way = self.under_way.lock();
            // Looked up with the lock held: a fetch that has just ended has put it there.
            if let Some(bytes) = self.kept.lock().get(&part) {
                return Ok(bytes);
            }
            match under_way.get(&part) {
                Some(shared) => (Arc::clone(shared), false),
                None => {
                    let shared = Arc::new(UnderWay::default());
                    under_way.insert(part, Arc::clone(&shared));
                    (shared, true)
                }
            }
        };
        if !is_first {
            let mut result = shared.result.lock();
            while result.is_none() {
                shared.done.wait(&mut result);
            }
            return match &*result {
                Some(Ok(bytes)) => Ok(Arc::clone(bytes)),
                Some(Err(errno)) => Err(io::Error::from_raw_os_error(*errno)),
                None => Err(io::Error::from_raw_os_error(libc::EIO)),
            };
        }
        let finish = Finish { windows: self, part, shared };
        let fetched = fetch().map(Arc::new);
        finish.with(&fetched);
        fetched
    }
}

/// Ends a fetch for those who wait for it, also if the fetching thread unwinds.
struct Finish<'a> {
    windows: &'a Windows,
    part: Fetch,
    shared: Arc<UnderWay>,
}

impl Finish<'_> {
    fn with(&self, fetched: &io::Result<Arc<Vec<u8>>>) {
        if let Ok(bytes) = fetched {
            self.windows.kept.lock().put(self.part, Arc::clone(bytes), bytes.len());
        }
        let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        *self.shared.result.lock() = Some(fetched.as_ref().map(Arc::clone).map_err(errno));
    }
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.shared.result.lock().get_or_insert(Err(libc::EIO));
        self.windows.under_way.lock().remove(&self.part);
        self.shared.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const PART: Fetch = Fetch { object: 1, from: 0, to: 3 };

    #[test]
    fn what_several_need_at_once_is_fetched_once() {
        let (windows, fetched, begun) = (Windows::new(100), AtomicUsize::new(0), Barrier::new(8));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    begun.wait();
                    let bytes = windows.get(PART, || {
                        fetched.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(std::time::Duration::from_millis(20));
                        Ok(vec![1, 2, 3])
                    });
                    assert_eq!(*bytes.unwrap(), [1, 2, 3]);
                });
            }
        });
        assert_eq!(fetched.into_inner(), 1);
        assert!(windows.under_way.lock().is_empty());
    }

    #[test]
    fn a_fetch_that_failed_is_tried_again() {
        let windows = Windows::new(100);
        let failed = windows.get(PART, || Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
        assert_eq!(*windows.get(PART, || Ok(vec![9])).unwrap(), [9]);
    }

    #[test]
    fn a_thread_that_unwinds_leaves_no_one_waiting() {
        let windows = Windows::new(100);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = windows.get(PART, || panic!("in a test"));
        }));
        assert!(caught.is_err());
        assert_eq!(*windows.get(PART, || Ok(vec![9])).unwrap(), [9]);
    }
}
