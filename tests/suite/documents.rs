//! Documents, and chunks beside them, that are written, renamed, linked and removed within a writable mount.

use std::ffi::OsStr;
use std::path::Path;

use shardfs::fs::{FsError, OpenHow, SetAttr, WriteConfig};
use shardfs::store::memory::Fault;
use shardfs::store::storage::Storage;
use shardfs::view::inode::ROOT;

use crate::power::NO_FAULT;
use crate::power::mounted::{
    CALLER, User, all_names, disk, found, is_scratch, mount_as, with_mount,
};

/// Makes the shape of an array smaller and removes all that is listed of it, as `rm -r` does, up to its
/// directory.
fn shrink_and_remove_up_to_the_directory(user: &User<'_>) {
    let text = user.read("a/zarr.json").unwrap();
    let mut document: serde_json::Value = serde_json::from_slice(&text).unwrap();
    document["shape"] = serde_json::json!([2]);
    user.write("a/zarr.json", document.to_string().as_bytes(), true);
    ["a/c/0", "a/c/1", "a/notes"].iter().for_each(|path| user.unlink(path));
    user.0.rmdir(user.ino("a").unwrap(), OsStr::new("c"), &CALLER).unwrap();
    user.unlink("a/zarr.json");
}

#[test]
fn a_document_that_is_open_loses_its_name_to_one_that_is_renamed_there() {
    with_mount(|user, _, _| {
        let ino = user.ino("a/zarr.json").unwrap();
        let how = OpenHow { write: true, ..OpenHow::default() };
        let open = user.0.open_for(ino, how, &CALLER).unwrap();
        let text = String::from_utf8(user.read("a/zarr.json").unwrap()).unwrap();
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document["attributes"] = serde_json::json!({"new": true});
        user.write("a/new.json", document.to_string().as_bytes(), false);
        user.rename("a/new.json", "a/zarr.json");
        let shown = user.read("a/zarr.json").unwrap();
        assert!(String::from_utf8_lossy(&shown).contains("\"new\""));
        // What is written to the old one goes nowhere.
        let _ = user.0.write(ino, open.handle, 0, text.as_bytes());
        let _ = user.0.flush(ino, open.handle);
        user.0.release(open.handle);
        assert_eq!(user.read("a/zarr.json"), Some(shown));
    });
}

/// The kernel does not look a directory's name up again before it creates something there.
#[test]
fn what_is_created_in_a_directory_of_an_array_that_has_just_grown_is_its_chunk() {
    with_mount(|user, storage, _| {
        let c = user.ino("a/c").unwrap();
        let text = user.read("a/zarr.json").unwrap();
        let mut document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let chunk = document["chunk_grid"]["configuration"]["chunk_shape"][0].as_u64().unwrap();
        let shape = document["shape"][0].as_u64().unwrap();
        document["shape"][0] = (shape + 10 * chunk).into();
        user.write("a/zarr.json", document.to_string().as_bytes(), false);
        assert_ne!(user.ino("a/c"), Some(c), "numbers follow from the shape");
        let name = shape.div_ceil(chunk).to_string();
        assert!(user.0.lookup(c, OsStr::new(&name)).unwrap().is_none());
        let how = OpenHow { write: true, truncate: true, exclusive: true };
        let (entry, opened) = user.0.create(c, OsStr::new(&name), 0o644, how, &CALLER).unwrap();
        user.0.write(entry.attr.ino, opened.handle, 0, b"new chunk").unwrap();
        user.0.flush(entry.attr.ino, opened.handle).unwrap();
        user.0.release(opened.handle);
        assert_eq!(user.0.getattr(c, None).unwrap().0.ino, c);
        assert_eq!(user.0.end_commits(), 0);
        let path = format!("a/c/{name}");
        assert_eq!(found(storage, &path).as_deref(), Some(b"new chunk".as_slice()));
    });
}

#[test]
fn a_document_that_is_cut_off_by_its_path_stays_as_it_is() {
    with_mount(|user, _, _| {
        let before = user.read("a/zarr.json");
        for length in [0, 10] {
            let set = SetAttr { size: Some(length), ..SetAttr::default() };
            let ino = user.ino("a/zarr.json").unwrap();
            assert!(matches!(
                user.0.setattr(ino, None, &set, &CALLER),
                Err(FsError::Invalid | FsError::Refused { .. })
            ));
            assert_eq!(user.read("a/zarr.json"), before, "{length}");
        }
        assert_eq!(user.0.end_commits(), 0);
    });
}

#[test]
fn a_document_that_was_removed_and_renamed_back_stays() {
    for link in [false, true] {
        with_mount(|user, storage, _| {
            let text = user.read("a/zarr.json").unwrap();
            user.write("a/new.json", &text, false);
            user.unlink("a/zarr.json");
            match link {
                true => user.link("a/new.json", "a/zarr.json"),
                false => user.rename("a/new.json", "a/zarr.json"),
            }
            assert_eq!(user.read("a/zarr.json").as_ref(), Some(&text), "{link}");
            assert_eq!(user.0.end_commits(), 0);
            assert_eq!(found(storage, "a/zarr.json"), Some(text), "{link}");
        });
    }
}

