//! Blosc 1 buffers, compressed and decompressed by c-blosc.

use std::ffi::CStr;

use super::error::{DecodeError, EncodeError};
use crate::format::blosc::{BLOSC_BYTES, BloscHeader};
use crate::memory::zeroed;

/// Compression parameters of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blosc {
    /// Name of the compressor.
    pub cname: &'static CStr,
    /// Compression level from 0 (stored) to 9.
    pub clevel: u8,
    /// Shuffle: 0 none, 1 bytes, 2 bits.
    pub shuffle: u8,
    /// Length of the shuffled elements in bytes.
    pub typesize: usize,
    /// Length of a block in bytes; 0 lets c-blosc choose.
    pub blocksize: usize,
}

/// Names of the linked compressors.
pub(super) const COMPRESSORS: [&CStr; 5] = [c"blosclz", c"lz4", c"lz4hc", c"zlib", c"zstd"];

const CODEC: &str = "blosc";

/// Blosc buffer whose length has been checked against its header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer<'a> {
    bytes: &'a [u8],
    /// Decompressed length in bytes, according to the header.
    pub decoded: usize,
}

impl<'a> Buffer<'a> {
    /// Parses the header of the buffer at the beginning of `bytes`. Bytes after the buffer are
    /// ignored, as by numcodecs.
    #[allow(unsafe_code, reason = "c-blosc is a C library; each call carries its proof")]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let too_short = DecodeError::TooShort { codec: CODEC, found: bytes.len() };
        let header = BloscHeader::parse(bytes.first_chunk().ok_or(too_short)?);
        let nbytes = header.nbytes as usize;
        let bytes = bytes.get(..nbytes).unwrap_or(bytes);
        let mut decoded = 0;
        // SAFETY: `bytes` is readable for the given length and `decoded` outlives the call.
        let valid = unsafe {
            blosc_src::blosc_cbuffer_validate(bytes.as_ptr().cast(), bytes.len(), &raw mut decoded)
        };
        if valid < 0 {
            let reason = "its header is not that of a Blosc buffer of this length";
            return Err(DecodeError::stream(CODEC, reason));
        }
        Ok(Self { bytes, decoded })
    }

    /// Decompresses the buffer, which must decode to exactly the length of `out`.
    #[allow(unsafe_code, reason = "c-blosc is a C library; each call carries its proof")]
    pub(crate) fn decompress(self, out: &mut [u8]) -> Result<(), DecodeError> {
        DecodeError::check_length(self.decoded, out.len())?;
        // SAFETY: `parse` has checked that the buffer is as long as its header says; `out` is
        // writable for the length passed along and is another slice. No other thread is involved.
        let written = unsafe {
            blosc_src::blosc_decompress_ctx(
                self.bytes.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                out.len(),
                1,
            )
        };
        match usize::try_from(written) {
            Ok(written) if written == self.decoded => Ok(()),
            _ => Err(DecodeError::stream(CODEC, "it cannot be decompressed")),
        }
    }
}

/// Decompresses a Blosc buffer to at most `limit` bytes.
pub(in crate::format) fn unblosc_at_most(bytes: &[u8], limit: u64) -> Result<Vec<u8>, DecodeError> {
    let buffer = Buffer::parse(bytes)?;
    if buffer.decoded as u64 > limit {
        return Err(DecodeError::TooLong { limit });
    }
    let mut decoded = zeroed(buffer.decoded as u64)?;
    buffer.decompress(&mut decoded)?;
    Ok(decoded)
}

impl Blosc {
    /// Compresses `bytes` into one buffer.
    #[allow(unsafe_code, reason = "c-blosc is a C library; the call carries its proof")]
    pub(super) fn compress(&self, bytes: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let mut out = vec![0; bytes.len() + BLOSC_BYTES];
        // SAFETY: `bytes` is readable and `out` writable for the lengths passed along, the name
        // ends with a NUL. No other thread is involved.
        let written = unsafe {
            blosc_src::blosc_compress_ctx(
                self.clevel.into(),
                self.shuffle.into(),
                self.typesize,
                bytes.len(),
                bytes.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                out.len(),
                self.cname.as_ptr(),
                self.blocksize,
                1,
            )
        };
        match usize::try_from(written) {
            Ok(written) if (BLOSC_BYTES..=out.len()).contains(&written) => out.truncate(written),
            _ => return Err(EncodeError::stream(CODEC, "it cannot be compressed")),
        }
        Ok(out)
    }
}
