//! What requests are answered with, whatever transport they come by.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fuser::{Errno, FopenFlags, INodeNo, InitFlags, KernelConfig, Notifier};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use super::kernel_cache::{Asked, Change, KeptPages};
use super::kernel_flags::KernelFlags;
use super::revalidation::Revalidation;
use crate::fs::{Attr, Caller, Entry, Fs, FsConfig, FsError, Opened, Pages, View, Views};
use crate::stats::Requests;
use crate::store::storage::FileKind;

/// Minimum interval between warnings that no more files can be opened.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

/// Answer to a request.
pub(super) type Answer<T> = Result<T, Errno>;

/// Name in a directory with what it stands for.
pub(super) struct Named {
    /// Attributes; `None` for a negative entry: the kernel may cache that the name does not exist.
    pub attr: Option<Attr>,
    /// Generation of the inode number.
    pub generation: u64,
    /// Time for which the kernel may cache the name and the attributes.
    pub valid: Duration,
}

/// Open file.
pub(super) struct OpenFile {
    /// Handle, which requests for the file carry from now on.
    pub handle: u64,
    /// How the kernel is to cache it.
    pub flags: FopenFlags,
}

/// Filesystem that a transport serves.
pub struct Server {
    pub(super) views: Arc<Views>,
    pub(super) flags: KernelFlags,
    kept: Option<Arc<KeptPages>>,
    /// Set before the first request.
    notifier: OnceLock<Notifier>,
    /// `true` if the kernel drops the pages of open files on notifications alone.
    drops_when_notified: AtomicBool,
    /// `true` if the kernel sends an open request before a file is read.
    pub(super) opens: bool,
    /// `true` if requests for extended attributes are answered, access control lists among them.
    pub(super) xattr: bool,
    /// `true` if there are threads for requests that come by rings.
    has_rings: bool,
    /// `true` if the kernel sends requests by rings.
    uses_rings: AtomicBool,
    /// Time of the last warning that no more files can be opened.
    warned: Mutex<Option<Instant>>,
}

impl Server {
    /// Creates a server of `views`. With `has_rings`, the kernel is asked to send requests by rings.
    pub fn new(views: Arc<Views>, has_rings: bool) -> Self {
        let configs = || views.all().iter().map(|fs| fs.config());
        let flags = KernelFlags {
            immutable: configs().any(|config| config.store.immutable),
            writable: configs().any(|config| config.writable),
            shared: configs().any(|config| config.shared),
            sync: configs().any(|config| config.writable && config.writing.sync),
        };
        let xattr = flags.shared || configs().any(|config| config.xattr);
        // The permission to read a file of a whole array is checked when it is opened.
        let checked = |config: &FsConfig| config.shared && config.view.view == View::Flat;
        let opens = !flags.immutable || configs().any(checked);
        let kept = flags.writable.then(Arc::default);
        let (notifier, drops_when_notified, uses_rings, warned) = Default::default();
        Self {
            views,
            flags,
            kept,
            notifier,
            drops_when_notified,
            opens,
            xattr,
            has_rings,
            uses_rings,
            warned,
        }
    }

    /// Sets the notifier through which the kernel is notified from now on.
    pub fn notify_through(&self, notifier: Notifier) {
        // A filesystem is served only once.
        let _ = self.notifier.set(notifier);
    }

    /// Returns the task to run beside requests once the mount exists; `None` if it is not needed.
    pub fn revalidation(&self) -> Option<Revalidation> {
        let kept = Arc::clone(self.kept.as_ref()?);
        Some(Revalidation { views: Arc::downgrade(&self.views), kept })
    }

    /// Agrees with the kernel on the settings of the mount, before any other request.
    pub(super) fn configure(&self, config: &mut KernelConfig) {
        self.drops_when_notified.store(self.flags.configure(config), Ordering::Release);
        let uses_rings =
            self.has_rings && config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
        self.uses_rings.store(uses_rings, Ordering::Release);
    }

