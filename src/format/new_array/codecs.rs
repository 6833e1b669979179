//! Codecs of an inner chunk, parsed from user input.

use serde_json::{Value, json};

use super::error::NewArrayError;
use crate::format::chain::SHAPE_PRESERVING;
use crate::format::data_type::DataType;
use crate::format::json;

/// Codecs from arrays to bytes.
const ARRAY_TO_BYTES: [&str; 8] = [
    "bytes",
    "numcodecs.pcodec",
    "numcodecs.zfpy",
    "packbits",
    "sharding_indexed",
    "vlen-bytes",
    "vlen-utf8",
    "zfp",
];

/// Syntax of the short forms that [`codec_from_text`] accepts.
const FORMS: [&str; 4] = ["zstd:LEVEL", "gzip:LEVEL", "blosc:NAME:LEVEL:SHUFFLE", "crc32c"];

/// Parses a codec from its short form (`zstd`, `zstd:3`, `gzip:5`, `blosc:lz4:5:shuffle`, `crc32c`)
/// or from JSON. Parts omitted in the short form have the values that zarr-python writes; the
/// typesize of Blosc is that of the array's item.
pub(crate) fn codec_from_text(text: &str, item: &DataType) -> Result<Value, NewArrayError> {
    let unknown =
        || NewArrayError::Codec { text: text.to_owned(), known: "zstd, gzip, blosc, crc32c" };
    if text.trim_start().starts_with('{') {
        let value = json::parse(text.as_bytes()).map_err(|_| unknown())?;
        return value
            .get("name")
            .is_some_and(Value::is_string)
            .then_some(value)
            .ok_or_else(unknown);
    }
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    let form = FORMS.into_iter().find(|form| form.split(':').next() == Some(name));
    let mut short = Short { text, parts, form: form.ok_or_else(unknown)? };
    let configuration = match name {
        "zstd" => json!({"level": short.level(-131_072..=22, 0)?, "checksum": false}),
        "gzip" => json!({"level": short.level(0..=9, 5)?}),
        "blosc" => short.blosc(item)?,
        _ => Value::Null,
    };
    match short.parts.next() {
        Some(part) => Err(short.bad(part, "part of it")),
        None if configuration.is_null() => Ok(json!({"name": name})),
        None => Ok(json!({"name": name, "configuration": configuration})),
    }
}

/// State of parsing a short form.
struct Short<'a> {
    text: &'a str,
    parts: std::str::Split<'a, char>,
    form: &'static str,
}

impl Short<'_> {
    fn bad(&self, part: &str, what: &'static str) -> NewArrayError {
        let (text, part) = (self.text.to_owned(), part.to_owned());
        NewArrayError::CodecPart { text, part, what, form: self.form }
    }

    fn level(
        &mut self,
        range: std::ops::RangeInclusive<i32>,
        usual: i32,
    ) -> Result<i32, NewArrayError> {
        let Some(part) = self.parts.next() else { return Ok(usual) };
        let level = part.parse().ok().filter(|level| range.contains(level));
        level.ok_or_else(|| self.bad(part, "level of it"))
    }

    fn one_of(
        &mut self,
        names: &[&'static str],
        usual: &'static str,
        what: &'static str,
    ) -> Result<&'static str, NewArrayError> {
        let Some(part) = self.parts.next() else { return Ok(usual) };
        let found = names.iter().find(|name| **name == part);
        found.copied().ok_or_else(|| self.bad(part, what))
    }

    fn blosc(&mut self, item: &DataType) -> Result<Value, NewArrayError> {
        let names = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"];
        let name =
            self.one_of(&names, "zstd", "compressor of it (blosclz, lz4, lz4hc, zlib, zstd)")?;
        let level = self.level(0..=9, 5)?;
        // Shuffling bytes has no effect on items of one byte.
        let usual = if item.nbytes() == 1 { "bitshuffle" } else { "shuffle" };
        let shuffles = ["noshuffle", "shuffle", "bitshuffle"];
        let shuffle = self.one_of(&shuffles, usual, "shuffle (noshuffle, shuffle, bitshuffle)")?;
        Ok(json!({
            "cname": name,
            "clevel": level,
            "shuffle": shuffle,
            "typesize": item.nbytes(),
            "blocksize": 0,
        }))
    }
}

