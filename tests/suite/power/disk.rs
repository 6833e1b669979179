//! A disk that loses power: what may be left of changes that were not made safe.
//!
//! Bytes and lengths are safe up to the last sync of their file, names up to the last sync of their
//! directory. Of what came later, any part may be there: each write whole, torn or not at all, each
//! name as it was at any time since. What was written before a *failed* sync never becomes safe: the
//! system drops such bytes, and a later sync says nothing about them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfs::store::memory::{Change, MemoryStorage};

use super::Rng;

#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    files: BTreeMap<u64, Content>,
    /// What each name may stand for: first what is safe, then what came later.
    names: BTreeMap<PathBuf, Vec<Node>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    Nothing,
    Directory,
    File(u64),
}

#[derive(Debug, Clone, Default)]
struct Content {
    safe: Vec<u8>,
    later: Vec<(Op, Fate)>,
}

/// Bytes of a block: what is cut off within one is zeroed before the length is safe.
pub(crate) const BLOCK: usize = 16;

#[derive(Debug, Clone)]
enum Op {
    Write(usize, Vec<u8>),
    SetLength(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// No sync since.
    Open,
    /// A sync has failed since.
    Doubtful,
    /// Safe, on top of something doubtful.
    Safe,
}

/// What becomes of one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Lost,
    Done,
    /// Only so many bytes at the start of a write.
    First(usize),
    /// Only the bytes after so many.
    Last(usize),
    /// The length of a write, and zeros where the file had no bytes.
    Zeros,
    /// A name is as it was at this place in its list.
    Name(usize),
}

/// What is found when the power is back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub files: Vec<(PathBuf, u64, Vec<u8>)>,
    pub directories: BTreeSet<PathBuf>,
}

impl State {
    pub(crate) fn storage(&self, clones: bool) -> Arc<MemoryStorage> {
        let storage = MemoryStorage::with_files(self.files.clone(), self.directories.clone());
        if clones {
            storage.allow_clones();
        }
        Arc::new(storage)
    }

    /// The disk on which all of this is safe.
    pub(crate) fn disk(&self) -> Disk {
        let mut disk = Disk::default();
        for (path, ino, bytes) in &self.files {
            disk.put(path, *ino, bytes.clone());
        }
        for path in &self.directories {
            disk.names.insert(path.clone(), vec![Node::Directory]);
        }
        disk
    }

    pub(crate) fn hash(&self, salt: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self, salt).hash(&mut hasher);
        hasher.finish()
    }
}

