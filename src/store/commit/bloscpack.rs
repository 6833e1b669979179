//! Additional steps of a commit to a Bloscpack file: checking the chunks, which are Blosc buffers,
//! and adding their checksums.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Commit, Old};
use crate::format::bloscpack::{BLOSC_BYTES, BloscHeader};
use crate::format::index::ByteRange;
use crate::format::plan::bloscpack::{NewChunk, OldFile, refused};
use crate::format::plan::{Blob, Piece, Source};
use crate::format::sharding::Location;
use crate::memory::zeroed;
use crate::store::blob::bytes_of;
use crate::store::bloscpack::{Head, View, head};
use crate::store::content::Content;
use crate::store::shard::LoadedShard;
use crate::store::{Damage, ShardStore, SourceArray, StoreError, io_error};

/// Existing state of a Bloscpack file.
pub(super) struct BloscpackFile {
    head: Head,
    chunks: BTreeMap<u64, ByteRange>,
    nchunks: u64,
    last_decoded: Option<u32>,
    size: u64,
}

impl BloscpackFile {
    pub(super) fn as_planned(&self) -> OldFile<'_> {
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
}

impl Commit<'_> {
    /// Returns a loaded file in the form that its planner takes.
    pub(super) fn bloscpack_file(
        &self,
        path: &Path,
        loaded: &LoadedShard,
        old: &Old,
    ) -> Result<BloscpackFile, StoreError> {
        let size = old.stat.size;
        let head = head(&View::now(&*old.file, size)).map_err(io_error(path))?;
        let head = head.map_err(|error| StoreError::Damaged {
            shard: path.to_owned(),
            damage: Damage::from(error).into(),
        })?;
        let (chunks, refused) = loaded.numbered().map_err(|error| self.no_plan(&[], error))?;
        let last = chunks.keys().chain(&refused).max();
        let found = last.map_or(0, |last| last + 1);
        let nchunks = head.header.nchunks.unwrap_or(found);
        let last = nchunks.checked_sub(1).and_then(|last| chunks.get(&last));
        let blosc = |range: &ByteRange| {
            let range = ByteRange { offset: range.offset, nbytes: BLOSC_BYTES as u64 };
            Ok(blosc_header(&bytes_of(&*old.file, range)?).map(|blosc| blosc.decoded))
        };
        let last_decoded = last.map(blosc).transpose().map_err(io_error(path))?.flatten();
        Ok(BloscpackFile { head, chunks, nchunks, last_decoded, size })
    }

    /// Returns the changes to a file. Chunks that have no place in it are removed from `members`.
    pub(super) fn bloscpack_changes(
        &mut self,
        path: &Path,
        file: &BloscpackFile,
        members: &mut Vec<(usize, Location)>,
    ) -> Result<BTreeMap<u64, NewChunk>, StoreError> {
        let decoded = self.only_buffers(path, members)?;
        let numbered = members.iter().zip(decoded).map(|((_, at), decoded)| (number(at), decoded));
        let refused = refused(&file.as_planned(), &numbered.clone().collect());
        let decoded: BTreeMap<u64, u32> = numbered.collect();
        self.leave_out(path, members, |location, _| refused.get(&number(location)).copied());
        let digest = file.head.header.digest;
        let mut changes = BTreeMap::new();
        for (at, location) in &*members {
            let Some(content) = &self.chunks[*at].content else { continue };
            let Some(&decoded) = decoded.get(&number(location)) else { continue };
            let mut stored = Blob::of(content.nbytes(), Source::Staged(*at));
            if digest.nbytes() > 0 {
                let checksum = digest.of(&bytes(content).map_err(io_error(path))?);
                let (nbytes, from) = (checksum.len() as u64, Source::Bytes(checksum.into()));
                stored.nbytes += nbytes;
                stored.pieces.push(Piece { nbytes, from });
            }
            changes.insert(number(location), NewChunk { decoded, stored });
        }
        Ok(changes)
    }

    /// Removes chunks that are not Blosc buffers from `members`. Returns the decoded lengths of the
    /// others, in bytes.
    fn only_buffers(
        &mut self,
        path: &Path,
        members: &mut Vec<(usize, Location)>,
    ) -> Result<Vec<u32>, StoreError> {
        let mut all = Vec::new();
        for (at, _) in &*members {
            all.push(match &self.chunks[*at].content {
                None => Err("chunks of this format cannot be removed"),
                Some(content) => decoded(content).map_err(io_error(path))?,
            });
        }
        self.leave_out(path, members, |_, at| all.get(at).and_then(|decoded| decoded.err()));
        Ok(all.into_iter().flatten().collect())
    }

    /// Removes the members for which `why` returns a reason, and fails them; `why` is called with
    /// their index in the list, too.
    fn leave_out(
        &mut self,
        path: &Path,
        members: &mut Vec<(usize, Location)>,
        why: impl Fn(&Location, usize) -> Option<&'static str>,
    ) {
        let mut place = 0..;
        members.retain(|(at, location)| {
            let Some(why) = why(location, place.next().unwrap_or(usize::MAX)) else { return true };
            let position = location.positions.concat();
            self.fail(&[*at], StoreError::Refused { shard: path.to_owned(), position, why });
            false
        });
    }
}

impl ShardStore {
    /// Checks that some bytes can be a chunk of an array, as far as the bytes alone show.
    ///
    /// # Errors
    /// The reason why they cannot, or an I/O error.
    pub fn check_chunk(
        array: &SourceArray,
        coords: &[u64],
        content: &Content,
    ) -> Result<(), StoreError> {
        if Self::has_holes(array) {
            return Ok(());
        }
        let location = array.layout.locate(coords);
        let shard = array.shard_path(&location.shard);
        match decoded(content).map_err(io_error(&shard))? {
            Ok(_) => Ok(()),
            Err(why) => {
                let position = location.positions.concat();
                Err(StoreError::Refused { shard, position, why })
            }
        }
    }
}

/// Returns the number of a chunk in its file, which has one dimension.
fn number(location: &Location) -> u64 {
    location.positions.first().and_then(|position| position.first()).copied().unwrap_or(0)
}

/// Returns the decoded length of a Blosc buffer in bytes, or the reason why the content is no Blosc
/// buffer.
pub(super) fn decoded(content: &Content) -> std::io::Result<Result<u32, &'static str>> {
    let mut start = [0; BLOSC_BYTES];
    let read = content.read_at(&mut start, 0)?;
    let blosc =
        blosc_header(&start[..read]).filter(|blosc| content.nbytes() == u64::from(blosc.nbytes));
    Ok(blosc
        .map(|blosc| blosc.decoded)
        .ok_or("it is not a Blosc buffer with as many bytes as its header says"))
}

fn blosc_header(bytes: &[u8]) -> Option<BloscHeader> {
    let blosc = BloscHeader::parse(bytes.first_chunk()?);
    blosc.defect(None).is_none().then_some(blosc)
}

fn bytes(content: &Content) -> std::io::Result<Vec<u8>> {
    // The content is a Blosc buffer, so it is below 2 GiB.
    let mut bytes = zeroed(content.nbytes())?;
    let read = content.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
