//! The adapter to fuser: translation of requests and replies, without decisions.

mod convert;
mod kernel_cache;
mod kernel_flags;
pub mod push;
mod revalidation;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

pub use self::convert::file_attr;
use self::convert::{NO_ATTR, caller, file_type, open_how, placeholder, timestamp};
use self::kernel_cache::{Asked, Change, KeptPages};
pub use self::kernel_flags::KernelFlags;
pub use self::revalidation::Revalidation;
use crate::fs::{
    Attr, Caller, Entry, Fs, FsConfig, FsError, Listing, OpenHow, Opened, Pages, SetAttr, View,
    Views, WriteHow,
};
use crate::store::storage::FileKind;
use crate::text::shown;

/// Minimum interval between warnings that no more files can be opened.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

thread_local! {
    /// Buffer from which read data is sent to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Filesystem that fuser can serve.
pub struct Adapter {
    views: Arc<Views>,
    flags: KernelFlags,
    /// State of cached pages; `None` unless the kernel drops the pages of open files on
    /// notifications alone.
    kept: Option<Arc<KeptPages>>,
    /// `true` if the kernel sends an open request before a file is read.
    opens: bool,
    /// `true` if requests for extended attributes are answered, access control lists among them.
    xattr: bool,
    /// Time of the last warning that no more files can be opened.
    warned: Mutex<Option<Instant>>,
}

impl Adapter {
    /// Creates an adapter that serves `views`.
    pub fn new(views: Arc<Views>) -> Self {
        let configs = || views.all().iter().map(|fs| fs.config());
        let flags = KernelFlags {
            immutable: configs().any(|config| config.store.immutable),
            writable: configs().any(|config| config.writable),
            shared: configs().any(|config| config.shared),
        };
        let xattr = flags.shared || configs().any(|config| config.xattr);
        // The permission to read a file of a whole array is checked when it is opened.
        let checked = |config: &FsConfig| config.shared && config.view.view == View::Flat;
        let opens = !flags.immutable || configs().any(checked);
        let kept = flags.writable.then(Arc::default);
        Self { views, flags, kept, opens, xattr, warned: Mutex::default() }
    }

    /// Returns the task to run beside requests once the mount exists; `None` if it is not needed.
    pub fn revalidation(&self) -> Option<Revalidation> {
        let kept = Arc::clone(self.kept.as_ref()?);
        Some(Revalidation { views: Arc::downgrade(&self.views), kept })
    }

    /// Marks the start of a request for attributes that will be returned to the kernel.
    fn ask(&self) -> Option<(&KeptPages, Asked)> {
        let kept = self.kept.as_deref()?;
        Some((kept, kept.ask()))
    }

    /// Returns the attributes of an open file; `None` if they are not available.
    fn open_attr(&self, ino: INodeNo, handle: Option<u64>) -> Option<Attr> {
        self.views.getattr(ino.0, handle, &Caller::own()).ok().map(|(attr, _)| attr)
    }

    /// Registers an open file; returns the policy for the kernel's pages of it.
    fn opened(&self, ino: INodeNo, opened: Opened) -> Pages {
        let Some(kept) = &self.kept else { return opened.pages };
        let asked = kept.ask();
        let attr = self.open_attr(ino, Some(opened.handle));
        let follows = self.on(ino, |fs, _| Ok(fs.follows(opened.handle)));
        kept.opened(asked, ino.0, attr.as_ref(), opened, follows.unwrap_or_default())
    }

    /// Runs `act`, which changes the contents of a file.
    fn change<T>(
        &self,
        ino: INodeNo,
        handle: Option<u64>,
        how: Change,
        act: impl FnOnce() -> T,
    ) -> T {
        match &self.kept {
            Some(kept) => kept.change(ino.0, how, || self.open_attr(ino, handle), act),
            None => act(),
        }
    }

    fn lasting(&self, lasting: bool) -> Duration {
        if lasting { self.flags.lasting() } else { Duration::ZERO }
    }

    fn errno(&self, error: &FsError) -> Errno {
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
        Errno::from_i32(error.errno())
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

    /// Called before attributes are returned to the kernel.
    fn show(asked: Option<(&KeptPages, Asked)>, ino: u64, attr: &Attr) {
        if let Some((kept, asked)) = asked {
            kept.show(asked, ino, attr);
        }
    }

    fn reply_entry(&self, entry: Result<Entry, FsError>, reply: ReplyEntry) {
        match entry {
            Ok(entry) => {
                let lasting = self.lasting(entry.lasting);
                reply.entry(&lasting, &file_attr(&entry.attr), Generation(entry.generation));
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn reply_empty(&self, done: Result<(), FsError>, reply: ReplyEmpty) {
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    /// Runs `act` in the view that an inode belongs to, with its number there.
    fn on<T>(
        &self,
        ino: INodeNo,
        act: impl FnOnce(&Fs, u64) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let place = self.views.at(ino.0)?;
        act(place.fs, place.ino)
    }

    /// Does the same with an operation that changes something.
    fn change_on<T>(
        &self,
        ino: INodeNo,
        act: impl FnOnce(&Fs, u64) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.views.change(|| self.on(ino, act))
    }

    /// Makes an entry in the view that an inode belongs to, and returns it as the mount shows it.
    fn make_on(
        &self,
        ino: INodeNo,
        make: impl FnOnce(&Fs, u64) -> Result<Entry, FsError>,
    ) -> Result<Entry, FsError> {
        let place = self.views.at(ino.0)?;
        Ok(place.entry(self.views.change(|| make(place.fs, place.ino))?))
    }

    fn read_into(
        &self,
        ino: INodeNo,
        handle: Option<u64>,
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        let shared = handle.and_then(|handle| {
            let place = self.views.at(ino.0).ok()?;
            place.fs.read_shared(place.ino, handle, offset, size as usize)
        });
        if let Some(shared) = shared {
            return reply.data(shared.as_ref());
        }
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self.on(ino, |fs, ino| fs.read(ino, handle, offset, &mut buffer[..size]));
            match read {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(self.errno(&error)),
            }
        });
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        if !self.flags.configure(config) {
            self.kept = None;
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let asked = self.ask();
        match self.views.lookup(parent.0, name, &caller(request, 0)) {
            Ok(Some(entry)) => {
                Self::show(asked, entry.attr.ino, &entry.attr);
                let lasting = self.lasting(entry.lasting);
                reply.entry(&lasting, &file_attr(&entry.attr), Generation(entry.generation));
            }
            // Inode number 0: a negative entry, which may be cached as well.
            Ok(None) => {
                log::trace!("{}: there is no such name", shown(name));
                reply.entry(&self.flags.lasting(), &NO_ATTR, Generation(0));
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.views.forget(ino.0, lookups);
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let asked = self.ask();
        match self.views.getattr(ino.0, self.handle(handle), &caller(request, 0)) {
            Ok((attr, lasting)) => {
                Self::show(asked, ino.0, &attr);
                reply.attr(&self.lasting(lasting), &file_attr(&attr));
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.on(ino, Fs::readlink) {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if !self.opens {
            // The kernel then stops sending opens and treats every open as successful; likewise for
            // directories.
            return reply.error(Errno::ENOSYS);
        }
        let how = open_how(flags.0);
        let open_for = |fs: &Fs, ino| fs.open_for(ino, how, &caller(request, 0));
        let open = || match how.write || how.truncate {
            true => self.change_on(ino, open_for),
            false => self.on(ino, open_for),
        };
        match if how.truncate { self.change(ino, None, Change::Other, open) } else { open() } {
            Ok(opened) => {
                let flags = self.flags.opened(self.opened(ino, opened), how.write);
                reply.opened(FileHandle(opened.handle), flags);
            }
            // The kernel has cached a name that is gone: ESTALE makes it look the name up again,
            // and create the file if requested.
            Err(error @ FsError::NotFound) => {
                self.errno(&error);
                reply.error(Errno::ESTALE);
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_into(ino, self.handle(Some(handle)), offset, size, reply);
    }

    fn flush(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if !self.flags.writable {
            return reply.error(Errno::ENOSYS);
        }
        self.reply_empty(self.views.flush(ino.0, handle.0), reply);
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(kept) = &self.kept {
            kept.closed(ino.0, handle.0);
        }
        self.reply_empty(self.views.release(ino.0, handle.0), reply);
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.flags.immutable {
            return reply.error(Errno::ENOSYS);
        }
        match self.views.opendir(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        if self.flags.writable {
            self.views.releasedir(ino.0, handle.0);
        }
        reply.ok();
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let caller = caller(request, 0);
        let listed = self.views.readdir(ino.0, offset, Listing::Names, &caller, &mut |entry| {
            full(reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), entry.name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (caller, asked) = (caller(request, 0), self.ask());
        let listed = self.views.readdir(ino.0, offset, Listing::Entries, &caller, &mut |item| {
            let (attr, generation, lasting) = match &item.entry {
                Some(Entry { attr, generation, lasting }) => {
                    Self::show(asked, item.ino, attr);
                    (file_attr(attr), *generation, self.lasting(*lasting))
                }
                None => (placeholder(item), 0, Duration::ZERO),
            };
            let (ino, generation) = (INodeNo(item.ino), Generation(generation));
            full(reply.add(ino, item.next, item.name, &lasting, &attr, generation))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.views.space() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.free,
                space.available,
                space.files,
                space.free_files,
                space.block_size,
                255,
                space.block_size,
            ),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if !self.xattr {
            return reply.error(Errno::ENOSYS);
        }
        let caller = caller(request, 0);
        match self.views.getxattr(ino.0, name, &caller) {
            Ok(value) => reply_xattr(&value, size, reply),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.xattr {
            return reply.error(Errno::ENOSYS);
        }
        let caller = caller(request, 0);
        match self.views.listxattr(ino.0, &caller) {
            Ok(names) => reply_xattr(&names, size, reply),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel then treats the file as one without holes.
        reply.error(Errno::ENOSYS);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_now = matches!((&atime, &mtime), (Some(TimeOrNow::Now), Some(TimeOrNow::Now)));
        let (atime, mtime) = (atime.map(timestamp), mtime.map(timestamp));
        let set = SetAttr { mode, uid, gid, size, atime, mtime, is_now };
        let (caller, asked) = (caller(request, 0), self.ask());
        let change = set.size.map_or(Change::By(0), |_| Change::Other);
        let setattr = || {
            let place = self.views.at(ino.0)?;
            let setattr = || place.fs.setattr(place.ino, self.handle(handle), &set, &caller);
            Ok(place.attr(self.views.change(setattr)?))
        };
        let done = self.change(ino, self.handle(handle), change, setattr);
        match done {
            Ok(attr) => {
                // When the kernel truncates a file, it drops no pages before it gets the reply.
                if set.size.is_none() {
                    Self::show(asked, ino.0, &attr);
                }
                reply.attr(&self.lasting(true), &file_attr(&attr));
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let special = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => None,
            libc::S_IFIFO => Some(FileKind::Fifo),
            libc::S_IFSOCK => Some(FileKind::Socket),
            // They would have no effect: the mount is `nodev`.
            _ => return reply.error(Errno::EPERM),
        };
        let how = OpenHow { write: true, exclusive: true, truncate: false };
        let caller = caller(request, umask);
        let made = self.make_on(parent, |fs, parent| {
            if let Some(kind) = special {
                return fs.make_node(parent, name, kind, mode, &caller);
            }
            let (entry, opened) = fs.create(parent, name, mode, how, &caller)?;
            fs.release(opened.handle);
            Ok(entry)
        });
        self.reply_entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request, umask);
        let made = self.make_on(parent, |fs, parent| fs.mkdir(parent, name, mode, &caller));
        self.reply_entry(made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request, 0);
        self.reply_empty(
            self.change_on(parent, |fs, parent| fs.unlink(parent, name, &caller)),
            reply,
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request, 0);
        self.reply_empty(
            self.change_on(parent, |fs, parent| fs.rmdir(parent, name, &caller)),
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let caller = caller(request, 0);
        let made = self.make_on(parent, |fs, parent| fs.symlink(parent, name, target, &caller));
        self.reply_entry(made, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let no_replace = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let caller = caller(request, 0);
        let rename = || {
            let (from, to) = (self.views.at(parent.0)?, self.views.at(new_parent.0)?);
            from.check_same(&to)?;
            from.fs.rename((from.ino, name), (to.ino, new_name), no_replace, &caller)
        };
        self.reply_empty(self.views.change(rename), reply);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let caller = caller(request, 0);
        let link = || {
            let (file, parent) = (self.views.at(ino.0)?, self.views.at(parent.0)?);
            file.check_same(&parent)?;
            Ok(parent.entry(parent.fs.link(file.ino, parent.ino, name, &caller)?))
        };
        self.reply_entry(self.views.change(link), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (how, caller) = (open_how(flags), caller(request, umask));
        let created = self.views.at(parent.0).and_then(|place| {
            let create = || place.fs.create(place.ino, name, mode, how, &caller);
            let created = self.views.change(create);
            created.map(|(entry, opened)| (place.entry(entry), opened))
        });
        match created {
            Ok((entry, opened)) => {
                let lasting = self.lasting(entry.lasting);
                let generation = Generation(entry.generation);
                let pages = self.opened(INodeNo(entry.attr.ino), opened);
                let flags = self.flags.opened(pages, how.write);
                let handle = FileHandle(opened.handle);
                reply.created(&lasting, &file_attr(&entry.attr), generation, handle, flags);
            }
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        // The kernel writes mapped pages at their own offset, and appends at the end of the file
        // that it has cached.
        let how = WriteHow { append: !mapped && flags.0 & libc::O_APPEND != 0, mapped };
        let write = || self.change_on(ino, |fs, ino| fs.write_as(ino, handle.0, offset, data, how));
        let change = match how.append {
            true => Change::By(data.len() as u64),
            false => Change::To(offset.saturating_add(data.len() as u64)),
        };
        match self.change(ino, Some(handle.0), change, write) {
            // Requests are shorter than that.
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(error) => reply.error(self.errno(&error)),
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if !self.flags.writable {
            // There is nothing to write. The kernel sends no further requests and returns success.
            return reply.error(Errno::ENOSYS);
        }
        self.reply_empty(self.views.fsync(ino.0, handle.0), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if !self.flags.writable {
            return reply.error(Errno::ENOSYS);
        }
        self.reply_empty(self.views.fsyncdir(ino.0, handle.0), reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        // The C library then writes zeros if the program requires the allocation.
        reply.error(Errno::EOPNOTSUPP);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if !self.xattr {
            // The kernel sends no further requests.
            return reply.error(Errno::ENOSYS);
        }
        let (caller, flags) = (caller(request, 0), flags.cast_unsigned());
        let set = self.change_on(ino, |fs, ino| fs.setxattr(ino, name, value, flags, &caller));
        self.reply_empty(set, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !self.xattr {
            return reply.error(Errno::ENOSYS);
        }
        let caller = caller(request, 0);
        let remove = |fs: &Fs, ino| fs.removexattr(ino, name, &caller);
        self.reply_empty(self.change_on(ino, remove), reply);
    }
}

impl Adapter {
    /// Returns a handle; `None` if files are not opened, in which case the kernel sends handle 0.
    fn handle(&self, handle: Option<FileHandle>) -> Option<u64> {
        handle.filter(|_| self.opens).map(|handle| handle.0)
    }
}

fn full(full: bool) -> ControlFlow<()> {
    if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

fn reply_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(length) if size == 0 => reply.size(length),
        Ok(length) if length <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}
