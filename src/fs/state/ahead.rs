//! Queue of the chunks that are to be pushed into the kernel's page cache.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::fs::node::ArrayView;
use crate::fs::state::readers::{Readers, Window};

/// Number of windows that wait to be pushed.
const WAITING: usize = 64;

/// Readers, and the queue of what is to be pushed ahead of them.
#[derive(Default)]
pub(in crate::fs) struct Ahead {
    readers: Mutex<Readers>,
    /// Not set if nothing is pushed.
    queue: OnceLock<SyncSender<Job>>,
}

/// Window of chunks to push.
pub(in crate::fs) struct Job {
    pub array: Arc<ArrayView>,
    pub window: Window,
}

impl Ahead {
    /// Starts to queue windows. Returns their receiver; `None` if there is one already.
    pub(in crate::fs) fn start(&self) -> Option<Receiver<Job>> {
        let (sender, receiver) = sync_channel(WAITING);
        self.queue.set(sender).ok().map(|()| receiver)
    }

    /// Returns whether windows are queued.
    pub(in crate::fs) fn is_on(&self) -> bool {
        self.queue.get().is_some()
    }

    /// Called when the beginning of a chunk is requested: queues what its reader needs next.
    /// Returns the number of pushed bytes that it has passed.
    pub(in crate::fs) fn requested(
        &self,
        array: &Arc<ArrayView>,
        number: u64,
        are_absent: impl Fn(Range<u64>) -> bool,
    ) -> u64 {
        let Some(queue) = self.queue.get() else { return 0 };
        let id = array.source.id;
        let requested = self.readers().requested(id, number, are_absent);
        if let Some(window) = requested.window {
            let start = window.numbers.start;
            if queue.try_send(Job { array: Arc::clone(array), window }).is_err() {
                self.readers().refused(id, start);
            }
        }
        requested.used
    }

    pub(in crate::fs) fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock()
    }
}
