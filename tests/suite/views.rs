//! The same source in several views: what they show of each other's chunks, and what is written to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use shardfs::format::sample;
use shardfs::format::zarr2::Missing;
use shardfs::fs::{
    Caller, Fs, FsConfig, FsError, Listing, OpenHow, Pages, View, ViewConfig, Views,
};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{FileKind, Storage};
use shardfs::view::inode::ROOT;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const SHAPE: [usize; 3] = [64, 112, 120];
const CHUNK: usize = 16;
/// Bytes of a decoded chunk.
const NBYTES: usize = CHUNK * CHUNK * CHUNK * 2;
/// An item that no chunk of the sample holds.
const OTHER: [u8; 2] = [0x34, 0x12];

/// A mount of several views of the sample, which writes a group with the array `waves`.
struct Mount {
    storage: Arc<MemoryStorage>,
    views: Views,
}

fn sample_files() -> Vec<(String, Vec<u8>)> {
    sample::files()
}

impl Mount {
    fn new(files: Vec<(String, Vec<u8>)>, view: ViewConfig) -> Self {
        let above = |path: &str| Path::new(path).ancestors().skip(1).map(PathBuf::from).collect();
        let directories = files.iter().flat_map(|(path, _)| -> Vec<PathBuf> { above(path) });
        let directories = directories.collect();
        let files =
            files.into_iter().zip(1..).map(|((path, content), ino)| (path.into(), ino, content));
        let storage = Arc::new(MemoryStorage::with_files(files, directories));
        let views = View::NAMES.map(|(_, name)| {
            let view = ViewConfig { view: name, is_one_of_several: true, ..view };
            // Nothing is believed: each request looks.
            let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
            let writable = name != View::Flat;
            let config = FsConfig { view, writable, store, ..FsConfig::default() };
            let storage = Arc::clone(&storage) as Arc<dyn Storage>;
            Arc::new(Fs::new(storage, config, Arc::new(Stats::default())).unwrap())
        });
        Self { storage, views: Views::new(views.to_vec()) }
    }

    fn sample() -> Self {
        Self::new(sample_files(), ViewConfig::default())
    }

    /// The inode number that a path leads to, its kind and its length.
    fn find(&self, path: &str) -> Result<(u64, FileKind, u64), i32> {
        let mut found = (ROOT, FileKind::Directory, 0);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let entry =
                self.views.lookup(found.0, OsStr::new(name), &CALLER).map_err(|e| e.errno())?;
            let attr = entry.ok_or(libc::ENOENT)?.attr;
            found = (attr.ino, attr.kind, attr.size);
        }
        Ok(found)
    }

    fn on<T>(&self, ino: u64, act: impl FnOnce(&Fs, u64) -> Result<T, FsError>) -> Result<T, i32> {
        let place = self.views.at(ino).map_err(|error| error.errno())?;
        act(place.fs, place.ino).map_err(|error| error.errno())
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, i32> {
        let (ino, _, size) = self.find(path)?;
        let opened = self.on(ino, |fs, ino| fs.open_for(ino, OpenHow::default(), &CALLER))?;
        let mut content = Vec::new();
        let mut buffer = vec![0; 50_000];
        loop {
            let at = content.len() as u64;
            let read =
                self.on(ino, |fs, ino| fs.read(ino, Some(opened.handle), at, &mut buffer))?;
            content.extend_from_slice(&buffer[..read]);
            if read < buffer.len() {
                break;
            }
        }
        self.on(ino, |fs, _| {
            fs.release(opened.handle);
            Ok(())
        })?;
        assert_eq!(content.len() as u64, size, "{path}");
        Ok(content)
    }

    /// Writes a file as cp does; the error is that of its close.
    fn write(&self, path: &str, content: &[u8]) -> Result<(), i32> {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let (parent, ..) = self.find(directory)?;
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let place = self.views.at(parent).map_err(|error| error.errno())?;
        let created = place.fs.create(place.ino, OsStr::new(name), 0o644, how, &CALLER);
        let (entry, opened) = created.map_err(|error| error.errno())?;
        let ino = place.outer(entry.attr.ino);
        self.on(ino, |fs, ino| fs.write(ino, opened.handle, 0, content))?;
        let closed = self.on(ino, |fs, ino| fs.flush(ino, opened.handle));
        self.on(ino, |fs, _| {
            fs.release(opened.handle);
            Ok(())
        })?;
        closed
    }

    fn sync(&self) -> Result<(), i32> {
        self.views.fsyncdir(ROOT, 0).map_err(|error| error.errno())
    }

    fn list(&self, path: &str) -> BTreeSet<String> {
        let (ino, ..) = self.find(path).unwrap();
        let mut names = BTreeSet::new();
        let mut sink = |entry: &shardfs::fs::DirEntry<'_>| {
            names.insert(entry.name.to_str().unwrap().to_owned());
            ControlFlow::Continue(())
        };
        self.views.readdir((ino, None), 0, Listing::Entries, &CALLER, &mut sink).unwrap();
        names.into_iter().filter(|name| !name.starts_with('.') || name.starts_with(".z")).collect()
    }

    /// Every file below a path, by its path from there.
    fn files(&self, path: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut directories = vec![String::new()];
        while let Some(directory) = directories.pop() {
            for name in self.list(&format!("{path}/{directory}")) {
                let below = format!("{directory}{name}");
                match self.find(&format!("{path}/{below}")).unwrap().1 {
                    FileKind::Directory => directories.push(below + "/"),
                    _ => drop(found.insert(below)),
                }
            }
        }
        found
    }
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut decoded).unwrap();
    decoded
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(5));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The decoded chunks of the sample, by key, out of the view of encoded ones.
fn chunks(mount: &Mount) -> BTreeMap<String, Vec<u8>> {
    let keys = mount.files("zarr3/waves").into_iter().filter(|name| name.starts_with("c/"));
    keys.map(|key| (key.clone(), gunzip(&mount.read(&format!("zarr3/waves/{key}")).unwrap())))
        .collect()
}

