//! Shards that the store assembles of what it has and of what is new.

#![cfg(feature = "remote")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardfs::format::plan::Policy;
use shardfs::format::sharding::parse_document;
use shardfs::stats::Stats;
use shardfs::store::formats::indexed;
use shardfs::store::remote::RemoteStorage;
use shardfs::store::storage::Storage;
use shardfs::store::{ShardStore, SourceArray, StagedChunk, StoreConfig};

use crate::power::{level, read, stage};
use crate::support::bucket::{LONG, asked, options, url};
use crate::support::object_server::{Asked, Fault, Server};
use crate::support::{IndexKind, Model};

/// Length of each chunk: a shard has four.
const CHUNK: usize = 4 << 20;

fn model(at_start: bool) -> Model {
    Model {
        shape: vec![4],
        chunk: vec![1],
        levels: vec![level(&[4], IndexKind::Usual, at_start)],
        keys: ("default", "/"),
        chunks: (0..4_u8).map(|at| (vec![at.into()], vec![at; CHUNK])).collect(),
    }
}

fn server(model: &Model) -> Server {
    let server = Server::start();
    server.put("long/c/0", model.shard(&[0]).unwrap());
    server
}

/// A host that has tried out what the store can do.
struct Host {
    array: SourceArray,
    storage: Arc<RemoteStorage>,
    store: ShardStore,
    stats: Arc<Stats>,
}

impl Host {
    fn new(server: &Server, model: &Model) -> Self {
        let layout = parse_document(&model.metadata(), None).unwrap().unwrap();
        let array = SourceArray { id: 1, path: "long".into(), layout, format: indexed() };
        let stats = Arc::new(Stats::default());
        let storage =
            RemoteStorage::new(&url("s3://bucket/"), &options(server, LONG), stats.clone());
        let storage = Arc::new(storage.unwrap());
        storage.check_writable().unwrap();
        let config = StoreConfig { trusted: LONG, pause: Duration::ZERO, ..StoreConfig::default() };
        let store = ShardStore::new(storage.clone(), config, stats.clone());
        Self { array, storage, store, stats }
    }

    fn assembles(&self) -> bool {
        self.storage.objects().unwrap().part_limits().is_some()
    }

    fn staged(&self, at: u64, byte: u8) -> Vec<StagedChunk> {
        stage(&self.store, &self.array, &vec![(vec![at], Some(vec![byte; 7]))])
    }

    fn commit(&self, staged: &[StagedChunk]) {
        for outcome in self.store.commit(&self.array, staged, Policy::Auto) {
            outcome.unwrap();
        }
    }
}

/// Checks what one who knows nothing yet finds: chunks of these bytes, or the ones that were there at first.
fn check(server: &Server, model: &Model, changed: &[(u64, u8)]) {
    let host = Host::new(server, model);
    for at in 0..4_u8 {
        let change = changed.iter().find(|(changed, _)| *changed == u64::from(at));
        let expected = change.map_or_else(|| vec![at; CHUNK], |(_, byte)| vec![*byte; 7]);
        assert_eq!(read(&host.store, &host.array, &[at.into()]).unwrap(), Some(expected), "{at}");
    }
}

