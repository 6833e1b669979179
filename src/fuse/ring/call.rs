//! Requests that come by a ring: what is asked for by which opcode, and how it is answered.
//!
//! The numbers of an operation's own header are read at their positions in `linux/fuse.h`; names follow
//! in the payload, each with a NUL. The answer takes the place of the payload.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fuser::{Errno, RenameFlags, SessionACL};

use super::super::reading::Xattr;
use super::super::server::{Answer, Named, Server};
use super::wire::{Call, Payload};
use crate::fs::{SetAttr, now};
use crate::number::to_usize;
use crate::requester::{Serving, serve, serve_change};
use crate::store::storage::Timestamp;

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const CREATE: u32 = 35;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
}

/// `FUSE_GETATTR_FH`: a handle is given.
const WITH_HANDLE: u32 = 1;
/// `FUSE_WRITE_CACHE`: the data comes from mapped pages.
const FROM_PAGES: u32 = 1;

/// Users whose requests are answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowed {
    /// Who may use the mount.
    pub acl: SessionACL,
    /// User of this process.
    pub owner: u32,
}

impl Allowed {
    /// Returns whether a request may be answered. Some come without a user: the kernel sends them on
    /// behalf of whoever has the file open.
    fn permits(self, call: &Call) -> bool {
        let uid = call.caller(0).uid;
        let is_user = match self.acl {
            SessionACL::All => true,
            SessionACL::RootAndOwner => uid == 0 || uid == self.owner,
            SessionACL::Owner => uid == self.owner,
        };
        is_user
            || matches!(
                call.opcode,
                opcode::READ
                    | opcode::READDIR
                    | opcode::READDIRPLUS
                    | opcode::WRITE
                    | opcode::FSYNC
                    | opcode::FSYNCDIR
                    | opcode::RELEASE
                    | opcode::RELEASEDIR
            )
    }
}

/// Answers a request; `buffer` has its payload, and then that of the answer, whose length in bytes is
/// returned.
pub(super) fn answer(
    server: &Server,
    allowed: Allowed,
    call: &Call,
    buffer: &mut [u8],
) -> Answer<usize> {
    // Of an entry in a listing that the kernel could not keep. Nothing waits for the answer.
    if call.opcode == opcode::FORGET {
        server.views.forget(call.ino, call.u64(0));
        return Ok(0);
    }
    if !allowed.permits(call) {
        return Err(Errno::EACCES);
    }
    let _serving = given_up(call.opcode).map(|serve| serve(call.caller(0).pid));
    match call.opcode {
        opcode::READ => {
            let size = to_usize(u64::from(call.u32(16))).min(buffer.len());
            server.read(call.ino, call.u64(0), call.u64(8), &mut buffer[..size])
        }
        opcode::READDIR | opcode::READDIRPLUS => list(server, call, buffer),
        opcode::LOOKUP | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => {
            let named = name_entry(server, call, payload(call, buffer)?)?;
            written(buffer, |answer| answer.entry_out(&named))
        }
        opcode::CREATE => {
            let [name] = names(payload(call, buffer)?)?;
            let (flags, mode, caller) = (call.u32(0), call.u32(4), call.caller(call.u32(8)));
            let (named, opened) =
                server.create(call.ino, name, mode, flags.cast_signed(), &caller)?;
            written(buffer, |answer| answer.entry_out(&named) && answer.open_out(&opened))
        }
        opcode::GETATTR => {
            let handle = (call.u32(0) & WITH_HANDLE != 0).then(|| call.u64(8));
            let (attr, valid) = server.getattr(call.ino, handle, &call.caller(0))?;
            written(buffer, |answer| answer.attr_out(&attr, valid))
        }
        opcode::SETATTR => {
            let (handle, set) = set_attr(call);
            let (attr, valid) = server.setattr(call.ino, handle, &set, &call.caller(0))?;
            written(buffer, |answer| answer.attr_out(&attr, valid))
        }
        opcode::OPEN => {
            let opened = server.open(call.ino, call.u32(0).cast_signed(), &call.caller(0))?;
            written(buffer, |answer| answer.open_out(&opened))
        }
        opcode::OPENDIR => {
            let handle = server.opendir(call.ino)?;
            written(buffer, |answer| answer.u64s([handle, 0]))
        }
        opcode::WRITE => {
            let data = payload(call, buffer)?;
            let data = data.get(..to_usize(u64::from(call.u32(16)))).ok_or(Errno::EINVAL)?;
            let how = (call.u32(20) & FROM_PAGES != 0, call.u32(32).cast_signed());
            let nbytes = server.write(call.ino, call.u64(0), call.u64(8), data, how)?;
            written(buffer, |answer| answer.u32s([nbytes, 0]))
        }
        opcode::READLINK => {
            let target = server.readlink(call.ino)?;
            written(buffer, |answer| answer.bytes(target.as_bytes()))
        }
        opcode::STATFS => statfs(server, buffer),
        opcode::GETXATTR => {
            let [name] = names(payload(call, buffer)?)?;
            let value = server.getxattr(call.ino, name, call.u32(0), &call.caller(0))?;
            xattr(&value, buffer)
        }
        opcode::LISTXATTR => {
            let value = server.listxattr(call.ino, call.u32(0), &call.caller(0))?;
            xattr(&value, buffer)
        }
        _ => empty(server, call, payload(call, buffer)?).map(|()| 0),
    }
}

