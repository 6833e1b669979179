//! Random operations on files that are passed through, by several who have some of them open and by
//! others who change the source meanwhile, against a trivial model: an open file stays the one that was
//! opened, whatever becomes of its name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "files of tests are short")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use shardfs::fs::{Attr, Caller, Fs, FsConfig, FsError, Listing, OpenHow, SetAttr};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::{SetStat, Storage};
use shardfs::view::inode::ROOT;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1, umask: 0o022 };
const NAMES: [&str; 5] = ["a", "b", "d/a", "d/b", "d/c"];

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
    ]
}

/// A file as it should be.
#[derive(Debug, Clone)]
struct File {
    content: Vec<u8>,
    mode: u32,
}

/// An open file: its inode number, its handle, which file it is, whether it is open for writing.
struct Open {
    ino: u64,
    handle: u64,
    file: usize,
    write: bool,
}

struct Run {
    storage: Arc<MemoryStorage>,
    fs: Fs,
    files: Vec<File>,
    names: BTreeMap<&'static str, usize>,
    open: Vec<Open>,
    /// Inode number of the directory, which the kernel knows all the time.
    directory: u64,
}

impl Run {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::default());
        storage.replace("zarr.json", r#"{"zarr_format": 3, "node_type": "group"}"#);
        storage.create_directory(Path::new("d")).unwrap();
        let store = StoreConfig { trusted: Duration::ZERO, ..StoreConfig::default() };
        let config = FsConfig { store, writable: true, ..FsConfig::default() };
        let fs = Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap();
        let directory = fs.lookup(ROOT, OsStr::new("d")).unwrap().unwrap().attr.ino;
        let (files, names, open) = Default::default();
        Self { storage, fs, files, names, open, directory }
    }

    fn split(&self, path: &'static str) -> (u64, &'static OsStr) {
        match path.strip_prefix("d/") {
            Some(name) => (self.directory, OsStr::new(name)),
            None => (ROOT, OsStr::new(path)),
        }
    }

    fn add(&mut self, name: &'static str, content: Vec<u8>) -> usize {
        self.files.push(File { content, mode: 0o644 });
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
        self.fs.lookup(parent, last).unwrap().map(|entry| entry.attr)
    }

    /// Opens a file as the kernel does: what has gone stale since its lookup is looked up again.
    fn open(&mut self, name: &'static str, how: OpenHow) {
        let (parent, last) = self.split(name);
        let (ino, handle) = match self.lookup(name) {
            None => {
                let made = self.fs.create(parent, last, 0o644, how, &CALLER).unwrap();
                self.add(name, Vec::new());
                (made.0.attr.ino, made.1.handle)
            }
            Some(attr) => (attr.ino, self.fs.open_for(attr.ino, how, &CALLER).unwrap().handle),
        };
        let file = self.names[name];
        if how.truncate {
            self.files[file].content.clear();
        }
        self.open.push(Open { ino, handle, file, write: how.write });
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
                self.fs.setattr(ino, None, &set, &CALLER).unwrap();
                self.files[file].mode = *mode;
            }
            Op::SetModeByName { name, mode } => {
                let Some(name) = self.existing(*name) else { return };
                let ino = self.lookup(name).unwrap().ino;
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                self.fs.setattr(ino, None, &set, &CALLER).unwrap();
                self.fs.forget(ino, 1);
                self.files[self.names[name]].mode = *mode;
            }
            Op::Close { handle } => {
                let Some(at) = self.opened(*handle) else { return };
                let Open { ino, handle, .. } = self.open.swap_remove(at);
                self.fs.flush(ino, handle).unwrap();
                self.fs.release(handle);
                self.fs.forget(ino, 1);
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
                self.fs.rename(self.split(from), self.split(to), false, &CALLER).unwrap();
                // Two names of one file stay two names.
                if self.names.get(to) != self.names.get(from) {
                    let file = self.names.remove(from).unwrap();
                    self.names.insert(to, file);
                }
            }
            Op::Link { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let (to, ino) = (NAMES[*to], self.lookup(from).unwrap().ino);
                let (parent, last) = self.split(to);
                match self.fs.link(ino, parent, last, &CALLER) {
                    Ok(entry) => {
                        assert_eq!(entry.attr.ino, ino);
                        self.fs.forget(ino, 1);
                        let before = self.names.insert(to, self.names[from]);
                        assert_eq!(before, None);
                    }
                    Err(error) => {
                        assert!(matches!(error, FsError::Exists), "{error}");
                        assert!(self.names.contains_key(to));
                    }
                }
                self.fs.forget(ino, 1);
            }
            Op::ReplaceOutside { .. }
            | Op::RemoveOutside { .. }
            | Op::RenameOutside { .. }
            | Op::LinkOutside { .. } => self.apply_outside(op),
        }
    }

    fn apply_outside(&mut self, op: &Op) {
        match op {
            Op::ReplaceOutside { name, bytes } => {
                self.storage.replace(NAMES[*name], bytes.clone());
                self.add(NAMES[*name], bytes.clone());
            }
            Op::RemoveOutside { name } => {
                let Some(name) = self.existing(*name) else { return };
                self.storage.remove(name);
                self.names.remove(name);
            }
            Op::RenameOutside { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let to = NAMES[*to];
                if self.names.get(to) == self.names.get(from) {
                    return;
                }
                self.storage.rename(Path::new(from), Path::new(to)).unwrap();
                let file = self.names.remove(from).unwrap();
                self.names.insert(to, file);
            }
            Op::LinkOutside { from, to } => {
                let Some(from) = self.existing(*from) else { return };
                let to = NAMES[*to];
                if self.storage.link(Path::new(from), Path::new(to)).is_ok() {
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
        let shown = (attr.size, attr.links, attr.mode);
        assert_eq!(shown, (expected.content.len() as u64, self.links(file), expected.mode));
    }

    /// Everything is as it should be: what is open first, before anybody has looked at names.
    fn check(&self) {
        let mut numbers = BTreeMap::new();
        for Open { ino, handle, file, .. } in &self.open {
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
            for open in same {
                assert_eq!(open.ino, attr.ino, "{name} is open under another number");
            }
            self.check_listing(name, attr.ino);
            self.fs.forget(attr.ino, 1);
        }
    }

    fn check_listing(&self, name: &'static str, ino: u64) {
        let (parent, last) = self.split(name);
        let mut listed = None;
        self.fs
            .readdir(parent, 0, Listing::Names, &mut |entry| {
                if entry.name == last {
                    listed = Some(entry.ino);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(listed, Some(ino), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: Some(Box::new(FileFailurePersistence::SourceParallel("regressions"))),
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
    run.files[0].mode = 0o600;
    run.check();
}
