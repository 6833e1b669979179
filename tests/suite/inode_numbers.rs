//! Inode numbers in a writable mount: a number is that of one file for as long as the kernel uses it.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;

use shardfs::fs::{DirEntry, Entry, FsError, Listing, OpenHow, SetAttr, WriteConfig};
use shardfs::store::memory::Fault;
use shardfs::view::inode::ROOT;

use crate::power::NO_FAULT;
use crate::power::mounted::{
    CALLER, User, all_names, disk, found, is_scratch, mount_as, others_write, with_mount,
};

#[test]
fn a_name_beside_chunks_stays_when_the_kernel_forgets_the_chunk_that_it_is_linked_to() {
    with_mount(|user, _, _| {
        user.write("a/c/0.part", b"both", false);
        user.unlink("a/c/0");
        user.link("a/c/0.part", "a/c/0");
        user.0.commit(Path::new("")).unwrap();
        user.0.forget(user.ino("a/c/0").unwrap(), 1000);
        assert_eq!(user.read("a/c/0.part"), Some(b"both".to_vec()));
    });
}

/// The kernel forgets one lookup of a number that it uses when a name that it knew turns out to have it.
#[test]
fn a_renamed_chunk_keeps_its_number_when_the_kernel_forgets_some_of_its_lookups() {
    with_mount(|user, storage, _| {
        let content = user.read("a/c/0").unwrap();
        let ino = user.ino("a/c/0").unwrap();
        assert_eq!(user.ino("a/c/0"), Some(ino));
        user.rename("a/c/0", "a/c/1");
        user.0.commit(Path::new("")).unwrap();
        user.0.forget(ino, 1);
        user.write("a/c/0", b"another", false);
        user.0.commit(Path::new("")).unwrap();
        user.0.forget(ino, 1);

        let how = OpenHow { write: true, ..OpenHow::default() };
        let handle = user.0.open_for(ino, how, &CALLER).unwrap().handle;
        let mut found_there = vec![0; 100];
        let nbytes = user.0.read(ino, Some(handle), 0, &mut found_there).unwrap();
        assert_eq!(found_there[..nbytes], content);
        user.0.write(ino, handle, 0, b"X").unwrap();
        user.0.release(handle);
        user.0.commit(Path::new("")).unwrap();
        let changed = [b"X", &content[1..]].concat();
        assert_eq!(
            ["a/c/0", "a/c/1"].map(|name| found(storage, name)),
            [Some(b"another".to_vec()), Some(changed)]
        );
    });
}

/// In one that was removed, and is still held by someone, the kernel makes nothing any more.
#[test]
fn a_directory_that_is_made_anew_is_another_one() {
    with_mount(|user, _, _| {
        for number in 0..64 {
            let name = format!("a/c/{number}");
            if user.ino(&name).is_some() {
                user.unlink(&name);
            }
        }
        let array = user.ino("a").unwrap();
        user.0.mkdir(ROOT, OsStr::new("plain"), 0o755, &CALLER).unwrap();
        for (parent, name) in [(ROOT, OsStr::new("plain")), (array, OsStr::new("c"))] {
            let identity = |entry: &Entry| (entry.attr.ino, entry.generation);
            let before = user.0.lookup(parent, name).unwrap().unwrap();
            user.0.rmdir(parent, name, &CALLER).unwrap();
            let made = user.0.mkdir(parent, name, 0o755, &CALLER).unwrap();
            assert_ne!(identity(&made), identity(&before), "{name:?}");
            let found = user.0.lookup(parent, name).unwrap().unwrap();
            assert_eq!(identity(&found), identity(&made), "{name:?}");
        }
    });
}

/// The kernel would take the attributes and the generation in a listing for those of the file in use.
#[test]
fn a_chunk_is_not_listed_under_the_number_of_the_file_that_was_renamed_away() {
    with_mount(|user, storage, _| {
        let ino = user.ino("a/c/0").unwrap();
        user.rename("a/c/0", "a/c/1");
        user.0.commit(Path::new("")).unwrap();
        others_write(storage, "a/c/0", b"of others");
        let mut numbers = Vec::new();
        let directory = user.ino("a/c").unwrap();
        let mut sink = |item: &DirEntry<'_>| {
            numbers.push((item.name.to_owned(), item.ino));
            ControlFlow::Continue(())
        };
        user.0.readdir((directory, None), 0, Listing::Entries, &mut sink).unwrap();
        let listed = |name: &str| numbers.iter().find(|(it, _)| it == name).map(|(_, ino)| *ino);
        assert_eq!(listed("1"), Some(ino));
        assert!(listed("0").is_some_and(|number| number != ino), "{numbers:?}");
    });
}

/// Placeholder attributes would make the kernel give up the file that it uses under that number.
#[test]
fn a_chunk_that_cannot_be_read_is_not_listed_under_the_number_that_it_had() {
    with_mount(|user, storage, _| {
        let ino = user.ino("a/c/0").unwrap();
        let files = storage.files().into_iter();
        for (path, ..) in files.filter(|(path, ..)| path.starts_with("a/c")) {
            storage.replace(path.to_str().unwrap(), "no shard any more");
        }
        let mut numbers = Vec::new();
        let directory = user.ino("a/c").unwrap();
        let mut sink = |item: &DirEntry<'_>| {
            numbers.push((item.name.to_owned(), item.ino, item.entry.is_some()));
            ControlFlow::Continue(())
        };
        user.0.readdir((directory, None), 0, Listing::Entries, &mut sink).unwrap();
        let listed = numbers.iter().find(|(name, ..)| name == "0");
        assert!(
            listed.is_some_and(|(_, number, has_entry)| *number != ino && !has_entry),
            "{numbers:?}"
        );
    });
}