    /// Returns whether the kernel holds requests back until threads with rings answer them, once the
    /// settings of the mount are agreed.
    pub fn uses_rings(&self) -> bool {
        self.uses_rings.load(Ordering::Acquire)
    }

    /// Returns the state of cached pages; `None` unless the kernel drops the pages of open files on
    /// notifications alone.
    pub(super) fn kept(&self) -> Option<&KeptPages> {
        let kept = self.kept.as_deref();
        kept.filter(|_| self.drops_when_notified.load(Ordering::Acquire))
    }

    /// Marks the start of a request for attributes that will be returned to the kernel.
    pub(super) fn ask(&self) -> Option<(&KeptPages, Asked)> {
        let kept = self.kept()?;
        Some((kept, kept.ask()))
    }

    /// Called before attributes are returned to the kernel.
    pub(super) fn show(asked: Option<(&KeptPages, Asked)>, ino: u64, attr: &Attr) {
        if let Some((kept, asked)) = asked {
            kept.show(asked, ino, attr);
        }
    }

    /// Returns the attributes of an open file; `None` if they are not available.
    fn open_attr(&self, ino: u64, handle: Option<u64>) -> Option<Attr> {
        self.views.getattr(ino, handle, &Caller::own()).ok().map(|(attr, _)| attr)
    }

    /// Registers an open file; returns it as the kernel is to treat it.
    pub(super) fn opened(&self, ino: u64, opened: Opened, write: bool) -> OpenFile {
        if opened.pages.attributes_may_be_old() {
            self.drop_attributes(ino);
        }
        let pages = self.pages_of(ino, opened);
        OpenFile { handle: opened.handle, flags: self.flags.opened(pages, write) }
    }

    /// Makes the kernel request the attributes of a file when it needs them next. It cuts reads off at
    /// the length that it has cached, and programs take it for that of what they read.
    fn drop_attributes(&self, ino: u64) {
        /// No pages: the kernel may hold some locked until a request is answered.
        const ATTRIBUTES: i64 = -1;
        let Some(notifier) = self.notifier.get() else { return };
        if let Err(error) = notifier.inval_inode(INodeNo(ino), ATTRIBUTES, 0) {
            log::debug!("the kernel cannot drop the attributes of file {ino}: {error}");
        }
    }

    fn pages_of(&self, ino: u64, opened: Opened) -> Pages {
        let Some(kept) = self.kept() else { return opened.pages };
        let asked = kept.ask();
        let attr = self.open_attr(ino, Some(opened.handle));
        let follows = self.on(ino, |fs, _| Ok(fs.follows(opened.handle)));
        kept.opened(asked, ino, attr.as_ref(), opened, follows.unwrap_or_default())
    }

    /// Unregisters a handle.
    pub(super) fn closed(&self, ino: u64, handle: u64) {
        if let Some(kept) = self.kept() {
            kept.closed(ino, handle);
        }
    }

    /// Runs `act`, which changes the contents of a file.
    pub(super) fn change<T>(
        &self,
        ino: u64,
        handle: Option<u64>,
        how: Change,
        act: impl FnOnce() -> T,
    ) -> T {
        match self.kept() {
            Some(kept) => kept.change(ino, how, || self.open_attr(ino, handle), act),
            None => act(),
        }
    }

    /// The same by a write, which is refused with ESTALE if another process has changed the file.
    pub(super) fn change_by_write<T>(
        &self,
        (ino, handle): (u64, u64),
        how: Change,
        act: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let Some(kept) = self.kept() else { return act() };
        let attr = || self.open_attr(ino, Some(handle));
        kept.change_unless(ino, how, attr, act, |done| matches!(done, Err(FsError::Stale)))
    }

    /// Returns the time for which the kernel may cache a name or attributes.
    pub(super) fn valid(&self, lasting: bool) -> Duration {
        if lasting { self.flags.lasting() } else { Duration::ZERO }
    }

