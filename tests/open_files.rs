//! Commits to more shards than this process may have open files.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "suite/power/mod.rs"]
#[allow(dead_code, reason = "this program uses a part of it")]
mod power;
#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "this program uses a part of it")]
mod support;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shardfs::format::plan::Policy;
use shardfs::store::formats::indexed;
use shardfs::store::local::LocalStorage;
use shardfs::store::{ShardStore, SourceArray, StoreConfig};
use support::{IndexKind, Model};

const LIMIT: u64 = 100;
const SHARDS: u64 = 400;

fn array() -> SourceArray {
    let level = power::level(&[2], IndexKind::Usual, false);
    let (shape, chunk, keys) = (vec![SHARDS * 2], vec![1], ("default", "/"));
    let chunks = power::Chunks::new();
    let model = Model { shape, chunk, levels: vec![level], keys, chunks };
    let layout = shardfs::format::sharding::parse_document(&model.metadata(), None);
    let (path, format) = ("a".into(), indexed());
    SourceArray { id: 1, path, layout: layout.unwrap().unwrap(), format }
}

fn locks_in(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with("__lock")).count()
}

/// One test: the limit is that of the whole process.
#[test]
fn commits_to_many_shards_need_few_open_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), ..limit }).unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("a")).unwrap();
    let storage = LocalStorage::open_root(directory.path(), Arc::default()).unwrap();
    let store = ShardStore::new(Arc::new(storage), StoreConfig::default(), Arc::default());
    let array = array();
    let commit = |byte: Option<u8>, policy: Policy, shards: u64| {
        let content = |n: u64| byte.map(|byte| vec![byte, n.to_le_bytes()[0]]);
        let changes = (0..shards).map(|n| (vec![n * 2], content(n))).collect();
        let chunks = power::stage(&store, &array, &changes);
        for outcome in store.commit(&array, &chunks, policy) {
            outcome.unwrap();
        }
        for (coords, content) in changes {
            assert_eq!(power::read(&store, &array, &coords), Ok(content), "{coords:?}");
        }
        let shards = directory.path().join("a/c");
        assert!(!shards.exists() || locks_in(&shards) == 0);
    };
    commit(Some(1), Policy::Auto, SHARDS);
    commit(Some(2), Policy::InPlace, SHARDS);
    commit(Some(3), Policy::Rewrite, SHARDS);

    // Somebody else has nearly all files that there may be: groups become smaller.
    let mut taken = Vec::new();
    while let Ok(file) = File::open(directory.path()) {
        taken.push(file);
    }
    taken.truncate(taken.len() - 9);
    commit(Some(4), Policy::InPlace, 30);
    commit(Some(5), Policy::Rewrite, 30);
    drop(taken);

    commit(None, Policy::Auto, SHARDS);
    let count = |path: &str| directory.path().join(path).read_dir().unwrap().count();
    assert_eq!(count("a/c"), 0);
    store.finish_commits(&array).unwrap();
}