#[test]
fn the_directory_of_an_array_that_cannot_be_removed_keeps_its_document() {
    // The first time there are shards outside the shape, then one operation fails after the other.
    for nth in 0..30 {
        let before = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
        let directory = tempfile::tempdir().unwrap();
        let storage = disk(&before, false).now().storage(false);
        let (unsaved, keep_outside) = (directory.path().to_owned(), nth == 0);
        let fs =
            mount_as(&storage, WriteConfig { unsaved, keep_outside, ..WriteConfig::default() });
        shrink_and_remove_up_to_the_directory(&User(&fs));
        storage.fail(nth, Fault { changes_only: true, ..NO_FAULT });
        let removed = fs.rmdir(ROOT, OsStr::new("a"), &CALLER);
        storage.fail(0, NO_FAULT);
        let is_there = storage.files().iter().any(|(path, ..)| path == Path::new("a/zarr.json"));
        assert_eq!(is_there, removed.is_err(), "{nth}: {removed:?}");
        if nth == 0 {
            assert!(matches!(removed, Err(FsError::NotEmpty)), "{removed:?}");
        }
        assert_eq!(User(&fs).read("a/zarr.json"), None, "{nth}: it was removed");
    }
}

#[test]
fn what_was_written_to_a_document_is_stored_though_it_is_linked_to_a_chunk() {
    with_mount(|user, storage, _| {
        let text = String::from_utf8(user.read("a/zarr.json").unwrap()).unwrap();
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document["attributes"] = serde_json::json!({"new": true});
        let ino = user.ino("a/zarr.json").unwrap();
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let open = user.0.open_for(ino, how, &CALLER).unwrap();
        user.0.write(ino, open.handle, 0, document.to_string().as_bytes()).unwrap();
        user.unlink("a/c/0");
        user.link("a/zarr.json", "a/c/0");
        user.0.flush(ino, open.handle).unwrap();
        user.0.release(open.handle);
        let stored = found(storage, "a/zarr.json").unwrap();
        assert!(String::from_utf8_lossy(&stored).contains("\"new\""));
    });
}

/// `install` and `cp -p` change a file by its path right after they have closed it, and the kernel does not wait for
/// the release.
#[test]
fn the_mode_of_a_document_that_is_set_while_it_is_released_is_kept() {
    with_mount(|user, storage, _| {
        let text = br#"{"zarr_format": 3, "node_type": "group"}"#;
        for n in 0..200 {
            let name = format!("group{n}");
            let made = user.0.mkdir(ROOT, OsStr::new(&name), 0o755, &CALLER).unwrap();
            let directory = made.attr.ino;
            let how = OpenHow { write: true, exclusive: true, ..OpenHow::default() };
            let document = OsStr::new("zarr.json");
            let created = user.0.create(directory, document, 0o600, how, &CALLER).unwrap();
            let (ino, handle) = (created.0.attr.ino, created.1.handle);
            user.0.write(ino, handle, 0, text).unwrap();
            user.0.flush(ino, handle).unwrap();
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    user.0.release(handle);
                });
                start.wait();
                let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
                if let Err(error) = user.0.setattr(ino, None, &set, &CALLER) {
                    assert!(matches!(error, FsError::Stale), "{error}");
                    // The kernel looks the name up again.
                    let ino = user.ino(&format!("{name}/zarr.json")).unwrap();
                    user.0.setattr(ino, None, &set, &CALLER).unwrap();
                }
            });
            let stored = storage.stat(Path::new(&format!("{name}/zarr.json"))).unwrap();
            assert_eq!(stored.mode & 0o777, 0o640, "{name}");
        }
    });
}

/// A shell that redirects to a chunk closes a descriptor of it before the program begins that writes.
#[test]
fn a_chunk_that_was_emptied_to_be_written_is_not_committed_before() {
    for end in ["written", "closed again", "released"] {
        with_mount(|user, storage, _| {
            let before = user.read("a/c/0").unwrap();
            let ino = user.ino("a/c/0").unwrap();
            let how = OpenHow { write: true, truncate: true, exclusive: false };
            let open = user.0.open_for(ino, how, &CALLER).unwrap();
            user.0.flush(ino, open.handle).unwrap();
            user.0.commit(Path::new("")).unwrap();
            assert_eq!(found(storage, "a/c/0"), Some(before), "{end}");
            match end {
                "written" => user.0.write(ino, open.handle, 0, b"new").unwrap(),
                "closed again" => user.0.flush(ino, open.handle).unwrap(),
                _ => (),
            }
            user.0.flush(ino, open.handle).unwrap();
            user.0.release(open.handle);
            user.0.commit(Path::new("")).unwrap();
            let expected = if end == "written" { b"new".to_vec() } else { Vec::new() };
            assert_eq!(found(storage, "a/c/0"), Some(expected), "{end}");
        });
    }
}
