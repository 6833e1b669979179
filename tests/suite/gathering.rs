//! Chunk files that come before the metadata of their array, and are gathered in shards.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use shardfs::format::plan::Policy;
use shardfs::fs::{Fs, FsError, NewShards, OpenHow, SetAttr, WriteConfig};
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::store::storage::PosixStorage;

use crate::new_arrays::{document, group, is_sharded, mount_local, mounted, shown, source, stored};
use crate::power::Rng;
use crate::power::mounted::{CALLER, User, mount_alone, mount_as};

/// Time for which something is tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// All chunks by number, and the bytes that they have.
pub(crate) fn chunks() -> impl Iterator<Item = (String, Vec<u8>)> {
    (0_u8..16).map(|n| (format!("a/c/{n}"), vec![n; 3 + usize::from(n % 3)]))
}

/// Checks that a mount which makes no shards finds an array whole, and nothing but shards in the source.
pub(crate) fn check_whole(storage: &Arc<MemoryStorage>, what: &str) {
    assert!(is_sharded(storage, "a/zarr.json"), "{what}");
    let files = storage.files();
    let below: Vec<_> = files.iter().filter(|(path, ..)| path.starts_with("a")).collect();
    let names = below.iter().map(|(path, ..)| path.display().to_string());
    let names: Vec<String> = names.filter(|name| !name.contains(".shardfs/")).collect();
    assert_eq!(names, ["a/c/0", "a/c/1", "a/c/2", "a/c/3", "a/zarr.json"], "{what}");
    assert!(!below.iter().any(|(path, ..)| path.starts_with("a/.shardfs/gathered")), "{what}");
    let fs = mount_as(storage, WriteConfig::default());
    let user = User(&fs);
    assert_eq!(shown(&user, "a/zarr.json"), document(), "{what}");
    chunks().for_each(|(path, bytes)| assert_eq!(user.read(&path), Some(bytes), "{what}, {path}"));
}

#[test]
fn the_order_in_which_files_come_changes_nothing() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut files: Vec<(String, Vec<u8>)> = chunks().collect();
        files.push(("a/zarr.json".to_owned(), document().to_string().into_bytes()));
        files.push(("zarr.json".to_owned(), group().to_string().into_bytes()));
        for at in (1..files.len()).rev() {
            files.swap(at, rng.below(at + 1));
        }
        let storage = Arc::new(MemoryStorage::default());
        let fs = mounted(&storage);
        let user = User(&fs);
        for (path, bytes) in &files {
            user.write(path, bytes, rng.one_in(4));
        }
        assert_eq!(shown(&user, "a/zarr.json"), document(), "{seed}");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{seed}, {path}");
        }
        assert_eq!(fs.end_commits(), 0, "{seed}");
        check_whole(&storage, &format!("seed {seed}"));
    }
}

#[test]
fn a_chunk_that_is_being_written_when_the_document_comes_is_waited_for() {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
    let (parent, name) = user.made_parent("a/c/7");
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
    let (ino, handle) = (entry.attr.ino, opened.handle);
    thread::scope(|scope| {
        scope.spawn(|| user.write("a/zarr.json", document().to_string().as_bytes(), false));
        thread::sleep(Duration::from_millis(150));
        fs.write(ino, handle, 0, &[7; 4]).unwrap();
        fs.flush(ino, handle).unwrap();
        fs.release(handle);
    });
    assert_eq!(fs.end_commits(), 0);
    check_whole(&storage, "one was open");
}

/// As long as there are chunk files: another process, such as another mount, writes one and creates one.
#[test]
fn chunk_files_that_another_process_changes_while_their_array_is_made_are_in_it_as_they_are() {
    let mut changed = 0;
    for nth in 1.. {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().skip(1).for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let (acts, done) = (Arc::clone(&storage), Arc::new(AtomicBool::new(false)));
        let was_in_time = Arc::clone(&done);
        storage.act_before(nth, move || {
            let files = acts.files();
            // Once there are no more of them, names are those of shards.
            if files.iter().any(|(path, ..)| path == Path::new("a/c/9")) {
                acts.replace("a/c/5", [99; 4]);
                acts.replace("a/c/0", [98; 4]);
                was_in_time.store(true, Ordering::Relaxed);
            }
        });
        user.write("a/zarr.json", document().to_string().as_bytes(), false);
        assert_eq!(fs.end_commits(), 0, "{nth}");
        drop(fs);
        let is_over = storage.operations() < nth;
        if done.load(Ordering::Relaxed) {
            changed += 1;
            assert!(is_sharded(&storage, "a/zarr.json"), "{nth}");
            let fs = mount_as(&storage, WriteConfig::default());
            let user = User(&fs);
            for (n, (path, bytes)) in chunks().enumerate() {
                let bytes = match n {
                    0 => vec![98; 4],
                    5 => vec![99; 4],
                    _ => bytes,
                };
                assert_eq!(user.read(&path), Some(bytes), "{nth}, {path}");
            }
        }
        if is_over {
            break;
        }
    }
    assert!(changed > 20, "{changed}");
}

