//! Journals that somebody has put into a work directory: whatever they say, nothing but a shard of the
//! array is ever written, and only to restore or to finish what a commit may have done to it.

use std::path::Path;
use std::sync::Arc;

use shardfs::format::fingerprint::Fingerprint;
use shardfs::format::index::ByteRange;
use shardfs::format::journal::{CheckedRange, Record, ShardRecord};
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::store::owner::Owner;
use shardfs::store::recover::{Found, recover};
use shardfs::store::storage::{PosixStorage, Storage};

use crate::power;
use crate::power::{ARRAY, Case};

const JOURNAL: &str = "a/.shardfs/journal";

/// An array with shards in memory, and a shard's path, inode number and bytes.
fn array() -> (Case, Arc<MemoryStorage>, (String, u64, Vec<u8>)) {
    let case = power::plain(false).swap_remove(0);
    let storage = case.disk(&case.model.chunks).now().storage(false);
    let is_shard = |path: &Path| path.starts_with("a/c");
    let shard = storage.files().into_iter().find(|(path, ..)| is_shard(path)).unwrap();
    let key = shard.0.strip_prefix(ARRAY).unwrap().to_str().unwrap().to_owned();
    (case, storage, (key, shard.1, shard.2))
}

/// What a commit leaves that was about to append 64 bytes to a shard whose index has so many bytes.
fn record((key, ino, bytes): &(String, u64, Vec<u8>), index: usize) -> ShardRecord {
    let old = bytes.len() - index;
    let checked = |offset: usize, nbytes: usize, fingerprint| CheckedRange {
        range: ByteRange { offset: offset as u64, nbytes: nbytes as u64 },
        fingerprint,
    };
    ShardRecord {
        key: key.clone().into_bytes(),
        ino: *ino,
        old_length: bytes.len() as u64,
        old_index: checked(old, index, Fingerprint::of(&bytes[old..])),
        length: bytes.len() as u64 + 64,
        written: vec![checked(bytes.len(), 64, 1)],
        overwritten: vec![],
    }
}

fn index_bytes(case: &Case) -> usize {
    let slots: u64 =
        case.array.layout.chunks_per_shard(0, &vec![0; case.array.layout.rank()]).iter().product();
    usize::try_from(slots * 16 + 4).unwrap()
}

/// The error of a recovery that finds this record; nothing is changed by it.
fn refused(change: impl FnOnce(&mut ShardRecord)) -> String {
    let (case, storage, shard) = array();
    let mut found = record(&shard, index_bytes(&case));
    change(&mut found);
    storage.replace(JOURNAL, Record { shards: vec![found] }.encode());
    let before = storage.files();
    let error = recover(&*storage, Owner::Array(&case.array)).unwrap_err();
    assert_eq!(storage.files(), before);
    error.to_string()
}

#[test]
fn what_a_commit_has_left_is_rolled_back() {
    let (case, storage, shard) = array();
    let found = record(&shard, index_bytes(&case));
    storage.replace(JOURNAL, Record { shards: vec![found] }.encode());
    let path = format!("a/{}", shard.0);
    storage.change(&path, |bytes| bytes.extend([0; 30]));
    let found = recover(&*storage, Owner::Array(&case.array)).unwrap();
    assert_eq!(found, [(path.clone().into(), Found::Unfinished)]);
    assert!(storage.files().contains(&(path.into(), shard.1, shard.2)));
    assert!(storage.lstat(Path::new("a/.shardfs")).is_err());
}

/// What a commit only appends to leaves the old index as it is.
#[test]
fn a_shard_that_others_wrote_anew_after_a_killed_commit_has_appended_to_it_is_theirs() {
    let (case, storage, shard) = array();
    let found = record(&shard, index_bytes(&case));
    storage.replace(JOURNAL, Record { shards: vec![found] }.encode());
    let mut theirs = case.model.clone();
    let coords = theirs.chunks.keys().next().unwrap().clone();
    theirs.chunks.insert(coords, vec![7; 60]);
    let number: Vec<u64> = vec![shard.0.trim_start_matches("c/").parse().unwrap()];
    let bytes = theirs.shard(&number).unwrap();
    assert!((shard.2.len()..=shard.2.len() + 64).contains(&bytes.len()));
    let path = format!("a/{}", shard.0);
    storage.change(&path, |file| file.clone_from(&bytes));
    let store = power::store(&storage);
    for (coords, chunk) in &theirs.chunks {
        assert_eq!(power::read(&store, &case.array, coords).as_ref(), Ok(&Some(chunk.clone())));
    }
    let found = recover(&*storage, Owner::Array(&case.array)).unwrap();
    assert_eq!(found, [(path.clone().into(), Found::Foreign)]);
    assert!(storage.files().contains(&(path.into(), shard.1, bytes)));
    assert!(storage.lstat(Path::new("a/.shardfs")).is_err());
}

