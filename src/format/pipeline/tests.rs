use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Metadata of an array with chunks of this shape.
fn document(shape: &[u64], data_type: &str, codecs: &Value) -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": null, "codecs": codecs})
}

fn pipeline(shape: &[u64], data_type: &str, codecs: Value) -> Pipeline {
    Pipeline::parse(&document(shape, data_type, &codecs)).unwrap()
}

fn codec(name: &str, configuration: Value) -> Value {
    json!({"name": name, "configuration": configuration})
}

/// Pipeline over six uint16 that ends with the given codec.
fn six(last: &Value) -> Pipeline {
    pipeline(&[6], "uint16", json!(["bytes", last]))
}

/// The numbers 0 to 5.
const SIX: [u8; 12] = [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0];

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn decoded(pipeline: &Pipeline, encoded: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut chunk = vec![0xa5; pipeline.nbytes()];
    pipeline.decode(encoded, &mut chunk).map(|()| chunk)
}

fn message(pipeline: &Pipeline, encoded: &[u8]) -> String {
    decoded(pipeline, encoded).unwrap_err().to_string()
}

/// Codecs with the encoding of [`SIX`] by numcodecs 0.16.
fn golden() -> Vec<(Value, Vec<u8>)> {
    let number = |name: &str, encoded: &str| (json!(name), hex(encoded));
    vec![
        number("gzip", "1f8b08006550026b04ff636060646062606660616065000090bbb3a20c000000"),
        number(
            "numcodecs.gzip",
            "1f8b08006550026b04ff636060646062606660616065000090bbb3a20c000000",
        ),
        number("numcodecs.zlib", "7801636060646062606660616065000000520010"),
        number("zstd", "28b52ffd200c610000000001000200030004000500"),
        (
            codec("numcodecs.zstd", json!({"level": 3, "checksum": true})),
            hex("28b52ffd240c61000000000100020003000400050089e104dc"),
        ),
        number("numcodecs.lz4", "0c000000c0000001000200030004000500"),
        number("blosc", "020133020c0000000c0000001c000000000001000200030004000500"),
        (codec("numcodecs.shuffle", json!({"elementsize": 2})), hex("000102030405000000000000")),
        number("numcodecs.crc32", "90bbb3a2000001000200030004000500"),
        (
            codec("numcodecs.crc32", json!({"location": "end"})),
            hex("00000100020003000400050090bbb3a2"),
        ),
        number("numcodecs.adler32", "10005200000001000200030004000500"),
        number("numcodecs.crc32c", "0000010002000300040005003437f860"),
        number("crc32c", "0000010002000300040005003437f860"),
    ]
}

#[test]
fn what_numcodecs_writes_is_read_and_written() {
    for (last, encoded) in golden() {
        let pipeline = six(&last);
        assert_eq!(decoded(&pipeline, &encoded).unwrap(), SIX, "{last}");
        let again = pipeline.encode(&SIX).unwrap();
        assert_eq!(decoded(&pipeline, &again).unwrap(), SIX, "{last}");
        let name = last.as_str().or_else(|| last["name"].as_str()).unwrap();
        if ["crc32", "adler32", "shuffle"].iter().any(|exact| name.contains(exact)) {
            assert_eq!(again, encoded, "{last}");
        }
    }
}

