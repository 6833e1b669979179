//! A trivial model of a sharded array, written from the specification and sharing no code with
//! the library: which chunks there are, their bytes, and how shards are made of them.
#[cfg(feature = "remote")]
pub(crate) mod bucket;
pub(crate) mod foreign;
#[cfg(feature = "remote")]
#[allow(dead_code, reason = "examples/store.rs uses the rest")]
pub(crate) mod object_server;

use std::collections::BTreeMap;
use std::io::Write;

use proptest::prelude::*;
use serde_json::{Value, json};

pub(crate) type Coords = Vec<u64>;

/// How the index of one level is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IndexKind {
    Usual,
    BigEndian,
    NoChecksum,
    Transposed,
}

/// One level of sharding.
#[derive(Debug, Clone)]
pub(crate) struct Level {
    /// Chunks per shard along the array's axes.
    pub per_shard: Coords,
    /// Order of the transpose before it.
    pub order: Vec<usize>,
    pub index: IndexKind,
    pub at_start: bool,
    pub after: Vec<&'static str>,
}

/// An array and its chunks, those beyond its shape included.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub shape: Coords,
    /// Shape of the innermost chunks, along the array's axes.
    pub chunk: Coords,
    pub levels: Vec<Level>,
    /// Name and separator of the key encoding; "draft2022" has documents of its own.
    pub keys: (&'static str, &'static str),
    pub chunks: BTreeMap<Coords, Vec<u8>>,
}

impl Model {
    /// Innermost chunks along each axis of a shard.
    pub(crate) fn per_shard(&self) -> Coords {
        (0..self.shape.len())
            .map(|axis| self.levels.iter().map(|level| level.per_shard[axis]).product())
            .collect()
    }

    /// The chunk grid of the array.
    pub(crate) fn grid(&self) -> Coords {
        self.shape.iter().zip(&self.chunk).map(|(extent, chunk)| extent.div_ceil(*chunk)).collect()
    }

    /// The shard grid of the array.
    pub(crate) fn shards(&self) -> Coords {
        self.grid().iter().zip(self.per_shard()).map(|(n, per)| n.div_ceil(per)).collect()
    }

    pub(crate) fn key(&self, coords: &[u64]) -> String {
        let (name, separator) = self.keys;
        let numbers: Vec<String> = coords.iter().map(u64::to_string).collect();
        match (name, coords.is_empty()) {
            ("default", true) => "c".to_owned(),
            ("default", false) => format!("c{separator}{}", numbers.join(separator)),
            ("draft2022", true) => "c0".to_owned(),
            ("draft2022", false) => format!("c{}", numbers.join(separator)),
            (_, true) => "0".to_owned(),
            (_, false) => numbers.join(separator),
        }
    }

    /// What a mount must show: keys and bytes.
    pub(crate) fn shown(&self) -> BTreeMap<String, Vec<u8>> {
        let grid = self.grid();
        let within = |coords: &Coords| coords.iter().zip(&grid).all(|(c, n)| c < n);
        let chunks = self.chunks.iter().filter(|(coords, _)| within(coords));
        chunks.map(|(coords, bytes)| (self.key(coords), bytes.clone())).collect()
    }

    /// The document of an array of the draft of 2022, which has one level of shards with bare
    /// indexes at their end.
    pub(crate) fn draft_metadata(&self) -> Value {
        let chunks_per_shard = if self.shape.is_empty() { vec![1] } else { self.per_shard() };
        json!({
            "shape": self.shape, "data_type": "u1", "fill_value": 0, "attributes": {},
            "chunk_grid": {"type": "regular", "chunk_shape": self.chunk, "separator": self.keys.1},
            "storage_transformers": [{
                "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
                "type": "indexed", "configuration": {"chunks_per_shard": chunks_per_shard},
            }],
        })
    }

