//! Bytes->bytes codecs.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::blosc::{Blosc, Buffer, COMPRESSORS, unblosc_at_most};
use super::error::{DecodeError, EncodeError, PipelineError};
use super::{layout, stream};
use crate::format::codec::Codec;
use crate::format::limits::MAX_DECODED_BYTES;
use crate::memory::zeroed;
use crate::text::count;

/// Length of a checksum in bytes.
const CHECKSUM_BYTES: usize = 4;
/// Default compression level of zlib.
const USUAL_ZLIB_LEVEL: u32 = 6;

/// One bytes->bytes codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BytesCodec {
    /// Checksum of four bytes before or after the data.
    Checksum(Sum, Location),
    /// gzip (RFC 1952), one or more members and zeros after them; the level, from 0 to 9.
    Gzip(u32),
    /// zlib (RFC 1950); the level, from 0 to 9.
    Zlib(u32),
    /// Zstandard (RFC 8878), one or more frames; the level, and whether a frame ends with a
    /// checksum.
    Zstd(i32, bool),
    /// A Blosc 1 buffer.
    Blosc(Blosc),
    /// An LZ4 block preceded by its decompressed length.
    Lz4,
    /// An LZ4 block alone.
    Lz4Block,
    /// Byte shuffle of elements of this length in bytes.
    Shuffle(usize),
}

/// Kind of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sum {
    /// CRC-32C.
    Crc32c,
    /// CRC-32, as in gzip.
    Crc32,
    /// Adler-32, as in zlib.
    Adler32,
}

/// Position of a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// Before the data.
    Start,
    /// After the data.
    End,
}

impl Sum {
    fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Crc32 => "crc32",
            Self::Adler32 => "adler32",
        }
    }

    fn of(self, bytes: &[u8]) -> u32 {
        match self {
            Self::Crc32c => crc32c::crc32c(bytes),
            Self::Crc32 => {
                let mut crc = flate2::Crc::new();
                crc.update(bytes);
                crc.sum()
            }
            Self::Adler32 => adler2::adler32_slice(bytes),
        }
    }

    /// Verifies the checksum and returns the bytes it covers.
    fn strip(self, location: Location, bytes: &[u8]) -> Result<&[u8], DecodeError> {
        let parts = match location {
            Location::Start => bytes.split_first_chunk().map(|(sum, body)| (body, sum)),
            Location::End => bytes.split_last_chunk(),
        };
        let codec = self.name();
        let (body, stored): (_, &[u8; CHECKSUM_BYTES]) =
            parts.ok_or(DecodeError::TooShort { codec, found: bytes.len() })?;
        let (stored, computed) = (u32::from_le_bytes(*stored), self.of(body));
        if stored != computed {
            return Err(DecodeError::Checksum { codec, stored, computed });
        }
        Ok(body)
    }

    fn add(self, location: Location, bytes: &[u8]) -> Vec<u8> {
        let sum = self.of(bytes).to_le_bytes();
        match location {
            Location::Start => [&sum, bytes].concat(),
            Location::End => [bytes, &sum].concat(),
        }
    }
}

/// Parser of the configuration of one codec.
struct Options<'a>(&'a Codec);

