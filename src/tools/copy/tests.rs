#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;
use crate::tools::testing::{consolidated, open};

#[test]
fn consolidated_metadata_of_a_copy_lacks_what_is_left_out() {
    let directory = consolidated();
    let source = open(&directory);
    let nodes: Vec<Node> = source.nodes().collect();
    let plan = Plan::new(&source, &nodes, &Shape::Unsharded, true).unwrap();
    assert_eq!(plan.left_out.len(), 1);
    let group = &plan.groups[Path::new("")]["consolidated_metadata"]["metadata"];
    assert_eq!(group.as_object().unwrap().keys().collect::<Vec<_>>(), ["sound"]);
}
