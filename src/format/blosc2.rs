//! Blosc2: frames of chunks in one file, and what `b2nd` and `caterva` say of the array in them.
//!
//! ```text
//! frame   | header | chunk | chunk | ... | offsets, a chunk as well | trailer |
//!                   <------ stored ----->
//!
//! header, msgpack at fixed places, big-endian
//!   0  array of 13 or 14
//!   1  text of 8: "b2frame\0"
//!  11  i32  bytes of the header
//!  16  u64  bytes of the frame
//!  25  u8   version; 64 chunks of different lengths; 128 blocks of different lengths
//!  26  u8   0 one file, 1 a directory
//!  27  u8   compressor; 16 times its level
//!  28  u8   how blocks are split
//!  30  i64  bytes of all chunks before compression
//!  39  i64  stored: bytes of all chunks, and of what is between them
//!  48  i32  bytes of an item
//!  53  i32  bytes of a block, where all have one length
//!  58  i32  bytes of a chunk before compression
//!  68  bool there are metalayers of any length, in the trailer
//!  71  16 bytes  filters and what they are given
//!  87  metalayers: array of u16, map of names to offsets, array of binaries in the same order
//!
//! metalayer b2nd or caterva: array of version, rank, shape, shape of a chunk, of a block; of b2nd also the kind
//!         of its data type, 0 for NumPy's, and its name
//!
//! offsets i64 for each chunk, little-endian, from the header's end; with the topmost bit set there is none: its
//!         topmost byte says what all items are
//!
//! trailer, msgpack: array of version, metalayers like those of the header, and 23 bytes at the frame's end:
//!   0  u32, its length at 1         5  fixext of 16 bytes
//! ```

use std::collections::HashSet;
use std::fmt;

use rmpv::Value;

use super::index::ENTRY_BYTES;
use super::limits::{MAX_DECODED_BYTES, MAX_INDEX_BYTES, MAX_RANK};
use crate::text::count;

/// Length of the parts of a header that have a fixed place, in bytes.
pub const FIXED_BYTES: usize = 87;
/// Maximum length of a header or a trailer in bytes: what is read of one takes up to a hundred times as much memory.
pub const MAX_HEADER: u64 = 1 << 20;
/// Length of the end of a trailer, which has a fixed place, in bytes.
pub const TRAILER_END: usize = 23;
/// Length of a chunk's header in bytes.
pub const CHUNK_HEADER_BYTES: usize = 32;
/// Length of an offset in bytes.
pub const OFFSET_BYTES: u64 = 8;
/// Latest version of frames.
const MAX_VERSION: u8 = 3;
/// Values of msgpack inside each other that are read.
const MAX_DEPTH: usize = 32;
/// First bytes of a frame, behind the one that says how many members it has.
const MAGIC: &[u8] = b"\xa8b2frame\0";

/// Returns whether a file may be a frame by its first bytes.
pub fn is_frame(head: &[u8]) -> bool {
    head.get(1..).is_some_and(|head| head.starts_with(MAGIC))
}

