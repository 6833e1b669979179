//! webknossos-wrap: cubes of blocks, each of which is a cube of voxels.
//!
//! ```text
//! data set   header.wkw, and a file z2/y1/x0.wkw for each cube of blocks
//!
//! file       | header | ends of blocks, if they are compressed | block | block | ...
//!
//! header, 16 bytes, little-endian
//!   0  "WKW"
//!   3  u8   version: 1
//!   4  u8   log2 of the voxels along a block; 16 times log2 of the blocks along a file
//!   5  u8   blocks: 1 raw, 2 LZ4, 3 LZ4 of high compression
//!   6  u8   data type of a voxel
//!   7  u8   bytes of a voxel: of all of its channels
//!   8  u64  where the first block begins; 0 in header.wkw
//!
//! ends       u64 for each block, from the file's first byte: it begins where the one before ends
//! blocks     in Morton order, x the lowest bit; voxels in Fortran order: channel, x, y, z
//! ```

use serde_json::{Map, Value, json};

use super::error::MetadataError;
use super::foreign::{ForeignArray, KEYS};
use super::index::{ENTRY_BYTES, IndexCodecs, IndexLocation};
use super::limits::{MAX_DECODED_BYTES, MAX_INDEX_BYTES};
use super::sharding::{PlainShards, ShardedArray};
use crate::text::count;

/// Name of the document of a data set.
pub const HEADER: &str = "header.wkw";
/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 16;
/// Length of an entry in the table of the blocks' ends, in bytes.
pub const END_BYTES: u64 = 8;
/// First bytes of a header.
const MAGIC: &[u8; 3] = b"WKW";

/// Data types of voxels, by number from 1: name in Zarr, bytes.
const TYPES: [(&str, u8); 10] = [
    ("uint8", 1),
    ("uint16", 2),
    ("uint32", 4),
    ("uint64", 8),
    ("float32", 4),
    ("float64", 8),
    ("int8", 1),
    ("int16", 2),
    ("int32", 4),
    ("int64", 8),
];

/// Error reading a header or a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WkwError {
    /// It does not begin with "WKW".
    #[error("it does not begin with \"WKW\"")]
    Magic,
    /// The header is cut off. Holds the length of the file in bytes.
    #[error("it has {}, its header alone has {HEADER_BYTES}", count(.0, "byte"))]
    TooShort(u64),
    /// The version is not supported.
    #[error("version is {0}, only 1 can be read here")]
    Version(u8),
    /// A header field has an invalid value.
    #[error("{field} is {value}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Blocks, or files of them, are larger than the limits.
    #[error("{0} are larger than the limit")]
    Limit(&'static str),
    /// A file is described by its header as another one than by that of the data set.
    #[error("its header differs from header.wkw in {0}")]
    Differs(&'static str),
    /// The table of the blocks' ends does not end within the file.
    #[error("the ends of its blocks would end beyond the file")]
    Ends,
    /// The files of a data set cannot be an array.
    #[error("its names reach beyond what an array may have: {0}")]
    Names(String),
}

/// How blocks are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocks {
    /// As they are, each in its place.
    Raw,
    /// Compressed.
    Lz4,
    /// Compressed more, and read as the others are.
    Lz4High,
}

/// Header of a data set, or of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WkwHeader {
    /// Voxels along a block, as log2.
    pub block: u8,
    /// Blocks along a file, as log2.
    pub file: u8,
    /// How blocks are stored.
    pub blocks: Blocks,
    /// Data type of a channel, by number.
    voxel_type: u8,
    /// Bytes of a voxel.
    pub voxel: u8,
    /// Where the first block begins.
    pub data: u64,
}

