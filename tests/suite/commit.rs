//! What a commit does with what others, an earlier commit or a fault have left.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfs::format::plan::Policy;
use shardfs::store::ShardStore;
use shardfs::store::journal::pending;
use shardfs::store::memory::{Change, MemoryStorage};
use shardfs::store::owner::Owner;
use shardfs::store::recover::recover;
use shardfs::store::storage::{PosixStorage, Storage};

use crate::power;
use crate::power::scenario::FAULTS;
use crate::power::{ARRAY, Case, Changes, Rng, read, stage, store};

/// An array in memory with one store, which has committed nothing yet.
fn array(case: &Case) -> (Arc<MemoryStorage>, ShardStore) {
    let storage = case.disk(&case.model.chunks).now().storage(false);
    let live = store(&storage);
    (storage, live)
}

/// The changes of a commit that succeeds.
fn history(
    case: &Case,
    (storage, live): &(Arc<MemoryStorage>, ShardStore),
    changes: &Changes,
    policy: Policy,
) -> Vec<Change> {
    storage.take_history();
    for outcome in live.commit(&case.array, &stage(live, &case.array, changes), policy) {
        outcome.unwrap();
    }
    storage.take_history()
}

fn directory_syncs(history: &[Change]) -> Vec<&Path> {
    let mut directories = Vec::new();
    for change in history {
        if let Change::SyncDirectory { path } = change {
            directories.push(&**path);
        }
    }
    directories
}

#[test]
fn what_others_have_left_of_a_shard_is_made_safe_with_the_first_commit_to_it() {
    let case = power::plain(false).swap_remove(0);
    let array = array(&case);
    let changes = vec![(vec![0], Some(vec![1; 5]))];
    let first = history(&case, &array, &changes, Policy::InPlace);
    let of_shard = |change: &&Change| match change {
        Change::Write { ino, .. } | Change::Sync { ino } => *ino == 1,
        _ => false,
    };
    assert_eq!(first.iter().find(of_shard), Some(&Change::Sync { ino: 1 }));
    assert!([ARRAY, "a/c"].iter().all(|path| directory_syncs(&first).contains(&Path::new(path))));
    // From then on this store knows.
    let second = history(&case, &array, &changes, Policy::InPlace);
    assert!(matches!(second.iter().find(of_shard), Some(Change::Write { .. })));
    assert_eq!(directory_syncs(&second), Vec::<&Path>::new());
}

/// They open the file and write it anew, all of it, with chunks that are as long: nothing but the
/// bytes tells it from what the record is about.
#[test]
fn what_others_write_over_a_shard_is_not_undone_by_a_record_of_old_bytes() {
    for case in power::plain(false).into_iter().chain(power::plain(true)) {
        let (coords, old) = case.model.chunks.iter().next().unwrap();
        let shard = power::shard_of(&case.model, coords);
        for policy in [Policy::InPlace, Policy::Append, Policy::Auto] {
            let mut disk = case.disk(&case.model.chunks);
            let array = array(&case);
            let changes = vec![(coords.clone(), Some(vec![1; old.len()]))];
            history(&case, &array, &changes, policy).iter().for_each(|it| disk.apply(it));
            let (path, ino, now) = file_of(&array.0, &case.path(&shard));
            let theirs: Vec<u8> = now.iter().map(|byte| byte ^ 0x5a).collect();
            disk.apply(&Change::Write { ino, offset: 0, bytes: theirs.clone() });
            disk.apply(&Change::Sync { ino });
            for state in disk.states(&mut Rng(0), 1000, 100) {
                let storage = state.storage(false);
                // It cannot be told in each case that the record is an old one. It is left alone.
                recover(&*storage, Owner::Array(&case.array)).unwrap();
                let (_, _, found) = file_of(&storage, &path);
                assert_eq!(found, theirs, "{}, {policy:?}: {state:?}", case.name);
            }
        }
    }
}

fn file_of(storage: &MemoryStorage, path: &Path) -> (PathBuf, u64, Vec<u8>) {
    storage.files().into_iter().find(|(other, ..)| other == path).unwrap()
}

