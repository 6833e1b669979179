#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::tools::testing::{NONE, array, open, plain, put, shard, sharding, with_files};

fn lines(directory: &TempDir, query: &Query) -> (Vec<String>, Vec<String>) {
    let source = open(directory);
    let write = |row: &Row<'_>, text: &mut Vec<u8>| {
        let place = row.place.map(|place| (place.offset.unwrap(), place.nbytes, place.crc32c));
        text.extend_from_slice(row.key);
        text.extend_from_slice(format!(" {:?} {place:?}\n", row.chunk).as_bytes());
    };
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    list(&source, query, &write, |rows| {
        let text = String::from_utf8(rows.text).unwrap();
        assert_eq!(text.lines().count() as u64, rows.count);
        found.extend(text.lines().map(str::to_owned));
        errors.extend(rows.errors.iter().map(ToString::to_string));
        Ok::<_, std::convert::Infallible>(())
    })
    .unwrap()
    .unwrap();
    (found, errors)
}

fn keys(directory: &TempDir, query: &Query) -> Vec<String> {
    let (found, errors) = lines(directory, query);
    assert_eq!(errors, [""; 0]);
    found.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Returns a query for keys with a prefix.
fn below(prefix: &str) -> Query {
    Query { prefix: Some(prefix.into()), ..Query::default() }
}

#[test]
fn chunks_and_where_they_are() {
    let query = Query { checksum: true, ..Query::default() };
    let (found, errors) = lines(&plain(), &query);
    let sum = |bytes: &[u8]| crc32c::crc32c(bytes);
    let expected = [
        format!("c/0 [0] Some((0, 2, Some({})))", sum(b"ab")),
        format!("c/1 [1] Some((2, 2, Some({})))", sum(b"cd")),
        format!("c/2 [2] Some((0, 2, Some({})))", sum(b"ef")),
    ];
    assert_eq!((found.as_slice(), errors), (&expected[..], vec![]));
}

#[test]
fn chunks_that_do_not_exist() {
    let directory = plain();
    let query = Query { missing: true, ..Query::default() };
    assert_eq!(keys(&directory, &query), ["c/3"]);
    std::fs::remove_file(directory.path().join("c/0")).unwrap();
    assert_eq!(keys(&directory, &query), ["c/0", "c/1", "c/3"]);
    assert_eq!(keys(&directory, &Query { prefix: Some("c/1".into()), ..query }), ["c/1"]);
}

#[test]
fn damage_is_told_and_the_rest_is_listed() {
    let directory = plain();
    put(directory.path(), "c/0", b"");
    put(directory.path(), "c/1", &shard(b"ef", &[(0, 2), (9, 99)]));
    let (found, errors) = lines(&directory, &Query::default());
    assert_eq!(found, ["c/2 [2] Some((0, 2, None))"]);
    let bad = "shard c/1, chunk at [1]: its entry (offset 9, nbytes 99) points outside the \
               shard of 38 bytes";
    assert_eq!(errors[0].split(',').next(), Some("shard c/0: it is empty"));
    assert_eq!(errors[1..], [bad]);
    // The damaged parts were not requested.
    assert_eq!(keys(&directory, &below("c/2")), ["c/2"]);
}

/// Creates 2 x 2 shards of 2 x 2 chunks, all of which exist; the array has 3 x 3 chunks.
fn plane(keys: &serde_json::Value) -> (TempDir, serde_json::Value) {
    let codecs = sharding(&json!([1, 1]), &json!(["bytes"]));
    let mut document = array(&json!([3, 3]), &json!([2, 2]), &codecs);
    document["chunk_key_encoding"] = keys.clone();
    (with_files(&[("group/a/zarr.json", document.to_string().as_bytes())]), document)
}

#[test]
fn beginnings_of_keys_choose_chunks() {
    let (directory, _) = plane(&json!({"name": "default"}));
    for path in ["c/0/0", "c/0/1", "c/1/0", "c/1/1"] {
        let content = shard(b"abcd", &[(0, 1), (1, 1), (2, 1), (3, 1)]);
        put(directory.path(), &format!("group/a/{path}"), &content);
    }
    // Only shards that can hold matching chunks are opened.
    put(directory.path(), "group/a/c/1/0", b"");
    assert_eq!(
        keys(&directory, &below("group/a/c/1")),
        ["0", "1", "2"].map(|last| { format!("group/a/c/1/{last}") })
    );
    assert_eq!(keys(&directory, &below("group/./a//c/2/2")), ["group/a/c/2/2"]);
    assert_eq!(keys(&directory, &below("group/a/c/3/0")), [""; 0]);
    let outside = Query { outside: true, ..below("group/a/c/0/3") };
    assert_eq!(keys(&directory, &outside), ["group/a/c/0/3"]);
    let source = open(&directory);
    for wrong in ["group/a/c/x", "group/b", "grou", "group/a/0", "group/a/c/0/0/0"] {
        let query = Query { prefix: Some(wrong.into()), ..Query::default() };
        let listed = list::<std::convert::Infallible>(&source, &query, &|_, _| (), |_| Ok(()));
        let error = listed.unwrap_err();
        assert!(error.to_string().starts_with(wrong));
    }
    let chosen = source.nodes().filter_map(|node| choose(node, Some(Path::new("group"))));
    assert_eq!(chosen.count(), 1);
}

#[test]
fn keys_of_other_encodings() {
    let dot = json!({"name": "v2", "configuration": {"separator": "."}});
    let (directory, _) = plane(&dot);
    let content = shard(b"a", &[NONE, (0, 1), NONE, NONE]);
    put(directory.path(), "group/a/1.0", &content);
    assert_eq!(keys(&directory, &Query::default()), ["group/a/2.1"]);
    assert_eq!(keys(&directory, &below("group/a/2")), ["group/a/2.1"]);
    let missing = Query { missing: true, ..below("group/a/2") };
    assert_eq!(keys(&directory, &missing), ["group/a/2.0", "group/a/2.2"]);
}

#[test]
fn shards_inside_shards_are_listed_in_their_order() {
    let inner = sharding(&json!([1, 1]), &json!(["bytes"]));
    let document = array(&json!([4, 4]), &json!([4, 4]), &sharding(&json!([2, 2]), &inner));
    let directory = with_files(&[("zarr.json", document.to_string().as_bytes())]);
    let inside = shard(b"ab", &[(0, 1), NONE, NONE, (1, 1)]);
    let each = inside.len() as u64;
    let body = [&inside[..], &inside].concat();
    put(directory.path(), "c/0/0", &shard(&body, &[NONE, (0, each), (each, each), NONE]));
    let expected = ["c/0/2", "c/1/3", "c/2/0", "c/3/1"];
    assert_eq!(keys(&directory, &Query::default()), expected);
    assert_eq!(keys(&directory, &below("c/1")), ["c/1/3"]);
    let missing = Query { missing: true, ..below("c/1") };
    assert_eq!(keys(&directory, &missing), ["c/1/0", "c/1/1", "c/1/2"]);
}