/// Each with its own locks, as in two processes.
#[test]
fn two_mounts_that_bring_the_files_of_one_array_lose_none_of_them() {
    for round in 0..20 {
        let top = tempfile::tempdir().unwrap();
        std::fs::write(top.path().join("zarr.json"), group().to_string()).unwrap();
        let mount = |new_shards: NewShards| mount_local(top.path(), new_shards);
        std::fs::create_dir_all(top.path().join("a/c")).unwrap();
        let mount = &mount;
        thread::scope(|scope| {
            for half in [0, 1] {
                scope.spawn(move || {
                    let fs = mount(NewShards::of_at_most(16));
                    let directory = |path: &str| {
                        let found = path.split('/').try_fold(1, |above, name| {
                            let entry = fs.lookup(above, OsStr::new(name)).ok()??;
                            Some(entry.attr.ino)
                        });
                        found.map(|ino| (ino, ""))
                    };
                    for n in half * 8..half * 8 + 8 {
                        let name: &'static str = Box::leak(n.to_string().into_boxed_str());
                        let bytes = chunks().nth(n).unwrap().1;
                        create_at_last(&fs, || Some((directory("a/c")?.0, name)), &bytes);
                    }
                    let text = document().to_string();
                    create_at_last(&fs, || Some((directory("a")?.0, "zarr.json")), text.as_bytes());
                    assert_eq!(fs.end_commits(), 0, "{round}");
                });
            }
        });
        let fs = mount(NewShards::default());
        let user = User(&fs);
        assert_eq!(shown(&user, "a/zarr.json"), document(), "{round}");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{round}, {path}");
        }
    }
}

/// What is created is where it was created, or its name is to be looked up again: there was a directory for it.
#[test]
fn a_chunk_file_that_is_created_while_another_mount_makes_its_array_does_not_fail() {
    let mut again = 0;
    for nth in 1.. {
        let storage = source();
        let (fs, other) = (mounted(&storage), mounted(&storage));
        let user = User(&other);
        chunks().filter(|(path, _)| path != "a/c/5").for_each(|(path, bytes)| {
            user.write(&path, &bytes, false);
        });
        let (parent, name) = User(&fs).parent("a/c/5").unwrap();
        let is_over = Arc::new(AtomicBool::new(true));
        let acts = Arc::clone(&is_over);
        let text = document().to_string();
        storage.act_before(nth, move || {
            acts.store(false, Ordering::Relaxed);
            User(&other).write("a/zarr.json", text.as_bytes(), false);
        });
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let created = fs.create(parent, name, 0o644, how, &CALLER);
        let is_over = is_over.load(Ordering::Relaxed);
        match created {
            Ok((_, opened)) => fs.release(opened.handle),
            Err(FsError::Stale) => again += 1,
            Err(error) => panic!("{nth}: {error}"),
        }
        storage.act_before(u64::MAX, || ());
        let place = || User(&fs).parent("a/c/5");
        create(&fs, || place().map(|(parent, _)| (parent, "5")), &[5; 4]);
        assert_eq!(User(&fs).read("a/c/5"), Some(vec![5; 4]), "{nth}");
        if is_over {
            break;
        }
    }
    assert!(again > 0);
}