#[test]
fn a_name_that_was_not_made_safe_is_made_safe_by_the_next_commit() {
    let case = power::plain(false).swap_remove(0);
    let (storage, live) = array(&case);
    let content = |byte| vec![(vec![0], Some(vec![byte; 5]))];
    let array = (storage.clone(), live);
    history(&case, &array, &content(1), Policy::Rewrite);
    let fault = FAULTS[0];
    for nth in 1.. {
        assert!(nth < 100, "no sync of a directory has failed");
        let chunks = stage(&array.1, &case.array, &content(2));
        storage.fail(nth, fault);
        let outcomes = array.1.commit(&case.array, &chunks, Policy::Rewrite);
        storage.fail(0, fault);
        let failed = storage.take_history();
        let renamed = failed.iter().any(|change| matches!(change, Change::Rename { .. }));
        if renamed && !directory_syncs(&failed).contains(&Path::new("a/c")) {
            assert!(outcomes[0].is_err(), "a name that is not safe passes for safe");
            break;
        }
    }
    let next = history(&case, &array, &content(3), Policy::InPlace);
    assert!(directory_syncs(&next).contains(&Path::new("a/c")));
}

#[test]
fn a_change_in_place_whose_sync_fails_is_rolled_back_at_once() {
    let case = power::plain(false).swap_remove(0);
    let (storage, live) = array(&case);
    let chunks = stage(&live, &case.array, &vec![(vec![0], Some(vec![1; 5]))]);
    let fault = FAULTS[0];
    for nth in 1..100 {
        storage.fail(nth, fault);
        let outcomes = live.commit(&case.array, &chunks, Policy::InPlace);
        storage.fail(0, fault);
        let failed = storage.take_history();
        let written = |change: &Change| matches!(change, Change::Write { ino: 1, .. });
        if failed.iter().any(written) && failed.contains(&Change::SyncFailed { ino: 1 }) {
            assert!(outcomes[0].is_err());
            let old = case.model.chunks.get(&vec![0]).cloned();
            assert_eq!(read(&live, &case.array, &[0]), Ok(old));
            assert_eq!(pending(&*storage, Path::new(ARRAY)).unwrap(), None);
            assert!(live.commit(&case.array, &chunks, Policy::InPlace)[0].is_ok());
            assert_eq!(read(&live, &case.array, &[0]), Ok(Some(vec![1; 5])));
            return;
        }
    }
    panic!("no sync has failed");
}

#[test]
fn a_new_file_of_another_mount_that_was_left_behind_is_not_in_the_way() {
    let case = power::plain(false).swap_remove(0);
    let array = array(&case);
    let changes = vec![(vec![0], Some(vec![1; 5]))];
    history(&case, &array, &changes, Policy::Rewrite);
    array.0.replace("a/.shardfs/2.new", "of another");
    history(&case, &array, &changes, Policy::Rewrite);
    recover(&*array.0, Owner::Array(&case.array)).unwrap();
    assert!(!array.0.directories().contains(Path::new("a/.shardfs")));
}

#[test]
fn no_record_comes_back_after_an_unmount_or_a_recovery() {
    let case = power::plain(false).swap_remove(0);
    let ended = |end: &dyn Fn(&Arc<MemoryStorage>, &ShardStore)| {
        let mut disk = case.disk(&case.model.chunks);
        let array = array(&case);
        let changes = vec![(vec![0], Some(vec![1; 5]))];
        let mut history = history(&case, &array, &changes, Policy::InPlace);
        end(&array.0, &array.1);
        history.extend(array.0.take_history());
        history.iter().for_each(|change| disk.apply(change));
        for state in disk.states(&mut Rng(0), 1000, 100) {
            let storage = state.storage(false);
            assert_eq!(pending(&*storage, Path::new(ARRAY)).unwrap(), None, "{state:?}");
        }
    };
    ended(&|_, live| live.finish_commits(&case.array).unwrap());
    ended(&|storage, _| drop(recover(&**storage, Owner::Array(&case.array)).unwrap()));
}

/// As btrfs leaves it after a power cut.
#[test]
fn a_shard_that_still_has_the_name_it_was_written_under_is_recovered() {
    let case = power::plain(false).swap_remove(0);
    let array = array(&case);
    let changes = vec![(vec![0], Some(vec![1; 5]))];
    let history = history(&case, &array, &changes, Policy::InPlace);
    let shard = case.path(&power::shard_of(&case.model, &[0]));
    let mut tried = 0;
    for length in 0..history.len() {
        let mut disk = case.disk(&case.model.chunks);
        history[..length].iter().for_each(|change| disk.apply(change));
        let storage = disk.now().storage(false);
        if pending(&*storage, Path::new(ARRAY)).unwrap().is_none() {
            continue;
        }
        let second = Path::new("a/.shardfs/9.new");
        storage.link(&shard, second).unwrap();
        recover(&*storage, Owner::Array(&case.array)).unwrap();
        assert!(storage.lstat(second).is_err());
        assert_eq!(storage.lstat(&shard).unwrap().links, 1);
        tried += 1;
    }
    assert!(tried > 0);
}