/// Also where what fails in a row makes the shard look as if it were gone.
#[test]
fn a_record_stays_until_its_shard_is_as_it_was_whatever_fails_on_the_way() {
    for (nth, times) in (1..40).flat_map(|nth| (1..=3).map(move |times| (nth, times))) {
        let (case, storage, shard) = array();
        let found = record(&shard, index_bytes(&case));
        storage.replace(JOURNAL, Record { shards: vec![found] }.encode());
        let path = format!("a/{}", shard.0);
        storage.change(&path, |bytes| bytes.extend([0; 30]));
        let fault = Fault { errno: libc::EIO, times, half_done: false, changes_only: false };
        storage.fail(nth, fault);
        let first = recover(&*storage, Owner::Array(&case.array));
        storage.fail(0, fault);
        recover(&*storage, Owner::Array(&case.array)).unwrap();
        let is_restored = storage.files().contains(&(path.into(), shard.1, shard.2));
        assert!(is_restored, "{times} faults from operation {nth} on: {first:?}");
    }
}

/// Nobody takes an unfinished shard for a finished one because its record could not be read.
#[test]
fn a_shard_is_not_read_while_its_record_cannot_be() {
    for nth in 1..20 {
        let (case, storage, shard) = array();
        let index = index_bytes(&case);
        let mut found = record(&shard, index);
        // An empty index was appended, and is not finished as the record says.
        found.length = (shard.2.len() + index) as u64;
        found.written[0].range.nbytes = index as u64;
        storage.replace(JOURNAL, Record { shards: vec![found] }.encode());
        let empty = vec![0xff; index - 4];
        let checksum = crc32c::crc32c(&empty).to_le_bytes();
        storage.change(&format!("a/{}", shard.0), |bytes| {
            bytes.extend(empty);
            bytes.extend(checksum);
        });
        let store = power::store(&storage);
        storage.fail_nth(nth);
        for (coords, bytes) in &case.model.chunks {
            match power::read(&store, &case.array, coords) {
                Ok(found) => assert_eq!(found.as_ref(), Some(bytes), "{coords:?}, operation {nth}"),
                Err(error) => assert!(error.contains("Input/output"), "{error}"),
            }
        }
    }
}

#[test]
fn keys_of_no_shard_of_the_array_are_refused() {
    for key in [
        "../b",
        "c/../../b",
        "/etc/passwd",
        "zarr.json",
        "c",
        "c/00/0",
        ".shardfs/journal",
        "c/0/0/0/0/0",
    ] {
        let error = refused(|record| record.key = key.into());
        let expected = format!(
            "{JOURNAL}: it names {key:?}: it is no shard of this array; no shard was changed. If nobody \
             knows where it is from, move it away and try again"
        );
        assert_eq!(error, expected);
    }
    let error = refused(|record| record.key = b"c/\xff".to_vec());
    assert!(error.contains("it is not text"), "{error}");
    let error = refused(|record| record.key = vec![b'x'; 4000]);
    assert!(error.len() < 500, "{error}");
}

#[test]
fn an_index_that_is_none_of_the_shard_is_not_restored() {
    let none = "what it would restore holds no index of that shard";
    // Of which nothing is asked.
    let error = refused(|record| record.old_index.range.nbytes = 0);
    assert_eq!(
        error,
        format!(
            "{JOURNAL}: its record cannot be of a commit: shard 0: its old index is not in the old file"
        )
    );
    // In another place.
    let elsewhere = |record: &mut ShardRecord| {
        let (_, _, (_, _, bytes)) = array();
        record.old_index.range = ByteRange { offset: 0, nbytes: 4 };
        record.old_index.fingerprint = Fingerprint::of(&bytes[..4]);
    };
    assert!(refused(elsewhere).contains(none));
    // Bytes of somebody's choice instead of it.
    let forged = |record: &mut ShardRecord| {
        let (index, bytes) = (record.old_index.range, vec![7; 20]);
        let written = CheckedRange { range: ByteRange { nbytes: 20, ..index }, fingerprint: 1 };
        record.written.insert(0, written);
        record.overwritten = vec![(index.offset, bytes.clone())];
        let (_, _, (_, _, mut old)) = array();
        let at = usize::try_from(index.offset).unwrap();
        old[at..at + 20].copy_from_slice(&bytes);
        record.old_index.fingerprint = Fingerprint::of(&old[at..]);
    };
    assert!(refused(forged).contains(none));
}

