//! Requests read from `/dev/fuse` one by one, by fuser's threads: works on every kernel.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::convert::{NO_ATTR, caller, file_attr, file_type, timestamp};
use super::reading::Xattr;
use super::server::{Answer, Named, OpenFile, Server};
use crate::fs::SetAttr;
use crate::requester::{serve, serve_change};

thread_local! {
    /// Buffer from which read data is sent to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Filesystem that fuser serves.
pub struct Classic(Arc<Server>);

impl Classic {
    /// Creates the filesystem through which fuser reaches `server`.
    pub fn new(server: Arc<Server>) -> Self {
        Self(server)
    }
}

impl Filesystem for Classic {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.0.configure(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _serving = serve(request.pid());
        entry(self.0.lookup(parent.0, name, &caller(request, 0)), reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.0.views.forget(ino.0, lookups);
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let _serving = serve(request.pid());
        match self.0.getattr(ino.0, number(handle), &caller(request, 0)) {
            Ok((attr, valid)) => reply.attr(&valid, &file_attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let _serving = serve(request.pid());
        match self.0.readlink(ino.0) {
            Ok(target) => reply.data(target.as_encoded_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _serving = serve(request.pid());
        match self.0.open(ino.0, flags.0, &caller(request, 0)) {
            Ok(OpenFile { handle, flags }) => reply.opened(FileHandle(handle), flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _serving = serve(request.pid());
        let size = size as usize;
        if let Some(shared) = self.0.read_shared(ino.0, handle.0, offset, size) {
            return reply.data(shared.as_ref());
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.0.read(ino.0, handle.0, offset, &mut buffer[..size]) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn flush(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        empty(self.0.flush(ino.0, handle.0), reply);
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
        empty(self.0.release(ino.0, handle.0), reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let _serving = serve(request.pid());
        match self.0.opendir(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
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
        self.0.releasedir(ino.0, handle.0);
        reply.ok();
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _serving = serve(request.pid());
        let listed = self.0.readdir((ino.0, handle.0), offset, &caller(request, 0), &mut |item| {
            reply.add(INodeNo(item.ino), item.next, file_type(item.kind), item.name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _serving = serve(request.pid());
        let caller = caller(request, 0);
        let listed =
            self.0.readdirplus((ino.0, handle.0), offset, &caller, &mut |item, attr, valid| {
                let (ino, attr) = (INodeNo(item.ino), file_attr(attr));
                let generation = item.entry.map_or(0, |entry| entry.generation);
                reply.add(ino, item.next, item.name, &valid, &attr, Generation(generation))
            });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _serving = serve(request.pid());
        match self.0.statfs() {
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
            Err(errno) => reply.error(errno),
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
        let _serving = serve(request.pid());
        xattr(self.0.getxattr(ino.0, name, size, &caller(request, 0)), reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _serving = serve(request.pid());
        xattr(self.0.listxattr(ino.0, size, &caller(request, 0)), reply);
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
        match self.0.setattr(ino.0, number(handle), &set, &caller(request, 0)) {
            Ok((attr, valid)) => reply.attr(&valid, &file_attr(&attr)),
            Err(errno) => reply.error(errno),
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
        entry(self.0.mknod(parent.0, name, mode, &caller(request, umask)), reply);
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
        entry(self.0.mkdir(parent.0, name, mode, &caller(request, umask)), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.0.unlink(parent.0, name, &caller(request, 0)), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.0.rmdir(parent.0, name, &caller(request, 0)), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        entry(self.0.symlink(parent.0, name, target, &caller(request, 0)), reply);
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
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        empty(self.0.rename(from, to, flags, &caller(request, 0)), reply);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        entry(self.0.link(ino.0, parent.0, name, &caller(request, 0)), reply);
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
        let _serving = serve_change(request.pid());
        match self.0.create(parent.0, name, mode, flags, &caller(request, umask)) {
            Ok((Named { attr, generation, valid }, OpenFile { handle, flags })) => {
                let attr = attr.as_ref().map_or(NO_ATTR, file_attr);
                let (generation, handle) = (Generation(generation), FileHandle(handle));
                reply.created(&valid, &attr, generation, handle, flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _serving = serve_change(request.pid());
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        match self.0.write(ino.0, handle.0, offset, data, (mapped, flags.0)) {
            Ok(written) => reply.written(written),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _serving = serve_change(request.pid());
        empty(self.0.fsync(ino.0, handle.0), reply);
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _serving = serve_change(request.pid());
        empty(self.0.fsyncdir(ino.0, handle.0), reply);
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
        let flags = flags.cast_unsigned();
        empty(self.0.setxattr(ino.0, name, value, flags, &caller(request, 0)), reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.0.removexattr(ino.0, name, &caller(request, 0)), reply);
    }
}

fn number(handle: Option<FileHandle>) -> Option<u64> {
    handle.map(|handle| handle.0)
}

fn empty(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// Inode number 0 stands for a negative entry, which the kernel may cache as well.
fn entry(answer: Answer<Named>, reply: ReplyEntry) {
    match answer {
        Ok(Named { attr, generation, valid }) => {
            let attr = attr.as_ref().map_or(NO_ATTR, file_attr);
            reply.entry(&valid, &attr, Generation(generation));
        }
        Err(errno) => reply.error(errno),
    }
}

fn xattr(answer: Answer<Xattr>, reply: ReplyXattr) {
    match answer {
        Ok(Xattr::Length(nbytes)) => reply.size(nbytes),
        Ok(Xattr::Value(value)) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}
