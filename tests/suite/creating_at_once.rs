//! Arrays that are created while others list, rename and make directories in the same mount.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::json;
use shardfs::fs::{
    DirEntry, Fs, FsConfig, FsError, Listing, NewShards, OpenHow, View, ViewConfig, Views,
    WriteConfig,
};
use shardfs::store::StoreConfig;
use shardfs::store::local::LocalStorage;
use shardfs::view::inode::ROOT;

use crate::gathering::chunks;
use crate::new_arrays::{document, group, is_sharded, mount_local, mounted, source};
use crate::power::mounted::{CALLER, User};

const TO_WRITE: OpenHow = OpenHow { write: true, truncate: true, exclusive: false };
/// Lookups of a single operation, at most.
const LOOKUPS: u64 = 80;
/// Time after which threads that have not ended wait for each other.
const HANGS: Duration = Duration::from_secs(30);

/// Runs something in a thread of its own.
fn begin<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || sender.send(act()));
    receiver
}

/// Long enough for a thread to come to the lock that it is to wait for.
fn wait() {
    thread::sleep(Duration::from_millis(20));
}

fn store(fs: &Fs, path: &str, bytes: &[u8]) -> Result<(), FsError> {
    let path = Path::new(path);
    let above = path.parent().unwrap().iter().try_fold(ROOT, |above, name| {
        Ok::<_, FsError>(fs.lookup(above, name)?.ok_or(FsError::NotFound)?.attr.ino)
    });
    let name = path.file_name().unwrap();
    let (entry, opened) = fs.create(above?, name, 0o644, TO_WRITE, &CALLER)?;
    let written = fs.write(entry.attr.ino, opened.handle, 0, bytes);
    let closed = fs.flush(entry.attr.ino, opened.handle);
    fs.release(opened.handle);
    written.map(drop).and(closed)
}

/// Lists a directory a few names at a time, as the kernel does with large ones, and does something after the first ones.
fn list(fs: &Fs, ino: u64, after_the_first: impl FnOnce()) -> Vec<String> {
    let handle = fs.opendir(ino).unwrap();
    let (mut names, mut position, mut act) = (Vec::new(), 0, Some(after_the_first));
    loop {
        let (before, from) = (names.len(), position);
        let sink = &mut |entry: &DirEntry<'_>| {
            if names.len() == before + 5 {
                return ControlFlow::Break(());
            }
            names.push(entry.name.to_str().unwrap().to_owned());
            position = entry.next;
            ControlFlow::Continue(())
        };
        fs.readdir((ino, Some(handle)), from, Listing::Names, sink).unwrap();
        if names.len() == before {
            break;
        }
        act.take().into_iter().for_each(|act| act());
        assert!(names.len() < 1000, "it does not end: {names:?}");
    }
    fs.releasedir(handle);
    names
}

#[test]
fn a_listing_that_begins_before_its_directory_is_an_arrays_misses_no_name() {
    for flat in [false, true] {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        let mut document = document();
        let key = |n: usize| if flat { format!("a/{n}") } else { format!("a/c/{n}") };
        if flat {
            document["chunk_key_encoding"] = json!({"name": "v2"});
        }
        for (n, (_, bytes)) in chunks().enumerate() {
            user.write(&key(n), &bytes, false);
        }
        let directory = user.ino(if flat { "a" } else { "a/c" }).unwrap();
        let put = || user.write("a/zarr.json", document.to_string().as_bytes(), false);
        let mut names = list(&fs, directory, put);
        assert!(is_sharded(&storage, "a/zarr.json"));
        names.sort();
        names.dedup();
        let all = (0..16).all(|n: usize| names.contains(&n.to_string()));
        assert!(all, "{flat}: {names:?}");
    }
}

