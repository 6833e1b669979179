//! Tests that damage a sound source in one way at a time and assert the exact line reported.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::convert::Infallible;
use std::fs;
use std::io::Write;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::step::MOST_KEPT;
use super::*;
use crate::format::index::{ByteRange, EMPTY};
use crate::format::journal::{CheckedRange, Record, ShardRecord};
use crate::store::journal::Journal;
use crate::tools::testing::{NONE, array, index, open, plain, put, shard, sharding, with_files};

const HALF: (u64, u64) = (0, EMPTY);

fn lines(directory: &TempDir, decode: bool) -> (Vec<String>, Counts) {
    let mut lines = Vec::new();
    let source = open(directory);
    let Ok(counts) = verify::<Infallible>(&source, VerifyConfig { decode }, |step| {
        lines.extend(step.findings.iter().map(|finding| match finding.is_note() {
            true => format!("note: {finding}"),
            false => finding.to_string(),
        }));
        Ok(())
    });
    (lines, counts)
}

fn assert_found(directory: &TempDir, expected: &[&str]) {
    let (found, counts) = lines(directory, true);
    assert_eq!(found, expected);
    let defects = expected.iter().filter(|line| !line.starts_with("note: ")).count() as u64;
    assert_eq!((counts.defects, counts.defects + counts.notes), (defects, expected.len() as u64));
}

/// Asserts the findings for the plain array with another shard `c/0`.
fn assert_shard(content: &[u8], expected: &[&str]) {
    let directory = plain();
    put(directory.path(), "c/0", content);
    assert_found(&directory, expected);
}

/// Creates an array with one shard, `c/0` or with as many zeros as it has dimensions.
fn one(document: &Value, content: &[u8]) -> TempDir {
    let directory = with_files(&[("zarr.json", document.to_string().as_bytes())]);
    put(directory.path(), "c/0", content);
    directory
}

#[test]
fn nothing_is_wrong_with_a_sound_source() {
    let (found, counts) = lines(&plain(), true);
    assert!(found.is_empty(), "{found:?}");
    let bytes = 2 * 36 + 6;
    let expected = Counts { arrays: 1, shards: 2, chunks: 3, bytes, ..Counts::default() };
    assert_eq!(counts, expected);
}

#[test]
fn indexes_that_cannot_be_read() {
    let mut bad = shard(b"abcd", &[(0, 2), (2, 2)]);
    bad[39] ^= 1;
    assert_shard(&bad, &["shard c/0: checksum of the index is 886e5204, stored is 896e5204"]);
    assert_shard(b"abc", &["shard c/0: it has 3 bytes, its index alone has 36"]);
    assert_shard(
        b"",
        &["shard c/0: it is empty, 0 bytes; an absent shard would be no file at all"],
    );
    let directory = plain();
    fs::remove_file(directory.path().join("c/0")).unwrap();
    fs::create_dir(directory.path().join("c/0")).unwrap();
    assert_found(&directory, &["shard c/0: it is a directory, not a regular file"]);
    fs::remove_dir(directory.path().join("c/0")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("c/0")).unwrap();
    let (found, _) = lines(&directory, false);
    assert!(found[0].starts_with("shard c/0: it cannot be reached within the source: "));
    assert_eq!(found.len(), 1);
}

#[test]
fn a_file_in_the_place_of_a_directory() {
    let codecs = sharding(&json!([2, 2]), &json!(["bytes"]));
    let document = array(&json!([8, 8]), &json!([4, 4]), &codecs);
    let directory = one(&document, b"abc");
    assert_found(
        &directory,
        &["shard c/0: it is a regular file, where a directory of shards should be"],
    );
}