/// Error reading a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Blosc2Error {
    /// The file does not begin like a frame.
    #[error("it does not begin with \"b2frame\"")]
    Magic,
    /// The header is cut off. Holds the length of the file in bytes.
    #[error("it has {}, its header alone has more", count(.0, "byte"))]
    TooShort(u64),
    /// A field has an invalid value.
    #[error("{field} is {value}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// It is stored in a way that is not read here.
    #[error("it has {0}, which are not read here")]
    Kind(&'static str),
    /// The frame is of a later version than those that are known here.
    #[error("it is of version {0} of the format, those up to {MAX_VERSION} can be read here")]
    Version(u8),
    /// It holds another array than when its metadata was read.
    #[error("it holds another array than the one that was opened")]
    Changed,
    /// A part does not end within the file.
    #[error("{0} would end beyond the file")]
    Beyond(&'static str),
    /// A part is no valid msgpack, or not what is expected.
    #[error("{0} cannot be understood")]
    Msgpack(&'static str),
    /// The offsets cannot be decompressed.
    #[error("its offsets cannot be decompressed: {0}")]
    Offsets(String),
    /// The metalayer describes another array than the header.
    #[error("its header gives it {}, its metalayer {expected}", count(.found, "chunk"))]
    Chunks {
        /// Number of chunks by the header.
        found: u64,
        /// Number of chunks by shape and chunk shape.
        expected: u64,
    },
    /// Chunks of the metalayer have another length than those of the header.
    #[error("its header gives a chunk {}, its metalayer {expected}", count(.found, "byte"))]
    ChunkSize {
        /// Length by the header in bytes.
        found: u64,
        /// Length by the shapes of chunks and blocks.
        expected: u64,
    },
    /// Some chunks have no bytes, for all of their items are one value, and that is another one in others.
    #[error(
        "some of its chunks are {0} without a byte stored, and others {1}: they cannot all be absent chunks"
    )]
    Mixed(Special, Special),
}

/// Value of all items of a chunk, of which no item is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// They are 0.
    Zeros,
    /// They are not a number.
    Nan,
    /// They are what stands behind the header.
    Value,
    /// They were never written.
    Uninitialised,
}

impl Special {
    fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Zeros),
            2 => Some(Self::Nan),
            3 => Some(Self::Value),
            4 => Some(Self::Uninitialised),
            _ => None,
        }
    }

    /// Returns whether chunks without bytes show the same in either case: what was never written is 0.
    fn is_same(self, other: Self) -> bool {
        let is_zero = |it| matches!(it, Self::Zeros | Self::Uninitialised);
        self == other || is_zero(self) && is_zero(other)
    }
}

impl fmt::Display for Special {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zeros => "zeros",
            Self::Nan => "NaN",
            Self::Value => "a value",
            Self::Uninitialised => "uninitialised",
        })
    }
}

/// Header of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the header in bytes.
    pub header: u64,
    /// Length of the frame in bytes.
    pub frame: u64,
    /// Bytes of all chunks before compression.
    pub decoded: u64,
    /// Bytes from the header's end to the offsets.
    pub stored: u64,
    /// Length of an item in bytes.
    pub typesize: u32,
    /// Bytes of a chunk before compression.
    pub chunk_size: u32,
    /// Number of the compressor, and its level.
    pub compressor: (u8, u8),
    /// `true` if there are metalayers in the trailer.
    pub has_metadata: bool,
}

impl FrameHeader {
    /// Parses the first bytes of a file of `size` bytes.
    pub fn parse(bytes: &[u8], size: u64) -> Result<Self, Blosc2Error> {
        if !is_frame(bytes) {
            return Err(Blosc2Error::Magic);
        }
        let Some(bytes) = bytes.first_chunk::<FIXED_BYTES>() else {
            return Err(Blosc2Error::TooShort(size));
        };
        let field = |field, value| Blosc2Error::Field { field, value };
        let positive = |name, value: i64| match u64::try_from(value) {
            Ok(value) => Ok(value),
            Err(_) => Err(field(name, value)),
        };
        let small = |name, at| match u32::try_from(int32(bytes, at)) {
            Ok(value) if value > 0 => Ok(value),
            _ => Err(field(name, int32(bytes, at).into())),
        };
        let flags = bytes[25];
        if flags & 15 > MAX_VERSION {
            return Err(Blosc2Error::Version(flags & 15));
        }
        let is_empty = int64(bytes, 30) == 0 && int32(bytes, 58) == 0;
        if flags & 64 != 0 && !is_empty {
            return Err(Blosc2Error::Kind("chunks of different lengths"));
        }
        if flags & 128 != 0 {
            return Err(Blosc2Error::Kind("blocks of different lengths"));
        }
        match bytes[26] & 15 {
            0 => (),
            1 => return Err(Blosc2Error::Kind("chunks in files of their own")),
            other => return Err(field("frame_type", other.into())),
        }
        let header = u64::from(small("header_len", 11)?);
        let frame = positive("frame_len", int64(bytes, 16))?;
        let (decoded, stored) = (
            positive("uncompressed_size", int64(bytes, 30))?,
            positive("compressed_size", int64(bytes, 39))?,
        );
        if header < FIXED_BYTES as u64 || header > MAX_HEADER {
            return Err(field("header_len", int32(bytes, 11).into()));
        }
        if frame > size {
            return Err(Blosc2Error::Beyond("the frame"));
        }
        let end = header.checked_add(stored).filter(|end| *end <= frame);
        end.ok_or(Blosc2Error::Beyond("what is stored"))?;
        // One without any chunk may not say how long they are.
        let chunk_size = if is_empty { 0 } else { small("chunk_size", 58)? };
        let typesize = small("type_size", 48)?;
        let compressor = (bytes[27] & 15, bytes[27] >> 4);
        let has_metadata = bytes[68] == 0xc3;
        Ok(Self { header, frame, decoded, stored, typesize, chunk_size, compressor, has_metadata })
    }

