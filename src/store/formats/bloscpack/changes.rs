//! Changes to a Bloscpack file: which chunks it can take, and what is stored of them.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use super::file::{Head, head};
use crate::format::blosc::BLOSC_BYTES;
use crate::format::chunk_error::Refusal;
use crate::format::index::ByteRange;
use crate::format::plan::bloscpack::{NewChunk, OldFile, plan, refused};
use crate::format::plan::{Blob, Piece, Source};
use crate::format::sharding::Location;
use crate::memory::zeroed;
use crate::store::blob::bytes_of;
use crate::store::content::Content;
use crate::store::error::{Damage, StoreError, io_error};
use crate::store::formats::blosc_buffer::{decoded, header};
use crate::store::formats::file_state::FileState;
use crate::store::formats::shard_format::{Accepted, Change, ChangedShard};
use crate::store::loaded::LoadedShard;
use crate::store::storage::StorageFile;

/// Existing state of a file.
struct Existing {
    head: Head,
    chunks: BTreeMap<u64, ByteRange>,
    nchunks: u64,
    last_decoded: Option<u32>,
    size: u64,
}

/// Examines changes to the file of an array.
pub(super) fn accept<'a>(
    shard: &ChangedShard<'a>,
    changes: Vec<Change<'a>>,
) -> Result<Accepted<'a>, StoreError> {
    let Some((loaded, file)) = shard.old else {
        // The mounted file is gone.
        return Err(StoreError::Changing { shard: shard.path.to_owned() });
    };
    let existing = Existing::read(shard, loaded, file)?;
    let (decoded, mut unfit) = only_buffers(shard.path, &changes)?;
    let no_buffers: HashSet<usize> = unfit.iter().map(|(at, _)| *at).collect();
    let misplaced = refused(&existing.as_planned(), &decoded);
    let mut new = BTreeMap::new();
    for change in changes.iter().filter(|change| !no_buffers.contains(&change.at)) {
        let number = number(change.location);
        if let Some(why) = misplaced.get(&number) {
            unfit.push((change.at, *why));
            continue;
        }
        let Some((content, &decoded)) = change.content.zip(decoded.get(&number)) else { continue };
        let stored = existing.stored(change.at, content).map_err(io_error(shard.path))?;
        new.insert(number, NewChunk { decoded, stored });
    }
    let plan = move |policy, facts| plan(&existing.as_planned(), &new, policy, facts);
    Ok(Accepted { refused: unfit, plan: Box::new(plan) })
}

impl Existing {
    /// Reads the state of a loaded file.
    fn read(
        shard: &ChangedShard<'_>,
        loaded: &LoadedShard,
        file: &dyn StorageFile,
    ) -> Result<Self, StoreError> {
        let path = shard.path;
        let size = loaded.stat().size;
        let head = head(&FileState::now(file, size)).map_err(io_error(path))?;
        let head = head.map_err(|error| StoreError::Damaged {
            shard: path.to_owned(),
            damage: Damage::from(error).into(),
        })?;
        let (chunks, refused) = loaded.numbered().map_err(|error| shard.no_plan(error))?;
        let last = chunks.keys().chain(&refused).max();
        let found = last.map_or(0, |last| last + 1);
        let nchunks = head.header.nchunks.unwrap_or(found);
        let last = nchunks.checked_sub(1).and_then(|last| chunks.get(&last));
        let decoded = |range: &ByteRange| {
            let range = ByteRange { offset: range.offset, nbytes: BLOSC_BYTES as u64 };
            Ok(header(&bytes_of(file, range)?).map(|blosc| blosc.decoded))
        };
        let last_decoded = last.map(decoded).transpose().map_err(io_error(path))?.flatten();
        Ok(Self { head, chunks, nchunks, last_decoded, size })
    }

    fn as_planned(&self) -> OldFile<'_> {
        OldFile {
            header: &self.head.header,
            offsets: self.head.offsets,
            body: self.head.body,
            chunks: &self.chunks,
            nchunks: self.nchunks,
            last_decoded: self.last_decoded,
            size: self.size,
        }
    }

    /// Returns what is stored of a chunk: the Blosc buffer, followed by its checksum.
    fn stored(&self, at: usize, content: &Content) -> io::Result<Blob> {
        let digest = self.head.header.digest;
        let mut stored = Blob::of(content.nbytes(), Source::Staged(at));
        if digest.nbytes() > 0 {
            let checksum = digest.of(&bytes(content)?);
            let (nbytes, from) = (checksum.len() as u64, Source::Bytes(checksum.into()));
            stored.nbytes += nbytes;
            stored.pieces.push(Piece { nbytes, from });
        }
        Ok(stored)
    }
}

/// Chunks that cannot be stored, by their number in the commit, with the reason.
type Refused = Vec<(usize, Refusal)>;

/// Returns the decoded lengths of new chunks in bytes, by chunk number, and the changes that are
/// none to a Blosc buffer.
fn only_buffers(
    path: &Path,
    changes: &[Change<'_>],
) -> Result<(BTreeMap<u64, u32>, Refused), StoreError> {
    let (mut all, mut refused) = (BTreeMap::new(), Refused::new());
    for change in changes {
        let found = match change.content {
            None => Err(Refusal::NotRemovable),
            Some(content) => decoded(content).map_err(io_error(path))?,
        };
        match found {
            Ok(decoded) => drop(all.insert(number(change.location), decoded)),
            Err(why) => refused.push((change.at, why)),
        }
    }
    Ok((all, refused))
}

/// Returns the number of a chunk in its file, which has one dimension.
fn number(location: &Location) -> u64 {
    location.positions.first().and_then(|position| position.first()).copied().unwrap_or(0)
}

fn bytes(content: &Content) -> io::Result<Vec<u8>> {
    // The content is a Blosc buffer, so it is below 2 GiB.
    let mut bytes = zeroed(content.nbytes())?;
    let read = content.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