/// One thing that may or may not have happened: the file and its change, or a name.
enum Open<'a> {
    Change(u64, usize, &'a Op),
    Name(&'a Path, usize),
}

impl Disk {
    /// A disk with these files and a directory, all safe.
    pub(crate) fn new(
        directory: &Path,
        files: impl IntoIterator<Item = (PathBuf, u64, Vec<u8>)>,
    ) -> Self {
        let mut disk = Self::default();
        disk.names.insert(directory.to_owned(), vec![Node::Directory]);
        for (path, ino, bytes) in files {
            disk.put(&path, ino, bytes);
        }
        disk
    }

    fn put(&mut self, path: &Path, ino: u64, safe: Vec<u8>) {
        self.files.insert(ino, Content { safe, later: vec![] });
        self.names.insert(path.to_owned(), vec![Node::File(ino)]);
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            self.names.insert(parent.to_owned(), vec![Node::Directory]);
        }
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        let place = |offset: &u64| usize::try_from(*offset).unwrap();
        match change {
            Change::Write { ino, offset, bytes } => {
                self.later(*ino, Op::Write(place(offset), bytes.clone()));
            }
            Change::SetLength { ino, length } => self.later(*ino, Op::SetLength(place(length))),
            Change::Sync { ino } => self.files.entry(*ino).or_default().sync(),
            Change::SyncFailed { ino } => {
                for (op, fate) in &mut self.files.entry(*ino).or_default().later {
                    if *fate == Fate::Open && matches!(op, Op::Write(..)) {
                        *fate = Fate::Doubtful;
                    }
                }
            }
            Change::Name { path, ino } => self.name(path, Node::File(*ino)),
            Change::Rename { from, to, ino } => {
                self.name(to, Node::File(*ino));
                self.name(from, Node::Nothing);
            }
            Change::Remove { path } | Change::RemoveDirectory { path } => {
                self.name(path, Node::Nothing);
            }
            Change::MakeDirectory { path } => self.name(path, Node::Directory),
            Change::SyncDirectory { path } => {
                for (name, nodes) in &mut self.names {
                    if name.parent() == Some(path) {
                        nodes.drain(..nodes.len() - 1);
                    }
                }
            }
        }
    }

    fn later(&mut self, ino: u64, op: Op) {
        self.files.entry(ino).or_default().later.push((op, Fate::Open));
    }

    fn name(&mut self, path: &Path, node: Node) {
        self.names.entry(path.to_owned()).or_insert_with(|| vec![Node::Nothing]).push(node);
    }

    /// States that a power cut may leave now: all where there are at most `most`, counting no torn
    /// writes, else as many by chance; then `more` by chance with torn writes.
    pub(crate) fn states(&self, rng: &mut Rng, most: usize, more: usize) -> Vec<State> {
        let open = self.open();
        let counts: Vec<usize> = open.iter().map(Open::count).collect();
        let all = counts.iter().try_fold(1_usize, |all, n| all.checked_mul(*n));
        let mut states = Vec::new();
        match all.filter(|all| *all <= most) {
            Some(all) => {
                for mut number in 0..all {
                    let mut choice = Vec::new();
                    for (open, count) in open.iter().zip(&counts) {
                        choice.push(open.outcome(number % count));
                        number /= count;
                    }
                    states.push(self.state(&open, &choice));
                }
            }
            None => {
                for _ in 0..most {
                    let choice: Vec<_> = open.iter().map(|open| open.any(rng, false)).collect();
                    states.push(self.state(&open, &choice));
                }
            }
        }
        if !open.is_empty() {
            for _ in 0..more {
                let choice: Vec<_> = open.iter().map(|open| open.any(rng, true)).collect();
                states.push(self.state(&open, &choice));
            }
        }
        states
    }

    /// Everything as it is: what is found after a process was killed.
    pub(crate) fn now(&self) -> State {
        let open = self.open();
        let choice: Vec<_> = open.iter().map(|open| open.outcome(open.count() - 1)).collect();
        self.state(&open, &choice)
    }

    fn open(&self) -> Vec<Open<'_>> {
        let mut open = Vec::new();
        let mut reached = BTreeSet::new();
        for (path, nodes) in &self.names {
            if nodes.len() > 1 {
                open.push(Open::Name(path, nodes.len()));
            }
            reached.extend(nodes.iter().filter_map(|node| match node {
                Node::File(ino) => Some(*ino),
                _ => None,
            }));
        }
        for (ino, content) in self.files.iter().filter(|(ino, _)| reached.contains(ino)) {
            let later = content.later.iter().enumerate();
            let later = later.filter(|(_, (_, fate))| *fate != Fate::Safe);
            open.extend(later.map(|(at, (op, _))| Open::Change(*ino, at, op)));
        }
        open
    }

    fn state(&self, open: &[Open<'_>], choice: &[Outcome]) -> State {
        let mut outcomes: BTreeMap<(u64, usize), Outcome> = BTreeMap::new();
        let mut shown: BTreeMap<&Path, usize> = BTreeMap::new();
        for (open, outcome) in open.iter().zip(choice) {
            match (open, outcome) {
                (Open::Name(path, _), Outcome::Name(at)) => drop(shown.insert(path, *at)),
                (Open::Name(..), _) => (),
                (Open::Change(ino, at, _), outcome) => {
                    outcomes.insert((*ino, *at), *outcome);
                }
            }
        }
        let (mut files, mut directories) = (Vec::new(), BTreeSet::new());
        // Parents come before their children.
        for (path, nodes) in &self.names {
            let parent = path.parent().unwrap();
            if !parent.as_os_str().is_empty() && !directories.contains(parent) {
                continue;
            }
            match nodes[shown.get(&**path).copied().unwrap_or(0)] {
                Node::Nothing => (),
                Node::Directory => drop(directories.insert(path.clone())),
                Node::File(ino) => {
                    let outcome = |at| outcomes.get(&(ino, at)).copied();
                    files.push((
                        path.clone(),
                        ino,
                        self.files.get(&ino).map_or(vec![], |content| content.with(outcome)),
                    ));
                }
            }
        }
        State { files, directories }
    }
}

