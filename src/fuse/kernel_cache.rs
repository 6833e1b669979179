//! Tracking of the pages that the kernel caches of open files, and of when it must drop them.
//!
//! The kernel can do this itself, by mtime and length (`FUSE_AUTO_INVAL_DATA`). But then it does so
//! after writes through the mount as well: it drops a page beside a write to it that is still in
//! progress, requests it again, gets bytes from before that write, and keeps them; a mapping even
//! writes them back. So the pages of an open file are dropped only on a notification
//! (`FUSE_EXPLICIT_INVAL_DATA`), which is sent when another process has changed the file. For a
//! closed file the next open decides ([`crate::fs::Pages`]).
//!
//! ```text
//! open ----------> the kernel's state of the file: its mtime, ctime and length
//! attributes ----> another date or length, and no write since: another process has changed it
//! write ---------> before it, the same check; after it, date and length are its result
//! each second ---> the same check for files that may be read without a request
//! ```
//!
//! A change by another process to a file of the source during a write through the mount looks like
//! a part of that write. So the pages of such a file are dropped once more when it has not been
//! written to for a while.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::fs::{Attr, Opened, Pages};
use crate::store::storage::{FileKind, Timestamp};

/// Time after a write for which a request of its writer may still be in progress.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Maximum time to delay attributes while the kernel has not dropped the pages yet.
const DROPPING: Duration = Duration::from_millis(20);

/// Open files of a mount.
#[derive(Default)]
pub(super) struct KeptPages {
    files: Mutex<HashMap<u64, OpenFile>>,
    /// Number of starts and ends of writes so far.
    events: AtomicU64,
    /// Inode numbers whose pages are to be dropped, or are being dropped.
    outdated: Mutex<Vec<u64>>,
    /// Signalled when `outdated` changes.
    changed: Condvar,
    /// Held by the thread that waits for the kernel. Other threads do not wait for it: the kernel
    /// may be waiting for pages that they are to read.
    notifying: Mutex<()>,
    notifier: OnceLock<Notifier>,
}

/// Attributes that reveal changes by other processes; the ctime does so even if they have restored
/// the mtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    mtime: Timestamp,
    ctime: Timestamp,
    nbytes: u64,
}

#[derive(Default)]
struct OpenFile {
    handles: Vec<u64>,
    /// Contents of the kernel's pages, or the result of writes; `None` while unknown.
    known: Option<Content>,
    /// Number of writes in progress.
    writes: usize,
    /// Length in bytes after the writes in progress, unless another process changes the file;
    /// `None` if unknown.
    expected: Option<u64>,
    /// Number of the last event.
    last_event: u64,
    /// End of the last write; `None` once the pages were dropped after it.
    written: Option<Instant>,
    /// `true` if it is a file of the source, which other processes may write to as well.
    is_shared: bool,
    /// `true` if another process has changed it while it was written to.
    is_outdated: bool,
    /// Handle through which changes by other processes are visible; `None` if there is none.
    follows: Option<u64>,
    /// `true` if at least one of its handles uses the page cache.
    has_pages: bool,
}

/// Effect of a write on the length of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    /// Extends the file to at least this length in bytes.
    To(u64),
    /// Appends this number of bytes.
    By(u64),
    /// Any other change.
    Other,
}

impl Change {
    /// Returns the length of the file after the change; `None` if it is unknown.
    fn length_of(self, nbytes: u64) -> Option<u64> {
        match self {
            Self::To(end) => Some(nbytes.max(end)),
            Self::By(more) => Some(nbytes.saturating_add(more)),
            Self::Other => None,
        }
    }
}

thread_local! {
    /// `false` while this thread must not wait for the kernel.
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
}

/// Runs `act`, in which this thread does not wait until the kernel has dropped pages: the kernel may wait for
/// an answer that only this thread can give. Another one drops them.
pub(super) fn without_waiting<T>(act: impl FnOnce() -> T) -> T {
    let before = MAY_WAIT.replace(false);
    let done = act();
    MAY_WAIT.set(before);
    done
}