/// Bytes after a stream are accepted or refused as by numcodecs 0.16. (TensorStore and zarrs read
/// the first gzip member and ignore the rest, and refuse a Blosc buffer that is followed by more
/// bytes.)
#[test]
fn what_follows_a_stream_is_read_as_numcodecs_reads_it() {
    let member = "1f8b0800460a036b04ff636060646062606660616065000090bbb3a20c000000";
    let half = "1f8b0800460a036b04ff636060646062000044a4483b06000000";
    let other_half = "1f8b0800460a036b04ff63666061606500001fb043c506000000";
    let zlib = "789c636060646062606660616065000000520010";
    let frame = "28b52ffd200c610000000001000200030004000500";
    let streamed = "28b52ffd0058310000000001000200";
    let skippable = "502a4d180400000061626364";
    let blosc = "020133010c0000000c0000001c000000000001000200030004000500";
    let garbage = "67617262616765";
    for (name, parts) in [
        ("gzip", &[member, "000000000000000000"][..]),
        ("gzip", &[half, other_half]),
        ("gzip", &[half, "000000", other_half, "00"]),
        ("gzip", &[member, "1f8b0800460a036b04ff03000000000000000000"]),
        ("numcodecs.zlib", &[zlib, garbage]),
        ("numcodecs.zlib", &[zlib, "00"]),
        ("numcodecs.zlib", &[zlib, zlib]),
        ("zstd", &[streamed, "28b52ffd2006310000030004000500"]),
        ("zstd", &[skippable, frame, skippable]),
        ("zstd", &[frame, "28b52ffd2000010000"]),
        ("blosc", &[blosc, garbage]),
        ("blosc", &[blosc, blosc]),
    ] {
        let encoded = hex(&parts.concat());
        assert_eq!(
            decoded(&six(&json!(name)), &encoded).as_deref(),
            Ok(&SIX[..]),
            "{name} {parts:?}"
        );
        // The same if the length between two codecs is unknown.
        let chain = pipeline(&[6], "uint16", json!(["bytes", "crc32c", name]));
        let inner = six(&json!("crc32c")).encode(&SIX).unwrap();
        let outer = pipeline(&[inner.len() as u64], "uint8", json!(["bytes", name]));
        let tail = hex(&parts.concat()).split_off(hex(parts[0]).len());
        if decoded(&six(&json!(name)), &hex(parts[0])).is_ok() {
            let encoded = [outer.encode(&inner).unwrap(), tail].concat();
            assert_eq!(decoded(&chain, &encoded).as_deref(), Ok(&SIX[..]), "{name} {parts:?}");
        }
    }
    for (name, parts, text) in [
        ("gzip", &[member, garbage, garbage][..], "bad gzip data: invalid gzip header"),
        ("gzip", &[member, "1f"], "bad gzip data: unexpected end of file"),
        ("gzip", &[member, "00007878"], "bad gzip data: unexpected end of file"),
        ("gzip", &["00", member], "bad gzip data: invalid gzip header"),
        ("gzip", &["0000"], "bad gzip data: unexpected end of file"),
        ("gzip", &[""], "bad gzip data: unexpected end of file"),
        ("gzip", &[half, "00"], "it decodes to 6 bytes, 12 are expected"),
        ("gzip", &[half, &other_half[..24]], "bad gzip data: incomplete deflate stream"),
        ("gzip", &[member, "00", member], "it decodes to more than 12 bytes"),
        ("numcodecs.zlib", &[""], "bad zlib data: incomplete deflate stream"),
        ("zstd", &[frame, garbage], "bad zstd data: Src size is incorrect"),
        ("zstd", &[frame, "00000000"], "bad zstd data: Src size is incorrect"),
        ("zstd", &[frame, frame], "it decodes to more than 12 bytes"),
        ("zstd", &[""], "it decodes to 0 bytes, 12 are expected"),
        ("blosc", &[""], "it has 0 bytes, too few for blosc"),
        (
            "blosc",
            &[&blosc[..blosc.len() - 2]],
            "bad blosc data: its header is not that of a Blosc buffer of this length",
        ),
    ] {
        assert_eq!(message(&six(&json!(name)), &hex(&parts.concat())), text, "{name} {parts:?}");
    }
}

#[test]
fn one_byte_is_one_byte() {
    assert_eq!(message(&six(&json!("crc32c")), &[0]), "it has 1 byte, too few for crc32c");
    let one = pipeline(&[6], "uint16", json!(["bytes"]));
    assert_eq!(message(&one, &[0]), "it decodes to 1 byte, 12 are expected");
}

#[test]
fn members_without_content_are_read_in_their_time() {
    let member = hex("1f8b0800460a036b04ff03000000000000000000");
    let many =
        [member.repeat(1 << 14), vec![0; 1 << 20], six(&json!("gzip")).encode(&SIX).unwrap()];
    assert_eq!(decoded(&six(&json!("gzip")), &many.concat()).unwrap(), SIX);
}

