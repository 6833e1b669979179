//! Bloscpack, format version 3: Blosc buffers one after the other in one file.
//!
//! ```text
//! file      | header | metadata, if any | offsets, if any | chunk | digest | chunk | digest | ...
//!
//! header, 32 bytes, little-endian
//!   0  "blpk"
//!   4  u8   format version: 3
//!   5  u8   options: 1 there are offsets, 2 there is metadata
//!   6  u8   checksum of chunks: number of a digest
//!   7  u8   size of an item in bytes
//!   8  i32  bytes of a chunk before compression; -1 unknown
//!  12  i32  bytes of the last one
//!  16  i64  chunks; -1 unknown
//!  24  i64  spare entries of the offsets        (the design document: i32 length of the metadata,
//!                                               4 reserved bytes)
//!
//! metadata  32 bytes of its own header, the text, zeros up to the room it has, its digest
//!   0  8 bytes  "JSON"                          (the design document: the bare text alone)
//!   8  u8   options
//!   9  u8   checksum: number of a digest
//!  10  u8   codec: 0 none, 1 zlib
//!  11  u8   its level
//!  12  u32  length of the text
//!  16  u32  room
//!  20  u32  length as stored
//!  24  8 bytes  of the user
//!
//! offsets   i64 for each chunk and each spare entry, from the file's first byte; -1 unknown
//!
//! chunk     a Blosc buffer (`blosc`)
//! ```
//!
//! Superchunk files of BLZ and bcolz have a header of 16 bytes, format version 1: "blpk", the
//! version, 3 zeros, i64 number of chunks, which is 1.

use std::fmt;
use std::io::Read;

use super::blosc::BLOSC_BYTES;
use super::digest::Digest;
use crate::text::count;

/// Length of a file's header in bytes.
pub const HEADER_BYTES: usize = 32;
/// Length of the header of a superchunk file in bytes.
pub const SUPERCHUNK_BYTES: usize = 16;
/// Length of the metadata's own header in bytes.
pub const METADATA_HEADER_BYTES: usize = 32;
/// Length of an entry in the table of offsets, in bytes.
pub const OFFSET_BYTES: u64 = 8;
/// Maximum length of the metadata in bytes, both stored and decoded.
pub const MAX_METADATA: u64 = 32 << 20;
/// First bytes of a file.
const MAGIC: &[u8; 4] = b"blpk";
/// First bytes of the metadata's own header.
const METADATA_MAGIC: &[u8; 8] = b"JSON\0\0\0\0";

/// Error reading a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BloscpackError {
    /// The file does not begin with "blpk".
    #[error("it does not begin with \"blpk\"")]
    Magic,
    /// The header is cut off. Holds the length of the file in bytes.
    #[error("it has {}, its header alone has {HEADER_BYTES}", count(.0, "byte"))]
    TooShort(u64),
    /// The format version is not supported. Holds the version found and the supported one.
    #[error("format version is {0}, only {1} can be read here")]
    Version(u8, u8),
    /// A header field has an invalid value.
    #[error("{field} is {value}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A part does not end within the file.
    #[error("{0} would end beyond the file")]
    Beyond(Part),
    /// There are more offsets than the limit for indexes allows.
    #[error("its {nchunks} offsets are more than the limit for indexes allows")]
    TooManyOffsets {
        /// Number of chunks according to the header.
        nchunks: u64,
    },
    /// The metadata does not match its header.
    #[error("metadata: {0}")]
    Metadata(#[from] MetadataDefect),
}

/// Part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The metadata with its header.
    Metadata,
    /// The table of offsets.
    Offsets,
    /// The one chunk of a superchunk file.
    Chunk,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "metadata",
            Self::Offsets => "offsets",
            Self::Chunk => "the chunk",
        })
    }
}

/// Defect of the metadata in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetadataDefect {
    /// It has neither a header nor the form of JSON.
    #[error("it begins neither with \"JSON\" nor as JSON")]
    NotJson,
    /// The number of its checksum is unknown.
    #[error("its checksum is of no known kind")]
    UnknownChecksum,
    /// The number of its codec is unknown.
    #[error("its codec is neither none nor zlib")]
    UnknownCodec,
    /// More bytes are stored than reserved.
    #[error("it is longer than the room for it")]
    BeyondRoom,
    /// It is longer than the limit, stored or decoded.
    #[error("it is too long")]
    TooLong,
    /// The checksum stored with it is another one.
    #[error("its checksum does not match")]
    Checksum,
    /// It cannot be decompressed to the length in its header.
    #[error("it cannot be decompressed")]
    Undecodable,
}

