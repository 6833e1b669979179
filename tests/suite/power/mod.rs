//! What tests of commits share: small arrays in every layout, a disk that loses power, and a reader
//! of shards that has no code in common with the library.
pub(crate) mod blosc;
pub(crate) mod disk;
pub(crate) mod mounted;
pub(crate) mod parse;
pub(crate) mod scenario;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shardfs::format::draft2022;
use shardfs::format::sharding::parse_document;
use shardfs::store::content::Content;
use shardfs::store::formats::indexed;
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::store::{Base, Freshness, ShardStore, SourceArray, StagedChunk, StoreConfig};

use self::disk::Disk;

use crate::support::{Coords, IndexKind, Level, Model, places};

/// The array's directory.
pub(crate) const ARRAY: &str = "a";

/// The chunks of an array that exist.
pub(crate) type Chunks = BTreeMap<Coords, Vec<u8>>;
/// New content of chunks, None where they are removed.
pub(crate) type Changes = Vec<(Coords, Option<Vec<u8>>)>;

/// Random numbers, the same ones each time (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `most`, which is not 0.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Bytes that no other call gives.
    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut other = Self(self.next());
        (0..length).map(|_| other.next().to_le_bytes()[0]).collect()
    }
}

/// An array whose last shards do not exist, and others have holes.
pub(crate) struct Case {
    pub name: &'static str,
    pub model: Model,
    pub array: SourceArray,
}

impl Case {
    fn new(
        name: &'static str,
        shape: &[u64],
        levels: Vec<Level>,
        keys: (&'static str, &'static str),
    ) -> Self {
        let chunk = vec![1; shape.len()];
        let chunks = Chunks::new();
        let mut model = Model { shape: shape.to_vec(), chunk, levels, keys, chunks };
        let mut rng = Rng(name.bytes().fold(7, |seed, byte| (seed << 1) ^ u64::from(byte)));
        let last = model.shards().iter().map(|n| n - 1).collect::<Coords>();
        for coords in places(&model.grid()) {
            let shard = shard_of(&model, &coords);
            // The last shard along the first axis is absent, rank 0 has no other.
            let absent = !shard.is_empty() && shard[0] == last[0];
            if !absent && (coords.is_empty() || !rng.one_in(3)) {
                let length = rng.below(24) + 4;
                model.chunks.insert(coords, rng.bytes(length));
            }
        }
        let layout = match keys.0 {
            "draft2022" => draft2022::parse(&model.draft_metadata()).unwrap().unwrap(),
            _ => parse_document(&model.metadata(), None).unwrap().unwrap(),
        };
        let format = indexed();
        Self { name, model, array: SourceArray { id: 1, path: ARRAY.into(), layout, format } }
    }

    /// The path of a shard.
    pub(crate) fn path(&self, shard: &[u64]) -> PathBuf {
        Path::new(ARRAY).join(self.model.key(shard))
    }

    /// All chunks of a shard.
    pub(crate) fn members(&self, shard: &[u64]) -> Vec<Coords> {
        let grid = places(&self.model.grid());
        grid.into_iter().filter(|coords| shard_of(&self.model, coords) == shard).collect()
    }

    /// The files of the array with these chunks.
    pub(crate) fn files(&self, chunks: &Chunks) -> Vec<(PathBuf, Vec<u8>)> {
        let model = Model { chunks: chunks.clone(), ..self.model.clone() };
        let shards = places(&model.shards()).into_iter();
        shards.filter_map(|shard| Some((self.path(&shard), model.shard(&shard)?))).collect()
    }

    /// A disk with these chunks, all of them safe.
    pub(crate) fn disk(&self, chunks: &Chunks) -> Disk {
        let files = self.files(chunks).into_iter().zip(1..);
        Disk::new(Path::new(ARRAY), files.map(|((path, bytes), ino)| (path, ino, bytes)))
    }
}

/// For [`MemoryStorage::fail`], after which nothing fails any more.
pub(crate) const NO_FAULT: Fault =
    Fault { errno: libc::EIO, times: 1, half_done: false, changes_only: false };

pub(crate) fn shard_of(model: &Model, coords: &[u64]) -> Coords {
    coords.iter().zip(model.per_shard()).map(|(coord, per)| coord / per).collect()
}

pub(crate) fn level(per_shard: &[u64], index: IndexKind, at_start: bool) -> Level {
    let order = (0..per_shard.len()).collect();
    Level { per_shard: per_shard.to_vec(), order, index, at_start, after: vec![] }
}

/// Shards with the index at one end, of rank 1 and 2.
pub(crate) fn plain(at_start: bool) -> Vec<Case> {
    let (line, square) =
        (|kind| level(&[4], kind, at_start), |kind| level(&[2, 2], kind, at_start));
    let name = |end, start| if at_start { start } else { end };
    vec![
        Case::new(name("end", "start"), &[12], vec![line(IndexKind::Usual)], ("default", "/")),
        Case::new(
            name("end, square", "start, square"),
            &[6, 4],
            vec![square(IndexKind::Usual)],
            ("default", "/"),
        ),
    ]
}