impl Options<'_> {
    fn refused<T>(&self, member: &'static str, expected: &'static str) -> Result<T, PipelineError> {
        Err(PipelineError::Option { codec: self.0.name.clone(), member, expected })
    }

    /// Parses a whole number in a range; `usual` if it is absent or null.
    fn number<T: TryFrom<i64> + PartialOrd>(
        &self,
        member: &'static str,
        range: RangeInclusive<T>,
        usual: T,
        expected: &'static str,
    ) -> Result<T, PipelineError> {
        let number = |value: &Value| value.as_i64().and_then(|number| T::try_from(number).ok());
        match self.0.option(member) {
            None | Some(Value::Null) => Ok(usual),
            Some(value) => match number(value).filter(|number| range.contains(number)) {
                Some(value) => Ok(value),
                None => self.refused(member, expected),
            },
        }
    }

    /// Parses a level of zlib, from 0 to 9; -1 is zlib's default.
    fn zlib_level(&self, usual: i32) -> Result<u32, PipelineError> {
        let level = self.number("level", -1..=9, usual, "from -1 to 9")?;
        Ok(u32::try_from(level).unwrap_or(USUAL_ZLIB_LEVEL))
    }

    fn zstd(&self) -> Result<BytesCodec, PipelineError> {
        let range = zstd::compression_level_range();
        let level = self.number("level", range, 0, "a level of zstd")?;
        let checksum = match self.0.option("checksum") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(checksum)) => *checksum,
            Some(_) => return self.refused("checksum", "true or false"),
        };
        Ok(BytesCodec::Zstd(level, checksum))
    }

    fn blosc(&self, item: usize) -> Result<BytesCodec, PipelineError> {
        let cname = match self.0.option("cname") {
            None => "lz4",
            Some(name) => name.as_str().unwrap_or_default(),
        };
        let Some(cname) = COMPRESSORS.iter().find(|known| known.to_bytes() == cname.as_bytes())
        else {
            return self.refused("cname", "blosclz, lz4, lz4hc, zlib or zstd");
        };
        let clevel = self.number("clevel", 0..=9, 5, "from 0 to 9")?;
        let size = "a whole number of bytes";
        let typesize = self.number("typesize", 1..=i32::MAX as usize, item, size)?;
        let blocksize = self.number("blocksize", 0..=i32::MAX as usize, 0, size)?;
        Ok(BytesCodec::Blosc(Blosc {
            cname,
            clevel,
            shuffle: self.shuffle(item)?,
            typesize,
            blocksize,
        }))
    }

    /// Parses the shuffle of Blosc: a word in Zarr v3, a number in numcodecs, whose -1 chooses by
    /// the length of items.
    fn shuffle(&self, item: usize) -> Result<u8, PipelineError> {
        let expected = "noshuffle, shuffle or bitshuffle";
        match self.0.option("shuffle") {
            Some(Value::String(word)) => match word.as_str() {
                "noshuffle" => Ok(0),
                "shuffle" => Ok(1),
                "bitshuffle" => Ok(2),
                _ => self.refused("shuffle", expected),
            },
            _ => Ok(match self.number("shuffle", -1..=2, 1, expected)? {
                0 => 0,
                1 => 1,
                -1 if item != 1 => 1,
                _ => 2,
            }),
        }
    }

    fn location(&self, usual: Location) -> Result<Location, PipelineError> {
        match self.0.option("location") {
            None | Some(Value::Null) => Ok(usual),
            Some(Value::String(word)) if word == "start" => Ok(Location::Start),
            Some(Value::String(word)) if word == "end" => Ok(Location::End),
            Some(_) => self.refused("location", "\"start\" or \"end\""),
        }
    }
}

impl BytesCodec {
    /// Parses a codec over bytes of items of `item` bytes.
    pub(super) fn parse(codec: &Codec, item: usize) -> Result<Self, PipelineError> {
        let options = Options(codec);
        Ok(match codec.name.as_str() {
            "crc32c" => Self::Checksum(Sum::Crc32c, Location::End),
            "numcodecs.crc32c" => Self::Checksum(Sum::Crc32c, options.location(Location::End)?),
            "numcodecs.crc32" => Self::Checksum(Sum::Crc32, options.location(Location::Start)?),
            "numcodecs.adler32" => Self::Checksum(Sum::Adler32, options.location(Location::Start)?),
            "gzip" => Self::Gzip(options.zlib_level(5)?),
            "numcodecs.gzip" => Self::Gzip(options.zlib_level(1)?),
            "numcodecs.zlib" | "zlib" => Self::Zlib(options.zlib_level(1)?),
            "zstd" | "numcodecs.zstd" => options.zstd()?,
            "blosc" | "numcodecs.blosc" => options.blosc(item)?,
            "numcodecs.lz4" => Self::Lz4,
            "lz4_block" => Self::Lz4Block,
            "numcodecs.shuffle" => {
                let expected = "a whole number of bytes";
                let element = options.number("elementsize", 0..=1 << 20, item, expected)?;
                Self::Shuffle(element)
            }
            name => return Err(PipelineError::UnknownCodec(name.to_owned())),
        })
    }

    /// Returns the maximum length of the encoded form of `nbytes` that a reasonable encoder
    /// produces. Nothing is decompressed to more than that between two codecs.
    fn bound(self, nbytes: u64) -> u64 {
        match self {
            Self::Checksum(..) | Self::Shuffle(_) => nbytes.saturating_add(CHECKSUM_BYTES as u64),
            _ => nbytes.saturating_add(nbytes / 8).saturating_add(1024),
        }
    }

    /// Decodes to exactly the length of `out`.
    fn decode_into(self, encoded: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
        match self {
            Self::Checksum(sum, location) => copy(sum.strip(location, encoded)?, out),
            Self::Gzip(_) => stream::ungzip(encoded, out),
            Self::Zlib(_) => stream::unzlib(encoded, out),
            Self::Zstd(..) => stream::unzstd(encoded, out),
            Self::Blosc(_) => Buffer::parse(encoded)?.decompress(out),
            Self::Lz4 => stream::unlz4(encoded, out),
            Self::Lz4Block => stream::unlz4_block(encoded, out),
            Self::Shuffle(element) => {
                DecodeError::check_length(encoded.len(), out.len())?;
                check_elements(encoded.len(), element)
                    .map_err(|reason| DecodeError::stream("shuffle", reason))?;
                layout::unshuffle(encoded, out, element);
                Ok(())
            }
        }
    }

