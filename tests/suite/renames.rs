//! Renames of chunks and files within a writable mount: what is found after a kill, what others do
//! meanwhile, and what becomes of changes that cannot be committed.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardfs::format::plan::Policy;
use shardfs::fs::{FsError, OpenHow, WriteConfig};
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::view::inode::ROOT;

use crate::power::NO_FAULT;
use crate::power::mounted::{
    CALLER, User, all_names, copies, disk, found, is_scratch, mount, mount_as, others_write,
    with_mount,
};

/// For [`MemoryStorage::fail`]: nothing can be written any more.
const EVERY_CHANGE_FAILS: Fault =
    Fault { errno: libc::EIO, times: u64::MAX, half_done: false, changes_only: true };

/// Every pair of kinds of names.
const PAIRS: [(&str, &str); 8] = [
    ("x", "a/c/0"),
    ("a/notes", "a/c/0"),
    ("x", "a/c/0.part"),
    ("a/c/0", "a/c/1"),
    ("a/c/0", "a/c/5"),
    ("a/c/0", "b/c/0"),
    ("a/c/0", "b/c/1.part"),
    ("a/c/0", "d/y"),
];

#[test]
fn what_was_renamed_is_found_after_a_kill_and_under_its_new_name_alone_after_a_commit() {
    for (from, to) in PAIRS {
        for linked in [false, true] {
            with_mount(|user, storage, _| {
                let content = user.read(from);
                if linked && user.ino(to).is_some() {
                    user.unlink(to);
                    user.0.commit(Path::new("")).unwrap();
                }
                match linked && to != "d/y" {
                    true => {
                        user.link(from, to);
                        user.unlink(from);
                    }
                    false => user.rename(from, to),
                }
                assert_eq!((user.read(from), user.read(to)), (None, content.clone()));
                let killed = [from, to].map(|name| found(storage, name));
                assert!(killed.contains(&content), "{from} -> {to}, {linked}: {killed:?}");
                user.0.commit(Path::new("")).unwrap();
                let committed = match is_scratch(to) {
                    true => [content, None],
                    false => [None, content],
                };
                let killed = [from, to].map(|name| found(storage, name));
                assert_eq!(killed, committed, "{from} -> {to}, {linked}");
            });
        }
    }
}

#[test]
fn fsync_of_the_directory_that_a_file_has_left_makes_its_new_name_durable_first() {
    for (from, to) in [("x", "a/c/0"), ("d/y", "a/c/0"), ("a/c/0", "b/c/3")] {
        with_mount(|user, storage, _| {
            let content = user.read(from);
            user.rename(from, to);
            let old = user.parent(from).unwrap().0;
            user.0.fsyncdir(old, None).unwrap();
            assert_eq!([from, to].map(|name| found(storage, name)), [None, content]);
        });
    }
}

#[test]
fn fsync_of_a_directory_makes_a_removal_durable_whose_file_is_still_written_elsewhere() {
    with_mount(|user, storage, unsaved| {
        user.unlink("a/c/0");
        user.unlink("b/c/0");
        user.0.commit(Path::new("")).unwrap();
        let (parent, name) = user.parent("b/c/0").unwrap();
        let how = OpenHow { write: true, ..OpenHow::default() };
        let (entry, open) = user.0.create(parent, name, 0o644, how, &CALLER).unwrap();
        user.0.write(entry.attr.ino, open.handle, 0, b"part").unwrap();
        user.link("b/c/0", "a/c/0");
        user.0.commit(Path::new("")).unwrap();
        user.unlink("a/c/0");
        user.0.fsyncdir(user.ino("a/c").unwrap(), None).unwrap();
        assert_eq!(["a/c/0", "b/c/0"].map(|name| found(storage, name)), [None, None]);
        assert_eq!(copies(unsaved), [b"part".to_vec()].into());
        user.0.flush(entry.attr.ino, open.handle).unwrap();
        user.0.release(open.handle);
        user.0.commit(Path::new("")).unwrap();
        assert_eq!(found(storage, "b/c/0"), Some(b"part".to_vec()));
        assert!(copies(unsaved).is_empty());
    });
}

