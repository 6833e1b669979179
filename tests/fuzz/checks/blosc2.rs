//! Frames of Blosc2: whatever is in the file, its chunks are within it, and decode to as many bytes as they say or to an
//! error.

use std::io;

use serde_json::Map;
use shardfs::format::blosc2::{ChunkPlace, FrameHeader};
use shardfs::format::foreign;
use shardfs::format::index::ByteRange;
use shardfs::format::pipeline::Pipeline;
use shardfs::store::formats::blosc2::{frame, metadata};
use shardfs::store::formats::file_state::FileState;
use shardfs::store::storage::{Stat, StorageFile};

/// Decoded length of the chunks that are decoded, in bytes.
const LONGEST: usize = 1 << 20;

struct File<'a>(&'a [u8]);

impl StorageFile for File<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn fetch_ahead(&self, _ranges: &[ByteRange]) {}

    fn stat(&self) -> io::Result<Stat> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A frame is refused, or its chunks can be looked for and decoded.
pub fn blosc2(bytes: &[u8]) {
    let file = File(bytes);
    let state = FileState::now(&file, bytes.len() as u64);
    let Ok(found) = frame(&state).unwrap() else { return };
    let FrameHeader { header, frame: whole, stored, .. } = found.header;
    assert!(header + stored <= whole && whole <= bytes.len() as u64);
    assert_eq!(found.places.len() as u64, found.header.nchunks().unwrap());
    let _ = metadata(&state, &found.header).unwrap();
    let fill = ChunkPlace::fill(&found.places).unwrap_or_default();
    let array = foreign::blosc2(&found.header, found.array.as_ref(), fill, Map::new());
    let Some(document) = array.ok().and_then(|array| array.metadata) else { return };
    let Ok(pipeline) = Pipeline::parse(&document) else { return };
    if pipeline.nbytes() > LONGEST {
        return;
    }
    let mut chunk = vec![0; pipeline.nbytes()];
    for place in found.places.iter().take(16) {
        let ChunkPlace::At(offset) = place else { continue };
        let start = usize::try_from(header.saturating_add(*offset)).unwrap_or(usize::MAX);
        let _ = pipeline.decode(bytes.get(start..).unwrap_or_default(), &mut chunk);
    }
}
