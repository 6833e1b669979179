//! Sharded arrays that are made through a mount: it shows them as they are stored, later mounts show their chunks.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use shardfs::fs::{Fs, FsError, NewShards, OpenHow, WriteConfig};
use shardfs::store::memory::{Fault, MemoryStorage};

use crate::new_arrays::{document, group, mounted, shown, source, stored};
use crate::power::mounted::{CALLER, User, mount_as};

fn mounted_without_rules(storage: &Arc<MemoryStorage>) -> Fs {
    mount_as(storage, WriteConfig::default())
}

const MOUNTS: [fn(&Arc<MemoryStorage>) -> Fs; 2] = [mounted, mounted_without_rules];

/// Files of a sharded array, as other software makes them, below a directory: its document and four shards of four
/// chunks.
fn sharded(directory: &str) -> (Value, Vec<(String, Vec<u8>)>) {
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    user.write("a/zarr.json", document().to_string().as_bytes(), true);
    for n in 0_u8..16 {
        user.write(&format!("a/c/{n}"), &[n; 4], false);
    }
    assert_eq!(fs.end_commits(), 0);
    let text = stored(&storage, "a/zarr.json").unwrap();
    let shard = |n: u32| {
        let bytes = stored(&storage, &format!("a/c/{n}")).unwrap();
        (format!("{directory}/c/{n}"), bytes)
    };
    (serde_json::from_slice(&text).unwrap(), (0..4).map(shard).collect())
}

fn has_chunks(storage: &Arc<MemoryStorage>, directory: &str) {
    let fs = mounted_without_rules(storage);
    let user = User(&fs);
    assert_eq!(shown(&user, &format!("{directory}/zarr.json"))["codecs"], document()["codecs"]);
    for n in 0_u8..16 {
        assert_eq!(user.read(&format!("{directory}/c/{n}")), Some(vec![n; 4]), "{directory}, {n}");
    }
}

/// Writes a document by several steps.
fn write_by(user: &User<'_>, path: &str, text: &[u8], steps: &str) {
    let partial = format!("{path}.partial");
    match steps {
        "written" => user.write(path, text, false),
        "renamed" => {
            user.write(&partial, text, false);
            user.rename(&partial, path);
        }
        "linked" => {
            user.write(&partial, text, false);
            user.link(&partial, path);
            user.unlink(&partial);
        }
        "empty first" => {
            user.write(path, b"", false);
            user.write(path, text, false);
        }
        "flushed between" => {
            let (fs, (parent, name)) = (user.0, user.made_parent(path));
            let how = OpenHow { write: true, truncate: true, exclusive: false };
            let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
            let (ino, handle) = (entry.attr.ino, opened.handle);
            // The name of the codec is in the first part.
            let half = text.len() - 20;
            for (at, part) in [(0, &text[..half]), (half, &text[half..])] {
                fs.write(ino, handle, at as u64, part).unwrap();
                fs.flush(ino, handle).unwrap();
            }
            fs.release(handle);
        }
        _ => unreachable!(),
    }
}

#[test]
fn it_is_stored_and_shown_as_it_is_written_whatever_comes_first_and_by_which_steps() {
    let (document, shards) = sharded("a");
    // Not as this program would write it.
    let text = serde_json::to_vec(&document).unwrap();
    for mounted in MOUNTS {
        for steps in ["written", "renamed", "linked", "empty first", "flushed between"] {
            for before in [0, 2, 4] {
                let storage = source();
                let fs = mounted(&storage);
                let user = User(&fs);
                shards[..before].iter().for_each(|(path, bytes)| user.write(path, bytes, false));
                write_by(&user, "a/zarr.json", &text, steps);
                shards[before..].iter().for_each(|(path, bytes)| user.write(path, bytes, true));
                let all = format!("{steps}, {before}");
                assert_eq!(user.read("a/zarr.json").as_ref(), Some(&text), "{all}");
                assert_eq!(stored(&storage, "a/zarr.json").as_ref(), Some(&text), "{all}");
                for (path, bytes) in &shards {
                    assert_eq!(user.read(path).as_ref(), Some(bytes), "{all}, {path}");
                    assert_eq!(stored(&storage, path).as_ref(), Some(bytes), "{all}, {path}");
                }
                assert_eq!(user.ino("a/c/5"), None, "{all}");
                assert_eq!(fs.end_commits(), 0, "{all}");
                has_chunks(&storage, "a");
            }
        }
    }
}

#[test]
fn its_document_and_its_shards_may_change() {
    let (mut document, shards) = sharded("a");
    for mounted in MOUNTS {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        user.write("a/zarr.json", document.to_string().as_bytes(), false);
        shards.iter().for_each(|(path, bytes)| user.write(path, bytes, false));
        for (member, value) in
            [("attributes", json!({"b": 1})), ("shape", json!([48])), ("shape", json!([64]))]
        {
            document[member] = value;
            write_by(&user, "a/zarr.json", document.to_string().as_bytes(), "renamed");
            assert_eq!(shown(&user, "a/zarr.json"), document);
            user.write("a/c/2", &shards[2].1, false);
            assert_eq!(stored(&storage, "a/c/2").as_ref(), Some(&shards[2].1));
        }
        // What is no document is refused in an array, as it is in those of chunk files.
        let (parent, name) = user.made_parent("a/zarr.json");
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
        fs.write(entry.attr.ino, opened.handle, 0, b"none").unwrap();
        let flushed = fs.flush(entry.attr.ino, opened.handle);
        assert!(matches!(flushed, Err(FsError::Refused { .. })), "{flushed:?}");
        fs.release(opened.handle);
        user.write("a/zarr.json", document.to_string().as_bytes(), false);
        assert_eq!(fs.end_commits(), 0);
        has_chunks(&storage, "a");
    }
}

