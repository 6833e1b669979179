//! An entry of an archive, and the file that it is.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flate2::Crc;
use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, EntryFlags, ZipArchive, ZipArchiveEntryWayfinder};

use super::reader::{Reader, ZipError};
use crate::format::index::ByteRange;
use crate::memory::{ROOM, zeroed};
use crate::number::to_usize;
use crate::store::storage::{Stat, StorageFile};

/// Maximum length of a deflated entry in bytes, before compression.
const MAX_INFLATED: u64 = 256 << 20;

/// Maximum length of the parts of an entry's own header that have no fixed length, in bytes.
const LOCAL_BYTES: usize = 2 * u16::MAX as usize;

/// Length of an entry in bytes, before compression, up to which it is in memory while it is open; longer ones are in a
/// temporary file without a name. Hundreds may be open at a time.
const IN_MEMORY: u64 = 1 << 20;

/// Entry of the central directory.
pub(super) struct Entry {
    pub(super) method: Method,
    /// CRC-32 of its bytes.
    pub(super) checksum: u32,
    pub(super) way: ZipArchiveEntryWayfinder,
}

/// How an entry is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Stored,
    Deflated,
    /// In a way that is not read here: its number, or that of encryption.
    Other(u16),
    Encrypted,
}

impl Method {
    pub(super) fn of(method: CompressionMethod, flags: EntryFlags) -> Self {
        match method {
            _ if flags.is_encrypted() => Self::Encrypted,
            CompressionMethod::STORE => Self::Stored,
            CompressionMethod::DEFLATE => Self::Deflated,
            other => Self::Other(other.as_u16()),
        }
    }
}

/// Reason why an entry cannot be read.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("it is encrypted")]
    Encrypted,
    #[error("it is compressed by method {0}; stored and deflated entries are read")]
    Method(u16),
    #[error("it is stored with {stored} bytes, and said to have {size}")]
    Length { stored: u64, size: u64 },
    #[error("it would end beyond the entries of the archive")]
    Beyond,
    #[error("where it should be, another entry is")]
    OtherName,
    #[error("it has {0} bytes; deflated ones are read with at most {MAX_INFLATED}")]
    TooLong(u64),
    #[error("it is damaged: it cannot be inflated to the {0} bytes that it is said to have")]
    Inflate(u64),
    #[error("its checksum is {found:08x}, stored is {stored:08x}")]
    Checksum { found: u32, stored: u32 },
}