#[test]
fn the_usual_members_of_a_pipeline() {
    let pipeline = pipeline(&[2, 3], "float32", json!([codec("bytes", json!({"endian": "big"}))]));
    assert_eq!(pipeline.data_type().descr(false), "<f4");
    assert_eq!((pipeline.chunk_shape(), pipeline.nbytes()), (&[2, 3][..], 24));
    assert_eq!(pipeline.fill(), [0; 4]);
    let encoded: Vec<u8> = (0..24).collect();
    let chunk = decoded(&pipeline, &encoded).unwrap();
    assert_eq!(chunk[..4], [3, 2, 1, 0]);
    assert_eq!(pipeline.encode(&chunk).unwrap(), encoded);
}

#[test]
fn transposes_compose_and_complex_numbers_swap_by_halves() {
    let order = |order: Value| codec("transpose", json!({"order": order}));
    let chain = json!([order(json!([2, 0, 1])), order(json!("F")), "bytes"]);
    let composed = pipeline(&[2, 3, 4], "uint8", chain);
    let chunk: Vec<u8> = (0..24).collect();
    let encoded = composed.encode(&chunk).unwrap();
    // Axes of the encoded array: 1, 0, 2.
    assert_eq!(encoded[..8], [0, 1, 2, 3, 12, 13, 14, 15]);
    assert_eq!(decoded(&composed, &encoded).unwrap(), chunk);
    let complex = pipeline(&[1], "complex64", json!([codec("bytes", json!({"endian": "big"}))]));
    assert_eq!(complex.encode(&[1, 2, 3, 4, 5, 6, 7, 8]).unwrap(), [4, 3, 2, 1, 8, 7, 6, 5]);
}

#[test]
fn every_compressor_of_blosc_is_read_and_written() {
    // 64 zeros of two bytes.
    let written = [
        ("blosclz", "02011102800000008000000023000000140000000b0000002300000000e07103010000"),
        ("lz4", "02013102800000008000000023000000140000000b0000001f00010067500000000000"),
        ("lz4hc", "02013102800000008000000023000000140000000b0000001f00010067500000000000"),
        ("zlib", "02017102800000008000000024000000140000000c000000785e63601858000000800001"),
        (
            "zstd",
            "02019102800000008000000029000000140000001100000028b52ffd208045000010000001003b0558",
        ),
    ];
    for (cname, encoded) in written {
        let last = codec("blosc", json!({"cname": cname, "shuffle": "shuffle", "typesize": 2}));
        let pipeline = pipeline(&[64], "uint16", json!(["bytes", last]));
        assert_eq!(decoded(&pipeline, &hex(encoded)).unwrap(), [0; 128], "{cname}");
        let again = pipeline.encode(&[0; 128]).unwrap();
        // Version, compressor, shuffle and size of an item.
        assert_eq!(again[..16], hex(&encoded[..32]), "{cname}");
        // Offset and length of the block.
        for at in [16, 20, 22] {
            let mut bad = hex(encoded);
            bad[at] ^= 0x7f;
            assert_eq!(message(&pipeline, &bad), "bad blosc data: it cannot be decompressed");
        }
    }
}

/// Shard of 2 x 2 chunks.
fn sharded(location: &str, order: Value) -> Pipeline {
    let shard = json!({"chunk_shape": [1, 2], "codecs": ["bytes"], "index_location": location,
        "index_codecs": ["bytes", "crc32c"]});
    let order = codec("transpose", json!({"order": order}));
    let mut document =
        document(&[2, 4], "uint8", &json!([order, codec("sharding_indexed", shard)]));
    document["fill_value"] = json!(7);
    Pipeline::parse(&document).unwrap()
}