#[test]
fn of_a_long_shard_only_what_is_new_is_sent() {
    for at_start in [false, true] {
        let model = model(at_start);
        let server = server(&model);
        let host = Host::new(&server, &model);
        assert!(host.assembles());
        let staged = host.staged(1, 200);
        asked(&server);
        let (put, fetched) = (host.stats.remote.bytes_put.get(), host.stats.remote.bytes.get());
        host.commit(&staged);
        let requests = asked(&server);
        assert!(!requests.iter().any(|asked| asked == "PUT long/c/0"), "{requests:?}");
        for expected in ["POST long/c/0?uploads", "POST long/c/0?uploadId"] {
            let number = requests.iter().filter(|asked| *asked == expected).count();
            assert_eq!(number, 1, "{expected}: {requests:?}");
        }
        // Parts have a least length: where the index is at the start, bytes behind it are sent with it.
        let most = if at_start { (5 << 20) + 100 } else { 200 };
        let put = host.stats.remote.bytes_put.get() - put;
        assert!(put < most, "{put} bytes were sent: {requests:?}");
        let copied = host.stats.remote.bytes_copied.get();
        assert!(copied > 4 * CHUNK as u64 - most, "{copied} bytes were copied: {requests:?}");
        // The chunk before it is compared; of the index that was sent, only whether it still is that one is asked.
        let fetched = host.stats.remote.bytes.get() - fetched;
        let most = if at_start { most + CHUNK as u64 } else { CHUNK as u64 };
        assert!(fetched <= most, "{fetched} bytes were fetched: {requests:?}");
        assert_eq!(requests.last().map(String::as_str), Some("HEAD long/c/0"), "{requests:?}");
        check(&server, &model, &[(1, 200)]);
        host.commit(&host.staged(1, 201));
        host.commit(&host.staged(2, 202));
        check(&server, &model, &[(1, 201), (2, 202)]);
        assert_eq!(server.uploads(), 0);
    }
}

#[test]
fn chunks_that_are_replaced_in_order_are_compared_by_few_requests() {
    let model = Model {
        shape: vec![64],
        levels: vec![level(&[64], IndexKind::Usual, false)],
        chunks: (0..64_u8).map(|at| (vec![at.into()], vec![at; 4096])).collect(),
        ..model(false)
    };
    let server = server(&model);
    let host = Host::new(&server, &model);
    asked(&server);
    let changes: Vec<_> = (0..64).map(|at| (vec![at], Some(vec![200; 7]))).collect();
    let staged = stage(&host.store, &host.array, &changes);
    let requests = asked(&server);
    // The index, two chunks, and the others, which come ahead.
    assert!(requests.len() <= 8, "{requests:?}");
    host.commit(&staged);
    let host = Host::new(&server, &model);
    assert_eq!(read(&host.store, &host.array, &[63]).unwrap(), Some(vec![200; 7]));
}

#[test]
fn what_others_have_stored_meanwhile_stays() {
    let model = model(false);
    let server = server(&model);
    let (one, other) = (Host::new(&server, &model), Host::new(&server, &model));
    let staged = one.staged(0, 100);
    other.commit(&other.staged(3, 103));
    one.commit(&staged);
    check(&server, &model, &[(0, 100), (3, 103)]);
    assert_eq!(server.uploads(), 0);
}

#[test]
fn a_request_or_an_answer_that_is_lost_loses_nothing_and_leaves_no_upload() {
    let model = model(false);
    let server = server(&model);
    let host = Host::new(&server, &model);
    let faults = [
        Fault::NoAnswer,
        Fault::Status(500, None),
        Fault::Status(503, None),
        Fault::Status(404, None),
        Fault::Status(409, None),
        Fault::Done,
        Fault::ErrorInside,
    ];
    let mut byte = 10;
    for what in ["?uploads", "?partNumber=1", "?partNumber=2", "?uploadId"] {
        for fault in &faults {
            if *fault == Fault::ErrorInside && what != "?uploadId" {
                continue;
            }
            let (fault, is_over) = (fault.clone(), Arc::new(AtomicBool::new(false)));
            let has_met = is_over.clone();
            let left = usize::from(what == "?uploads" && fault == Fault::Done);
            let (before, chosen) = (server.uploads(), fault.clone());
            server.fail(move |asked: &Asked| {
                let is_it = asked.1.ends_with(what) && ["POST", "PUT"].contains(&&*asked.0);
                (is_it && !is_over.swap(true, Ordering::Relaxed)).then(|| chosen.clone())
            });
            byte += 1;
            host.commit(&host.staged(1, byte));
            server.behave();
            assert!(has_met.load(Ordering::Relaxed), "{what} {fault:?}");
            assert!(host.assembles(), "{what} {fault:?}");
            // Of one that was begun without an answer the name is unknown.
            assert_eq!(server.uploads(), before + left, "{what} {fault:?}");
            check(&server, &model, &[(1, byte)]);
        }
    }
}

