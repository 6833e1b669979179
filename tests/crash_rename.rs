//! Renames under kills and power cuts: between chunks of one shard, of two, of two arrays, files that
//! are passed through, and names that are no chunk. What was durable is found under its old name or its
//! new one, or in the copy that was made of it; what nobody touched stays as it is.
//!
//! `CRASH_RENAME_SCENARIOS=N` plays so many scenarios for each way of changing shards.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod power;
mod support;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use power::disk::{BLOCK, Disk, State};
use power::{NO_FAULT, Rng};
use shardfs::format::plan::Policy;
use shardfs::fs::{Caller, Fs, FsConfig, OpenHow, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::{Change, Fault, MemoryStorage};
use shardfs::view::inode::ROOT;
use support::{IndexKind, Model, places};

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const ARRAYS: [&str; 2] = ["a", "b"];
const FILES: [&str; 3] = ["x", "d/y", "a/notes"];
const SCRATCH: [&str; 2] = ["a/c/0.part", "b/c/1.part"];
const DIRECTORIES: [&str; 5] = ["", "a", "a/c", "b", "d"];
const POLICIES: [Policy; 4] = [Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite];
/// For [`MemoryStorage::fail`]: nothing can be written any more.
const EVERY_CHANGE_FAILS: Fault =
    Fault { errno: libc::EIO, times: u64::MAX, half_done: false, changes_only: true };

/// A content that no other file has.
type Token = u32;

fn bytes_of(token: Token) -> Vec<u8> {
    token.to_le_bytes().repeat(1 + token as usize % 5)
}

fn is_scratch(name: &str) -> bool {
    SCRATCH.contains(&name)
}

/// One array; what is in it is in [`Names`].
fn model(at_start: bool) -> Model {
    let levels = vec![power::level(&[2], IndexKind::Usual, at_start)];
    let (shape, chunk, keys) = (vec![6], vec![1], ("default", "/"));
    Model { shape, chunk, levels, keys, chunks: BTreeMap::new() }
}

type Names = BTreeMap<String, Token>;

fn all_names() -> Vec<String> {
    let chunks = ARRAYS.iter().flat_map(|array| (0..6).map(move |n| format!("{array}/c/{n}")));
    chunks.chain(FILES.map(String::from)).chain(SCRATCH.map(String::from)).collect()
}

/// A disk on which all of it is durable.
fn disk(names: &Names, at_start: bool) -> Disk {
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

fn mount(storage: &Arc<MemoryStorage>, policy: Policy, unsaved: &Path) -> Fs {
    let store =
        StoreConfig { trusted: Duration::ZERO, block_size: BLOCK as u64, ..StoreConfig::default() };
    let writing = WriteConfig { policy, unsaved: unsaved.to_owned(), ..WriteConfig::default() };
    let config = FsConfig { store, writable: true, writing, ..FsConfig::default() };
    Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap()
}

/// What the kernel does for a process.
struct User<'a>(&'a Fs);

impl User<'_> {
    fn parent<'b>(&self, path: &'b str) -> Option<(u64, &'b OsStr)> {
        let (mut at, path) = (ROOT, Path::new(path));
        for name in path.parent()?.iter() {
            at = self.0.lookup(at, name).unwrap()?.attr.ino;
        }
        Some((at, path.file_name()?))
    }

    /// The same; directories are made where they are missing.
    fn made_parent<'b>(&self, path: &'b str) -> (u64, &'b OsStr) {
        let (mut at, path) = (ROOT, Path::new(path));
        for name in path.parent().unwrap().iter() {
            at = match self.0.lookup(at, name).unwrap() {
                Some(entry) => entry.attr.ino,
                None => self.0.mkdir(at, name, 0o755, &CALLER).unwrap().attr.ino,
            };
        }
        (at, path.file_name().unwrap())
    }

    fn ino(&self, path: &str) -> Option<u64> {
        if path.is_empty() {
            return Some(ROOT);
        }
        let (parent, name) = self.parent(path)?;
        self.0.lookup(parent, name).unwrap().map(|entry| entry.attr.ino)
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let ino = self.ino(path)?;
        let opened = self.0.open(ino).unwrap();
        let mut bytes = vec![0; 100];
        let read = self.0.read(ino, Some(opened.handle), 0, &mut bytes).unwrap();
        self.0.release(opened.handle);
        bytes.truncate(read);
        Some(bytes)
    }

    fn write(&self, path: &str, content: &[u8], durable: bool) {
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

    fn fsync(&self, path: &str) {
        let ino = self.ino(path).unwrap();
        let how = OpenHow { write: true, ..OpenHow::default() };
        let opened = self.0.open_for(ino, how, &CALLER).unwrap();
        self.0.fsync(ino, opened.handle).unwrap();
        self.0.release(opened.handle);
    }

    fn rename(&self, from: &str, to: &str) {
        let to = self.made_parent(to);
        self.0.rename(self.parent(from).unwrap(), to, false, &CALLER).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        let (parent, name) = self.made_parent(to);
        self.0.link(self.ino(from).unwrap(), parent, name, &CALLER).unwrap();
    }

    fn unlink(&self, path: &str) {
        let (parent, name) = self.parent(path).unwrap();
        self.0.unlink(parent, name, &CALLER).unwrap();
    }
}