#[test]
fn a_shard_inside_a_chunk() {
    let pipeline = sharded("end", json!([0, 1]));
    let chunk = [1, 2, 7, 7, 7, 7, 3, 4];
    let encoded = pipeline.encode(&chunk).unwrap();
    assert_eq!(encoded[..4], [1, 2, 3, 4]);
    assert_eq!(encoded.len(), 4 + 4 * 16 + 4);
    assert_eq!(decoded(&pipeline, &encoded).unwrap(), chunk);
    let empty = pipeline.encode(&[7; 8]).unwrap();
    assert_eq!(decoded(&pipeline, &empty).unwrap(), [7; 8]);
    let start = sharded("start", json!([0, 1]));
    let encoded = start.encode(&chunk).unwrap();
    assert_eq!(encoded[68..], [1, 2, 3, 4]);
    assert_eq!(decoded(&start, &encoded).unwrap(), chunk);
    assert_eq!(message(&start, &encoded[..60]), "the index has 60 bytes, 68 are expected");
    let mut bad = encoded.clone();
    bad[67] ^= 1;
    assert!(message(&start, &bad).starts_with("checksum of the index is "));
    let mut bad = encoded;
    bad[8] = 9;
    let sum = crc32c::crc32c(&bad[..64]).to_le_bytes();
    bad[64..68].copy_from_slice(&sum);
    let text =
        "inner chunk 0: its entry (offset 68, nbytes 9) points outside the shard of 72 bytes";
    assert_eq!(message(&start, &bad), text);
    bad[8] = 3;
    let sum = crc32c::crc32c(&bad[..64]).to_le_bytes();
    bad[64..68].copy_from_slice(&sum);
    let text = "inner chunk 0: it decodes to 3 bytes, 2 are expected";
    assert_eq!(message(&start, &bad), text);
}