#[test]
fn a_name_of_the_source_that_was_renamed_away_takes_a_new_file() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.rename("x", "a/c/0");
        user.write("x", b"new", true);
        assert_eq!((user.read("x"), user.read("a/c/0")), (Some(b"new".to_vec()), content.clone()));
        user.rename("d/y", "a/c/1");
        user.0.rmdir(ROOT, OsStr::new("d"), &CALLER).unwrap();
        assert_eq!(found(storage, "a/c/0"), content);
    });
}

#[test]
fn what_others_put_in_the_place_of_a_file_that_was_renamed_away_stays() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.rename("x", "a/c/0");
        storage.replace("x", "of others");
        user.0.commit(Path::new("")).unwrap();
        assert_eq!(user.read("a/c/0"), content);
        assert_eq!(user.read("x"), Some(b"of others".to_vec()));
    });
}

#[test]
fn a_backup_that_is_no_chunk_is_copied_before_its_chunk_is_written_over() {
    with_mount(|user, storage, unsaved| {
        let content = user.read("a/c/0");
        user.rename("a/c/0", "a/c/0.part");
        user.write("a/c/0", b"new", true);
        assert_eq!(found(storage, "a/c/0"), Some(b"new".to_vec()));
        assert_eq!(copies(unsaved), content.into_iter().collect());
        // Until it has a place again.
        user.rename("a/c/0.part", "a/c/1");
        user.fsync("a/c/1");
        assert!(copies(unsaved).is_empty());
    });
}

#[test]
fn chunks_of_two_shards_that_change_places_are_never_both_at_risk() {
    with_mount(|user, storage, unsaved| {
        let contents = ["a/c/0", "b/c/0"].map(|name| user.read(name));
        user.rename("a/c/0", "a/c/0.part");
        user.rename("b/c/0", "a/c/0");
        user.rename("a/c/0.part", "b/c/0");
        let copy = || copies(unsaved);
        // The first of the two shards is written, the second is not.
        for nth in 1.. {
            storage.fail(nth, EVERY_CHANGE_FAILS);
            let committed = user.0.commit(Path::new(""));
            storage.fail(0, NO_FAULT);
            let killed = ["a/c/0", "b/c/0"].map(|name| found(storage, name));
            for content in contents.iter().flatten() {
                let is_there = killed.iter().flatten().any(|found| found == content);
                assert!(is_there || copy().contains(content), "{content:?} after {nth}");
            }
            if committed.is_ok() {
                break;
            }
        }
        let [a, b] = contents;
        assert_eq!(["a/c/0", "b/c/0"].map(|name| found(storage, name)), [b, a]);
        assert!(copy().is_empty());
    });
}

#[test]
fn a_copy_goes_when_its_file_gets_a_place_in_the_source() {
    with_mount(|user, storage, unsaved| {
        let content = user.read("a/c/0");
        user.rename("a/c/0", "a/c/0.part");
        user.write("a/c/0", b"new", true);
        assert_eq!(copies(unsaved), content.clone().into_iter().collect());
        user.rename("a/c/0.part", "d/z");
        assert_eq!((found(storage, "d/z"), copies(unsaved).len()), (content, 0));
    });
}