/// The whole array made of its chunks.
fn whole(chunks: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut array = Vec::new();
    let [depth, height, width] = SHAPE;
    for (z, y, x) in (0..depth)
        .flat_map(|z| (0..height).map(move |y| (z, y)))
        .flat_map(|(z, y)| (0..width).map(move |x| (z, y, x)))
    {
        let key = format!("c/{}/{}/{}", z / CHUNK, y / CHUNK, x / CHUNK);
        let at = ((z % CHUNK * CHUNK + y % CHUNK) * CHUNK + x % CHUNK) * 2;
        array.extend_from_slice(chunks.get(&key).map_or(&[0, 0], |chunk| &chunk[at..at + 2]));
    }
    array
}

#[test]
fn all_views_show_the_same_chunks() {
    let mount = Mount::sample();
    let chunks = chunks(&mount);
    assert!(chunks.len() > 100);
    let with = |suffix: &str| -> BTreeSet<String> {
        let names = chunks.keys().map(|key| format!("{key}{suffix}"));
        names.chain(["array.json".to_owned()]).collect()
    };
    assert_eq!(mount.files("raw/waves"), with(".raw"));
    assert_eq!(mount.files("npy/waves"), with(".npy"));
    for (key, chunk) in &chunks {
        assert_eq!(&mount.read(&format!("raw/waves/{key}.raw")).unwrap(), chunk);
        let npy = mount.read(&format!("npy/waves/{key}.npy")).unwrap();
        assert!(npy.starts_with(b"\x93NUMPY\x01\x00") && npy.ends_with(chunk));
        let of_v2 = format!("zarr2/waves/{}", &key[2..]);
        assert_eq!(gunzip(&mount.read(&of_v2).unwrap()), *chunk);
    }
    let array = whole(&chunks);
    assert_eq!(mount.read("flat/waves/array.raw").unwrap(), array);
    assert!(mount.read("flat/waves/array.npy").unwrap().ends_with(&array));
    let names = ["array.json", "array.mhd", "array.nhdr", "array.npy", "array.raw"];
    assert_eq!(mount.list("flat/waves"), names.map(str::to_owned).into());
    assert_eq!(mount.list(""), View::NAMES.map(|(name, _)| name.to_owned()).into());
    assert!(
        mount.list("zarr2").contains(".zgroup") && mount.list("zarr2/waves").contains(".zarray")
    );
}

