//! Bytes of a chunk that waits for its commit: in memory, or beyond a limit in a file.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::number::to_usize;

use super::spool::SpoolFile;

/// Immutable bytes.
#[derive(Debug, Clone)]
pub enum Content {
    /// Bytes in memory.
    Memory(Arc<Vec<u8>>),
    /// Bytes in a spool file.
    File {
        /// The file.
        file: Arc<SpoolFile>,
        /// Length in bytes.
        nbytes: u64,
    },
}

impl Content {
    /// Returns the length in bytes.
    pub fn nbytes(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { nbytes, .. } => *nbytes,
        }
    }

    /// Reads at `offset` and returns the number of bytes; fewer than asked for only at the end.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = to_usize(self.nbytes().saturating_sub(offset));
        let length = buffer.len().min(left);
        match self {
            Self::Memory(bytes) => {
                // At or before the end of bytes in memory.
                let at = to_usize(offset).min(bytes.len());
                buffer[..length].copy_from_slice(&bytes[at..at + length]);
            }
            Self::File { file, .. } => {
                file.file().read_exact_at(&mut buffer[..length], offset)?;
            }
        }
        Ok(length)
    }
}