    /// Returns the number of chunks.
    ///
    /// # Errors
    /// There are more than the limit for indexes allows.
    pub fn nchunks(&self) -> Result<u64, Blosc2Error> {
        let nchunks = self.decoded.div_ceil(u64::from(self.chunk_size).max(1));
        match nchunks.checked_mul(ENTRY_BYTES) {
            Some(nbytes) if nbytes <= MAX_INDEX_BYTES => Ok(nchunks),
            _ => Err(Blosc2Error::Field {
                field: "the number of chunks",
                value: i64::try_from(nchunks).unwrap_or(i64::MAX),
            }),
        }
    }

    /// Returns the decoded length of a chunk in bytes: the last one may be shorter.
    pub fn decoded_of(&self, chunk: u64) -> u64 {
        let size = u64::from(self.chunk_size);
        self.decoded.saturating_sub(chunk.saturating_mul(size)).min(size)
    }
}

/// What a metalayer says of the array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayLayer {
    /// Name of the metalayer.
    pub name: &'static str,
    /// Extents in items.
    pub shape: Vec<u64>,
    /// Shape of a chunk in items.
    pub chunk: Vec<u64>,
    /// Shape of a block in items.
    pub block: Vec<u64>,
    /// Name of the data type as NumPy has it. `None` if it is not known.
    pub dtype: Option<String>,
}

impl ArrayLayer {
    /// Parses the metalayers of a header, of which all bytes are given. `None` if none describes an array.
    pub fn parse(header: &[u8], of: &FrameHeader) -> Result<Option<Self>, Blosc2Error> {
        const LAYERS: &str = "the metalayers of its header";
        let bytes = header.get(FIXED_BYTES..).unwrap_or_default();
        let Some(layers) = layers(&mut &*bytes, LAYERS)? else { return Ok(None) };
        for name in ["b2nd", "caterva"] {
            if let Some((_, content)) = layers.iter().find(|(known, _)| known == name) {
                let layer = Self::of_content(name, content, of.decoded == 0);
                let layer = layer.ok_or(Blosc2Error::Msgpack("the metalayer of its array"))?;
                layer.check(of)?;
                return Ok(Some(layer));
            }
        }
        Ok(None)
    }