/// Header of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Option bits as stored.
    pub options: u8,
    /// Checksum after each chunk.
    pub digest: Digest,
    /// Size of an item in bytes.
    pub typesize: u8,
    /// Uncompressed bytes of a chunk; `None` if unknown.
    pub chunk_size: Option<u32>,
    /// Uncompressed bytes of the last chunk; `None` if unknown.
    pub last_chunk: Option<u32>,
    /// Number of chunks; `None` if unknown.
    pub nchunks: Option<u64>,
    /// The last 8 bytes: number of spare offsets, or the length of the metadata according to the
    /// design document.
    pub rest: i64,
}

impl Header {
    /// Parses the header of a file of `size` bytes from the first bytes of the file.
    pub fn parse(bytes: &[u8], size: u64) -> Result<Self, BloscpackError> {
        if !bytes.starts_with(MAGIC) {
            return Err(BloscpackError::Magic);
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(BloscpackError::TooShort(size));
        };
        if bytes[4] != 3 {
            return Err(BloscpackError::Version(bytes[4], 3));
        }
        let field = |field, value| BloscpackError::Field { field, value };
        let options = bytes[5];
        if options > 3 {
            return Err(field("options", options.into()));
        }
        let digest = Digest::from_number(bytes[6]);
        let digest = digest.ok_or_else(|| field("checksum", bytes[6].into()))?;
        let known = |name: &'static str, at: usize| match i64::from(int32(bytes, at)) {
            -1 => Ok(None),
            value @ 1.. => Ok(u32::try_from(value).ok()),
            value => Err(field(name, value)),
        };
        let nchunks = match int64(bytes, 16) {
            -1 => None,
            value => {
                let nchunks = u64::try_from(value).map_err(|_| field("nchunks", value))?;
                // Each chunk has at least a Blosc header.
                if nchunks.checked_mul(BLOSC_BYTES as u64).is_none_or(|least| least > size) {
                    return Err(field("nchunks", value));
                }
                Some(nchunks)
            }
        };
        let (chunk_size, last_chunk) = match nchunks {
            // Chunk sizes of a file without chunks are meaningless.
            Some(0) => (None, None),
            _ => (known("chunk-size", 8)?, known("last-chunk", 12)?),
        };
        if let (Some(chunk), Some(last)) = (chunk_size, last_chunk)
            && last > chunk
        {
            return Err(field("last-chunk", last.into()));
        }
        let (typesize, rest) = (bytes[7], int64(bytes, 24));
        Ok(Self { options, digest, typesize, chunk_size, last_chunk, nchunks, rest })
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..8].copy_from_slice(&[3, self.options, self.digest.number(), self.typesize]);
        // All ones: unknown.
        bytes[8..12].copy_from_slice(&self.chunk_size.unwrap_or(u32::MAX).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.last_chunk.unwrap_or(u32::MAX).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.nchunks.unwrap_or(u64::MAX).to_le_bytes());
        bytes[24..].copy_from_slice(&self.rest.to_le_bytes());
        bytes
    }

    /// Returns whether the file has a table of offsets.
    pub fn has_offsets(&self) -> bool {
        self.options & 1 != 0
    }

    /// Returns whether the file has metadata.
    pub fn has_metadata(&self) -> bool {
        self.options & 2 != 0
    }

    /// Returns the number of spare entries in the table of offsets, for files in which the last 8
    /// bytes hold it. Fails if the number is negative.
    pub fn spare_offsets(&self) -> Result<u64, BloscpackError> {
        let field = "max-app-chunks";
        u64::try_from(self.rest).map_err(|_| BloscpackError::Field { field, value: self.rest })
    }
}

/// Position and encoding of the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataPlace {
    /// Offset of the stored text.
    pub offset: u64,
    /// Stored length of the text in bytes.
    pub stored: u64,
    /// Decoded length of the text in bytes.
    pub decoded: u64,
    /// `true` if the text is compressed with zlib.
    pub compressed: bool,
    /// Checksum over the stored text.
    pub digest: Digest,
    /// Offset of the checksum.
    pub digest_offset: u64,
    /// Offset of the first byte after the metadata.
    pub end: u64,
    /// `true` if the metadata is bare text whose length is in the last 8 bytes of the header, as in
    /// the design document.
    pub is_bare: bool,
}

