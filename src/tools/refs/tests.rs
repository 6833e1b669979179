#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::tools::testing::{
    array, consolidated, linked, open, put, shard, sharding, with_files, without_chunk_file,
};

fn config(zarr2: bool) -> Config {
    let (base, prefix) = ("file:///x".to_owned(), String::new());
    Config { base, prefix, zarr2, version: Version::Zero, inline: 0, skips: true }
}

/// Returns the references to a source and the messages of what cannot be referenced.
fn refs(directory: &TempDir, zarr2: bool) -> (Value, Vec<String>) {
    let (mut out, mut problems) = (Vec::new(), Vec::new());
    let problem = &mut |problem: &Problem| problems.push(problem.to_string());
    write(&open(directory), &config(zarr2), &mut out, problem, &mut |_| ()).unwrap();
    (serde_json::from_slice(&out).unwrap(), problems)
}

/// Returns the names in the consolidated metadata of a document.
fn consolidated_names(document: &Value, member: &str) -> Vec<String> {
    let document: Value = serde_json::from_str(document.as_str().unwrap()).unwrap();
    let all = &document.pointer(member).unwrap().as_object().unwrap();
    all.keys().cloned().collect()
}

#[test]
fn consolidated_metadata_lacks_what_is_left_out() {
    let directory = consolidated();
    let (found, problems) = refs(&directory, false);
    assert_eq!(problems.len(), 1);
    let names = consolidated_names(&found["zarr.json"], "/consolidated_metadata/metadata");
    assert_eq!(names, ["sound"]);
    let (found, _) = refs(&directory, true);
    let names = consolidated_names(&found[".zmetadata"], "/metadata");
    assert!(names.iter().any(|name| name == "sound/.zarray"));
    assert!(!names.iter().any(|name| name.starts_with("broken")), "{names:?}");
}

#[test]
fn arrays_that_consolidated_metadata_lists_at_links_are_referenced() {
    let directory = linked();
    for zarr2 in [false, true] {
        let (found, problems) = refs(&directory, zarr2);
        let nowhere = "nowhere: the symbolic link leads to no array or group of the source, so it is \
                       left out of the consolidated metadata";
        assert_eq!(problems, [nowhere]);
        let chunk = if zarr2 { "1" } else { "c/1" };
        for array in ["alias", "absolute"] {
            let of = |name: &str| &found[format!("{name}/{chunk}")];
            assert_eq!(of(array), of("waves"), "{array}");
            assert!(of(array).is_array(), "{array}");
            let document = if zarr2 { ".zarray" } else { "zarr.json" };
            let of = |name: &str| &found[format!("{name}/{document}")];
            assert_eq!(of(array), of("waves"), "{array}");
        }
        let (document, member) = match zarr2 {
            true => (".zmetadata", "/metadata"),
            false => ("zarr.json", "/consolidated_metadata/metadata"),
        };
        let names = consolidated_names(&found[document], member);
        assert!(names.iter().any(|name| name.starts_with("alias")), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("nowhere")), "{names:?}");
    }
}

#[test]
fn consolidated_metadata_stored_as_zarr_v2_lacks_what_is_left_out() {
    let array = json!({"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|u1",
        "compressor": null, "filters": null, "fill_value": 0, "order": "C"});
    let group = json!({"zarr_format": 2});
    let consolidated = json!({"zarr_consolidated_format": 1, "metadata":
        {".zgroup": group, "sound/.zarray": array, "broken/.zarray": array}});
    let directory = with_files(&[
        (".zgroup", group.to_string().as_bytes()),
        (".zmetadata", consolidated.to_string().as_bytes()),
        ("sound/.zarray", array.to_string().as_bytes()),
        ("broken/.zarray", b"{"),
    ]);
    let (found, problems) = refs(&directory, true);
    assert_eq!(problems.len(), 1, "{problems:?}");
    let names = consolidated_names(&found[".zmetadata"], "/metadata");
    assert_eq!(names, [".zgroup", "sound/.zarray"]);
}

#[test]
fn a_missing_superchunk_cannot_be_referenced() {
    let (found, problems) = refs(&without_chunk_file(), false);
    let missing = "shard data/__1.blp: it does not exist; the format has no absent chunks";
    assert_eq!(problems, [missing]);
    assert_eq!(found["c/1"], json!(""));
    assert!(found["c/0"].is_array());
}

/// Its fill value is no missing value in Zarr v2, so absent chunks are referenced.
#[test]
fn no_text_for_absent_chunks_is_kept_where_there_are_none() {
    let mut document = array(&json!([8]), &json!([4]), &sharding(&json!([2]), &json!(["bytes"])));
    document["dimension_names"] = json!(["x"]);
    document["attributes"] = json!({"_FillValue": 9});
    let directory = with_files(&[("zarr.json", document.to_string().as_bytes())]);
    let whole = shard(b"abcd", &[(0, 2), (2, 2)]);
    put(directory.path(), "c/0", &whole);
    let is_kept = |directory: &TempDir| {
        let (source, config) = (open(directory), config(true));
        let found: Vec<Node> = source.nodes().collect();
        let urls = Urls::new(&source, &found, &config).unwrap();
        let (decided, _) = absent::decide(&found, &source.store, &config).unwrap();
        let (nodes, _) = prepare(&source, &found, &config, &urls, &decided).unwrap();
        nodes[0].array.as_ref().unwrap().absent.is_some()
    };
    assert!(is_kept(&directory));
    put(directory.path(), "c/1", &whole);
    assert!(!is_kept(&directory));
}