#[test]
fn inode_numbers_of_views_are_all_different() {
    let mount = Mount::sample();
    let mut seen = BTreeSet::new();
    for (name, _) in View::NAMES {
        let files = mount.files(name).into_iter().map(|file| format!("{name}/{file}"));
        for path in files.chain([name.to_owned(), format!("{name}/waves")]) {
            assert!(seen.insert(mount.find(&path).unwrap().0), "{path}");
        }
    }
}

#[test]
fn edges_are_clipped_and_missing_chunks_filled() {
    let view = ViewConfig { clip: true, missing: Missing::Fill, ..ViewConfig::default() };
    let mount = Mount::new(sample_files(), view);
    let all = SHAPE.map(|extent| extent.div_ceil(CHUNK)).iter().product::<usize>();
    assert_eq!(mount.files("raw/waves").len(), all + 1);
    // The last of 120 elements along the last axis are 8; the sample leaves 0/0/6 out.
    assert_eq!(mount.read("raw/waves/c/0/0/7.raw").unwrap().len(), NBYTES / 2);
    assert_eq!(mount.read("raw/waves/c/0/0/6.raw").unwrap(), vec![0; NBYTES]);
    assert_eq!(mount.read("zarr3/waves/c/0/0/6"), Err(libc::ENOENT));
}

/// Writes an encoded chunk of the sample, whatever it is, through the view that decodes nothing.
fn put_encoded(mount: &Mount, key: &str, encoded: &[u8]) {
    mount.write(&format!("zarr3/waves/{key}"), encoded).unwrap();
    mount.sync().unwrap();
}

#[test]
fn a_chunk_that_cannot_be_decoded_is_an_error_and_no_other_is() {
    let mount = Mount::sample();
    let chunk = gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap());
    let mut torn = gzip(&chunk);
    torn.truncate(torn.len() / 2);
    let mut flipped = gzip(&chunk);
    let at = flipped.len() - 6;
    flipped[at] ^= 1;
    let bomb = gzip(&vec![0; 64 << 20]);
    for bad in [torn, flipped, bomb, gzip(&chunk[1..]), gzip(&[&chunk[..], &[0]].concat()), vec![]]
    {
        put_encoded(&mount, "c/0/0/0", &bad);
        for path in ["raw/waves/c/0/0/0.raw", "npy/waves/c/0/0/0.npy", "flat/waves/array.raw"] {
            assert_eq!(mount.read(path), Err(libc::EIO), "{path}");
        }
        // It is there all the same, and the others are as they were.
        assert_eq!(mount.find("raw/waves/c/0/0/0.raw").unwrap().2, NBYTES as u64);
        assert_eq!(mount.read("zarr2/waves/0/0/0").unwrap(), bad);
        mount.read("raw/waves/c/0/0/1.raw").unwrap();
    }
    put_encoded(&mount, "c/0/0/0", &gzip(&chunk));
    assert_eq!(mount.read("raw/waves/c/0/0/0.raw").unwrap(), chunk);
}

#[test]
fn an_array_whose_codecs_are_not_known_is_shown_where_nothing_is_decoded() {
    let mut files = sample_files();
    for (path, content) in &mut files {
        if path == "waves/zarr.json" {
            *content =
                String::from_utf8(content.clone()).unwrap().replace("gzip", "mystery").into();
        }
    }
    let mount = Mount::new(files, ViewConfig::default());
    for view in ["npy", "raw", "flat"] {
        assert_eq!(mount.list(view), ["group.json".to_owned()].into());
        assert_eq!(mount.find(&format!("{view}/waves")), Err(libc::ENOENT));
    }
    mount.read("zarr3/waves/c/0/0/0").unwrap();
    // As it is stored: its shards.
    assert!(mount.list("zarr2/waves").contains("zarr.json"));
    assert_eq!(mount.read("zarr2/waves/c/0/0/0").unwrap(), sample_shard());
}