/// Indexes without a checksum, big-endian ones, transposed ones.
pub(crate) fn other_indexes() -> Vec<Case> {
    let mut cases = Vec::new();
    let kinds = [
        (IndexKind::NoChecksum, ["end, no checksum", "start, no checksum"]),
        (IndexKind::BigEndian, ["end, big-endian", "start, big-endian"]),
        (IndexKind::Transposed, ["end, transposed index", "start, transposed index"]),
    ];
    for (kind, names) in kinds {
        for (at_start, name) in [false, true].into_iter().zip(names) {
            let level = level(&[2, 2], kind, at_start);
            cases.push(Case::new(name, &[6, 4], vec![level], ("v2", ".")));
        }
    }
    cases
}

/// Shards inside shards.
pub(crate) fn nested() -> Vec<Case> {
    let two = |outer: Level, inner: Level| vec![outer, inner];
    let mut checked = level(&[2], IndexKind::Usual, false);
    checked.after = vec!["crc32c"];
    let mut turned = level(&[1, 2], IndexKind::Transposed, true);
    turned.order = vec![1, 0];
    let usual = |at_start| level(&[2], IndexKind::Usual, at_start);
    vec![
        Case::new("nested", &[12], two(usual(false), usual(false)), ("default", "/")),
        Case::new("nested, checked inside", &[12], two(usual(true), checked), ("default", ".")),
        Case::new(
            "nested, turned inside",
            &[4, 4],
            two(level(&[2, 1], IndexKind::NoChecksum, false), turned),
            ("default", "/"),
        ),
    ]
}

/// Transposed shards, checksums over shards, and a single chunk.
pub(crate) fn others() -> Vec<Case> {
    let mut turned = level(&[1, 3], IndexKind::Usual, false);
    turned.order = vec![1, 0];
    let after =
        |at_start| Level { after: vec!["crc32c"], ..level(&[3], IndexKind::Usual, at_start) };
    let scalar = |at_start| level(&[], IndexKind::Usual, at_start);
    let separate = ("default", "/");
    vec![
        Case::new("turned", &[3, 3], vec![turned], separate),
        Case::new("checksum over it", &[9], vec![after(false)], separate),
        Case::new("checksum over it, start", &[9], vec![after(true)], separate),
        Case::new("scalar", &[], vec![scalar(false)], separate),
        Case::new("scalar, start", &[], vec![scalar(true)], separate),
    ]
}

/// Arrays of the draft of 2022.
pub(crate) fn draft() -> Vec<Case> {
    let bare = |per_shard: &[u64]| vec![level(per_shard, IndexKind::NoChecksum, false)];
    vec![
        Case::new("draft of 2022", &[6, 4], bare(&[2, 2]), ("draft2022", "/")),
        Case::new("draft of 2022, flat", &[12], bare(&[4]), ("draft2022", ".")),
        Case::new("draft of 2022, scalar", &[], bare(&[]), ("draft2022", "/")),
    ]
}

/// A store that believes nothing.
pub(crate) fn store(storage: &Arc<MemoryStorage>) -> ShardStore {
    store_trusting(storage, Duration::ZERO)
}

/// A store that reads what nothing changes meanwhile.
pub(crate) fn reader(storage: &Arc<MemoryStorage>) -> ShardStore {
    store_trusting(storage, Duration::from_secs(3600))
}

fn store_trusting(storage: &Arc<MemoryStorage>, trusted: Duration) -> ShardStore {
    let config = StoreConfig {
        trusted,
        cache_size: 1 << 20,
        open_files: 4,
        block_size: disk::BLOCK as u64,
        ..StoreConfig::default()
    };
    ShardStore::new(storage.clone(), config, Arc::default())
}

/// The chunk at `coords`: its bytes, None, or what is wrong.
pub(crate) fn read(
    store: &ShardStore,
    array: &SourceArray,
    coords: &[u64],
) -> Result<Option<Vec<u8>>, String> {
    let Some(chunk) = store.chunk(array, coords, Freshness::Now).map_err(|e| e.to_string())? else {
        return Ok(None);
    };
    let reader = store.reader(array, coords, &chunk).map_err(|e| e.to_string())?;
    let reader = reader.ok_or("it changes")?;
    let mut bytes = vec![0; usize::try_from(reader.nbytes()).unwrap()];
    let read = reader.read(&mut bytes, 0).map_err(|e| e.to_string())?;
    assert_eq!(read, bytes.len());
    Ok(Some(bytes))
}

pub(crate) fn staged(coords: &[u64], content: Option<Vec<u8>>, base: Base) -> StagedChunk {
    let content = content.map(|bytes| Content::Memory(bytes.into()));
    StagedChunk { coords: coords.to_vec(), content, base, maker: None, with: vec![] }
}

/// Stages changes over what is there now.
pub(crate) fn stage(
    store: &ShardStore,
    array: &SourceArray,
    changes: &Changes,
) -> Vec<StagedChunk> {
    let one = |(coords, content): &(Coords, Option<Vec<u8>>)| {
        staged(coords, content.clone(), store.base(array, coords, Freshness::Now).unwrap())
    };
    changes.iter().map(one).collect()
}

pub(crate) fn apply(chunks: &mut Chunks, changes: &Changes) {
    for (coords, content) in changes {
        match content {
            Some(bytes) => drop(chunks.insert(coords.clone(), bytes.clone())),
            None => drop(chunks.remove(coords)),
        }
    }
}
