//! Commits to an array on an object store: the requests, and what becomes of lost ones.

#![cfg(feature = "remote")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use shardfs::format::plan::Policy;
use shardfs::format::sharding::parse_document;
use shardfs::store::formats::indexed;
use shardfs::store::remote::{Deviation, ProbeError, RemoteOptions, RemoteStorage};
use shardfs::store::storage::{ObjectStorage, PutError, Storage, When, WriteId};
use shardfs::store::{Outcome, ShardStore, SourceArray, StoreConfig, StoreError};

use crate::power::{self, Changes, read, stage};
use crate::support::bucket::{LONG, asked, bucket, bucket_by, files, model, options, server, url};
use crate::support::object_server::{Asked, Fault, Server};
use crate::support::{IndexKind, Model};

fn array() -> SourceArray {
    let layout = parse_document(&model().metadata(), None).unwrap().unwrap();
    SourceArray { id: 1, path: "sharded".into(), layout, format: indexed() }
}

/// A host that believes what it has found for a long time.
fn host(server: &Server) -> ShardStore {
    let config = StoreConfig { trusted: LONG, pause: Duration::ZERO, ..StoreConfig::default() };
    ShardStore::new(bucket(server, "", LONG), config, Arc::default())
}

fn change(coords: [u64; 2], byte: u8) -> Changes {
    vec![(coords.to_vec(), Some(vec![byte; 7]))]
}

fn commit(store: &ShardStore, changes: &Changes) -> Vec<Outcome> {
    let array = array();
    store.commit(&array, &stage(store, &array, changes), Policy::Auto)
}

fn committed(store: &ShardStore, changes: &Changes) {
    commit(store, changes).into_iter().for_each(|outcome| outcome.unwrap());
}

fn found(server: &Server, coords: [u64; 2]) -> Option<Vec<u8>> {
    read(&host(server), &array(), &coords).unwrap()
}

/// Lets the first request with this method meet a fault.
fn fail_once(server: &Server, method: &'static str, fault: Fault) {
    let is_over = AtomicBool::new(false);
    server.fail(move |asked: &Asked| {
        (asked.0 == method && !is_over.swap(true, Ordering::Relaxed)).then(|| fault.clone())
    });
}

#[test]
fn a_shard_is_replaced_by_one_request_and_what_is_there_now_is_known() {
    let server = server(&files(), "");
    let store = host(&server);
    read(&store, &array(), &[0, 0]).unwrap();
    asked(&server);
    committed(&store, &change([0, 1], 200));
    // All of its old bytes, the new ones, and whether they are what is there now: their index is known.
    let requests = asked(&server);
    let put = requests.iter().position(|asked| asked == "PUT sharded/c/0/0").unwrap();
    // Those of other shards come ahead: chunks are taken in order.
    let is_read = |asked: &String| asked.starts_with("GET sharded/c/");
    let of_shard = |asked: &[String]| -> Vec<String> {
        let of_shard = asked.iter().filter(|asked| !is_read(asked) || asked.contains("c/0/0"));
        of_shard.cloned().collect()
    };
    assert!(requests[..put].iter().all(is_read), "{requests:?}");
    assert_eq!(of_shard(&requests[put + 1..]), ["HEAD sharded/c/0/0"]);
    assert_eq!(found(&server, [0, 1]), Some(vec![200; 7]));
    assert_eq!(found(&server, [0, 0]), Some(vec![0; 10]));
    // A second commit needs no comparison with what others may have written.
    asked(&server);
    committed(&store, &change([0, 1], 201));
    let requests = asked(&server);
    let put = requests.iter().position(|asked| asked == "PUT sharded/c/0/0").unwrap();
    assert!(requests[..put].iter().all(|asked| !asked.starts_with("HEAD")), "{requests:?}");
    assert_eq!(of_shard(&requests[put + 1..]), ["HEAD sharded/c/0/0"]);
    assert_eq!(found(&server, [0, 1]), Some(vec![201; 7]));
}

