//! Layout of requests and answers as the kernel puts them into memory (`linux/fuse.h`).
//!
//! All numbers are in the byte order of the machine. Lengths and positions in bytes:
//!
//! ```text
//! header of an entry (fuse_uring_req_header), 288
//!     0  fuse_in_header of a request, or fuse_out_header of its answer
//!   128  the operation's own header, such as fuse_read_in
//!   256  flags u64 | commit id u64 | payload's length u32 | 0 u32 | 0 u64
//!
//! fuse_in_header    length u32 | opcode u32 | unique u64 | inode u64 | uid u32 | gid u32 | pid u32 | 0 u32
//! fuse_out_header   length u32 | 0, or an error as a negative number i32 | unique u64
//! fuse_attr         inode u64 | size u64 | blocks u64 | atime, mtime, ctime i64 | their nanoseconds u32
//!                   | mode u32 | links u32 | uid u32 | gid u32 | device u32 | block u32 | 0 u32
//! fuse_entry_out    inode u64 | generation u64 | validity of the name, of the attributes: seconds u64,
//!                   then their nanoseconds u32 | fuse_attr
//! fuse_attr_out     validity: seconds u64, nanoseconds u32 | 0 u32 | fuse_attr
//! fuse_open_out     handle u64 | flags u32 | 0 u32
//! fuse_dirent       inode u64 | position of the next u64 | length of the name u32 | type u32 | name,
//!                   then zeros up to a multiple of 8
//! ```

use std::time::Duration;

use crate::fs::{Attr, Caller};
use crate::store::storage::{FileKind, Timestamp};

use super::super::server::{Named, OpenFile};

/// Length of the header of an entry.
pub(super) const HEADER_NBYTES: usize = 288;
const OPERATION: usize = 128;
const ENTRY: usize = 256;

/// Returns the number at a position; 0 behind the end.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u32::from_ne_bytes)
}

/// Returns the number at a position; 0 behind the end.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_ne_bytes)
}

/// Request of the kernel, without its payload.
pub(super) struct Call {
    /// What is requested.
    pub opcode: u32,
    /// Number of the request.
    pub unique: u64,
    /// Inode number that it is about.
    pub ino: u64,
    /// Number by which the answer is given.
    pub commit_id: u64,
    /// Length of the payload in bytes.
    pub nbytes: usize,
    caller: Caller,
    operation: [u8; ENTRY - OPERATION],
}

impl Call {
    /// Reads the header of an entry.
    pub(super) fn decode(header: &[u8; HEADER_NBYTES]) -> Self {
        let mut operation = [0; ENTRY - OPERATION];
        operation.copy_from_slice(&header[OPERATION..ENTRY]);
        let (uid, gid, pid) = (u32_at(header, 24), u32_at(header, 28), u32_at(header, 32));
        Self {
            opcode: u32_at(header, 4),
            unique: u64_at(header, 8),
            ino: u64_at(header, 16),
            commit_id: u64_at(header, ENTRY + 8),
            nbytes: crate::number::to_usize(u64::from(u32_at(header, ENTRY + 16))),
            caller: Caller { uid, gid, pid, umask: 0 },
            operation,
        }
    }

    /// Returns a number of the operation's header.
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32_at(&self.operation, at)
    }

    /// Returns a number of the operation's header.
    pub(super) fn u64(&self, at: usize) -> u64 {
        u64_at(&self.operation, at)
    }

    /// Returns the caller; `umask` holds the permission bits to clear in new files.
    pub(super) fn caller(&self, umask: u32) -> Caller {
        Caller { umask, ..self.caller }
    }
}

/// Writes an answer into the header of an entry: its payload's length in bytes, or an error.
pub(super) fn encode_outcome(
    header: &mut [u8; HEADER_NBYTES],
    unique: u64,
    outcome: Result<u32, i32>,
) {
    let (nbytes, error) = match outcome {
        Ok(nbytes) => (nbytes, 0),
        Err(errno) => (0, errno.saturating_neg()),
    };
    header[0..4].copy_from_slice(&nbytes.saturating_add(16).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..16].copy_from_slice(&unique.to_ne_bytes());
    header[ENTRY + 16..ENTRY + 20].copy_from_slice(&nbytes.to_ne_bytes());
}

/// Payload of an answer as it is written.
pub(super) struct Payload<'a> {
    buffer: &'a mut [u8],
    nbytes: usize,
}

