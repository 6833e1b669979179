//! Two arrays, and files beside them, on a simulated disk that is mounted; and what the kernel does for
//! a process that uses the mount.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shardfs::format::plan::Policy;
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::{Change, MemoryStorage};
use shardfs::view::inode::ROOT;

use super::disk::{BLOCK, Disk};

use crate::support::{IndexKind, Model, places};

pub(crate) const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
pub(crate) const ARRAYS: [&str; 2] = ["a", "b"];
pub(crate) const FILES: [&str; 3] = ["x", "d/y", "a/notes"];
pub(crate) const SCRATCH: [&str; 2] = ["a/c/0.part", "b/c/1.part"];

/// A content that no other file has.
pub(crate) type Token = u32;

pub(crate) fn bytes_of(token: Token) -> Vec<u8> {
    token.to_le_bytes().repeat(1 + token as usize % 5)
}

pub(crate) fn is_scratch(name: &str) -> bool {
    SCRATCH.contains(&name)
}

/// One array; what is in it is in [`Names`].
pub(crate) fn model(at_start: bool) -> Model {
    let levels = vec![super::level(&[2], IndexKind::Usual, at_start)];
    let (shape, chunk, keys) = (vec![6], vec![1], ("default", "/"));
    Model { shape, chunk, levels, keys, chunks: BTreeMap::new() }
}

pub(crate) type Names = BTreeMap<String, Token>;

pub(crate) fn all_names() -> Vec<String> {
    let chunks = ARRAYS.iter().flat_map(|array| (0..6).map(move |n| format!("{array}/c/{n}")));
    chunks.chain(FILES.map(String::from)).chain(SCRATCH.map(String::from)).collect()
}

/// A disk on which all of it is durable.
pub(crate) fn disk(names: &Names, at_start: bool) -> Disk {
    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    for array in ARRAYS {
        let mut model = model(at_start);
        for at in 0..6_u64 {
            if let Some(token) = names.get(&format!("{array}/c/{at}")) {
                model.chunks.insert(vec![at], bytes_of(*token));
            }
        }
        files.push((format!("{array}/zarr.json").into(), model.metadata().to_string().into()));
        for shard in places(&model.shards()) {
            let path = Path::new(array).join(model.key(&shard));
            files.extend(model.shard(&shard).map(|bytes| (path, bytes)));
        }
    }
    for name in FILES {
        files.extend(names.get(name).map(|token| (name.into(), bytes_of(*token))));
    }
    let files = files.into_iter().zip(1..).map(|((path, bytes), ino)| (path, ino, bytes));
    let mut disk = Disk::new(Path::new("d"), files);
    disk.apply(&Change::SyncDirectory { path: "".into() });
    disk
}

pub(crate) fn mount(storage: &Arc<MemoryStorage>, policy: Policy, unsaved: &Path) -> Fs {
    mount_as(storage, WriteConfig { policy, unsaved: unsaved.to_owned(), ..WriteConfig::default() })
}

pub(crate) fn mount_as(storage: &Arc<MemoryStorage>, writing: WriteConfig) -> Fs {
    mount_trusting(storage, writing, Duration::ZERO)
}

/// What is found there by a mount that believes for long what it has read: nothing else changes it.
pub(crate) fn mount_alone(storage: &Arc<MemoryStorage>, policy: Policy, unsaved: &Path) -> Fs {
    let writing = WriteConfig { policy, unsaved: unsaved.to_owned(), ..WriteConfig::default() };
    mount_trusting(storage, writing, Duration::from_secs(3600))
}

fn mount_trusting(storage: &Arc<MemoryStorage>, writing: WriteConfig, trusted: Duration) -> Fs {
    let store = StoreConfig { trusted, block_size: BLOCK as u64, ..StoreConfig::default() };
    let config = FsConfig { store, writable: true, writing, ..FsConfig::default() };
    Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap()
}

/// What the kernel does for a process.
pub(crate) struct User<'a>(pub &'a Fs);