/// Libraries store the chunks of a shard in an order of their own.
#[test]
fn a_shard_whose_chunks_lie_in_another_order_is_fetched_with_few_requests() {
    const CHUNKS: u16 = 512;
    const NBYTES: u64 = 4096;
    let level = power::level(&[CHUNKS.into()], IndexKind::Usual, false);
    let offset = |at: u16| u64::from(at.reverse_bits() >> 7) * NBYTES;
    let entries: Vec<_> = (0..CHUNKS).map(|at| [offset(at), NBYTES]).collect();
    let content = |at: u16| at.to_le_bytes().repeat(2048);
    let mut by_offset: Vec<u16> = (0..CHUNKS).collect();
    by_offset.sort_unstable_by_key(|at| offset(*at));
    let mut shard: Vec<u8> = by_offset.into_iter().flat_map(content).collect();
    let slots: Vec<_> = (0..u64::from(CHUNKS)).map(|at| vec![at]).collect();
    shard.extend(level.encode_index(&[CHUNKS.into()], &slots, &entries));
    let model = Model {
        shape: vec![CHUNKS.into()],
        chunk: vec![1],
        levels: vec![level],
        keys: ("default", "/"),
        chunks: BTreeMap::new(),
    };
    let server = Server::start();
    server.put("sharded/c/0", shard);
    let layout = parse_document(&model.metadata(), None).unwrap().unwrap();
    let array = SourceArray { layout, ..array() };
    let store = host(&server);
    let change = vec![(vec![5], Some(vec![200; 7]))];
    let staged = stage(&store, &array, &change);
    asked(&server);
    store.commit(&array, &staged, Policy::Auto).into_iter().for_each(|outcome| outcome.unwrap());
    let requests = asked(&server);
    let gets = requests.iter().filter(|asked| asked.starts_with("GET")).count();
    assert!((1..=3).contains(&gets), "{gets}: {requests:?}");
    for at in 0..CHUNKS {
        let expected = if at == 5 { vec![200; 7] } else { content(at) };
        assert_eq!(read(&host(&server), &array, &[at.into()]).unwrap(), Some(expected), "{at}");
    }
}

#[test]
fn a_new_shard_is_put_only_if_there_is_none() {
    let server = server(&files(), "");
    server.remove("sharded/c/1/1");
    let (one, other) = (host(&server), host(&server));
    let array = array();
    let staged = stage(&other, &array, &change([5, 3], 2));
    committed(&one, &change([4, 2], 1));
    other.commit(&array, &staged, Policy::Auto).into_iter().for_each(|it| it.unwrap());
    assert_eq!(found(&server, [4, 2]), Some(vec![1; 7]));
    assert_eq!(found(&server, [5, 3]), Some(vec![2; 7]));
}

#[test]
fn what_others_have_written_to_other_chunks_stays_and_to_the_same_chunk_is_told() {
    let server = server(&files(), "");
    let (one, other) = (host(&server), host(&server));
    let array = array();
    let changes = [change([0, 0], 1), change([0, 1], 1)].concat();
    let staged = stage(&one, &array, &changes);
    committed(&other, &change([0, 1], 2));
    committed(&other, &change([1, 0], 3));
    let outcomes = one.commit(&array, &staged, Policy::Auto);
    assert!(outcomes[0].is_ok());
    let stale = outcomes[1].as_ref().unwrap_err();
    assert!(matches!(**stale, StoreError::Stale { .. }), "{stale}");
    assert_eq!(found(&server, [0, 0]), Some(vec![1; 7]));
    assert_eq!(found(&server, [0, 1]), Some(vec![2; 7]));
    assert_eq!(found(&server, [1, 0]), Some(vec![3; 7]));
}

#[test]
fn a_commit_whose_answer_is_lost_is_found_out_about_and_made_once() {
    let server = server(&files(), "");
    let store = host(&server);
    for (byte, fault, puts) in [
        (10, Fault::Done, 1),
        (11, Fault::NoAnswer, 2),
        (12, Fault::Status(503, None), 2),
        (13, Fault::Status(500, None), 2),
    ] {
        asked(&server);
        fail_once(&server, "PUT", fault.clone());
        committed(&store, &change([0, 0], byte));
        server.behave();
        let requests = asked(&server);
        let is_put = |asked: &&String| asked.starts_with("PUT");
        assert_eq!(requests.iter().filter(is_put).count(), puts, "{fault:?}: {requests:?}");
        assert_eq!(found(&server, [0, 0]), Some(vec![byte; 7]), "{fault:?}");
    }
}