impl OpenFile {
    /// Returns whether the file need not be tracked any more.
    fn is_forgotten(&self) -> bool {
        self.handles.is_empty() && self.writes == 0 && (self.written.is_none() || !self.is_shared)
    }

    /// Records attributes requested when `events` was the number of events. Returns whether another
    /// process has changed the file since the last ones.
    fn see(&mut self, now: Content, events: u64) -> bool {
        if self.writes > 0 {
            return self.is_shared && self.expected.is_some_and(|expected| now.nbytes > expected);
        }
        if self.last_event > events {
            return false;
        }
        self.known.replace(now).is_some_and(|known| known != now)
    }
}

/// Number of events at the time when attributes were requested.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked(u64);

impl KeptPages {
    /// Sets the notifier through which the kernel is notified from now on.
    pub(super) fn serve(&self, notifier: Notifier) {
        // A filesystem is served only once.
        let _ = self.notifier.set(notifier);
    }

    /// Marks the start of a request for attributes.
    pub(super) fn ask(&self) -> Asked {
        Asked(self.events.load(Ordering::Acquire))
    }

    /// Called before attributes are returned to the kernel: first drops the pages if they are of
    /// other contents.
    pub(super) fn show(&self, asked: Asked, ino: u64, attr: &Attr) {
        let is_outdated = self.take_outdated(asked, ino, attr);
        let is_dropping = |outdated: &mut Vec<u64>| outdated.contains(&ino);
        {
            let mut outdated = self.outdated.lock();
            if is_outdated {
                outdated.push(ino);
            } else if !is_dropping(&mut outdated) {
                return;
            }
        }
        if MAY_WAIT.get() {
            self.drop_outdated();
        }
        // The thread that was dropping others may have ended without seeing this one, or this thread must not
        // wait.
        self.changed.notify_all();
        // Dropped by another thread. It may wait for pages that this one is to read, so the wait is
        // bounded.
        self.changed.wait_while_for(&mut self.outdated.lock(), is_dropping, DROPPING);
    }

    /// Does the same for attributes requested through a handle of [`Self::following`], if that is
    /// still open: the number may belong to another file by now.
    pub(super) fn follow(&self, asked: Asked, ino: u64, handle: u64, attr: &Attr) {
        let is_open = |file: &OpenFile| file.follows == Some(handle);
        if self.files().get(&ino).is_some_and(is_open) {
            self.show(asked, ino, attr);
        }
    }

    fn take_outdated(&self, asked: Asked, ino: u64, attr: &Attr) -> bool {
        let Some(now) = content(attr) else { return false };
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else { return false };
        let is_changed = file.see(now, asked.0);
        std::mem::take(&mut file.is_outdated) | is_changed
    }

    /// Registers an open file with its current attributes. `follows` is `true` if changes by other
    /// processes are visible through the handle, `is_shared` if it is a file of the source. Returns
    /// the policy for its pages: those of a file that is being written to hold its contents, and
    /// must not be dropped now.
    pub(super) fn opened(
        &self,
        asked: Asked,
        ino: u64,
        attr: Option<&Attr>,
        opened: Opened,
        (follows, is_shared): (bool, bool),
    ) -> Pages {
        let Opened { handle, pages } = opened;
        let now = attr.and_then(content);
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        let is_written = file.writes > 0 || file.written.is_some();
        let is_known = file.writes > 0 || file.last_event > asked.0 || file.known == now;
        // Those that another thread is about to drop are of before a change by another process.
        let is_dropping = file.writes == 0 && self.outdated.lock().contains(&ino);
        let pages = match pages {
            Pages::Dropped | Pages::Renewed | Pages::Bypassed
                if is_written
                    && is_known
                    && file.has_pages
                    && !file.is_outdated
                    && !is_dropping =>
            {
                Pages::Kept
            }
            pages => pages,
        };
        file.has_pages |= !matches!(pages, Pages::Bypassed | Pages::Uncached);
        file.is_shared |= is_shared;
        file.handles.push(handle);
        file.follows = file.follows.or(follows.then_some(handle));
        if let Pages::Dropped | Pages::Renewed = pages {
            (file.known, file.is_outdated) = (now, false);
        }
        file.known = file.known.or(now);
        pages
    }

