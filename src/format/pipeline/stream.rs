//! Stream compressors: gzip, zlib, zstd, LZ4.

use std::cell::RefCell;
use std::io::{Read, Write};

use flate2::bufread::ZlibDecoder;
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx};

use super::error::{DecodeError, EncodeError};
use crate::format::gzip::Members;
use crate::memory::{NoMemory, zeroed};

thread_local! {
    // Creating a context costs more than decompressing a small chunk.
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static COMPRESSOR: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

/// Error name of zstd for frames that hold more than fits into the output buffer.
const NO_ROOM: &str = "Destination buffer is too small";

/// Decompresses zstd frames to exactly the length of `out`.
pub(super) fn unzstd(frames: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    let limit = out.len() as u64;
    let result = DECOMPRESSOR.with_borrow_mut(|context| {
        let context = match context {
            Some(context) => context,
            None => context.insert(DCtx::try_create()?),
        };
        Some(context.decompress(out, frames))
    });
    match result {
        Some(Ok(found)) => DecodeError::check_length(found, out.len()),
        Some(Err(code)) => Err(match zstd_safe::get_error_name(code) {
            NO_ROOM => match zstd_safe::get_frame_content_size(frames) {
                Ok(Some(found)) if found > limit => DecodeError::Length { found, expected: limit },
                _ => DecodeError::TooLong { limit },
            },
            reason => DecodeError::stream("zstd", reason),
        }),
        None => Err(DecodeError::stream("zstd", "no memory for a context")),
    }
}

/// Decompresses zstd frames to at most `limit` bytes.
pub(in crate::format) fn unzstd_at_most(frames: &[u8], limit: u64) -> Result<Vec<u8>, DecodeError> {
    let decoder = zstd::stream::read::Decoder::with_buffer(frames);
    // Without a dictionary, only memory can be missing.
    at_most(decoder.map_err(|_| NoMemory)?, "zstd", limit)
}

/// Compresses into one zstd frame with its content size.
pub(super) fn zstd(bytes: &[u8], level: i32, checksum: bool) -> Result<Vec<u8>, EncodeError> {
    let result = COMPRESSOR.with_borrow_mut(|context| {
        let context = match context {
            Some(context) => context,
            None => context.insert(CCtx::try_create()?),
        };
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
        let compressed = context
            .set_parameter(CParameter::CompressionLevel(level))
            .and_then(|_| context.set_parameter(CParameter::ChecksumFlag(checksum)))
            .and_then(|_| context.compress2(&mut frame, bytes));
        Some(compressed.map(|_| frame))
    });
    match result {
        Some(Ok(frame)) => Ok(frame),
        Some(Err(code)) => Err(EncodeError::stream("zstd", zstd_safe::get_error_name(code))),
        None => Err(EncodeError::stream("zstd", "no memory for a context")),
    }
}

/// Decompresses gzip members to exactly the length of `out`.
pub(super) fn ungzip(members: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    exactly(Members::new(members), "gzip", out)
}

/// Decompresses gzip members to at most `limit` bytes.
pub(in crate::format) fn ungzip_at_most(
    members: &[u8],
    limit: u64,
) -> Result<Vec<u8>, DecodeError> {
    at_most(Members::new(members), "gzip", limit)
}

/// Compresses into one gzip member.
pub(super) fn gzip(bytes: &[u8], level: u32) -> Result<Vec<u8>, EncodeError> {
    let level = flate2::Compression::new(level);
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 2), level);
    let finished = encoder.write_all(bytes).and_then(|()| encoder.finish());
    finished.map_err(|error| EncodeError::stream("gzip", error))
}

/// Decompresses a zlib stream to exactly the length of `out`. Bytes after the stream are ignored,
/// as by numcodecs.
pub(super) fn unzlib(stream: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    exactly(ZlibDecoder::new(stream), "zlib", out)
}

