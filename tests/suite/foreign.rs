//! Files of other formats, made byte by byte, as a mount shows them.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;
use shardfs::format::digest::Digest;
use shardfs::fs::{Caller, Fs, FsConfig, Listing, OpenHow, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::view::inode::ROOT;

use crate::support::foreign::{
    Found, Layout, TEXT, bcolz, blosc, bloscpack, chunks, json_of, shown,
};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

fn mount(storage: &Arc<MemoryStorage>, file: Option<&str>) -> Result<Fs, String> {
    mount_with(storage, file, StoreConfig::default())
}

fn mount_with(
    storage: &Arc<MemoryStorage>,
    file: Option<&str>,
    store: StoreConfig,
) -> Result<Fs, String> {
    let store = StoreConfig { trusted: Duration::ZERO, ..store };
    let config = FsConfig { store, file: file.map(Into::into), ..FsConfig::default() };
    Fs::new(storage.clone(), config, Arc::new(Stats::default())).map_err(|e| e.to_string())
}

fn expected() -> Found {
    (0..).zip(chunks()).map(|(n, chunk)| (format!("c/{n}"), Ok(chunk))).collect()
}

fn layouts() -> impl Iterator<Item = Layout> {
    let metadata = [None, Some(false), Some(true)];
    (0..9).flat_map(move |digest| {
        [false, true].into_iter().flat_map(move |offsets| {
            metadata.into_iter().map(move |metadata| Layout {
                digest,
                offsets,
                metadata,
                known: true,
            })
        })
    })
}

#[test]
fn a_bloscpack_file_is_shown_chunk_by_chunk_in_every_layout() {
    for layout in layouts() {
        let storage = Arc::new(MemoryStorage::default());
        storage.replace("x.blp", bloscpack(layout));
        storage.replace("beside.txt", *b"not shown");
        let mut found = shown(&mount(&storage, Some("x.blp")).unwrap());
        let header = json_of(&mut found, "header.json");
        assert_eq!((&header["nchunks"], &header["typesize"]), (&json!(5), &json!(8)));
        if layout.metadata.is_some() {
            assert_eq!(found.remove("metadata.json"), Some(Ok(TEXT.into())));
            let zarr = json_of(&mut found, "zarr.json");
            assert_eq!((&zarr["shape"], &zarr["data_type"]), (&json!([14]), &json!("int64")));
            assert_eq!(zarr["chunk_grid"]["configuration"]["chunk_shape"], json!([3]));
        }
        assert_eq!(found, expected());
    }
}

#[test]
fn an_array_that_is_made_in_a_directory_which_is_mounted_is_noticed() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "there/");
    storage.replace("new/notes", *b"none yet");
    let fs = mount(&storage, None).unwrap();
    assert!(shown(&fs).contains_key("there/zarr.json"));
    assert!(!shown(&fs).contains_key("new/zarr.json"));
    bcolz(&storage, "new/");
    assert!(shown(&fs).contains_key("new/zarr.json"));
}

#[test]
fn chunks_of_unknown_number_are_found_one_after_the_other() {
    let layout = Layout { digest: 1, offsets: false, metadata: None, known: false };
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("x.blp", bloscpack(layout));
    let mut found = shown(&mount(&storage, Some("x.blp")).unwrap());
    assert_eq!(json_of(&mut found, "header.json")["nchunks"], json!(-1));
    assert_eq!(found, expected());
}

#[test]
fn a_byte_that_was_changed_is_an_error_where_there_is_a_checksum() {
    for digest in 1..9 {
        let storage = Arc::new(MemoryStorage::default());
        let layout = Layout { digest, offsets: true, metadata: None, known: true };
        storage.replace("x.blp", bloscpack(layout));
        let fs = mount(&storage, Some("x.blp")).unwrap();
        let first = 32 + 8 * 8;
        storage.change("x.blp", |bytes| bytes[first + 20] ^= 1);
        let mut found = shown(&fs);
        found.remove("header.json");
        assert_eq!(found.remove("c/0"), Some(Err(libc::EIO)));
        let mut others = expected();
        others.remove("c/0");
        assert_eq!(found, others);
    }
}

