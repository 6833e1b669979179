#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::*;
use crate::source::Node;
use crate::tools::testing::{NONE, open, plain, put, shard};

#[test]
fn a_repacked_shard_keeps_its_extended_attributes() {
    let directory = plain();
    put(directory.path(), "c/0", &shard(b"dead.ab", &[(5, 2), NONE]));
    let path = directory.path().join("c/0");
    setxattr(&path, "user.note", b"kept", XattrFlags::empty()).unwrap();
    let source = open(&directory);
    let Some(Node::Array(array)) = source.nodes().next() else { panic!("no array") };
    let done = repack(&source, &array, How::default(), NonZeroUsize::MIN, &|_| ()).unwrap();
    assert_eq!((done.shards, done.rewritten), (2, 1));
    let mut value = [0; 8];
    assert_eq!(getxattr(&path, "user.note", &mut value[..]), Ok(4));
    assert_eq!(&value[..4], b"kept");
}
