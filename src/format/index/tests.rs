use serde_json::json;

use super::*;

fn codecs(value: &Value) -> Result<IndexCodecs, MetadataError> {
    IndexCodecs::parse(Some(value), 2)
}

fn usual() -> IndexCodecs {
    codecs(&json!([{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"])).unwrap()
}

const RANGE: ByteRange = ByteRange { offset: 7, nbytes: 3 };

/// 1 x 2 chunks, the first empty, the second at 7..10; written by hand from the specification.
#[rustfmt::skip]
const GOLDEN: [u8; 36] = [
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
    0xc8, 0x36, 0x4f, 0xc1,
];

fn decode(bytes: &[u8], location: IndexLocation) -> Result<ShardIndex, IndexError> {
    ShardIndex::decode(bytes.to_vec(), &usual(), location, &[1, 2])
}

#[test]
fn the_golden_index_is_read_and_written() {
    let index = decode(&GOLDEN, IndexLocation::End).unwrap();
    assert_eq!(index.range([0, 0], 10).unwrap(), None);
    assert_eq!(index.range([0, 1], 10).unwrap(), Some(RANGE));
    assert_eq!(index.chunks(10), Ok(vec![(1, RANGE)]));
    let mut written = ShardIndex::empty(&usual(), IndexLocation::End, &[1, 2]).unwrap();
    written.set(0, Some(RANGE));
    written.set(0, None);
    written.set(written.slot([0, 1]), Some(RANGE));
    assert_eq!(written, index);
    assert_eq!(written.encode(), GOLDEN);
}

#[test]
fn every_flipped_bit_fails_the_checksum() {
    for bit in 0..GOLDEN.len() * 8 {
        let mut bytes = GOLDEN;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = decode(&bytes, IndexLocation::End).unwrap_err();
        assert!(matches!(error, IndexError::Checksum { .. }), "bit {bit}: {error}");
    }
}

#[test]
fn a_wrong_length_is_named() {
    let error = decode(&GOLDEN[1..], IndexLocation::End).unwrap_err();
    assert_eq!(error, IndexError::Length { found: 35, expected: 36 });
}

#[test]
fn an_absurd_index_is_refused_before_it_is_read() {
    assert_eq!(usual().stored_size(1 << 30), None);
    assert_eq!(usual().stored_size(u64::MAX), None);
    let error = ShardIndex::decode(vec![], &usual(), IndexLocation::End, &[1 << 40, 1 << 40]);
    assert_eq!(error.unwrap_err(), IndexError::Limit { slots: u64::MAX });
}

#[test]
fn an_index_without_chunks_has_no_entries_whatever_its_other_axes_are() {
    let checksum = crc32c::crc32c(&[]).to_le_bytes().to_vec();
    let chunks = [0, 1 << 40, 1 << 40];
    ShardIndex::decode(checksum, &usual(), IndexLocation::End, &chunks).unwrap();
}

fn entry(
    offset: u64,
    nbytes: u64,
    location: IndexLocation,
) -> Result<Option<ByteRange>, EntryError> {
    let mut index = ShardIndex::empty(&usual(), location, &[1, 2]).unwrap();
    index.set(0, Some(ByteRange { offset, nbytes }));
    decode(&index.encode(), location).unwrap().range([0, 0], 100)
}

#[test]
fn entries_outside_their_shard_are_damage() {
    assert_eq!(entry(100, 0, IndexLocation::End).unwrap().unwrap().nbytes, 0);
    for (offset, nbytes) in [(98, 3), (1 << 63, 1), (5, 1 << 62), (u64::MAX - 1, 2)] {
        let error = entry(offset, nbytes, IndexLocation::End).unwrap_err();
        assert_eq!(error, EntryError::Outside { offset, nbytes, shard: 100 });
    }
}

#[test]
fn half_empty_entries_are_damage_unless_zarrita_wrote_them() {
    for (offset, nbytes) in [(EMPTY, 3), (3, EMPTY), (35, EMPTY)] {
        let error = entry(offset, nbytes, IndexLocation::End).unwrap_err();
        assert_eq!(error, EntryError::HalfEmpty { offset, nbytes });
    }
    assert_eq!(entry(35, EMPTY, IndexLocation::Start), Ok(None));
    let mut index = ShardIndex::empty(&usual(), IndexLocation::Start, &[1, 2]).unwrap();
    assert_eq!(index.wrapped_empties(), 0);
    index.set(1, Some(ByteRange { offset: 35, nbytes: EMPTY }));
    assert_eq!(index.wrapped_empties(), 1);
    entry(34, EMPTY, IndexLocation::Start).unwrap_err();
}

#[test]
fn transposed_big_endian_indexes_are_read_and_written() {
    let codecs = codecs(&json!([
        {"name": "transpose", "configuration": {"order": [2, 1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
    ]))
    .unwrap();
    // Stored as [pair][column][row] of 2 rows x 3 columns: offset = 10 * row + column + 1.
    let mut words: Vec<u64> = Vec::new();
    for pair in 0..2_u64 {
        for column in 0..3 {
            for row in 0..2 {
                words.push(if pair == 0 { 10 * row + column + 1 } else { 5 });
            }
        }
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let location = IndexLocation::End;
    let index = ShardIndex::decode(bytes.clone(), &codecs, location, &[2, 3]).unwrap();
    let mut written = ShardIndex::empty(&codecs, location, &[2, 3]).unwrap();
    for (slot, range) in index.chunks(100).unwrap() {
        assert_eq!(index.slot(index.position(slot)), slot);
        written.set(slot, Some(range));
    }
    assert_eq!(written.encode(), bytes);
    for (row, column) in [(0, 0), (0, 2), (1, 0), (1, 2)] {
        let range = index.range([row, column], 100).unwrap().unwrap();
        assert_eq!(range, ByteRange { offset: 10 * row + column + 1, nbytes: 5 });
    }
}

#[test]
fn index_codecs_of_variable_size_are_refused() {
    for bad in [json!(["bytes", "gzip"]), json!(["crc32c"]), json!(["crc32c", "bytes"]), json!([])]
    {
        codecs(&bad).unwrap_err();
    }
    let twice = codecs(&json!(["bytes", "crc32c", "crc32c"])).unwrap();
    assert_eq!(twice.stored_size(1), Some(24));
    assert_eq!(IndexCodecs::parse(None, 2).unwrap(), usual());
}
