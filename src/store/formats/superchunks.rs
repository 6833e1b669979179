//! Numbered files of BLZ and bcolz arrays ([`crate::format::superchunks`]): one chunk each, as
//! their programs write them, or Bloscpack files with the same number of chunks each, as in the
//! design document.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file_state::FileState;
use super::found_chunks::{self, Contents, FoundChunks};
use super::length::Length;
use super::shard_format::{Accepted, Change, ChangedShard, Framing, Reading, ShardFormat};
use super::{blosc_buffer, bloscpack};
use crate::format::blosc::{BLOSC_BYTES, BloscHeader};
use crate::format::bloscpack::{
    BloscpackError, Part, SUPERCHUNK_BYTES, parse_superchunk, superchunk_header,
};
use crate::format::chunk_error::Refusal;
use crate::format::chunk_key::number;
use crate::format::digest::Digest;
use crate::format::index::ByteRange;
use crate::format::plan::{Blob, Piece, Source};
use crate::format::sharding::ShardedArray;
use crate::format::superchunks::Extent;
use crate::store::content::Content;
use crate::store::error::{Damage, StoreError};
use crate::store::loaded::Ready;
use crate::store::storage::Storage;

/// Directory of the files of an array.
pub const FILES: &str = "data";
/// Document of an array that records its length.
pub const SIZES: &str = "meta/sizes";
/// Document that describes how an array is stored.
pub const STORAGE: &str = "meta/storage";
/// Document with the array's attributes.
pub const ATTRIBUTES: &str = "__attrs__";
/// Document with the array's attributes, as named in the design document.
pub const ATTRIBUTES_TOO: &str = "meta/attributes";
/// Document of a table of bcolz, whose columns are arrays.
pub const ROOT_DIRECTORIES: &str = "__rootdirs__";
/// All documents of an array.
pub const DOCUMENTS: [&str; 4] = [SIZES, STORAGE, ATTRIBUTES, ATTRIBUTES_TOO];

/// Form of the numbered files of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `__0.blp` and so on, one chunk each, as written by BLZ and bcolz.
    Single,
    /// `__1__.bin` and so on, Bloscpack files with the same number of chunks each, as in the design
    /// document.
    Many,
}

impl Form {
    /// Returns the name of a file, numbered from 0.
    pub fn name(self, number: u64) -> String {
        match self {
            Self::Single => format!("__{number}.blp"),
            Self::Many => format!("__{}__.bin", number.saturating_add(1)),
        }
    }

    /// Returns the number in the name of a file. `None` if it is not such a name.
    fn number(self, name: &str) -> Option<u64> {
        let between = |before, after| number(name.strip_prefix(before)?.strip_suffix(after)?);
        match self {
            Self::Single => between("__", ".blp"),
            Self::Many => between("__", "__.bin")?.checked_sub(1),
        }
    }
}

/// Returns the format of the numbered files of an array in the directory `files`, relative to the
/// array's own; it is empty for a column of a table. `extent` is the length of the array when its
/// documents were read. If it `grows`, [`SIZES`] records its current length.
pub fn superchunks(
    files: &'static str,
    form: Form,
    extent: Extent,
    grows: bool,
) -> Arc<dyn ShardFormat> {
    Arc::new(Superchunks { files, form, extent, grows })
}

/// Numbered files of an array.
#[derive(Debug)]
struct Superchunks {
    files: &'static str,
    form: Form,
    extent: Extent,
    grows: bool,
}

