//! I/O errors below a writable mount: whatever operation fails, and however often, what was written
//! is committed once the errors have ended, and nothing of it is taken for a change by others.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shardfs::format::plan::Policy;
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::view::inode::ROOT;

use crate::power;
use crate::power::{Case, Rng};
use crate::support::Coords;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

const FAULTS: [Fault; 7] = {
    const fn fault(errno: i32, times: u64, half_done: bool, changes_only: bool) -> Fault {
        Fault { errno, times, half_done, changes_only }
    }
    [
        fault(libc::EIO, 1, true, true),
        fault(libc::ENOSPC, 1, true, true),
        fault(libc::EIO, 1, false, false),
        fault(libc::EIO, 2, false, false),
        fault(libc::EIO, 3, false, false),
        fault(libc::EIO, u64::MAX, false, true),
        fault(libc::ENOSPC, u64::MAX, true, true),
    ]
};
const POLICIES: [Policy; 4] = [Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite];

/// A writable mount of an array, with chunks of it open.
struct Mount {
    storage: Arc<MemoryStorage>,
    fs: Fs,
    unsaved: tempfile::TempDir,
    open: BTreeMap<Coords, (u64, u64)>,
    expected: BTreeMap<Coords, Vec<u8>>,
}

impl Mount {
    fn new(case: &Case, policy: Policy) -> Self {
        let storage = Arc::new(MemoryStorage::default());
        storage.replace("zarr.json", case.model.metadata().to_string());
        for (path, bytes) in case.files(&case.model.chunks) {
            let path = path.strip_prefix(power::ARRAY).unwrap().to_owned();
            storage.replace(path.to_str().unwrap(), bytes);
        }
        let unsaved = tempfile::tempdir().unwrap();
        let store =
            StoreConfig { trusted: Duration::ZERO, open_files: 2, ..StoreConfig::default() };
        let place = unsaved.path().join("unsaved");
        let writing = WriteConfig { policy, unsaved: place, ..WriteConfig::default() };
        let config = FsConfig { store, writable: true, writing, ..FsConfig::default() };
        let fs = Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap();
        let (open, expected) = (BTreeMap::new(), case.model.chunks.clone());
        let mut mount = Self { storage, fs, unsaved, open, expected };
        for coords in case.model.chunks.keys().take(6) {
            let opened = mount.open(&case.model.key(coords));
            mount.open.insert(coords.clone(), opened);
        }
        mount
    }

    fn open(&self, path: &str) -> (u64, u64) {
        let (mut at, path) = (ROOT, Path::new(path));
        for name in path.parent().unwrap().iter() {
            at = self.fs.lookup(at, name).unwrap().unwrap().attr.ino;
        }
        let how = OpenHow { write: true, truncate: false, exclusive: false };
        let name: &OsStr = path.file_name().unwrap();
        let (entry, opened) = self.fs.create(at, name, 0o644, how, &CALLER).unwrap();
        (entry.attr.ino, opened.handle)
    }

    /// Writes other bytes to some of the open chunks, and closes them. What is told of earlier errors
    /// does not matter here.
    fn write(&mut self, rng: &mut Rng) {
        for (coords, (ino, handle)) in &self.open {
            if rng.one_in(3) {
                continue;
            }
            let old = &self.expected[coords];
            let length = old.len() + rng.below(2) * 5;
            let bytes = rng.bytes(length);
            if self.fs.write(*ino, *handle, 0, &bytes).is_ok() {
                self.expected.insert(coords.clone(), bytes);
            }
            let _ = self.fs.flush(*ino, *handle);
        }
    }

    fn commit(&self) -> Result<(), String> {
        self.fs.commit(Path::new("")).map_err(|error| error.to_string())
    }

    /// Everything is in the shards, as another mount sees them.
    fn check(self, case: &Case) -> Result<(), String> {
        self.commit()?;
        for (ino, handle) in self.open.values() {
            let _ = self.fs.flush(*ino, *handle);
        }
        let left = self.fs.end_commits();
        if left > 0 || self.unsaved.path().join("unsaved").exists() {
            return Err(format!("{left} chunks were saved elsewhere"));
        }
        let store = power::store(&self.storage);
        let layout = case.array.layout.clone();
        let format = Arc::clone(&case.array.format);
        let array = shardfs::store::SourceArray { id: 1, path: "".into(), layout, format };
        for (coords, bytes) in &self.expected {
            let found = power::read(&store, &array, coords)?;
            if found.as_ref() != Some(bytes) {
                return Err(format!("{coords:?} holds {found:?}, not {bytes:?}"));
            }
        }
        Ok(())
    }
}

/// One commit, faults in it, changes on top, another commit with faults, and then none.
fn round(case: &Case, policy: Policy, first: (u64, Fault), second: (u64, Fault)) {
    let mut rng = Rng(first.0 * 1000 + second.0);
    let mut mount = Mount::new(case, policy);
    mount.write(&mut rng);
    mount.storage.fail(first.0, first.1);
    let _ = mount.commit();
    mount.write(&mut rng);
    mount.storage.fail(second.0, second.1);
    let _ = mount.commit();
    mount.write(&mut rng);
    let _ = mount.commit();
    mount.storage.fail(0, second.1);
    mount.check(case).unwrap_or_else(|error| {
        panic!("{}, {policy:?}, {first:?}, then {second:?}: {error}", case.name)
    });
}

/// Operations of a commit in which nothing fails.
fn operations(case: &Case, policy: Policy) -> u64 {
    let mut mount = Mount::new(case, policy);
    mount.write(&mut Rng(1));
    let before = mount.storage.operations();
    mount.commit().unwrap();
    mount.storage.operations() - before
}

fn all_rounds(case: &Case) {
    for policy in POLICIES {
        let most = operations(case, policy) + 5;
        for nth in 1..=most {
            for fault in FAULTS {
                round(case, policy, (nth, fault), (0, fault));
                for again in 1..=3 {
                    let other = FAULTS[usize::try_from(again + nth).unwrap() % FAULTS.len()];
                    round(case, policy, (nth, fault), (again * again, other));
                }
            }
        }
    }
}

#[test]
fn what_waits_is_committed_after_any_errors_and_nothing_of_it_is_foreign() {
    for case in power::plain(false) {
        all_rounds(&case);
    }
}

#[test]
fn the_same_of_shards_inside_shards_and_of_an_index_at_the_start() {
    all_rounds(&power::nested()[0]);
    all_rounds(&power::plain(true)[0]);
}