    /// Parses the content of a metalayer. In an empty array chunks may be empty, too.
    fn of_content(name: &'static str, mut content: &[u8], is_empty: bool) -> Option<Self> {
        let members = read(&mut content)?;
        let members = members.as_array()?;
        let rank =
            usize::try_from(members.get(1)?.as_u64()?).ok().filter(|rank| *rank <= MAX_RANK)?;
        let extents = |at: usize, least: u64| {
            let list = members.get(at)?.as_array()?.iter();
            let list = list.map(|extent| extent.as_u64().filter(|extent| *extent >= least));
            list.collect::<Option<Vec<_>>>().filter(|list| list.len() == rank)
        };
        let least = u64::from(!is_empty);
        let not_zero = |list: Vec<u64>| list.into_iter().map(|extent| extent.max(1)).collect();
        let shape = extents(2, 0)?;
        let (chunk, block) = (not_zero(extents(3, least)?), not_zero(extents(4, least)?));
        let is_numpy = members.get(5).is_some_and(|kind| kind.as_u64() == Some(0));
        let dtype = members.get(6).filter(|_| is_numpy).and_then(Value::as_str).map(str::to_owned);
        Some(Self { name, shape, chunk, block, dtype })
    }

    /// Compares the array with what the header says of all chunks.
    fn check(&self, header: &FrameHeader) -> Result<(), Blosc2Error> {
        let product = |mut factors: Box<dyn Iterator<Item = u64> + '_>| {
            factors.try_fold(1_u64, u64::checked_mul).unwrap_or(u64::MAX)
        };
        let pairs = self.chunk.iter().zip(&self.block);
        let padded = pairs.map(|(chunk, block)| chunk.div_ceil(*block).saturating_mul(*block));
        let expected = product(Box::new(padded)).saturating_mul(header.typesize.into());
        let found = u64::from(header.chunk_size);
        if found != expected && header.decoded > 0 {
            return Err(Blosc2Error::ChunkSize { found, expected });
        }
        if found > MAX_DECODED_BYTES as u64 {
            return Err(Blosc2Error::Field {
                field: "chunk_size",
                value: header.chunk_size.into(),
            });
        }
        let expected = product(Box::new(self.grid()));
        let found = header.nchunks()?;
        match found == expected {
            true => Ok(()),
            false => Err(Blosc2Error::Chunks { found, expected }),
        }
    }

    /// Number of chunks along each axis.
    pub fn grid(&self) -> impl Iterator<Item = u64> + '_ {
        self.shape.iter().zip(&self.chunk).map(|(extent, chunk)| extent.div_ceil(*chunk))
    }
}

/// Reads a value of msgpack.
fn read(bytes: &mut &[u8]) -> Option<Value> {
    rmpv::decode::read_value_with_max_depth(bytes, MAX_DEPTH).ok()
}

/// Metalayers by their names.
type Layers = Vec<(String, Vec<u8>)>;

/// Reads metalayers; `None` if there are none.
fn layers(bytes: &mut &[u8], part: &'static str) -> Result<Option<Layers>, Blosc2Error> {
    let bad = || Blosc2Error::Msgpack(part);
    if bytes.is_empty() {
        return Ok(None);
    }
    let value = read(bytes).ok_or_else(bad)?;
    let Some([_, names, contents]) = value.as_array().map(Vec::as_slice) else { return Err(bad()) };
    let (names, contents) = (names.as_map().ok_or_else(bad)?, contents.as_array().ok_or_else(bad)?);
    let pairs = names.iter().zip(contents).map(|((name, _), content)| {
        let bytes = match content {
            Value::Binary(bytes) => bytes.clone(),
            _ => return None,
        };
        Some((name.as_str()?.to_owned(), bytes))
    });
    pairs.collect::<Option<Layers>>().map(Some).ok_or_else(bad)
}

/// Returns the length of the trailer, by the last bytes of a frame; `None` if these are none of a trailer.
pub fn trailer_length(end: &[u8]) -> Option<u64> {
    let end = end.last_chunk::<TRAILER_END>()?;
    let [0xce, a, b, c, d, 0xd8, ..] = *end else { return None };
    Some(u32::from_be_bytes([a, b, c, d]).into()).filter(|length| *length <= MAX_HEADER)
}