/// What has chunk keys in its directory are shards, or chunk files that are going.
#[test]
fn nothing_is_written_into_an_array_that_waits_for_its_place() {
    let is_there = |storage: &MemoryStorage, path: &str| stored(storage, path).is_some();
    let mut waits = false;
    for nth in (1..).take_while(|nth| *nth < 2000) {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let acts = Arc::clone(&storage);
        storage.act_before(nth, move || {
            let is_decided = is_there(&acts, "a/.shardfs/gathered/zarr.json");
            if is_decided && is_there(&acts, "a/c/9") {
                acts.replace("a/c/notes", "in the way");
            }
        });
        let (parent, name) = user.made_parent("a/zarr.json");
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
        fs.write(entry.attr.ino, opened.handle, 0, document().to_string().as_bytes()).unwrap();
        let closed = fs.flush(entry.attr.ino, opened.handle);
        fs.release(opened.handle);
        if !is_there(&storage, "a/c/notes") {
            continue;
        }
        assert!(closed.is_err(), "{nth}");
        waits = true;
        let c = user.ino("a/c").unwrap();
        for name in ["1", "5", "15"] {
            let found = fs.lookup(c, OsStr::new(name));
            assert!(matches!(found, Err(FsError::BadMetadata(_))), "{nth}, {name}: {found:?}");
            let created = fs.create(c, OsStr::new(name), 0o644, how, &CALLER);
            assert!(created.is_err(), "{nth}, {name}");
        }
        storage.remove("a/c/notes");
        assert_eq!(user.read("a/c/5"), Some(chunks().nth(5).unwrap().1), "{nth}");
        drop(fs);
        check_whole(&storage, "no longer in the way");
        break;
    }
    assert!(waits);
}

#[test]
fn chunk_files_among_others_are_stored_as_they_are() {
    for other in ["a/c/notes", "a/c/16", "a/c/3.part"] {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        user.write("a/c/3", &[3; 4], false);
        user.write(other, b"other", false);
        user.write("a/zarr.json", document().to_string().as_bytes(), false);
        assert!(!is_sharded(&storage, "a/zarr.json"), "{other}");
        assert_eq!(user.read("a/c/3"), Some(vec![3; 4]), "{other}");
        assert_eq!(stored(&storage, other).as_deref(), Some(&b"other"[..]), "{other}");
        let is_left = |(path, ..): &(PathBuf, _, _)| path.starts_with("a/.shardfs");
        assert!(!storage.files().iter().any(is_left), "{other}");
    }
}

#[test]
fn an_error_of_the_source_leaves_chunk_files_or_an_array() {
    for nth in 1.. {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let (parent, name) = user.made_parent("a/zarr.json");
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
        let (ino, handle) = (entry.attr.ino, opened.handle);
        fs.write(ino, handle, 0, document().to_string().as_bytes()).unwrap();
        storage.fail_nth(nth);
        let closed = fs.flush(ino, handle);
        let was_late = storage.fail_no_more();
        fs.release(handle);
        fs.end_commits();
        drop(fs);
        // Whatever happened, all bytes are there, and an array that is there is whole.
        let fs = mount_as(&storage, WriteConfig::default());
        let user = User(&fs);
        let found = user.read("a/zarr.json");
        assert!(found.is_some() || closed.is_err(), "{nth}: it is not there, and no error");
        for (path, bytes) in chunks() {
            assert_eq!(user.read(&path), Some(bytes), "{nth}, {path}, {closed:?}");
        }
        let is_left = |(path, ..): &(PathBuf, _, _)| path.starts_with("a/.shardfs/gathered");
        assert!(!storage.files().iter().any(is_left), "{nth}, {closed:?}");
        if was_late {
            assert!(nth > 50, "{nth}");
            break;
        }
    }
}

#[test]
fn a_chunk_that_comes_while_its_array_is_made_is_a_file_or_in_a_shard_and_not_both() {
    for round in 0..300 {
        let storage = source();
        let fs = mounted(&storage);
        let (root, name) = User(&fs).made_parent("a");
        let parent = fs.mkdir(root, name, 0o755, &CALLER).unwrap().attr.ino;
        fs.mkdir(parent, OsStr::new("c"), 0o755, &CALLER).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                create(&fs, || Some((parent, "zarr.json")), document().to_string().as_bytes());
            });
            // The directory is another one once the array is there.
            let place = || match fs.lookup(parent, OsStr::new("c")) {
                Err(FsError::Stale) => None,
                found => Some((found.unwrap().unwrap().attr.ino, "5")),
            };
            create(&fs, place, &[5; 4]);
        });
        assert_eq!(fs.end_commits(), 0, "{round}");
        let sharded = is_sharded(&storage, "a/zarr.json");
        assert_eq!(stored(&storage, "a/c/5").is_none(), sharded, "{round}");
        let fs = mount_as(&storage, WriteConfig::default());
        assert_eq!(User(&fs).read("a/c/5"), Some(vec![5; 4]), "{round}, sharded: {sharded}");
    }
}