fn sample_shard() -> Vec<u8> {
    let found = sample_files().into_iter().find(|(path, _)| path == "waves/c/0/0/0");
    found.unwrap().1
}

#[test]
fn what_is_written_to_a_decoded_chunk_is_seen_in_all_views() {
    let mount = Mount::sample();
    let (raw, npy) = (OTHER.repeat(NBYTES / 2), [0x35, 0x12].repeat(NBYTES / 2));
    let header = mount.read("npy/waves/c/0/0/0.npy").unwrap()[..128].to_vec();
    mount.write("raw/waves/c/0/0/0.raw", &raw).unwrap();
    mount.write("npy/waves/c/0/0/1.npy", &[&header, &npy[..]].concat()).unwrap();
    mount.sync().unwrap();
    assert_eq!(gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap()), raw);
    assert_eq!(gunzip(&mount.read("zarr2/waves/0/0/1").unwrap()), npy);
    assert_eq!(&mount.read("flat/waves/array.raw").unwrap()[..2], OTHER);
    // One chunk, written in one view after the other.
    mount.write("npy/waves/c/0/0/0.npy", &[&header, &npy[..]].concat()).unwrap();
    mount.write("zarr2/waves/0/0/0", &gzip(&raw)).unwrap();
    mount.write("raw/waves/c/0/0/0.raw", &npy).unwrap();
    mount.sync().unwrap();
    assert_eq!(gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap()), npy);
    // Fill values are no chunk.
    mount.write("raw/waves/c/0/0/0.raw", &vec![0; NBYTES]).unwrap();
    assert_eq!(mount.find("raw/waves/c/0/0/0.raw"), Err(libc::ENOENT));
    mount.sync().unwrap();
    assert_eq!(mount.find("raw/waves/c/0/0/0.raw"), Err(libc::ENOENT));
    assert_eq!(mount.find("zarr3/waves/c/0/0/0"), Err(libc::ENOENT));
}

#[test]
fn an_array_that_is_renamed_in_one_view_takes_along_what_was_written_in_the_others() {
    let mount = Mount::sample();
    let raw = OTHER.repeat(NBYTES / 2);
    for (from, to, view) in [("waves", "moved", "zarr3"), ("moved", "again", "zarr2")] {
        mount.write(&format!("raw/{from}/c/0/0/0.raw"), &raw).unwrap();
        let (top, ..) = mount.find(view).unwrap();
        let (from, to) = (OsStr::new(from), OsStr::new(to));
        mount.on(top, |fs, top| fs.rename((top, from), (top, to), false, &CALLER)).unwrap();
    }
    mount.sync().unwrap();
    assert_eq!(gunzip(&mount.read("zarr3/again/c/0/0/0").unwrap()), raw);
    assert_eq!(mount.read("raw/again/c/0/0/0.raw"), Ok(raw));
}

#[test]
fn a_new_chunk_that_is_written_in_one_view_after_the_other_is_the_last_one() {
    let (one, other) = (OTHER.repeat(NBYTES / 2), [0x35, 0x12].repeat(NBYTES / 2));
    let mount = Mount::sample();
    mount.write("raw/waves/c/0/0/6.raw", &one).unwrap();
    mount.write("zarr2/waves/0/0/6", &gzip(&other)).unwrap();
    mount.sync().unwrap();
    assert_eq!(mount.read("raw/waves/c/0/0/6.raw").unwrap(), other);
    // Looked up in the one just before it is made in the other.
    assert_eq!(mount.find("raw/waves/c/0/1/5.raw"), Err(libc::ENOENT));
    mount.write("zarr2/waves/0/1/5", &gzip(&other)).unwrap();
    mount.write("raw/waves/c/0/1/5.raw", &one).unwrap();
    mount.sync().unwrap();
    assert_eq!(gunzip(&mount.read("zarr3/waves/c/0/1/5").unwrap()), one);
}

