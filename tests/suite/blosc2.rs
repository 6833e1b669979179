//! A frame of Blosc2, as a mount shows it: as python-blosc2 has written it, and with every byte of it changed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use shardfs::format::blosc2::{ArrayLayer, FrameHeader};
use shardfs::format::foreign;
use shardfs::format::pipeline::Pipeline;
use shardfs::fs::{Fs, FsConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;

use crate::support::foreign::{Found, json_of, shown};

/// `blosc2.asarray(a, chunks=(4, 5), blocks=(2, 3))`, where `a = 3 * np.arange(60, dtype="<u2").reshape(6, 10)` and
/// `a[:4, 5:] = 0`, and `vlmeta["n"] = 5`.
const FRAME: &str = "
    9ea862326672616d6500d2000000a5cf0000000000000225a412009102d300000000000000c0d300000000000000f0d2
    00000002d20000000cd200000030d10002d10002c3d8060100000000000100000000000000000093cd0011de0001a462
    326e64d20000006bdc0001c60000003597000292d30000000000000006d3000000000000000a92d200000004d2000000
    0592d200000002d20000000300db000000033c753205013702300000000c000000500000000100000000000100000000
    00000000000000030006001e002100240009000c00000027002a0000003c003f0042005a005d00600045004800000063
    006600000005013702300000000c000000500000000100000000000100000000000000000078007b007e00960099009c
    008100840000009f00a200000000000000000000000000000000000000000000000000000005013702300000000c0000
    00500000000100000000000100000000000000000087008a008d00a500a800ab00900093000000ae00b1000000000000
    000000000000000000000000000000000000000000050117082000000020000000400000000000000000010000000000
    0000000000000000000000000000000000000000815000000000000000a000000000000000940193cd000dde0001a16e
    d200000013dc0001c600000021050107010100000001000000210000000000000000010500000000000000000005ce00
    000050d80000000000000000000000000000000000
";
const NAME: &str = "x.b2nd";
/// Offsets in the frame: the fields of its header, its chunks, and the table of their offsets.
const CHUNKS: [(usize, usize); 3] = [(165, 80), (245, 80), (325, 80)];
const OFFSETS: usize = 405;

fn frame() -> Vec<u8> {
    let digits: Vec<u8> = FRAME.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn mount(bytes: &[u8]) -> Result<Fs, String> {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace(NAME, bytes);
    let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
    let config = FsConfig { store, file: Some(NAME.into()), ..FsConfig::default() };
    Fs::new(storage, config, Arc::new(Stats::default())).map_err(|error| error.to_string())
}

fn items(found: &Found, zarr: &Value, key: &str) -> Option<Vec<u16>> {
    let pipeline = Pipeline::parse(zarr).unwrap();
    let mut chunk = vec![0; pipeline.nbytes()];
    let encoded = found.get(key)?.as_ref().unwrap();
    pipeline.decode(encoded, &mut chunk).unwrap();
    Some(chunk.chunks(2).map(|item| u16::from_le_bytes([item[0], item[1]])).collect())
}

#[test]
fn a_frame_is_shown_chunk_by_chunk_and_decodes_to_its_array() {
    let frame = frame();
    let mut found = shown(&mount(&frame).unwrap());
    let header = json_of(&mut found, "header.json");
    assert_eq!(header["b2nd"]["blocks"], json!([2, 3]));
    assert_eq!(json_of(&mut found, "vlmeta.json"), json!({"n": 5}));
    let zarr = json_of(&mut found, "zarr.json");
    assert_eq!((&zarr["shape"], &zarr["data_type"]), (&json!([6, 10]), &json!("uint16")));
    let keys = ["c/0/0", "c/1/0", "c/1/1"];
    assert_eq!(found.keys().collect::<Vec<_>>(), keys);
    for (key, (offset, nbytes)) in keys.iter().zip(CHUNKS) {
        assert_eq!(found[*key], Ok(frame[offset..offset + nbytes].to_vec()), "{key}");
    }
    let expected = |row: u16, column: u16| -> Vec<u16> {
        let rows = row * 4..row * 4 + 4;
        let items =
            rows.flat_map(|row| (column * 5..column * 5 + 5).map(move |column| (row, column)));
        // What is beyond the array is padded with zeros.
        items.map(|(row, column)| if row < 6 { 3 * (row * 10 + column) } else { 0 }).collect()
    };
    assert_eq!(items(&found, &zarr, "c/0/0"), Some(expected(0, 0)));
    assert_eq!(items(&found, &zarr, "c/0/1"), None, "its items are zeros");
    assert_eq!(items(&found, &zarr, "c/1/0"), Some(expected(1, 0)));
    assert_eq!(items(&found, &zarr, "c/1/1"), Some(expected(1, 1)));
}

/// Why a frame is refused in which these bytes are changed.
fn refusal(at: usize, bytes: &[u8]) -> String {
    let mut frame = frame();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    mount(&frame).map(drop).unwrap_err()
}

#[test]
fn each_damaged_field_is_named() {
    for (at, bytes, message) in [
        (2, &b"B"[..], "not begin with"),
        (25, &[0x15], "it is of version 5 of the format, those up to 3 can be read here"),
        (25, &[0x52], "it has chunks of different lengths, which are not read here"),
        (25, &[0x92], "it has blocks of different lengths, which are not read here"),
        (26, &[1], "it has chunks in files of their own, which are not read here"),
        (26, &[2], "frame_type is 2"),
        (11, &[0xff; 4], "header_len is -1"),
        (11, &[0, 0, 0, 5], "header_len is 5"),
        (16, &[0, 0, 0, 0, 0, 0, 2, 0x26], "the frame would end beyond the file"),
        (30, &[0xff; 8], "uncompressed_size is -1"),
        (30, &[0x7f; 8], "the number of chunks is "),
        (30, &[0, 0, 0, 0, 0, 0, 0, 144], "its header gives it 3 chunks, its metalayer 4"),
        (39, &[0, 0, 0, 0, 0, 0, 2, 0], "what is stored would end beyond the file"),
        (48, &[0, 0, 0, 0], "type_size is 0"),
        (58, &[0, 0, 0, 0x31], "its header gives a chunk 49 bytes, its metalayer 48"),
        (87, &[0x92], "the metalayers of its header cannot be understood"),
        (112, &[0x91], "the metalayer of its array cannot be understood"),
        (OFFSETS + 2, &[0x10], "its offsets cannot be decompressed: its header is one of Blosc 1"),
        (OFFSETS + 4, &[0x18], "its offsets cannot be decompressed: "),
        (OFFSETS + 12, &[0xff, 0xff, 0, 0], "the offsets would end beyond the file"),
    ] {
        let found = refusal(at, bytes);
        assert!(found.contains(message), "{at}: {found}");
    }
}

#[test]
fn a_chunk_that_cannot_be_one_is_an_error_and_others_are_read() {
    let (first, _) = CHUNKS[0];
    for (at, bytes) in [
        (first + 4, &[0x31][..]),
        (first + 12, &[0xff, 0xff, 0, 0]),
        (OFFSETS + 32, &[0xff, 0xff, 0, 0]),
        (OFFSETS + 32, &[0, 0, 0, 0, 0, 0, 0, 0x87]),
    ] {
        let mut frame = frame();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        let found = shown(&mount(&frame).unwrap());
        assert_eq!(found["c/0/0"], Err(libc::EIO), "{at}");
        assert!(found["c/1/0"].is_ok() && found["c/1/1"].is_ok(), "{at}");
    }
}

#[test]
fn a_chunk_that_cannot_be_decoded_here_is_shown_as_it_is() {
    let (first, nbytes) = CHUNKS[0];
    // A dictionary; blocks of different lengths; flags that are not known.
    for (at, byte) in [(31, 1), (30, 1), (31, 8)] {
        let mut frame = frame();
        frame[first + at] = byte;
        let mut found = shown(&mount(&frame).unwrap());
        let zarr = json_of(&mut found, "zarr.json");
        assert_eq!(found["c/0/0"], Ok(frame[first..first + nbytes].to_vec()), "{at}");
        let pipeline = Pipeline::parse(&zarr).unwrap();
        let mut chunk = vec![0; pipeline.nbytes()];
        pipeline.decode(found["c/0/0"].as_ref().unwrap(), &mut chunk).unwrap_err();
    }
}

#[test]
fn items_that_are_longer_than_any_have_no_fill_value_as_long() {
    let header = FrameHeader {
        header: 165,
        frame: 400,
        decoded: 1 << 30,
        stored: 100,
        typesize: 1 << 30,
        chunk_size: 1 << 30,
        compressor: (1, 5),
        has_metadata: false,
    };
    let one = || vec![1];
    let array =
        ArrayLayer { name: "caterva", shape: one(), chunk: one(), block: one(), dtype: None };
    let found = foreign::blosc2(&header, Some(&array), None, Map::new()).unwrap();
    assert!(found.metadata.is_none());
}

#[test]
fn chunks_without_bytes_are_the_fill_value_or_the_frame_is_refused() {
    let mut nan = frame();
    nan[OFFSETS + 32 + 15] = 0x82;
    // Integers are never NaN.
    assert!(!shown(&mount(&nan).unwrap()).contains_key("zarr.json"));
    nan[OFFSETS + 32 + 7] = 0x81;
    let refused = mount(&nan).map(drop).unwrap_err();
    assert!(
        refused.contains("some of its chunks are zeros") && refused.contains("NaN"),
        "{refused}"
    );
}

#[test]
fn whatever_is_damaged_nothing_panics() {
    let sound = frame();
    let look = |bytes: &[u8]| {
        let Ok(fs) = mount(bytes) else { return };
        let mut found = shown(&fs);
        if !found.contains_key("zarr.json") {
            return;
        }
        let zarr = json_of(&mut found, "zarr.json");
        let Ok(pipeline) = Pipeline::parse(&zarr) else { return };
        let mut chunk = vec![0; pipeline.nbytes()];
        for encoded in found.values().flatten() {
            let _ = pipeline.decode(encoded, &mut chunk);
        }
    };
    for at in 0..sound.len() {
        look(&sound[..at]);
        for change in [1, 0x10, 0x80, 0xff] {
            let mut damaged = sound.clone();
            damaged[at] ^= change;
            look(&damaged);
        }
    }
}