/// Who has made a directory is about to create chunks in it, and takes ENOENT for an error. Locks are those of real files.
#[test]
fn directories_of_chunks_are_there_at_all_times_while_their_array_is_made() {
    let mut document = document();
    document["shape"] = json!([8, 8]);
    document["chunk_grid"]["configuration"]["chunk_shape"] = json!([2, 2]);
    let document = document.to_string();
    for round in 0..200 {
        let top = tempfile::tempdir().unwrap();
        let fs = mount_local(top.path(), NewShards::of_at_most(16));
        let (root, name) = User(&fs).made_parent("a");
        let make =
            |above, name: &str| fs.mkdir(above, OsStr::new(name), 0o755, &CALLER).unwrap().attr.ino;
        let a = fs.mkdir(root, name, 0o755, &CALLER).unwrap().attr.ino;
        let c = make(a, "c");
        let rows = ["0", "1", "2", "3"];
        let made = rows.map(|row| make(c, row));
        if round % 2 > 0 {
            create(&fs, || Some((made[0], "2")), &[2; 4]);
        }
        let is_written = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                create(&fs, || Some((a, "zarr.json")), document.as_bytes());
                is_written.store(true, Ordering::Release);
            });
            // As the kernel does: what is stale is looked up again from the top.
            let find = |row: &str| {
                let c = fs.lookup(a, OsStr::new("c"))?.ok_or(FsError::NotFound)?.attr.ino;
                fs.lookup(c, OsStr::new(row))?.ok_or(FsError::NotFound)
            };
            while !is_written.load(Ordering::Acquire) {
                for row in rows {
                    let found = (0..100).map(|_| find(row));
                    let found = found.into_iter().find(|it| !matches!(it, Err(FsError::Stale)));
                    assert!(found.unwrap().is_ok(), "{round}, {row}");
                }
            }
        });
        // A name that is shown is one that can be used.
        let place = || Some((User(&fs).ino("a/c/3").unwrap(), "3"));
        create(&fs, place, &[3; 4]);
        assert_eq!(User(&fs).read("a/c/3/3"), Some(vec![3; 4]), "{round}");
        assert_eq!(User(&fs).read("a/c/0/2").is_some(), round % 2 > 0, "{round}");
    }
}