#[test]
fn a_whole_array_is_read_only_in_a_writable_mount() {
    let mount = Mount::sample();
    let before = mount.storage.files();
    let (parent, ..) = mount.find("flat/waves").unwrap();
    let how = OpenHow { write: true, ..OpenHow::default() };
    let name = OsStr::new("array.raw");
    let refused = |done: Result<(), i32>| assert_eq!(done, Err(libc::EROFS));
    refused(mount.write("flat/waves/array.raw", &[1]));
    refused(mount.write("flat/waves/new", &[1]));
    refused(mount.on(parent, |fs, it| fs.unlink(it, name, &CALLER)));
    refused(mount.on(parent, |fs, it| fs.mkdir(it, OsStr::new("d"), 0o755, &CALLER).map(drop)));
    refused(
        mount.on(parent, |fs, it| fs.rename((it, name), (it, OsStr::new("b")), false, &CALLER)),
    );
    let (ino, ..) = mount.find("flat/waves/array.raw").unwrap();
    refused(mount.on(ino, |fs, ino| fs.open_for(ino, how, &CALLER).map(drop)));
    let (npy, ..) = mount.find("npy/waves").unwrap();
    let removed = mount.on(npy, |fs, it| fs.unlink(it, OsStr::new("array.json"), &CALLER));
    assert_eq!(removed, Err(libc::EPERM));
    assert_eq!(mount.storage.files(), before);
}

/// As `rm -r` does it.
fn remove_tree(mount: &Mount, path: &str) {
    let (parent, ..) = mount.find(path).unwrap();
    for name in mount.list(path) {
        let below = format!("{path}/{name}");
        match mount.find(&below).unwrap().1 {
            FileKind::Directory => {
                remove_tree(mount, &below);
                mount
                    .on(parent, |fs, parent| fs.rmdir(parent, OsStr::new(&name), &CALLER))
                    .unwrap();
            }
            _ => {
                let removed = mount.on(parent, |fs, it| fs.unlink(it, OsStr::new(&name), &CALLER));
                assert_eq!(removed, Ok(()), "{below}");
            }
        }
    }
}

#[test]
fn arrays_and_groups_are_removed_in_the_view_of_zarr_2() {
    let mount = Mount::sample();
    remove_tree(&mount, "zarr2/waves");
    let (root, ..) = mount.find("zarr2").unwrap();
    mount.on(root, |fs, root| fs.rmdir(root, OsStr::new("waves"), &CALLER)).unwrap();
    for view in ["zarr2", "zarr3", "npy"] {
        assert_eq!(mount.find(&format!("{view}/waves")), Err(libc::ENOENT));
    }
    let left: Vec<_> = mount.storage.files().into_iter().map(|(path, ..)| path).collect();
    assert_eq!(left, [PathBuf::from("zarr.json")]);
}

/// The sample with a missing value, which is not its fill value.
fn sample_with_missing_value() -> Vec<(String, Vec<u8>)> {
    let mut files = sample_files();
    for (_, text) in files.iter_mut().filter(|(path, _)| path == "waves/zarr.json") {
        let document = String::from_utf8(text.clone()).unwrap();
        let attributes = "\"attributes\": {\n    \"_FillValue\": 7,";
        *text = document.replacen("\"attributes\": {", attributes, 1).into_bytes();
    }
    files
}