#[derive(Debug, Clone)]
enum Op {
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    /// A file of the source is durable at once; a chunk waits.
    Write(String, Token),
    FsyncFile(String),
    FsyncDirectory(&'static str),
    Commit,
}

impl Op {
    fn run(&self, user: &User<'_>) {
        match self {
            Self::Rename(from, to) => user.rename(from, to),
            Self::Link(from, to) => user.link(from, to),
            Self::Unlink(name) => user.unlink(name),
            Self::Write(name, token) => {
                user.write(name, &bytes_of(*token), FILES.contains(&&**name));
            }
            Self::FsyncFile(name) => user.fsync(name),
            Self::FsyncDirectory(name) => {
                if let Some(ino) = user.ino(name) {
                    user.0.fsyncdir(ino, None).unwrap();
                }
            }
            Self::Commit => user.0.commit(Path::new("")).unwrap(),
        }
    }

    /// What there is afterwards.
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Rename(from, to) => {
                let token = names.remove(from).unwrap();
                names.insert(to.clone(), token);
            }
            Self::Link(from, to) => drop(names.insert(to.clone(), names[from])),
            Self::Unlink(name) => drop(names.remove(name)),
            Self::Write(name, token) => drop(names.insert(name.clone(), *token)),
            Self::FsyncFile(_) | Self::FsyncDirectory(_) | Self::Commit => (),
        }
    }

    /// Whether what is at `name` is durable once it has returned.
    fn makes_durable(&self, name: &str) -> bool {
        match self {
            Self::Write(written, _) => FILES.contains(&name) && written == name,
            Self::FsyncFile(file) => file == name,
            Self::FsyncDirectory(directory) => Path::new(name).starts_with(directory),
            Self::Commit => true,
            Self::Rename(..) | Self::Link(..) | Self::Unlink(_) => false,
        }
    }
}

/// What a disk may and must hold, whenever it is looked at.
#[derive(Debug, Clone)]
struct Promised {
    names: Names,
    /// What each name may stand for: all that it stood for since it was durable.
    allowed: BTreeMap<String, BTreeSet<Option<Token>>>,
    /// Contents that were durable at some time.
    durable: BTreeSet<Token>,
    /// Files of the source that were removed there and then: for good once their directory is synced.
    unlinked: BTreeSet<String>,
}

impl Promised {
    fn new(names: &Names) -> Self {
        let allowed = |name: String| {
            let only = BTreeSet::from([names.get(&name).copied()]);
            (name, only)
        };
        Self {
            names: names.clone(),
            allowed: all_names().into_iter().map(allowed).collect(),
            durable: names.values().copied().collect(),
            unlinked: BTreeSet::new(),
        }
    }

    fn tokens(&self) -> BTreeSet<Token> {
        self.names.values().copied().collect()
    }

    /// While an operation goes on, both may be.
    fn during(&self, op: &Op) -> Self {
        let mut both = self.clone();
        op.apply(&mut both.names);
        for (name, allowed) in &mut both.allowed {
            allowed.insert(both.names.get(name).copied());
        }
        let left = both.tokens();
        both.durable.retain(|token| left.contains(token));
        both
    }