impl User<'_> {
    pub(crate) fn parent<'b>(&self, path: &'b str) -> Option<(u64, &'b OsStr)> {
        let (mut at, path) = (ROOT, Path::new(path));
        for name in path.parent()?.iter() {
            at = self.0.lookup(at, name).unwrap()?.attr.ino;
        }
        Some((at, path.file_name()?))
    }

    /// The same; directories are made where they are missing.
    pub(crate) fn made_parent<'b>(&self, path: &'b str) -> (u64, &'b OsStr) {
        let (mut at, path) = (ROOT, Path::new(path));
        for name in path.parent().unwrap().iter() {
            at = match self.0.lookup(at, name).unwrap() {
                Some(entry) => entry.attr.ino,
                None => self.0.mkdir(at, name, 0o755, &CALLER).unwrap().attr.ino,
            };
        }
        (at, path.file_name().unwrap())
    }

    pub(crate) fn ino(&self, path: &str) -> Option<u64> {
        if path.is_empty() {
            return Some(ROOT);
        }
        let (parent, name) = self.parent(path)?;
        self.0.lookup(parent, name).unwrap().map(|entry| entry.attr.ino)
    }

    pub(crate) fn read(&self, path: &str) -> Option<Vec<u8>> {
        let ino = self.ino(path)?;
        let opened = self.0.open(ino).unwrap();
        let mut bytes = vec![0; 4096];
        let read = self.0.read(ino, Some(opened.handle), 0, &mut bytes).unwrap();
        self.0.release(opened.handle);
        bytes.truncate(read);
        Some(bytes)
    }

    pub(crate) fn write(&self, path: &str, content: &[u8], durable: bool) {
        let (parent, name) = self.made_parent(path);
        let how = OpenHow { write: true, truncate: true, exclusive: false };
        let (entry, opened) = self.0.create(parent, name, 0o644, how, &CALLER).unwrap();
        let (ino, handle) = (entry.attr.ino, opened.handle);
        self.0.write(ino, handle, 0, content).unwrap();
        self.0.flush(ino, handle).unwrap();
        if durable {
            self.0.fsync(ino, handle).unwrap();
            self.0.fsyncdir(parent, None).unwrap();
        }
        self.0.release(handle);
    }

    pub(crate) fn fsync(&self, path: &str) {
        let ino = self.ino(path).unwrap();
        let how = OpenHow { write: true, ..OpenHow::default() };
        let opened = self.0.open_for(ino, how, &CALLER).unwrap();
        self.0.fsync(ino, opened.handle).unwrap();
        self.0.release(opened.handle);
    }

    pub(crate) fn rename(&self, from: &str, to: &str) {
        let to = self.made_parent(to);
        self.0.rename(self.parent(from).unwrap(), to, false, &CALLER).unwrap();
    }

    pub(crate) fn link(&self, from: &str, to: &str) {
        let (parent, name) = self.made_parent(to);
        self.0.link(self.ino(from).unwrap(), parent, name, &CALLER).unwrap();
    }

    pub(crate) fn unlink(&self, path: &str) {
        let (parent, name) = self.parent(path).unwrap();
        self.0.unlink(parent, name, &CALLER).unwrap();
    }
}

/// A mount, and what is in it at first.
pub(crate) fn with_mount(test: impl Fn(&User<'_>, &Arc<MemoryStorage>, &Path)) {
    let before: Names = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
    let directory = tempfile::tempdir().unwrap();
    let storage = disk(&before, false).now().storage(false);
    let fs = mount(&storage, Policy::Auto, directory.path());
    test(&User(&fs), &storage, directory.path());
}

/// Others write a chunk that waits to be committed.
pub(crate) fn others_write(storage: &Arc<MemoryStorage>, name: &str, content: &[u8]) {
    let other = mount(storage, Policy::Auto, Path::new("/nonexistent"));
    User(&other).write(name, content, true);
}

/// What another mount finds if this one is killed now.
pub(crate) fn found(storage: &Arc<MemoryStorage>, name: &str) -> Option<Vec<u8>> {
    let left = MemoryStorage::with_files(storage.files(), storage.directories());
    User(&mount(&Arc::new(left), Policy::Auto, Path::new("/nonexistent"))).read(name)
}

/// Contents of the files that are saved below a directory.
pub(crate) fn contents(directory: &Path, found: &mut BTreeSet<Vec<u8>>) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name() != ".source") {
        match entry.file_type().unwrap().is_dir() {
            true => contents(&entry.path(), found),
            false => drop(found.insert(std::fs::read(entry.path()).unwrap())),
        }
    }
}

pub(crate) fn copies(directory: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    contents(directory, &mut found);
    found
}