#[test]
fn chunks_that_do_not_exist_are_shown_in_the_view_of_zarr_2_where_fill_values_are_missing_values() {
    let mount = Mount::new(sample_with_missing_value(), ViewConfig::default());
    let zarray = String::from_utf8(mount.read("zarr2/waves/.zarray").unwrap()).unwrap();
    assert!(zarray.contains("\"fill_value\": 7,"), "{zarray}");
    let chunk = |path: &str| gunzip(&mount.read(path).unwrap());
    let (zeros, sevens) = (vec![0; NBYTES], [7, 0].repeat(NBYTES / 2));
    assert!(
        mount.list("zarr2/waves/0/0").contains("6")
            && !mount.list("zarr3/waves/c/0/0").contains("6")
    );
    assert_eq!(chunk("zarr2/waves/0/0/6"), zeros);
    // Whoever removes a chunk means missing values, whether it exists or not.
    let (parent, ..) = mount.find("zarr2/waves/0/0").unwrap();
    for name in ["5", "6"] {
        mount.on(parent, |fs, it| fs.unlink(it, OsStr::new(name), &CALLER)).unwrap();
    }
    mount.sync().unwrap();
    for key in ["0/0/5", "0/0/6"] {
        assert_eq!(chunk(&format!("zarr2/waves/{key}")), sevens);
        assert_eq!(chunk(&format!("zarr3/waves/c/{key}")), sevens);
    }
    // A part of one that does not exist is written.
    let (other, _, nbytes) = mount.find("zarr2/waves/0/1/6").unwrap();
    let how = OpenHow { write: true, ..OpenHow::default() };
    let opened = mount.on(other, |fs, ino| fs.open_for(ino, how, &CALLER)).unwrap();
    mount.on(other, |fs, ino| fs.write(ino, opened.handle, nbytes, b"!")).unwrap();
    mount.on(other, |fs, ino| fs.flush(ino, opened.handle)).unwrap();
    mount
        .on(other, |fs, _| {
            fs.release(opened.handle);
            Ok(())
        })
        .unwrap();
    let written = mount.read("zarr2/waves/0/1/6").unwrap();
    assert_eq!((written.len() as u64, written.last()), (nbytes + 1, Some(&b'!')));
    // The whole array goes all the same.
    remove_tree(&mount, "zarr2/waves");
    let (root, ..) = mount.find("zarr2").unwrap();
    mount.on(root, |fs, root| fs.rmdir(root, OsStr::new("waves"), &CALLER)).unwrap();
    assert_eq!(mount.find("zarr3/waves"), Err(libc::ENOENT));
}

#[test]
fn a_listing_of_all_chunks_shows_those_that_wait_to_be_committed() {
    let view = ViewConfig { missing: Missing::Fill, ..<_>::default() };
    let mount = Mount::new(sample_with_missing_value(), view);
    let other = OTHER.repeat(NBYTES / 2);
    for (directory, name, content) in
        [("zarr2/waves/0/0", "6", gzip(&other)), ("raw/waves/c/0/0", "6.raw", other.clone())]
    {
        let path = format!("{directory}/{name}");
        mount.write(&path, &content).unwrap();
        let (parent, ..) = mount.find(directory).unwrap();
        let mut listed = None;
        let mut sink = |entry: &shardfs::fs::DirEntry<'_>| {
            if entry.name == name {
                listed = entry.entry.map(|it| (it.attr.ino, it.attr.size));
            }
            ControlFlow::Continue(())
        };
        mount.views.readdir((parent, None), 0, Listing::Entries, &CALLER, &mut sink).unwrap();
        let (ino, _, size) = mount.find(&path).unwrap();
        assert_eq!((listed, size), (Some((ino, size)), content.len() as u64), "{path}");
        assert_eq!(mount.read(&path).unwrap(), content);
    }
}

#[test]
fn chunks_that_do_not_exist_are_absent_where_that_is_asked_for() {
    let view = ViewConfig { missing: Missing::Absent, ..<_>::default() };
    let mount = Mount::new(sample_with_missing_value(), view);
    let zarray = String::from_utf8(mount.read("zarr2/waves/.zarray").unwrap()).unwrap();
    assert!(zarray.contains("\"fill_value\": 0,"), "{zarray}");
    assert_eq!(mount.find("zarr2/waves/0/0/6"), Err(libc::ENOENT));
}

#[test]
fn fill_values_are_kept_where_that_is_asked_for() {
    let mount = Mount::new(sample_files(), ViewConfig { keep_fill: true, ..<_>::default() });
    mount.write("raw/waves/c/0/0/0.raw", &vec![0; NBYTES]).unwrap();
    mount.sync().unwrap();
    assert_eq!(gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap()), vec![0; NBYTES]);
}