impl From<EntryError> for io::Error {
    fn from(error: EntryError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

impl Entry {
    /// Opens the file that the entry is, whose name and attributes are given. `whole` are those of the archive.
    pub(super) fn open(
        &self,
        archive: &ZipArchive<Reader>,
        whole: &Stat,
        (name, stat): (&[u8], Stat),
    ) -> io::Result<Arc<dyn StorageFile>> {
        let entry = archive.get_entry(self.way).map_err(ZipError::from)?;
        let (first, end) = entry.compressed_data_range();
        // What is stored has no checksum that could be compared: its own header says what it is.
        let mut buffer = vec![0; LOCAL_BYTES];
        let own = entry.local_header(&mut buffer).map_err(ZipError::from)?;
        if own.file_path().as_bytes() != name {
            return Err(EntryError::OtherName.into());
        }
        if end > archive.directory_offset().min(whole.size) {
            return Err(EntryError::Beyond.into());
        }
        let range = ByteRange { offset: first, nbytes: end.saturating_sub(first) };
        let file = &archive.get_ref().0;
        match self.method {
            Method::Stored if range.nbytes != stat.size => {
                Err(EntryError::Length { stored: range.nbytes, size: stat.size }.into())
            }
            Method::Stored => {
                let (file, whole) = (Arc::clone(file), *whole);
                Ok(Arc::new(StoredEntry { file, range, whole, stat }))
            }
            Method::Deflated => {
                let bytes = self.inflate(&**file, range, stat.size)?;
                let bytes = Inflated::keep(bytes)?;
                Ok(Arc::new(InflatedEntry { bytes, stat }))
            }
            Method::Other(method) => Err(EntryError::Method(method).into()),
            Method::Encrypted => Err(EntryError::Encrypted.into()),
        }
    }

    fn inflate(&self, file: &dyn StorageFile, range: ByteRange, size: u64) -> io::Result<Vec<u8>> {
        if size > MAX_INFLATED || range.nbytes > MAX_INFLATED {
            return Err(EntryError::TooLong(size.max(range.nbytes)).into());
        }
        let _room = ROOM.take(size.saturating_add(range.nbytes))?;
        let mut deflated = zeroed(range.nbytes)?;
        let read = file.read_at(&mut deflated, range.offset)?;
        let mut bytes = zeroed(size)?;
        let mut decoder = DeflateDecoder::new(&deflated[..read]);
        let inflated = decoder.read_exact(&mut bytes).is_ok();
        // A bomb has more than it says.
        let is_all = matches!(decoder.read(&mut [0]), Ok(0));
        if !inflated || !is_all {
            return Err(EntryError::Inflate(size).into());
        }
        let mut checksum = Crc::new();
        checksum.update(&bytes);
        let (found, stored) = (checksum.sum(), self.checksum);
        if found == stored { Ok(bytes) } else { Err(EntryError::Checksum { found, stored }.into()) }
    }
}

/// Range of the archive.
struct StoredEntry {
    file: Arc<dyn StorageFile>,
    range: ByteRange,
    /// Attributes of the archive when it was opened.
    whole: Stat,
    stat: Stat,
}

impl StoredEntry {
    /// Returns the part of a range that is in the entry, in the archive.
    fn within(&self, offset: u64, nbytes: u64) -> ByteRange {
        let offset = offset.min(self.range.nbytes);
        let nbytes = nbytes.min(self.range.nbytes - offset);
        ByteRange { offset: self.range.offset.saturating_add(offset), nbytes }
    }
}

impl StorageFile for StoredEntry {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let part = self.within(offset, buffer.len() as u64);
        let read = self.file.read_at(&mut buffer[..to_usize(part.nbytes)], part.offset)?;
        self.stat().map(|_| read)
    }

    fn read_within(&self, buffer: &mut [u8], offset: u64, within: ByteRange) -> io::Result<usize> {
        let part = self.within(offset, buffer.len() as u64);
        let within = self.within(within.offset, within.nbytes);
        let buffer = &mut buffer[..to_usize(part.nbytes)];
        let read = self.file.read_within(buffer, part.offset, within)?;
        self.stat().map(|_| read)
    }

    fn fetch_ahead(&self, ranges: &[ByteRange]) {
        let ranges: Vec<ByteRange> =
            ranges.iter().map(|range| self.within(range.offset, range.nbytes)).collect();
        self.file.fetch_ahead(&ranges);
    }

    /// Fails with ESTALE if the archive was changed: what is in this range is no longer the entry then.
    fn stat(&self) -> io::Result<Stat> {
        match is_same(&self.file.stat()?, &self.whole) {
            true => Ok(self.stat),
            false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        }
    }
}

/// Returns whether an archive has the contents that it had. Its ctime says nothing: that changes when another file gets its
/// name, and this one goes on to be read.
pub(super) fn is_same(now: &Stat, before: &Stat) -> bool {
    let contents = |stat: &Stat| (stat.id(), stat.size, stat.mtime);
    contents(now) == contents(before)
}

/// Bytes of an entry that was inflated.
enum Inflated {
    Here(Vec<u8>),
    InFile(File),
}

impl Inflated {
    fn keep(bytes: Vec<u8>) -> io::Result<Self> {
        if bytes.len() as u64 <= IN_MEMORY {
            return Ok(Self::Here(bytes));
        }
        let mut file = tempfile::tempfile()?;
        file.write_all(&bytes)?;
        Ok(Self::InFile(file))
    }
}

/// Entry that was inflated.
struct InflatedEntry {
    bytes: Inflated,
    stat: Stat,
}

impl StorageFile for InflatedEntry {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = match &self.bytes {
            Inflated::Here(bytes) => bytes,
            Inflated::InFile(file) => return file.read_at(buffer, offset),
        };
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(self.stat)
    }
}
