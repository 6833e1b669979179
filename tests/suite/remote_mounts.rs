//! Writable mounts of an object store: several hosts write chunks of the same shards.

#![cfg(feature = "remote")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shardfs::fs::{Fs, FsConfig, OpenHow, Views, WriteConfig};
use shardfs::store::StoreConfig;
use shardfs::store::storage::Storage;

use crate::power::mounted::{CALLER, User};
use crate::support::bucket::{LONG, asked, bucket, files, model, server};
use crate::support::object_server::{Asked, Fault, Server};
use crate::support::{Model, places};

const CHUNK: &str = "sharded/c/0/0";

fn config(unsaved: &Path) -> FsConfig {
    let store = StoreConfig {
        trusted: Duration::from_secs(1),
        is_written: true,
        pause: Duration::ZERO,
        ..StoreConfig::default()
    };
    let writing = WriteConfig { unsaved: unsaved.to_owned(), ..WriteConfig::default() };
    FsConfig { store, writable: true, writing, ..FsConfig::default() }
}

fn mount_of(storage: Arc<dyn Storage>, unsaved: &Path) -> Fs {
    Fs::new(storage, config(unsaved), Arc::default()).unwrap()
}

/// A mount of a host that believes for long what it has found.
fn mount(server: &Server, unsaved: &Path) -> Fs {
    mount_of(bucket(server, "", LONG), unsaved)
}

fn nowhere() -> &'static Path {
    Path::new("/nonexistent")
}

/// What a host finds that has just come.
fn found(server: &Server, path: &str) -> Option<Vec<u8>> {
    User(&mount(server, nowhere())).read(path)
}

fn puts(asked: &[String]) -> usize {
    asked.iter().filter(|asked| asked.starts_with("PUT")).count()
}

#[test]
fn chunks_are_made_changed_and_removed() {
    let server = server(&files(), "");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    user.write(CHUNK, b"changed", true);
    assert_eq!(found(&server, CHUNK), Some(b"changed".to_vec()));
    // One that was absent, and all of a shard.
    user.write("sharded/c/0/3", b"made", true);
    ["4", "5", "6", "7"].iter().for_each(|row| {
        for column in ["0", "1"] {
            let path = format!("sharded/c/{row}/{column}");
            if user.ino(&path).is_some() {
                user.unlink(&path);
            }
        }
    });
    fs.commit(Path::new("")).unwrap();
    let now = mount(&server, nowhere());
    assert_eq!(User(&now).read("sharded/c/0/3"), Some(b"made".to_vec()));
    assert_eq!(User(&now).ino("sharded/c/4/0"), None);
    assert_eq!(User(&now).read("sharded/c/0/1"), Some(vec![1; 10]));
    // In a shard that is none of the store's yet.
    server.remove("sharded/c/1/1");
    let fs = mount(&server, nowhere());
    User(&fs).write("sharded/c/7/3", b"new shard", true);
    assert_eq!(found(&server, "sharded/c/7/3"), Some(b"new shard".to_vec()));
    assert_eq!(User(&fs).read("sharded/c/7/3"), Some(b"new shard".to_vec()));
}

#[test]
fn many_chunks_of_a_shard_are_committed_by_one_request() {
    let server = server(&files(), "");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    user.read(CHUNK);
    asked(&server);
    let begun = Instant::now();
    for (row, column) in (0..4).flat_map(|row| [(row, 0), (row, 1)]) {
        user.write(&format!("sharded/c/{row}/{column}"), &[row; 8], false);
    }
    fs.commit(Path::new("")).unwrap();
    let (asked, took) = (asked(&server), begun.elapsed());
    assert_eq!(puts(&asked), 1, "{asked:?}");
    // Which version is there is asked once for all that is staged within a moment, and which array once; and after
    // the commit whether it is the one that was put.
    let heads = asked.iter().filter(|asked| asked.starts_with("HEAD")).count();
    let moments = usize::try_from(took.as_secs()).unwrap();
    assert!(heads <= 4 + 2 * moments, "{took:?}: {asked:?}");
}

/// What a mount does at an interval, and the shards that it has put by it.
fn put_at_interval(server: &Server, fs: &Fs) -> Vec<String> {
    asked(server);
    fs.commit_due().unwrap();
    let mut asked = asked(server);
    asked.retain(|asked| asked.starts_with("PUT"));
    asked
}