/// Returns the metalayers in a trailer, each a chunk of Blosc2 that holds a value.
pub fn trailer_layers(trailer: &[u8]) -> Result<Layers, Blosc2Error> {
    const TRAILER: &str = "the metalayers of its trailer";
    let bad = || Blosc2Error::Msgpack(TRAILER);
    // Its length is not always that of its members.
    let mut rest = trailer;
    let members = rmp_array(&mut rest).ok_or_else(bad)?;
    if members < 2 || read(&mut rest).is_none() {
        return Err(bad());
    }
    layers(&mut rest, TRAILER).map(Option::unwrap_or_default)
}

/// Reads the beginning of a short array. Returns the number of its members.
fn rmp_array(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    (first & 0xf0 == 0x90).then_some(first & 0x0f)
}

/// Returns a value of msgpack as JSON. `None` if it is none.
pub fn json_of(mut bytes: &[u8]) -> Option<serde_json::Value> {
    let value = read(&mut bytes)?;
    bytes.is_empty().then(|| json(&value))
}

/// Returns bytes as JSON: hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> serde_json::Value {
    serde_json::json!({"hex": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()})
}

/// Returns a number as JSON, or its name where JSON has none for it.
fn number(number: f64) -> serde_json::Value {
    match number {
        number if number.is_finite() => serde_json::json!(number),
        number if number.is_nan() => serde_json::json!("NaN"),
        number => serde_json::json!(if number > 0.0 { "Infinity" } else { "-Infinity" }),
    }
}

fn json(value: &Value) -> serde_json::Value {
    use serde_json::json;
    match value {
        Value::Nil => serde_json::Value::Null,
        Value::Boolean(it) => json!(it),
        Value::Integer(it) => match (it.as_u64(), it.as_i64()) {
            (Some(it), _) => json!(it),
            (_, it) => json!(it),
        },
        Value::F32(it) => number((*it).into()),
        Value::F64(it) => number(*it),
        Value::String(it) => json!(String::from_utf8_lossy(it.as_bytes())),
        Value::Binary(it) | Value::Ext(_, it) => hexadecimal(it),
        Value::Array(items) => items.iter().map(json).collect(),
        Value::Map(members) => {
            let names: HashSet<&str> = members.iter().filter_map(|(key, _)| key.as_str()).collect();
            match names.len() == members.len() {
                true => members
                    .iter()
                    .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), json(value))))
                    .collect(),
                // Names that JSON does not have: pairs.
                false => {
                    members.iter().map(|(key, value)| json!([json(key), json(value)])).collect()
                }
            }
        }
    }
}

/// Place of a chunk by its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkPlace {
    /// From the header's end.
    At(u64),
    /// Nowhere: all of its items are this.
    Special(Special),
    /// The offset is none.
    Invalid,
}

impl ChunkPlace {
    /// Reads the places of all chunks from the decoded offsets.
    pub fn all(offsets: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let (offsets, _) = offsets.as_chunks::<8>();
        offsets.iter().map(|offset| match u64::from_le_bytes(*offset) {
            offset if offset >> 63 == 0 => Self::At(offset),
            offset => {
                let special = Special::from_number(offset.to_be_bytes()[0] & 7);
                let special = special.filter(|special| *special != Special::Value);
                special.map_or(Self::Invalid, Self::Special)
            }
        })
    }

    /// Checks that a frame that stores this number of bytes can hold chunks in all these places.
    pub fn check(places: &[Self], stored: u64) -> Result<(), Blosc2Error> {
        /// Least length of a chunk in bytes.
        const LEAST: u64 = 16;
        /// Most places that are none: more are no damage of a few of them.
        const MOST_INVALID: usize = 1 << 16;
        let invalid = places.iter().filter(|place| **place == Self::Invalid).count();
        let held = places.iter().filter(|place| matches!(place, Self::At(_))).count();
        match invalid > MOST_INVALID || (held as u64).saturating_mul(LEAST) > stored {
            true => Err(Blosc2Error::Offsets("they are none of chunks in it".to_owned())),
            false => Ok(()),
        }
    }