    /// Once it has returned.
    fn after(&mut self, op: &Op) {
        let in_mount_only: BTreeSet<Token> = {
            let kept = self.names.iter().filter(|(name, _)| !is_scratch(name));
            let kept: BTreeSet<Token> = kept.map(|(_, token)| *token).collect();
            self.tokens().difference(&kept).copied().collect()
        };
        if let Op::Unlink(name) = op
            && FILES.contains(&&**name)
        {
            self.unlinked.insert(name.clone());
        }
        for (name, allowed) in &mut self.allowed {
            if is_scratch(name) || !op.makes_durable(name) {
                continue;
            }
            let synced = |directory: &str| Path::new(name).parent() == Some(Path::new(directory));
            let is_synced = match op {
                Op::FsyncDirectory(directory) => synced(directory),
                _ => self.names.contains_key(name),
            };
            if self.unlinked.contains(name) && !is_synced {
                continue;
            }
            self.unlinked.remove(name);
            let now = self.names.get(name).copied();
            // What is in the mount alone stays where it was, unless that is written to: the removal
            // waits, whatever the shard still holds there.
            let waits =
                now.is_none() && allowed.iter().flatten().any(|it| in_mount_only.contains(it));
            allowed.retain(|token| *token == now || waits);
            self.durable.extend(now);
        }
    }

    fn check(
        &self,
        fs: &Fs,
        copies: &BTreeSet<Vec<u8>>,
        skipped: Option<&str>,
    ) -> Result<(), String> {
        let user = User(fs);
        let mut found = BTreeSet::new();
        for (name, allowed) in &self.allowed {
            let content = user.read(name);
            let is_allowed = match is_scratch(name) {
                true => content.is_none(),
                false => allowed.iter().any(|token| token.map(bytes_of) == content),
            };
            if !is_allowed && skipped != Some(name) {
                return Err(format!("{name} is {content:?}, which it never was; {allowed:?}"));
            }
            found.extend(content);
        }
        for token in &self.durable {
            let bytes = bytes_of(*token);
            if !found.contains(&bytes) && !copies.contains(&bytes) {
                let had = |(_, was): &(&String, &BTreeSet<_>)| was.contains(&Some(*token));
                let names: Vec<_> = self.allowed.iter().filter(had).map(|(name, _)| name).collect();
                return Err(format!("{token} is lost: it is found under none of {names:?}"));
            }
        }
        Ok(())
    }
}

/// Contents of the files below a directory.
fn contents(directory: &Path, found: &mut BTreeSet<Vec<u8>>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => contents(&entry.path(), found),
            false => drop(found.insert(std::fs::read(entry.path()).unwrap())),
        }
    }
}

fn copies(directory: &Path) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    contents(directory, &mut found);
    found
}

struct Trial {
    policy: Policy,
    clones: bool,
    at_start: bool,
    rng: Rng,
    tried: u64,
}

impl Trial {
    /// Plays operations, and kills the process and cuts the power at every moment.
    fn play(&mut self, before: &Names, ops: &[Op]) -> Result<(), String> {
        let directory = tempfile::tempdir().unwrap();
        let mut disk = disk(before, self.at_start);
        let storage = disk.now().storage(self.clones);
        let fs = mount(&storage, self.policy, directory.path());
        let (user, mut promised, mut seen) = (User(&fs), Promised::new(before), HashSet::new());
        for (at, op) in ops.iter().enumerate() {
            let copied = copies(directory.path());
            op.run(&user);
            let history = storage.take_history();
            let during = promised.during(op);
            // A file of the source is torn while it is written.
            let skipped = match op {
                Op::Write(name, _) if FILES.contains(&&**name) => Some(&**name),
                _ => None,
            };
            let copied = copied.union(&copies(directory.path())).cloned().collect();
            for change in &history {
                self.cut(&disk, (&during, at), &copied, skipped, &mut seen)?;
                disk.apply(change);
            }
            self.cut(&disk, (&during, at), &copied, skipped, &mut seen)?;
            promised = during;
            promised.after(op);
            self.cut(&disk, (&promised, at + ops.len()), &copied, None, &mut seen)?;
        }
        self.end(fs, &storage, &promised, directory.path())
    }