#[test]
fn a_file_is_renamed_though_it_is_committed_meanwhile() {
    with_mount(|user, _, _| {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    user.0.commit(Path::new("")).unwrap();
                }
            });
            for round in 0..300 {
                let content = format!("round {round}").into_bytes();
                user.write("a/c/0", &content, false);
                let (from, to) = (user.parent("a/c/0").unwrap(), user.parent("b/c/3").unwrap());
                let renamed = user.0.rename(from, to, false, &CALLER);
                let shown = user.read("b/c/3");
                if renamed.is_err() || shown != Some(content) {
                    is_done.store(true, Ordering::Relaxed);
                    panic!("{round}: {renamed:?}, {shown:?}");
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn what_is_written_during_a_rename_to_the_source_has_a_name_also_if_that_fails() {
    for (moment, nth) in (1..40).flat_map(|moment| (1..16).map(move |nth| (moment, nth))) {
        let directory = tempfile::tempdir().unwrap();
        let before = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
        let storage = disk(&before, false).now().storage(false);
        let fs = Arc::new(mount(&storage, Policy::Auto, directory.path()));
        let user = User(&fs);
        let ((from, name), to) = (user.parent("a/c/0").unwrap(), user.parent("d/z").unwrap());
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, open) = fs.create(from, name, 0o644, how, &CALLER).unwrap();
        let (ino, handle) = (entry.attr.ino, open.handle);
        fs.write(ino, handle, 0, b"first").unwrap();
        let (other, faulty) = (Arc::clone(&fs), Arc::clone(&storage));
        let (wrote, written) = std::sync::mpsc::channel();
        storage.act_before(moment, move || {
            let fault = Fault { errno: libc::EIO, times: 1, half_done: false, changes_only: true };
            faulty.fail(nth, fault);
            std::thread::spawn(move || {
                // It waits where the rename holds the file.
                let _ = wrote.send(other.write(ino, handle, 0, b"again").is_ok());
            });
            std::thread::sleep(Duration::from_millis(5));
        });
        let renamed = fs.rename((from, name), to, false, &CALLER);
        storage.fail(0, NO_FAULT);
        // Drops what has not been run.
        storage.act_before(u64::MAX, || ());
        if written.recv_timeout(Duration::from_secs(1)) == Ok(true) {
            let _ = fs.flush(ino, handle);
            fs.release(handle);
            let shown = ["a/c/0", "d/z"].map(|name| user.read(name));
            assert!(
                shown.contains(&Some(b"again".to_vec())),
                "{moment} {nth} {renamed:?} {shown:?}"
            );
        }
    }
}

#[test]
fn long_files_that_are_renamed_are_spooled_and_committed_beyond_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let before = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
    let storage = disk(&before, false).now().storage(false);
    let unsaved = directory.path().to_owned();
    let fs = mount_as(&storage, WriteConfig { unsaved, dirty_limit: 1000, ..Default::default() });
    let user = User(&fs);
    let long = [vec![1; 300], vec![2; 800]];
    user.write("a/c/2", &long[0], true);
    user.rename("a/c/2", "a/c/0.part");
    assert_eq!(copies(directory.path()), [long[0].clone()].into());
    storage.replace("x", long[1].clone());
    user.rename("x", "b/c/0");
    assert_eq!(found(&storage, "b/c/0"), Some(long[1].clone()));
}

#[test]
fn a_shard_that_others_replace_before_it_is_cloned_is_not_mixed_with_theirs() {
    for nth in 1..40 {
        with_mount(|user, storage, _| {
            storage.allow_clones();
            // A shard that is mostly new would be written anew.
            user.write("a/c/1", &[5; 2000], true);
            let old = ["a/c/0", "a/c/1"].map(|name| user.read(name));
            let other = Arc::new(MemoryStorage::with_files(storage.files(), storage.directories()));
            for content in [vec![7; 2500], vec![8; 3000]] {
                others_write(&other, "a/c/1", &content);
            }
            let shard = Path::new("a/c/0");
            let (.., theirs) = other.files().into_iter().find(|(path, ..)| path == shard).unwrap();
            user.write("a/c/0", b"ours", false);
            let replaced = Arc::clone(storage);
            storage.act_before(nth, move || replaced.replace("a/c/0", theirs));
            let committed = user.0.commit(Path::new(""));
            storage.act_before(u64::MAX, || ());
            let shown = ["a/c/0", "a/c/1"].map(|name| found(storage, name));
            let is_ours = shown[0] == Some(b"ours".to_vec());
            assert!(is_ours || committed.is_err() || shown[0] == old[0], "{nth}");
            assert!([old[1].clone(), Some(vec![8; 3000])].contains(&shown[1]), "{nth}");
        });
    }
}