impl ShardFormat for Superchunks {
    fn name(&self) -> &'static str {
        "superchunks"
    }

    fn shard_name(&self, _layout: &ShardedArray, shard: &[u64]) -> PathBuf {
        Path::new(self.files).join(self.form.name(shard.first().copied().unwrap_or(0)))
    }

    fn is_shard_name(&self, _layout: Option<&ShardedArray>, name: &str) -> bool {
        let below = Path::new(name).strip_prefix(self.files).ok().and_then(Path::to_str);
        let number = below.and_then(|name| self.form.number(name));
        let spelled = |number| Path::new(self.files).join(self.form.name(number));
        number.is_some_and(|number| spelled(number).as_os_str() == name)
    }

    fn hides(&self, name: &OsStr) -> bool {
        match self.files {
            // The files of a column lie in the column's own directory.
            "" => name.as_encoded_bytes().starts_with(b"__"),
            files => name == files,
        }
    }

    fn numbered_in(&self) -> Option<&Path> {
        Some(Path::new(self.files))
    }

    fn number_of(&self, name: &str) -> Option<u64> {
        self.form.number(name)
    }

    fn holds_blosc(&self) -> bool {
        true
    }

    fn is_writable(&self, _layout: &ShardedArray) -> bool {
        self.grows
    }

    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>> {
        let full = self.extent.row_bytes.and_then(|row| row.checked_mul(self.extent.chunklen));
        found_chunks::read(reading, |state| {
            let found = match self.form {
                Form::Single => chunk_of(state)?,
                Form::Many => bloscpack::chunks_of(state)?,
            };
            let with_full = |found: FoundChunks| FoundChunks { full: full.or(found.full), ..found };
            Ok(found.map(with_full).map_err(Damage::from))
        })
    }

    fn framing(&self, storage: &dyn Storage, path: &Path, nbytes: u64) -> io::Result<Framing> {
        match self.form {
            Form::Single => Ok(Framing { head: SUPERCHUNK_BYTES as u64, ..Framing::default() }),
            Form::Many => bloscpack::framing(&*storage.open(path)?, nbytes),
        }
    }

    fn length(
        &self,
        storage: &dyn Storage,
        directory: &Path,
    ) -> Result<Option<Length>, StoreError> {
        if !self.grows {
            return Ok(None);
        }
        let (sizes, head) = (Path::new(SIZES), SUPERCHUNK_BYTES as u64);
        Length::read(storage, directory, sizes, self.extent, head).map(Some)
    }

    fn check(&self, content: &Content) -> io::Result<Result<Option<u32>, Refusal>> {
        Ok(blosc_buffer::decoded(content)?.map(Some))
    }

    fn accept<'a>(
        &self,
        shard: &ChangedShard<'a>,
        changes: Vec<Change<'a>>,
    ) -> Result<Accepted<'a>, StoreError> {
        if !self.grows {
            let (shard, position) = (shard.path.to_owned(), vec![0; shard.coords.len()]);
            let why = Refusal::OnlyRead;
            return Err(StoreError::Refused { shard, position, why });
        }
        Ok(Accepted::of_single(&changes, |at, content| {
            let header = Source::Bytes(superchunk_header().into());
            let mut file = Blob::of(SUPERCHUNK_BYTES as u64, header);
            file.nbytes += content.nbytes();
            file.pieces.push(Piece { nbytes: content.nbytes(), from: Source::Staged(at) });
            file
        }))
    }
}

/// Locates the one chunk of a file.
fn chunk_of(state: &FileState<'_>) -> io::Result<Result<FoundChunks, BloscpackError>> {
    let first = state.read(0, SUPERCHUNK_BYTES + BLOSC_BYTES)?;
    if let Err(error) = parse_superchunk(&first, state.size()) {
        return Ok(Err(error));
    }
    let Some(bytes) = first[SUPERCHUNK_BYTES..].first_chunk::<BLOSC_BYTES>() else {
        return Ok(Err(BloscpackError::Beyond(Part::Chunk)));
    };
    let blosc = BloscHeader::parse(bytes);
    let range = ByteRange { offset: SUPERCHUNK_BYTES as u64, nbytes: blosc.nbytes.into() };
    let last_decoded = blosc.decoded.into();
    let mut contents = Contents { ranges: vec![range], last_decoded, ..Contents::default() };
    if let Some(defect) = blosc.defect(None) {
        contents.refused.insert(0, defect);
    }
    Ok(Ok(FoundChunks { contents, digest: Digest::None, full: None }))
}