/// Returns how a request is given up while it waits, once its process is to end; `None` if it is not, for it may
/// be half done. A commit is not given up: others' changes are in it.
fn given_up(opcode: u32) -> Option<fn(u32) -> Serving> {
    match opcode {
        opcode::CREATE | opcode::WRITE | opcode::FSYNC | opcode::FSYNCDIR => Some(serve_change),
        opcode::LOOKUP
        | opcode::GETATTR
        | opcode::READLINK
        | opcode::OPEN
        | opcode::READ
        | opcode::STATFS
        | opcode::OPENDIR
        | opcode::READDIR
        | opcode::READDIRPLUS
        | opcode::GETXATTR
        | opcode::LISTXATTR => Some(serve),
        _ => None,
    }
}

/// Answers a request whose answer has no payload.
fn empty(server: &Server, call: &Call, payload: &[u8]) -> Answer<()> {
    let (ino, caller) = (call.ino, call.caller(0));
    match call.opcode {
        opcode::FLUSH => server.flush(ino, call.u64(0)),
        opcode::FSYNC => server.fsync(ino, call.u64(0)),
        opcode::FSYNCDIR => server.fsyncdir(ino, call.u64(0)),
        opcode::RELEASE => server.release(ino, call.u64(0)),
        opcode::RELEASEDIR => {
            server.releasedir(ino, call.u64(0));
            Ok(())
        }
        opcode::UNLINK => {
            let [name] = names(payload)?;
            server.unlink(ino, name, &caller)
        }
        opcode::RMDIR => {
            let [name] = names(payload)?;
            server.rmdir(ino, name, &caller)
        }
        opcode::RENAME | opcode::RENAME2 => {
            let [from, to] = names(payload)?;
            let flags = if call.opcode == opcode::RENAME2 { call.u32(8) } else { 0 };
            let flags = RenameFlags::from_bits_retain(flags);
            server.rename((ino, from), (call.u64(0), to), flags, &caller)
        }
        opcode::SETXATTR => {
            let (name, value) = split_name(payload)?;
            let value = value.get(..to_usize(u64::from(call.u32(0)))).ok_or(Errno::EINVAL)?;
            server.setxattr(ino, name, value, call.u32(4), &caller)
        }
        opcode::REMOVEXATTR => {
            let [name] = names(payload)?;
            server.removexattr(ino, name, &caller)
        }
        opcode::IOCTL => Err(Errno::ENOTTY),
        // The C library then writes zeros if the program requires the allocation.
        opcode::FALLOCATE => Err(Errno::EOPNOTSUPP),
        // The kernel does without, and sends no further requests of the kind.
        _ => Err(Errno::ENOSYS),
    }
}

