//! Codecs over a whole shard, as its metadata names them: the bytes->bytes codecs after
//! `sharding_indexed`. [`super::whole_shard`] undoes them.

use super::codec::Codec;
use super::error::MetadataError;

/// Bytes->bytes codec over a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardCodec {
    /// `crc32c`: four bytes at the end.
    Crc32c,
    /// A compressor.
    Compressed(Compression),
}

/// Supported compressor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// gzip (RFC 1952), one or more members.
    Gzip,
    /// zlib (RFC 1950).
    Zlib,
    /// Zstandard (RFC 8878), one or more frames.
    Zstd,
    /// A Blosc 1 buffer.
    Blosc,
}

impl ShardCodec {
    /// Parses a codec that follows `sharding_indexed`.
    pub fn parse(codec: &Codec) -> Result<Self, MetadataError> {
        Ok(match codec.name.as_str() {
            "crc32c" | "numcodecs.crc32c" => Self::Crc32c,
            "gzip" | "numcodecs.gzip" => Self::Compressed(Compression::Gzip),
            "zlib" | "numcodecs.zlib" => Self::Compressed(Compression::Zlib),
            "zstd" | "numcodecs.zstd" => Self::Compressed(Compression::Zstd),
            "blosc" | "numcodecs.blosc" => Self::Compressed(Compression::Blosc),
            name => return Err(MetadataError::UnknownAfter(name.to_owned())),
        })
    }

    /// Name of the codec in metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Compressed(Compression::Gzip) => "gzip",
            Self::Compressed(Compression::Zlib) => "zlib",
            Self::Compressed(Compression::Zstd) => "zstd",
            Self::Compressed(Compression::Blosc) => "blosc",
        }
    }
}
