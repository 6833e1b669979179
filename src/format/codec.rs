//! Codecs and codec chains in metadata.
//!
//! Zarr core specification 3.1, "Codecs". A codec is an object with a name and an optional
//! configuration, or (since 3.1) a bare name.

use serde_json::{Map, Value};

use super::error::MetadataError;

/// One codec of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Codec {
    /// Name as shown in the view: `endian`, as in the text of ZEP 2, is replaced by `bytes`.
    pub name: String,
    document: Value,
}

impl Codec {
    fn parse(value: &Value) -> Result<Self, MetadataError> {
        let invalid = MetadataError::invalid("codecs", "a list of names or objects with a name");
        let mut object = match value {
            Value::String(name) => Map::from_iter([("name".to_owned(), name.as_str().into())]),
            Value::Object(object) => object.clone(),
            _ => return Err(invalid),
        };
        let Some(Value::String(name)) = object.get("name") else {
            return Err(invalid);
        };
        let name = if name == "endian" { "bytes".to_owned() } else { name.clone() };
        object.insert("name".to_owned(), name.as_str().into());
        Ok(Self { name, document: Value::Object(object) })
    }

    /// Returns a member of the configuration; `None` if it or the configuration is absent.
    pub fn option(&self, member: &str) -> Option<&Value> {
        self.document.get("configuration")?.get(member)
    }

    /// Returns the codec as it is written to metadata, always in its object form.
    pub fn document(&self) -> &Value {
        &self.document
    }
}

/// Parses a non-empty list of codecs.
pub fn parse_chain(value: Option<&Value>) -> Result<Vec<Codec>, MetadataError> {
    match value.and_then(Value::as_array).map(Vec::as_slice) {
        None | Some([]) => Err(MetadataError::invalid("codecs", "a non-empty list")),
        Some(codecs) => codecs.iter().map(Codec::parse).collect(),
    }
}

/// Returns the order of a `transpose` codec: axis `i` of its output is axis `order[i]` of its
/// input. Also accepts `"C"` and `"F"`, which early writers stored.
pub fn transpose_order(codec: &Codec, rank: usize) -> Result<Vec<usize>, MetadataError> {
    let invalid = || MetadataError::invalid("order of transpose", "a permutation of the axes");
    let order: Vec<usize> = match codec.option("order") {
        Some(Value::String(text)) if text == "C" => (0..rank).collect(),
        Some(Value::String(text)) if text == "F" => (0..rank).rev().collect(),
        Some(Value::Array(items)) => {
            let axis = |item: &Value| item.as_u64().and_then(|axis| usize::try_from(axis).ok());
            items.iter().map(axis).collect::<Option<_>>().ok_or_else(invalid)?
        }
        _ => return Err(invalid()),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..rank) { Ok(order) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bare_names_are_codecs_and_endian_is_bytes() {
        let chain = parse_chain(Some(&json!(["endian", {"name": "gzip"}]))).unwrap();
        assert_eq!(chain[0].document(), &json!({"name": "bytes"}));
        assert_eq!(chain[1].name, "gzip");
    }
}
