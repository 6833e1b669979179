//! What the kernel was told of files that others may change, and what it keeps of them.
//!
//! The kernel believes names and attributes for a second. A file that is opened on such a belief
//! after it was changed must not be read through what the kernel remembers of it, its size least
//! of all. So the files of the last seconds are remembered here, and when they changed.
//!
//! Pages it keeps for longer, until the date or the size of a file changes. Others can change a file and
//! leave both as they were. So pages outlast the opening of a file only if they can be of nothing but what it
//! holds now.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};

use super::decoded::Pages;

/// Files to remember: more than can be looked up in the time that the kernel believes.
// The compiler evaluates it, and would refuse zero.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The kernel counts in ticks; this much later than it should, its belief has ended.
const SLACK: Duration = Duration::from_millis(100);

/// Files by a number of the caller's, with a number that is another one for another content.
pub(super) struct Identities {
    seen: Mutex<Files>,
    believed: Duration,
}

struct Files {
    files: LruCache<u64, Seen>,
    /// Some had to be forgotten: one that is not known may have changed before.
    has_forgotten: bool,
    /// Inode numbers of what is in files that have changed, with the content that the kernel's pages are
    /// of.
    pages: LruCache<u64, u64>,
}

#[derive(Clone, Copy)]
struct Seen {
    content: u64,
    changed: Option<Instant>,
    /// It is as it was when the kernel was first told of it.
    is_first: bool,
}

impl Seen {
    fn is_recent(&self, believed: Duration) -> bool {
        self.changed.is_some_and(|changed| changed.elapsed() < believed + SLACK)
    }
}

impl Files {
    /// A file, as it is now.
    fn see(&mut self, file: u64, content: u64) -> Seen {
        if let Some(seen) = self.files.get_mut(&file) {
            if seen.content != content {
                *seen = Seen { content, changed: Some(Instant::now()), is_first: false };
            }
            return *seen;
        }
        let seen = Seen { content, changed: None, is_first: !self.has_forgotten };
        self.has_forgotten |= self.files.push(file, seen).is_some();
        seen
    }
}

impl Identities {
    /// For a kernel that is told to believe for `believed`.
    pub(super) fn new(believed: Duration) -> Self {
        let (files, pages) = (LruCache::new(REMEMBERED), LruCache::new(REMEMBERED));
        Self { seen: Mutex::new(Files { files, has_forgotten: false, pages }), believed }
    }

    /// What the kernel believes of a file may be wrong from now on.
    pub(super) fn disturb(&self, file: u64) {
        if let Some(seen) = self.lock().files.get_mut(&file) {
            (seen.changed, seen.is_first) = (Some(Instant::now()), false);
        }
    }

    /// Remembers a file as it is now. Whether the kernel may still believe something older.
    pub(super) fn changed_recently(&self, file: u64, content: u64) -> bool {
        self.lock().see(file, content).is_recent(self.believed)
    }

    /// The same for what is in the file under an inode number, which is about to be opened: what becomes of
    /// the kernel's pages of it.
    pub(super) fn opened(&self, file: u64, content: u64, ino: u64) -> Pages {
        let mut files = self.lock();
        let seen = files.see(file, content);
        if seen.is_recent(self.believed) {
            // A mapping fills pages all the same.
            files.pages.pop(&ino);
            return Pages::Bypassed;
        }
        match seen.is_first || files.pages.put(ino, content) == Some(content) {
            true => Pages::Kept,
            false => Pages::Dropped,
        }
    }

    /// The kernel may be given bytes under an inode number that its file does not hold any more.
    pub(super) fn served_older(&self, file: u64, ino: u64) {
        let mut files = self.lock();
        files.pages.pop(&ino);
        if let Some(seen) = files.files.get_mut(&file) {
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

    #[test]
    fn a_change_is_recent_until_the_kernel_has_forgotten() {
        let identities = Identities::new(Duration::ZERO);
        assert!(!identities.changed_recently(1, 10));
        assert!(identities.changed_recently(1, 11));
        assert!(identities.changed_recently(1, 11));
        assert!(!identities.changed_recently(2, 11));
        std::thread::sleep(SLACK);
        assert!(!identities.changed_recently(1, 11));
    }

    #[test]
    fn pages_are_kept_only_of_what_a_file_holds_now() {
        let identities = Identities::new(Duration::ZERO);
        assert_eq!(identities.opened(1, 10, 100), Pages::Kept);
        assert_eq!(identities.opened(1, 11, 100), Pages::Bypassed);
        std::thread::sleep(SLACK);
        assert_eq!(identities.opened(1, 11, 100), Pages::Dropped);
        assert_eq!(identities.opened(1, 11, 100), Pages::Kept);
        assert_eq!(identities.opened(1, 11, 101), Pages::Dropped, "not opened since the change");
        assert_eq!(identities.opened(2, 11, 200), Pages::Kept, "another file");
        identities.served_older(1, 100);
        assert_eq!(identities.opened(1, 11, 100), Pages::Dropped);
    }

    #[test]
    fn a_file_that_was_forgotten_may_have_changed() {
        let identities = Identities::new(Duration::ZERO);
        for file in 0..=REMEMBERED.get() as u64 {
            assert_eq!(identities.opened(file, 10, file), Pages::Kept);
        }
        assert_eq!(identities.opened(0, 10, 0), Pages::Dropped);
        assert_eq!(identities.opened(0, 10, 0), Pages::Kept);
    }
}