#[test]
fn a_store_that_refuses_a_write_is_not_asked_again() {
    let server = server(&files(), "");
    let store = host(&server);
    server.fail(|asked| (asked.0 == "PUT").then_some(Fault::Refused("AccessDenied")));
    let error = commit(&store, &change([0, 0], 1)).remove(0).unwrap_err();
    assert_eq!(error.errno(), libc::EACCES, "{error}");
    let puts = asked(&server).iter().filter(|asked| asked.starts_with("PUT")).count();
    assert_eq!(puts, 1);
    server.behave();
    assert_eq!(found(&server, [0, 0]), Some(vec![0; 10]));
    committed(&store, &change([0, 0], 2));
    assert_eq!(found(&server, [0, 0]), Some(vec![2; 7]));
}

#[test]
fn the_write_of_an_object_and_its_entity_tag_are_told_as_they_are_now() {
    for scheme in ["s3", "gs"] {
        write_is_told(scheme);
    }
}

fn write_is_told(scheme: &str) {
    let server = Server::start();
    let storage: Arc<dyn Storage> = bucket_by(scheme, &server, "", LONG);
    let objects: &dyn ObjectStorage = storage.objects().unwrap();
    let path = Path::new("a");
    assert_eq!(objects.current(path).unwrap(), None);
    let id = WriteId::random().unwrap();
    let tag = objects.put(path, b"one".to_vec(), When::Absent, id).unwrap();
    let now = objects.current(path).unwrap().unwrap();
    assert_eq!((now.tag.as_deref(), now.write), (Some(&*tag), Some(id)));
    let again = objects.put(path, b"two".to_vec(), When::Absent, id);
    assert!(matches!(again, Err(PutError::Conflict)), "{again:?}");
    // By software that knows nothing of writes; what was found is not believed.
    server.put("a", "others");
    let stale = objects.put(path, b"two".to_vec(), When::Is(&tag), id);
    assert!(matches!(stale, Err(PutError::Conflict)), "{stale:?}");
    let now = objects.current(path).unwrap().unwrap();
    assert_eq!(now.write, None);
    objects.put(path, b"two".to_vec(), When::Is(now.tag.as_deref().unwrap()), id).unwrap();
    let mut bytes = [0; 3];
    assert_eq!(storage.open(path).unwrap().read_at(&mut bytes, 0).unwrap(), 3);
    assert_eq!(&bytes, b"two");
    // It is gone: whoever comes next finds no object.
    let now = objects.current(path).unwrap().unwrap();
    server.remove("a");
    let gone = objects.put(path, b"two".to_vec(), When::Is(now.tag.as_deref().unwrap()), id);
    assert!(matches!(gone, Err(PutError::Conflict)), "{gone:?}");
    // A name that is new is in the next listing.
    objects.put(Path::new("d/e"), b"new".to_vec(), When::Absent, id).unwrap();
    assert_eq!(storage.stat(Path::new("d/e")).unwrap().size, 3);
}

fn checked(server: &Server) -> Result<(), ProbeError> {
    checked_by("s3", server)
}

fn checked_by(scheme: &str, server: &Server) -> Result<(), ProbeError> {
    let (options, url) = (options(server, LONG), url(&format!("{scheme}://bucket/data")));
    RemoteStorage::new(&url, &options, Arc::default()).unwrap().check_writable()
}

#[test]
fn a_store_with_generations_is_tried_out_as_well() {
    let server = Server::start();
    checked_by("gs", &server).unwrap();
    assert!(until_found(Deviation::CreatedTwice, || {
        let server = Server::start();
        server.fail(|asked| (asked.0 == "PUT").then_some(Fault::EarlyConditions));
        checked_by("gs", &server)
    }));
}

