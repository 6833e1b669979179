//! A filesystem that passes everything through to a directory, and fails at random: what
//! `scripts/torture --faults` puts below a source.
//!
//!     faulty_fs --odds FILE [--seed N] BACKING MOUNTPOINT
//!
//! FILE holds the number of requests in 1000 that fail. It is read anew for each request, so the
//! faults begin and end when somebody writes to it. Every fault is written to stdout, a line each.
//!
//! ```text
//! refused   the request has no effect                      EIO or ENOSPC
//! torn      half of the bytes are written                  EIO or ENOSPC
//! short     half of the bytes are written                  that many
//! late      the request is carried out                     EIO
//! ```
//!
//! The last one is what a server does whose answer gets lost on the way.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use clap::Parser;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session,
    TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, Dir, FileType as Kind, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};

/// The backing directory may change below us, and every request shall be seen.
const NOT_CACHED: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);

#[derive(Parser)]
struct Args {
    /// File with the number of requests in 1000 that fail
    #[arg(long, value_name = "FILE")]
    odds: PathBuf,
    /// What the faults are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    backing: PathBuf,
    mountpoint: PathBuf,
}

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Refused(Errno),
    Torn(Errno),
    Short,
    Late,
}

/// Draws faults.
struct Dice {
    odds: PathBuf,
    seed: u64,
    drawn: AtomicU64,
}

impl Dice {
    /// A well mixed number, another one each time (splitmix64).
    fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let at = self.drawn.fetch_add(1, Ordering::Relaxed);
        let mut x = self.seed.wrapping_add(at.wrapping_mul(STEP));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn fails(&self, share: u64) -> bool {
        let odds = std::fs::read_to_string(&self.odds).unwrap_or_default();
        let odds: u64 = odds.trim().parse().unwrap_or(0);
        self.next() % (1000 * share) < odds
    }

    fn errno(&self) -> Errno {
        if self.next().is_multiple_of(2) { Errno::EIO } else { Errno::ENOSPC }
    }

    /// The fault of a request that changes something.
    fn change(&self, what: &str) -> Option<Fault> {
        if !self.fails(1) {
            return None;
        }
        let fault = match self.next() % 4 {
            0 => Fault::Late,
            _ => Fault::Refused(self.errno()),
        };
        self.report(what, fault)
    }

    /// The fault of a write.
    fn write(&self) -> Option<Fault> {
        if !self.fails(1) {
            return None;
        }
        let fault = match self.next() % 6 {
            0 | 1 => Fault::Refused(self.errno()),
            2 | 3 => Fault::Torn(self.errno()),
            4 => Fault::Short,
            _ => Fault::Late,
        };
        self.report("write", fault)
    }

    /// The fault of a request that changes nothing: a quarter as many.
    fn read(&self, what: &str) -> Option<Errno> {
        if !self.fails(4) {
            return None;
        }
        self.report(what, Fault::Refused(Errno::EIO)).map(|_| Errno::EIO)
    }

    #[allow(clippy::unnecessary_wraps, reason = "it is what the callers return")]
    fn report(&self, what: &str, fault: Fault) -> Option<Fault> {
        println!("{what}: {fault:?}");
        Some(fault)
    }
}

/// A file that the kernel knows.
struct Node {
    /// Opened with `O_PATH`: it stays this file whatever happens to its names.
    fd: Arc<OwnedFd>,
    lookups: u64,
}

struct FaultyFs {
    dice: Dice,
    nodes: Mutex<HashMap<u64, Node>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    handles: AtomicU64,
}

type Result<T> = std::result::Result<T, Errno>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: impl Into<io::Error>) -> Errno {
    Errno::from_i32(error.into().raw_os_error().unwrap_or(libc::EIO))
}