impl MetadataPlace {
    /// Locates the metadata in a file of `size` bytes. `bytes` are those after the header.
    pub fn parse(header: &Header, bytes: &[u8], size: u64) -> Result<Self, BloscpackError> {
        let begin = HEADER_BYTES as u64;
        let own = bytes.first_chunk::<METADATA_HEADER_BYTES>();
        let Some(own) = own.filter(|own| own.starts_with(METADATA_MAGIC)) else {
            // The lower half of the last 8 bytes is a length.
            let stored = header.rest.cast_unsigned() & u64::from(u32::MAX);
            let is_text = bytes.first().is_some_and(|first| b"{[\" \n".contains(first));
            if !is_text || stored == 0 {
                return Err(MetadataDefect::NotJson.into());
            }
            let end = begin.saturating_add(stored);
            let place = Self {
                offset: begin,
                stored,
                decoded: stored,
                compressed: false,
                digest: Digest::None,
                digest_offset: end,
                end,
                is_bare: true,
            };
            return place.within(size);
        };
        let digest = Digest::from_number(own[9]);
        let digest = digest.ok_or(MetadataDefect::UnknownChecksum)?;
        let length = |at| u64::from(int32(own, at).cast_unsigned());
        let (decoded, room, stored) = (length(12), length(16), length(20));
        let compressed = match own[10] {
            0 => false,
            1 => true,
            _ => return Err(MetadataDefect::UnknownCodec.into()),
        };
        if stored > room {
            return Err(MetadataDefect::BeyondRoom.into());
        }
        let offset = begin + METADATA_HEADER_BYTES as u64;
        let digest_offset = offset + room;
        let end = digest_offset + digest.nbytes() as u64;
        let is_bare = false;
        Self { offset, stored, decoded, compressed, digest, digest_offset, end, is_bare }
            .within(size)
    }

    fn within(self, size: u64) -> Result<Self, BloscpackError> {
        if self.end > size {
            return Err(BloscpackError::Beyond(Part::Metadata));
        }
        if self.stored.max(self.decoded) > MAX_METADATA {
            return Err(MetadataDefect::TooLong.into());
        }
        Ok(self)
    }

    /// Decodes the text from its stored bytes and verifies the checksum `digest`.
    pub fn decode(&self, stored: &[u8], digest: &[u8]) -> Result<Vec<u8>, BloscpackError> {
        if self.digest.of(stored) != digest {
            return Err(MetadataDefect::Checksum.into());
        }
        if !self.compressed {
            return Ok(stored.to_vec());
        }
        let mut text = Vec::new();
        let decoder = flate2::read::ZlibDecoder::new(stored);
        let read = decoder.take(self.decoded.saturating_add(1)).read_to_end(&mut text);
        if read.is_err() || text.len() as u64 != self.decoded {
            return Err(MetadataDefect::Undecodable.into());
        }
        Ok(text)
    }
}

/// Returns the header of a superchunk file.
pub fn superchunk_header() -> [u8; SUPERCHUNK_BYTES] {
    let mut bytes = [0; SUPERCHUNK_BYTES];
    bytes[..4].copy_from_slice(MAGIC);
    (bytes[4], bytes[8]) = (1, 1);
    bytes
}

/// Verifies the header of a superchunk file, which must hold exactly one chunk.
pub fn parse_superchunk(bytes: &[u8], size: u64) -> Result<(), BloscpackError> {
    if !bytes.starts_with(MAGIC) {
        return Err(BloscpackError::Magic);
    }
    let Some(bytes) = bytes.first_chunk::<SUPERCHUNK_BYTES>() else {
        return Err(BloscpackError::TooShort(size));
    };
    if bytes[4] != 1 {
        return Err(BloscpackError::Version(bytes[4], 1));
    }
    match int64(bytes, 8) {
        1 => Ok(()),
        value => Err(BloscpackError::Field { field: "number of chunks", value }),
    }
}