impl Content {
    fn sync(&mut self) {
        for (_, fate) in &mut self.later {
            if *fate == Fate::Open {
                *fate = Fate::Safe;
            }
        }
        if self.later.iter().all(|(_, fate)| *fate == Fate::Safe) {
            self.safe = self.with(|_| None);
            self.later.clear();
        }
    }

    fn with(&self, outcome: impl Fn(usize) -> Option<Outcome>) -> Vec<u8> {
        let mut bytes = self.safe.clone();
        for (at, (op, _)) in self.later.iter().enumerate() {
            op.apply(&mut bytes, outcome(at).unwrap_or(Outcome::Done));
        }
        bytes
    }
}

impl Op {
    fn apply(&self, file: &mut Vec<u8>, outcome: Outcome) {
        let (offset, bytes) = match self {
            Self::SetLength(length) => {
                match outcome {
                    Outcome::Lost => (),
                    // Seen on ext4: the rest of the block is zero before the length is safe.
                    Outcome::Zeros => {
                        let block = length.next_multiple_of(BLOCK).min(file.len());
                        file[(*length).min(block)..block].fill(0);
                    }
                    _ => file.resize(*length, 0),
                }
                return;
            }
            Self::Write(offset, bytes) => (*offset, bytes),
        };
        let end = offset + bytes.len();
        let part = match outcome {
            Outcome::Lost | Outcome::Name(_) => return,
            Outcome::Done => 0..bytes.len(),
            Outcome::First(n) => 0..n,
            Outcome::Last(n) => n..bytes.len(),
            Outcome::Zeros => 0..0,
        };
        // A write that lost its first bytes has the length of the whole.
        let length = if matches!(outcome, Outcome::First(_)) { offset + part.end } else { end };
        if file.len() < length {
            file.resize(length, 0);
        }
        file[offset + part.start..offset + part.end].copy_from_slice(&bytes[part]);
    }
}

impl Open<'_> {
    /// Outcomes without torn writes.
    fn count(&self) -> usize {
        match self {
            Self::Change(..) => 2,
            // Lock files are only litter: they are taken away again, or not, in some states.
            Self::Name(path, _) if is_lock(path) => 1,
            Self::Name(_, n) => *n,
        }
    }

    fn outcome(&self, at: usize) -> Outcome {
        match self {
            Self::Change(..) if at == 0 => Outcome::Lost,
            Self::Change(..) => Outcome::Done,
            Self::Name(path, n) if is_lock(path) => Outcome::Name(n - 1),
            Self::Name(..) => Outcome::Name(at),
        }
    }

    fn any(&self, rng: &mut Rng, torn: bool) -> Outcome {
        match self {
            Self::Name(_, n) => Outcome::Name(rng.below(*n)),
            Self::Change(_, _, Op::Write(_, bytes)) if torn && rng.one_in(2) => {
                match (rng.below(5), bytes.len()) {
                    (0, n) => Outcome::First(n / 2),
                    (1, n) if n > 0 => Outcome::First(rng.below(n)),
                    (2, n) if n > 0 => Outcome::Last(rng.below(n)),
                    (3, n) => Outcome::Last(n / 2),
                    _ => Outcome::Zeros,
                }
            }
            Self::Change(_, _, Op::SetLength(_)) if torn && rng.one_in(3) => Outcome::Zeros,
            Self::Change(..) => self.outcome(rng.below(2)),
        }
    }
}

pub(crate) fn is_lock(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "__lock")
}
