//! Splitting of a codec chain at its sharding codec.
//!
//! ```text
//! array -> [array->array]* -> sharding_indexed -> [bytes->bytes]* -> shard
//!           transpose, ...         |                crc32c, gzip, zstd, blosc
//!                                  +-- codecs (of inner chunks), index_codecs, index_location
//! ```
//!
//! Specification: `sharding_indexed` 1.0.

use serde_json::Value;

use super::codec::{Codec, parse_chain, transpose_order};
use super::error::{MetadataError, shape};
use super::index::{IndexCodecs, IndexLocation};
use super::shard_codec::ShardCodec;

/// Name of the codec that shards.
pub(crate) const SHARDING: &str = "sharding_indexed";

/// Array->array codecs that preserve the shape and encode each item by itself. Chunks stay where they
/// are, so the view keeps these codecs in front of the inner ones without interpreting them.
/// `numcodecs.delta` is none of them: it continues from the last item of a row into the next, which
/// may be in another chunk.
pub(super) const SHAPE_PRESERVING: [&str; 8] = [
    "bitround",
    "cast_value",
    "numcodecs.astype",
    "numcodecs.bitround",
    "numcodecs.fixedscaleoffset",
    "numcodecs.quantize",
    "reinterpret",
    "scale_offset",
];

/// The parts of a codec chain that shards.
#[derive(Debug)]
pub(crate) struct ShardingChain {
    /// Array->array codecs before the sharding, shape-preserving or a transpose.
    pub before: Vec<Codec>,
    /// Inner chunk shape, in the axes given by [`Self::axes`].
    pub chunk_shape: Vec<u64>,
    /// Axes of the shard: `axes[j]` is the axis, before this chain, that axis `j` of the shard runs
    /// along.
    pub axes: Vec<usize>,
    /// Codecs of the inner chunks.
    pub codecs: Vec<Codec>,
    /// Encoding of the index.
    pub index_codecs: IndexCodecs,
    /// Location of the index.
    pub index_location: IndexLocation,
    /// Bytes->bytes codecs over the whole shard, in encoding order.
    pub after: Vec<ShardCodec>,
}

/// Splits a chain at `sharding_indexed`; `None` if the chain does not shard.
pub(crate) fn split(chain: &[Codec], rank: usize) -> Result<Option<ShardingChain>, MetadataError> {
    let Some(at) = chain.iter().position(|codec| codec.name == SHARDING) else {
        return Ok(None);
    };
    let mut axes: Vec<usize> = (0..rank).collect();
    for codec in &chain[..at] {
        if codec.name == "transpose" {
            axes = transpose_order(codec, rank)?.into_iter().map(|axis| axes[axis]).collect();
        } else if !SHAPE_PRESERVING.contains(&codec.name.as_str()) {
            return Err(MetadataError::UnknownBefore(codec.name.clone()));
        }
    }
    let sharding = &chain[at];
    let chunk_shape = shape(sharding.option("chunk_shape"), "chunk_shape of sharding_indexed")?;
    if chunk_shape.len() != rank {
        return Err(MetadataError::Rank {
            member: "chunk_shape of sharding_indexed",
            found: chunk_shape.len(),
            rank,
        });
    }
    let index_location = match sharding.option("index_location") {
        None => IndexLocation::End,
        Some(Value::String(text)) if text == "end" => IndexLocation::End,
        Some(Value::String(text)) if text == "start" => IndexLocation::Start,
        Some(_) => {
            return Err(MetadataError::invalid("index_location", "\"start\" or \"end\""));
        }
    };
    Ok(Some(ShardingChain {
        before: chain[..at].to_vec(),
        chunk_shape,
        axes,
        codecs: parse_chain(sharding.option("codecs"))?,
        index_codecs: IndexCodecs::parse(sharding.option("index_codecs"), rank)?,
        index_location,
        after: chain[at + 1..].iter().map(ShardCodec::parse).collect::<Result<_, _>>()?,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sharded(
        before: &Value,
        configuration: &Value,
    ) -> Result<Option<ShardingChain>, MetadataError> {
        let mut chain = before.as_array().unwrap().clone();
        chain.push(json!({"name": "sharding_indexed", "configuration": configuration}));
        split(&parse_chain(Some(&chain.into()))?, 2)
    }

    #[test]
    fn a_chain_without_sharding_is_not_split() {
        let chain = parse_chain(Some(&json!(["endian", {"name": "gzip"}]))).unwrap();
        assert!(split(&chain, 2).unwrap().is_none());
    }

    #[test]
    fn transposes_before_sharding_compose() {
        let before = json!([
            {"name": "transpose", "configuration": {"order": [2, 0, 1]}},
            {"name": "transpose", "configuration": {"order": "F"}},
        ]);
        let mut chain = before.as_array().unwrap().clone();
        chain.push(json!({"name": "sharding_indexed",
            "configuration": {"chunk_shape": [1, 1, 1], "codecs": ["bytes"]}}));
        let chain = split(&parse_chain(Some(&chain.into())).unwrap(), 3).unwrap().unwrap();
        assert_eq!(chain.axes, [1, 0, 2]);
        assert_eq!(chain.index_location, IndexLocation::End);
    }

    #[test]
    fn each_defect_is_named() {
        let good = json!({"chunk_shape": [2, 2], "codecs": ["bytes"]});
        sharded(&json!([]), &good).unwrap().unwrap();
        let message = |before: Value, member: &str, value: Value| {
            let mut bad = good.clone();
            bad[member] = value;
            sharded(&before, &bad).unwrap_err().to_string()
        };
        let none = || json!([]);
        assert_eq!(message(none(), "codecs", json!([])), "codecs must be a non-empty list");
        assert_eq!(
            message(none(), "chunk_shape", json!([2])),
            "chunk_shape of sharding_indexed has 1 entry, the array has 2 dimensions"
        );
        assert_eq!(
            message(none(), "index_location", json!("middle")),
            "index_location must be \"start\" or \"end\""
        );
        let twice = json!([{"name": "transpose", "configuration": {"order": [0, 0]}}]);
        assert_eq!(
            message(twice, "x", json!(0)),
            "order of transpose must be a permutation of the axes"
        );
        assert_eq!(
            message(json!(["reshape"]), "x", json!(0)),
            "codec \"reshape\" before sharding_indexed is not known, so chunks cannot be located"
        );
    }

    #[test]
    fn a_delta_over_a_shard_is_refused_as_chunks_cannot_be_decoded_apart() {
        let configuration = json!({"chunk_shape": [2, 2], "codecs": ["bytes"]});
        let before = json!([{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}]);
        assert!(matches!(
            sharded(&before, &configuration),
            Err(MetadataError::UnknownBefore(name)) if name == "numcodecs.delta"
        ));
    }
}