    fn cut(
        &mut self,
        disk: &Disk,
        (promised, moment): (&Promised, usize),
        copies: &BTreeSet<Vec<u8>>,
        skipped: Option<&str>,
        seen: &mut HashSet<u64>,
    ) -> Result<(), String> {
        let mut states = disk.states(&mut self.rng, 16, 8);
        states.push(disk.now());
        for state in states {
            if !seen.insert(state.hash(moment)) {
                continue;
            }
            self.tried += 1;
            let storage = state.storage(self.clones);
            let elsewhere = Path::new("/nonexistent");
            let found = promised.check(&mount(&storage, self.policy, elsewhere), copies, skipped);
            found.map_err(|error| format!("{error}\nfound {:#?}", summary(&state)))?;
        }
        Ok(())
    }

    /// At the end of the mount all is in its place, and what has none is saved.
    fn end(
        &mut self,
        fs: Fs,
        storage: &Arc<MemoryStorage>,
        promised: &Promised,
        unsaved: &Path,
    ) -> Result<(), String> {
        fs.end_commits();
        drop(fs);
        let saved = copies(unsaved);
        let (kept, scratch): (Names, Names) =
            promised.names.clone().into_iter().partition(|(name, _)| !is_scratch(name));
        let missing = scratch.iter().find(|(_, token)| !saved.contains(&bytes_of(**token)));
        if let Some((name, _)) = missing {
            return Err(format!("{name} is not saved at the end"));
        }
        if saved.len() > scratch.values().collect::<BTreeSet<_>>().len() {
            return Err(format!("copies are left over: {saved:?}"));
        }
        let fs = mount(storage, self.policy, Path::new("/nonexistent"));
        Promised::new(&kept)
            .check(&fs, &saved, None)
            .map_err(|error| format!("at the end: {error}"))
    }
}

fn summary(state: &State) -> Vec<impl Debug> {
    let is_shown = |(path, ..): &&(PathBuf, u64, Vec<u8>)| !path.ends_with("zarr.json");
    state.files.iter().filter(is_shown).cloned().collect()
}

/// Some operations, mostly renames. Names that were renamed away are not renamed onto before all is
/// committed, in two shards: a copy is made then, and removed, within one commit.
fn scenario(rng: &mut Rng, before: &Names) -> Vec<Op> {
    let (mut names, mut ops, mut left) = (before.clone(), Vec::new(), BTreeSet::new());
    let (all, mut next) = (all_names(), 1000);
    let length = rng.below(5) + 2;
    while ops.len() < length {
        let there: Vec<String> = names.keys().cloned().collect();
        let (from, to) = (rng.pick(&there).clone(), rng.pick(&all).clone());
        let both_in_source = FILES.contains(&&*from) && FILES.contains(&&*to);
        let moves = from != to && !both_in_source && !left.contains(&to);
        let op = match rng.below(12) {
            0..6 if moves => Op::Rename(from.clone(), to),
            6 if moves && !names.contains_key(&to) => Op::Link(from.clone(), to),
            7 if !FILES.contains(&&*to) || !names.contains_key(&to) => {
                next += 1;
                Op::Write(to, next)
            }
            8 if rng.one_in(3) => Op::Unlink(from.clone()),
            9 if !is_scratch(&from) && !FILES.contains(&&*from) => Op::FsyncFile(from.clone()),
            10 => Op::FsyncDirectory(DIRECTORIES[rng.below(DIRECTORIES.len())]),
            11 => Op::Commit,
            _ => continue,
        };
        match &op {
            Op::Rename(..) => drop(left.insert(from.clone())),
            Op::Commit => left.clear(),
            _ => (),
        }
        op.apply(&mut names);
        let is_link = matches!(op, Op::Link(..));
        ops.push(op);
        if is_link {
            // With a commit in between, or without.
            if rng.one_in(4) {
                ops.push(Op::Commit);
                left.clear();
            }
            let op = Op::Unlink(from.clone());
            op.apply(&mut names);
            ops.push(op);
            left.insert(from);
        }
    }
    ops
}

fn start(rng: &mut Rng) -> Names {
    let there =
        |name: &String| !is_scratch(name) && (FILES[..2].contains(&&**name) || !rng.one_in(3));
    all_names().into_iter().filter(there).zip(1..).collect()
}

fn scenarios() -> u64 {
    let wanted = std::env::var("CRASH_RENAME_SCENARIOS").ok();
    wanted.map_or(70, |number| number.parse().unwrap())
}