    /// Decodes to at most `limit` bytes.
    fn decode_at_most(self, encoded: &[u8], limit: u64) -> Result<Cow<'_, [u8]>, DecodeError> {
        let within = |found: usize| match found as u64 <= limit {
            true => Ok(zeroed(found as u64)?),
            false => Err(DecodeError::TooLong { limit }),
        };
        Ok(Cow::Owned(match self {
            Self::Checksum(sum, location) => {
                return sum.strip(location, encoded).map(Cow::Borrowed);
            }
            Self::Gzip(_) => stream::ungzip_at_most(encoded, limit)?,
            Self::Zlib(_) => stream::unzlib_at_most(encoded, limit)?,
            Self::Zstd(..) => stream::unzstd_at_most(encoded, limit)?,
            Self::Lz4 => stream::unlz4_at_most(encoded, limit)?,
            // It does not say how long it is.
            Self::Lz4Block => return Err(DecodeError::TooLong { limit }),
            Self::Blosc(_) => unblosc_at_most(encoded, limit)?,
            Self::Shuffle(_) => {
                let mut out = within(encoded.len())?;
                self.decode_into(encoded, &mut out)?;
                out
            }
        }))
    }

    fn encode(self, bytes: &[u8]) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Checksum(sum, location) => Ok(sum.add(location, bytes)),
            Self::Gzip(level) => stream::gzip(bytes, level),
            Self::Zlib(level) => stream::zlib(bytes, level),
            Self::Zstd(level, checksum) => stream::zstd(bytes, level, checksum),
            Self::Blosc(blosc) => blosc.compress(bytes),
            Self::Lz4 => stream::lz4(bytes),
            Self::Lz4Block => Ok(lz4_flex::block::compress(bytes)),
            Self::Shuffle(element) => {
                let nbytes = bytes.len();
                check_elements(nbytes, element).map_err(|_| EncodeError::Elements {
                    codec: "shuffle",
                    element,
                    nbytes,
                })?;
                let mut out = vec![0; nbytes];
                layout::shuffle(bytes, &mut out, element);
                Ok(out)
            }
        }
    }
}

fn check_elements(nbytes: usize, element: usize) -> Result<(), String> {
    if element <= 1 || nbytes.is_multiple_of(element) {
        return Ok(());
    }
    Err(format!("it has {}, no whole elements of {element}", count(nbytes, "byte")))
}

fn copy(bytes: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    DecodeError::check_length(bytes.len(), out.len())?;
    out.copy_from_slice(bytes);
    Ok(())
}

/// Returns the maximum length of `nbytes` bytes after encoding by `codecs`.
pub(super) fn bound(codecs: &[BytesCodec], nbytes: u64) -> u64 {
    let longest = codecs.iter().fold(nbytes, |nbytes, codec| codec.bound(nbytes));
    longest.min(2 * MAX_DECODED_BYTES as u64)
}

/// Returns the length of `nbytes` bytes after encoding by `codecs`; `None` if it depends on the
/// contents.
pub(super) fn encoded_nbytes(codecs: &[BytesCodec], nbytes: u64) -> Option<u64> {
    codecs.iter().try_fold(nbytes, |nbytes, codec| match codec {
        BytesCodec::Checksum(..) => nbytes.checked_add(CHECKSUM_BYTES as u64),
        BytesCodec::Shuffle(_) => Some(nbytes),
        _ => None,
    })
}

/// Undoes `codecs`, given in encoding order, to exactly the length of `out`.
pub(super) fn decode_into(
    codecs: &[BytesCodec],
    encoded: &[u8],
    out: &mut [u8],
) -> Result<(), DecodeError> {
    match codecs.split_last() {
        None => copy(encoded, out),
        Some((codec, [])) => codec.decode_into(encoded, out),
        Some((codec, before)) => {
            let between = codec.decode_at_most(encoded, bound(before, out.len() as u64))?;
            decode_into(before, &between, out)
        }
    }
}

/// Undoes `codecs` to at most `limit` bytes, without a copy if none of them compresses.
pub(super) fn decode_at_most<'a>(
    codecs: &[BytesCodec],
    encoded: &'a [u8],
    limit: u64,
) -> Result<Cow<'a, [u8]>, DecodeError> {
    let Some((codec, before)) = codecs.split_last() else {
        return Ok(Cow::Borrowed(encoded));
    };
    Ok(match codec.decode_at_most(encoded, bound(before, limit))? {
        Cow::Borrowed(bytes) => decode_at_most(before, bytes, limit)?,
        Cow::Owned(bytes) => Cow::Owned(decode_at_most(before, &bytes, limit)?.into_owned()),
    })
}

/// Applies `codecs` in order.
pub(super) fn encode<'a>(
    codecs: &[BytesCodec],
    bytes: Cow<'a, [u8]>,
) -> Result<Cow<'a, [u8]>, EncodeError> {
    codecs.iter().try_fold(bytes, |bytes, codec| codec.encode(&bytes).map(Cow::Owned))
}