#[test]
fn it_is_shown_as_it_is_stored_wherever_its_directory_is_moved() {
    let (document, shards) = sharded("g/a");
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    user.write("g/zarr.json", group().to_string().as_bytes(), false);
    user.write("g/a/zarr.json", document.to_string().as_bytes(), false);
    shards.iter().for_each(|(path, bytes)| user.write(path, bytes, false));
    user.rename("g/a", "g/b");
    user.rename("g", "h");
    assert_eq!(shown(&user, "h/b/zarr.json"), document);
    assert_eq!(user.read("h/b/c/3").as_ref(), Some(&shards[3].1));
    assert_eq!(user.ino("h/b/c/5"), None);
    user.write("h/b/c/3", &shards[3].1, false);
    // Another one that is put where it was is one like any other.
    user.write("g/a/zarr.json", crate::new_arrays::document().to_string().as_bytes(), false);
    user.write("g/a/c/5", &[5; 4], false);
    assert_eq!(fs.end_commits(), 0);
    assert!(crate::new_arrays::is_sharded(&storage, "g/a/zarr.json"));
    assert_eq!(stored(&storage, "g/a/c/5"), None);
    has_chunks(&storage, "h/b");
}

fn remove(user: &User<'_>, directory: &str, shards: usize) {
    (0..shards).for_each(|n| user.unlink(&format!("{directory}/c/{n}")));
    let (parent, name) = user.parent(directory).unwrap();
    user.0.rmdir(user.ino(directory).unwrap(), OsStr::new("c"), &CALLER).unwrap();
    user.unlink(&format!("{directory}/zarr.json"));
    user.0.rmdir(parent, name, &CALLER).unwrap();
}

#[test]
fn what_is_made_in_its_place_is_stored_by_the_rules() {
    let (document, shards) = sharded("a");
    let unsharded = crate::new_arrays::document();
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    for _ in 0..2 {
        user.write("a/zarr.json", document.to_string().as_bytes(), false);
        shards.iter().for_each(|(path, bytes)| user.write(path, bytes, false));
        remove(&user, "a", 4);
        user.write("a/zarr.json", unsharded.to_string().as_bytes(), false);
        for n in 0_u8..16 {
            user.write(&format!("a/c/{n}"), &[n; 4], false);
        }
        assert!(crate::new_arrays::is_sharded(&storage, "a/zarr.json"));
        assert_eq!(shown(&user, "a/zarr.json"), unsharded);
        fs.commit(Path::new("")).unwrap();
        assert_eq!(stored(&storage, "a/c/5"), None);
        assert_eq!(user.read("a/c/5"), Some(vec![5; 4]));
        remove(&user, "a", 16);
    }
    // Others have removed it: it is none of those any more when another array comes.
    user.write("a/zarr.json", document.to_string().as_bytes(), false);
    storage.remove("a/zarr.json");
    user.write("a/zarr.json", unsharded.to_string().as_bytes(), false);
    assert!(crate::new_arrays::is_sharded(&storage, "a/zarr.json"));
    assert_eq!(shown(&user, "a/zarr.json"), unsharded);
    assert_eq!(fs.end_commits(), 0);
}

fn consolidated(nodes: &[(&str, &Value)]) -> Value {
    let nodes: serde_json::Map<_, _> =
        nodes.iter().map(|(name, node)| ((*name).to_owned(), (*node).clone())).collect();
    let mut group = group();
    group["consolidated_metadata"] =
        json!({"kind": "inline", "must_understand": false, "metadata": nodes});
    group
}

#[test]
fn groups_describe_it_as_it_is_shown() {
    let (document, shards) = sharded("a");
    let unsharded = crate::new_arrays::document();
    for is_group_first in [false, true] {
        let storage = source();
        let fs = mounted(&storage);
        let user = User(&fs);
        let described = consolidated(&[("a", &document), ("b", &unsharded)]);
        let describe = || user.write("zarr.json", described.to_string().as_bytes(), false);
        if is_group_first {
            describe();
            assert_eq!(shown(&user, "zarr.json")["attributes"], json!({}));
        }
        user.write("a/zarr.json", document.to_string().as_bytes(), false);
        shards.iter().for_each(|(path, bytes)| user.write(path, bytes, false));
        user.write("b/zarr.json", unsharded.to_string().as_bytes(), false);
        if !is_group_first {
            describe();
        }
        assert_eq!(shown(&user, "zarr.json"), described, "{is_group_first}");
        // Not in the view of its chunks.
        user.rename("a", "x");
        let entry =
            |group: &Value| group["consolidated_metadata"]["metadata"]["a"]["codecs"].clone();
        assert_eq!(entry(&shown(&user, "zarr.json")), unsharded["codecs"]);
        user.rename("x", "a");
        assert_eq!(shown(&user, "zarr.json"), described, "{is_group_first}");
        assert_eq!(fs.end_commits(), 0);
        let later = mounted_without_rules(&storage);
        let twins = shown(&User(&later), "zarr.json");
        assert_eq!(entry(&twins), unsharded["codecs"]);
        has_chunks(&storage, "a");
    }
}