#[test]
fn what_is_no_chunk_is_refused_when_it_is_closed_and_changes_nothing() {
    let mount = Mount::sample();
    let before = mount.storage.files();
    let (raw, npy) = ("raw/waves/c/0/0/0.raw", "npy/waves/c/0/0/0.npy");
    let (old_raw, old_npy) = (mount.read(raw).unwrap(), mount.read(npy).unwrap());
    let mut other_type = old_npy.clone();
    let at = other_type.windows(3).position(|three| three == b"<u2").unwrap();
    other_type[at + 1] = b'i';
    for length in [0, 1, NBYTES - 1, NBYTES + 1, 2 * NBYTES] {
        assert_eq!(mount.write(raw, &OTHER.repeat(NBYTES)[..length]), Err(libc::EINVAL));
        assert_eq!(mount.read(raw).unwrap(), old_raw);
    }
    for bad in [&other_type, &old_npy[..old_npy.len() - 1], &old_npy[1..], &old_raw] {
        assert_eq!(mount.write(npy, bad), Err(libc::EINVAL));
        assert_eq!(mount.read(npy).unwrap(), old_npy);
    }
    // One that was not there is not there after that either.
    assert_eq!(mount.write("raw/waves/c/0/0/6.raw", &[1]), Err(libc::EINVAL));
    assert_eq!(mount.find("raw/waves/c/0/0/6.raw"), Err(libc::ENOENT));
    assert!(!mount.list("raw/waves/c/0/0").contains("6.raw"));
    mount.sync().unwrap();
    let shards = |files: Vec<(_, _, Vec<u8>)>| -> Vec<Vec<u8>> {
        files.into_iter().map(|(.., content)| content).collect()
    };
    let now = mount.storage.files().into_iter();
    let now = now.filter(|(path, ..)| !path.to_str().unwrap().contains(".shardfs")).collect();
    assert_eq!(shards(now), shards(before));
}

#[test]
fn a_shard_that_others_have_changed_is_decoded_anew() {
    let mount = Mount::sample();
    let old = mount.read("raw/waves/c/0/0/0.raw").unwrap();
    let other = sample_files().into_iter().find(|(path, _)| path == "waves/c/0/1/0").unwrap().1;
    mount.storage.replace("waves/c/0/0/0", other);
    let new = mount.read("raw/waves/c/0/0/0.raw").unwrap();
    assert_ne!(new, old);
    assert_eq!(new, gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap()));
    assert_eq!(mount.read("flat/waves/array.raw").unwrap(), whole(&chunks(&mount)));
}

#[test]
fn no_chunk_of_an_array_that_has_lost_its_metadata_is_absent() {
    type Loss = fn(&MemoryStorage);
    let cut_short: Loss = |storage| storage.replace("waves/zarr.json", *b"{");
    let removed: Loss = |storage| storage.remove("waves/zarr.json");
    for lose in [cut_short, removed] {
        let mount = Mount::sample();
        // A chunk without a shard of its name, an empty one, one in a shard, and none of the grid.
        let keys = ["0/0/5", "0/0/6", "0/0/0", "9/9/9"];
        let v2 = keys.map(|key| format!("zarr2/waves/{key}"));
        let others = [("zarr3", ""), ("npy", ".npy"), ("raw", ".raw")]
            .map(|(view, suffix)| keys.map(|key| format!("{view}/waves/c/{key}{suffix}")));
        let chunks: Vec<_> = v2.into_iter().chain(others.into_iter().flatten()).collect();
        for path in &chunks {
            assert!(!matches!(mount.find(path), Err(libc::EIO)), "{path}");
        }
        lose(&mount.storage);
        for path in &chunks {
            assert_eq!(mount.find(path), Err(libc::EIO), "{path}");
        }
        for path in ["zarr3/waves/zarr.json.part", "npy/waves/c/0/empty", "zarr2/5"] {
            assert_eq!(mount.find(path), Err(libc::ENOENT), "{path}");
        }
    }
}