#[test]
fn entries_that_are_bad() {
    assert_shard(
        &shard(b"abcd", &[(2, 99), HALF]),
        &[
            "shard c/0, chunk at [0]: its entry (offset 2, nbytes 99) points outside the shard of \
             40 bytes",
            "shard c/0, chunk at [1]: its entry (offset 0, nbytes 18446744073709551615) is half \
             empty",
            "note: .: 4 dead bytes in 1 shard: no index reaches them",
        ],
    );
    assert_shard(
        &shard(b"ab", &[(0, 0), (0, 2)]),
        &["shard c/0, chunk at [0]: its entry (offset 0, nbytes 0) is of no bytes, which its \
           codecs never write"],
    );
    assert_shard(
        &shard(b"abc", &[(0, 3), NONE]),
        &["shard c/0, chunk at [0]: it has 3 bytes, its codecs always write 2"],
    );
}

#[test]
fn ranges_that_overlap_in_part() {
    assert_shard(
        &shard(b"abc", &[(1, 2), (0, 2)]),
        &["shard c/0, chunk at [0]: its bytes (offset 1, nbytes 2) overlap those of another \
           (offset 0, nbytes 2)"],
    );
    assert_shard(
        &shard(b"abc", &[(2, 2), (0, 2)]),
        &["shard c/0, chunk at [0]: its bytes (offset 2, nbytes 2) overlap the index (offset 3, \
           nbytes 36)"],
    );
    assert_shard(
        &shard(b"ab", &[(0, 2), (0, 2)]),
        &["note: .: 1 chunk with bytes that another chunk has as well"],
    );
}

#[test]
fn what_lies_beside_the_shards() {
    let directory = plain();
    for path in ["c/9", "c/0.__lock", "c/1.partial", "c/x", "zarr.json.tmp", ".shardfs/c0"] {
        put(directory.path(), path, b"");
    }
    let (mut found, counts) = lines(&directory, false);
    found.sort();
    assert_eq!((counts.defects, counts.notes), (1, 5));
    let temporary = "a temporary file: its owner is writing, or was stopped";
    let expected = [
        format!("note: shard .shardfs/c0: {temporary}"),
        "note: shard c/0.__lock: a lock file of TensorStore or shardfs: its owner is writing, \
         or was stopped"
            .to_owned(),
        format!("note: shard c/1.partial: {temporary}"),
        "note: shard c/x: its name is no chunk key".to_owned(),
        format!("note: shard zarr.json.tmp: {temporary}"),
        "shard c/9: it lies outside the shard grid, which has [2] shards: the array has no such \
         chunks"
            .to_owned(),
    ];
    assert_eq!(found, expected);
}

#[test]
fn stray_shards_of_all_key_encodings() {
    let codecs = sharding(&json!([2, 2]), &json!(["bytes"]));
    for (keys, stray) in [
        (json!({"name": "default"}), "c/7/0"),
        (json!({"name": "default", "configuration": {"separator": "."}}), "c.0.7"),
        (json!({"name": "v2"}), "7.0"),
        (json!({"name": "v2", "configuration": {"separator": "/"}}), "0/7"),
    ] {
        let mut document = array(&json!([4, 4]), &json!([4, 4]), &codecs);
        document["chunk_key_encoding"] = keys;
        let directory = with_files(&[("zarr.json", document.to_string().as_bytes())]);
        put(directory.path(), stray, b"");
        put(directory.path(), "README", b"");
        let line = format!(
            "shard {stray}: it lies outside the shard grid, which has [1, 1] shards: the array \
             has no such chunks"
        );
        assert_found(&directory, &[&line]);
    }
}

#[test]
fn bytes_that_nothing_reaches() {
    let older = shard(b"abxx", &[(0, 2), NONE]);
    let content = [&older[..], b"cd", &index(&[(0, 2), (40, 2)])].concat();
    assert_shard(
        &content,
        &[
            "note: .: 1 older index in dead bytes of 1 shard, as updates leave them",
            "note: .: 38 dead bytes in 1 shard: no index reaches them",
        ],
    );
}