    /// Returns the time for which the kernel may cache the name of a file or directory.
    pub(super) fn name_valid(&self, kind: FileKind, lasting: bool) -> Duration {
        if lasting { self.flags.name_lasts(Some(kind)) } else { Duration::ZERO }
    }

    /// Returns an entry as the kernel is to cache it.
    pub(super) fn named(&self, entry: Entry) -> Named {
        let Entry { attr, generation, lasting } = entry;
        Named { attr: Some(attr), generation, valid: self.name_valid(attr.kind, lasting) }
    }

    /// Returns a handle; `None` if files are not opened, in which case the kernel sends handle 0.
    pub(super) fn handle(&self, handle: Option<u64>) -> Option<u64> {
        handle.filter(|_| self.opens)
    }

    /// Returns the times that requests take.
    pub(super) fn requests(&self) -> &Requests {
        &self.views.stats().requests
    }

    /// Returns the number for an error, which is counted and logged.
    pub(super) fn errno(&self, error: &FsError) -> Errno {
        match error {
            // Frequent and expected.
            FsError::NotFound | FsError::NoAttribute => log::trace!("{error}"),
            error => {
                self.views.stats().operations.errors.count();
                log::debug!("{error}");
                if let libc::EMFILE | libc::ENFILE = error.errno() {
                    self.warn_of_shortage(error);
                }
            }
        }
        Errno::from_i32(reportable(error.errno()))
    }

    /// Returns the answer for the outcome of an operation.
    pub(super) fn answer<T>(&self, outcome: Result<T, FsError>) -> Answer<T> {
        outcome.map_err(|error| self.errno(&error))
    }

    /// Logs at intervals that a request was refused because no more files can be opened.
    fn warn_of_shortage(&self, error: &FsError) {
        let mut warned = self.warned.lock();
        if warned.is_none_or(|warned| warned.elapsed() >= BETWEEN_WARNINGS) {
            *warned = Some(Instant::now());
            let limit = getrlimit(Resource::Nofile).current;
            let limit = limit.map_or("none".to_owned(), |limit| limit.to_string());
            log::warn!(
                "a request was refused, no more files can be opened: {error}. The limit of this process is \
                 {limit} (ulimit -n); every file that is open through the mount may take one"
            );
        }
    }

    /// Runs `act` in the view that an inode belongs to, with its number there.
    pub(super) fn on<T>(
        &self,
        ino: u64,
        act: impl FnOnce(&Fs, u64) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let place = self.views.at(ino)?;
        act(place.fs, place.ino)
    }

    /// Does the same with an operation that changes something.
    pub(super) fn change_on<T>(
        &self,
        ino: u64,
        act: impl FnOnce(&Fs, u64) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.views.change(|| self.on(ino, act))
    }

    /// Makes an entry in the view that an inode belongs to, and returns it as the mount shows it.
    pub(super) fn make_on(
        &self,
        ino: u64,
        make: impl FnOnce(&Fs, u64) -> Result<Entry, FsError>,
    ) -> Answer<Named> {
        let made = self.views.at(ino).and_then(|place| {
            let made = self.views.change(|| make(place.fs, place.ino))?;
            Ok(place.entry(made))
        });
        self.answer(made).map(|entry| self.named(entry))
    }
}

/// Returns an error number that the kernel takes: it refuses the answer with another one, and whoever waits
/// for it waits for ever. Some filesystems return numbers of the kernel's own, beyond those of programs.
fn reportable(errno: i32) -> i32 {
    /// Least number that it refuses.
    const REFUSED: i32 = 512;
    if (1..REFUSED).contains(&errno) { errno } else { libc::EIO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_the_kernel_refuses_are_reported_as_eio() {
        assert_eq!([1, libc::ENOENT, 511].map(reportable), [1, libc::ENOENT, 511]);
        assert_eq!([0, -5, 512, 521, i32::MIN, i32::MAX].map(reportable), [libc::EIO; 6]);
    }
}