/// Decompresses a zlib stream to at most `limit` bytes.
pub(in crate::format) fn unzlib_at_most(stream: &[u8], limit: u64) -> Result<Vec<u8>, DecodeError> {
    at_most(ZlibDecoder::new(stream), "zlib", limit)
}

/// Compresses into a zlib stream.
pub(super) fn zlib(bytes: &[u8], level: u32) -> Result<Vec<u8>, EncodeError> {
    let level = flate2::Compression::new(level);
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::with_capacity(bytes.len() / 2), level);
    let finished = encoder.write_all(bytes).and_then(|()| encoder.finish());
    finished.map_err(|error| EncodeError::stream("zlib", error))
}

/// Splits the decompressed length from the LZ4 block that follows it.
fn lz4_parts(bytes: &[u8]) -> Result<(usize, &[u8]), DecodeError> {
    let Some((length, block)) = bytes.split_first_chunk::<4>() else {
        return Err(DecodeError::TooShort { codec: "lz4", found: bytes.len() });
    };
    Ok((u32::from_le_bytes(*length) as usize, block))
}

/// Decompresses an LZ4 block, preceded by its decompressed length, to exactly the length of `out`.
pub(super) fn unlz4(bytes: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    let (length, block) = lz4_parts(bytes)?;
    DecodeError::check_length(length, out.len())?;
    unlz4_block(block, out)
}

/// Decompresses an LZ4 block to exactly the length of `out`.
pub(super) fn unlz4_block(block: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    match lz4_flex::block::decompress_into(block, out) {
        Ok(found) => DecodeError::check_length(found, out.len()),
        Err(lz4_flex::block::DecompressError::OutputTooSmall { .. }) => {
            Err(DecodeError::TooLong { limit: out.len() as u64 })
        }
        Err(error) => Err(DecodeError::stream("lz4", error)),
    }
}

/// Decompresses an LZ4 block, preceded by its decompressed length, to at most `limit` bytes.
pub(super) fn unlz4_at_most(bytes: &[u8], limit: u64) -> Result<Vec<u8>, DecodeError> {
    let (length, _) = lz4_parts(bytes)?;
    if length as u64 > limit {
        return Err(DecodeError::TooLong { limit });
    }
    let mut out = zeroed(length as u64)?;
    unlz4(bytes, &mut out).map(|()| out)
}

/// Compresses into an LZ4 block preceded by its decompressed length.
pub(super) fn lz4(bytes: &[u8]) -> Result<Vec<u8>, EncodeError> {
    if i32::try_from(bytes.len()).is_err() {
        return Err(EncodeError::stream("lz4", format!("{} bytes are too many", bytes.len())));
    }
    Ok(lz4_flex::block::compress_prepend_size(bytes))
}

/// Fills `out`; the stream, checksums included, must end there.
fn exactly(mut decoder: impl Read, codec: &'static str, out: &mut [u8]) -> Result<(), DecodeError> {
    let bad = |error| DecodeError::stream(codec, error);
    let mut filled = 0;
    while filled < out.len() {
        match decoder.read(&mut out[filled..]).map_err(bad)? {
            0 => break,
            read => filled += read,
        }
    }
    DecodeError::check_length(filled, out.len())?;
    match decoder.read(&mut [0]).map_err(bad)? {
        0 => Ok(()),
        _ => Err(DecodeError::TooLong { limit: out.len() as u64 }),
    }
}

fn at_most(decoder: impl Read, codec: &'static str, limit: u64) -> Result<Vec<u8>, DecodeError> {
    let mut decoded = Vec::new();
    let read = decoder.take(limit.saturating_add(1)).read_to_end(&mut decoded);
    read.map_err(|error| match error.kind() {
        std::io::ErrorKind::OutOfMemory => NoMemory.into(),
        _ => DecodeError::stream(codec, error),
    })?;
    if decoded.len() as u64 > limit {
        return Err(DecodeError::TooLong { limit });
    }
    Ok(decoded)
}
