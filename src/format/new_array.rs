//! Creation of the metadata of a new array from its description.
//!
//! Zarr core 3.1, "Array metadata"; `sharding_indexed` 1.0. If inner chunk and shard have the same
//! shape, there is no sharding. The result is read back by the parsers that read any array.

mod codecs;
mod error;

use serde_json::{Map, Value, json};

pub(crate) use self::codecs::codec_from_text;
use self::codecs::inner_chain;
pub(crate) use self::error::NewArrayError;
use super::chunk_key::{KeyEncoding, Prefix};
use super::chunk_layout::ChunkShapes;
use super::codec::parse_chain;
use super::data_type::DataType;
use super::index::{IndexCodecs, IndexLocation, product};
use super::pipeline::{Pipeline, PipelineError};
use super::reshard::{Resharding, shard};
use super::sharding::ShardedArray;

/// Description of a new array.
#[derive(Debug, Clone)]
pub(crate) struct NewArray {
    /// Extents in elements.
    pub shape: Vec<u64>,
    /// `data_type`: a name, or an object with a name.
    pub data_type: Value,
    /// `fill_value`; `None` for the one that the data type has by default.
    pub fill_value: Option<Value>,
    /// Shapes of inner chunk and shard.
    pub chunks: ChunkShapes,
    /// Codecs of an inner chunk as objects, in encoding order; `bytes` may be omitted.
    pub codecs: Vec<Value>,
    /// Order of the axes in an inner chunk, from the slowest to the fastest; `None` for C order.
    pub order: Option<Vec<usize>>,
    /// Location of the shard index; `None` for the end.
    pub index_location: Option<IndexLocation>,
    /// Encoding of chunk keys.
    pub keys: KeyEncoding,
    /// Names of all axes (`None` for an axis without a name); `None` if the axes have no names.
    pub dimension_names: Option<Vec<Option<String>>>,
    /// `attributes`.
    pub attributes: Map<String, Value>,
}

/// Numbers and sizes of the parts of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Number of inner chunks that hold a part of the array.
    pub chunks: u64,
    /// Number of shards that hold a part of the array.
    pub shards: u64,
    /// Inner chunks of a shard along each axis; all 1 without sharding.
    pub chunks_per_shard: Vec<u64>,
    /// Length of a decoded inner chunk in bytes.
    pub chunk_nbytes: u64,
    /// Length of a decoded shard in bytes.
    pub shard_nbytes: u64,
    /// Length of a stored shard index in bytes; 0 without sharding.
    pub index_nbytes: u64,
}

impl NewArray {
    /// Returns whether the chunks are grouped in shards.
    pub(crate) fn is_sharded(&self) -> bool {
        self.chunks.read != self.chunks.write
    }