#[test]
fn index_codecs_that_are_not_the_writers() {
    let mut document = array(&json!([4]), &json!([4]), &sharding(&json!([2]), &json!(["bytes"])));
    let good = shard(b"abcd", &[(0, 2), (2, 2)]);
    document["codecs"][0]["configuration"]["index_codecs"] = json!(["bytes"]);
    let (found, _) = lines(&one(&document, &good), false);
    assert_eq!(
        found[0],
        "shard c/0: an index of 2 chunks can be read at the end, little-endian, with a checksum: \
         index_codecs or index_location of the metadata are not those of its writer"
    );
    document["codecs"][0]["configuration"]["index_codecs"] = json!(["bytes", "crc32c"]);
    let at_start = [&index(&[(36, 2), (38, 2)]), &b"abcd"[..]].concat();
    let (found, _) = lines(&one(&document, &at_start), false);
    assert_eq!(found.len(), 1);
    let hint = "; an index of 2 chunks can be read at the start, little-endian, with a checksum";
    assert!(found[0].ends_with(hint), "{}", found[0]);
}

#[test]
fn a_chunk_in_the_place_of_a_shard() {
    assert_shard(
        b"ab",
        &["shard c/0: it has 2 bytes, its index alone has 36; it looks like an unsharded chunk"],
    );
}

#[test]
fn chunks_that_cannot_be_decoded() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"abc").unwrap();
    let stored = gzip.finish().unwrap();
    let length = stored.len() as u64;
    let document =
        array(&json!([4]), &json!([4]), &sharding(&json!([2]), &json!(["bytes", "gzip"])));
    let directory = one(&document, &shard(&stored, &[(0, length), NONE]));
    let line = "shard c/0, chunk at [0]: it cannot be decoded: it decodes to more than 2 bytes";
    assert_found(&directory, &[line]);
    assert_eq!(lines(&directory, false).0, [""; 0]);
}

#[test]
fn chunks_whose_codecs_are_not_known() {
    let codecs = sharding(&json!([2]), &json!(["bytes", "banana"]));
    let document = array(&json!([4]), &json!([4]), &codecs);
    let directory = one(&document, &shard(b"abc", &[(0, 3), (0, 0)]));
    assert_found(
        &directory,
        &[
            "note: .: its chunks cannot be decoded here: codec \"banana\" is not known",
            "note: .: 1 chunk of no bytes; whether their codecs may write none is not known here",
        ],
    );
}

#[test]
fn a_checksum_over_the_shard() {
    let mut codecs = sharding(&json!([2]), &json!(["bytes"]));
    codecs.as_array_mut().unwrap().push(json!("crc32c"));
    let document = array(&json!([4]), &json!([4]), &codecs);
    let mut content = shard(b"abcd", &[(0, 2), (2, 2)]);
    content.extend(crc32c::crc32c(&content).to_le_bytes());
    let directory = one(&document, &content);
    assert_found(&directory, &[]);
    content[0] = b'x';
    put(directory.path(), "c/0", &content);
    assert_eq!(lines(&directory, false).0, [""; 0]);
    let line = "shard c/0: checksum over the shard is ";
    let (found, _) = lines(&directory, true);
    assert!(found.len() == 1 && found[0].starts_with(line), "{found:?}");
}

#[test]
fn shards_inside_a_shard() {
    let inner = sharding(&json!([2]), &json!(["bytes"]));
    let document = array(&json!([8]), &json!([8]), &sharding(&json!([4]), &inner));
    let good = shard(b"abcd", &[(0, 2), (2, 2)]);
    let mut bad = good.clone();
    bad[39] ^= 1;
    let both = |second: &[u8]| {
        let body = [&good[..], second].concat();
        shard(&body, &[(0, 40), (40, second.len() as u64)])
    };
    assert_found(&one(&document, &both(&good)), &[]);
    assert_found(
        &one(&document, &both(&bad)),
        &[
            "shard c/0, inner shard at [1]: checksum of the index is 886e5204, stored is 896e5204",
            "note: .: 40 dead bytes in 1 shard: no index reaches them",
        ],
    );
    let clash = shard(b"abc", &[(0, 2), (1, 2)]);
    assert_found(
        &one(&document, &both(&clash)),
        &["shard c/0, chunk at [1, 1]: its bytes (offset 41, nbytes 2) overlap those of another \
           (offset 40, nbytes 2)"],
    );
    // The second one is in the tail of the first one.
    let outer = [b"xx", &shard(b"ab", &[(0, 2), NONE])[..]].concat();
    let (found, _) = lines(&one(&document, &shard(&outer, &[(2, 38), (1, 39)])), false);
    assert!(found.iter().any(|line| {
        line == "shard c/0, inner shard at [0]: its bytes (offset 2, nbytes 38) overlap those of \
                 another (offset 1, nbytes 39)"
    }), "{found:?}");
}

