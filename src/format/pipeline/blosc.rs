//! Blosc 1 buffers: the calls of c-blosc.

use std::ffi::CStr;

use super::error::{DecodeError, EncodeError};
use crate::format::bloscpack::BLOSC_BYTES;

/// How a buffer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blosc {
    /// The compressor inside.
    pub cname: &'static CStr,
    /// From 0, which stores, to 9.
    pub clevel: u8,
    /// 0 none, 1 bytes, 2 bits.
    pub shuffle: u8,
    /// Length of the elements that are shuffled, in bytes.
    pub typesize: usize,
    /// Length of a block in bytes; 0: c-blosc chooses.
    pub blocksize: usize,
}

/// The compressors that are linked, by name.
pub const COMPRESSORS: [&CStr; 5] = [c"blosclz", c"lz4", c"lz4hc", c"zlib", c"zstd"];

const CODEC: &str = "blosc";

/// Bytes that a buffer decompresses to, by its header. The header is as long as it must be and says
/// the buffer's own length right.
#[allow(unsafe_code, reason = "c-blosc is a C library; each call carries its proof")]
pub fn decoded_length(buffer: &[u8]) -> Result<usize, DecodeError> {
    if buffer.len() < BLOSC_BYTES {
        return Err(DecodeError::TooShort { codec: CODEC, found: buffer.len() });
    }
    let mut length = 0;
    // SAFETY: `buffer` is readable for the given length and `length` outlives the call.
    let valid = unsafe {
        blosc_src::blosc_cbuffer_validate(buffer.as_ptr().cast(), buffer.len(), &raw mut length)
    };
    if valid < 0 {
        return Err(DecodeError::stream(
            CODEC,
            "its header is not that of a Blosc buffer of this length",
        ));
    }
    Ok(length)
}

/// Decompresses a buffer that has exactly the length of `out`.
#[allow(unsafe_code, reason = "c-blosc is a C library; each call carries its proof")]
pub fn decompress(buffer: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    let length = decoded_length(buffer)?;
    DecodeError::check_length(length, out.len())?;
    // SAFETY: `decoded_length` has checked that the buffer is as long as its header says; `out` is
    // writable for the length passed along and is another slice. No other thread is involved.
    let written = unsafe {
        blosc_src::blosc_decompress_ctx(
            buffer.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            out.len(),
            1,
        )
    };
    match usize::try_from(written) {
        Ok(written) if written == length => Ok(()),
        _ => Err(DecodeError::stream(CODEC, "it cannot be decompressed")),
    }
}

impl Blosc {
    /// Compresses `bytes` into one buffer.
    #[allow(unsafe_code, reason = "c-blosc is a C library; the call carries its proof")]
    pub fn compress(&self, bytes: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let mut out = vec![0; bytes.len() + BLOSC_BYTES];
        // SAFETY: `bytes` is readable and `out` writable for the lengths passed along, the name ends
        // with a NUL. No other thread is involved.
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