#[test]
fn behind_a_damaged_chunk_none_is_found_without_offsets() {
    for offsets in [false, true] {
        let storage = Arc::new(MemoryStorage::default());
        let layout = Layout { digest: 0, offsets, metadata: None, known: true };
        storage.replace("x.blp", bloscpack(layout));
        let first = 32 + if offsets { 8 * 8 } else { 0 };
        // The length of the second chunk.
        let second = first + chunks()[0].len() + 12;
        storage.change("x.blp", |bytes| bytes[second..second + 4].fill(0xff));
        let mut found = shown(&mount(&storage, Some("x.blp")).unwrap());
        found.remove("header.json");
        let bad = found.values().filter(|bytes| bytes.is_err()).count();
        assert_eq!((found.len(), bad), (5, if offsets { 1 } else { 4 }));
        assert_eq!(found["c/0"], Ok(chunks()[0].clone()));
    }
}

#[test]
fn a_file_that_is_replaced_shows_its_new_chunks() {
    let storage = Arc::new(MemoryStorage::default());
    let layout = Layout { digest: 2, offsets: true, metadata: Some(false), known: true };
    storage.replace("x.blp", bloscpack(layout));
    let fs = mount(&storage, Some("x.blp")).unwrap();
    assert_eq!(shown(&fs).len(), 8);
    storage.replace("x.blp", bloscpack(Layout { metadata: None, digest: 0, ..layout }));
    let mut found = shown(&fs);
    found.remove("header.json");
    assert_eq!(found, expected());
}

#[test]
fn what_is_no_bloscpack_file_is_refused_with_the_reason() {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("x.blp", *b"PK\x03\x04");
    assert_eq!(mount(&storage, Some("x.blp")).err().unwrap(), "it does not begin with \"blpk\"");
    let layout = Layout { digest: 0, offsets: true, metadata: Some(false), known: true };
    let mut damaged = bloscpack(layout);
    damaged[70] ^= 1;
    storage.replace("x.blp", damaged);
    let refused = mount(&storage, Some("x.blp")).err().unwrap();
    assert_eq!(refused, "metadata: its checksum does not match");
}

