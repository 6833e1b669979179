//! Requests that change something, or that return once a change is durable.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use fuser::{Errno, RenameFlags};

use super::convert::open_how;
use super::kernel_cache::Change;
use super::server::{Answer, Named, OpenFile, Server};
use crate::fs::{Attr, Caller, Fs, OpenHow, SetAttr, WriteHow};
use crate::store::storage::FileKind;

impl Server {
    /// Answers FLUSH, sent for each close of a descriptor.
    pub(super) fn flush(&self, ino: u64, handle: u64) -> Answer<()> {
        let _timed = self.requests().flush.time();
        if !self.flags.writable {
            return Err(Errno::ENOSYS);
        }
        self.answer(self.views.flush(ino, handle))
    }

    /// Answers FSYNC.
    pub(super) fn fsync(&self, ino: u64, handle: u64) -> Answer<()> {
        let _timed = self.requests().fsync.time();
        if !self.flags.writable {
            // There is nothing to write. The kernel sends no further requests and returns success.
            return Err(Errno::ENOSYS);
        }
        self.answer(self.views.fsync(ino, handle))
    }

    /// Answers FSYNCDIR.
    pub(super) fn fsyncdir(&self, ino: u64, handle: u64) -> Answer<()> {
        let _timed = self.requests().fsync.time();
        if !self.flags.writable {
            return Err(Errno::ENOSYS);
        }
        self.answer(self.views.fsyncdir(ino, handle))
    }

    /// Answers SETATTR: the attributes after the change, and the time for which the kernel may cache
    /// them.
    pub(super) fn setattr(
        &self,
        ino: u64,
        handle: Option<u64>,
        set: &SetAttr,
        caller: &Caller,
    ) -> Answer<(Attr, Duration)> {
        let _timed = self.requests().setattr.time();
        let (handle, asked) = (self.handle(handle), self.ask());
        let change = set.size.map_or(Change::By(0), |_| Change::Other);
        let setattr = || {
            let place = self.views.at(ino)?;
            let setattr = || place.fs.setattr(place.ino, handle, set, caller);
            Ok(place.attr(self.views.change(setattr)?))
        };
        let attr = self.answer(self.change(ino, handle, change, setattr))?;
        // When the kernel truncates a file, it drops no pages before it gets the reply.
        if set.size.is_none() {
            Self::show(asked, ino, &attr);
        }
        Ok((attr, self.valid(true)))
    }