    /// Returns what the items of chunks without bytes are: the fill value of the array. `None` if all have some.
    ///
    /// # Errors
    /// They are different.
    pub fn fill(places: &[Self]) -> Result<Option<Special>, Blosc2Error> {
        let mut found: Option<Special> = None;
        for place in places {
            let Self::Special(special) = place else { continue };
            match found {
                Some(before) if !before.is_same(*special) => {
                    return Err(Blosc2Error::Mixed(before, *special));
                }
                _ => found = Some(*special),
            }
        }
        Ok(found)
    }
}

/// Header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Length of an item in bytes.
    pub typesize: u8,
    /// Bytes before compression.
    pub decoded: u32,
    /// Bytes of a block.
    pub block: u32,
    /// Bytes of the chunk.
    pub nbytes: u32,
    /// Filters, in the order in which they were applied.
    pub filters: [u8; 6],
    /// What they are given.
    pub given: [u8; 6],
    /// Number of the compressor.
    pub compressor: u8,
    /// `true` if the bytes are stored as they are.
    pub is_plain: bool,
    /// `true` if blocks have a stream for each byte of an item.
    pub is_split: bool,
    /// What all items are. `None` if they are stored.
    pub special: Option<Special>,
}

impl ChunkHeader {
    /// Returns the decoded length of a chunk and its own, both in bytes, by its header: also of one that cannot be
    /// decoded here. `None` if no chunk has these.
    pub fn lengths(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<(u64, u64)> {
        /// Length of the part of a header that all versions have.
        const LEAST: i32 = 16;
        let word = |at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let nbytes = u64::try_from(word(12)).ok().filter(|_| word(12) >= LEAST)?;
        Some((u64::try_from(word(4)).ok()?, nbytes))
    }

    /// Parses the header of a chunk.
    ///
    /// # Errors
    /// The reason why it cannot be read here.
    pub fn parse(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Result<Self, &'static str> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (flags, decoded, block, nbytes) = (bytes[2], word(4), word(8), word(12));
        if flags & 5 != 5 {
            return Err("its header is one of Blosc 1");
        }
        let (more, flags2) = (bytes[30], bytes[31]);
        if more & 1 != 0 {
            return Err("it has blocks of different lengths");
        }
        if flags2 & 1 != 0 {
            return Err("it is compressed with a dictionary");
        }
        if flags2 & !0x70 != 0 {
            return Err("its header has flags that are not known here");
        }
        let special = match (flags2 >> 4) & 7 {
            0 => None,
            number => Some(Special::from_number(number).ok_or("what its items are is not known")?),
        };
        // Longer ones are refused by Blosc2 itself.
        let is_length = |length: u32| i32::try_from(length).is_ok();
        if !is_length(decoded) || !is_length(nbytes) || (nbytes as usize) < CHUNK_HEADER_BYTES {
            return Err("its header gives it a length that no chunk has");
        }
        let is_plain = flags & 2 != 0;
        if special.is_none() && !is_plain && (block == 0 || block > decoded) && decoded > 0 {
            return Err("its header gives its blocks a length that they cannot have");
        }
        let compressor = flags >> 5;
        if special.is_none() && !is_plain && !matches!(compressor, 0 | 1 | 3 | 4) {
            return Err("its compressor is not known here");
        }
        let six = |at: usize| {
            [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3], bytes[at + 4], bytes[at + 5]]
        };
        Ok(Self {
            typesize: bytes[3],
            decoded,
            block,
            nbytes,
            filters: six(16),
            given: six(24),
            compressor,
            is_plain,
            is_split: flags & 16 == 0,
            special,
        })
    }
}

// Both functions panic if the field is not within the array: callers pass offsets within arrays of known length.
fn int32(bytes: &[u8; FIXED_BYTES], at: usize) -> i32 {
    i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn int64(bytes: &[u8; FIXED_BYTES], at: usize) -> i64 {
    i64::from(int32(bytes, at)) << 32 | i64::from(int32(bytes, at + 4).cast_unsigned())
}
