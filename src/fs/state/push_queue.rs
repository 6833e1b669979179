//! Chunks that are to be pushed into the kernel's page cache: their queue, and the files that are
//! open meanwhile.
//!
//! A push waits for the locks of pages. The kernel holds them while it waits for the answer to a
//! read, and a thread that waits so cannot be killed. So no file is pushed while it is open, and an
//! open waits for the end of a push: a read that takes long holds up neither other pushes nor the end
//! of this process. Where files are not opened, the mount's guard sees to that.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::fs::node::ArrayView;
use crate::fs::state::readahead::{Readers, Window};
use crate::requester;

/// Number of windows that wait to be pushed.
const WAITING: usize = 64;

/// Readers, and the queue of what is to be pushed ahead of them.
#[derive(Default)]
pub(in crate::fs) struct Ahead {
    readers: Mutex<Readers>,
    /// Not set if nothing is pushed.
    queue: OnceLock<SyncSender<Job>>,
    files: Mutex<Files>,
    /// Notified at the end of each push.
    pushed: Condvar,
}

/// Files by inode number.
#[derive(Default)]
struct Files {
    /// Number of opens of each open file, those included that are about to be answered.
    opens: HashMap<u64, usize>,
    /// Open file of each handle.
    handles: HashMap<u64, u64>,
    /// The file that is being pushed.
    pushing: Option<u64>,
}

/// A push that is under way; it ends when this is dropped.
pub(in crate::fs) struct Push<'a>(&'a Ahead);

impl Drop for Push<'_> {
    fn drop(&mut self) {
        self.0.files.lock().pushing = None;
        self.0.pushed.notify_all();
    }
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
    pub(in crate::fs) fn requested(&self, array: &Arc<ArrayView>, number: u64) -> u64 {
        let Some(queue) = self.queue.get() else { return 0 };
        let id = array.source.id;
        let requested = self.readers().requested(id, number);
        if let Some(window) = requested.window {
            let start = window.numbers.start;
            if queue.try_send(Job { array: Arc::clone(array), window }).is_err() {
                self.readers().cut(id, start);
            }
        }
        requested.used
    }

    /// Begins to push a file; `None` if it is open.
    pub(in crate::fs) fn begin(&self, ino: u64) -> Option<Push<'_>> {
        let mut files = self.files.lock();
        if files.opens.contains_key(&ino) {
            return None;
        }
        files.pushing = Some(ino);
        Some(Push(self))
    }

    /// Opens a file with `open`, which returns its handle among other things.
    ///
    /// # Errors
    /// Those of `open`; EINTR if the file is being pushed, and the process that opens it is to end.
    pub(in crate::fs) fn open<T, E: From<io::Error>>(
        &self,
        ino: u64,
        handle: impl Fn(&T) -> u64,
        open: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if !self.is_on() {
            return open();
        }
        {
            let mut files = self.files.lock();
            while files.pushing == Some(ino) {
                let waited = self.pushed.wait_for(&mut files, requester::LOOK);
                if waited.timed_out() && requester::is_ending() {
                    return Err(requester::interrupted().into());
                }
            }
            *files.opens.entry(ino).or_default() += 1;
        }
        let opened = open();
        let mut files = self.files.lock();
        match &opened {
            Ok(opened) => drop(files.handles.insert(handle(opened), ino)),
            Err(_) => files.closed(ino),
        }
        opened
    }

    /// Called when a handle is closed.
    pub(in crate::fs) fn closed(&self, handle: u64) {
        if self.is_on() {
            let mut files = self.files.lock();
            if let Some(ino) = files.handles.remove(&handle) {
                files.closed(ino);
            }
        }
    }

    pub(in crate::fs) fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock()
    }
}

impl Files {
    fn closed(&mut self, ino: u64) {
        if let Some(opens) = self.opens.get_mut(&ino) {
            *opens -= 1;
            if *opens == 0 {
                self.opens.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_file_is_not_pushed_while_it_is_open_nor_opened_while_it_is_pushed() {
        let ahead = Arc::new(Ahead::default());
        let _jobs = ahead.start();
        let open =
            |ahead: &Ahead, ino| ahead.open(ino, |handle| *handle, || Ok::<_, io::Error>(ino * 10));
        open(&ahead, 1).unwrap();
        assert!(ahead.begin(1).is_none());
        let push = ahead.begin(2);
        assert!(push.is_some());
        open(&ahead, 3).unwrap();
        let (opened, when) = channel();
        let other = Arc::clone(&ahead);
        let thread = std::thread::spawn(move || opened.send(open(&other, 2)));
        assert!(when.recv_timeout(Duration::from_millis(50)).is_err());
        drop(push);
        assert_eq!(when.recv().unwrap().unwrap(), 20);
        thread.join().unwrap().unwrap();
        assert!(ahead.begin(2).is_none());
        ahead.closed(20);
        assert!(ahead.begin(2).is_some());
        assert!(
            ahead.open(4, |handle| *handle, || Err::<u64, _>(requester::interrupted())).is_err()
        );
        assert!(ahead.begin(4).is_some() && ahead.begin(1).is_none());
    }
}