/// The name of an open file that system calls take, whatever it was opened for.
fn proc_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn attr_of(fd: &OwnedFd) -> Result<FileAttr> {
    let meta = File::from(fd.try_clone().map_err(errno)?).metadata().map_err(errno)?;
    let time = |seconds: i64, nanoseconds: i64| {
        // Nanoseconds are below 10^9, and nothing here is older than 1970.
        let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0);
        SystemTime::UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds)
    };
    Ok(FileAttr {
        ino: INodeNo(meta.ino()),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: SystemTime::UNIX_EPOCH,
        kind: match Kind::from_raw_mode(meta.mode()) {
            Kind::Directory => FileType::Directory,
            Kind::Symlink => FileType::Symlink,
            Kind::Fifo => FileType::NamedPipe,
            Kind::Socket => FileType::Socket,
            _ => FileType::RegularFile,
        },
        perm: u16::try_from(meta.permissions().mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

impl FaultyFs {
    fn node(&self, ino: INodeNo) -> Result<Arc<OwnedFd>> {
        lock(&self.nodes).get(&ino.0).map(|node| Arc::clone(&node.fd)).ok_or(Errno::ESTALE)
    }

    /// Looks a name up and lets the kernel know the file.
    fn learn(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = self.node(parent)?;
        let fd = rustix::fs::openat(&*parent, name, flags, Mode::empty()).map_err(errno)?;
        let attr = attr_of(&fd)?;
        let mut nodes = lock(&self.nodes);
        nodes.entry(attr.ino.0).or_insert(Node { fd: Arc::new(fd), lookups: 0 }).lookups += 1;
        Ok(attr)
    }

    fn forget_nodes(&self, ino: u64, lookups: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(node) = nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 && ino != INodeNo::ROOT.0 {
                nodes.remove(&ino);
            }
        }
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed);
        lock(&self.files).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>> {
        lock(&self.files).get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    /// Carries out a change, unless it is refused.
    fn change<T>(&self, what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.dice.change(what) {
            Some(Fault::Refused(error)) => Err(error),
            Some(_) => act().and(Err(Errno::EIO)),
            None => act(),
        }
    }

    fn open_node(&self, ino: INodeNo, flags: OFlags) -> Result<File> {
        let fd = self.node(ino)?;
        let kept = flags & !(OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL);
        let opened = rustix::fs::open(proc_path(&fd), kept | OFlags::CLOEXEC, Mode::empty());
        opened.map(File::from).map_err(errno)
    }

    fn set(&self, ino: INodeNo, handle: Option<FileHandle>, set: &Set) -> Result<()> {
        let fd = self.node(ino)?;
        let path = proc_path(&fd);
        if let Some(mode) = set.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(rustix::fs::Uid::from_raw);
            let gid = set.gid.map(rustix::fs::Gid::from_raw);
            rustix::fs::chownat(&*fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        if let Some(size) = set.size {
            let file = match handle {
                Some(handle) => self.file(handle)?,
                None => Arc::new(self.open_node(ino, OFlags::WRONLY)?),
            };
            file.set_len(size).map_err(errno)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(set.atime),
                last_modification: timespec(set.mtime),
            };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty())
                .map_err(errno)?;
        }
        Ok(())
    }

    /// The names of a directory, with their inode numbers.
    fn names(&self, ino: INodeNo) -> Result<Vec<(u64, FileType, OsString)>> {
        let directory = self.open_node(ino, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(directory).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let kind = match entry.file_type() {
                Kind::Directory => FileType::Directory,
                Kind::Symlink => FileType::Symlink,
                _ => FileType::RegularFile,
            };
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            names.push((entry.ino(), kind, name));
        }
        Ok(names)
    }

    fn write_some(&self, handle: FileHandle, offset: u64, data: &[u8]) -> Result<usize> {
        let file = self.file(handle)?;
        let fault = self.dice.write();
        let written = match fault {
            Some(Fault::Refused(error)) => return Err(error),
            Some(Fault::Torn(_) | Fault::Short) => &data[..data.len().div_ceil(2)],
            Some(Fault::Late) | None => data,
        };
        file.write_all_at(written, offset).map_err(errno)?;
        match fault {
            Some(Fault::Torn(error)) => Err(error),
            Some(Fault::Late) => Err(Errno::EIO),
            _ => Ok(written.len()),
        }
    }
}

/// Attributes that are to be set.
struct Set {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let time = match time {
        None => return Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => SystemTime::now(),
        Some(TimeOrNow::SpecificTime(time)) => time,
    };
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    }
}

fn reply_entry(result: Result<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attr) => reply.entry(&NOT_CACHED, &attr, GENERATION),
        Err(error) => reply.error(error),
    }
}