#[test]
fn what_was_renamed_onto_a_chunk_that_others_write_is_there_under_its_old_name_again() {
    for from in ["x", "a/c/4", "b/c/0", "a/c/1"] {
        with_mount(|user, storage, unsaved| {
            let content = user.read(from);
            user.rename(from, "a/c/0");
            others_write(storage, "a/c/0", b"of others");
            assert!(user.0.commit(Path::new("")).is_err());
            assert_eq!(user.read("a/c/0"), Some(b"of others".to_vec()));
            assert_eq!(user.read(from), content, "{from}");
            assert_eq!(found(storage, from), content, "{from}");
            assert_eq!(std::fs::read(unsaved.join("a/c/0")).ok(), content);
            // Whoever asks is told.
            assert!(user.0.fsyncdir(ROOT, None).is_err());
            assert!(user.0.fsyncdir(ROOT, None).is_ok());
        });
    }
}

fn waiting(user: &User<'_>) -> String {
    let directory = user.ino(".shardfs").unwrap();
    let file = user.0.lookup(directory, OsStr::new("waiting.txt")).unwrap().unwrap().attr.ino;
    let opened = user.0.open(file).unwrap();
    let mut text = vec![0; 4096];
    let read = user.0.read(file, Some(opened.handle), 0, &mut text).unwrap();
    user.0.release(opened.handle);
    String::from_utf8(text[..read].to_vec()).unwrap()
}

#[test]
fn a_change_that_is_given_up_behind_its_writers_back_is_reported_to_whoever_asks_once() {
    for removed in [false, true] {
        with_mount(|user, storage, _| {
            let open = |name: &str| {
                let ino = user.ino(name).unwrap();
                (
                    ino,
                    user.0
                        .open_for(ino, OpenHow { write: true, ..OpenHow::default() }, &CALLER)
                        .unwrap(),
                )
            };
            let ((file, before), other) = (open("a/c/0"), open("a/c/4"));
            let directories = [(); 2].map(|()| user.0.opendir(ROOT).unwrap());
            if removed {
                user.0.release(before.handle);
                user.unlink("a/c/0");
            } else {
                user.write("a/c/0", b"ours", false);
            }
            others_write(storage, "a/c/0", b"of others");
            let fsyncdir =
                |path: &str, handle| user.0.fsyncdir(user.ino(path).unwrap(), Some(handle));
            // As at an interval.
            assert!(user.0.commit(Path::new("")).is_err());
            assert!(user.0.commit(Path::new("")).is_ok());
            assert!(waiting(user).contains("a/c/0: given up"), "{}", waiting(user));
            assert!(user.0.fsync(other.0, other.1.handle).is_ok(), "of another file");
            assert!(fsyncdir("b", directories[0]).is_ok(), "of another directory");
            let (late, after) = open("a/c/0");
            let late_directory = user.0.opendir(ROOT).unwrap();
            for directory in [directories[1], late_directory] {
                assert!(fsyncdir("a", directory).is_err());
                assert!(fsyncdir("a", directory).is_ok(), "once");
            }
            if !removed {
                assert!(user.0.fsync(file, before.handle).is_err());
                assert!(user.0.fsync(file, before.handle).is_ok(), "once");
            }
            assert!(user.0.fsync(late, after.handle).is_err());
            assert!(user.0.fsync(late, after.handle).is_ok(), "once");
            assert!(
                fsyncdir("", user.0.opendir(ROOT).unwrap()).is_ok(),
                "nobody is told again who asks anew"
            );
            // The reason can be read once more by whoever was told.
            assert!(waiting(user).contains("a/c/0: given up"));
            assert_eq!(waiting(user), "");
        });
    }
}

#[test]
fn a_removal_that_cannot_be_committed_is_listed_with_its_reason_and_fails_each_fsync_above() {
    with_mount(|user, storage, _| {
        user.unlink("a/c/0");
        storage.fail(1, EVERY_CHANGE_FAILS);
        assert!(user.0.commit(Path::new("")).is_err());
        assert!(user.0.fsyncdir(user.ino("a").unwrap(), None).is_err());
        assert!(user.0.fsyncdir(ROOT, None).is_err());
        let text = waiting(user);
        storage.fail(0, NO_FAULT);
        assert!(text.starts_with("a/c/0 (removal): "), "{text}");
        user.0.fsyncdir(ROOT, None).unwrap();
        assert_eq!((waiting(user), found(storage, "a/c/0")), (String::new(), None));
    });
}