/// Answers a request whose answer is an entry.
fn name_entry(server: &Server, call: &Call, payload: &[u8]) -> Answer<Named> {
    let ino = call.ino;
    match call.opcode {
        opcode::SYMLINK => {
            let [name, target] = names(payload)?;
            server.symlink(ino, name, Path::new(target), &call.caller(0))
        }
        opcode::MKNOD => {
            let [name] = names(payload)?;
            server.mknod(ino, name, call.u32(0), &call.caller(call.u32(8)))
        }
        opcode::MKDIR => {
            let [name] = names(payload)?;
            server.mkdir(ino, name, call.u32(0), &call.caller(call.u32(4)))
        }
        opcode::LINK => {
            let [name] = names(payload)?;
            server.link(call.u64(0), ino, name, &call.caller(0))
        }
        _ => {
            let [name] = names(payload)?;
            server.lookup(ino, name, &call.caller(0))
        }
    }
}

fn list(server: &Server, call: &Call, buffer: &mut [u8]) -> Answer<usize> {
    let (directory, position, caller) = ((call.ino, call.u64(0)), call.u64(8), call.caller(0));
    let size = to_usize(u64::from(call.u32(16))).min(buffer.len());
    let mut answer = Payload::new(&mut buffer[..size]);
    if call.opcode == opcode::READDIR {
        server.readdir(directory, position, &caller, &mut |item| {
            let (at, name) = ((item.ino, item.next), item.name.as_bytes());
            !answer.dirent(|_| true, at, item.kind, name)
        })?;
    } else {
        server.readdirplus(directory, position, &caller, &mut |item, attr, valid| {
            let generation = item.entry.map_or(0, |entry| entry.generation);
            let named = Named { attr: Some(*attr), generation, valid };
            let (at, name) = ((attr.ino, item.next), item.name.as_bytes());
            !answer.dirent(|answer| answer.entry_out(&named), at, attr.kind, name)
        })?;
    }
    Ok(answer.nbytes())
}

fn statfs(server: &Server, buffer: &mut [u8]) -> Answer<usize> {
    let space = server.statfs()?;
    written(buffer, |answer| {
        answer.u64s([space.blocks, space.free, space.available, space.files, space.free_files])
            && answer.u32s([space.block_size, 255, space.block_size, 0])
            && answer.u32s([0; 6])
    })
}

fn xattr(value: &Xattr, buffer: &mut [u8]) -> Answer<usize> {
    written(buffer, |answer| match value {
        Xattr::Length(nbytes) => answer.u32s([*nbytes, 0]),
        Xattr::Value(value) => answer.bytes(value),
    })
}

/// Returns what is to be set, and the handle of the file if it is open (`fuse_setattr_in`).
fn set_attr(call: &Call) -> (Option<u64>, SetAttr) {
    let valid = call.u32(0);
    let is_set = |bit: u32| valid & 1 << bit != 0;
    let time = |bit, now_bit, seconds, nanoseconds| {
        let given = || Timestamp {
            seconds: call.u64(seconds).cast_signed(),
            nanoseconds: call.u32(nanoseconds),
        };
        is_set(bit).then(|| if is_set(now_bit) { now() } else { given() })
    };
    let set = SetAttr {
        mode: is_set(0).then(|| call.u32(68)),
        uid: is_set(1).then(|| call.u32(76)),
        gid: is_set(2).then(|| call.u32(80)),
        size: is_set(3).then(|| call.u64(16)),
        atime: time(4, 7, 32, 56),
        mtime: time(5, 8, 40, 60),
        is_now: [4, 5, 7, 8].into_iter().all(is_set),
    };
    (is_set(6).then(|| call.u64(8)), set)
}

/// Returns the payload of a request.
fn payload<'a>(call: &Call, buffer: &'a [u8]) -> Answer<&'a [u8]> {
    buffer.get(..call.nbytes).ok_or(Errno::EINVAL)
}

/// Splits a payload into names, each with a NUL.
fn names<const N: usize>(mut payload: &[u8]) -> Answer<[&OsStr; N]> {
    let mut names = [OsStr::new(""); N];
    for name in &mut names {
        (*name, payload) = split_name(payload)?;
    }
    Ok(names)
}