/// Returns whether a trial finds this, which it may have to look for several times: requests that are sent at the same
/// time come one after the other on a busy machine.
fn until_found(expected: Deviation, trial: impl Fn() -> Result<(), ProbeError>) -> bool {
    (0..10).any(|_| match trial() {
        Ok(()) => false,
        // Another race may find it.
        Err(ProbeError::Unreliable(
            found @ (Deviation::CreatedTwice | Deviation::ReplacedTwice),
        )) => found == expected,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_store_that_keeps_to_conditions_can_be_written_to_and_nothing_is_left_of_the_trial() {
    let server = Server::start();
    checked(&server).unwrap();
    let asked = asked(&server);
    let made: BTreeSet<&str> = asked.iter().filter_map(|asked| asked.split(' ').nth(1)).collect();
    // One object, below the source's root.
    let made = made.iter().filter(|key| !key.starts_with('?'));
    let made: BTreeSet<_> = made.filter_map(|key| key.split('?').next()).collect();
    let made = Vec::from_iter(made);
    assert!(made.len() == 1 && made[0].starts_with("data/.shardfs-"), "{made:?}");
    let left = bucket(&server, "data", LONG);
    let mut names = 0;
    let listed = left.list(Path::new(""), 0, &mut |_| {
        names += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((listed.is_ok(), names), (true, 0));
}

#[test]
fn a_trial_goes_on_although_answers_are_lost() {
    for (fault, each) in [(Fault::Done, 3), (Fault::Status(500, None), 3), (Fault::NoAnswer, 4)] {
        let server = Server::start();
        let mut n = 0;
        server.fail(move |asked: &Asked| {
            n += usize::from(asked.0 == "PUT");
            (asked.0 == "PUT" && n.is_multiple_of(each)).then(|| fault.clone())
        });
        checked(&server).unwrap();
    }
}

#[test]
fn a_store_that_cannot_keep_writers_apart_is_not_written_to() {
    let nth = |n: usize, fault: Fault| {
        let mut puts = 0;
        move |asked: &Asked| {
            puts += usize::from(asked.0 == "PUT");
            (asked.0 == "PUT" && puts >= n).then(|| fault.clone())
        }
    };
    for (first, fault, expected) in [
        (1, Fault::NoConditions, Deviation::CreatedTwice),
        (1, Fault::EarlyConditions, Deviation::CreatedTwice),
        (9, Fault::NoConditions, Deviation::OtherVersion),
        (10, Fault::NoConditions, Deviation::ReplacedTwice),
        (10, Fault::EarlyConditions, Deviation::ReplacedTwice),
        (1, Fault::NoMetadata, Deviation::NoMetadata),
    ] {
        let what = format!("{first} {fault:?}");
        let trial = || {
            let server = Server::start();
            server.fail(nth(first, fault.clone()));
            let found = checked(&server);
            server.behave();
            let listed = bucket(&server, "data", LONG).stat(Path::new("x"));
            assert!(listed.is_err());
            let asked = asked(&server);
            assert!(asked.iter().any(|asked| asked.starts_with("DELETE data/.shardfs-")), "{what}");
            found
        };
        match fault {
            Fault::EarlyConditions => assert!(until_found(expected, trial), "{what}"),
            _ => match trial() {
                Err(ProbeError::Unreliable(found)) => assert_eq!(found, expected, "{what}"),
                other => panic!("{what}: {other:?}"),
            },
        }
    }
}

#[test]
fn a_store_that_refuses_to_be_written_to_says_so_at_once() {
    let server = Server::start();
    server.fail(|asked| (asked.0 == "PUT").then_some(Fault::Refused("AccessDenied")));
    let refused = checked(&server).unwrap_err();
    assert!(refused.to_string().starts_with("it cannot be written to: "), "{refused}");
}

/// Note of a process of another machine.
fn note() -> String {
    json!({"host": "other", "boot": "2", "namespace": "3", "pid": 4}).to_string()
}

fn alone_options(server: &Server) -> RemoteOptions {
    RemoteOptions { single_writer: true, arrival: LONG, ..options(server, LONG) }
}

fn alone(server: &Server) -> RemoteStorage {
    let options = alone_options(server);
    RemoteStorage::new(&url("s3://bucket/data"), &options, Arc::default()).unwrap()
}

fn ignore_conditions(server: &Server) {
    server.fail(|asked| (asked.0 == "PUT").then_some(Fault::NoConditions));
}

const NOTE: &str = "data/.shardfs/writer";

#[test]
fn the_only_writer_of_a_store_that_ignores_conditions_looks_before_it_puts() {
    for fault in [Fault::NoConditions, Fault::EarlyConditions] {
        let server = Server::start();
        server.fail(move |asked| (asked.0 == "PUT").then(|| fault.clone()));
        let storage = alone(&server);
        storage.check_writable().unwrap();
        let objects: &dyn ObjectStorage = storage.objects().unwrap();
        let (path, id) = (Path::new("a"), WriteId::random().unwrap());
        let put = |when: When<'_>| objects.put(path, b"one".to_vec(), when, id);
        let tag = put(When::Absent).unwrap();
        assert!(matches!(put(When::Absent), Err(PutError::Conflict)));
        assert!(matches!(put(When::Is("other")), Err(PutError::Conflict)));
        server.put("data/a", "by others");
        assert!(matches!(put(When::Is(&tag)), Err(PutError::Conflict)));
        let now = objects.current(path).unwrap().unwrap();
        put(When::Is(&now.tag.unwrap())).unwrap();
        objects.remove(path).unwrap();
        assert!(matches!(put(When::Is(&tag)), Err(PutError::Conflict)));
        assert_eq!(server.keys(), [NOTE]);
        storage.end_alone();
        assert!(server.keys().is_empty(), "its writer has ended");
        let ended = put(When::Absent);
        assert!(matches!(ended, Err(PutError::Refused(_))), "{ended:?}");
    }
}

#[test]
fn of_those_who_say_that_they_are_the_only_writer_one_writes() {
    let server = Server::start();
    ignore_conditions(&server);
    server.put(NOTE, note());
    server.set_modified(NOTE, "Wed, 25 Nov 2026 09:58:20 GMT");
    let refused = alone(&server).check_writable().unwrap_err().to_string();
    let expected = "process 4 of \"other\" writes there, as it has said 100 s ago";
    assert!(refused.contains(expected), "{refused}");
    assert_eq!(server.keys(), [NOTE], "it is the other one's");
    // It has not said so for some time; what is no note is no writer's that is known.
    for text in [note(), "no note".to_owned()] {
        server.put(NOTE, text);
        server.set_modified(NOTE, "Wed, 25 Nov 2026 09:56:00 GMT");
        let storage = alone(&server);
        storage.check_writable().unwrap();
        drop(storage);
        assert!(server.keys().is_empty());
    }
}

#[test]
fn a_writer_that_finds_the_note_of_another_one_changes_nothing_more() {
    let server = Server::start();
    ignore_conditions(&server);
    let renewal = Duration::from_millis(50);
    let options = RemoteOptions { renewal, ..alone_options(&server) };
    let storage = RemoteStorage::new(&url("s3://bucket/data"), &options, Arc::default()).unwrap();
    storage.check_writable().unwrap();
    // It is put anew.
    server.remove(NOTE);
    let began = Instant::now();
    while server.keys().is_empty() {
        assert!(began.elapsed() < LONG);
        thread::sleep(renewal);
    }
    let objects: &dyn ObjectStorage = storage.objects().unwrap();
    let error = loop {
        assert!(began.elapsed() < LONG);
        // A renewal may be under way that does not know of it.
        server.put(NOTE, note());
        thread::sleep(renewal * 2);
        let path = format!("{}", began.elapsed().as_nanos());
        let put = objects.put(Path::new(&path), vec![1], When::Absent, WriteId::random().unwrap());
        if let Err(PutError::Refused(error)) = put {
            break error;
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(objects.remove(Path::new("b")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    drop(storage);
    let refused = alone(&server).check_writable().unwrap_err().to_string();
    assert!(refused.contains("process 4 of \"other\" writes there"), "{refused}");
}

#[test]
fn what_a_writer_has_sent_that_was_killed_is_waited_for() {
    let line = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let ended = json!({
        "host": "this",
        "boot": line("/proc/sys/kernel/random/boot_id"),
        "namespace": namespace.to_str().unwrap(),
        "pid": i32::MAX,
    });
    for arrival in [LONG, Duration::ZERO] {
        let server = Server::start();
        ignore_conditions(&server);
        server.put(NOTE, ended.to_string());
        let options = RemoteOptions { arrival, ..alone_options(&server) };
        let url = url("s3://bucket/data");
        let storage = RemoteStorage::new(&url, &options, Arc::default()).unwrap();
        storage.check_writable().unwrap();
        let objects: &dyn ObjectStorage = storage.objects().unwrap();
        let put = objects.put(Path::new("a"), vec![1], When::Absent, WriteId::random().unwrap());
        assert_eq!(put.is_err(), arrival == LONG, "{put:?}");
        drop(storage);
        // Whoever comes next waits as well.
        assert_eq!(server.keys() == [NOTE], arrival == LONG, "{:?}", server.keys());
    }
}

#[test]
fn the_promise_of_a_single_writer_is_not_needed_where_conditions_are_kept() {
    let server = Server::start();
    let storage = alone(&server);
    storage.check_writable().unwrap();
    assert!(server.keys().is_empty());
    drop(storage);
    // What it does not make up for.
    server.fail(|asked| (asked.0 == "PUT").then_some(Fault::NoMetadata));
    let found = alone(&server).check_writable();
    assert!(matches!(found, Err(ProbeError::Unreliable(Deviation::NoMetadata))), "{found:?}");
    // Neither where they are ignored as well.
    let mut puts = 0;
    server.fail(move |asked| {
        puts += usize::from(asked.0 == "PUT");
        let fault = if puts > 8 { Fault::NoMetadata } else { Fault::NoConditions };
        (asked.0 == "PUT").then_some(fault)
    });
    let found = alone(&server).check_writable();
    assert!(matches!(found, Err(ProbeError::Unreliable(Deviation::NoMetadata))), "{found:?}");
    assert!(server.keys().is_empty(), "{:?}", server.keys());
}

/// A host that writes alone to a store that ignores conditions, and its storage.
fn only_host(server: &Server, arrival: Duration) -> (ShardStore, Arc<RemoteStorage>) {
    ignore_conditions(server);
    let options = RemoteOptions { arrival, ..alone_options(server) };
    let storage = RemoteStorage::new(&url("s3://bucket"), &options, Arc::default());
    let storage = Arc::new(storage.unwrap());
    storage.check_writable().unwrap();
    let config = StoreConfig { trusted: LONG, pause: Duration::ZERO, ..StoreConfig::default() };
    (ShardStore::new(Arc::clone(&storage) as Arc<dyn Storage>, config, Arc::default()), storage)
}

#[test]
fn the_only_writer_changes_nothing_while_a_request_may_still_arrive() {
    let refused = Fault::Refused("AccessDenied");
    let (now, later) = (Duration::ZERO, LONG);
    for (fault, arrival, puts, expected) in [
        (Fault::Done, later, 1, Ok(())),
        (refused, later, 1, Err(libc::EACCES)),
        (Fault::NoAnswer, later, 1, Err(libc::ETIMEDOUT)),
        (Fault::Status(503, None), later, 1, Err(libc::ETIMEDOUT)),
        (Fault::Status(504, None), later, 1, Err(libc::ETIMEDOUT)),
        (Fault::NoAnswer, now, 2, Ok(())),
        (Fault::Status(503, None), now, 2, Ok(())),
    ] {
        let server = server(&files(), "");
        let (store, storage) = only_host(&server, arrival);
        let change = change([0, 0], 10);
        asked(&server);
        fail_once(&server, "PUT", fault.clone());
        let outcome = commit(&store, &change).remove(0).map_err(|error| error.errno());
        assert_eq!(outcome, expected, "{fault:?}");
        let requests = asked(&server);
        let is_put = |asked: &&String| asked.starts_with("PUT");
        assert_eq!(requests.iter().filter(is_put).count(), puts, "{fault:?}: {requests:?}");
        let content = if outcome.is_ok() { vec![10; 7] } else { vec![0; 10] };
        assert_eq!(found(&server, [0, 0]), Some(content), "{fault:?}");
        drop((store, storage));
        let is_left = server.keys().contains(&".shardfs/writer".to_owned());
        assert_eq!(is_left, expected == Err(libc::ETIMEDOUT), "{fault:?}");
    }
}

#[test]
fn a_file_of_the_only_writer_waits_for_a_request_that_may_still_arrive() {
    let server = server(&files(), "");
    let (_, storage) = only_host(&server, Duration::from_secs(2));
    fail_once(&server, "PUT", Fault::NoAnswer);
    let began = Instant::now();
    storage.put_object(Path::new("a"), b"text", None).unwrap();
    // Counted from when the answer was lost.
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
    // By others it is not waited for.
    let before = Instant::now();
    fail_once(&server, "PUT", Fault::Done);
    storage.put_object(Path::new("b"), b"text", None).unwrap();
    assert!(server.keys().contains(&"b".to_owned()), "{:?}", before.elapsed());
}