fn power_cuts(name: &str, clones: bool, at_start: bool) {
    let (begun, mut tried) = (Instant::now(), 0);
    for (policy, seed) in POLICIES.into_iter().flat_map(|p| (0..scenarios()).map(move |n| (p, n))) {
        let mut rng = Rng(seed);
        let before = start(&mut rng);
        let ops = scenario(&mut rng, &before);
        let mut trial = Trial { policy, clones, at_start, rng, tried: 0 };
        if let Err(error) = trial.play(&before, &ops) {
            panic!("{policy:?}, seed {seed}: {ops:#?}\nbefore {before:?}\n{error}");
        }
        tried += trial.tried;
    }
    let took = begun.elapsed();
    let _ = writeln!(std::io::stderr(), "crash_rename: {name}: {tried} states, {took:.1?}");
}

#[test]
fn renames_lose_nothing_durable_under_kills_and_power_cuts() {
    power_cuts("index at the end", false, false);
}

#[test]
fn renames_lose_nothing_durable_where_files_can_be_cloned() {
    power_cuts("clones", true, false);
}

#[test]
fn renames_lose_nothing_durable_with_the_index_at_the_start() {
    power_cuts("index at the start", false, true);
}

/// A mount, and what is in it at first.
fn with_mount(test: impl Fn(&User<'_>, &Arc<MemoryStorage>, &Path)) {
    let before: Names = all_names().into_iter().filter(|name| !is_scratch(name)).zip(1..).collect();
    let directory = tempfile::tempdir().unwrap();
    let storage = disk(&before, false).now().storage(false);
    let fs = mount(&storage, Policy::Auto, directory.path());
    test(&User(&fs), &storage, directory.path());
}

/// What another mount finds if this one is killed now.
fn found(storage: &Arc<MemoryStorage>, name: &str) -> Option<Vec<u8>> {
    let left = MemoryStorage::with_files(storage.files(), storage.directories());
    User(&mount(&Arc::new(left), Policy::Auto, Path::new("/nonexistent"))).read(name)
}

/// Every pair of kinds of names.
const PAIRS: [(&str, &str); 8] = [
    ("x", "a/c/0"),
    ("a/notes", "a/c/0"),
    ("x", "a/c/0.part"),
    ("a/c/0", "a/c/1"),
    ("a/c/0", "a/c/5"),
    ("a/c/0", "b/c/0"),
    ("a/c/0", "b/c/1.part"),
    ("a/c/0", "d/y"),
];

#[test]
fn what_was_renamed_is_found_after_a_kill_and_under_its_new_name_alone_after_a_commit() {
    for (from, to) in PAIRS {
        for linked in [false, true] {
            with_mount(|user, storage, _| {
                let content = user.read(from);
                if linked && user.ino(to).is_some() {
                    user.unlink(to);
                    user.0.commit(Path::new("")).unwrap();
                }
                match linked && to != "d/y" {
                    true => {
                        user.link(from, to);
                        user.unlink(from);
                    }
                    false => user.rename(from, to),
                }
                assert_eq!((user.read(from), user.read(to)), (None, content.clone()));
                let killed = [from, to].map(|name| found(storage, name));
                assert!(killed.contains(&content), "{from} -> {to}, {linked}: {killed:?}");
                user.0.commit(Path::new("")).unwrap();
                let committed = match is_scratch(to) {
                    true => [content, None],
                    false => [None, content],
                };
                let killed = [from, to].map(|name| found(storage, name));
                assert_eq!(killed, committed, "{from} -> {to}, {linked}");
            });
        }
    }
}

#[test]
fn fsync_of_the_directory_that_a_file_has_left_makes_its_new_name_durable_first() {
    for (from, to) in [("x", "a/c/0"), ("d/y", "a/c/0"), ("a/c/0", "b/c/3")] {
        with_mount(|user, storage, _| {
            let content = user.read(from);
            user.rename(from, to);
            let old = user.parent(from).unwrap().0;
            user.0.fsyncdir(old, None).unwrap();
            assert_eq!([from, to].map(|name| found(storage, name)), [None, content]);
        });
    }
}

#[test]
fn a_name_of_the_source_that_was_renamed_away_takes_a_new_file() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.rename("x", "a/c/0");
        user.write("x", b"new", true);
        assert_eq!((user.read("x"), user.read("a/c/0")), (Some(b"new".to_vec()), content.clone()));
        user.rename("d/y", "a/c/1");
        user.0.rmdir(ROOT, OsStr::new("d"), &CALLER).unwrap();
        assert_eq!(found(storage, "a/c/0"), content);
    });
}