    /// Unregisters a handle.
    pub(super) fn closed(&self, ino: u64, handle: u64) {
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else { return };
        file.handles.retain(|other| *other != handle);
        if file.follows == Some(handle) {
            // Pages of handles that keep their contents never become stale.
            file.follows = file.handles.first().copied();
        }
        if file.is_forgotten() {
            files.remove(&ino);
        }
    }

    /// Changes the contents of a file, whose current attributes `attr` returns.
    pub(super) fn change<T>(
        &self,
        ino: u64,
        how: Change,
        attr: impl Fn() -> Option<Attr>,
        act: impl FnOnce() -> T,
    ) -> T {
        self.change_unless(ino, how, attr, act, |_| false)
    }

    /// The same of a change that may be refused, as `is_refused` says of its outcome, for another process has changed the
    /// file.
    pub(super) fn change_unless<T>(
        &self,
        ino: u64,
        how: Change,
        attr: impl Fn() -> Option<Attr>,
        act: impl FnOnce() -> T,
        is_refused: impl FnOnce(&T) -> bool,
    ) -> T {
        let now = || attr().as_ref().and_then(content);
        if !self.begin_change(ino, how, now) {
            return act();
        }
        let done = act();
        self.end_change(ino, now, is_refused(&done));
        done
    }

    /// Records the start of a change; returns whether the file is tracked.
    fn begin_change(&self, ino: u64, how: Change, now: impl Fn() -> Option<Content>) -> bool {
        let asked = self.ask();
        let is_alone = |file: &OpenFile| file.writes == 0 && file.known.is_some();
        // Not in the `match`, which would keep the table locked while it asks: that may take its time.
        let is_alone = self.files().get(&ino).map(is_alone);
        let before = match is_alone {
            None => return false,
            Some(true) => now(),
            Some(false) => None,
        };
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else { return false };
        if let (Some(before), 0) = (before, file.writes) {
            file.is_outdated |= file.see(before, asked.0);
            file.expected = Some(before.nbytes);
        }
        file.expected = file.expected.and_then(|nbytes| how.length_of(nbytes));
        file.writes += 1;
        file.last_event = self.event();
        true
    }

    fn end_change(&self, ino: u64, now: impl Fn() -> Option<Content>, is_refused: bool) {
        loop {
            let asked = self.ask();
            let after = now();
            let mut files = self.files();
            let Some(file) = files.get_mut(&ino) else { return };
            // Another change has ended after these attributes were requested.
            if file.writes == 1 && file.last_event > asked.0 {
                continue;
            }
            file.writes = file.writes.saturating_sub(1);
            file.last_event = self.event();
            match is_refused {
                // It has changed nothing, and the pages are of before the other process.
                true => (file.known, file.is_outdated) = (None, true),
                false => (file.known, file.written) = (after, Some(Instant::now())),
            }
            if file.writes == 0 {
                let is_longer = |expected| after.is_some_and(|after| after.nbytes > expected);
                file.is_outdated |= file.is_shared && file.expected.is_some_and(is_longer);
                file.expected = None;
            }
            if std::mem::take(&mut file.is_outdated) {
                // The kernel holds the pages of this write until it gets the reply: another thread
                // drops them.
                self.outdated.lock().push(ino);
                self.changed.notify_all();
            }
            return;
        }
    }

    /// Returns the handles of an open file.
    pub(super) fn handles_of(&self, ino: u64) -> Vec<u64> {
        self.files().get(&ino).map_or_else(Vec::new, |file| file.handles.clone())
    }

    /// Returns the open files that other processes may have changed, each with a handle.
    pub(super) fn following(&self) -> Vec<(u64, u64)> {
        self.files().iter().filter_map(|(ino, file)| Some((*ino, file.follows?))).collect()
    }