#[test]
fn a_shard_that_is_put_as_a_whole_waits_for_chunks_that_come() {
    const SHARD: &str = "PUT sharded/c/1/1";
    let server = server(&files(), "");
    server.remove("sharded/c/1/1");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    let write = |chunk: &str| user.write(&format!("sharded/c/{chunk}"), chunk.as_bytes(), false);
    let waits = || assert_eq!(put_at_interval(&server, &fs), [""; 0]);
    let is_put = || assert_eq!(put_at_interval(&server, &fs), [SHARD]);
    write("4/2");
    waits();
    write("4/3");
    waits();
    is_put();
    assert_eq!(found(&server, "sharded/c/4/3"), Some(b"4/3".to_vec()));
    // One that is there waits for chunks as well that it has not had.
    write("5/2");
    waits();
    is_put();
    // What changes or removes a chunk does not wait.
    write("5/3");
    write("4/2");
    is_put();
    write("6/2");
    user.unlink("sharded/c/4/2");
    is_put();
    // A user who asks for it is not kept waiting.
    write("6/3");
    waits();
    fs.commit(Path::new("sharded/c/6")).unwrap();
    assert_eq!(found(&server, "sharded/c/6/3"), Some(b"6/3".to_vec()));
    // Nor does the end of the mount.
    write("7/2");
    write("7/3");
    waits();
    assert_eq!(fs.end_commits(), 0);
    assert_eq!(found(&server, "sharded/c/7/2"), Some(b"7/2".to_vec()));
}

#[test]
fn a_shard_that_is_put_as_a_whole_does_not_wait_once_it_is_full() {
    let server = server(&files(), "");
    server.remove("sharded/c/1/1");
    let fs = mount(&server, nowhere());
    for (row, column) in (4..8).flat_map(|row| [(row, 2), (row, 3)]) {
        User(&fs).write(&format!("sharded/c/{row}/{column}"), b"full", false);
    }
    assert_eq!(put_at_interval(&server, &fs), ["PUT sharded/c/1/1"]);
}

#[test]
fn of_more_than_may_wait_full_shards_are_put_first() {
    let server = server(&files(), "");
    ["sharded/c/1/0", "sharded/c/1/1"].iter().for_each(|shard| server.remove(shard));
    let mut config = config(nowhere());
    config.writing.dirty_limit = 9 * 1000;
    let fs = Fs::new(bucket(&server, "", LONG), config, Arc::default()).unwrap();
    let user = User(&fs);
    let write = |row: u8, column: u8| {
        user.write(&format!("sharded/c/{row}/{column}"), &[row; 1000], false);
    };
    write(4, 2);
    asked(&server);
    (4..8).for_each(|row| (0..2).for_each(|column| write(row, column)));
    assert_eq!(puts(&asked(&server)), 0);
    write(5, 2);
    let full = asked(&server);
    assert!(full.contains(&"PUT sharded/c/1/0".to_owned()), "{full:?}");
    assert_eq!(puts(&full), 1, "{full:?}");
    // Where nothing is full, what there is has to go.
    user.write("sharded/c/6/2", &[6; 8000], false);
    let all = asked(&server);
    assert!(all.contains(&"PUT sharded/c/1/1".to_owned()), "{all:?}");
}

#[test]
fn a_shard_that_cannot_be_put_keeps_none_that_is_being_filled_from_it() {
    let server = server(&files(), "");
    ["sharded/c/1/0", "sharded/c/1/1"].iter().for_each(|shard| server.remove(shard));
    let mut config = config(nowhere());
    config.writing.dirty_limit = 9 * 1000;
    let fs = Fs::new(bucket(&server, "", LONG), config, Arc::default()).unwrap();
    let user = User(&fs);
    let write = |row: u8, column: u8| {
        user.write(&format!("sharded/c/{row}/{column}"), &[row; 1000], false);
    };
    server.fail(|asked: &Asked| {
        (asked.0 == "PUT" && asked.1.contains("c/1/0")).then_some(Fault::Status(403, None))
    });
    (4..8).for_each(|row| (0..2).for_each(|column| write(row, column)));
    write(4, 2);
    asked(&server);
    // Over the limit: the full one cannot go, the other one can.
    write(5, 2);
    let asked = asked(&server);
    assert!(asked.contains(&"PUT sharded/c/1/1".to_owned()), "{asked:?}");
    server.behave();
    fs.commit(Path::new("")).unwrap();
    assert_eq!(found(&server, "sharded/c/7/1"), Some(vec![7; 1000]));
}

#[test]
fn two_hosts_write_chunks_of_one_shard_and_lose_none() {
    let server = server(&files(), "");
    let (one, other) = (mount(&server, nowhere()), mount(&server, nowhere()));
    for round in 0..10_u8 {
        User(&one).write("sharded/c/0/0", &[round; 5], false);
        User(&other).write("sharded/c/0/1", &[round + 100; 6], false);
        one.commit(Path::new("")).unwrap();
        other.commit(Path::new("")).unwrap();
        assert_eq!(found(&server, "sharded/c/0/0"), Some(vec![round; 5]));
        assert_eq!(found(&server, "sharded/c/0/1"), Some(vec![round + 100; 6]));
    }
}