#[test]
fn one_bad_shard_of_a_record_keeps_all_others_as_they_are() {
    let (case, storage, shard) = array();
    let good = record(&shard, index_bytes(&case));
    let bad = ShardRecord { key: b"../b".to_vec(), ..good.clone() };
    storage.replace(JOURNAL, Record { shards: vec![good, bad] }.encode());
    storage.change(&format!("a/{}", shard.0), |bytes| bytes.extend([0; 30]));
    let before = storage.files();
    recover(&*storage, Owner::Array(&case.array)).unwrap_err();
    assert_eq!(storage.files(), before);
}

#[test]
fn a_shard_with_another_name_is_not_written() {
    let (case, storage, shard) = array();
    let found = record(&shard, index_bytes(&case));
    storage.replace(JOURNAL, Record { shards: vec![found] }.encode());
    let path = format!("a/{}", shard.0);
    storage.link(Path::new(&path), Path::new("another")).unwrap();
    storage.change(&path, |bytes| bytes.extend([0; 30]));
    let before = storage.files();
    let error = recover(&*storage, Owner::Array(&case.array)).unwrap_err();
    assert!(error.to_string().contains("it has 2 names (hard links)"), "{error}");
    assert_eq!(storage.files(), before);
}

#[test]
fn links_in_the_place_of_what_is_ours_are_refused_by_name() {
    let tampered: [(&str, &str, &str); 3] = [
        ("a/.shardfs", "b", "a/.shardfs: it is a symbolic link where a directory must be"),
        (
            JOURNAL,
            "b/file",
            "a/.shardfs/journal: it is a symbolic link where a regular file must be",
        ),
        (
            "a/.shardfs/repack",
            "b",
            "a/.shardfs/repack: it is a symbolic link where a directory must be",
        ),
    ];
    for (link, target, expected) in tampered {
        let (case, storage, _) = array();
        storage.replace("b/file", "of others");
        storage.replace("b/1.new", "of others");
        if link != "a/.shardfs" {
            storage.create_directory(Path::new("a/.shardfs")).unwrap();
        }
        storage.put_symlink(link, target);
        let before = storage.files();
        let error = recover(&*storage, Owner::Array(&case.array)).unwrap_err().to_string();
        let told = "; nothing was changed, move it away and try again";
        assert_eq!(error, format!("{expected}{told}"));
        let others = |files: Vec<(std::path::PathBuf, u64, Vec<u8>)>| {
            let mut files = files;
            files.retain(|(path, ..)| path != Path::new(JOURNAL));
            files
        };
        assert_eq!(others(storage.files()), others(before));
    }
}

#[test]
fn only_names_that_commits_make_are_removed() {
    let (case, storage, _) = array();
    for name in ["notes.txt", "x.new", "01.new", ".new", "repack/mine", "repack/c/x"] {
        storage.replace(&format!("a/.shardfs/{name}"), "mine");
    }
    let before = storage.files();
    for name in ["1.new", "20.new"] {
        storage.replace(&format!("a/.shardfs/{name}"), "of a commit");
    }
    recover(&*storage, Owner::Array(&case.array)).unwrap();
    assert_eq!(storage.files(), before);
}

#[test]
fn a_journal_without_an_array_names_nothing_but_bloscpack_files_beside_it() {
    for key in ["../b", "c/0", "..", ".", "", "a/b", ".shardfs"] {
        let (_, storage, shard) = array();
        storage.replace("plain/.shardfs/journal", {
            let mut found = record(&shard, 4);
            found.key = key.into();
            Record { shards: vec![found] }.encode()
        });
        let before = storage.files();
        recover(&*storage, Owner::Directory(Path::new("plain"))).unwrap_err();
        assert_eq!(storage.files(), before, "{key}");
    }
}