    /// Drops the pages of shared files that were written to once the writes have ceased.
    pub(super) fn settle(&self) {
        let mut files = self.files();
        for (ino, file) in files.iter_mut() {
            if file.writes == 0 && file.written.is_some_and(|at| at.elapsed() >= UNDER_WAY) {
                file.written = None;
                if file.is_shared {
                    self.outdated.lock().push(*ino);
                }
            }
        }
        files.retain(|_, file| !file.is_forgotten());
        drop(files);
        self.drop_outdated();
    }

    /// Drops pages that other threads could not wait to drop, and returns at `until`.
    pub(super) fn drop_until(&self, until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let none = |outdated: &mut Vec<u64>| outdated.is_empty();
            self.changed.wait_while_for(&mut self.outdated.lock(), none, left);
            self.drop_outdated();
            // Dropped by another thread.
            self.changed.wait_while_for(
                &mut self.outdated.lock(),
                |left| !left.is_empty(),
                DROPPING,
            );
        }
    }

    fn drop_outdated(&self) {
        loop {
            let Some(_turn) = self.notifying.try_lock() else { return };
            let Some(ino) = self.outdated.lock().last().copied() else { return };
            if let Some(notifier) = self.notifier.get()
                && let Err(error) = notifier.inval_inode(INodeNo(ino), 0, 0)
            {
                log::debug!("the kernel cannot drop the pages of file {ino}: {error}");
            }
            let mut outdated = self.outdated.lock();
            if let Some(at) = outdated.iter().rposition(|other| *other == ino) {
                outdated.remove(at);
            }
            self.changed.notify_all();
        }
    }

    fn event(&self) -> u64 {
        self.events.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, OpenFile>> {
        self.files.lock()
    }
}

