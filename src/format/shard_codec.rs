//! Codecs over a whole shard, as its metadata names them: the bytes->bytes codecs after
//! `sharding_indexed`. [`super::whole_shard`] undoes them.

use serde_json::Value;

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
            "crc32c" => Self::Crc32c,
            "numcodecs.crc32c" => match codec.option("location") {
                None | Some(Value::Null) => Self::Crc32c,
                Some(Value::String(location)) if location == "end" => Self::Crc32c,
                // Every offset in the shard would be that of a shard without the checksum.
                Some(_) => {
                    let member = "location of numcodecs.crc32c after sharding_indexed";
                    return Err(MetadataError::invalid(member, "\"end\""));
                }
            },
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::codec::parse_chain;

    #[test]
    fn a_checksum_before_the_shard_is_refused() {
        let parse = |configuration| {
            let codec = json!([{"name": "numcodecs.crc32c", "configuration": configuration}]);
            ShardCodec::parse(&parse_chain(Some(&codec)).unwrap()[0])
        };
        for at_the_end in [json!({}), json!({"location": null}), json!({"location": "end"})] {
            assert_eq!(parse(at_the_end).unwrap(), ShardCodec::Crc32c);
        }
        for elsewhere in [json!({"location": "start"}), json!({"location": 4})] {
            let expected = "location of numcodecs.crc32c after sharding_indexed must be \"end\"";
            assert_eq!(parse(elsewhere).unwrap_err().to_string(), expected);
        }
    }
}
