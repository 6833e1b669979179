//! Requests that change nothing.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use fuser::Errno;

use super::convert::open_how;
use super::kernel_cache::Change;
use super::server::{Answer, Named, OpenFile, Server};
use crate::fs::{Attr, Caller, DirEntry, Entry, Fs, FsError, Listing};
use crate::store::storage::{Space, Timestamp};
use crate::text::shown;

/// Value of an extended attribute, or of the list of their names.
pub(super) enum Xattr {
    /// The caller asks for its length in bytes alone.
    Length(u32),
    /// The value itself.
    Value(Vec<u8>),
}

impl Server {
    /// Answers LOOKUP.
    pub(super) fn lookup(&self, parent: u64, name: &OsStr, caller: &Caller) -> Answer<Named> {
        let _timed = self.requests().lookup.time();
        let asked = self.ask();
        match self.answer(self.views.lookup(parent, name, caller))? {
            Some(entry) => {
                Self::show(asked, entry.attr.ino, &entry.attr);
                Ok(self.named(entry))
            }
            None => {
                log::trace!("{}: there is no such name", shown(name));
                Ok(Named { attr: None, generation: 0, valid: self.flags.name_lasts(None) })
            }
        }
    }

    /// Answers GETATTR: attributes, and the time for which the kernel may cache them.
    pub(super) fn getattr(
        &self,
        ino: u64,
        handle: Option<u64>,
        caller: &Caller,
    ) -> Answer<(Attr, Duration)> {
        let _timed = self.requests().getattr.time();
        let asked = self.ask();
        let mut found = self.views.getattr(ino, self.handle(handle), caller);
        // The kernel sends no handle with fstat(2), also of a file that has no name any more.
        if let (Err(FsError::Stale | FsError::NotFound), Some(kept)) = (&found, self.kept()) {
            for open in kept.handles_of(ino) {
                let by_handle = self.views.getattr(ino, Some(open), caller);
                // It may have been closed meanwhile, and be that of another file.
                if by_handle.is_ok() && kept.handles_of(ino).contains(&open) {
                    found = by_handle;
                    break;
                }
            }
        }
        let (attr, lasting) = self.answer(found)?;
        Self::show(asked, ino, &attr);
        Ok((attr, self.valid(lasting)))
    }

    /// Answers READLINK.
    pub(super) fn readlink(&self, ino: u64) -> Answer<OsString> {
        let _timed = self.requests().readlink.time();
        self.answer(self.on(ino, Fs::readlink))
    }

    /// Answers OPEN. It may change the file: truncate it.
    pub(super) fn open(&self, ino: u64, flags: i32, caller: &Caller) -> Answer<OpenFile> {
        let _timed = self.requests().open.time();
        if !self.opens {
            // The kernel then stops sending opens and treats every open as successful; likewise for
            // directories.
            return Err(Errno::ENOSYS);
        }
        let how = open_how(flags);
        let open_for = |fs: &Fs, ino| fs.open_for(ino, how, caller);
        let open = || match how.write || how.truncate {
            true => self.change_on(ino, open_for),
            false => self.on(ino, open_for),
        };
        match if how.truncate { self.change(ino, None, Change::Other, open) } else { open() } {
            Ok(opened) => Ok(self.opened(ino, opened, how.write)),
            // The kernel has cached a name that is gone: ESTALE makes it look the name up again,
            // and create the file if requested.
            Err(error @ FsError::NotFound) => {
                self.errno(&error);
                Err(Errno::ESTALE)
            }
            Err(error) => Err(self.errno(&error)),
        }
    }

    /// Answers READ with bytes that are in memory already; `None` if they must be read into a
    /// buffer.
    pub(super) fn read_shared(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        nbytes: usize,
    ) -> Option<impl AsRef<[u8]>> {
        let began = Instant::now();
        let handle = self.handle(Some(handle))?;
        let place = self.views.at(ino).ok()?;
        let shared = place.fs.read_shared(place.ino, handle, offset, nbytes)?;
        self.requests().read.add(began.elapsed());
        Some(shared)
    }

    /// Answers READ: fills the buffer, and returns the number of bytes.
    pub(super) fn read(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        buffer: &mut [u8],
    ) -> Answer<usize> {
        let _timed = self.requests().read.time();
        let handle = self.handle(Some(handle));
        self.answer(self.on(ino, |fs, ino| fs.read(ino, handle, offset, buffer)))
    }

