//! Whether the kernel may go on using the pages that it has cached of a file: tracking of what it has
//! cached of files that other processes may change.
//!
//! The kernel caches names and attributes for a second. A file that was changed, and is then opened
//! from these caches, must not be read through what the kernel has cached of it, least of all its
//! size. So the files looked up in the last seconds are remembered here, together with the time of
//! their last change.
//!
//! Pages are cached longer, until the mtime or the size of a file changes. Another process can
//! change a file and leave both as they were. So pages are kept across an open only if they cannot
//! hold anything but the current contents of the file.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};

use crate::bounded::bounded;

/// Number of files to remember: more than can be looked up in the time for which the kernel caches.
// Evaluated by the compiler, which rejects zero.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// Number of arrays of which it is remembered that absent chunks were shown.
// Evaluated by the compiler, which rejects zero.
const ARRAYS: NonZeroUsize = NonZeroUsize::new(1 << 10).unwrap();

/// Margin after which the kernel's caches have expired: the kernel counts in ticks.
const SLACK: Duration = Duration::from_millis(100);

/// Time after the answer to an open that drops the pages of a file within which the kernel has dropped
/// them. It does so before that open returns, in the order of a second for gigabytes; another open that
/// kept them meanwhile would show what is about to be dropped, and then what is read instead.
const DROPPING: Duration = Duration::from_secs(5);

/// Page cache policy for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Cached pages are valid and kept.
    Kept,
    /// Cached pages are dropped, and the file is read again.
    Dropped,
    /// So are the cached attributes, the length among them: they may be those of older contents.
    Renewed,
    /// The attributes are dropped, and reads bypass the cached pages (direct I/O).
    Bypassed,
    /// The same, though the file may be written to: others may read the pages of its inode number who may
    /// not read what it is now.
    Uncached,
}

impl Pages {
    /// Returns the policy for a file that is opened for writing, which cannot bypass the cached pages:
    /// it may be mapped.
    pub(in crate::fs) fn to_write(self) -> Self {
        if self == Self::Bypassed { Self::Renewed } else { self }
    }

    /// Returns the policy in a mount that others may use for what is from a shard in the directory of its
    /// array, or else from behind a link: that is not kept. Whoever has put the link there may have the same
    /// file open, and would read the pages.
    pub(in crate::fs) fn of_shared(self, is_in_array: bool) -> Self {
        if is_in_array { self } else { Self::Uncached }
    }

    /// Returns whether the kernel may have attributes of older contents.
    pub fn attributes_may_be_old(self) -> bool {
        matches!(self, Self::Renewed | Self::Bypassed | Self::Uncached)
    }

    /// Returns [`Pages::Kept`] if what the kernel has cached is valid, otherwise
    /// [`Pages::Bypassed`].
    pub(in crate::fs) fn kept_if(holds: bool) -> Self {
        if holds { Self::Kept } else { Self::Bypassed }
    }
}

/// Contents of the kernel's pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum Held {
    /// Those with this fingerprint.
    These {
        /// Fingerprint of the contents.
        content: u64,
        /// When an open was answered by which the kernel drops older ones; `None` if there were none.
        dropped: Option<Instant>,
    },
    /// They may be any.
    Unknown,
}

impl Held {
    /// Returns the contents of the pages of a file that is opened for the first time.
    pub(in crate::fs) fn first(content: u64) -> Self {
        Self::These { content, dropped: None }
    }

    /// Called when a file with these contents is opened: returns whether the kernel's pages hold them. If
    /// not, they are dropped by this open.
    pub(in crate::fs) fn holds(&mut self, content: u64) -> bool {
        match *self {
            Self::These { content: held, dropped } if held == content => {
                dropped.is_none_or(|at| at.elapsed() >= DROPPING)
            }
            _ => {
                *self = Self::These { content, dropped: Some(Instant::now()) };
                false
            }
        }
    }

    /// Returns whether the pages hold these contents, or none but them once older ones are dropped.
    fn are(self, content: u64) -> bool {
        matches!(self, Self::These { content: held, .. } if held == content)
    }
}