#[test]
fn a_decoded_chunk_whose_shard_is_replaced_while_it_is_opened_keeps_no_older_pages() {
    let shard = |path: &str| sample_files().into_iter().find(|(it, _)| it == path).unwrap().1;
    let (mut reads_new, path) = (false, "raw/waves/c/0/0/0.raw");
    for nth in 1..40 {
        // In a read-only mount whose decoded chunks do not stay.
        let storage = Mount::sample().storage;
        let view = ViewConfig { view: View::Raw, ..ViewConfig::default() };
        let trusted = Duration::ZERO;
        let store = StoreConfig { trusted, decoded_size: 0, ..StoreConfig::default() };
        let config = FsConfig { view, store, ..FsConfig::default() };
        let fs = Fs::new(storage.clone(), config, Arc::default()).unwrap();
        let look_up = |path: &str| {
            let find = |at, name| fs.lookup(at, OsStr::new(name)).unwrap().unwrap().attr.ino;
            path.split('/').skip(1).fold(ROOT, find)
        };
        let open = |path: &str| {
            let ino = look_up(path);
            let opened = fs.open(ino).unwrap();
            let mut bytes = vec![0; NBYTES];
            fs.read(ino, Some(opened.handle), 0, &mut bytes).unwrap();
            fs.release(opened.handle);
            (opened.pages, bytes, ino)
        };
        let (_, old, ino) = open(path);
        open("raw/waves/c/0/0/1.raw");
        let (disk, other) = (Arc::clone(&storage), shard("waves/c/0/1/0"));
        storage.act_before(nth, move || disk.replace("waves/c/0/0/0", other));
        // The kernel looks the name up where an open says so.
        let opened = fs.open(ino).or_else(|_| fs.open(look_up(path))).unwrap();
        let mut bytes = vec![0; NBYTES];
        let read = fs.read(ino, Some(opened.handle), 0, &mut bytes);
        if read.is_ok() && bytes != old {
            reads_new = true;
            assert_ne!(opened.pages, Pages::Kept, "lookup {nth}");
        }
    }
    assert!(reads_new);
}

#[test]
fn what_is_changed_once_the_last_commits_have_begun_is_an_error() {
    let mount = Mount::sample();
    let raw = OTHER.repeat(NBYTES / 2);
    let (parent, ..) = mount.find("raw/waves/c/0/0").unwrap();
    let how = OpenHow { write: true, truncate: true, exclusive: false };
    let place = mount.views.at(parent).unwrap();
    let create = |name: &str| place.fs.create(place.ino, OsStr::new(name), 0o644, how, &CALLER);
    let (entry, opened) = create("0.raw").unwrap();
    let ino = place.outer(entry.attr.ino);
    mount.on(ino, |fs, ino| fs.write(ino, opened.handle, 0, &raw)).unwrap();
    assert_eq!(mount.views.end(), 0);
    // A file that was open is in its shard, so its close has nothing to report.
    assert_eq!(gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap()), raw);
    mount.views.flush(ino, opened.handle).unwrap();
    mount.views.fsync(ino, opened.handle).unwrap();
    let changed = mount.views.change(|| -> Result<(), FsError> { panic!("it is not called") });
    assert_eq!(changed.map_err(|error| error.errno()), Err(libc::EIO));
    assert_eq!(mount.sync(), Err(libc::EIO));
    // One that slips past the gate would be reported.
    mount.on(ino, |fs, ino| fs.write(ino, opened.handle, 0, &[1])).unwrap();
    assert_eq!(mount.views.flush(ino, opened.handle).unwrap_err().errno(), libc::EIO);
    assert_eq!(mount.views.fsync(ino, opened.handle).unwrap_err().errno(), libc::EIO);
    mount.views.release(ino, opened.handle).unwrap();
}

#[test]
fn the_last_commits_wait_for_changes_under_way() {
    let mount = Mount::sample();
    let raw = OTHER.repeat(NBYTES / 2);
    let (begun, begins) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (mount, raw) = (&mount, &raw);
        scope.spawn(move || {
            let changed = mount.views.change(|| {
                begun.send(()).unwrap();
                // Long enough for the other thread to get there.
                std::thread::sleep(Duration::from_millis(100));
                mount.write("raw/waves/c/0/0/0.raw", raw).unwrap();
                Ok(())
            });
            changed.unwrap();
        });
        begins.recv().unwrap();
        assert_eq!(mount.views.end(), 0);
    });
    assert_eq!(gunzip(&mount.read("zarr3/waves/c/0/0/0").unwrap()), raw);
}