impl WkwHeader {
    /// Parses the first bytes of a file of `size` bytes.
    pub fn parse(bytes: &[u8], size: u64) -> Result<Self, WkwError> {
        if !bytes.starts_with(MAGIC) {
            return Err(WkwError::Magic);
        }
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(WkwError::TooShort(size));
        };
        if bytes[3] != 1 {
            return Err(WkwError::Version(bytes[3]));
        }
        let field = |field, value: u8| WkwError::Field { field, value: value.into() };
        let blocks = match bytes[5] {
            1 => Blocks::Raw,
            2 => Blocks::Lz4,
            3 => Blocks::Lz4High,
            other => return Err(field("the type of blocks", other)),
        };
        let (voxel_type, voxel) = (bytes[6], bytes[7]);
        let known = usize::from(voxel_type).checked_sub(1).and_then(|at| TYPES.get(at));
        let Some((_, channel)) = known else { return Err(field("the type of voxels", voxel_type)) };
        if voxel == 0 || voxel % channel != 0 {
            return Err(field("the length of voxels", voxel));
        }
        let [.., a, b, c, d, e, f, g, h] = *bytes;
        let data = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let (block, file) = (bytes[4] & 15, bytes[4] >> 4);
        let header = Self { block, file, blocks, voxel_type, voxel, data };
        if header.block_bytes() > MAX_DECODED_BYTES as u64 {
            return Err(WkwError::Limit("blocks"));
        }
        if header.slots().saturating_mul(ENTRY_BYTES) > MAX_INDEX_BYTES {
            return Err(WkwError::Limit("files"));
        }
        Ok(header)
    }

    /// Returns the length of a block in bytes, before compression.
    pub fn block_bytes(&self) -> u64 {
        // At most 2^45 voxels of 255 bytes.
        (1_u64 << (3 * self.block)).saturating_mul(self.voxel.into())
    }

    /// Returns the number of blocks in a file.
    pub fn slots(&self) -> u64 {
        1 << (3 * self.file)
    }

    /// Returns where the first block may begin at the earliest.
    fn first(&self) -> u64 {
        let ends = if self.is_compressed() { self.slots() * END_BYTES } else { 0 };
        HEADER_BYTES as u64 + ends
    }

    /// Returns whether blocks are compressed.
    pub fn is_compressed(&self) -> bool {
        self.blocks != Blocks::Raw
    }

    /// Checks the header of a file of `size` bytes of a data set with this header.
    pub fn check(&self, file: &Self, size: u64) -> Result<(), WkwError> {
        let pairs = [
            ("the length of blocks", self.block != file.block),
            ("the length of files", self.file != file.file),
            // Files are compressed one by one.
            ("the type of voxels", self.voxel_type != file.voxel_type),
            ("the length of voxels", self.voxel != file.voxel),
            ("how blocks are stored", self.is_compressed() != file.is_compressed()),
        ];
        if let Some((what, _)) = pairs.iter().find(|(_, differs)| *differs) {
            return Err(WkwError::Differs(what));
        }
        if file.data < file.first() {
            return Err(WkwError::Field {
                field: "the offset of the first block",
                value: file.data,
            });
        }
        if file.first() > size {
            return Err(WkwError::Ends);
        }
        Ok(())
    }

    /// Returns the number of a block, by its number in C order.
    pub fn morton(&self, slot: u64) -> u64 {
        let mask = (1 << self.file) - 1;
        let (x, y, z) = (slot >> (2 * self.file), (slot >> self.file) & mask, slot & mask);
        spread(x) | spread(y) << 1 | spread(z) << 2
    }

    /// Returns the array of a data set with files up to this one along x, y and z.
    pub fn array(&self, files: [u64; 3]) -> Result<ForeignArray, MetadataError> {
        let (block, file) = (1_u64 << self.block, 1_u64 << self.file);
        let extent = |files: u64| files.checked_mul(block << self.file);
        let shape = files.iter().map(|files| extent(*files)).collect::<Option<Vec<_>>>();
        let limit = MetadataError::Limit { what: "voxels along an axis", limit: u64::MAX };
        let shape = shape.ok_or(limit)?;
        let layout = ShardedArray::plain(PlainShards {
            keys: KEYS,
            shape: shape.clone(),
            chunk_shape: vec![block; 3],
            chunks_per_shard: vec![file; 3],
            index_codecs: IndexCodecs::BARE,
            index_location: IndexLocation::End,
        })?;
        Ok(ForeignArray { layout, metadata: Some(self.metadata(&shape, block)) })
    }

    /// Returns the metadata of the array. Voxels of several channels are bytes.
    fn metadata(&self, shape: &[u64], block: u64) -> Value {
        let (name, channel) = TYPES[usize::from(self.voxel_type) - 1];
        let (data_type, fill_value) = match self.voxel == channel {
            true => (name.to_owned(), json!(0)),
            false => (format!("r{}", 8 * u32::from(self.voxel)), json!(vec![0; self.voxel.into()])),
        };
        let mut codecs = vec![
            json!({"name": "transpose", "configuration": {"order": [2, 1, 0]}}),
            json!({"name": "bytes", "configuration": {"endian": "little"}}),
        ];
        if self.is_compressed() {
            codecs.push(json!({"name": "lz4_block"}));
        }
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": vec![block; 3]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill_value,
            "codecs": codecs,
            "attributes": Map::new(),
            "dimension_names": ["x", "y", "z"],
        })
    }

    /// Returns the header as JSON.
    pub fn json(&self) -> Value {
        let (name, channel) = TYPES[usize::from(self.voxel_type) - 1];
        json!({
            "block_len": 1_u64 << self.block,
            "file_len": 1_u64 << self.file,
            "block_type": match self.blocks {
                Blocks::Raw => "raw",
                Blocks::Lz4 => "lz4",
                Blocks::Lz4High => "lz4hc",
            },
            "voxel_type": name,
            "channels": self.voxel / channel,
        })
    }
}

