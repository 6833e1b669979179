//! Codecs over a whole shard: no more is decoded than the limit allows.
//!
//! ```text
//! flags | number of codecs | a byte each | limit, u32 | stored shard, or the plain one
//! ```

use std::io::Write;

use shardfs::format::pipeline::DecodeError;
use shardfs::format::whole_shard::{Compression, ShardCodec, decode};

use super::Input;
use super::memory::within;

/// Limits are taken modulo this.
const HIGHEST_LIMIT: u64 = 1 << 20;
/// What the decoders themselves may take: windows and tables.
const SLACK: u64 = 1 << 18;

/// Anything decodes to an error or to no more than the limit; what was encoded decodes to itself.
pub fn after(bytes: &[u8]) {
    let mut input = Input(bytes);
    let flags = input.byte();
    let codecs: Vec<ShardCodec> = (0..input.byte() % 4).map(|_| codec(input.byte())).collect();
    let limit = u64::from(u32::from_le_bytes(input.array())) % HIGHEST_LIMIT;
    let rest = input.rest();
    if flags & 1 != 0 {
        round_trip(&codecs, limit, rest);
    } else {
        let seal = flags & 2 != 0;
        decode_any(&codecs, limit, if seal { sealed(&codecs, rest) } else { rest.to_vec() });
    }
}

fn codec(byte: u8) -> ShardCodec {
    match byte % 5 {
        0 => ShardCodec::Crc32c,
        1 => ShardCodec::Compressed(Compression::Gzip),
        2 => ShardCodec::Compressed(Compression::Zlib),
        3 => ShardCodec::Compressed(Compression::Zstd),
        _ => ShardCodec::Compressed(Compression::Blosc),
    }
}

/// The bytes with the checksums that the last codecs ask for, so that decoding gets past them.
fn sealed(codecs: &[ShardCodec], bytes: &[u8]) -> Vec<u8> {
    let mut stored = bytes.to_vec();
    for _ in codecs.iter().rev().take_while(|c| **c == ShardCodec::Crc32c) {
        stored = encode(ShardCodec::Crc32c, stored);
    }
    stored
}

fn decode_any(codecs: &[ShardCodec], limit: u64, stored: Vec<u8>) {
    let length = stored.len() as u64;
    // A buffer that grows is copied to one twice as large.
    let memory = 4 * limit + length + SLACK;
    let compressed = codecs.iter().any(|codec| *codec != ShardCodec::Crc32c);
    if let Ok(decoded) = within(memory as usize, || decode(codecs, stored, limit)) {
        // Without a compressor there is nothing to decode, only to strip.
        let most = if compressed { limit } else { length };
        assert!(decoded.len() as u64 <= most);
    }
}

fn round_trip(codecs: &[ShardCodec], limit: u64, plain: &[u8]) {
    let mut stored = plain.to_vec();
    // The longest of the bytes that a compressor gives back.
    let mut longest = 0;
    for codec in codecs {
        if *codec != ShardCodec::Crc32c {
            longest = longest.max(stored.len() as u64);
        }
        stored = encode(*codec, stored);
    }
    for limit in [limit, longest, u64::MAX] {
        match decode(codecs, stored.clone(), limit) {
            Ok(decoded) => assert!(decoded == plain && longest <= limit),
            Err(DecodeError::TooLong { .. }) => assert!(longest > limit),
            Err(error) => panic!("{codecs:?}: {error}"),
        }
    }
}

fn encode(codec: ShardCodec, bytes: Vec<u8>) -> Vec<u8> {
    let fast = flate2::Compression::fast();
    match codec {
        ShardCodec::Crc32c => {
            let checksum = crc32c::crc32c(&bytes).to_le_bytes();
            [bytes, checksum.to_vec()].concat()
        }
        ShardCodec::Compressed(Compression::Gzip) => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), fast);
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        }
        ShardCodec::Compressed(Compression::Zlib) => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), fast);
            encoder.write_all(&bytes).unwrap();
            encoder.finish().unwrap()
        }
        ShardCodec::Compressed(Compression::Zstd) => zstd::encode_all(&bytes[..], 1).unwrap(),
        ShardCodec::Compressed(Compression::Blosc) => blosc_stored(&bytes),
    }
}

/// A Blosc buffer that holds its bytes as they are: version 2, format lz4 1, flag "memcpyed", type
/// size 1, then its lengths.
fn blosc_stored(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let mut buffer = vec![2, 1, 2, 1];
    for word in [length, length.max(1), length + 16] {
        buffer.extend(word.to_le_bytes());
    }
    [&buffer, bytes].concat()
}