/// Returns the complete codec chain of an inner chunk. `bytes` is added after the array->array
/// codecs if there is no array->bytes codec; a transpose to `order` is placed directly before the
/// array->bytes codec.
pub(super) fn inner_chain(
    codecs: &[Value],
    order: Option<&[usize]>,
    item: &DataType,
) -> Result<Vec<Value>, NewArrayError> {
    let name =
        |codec: &Value| codec.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let names: Vec<String> = codecs.iter().map(name).collect();
    let is_array = |name: &String| {
        let name = name.as_str();
        ["transpose", "numcodecs.delta"].contains(&name) || SHAPE_PRESERVING.contains(&name)
    };
    let mut chain = codecs.to_vec();
    let at = match names.iter().position(|name| ARRAY_TO_BYTES.contains(&name.as_str())) {
        Some(at) => at,
        None => {
            let at = names.iter().take_while(|name| is_array(name)).count();
            chain.insert(at, bytes(item));
            at
        }
    };
    if let Some(order) = order {
        let turns = |name: &&String| ["transpose", "sharding_indexed"].contains(&name.as_str());
        if let Some(name) = names.iter().find(turns) {
            return Err(NewArrayError::OrderAndCodec(name.clone()));
        }
        chain.insert(at, json!({"name": "transpose", "configuration": {"order": order}}));
    }
    Ok(chain)
}

/// The codec `bytes`, little-endian if the item has a byte order.
fn bytes(item: &DataType) -> Value {
    match item.word() {
        1 => json!({"name": "bytes"}),
        _ => json!({"name": "bytes", "configuration": {"endian": "little"}}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str) -> DataType {
        DataType::parse(&json!(name)).unwrap()
    }

    #[test]
    fn short_forms_are_read() {
        let of = |text: &str| codec_from_text(text, &item("int32")).unwrap();
        let zstd = |level: i32| json!({"name": "zstd", "configuration": {"level": level, "checksum": false}});
        assert_eq!(of("zstd"), zstd(0));
        assert_eq!(of("zstd:-5"), zstd(-5));
        assert_eq!(of("gzip"), json!({"name": "gzip", "configuration": {"level": 5}}));
        assert_eq!(of("gzip:9")["configuration"]["level"], 9);
        assert_eq!(of("crc32c"), json!({"name": "crc32c"}));
        let blosc = |name: &str, level: u32, shuffle: &str| {
            json!({"name": "blosc", "configuration": {"cname": name, "clevel": level,
                "shuffle": shuffle, "typesize": 4, "blocksize": 0}})
        };
        assert_eq!(of("blosc"), blosc("zstd", 5, "shuffle"));
        assert_eq!(of("blosc:lz4:1:bitshuffle"), blosc("lz4", 1, "bitshuffle"));
        let bytes = codec_from_text("blosc", &item("uint8")).unwrap();
        assert_eq!(bytes["configuration"]["shuffle"], "bitshuffle");
        let object = json!({"name": "banana", "configuration": {"ripe": true}});
        assert_eq!(of(&object.to_string()), object);
    }

    #[test]
    fn a_bad_codec_is_told_what_is_expected() {
        let message = |text: &str| codec_from_text(text, &item("int32")).unwrap_err().to_string();
        for text in ["", "zsdt", "{", "{}", r#"{"name": 3}"#, "bytes"] {
            let expected = "is none of zstd, gzip, blosc, crc32c, each alone";
            assert!(message(text).contains(expected), "{}", message(text));
        }
        assert_eq!(
            message("zstd:23"),
            "codec \"zstd:23\": \"23\" is no level of it; its form is zstd:LEVEL"
        );
        assert_eq!(
            message("crc32c:1"),
            "codec \"crc32c:1\": \"1\" is no part of it; its form is crc32c"
        );
        assert!(message("blosc:snappy").contains("no compressor of it (blosclz, lz4"));
        assert!(message("blosc:lz4:5:no").contains("no shuffle (noshuffle"));
    }

    #[test]
    fn bytes_stand_between_arrays_and_bytes() {
        let named = |names: &[&str]| -> Vec<Value> {
            names.iter().map(|name| json!({"name": name})).collect()
        };
        let chain = |names: &[&str], order: Option<&[usize]>| -> Vec<String> {
            let chain = inner_chain(&named(names), order, &item("uint8")).unwrap();
            chain.iter().map(|codec| codec["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(chain(&[], None), ["bytes"]);
        assert_eq!(
            chain(&["bitround", "zstd", "crc32c"], None),
            ["bitround", "bytes", "zstd", "crc32c"]
        );
        assert_eq!(chain(&["numcodecs.delta"], None), ["numcodecs.delta", "bytes"]);
        assert_eq!(chain(&["packbits", "zstd"], None), ["packbits", "zstd"]);
        let turned = chain(&["bitround", "zstd"], Some(&[1, 0]));
        assert_eq!(turned, ["bitround", "transpose", "bytes", "zstd"]);
        for name in ["transpose", "sharding_indexed"] {
            inner_chain(&named(&[name]), Some(&[1, 0]), &item("uint8")).unwrap_err();
        }
    }
}
