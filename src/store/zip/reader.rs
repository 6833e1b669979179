//! An archive as `rawzip` reads it, and what can be wrong with it.

use std::io;
use std::sync::Arc;

use rawzip::ReaderAt;

use crate::store::storage::StorageFile;

/// Maximum number of entries: about 80 bytes and its name are in memory for each.
pub(super) const MAX_ENTRIES: u64 = 1 << 24;

/// Error opening an archive.
#[derive(Debug, thiserror::Error)]
pub enum ZipError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no archive, or a damaged one.
    #[error("it is no ZIP archive that can be read: {0}")]
    Damaged(String),
    /// An entry would be outside of the directory that the archive is shown as.
    #[error(
        "its entry {0:?} leads out of the archive, or has a name that no file in it can have: it is not opened"
    )]
    LeadsOut(String),
    /// Its end says another number of entries than there are.
    #[error("its directory has {found} entries, its end says {expected}: it is damaged")]
    Count {
        /// Number of entries.
        found: u64,
        /// Number by the end of the archive.
        expected: u64,
    },
    /// It has more entries than the limit.
    #[error("it has {0} entries, the limit is {MAX_ENTRIES}")]
    TooMany(u64),
}

impl From<rawzip::Error> for ZipError {
    fn from(error: rawzip::Error) -> Self {
        match error.kind() {
            rawzip::ErrorKind::IO(inner) => match inner.raw_os_error() {
                Some(number) => Self::Io(io::Error::from_raw_os_error(number)),
                None => Self::Damaged(error.to_string()),
            },
            _ => Self::Damaged(error.to_string()),
        }
    }
}

impl From<ZipError> for io::Error {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::Io(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// File whose parts `rawzip` reads.
pub(super) struct Reader(pub(super) Arc<dyn StorageFile>);

impl ReaderAt for Reader {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
}