#[test]
fn what_others_put_in_the_place_of_a_file_that_was_renamed_away_stays() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.rename("x", "a/c/0");
        storage.replace("x", "of others");
        user.0.commit(Path::new("")).unwrap();
        assert_eq!(user.read("a/c/0"), content);
        assert_eq!(user.read("x"), Some(b"of others".to_vec()));
    });
}

#[test]
fn a_backup_that_is_no_chunk_is_copied_before_its_chunk_is_written_over() {
    with_mount(|user, storage, unsaved| {
        let content = user.read("a/c/0");
        user.rename("a/c/0", "a/c/0.part");
        user.write("a/c/0", b"new", true);
        assert_eq!(found(storage, "a/c/0"), Some(b"new".to_vec()));
        assert_eq!(std::fs::read(unsaved.join("a/c/0.part")).ok(), content);
        // Until it has a place again.
        user.rename("a/c/0.part", "a/c/1");
        user.fsync("a/c/1");
        assert!(copies(unsaved).is_empty());
    });
}

#[test]
fn chunks_of_two_shards_that_change_places_are_never_both_at_risk() {
    with_mount(|user, storage, unsaved| {
        let contents = ["a/c/0", "b/c/0"].map(|name| user.read(name));
        user.rename("a/c/0", "a/c/0.part");
        user.rename("b/c/0", "a/c/0");
        user.rename("a/c/0.part", "b/c/0");
        let copy = || copies(unsaved);
        // The first of the two shards is written, the second is not.
        for nth in 1.. {
            storage.fail(nth, EVERY_CHANGE_FAILS);
            let committed = user.0.commit(Path::new(""));
            storage.fail(0, NO_FAULT);
            let killed = ["a/c/0", "b/c/0"].map(|name| found(storage, name));
            for content in contents.iter().flatten() {
                let is_there = killed.iter().flatten().any(|found| found == content);
                assert!(is_there || copy().contains(content), "{content:?} after {nth}");
            }
            if committed.is_ok() {
                break;
            }
        }
        let [a, b] = contents;
        assert_eq!(["a/c/0", "b/c/0"].map(|name| found(storage, name)), [b, a]);
        assert!(copy().is_empty());
    });
}

/// Others write a chunk that waits to be committed.
fn others_write(storage: &Arc<MemoryStorage>, name: &str, content: &[u8]) {
    let other = mount(storage, Policy::Auto, Path::new("/nonexistent"));
    User(&other).write(name, content, true);
}

#[test]
fn what_was_renamed_onto_a_chunk_that_others_write_is_there_under_its_old_name_again() {
    for from in ["x", "a/c/4", "b/c/0", "a/c/1"] {
        with_mount(|user, storage, unsaved| {
            let content = user.read(from);
            user.rename(from, "a/c/0");
            others_write(storage, "a/c/0", b"of others");
            assert!(user.0.commit(Path::new("")).is_err());
            assert_eq!(user.read("a/c/0"), Some(b"of others".to_vec()));
            assert_eq!(user.read(from), content, "{from}");
            assert_eq!(found(storage, from), content, "{from}");
            assert_eq!(std::fs::read(unsaved.join("a/c/0")).ok(), content);
            // Whoever asks is told.
            assert!(user.0.fsyncdir(ROOT, None).is_err());
            assert!(user.0.fsyncdir(ROOT, None).is_ok());
        });
    }
}

fn waiting(user: &User<'_>) -> String {
    let directory = user.ino(".shardfs").unwrap();
    let file = user.0.lookup(directory, OsStr::new("waiting.txt")).unwrap().unwrap().attr.ino;
    let opened = user.0.open(file).unwrap();
    let mut text = vec![0; 4096];
    let read = user.0.read(file, Some(opened.handle), 0, &mut text).unwrap();
    user.0.release(opened.handle);
    String::from_utf8(text[..read].to_vec()).unwrap()
}