    /// Returns the `zarr.json` of the array and the sizes of its parts. The layout, and the codecs
    /// as far as they are known, are checked to be readable.
    pub(crate) fn document(&self) -> Result<(Value, Sizes), NewArrayError> {
        let data_type = DataType::parse(&self.data_type)?;
        let fill_value = self.fill_value.clone().unwrap_or_else(|| data_type.default_fill());
        data_type.fill_value(Some(&fill_value))?;
        let mut twin = json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": self.data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.chunks.read}},
            "chunk_key_encoding": key_encoding(self.keys),
            "fill_value": fill_value,
            "codecs": self.inner_codecs(&data_type)?,
            "attributes": self.attributes,
        });
        if let Some(names) = &self.dimension_names {
            let (found, rank) = (names.len(), self.shape.len());
            if found != rank {
                return Err(NewArrayError::Names { found, rank });
            }
            twin["dimension_names"] = json!(names);
        }
        match Pipeline::parse(&twin) {
            // Other software may support the codec, or chunks of this size.
            Ok(_) | Err(PipelineError::UnknownCodec(_) | PipelineError::TooLarge) => (),
            Err(error) => return Err(error.into()),
        }
        let sizes = self.sizes(&data_type)?;
        Ok((self.sharded(twin)?, sizes))
    }

    /// Returns the document of an array whose shards hold the chunks of the unsharded array `twin`,
    /// or `twin` itself if shards and chunks are the same.
    fn sharded(&self, twin: Value) -> Result<Value, NewArrayError> {
        if self.is_sharded() {
            let shard_shape = Some(self.chunks.write.clone());
            let how = Resharding { shard_shape, index_location: self.index_location };
            return Ok(shard(&twin, &how)?);
        }
        if self.index_location.is_some() {
            return Err(NewArrayError::NoIndex);
        }
        let chain = parse_chain(twin.get("codecs"))?;
        ShardedArray::unsharded(&twin, chain)?;
        Ok(twin)
    }

    fn inner_codecs(&self, data_type: &DataType) -> Result<Vec<Value>, NewArrayError> {
        let rank = self.shape.len();
        let order = match &self.order {
            None => None,
            Some(order) if !is_permutation(order, rank) => {
                return Err(NewArrayError::Order(order.clone(), rank));
            }
            // C order needs no transpose.
            Some(order) => Some(order.as_slice()).filter(|order| !order.is_sorted()),
        };
        inner_chain(&self.codecs, order, data_type)
    }

    fn sizes(&self, item: &DataType) -> Result<Sizes, NewArrayError> {
        let nbytes = |what, shape: &Vec<u64>| {
            let elements = product(shape).and_then(|n| n.checked_mul(item.nbytes() as u64));
            let fits = elements.filter(|nbytes| i64::try_from(*nbytes).is_ok());
            fits.ok_or_else(|| NewArrayError::TooLong { what, shape: shape.clone() })
        };
        let ChunkShapes { read, write } = &self.chunks;
        let pairs = write.iter().zip(read);
        let chunks_per_shard: Vec<u64> =
            pairs.map(|(shard, chunk)| shard.checked_div(*chunk).unwrap_or(1)).collect();
        let count = |parts: &[u64]| {
            let axes = self.shape.iter().zip(parts);
            let along: Vec<u64> =
                axes.map(|(extent, part)| extent.div_ceil((*part).max(1))).collect();
            // Does not overflow in a layout that keeps the limits.
            product(&along).unwrap_or(u64::MAX)
        };
        let slots = product(&chunks_per_shard).unwrap_or(u64::MAX);
        let index = if self.is_sharded() { IndexCodecs::USUAL.stored_size(slots) } else { None };
        Ok(Sizes {
            chunks: count(read),
            shards: count(write),
            chunks_per_shard,
            chunk_nbytes: nbytes("inner chunks", read)?,
            shard_nbytes: nbytes("shards", write)?,
            index_nbytes: index.unwrap_or(0),
        })
    }
}

fn key_encoding(keys: KeyEncoding) -> Value {
    let name = if keys.prefix == Prefix::None { "v2" } else { "default" };
    let separator = keys.separator.as_char().to_string();
    json!({"name": name, "configuration": {"separator": separator}})
}

