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

/// Writes a file as `cp` does. Returns what its close returned.
fn copy(user: &User<'_>, path: &str, content: &[u8]) -> Result<(), FsError> {
    let (parent, name) = user.made_parent(path);
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let (entry, opened) = user.0.create(parent, name, 0o644, how, &CALLER)?;
    let (ino, handle) = (entry.attr.ino, opened.handle);
    user.0.write(ino, handle, 0, content)?;
    let flushed = user.0.flush(ino, handle);
    user.0.release(handle);
    flushed
}

/// Whoever copies a sharded array onto the view of its chunks, or has opened it when they were not shown.
#[test]
fn a_shard_that_is_written_to_the_name_of_a_chunk_is_refused_and_changes_nothing() {
    let (mut document, _) = sharded("a");
    for (location, index_codecs) in [
        (
            "end",
            json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]),
        ),
        ("end", json!([{"name": "bytes", "configuration": {"endian": "big"}}])),
        (
            "start",
            json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]),
        ),
        ("start", json!([{"name": "bytes", "configuration": {"endian": "little"}}])),
    ] {
        let sharding = &mut document["codecs"][0]["configuration"];
        (sharding["index_location"], sharding["index_codecs"]) =
            (json!(location), index_codecs.clone());
        let storage = source();
        storage.replace("a/zarr.json", document.to_string());
        let fs = mounted_without_rules(&storage);
        let user = User(&fs);
        // All of the first shard, and one chunk of the third.
        for n in [0_u8, 1, 2, 3, 8] {
            user.write(&format!("a/c/{n}"), &[n; 4], true);
        }
        let case = format!("{location}, {index_codecs}");
        let shard = |n: u8| stored(&storage, &format!("a/c/{n}")).unwrap();
        for (shard, name) in
            [(shard(0), 0), (shard(0), 1), (shard(2), 2), (shard(0), 5), (shard(2), 8)]
        {
            let path = format!("a/c/{name}");
            let copied = copy(&user, &path, &shard);
            assert!(
                matches!(copied, Err(FsError::Unwritable { .. })),
                "{case}, {name}: {copied:?}"
            );
            user.write("a/c/.part", &shard, false);
            let (from, to) = (user.parent("a/c/.part").unwrap(), user.made_parent(&path));
            let renamed = fs.rename(from, to, false, &CALLER);
            assert!(
                matches!(renamed, Err(FsError::Unwritable { .. })),
                "{case}, {name}: {renamed:?}"
            );
            user.unlink("a/c/.part");
            let expected = (name != 5).then_some(vec![name; 4]);
            assert_eq!(user.read(&path), expected, "{case}, {name}");
        }
        // Any other bytes are a chunk: of the length of an index, with a checksum of their own, with small numbers.
        let mut other = shard(0);
        other[0] ^= 1;
        other.push(0);
        let zeros = |nbytes: usize| vec![0; nbytes];
        let checked = |body: Vec<u8>| [&*body, &crc32c::crc32c(&body).to_le_bytes()].concat();
        let pairs: Vec<u8> = [0_u64, 16].repeat(4).into_iter().flat_map(u64::to_le_bytes).collect();
        let mut all = vec![other, pairs.clone(), pairs.repeat(2), checked(pairs.clone())];
        all.push([&*pairs, &zeros(64)].concat());
        all.extend([64, 68, 80, 128, 132].map(zeros));
        all.extend([64, 128].map(|nbytes| checked(zeros(nbytes))));
        all.extend([checked(vec![0xff; 64]), [zeros(64), checked(zeros(64))].concat()]);
        for content in all {
            user.write("a/c/5", &content, true);
            assert_eq!(user.read("a/c/5"), Some(content), "{case}");
        }
        user.unlink("a/c/5");
        assert_eq!(fs.end_commits(), 0, "{case}");
        let later = mounted_without_rules(&storage);
        let later = User(&later);
        for n in [0_u8, 1, 2, 3, 8] {
            assert_eq!(later.read(&format!("a/c/{n}")), Some(vec![n; 4]), "{case}, {n}");
        }
    }
}