    /// Answers RELEASE.
    pub(super) fn release(&self, ino: u64, handle: u64) -> Answer<()> {
        let _timed = self.requests().release.time();
        self.closed(ino, handle);
        self.answer(self.views.release(ino, handle))
    }

    /// Answers OPENDIR with a handle.
    pub(super) fn opendir(&self, ino: u64) -> Answer<u64> {
        let _timed = self.requests().opendir.time();
        if self.flags.immutable {
            return Err(Errno::ENOSYS);
        }
        self.answer(self.views.opendir(ino))
    }

    /// Answers RELEASEDIR.
    pub(super) fn releasedir(&self, ino: u64, handle: u64) {
        if self.flags.writable {
            self.views.releasedir(ino, handle);
        }
    }

    /// Answers READDIR: calls `add`, which returns whether there was no room for the entry.
    pub(super) fn readdir(
        &self,
        (ino, handle): (u64, u64),
        position: u64,
        caller: &Caller,
        add: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Answer<()> {
        let _timed = self.requests().readdir.time();
        let directory = (ino, Some(handle));
        let add = &mut |item: &DirEntry<'_>| until_full(add(item));
        let listed = self.views.readdir(directory, position, Listing::Names, caller, add);
        self.answer(listed)
    }

    /// Answers READDIRPLUS in the same way, with the attributes of each entry and the time for which
    /// the kernel may cache them.
    pub(super) fn readdirplus(
        &self,
        (ino, handle): (u64, u64),
        position: u64,
        caller: &Caller,
        add: &mut dyn FnMut(&DirEntry<'_>, &Attr, Duration) -> bool,
    ) -> Answer<()> {
        let _timed = self.requests().readdir.time();
        let asked = self.ask();
        let directory = (ino, Some(handle));
        let listed =
            self.views.readdir(directory, position, Listing::Entries, caller, &mut |item| {
                let (attr, valid) = match &item.entry {
                    Some(Entry { attr, lasting, .. }) => {
                        Self::show(asked, item.ino, attr);
                        (*attr, self.name_valid(attr.kind, *lasting))
                    }
                    None => (placeholder(item), Duration::ZERO),
                };
                until_full(add(item, &attr, valid))
            });
        self.answer(listed)
    }

    /// Answers STATFS.
    pub(super) fn statfs(&self) -> Answer<Space> {
        let _timed = self.requests().statfs.time();
        self.answer(self.views.space())
    }

    /// Answers GETXATTR; `size` is the length of the caller's buffer in bytes, 0 for none.
    pub(super) fn getxattr(
        &self,
        ino: u64,
        name: &OsStr,
        size: u32,
        caller: &Caller,
    ) -> Answer<Xattr> {
        let _timed = self.requests().getxattr.time();
        if !self.xattr {
            return Err(Errno::ENOSYS);
        }
        fit(self.answer(self.views.getxattr(ino, name, caller))?, size)
    }

    /// Answers LISTXATTR in the same way.
    pub(super) fn listxattr(&self, ino: u64, size: u32, caller: &Caller) -> Answer<Xattr> {
        let _timed = self.requests().listxattr.time();
        if !self.xattr {
            return Err(Errno::ENOSYS);
        }
        fit(self.answer(self.views.listxattr(ino, caller))?, size)
    }
}

/// Returns the attributes of an entry whose own are unknown; they are not cached.
fn placeholder(item: &DirEntry<'_>) -> Attr {
    let epoch = Timestamp { seconds: 0, nanoseconds: 0 };
    let (mtime, ctime, atime) = (epoch, epoch, epoch);
    let (mode, links, uid, gid, size, block) = (0, 1, 0, 0, 0, 0);
    let (ino, kind) = (item.ino, item.kind);
    Attr { ino, kind, mode, links, uid, gid, size, mtime, ctime, atime, block }
}

fn until_full(is_full: bool) -> ControlFlow<()> {
    if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Returns what fits into a caller's buffer of `size` bytes.
fn fit(value: Vec<u8>, size: u32) -> Answer<Xattr> {
    match u32::try_from(value.len()) {
        Ok(length) if size == 0 => Ok(Xattr::Length(length)),
        Ok(length) if length <= size => Ok(Xattr::Value(value)),
        _ => Err(Errno::ERANGE),
    }
}