#[test]
fn a_bcolz_directory_is_shown_as_chunks_under_one_numbering() {
    for directory in ["", "table/x/"] {
        let storage = Arc::new(MemoryStorage::default());
        bcolz(&storage, directory);
        storage.replace("zarr.json", br#"{"zarr_format": 3, "node_type": "group"}"#.to_vec());
        if directory.is_empty() {
            storage.remove("zarr.json");
        }
        let mut found = shown(&mount(&storage, None).unwrap());
        let zarr = json_of(&mut found, &format!("{directory}zarr.json"));
        assert_eq!((&zarr["shape"], &zarr["fill_value"]), (&json!([5, 3]), &json!(0.5)));
        assert_eq!(zarr["attributes"], json!({"unit": "m"}));
        for (number, rows) in [2, 2, 1].into_iter().enumerate() {
            let expected = blosc(&vec![u8::try_from(number).unwrap(); rows * 24]);
            let chunk = found.remove(&format!("{directory}c/{number}/0"));
            assert_eq!(chunk, Some(Ok(expected)), "{directory}");
        }
        let names = ["__attrs__", "meta/sizes", "meta/storage"];
        let names = names.map(|name| format!("{directory}{name}"));
        found.remove("zarr.json");
        assert_eq!(found.into_keys().collect::<Vec<_>>(), names);
    }
}

/// As the design document has it: files of two chunks each, numbered from 1.
#[test]
fn superchunks_of_many_chunks_are_shown_under_one_numbering() {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("meta/sizes", br#"{"shape": [9]}"#.to_vec());
    storage.replace("meta/storage", br#"{"dtype": "int64", "chunklen": 3}"#.to_vec());
    storage.replace("meta/attributes", br#"{"unit": "m"}"#.to_vec());
    let superchunk = |numbers: &[u8]| {
        let mut file = b"blpk\x03\0\x01\x08".to_vec();
        file.extend([24_i32, 24].iter().flat_map(|n| n.to_le_bytes()));
        file.extend([numbers.len() as u64, 0].iter().flat_map(|n| n.to_le_bytes()));
        for number in numbers {
            let chunk = blosc(&[*number; 24]);
            file.extend(&chunk);
            file.extend(Digest::Adler32.of(&chunk));
        }
        file
    };
    storage.replace("data/__1__.bin", superchunk(&[0, 1]));
    storage.replace("data/__2__.bin", superchunk(&[2]));
    let mut found = shown(&mount(&storage, None).unwrap());
    let zarr = json_of(&mut found, "zarr.json");
    assert_eq!((&zarr["shape"], &zarr["attributes"]), (&json!([9]), &json!({"unit": "m"})));
    for number in 0..3 {
        assert_eq!(found.remove(&format!("c/{number}")), Some(Ok(blosc(&[number; 24]))));
    }
    let names = ["meta/attributes", "meta/sizes", "meta/storage"];
    assert_eq!(found.into_keys().collect::<Vec<_>>(), names);
}

/// As the design document has records: a directory for each field, and one set of documents.
#[test]
fn columns_below_data_are_arrays_of_their_own() {
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("t/meta/sizes", r#"{"shape": [9], "nbytes": 108, "cbytes": 60}"#);
    storage.replace(
        "t/meta/storage",
        r#"{"dtype": "[('a', '<i4'), ('b', '<f8')]", "chunklen": 4, "dflt": [1, 2]}"#,
    );
    let superchunk =
        |bytes: &[u8]| [&b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0"[..], &blosc(bytes)].concat();
    for number in 0..3_u8 {
        let rows = if number < 2 { 4 } else { 1 };
        let (a, b) = (vec![number; 4 * rows], vec![number; 8 * rows]);
        storage.replace(&format!("t/data/a/__{number}.blp"), superchunk(&a));
        storage.replace(&format!("t/data/b/__{number}.blp"), superchunk(&b));
    }
    storage.replace("t/data/b/notes", "text");
    storage.replace("t/data/other/file", "text");
    let mut found = shown(&mount(&storage, None).unwrap());
    for (column, data_type, nbytes) in [("a", "int32", 4), ("b", "float64", 8)] {
        let zarr = json_of(&mut found, &format!("t/data/{column}/zarr.json"));
        assert_eq!((&zarr["shape"], &zarr["data_type"]), (&json!([9]), &json!(data_type)));
        assert_eq!(zarr["fill_value"], json!(if column == "a" { 1 } else { 2 }));
        for number in 0..3_u8 {
            let rows = if number < 2 { 4 } else { 1 };
            let chunk = blosc(&vec![number; nbytes * rows]);
            assert_eq!(found.remove(&format!("t/data/{column}/c/{number}")), Some(Ok(chunk)));
        }
    }
    let names = ["t/data/b/notes", "t/data/other/file", "t/meta/sizes", "t/meta/storage"];
    assert_eq!(found.into_keys().collect::<Vec<_>>(), names);
}

#[test]
fn a_superchunk_that_is_missing_or_damaged_is_damage_to_its_chunk_and_no_other() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    storage.remove("data/__0.blp");
    storage.change("data/__1.blp", |bytes| bytes[8] = 2);
    let found = shown(&mount(&storage, None).unwrap());
    assert_eq!(found["c/0/0"], Err(libc::EIO));
    assert_eq!(found["c/1/0"], Err(libc::EIO));
    assert!(found["c/2/0"].is_ok());
}

#[test]
fn a_short_last_chunk_is_filled_up_where_that_is_asked_for() {
    let padding = || StoreConfig { pad_edge: true, ..StoreConfig::default() };
    for digest in [0, 3] {
        let storage = Arc::new(MemoryStorage::default());
        let layout = Layout { digest, offsets: true, metadata: None, known: true };
        storage.replace("x.blp", bloscpack(layout));
        let mut found = shown(&mount_with(&storage, Some("x.blp"), padding()).unwrap());
        found.remove("header.json");
        let mut whole = expected();
        let filled = [[9; 16].as_slice(), &[0; 8]].concat();
        whole.insert("c/4".to_owned(), Ok(blosc(&filled)));
        assert_eq!(found, whole);
    }
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    let found = shown(&mount_with(&storage, None, padding()).unwrap());
    let filled = [[2; 24].as_slice(), &[0; 24]].concat();
    assert_eq!(found["c/2/0"], Ok(blosc(&filled)));
    assert_eq!(found["c/1/0"], Ok(blosc(&[1; 48])));
}

/// Every byte changed, and every length: what is shown are chunks or errors, and nothing stops the
/// reader.
#[test]
fn no_damage_to_a_file_does_more_than_that() {
    for layout in [
        Layout { digest: 1, offsets: true, metadata: Some(false), known: true },
        Layout { digest: 0, offsets: false, metadata: Some(true), known: true },
        Layout { digest: 2, offsets: false, metadata: None, known: false },
    ] {
        let sound = bloscpack(layout);
        let storage = Arc::new(MemoryStorage::default());
        let look = |bytes: Vec<u8>| {
            storage.replace("x.blp", bytes);
            let store = StoreConfig { pad_edge: true, ..StoreConfig::default() };
            mount_with(&storage, Some("x.blp"), store).map(|fs| shown(&fs)).unwrap_or_default()
        };
        for at in 0..sound.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = sound.clone();
                damaged[at] = value;
                let found = look(damaged);
                // A chunk that is shown is as it was, unless the header says that there are no
                // checksums.
                if layout.digest != 0 && at != 6 {
                    let chunks = chunks();
                    for (number, chunk) in chunks.iter().enumerate().take(4) {
                        if let Some(Ok(bytes)) = found.get(&format!("c/{number}")) {
                            let known = chunks.iter().any(|chunk| chunk == bytes);
                            assert!(known, "byte {at} = {value}: {bytes:?} for {chunk:?}");
                        }
                    }
                }
            }
            look(sound[..at].to_vec());
        }
    }
}

/// The view has made it: it is not in the source.
#[test]
fn a_document_of_the_view_alone_cannot_be_changed() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    let config = FsConfig { writable: true, ..FsConfig::default() };
    let fs = Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap();
    let before = storage.files();
    let zarr = fs.lookup(ROOT, OsStr::new("zarr.json")).unwrap().unwrap().attr.ino;
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    assert_eq!(fs.open_for(zarr, how, &Caller::own()).unwrap_err().errno(), libc::EROFS);
    assert_eq!(
        fs.unlink(ROOT, OsStr::new("zarr.json"), &Caller::own()).unwrap_err().errno(),
        libc::EROFS
    );
    assert!(fs.lookup(ROOT, OsStr::new("zarr.json")).unwrap().is_some());
    assert_eq!(before, storage.files());
}

/// The names in a directory after a position, each with the position after it.
fn listed(fs: &Fs, ino: u64, from: u64) -> Vec<(String, u64)> {
    let mut names = Vec::new();
    fs.readdir((ino, None), from, Listing::Names, &mut |entry| {
        names.push((entry.name.to_str().unwrap().to_owned(), entry.next));
        ControlFlow::Continue(())
    })
    .unwrap();
    names.retain(|(name, _)| !name.starts_with('.'));
    names
}

#[test]
fn all_chunks_of_a_table_are_removed_in_the_order_in_which_they_are_listed() {
    for commits_between in [false, true] {
        let storage = Arc::new(MemoryStorage::default());
        bcolz(&storage, "");
        let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
        let writing = WriteConfig { sync: commits_between, ..WriteConfig::default() };
        let config = FsConfig { store, writing, writable: true, ..FsConfig::default() };
        let fs = Fs::new(storage.clone(), config, Arc::default()).unwrap();
        let all = fs.lookup(ROOT, OsStr::new("c")).unwrap().unwrap().attr.ino;
        let names: Vec<String> = listed(&fs, all, 0).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["2", "1", "0"]);
        // A name far behind the last chunk does not make the listing try all between them.
        fs.mkdir(all, OsStr::new("1000000"), 0o755, &CALLER).unwrap();
        let names: Vec<String> = listed(&fs, all, 0).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["1000000", "2", "1", "0"]);
        fs.rmdir(all, OsStr::new("1000000"), &CALLER).unwrap();
        // One by one, as a listing goes on after the names before were removed.
        let mut position = 0;
        while let Some((name, next)) = listed(&fs, all, position).into_iter().next() {
            let directory = fs.lookup(all, OsStr::new(&name)).unwrap().unwrap().attr.ino;
            fs.unlink(directory, OsStr::new("0"), &CALLER).unwrap();
            fs.rmdir(all, OsStr::new(&name), &CALLER).unwrap();
            position = next;
        }
        assert_eq!(listed(&fs, all, 0), []);
        fs.fsyncdir(ROOT, None).unwrap();
        let left: Vec<_> = storage.files().into_iter().map(|(path, ..)| path).collect();
        assert!(!left.iter().any(|path| path.starts_with("data")), "{left:?}");
    }
}