#[test]
fn at_level_0_sharded_arrays_are_changed_as_they_are_stored() {
    let (mut document, shards) = sharded("a");
    let storage = source();
    let described = |array: &Value| consolidated(&[("a", array)]).to_string();
    storage.replace("zarr.json", described(&document));
    storage.replace("a/zarr.json", document.to_string());
    shards.iter().for_each(|(path, bytes)| storage.replace(path, bytes.clone()));
    let config = shardfs::fs::FsConfig { writable: true, level: Some(0), ..Default::default() };
    let fs = Fs::new(storage.clone(), config, Arc::default()).unwrap();
    let user = User(&fs);
    document["attributes"] = json!({"b": 2});
    for path in ["a/zarr.json", "b/zarr.json"] {
        user.write(path, document.to_string().as_bytes(), false);
        assert_eq!(shown(&user, path), document);
    }
    user.write("zarr.json", described(&document).as_bytes(), false);
    assert_eq!(stored(&storage, "zarr.json"), Some(described(&document).into_bytes()));
    shards.iter().for_each(|(path, bytes)| user.write(path, bytes, false));
    assert_eq!(user.read(".shardfs/not-shown.txt"), Some(Vec::new()));
    assert_eq!(fs.end_commits(), 0);
    has_chunks(&storage, "a");
}

/// Other mounts, or other programs, put an array of chunk files where one was made sharded.
#[test]
fn others_arrays_are_not_taken_for_one_that_was_made_sharded_before() {
    let (document, _) = sharded("a");
    let storage = source();
    let fs = mounted(&storage);
    let user = User(&fs);
    user.write("a/zarr.json", document.to_string().as_bytes(), false);
    storage.replace("a/zarr.json", crate::new_arrays::document().to_string());
    storage.replace("a/c/1", [1; 4]);
    is_refused(&user, "a/zarr.json", &document.to_string());
    assert_eq!(shown(&user, "a/zarr.json"), crate::new_arrays::document());
    assert_eq!(user.read(".shardfs/not-shown.txt"), Some(Vec::new()));
    assert_eq!(user.read("a/c/1"), Some(vec![1; 4]));
    assert_eq!(fs.end_commits(), 0);
}

/// A group is read while arrays are made that it describes.
#[test]
fn groups_never_describe_it_as_it_was_shown_before() {
    let (document, _) = sharded("a");
    let storage = source();
    let names: Vec<String> = (0..60).map(|n| format!("a{n}")).collect();
    let described: Vec<_> = names.iter().map(|name| (name.as_str(), &document)).collect();
    storage.replace("zarr.json", consolidated(&described).to_string());
    let fs = mount_trusting_long(&storage);
    let user = User(&fs);
    let is_ended = std::sync::atomic::AtomicBool::new(false);
    let ino = user.ino("zarr.json").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_ended.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(fs.getattr(ino, None).is_ok());
                }
            });
        }
        for (n, name) in names.iter().enumerate() {
            user.write(&format!("{name}/zarr.json"), document.to_string().as_bytes(), false);
            let sharded = whole(&fs, ino)["consolidated_metadata"]["metadata"]
                .as_object()
                .unwrap()
                .values()
                .filter(|node| node["codecs"] == document["codecs"])
                .count();
            assert_eq!(sharded, n + 1);
        }
        is_ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

fn mount_trusting_long(storage: &Arc<MemoryStorage>) -> Fs {
    let store = shardfs::store::StoreConfig {
        trusted: std::time::Duration::from_secs(3600),
        ..Default::default()
    };
    let config = shardfs::fs::FsConfig { writable: true, store, ..Default::default() };
    Fs::new(storage.clone(), config, Arc::default()).unwrap()
}

fn whole(fs: &Fs, ino: u64) -> Value {
    let opened = fs.open(ino).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let read = fs.read(ino, Some(opened.handle), 0, &mut bytes).unwrap();
    fs.release(opened.handle);
    serde_json::from_slice(&bytes[..read]).unwrap()
}