#[test]
fn a_store_that_copies_other_ranges_gets_the_shard_as_a_whole() {
    let model = model(false);
    let server = server(&model);
    let host = Host::new(&server, &model);
    server.fail(|asked: &Asked| {
        (asked.1.ends_with("?partNumber=1") && asked.0 == "PUT").then_some(Fault::WholeObject)
    });
    host.commit(&host.staged(1, 5));
    assert!(!host.assembles());
    server.behave();
    check(&server, &model, &[(1, 5)]);
    assert_eq!(server.uploads(), 0);
}

/// It may be completed while it is given up, and some stores lose the object then.
#[test]
fn an_upload_is_given_up_only_once_it_cannot_be_completed_any_more() {
    let model = model(false);
    let server = server(&model);
    let host = Host::new(&server, &model);
    for (fault, is_made) in [(Fault::Done, true), (Fault::NoAnswer, false)] {
        asked(&server);
        let (fault, is_over) = (fault.clone(), AtomicBool::new(false));
        server.fail(move |asked: &Asked| {
            let is_it = asked.1.ends_with("?uploadId") && asked.0 == "POST";
            (is_it && !is_over.swap(true, Ordering::Relaxed)).then(|| fault.clone())
        });
        host.commit(&host.staged(1, 5 + u8::from(is_made)));
        server.behave();
        let requests = asked(&server);
        let at = |method: &str| requests.iter().rposition(|asked| asked.starts_with(method));
        let (given_up, completed) = (at("DELETE"), at("POST long/c/0?uploadId"));
        assert_eq!(given_up.is_none(), is_made, "{requests:?}");
        assert!(is_made || given_up > completed, "{requests:?}");
        assert_eq!(server.uploads(), 0);
    }
}

#[test]
fn a_store_that_refuses_parts_gets_the_shard_as_a_whole() {
    for what in ["?uploads", "?partNumber=1", "?partNumber=2", "?uploadId"] {
        let model = model(false);
        let server = server(&model);
        let host = Host::new(&server, &model);
        server.fail(move |asked: &Asked| {
            (asked.1.ends_with(what) && asked.0 != "DELETE").then_some(Fault::Status(400, None))
        });
        host.commit(&host.staged(1, 5));
        assert!(!host.assembles(), "{what}");
        asked(&server);
        host.commit(&host.staged(2, 6));
        assert!(asked(&server).iter().all(|asked| !asked.contains("?upload")), "{what}");
        server.behave();
        check(&server, &model, &[(1, 5), (2, 6)]);
        assert_eq!(server.uploads(), 0, "{what}");
    }
}

#[test]
fn a_store_that_finds_conflicts_where_there_are_none_gets_the_shard_as_a_whole() {
    for (what, status) in [("?uploads", 404), ("?partNumber=1", 416), ("?uploadId", 409)] {
        let model = model(false);
        let server = server(&model);
        let host = Host::new(&server, &model);
        server.fail(move |asked: &Asked| {
            let is_it = asked.1.ends_with(what) && asked.0 != "DELETE";
            is_it.then_some(Fault::Status(status, None))
        });
        host.commit(&host.staged(1, 5));
        server.behave();
        check(&server, &model, &[(1, 5)]);
    }
}