/// Files by a number chosen by the caller, each with a fingerprint that changes with the contents.
pub(in crate::fs) struct Identities {
    seen: Mutex<Files>,
    cached_for: Duration,
}

/// Key of a file in [`Identities`].
#[derive(Clone, Copy)]
pub(in crate::fs) struct FileKey {
    pub file: u64,
    /// Array of which the file is a shard.
    pub array: Option<u64>,
}

impl From<u64> for FileKey {
    fn from(file: u64) -> Self {
        Self { file, array: None }
    }
}

struct Files {
    files: LruCache<u64, Seen>,
    /// `true` once an entry was evicted: a file that is not in the table may have changed before.
    has_forgotten: bool,
    /// Contents of the kernel's pages, by inode number; only for inodes in files that have changed.
    pages: LruCache<u64, Held>,
    /// What the kernel knows inode numbers as; only those in files that have changed.
    known: LruCache<u64, Known>,
    /// Time at which a chunk that does not exist was last shown, by array. There is one for all
    /// shards of an array, because there may be more absent ones than the table holds.
    absent: LruCache<u64, Instant>,
}

#[derive(Clone, Copy)]
struct Seen {
    content: u64,
    changed: Option<Instant>,
    /// `true` if the file is unchanged since it was first reported to the kernel.
    is_first: bool,
}

impl Seen {
    fn is_recent(&self, cached_for: Duration) -> bool {
        self.changed.is_some_and(|changed| changed.elapsed() < cached_for + SLACK)
    }
}

/// What the kernel knows an inode number as. It takes one with other contents for another file.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Contents with which it was last shown; `None` if that was before the first change was seen.
    content: Option<u64>,
    /// When an open was refused, because the contents are others.
    refused: Option<Instant>,
}

impl Files {
    /// Records the current contents of a file.
    fn see(&mut self, key: FileKey, content: u64, cached_for: Duration) -> Seen {
        if let Some(seen) = self.files.get_mut(&key.file) {
            if seen.content != content {
                *seen = Seen { content, changed: Some(Instant::now()), is_first: false };
            }
            return *seen;
        }
        // The kernel may have cached attributes of the chunk from when there was no such shard.
        let absent = key.array.and_then(|array| self.absent.get(&array));
        let is_new = absent.is_some_and(|shown| shown.elapsed() < cached_for + SLACK);
        let changed = is_new.then(Instant::now);
        let seen = Seen { content, changed, is_first: !self.has_forgotten && !is_new };
        self.has_forgotten |= self.files.push(key.file, seen).is_some();
        seen
    }
}

impl Identities {
    /// Creates the table for a kernel that caches names and attributes for `cached_for`.
    pub(in crate::fs) fn new(cached_for: Duration) -> Self {
        let (files, pages) = (bounded(REMEMBERED), bounded(REMEMBERED));
        let (known, absent) = (bounded(REMEMBERED), bounded(ARRAYS));
        let files = Files { files, has_forgotten: false, pages, known, absent };
        Self { seen: Mutex::new(files), cached_for }
    }

    /// Records that the kernel has been given an inode number for these contents of a file, by a lookup or
    /// a listing.
    pub(in crate::fs) fn shown(&self, file: u64, content: u64, ino: u64) {
        let mut files = self.lock();
        if files.files.peek(&file).is_some_and(|seen| !seen.is_first) {
            files.known.get_or_insert_mut(ino, Known::default).content = Some(content);
        }
    }

    /// Returns whether an open of an inode number, in a file with these contents, is refused, because the
    /// kernel knows it with others, be they hours old: it then looks the name up, and gets to know another
    /// file. What is open under one number are otherwise two versions of a chunk, which share their pages
    /// and their length, and of which the next lookup takes the newer one from its readers. The kernel looks
    /// up once. To who has lost the race with the next change as well, or opens a descriptor anew
    /// (`/proc/self/fd`), it is opened as it is.
    pub(in crate::fs) fn refuses(&self, key: impl Into<FileKey>, content: u64, ino: u64) -> bool {
        let mut files = self.lock();
        if files.see(key.into(), content, self.cached_for).is_first {
            return false;
        }
        let known = files.known.get_or_insert_mut(ino, Known::default);
        let is_again = known.refused.is_some_and(|at| at.elapsed() < self.cached_for + SLACK);
        if known.content == Some(content) || is_again {
            return false;
        }
        known.refused = Some(Instant::now());
        true
    }

