//! Random operations on files that are passed through, on chunks and on names beside chunks, by several who
//! have some of them open and by others who change the source meanwhile, against a trivial model: an open
//! file stays the one that was opened, whatever becomes of its name, and whatever kind of name it gets.

#![allow(clippy::cast_possible_truncation, reason = "files of tests are short")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use shardfs::fs::{Attr, Caller, Fs, FsConfig, FsError, Listing, OpenHow, SetAttr, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{PosixStorage, SetStat};
use shardfs::view::inode::ROOT;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0o022 };
const NAMES: [&str; 10] =
    ["a", "b", "d/a", "d/b", "d/c", "w/c/0", "w/c/1", "w/c/6", "w/c/x", "w/c/0.partial"];
/// Of one array of eight chunks in two shards.
const ARRAY: &str = r#"{"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8",
    "fill_value": 0, "chunk_key_encoding": {"name": "default"},
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1],
        "codecs": ["bytes"], "index_codecs": ["bytes"]}}]}"#;

/// Whether a name is one of the mount: a chunk, or beside chunks.
fn is_of_mount(name: &str) -> bool {
    name.starts_with("w/c/")
}

fn is_chunk(name: &str) -> bool {
    matches!(name, "w/c/0" | "w/c/1" | "w/c/6")
}

/// One operation. Names and open files are chosen by a number, modulo how many there are.
#[derive(Debug, Clone)]
enum Op {
    /// Opens a file, or makes it.
    Open {
        name: usize,
        truncate: bool,
        write: bool,
    },
    Write {
        handle: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Cuts an open file off or fills it up.
    SetLength {
        handle: usize,
        length: u64,
    },
    /// Changes permissions of an open file, as the kernel does: by its inode number alone.
    SetMode {
        handle: usize,
        mode: u32,
    },
    /// The same of a file by its name.
    SetModeByName {
        name: usize,
        mode: u32,
    },
    Close {
        handle: usize,
    },
    Remove {
        name: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
    /// What others do in the source.
    ReplaceOutside {
        name: usize,
        bytes: Vec<u8>,
    },
    RemoveOutside {
        name: usize,
    },
    RenameOutside {
        from: usize,
        to: usize,
    },
    LinkOutside {
        from: usize,
        to: usize,
    },
    /// What waits is committed.
    Commit,
}

fn op() -> impl Strategy<Value = Op> {
    let (name, handle) = (0..NAMES.len(), 0..8_usize);
    let two = (name.clone(), name.clone());
    let bytes = prop::collection::vec(any::<u8>(), 0..24);
    let mode = prop::sample::select(vec![0o600, 0o640, 0o666]);
    prop_oneof![
        6 => (name.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(name, truncate, write)| Op::Open { name, truncate: truncate && write, write }),
        // The kernel asks nobody to write nothing.
        4 => (handle.clone(), 0..20_u64, prop::collection::vec(any::<u8>(), 1..24))
            .prop_map(|(handle, offset, bytes)| Op::Write { handle, offset, bytes }),
        2 => (handle.clone(), 0..30_u64)
            .prop_map(|(handle, length)| Op::SetLength { handle, length }),
        2 => (handle.clone(), mode.clone()).prop_map(|(handle, mode)| Op::SetMode { handle, mode }),
        1 => (name.clone(), mode).prop_map(|(name, mode)| Op::SetModeByName { name, mode }),
        2 => handle.prop_map(|handle| Op::Close { handle }),
        3 => name.clone().prop_map(|name| Op::Remove { name }),
        3 => two.clone().prop_map(|(from, to)| Op::Rename { from, to }),
        2 => two.clone().prop_map(|(from, to)| Op::Link { from, to }),
        2 => (name.clone(), bytes).prop_map(|(name, bytes)| Op::ReplaceOutside { name, bytes }),
        1 => name.prop_map(|name| Op::RemoveOutside { name }),
        1 => two.clone().prop_map(|(from, to)| Op::RenameOutside { from, to }),
        1 => two.prop_map(|(from, to)| Op::LinkOutside { from, to }),
        2 => Just(Op::Commit),
    ]
}

/// A file as it should be.
#[derive(Debug, Clone)]
struct File {
    content: Vec<u8>,
    /// Unless its shard's counts, or did.
    mode: Option<u32>,
}

/// An open file: its inode number, its handle, which file it is, whether it is open for writing.
struct Open {
    ino: u64,
    handle: u64,
    file: usize,
    write: bool,
    /// A chunk that was opened for reading: whether it can still be read once it is removed, nobody knows.
    is_chunk: bool,
}

struct Run {
    storage: Arc<MemoryStorage>,
    fs: Fs,
    files: Vec<File>,
    names: BTreeMap<&'static str, usize>,
    open: Vec<Open>,
    /// Names of the source that files had which have one of the mount now.
    hidden: BTreeSet<&'static str>,
    /// Others have renamed something. A chunk that was opened for reading and became a file of the source
    /// is found by its name alone.
    is_moved_outside: bool,
    /// What the kernel was told of: how often it was, and how many still need it.
    told: RefCell<BTreeMap<u64, (u64, u64)>>,
    /// Inode numbers of the directories, which the kernel knows all the time.
    directories: [u64; 2],
    _unsaved: tempfile::TempDir,
}

impl Run {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::default());
        storage.replace("zarr.json", r#"{"zarr_format": 3, "node_type": "group"}"#);
        storage.create_directory(Path::new("d")).unwrap();
        storage.create_directory(Path::new("w")).unwrap();
        storage.replace("w/zarr.json", ARRAY);
        let unsaved = tempfile::tempdir().unwrap();
        let writing = WriteConfig { unsaved: unsaved.path().to_owned(), ..WriteConfig::default() };
        let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
        let config = FsConfig { store, writable: true, writing, ..FsConfig::default() };
        let fs = Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap();
        let lookup = |parent, name| fs.lookup(parent, OsStr::new(name)).unwrap().unwrap().attr.ino;
        let chunks = fs.mkdir(lookup(ROOT, "w"), OsStr::new("c"), 0o755, &CALLER).unwrap().attr.ino;
        let directories = [lookup(ROOT, "d"), chunks];
        let (files, names, open, hidden, told, is_moved_outside) = Default::default();
        Self {
            storage,
            fs,
            files,
            names,
            open,
            hidden,
            is_moved_outside,
            told,
            directories,
            _unsaved: unsaved,
        }
    }

    fn split(&self, path: &'static str) -> (u64, &'static OsStr) {
        match (path.strip_prefix("d/"), path.strip_prefix("w/c/")) {
            (Some(name), _) => (self.directories[0], OsStr::new(name)),
            (_, Some(name)) => (self.directories[1], OsStr::new(name)),
            _ => (ROOT, OsStr::new(path)),
        }
    }

    fn add(&mut self, name: &'static str, content: Vec<u8>) -> usize {
        self.files.push(File { content, mode: (!is_of_mount(name)).then_some(0o644) });
        self.names.insert(name, self.files.len() - 1);
        self.files.len() - 1
    }

    fn existing(&self, number: usize) -> Option<&'static str> {
        self.names.keys().nth(number.checked_rem(self.names.len())?).copied()
    }