#[test]
fn a_chunk_of_a_table_that_is_removed_while_it_is_stored_is_not_there_again() {
    for nth in 1..30 {
        let storage = Arc::new(MemoryStorage::default());
        bcolz(&storage, "");
        let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
        let config = FsConfig { store, writable: true, ..FsConfig::default() };
        let fs = Arc::new(Fs::new(storage.clone(), config, Arc::default()).unwrap());
        let all = fs.lookup(ROOT, OsStr::new("c")).unwrap().unwrap().attr.ino;
        let directory = fs.mkdir(all, OsStr::new("3"), 0o755, &CALLER).unwrap().attr.ino;
        let how = OpenHow { write: true, ..OpenHow::default() };
        let name = OsStr::new("0");
        let (entry, open) = fs.create(directory, name, 0o644, how, &CALLER).unwrap();
        let chunk = blosc(&[3; 48]);
        // The last chunk must be whole before there is another one.
        let last = fs.lookup(all, OsStr::new("2")).unwrap().unwrap().attr.ino;
        let last = fs.lookup(last, name).unwrap().unwrap().attr.ino;
        let whole = fs.open_for(last, OpenHow { truncate: true, ..how }, &CALLER).unwrap();
        fs.write(last, whole.handle, 0, &chunk).unwrap();
        fs.fsync(last, whole.handle).unwrap();
        fs.release(whole.handle);
        fs.write(entry.attr.ino, open.handle, 0, &chunk).unwrap();
        fs.flush(entry.attr.ino, open.handle).unwrap();
        fs.release(open.handle);
        let (sender, ended) = channel();
        let (other, is_reached) = (Arc::clone(&fs), Arc::new(AtomicBool::new(false)));
        let reaches = Arc::clone(&is_reached);
        storage.act_before(nth, move || {
            reaches.store(true, Ordering::Relaxed);
            let (removed, then) = channel();
            std::thread::spawn(move || {
                sender.send(other.unlink(directory, OsStr::new("0"), &CALLER).is_ok()).unwrap();
                let _ = removed.send(());
            });
            let _ = then.recv_timeout(Duration::from_millis(50));
        });
        let committed = fs.commit(Path::new(""));
        if !is_reached.load(Ordering::Relaxed) {
            committed.unwrap();
            assert!(nth > 3);
            return;
        }
        let removed = ended.recv_timeout(Duration::from_secs(60)).unwrap();
        fs.commit(Path::new("")).unwrap();
        assert!(removed);
        assert!(fs.lookup(directory, name).unwrap().is_none(), "{nth}");
    }
}

#[test]
fn what_is_only_read_is_listed_in_ascending_order() {
    let storage = Arc::new(MemoryStorage::default());
    bcolz(&storage, "");
    let fs = mount(&storage, None).unwrap();
    let all = fs.lookup(ROOT, OsStr::new("c")).unwrap().unwrap().attr.ino;
    let names: Vec<String> = listed(&fs, all, 0).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["0", "1", "2"]);
}