/// A listing that is in progress while chunk files are put into shards is not cut short. Locks are those of real files:
/// without them whoever lists goes on where the other one seems to have been interrupted.
#[test]
fn a_listing_while_chunk_files_are_put_into_shards_misses_no_name() {
    for round in 0..100 {
        let top = tempfile::tempdir().unwrap();
        let fs = mount_local(top.path(), NewShards::of_at_most(16));
        let user = User(&fs);
        chunks().for_each(|(path, bytes)| user.write(&path, &bytes, false));
        let a = user.ino("a").unwrap();
        thread::scope(|scope| {
            let written = scope.spawn(|| {
                store(&fs, "a/zarr.json", document().to_string().as_bytes()).unwrap();
            });
            while !written.is_finished() {
                // What is stale is looked up again.
                let c = match fs.lookup(a, OsStr::new("c")) {
                    Err(FsError::Stale) => continue,
                    found => found.unwrap().unwrap().attr.ino,
                };
                let names = list(&fs, c, || ());
                let all = (0..16).all(|n: usize| names.contains(&n.to_string()));
                assert!(all, "{round}: {names:?}");
            }
        });
    }
}

#[test]
fn a_rename_a_text_and_a_new_array_do_not_wait_for_each_other() {
    let mut is_over = false;
    for nth in 1..LOOKUPS {
        let storage = source();
        let fs = Arc::new(mounted(&storage));
        let user = User(&fs);
        user.write("b/zarr.json", document().to_string().as_bytes(), false);
        user.write("part", &[7; 4], false);
        user.made_parent("g/x");
        user.made_parent("b/c/0");
        user.made_parent("a/x");
        let others = {
            let fs = Arc::clone(&fs);
            let (sender, receiver) = channel();
            let act = move || {
                let (one, other) = (Arc::clone(&fs), fs);
                let made = begin(move || store(&one, "g/zarr.json", b"no metadata"));
                wait();
                let renamed = begin(move || {
                    let user = User(&other);
                    let to = user.parent("b/c/0").unwrap();
                    other.rename((ROOT, OsStr::new("part")), to, false, &CALLER)
                });
                wait();
                sender.send((made, renamed)).unwrap();
            };
            storage.act_before(nth, act);
            receiver
        };
        let creator = Arc::clone(&fs);
        let created =
            begin(move || store(&creator, "a/zarr.json", document().to_string().as_bytes()));
        created.recv_timeout(HANGS).expect("all wait for each other").unwrap();
        let Ok((made, renamed)) = others.try_recv() else {
            is_over = true;
            break;
        };
        made.recv_timeout(HANGS).unwrap().unwrap();
        renamed.recv_timeout(HANGS).unwrap().unwrap();
        assert_eq!(fs.end_commits(), 0);
        assert_eq!(User(&fs).read("b/c/0"), Some(vec![7; 4]), "{nth}");
    }
    assert!(is_over);
}

/// A mount of two views of a real directory.
fn two_views(top: &Path) -> Views {
    let views = [View::Zarr3, View::Raw].map(|view| {
        let writing =
            WriteConfig { new_shards: NewShards::of_at_most(16), ..WriteConfig::default() };
        let view = ViewConfig { view, is_one_of_several: true, ..ViewConfig::default() };
        let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
        let config = FsConfig { writable: true, writing, view, store, ..FsConfig::default() };
        let storage = LocalStorage::open_root(top, Arc::default()).unwrap();
        Arc::new(Fs::new(Arc::new(storage), config, Arc::default()).unwrap())
    });
    Views::new(views.to_vec())
}

/// 16 chunks in a square of four rows.
fn square() -> String {
    let mut document = document();
    document["shape"] = json!([8, 8]);
    document["chunk_grid"]["configuration"]["chunk_shape"] = json!([2, 2]);
    document.to_string()
}

#[test]
fn directories_that_were_made_through_another_view_stay() {
    for with_chunks in [false, true] {
        let top = tempfile::tempdir().unwrap();
        let views = two_views(top.path());
        let [zarr3, raw] = views.all() else { unreachable!() };
        User(raw).made_parent("a/c/3/x");
        if with_chunks {
            User(zarr3).write("a/c/0/0", &[1; 4], false);
        }
        User(zarr3).write("a/zarr.json", square().as_bytes(), false);
        assert_eq!(std::fs::exists(top.path().join("a/c/3")).unwrap(), !with_chunks);
        assert!([zarr3, raw].iter().all(|fs| User(fs).ino("a/c/3").is_some()), "{with_chunks}");
        store(raw, "a/c/3/1.raw", &[5; 4]).unwrap();
        views.all().iter().for_each(|fs| assert_eq!(fs.end_commits(), 0));
        assert_eq!(User(zarr3).read("a/c/3/1"), Some(vec![5; 4]));
    }
}

