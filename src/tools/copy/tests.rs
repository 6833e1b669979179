#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;
use crate::tools::testing::{consolidated, linked, open, without_chunk_file};

#[test]
fn consolidated_metadata_of_a_copy_lacks_what_is_left_out() {
    let directory = consolidated();
    let source = open(&directory);
    let nodes: Vec<Node> = source.nodes().collect();
    let plan = Plan::new(&source, &nodes, &Shape::Unsharded, (true, true)).unwrap();
    assert_eq!(plan.left_out.len(), 1);
    let group = &plan.groups[Path::new("")]["consolidated_metadata"]["metadata"];
    assert_eq!(group.as_object().unwrap().keys().collect::<Vec<_>>(), ["sound"]);
}

#[test]
fn consolidated_metadata_of_a_copy_describes_what_links_lead_to() {
    let directory = linked();
    let source = open(&directory);
    let nodes: Vec<Node> = source.nodes().collect();
    let plan = Plan::new(&source, &nodes, &Shape::Unsharded, (false, true)).unwrap();
    let group = &plan.groups[Path::new("")]["consolidated_metadata"]["metadata"];
    let names: Vec<_> = group.as_object().unwrap().keys().collect();
    assert_eq!(names, ["waves", "alias", "folder"]);
    assert_eq!(group["alias"], plan.arrays[0].document.value());
    assert_ne!(group["alias"]["codecs"][0]["name"], "sharding_indexed");
    // What is absolute leads to the source from the copy.
    let unlisted: Vec<_> = plan.unlisted.iter().map(PathBuf::as_path).collect();
    assert_eq!(unlisted, ["absolute", "nowhere"].map(Path::new));
}

#[test]
fn consolidated_metadata_of_a_copy_without_links_lists_nothing_at_links() {
    let directory = linked();
    let source = open(&directory);
    let nodes: Vec<Node> = source.nodes().collect();
    let plan = Plan::new(&source, &nodes, &Shape::Unsharded, (false, false)).unwrap();
    let group = &plan.groups[Path::new("")]["consolidated_metadata"]["metadata"];
    assert_eq!(group.as_object().unwrap().keys().collect::<Vec<_>>(), ["waves"]);
    let unlisted: Vec<_> = plan.unlisted.iter().map(PathBuf::as_path).collect();
    assert_eq!(unlisted, ["absolute", "alias", "folder", "nowhere"].map(Path::new));
}

#[test]
fn a_missing_superchunk_is_damage_to_a_copy() {
    let directory = without_chunk_file();
    let source = open(&directory);
    let nodes: Vec<Node> = source.nodes().collect();
    let shards = Shards { rule: Some(ShardRule::Shape(vec![4])), ..Shards::default() };
    for shape in [Shape::Unsharded, Shape::Sharded(shards)] {
        let plan = Plan::new(&source, &nodes, &shape, (false, true)).unwrap();
        let there = tempfile::tempdir().unwrap();
        let place = there.path().join("copy");
        let copy = Destination::open(&place, &source.storage, &json!({}), false).unwrap();
        let copied = plan.copy(&plan.arrays[0], &copy, NonZeroUsize::MIN, &|_| ()).unwrap();
        let missing = "shard data/__1.blp: it does not exist; the format has no absent chunks";
        assert_eq!(copied.damaged, BTreeSet::from([missing.to_owned()]));
        assert_eq!(copied.digest.chunks, 2);
    }
}