// Both functions panic if the field is not within the array: callers pass offsets within arrays of
// known length.
fn int32(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn int64(bytes: &[u8], at: usize) -> i64 {
    i64::from(int32(bytes, at).cast_unsigned()) | i64::from(int32(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut bytes = b"blpk\x03\x03\x02\x08".to_vec();
        bytes.extend(1000_i32.to_le_bytes());
        bytes.extend(600_i32.to_le_bytes());
        bytes.extend(5_i64.to_le_bytes());
        bytes.extend(50_i64.to_le_bytes());
        bytes
    }

    #[test]
    fn a_header_is_read() {
        let read = Header::parse(&header(), 5000).unwrap();
        assert!(read.has_offsets() && read.has_metadata());
        assert_eq!((read.digest, read.typesize), (Digest::Crc32, 8));
        assert_eq!((read.chunk_size, read.last_chunk), (Some(1000), Some(600)));
        assert_eq!((read.nchunks, read.spare_offsets()), (Some(5), Ok(50)));
        assert_eq!(read.encode().as_slice(), header());
    }

    #[test]
    fn each_damaged_field_is_named() {
        let refused = |at: usize, bytes: &[u8], message: &str| {
            let mut damaged = header();
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            let read = Header::parse(&damaged, 5000).and_then(|header| header.spare_offsets());
            assert_eq!(read.unwrap_err().to_string(), message);
        };
        refused(0, b"x", "it does not begin with \"blpk\"");
        refused(4, &[1], "format version is 1, only 3 can be read here");
        refused(5, &[4], "options is 4");
        refused(6, &[9], "checksum is 9");
        refused(8, &(-2_i32).to_le_bytes(), "chunk-size is -2");
        refused(8, &0_i32.to_le_bytes(), "chunk-size is 0");
        refused(12, &1001_i32.to_le_bytes(), "last-chunk is 1001");
        refused(16, &(1_i64 << 62).to_le_bytes(), "nchunks is 4611686018427387904");
        refused(16, &(-2_i64).to_le_bytes(), "nchunks is -2");
        refused(24, &(-1_i64).to_le_bytes(), "max-app-chunks is -1");
        let short = Header::parse(&header()[..20], 20).unwrap_err();
        assert_eq!(short.to_string(), "it has 20 bytes, its header alone has 32");
    }

    #[test]
    fn unknown_numbers_are_none() {
        let mut bytes = header();
        bytes[8..24].fill(0xff);
        let read = Header::parse(&bytes, 5000).unwrap();
        assert_eq!((read.chunk_size, read.last_chunk, read.nchunks), (None, None, None));
        assert_eq!(read.encode().as_slice(), bytes);
    }

    #[test]
    fn metadata_of_both_layouts_is_found() {
        let mut own = METADATA_MAGIC.to_vec();
        own.extend([0, 1, 0, 0]);
        own.extend([7_u32, 70, 7].iter().flat_map(|n| n.to_le_bytes()));
        own.extend([0; 8]);
        let header = Header::parse(&header(), 5000).unwrap();
        let place = MetadataPlace::parse(&header, &own, 5000).unwrap();
        assert_eq!((place.offset, place.stored, place.digest_offset, place.end), (64, 7, 134, 138));
        let digest = Digest::Adler32.of(b"{\"a\":1}");
        assert_eq!(place.decode(b"{\"a\":1}", &digest).unwrap(), b"{\"a\":1}");
        assert!(place.decode(b"{\"a\":2}", &digest).is_err());
        let bare =
            MetadataPlace::parse(&header, b"{\"a\": \"a bare text of JSON\"}", 5000).unwrap();
        assert_eq!((bare.offset, bare.stored, bare.end, bare.is_bare), (32, 50, 82, true));
        let beyond = MetadataPlace::parse(&header, &own, 100).unwrap_err();
        assert_eq!(beyond, BloscpackError::Beyond(Part::Metadata));
    }

    #[test]
    fn a_superchunk_file_holds_one_chunk() {
        let mut bytes = b"blpk\x01\0\0\0".to_vec();
        bytes.extend(1_i64.to_le_bytes());
        assert_eq!(superchunk_header().as_slice(), bytes);
        parse_superchunk(&bytes, 100).unwrap();
        bytes[8] = 2;
        let error = parse_superchunk(&bytes, 100).unwrap_err();
        assert_eq!(error.to_string(), "number of chunks is 2");
    }
}