/// Puts two zeros between the bits of a number below 2^16.
fn spread(number: u64) -> u64 {
    (0..16).fold(0, |spread, bit| spread | (number >> bit & 1) << (3 * bit))
}

/// Returns the path of a file by its coordinates along x, y and z.
pub fn file_name(coords: &[u64]) -> String {
    let at = |axis: usize| coords.get(axis).copied().unwrap_or_default();
    format!("z{}/y{}/x{}.wkw", at(2), at(1), at(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        [&b"WKW\x01\x14\x02\x02\x02"[..], &80_u64.to_le_bytes()].concat()
    }

    #[test]
    fn a_header_is_read() {
        let read = WkwHeader::parse(&header(), 5000).unwrap();
        assert_eq!((read.block, read.file, read.data), (4, 1, 80));
        assert_eq!((read.block_bytes(), read.slots()), (8192, 8));
        assert!(read.is_compressed());
        assert_eq!(read.json()["voxel_type"], "uint16");
        let array = read.array([2, 1, 1]).unwrap();
        assert_eq!(array.layout.chunk_grid(), [4, 2, 2]);
        assert_eq!(array.metadata.unwrap()["shape"], json!([64, 32, 32]));
    }

    #[test]
    fn each_damaged_field_is_named() {
        let refused = |at: usize, byte: u8, message: &str| {
            let mut damaged = header();
            damaged[at] = byte;
            assert_eq!(WkwHeader::parse(&damaged, 5000).unwrap_err().to_string(), message);
        };
        refused(0, b'X', "it does not begin with \"WKW\"");
        refused(3, 2, "version is 2, only 1 can be read here");
        refused(4, 0x1f, "blocks are larger than the limit");
        refused(4, 0xf4, "files are larger than the limit");
        refused(5, 0, "the type of blocks is 0");
        refused(6, 0, "the type of voxels is 0");
        refused(6, 11, "the type of voxels is 11");
        refused(7, 0, "the length of voxels is 0");
        refused(7, 3, "the length of voxels is 3");
        let short = WkwHeader::parse(&header()[..10], 10).unwrap_err();
        assert_eq!(short.to_string(), "it has 10 bytes, its header alone has 16");
    }

    #[test]
    fn a_file_is_of_its_data_set() {
        let whole = WkwHeader::parse(&header(), 16).unwrap();
        let check = |change: &dyn Fn(&mut WkwHeader)| {
            let mut file = whole;
            change(&mut file);
            whole.check(&file, 5000).map_err(|error| error.to_string())
        };
        assert_eq!(check(&|_| ()), Ok(()));
        assert_eq!(check(&|file| file.blocks = Blocks::Lz4High), Ok(()));
        let differs = |what| Err(format!("its header differs from header.wkw in {what}"));
        assert_eq!(check(&|file| file.blocks = Blocks::Raw), differs("how blocks are stored"));
        assert_eq!(check(&|file| file.block = 5), differs("the length of blocks"));
        assert_eq!(check(&|file| file.voxel = 4), differs("the length of voxels"));
        let early = check(&|file| file.data = 79);
        assert_eq!(early, Err("the offset of the first block is 79".to_owned()));
        assert_eq!(whole.check(&whole, 79), Err(WkwError::Ends));
    }

    #[test]
    fn blocks_are_in_morton_order() {
        let header = WkwHeader::parse(&header(), 16).unwrap();
        let order: Vec<u64> = (0..8).map(|slot| header.morton(slot)).collect();
        // C order of (x, y, z): z changes fastest, and has the highest bit.
        assert_eq!(order, [0, 4, 2, 6, 1, 5, 3, 7]);
        let large = WkwHeader { file: 3, ..header };
        let mut all: Vec<u64> = (0..512).map(|slot| large.morton(slot)).collect();
        // Bits of z, y and x in turn: 110, 011, 101.
        assert_eq!(all[(5 * 8 + 3) * 8 + 6], 0b101_110_011);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..512));
        assert_eq!(file_name(&[7, 8, 9]), "z9/y8/x7.wkw");
    }
}