fn is_refused(user: &User<'_>, path: &str, text: &str) {
    let (parent, name) = user.made_parent(path);
    let partial = format!("{path}.partial");
    user.write(&partial, text.as_bytes(), false);
    let renamed = user.0.rename(user.parent(&partial).unwrap(), (parent, name), false, &CALLER);
    assert!(matches!(renamed, Err(FsError::Refused { .. })), "{path}: {renamed:?}");
    user.unlink(&partial);
}

/// Chunk files would be taken for shards, or shards for what is in a shard.
#[test]
fn it_does_not_take_the_place_of_an_array_that_is_shown_with_its_chunks() {
    let (document, _) = sharded("a");
    let unsharded = crate::new_arrays::document();
    let storage = source();
    storage.replace("plain/zarr.json", unsharded.to_string());
    storage.replace("plain/c/1", [1; 4]);
    let fs = mounted(&storage);
    let user = User(&fs);
    user.write("made/zarr.json", unsharded.to_string().as_bytes(), false);
    user.write("made/c/1", &[1; 4], false);
    user.made_parent("plain/below/x");
    // It is one chunk, and stored as it is written.
    let mut small = unsharded.clone();
    small["shape"] = json!([4]);
    user.write("small/zarr.json", small.to_string().as_bytes(), false);
    for array in ["plain", "made", "plain/below", "small"] {
        is_refused(&user, &format!("{array}/zarr.json"), &document.to_string());
    }
    assert_eq!(shown(&user, "plain/zarr.json"), unsharded);
    assert_eq!(shown(&user, "made/zarr.json"), unsharded);
    assert_eq!(user.read("made/c/1"), Some(vec![1; 4]));
    assert_eq!(fs.end_commits(), 0);
}

/// Whatever fails, and whether its writer is given an error: what is shown is what is stored.
#[test]
fn shards_are_never_taken_for_chunks_though_its_document_is_stored_with_an_error() {
    let (document, shards) = sharded("a");
    let text = document.to_string();
    let mut failures = 0;
    for half_done in [false, true] {
        for nth in 1.. {
            let storage = source();
            let fs = mounted(&storage);
            let user = User(&fs);
            let (parent, name) = user.made_parent("a/zarr.json");
            let how = OpenHow { write: true, truncate: true, exclusive: false };
            let (entry, opened) = fs.create(parent, name, 0o644, how, &CALLER).unwrap();
            let (ino, handle) = (entry.attr.ino, opened.handle);
            fs.write(ino, handle, 0, text.as_bytes()).unwrap();
            storage.fail(nth, Fault { errno: libc::EIO, times: 1, half_done, changes_only: true });
            let flushed = fs.flush(ino, handle);
            let is_to_come = storage.fail_no_more();
            failures += u32::from(flushed.is_err());
            if stored(&storage, "a/zarr.json").is_some_and(|stored| stored == text.as_bytes()) {
                user.write("a/c/1", &shards[1].1, false);
                assert_eq!(
                    stored(&storage, "a/c/1").as_ref(),
                    Some(&shards[1].1),
                    "{nth}, {half_done}"
                );
            }
            fs.flush(ino, handle).unwrap();
            fs.release(handle);
            shards.iter().for_each(|(path, bytes)| user.write(path, bytes, false));
            assert_eq!(
                user.read("a/zarr.json"),
                Some(text.clone().into_bytes()),
                "{nth}, {half_done}"
            );
            assert_eq!(fs.end_commits(), 0);
            has_chunks(&storage, "a");
            if is_to_come {
                break;
            }
        }
    }
    assert!(failures > 4, "{failures}");
}

#[test]
fn the_mount_says_which_arrays_it_shows_as_they_are_stored() {
    let (document, _) = sharded("a");
    let storage = source();
    let fs = mount_as(
        &storage,
        WriteConfig { new_shards: NewShards::default(), ..WriteConfig::default() },
    );
    let user = User(&fs);
    user.write("a/zarr.json", document.to_string().as_bytes(), false);
    let said = String::from_utf8(user.read(".shardfs/not-shown.txt").unwrap()).unwrap();
    assert!(said.starts_with("a: the array was made sharded through this mount"), "{said}");
    assert_eq!(said.lines().count(), 1);
    let (parent, name) = user.parent("a").unwrap();
    user.unlink("a/zarr.json");
    fs.rmdir(parent, name, &CALLER).unwrap();
    assert_eq!(user.read(".shardfs/not-shown.txt"), Some(Vec::new()));
}