/// Creates a file as who tries again does when an error says that another mount has changed the array meanwhile, or
/// has not come further with that for long.
fn create_at_last(fs: &Fs, place: impl Fn() -> Option<(u64, &'static str)>, content: &[u8]) {
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let created = || {
        let (parent, name) = place().ok_or(FsError::Stale)?;
        let (entry, opened) = fs.create(parent, OsStr::new(name), 0o644, how, &CALLER)?;
        let written = fs.write(entry.attr.ino, opened.handle, 0, content);
        let closed = written.and_then(|_| fs.flush(entry.attr.ino, opened.handle));
        fs.release(opened.handle);
        closed
    };
    let begun = Instant::now();
    loop {
        match created() {
            Err(FsError::Stale | FsError::BadMetadata(_)) if begun.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            created => return created.unwrap(),
        }
    }
}

/// Creates a file in a place as the kernel does for a process: anew where it is another by now.
pub(crate) fn create(fs: &Fs, place: impl Fn() -> Option<(u64, &'static str)>, content: &[u8]) {
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let created = || {
        let (parent, name) = place()?;
        match fs.create(parent, OsStr::new(name), 0o644, how, &CALLER) {
            Err(FsError::Stale) => None,
            created => Some(created.unwrap()),
        }
    };
    let (entry, opened) = (0..100).find_map(|_| created()).unwrap();
    fs.write(entry.attr.ino, opened.handle, 0, content).unwrap();
    fs.flush(entry.attr.ino, opened.handle).unwrap();
    fs.release(opened.handle);
}

/// Another mount has no part in the locks that keep writers of this one away.
#[test]
fn what_is_written_to_a_chunk_file_that_another_mount_has_put_into_a_shard_is_not_called_written() {
    let storage = source();
    let other = mount_as(&storage, WriteConfig::default());
    let user = User(&other);
    chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
    let how = OpenHow { write: true, ..OpenHow::default() };
    let open = |path: &str| {
        let ino = user.ino(path).unwrap();
        (ino, other.open_for(ino, how, &CALLER).unwrap().handle)
    };
    let (file, removed) = (open("a/c/5"), open("a/c/6"));
    other.write(file.0, file.1, 0, &[1; 2]).unwrap();
    user.unlink("a/c/6");
    other.write(removed.0, removed.1, 0, &[6; 4]).unwrap();

    let fs = mounted(&storage);
    User(&fs).write("a/zarr.json", document().to_string().as_bytes(), false);
    assert!(is_sharded(&storage, "a/zarr.json"));

    let late = other.write(file.0, file.1, 2, &[2; 2]).unwrap_err();
    assert_eq!(late.errno(), libc::ESTALE);
    let shorter = SetAttr { size: Some(1), ..SetAttr::default() };
    let late = other.setattr(file.0, Some(file.1), &shorter, &CALLER).unwrap_err();
    assert_eq!(late.errno(), libc::ESTALE);
    // A file that its own mount has removed can be written to as long as it is open.
    other.write(removed.0, removed.1, 0, &[7; 4]).unwrap();
    other.release(file.1);
    other.release(removed.1);
    let mut expected = chunks().nth(5).unwrap().1;
    expected[..2].fill(1);
    for fs in [&fs, &other] {
        assert_eq!(User(fs).read("a/c/5").as_ref(), Some(&expected));
        assert_eq!(User(fs).read("a/c/6"), None);
    }
}

/// Until the removal of its last name is over, a write is not told that the file is gone.
#[test]
fn what_is_written_to_a_chunk_file_at_the_moment_of_its_removal_is_in_its_shard() {
    let mut changed = 0;
    for nth in 1.. {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let file = storage.open_writable(Path::new("a/c/5")).unwrap();
        let (was_in_time, is_reached) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (done, reached) = (Arc::clone(&was_in_time), Arc::clone(&is_reached));
        storage.act_before_removal(nth, move || {
            reached.store(true, Ordering::Relaxed);
            if file.stat().unwrap().links > 0 {
                file.write_at(&[99; 5], 0).unwrap();
                done.store(true, Ordering::Relaxed);
            }
        });
        user.write("a/zarr.json", document().to_string().as_bytes(), false);
        assert_eq!(fs.end_commits(), 0, "{nth}");
        if was_in_time.load(Ordering::Relaxed) {
            changed += 1;
            assert!(is_sharded(&storage, "a/zarr.json"), "{nth}");
            let fs = mount_as(&storage, WriteConfig::default());
            assert_eq!(User(&fs).read("a/c/5"), Some(vec![99; 5]), "{nth}");
        }
        if !is_reached.load(Ordering::Relaxed) {
            break;
        }
    }
    assert!(changed > 5, "{changed}");
}

/// As the kernel does for a process: what is stale is looked up again.
fn looked_up_again<T>(act: impl Fn() -> Result<T, FsError>) -> Result<T, FsError> {
    let done = (0..3).map(|_| act()).find(|done| !matches!(done, Err(FsError::Stale)));
    done.unwrap_or(Err(FsError::Stale))
}

#[test]
fn a_mount_that_knows_no_array_yet_changes_nothing_of_one_that_another_has_just_made() {
    let is_before = [true, false];
    for (what, chunks_first) in (0..7).flat_map(|what| is_before.map(move |first| (what, first))) {
        let storage = source();
        let other = mount_alone(&storage, Policy::Auto, Path::new("/nonexistent"));
        let there = User(&other);
        let fs = mounted(&storage);
        let user = User(&fs);
        let document = document().to_string();
        let write = |with: &dyn Fn(usize) -> bool| {
            let chosen = chunks().enumerate().filter(|(n, _)| with(*n));
            chosen.for_each(|(_, (path, bytes))| user.write(&path, &bytes, false));
        };
        there.write("a/t", b"tttt", false);
        there.made_parent("a/c/0");
        if chunks_first {
            write(&|n| n != 14);
        }
        // It finds what is there, and believes it for long.
        for path in ["a/zarr.json", "a/c/0", "a/c/5", "a/c/14"] {
            there.ino(path);
        }
        user.write("a/zarr.json", document.as_bytes(), false);
        if !chunks_first {
            write(&|n| n != 14);
        }
        assert_eq!(fs.end_commits(), 0);
        let named = |from: &str, to: &str| {
            looked_up_again(|| {
                let stale = || FsError::NotFound;
                let (from, to) = (there.parent(from), there.parent(to));
                other.rename(from.ok_or_else(stale)?, to.ok_or_else(stale)?, false, &CALLER)
            })
        };
        let mut expected: Vec<_> = chunks().map(|(_, bytes)| Some(bytes)).collect();
        expected[14] = None;
        match what {
            0 => {
                named("a/t", "a/c/1").unwrap();
                expected[1] = Some(b"tttt".to_vec());
            }
            1 => {
                named("a/t", "a/c/14").unwrap();
                expected[14] = Some(b"tttt".to_vec());
            }
            2 => {
                create(&other, || Some((there.ino("a/c")?, "14")), b"new!");
                expected[14] = Some(b"new!".to_vec());
            }
            3 => {
                named("a/c/0", "a/away").unwrap();
                assert_eq!(there.read("a/away"), expected[0].take());
            }
            // Not with chunks in it.
            4 => assert!(named("a/c", "a/away").is_err()),
            5 => {
                let linked = looked_up_again(|| {
                    let (ino, to) = (there.ino("a/t").unwrap(), there.parent("a/c/14").unwrap());
                    other.link(ino, to.0, to.1, &CALLER)
                });
                linked.unwrap();
                expected[14] = Some(b"tttt".to_vec());
            }
            _ => {
                let to = looked_up_again(|| {
                    let (parent, name) = there.parent("a/c/14").unwrap();
                    other.symlink(parent, name, Path::new("5"), &CALLER)
                });
                assert!(to.is_err());
            }
        }
        assert_eq!(other.end_commits(), 0, "{what}");
        let fs = mount_as(&storage, WriteConfig::default());
        for ((path, _), bytes) in chunks().zip(expected) {
            assert_eq!(User(&fs).read(&path), bytes, "{what}, {chunks_first}: {path}");
        }
    }
}

/// Writes a document; what fails, fails.
fn try_document(fs: &Fs, text: &str) -> Result<(), FsError> {
    let (parent, name) = User(fs).made_parent("a/zarr.json");
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER)?;
    let written = fs.write(entry.attr.ino, opened.handle, 0, text.as_bytes());
    let flushed = written.and_then(|()| fs.flush(entry.attr.ino, opened.handle));
    fs.release(opened.handle);
    flushed
}

/// What could not be cleaned up is no other array, whatever has been changed since.
#[test]
fn an_array_in_its_place_is_changed_though_not_all_of_its_making_could_be_removed() {
    let is_left = |storage: &MemoryStorage| {
        let mut files = storage.files().into_iter();
        files.any(|(path, ..)| path.starts_with("a/.shardfs/gathered"))
    };
    let (mut left, mut changed) = (0, document());
    changed["attributes"] = json!({"changed": true});
    for nth in 1.. {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let fault = Fault { errno: libc::EIO, times: 10_000, half_done: false, changes_only: true };
        storage.fail(nth, fault);
        let made = try_document(&fs, &document().to_string());
        storage.fail_no_more();
        let is_placed =
            stored(&storage, "a/zarr.json").is_some() && is_sharded(&storage, "a/zarr.json");
        left += usize::from(is_placed && is_left(&storage));
        if is_placed {
            user.write("a/c/3", b"since", true);
            try_document(&fs, &changed.to_string())
                .unwrap_or_else(|error| panic!("{nth}: {error}"));
        }
        // The process is killed.
        let fs = mounted(&storage);
        let user = User(&fs);
        if is_placed {
            assert_eq!(shown(&user, "a/zarr.json"), changed, "{nth}: {made:?}");
            assert_eq!(user.read("a/c/3").as_deref(), Some(&b"since"[..]), "{nth}");
        }
        for (path, bytes) in chunks().filter(|(path, _)| !is_placed || path != "a/c/3") {
            assert_eq!(user.read(&path), Some(bytes), "{nth}, {path}");
        }
        assert!(!is_left(&storage), "{nth}: {made:?}");
        if made.is_ok() {
            break;
        }
    }
    assert!(left > 0);
}
