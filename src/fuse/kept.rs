//! Pages that the kernel keeps of open files, and when it must drop them.
//!
//! The kernel can see to that itself, by dates and lengths (`FUSE_AUTO_INVAL_DATA`). But then it does so
//! after writes through the mount as well: it drops a page beside a write to it that is still under
//! way, asks for it again, is given bytes of before that write, and keeps them; a mapping even writes
//! them back. So it drops the pages of an open file only on a notification (`FUSE_EXPLICIT_INVAL_DATA`), which
//! is sent when others have changed the file. Of a closed file the next open decides ([`crate::fs::Pages`]).
//!
//! ```text
//! open ----------> what the kernel knows of the file: its date and length
//! attributes ----> another date or length, and no write since: others have changed it
//! write ---------> before it, the same question; after it, date and length are what the writes have made
//! each second ---> the same question for files that may be read without being asked for
//! ```
//!
//! What others change in a file of the source just while it is written to looks like a part of that write. So
//! the pages of such a file are dropped once more when nobody has written to it for a while.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::fs::{Attr, Opened, Pages};
use crate::store::storage::{FileKind, Timestamp};

/// A file was written to so recently that a request of its writer may be under way.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Attributes are told after so long at the latest, though the kernel has not dropped the pages yet.
const DROPPING: Duration = Duration::from_millis(20);

/// The open files of a mount.
#[derive(Default)]
pub(super) struct KeptPages {
    files: Mutex<HashMap<u64, OpenFile>>,
    /// Beginnings and ends of writes so far.
    events: AtomicU64,
    /// Whose pages are to be dropped, or are being dropped.
    outdated: Mutex<Vec<u64>>,
    /// That has become more or less.
    changed: Condvar,
    /// Held by the one who waits for the kernel. Nobody waits for him: the kernel may wait for pages that
    /// others are to read.
    notifying: Mutex<()>,
    notifier: OnceLock<Notifier>,
}

/// What tells that others have changed a file: with the ctime also where they have put its mtime back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Content {
    mtime: Timestamp,
    ctime: Timestamp,
    nbytes: u64,
}

#[derive(Default)]
struct OpenFile {
    handles: Vec<u64>,
    /// What the kernel's pages are of, or what writes have made of it; None while that is not known.
    known: Option<Content>,
    /// Writes under way.
    writes: usize,
    /// How long they make it, if nobody else does.
    expected: Option<u64>,
    /// The number of the last event.
    last_event: u64,
    /// When the last write has ended, until its pages were dropped after that.
    written: Option<Instant>,
    /// It is a file of the source, which others may write to as well.
    is_shared: bool,
    /// Others have changed it while it was written to.
    is_outdated: bool,
    /// Others' changes reach who has opened this handle of it.
    follows: Option<u64>,
    /// Not all who have it open go around the kernel's pages.
    has_pages: bool,
}

/// What a write does to the length of a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    /// It makes the file at least so long, in bytes.
    To(u64),
    /// So many bytes are appended.
    By(u64),
    /// Something else.
    Other,
}

impl Change {
    /// How long the file is afterwards.
    fn length_of(self, nbytes: u64) -> Option<u64> {
        match self {
            Self::To(end) => Some(nbytes.max(end)),
            Self::By(more) => Some(nbytes.saturating_add(more)),
            Self::Other => None,
        }
    }
}

impl OpenFile {
    /// Whether nothing is to be known of it any more.
    fn is_forgotten(&self) -> bool {
        self.handles.is_empty() && self.writes == 0 && (self.written.is_none() || !self.is_shared)
    }

    /// Takes in attributes that were asked for when there had been `events`. Whether others have changed
    /// the file since the last ones.
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

/// A time at which attributes were asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked(u64);

impl KeptPages {
    /// From now on the kernel can be told.
    pub(super) fn serve(&self, notifier: Notifier) {
        // A filesystem is served once.
        let _ = self.notifier.set(notifier);
    }

    /// Attributes are about to be asked for.
    pub(super) fn ask(&self) -> Asked {
        Asked(self.events.load(Ordering::Acquire))
    }

    /// The kernel is about to be told of attributes: first it drops what is of another content.
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
        self.drop_outdated();
        // Whoever was dropping others may have ended without a look at this one.
        self.changed.notify_all();
        // By another thread. It may wait for pages that this one is to read, so not for ever.
        self.changed.wait_while_for(&mut self.outdated.lock(), is_dropping, DROPPING);
    }

