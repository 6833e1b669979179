//! Decoding of a whole shard: undoing the bytes->bytes codecs after `sharding_indexed`.
//!
//! A checksum leaves the chunks where they are and only makes the shard longer. A compressor hides
//! them: the whole shard has to be decoded before its index can be read.

use super::index::CHECKSUM_BYTES;
use super::pipeline::{
    DecodeError, unblosc_at_most, ungzip_at_most, unzlib_at_most, unzstd_at_most,
};

pub use super::shard_codec::{Compression, ShardCodec};

/// What a checksum over a shard is called in messages.
const OVER_SHARD: &str = "checksum over the shard";

/// Returns the number of bytes at the end of a shard file that do not belong to the shard, if all
/// `codecs` are checksums; `None` if one of them compresses.
pub fn trailing_checksums(codecs: &[ShardCodec]) -> Option<u64> {
    let each = |codec: &ShardCodec| (*codec == ShardCodec::Crc32c).then_some(CHECKSUM_BYTES as u64);
    codecs.iter().map(each).sum()
}

/// Decodes a shard: undoes `codecs`, given in encoding order, and verifies their checksums. Fails
/// if decompression yields more than `limit` bytes.
pub fn decode(codecs: &[ShardCodec], stored: Vec<u8>, limit: u64) -> Result<Vec<u8>, DecodeError> {
    codecs.iter().rev().try_fold(stored, |bytes, codec| match codec {
        ShardCodec::Crc32c => strip_checksum(bytes),
        ShardCodec::Compressed(compression) => decompress(*compression, &bytes, limit),
    })
}

fn strip_checksum(mut bytes: Vec<u8>) -> Result<Vec<u8>, DecodeError> {
    let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(DecodeError::TooShort { codec: "a checksum", found: bytes.len() });
    };
    let (stored, computed) = (u32::from_le_bytes(*stored), crc32c::crc32c(body));
    if stored != computed {
        return Err(wrong_checksum(stored, computed));
    }
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    Ok(bytes)
}

/// Returns the error of a checksum over a shard that does not match.
pub(crate) fn wrong_checksum(stored: u32, computed: u32) -> DecodeError {
    DecodeError::Checksum { codec: OVER_SHARD, stored, computed }
}

fn decompress(codec: Compression, bytes: &[u8], limit: u64) -> Result<Vec<u8>, DecodeError> {
    match codec {
        Compression::Gzip => ungzip_at_most(bytes, limit),
        Compression::Zlib => unzlib_at_most(bytes, limit),
        Compression::Zstd => unzstd_at_most(bytes, limit),
        Compression::Blosc => unblosc_at_most(bytes, limit),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    const GZIP: ShardCodec = ShardCodec::Compressed(Compression::Gzip);
    const ZSTD: ShardCodec = ShardCodec::Compressed(Compression::Zstd);
    const BLOSC: ShardCodec = ShardCodec::Compressed(Compression::Blosc);

    #[test]
    fn codecs_are_undone_from_the_last_to_the_first() {
        let mut stored = gzip(b"shard");
        stored.extend(crc32c::crc32c(&stored).to_le_bytes());
        assert_eq!(decode(&[GZIP, ShardCodec::Crc32c], stored, 5).unwrap(), b"shard");
        let stored = zstd::encode_all(&b"shard"[..], 1).unwrap();
        assert_eq!(decode(&[ZSTD], stored, 5).unwrap(), b"shard");
    }

    #[test]
    fn members_of_a_gzip_file_are_joined() {
        assert_eq!(decode(&[GZIP], [gzip(b"ab"), gzip(b"cd")].concat(), 4).unwrap(), b"abcd");
    }

    /// Bytes after a stream that numcodecs accepts are accepted over whole shards, too.
    #[test]
    fn padding_and_what_follows_a_stream_are_no_damage() {
        let members = [&gzip(b"ab")[..], &[0; 9], &gzip(b"cd"), &[0; 600]].concat();
        assert_eq!(decode(&[GZIP], members.clone(), 4).unwrap(), b"abcd");
        assert!(matches!(decode(&[GZIP], members, 3), Err(DecodeError::TooLong { limit: 3, .. })));
        let garbage = [&gzip(b"ab")[..], b"garbage"].concat();
        assert!(matches!(decode(&[GZIP], garbage, 9), Err(DecodeError::Stream { .. })));
        let zlib = ShardCodec::Compressed(Compression::Zlib);
        // zlib.compress(b"ab"), followed by garbage.
        let stored = b"x\x9cKL\x02\x00\x01&\x00\xc4garbage".to_vec();
        assert_eq!(decode(&[zlib], stored, 2).unwrap(), b"ab");
        let mut stored = vec![2, 1, 2, 1, 4, 0, 0, 0, 4, 0, 0, 0, 20, 0, 0, 0];
        stored.extend(b"abcdgarbage");
        assert_eq!(decode(&[BLOSC], stored, 4).unwrap(), b"abcd");
        let frames = [zstd::encode_all(&b"ab"[..], 1).unwrap(), b"garbage".to_vec()].concat();
        assert!(matches!(decode(&[ZSTD], frames, 9), Err(DecodeError::Stream { .. })));
    }

    #[test]
    fn a_blosc_buffer_of_stored_bytes_is_decoded() {
        // version 2, lz4 format 1, flags: memcpyed (2), typesize 1, nbytes 4, blocksize 4,
        // ctbytes 20
        let mut stored = vec![2, 1, 2, 1, 4, 0, 0, 0, 4, 0, 0, 0, 20, 0, 0, 0];
        stored.extend(b"abcd");
        assert_eq!(decode(&[BLOSC], stored.clone(), 4).unwrap(), b"abcd");
        assert!(matches!(decode(&[BLOSC], stored.clone(), 3), Err(DecodeError::TooLong { .. })));
        stored[12] = 99;
        assert!(matches!(decode(&[BLOSC], stored, 4), Err(DecodeError::Stream { .. })));
        assert!(matches!(decode(&[BLOSC], vec![1, 2], 4), Err(DecodeError::TooShort { .. })));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = gzip(&vec![0; 1 << 20]);
        assert!(matches!(
            decode(&[GZIP], bomb, 1000),
            Err(DecodeError::TooLong { limit: 1000, .. })
        ));
    }

    #[test]
    fn damage_is_an_error() {
        assert!(matches!(
            decode(&[GZIP], b"nonsense".to_vec(), 9),
            Err(DecodeError::Stream { .. })
        ));
        assert!(matches!(
            decode(&[ShardCodec::Crc32c], vec![1], 9),
            Err(DecodeError::TooShort { found: 1, .. })
        ));
        let bad = decode(&[ShardCodec::Crc32c], vec![0; 5], 9);
        assert!(matches!(bad, Err(DecodeError::Checksum { stored: 0, .. })));
    }

    #[test]
    fn only_checksums_leave_chunks_in_place() {
        assert_eq!(trailing_checksums(&[ShardCodec::Crc32c; 2]), Some(8));
        assert_eq!(trailing_checksums(&[GZIP, ShardCodec::Crc32c]), None);
        assert_eq!(trailing_checksums(&[]), Some(0));
    }
}
