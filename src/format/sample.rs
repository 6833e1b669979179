//! A small sharded array for demonstrations, written with the same code that reads arrays.

use std::io::Write;

use serde_json::{Value, json};

use super::Coords;
use super::chunk_key::{KeyEncoding, Prefix, Separator};
use super::index::{ByteRange, IndexCodecs, IndexLocation, ShardIndex};
use super::json;

/// Chunks along each axis of the sample's shards.
const CHUNKS_PER_SHARD: u64 = 4;
/// Elements along each axis of an inner chunk.
const CHUNK: u64 = 16;
/// Extents of the array, not all of which are multiples of the shard.
const SHAPE: [u64; 3] = [64, 112, 120];

/// Returns the files of the sample with their paths relative to its directory: a group with one
/// array of 16-bit numbers that form a picture of waves, with gzip over each inner chunk and some
/// chunks empty.
pub fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![
        ("zarr.json".to_owned(), json::to_text(&group())),
        ("waves/zarr.json".to_owned(), json::to_text(&array())),
    ];
    let keys = KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash };
    let shard = CHUNK * CHUNKS_PER_SHARD;
    for place in boxed(SHAPE.map(|extent| extent.div_ceil(shard))) {
        files.push((format!("waves/{}", keys.chunk_key(&place)), shard_of(&place)));
    }
    files
}

fn group() -> Value {
    json!({"zarr_format": 3, "node_type": "group", "attributes": {"title": "shardfs sample"}})
}

fn array() -> Value {
    let shard = CHUNK * CHUNKS_PER_SHARD;
    let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard, shard, shard]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [CHUNK, CHUNK, CHUNK],
            "codecs": [bytes, {"name": "gzip", "configuration": {"level": 5}}],
            "index_codecs": [bytes, {"name": "crc32c"}],
            "index_location": "end",
        }}],
        "attributes": {"unit": "counts", "voxel_size": [40.0, 4.0, 4.0]},
        "dimension_names": ["z", "y", "x"],
    })
}

fn shard_of(shard: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let per_shard = [CHUNKS_PER_SHARD; 3];
    let index = ShardIndex::empty(&IndexCodecs::USUAL, IndexLocation::End, &per_shard);
    // Cannot fail: the number of chunks is far below the limit.
    let Ok(mut index) = index else { return bytes };
    for place in boxed([CHUNKS_PER_SHARD; 3]) {
        let chunk: Coords = shard
            .iter()
            .zip(&place)
            .map(|(shard, place)| shard * CHUNKS_PER_SHARD + place)
            .collect();
        let within = chunk.iter().zip(SHAPE).all(|(chunk, extent)| chunk * CHUNK < extent);
        // Every seventh chunk is left out, as if it held only fill values.
        let empty = chunk.iter().sum::<u64>() % 7 == 6;
        if within && !empty {
            let encoded = gzip(&waves(&chunk));
            let range = ByteRange { offset: bytes.len() as u64, nbytes: encoded.len() as u64 };
            index.set(index.slot(place), Some(range));
            bytes.extend_from_slice(&encoded);
        }
    }
    bytes.extend(index.encode());
    bytes
}

fn waves(chunk: &[u64]) -> Vec<u8> {
    let value = |place: Coords| {
        let [z, y, x] = [0, 1, 2].map(|axis| chunk[axis] * CHUNK + place[axis]);
        let height = (z * 40 + (y * y + x * x) / 24) % 1000;
        u16::try_from(height + 1).unwrap_or(1).to_le_bytes()
    };
    boxed([CHUNK; 3]).flat_map(value).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(5));
    // Writing to memory cannot fail; if it did, the chunk would be detected as an invalid gzip
    // stream.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Returns all positions of a box in C order.
fn boxed(extents: [u64; 3]) -> impl Iterator<Item = Coords> {
    let [depth, height, width] = extents;
    (0..depth)
        .flat_map(move |z| (0..height).flat_map(move |y| (0..width).map(move |x| vec![z, y, x])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::sharding::parse_document;

    #[test]
    fn the_sample_is_a_valid_sharded_array() {
        let array = parse_document(&array(), None).unwrap().unwrap();
        assert_eq!(array.chunk_grid(), [4, 7, 8]);
        assert_eq!(files().len(), 2 + 4);
    }
}
