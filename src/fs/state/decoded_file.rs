//! A decoded chunk as a file of items.

use std::ops::Range;
use std::sync::Arc;

use crate::format::decoded::DecodedForm;
use crate::fs::form::Form;
use crate::fs::node::ArrayView;
use crate::number::to_usize;
use crate::store::decoded::DecodedChunk;
use crate::store::storage::Version;

/// File of a decoded chunk, as it was when it was opened.
pub(in crate::fs) struct DecodedFile {
    pub(in crate::fs) header: Vec<u8>,
    pub(in crate::fs) items: Items,
    /// Version of the shard from which the items were decoded; `None` if the chunk does not exist.
    pub(in crate::fs) shard: Option<Version>,
}

pub(in crate::fs) enum Items {
    /// Those of the whole chunk, shared with the cache.
    Whole(Arc<DecodedChunk>),
    /// Clipped, reordered or generated items.
    Made(Vec<u8>),
}

impl DecodedFile {
    pub(in crate::fs) fn items(&self) -> &[u8] {
        match &self.items {
            Items::Whole(chunk) => (**chunk).as_ref(),
            Items::Made(items) => items,
        }
    }

    /// Reads from `offset` into `buffer`; returns the number of bytes read.
    pub(in crate::fs) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let offset = to_usize(offset);
        let mut done = 0;
        let mut start = 0;
        for part in [&self.header, self.items()] {
            let from = (offset + done).saturating_sub(start);
            if let Some(rest) = part.get(from..) {
                let length = rest.len().min(buffer.len() - done);
                buffer[done..done + length].copy_from_slice(&rest[..length]);
                done += length;
            }
            start += part.len();
        }
        done
    }

    /// Returns the result of a read at `offset` without copying it; `None` if part of it is not in
    /// the chunk as it was decoded.
    pub(in crate::fs) fn shared(&self, offset: u64, length: usize) -> Option<SharedItems> {
        let Items::Whole(chunk) = &self.items else { return None };
        let start = to_usize(offset).checked_sub(self.header.len())?;
        let all = (**chunk).as_ref().len();
        let range = start.min(all)..start.saturating_add(length).min(all);
        Some(SharedItems { chunk: Arc::clone(chunk), range })
    }

    /// Returns the whole file.
    pub(in crate::fs) fn to_vec(&self) -> Vec<u8> {
        [&self.header, self.items()].concat()
    }
}

/// Items of a decoded chunk, shared with its other holders.
pub struct SharedItems {
    pub(in crate::fs) chunk: Arc<DecodedChunk>,
    pub(in crate::fs) range: Range<usize>,
}

impl AsRef<[u8]> for SharedItems {
    fn as_ref(&self) -> &[u8] {
        &(*self.chunk).as_ref()[self.range.clone()]
    }
}

impl ArrayView {
    /// Returns how chunk files are made of decoded chunks; `None` in a view that does not decode.
    pub(in crate::fs) fn decoded_form(&self) -> Option<&DecodedForm> {
        match &self.form {
            Form::Decoded(form) => Some(form),
            Form::Encoded | Form::Filled(_) | Form::Flat(_) => None,
        }
    }

    /// Returns the length in bytes of a chunk's file, given the length `nbytes` of the encoded
    /// chunk.
    pub(in crate::fs) fn file_nbytes(&self, coords: &[u64], nbytes: u64) -> u64 {
        self.decoded_form().map_or(nbytes, |form| form.nbytes(coords))
    }
}
