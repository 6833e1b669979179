//! Random operations of several writers on a writable mount, against a trivial model: what is
//! written is there at once, and after each commit in the shards, for a reader that knows nothing
//! of the mount.

#![allow(clippy::cast_possible_truncation, reason = "files of tests are short")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use shardfs::format::plan::Policy;
use shardfs::fs::{Caller, Fs, FsConfig, Listing, OpenHow, SetAttr, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::FileKind;
use shardfs::view::inode::ROOT;

use crate::support::{IndexKind, Level, Model, models, places};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// One operation. Chunks and open files are chosen by a number, modulo how many there are.
#[derive(Debug, Clone)]
enum Op {
    /// Opens a chunk, or a scratch file, maybe cutting it off.
    Open {
        file: usize,
        truncate: bool,
    },
    /// Writes to an open file.
    Write {
        handle: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Closes an open file.
    Close {
        handle: usize,
    },
    /// Cuts a file off or fills it up, by its name.
    Truncate {
        file: usize,
        length: u64,
    },
    Remove {
        file: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
    Commit,
    /// Ends the mount and mounts again.
    Remount,
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop::collection::vec(any::<u8>(), 0..24);
    prop_oneof![
        4 => (0..64_usize, any::<bool>()).prop_map(|(file, truncate)| Op::Open { file, truncate }),
        8 => (0..8_usize, 0..20_u64, bytes)
            .prop_map(|(handle, offset, bytes)| Op::Write { handle, offset, bytes }),
        4 => (0..8_usize).prop_map(|handle| Op::Close { handle }),
        2 => (0..64_usize, 0..30_u64).prop_map(|(file, length)| Op::Truncate { file, length }),
        3 => (0..64_usize).prop_map(|file| Op::Remove { file }),
        3 => (0..64_usize, 0..64_usize).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => (0..64_usize, 0..64_usize).prop_map(|(from, to)| Op::Link { from, to }),
        3 => Just(Op::Commit),
        1 => Just(Op::Remount),
    ]
}

/// What files there should be: contents by a number, names by path.
#[derive(Debug, Default)]
struct Expected {
    contents: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
}

impl Expected {
    fn add(&mut self, name: &str, content: Vec<u8>) -> usize {
        self.contents.push(content);
        self.names.insert(name.to_owned(), self.contents.len() - 1);
        self.contents.len() - 1
    }

    fn shown(&self) -> BTreeMap<String, Vec<u8>> {
        let content = |(name, at): (&String, &usize)| (name.clone(), self.contents[*at].clone());
        self.names.iter().map(content).collect()
    }
}

struct Mount {
    storage: Arc<MemoryStorage>,
    fs: Fs,
    policy: Policy,
}

fn mount(storage: &Arc<MemoryStorage>, policy: Policy, writable: bool) -> Fs {
    let store = StoreConfig {
        trusted: Duration::ZERO,
        cache_size: 2000,
        open_files: 2,
        ..StoreConfig::default()
    };
    // Some files are longer than a quarter of it, and go into files of their own.
    let writing = WriteConfig { policy, dirty_limit: 64, ..WriteConfig::default() };
    let config = FsConfig { store, writable, writing, ..FsConfig::default() };
    Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap()
}

impl Mount {
    fn new(model: &Model, policy: Policy, clones: bool) -> Self {
        let storage = Arc::new(MemoryStorage::default());
        if clones {
            storage.allow_clones();
        }
        storage.replace("zarr.json", model.metadata().to_string());
        for shard in places(&model.shards()) {
            if let Some(bytes) = model.shard(&shard) {
                storage.replace(&model.key(&shard), bytes);
            }
        }
        let fs = mount(&storage, policy, true);
        Self { storage, fs, policy }
    }

    /// The directory of a file and its name; directories are made where they are missing.
    fn parent<'a>(&self, path: &'a str) -> (u64, &'a OsStr) {
        let (mut at, path) = (ROOT, Path::new(path));
        for name in path.parent().unwrap().iter() {
            at = match self.fs.lookup(at, name).unwrap() {
                Some(entry) => entry.attr.ino,
                None => self.fs.mkdir(at, name, 0o755, &CALLER).unwrap().attr.ino,
            };
        }
        (at, path.file_name().unwrap())
    }

    fn open(&self, path: &str, truncate: bool) -> (u64, u64) {
        let (parent, name) = self.parent(path);
        let how = OpenHow { write: true, truncate, exclusive: false };
        let (entry, opened) = self.fs.create(parent, name, 0o644, how, &CALLER).unwrap();
        (entry.attr.ino, opened.handle)
    }
}

/// All files below the root except the metadata.
fn walk(fs: &Fs, ino: u64, path: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    let (mut position, mut names) = (0, Vec::new());
    loop {
        let before = names.len();
        fs.readdir((ino, None), position, Listing::Names, &mut |entry| {
            if names.len() - before == 3 {
                return ControlFlow::Break(());
            }
            position = entry.next;
            names.push(entry.name.to_str().unwrap().to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    for name in names {
        if [".", "..", "zarr.json"].contains(&&*name) {
            continue;
        }
        let child = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
        let entry = fs.lookup(ino, OsStr::new(&name)).unwrap();
        let entry = entry.unwrap_or_else(|| panic!("{child} is listed but absent"));
        if entry.attr.kind == FileKind::Directory {
            walk(fs, entry.attr.ino, &child, found);
            continue;
        }
        let opened = fs.open(entry.attr.ino).unwrap();
        let mut bytes = vec![0; 200];
        let read = fs.read(entry.attr.ino, Some(opened.handle), 0, &mut bytes).unwrap();
        fs.release(opened.handle);
        bytes.truncate(read);
        assert_eq!(entry.attr.size, read as u64, "{child}");
        assert!(found.insert(child.clone(), bytes).is_none(), "{child} is listed twice");
    }
}

fn shown(fs: &Fs) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    walk(fs, ROOT, "", &mut found);
    found
}

struct Run {
    mount: Mount,
    expected: Expected,
    /// Names that files may have: all chunks, and some that are none.
    names: Vec<String>,
    scratch: Vec<String>,
    /// Open files: inode number, handle, which content; whether it was written since it was
    /// last handed over.
    open: Vec<(u64, u64, usize)>,
}

impl Run {
    fn new(model: &Model, policy: Policy, clones: bool) -> Self {
        let mount = Mount::new(model, policy, clones);
        let mut expected = Expected::default();
        for (key, bytes) in model.shown() {
            expected.add(&key, bytes);
        }
        let chunks: Vec<String> =
            places(&model.grid()).iter().map(|place| model.key(place)).collect();
        // Beside a chunk, in a directory above chunks: where there is one, it is in the mount alone.
        let scratch: Vec<String> = chunks
            .iter()
            .filter(|key| key.contains('/'))
            .take(2)
            .map(|key| format!("{}/tmp.part", key.rsplit_once('/').unwrap().0))
            .collect();
        let names = chunks.iter().chain(&scratch).cloned().collect();
        Self { mount, expected, names, scratch, open: Vec::new() }
    }

    fn name(&self, number: usize) -> Option<String> {
        self.names.get(number.checked_rem(self.names.len())?).cloned()
    }

    fn existing(&self, number: usize) -> Option<String> {
        let names = &self.expected.names;
        names.keys().nth(number.checked_rem(names.len())?).cloned()
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { file, truncate } => {
                let Some(name) = self.name(*file) else { return };
                let (ino, handle) = self.mount.open(&name, *truncate);
                let content = match self.expected.names.get(&name) {
                    Some(content) => *content,
                    None => self.expected.add(&name, Vec::new()),
                };
                if *truncate {
                    self.expected.contents[content].clear();
                }
                self.open.push((ino, handle, content));
            }
            Op::Write { handle, offset, bytes } => {
                let Some(at) = handle.checked_rem(self.open.len()) else { return };
                let (ino, handle, content) = self.open[at];
                self.mount.fs.write(ino, handle, *offset, bytes).unwrap();
                let content = &mut self.expected.contents[content];
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                // Writing nothing does not make a file longer.
                if content.len() < end && !bytes.is_empty() {
                    content.resize(end, 0);
                }
                if !bytes.is_empty() {
                    content[start..end].copy_from_slice(bytes);
                }
            }
            Op::Close { handle } => {
                let Some(at) = handle.checked_rem(self.open.len()) else { return };
                let (ino, handle, _) = self.open.swap_remove(at);
                self.mount.fs.flush(ino, handle).unwrap();
                self.mount.fs.release(handle);
            }
            Op::Truncate { file, length } => {
                let Some(name) = self.existing(*file) else { return };
                let (parent, last) = self.mount.parent(&name);
                let ino = self.mount.fs.lookup(parent, last).unwrap().unwrap().attr.ino;
                let set = SetAttr { size: Some(*length), ..SetAttr::default() };
                let attr = self.mount.fs.setattr(ino, None, &set, &CALLER).unwrap();
                assert_eq!(attr.size, *length);
                let content = self.expected.names[&name];
                self.expected.contents[content].resize(*length as usize, 0);
            }
            Op::Remove { file } => {
                let Some(name) = self.existing(*file) else { return };
                let (parent, last) = self.mount.parent(&name);
                self.mount.fs.unlink(parent, last, &CALLER).unwrap();
                self.expected.names.remove(&name);
            }
            Op::Rename { from, to } => {
                let (Some(from), Some(to)) = (self.existing(*from), self.name(*to)) else { return };
                let (source, target) = (self.mount.parent(&from), self.mount.parent(&to));
                self.mount.fs.rename(source, target, false, &CALLER).unwrap();
                let names = &mut self.expected.names;
                // Two names of one file: nothing happens.
                if names.get(&to) != names.get(&from) {
                    let content = names.remove(&from).unwrap();
                    names.insert(to, content);
                }
            }
            Op::Link { from, to } => {
                let (Some(from), Some(to)) = (self.existing(*from), self.name(*to)) else { return };
                let (parent, last) = self.mount.parent(&from);
                let ino = self.mount.fs.lookup(parent, last).unwrap().unwrap().attr.ino;
                let (parent, last) = self.mount.parent(&to);
                let linked = self.mount.fs.link(ino, parent, last, &CALLER);
                assert_eq!(linked.is_err(), self.expected.names.contains_key(&to), "{linked:?}");
                if linked.is_ok() {
                    self.expected.names.insert(to, self.expected.names[&from]);
                }
            }
            Op::Commit => self.mount.fs.commit(Path::new("")).unwrap(),
            Op::Remount => self.remount(),
        }
    }

    /// After the end of a mount a reader of the source sees every chunk as it was written last.
    fn remount(&mut self) {
        for (ino, handle, _) in std::mem::take(&mut self.open) {
            self.mount.fs.flush(ino, handle).unwrap();
            self.mount.fs.release(handle);
        }
        // What is no chunk is in the mount alone.
        for name in &self.scratch {
            if self.expected.names.remove(name).is_some() {
                let (parent, last) = self.mount.parent(name);
                self.mount.fs.unlink(parent, last, &CALLER).unwrap();
            }
        }
        assert_eq!(self.mount.fs.end_commits(), 0, "all could be committed");
        // Names that were one file become files of their own.
        let shown_before = self.expected.shown();
        self.expected = Expected::default();
        for (name, bytes) in shown_before {
            self.expected.add(&name, bytes);
        }
        let storage = &self.mount.storage;
        let reader = mount(storage, self.mount.policy, false);
        assert_eq!(shown(&reader), self.expected.shown(), "in the source");
        let left = storage.files().into_iter().map(|(path, ..)| path.display().to_string());
        let left: Vec<_> = left.filter(|path| path.contains("shardfs")).collect();
        assert_eq!(left, Vec::<String>::new(), "nothing is left behind");
        self.mount.fs = mount(storage, self.mount.policy, true);
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite])
}

/// Shards that are compressed as a whole are only read.
fn is_writable(model: &Model) -> bool {
    model.levels.iter().flat_map(|level| &level.after).all(|codec| *codec == "crc32c")
}

/// Where failures are kept, to be tried first from then on.
const REGRESSIONS: &str = "proptest-regressions/tests/model_write.txt";

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_write_is_seen_at_once_and_ends_in_the_shards(
        model in models().prop_filter("writable", is_writable),
        ops in prop::collection::vec(op(), 0..40),
        policy in policies(),
        clones: bool,
    ) {
        let mut run = Run::new(&model, policy, clones);
        prop_assert_eq!(shown(&run.mount.fs), run.expected.shown());
        for op in &ops {
            run.apply(op);
            prop_assert_eq!(shown(&run.mount.fs), run.expected.shown(), "after {:?}", op);
        }
        run.remount();
    }
}

/// The kernel looks a file up and opens it in two requests; between them it may get another name's
/// content, or be committed, or both.
#[test]
fn a_file_that_is_renamed_over_between_lookup_and_open_is_opened_all_the_same() {
    let level = Level {
        per_shard: vec![4],
        order: vec![0],
        index: IndexKind::Usual,
        at_start: false,
        after: vec![],
    };
    let model = Model {
        shape: vec![8],
        chunk: vec![1],
        levels: vec![level],
        keys: ("default", "/"),
        chunks: BTreeMap::from([(vec![1], b"neighbour".to_vec())]),
    };
    let mount = Mount::new(&model, Policy::Auto, false);
    let write = |name: &str, content: &[u8]| {
        let (ino, handle) = mount.open(name, true);
        mount.fs.write(ino, handle, 0, content).unwrap();
        mount.fs.flush(ino, handle).unwrap();
        mount.fs.release(handle);
    };
    let directory = mount.parent("c/0").0;
    let lock = OsStr::new("0.__lock");
    let publish = |content: &[u8]| {
        write("c/0.__lock", content);
        mount.fs.rename((directory, lock), (directory, OsStr::new("0")), false, &CALLER).unwrap();
    };
    for committed in [false, true] {
        publish(b"first");
        if committed {
            mount.fs.fsyncdir(ROOT, None).unwrap();
        }
        let found = mount.fs.lookup(directory, OsStr::new("0")).unwrap().unwrap().attr.ino;
        publish(b"second");
        if committed {
            mount.fs.fsyncdir(ROOT, None).unwrap();
        }
        let opened = mount.fs.open_for(found, OpenHow::default(), &CALLER).unwrap();
        let mut content = [0; 10];
        let read = mount.fs.read(found, Some(opened.handle), 0, &mut content).unwrap();
        assert!([&b"first"[..], b"second"].contains(&&content[..read]), "{:?}", &content[..read]);
        mount.fs.release(opened.handle);
        // Once the kernel has forgotten it, so has the mount.
        mount.fs.forget(found, 100);
        assert!(mount.fs.open_for(found, OpenHow::default(), &CALLER).is_err());
    }
}

/// Chunks that pass through the shards of others, and are gone in the end.
#[test]
fn chunks_that_are_renamed_in_turn_and_removed_are_committed() {
    let level = Level {
        per_shard: vec![2],
        order: vec![0],
        index: IndexKind::Usual,
        at_start: false,
        after: vec![],
    };
    let model = Model {
        shape: vec![8],
        chunk: vec![1],
        levels: vec![level],
        keys: ("default", "."),
        chunks: BTreeMap::from([(vec![4], Vec::new()), (vec![6], Vec::new())]),
    };
    let mut run = Run::new(&model, Policy::Auto, false);
    for (from, to) in
        [("c.4", "c.0"), ("c.0", "c.3"), ("c.6", "c.2"), ("c.2", "c.0"), ("c.3", "c.2")]
    {
        let (from, to) = (run.mount.parent(from), run.mount.parent(to));
        run.mount.fs.rename(from, to, false, &CALLER).unwrap();
    }
    for name in ["c.0", "c.2"] {
        let (parent, name) = run.mount.parent(name);
        run.mount.fs.unlink(parent, name, &CALLER).unwrap();
    }
    run.expected = Expected::default();
    run.remount();
}