impl<'a> Payload<'a> {
    /// Creates an empty payload in a buffer, which is as long as it may become.
    pub(super) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, nbytes: 0 }
    }

    /// Returns the length in bytes.
    pub(super) fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Appends bytes; `false` if there is no room for them.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> bool {
        let end = self.nbytes.saturating_add(bytes.len());
        let Some(room) = self.buffer.get_mut(self.nbytes..end) else { return false };
        room.copy_from_slice(bytes);
        self.nbytes = end;
        true
    }

    /// Appends numbers of 4 bytes.
    pub(super) fn u32s<const N: usize>(&mut self, numbers: [u32; N]) -> bool {
        numbers.into_iter().all(|number| self.bytes(&number.to_ne_bytes()))
    }

    /// Appends numbers of 8 bytes.
    pub(super) fn u64s<const N: usize>(&mut self, numbers: [u64; N]) -> bool {
        numbers.into_iter().all(|number| self.bytes(&number.to_ne_bytes()))
    }

    fn attr(&mut self, attr: &Attr) -> bool {
        let Attr { atime, mtime, ctime, .. } = attr;
        let times = [atime, mtime, ctime].map(|time| time.seconds.cast_unsigned());
        let nanoseconds = [atime, mtime, ctime].map(|time| time.nanoseconds);
        let mode = type_bits(attr.kind) | attr.mode & 0o7777;
        self.u64s([attr.ino, attr.size, attr.size.div_ceil(512)])
            && self.u64s(times)
            && self.u32s(nanoseconds)
            && self.u32s([mode, attr.links, attr.uid, attr.gid, 0, attr.block, 0])
    }

    /// Appends `fuse_attr_out`.
    pub(super) fn attr_out(&mut self, attr: &Attr, valid: Duration) -> bool {
        self.u64s([valid.as_secs()]) && self.u32s([valid.subsec_nanos(), 0]) && self.attr(attr)
    }

    /// Appends `fuse_entry_out`; inode number 0 stands for a negative entry.
    pub(super) fn entry_out(&mut self, named: &Named) -> bool {
        let Named { attr, generation, valid } = named;
        let (seconds, nanoseconds) = (valid.as_secs(), valid.subsec_nanos());
        let attr = attr.as_ref().unwrap_or(&NO_ATTR);
        self.u64s([attr.ino, *generation, seconds, seconds])
            && self.u32s([nanoseconds, nanoseconds])
            && self.attr(attr)
    }

    /// Appends `fuse_open_out`.
    pub(super) fn open_out(&mut self, opened: &OpenFile) -> bool {
        self.u64s([opened.handle]) && self.u32s([opened.flags.bits(), 0])
    }

    /// Appends `fuse_dirent` after what `before` appends; `false`, and nothing, if there is no room.
    pub(super) fn dirent(
        &mut self,
        before: impl FnOnce(&mut Self) -> bool,
        (ino, next): (u64, u64),
        kind: FileKind,
        name: &[u8],
    ) -> bool {
        let start = self.nbytes;
        let padding = &[0; 8][..name.len().next_multiple_of(8) - name.len()];
        // Names are at most 255 bytes long.
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
        let is_written = before(self)
            && self.u64s([ino, next])
            && self.u32s([length, type_bits(kind) >> 12])
            && self.bytes(name)
            && self.bytes(padding);
        if !is_written {
            self.nbytes = start;
        }
        is_written
    }
}

const EPOCH: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

/// Attributes of a negative entry.
const NO_ATTR: Attr = Attr {
    ino: 0,
    kind: FileKind::File,
    mode: 0,
    links: 0,
    uid: 0,
    gid: 0,
    size: 0,
    mtime: EPOCH,
    ctime: EPOCH,
    atime: EPOCH,
    block: 0,
};

fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    /// Writes down numbers as bytes, each with its length.
    fn bytes(numbers: &[(usize, u64)]) -> Vec<u8> {
        let bytes = |(length, number): &(usize, u64)| match length {
            4 => u32::try_from(*number).unwrap().to_ne_bytes().to_vec(),
            _ => number.to_ne_bytes().to_vec(),
        };
        numbers.iter().flat_map(bytes).collect()
    }

    const ATTR: Attr = Attr {
        ino: 1 << 40,
        kind: FileKind::File,
        mode: 0o640,
        links: 2,
        uid: 1000,
        gid: 100,
        size: 1025,
        mtime: Timestamp { seconds: -2, nanoseconds: 5 },
        ctime: Timestamp { seconds: 30, nanoseconds: 6 },
        atime: Timestamp { seconds: 10, nanoseconds: 4 },
        block: 4096,
    };

    fn attr_bytes() -> Vec<u8> {
        let long = [1 << 40, 1025, 3, 10, (-2_i64).cast_unsigned(), 30].map(|number| (8, number));
        let short = [4, 5, 6, 0o100_640, 2, 1000, 100, 0, 4096, 0].map(|number| (4, number));
        bytes(&[long.as_slice(), short.as_slice()].concat())
    }

    fn written(write: impl FnOnce(&mut Payload<'_>) -> bool) -> Vec<u8> {
        let mut buffer = [0xff; 512];
        let mut payload = Payload::new(&mut buffer);
        assert!(write(&mut payload));
        let nbytes = payload.nbytes();
        buffer[..nbytes].to_vec()
    }

    #[test]
    fn answers_have_the_layout_of_the_kernels_header() {
        let valid = Duration::new(3, 7);
        let before = bytes(&[(8, 3), (4, 7), (4, 0)]);
        assert_eq!(written(|out| out.attr_out(&ATTR, valid)), [before, attr_bytes()].concat());

        let named = Named { attr: Some(ATTR), generation: 9, valid };
        let before = bytes(&[(8, 1 << 40), (8, 9), (8, 3), (8, 3), (4, 7), (4, 7)]);
        let entry = [before, attr_bytes()].concat();
        assert_eq!(entry.len(), 128);
        assert_eq!(written(|out| out.entry_out(&named)), entry);

        let opened = OpenFile { handle: 8, flags: fuser::FopenFlags::FOPEN_KEEP_CACHE };
        let golden = bytes(&[(8, 8), (4, 2), (4, 0)]);
        assert_eq!(written(|out| out.open_out(&opened)), golden);

        let golden = [bytes(&[(8, 5), (8, 6), (4, 3), (4, 8)]), b"c.0\0\0\0\0\0".to_vec()].concat();
        let dirent = |out: &mut Payload<'_>| out.dirent(|_| true, (5, 6), FileKind::File, b"c.0");
        assert_eq!(written(dirent), golden);
    }

    #[test]
    fn a_negative_entry_has_inode_number_zero() {
        let named = Named { attr: None, generation: 0, valid: Duration::from_secs(1) };
        let entry = written(|out| out.entry_out(&named));
        assert_eq!(entry.len(), 128);
        assert_eq!(u64_at(&entry, 0), 0);
        assert_eq!(u64_at(&entry, 16), 1);
    }

    #[test]
    fn an_entry_without_room_leaves_nothing() {
        let mut buffer = [0; 70];
        let mut payload = Payload::new(&mut buffer);
        let add = |payload: &mut Payload<'_>| {
            payload.dirent(|_| true, (1, 2), FileKind::Directory, b"12345678")
        };
        assert!(add(&mut payload));
        assert!(add(&mut payload));
        assert!(!add(&mut payload));
        assert_eq!(payload.nbytes(), 64);
    }

    #[test]
    fn a_request_is_read_from_the_header_of_an_entry() {
        let mut header = [0; HEADER_NBYTES];
        let request = [(4, 100), (4, 15), (8, 77), (8, 1 << 60), (4, 1000), (4, 100), (4, 4242)];
        let request = bytes(&request);
        header[..request.len()].copy_from_slice(&request);
        let read = bytes(&[(8, 3), (8, 65_536), (4, 4096)]);
        header[128..128 + read.len()].copy_from_slice(&read);
        let entry = bytes(&[(8, 0), (8, 78), (4, 512)]);
        header[256..256 + entry.len()].copy_from_slice(&entry);

        let call = Call::decode(&header);
        assert_eq!((call.opcode, call.unique, call.ino), (15, 77, 1 << 60));
        assert_eq!((call.commit_id, call.nbytes), (78, 512));
        assert_eq!((call.u64(0), call.u64(8), call.u32(16)), (3, 65_536, 4096));
        let caller = Caller { uid: 1000, gid: 100, pid: 4242, umask: 0o22 };
        assert_eq!(format!("{:?}", call.caller(0o22)), format!("{caller:?}"));
        // Behind the end of the operation's header.
        assert_eq!((call.u32(125), call.u64(200)), (0, 0));
    }

    #[test]
    fn an_outcome_is_a_length_or_a_negative_error() {
        let mut header = [0xff; HEADER_NBYTES];
        encode_outcome(&mut header, 77, Ok(512));
        assert_eq!((u32_at(&header, 0), u32_at(&header, 4), u64_at(&header, 8)), (528, 0, 77));
        assert_eq!(u32_at(&header, 272), 512);
        encode_outcome(&mut header, 78, Err(libc::ENOENT));
        assert_eq!(u32_at(&header, 4).cast_signed(), -libc::ENOENT);
        assert_eq!((u32_at(&header, 0), u64_at(&header, 8), u32_at(&header, 272)), (16, 78, 0));
    }
}