fn content(attr: &Attr) -> Option<Content> {
    let is_file = attr.kind == FileKind::File;
    is_file.then_some(Content { mtime: attr.mtime, ctime: attr.ctime, nbytes: attr.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: u64 = 7;

    fn attr(seconds: i64, size: u64) -> Attr {
        let at = Timestamp { seconds, nanoseconds: 0 };
        let (mode, links, uid, gid) = (0o644, 1, 0, 0);
        let (mtime, ctime, atime) = (at, at, at);
        let (ino, kind, block) = (INO, FileKind::File, 4096);
        Attr { ino, kind, mode, links, uid, gid, size, mtime, ctime, atime, block }
    }

    fn open(kept: &KeptPages, attr: Attr, pages: Pages) -> Pages {
        kept.opened(kept.ask(), INO, Some(&attr), Opened { handle: 1, pages }, (true, true))
    }

    fn is_outdated(kept: &KeptPages, attr: Attr) -> bool {
        kept.take_outdated(kept.ask(), INO, &attr)
    }

    #[test]
    fn what_others_have_changed_is_outdated_once() {
        let kept = KeptPages::default();
        assert!(!is_outdated(&kept, attr(1, 10)), "nobody has it open");
        open(&kept, attr(1, 10), Pages::Dropped);
        assert!(!is_outdated(&kept, attr(1, 10)));
        assert!(is_outdated(&kept, attr(2, 10)));
        assert!(!is_outdated(&kept, attr(2, 10)));
        assert!(is_outdated(&kept, attr(2, 11)));
        kept.closed(INO, 1);
        assert!(!is_outdated(&kept, attr(3, 10)));
        assert!(kept.following().is_empty());
    }

    #[test]
    fn a_thread_that_must_not_wait_leaves_pages_to_another_to_drop() {
        let kept = KeptPages::default();
        open(&kept, attr(1, 10), Pages::Dropped);
        without_waiting(|| kept.show(kept.ask(), INO, &attr(2, 10)));
        assert_eq!(*kept.outdated.lock(), [INO]);
        kept.drop_until(Instant::now() + DROPPING);
        assert_eq!(*kept.outdated.lock(), [0; 0]);
        kept.show(kept.ask(), INO, &attr(3, 10));
        assert_eq!(*kept.outdated.lock(), [0; 0]);
    }

    #[test]
    fn what_writes_have_made_is_not_outdated() {
        let kept = KeptPages::default();
        open(&kept, attr(1, 10), Pages::Dropped);
        let before = kept.ask();
        let times = Cell::new(1);
        kept.change(
            INO,
            Change::To(10),
            || Some(attr(times.get(), 10)),
            || {
                times.set(2);
                assert!(!is_outdated(&kept, attr(2, 10)), "under way");
            },
        );
        assert!(!kept.take_outdated(before, INO, &attr(1, 10)), "asked for before");
        assert!(!is_outdated(&kept, attr(2, 10)));
        assert!(is_outdated(&kept, attr(3, 10)));
        // Another process has changed the file before the write.
        kept.change(INO, Change::To(10), || Some(attr(5, 10)), || ());
        assert_eq!(*kept.outdated.lock(), [INO]);
        assert!(!is_outdated(&kept, attr(5, 10)));
        // Who opens it now gets none of the pages that are about to be dropped.
        assert_eq!(open(&kept, attr(5, 10), Pages::Dropped), Pages::Dropped);
    }

    #[test]
    fn a_change_that_is_refused_leaves_no_pages_to_those_who_open_the_file() {
        let kept = KeptPages::default();
        open(&kept, attr(1, 10), Pages::Dropped);
        let change = || kept.change(INO, Change::To(10), || Some(attr(1, 10)), || ());
        change();
        assert_eq!(open(&kept, attr(1, 10), Pages::Dropped), Pages::Kept);
        change();
        kept.change_unless(INO, Change::To(10), || Some(attr(1, 10)), || (), |()| true);
        assert_eq!(*kept.outdated.lock(), [INO]);
        assert_eq!(open(&kept, attr(1, 10), Pages::Dropped), Pages::Dropped);
        kept.drop_until(Instant::now() + DROPPING);
        change();
        assert_eq!(open(&kept, attr(1, 10), Pages::Dropped), Pages::Kept);
    }

    #[test]
    fn an_open_beside_writes_drops_no_pages() {
        let kept = KeptPages::default();
        assert_eq!(open(&kept, attr(1, 10), Pages::Dropped), Pages::Dropped);
        assert_eq!(open(&kept, attr(1, 10), Pages::Dropped), Pages::Dropped, "nobody writes");
        kept.change(
            INO,
            Change::To(10),
            || Some(attr(1, 10)),
            || {
                assert_eq!(open(&kept, attr(2, 10), Pages::Dropped), Pages::Kept);
            },
        );
        assert_eq!(open(&kept, attr(1, 10), Pages::Bypassed), Pages::Kept);
        assert_eq!(open(&kept, attr(2, 10), Pages::Dropped), Pages::Dropped, "by others");
        assert_eq!(open(&kept, attr(2, 10), Pages::Kept), Pages::Kept);
    }

    #[test]
    fn what_others_append_beside_a_write_is_outdated() {
        let kept = KeptPages::default();
        open(&kept, attr(1, 10), Pages::Dropped);
        let sizes = Cell::new(10);
        let grow = |by: u64| sizes.set(sizes.get() + by);
        kept.change(INO, Change::By(5), || Some(attr(1, sizes.get())), || grow(5));
        assert!(!is_outdated(&kept, attr(1, 15)));
        kept.change(
            INO,
            Change::By(5),
            || Some(attr(1, sizes.get())),
            || {
                grow(5);
                assert!(!is_outdated(&kept, attr(1, 20)));
                grow(1);
                assert!(is_outdated(&kept, attr(1, 21)), "under way");
            },
        );
        assert_eq!(*kept.outdated.lock(), [INO]);
        assert!(!is_outdated(&kept, attr(1, 21)));
    }

    #[test]
    fn a_file_that_was_written_to_is_known_until_its_pages_were_dropped() {
        let kept = KeptPages::default();
        open(&kept, attr(2, 10), Pages::Dropped);
        kept.change(INO, Change::To(10), || Some(attr(2, 10)), || ());
        kept.closed(INO, 1);
        assert!(kept.files.lock().contains_key(&INO));
        assert_eq!(open(&kept, attr(2, 10), Pages::Dropped), Pages::Kept);
        kept.closed(INO, 1);
        std::thread::sleep(UNDER_WAY);
        kept.settle();
        assert!(kept.files.lock().is_empty());
    }
}
