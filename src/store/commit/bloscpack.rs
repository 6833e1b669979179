//! What a commit to a Bloscpack file does besides: it looks into the chunks, which are Blosc buffers,
//! and adds their checksums.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::{Commit, Old};
use crate::format::bloscpack::{BLOSC_BYTES, BloscHeader};
use crate::format::index::ByteRange;
use crate::format::plan::bloscpack::{NewChunk, OldFile, refused};
use crate::format::plan::{Blob, Piece, Source};
use crate::format::sharding::Location;
use crate::store::blob::bytes_of;
use crate::store::bloscpack::{Head, View, head};
use crate::store::content::Content;
use crate::store::shard::LoadedShard;
use crate::store::{Damage, ShardStore, SourceArray, StoreError, io_error};

/// A Bloscpack file as it is.
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
            chunks: self.chunks.clone(),
            nchunks: self.nchunks,
            last_decoded: self.last_decoded,
            size: self.size,
        }
    }
}

impl Commit<'_> {
    /// A loaded file, as its planner sees it.
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

    /// Leaves chunks out that have no place in the file.
    pub(super) fn refuse(
        &mut self,
        path: &Path,
        file: &BloscpackFile,
        members: &mut Vec<(usize, Location)>,
    ) -> Result<(), StoreError> {
        let mut why: HashMap<usize, &'static str> = HashMap::new();
        let mut decoded = BTreeMap::new();
        for (at, location) in &*members {
            match self.decoded(*at, path)? {
                Ok(nbytes) => drop(decoded.insert(number(location), nbytes)),
                Err(defect) => drop(why.insert(*at, defect)),
            }
        }
        let refused = refused(&file.as_planned(), &decoded);
        members.retain(|(at, location)| {
            let Some(why) = why.get(at).or_else(|| refused.get(&number(location))) else {
                return true;
            };
            let position = location.positions.concat();
            self.fail(&[*at], StoreError::Refused { shard: path.to_owned(), position, why });
            false
        });
        Ok(())
    }

    /// Bytes of a staged chunk before compression, or what is wrong with it.
    fn decoded(&self, at: usize, path: &Path) -> Result<Result<u32, &'static str>, StoreError> {
        match &self.chunks[at].content {
            None => Ok(Err("chunks of this format cannot be removed")),
            Some(content) => decoded(content).map_err(io_error(path)),
        }
    }

    /// The changes to a file.
    pub(super) fn buffers(
        &self,
        path: &Path,
        file: &BloscpackFile,
        members: &[(usize, &Location)],
    ) -> Result<BTreeMap<u64, NewChunk>, StoreError> {
        let digest = file.head.header.digest;
        let mut changes = BTreeMap::new();
        for (at, location) in members {
            // Those without a proper header were left out.
            let Some(content) = &self.chunks[*at].content else { continue };
            let Ok(decoded) = self.decoded(*at, path)? else { continue };
            let mut stored = Blob::of(content.nbytes(), Source::Staged(*at));
            if digest.nbytes() > 0 {
                let checksum = digest.of(&bytes(content).map_err(io_error(path))?);
                stored.nbytes += checksum.len() as u64;
                let (nbytes, from) = (checksum.len() as u64, Source::Bytes(checksum.into()));
                stored.pieces.push(Piece { nbytes, from });
            }
            changes.insert(number(location), NewChunk { decoded, stored });
        }
        Ok(changes)
    }
}

impl ShardStore {
    /// Whether some bytes can be a chunk of an array, as far as they tell themselves.
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

/// Number of a chunk in its file, which has one dimension.
fn number(location: &Location) -> u64 {
    location.positions.first().and_then(|position| position.first()).copied().unwrap_or(0)
}

/// Bytes of a Blosc buffer before compression, or why it is none.
fn decoded(content: &Content) -> std::io::Result<Result<u32, &'static str>> {
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
    // It is a Blosc buffer: below 2 GiB.
    let mut bytes = vec![0; usize::try_from(content.nbytes()).unwrap_or(0)];
    let read = content.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