/// The kernel goes on using the number that the chunk had: it was told that nothing was renamed.
#[test]
fn after_a_rename_that_could_not_be_committed_a_chunk_is_opened_by_the_number_of_its_new_file_alone()
 {
    const FULL: Fault =
        Fault { errno: libc::ENOSPC, times: u64::MAX, half_done: false, changes_only: true };
    for renamed in ["a/c/0.part", "a/c/1"] {
        let before = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
        let directory = tempfile::tempdir().unwrap();
        let storage = disk(&before, false).now().storage(false);
        let unsaved = directory.path().to_owned();
        let fs = mount_as(&storage, WriteConfig { unsaved, sync: true, ..WriteConfig::default() });
        let user = User(&fs);
        let old = user.ino("a/c/0").unwrap();
        user.write(renamed, b"renamed", false);
        let new = user.ino(renamed).unwrap();

        storage.fail(1, FULL);
        let (from, to) = (user.parent(renamed).unwrap(), user.parent("a/c/0").unwrap());
        assert_eq!(fs.rename(from, to, false, &CALLER).unwrap_err().errno(), libc::ENOSPC);
        storage.fail(0, NO_FAULT);

        let write = OpenHow { write: true, ..OpenHow::default() };
        for how in [OpenHow::default(), write, OpenHow { truncate: true, ..write }] {
            assert!(matches!(fs.open_for(old, how, &CALLER), Err(FsError::Stale)), "{renamed}");
        }
        let shorter = SetAttr { size: Some(1), ..SetAttr::default() };
        assert!(matches!(fs.setattr(old, None, &shorter, &CALLER), Err(FsError::Stale)));
        assert_eq!(user.ino("a/c/0"), Some(new), "{renamed}");
        assert_eq!(user.read("a/c/0"), Some(b"renamed".to_vec()));
    }
}

/// With another generation the kernel takes it for another file, and gives up the one that is open.
#[test]
fn an_open_file_that_was_renamed_keeps_its_generation_when_its_old_name_is_given_to_another() {
    for linked in [false, true] {
        with_mount(|user, _, _| {
            let entry = |path: &str| {
                let (parent, name) = user.parent(path).unwrap();
                let entry = user.0.lookup(parent, name).unwrap().unwrap();
                (entry.attr.ino, entry.generation)
            };
            let before = entry("a/c/0");
            let how = OpenHow { write: true, ..OpenHow::default() };
            let handle = user.0.open_for(before.0, how, &CALLER).unwrap().handle;
            user.unlink("a/c/1");
            if linked {
                user.link("a/c/0", "a/c/1");
                user.unlink("a/c/0");
            } else {
                user.rename("a/c/0", "a/c/1");
            }
            user.write("a/c/0.part", b"another", false);
            user.rename("a/c/0.part", "a/c/0");
            assert_eq!(entry("a/c/1"), before);
            user.unlink("a/c/0");
            assert_eq!(entry("a/c/1"), before);
            user.0.release(handle);
        });
    }
}

/// Both need the table of numbers of paths and that of names.
#[test]
fn a_chunk_is_removed_while_paths_are_looked_up_after_a_chunk_became_a_file_of_the_source() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        with_mount(|user, _, _| {
            user.rename("a/c/0", "plain");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // A name that was removed, and has no file of its own, is given to another.
                    user.unlink("a/c/1");
                    for _ in 0..2000 {
                        user.write("a/c/1.part", b"content", false);
                        user.rename("a/c/1.part", "a/c/1");
                        user.unlink("a/c/1");
                    }
                });
                for path in ["plain", "a/zarr.json", "b/zarr.json"] {
                    scope.spawn(move || {
                        for _ in 0..5000 {
                            let ino = user.ino(path).unwrap();
                            user.0.forget(ino, 1);
                        }
                    });
                }
            });
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(std::time::Duration::from_secs(600)).unwrap();
}

/// The kernel would read the new file in the place of the one that it knows by that number: a document that is
/// replaced again and again by one of the same temporary name.
#[test]
fn a_number_that_the_kernel_knows_is_given_to_no_other_file() {
    with_mount(|user, _, _| {
        let text = user.read("a/zarr.json").unwrap();
        let publish = || {
            user.write("a/zarr.json.tmp", &text, false);
            let ino = user.ino("a/zarr.json.tmp").unwrap();
            user.rename("a/zarr.json.tmp", "a/zarr.json");
            ino
        };
        let (first, second) = (publish(), publish());
        assert_ne!(first, second);
        let third = publish();
        assert!(![first, second].contains(&third));
        for known in [first, second, third] {
            user.0.forget(known, 1000);
        }
        user.unlink("a/zarr.json");
        user.0.forget(third, 1000);
        assert_eq!(publish(), first, "the kernel has forgotten it");
    });
}