    /// Answers MKNOD.
    pub(super) fn mknod(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        caller: &Caller,
    ) -> Answer<Named> {
        let _timed = self.requests().mknod.time();
        let special = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => None,
            libc::S_IFIFO => Some(FileKind::Fifo),
            libc::S_IFSOCK => Some(FileKind::Socket),
            // They would have no effect: the mount is `nodev`.
            _ => return Err(Errno::EPERM),
        };
        let how = OpenHow { write: true, exclusive: true, truncate: false };
        self.make_on(parent, |fs, parent| {
            if let Some(kind) = special {
                return fs.make_node(parent, name, kind, mode, caller);
            }
            let (entry, opened) = fs.create(parent, name, mode, how, caller)?;
            let closed = fs.flush(entry.attr.ino, opened.handle);
            fs.release(opened.handle);
            closed.map(|()| entry)
        })
    }

    /// Answers MKDIR.
    pub(super) fn mkdir(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        caller: &Caller,
    ) -> Answer<Named> {
        let _timed = self.requests().mkdir.time();
        self.make_on(parent, |fs, parent| fs.mkdir(parent, name, mode, caller))
    }

    /// Answers SYMLINK.
    pub(super) fn symlink(
        &self,
        parent: u64,
        name: &OsStr,
        target: &Path,
        caller: &Caller,
    ) -> Answer<Named> {
        let _timed = self.requests().symlink.time();
        self.make_on(parent, |fs, parent| fs.symlink(parent, name, target, caller))
    }

    /// Answers LINK.
    pub(super) fn link(
        &self,
        ino: u64,
        parent: u64,
        name: &OsStr,
        caller: &Caller,
    ) -> Answer<Named> {
        let _timed = self.requests().link.time();
        let linked = self.views.change(|| {
            let (file, parent) = (self.views.at(ino)?, self.views.at(parent)?);
            file.check_same(&parent)?;
            Ok(parent.entry(parent.fs.link(file.ino, parent.ino, name, caller)?))
        });
        self.answer(linked).map(|entry| self.named(entry))
    }

    /// Answers UNLINK.
    pub(super) fn unlink(&self, parent: u64, name: &OsStr, caller: &Caller) -> Answer<()> {
        let _timed = self.requests().unlink.time();
        self.answer(self.change_on(parent, |fs, parent| fs.unlink(parent, name, caller)))
    }

    /// Answers RMDIR.
    pub(super) fn rmdir(&self, parent: u64, name: &OsStr, caller: &Caller) -> Answer<()> {
        let _timed = self.requests().rmdir.time();
        self.answer(self.change_on(parent, |fs, parent| fs.rmdir(parent, name, caller)))
    }

    /// Answers RENAME and RENAME2: `from` and `to` are a directory and a name in it each.
    pub(super) fn rename(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: RenameFlags,
        caller: &Caller,
    ) -> Answer<()> {
        let _timed = self.requests().rename.time();
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return Err(Errno::EINVAL);
        }
        let no_replace = flags.contains(RenameFlags::RENAME_NOREPLACE);
        let renamed = self.views.change(|| {
            let (old, new) = (self.views.at(from.0)?, self.views.at(to.0)?);
            old.check_same(&new)?;
            old.fs.rename((old.ino, from.1), (new.ino, to.1), no_replace, caller)
        });
        self.answer(renamed)
    }

    /// Answers CREATE.
    pub(super) fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: i32,
        caller: &Caller,
    ) -> Answer<(Named, OpenFile)> {
        let _timed = self.requests().create.time();
        let how = open_how(flags);
        let created = self.views.at(parent).and_then(|place| {
            let create = || place.fs.create(place.ino, name, mode, how, caller);
            let (entry, opened) = self.views.change(create)?;
            Ok((place.entry(entry), opened))
        });
        let (entry, opened) = self.answer(created)?;
        let opened = self.opened(entry.attr.ino, opened, how.write);
        Ok((self.named(entry), opened))
    }

    /// Answers WRITE: the number of bytes written. `mapped` tells data of the page cache, mapped
    /// pages, from that of a call; `flags` are those of the open file.
    pub(super) fn write(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        data: &[u8],
        (mapped, flags): (bool, i32),
    ) -> Answer<u32> {
        let _timed = self.requests().write.time();
        // The kernel writes mapped pages at their own offset, and appends at the end of the file
        // that it has cached.
        let how = WriteHow { append: !mapped && flags & libc::O_APPEND != 0, mapped };
        let write = || self.change_on(ino, |fs, ino| fs.write_as(ino, handle, offset, data, how));
        let change = match how.append {
            true => Change::By(data.len() as u64),
            false => Change::To(offset.saturating_add(data.len() as u64)),
        };
        let nbytes = self.answer(self.change_by_write((ino, handle), change, write))?;
        // Requests are shorter than that.
        Ok(u32::try_from(nbytes).unwrap_or(u32::MAX))
    }

    /// Answers SETXATTR.
    pub(super) fn setxattr(
        &self,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: u32,
        caller: &Caller,
    ) -> Answer<()> {
        let _timed = self.requests().setxattr.time();
        if !self.xattr {
            // The kernel sends no further requests.
            return Err(Errno::ENOSYS);
        }
        let set = |fs: &Fs, ino| fs.setxattr(ino, name, value, flags, caller);
        self.answer(self.change_on(ino, set))
    }

    /// Answers REMOVEXATTR.
    pub(super) fn removexattr(&self, ino: u64, name: &OsStr, caller: &Caller) -> Answer<()> {
        let _timed = self.requests().removexattr.time();
        if !self.xattr {
            return Err(Errno::ENOSYS);
        }
        self.answer(self.change_on(ino, |fs, ino| fs.removexattr(ino, name, caller)))
    }
}