    /// The metadata document.
    pub(crate) fn metadata(&self) -> Value {
        let rank = self.shape.len();
        let mut shape = self.chunk.clone();
        let mut codecs = json!([{"name": "bytes"}, {"name": "mystery"}]);
        let mut axes_of_level = Vec::new();
        let mut axes: Vec<usize> = (0..rank).collect();
        for level in &self.levels {
            axes = level.order.iter().map(|axis| axes[*axis]).collect();
            axes_of_level.push(axes.clone());
        }
        for (level, axes) in self.levels.iter().zip(&axes_of_level).rev() {
            let chunk_shape: Coords = axes.iter().map(|axis| shape[*axis]).collect();
            let mut chain = vec![
                json!({"name": "transpose", "configuration": {"order": level.order}}),
                json!({"name": "sharding_indexed", "configuration": {
                    "chunk_shape": chunk_shape,
                    "codecs": codecs,
                    "index_codecs": level.index_codecs(rank),
                    "index_location": if level.at_start { "start" } else { "end" },
                }}),
            ];
            chain.extend(level.after.iter().map(|name| json!({"name": name})));
            codecs = chain.into();
            shape = shape.iter().zip(&level.per_shard).map(|(n, per)| n * per).collect();
        }
        json!({
            "zarr_format": 3, "node_type": "array", "shape": self.shape, "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
            "chunk_key_encoding": {"name": self.keys.0,
                "configuration": {"separator": self.keys.1}},
            "fill_value": 0, "codecs": codecs,
        })
    }

    /// The shard at these coordinates, None if no chunk of it exists.
    pub(crate) fn shard(&self, shard: &[u64]) -> Option<Vec<u8>> {
        let axes: Vec<usize> = (0..self.shape.len()).collect();
        self.build(&self.levels, &axes, shard)
    }

    fn build(&self, levels: &[Level], axes: &[usize], origin: &[u64]) -> Option<Vec<u8>> {
        let Some((level, below)) = levels.split_first() else {
            return self.chunks.get(origin).cloned();
        };
        let axes: Vec<usize> = level.order.iter().map(|axis| axes[*axis]).collect();
        let per_shard: Coords = axes.iter().map(|axis| level.per_shard[*axis]).collect();
        let slots = places(&per_shard);
        let head = if level.at_start { level.index_length(slots.len()) } else { 0 };
        let (mut body, mut entries) = (vec![0xaa; head], Vec::new());
        for place in &slots {
            let mut chunk = origin.to_vec();
            for (place, axis) in place.iter().zip(&axes) {
                chunk[*axis] = origin[*axis] * level.per_shard[*axis] + place;
            }
            match self.build(below, &axes, &chunk) {
                None => entries.push([u64::MAX; 2]),
                Some(bytes) => {
                    body.push(0xbb); // a gap
                    entries.push([body.len() as u64, bytes.len() as u64]);
                    body.extend(bytes);
                }
            }
        }
        if entries.iter().all(|entry| *entry == [u64::MAX; 2]) {
            return None;
        }
        let index = level.encode_index(&per_shard, &slots, &entries);
        if level.at_start {
            body[..head].copy_from_slice(&index);
        } else {
            body.extend(index);
        }
        Some(level.after.iter().fold(body, |bytes, codec| encode_after(codec, bytes)))
    }
}

impl Level {
    fn index_codecs(&self, rank: usize) -> Value {
        let bytes = |endian| json!({"name": "bytes", "configuration": {"endian": endian}});
        let reversed: Vec<usize> = (0..=rank).rev().collect();
        match self.index {
            IndexKind::Usual => json!([bytes("little"), {"name": "crc32c"}]),
            IndexKind::BigEndian => json!([bytes("big"), "crc32c"]),
            IndexKind::NoChecksum => json!([bytes("little")]),
            IndexKind::Transposed => json!([
                {"name": "transpose", "configuration": {"order": reversed}},
                bytes("little"), {"name": "crc32c"}]),
        }
    }

    fn index_length(&self, slots: usize) -> usize {
        16 * slots + if matches!(self.index, IndexKind::NoChecksum) { 0 } else { 4 }
    }

    /// Whether a part of a shard whose index is at its end, and has a checksum, ends in an index of
    /// any level.
    pub(crate) fn seems_whole(&self, part: &[u8]) -> bool {
        let part = match self.after[..] {
            // Not looked at where only a part is read.
            ["crc32c"] => part.split_last_chunk::<4>().map_or(&[][..], |(part, _)| part),
            _ => part,
        };
        let slots = usize::try_from(self.per_shard.iter().product::<u64>()).unwrap();
        let index = part.len().checked_sub(self.index_length(slots));
        let index = index.and_then(|start| part[start..].split_last_chunk::<4>());
        !self.at_start && index.is_some_and(|(index, sum)| crc32c(index).to_le_bytes() == *sum)
    }