#[test]
fn a_linked_file_stays_until_its_chunk_is_durable_also_after_errors() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.unlink("a/c/0");
        user.link("x", "a/c/0");
        let rename = || {
            let (from, to) = (user.parent("a/notes").unwrap(), user.parent("x").unwrap());
            user.0.rename(from, to, false, &CALLER)
        };
        storage.fail(1, EVERY_CHANGE_FAILS);
        assert!(rename().is_err());
        storage.fail(0, NO_FAULT);
        rename().unwrap();
        assert_eq!(found(storage, "a/c/0"), content);
    });
}

#[test]
fn a_linked_file_stays_until_its_chunk_is_durable_also_under_another_name() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.unlink("a/c/0");
        user.link("x", "a/c/0");
        user.rename("x", "z");
        user.unlink("z");
        let killed = ["a/c/0", "z"].map(|name| found(storage, name));
        assert!(killed.contains(&content), "{killed:?}");
        user.0.commit(Path::new("")).unwrap();
        assert_eq!((found(storage, "a/c/0"), found(storage, "z")), (content, None));
    });
}

#[test]
fn a_linked_file_stays_until_its_chunk_is_durable_also_in_a_renamed_directory() {
    with_mount(|user, storage, _| {
        let content = user.read("d/y");
        user.unlink("a/c/0");
        user.link("d/y", "a/c/0");
        user.rename("d", "e");
        user.unlink("e/y");
        let killed = ["a/c/0", "e/y"].map(|name| found(storage, name));
        assert!(killed.contains(&content), "{killed:?}");
        user.0.commit(Path::new("")).unwrap();
        assert_eq!((found(storage, "a/c/0"), found(storage, "e/y")), (content, None));
    });
}