#[test]
fn a_change_that_is_given_up_behind_its_writers_back_is_reported_to_whoever_asks_once() {
    for removed in [false, true] {
        with_mount(|user, storage, _| {
            let open = |name: &str| {
                let ino = user.ino(name).unwrap();
                (
                    ino,
                    user.0
                        .open_for(ino, OpenHow { write: true, ..OpenHow::default() }, &CALLER)
                        .unwrap(),
                )
            };
            let ((file, before), other) = (open("a/c/0"), open("a/c/4"));
            let directories = [user.0.opendir(), user.0.opendir()];
            if removed {
                user.0.release(before.handle);
                user.unlink("a/c/0");
            } else {
                user.write("a/c/0", b"ours", false);
            }
            others_write(storage, "a/c/0", b"of others");
            let fsyncdir =
                |path: &str, handle| user.0.fsyncdir(user.ino(path).unwrap(), Some(handle));
            // As at an interval.
            assert!(user.0.commit(Path::new("")).is_err());
            assert!(user.0.commit(Path::new("")).is_ok());
            assert!(waiting(user).contains("a/c/0: given up"), "{}", waiting(user));
            assert!(user.0.fsync(other.0, other.1.handle).is_ok(), "of another file");
            assert!(fsyncdir("b", directories[0]).is_ok(), "of another directory");
            let (late, after) = open("a/c/0");
            let late_directory = user.0.opendir();
            for directory in [directories[1], late_directory] {
                assert!(fsyncdir("a", directory).is_err());
                assert!(fsyncdir("a", directory).is_ok(), "once");
            }
            if !removed {
                assert!(user.0.fsync(file, before.handle).is_err());
                assert!(user.0.fsync(file, before.handle).is_ok(), "once");
            }
            assert!(user.0.fsync(late, after.handle).is_err());
            assert!(user.0.fsync(late, after.handle).is_ok(), "once");
            assert!(fsyncdir("", user.0.opendir()).is_ok(), "nobody is told again who asks anew");
            // The reason can be read once more by whoever was told.
            assert!(waiting(user).contains("a/c/0: given up"));
            assert_eq!(waiting(user), "");
        });
    }
}

#[test]
fn a_removal_that_cannot_be_committed_is_listed_with_its_reason_and_fails_each_fsync_above() {
    with_mount(|user, storage, _| {
        user.unlink("a/c/0");
        storage.fail(1, EVERY_CHANGE_FAILS);
        assert!(user.0.commit(Path::new("")).is_err());
        assert!(user.0.fsyncdir(user.ino("a").unwrap(), None).is_err());
        assert!(user.0.fsyncdir(ROOT, None).is_err());
        let text = waiting(user);
        storage.fail(0, NO_FAULT);
        assert!(text.starts_with("a/c/0: "), "{text}");
        user.0.fsyncdir(ROOT, None).unwrap();
        assert_eq!((waiting(user), found(storage, "a/c/0")), (String::new(), None));
    });
}

#[test]
fn a_linked_file_stays_until_its_chunk_is_durable_also_after_errors() {
    with_mount(|user, storage, _| {
        let content = user.read("x");
        user.unlink("a/c/0");
        user.link("x", "a/c/0");
        let rename = || {
            let (from, to) = (user.parent("a/notes").unwrap(), user.parent("x").unwrap());
            user.0.rename(from, to, false, &CALLER)
        };
        storage.fail(1, EVERY_CHANGE_FAILS);
        assert!(rename().is_err());
        storage.fail(0, NO_FAULT);
        rename().unwrap();
        assert_eq!(found(storage, "a/c/0"), content);
    });
}

#[test]
fn a_linked_file_stays_until_its_chunk_is_durable_also_in_a_renamed_directory() {
    with_mount(|user, storage, _| {
        let content = user.read("d/y");
        user.unlink("a/c/0");
        user.link("d/y", "a/c/0");
        user.rename("d", "e");
        user.unlink("e/y");
        let killed = ["a/c/0", "e/y"].map(|name| found(storage, name));
        assert!(killed.contains(&content), "{killed:?}");
        user.0.commit(Path::new("")).unwrap();
        assert_eq!((found(storage, "a/c/0"), found(storage, "e/y")), (content, None));
    });
}