    /// The same of attributes that were asked for by a handle of [`Self::following`], if that is still open:
    /// another file may have its number by now.
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

    /// A file was opened, which has these attributes now; `follows` if others' changes reach who has opened it.
    /// What becomes of its pages: those of a file that is being written to are of what it holds, and to drop
    /// them now is what must not happen.
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
        let pages = match pages {
            Pages::Dropped | Pages::Bypassed
                if is_written && is_known && file.has_pages && !file.is_outdated =>
            {
                Pages::Kept
            }
            pages => pages,
        };
        file.has_pages |= pages != Pages::Bypassed;
        file.is_shared |= is_shared;
        file.handles.push(handle);
        file.follows = file.follows.or(follows.then_some(handle));
        if pages == Pages::Dropped {
            (file.known, file.is_outdated) = (now, false);
        }
        file.known = file.known.or(now);
        pages
    }

    /// It is closed.
    pub(super) fn closed(&self, ino: u64, handle: u64) {
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else { return };
        file.handles.retain(|other| *other != handle);
        if file.follows == Some(handle) {
            // Of those that stay what they were nothing is ever outdated.
            file.follows = file.handles.first().copied();
        }
        if file.is_forgotten() {
            files.remove(&ino);
        }
    }

    /// Changes a file, which has the attributes `attr`.
    pub(super) fn change<T>(
        &self,
        ino: u64,
        how: Change,
        attr: impl Fn() -> Option<Attr>,
        act: impl FnOnce() -> T,
    ) -> T {
        let now = || attr().as_ref().and_then(content);
        if !self.begin_change(ino, how, now) {
            return act();
        }
        let done = act();
        self.end_change(ino, now);
        done
    }

    /// Whether the file is open.
    fn begin_change(&self, ino: u64, how: Change, now: impl Fn() -> Option<Content>) -> bool {
        let asked = self.ask();
        let is_alone = |file: &OpenFile| file.writes == 0 && file.known.is_some();
        let before = match self.files().get(&ino).map(is_alone) {
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

    fn end_change(&self, ino: u64, now: impl Fn() -> Option<Content>) {
        loop {
            let asked = self.ask();
            let after = now();
            let mut files = self.files();
            let Some(file) = files.get_mut(&ino) else { return };
            // Another one has ended after these attributes were asked for.
            if file.writes == 1 && file.last_event > asked.0 {
                continue;
            }
            file.writes = file.writes.saturating_sub(1);
            file.last_event = self.event();
            (file.known, file.written) = (after, Some(Instant::now()));
            if file.writes == 0 {
                let is_longer = |expected| after.is_some_and(|after| after.nbytes > expected);
                file.is_outdated |= file.is_shared && file.expected.is_some_and(is_longer);
                file.expected = None;
            }
            if std::mem::take(&mut file.is_outdated) {
                // The kernel holds pages of this write until it is answered: by another thread.
                self.outdated.lock().push(ino);
                self.changed.notify_all();
            }
            return;
        }
    }

    /// Open files that may have been changed by others, each with a handle.
    pub(super) fn following(&self) -> Vec<(u64, u64)> {
        self.files().iter().filter_map(|(ino, file)| Some((*ino, file.follows?))).collect()
    }

    /// Drops the pages of shared files that were written to, and are no more.
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

    /// Waits for pages to drop that nobody could wait for, and no longer than `until`.
    pub(super) fn drop_until(&self, until: Instant) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let none = |outdated: &mut Vec<u64>| outdated.is_empty();
            self.changed.wait_while_for(&mut self.outdated.lock(), none, left);
            self.drop_outdated();
            // By somebody else.
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
    fn what_writes_have_made_is_not_outdated() {
        let kept = KeptPages::default();
        open(&kept, attr(1, 10), Pages::Dropped);
        let before = kept.ask();
        let times = std::cell::Cell::new(1);
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
        // Others were faster than the write.
        kept.change(INO, Change::To(10), || Some(attr(5, 10)), || ());
        assert_eq!(*kept.outdated.lock(), [INO]);
        assert!(!is_outdated(&kept, attr(5, 10)));
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
        let sizes = std::cell::Cell::new(10);
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