#[test]
fn directories_of_an_array_that_is_gone_are_none_of_the_next_one() {
    let top = tempfile::tempdir().unwrap();
    let views = two_views(top.path());
    let [zarr3, raw] = views.all() else { unreachable!() };
    User(zarr3).write("a/zarr.json", square().as_bytes(), false);
    // They are there as long as the array is.
    User(raw).made_parent("a/c/3/x");
    User(zarr3).made_parent("a/c/2/x");
    std::fs::remove_dir_all(top.path().join("a")).unwrap();
    User(zarr3).write("a/c/0/1", &[1; 4], false);
    User(zarr3).write("a/zarr.json", square().as_bytes(), false);
    let stored = std::fs::read_to_string(top.path().join("a/zarr.json")).unwrap();
    assert!(stored.contains("sharding_indexed"), "{stored}");
    for fs in [zarr3, raw] {
        let shown = ["0", "2", "3"].map(|row| User(fs).ino(&format!("a/c/{row}")).is_some());
        assert_eq!(shown, [true, false, false]);
    }
    assert_eq!(User(zarr3).read("a/c/0/1"), Some(vec![1; 4]));
}

#[test]
fn a_chunk_that_is_closed_while_a_directory_above_it_is_renamed_stays_in_its_array() {
    // What has to wait for the rename is waited for in vain; on a busy machine the others take their time.
    let waits = [100, 1000, 5000].map(Duration::from_millis);
    assert!(waits.into_iter().any(|most| closed_while_renamed(most) > 5));
}

/// Closes a chunk at each moment of a rename of a directory above it. Returns how many were stored meanwhile, within
/// this time at most.
fn closed_while_renamed(most: Duration) -> u64 {
    let (mut is_over, mut tested) = (false, 0);
    for nth in 1..LOOKUPS {
        let storage = source();
        let fs = Arc::new(mounted(&storage));
        User(&fs).write("g/zarr.json", group().to_string().as_bytes(), false);
        User(&fs).write("g/a/zarr.json", document().to_string().as_bytes(), false);
        User(&fs).made_parent("g/a/c/0");
        let other = Arc::clone(&fs);
        let (sender, receiver) = channel();
        storage.act_before(nth, move || {
            let stored = begin(move || store(&other, "g/a/c/0", &[5; 4]));
            // It may have to wait for the rename.
            let at_once = stored.recv_timeout(most).ok();
            sender.send((at_once, stored)).unwrap();
        });
        let name = |name| (ROOT, OsStr::new(name));
        let renamed = fs.rename(name("g"), name("h"), false, &CALLER);
        let Ok((at_once, stored)) = receiver.try_recv() else {
            is_over = true;
            break;
        };
        match &renamed {
            Err(error) => assert_eq!(error.errno(), libc::EBUSY, "{nth}"),
            Ok(()) => assert!(User(&fs).ino("g").is_none(), "{nth}"),
        }
        let Some(closed) = at_once else {
            drop(stored.recv_timeout(HANGS).unwrap());
            fs.end_commits();
            continue;
        };
        assert_eq!(fs.end_commits(), 0, "{nth}: {renamed:?}, {closed:?}");
        if closed.is_ok() {
            let found = ["g/a/c/0", "h/a/c/0"].map(|path| {
                let above = User(&fs).parent(path)?;
                fs.lookup(above.0, above.1).unwrap()?;
                User(&fs).read(path)
            });
            assert!(found.contains(&Some(vec![5; 4])), "{nth}: {renamed:?}, {found:?}");
            tested += 1;
        }
    }
    assert!(is_over);
    tested
}
