//! Encoded chunks of a single value. They stand in for chunks that do not exist, for readers that
//! would misinterpret their absence.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::codec::parse_chain;
use super::fingerprint::Fingerprint;
use super::metadata::ArrayMetadata;
use super::pipeline::{EncodeError, Pipeline};

/// Maximum length of a decoded chunk in bytes. Making a fill chunk takes as much memory as the
/// decoded chunk.
const MAX_CHUNK_BYTES: u64 = 256 << 20;

/// Encoded chunk of a single value, made when it is needed: it may be as long as a decoded chunk.
#[derive(Debug)]
pub struct FillChunk {
    pipeline: Pipeline,
    content: Content,
    /// Length of the encoded chunk in bytes, once it was made.
    nbytes: OnceLock<u64>,
    /// Fingerprint of all that its bytes depend on.
    fingerprint: u64,
}

/// Content to be encoded.
#[derive(Debug)]
enum Content {
    /// Items with the fill value of the pipeline.
    Items,
    /// One item, as the codecs vlen-utf8 and vlen-bytes store it, and the number of repetitions.
    Objects(Vec<u8>, u32),
}

impl FillChunk {
    /// Creates the chunk of the fill value of an array with the unsharded metadata `twin`; `None`
    /// if its codecs are not known or the chunk is too large.
    pub fn of(twin: &Value) -> Option<Self> {
        let (pipeline, content) = match Pipeline::parse(twin) {
            Ok(pipeline) => (pipeline, Content::Items),
            Err(_) => objects(twin)?,
        };
        let is_small = pipeline.nbytes() as u64 <= MAX_CHUNK_BYTES;
        let members = ["data_type", "chunk_grid", "fill_value", "codecs"].map(|name| &twin[name]);
        let fingerprint = Fingerprint::of(json!(members).to_string().as_bytes());
        is_small.then(|| Self { pipeline, content, nbytes: OnceLock::new(), fingerprint })
    }

    /// Creates the chunk of another value of the same array.
    pub fn of_value(twin: &Value, fill_value: &Value) -> Option<Self> {
        let mut twin = twin.clone();
        twin["fill_value"] = fill_value.clone();
        Self::of(&twin)
    }

    /// Returns a number that differs from that of other chunks of the same array.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns the length of the encoded chunk in bytes; `None` if it was not made yet.
    pub fn nbytes(&self) -> Option<u64> {
        self.nbytes.get().copied()
    }

    /// Returns about how much memory it takes to make the chunk, in bytes.
    pub fn memory(&self) -> u64 {
        (self.pipeline.nbytes() as u64).saturating_mul(3)
    }

    /// Makes the encoded bytes.
    pub fn encoded(&self) -> Result<Vec<u8>, EncodeError> {
        let encoded = self.encode()?;
        self.nbytes.get_or_init(|| encoded.len() as u64);
        Ok(encoded)
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let chunk = match &self.content {
            Content::Items => {
                let fill = self.pipeline.fill();
                fill.repeat(self.pipeline.nbytes().checked_div(fill.len()).unwrap_or(0))
            }
            Content::Objects(item, count) => {
                let items = item.repeat(*count as usize);
                [&count.to_le_bytes(), items.as_slice()].concat()
            }
        };
        self.pipeline.encode(&chunk)
    }
}

/// Returns the codecs after vlen-utf8 or vlen-bytes, and their input. Transposes are ignored: they
/// do not change a chunk of a single value.
fn objects(twin: &Value) -> Option<(Pipeline, Content)> {
    let array = ArrayMetadata::parse(twin).ok()?;
    let chain = parse_chain(twin.get("codecs")).ok()?;
    let at = chain.iter().position(|codec| codec.name != "transpose")?;
    let value = twin.get("fill_value").and_then(Value::as_str)?;
    let value = match chain[at].name.as_str() {
        "vlen-utf8" => value.as_bytes().to_vec(),
        "vlen-bytes" => STANDARD.decode(value).ok()?,
        _ => return None,
    };
    let count = array.grid.iter().try_fold(1_u64, |count, axis| match axis {
        super::grid::Edges::Equal(edge) => count.checked_mul(*edge),
        super::grid::Edges::Runs(_) => None,
    })?;
    let count = u32::try_from(count).ok()?;
    let item = [&u32::try_from(value.len()).ok()?.to_le_bytes(), value.as_slice()].concat();
    let nbytes = u64::from(count).checked_mul(item.len() as u64)?.checked_add(4)?;
    let mut codecs = vec![json!({"name": "bytes"})];
    codecs.extend(chain[at + 1..].iter().map(|codec| codec.document().clone()));
    let behind = json!({
        "shape": [nbytes],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
    });
    Some((Pipeline::parse(&behind).ok()?, Content::Objects(item, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twin(data_type: &str, fill_value: Value, codecs: Value) -> Value {
        json!({"zarr_format": 3, "node_type": "array", "shape": [5], "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": fill_value, "codecs": codecs})
    }

    fn encoded(twin: &Value) -> Vec<u8> {
        FillChunk::of(twin).unwrap().encoded().unwrap()
    }

    #[test]
    fn chunks_of_numbers() {
        let little = twin("int16", json!(-2), json!(["bytes"]));
        assert_eq!(encoded(&little), [0xfe, 0xff, 0xfe, 0xff, 0xfe, 0xff]);
        let other = FillChunk::of_value(&little, &json!(1)).unwrap();
        assert_eq!(*other.encoded().unwrap(), [1, 0, 1, 0, 1, 0]);
        let big = json!([{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}]);
        let big = twin("int16", json!(1), big);
        let mut chunk = [0; 6];
        Pipeline::parse(&big).unwrap().decode(&encoded(&big), &mut chunk).unwrap();
        assert_eq!(chunk, [1, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn chunks_of_texts() {
        let texts = twin("string", json!("ä"), json!([{"name": "vlen-utf8"}]));
        let item = [2, 0, 0, 0, 0xc3, 0xa4];
        assert_eq!(encoded(&texts), [&[3, 0, 0, 0], item.repeat(3).as_slice()].concat());
        let bytes = twin("variable_length_bytes", json!("AQ=="), json!([{"name": "vlen-bytes"}]));
        assert_eq!(encoded(&bytes), [3, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn chunks_of_unknown_codecs_and_too_large_ones_are_none() {
        assert!(FillChunk::of(&twin("int16", json!(0), json!(["bytes", "rle"]))).is_none());
        let delta = json!([{"name": "numcodecs.delta"}, "bytes"]);
        assert!(FillChunk::of(&twin("int16", json!(0), delta)).is_none());
        let mut large = twin("int64", json!(0), json!(["bytes"]));
        large["chunk_grid"]["configuration"]["chunk_shape"] = json!([1_u64 << 26]);
        assert!(FillChunk::of(&large).is_none());
    }
}