    /// Records that a chunk that does not exist is about to be shown to the kernel.
    pub(in crate::fs) fn shown_absent(&self, array: u64) {
        self.lock().absent.put(array, Instant::now());
    }

    /// Marks what the kernel has cached of a file as possibly stale from now on.
    pub(in crate::fs) fn disturb(&self, file: u64) {
        if let Some(seen) = self.lock().files.get_mut(&file) {
            (seen.changed, seen.is_first) = (Some(Instant::now()), false);
        }
    }

    /// Records the current contents of a file; returns whether the kernel may still have older
    /// attributes cached.
    pub(in crate::fs) fn changed_recently(&self, key: impl Into<FileKey>, content: u64) -> bool {
        self.lock().see(key.into(), content, self.cached_for).is_recent(self.cached_for)
    }

    /// Records the current contents of a file, in which the inode `ino` is about to be opened;
    /// returns what to do with the kernel's pages of that inode.
    pub(in crate::fs) fn opened(&self, key: impl Into<FileKey>, content: u64, ino: u64) -> Pages {
        let mut files = self.lock();
        let seen = files.see(key.into(), content, self.cached_for);
        if seen.is_recent(self.cached_for) {
            // A mapping fills pages even with direct I/O.
            files.pages.pop(&ino);
            return Pages::Bypassed;
        }
        let holds =
            seen.is_first || files.pages.get_or_insert_mut(ino, || Held::Unknown).holds(content);
        if holds { Pages::Kept } else { Pages::Dropped }
    }

    /// Records the current contents of a file, in which the inode `ino` is about to be pushed;
    /// returns whether the kernel's pages of that inode, if it has any, hold them already.
    pub(in crate::fs) fn may_push(&self, key: impl Into<FileKey>, content: u64, ino: u64) -> bool {
        let mut files = self.lock();
        let seen = files.see(key.into(), content, self.cached_for);
        let holds = seen.is_first || files.pages.get(&ino).is_some_and(|held| held.are(content));
        holds && !seen.is_recent(self.cached_for)
    }