fn is_permutation(order: &[usize], rank: usize) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rank)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::chunk_key::Separator;

    fn array(read: &[u64], write: &[u64]) -> NewArray {
        NewArray {
            shape: vec![100; read.len()],
            data_type: json!("uint16"),
            fill_value: None,
            chunks: ChunkShapes { read: read.to_vec(), write: write.to_vec() },
            codecs: Vec::new(),
            order: None,
            index_location: None,
            keys: KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash },
            dimension_names: None,
            attributes: Map::new(),
        }
    }

    fn little() -> Value {
        json!({"name": "bytes", "configuration": {"endian": "little"}})
    }

    fn codecs(array: &NewArray) -> Value {
        array.document().unwrap().0["codecs"].clone()
    }

    #[track_caller]
    fn refused(array: &NewArray, message: &str) {
        assert_eq!(array.document().unwrap_err().to_string(), message);
    }

    #[test]
    fn different_shapes_are_shards() {
        let (document, sizes) = array(&[5, 5], &[50, 30]).document().unwrap();
        let expected = json!([{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [5, 5], "codecs": [little()],
            "index_codecs": [little(), {"name": "crc32c"}], "index_location": "end"}}]);
        assert_eq!(document["codecs"], expected);
        assert_eq!(document["chunk_grid"]["configuration"]["chunk_shape"], json!([50, 30]));
        let expected = Sizes {
            chunks: 400,
            shards: 8,
            chunks_per_shard: vec![10, 6],
            chunk_nbytes: 50,
            shard_nbytes: 3000,
            index_nbytes: 964,
        };
        assert_eq!(sizes, expected);
    }

    #[test]
    fn equal_shapes_are_no_shards() {
        let (document, sizes) = array(&[50, 30], &[50, 30]).document().unwrap();
        assert_eq!(document["codecs"], json!([little()]));
        assert_eq!((sizes.chunks, sizes.shards, sizes.index_nbytes), (8, 8, 0));
        let none = array(&[], &[]).document().unwrap();
        assert_eq!((none.0["shape"].clone(), none.1.chunks), (json!([]), 1));
    }

    #[test]
    fn an_order_is_a_transpose_before_the_array_becomes_bytes() {
        let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
        let crc32c = json!({"name": "crc32c"});
        let turned = |array: NewArray| NewArray { order: Some(vec![1, 0]), ..array };
        let plain =
            NewArray { codecs: vec![crc32c.clone()], ..turned(array(&[50, 30], &[50, 30])) };
        assert_eq!(codecs(&plain), json!([transpose, little(), crc32c]));
        let sharded = codecs(&turned(array(&[5, 5], &[50, 30])));
        assert_eq!(sharded[0]["configuration"]["codecs"], json!([transpose, little()]));
        let same = NewArray { order: Some(vec![0, 1]), ..array(&[50, 30], &[50, 30]) };
        assert_eq!(codecs(&same), json!([little()]));
    }

    #[test]
    fn the_order_of_bytes_is_said_where_there_is_one() {
        let of = |name: &str| {
            codecs(&NewArray { data_type: json!(name), ..array(&[50], &[50]) })[0].clone()
        };
        for name in ["uint8", "bool", "int4", "r24", "float8_e5m2"] {
            assert_eq!(of(name), json!({"name": "bytes"}), "{name}");
        }
        for name in ["int16", "float16", "complex64", "bfloat16"] {
            assert_eq!(of(name), little(), "{name}");
        }
    }

    #[test]
    fn keys_names_and_attributes_are_written() {
        let array = NewArray {
            keys: KeyEncoding { prefix: Prefix::None, separator: Separator::Dot },
            dimension_names: Some(vec![Some("z".to_owned()), None]),
            attributes: Map::from_iter([("unit".to_owned(), json!("m"))]),
            ..array(&[50, 30], &[50, 30])
        };
        let (document, _) = array.document().unwrap();
        let keys = json!({"name": "v2", "configuration": {"separator": "."}});
        assert_eq!(document["chunk_key_encoding"], keys);
        assert_eq!(document["dimension_names"], json!(["z", null]));
        assert_eq!(document["attributes"], json!({"unit": "m"}));
    }

    #[test]
    fn each_defect_is_named() {
        let plain = || array(&[50, 30], &[50, 30]);
        refused(
            &NewArray { data_type: json!("uint17"), ..plain() },
            "data type \"uint17\" is not known",
        );
        refused(&NewArray { fill_value: Some(json!(-1)), ..plain() }, "fill_value -1 is no uint16");
        refused(
            &NewArray { order: Some(vec![0, 0]), ..plain() },
            "order [0, 0] is no permutation of the array's axes, of which there are 2",
        );
        refused(
            &NewArray { dimension_names: Some(vec![None]), ..plain() },
            "1 dimension name, the array has 2 dimensions",
        );
        refused(
            &NewArray { index_location: Some(IndexLocation::Start), ..plain() },
            "without shards there is no index: inner chunk and shard have the same shape",
        );
        let gzip = json!({"name": "gzip", "configuration": {"level": 99}});
        refused(
            &NewArray { codecs: vec![gzip], ..plain() },
            "level of codec \"gzip\" must be from -1 to 9",
        );
        refused(
            &array(&[1], &[1 << 25]),
            "too many inner chunks in a shard, the limit is 16777216",
        );
        let long = [1 << 40, 1 << 40];
        refused(
            &array(&long, &long),
            "inner chunks of [1099511627776, 1099511627776] elements are longer than 2^63-1 bytes",
        );
    }

    proptest! {
        #[test]
        fn any_shape_is_made_or_refused(
            axes in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..4),
            small in any::<bool>(),
        ) {
            let cut = |number: u64| if small { number % 9 } else { number };
            let of = |pick: fn(&(u64, u64, u64)) -> u64| axes.iter().map(pick).map(cut).collect();
            let (shape, read, write) = (of(|axis| axis.0), of(|axis| axis.1), of(|axis| axis.2));
            let array = NewArray { shape, ..array(&read, &write) };
            if let Ok((_, sizes)) = array.document() {
                prop_assert!(sizes.shards <= sizes.chunks);
            }
        }
    }
}