fn reply_empty(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn reply_attr(result: Result<FileAttr>, reply: ReplyAttr) {
    match result {
        Ok(attr) => reply.attr(&NOT_CACHED, &attr),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for FaultyFs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some(error) = self.dice.read("lookup") {
            return reply.error(error);
        }
        reply_entry(self.learn(parent, name), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.forget_nodes(ino.0, lookups);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(error) = self.dice.read("getattr") {
            return reply.error(error);
        }
        reply_attr(self.node(ino).and_then(|fd| attr_of(&fd)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = Set { mode, uid, gid, size, atime, mtime };
        let changed = self.change("setattr", || {
            self.set(ino, handle, &set)?;
            attr_of(&*self.node(ino)?)
        });
        reply_attr(changed, reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self
            .node(ino)
            .and_then(|fd| rustix::fs::readlinkat(&*fd, "", Vec::new()).map_err(errno));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.change("mkdir", || {
            let mode = Mode::from_raw_mode(mode & !umask);
            rustix::fs::mkdirat(&*self.node(parent)?, name, mode).map_err(errno)
        });
        reply_entry(made.and_then(|()| self.learn(parent, name)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.change("unlink", || {
            rustix::fs::unlinkat(&*self.node(parent)?, name, AtFlags::empty()).map_err(errno)
        });
        reply_empty(removed, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = self.change("rmdir", || {
            rustix::fs::unlinkat(&*self.node(parent)?, name, AtFlags::REMOVEDIR).map_err(errno)
        });
        reply_empty(removed, reply);
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let made = self.change("symlink", || {
            rustix::fs::symlinkat(target, &*self.node(parent)?, name).map_err(errno)
        });
        reply_entry(made.and_then(|()| self.learn(parent, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.change("rename", || {
            let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            let (from, to) = (self.node(parent)?, self.node(to_parent)?);
            rustix::fs::renameat_with(&*from, name, &*to, to_name, flags).map_err(errno)
        });
        reply_empty(renamed, reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.change("link", || {
            let (file, parent) = (self.node(ino)?, self.node(parent)?);
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, proc_path(&file), &*parent, name, flags)
                .map_err(errno)
        });
        reply_entry(linked.and_then(|()| self.learn(parent, name)), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(error) = self.dice.read("open") {
            return reply.error(error);
        }
        match self.open_node(ino, OFlags::from_bits_retain(flags.0.cast_unsigned())) {
            Ok(file) => reply.opened(self.keep(file), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.change("create", || {
            let flags = OFlags::from_bits_retain(flags.cast_unsigned())
                | OFlags::CREATE
                | OFlags::NOFOLLOW
                | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(mode & !umask);
            let parent = self.node(parent)?;
            rustix::fs::openat(&*parent, name, flags, mode).map(File::from).map_err(errno)
        });
        match created.and_then(|file| Ok((self.learn(parent, name)?, file))) {
            Ok((attr, file)) => {
                let flags = FopenFlags::empty();
                reply.created(&NOT_CACHED, &attr, GENERATION, self.keep(file), flags);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(error) = self.dice.read("read") {
            return reply.error(error);
        }
        let mut data = vec![0; size as usize];
        let read = self.file(handle).and_then(|file| {
            let mut at = 0;
            while at < data.len() {
                match file.read_at(&mut data[at..], offset + at as u64).map_err(errno)? {
                    0 => break,
                    n => at += n,
                }
            }
            Ok(at)
        });
        match read {
            Ok(length) => reply.data(&data[..length]),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_some(handle, offset, data) {
            // Requests are much shorter than 4 GiB.
            Ok(length) => reply.written(u32::try_from(length).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.files).remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.change("fsync", || self.file(handle)?.sync_all().map_err(errno));
        reply_empty(synced, reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.change("fsyncdir", || {
            self.open_node(ino, OFlags::RDONLY | OFlags::DIRECTORY)?.sync_all().map_err(errno)
        });
        reply_empty(synced, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if let Some(error) = self.dice.read("readdir") {
            return reply.error(error);
        }
        match self.names(ino) {
            Ok(names) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                for (at, (ino, kind, name)) in names.into_iter().enumerate().skip(from) {
                    if reply.add(INodeNo(ino), at as u64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let stat = self.node(ino).and_then(|fd| rustix::fs::fstatvfs(&*fd).map_err(errno));
        match stat {
            Ok(stat) => {
                let size = u32::try_from(stat.f_frsize).unwrap_or(4096);
                let (blocks, free) = (stat.f_blocks, stat.f_bfree);
                let (files, files_free) = (stat.f_files, stat.f_ffree);
                reply.statfs(blocks, free, stat.f_bavail, files, files_free, size, 255, size);
            }
            Err(error) => reply.error(error),
        }
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(&args.backing, flags, Mode::empty())?;
    let root = Node { fd: Arc::new(root), lookups: 1 };
    let filesystem = FaultyFs {
        dice: Dice { odds: args.odds, seed: args.seed, drawn: AtomicU64::new(0) },
        nodes: Mutex::new(HashMap::from([(INodeNo::ROOT.0, root)])),
        files: Mutex::default(),
        handles: AtomicU64::new(1),
    };
    let mut config = fuser::Config::default();
    config.mount_options =
        vec![MountOption::FSName("faulty_fs".into()), MountOption::DefaultPermissions];
    config.n_threads = Some(4);
    Session::new(filesystem, &args.mountpoint, &config)?.run()
}