    pub(crate) fn encode_index(
        &self,
        per_shard: &[u64],
        slots: &[Coords],
        entries: &[[u64; 2]],
    ) -> Vec<u8> {
        let mut words: Vec<u64> = entries.iter().flatten().copied().collect();
        if matches!(self.index, IndexKind::Transposed) {
            // Axes reversed: the pair varies slowest, the first axis fastest.
            let mut extents: Coords = per_shard.iter().rev().copied().collect();
            extents.insert(0, 2);
            words = places(&extents)
                .iter()
                .map(|place| {
                    let slot: Coords = place[1..].iter().rev().copied().collect();
                    let slot = slots.iter().position(|other| *other == slot).unwrap();
                    entries[slot][usize::try_from(place[0]).unwrap()]
                })
                .collect();
        }
        let big = matches!(self.index, IndexKind::BigEndian);
        let mut bytes: Vec<u8> = words
            .iter()
            .flat_map(|word| if big { word.to_be_bytes() } else { word.to_le_bytes() })
            .collect();
        if !matches!(self.index, IndexKind::NoChecksum) {
            bytes.extend(crc32c(&bytes).to_le_bytes());
        }
        bytes
    }
}

fn encode_after(codec: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    match codec {
        "crc32c" => {
            bytes.extend(crc32c(&bytes).to_le_bytes());
            bytes
        }
        "zstd" => zstd::encode_all(&bytes[..], 1).unwrap(),
        "gzip" => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        }
        other => panic!("{other}"),
    }
}

/// Bit by bit, as RFC 3720 defines it.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

/// All places of a box in C order.
pub(crate) fn places(extents: &[u64]) -> Vec<Coords> {
    extents.iter().fold(vec![vec![]], |places, extent| {
        let next = |place: &Coords| {
            let place = place.clone();
            (0..*extent).map(move |coord| [&place[..], &[coord]].concat()).collect::<Vec<_>>()
        };
        places.iter().flat_map(next).collect()
    })
}

/// Chunks for every place of the padded grid, about half of them present.
pub(crate) fn chunks(padded: &[u64]) -> impl Strategy<Value = BTreeMap<Coords, Vec<u8>>> + use<> {
    let places = places(padded);
    let content = prop::option::weighted(0.5, prop::collection::vec(any::<u8>(), 0..20));
    prop::collection::vec(content, places.len()).prop_map(move |contents| {
        let chunks = places.iter().cloned().zip(contents);
        chunks.filter_map(|(place, content)| Some((place, content?))).collect()
    })
}

fn level(rank: usize) -> impl Strategy<Value = Level> {
    let order = Just((0..rank).collect::<Vec<_>>()).prop_shuffle();
    let index = prop_oneof![
        Just(IndexKind::Usual),
        Just(IndexKind::BigEndian),
        Just(IndexKind::NoChecksum),
        Just(IndexKind::Transposed)
    ];
    let after = prop_oneof![
        4 => Just(vec![]),
        1 => Just(vec!["crc32c"]),
        1 => Just(vec!["gzip", "crc32c"]),
        1 => Just(vec!["crc32c", "zstd"])
    ];
    let per_shard = prop::collection::vec(1_u64..4, rank);
    (per_shard, order, index, any::<bool>(), after).prop_map(
        |(per_shard, order, index, at_start, after)| Level {
            per_shard,
            order,
            index,
            at_start,
            after,
        },
    )
}

/// Arrays of rank 0 to 3 with one or two levels of sharding.
pub(crate) fn models() -> impl Strategy<Value = Model> {
    let keys = prop_oneof![
        Just(("default", "/")),
        Just(("default", ".")),
        Just(("v2", "/")),
        Just(("v2", "."))
    ];
    (0_usize..4, 1_usize..3, keys)
        .prop_flat_map(|(rank, depth, keys)| {
            let shape = prop::collection::vec(0_u64..12, rank);
            let chunk = prop::collection::vec(1_u64..4, rank);
            (shape, chunk, prop::collection::vec(level(rank), depth), Just(keys))
        })
        .prop_map(|(shape, chunk, levels, keys)| Model {
            shape,
            chunk,
            levels,
            keys,
            chunks: BTreeMap::new(),
        })
        .prop_filter("few chunks", |model| padded(model).iter().product::<u64>() <= 300)
        .prop_flat_map(|model| {
            let chunks = chunks(&padded(&model));
            (Just(model), chunks).prop_map(|(model, chunks)| Model { chunks, ..model })
        })
}

/// Chunks along each axis of all shards together.
pub(crate) fn padded(model: &Model) -> Coords {
    model.shards().iter().zip(model.per_shard()).map(|(shards, per)| shards * per).collect()
}