    fn opened(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.open.len())
    }

    fn lookup(&self, name: &'static str) -> Option<Attr> {
        let (parent, last) = self.split(name);
        let found = self.fs.lookup(parent, last).unwrap().map(|entry| entry.attr);
        found.iter().for_each(|attr| self.told(attr.ino));
        found
    }

    fn told(&self, ino: u64) {
        let mut told = self.told.borrow_mut();
        let (times, users) = told.entry(ino).or_default();
        (*times, *users) = (*times + 1, *users + 1);
    }

    /// One user less. The kernel forgets all that it was told when nothing needs it any more, and some of
    /// it at any time: what it was told of a name that it knew as another file.
    fn forget(&self, ino: u64) {
        let mut told = self.told.borrow_mut();
        let (times, users) = told.get_mut(&ino).unwrap();
        *users -= 1;
        if *users == 0 {
            self.fs.forget(ino, *times);
            told.remove(&ino);
        } else if *times > *users && *times % 2 == 0 {
            self.fs.forget(ino, 1);
            *times -= 1;
        }
    }

    /// Opens a file as the kernel does: what has gone stale since its lookup is looked up again.
    fn open(&mut self, name: &'static str, how: OpenHow) {
        let (parent, last) = self.split(name);
        let (ino, handle) = match self.lookup(name) {
            None => {
                let made = self.fs.create(parent, last, 0o644, how, &CALLER).unwrap();
                self.told(made.0.attr.ino);
                self.add(name, Vec::new());
                self.hidden.remove(name);
                (made.0.attr.ino, made.1.handle)
            }
            Some(attr) => (attr.ino, self.fs.open_for(attr.ino, how, &CALLER).unwrap().handle),
        };
        let file = self.names[name];
        if how.truncate {
            self.files[file].content.clear();
        }
        let is_chunk = is_chunk(name) && !how.write;
        self.open.push(Open { ino, handle, file, write: how.write, is_chunk });
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { name, truncate, write } => {
                let write = *write || !self.names.contains_key(NAMES[*name]);
                let how = OpenHow { write, truncate: *truncate, exclusive: false };
                self.open(NAMES[*name], how);
            }
            Op::Write { handle, offset, bytes } => {
                let Some(at) = self.opened(*handle).filter(|at| self.open[*at].write) else {
                    return;
                };
                let Open { ino, handle, file, .. } = self.open[at];
                self.fs.write(ino, handle, *offset, bytes).unwrap();
                let content = &mut self.files[file].content;
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[start..end].copy_from_slice(bytes);
            }
            Op::SetLength { handle, length } => {
                let Some(at) = self.opened(*handle).filter(|at| self.open[*at].write) else {
                    return;
                };
                let Open { ino, handle, file, .. } = self.open[at];
                let set = SetAttr { size: Some(*length), ..SetAttr::default() };
                self.fs.setattr(ino, Some(handle), &set, &CALLER).unwrap();
                self.files[file].content.resize(*length as usize, 0);
            }
            Op::SetMode { handle, mode } => {
                let Some(at) = self.opened(*handle) else { return };
                let Open { ino, file, .. } = self.open[at];
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                let is_set = self.fs.setattr(ino, None, &set, &CALLER).is_ok();
                assert!(is_set || self.open[at].is_chunk);
                self.files[file].mode = self.files[file].mode.and(Some(*mode));
            }
            Op::SetModeByName { name, mode } => {
                let Some(name) = self.existing(*name) else { return };
                let ino = self.lookup(name).unwrap().ino;
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                self.fs.setattr(ino, None, &set, &CALLER).unwrap();
                self.forget(ino);
                let file = &mut self.files[self.names[name]];
                file.mode = file.mode.and(Some(*mode));
            }
            Op::Close { handle } => {
                let Some(at) = self.opened(*handle) else { return };
                let Open { ino, handle, .. } = self.open.swap_remove(at);
                self.fs.flush(ino, handle).unwrap();
                self.fs.release(handle);
                self.forget(ino);
            }
            Op::Remove { name } => {
                let Some(name) = self.existing(*name) else { return };
                let (parent, last) = self.split(name);
                self.fs.unlink(parent, last, &CALLER).unwrap();
                self.names.remove(name);
            }
            Op::Rename { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let to = NAMES[*to];
                // The kernel knows both.
                let known = [from, to].map(|name| self.lookup(name));
                let done = self.fs.rename(self.split(from), self.split(to), false, &CALLER);
                self.renamed(from, to, done);
                known.iter().flatten().for_each(|attr| self.forget(attr.ino));
            }
            Op::Link { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let to = NAMES[*to];
                // A link between the kinds is a copy, and so are those of chunks once they are committed.
                if is_of_mount(from) || is_of_mount(to) {
                    return;
                }
                let ino = self.lookup(from).unwrap().ino;
                let (parent, last) = self.split(to);
                match self.fs.link(ino, parent, last, &CALLER) {
                    Ok(entry) => {
                        assert_eq!(entry.attr.ino, ino);
                        self.told(ino);
                        self.forget(ino);
                        let before = self.names.insert(to, self.names[from]);
                        assert_eq!(before, None);
                        self.hidden.remove(to);
                    }
                    Err(error) => {
                        assert!(matches!(error, FsError::Exists), "{error}");
                        assert!(self.names.contains_key(to));
                    }
                }
                self.forget(ino);
            }
            Op::ReplaceOutside { .. }
            | Op::RemoveOutside { .. }
            | Op::RenameOutside { .. }
            | Op::LinkOutside { .. } => self.apply_outside(op),
            Op::Commit => self.fs.commit(Path::new("")).unwrap(),
        }
    }

    fn renamed(&mut self, from: &'static str, to: &'static str, done: Result<(), FsError>) {
        let file = self.names[from];
        let is_moved = is_of_mount(from) != is_of_mount(to);
        // Two names of one file stay two names.
        if self.names.get(to) == Some(&file) {
            return done.unwrap();
        }
        if is_moved && self.links(file) > 1 {
            assert!(matches!(done, Err(FsError::CrossDevice)), "it cannot be both: {done:?}");
            return;
        }
        done.unwrap();
        self.names.remove(from);
        self.hidden.remove(to);
        if is_moved && is_of_mount(to) {
            self.files[file].mode = None;
            self.hidden.insert(from);
        }
        self.names.insert(to, file);
    }

    /// Whether others can do something with a name. What they do to a file of which another name is hidden
    /// keeps that name.
    fn is_outside(&self, name: &str) -> bool {
        !is_of_mount(name) && self.hidden.is_empty()
    }

    fn apply_outside(&mut self, op: &Op) {
        self.is_moved_outside = true;
        match op {
            Op::ReplaceOutside { name, bytes } if self.is_outside(NAMES[*name]) => {
                self.storage.replace(NAMES[*name], bytes.clone());
                self.add(NAMES[*name], bytes.clone());
            }
            Op::RemoveOutside { name } => {
                let Some(name) = self.existing(*name).filter(|name| self.is_outside(name)) else {
                    return;
                };
                self.storage.remove(name);
                self.names.remove(name);
            }
            Op::RenameOutside { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let to = NAMES[*to];
                let is_outside = self.is_outside(from) && self.is_outside(to);
                if !is_outside || self.names.get(to) == self.names.get(from) {
                    return;
                }
                self.storage.rename(Path::new(from), Path::new(to)).unwrap();
                let file = self.names.remove(from).unwrap();
                self.names.insert(to, file);
            }
            Op::LinkOutside { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let to = NAMES[*to];
                let is_outside = self.is_outside(from) && self.is_outside(to);
                if is_outside && self.storage.link(Path::new(from), Path::new(to)).is_ok() {
                    self.names.insert(to, self.names[from]);
                }
            }
            _ => (),
        }
    }

    fn links(&self, file: usize) -> u32 {
        self.names.values().filter(|named| **named == file).count() as u32
    }

    fn check_attr(&self, attr: &Attr, file: usize) {
        let expected = &self.files[file];
        // Names that are hidden count.
        let (least, most) = (self.links(file), self.links(file) + self.hidden.len() as u32);
        assert!((least..=most).contains(&attr.links), "{} links, not {least}", attr.links);
        let links = attr.links;
        let shown = (attr.size, attr.links, expected.mode.map_or(0, |_| attr.mode));
        assert_eq!(shown, (expected.content.len() as u64, links, expected.mode.unwrap_or(0)));
    }

    /// Whether nobody knows if an open chunk can still be found.
    fn is_uncertain(&self, open: &Open) -> bool {
        open.is_chunk && (self.links(open.file) == 0 || self.is_moved_outside)
    }

    /// Everything is as it should be: what is open first, before anybody has looked at names.
    fn check(&self) {
        let mut numbers = BTreeMap::new();
        for open in self.open.iter().filter(|open| !self.is_uncertain(open)) {
            let Open { ino, handle, file, .. } = open;
            let mut buffer = [0; 64];
            let read = self.fs.read(*ino, Some(*handle), 0, &mut buffer).unwrap();
            assert_eq!(&buffer[..read], self.files[*file].content);
            for handle in [None, Some(*handle)] {
                let (attr, _) = self.fs.getattr(*ino, handle).unwrap();
                assert_eq!(attr.ino, *ino);
                self.check_attr(&attr, *file);
            }
            assert_eq!(*numbers.entry(*ino).or_insert(*file), *file, "one number, two files");
        }
        for name in NAMES {
            let Some(attr) = self.lookup(name) else {
                assert!(!self.names.contains_key(name), "{name} is absent");
                continue;
            };
            let file = self.names[name];
            self.check_attr(&attr, file);
            assert_eq!(
                *numbers.entry(attr.ino).or_insert(file),
                file,
                "{name} has another's number"
            );
            let same = self.open.iter().filter(|open| open.file == file);
            for open in same.filter(|open| !self.is_uncertain(open)) {
                assert_eq!(open.ino, attr.ino, "{name} is open under another number");
            }
            self.check_listing(name, attr.ino);
            self.forget(attr.ino);
        }
    }

    fn check_listing(&self, name: &'static str, ino: u64) {
        let (parent, last) = self.split(name);
        let mut listed = None;
        self.fs
            .readdir((parent, None), 0, Listing::Names, &mut |entry| {
                if entry.name == last {
                    listed = Some(entry.ino);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(listed, Some(ino), "{name}");
    }
}

/// Where failures are kept, to be tried first from then on.
const REGRESSIONS: &str = "proptest-regressions/tests/model_open.txt";

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_open_file_stays_the_one_that_was_opened(ops in prop::collection::vec(op(), 0..40)) {
        let mut run = Run::new();
        for op in &ops {
            run.apply(op);
            run.check();
        }
    }
}

/// Others give a file a mode: the storage in memory keeps it as one on a disk does.
#[test]
fn permissions_that_others_change_are_shown() {
    let mut run = Run::new();
    run.apply(&Op::ReplaceOutside { name: 0, bytes: vec![1] });
    let set = SetStat { mode: Some(0o600), ..SetStat::default() };
    run.storage.set_stat(Path::new(NAMES[0]), &set).unwrap();
    run.files[0].mode = Some(0o600);
    run.check();
}