#[test]
fn a_store_that_looks_at_no_conditions_of_parts_is_sent_shards_as_a_whole() {
    for (what, fault) in [
        ("?uploads", Fault::Status(501, None)),
        ("?uploads", Fault::NoMetadata),
        ("?partNumber=1", Fault::NoConditions),
        ("?partNumber=1", Fault::Status(500, None)),
        ("?uploadId", Fault::NoConditions),
        ("?uploadId", Fault::EarlyConditions),
        ("?uploadId", Fault::ErrorInside),
    ] {
        let is_unknown = fault == Fault::ErrorInside;
        let model = model(false);
        let tried_out = || {
            let server = server(&model);
            let chosen = fault.clone();
            server.fail(move |asked: &Asked| {
                (asked.1.ends_with(what) && asked.0 != "DELETE").then(|| chosen.clone())
            });
            let host = Host::new(&server, &model);
            (!host.assembles()).then_some((server, host))
        };
        // Requests that are sent at the same time come one after the other on a busy machine.
        let times = if fault == Fault::EarlyConditions { 10 } else { 1 };
        let (server, host) = (0..times).find_map(|_| tried_out()).unwrap();
        server.behave();
        host.commit(&host.staged(1, 5));
        assert!(asked(&server).iter().any(|asked| asked == "PUT long/c/0"), "{what} {fault:?}");
        check(&server, &model, &[(1, 5)]);
        // Of what may still be completed nothing is given up.
        assert!(server.uploads() == 0 || is_unknown, "{what} {fault:?}");
    }
}

#[test]
fn uploads_that_were_not_completed_are_found_and_removed() {
    let model = model(false);
    let server = server(&model);
    let host = Host::new(&server, &model);
    for _ in 0..3 {
        let is_over = AtomicBool::new(false);
        server.fail(move |asked: &Asked| {
            let is_it = asked.1.ends_with("?uploads") && !is_over.swap(true, Ordering::Relaxed);
            is_it.then_some(Fault::Done)
        });
        host.commit(&host.staged(1, 5));
    }
    server.behave();
    assert_eq!(server.uploads(), 3);
    let found = host.storage.unfinished_uploads().unwrap();
    assert_eq!(found.len(), 3);
    for upload in &found {
        assert_eq!(upload.path, Path::new("long/c/0"));
        assert!(upload.since.is_some());
        host.storage.abort_upload(upload).unwrap();
        // There is no error if another one has been faster.
        host.storage.abort_upload(upload).unwrap();
    }
    assert_eq!(server.uploads(), 0);
    assert!(host.storage.unfinished_uploads().unwrap().is_empty());
    check(&server, &model, &[(1, 5)]);
}

/// Chunks that are shorter than a part can be, so that what is kept cannot be copied once gaps lie between.
#[test]
fn bytes_of_replaced_and_removed_chunks_are_reclaimed() {
    const SLOTS: u64 = 16;
    const NBYTES: usize = 1 << 20;
    let model = Model {
        shape: vec![SLOTS],
        levels: vec![level(&[SLOTS], IndexKind::Usual, false)],
        chunks: (0..SLOTS).map(|at| (vec![at], vec![1; NBYTES])).collect(),
        ..model(false)
    };
    let server = server(&model);
    let host = Host::new(&server, &model);
    let commit = |slots: &[u64], byte: Option<u8>| {
        let content = byte.map(|byte| vec![byte; NBYTES]);
        let changes = slots.iter().map(|at| (vec![*at], content.clone())).collect();
        host.commit(&stage(&host.store, &host.array, &changes));
        host.storage.stat(Path::new("long/c/0")).unwrap().size
    };
    let even: Vec<u64> = (0..SLOTS).step_by(2).collect();
    let all: Vec<u64> = (0..SLOTS).collect();
    let in_use = SLOTS * NBYTES as u64;
    for byte in 2..12 {
        let nbytes = commit(&even, Some(byte));
        assert!(nbytes < in_use / 4 * 7 + (1 << 20), "{nbytes} bytes after commit {byte}");
    }
    assert!(host.stats.remote.bytes_copied.get() > 2 * in_use);
    let chunk = |at| read(&host.store, &host.array, &[at]).unwrap();
    assert_eq!((chunk(0), chunk(1)), (Some(vec![11; NBYTES]), Some(vec![1; NBYTES])));
    // Nothing of the version before is left.
    assert!(commit(&all, Some(20)) < in_use + (1 << 10));
    assert!(commit(&all, None) < 1 << 10);
    assert_eq!(server.uploads(), 0);
}