    /// Records that the kernel may be given bytes for an inode number that its file no longer
    /// holds.
    pub(in crate::fs) fn served_older(&self, key: impl Into<FileKey>, ino: u64) {
        let mut files = self.lock();
        files.pages.pop(&ino);
        if let Some(seen) = files.files.get_mut(&key.into().file) {
            seen.is_first = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.seen.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time for which the kernel caches: longer than a test takes.
    const LONG: Duration = Duration::from_secs(600);

    impl Identities {
        /// Makes it long ago that pages were dropped.
        fn have_dropped(&self) {
            for (_, held) in self.lock().pages.iter_mut() {
                if let Held::These { content, .. } = *held {
                    *held = Held::first(content);
                }
            }
        }

        /// Makes everything that was recent happen that much earlier that the kernel has forgotten it since.
        fn have_waited(&self) {
            let earlier = |at: &mut Instant| *at = at.checked_sub(LONG + SLACK).unwrap();
            let mut files = self.lock();
            files.files.iter_mut().filter_map(|(_, seen)| seen.changed.as_mut()).for_each(earlier);
            files
                .known
                .iter_mut()
                .filter_map(|(_, known)| known.refused.as_mut())
                .for_each(earlier);
            files.absent.iter_mut().for_each(|(_, at)| earlier(at));
        }
    }

    #[test]
    fn a_change_is_recent_until_the_kernel_has_forgotten() {
        let identities = Identities::new(LONG);
        assert!(!identities.changed_recently(1, 10));
        assert!(identities.changed_recently(1, 11));
        assert!(identities.changed_recently(1, 11));
        assert!(!identities.changed_recently(2, 11));
        identities.have_waited();
        assert!(!identities.changed_recently(1, 11));
    }

    #[test]
    fn pages_are_kept_only_of_what_a_file_holds_now() {
        let identities = Identities::new(LONG);
        assert_eq!(identities.opened(1, 10, 100), Pages::Kept);
        assert_eq!(identities.opened(1, 11, 100), Pages::Bypassed);
        identities.have_waited();
        assert_eq!(identities.opened(1, 11, 100), Pages::Dropped);
        assert_eq!(identities.opened(1, 11, 100), Pages::Dropped, "the kernel may be about to");
        identities.have_dropped();
        assert_eq!(identities.opened(1, 11, 100), Pages::Kept);
        assert_eq!(identities.opened(1, 11, 101), Pages::Dropped, "not opened since the change");
        assert_eq!(identities.opened(2, 11, 200), Pages::Kept, "another file");
        identities.served_older(1, 100);
        assert_eq!(identities.opened(1, 11, 100), Pages::Dropped);
    }

    #[test]
    fn what_a_file_holds_now_is_pushed_only_beside_pages_of_the_same() {
        let identities = Identities::new(LONG);
        assert!(identities.may_push(1, 10, 100));
        assert!(!identities.may_push(1, 11, 100), "changed");
        identities.have_waited();
        assert!(!identities.may_push(1, 11, 100), "there may be pages of what it held before");
        assert_eq!(identities.opened(1, 11, 100), Pages::Dropped);
        assert!(identities.may_push(1, 11, 100));
        identities.served_older(1, 100);
        assert!(!identities.may_push(1, 11, 100));
    }

    #[test]
    fn a_shard_that_appears_where_absent_chunks_were_shown_has_changed() {
        let identities = Identities::new(LONG);
        let shard = |array, file| FileKey { file, array: Some(array) };
        identities.shown_absent(7);
        assert_eq!(identities.opened(shard(7, 1), 10, 100), Pages::Bypassed);
        assert!(!identities.may_push(shard(7, 2), 10, 200));
        assert_eq!(identities.opened(shard(8, 3), 10, 300), Pages::Kept, "of another array");
        identities.have_waited();
        assert_eq!(identities.opened(shard(7, 1), 10, 100), Pages::Dropped);
        assert_eq!(identities.opened(shard(7, 4), 10, 400), Pages::Kept, "shown as it is now");
    }

    #[test]
    fn what_the_kernel_knows_with_older_contents_is_opened_after_a_lookup() {
        let identities = Identities::new(LONG);
        identities.shown(1, 10, 100);
        assert!(!identities.refuses(1, 10, 100), "it has never changed");
        assert!(identities.refuses(1, 11, 100));
        assert!(!identities.refuses(1, 11, 100), "the kernel has looked nothing up");
        identities.shown(1, 11, 100);
        identities.have_waited();
        assert!(!identities.refuses(1, 11, 100));
        assert!(identities.refuses(1, 12, 100), "changed after it was looked up");
        identities.shown(1, 12, 100);
        assert!(!identities.refuses(1, 13, 100), "changed once more since");
        // It was looked up long ago: the answer has only just arrived.
        identities.have_waited();
        assert!(identities.refuses(1, 13, 100));
        assert!(identities.refuses(1, 13, 101), "another chunk, not looked up since");
        assert!(!identities.refuses(2, 13, 200), "another shard");
    }

    #[test]
    fn a_file_that_was_forgotten_may_have_changed() {
        let identities = Identities::new(LONG);
        for file in 0..=REMEMBERED.get() as u64 {
            assert_eq!(identities.opened(file, 10, file), Pages::Kept);
        }
        assert_eq!(identities.opened(0, 10, 0), Pages::Dropped);
        identities.have_dropped();
        assert_eq!(identities.opened(0, 10, 0), Pages::Kept);
    }
}