#[test]
fn who_has_written_over_what_others_have_changed_since_is_told() {
    let server = server(&files(), "");
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (mount(&server, directory.path()), mount(&server, nowhere()));
    User(&one).write(CHUNK, b"ours", false);
    User(&other).write(CHUNK, b"of others", true);
    let error = one.commit(Path::new("")).unwrap_err();
    assert_eq!(error.errno(), libc::ESTALE, "{error}");
    assert_eq!(std::fs::read(directory.path().join(CHUNK)).unwrap(), b"ours");
    assert_eq!(User(&one).read(CHUNK), Some(b"of others".to_vec()));
}

/// Who writes a chunk anew some time after others have done so replaces what they have written, though
/// this host has not looked since.
#[test]
fn what_others_have_stored_some_time_ago_is_replaced() {
    let server = server(&files(), "");
    let (one, other) = (mount(&server, nowhere()), mount(&server, nowhere()));
    User(&one).read(CHUNK);
    User(&other).write(CHUNK, b"of others", true);
    User(&one).write(CHUNK, b"ours", true);
    assert_eq!(found(&server, CHUNK), Some(b"ours".to_vec()));
}

#[test]
fn a_part_of_a_chunk_is_written_over_what_is_there_now() {
    let server = server(&files(), "");
    let (one, other) = (mount(&server, nowhere()), mount(&server, nowhere()));
    User(&one).read("sharded/c/0/1");
    User(&other).write("sharded/c/0/0", b"of others", true);
    let ino = User(&one).ino("sharded/c/0/1").unwrap();
    let how = OpenHow { write: true, ..OpenHow::default() };
    let open = one.open_for(ino, how, &CALLER).unwrap();
    one.write(ino, open.handle, 3, b"XY").unwrap();
    one.fsync(ino, open.handle).unwrap();
    one.release(open.handle);
    let whole = [1, 1, 1, b'X', b'Y', 1, 1, 1, 1, 1];
    assert_eq!(found(&server, "sharded/c/0/1"), Some(whole.to_vec()));
    assert_eq!(found(&server, "sharded/c/0/0"), Some(b"of others".to_vec()));
}

/// Each view has caches of its own.
#[test]
fn another_view_shows_at_once_what_one_has_stored() {
    let server = server(&files(), "");
    let storage = bucket(&server, "", LONG);
    let view = || Arc::new(mount_of(Arc::clone(&storage), nowhere()));
    let (one, other) = (view(), view());
    let _views = Views::new(vec![Arc::clone(&one), Arc::clone(&other)]);
    assert_eq!(User(&other).read(CHUNK), Some(vec![0; 10]));
    User(&one).write(CHUNK, b"changed", true);
    // What was looked up within 10 ms counts as looked up now.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(User(&other).read(CHUNK), Some(b"changed".to_vec()));
}

#[test]
fn a_file_beside_chunks_becomes_one_by_its_name() {
    let server = server(&files(), "");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    user.write("sharded/c/0/0.partial", b"whole", false);
    user.rename("sharded/c/0/0.partial", CHUNK);
    fs.commit(Path::new("")).unwrap();
    assert_eq!(found(&server, CHUNK), Some(b"whole".to_vec()));
    assert!(user.ino("sharded/c/0/0.partial").is_none());
}

#[test]
fn what_cannot_be_committed_is_told_and_kept_until_it_can_be() {
    let server = server(&files(), "");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    server.fail(|asked: &Asked| (asked.0 == "PUT").then_some(Fault::Refused("AccessDenied")));
    user.write(CHUNK, b"ours", false);
    let error = fs.commit(Path::new("")).unwrap_err();
    assert_eq!(error.errno(), libc::EACCES, "{error}");
    assert_eq!(user.read(CHUNK), Some(b"ours".to_vec()));
    assert_eq!(found(&server, CHUNK), Some(vec![0; 10]));
    server.behave();
    fs.commit(Path::new("")).unwrap();
    assert_eq!(found(&server, CHUNK), Some(b"ours".to_vec()));
}

#[test]
fn what_cannot_be_committed_in_the_end_is_saved() {
    let server = server(&files(), "");
    let directory = tempfile::tempdir().unwrap();
    let fs = mount(&server, directory.path());
    server.fail(|asked: &Asked| (asked.0 == "PUT").then_some(Fault::Refused("AccessDenied")));
    User(&fs).write(CHUNK, b"ours", false);
    assert_eq!(fs.end_commits(), 1);
    assert_eq!(std::fs::read(directory.path().join(CHUNK)).unwrap(), b"ours");
}