#[test]
fn one_damaged_field_at_a_time() {
    let of = |name: &str| {
        let mut golden = golden().into_iter();
        let (last, encoded) =
            golden.find(|(last, _)| last.as_str().or(last["name"].as_str()) == Some(name)).unwrap();
        (six(&last), encoded)
    };
    let damaged = |name: &str, at: usize, value: u8| {
        let (pipeline, mut encoded) = of(name);
        encoded[at] = value;
        message(&pipeline, &encoded)
    };
    let cut = |name: &str, length: usize| {
        let (pipeline, encoded) = of(name);
        message(&pipeline, &encoded[..length])
    };
    for (name, at, value, text) in [
        // Magic, method, flags; the deflate block; CRC and length after it.
        ("gzip", 0, 0, "bad gzip data: invalid gzip header"),
        ("gzip", 2, 0, "bad gzip data: invalid gzip header"),
        ("gzip", 10, 0xff, "bad gzip data: corrupt deflate stream"),
        ("gzip", 24, 0, "bad gzip data: corrupt gzip stream does not have a matching checksum"),
        ("gzip", 28, 11, "bad gzip data: corrupt gzip stream does not have a matching checksum"),
        // Method and check, the deflate block, the Adler-32.
        ("numcodecs.zlib", 0, 0, "bad zlib data: corrupt deflate stream"),
        ("numcodecs.zlib", 2, 0xff, "bad zlib data: corrupt deflate stream"),
        ("numcodecs.zlib", 19, 0, "bad zlib data: corrupt deflate stream"),
        // Magic, flags, length, block header; the checksum.
        ("zstd", 0, 0, "bad zstd data: Unknown frame descriptor"),
        ("zstd", 4, 0x28, "bad zstd data: Unsupported frame parameter"),
        ("zstd", 5, 11, "bad zstd data: Data corruption detected"),
        ("zstd", 5, 13, "bad zstd data: Data corruption detected"),
        ("zstd", 6, 0x67, "bad zstd data: Data corruption detected"),
        ("numcodecs.zstd", 21, 0, "bad zstd data: Restored data doesn't match checksum"),
        // Length, literals.
        ("numcodecs.lz4", 0, 13, "it decodes to 13 bytes, 12 are expected"),
        ("numcodecs.lz4", 4, 0xb0, "bad lz4 data: expected another byte, found none"),
        ("numcodecs.lz4", 4, 0xd0, "bad lz4 data: literal is out of bounds of the input"),
        // Version, flags, size of an item, length, block size, length of the buffer.
        ("blosc", 0, 3, "bad blosc data: its header is not that of a Blosc buffer of this length"),
        ("blosc", 2, 0x3b, "bad blosc data: it cannot be decompressed"),
        ("blosc", 3, 0, "bad blosc data: it cannot be decompressed"),
        ("blosc", 4, 11, "it decodes to 11 bytes, 12 are expected"),
        ("blosc", 8, 13, "bad blosc data: it cannot be decompressed"),
        ("blosc", 12, 27, "bad blosc data: it cannot be decompressed"),
        (
            "blosc",
            12,
            29,
            "bad blosc data: its header is not that of a Blosc buffer of this length",
        ),
        ("numcodecs.crc32", 0, 0x91, "crc32 is a2b3bb90, stored is a2b3bb91"),
        ("numcodecs.adler32", 4, 1, "adler32 is 005e0011, stored is 00520010"),
        ("numcodecs.crc32c", 12, 0x35, "crc32c is 60f83734, stored is 60f83735"),
        ("crc32c", 0, 1, "crc32c is 5189e304, stored is 60f83734"),
    ] {
        assert_eq!(damaged(name, at, value), text, "{name} {at}");
    }
    for (name, length, text) in [
        ("gzip", 0, "bad gzip data: unexpected end of file"),
        ("gzip", 20, "bad gzip data: incomplete deflate stream"),
        ("gzip", 31, "bad gzip data: unexpected end of file"),
        ("numcodecs.zlib", 19, "bad zlib data: incomplete deflate stream"),
        ("zstd", 0, "it decodes to 0 bytes, 12 are expected"),
        ("zstd", 20, "bad zstd data: Src size is incorrect"),
        ("numcodecs.lz4", 3, "it has 3 bytes, too few for lz4"),
        ("numcodecs.lz4", 16, "bad lz4 data: literal is out of bounds of the input"),
        ("blosc", 15, "it has 15 bytes, too few for blosc"),
        ("blosc", 27, "bad blosc data: its header is not that of a Blosc buffer of this length"),
        ("numcodecs.crc32", 3, "it has 3 bytes, too few for crc32"),
        ("crc32c", 15, "crc32c is 6df539d2, stored is f8373400"),
        ("numcodecs.shuffle", 11, "it decodes to 11 bytes, 12 are expected"),
    ] {
        assert_eq!(cut(name, length), text, "{name} {length}");
    }
    let bytes = pipeline(&[6], "uint16", json!(["bytes"]));
    assert_eq!(message(&bytes, &[0; 11]), "it decodes to 11 bytes, 12 are expected");
    let room = bytes.decode(&SIX, &mut [0; 11]).unwrap_err().to_string();
    assert_eq!(room, "the room for the chunk has 11 bytes, the chunk has 12");
    let length = bytes.encode(&[0; 13]).unwrap_err().to_string();
    assert_eq!(length, "the chunk has 13 bytes, 12 are expected");
}

#[test]
fn nothing_is_decoded_beyond_the_shape() {
    let long = vec![0_u8; 1 << 20];
    let encode =
        |last: &Value| pipeline(&[1 << 20], "uint8", json!(["bytes", last])).encode(&long).unwrap();
    for name in ["gzip", "numcodecs.zlib", "zstd", "blosc", "numcodecs.lz4"] {
        let bomb = encode(&json!(name));
        let expected = match name {
            "gzip" | "numcodecs.zlib" => "it decodes to more than 12 bytes",
            _ => "it decodes to 1048576 bytes, 12 are expected",
        };
        assert_eq!(message(&six(&json!(name)), &bomb), expected, "{name}");
        // The same below another codec, so that the length in between is unknown.
        let twice = pipeline(&[6], "uint16", json!(["bytes", "gzip", name]));
        assert!(message(&twice, &bomb).starts_with("it decodes to more than "), "{name}");
    }
    // Frames without a content size, and several frames.
    let streamed = zstd::stream::encode_all(&SIX[..6], 1).unwrap();
    let both = [streamed.clone(), zstd::stream::encode_all(&SIX[6..], 1).unwrap()].concat();
    assert_eq!(decoded(&six(&json!("zstd")), &both).unwrap(), SIX);
    let more = [both, streamed].concat();
    assert_eq!(message(&six(&json!("zstd")), &more), "it decodes to more than 12 bytes");
}

