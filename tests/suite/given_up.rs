//! What becomes of changes, removals and documents when others have changed the source meanwhile,
//! and of the rest of a change that has failed.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use shardfs::format::plan::Policy;
use shardfs::fs::{Fs, OpenHow, SetAttr, WriteConfig};
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::view::inode::ROOT;

use crate::power::NO_FAULT;
use crate::power::mounted::{
    CALLER, User, all_names, copies, disk, found, is_scratch, mount, mount_as, others_write,
    with_mount,
};

#[test]
fn a_file_of_two_chunks_keeps_the_one_that_others_have_not_written() {
    with_mount(|user, storage, unsaved| {
        user.write("a/c/0", b"ours", false);
        user.unlink("a/c/4");
        user.link("a/c/0", "a/c/4");
        others_write(storage, "a/c/0", b"of others");
        assert!(user.0.commit(Path::new("")).is_err());
        assert_eq!(user.read("a/c/0"), Some(b"of others".to_vec()));
        assert_eq!(user.read("a/c/4"), Some(b"ours".to_vec()));
        assert_eq!(std::fs::read(unsaved.join("a/c/0")).unwrap(), b"ours");
        // It is reported once.
        assert!(user.0.fsyncdir(ROOT, None).is_err());
        user.write("a/c/4", b"again", true);
        assert_eq!(found(storage, "a/c/0"), Some(b"of others".to_vec()));
        assert_eq!(found(storage, "a/c/4"), Some(b"again".to_vec()));
    });
}

#[test]
fn a_document_that_others_write_after_its_removal_stays_when_the_mount_ends() {
    for shards_are_left in [false, true] {
        with_mount(|user, storage, _| {
            let mut document: Value =
                serde_json::from_slice(&user.read("a/zarr.json").unwrap()).unwrap();
            user.unlink("a/zarr.json");
            document["attributes"] = json!({"of": "others"});
            storage.replace("a/zarr.json", document.to_string());
            if !shards_are_left {
                ["a/c/0", "a/c/1", "a/c/2"].iter().for_each(|shard| storage.remove(shard));
            }
            user.0.end_commits();
            let files = storage.files();
            let kept = files.iter().find(|(path, ..)| path == Path::new("a/zarr.json"));
            assert_eq!(kept.unwrap().2, document.to_string().into_bytes(), "{shards_are_left}");
        });
    }
}

fn document(user: &User<'_>, extent: u64) -> Vec<u8> {
    let mut document: Value = serde_json::from_slice(&user.read("a/zarr.json").unwrap()).unwrap();
    document["shape"] = json!([extent]);
    document.to_string().into_bytes()
}

/// Writes all of a document and closes it, whatever fails.
fn try_to_write(fs: &Fs, path: &str, text: &[u8]) {
    let ino = User(fs).ino(path).unwrap();
    let how = OpenHow { write: true, ..OpenHow::default() };
    let Ok(open) = fs.open_for(ino, how, &CALLER) else { return };
    let set = SetAttr { size: Some(text.len() as u64), ..SetAttr::default() };
    let _ = fs.write(ino, open.handle, 0, text);
    let _ = fs.setattr(ino, Some(open.handle), &set, &CALLER);
    let _ = fs.flush(ino, open.handle);
    fs.release(open.handle);
}

#[test]
fn chunks_outside_a_smaller_shape_go_though_the_first_attempt_fails() {
    const FAILS: Fault =
        Fault { errno: libc::ENOSPC, times: 1, half_done: false, changes_only: true };
    let mut smaller = 0;
    for nth in 0..40 {
        let before = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
        let directory = tempfile::tempdir().unwrap();
        let storage = disk(&before, false).now().storage(false);
        let unsaved = directory.path().to_owned();
        let fs = mount_as(&storage, WriteConfig { unsaved, ..WriteConfig::default() });
        let text = document(&User(&fs), 2);
        storage.fail(nth, FAILS);
        try_to_write(&fs, "a/zarr.json", &text);
        storage.fail(0, NO_FAULT);
        fs.end_commits();
        let fs = mount(&storage, Policy::Auto, directory.path());
        let user = User(&fs);
        let stored: Value = serde_json::from_slice(&user.read("a/zarr.json").unwrap()).unwrap();
        if stored["shape"][0] != 2 {
            continue;
        }
        smaller += 1;
        user.write("a/zarr.json", &document(&user, 6), true);
        let left: Vec<_> = (2..6).filter(|n| user.ino(&format!("a/c/{n}")).is_some()).collect();
        assert!(left.is_empty(), "{nth}: {left:?}");
    }
    assert!(smaller > 10, "{smaller}");
}