#[test]
fn a_chunk_that_was_linked_or_not_renamed_shows_what_others_write_to_it() {
    let link = |user: &User<'_>| {
        user.link("a/c/0", "a/c/0.part");
        user.unlink("a/c/0.part");
    };
    let fail = |user: &User<'_>| {
        user.link("a/c/0", "a/c/0.part");
        let (from, to) = (user.parent("a/c/0").unwrap(), user.parent("x").unwrap());
        assert!(user.0.rename(from, to, false, &CALLER).is_err());
        user.unlink("a/c/0.part");
    };
    let moved = |user: &User<'_>| {
        user.rename("x", "a/c/0");
        user.0.commit(Path::new("")).unwrap();
    };
    let linked = |user: &User<'_>| {
        user.unlink("a/c/0");
        user.link("x", "a/c/0");
        user.0.commit(Path::new("")).unwrap();
    };
    let ways: [&dyn Fn(&User<'_>); 4] = [&link, &fail, &moved, &linked];
    for (number, way) in ways.iter().enumerate() {
        with_mount(|user, storage, _| {
            way(user);
            others_write(storage, "a/c/0", b"of others");
            assert_eq!(user.read("a/c/0"), Some(b"of others".to_vec()), "{number}");
            // Nothing of it is written over that.
            user.0.commit(Path::new("")).unwrap();
            assert_eq!(found(storage, "a/c/0"), Some(b"of others".to_vec()), "{number}");
            assert_eq!(user.0.end_commits(), 0, "{number}");
            assert_eq!(found(storage, "a/c/0"), Some(b"of others".to_vec()), "{number}");
        });
    }
}

#[test]
fn a_chunk_that_is_open_and_was_not_renamed_shows_what_others_write_to_it() {
    with_mount(|user, storage, _| {
        let ino = user.ino("a/c/0").unwrap();
        let how = OpenHow { write: true, ..OpenHow::default() };
        let handle = user.0.open_for(ino, how, &CALLER).unwrap().handle;
        user.link("a/c/0", "a/c/0.part");
        let (from, to) = (user.parent("a/c/0").unwrap(), user.parent("x").unwrap());
        assert!(user.0.rename(from, to, false, &CALLER).is_err());
        user.unlink("a/c/0.part");
        others_write(storage, "a/c/0", b"of others");
        assert_eq!(user.read("a/c/0"), Some(b"of others".to_vec()));
        // It may be derived from what was there before.
        assert!(matches!(user.0.write(ino, handle, 0, b"x"), Err(FsError::Stale)));
        user.0.release(handle);
        assert_eq!(user.0.end_commits(), 0);
        assert_eq!(found(storage, "a/c/0"), Some(b"of others".to_vec()));
    });
}

#[test]
fn a_removal_that_depends_on_a_name_beside_chunks_is_made_once_a_link_of_it_is_durable() {
    with_mount(|user, storage, _| {
        let content = user.read("a/c/0");
        let (parent, name) = user.parent("a/c/5").unwrap();
        user.0.unlink(parent, name, &CALLER).unwrap();
        user.rename("a/c/0", "a/c/0.part");
        user.link("a/c/0.part", "a/c/5");
        user.0.commit(Path::new("")).unwrap();
        assert_eq!([found(storage, "a/c/0"), found(storage, "a/c/5")], [None, content]);
    });
}

#[test]
fn a_change_that_waits_for_a_copy_which_cannot_be_written_is_not_said_to_be_durable() {
    with_mount(|user, storage, unsaved| {
        std::fs::write(unsaved.join(".spool"), "in the way").unwrap();
        let before = user.read("a/c/0");
        user.rename("a/c/0", "a/c/0.part");
        user.write("a/c/0", b"new", false);
        assert!(user.0.commit(Path::new("")).is_err());
        assert_eq!(found(storage, "a/c/0"), before);
        std::fs::remove_file(unsaved.join(".spool")).unwrap();
        user.0.commit(Path::new("")).unwrap();
        assert_eq!(found(storage, "a/c/0").unwrap(), b"new");
    });
}

#[test]
fn a_directory_is_renamed_whose_chunks_were_written_under_other_names() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.rename("x", "a/c/0");
        // The kernel knows it by the number that it had before.
        let ino = user.ino("a/c/0").unwrap();
        let (from, to) = (user.parent("a").unwrap(), user.parent("f").unwrap());
        let handle = user.0.open_for(ino, OpenHow::default(), &CALLER).unwrap().handle;
        user.0.commit(Path::new("")).unwrap();
        let busy = user.0.rename(from, to, false, &CALLER);
        assert!(matches!(&busy, Err(error) if error.errno() == libc::EBUSY), "{busy:?}");
        user.0.release(handle);
        user.0.rename(from, to, false, &CALLER).unwrap();
        assert_eq!(user.read("f/c/0"), content);
        assert_eq!(found(storage, "f/c/0"), content);
        // What is left of the number says that it is to be looked up anew.
        assert!(matches!(user.0.getattr(ino, None), Err(FsError::Stale)));
    });
}

#[test]
fn a_directory_is_renamed_though_the_kernel_says_later_that_a_chunk_in_it_was_closed() {
    with_mount(|user, storage, _| {
        let ino = user.ino("a/c/0").unwrap();
        let (from, to) = (user.parent("a").unwrap(), user.parent("f").unwrap());
        let how = OpenHow { write: true, ..OpenHow::default() };
        let handle = user.0.open_for(ino, how, &CALLER).unwrap().handle;
        user.0.write(ino, handle, 0, b"new").unwrap();
        let rename = || user.0.rename(from, to, false, &CALLER);
        // Its descriptor is open.
        assert!(matches!(rename(), Err(error) if error.errno() == libc::EBUSY));
        user.0.write(ino, handle, 3, b"er").unwrap();
        user.0.flush(ino, handle).unwrap();
        let renamed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                rename().unwrap();
                renamed.store(true, Ordering::Relaxed);
            });
            std::thread::sleep(Duration::from_millis(200));
            assert!(!renamed.load(Ordering::Relaxed));
            user.0.release(handle);
        });
        assert!(found(storage, "f/c/0").unwrap().starts_with(b"newer"));
    });
}
