//! Renames under kills and power cuts: between chunks of one shard, of two, of two arrays, files that
//! are passed through, and names that are no chunk. What was durable is found under its old name or its
//! new one, or in the copy that was made of it; what nobody touched stays as it is.
//!
//! `CRASH_RENAME_SCENARIOS=N` plays so many scenarios for each way of changing shards.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Debug;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use shardfs::format::plan::Policy;
use shardfs::fs::Fs;
use shardfs::store::memory::MemoryStorage;

use crate::power::Rng;
use crate::power::disk::{Disk, State};
use crate::power::mounted::{
    FILES, Names, Token, User, all_names, bytes_of, copies, disk, is_scratch, mount, mount_alone,
};

const DIRECTORIES: [&str; 5] = ["", "a", "a/c", "b", "d"];
const POLICIES: [Policy; 4] = [Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite];

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
            let fs = mount_alone(&storage, self.policy, elsewhere);
            let found = promised.check(&fs, copies, skipped);
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