#[test]
fn chunks_of_a_failed_removal_are_not_there_again_when_the_array_grows() {
    with_mount(|user, storage, _| {
        let (smaller, larger) = (document(user, 2), document(user, 6));
        storage
            .fail(4, Fault { errno: libc::ENOSPC, times: 3, half_done: false, changes_only: true });
        try_to_write(user.0, "a/zarr.json", &smaller);
        storage.fail(0, NO_FAULT);
        try_to_write(user.0, "a/zarr.json", &smaller);
        try_to_write(user.0, "a/zarr.json", &larger);
        let left: Vec<_> = (2..6).filter(|n| user.ino(&format!("a/c/{n}")).is_some()).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

/// Others make array `a` smaller.
fn others_shrink(storage: &Arc<MemoryStorage>, extent: u64) {
    let other = mount(storage, Policy::Auto, Path::new("/nonexistent"));
    let user = User(&other);
    user.write("a/zarr.json", &document(&user, extent), true);
}

#[test]
fn a_chunk_is_not_removed_whose_new_name_is_outside_the_shape_that_others_have_made() {
    with_mount(|user, storage, unsaved| {
        let old = user.read("a/c/2").unwrap();
        user.unlink("a/c/3");
        user.0.commit(Path::new("")).unwrap();
        user.rename("a/c/2", "a/c/3");
        others_shrink(storage, 3);
        assert!(user.0.commit(Path::new("")).is_err());
        assert_eq!(found(storage, "a/c/2").as_ref(), Some(&old));
        assert_eq!(std::fs::read(unsaved.join("a/c/3")).ok(), Some(old));
    });
}

#[test]
fn a_mount_that_keeps_what_is_outside_commits_it_after_it_has_made_the_array_smaller() {
    let before = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
    let directory = tempfile::tempdir().unwrap();
    let storage = disk(&before, false).now().storage(false);
    let (unsaved, keep_outside) = (directory.path().to_owned(), true);
    let fs = mount_as(&storage, WriteConfig { unsaved, keep_outside, ..WriteConfig::default() });
    let user = User(&fs);
    let larger = document(&user, 6);
    user.write("a/c/5", b"outside", false);
    user.write("a/zarr.json", &document(&user, 2), false);
    assert_eq!(fs.end_commits(), 0);
    let fs = mount(&storage, Policy::Auto, directory.path());
    User(&fs).write("a/zarr.json", &larger, true);
    assert_eq!(User(&fs).read("a/c/5"), Some(b"outside".to_vec()));
}

#[test]
fn what_is_removed_twice_is_removed_once() {
    with_mount(|user, storage, _| {
        let (parent, _) = user.parent("x").unwrap();
        user.rename("x", "a/c/0.part");
        user.write("x", b"new", false);
        user.rename("x", "a/c/1.part");
        user.0.fsyncdir(parent, None).ok();
        user.0.end_commits();
        assert!(found(storage, "x").is_none());
        assert!(user.0.lookup(parent, OsStr::new("x")).unwrap().is_none());
    });
}

#[test]
fn what_cannot_be_saved_stays_in_the_mount_when_others_have_written_its_chunk() {
    with_mount(|user, storage, unsaved| {
        user.write("a/c/0", b"ours", false);
        others_write(storage, "a/c/0", b"of others");
        // No spool can be made there.
        std::fs::write(unsaved.join(".spool"), "in the way").unwrap();
        assert!(user.0.commit(Path::new("")).is_err());
        assert_eq!(user.read("a/c/0"), Some(b"ours".to_vec()));
        std::fs::remove_file(unsaved.join(".spool")).unwrap();
        assert!(user.0.commit(Path::new("")).is_err());
        assert_eq!(user.read("a/c/0"), Some(b"of others".to_vec()));
        assert_eq!(std::fs::read(unsaved.join("a/c/0")).unwrap(), b"ours");
    });
}

/// As `shardfs recover --unsaved` does: files are removed only if this says that they may go.
#[test]
fn a_saved_chunk_is_held_only_if_it_is_in_its_shard_as_it_was_saved() {
    with_mount(|user, storage, _| {
        let name = Path::new("a/c/0");
        let held = |content: &[u8]| user.0.holds_saved(name, &mut &*content).unwrap();
        assert!(user.0.put_saved(name, &mut &b"saved"[..]).unwrap());
        assert!(!held(b"saved"));
        user.0.commit(Path::new("")).unwrap();
        assert!(held(b"saved"));
        assert!(!held(b"save") && !held(b"saved more") && !held(b"SAVED"));
        assert!(user.0.put_saved(name, &mut &b"again"[..]).unwrap());
        others_write(storage, "a/c/0", b"of others");
        assert!(user.0.commit(Path::new("")).is_err());
        assert!(!held(b"again"));
        assert!(!user.0.holds_saved(Path::new("x"), &mut &b""[..]).unwrap());
    });
}

#[test]
fn what_was_saved_of_a_chunk_stays_when_more_of_it_is_saved() {
    with_mount(|user, storage, unsaved| {
        for (ours, theirs) in [(b"one", b"1st"), (b"two", b"2nd")] {
            user.write("a/c/0", ours, false);
            others_write(storage, "a/c/0", theirs);
            assert!(user.0.commit(Path::new("")).is_err());
        }
        assert_eq!(copies(unsaved), [b"one".to_vec(), b"two".to_vec()].into());
        assert_eq!(std::fs::read(unsaved.join("a/c/0")).unwrap(), b"two");
    });
}