#[test]
fn what_cannot_be_made_a_pipeline_is_named() {
    let refused = |codecs: Value| {
        Pipeline::parse(&document(&[4, 6], "uint16", &codecs)).unwrap_err().to_string()
    };
    assert_eq!(refused(json!(["bytes", "numcodecs.bz2"])), "codec \"numcodecs.bz2\" is not known");
    assert_eq!(
        refused(json!(["numcodecs.delta", "bytes"])),
        "codec \"numcodecs.delta\" is not known"
    );
    assert_eq!(refused(json!(["vlen-utf8"])), "codec \"vlen-utf8\" is not known");
    assert_eq!(refused(json!(["gzip", "bytes"])), "codec \"gzip\" cannot stand where it does");
    assert_eq!(refused(json!(["bytes", "bytes"])), "codec \"bytes\" cannot stand where it does");
    let none = "codecs have none that makes bytes of an array";
    assert_eq!(refused(json!([codec("transpose", json!({"order": [1, 0]}))])), none);
    let option = |name: &str, member: &str, value: Value| {
        let mut configuration = json!({});
        configuration[member] = value;
        refused(json!(["bytes", codec(name, configuration)]))
    };
    for (name, member, value, expected) in [
        ("gzip", "level", json!(10), "from -1 to 9"),
        ("numcodecs.zlib", "level", json!("9"), "from -1 to 9"),
        ("zstd", "level", json!(23), "a level of zstd"),
        ("zstd", "checksum", json!(1), "true or false"),
        ("blosc", "cname", json!("snappy"), "blosclz, lz4, lz4hc, zlib or zstd"),
        ("blosc", "clevel", json!(10), "from 0 to 9"),
        ("blosc", "shuffle", json!("byte"), "noshuffle, shuffle or bitshuffle"),
        ("blosc", "shuffle", json!(3), "noshuffle, shuffle or bitshuffle"),
        ("blosc", "typesize", json!(0), "a whole number of bytes"),
        ("blosc", "blocksize", json!(-1), "a whole number of bytes"),
        ("numcodecs.crc32", "location", json!("middle"), "\"start\" or \"end\""),
        ("numcodecs.shuffle", "elementsize", json!(-1), "a whole number of bytes"),
    ] {
        let text = format!("{member} of codec {name:?} must be {expected}");
        assert_eq!(option(name, member, value), text);
    }
    let endian = refused(json!([codec("bytes", json!({"endian": "native"}))]));
    assert_eq!(endian, "endian of codec \"bytes\" must be \"little\" or \"big\"");
    let uneven =
        json!([codec("sharding_indexed", json!({"chunk_shape": [3, 3], "codecs": ["bytes"]}))]);
    let text = "inner chunks of 3 elements do not divide a shard of 4 along an axis";
    assert_eq!(refused(uneven), text);
    let deep = (0..10).fold(json!(["bytes"]), |codecs, _| {
        json!([codec("sharding_indexed", json!({"chunk_shape": [4, 6], "codecs": codecs}))])
    });
    assert_eq!(refused(deep), "too many levels of sharding, the limit is 8");
    let refused = |document: &Value| Pipeline::parse(document).unwrap_err().to_string();
    let large = document(&[1 << 20, 1 << 20], "uint8", &json!(["bytes"]));
    assert_eq!(refused(&large), "chunks are longer than the limit of 1073741824 bytes");
    let mut uneven = document(&[4], "uint8", &json!(["bytes"]));
    uneven["chunk_grid"] = json!({"name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[1, 3]]}});
    assert_eq!(refused(&uneven), "chunks of the grid differ in shape");
    let string = document(&[4], "string", &json!(["vlen-utf8"]));
    assert_eq!(refused(&string), "items of data type \"string\" have no fixed size");
    let mut fill = document(&[4], "uint8", &json!(["bytes"]));
    fill["fill_value"] = json!(256);
    assert_eq!(refused(&fill), "fill_value 256 is no uint8");
}

#[test]
fn chunks_without_items() {
    for shape in [&[0][..], &[3, 0, 2]] {
        for last in ["gzip", "numcodecs.zlib", "zstd", "blosc", "numcodecs.lz4", "crc32c"] {
            let order: Vec<usize> = (0..shape.len()).rev().collect();
            let order = codec("transpose", json!({"order": order}));
            let pipeline = pipeline(shape, "uint16", json!([order, "bytes", last]));
            assert_eq!(pipeline.nbytes(), 0);
            let encoded = pipeline.encode(&[]).unwrap();
            assert_eq!(decoded(&pipeline, &encoded).unwrap(), [0; 0], "{last}");
        }
        let shard = json!({"chunk_shape": shape, "codecs": ["bytes"]});
        let pipeline = pipeline(shape, "uint16", json!([codec("sharding_indexed", shard)]));
        let encoded = pipeline.encode(&[]).unwrap();
        assert_eq!(decoded(&pipeline, &encoded).unwrap(), [0; 0]);
    }
}

fn any_codec() -> impl Strategy<Value = Value> {
    let blosc = (0..5_usize, 0..=9_u32, 0..3_usize).prop_map(|(cname, clevel, shuffle)| {
        let cname = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"][cname];
        let shuffle = ["noshuffle", "shuffle", "bitshuffle"][shuffle];
        codec("blosc", json!({"cname": cname, "clevel": clevel, "shuffle": shuffle}))
    });
    let place = |name| {
        prop_oneof![Just("start"), Just("end")]
            .prop_map(move |location| codec(name, json!({"location": location})))
    };
    prop_oneof![
        (0..10_u32).prop_map(|level| codec("gzip", json!({"level": level}))),
        (0..10_u32).prop_map(|level| codec("numcodecs.zlib", json!({"level": level}))),
        (-3..5_i32, any::<bool>()).prop_map(|(level, checksum)| codec(
            "zstd",
            json!({"level": level, "checksum": checksum})
        )),
        blosc,
        Just(json!("crc32c")),
        Just(json!("numcodecs.lz4")),
        place("numcodecs.crc32"),
        place("numcodecs.adler32"),
        place("numcodecs.crc32c"),
    ]
}

fn any_chain(rank: usize) -> impl Strategy<Value = (Vec<Value>, Value)> {
    let order = Just((0..rank).collect::<Vec<_>>()).prop_shuffle();
    let order = order.prop_map(|order| codec("transpose", json!({"order": order})));
    let endian = prop_oneof![Just("little"), Just("big")];
    let endian = endian.prop_map(|endian| codec("bytes", json!({"endian": endian})));
    let after = proptest::collection::vec(any_codec(), 0..3);
    (proptest::collection::vec(order, 0..2), endian, after)
        .prop_map(|(orders, bytes, after)| (after, [orders, vec![bytes]].concat().into()))
}

/// Data type, shape of an inner chunk, chunks of a shard or no sharding, and codecs.
fn any_document() -> impl Strategy<Value = Value> {
    let names = ["bool", "int16", "float32", "uint64", "complex128", "r24", "bfloat16", "int4"];
    (0..5_usize, 0..names.len(), any::<bool>(), any::<bool>()).prop_flat_map(
        move |(rank, name, nested, at_start)| {
            let lengths = proptest::collection::vec(1..5_u64, rank);
            let counts = proptest::collection::vec(1..3_u64, rank);
            (lengths, counts, any_chain(rank), any_chain(rank)).prop_map(
                move |(inner, counts, chain, outer)| {
                    let join = |(after, before): (Vec<Value>, Value)| {
                        [before.as_array().unwrap().clone(), after].concat()
                    };
                    if !nested {
                        return document(&inner, names[name], &join(chain).into());
                    }
                    // The outer transpose permutes the axes of the shard, so all edges are made
                    // equal.
                    let edge = inner.iter().max().copied().unwrap_or(1);
                    let count = counts.iter().max().copied().unwrap_or(1);
                    let shape = vec![edge * count; rank];
                    let location = if at_start { "start" } else { "end" };
                    let shard = codec(
                        "sharding_indexed",
                        json!({"chunk_shape": vec![edge; rank],
                        "codecs": join(chain), "index_location": location}),
                    );
                    let (after, before) = outer;
                    let mut before = before.as_array().unwrap().clone();
                    before.pop();
                    let codecs = [before, vec![shard], after].concat();
                    document(&shape, names[name], &codecs.into())
                },
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_chain_goes_both_ways(document in any_document(), seed: u64, damage: (usize, u8)) {
        let pipeline = Pipeline::parse(&document).unwrap();
        let mut state = seed;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Runs of zeros are included, so that some chunks hold only fill values and others
            // compress.
            if state >> 62 == 0 { state.to_be_bytes()[1] } else { 0 }
        };
        let chunk: Vec<u8> = (0..pipeline.nbytes()).map(|_| noise()).collect();
        let encoded = pipeline.encode(&chunk).unwrap();
        prop_assert_eq!(&decoded(&pipeline, &encoded).unwrap(), &chunk);
        // Damage leads to an error or to other items, never to a panic.
        let mut bad = encoded.clone();
        let at = damage.0.checked_rem(bad.len()).unwrap_or(0);
        if let Some(byte) = bad.get_mut(at) {
            *byte ^= damage.1;
        }
        let _ = decoded(&pipeline, &bad);
        let cut = decoded(&pipeline, &encoded[..at]);
        prop_assert!(cut.is_err() || cut.is_ok_and(|cut| cut == chunk));
    }

    #[test]
    fn nonsense_never_panics(document in any_document(), bytes: Vec<u8>) {
        let _ = decoded(&Pipeline::parse(&document).unwrap(), &bytes);
    }
}

#[test]
fn a_last_chunk_may_be_short_where_the_format_allows_it() {
    let mut document = document(&[2, 3], "uint16", &json!(["bytes", "blosc"]));
    document["fill_value"] = json!(7);
    let parse = |document: &Value| Pipeline::parse(document).unwrap();
    let whole = parse(&document);
    let short = parse(&document).with_short_end(&[5, 3]);
    let row = Pipeline::parse(&self::document(&[1, 3], "uint16", &json!(["bytes", "blosc"])));
    let row = row.unwrap().encode(&SIX[..6]).unwrap();
    let at = |pipeline: &Pipeline, coords: &[u64], encoded: &[u8]| {
        let mut chunk = vec![0xa5; pipeline.nbytes()];
        pipeline.decode_at(coords, encoded, &mut chunk).map(|()| chunk).map_err(|e| e.to_string())
    };
    let filled = [&SIX[..6], &[7, 0, 7, 0, 7, 0]].concat();
    assert_eq!(at(&short, &[2, 0], &row), Ok(filled));
    let all = whole.encode(&SIX).unwrap();
    assert_eq!(at(&short, &[2, 0], &all), Ok(SIX.to_vec()));
    let refused = Err("it decodes to 6 bytes, 12 are expected".to_owned());
    assert_eq!(at(&short, &[1, 0], &row), refused);
    assert_eq!(at(&whole, &[2, 0], &row), refused);
    assert_eq!(at(&parse(&document).with_short_end(&[4, 3]), &[2, 0], &row), refused);
    // The length is not that of the remaining rows.
    let longer = Pipeline::parse(&self::document(&[1, 4], "uint16", &json!(["bytes", "blosc"])));
    let longer = longer.unwrap().encode(&SIX[..8]).unwrap();
    assert!(at(&short, &[2, 0], &longer).is_err());
    document["codecs"] = json!([codec("transpose", json!({"order": [1, 0]})), "bytes", "blosc"]);
    assert_eq!(at(&parse(&document).with_short_end(&[5, 3]), &[2, 0], &row), refused);
}