/// Splits a payload behind the first NUL.
fn split_name(payload: &[u8]) -> Answer<(&OsStr, &[u8])> {
    let end = payload.iter().position(|byte| *byte == 0).ok_or(Errno::EINVAL)?;
    Ok((OsStr::from_bytes(&payload[..end]), &payload[end + 1..]))
}

/// Writes the payload of an answer, and returns its length in bytes.
fn written(buffer: &mut [u8], write: impl FnOnce(&mut Payload<'_>) -> bool) -> Answer<usize> {
    let mut answer = Payload::new(buffer);
    // The buffer is longer than any answer but those that are cut to its length.
    if write(&mut answer) { Ok(answer.nbytes()) } else { Err(Errno::EIO) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;
    use crate::fuse::ring::wire::HEADER_NBYTES;

    /// Returns a request whose operation has these bytes at these places in its header.
    fn call(opcode: u32, uid: u32, operation: &[(usize, &[u8])]) -> Call {
        let mut header = [0; HEADER_NBYTES];
        header[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header[24..28].copy_from_slice(&uid.to_ne_bytes());
        for (at, bytes) in operation {
            header[128 + at..][..bytes.len()].copy_from_slice(bytes);
        }
        Call::decode(&header)
    }

    #[test]
    fn names_end_at_a_nul() {
        let [one, two] = names(b"c\0zarr.json\0").unwrap();
        assert_eq!((one, two), (OsStr::new("c"), OsStr::new("zarr.json")));
        assert!(names::<2>(b"c\0zarr.json").is_err());
        assert!(names::<1>(b"").is_err());
        let (name, value) = split_name(b"user.a\0\0value").unwrap();
        assert_eq!((name, value), (OsStr::new("user.a"), b"\0value".as_slice()));
    }

    #[test]
    fn attributes_are_set_as_the_bits_say() {
        let everything = 0b1_1111_1111_u32;
        let fields: [(usize, &[u8]); 9] = [
            (0, &everything.to_ne_bytes()),
            (8, &7_u64.to_ne_bytes()),
            (16, &100_u64.to_ne_bytes()),
            (32, &(-1_i64).to_ne_bytes()),
            (40, &5_i64.to_ne_bytes()),
            (60, &9_u32.to_ne_bytes()),
            (68, &0o600_u32.to_ne_bytes()),
            (76, &1000_u32.to_ne_bytes()),
            (80, &100_u32.to_ne_bytes()),
        ];
        let (handle, set) = set_attr(&call(opcode::SETATTR, 0, &fields));
        assert_eq!(handle, Some(7));
        assert_eq!((set.mode, set.uid, set.gid), (Some(0o600), Some(1000), Some(100)));
        assert_eq!(set.size, Some(100));
        assert!(set.is_now && set.atime.is_some());

        let times_alone = 0b11_0000_u32.to_ne_bytes();
        let mut fields = fields;
        fields[0] = (0, &times_alone);
        let (handle, set) = set_attr(&call(opcode::SETATTR, 0, &fields));
        assert_eq!((handle, set.mode, set.size, set.is_now), (None, None, None, false));
        assert_eq!(set.atime, Some(Timestamp { seconds: -1, nanoseconds: 0 }));
        assert_eq!(set.mtime, Some(Timestamp { seconds: 5, nanoseconds: 9 }));
    }

    #[test]
    fn requests_of_other_users_are_answered_if_the_mount_is_shared() {
        let permits =
            |acl, opcode, uid| Allowed { acl, owner: 1000 }.permits(&call(opcode, uid, &[]));
        for opcode in [opcode::LOOKUP, opcode::OPEN, opcode::CREATE, opcode::UNLINK] {
            assert!(permits(SessionACL::Owner, opcode, 1000));
            assert!(!permits(SessionACL::Owner, opcode, 0));
            assert!(permits(SessionACL::RootAndOwner, opcode, 0));
            assert!(!permits(SessionACL::RootAndOwner, opcode, 1001));
            assert!(permits(SessionACL::All, opcode, 1001));
        }
        // The kernel writes pages back without naming a user.
        assert!(permits(SessionACL::Owner, opcode::WRITE, 0));
    }
}