#[test]
fn chunks_do_not_go_into_an_array_that_others_have_put_in_the_place_of_theirs() {
    let server = server(&files(), "");
    let directory = tempfile::tempdir().unwrap();
    let fs = mount(&server, directory.path());
    User(&fs).write("sharded/c/0/3", b"ours", false);
    let text = User(&fs).read("sharded/zarr.json").unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\"uint8\""), "{text}");
    // The stored document: another type, and other shards.
    server.put("sharded/zarr.json", br#"{"zarr_format": 3, "node_type": "array", "shape": [8, 4],
        "data_type": "uint16", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 4]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}]}"#
        .to_vec());
    let error = fs.commit(Path::new("")).unwrap_err();
    assert_eq!(error.errno(), libc::ESTALE, "{error}");
    assert_eq!(puts(&asked(&server)), 0);
    assert_eq!(std::fs::read(directory.path().join("sharded/c/0/3")).unwrap(), b"ours");
}

/// A proxy whose server is being restarted says that an object is not there.
#[test]
fn one_answer_that_a_shard_is_not_there_makes_no_chunk_absent() {
    let server = server(&files(), "");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    user.read(CHUNK);
    let (mut left, shard) = (1, "sharded/c/0/0");
    server.fail(move |asked: &Asked| {
        let fails = asked.0 == "HEAD" && asked.1 == shard && left > 0;
        left -= usize::from(fails);
        fails.then_some(Fault::Status(404, None))
    });
    let (parent, name) = user.parent(CHUNK).unwrap();
    let how = OpenHow { write: true, truncate: true, ..OpenHow::default() };
    let refused = fs.create(parent, name, 0o644, how, &CALLER).map(drop);
    assert_eq!(refused.unwrap_err().errno(), libc::EIO);
    assert_eq!(user.read("sharded/c/0/1"), Some(vec![1; 10]));
    user.write(CHUNK, b"ours", true);
    assert_eq!(found(&server, CHUNK), Some(b"ours".to_vec()));
    assert_eq!(found(&server, "sharded/c/0/1"), Some(vec![1; 10]));
}

/// The answer to a request that follows a commit is not believed alone, either.
#[test]
fn a_shard_that_was_just_made_is_not_absent_because_something_answers_404() {
    let server = server(&files(), "");
    server.remove("sharded/c/1/1");
    let fs = mount(&server, nowhere());
    // Whether it still is the one, and its index.
    let (mut is_put, mut left) = (false, 2);
    server.fail(move |asked: &Asked| {
        is_put |= asked.0 == "PUT";
        let is_read = asked.0 == "HEAD" || asked.0 == "GET";
        let fails = is_put && is_read && asked.1 == "sharded/c/1/1" && left > 0;
        left -= usize::from(fails);
        fails.then_some(Fault::Status(404, None))
    });
    let user = User(&fs);
    user.write("sharded/c/7/3", b"made", true);
    assert_eq!(user.read("sharded/c/7/3"), Some(b"made".to_vec()));
    user.write("sharded/c/7/3", b"again", true);
    assert_eq!(found(&server, "sharded/c/7/3"), Some(b"again".to_vec()));
}

#[test]
fn directories_of_chunks_are_removed_without_a_commit_for_each() {
    let server = server(&files(), "");
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    asked(&server);
    for row in 0..4 {
        for column in 0..4 {
            let path = format!("sharded/c/{row}/{column}");
            if user.ino(&path).is_some() {
                user.unlink(&path);
            }
        }
        let directory = format!("sharded/c/{row}");
        let (parent, name) = user.parent(&directory).unwrap();
        fs.rmdir(parent, name, &CALLER).unwrap();
        assert_eq!(user.ino(&directory), None);
    }
    assert_eq!(puts(&asked(&server)), 0);
    fs.commit(Path::new("")).unwrap();
    assert_eq!(puts(&asked(&server)), 2);
    assert_eq!(User(&mount(&server, nowhere())).ino("sharded/c/0"), None);
    assert_eq!(found(&server, "sharded/c/4/0"), Some(vec![16; 10]));
}

/// Programs make a file of another name first, which need not look like that of a chunk.
#[test]
fn a_file_of_any_name_beside_chunks_becomes_one_where_all_lie_in_one_directory() {
    let server = server(&files(), "");
    let flat = Model { keys: ("default", "."), ..model() };
    server.put("flat/zarr.json", flat.metadata().to_string());
    for shard in places(&flat.shards()) {
        server.put(&format!("flat/{}", flat.key(&shard)), flat.shard(&shard).unwrap());
    }
    let fs = mount(&server, nowhere());
    let user = User(&fs);
    user.write("flat/.c.0.0.Xy12zA", b"of rsync", false);
    user.rename("flat/.c.0.0.Xy12zA", "flat/c.0.0");
    fs.commit(Path::new("")).unwrap();
    assert_eq!(found(&server, "flat/c.0.0"), Some(b"of rsync".to_vec()));
    assert!(user.ino("flat/.c.0.0.Xy12zA").is_none());
}