#[test]
fn a_commit_that_was_interrupted() {
    let directory = plain();
    let source = open(&directory);
    let old_index = CheckedRange { range: ByteRange { offset: 0, nbytes: 4 }, fingerprint: 1 };
    let (key, written, overwritten) = (b"c/0".to_vec(), vec![], vec![]);
    let shard =
        ShardRecord { key, ino: 1, old_length: 4, old_index, length: 9, written, overwritten };
    let mut journal =
        Journal::lock(source.storage.posix().unwrap(), std::path::Path::new("")).unwrap();
    journal.write(&Record { shards: vec![shard] }).unwrap();
    drop(journal);
    assert_found(
        &directory,
        &[".: the journal holds the record of a commit to 1 shard that was not completed: \
           `shardfs recover` completes it or takes it back"],
    );
    put(directory.path(), ".shardfs/journal", b"this is no journal of shardfs, but a text");
    assert_found(&directory, &["shard .shardfs/journal: it is no journal of shardfs"]);
}

#[test]
fn metadata_that_cannot_be_used_and_chunks_outside_the_shape() {
    let directory = plain();
    let document = array(&json!([2]), &json!([4]), &sharding(&json!([2]), &json!(["bytes"])));
    put(directory.path(), "zarr.json", document.to_string().as_bytes());
    fs::remove_file(directory.path().join("c/1")).unwrap();
    assert_found(
        &directory,
        &["note: .: 1 chunk outside the array's shape, in shards at its edge"],
    );
    put(directory.path(), "zarr.json", b"{");
    let (found, _) = lines(&directory, false);
    assert!(found[0].starts_with("zarr.json: not valid JSON: "), "{found:?}");
}

#[test]
fn a_valid_array_that_cannot_be_read_is_no_defect() {
    let directory = tempfile::tempdir().unwrap();
    let mut document = array(&json!([5]), &json!([2]), &json!(["bytes"]));
    let shapes = json!({"kind": "inline", "chunk_shapes": [[2, 3]]});
    document["chunk_grid"] = json!({"name": "rectilinear", "configuration": shapes});
    put(directory.path(), "zarr.json", document.to_string().as_bytes());
    let found = "note: .: it is not checked: chunk_grid must be regular in an array without shards";
    let (lines, counts) = lines(&directory, false);
    assert!(lines[0].starts_with(found), "{lines:?}");
    assert_eq!((counts.defects, counts.notes), (0, 1));
    document["shape"] = json!([6]);
    put(directory.path(), "zarr.json", document.to_string().as_bytes());
    assert_eq!(self::lines(&directory, false).1.defects, 1, "a grid that does not cover the array");
}

#[test]
fn very_many_findings_are_all_told() {
    let slots = 3 * MOST_KEPT as u64;
    let shape = json!([2 * slots]);
    let document = array(&shape, &shape, &sharding(&json!([2]), &json!(["bytes"])));
    let entries: Vec<_> = (0..slots).map(|_| HALF).collect();
    let (found, counts) = lines(&one(&document, &shard(b"", &entries)), false);
    assert_eq!((found.len() as u64, counts.defects), (slots, slots));
}
