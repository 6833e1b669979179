//! Power cuts at every moment of a commit to a Bloscpack file: whatever a disk may have kept of it is
//! read, recovered, read again, and parsed by other code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod power;
mod support;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use power::disk::{Disk, State, is_lock};
use power::{ARRAY, Rng, read, stage, store};
use shardfs::format::bloscpack::Header;
use shardfs::format::foreign;
use shardfs::format::plan::Policy;
use shardfs::store::memory::{Change, Fault, MemoryStorage};
use shardfs::store::recover::{Found, recover};
use shardfs::store::{Container, SUPERCHUNKS, SourceArray, SuperchunkForm};

const NAME: &str = "file.blp";
/// Bytes of a chunk before compression.
const FULL: u32 = 1000;

/// How a file is stored.
#[derive(Debug, Clone, Copy)]
struct Form {
    offsets: bool,
    adler32: bool,
    metadata: bool,
    /// Bytes reserved after each chunk.
    reserved: usize,
    spare: usize,
}

const FORMS: [Form; 5] = {
    const fn form(flags: [bool; 3], reserved: usize, spare: usize) -> Form {
        let [offsets, adler32, metadata] = flags;
        Form { offsets, adler32, metadata, reserved, spare }
    }
    [
        form([true, true, true], 0, 4),
        form([true, false, false], 0, 2),
        form([true, true, false], 12, 3),
        form([false, true, true], 0, 0),
        form([false, false, false], 0, 0),
    ]
};

/// The chunks of a file, one after the other.
type Chunks = Vec<Vec<u8>>;

/// A Blosc buffer with so many bytes after its header, of a full chunk or a shorter one.
fn buffer(rng: &mut Rng, length: usize, decoded: u32) -> Vec<u8> {
    let mut bytes = vec![2, 1, 0, 1];
    let nbytes = u32::try_from(length).unwrap() + 16;
    for word in [decoded, decoded, nbytes] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(rng.bytes(length));
    bytes
}

fn decoded(chunk: &[u8]) -> u32 {
    u32::from_le_bytes(chunk[4..8].try_into().unwrap())
}

fn adler32(bytes: &[u8]) -> [u8; 4] {
    let sums = bytes.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    (sums.1 << 16 | sums.0).to_le_bytes()
}

impl Form {
    fn digest(self, chunk: &[u8]) -> Vec<u8> {
        if self.adler32 { adler32(chunk).to_vec() } else { vec![] }
    }

    fn file(self, chunks: &Chunks) -> Vec<u8> {
        let options = u8::from(self.offsets) | u8::from(self.metadata) << 1;
        let mut file = b"blpk\x03".to_vec();
        file.extend([options, u8::from(self.adler32), 1]);
        file.extend(FULL.to_le_bytes());
        file.extend(decoded(chunks.last().unwrap()).to_le_bytes());
        file.extend((chunks.len() as u64).to_le_bytes());
        file.extend((self.spare as u64).to_le_bytes());
        if self.metadata {
            file.extend(b"JSON\0\0\0\0\0\0\0\0");
            for word in [2_u32, 20, 2] {
                file.extend(word.to_le_bytes());
            }
            file.extend([0; 8]);
            file.extend(b"{}");
            file.extend([0; 18]);
        }
        let table = file.len();
        if self.offsets {
            file.resize(table + 8 * (chunks.len() + self.spare), 0xff);
        }
        for (slot, chunk) in chunks.iter().enumerate() {
            if self.offsets {
                let offset = (file.len() as u64).to_le_bytes();
                file[table + 8 * slot..][..8].copy_from_slice(&offset);
            }
            file.extend(chunk);
            file.extend(self.digest(chunk));
            file.resize(file.len() + self.reserved, 0xdd);
        }
        file
    }

    /// The chunks of a file that may have been written to; it breaks no rule of the format.
    fn parse(self, file: &[u8], initial: usize) -> Result<Chunks, String> {
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let long =
            |at: usize| usize::try_from(u64::from_le_bytes(file[at..at + 8].try_into().unwrap()));
        let (nchunks, spare) = (long(16).unwrap(), long(24).unwrap());
        if nchunks + spare != initial + self.spare || word(8) != FULL {
            return Err(format!("{nchunks} chunks and {spare} spare, chunks of {}", word(8)));
        }
        let table = if self.metadata { 84 } else { 32 };
        let mut next = table + if self.offsets { 8 * (nchunks + spare) } else { 0 };
        let (mut chunks, mut ends) = (Chunks::new(), vec![]);
        for slot in 0..nchunks {
            let offset = if self.offsets { long(table + 8 * slot).unwrap() } else { next };
            if self.reserved == 0 && offset != next {
                return Err(format!("chunk {slot} is at {offset}, the one before ends at {next}"));
            }
            let nbytes = word(offset + 12) as usize;
            let chunk = file.get(offset..offset + nbytes).ok_or("beyond the file")?.to_vec();
            next = offset + nbytes + self.digest(&chunk).len();
            if file[offset + nbytes..next] != self.digest(&chunk) {
                return Err(format!("chunk {slot}: its checksum does not match"));
            }
            let full = if slot + 1 == nchunks { word(12) } else { FULL };
            if decoded(&chunk) != full {
                return Err(format!("chunk {slot} holds {}, not {full}", decoded(&chunk)));
            }
            ends.push((offset, next));
            chunks.push(chunk);
        }
        ends.sort_unstable();
        match ends.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            Some(pair) => Err(format!("chunks have bytes in common: {pair:?}")),
            None => Ok(chunks),
        }
    }

    fn array(self, file: &[u8], nchunks: usize) -> SourceArray {
        let header = Header::parse(file, file.len() as u64).unwrap();
        let array = foreign::bloscpack(&header, nchunks as u64, self.spare as u64, None).unwrap();
        let container = Container::Bloscpack(NAME.into());
        SourceArray { id: 1, path: ARRAY.into(), layout: array.layout, container }
    }
}

/// New content of chunks, by their numbers.
type Changes = BTreeMap<usize, Vec<u8>>;

fn applied(chunks: &Chunks, changes: &Changes) -> Chunks {
    let mut chunks = chunks.clone();
    for (slot, content) in changes {
        if *slot == chunks.len() {
            chunks.push(content.clone());
        } else {
            chunks[*slot].clone_from(content);
        }
    }
    chunks
}

fn path() -> PathBuf {
    Path::new(ARRAY).join(NAME)
}

/// One file, and commits to it, one after the other.
struct Scenario {
    form: Form,
    initial: Chunks,
    commits: Vec<Changes>,
}

impl Scenario {
    /// Commits to a file of four chunks, each of some kind, or a few by chance.
    fn of(form: Form, kind: usize, rng: &mut Rng) -> Self {
        let lengths = [20, 7, 30, 12];
        let initial: Chunks = lengths.map(|length| buffer(rng, length, FULL)).to_vec();
        let last = initial.len() - 1;
        let short = buffer(rng, 9, FULL / 2);
        let mut one = |slot, length| Changes::from([(slot, buffer(rng, length, FULL))]);
        let commits = match kind {
            0 => vec![one(1, 7)],
            1 => vec![one(2, 9)],
            2 => vec![one(1, 16)],
            3 => vec![one(0, 90)],
            4 => vec![one(last, 40), one(last, 3)],
            5 => vec![Changes::from([(last, short)]), one(last, 80)],
            6 => vec![(0..=last).map(|slot| (slot, buffer(rng, lengths[slot], FULL))).collect()],
            7 => vec![(0..=last).map(|slot| (slot, buffer(rng, slot, FULL))).collect()],
            8 if form.spare > 0 => vec![one(last + 1, 50), one(last + 2, 5)],
            9 if form.spare > 0 => {
                let mut both = one(last, 70);
                both.append(&mut one(last + 1, 9));
                vec![both, one(last + 1, 33)]
            }
            _ => Self::by_chance(form, &initial, rng),
        };
        Self { form, initial, commits }
    }

    fn by_chance(form: Form, initial: &Chunks, rng: &mut Rng) -> Vec<Changes> {
        let (mut chunks, most) = (initial.clone(), initial.len() + form.spare);
        let mut commits = Vec::new();
        for _ in 0..rng.below(3) + 1 {
            let mut changes = Changes::new();
            for _ in 0..rng.below(3) + 1 {
                let is_full = decoded(chunks.last().unwrap()) == FULL;
                let slot = rng.below((chunks.len() + usize::from(is_full)).min(most));
                let length = if rng.one_in(2) { rng.below(60) } else { chunks[0].len() - 16 };
                changes.insert(slot, buffer(rng, length, FULL));
                chunks = applied(&chunks, &changes);
            }
            commits.push(changes);
        }
        commits
    }

    fn disk(&self) -> Disk {
        Disk::new(Path::new(ARRAY), [(path(), 1, self.form.file(&self.initial))])
    }

    fn array(&self) -> SourceArray {
        self.form.array(&self.form.file(&self.initial), self.initial.len())
    }
}

fn changes(changes: &Changes) -> power::Changes {
    changes.iter().map(|(slot, bytes)| (vec![*slot as u64], Some(bytes.clone()))).collect()
}

/// What was tried.
struct Trial<'a> {
    scenario: &'a Scenario,
    array: SourceArray,
    clones: bool,
    rng: Rng,
    seen: HashSet<u64>,
    tried: u64,
}

impl<'a> Trial<'a> {
    fn new(scenario: &'a Scenario, clones: bool, seed: u64) -> Self {
        let (array, rng) = (scenario.array(), Rng(seed));
        Self { scenario, array, clones, rng, seen: HashSet::new(), tried: 0 }
    }

    /// Cuts the power at every moment of a history.
    fn cut(
        &mut self,
        disk: &Disk,
        history: &[Change],
        most: (usize, usize),
        allowed: &dyn Fn(usize) -> Vec<&'a Chunks>,
    ) -> Result<(), String> {
        let mut disk = disk.clone();
        for moment in 0..=history.len() {
            if let Some(change) = moment.checked_sub(1).map(|at| &history[at]) {
                disk.apply(change);
            }
            let allowed = allowed(moment);
            for state in disk.states(&mut self.rng, most.0, most.1) {
                let key = allowed.iter().fold(0, |key, chunks| key * 31 + chunks.as_ptr() as usize);
                if self.seen.insert(state.hash(key)) {
                    self.check(&state, &allowed)
                        .map_err(|error| format!("{error}\nafter {:#?}", &history[..moment]))?;
                }
            }
        }
        Ok(())
    }

    /// Whatever a state shows, before and after recovery, must be allowed.
    fn check(&mut self, state: &State, allowed: &[&'a Chunks]) -> Result<(), String> {
        self.tried += 1;
        let storage = state.storage(self.clones);
        let reader = store(&storage);
        for slot in 0..self.scenario.initial.len() + self.scenario.form.spare {
            if let Ok(found) = read(&reader, &self.array, &[slot as u64])
                && !allowed.iter().any(|chunks| chunks.get(slot) == found.as_ref())
            {
                return Err(format!("before recovery: {slot} reads {found:?}"));
            }
        }
        assert_eq!(storage.take_history(), [], "a reader has written");
        let found = recover(&*storage, Path::new(ARRAY)).map_err(|error| error.to_string())?;
        if found.iter().any(|(_, found)| *found == Found::Lost) {
            return Err(format!("recovery found {found:?}"));
        }
        let history = storage.take_history();
        let chunks = self.whole(&storage, allowed)?;
        if !history.is_empty() && self.rng.one_in(20) {
            self.cut(&state.disk(), &history, (6, 3), &|_| allowed.to_vec())
                .map_err(|error| format!("power cut in recovery: {error}"))?;
        }
        if self.rng.one_in(10) {
            let form = self.scenario.form;
            let next = Scenario::by_chance(
                Form { spare: form.spare + self.scenario.initial.len() - chunks.len(), ..form },
                &chunks,
                &mut self.rng,
            );
            let store = store(&storage);
            let chosen = stage(&store, &self.array, &changes(&next[0]));
            for outcome in store.commit(&self.array, &chosen, *self.rng.pick(&POLICIES)) {
                outcome.map_err(|error| format!("going on: {error}"))?;
            }
            store.finish_commits(&self.array).map_err(|error| error.to_string())?;
            self.whole(&storage, &[&applied(&chunks, &next[0])])
                .map_err(|error| format!("going on: {error}"))?;
        }
        Ok(())
    }

    /// The file breaks no rule and is one of those allowed, readers see the same, nothing is left.
    fn whole(&self, storage: &Arc<MemoryStorage>, allowed: &[&Chunks]) -> Result<Chunks, String> {
        let files = storage.files();
        let file = files.iter().find(|(at, ..)| *at == path()).ok_or("the file is gone")?;
        let chunks = self.scenario.form.parse(&file.2, self.scenario.initial.len())?;
        if !allowed.contains(&&chunks) {
            return Err(format!("the file holds {chunks:?}"));
        }
        let reader = store(storage);
        for slot in 0..self.scenario.initial.len() + self.scenario.form.spare {
            match read(&reader, &self.array, &[slot as u64]) {
                Ok(found) if found.as_ref() == chunks.get(slot) => (),
                other => return Err(format!("{slot} reads {other:?}")),
            }
        }
        match files.iter().find(|(at, ..)| *at != path() && !is_lock(at)) {
            Some((left, ..)) => Err(format!("{} is left over", left.display())),
            None => Ok(chunks),
        }
    }
}

const POLICIES: [Policy; 4] = [Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite];
const KINDS: usize = 16;

/// Each kind of commit to each form of file, with and without clones.
fn each_way(mut act: impl FnMut(&Scenario, Policy, bool, u64) -> Result<u64, String>) -> u64 {
    let mut tried = 0;
    for (number, form) in (0_u64..).zip(FORMS) {
        for kind in 0..KINDS {
            for (policy, clones) in
                POLICIES.map(|policy| (policy, false)).into_iter().chain([(Policy::Auto, true)])
            {
                let seed = number * 1000 + kind as u64;
                let scenario = Scenario::of(form, kind, &mut Rng(seed));
                match act(&scenario, policy, clones, seed) {
                    Ok(states) => tried += states,
                    Err(error) => {
                        panic!("{form:?}, kind {kind}, {policy:?}, clones {clones}: {error}")
                    }
                }
            }
        }
    }
    tried
}

/// A scenario that was played.
struct Played {
    history: Vec<Change>,
    /// The chunks before, and after each commit.
    values: Vec<Chunks>,
    /// How much of the history there was when each commit returned.
    returned: Vec<usize>,
}

fn play(scenario: &Scenario, policy: Policy, clones: bool) -> Result<Played, String> {
    let storage = scenario.disk().now().storage(clones);
    let (live, array) = (store(&storage), scenario.array());
    let values = vec![scenario.initial.clone()];
    let mut played = Played { history: Vec::new(), values, returned: Vec::new() };
    for change in &scenario.commits {
        let chunks = stage(&live, &array, &changes(change));
        for outcome in live.commit(&array, &chunks, policy) {
            outcome.map_err(|error| error.to_string())?;
        }
        played.history.extend(storage.take_history());
        played.returned.push(played.history.len());
        played.values.push(applied(played.values.last().unwrap(), change));
    }
    Ok(played)
}

#[test]
fn a_power_cut_at_any_moment_leaves_each_chunk_old_or_new_and_durable_ones_as_they_are() {
    let tried = each_way(|scenario, policy, clones, seed| {
        let Played { history, values, returned } = play(scenario, policy, clones)?;
        let mut trial = Trial::new(scenario, clones, seed);
        trial.cut(&scenario.disk(), &history, (12, 6), &|moment| {
            let done = returned.iter().filter(|at| **at <= moment).count();
            values[done..values.len().min(done + 2)].iter().collect()
        })?;
        Ok(trial.tried)
    });
    println!("{tried} states of Bloscpack files after a power cut, all as they must be");
    assert!(tried > 5_000, "{tried} states are too few to tell anything");
}

#[test]
fn an_operation_that_fails_leaves_the_file_old_or_new() {
    let faults = [
        Fault { errno: libc::EIO, lasting: false, half_done: false, changes_only: true },
        Fault { errno: libc::ENOSPC, lasting: false, half_done: true, changes_only: true },
        Fault { errno: libc::EIO, lasting: true, half_done: true, changes_only: false },
    ];
    let tried = each_way(|scenario, policy, clones, seed| {
        let mut tried = 0;
        for fault in faults {
            for nth in 1.. {
                let storage = scenario.disk().now().storage(clones);
                let (live, array) = (store(&storage), scenario.array());
                let chunks = stage(&live, &array, &changes(&scenario.commits[0]));
                storage.fail(nth, fault);
                let outcomes = live.commit(&array, &chunks, policy);
                storage.fail(0, fault);
                if !storage.has_failed() {
                    break;
                }
                let failed = outcomes.iter().any(Result::is_err);
                let (old, new) =
                    (&scenario.initial, applied(&scenario.initial, &scenario.commits[0]));
                let mut disk = scenario.disk();
                storage.take_history().iter().for_each(|change| disk.apply(change));
                let allowed: &[&Chunks] = if failed { &[old, &new] } else { &[&new] };
                let mut trial = Trial::new(scenario, clones, seed);
                for state in disk.states(&mut Rng(seed + nth), 4, 2) {
                    // Told that it is durable, or either; a record that stays is recovery's.
                    trial.check(&state, allowed).map_err(|error| {
                        format!("{nth}. operation, {fault:?}, failed {failed}: {error}")
                    })?;
                }
                tried += trial.tried;
                // The same once more, with nothing in the way.
                for outcome in live.commit(&array, &chunks, policy) {
                    outcome.map_err(|error| format!("again after {nth}, {fault:?}: {error}"))?;
                }
                live.finish_commits(&array).map_err(|error| error.to_string())?;
                // What could not be removed is removed by the next mount.
                recover(&*storage, Path::new(ARRAY)).map_err(|error| error.to_string())?;
                trial.whole(&storage, &[&new]).map_err(|error| {
                    format!("again after {nth}, {fault:?}, failed {failed}: {error}")
                })?;
            }
        }
        Ok(tried)
    });
    println!("{tried} states of Bloscpack files after a failed operation, all as they must be");
    assert!(tried > 5_000, "{tried} states are too few to tell anything");
}

/// A directory of files with one chunk each, as BLZ and bcolz write it.
fn superchunk(chunk: &[u8]) -> Vec<u8> {
    [&b"blpk\x01\0\0\0\x01\0\0\0\0\0\0\0"[..], chunk].concat()
}

/// Where the file of a chunk is.
fn superchunk_path(slot: usize) -> PathBuf {
    Path::new(ARRAY).join(format!("data/__{slot}.blp"))
}

fn sizes(rows: u32) -> Vec<u8> {
    format!("{{\"shape\": [{rows}], \"nbytes\": {rows}, \"cbytes\": 100}}").into_bytes()
}

/// Chunks of FULL rows of one byte, the last one of fewer.
fn rows_of(chunks: &Chunks) -> u32 {
    chunks.iter().map(|chunk| decoded(chunk)).sum()
}

fn superchunk_array(rows: u32) -> SourceArray {
    let sizes = serde_json::from_slice(&sizes(rows)).unwrap();
    let how = serde_json::json!({"dtype": "int8", "chunklen": FULL});
    let found = foreign::superchunks(&sizes, &how, None, 1, 10).unwrap();
    let (form, extent) = (SuperchunkForm::Single, found.extent);
    let container = Container::Superchunks { files: SUPERCHUNKS, form, extent, grows: true };
    SourceArray { id: 1, path: ARRAY.into(), layout: found.array.layout, container }
}

/// Every row that `meta/sizes` counts is there, in a chunk that is one of those allowed.
fn check_superchunks(
    storage: &Arc<MemoryStorage>,
    array: &SourceArray,
    allowed: &[Chunks],
) -> Result<(), String> {
    let files: BTreeMap<PathBuf, Vec<u8>> =
        storage.files().into_iter().map(|(path, _, bytes)| (path, bytes)).collect();
    let counted: serde_json::Value =
        serde_json::from_slice(&files[&Path::new(ARRAY).join("meta/sizes")])
            .map_err(|error| format!("meta/sizes: {error}"))?;
    let rows = u32::try_from(counted["shape"][0].as_u64().unwrap()).unwrap();
    let count = rows.div_ceil(FULL) as usize;
    let reader = store(storage);
    for slot in 0..10 {
        let found = read(&reader, array, &[slot as u64])?;
        let file = files.get(&superchunk_path(slot)).filter(|_| slot < count);
        if found.as_ref().map(|chunk| superchunk(chunk)).as_ref() != file {
            return Err(format!("{slot} reads {found:?}"));
        }
        if !allowed.iter().any(|chunks| chunks.get(slot) == found.as_ref()) {
            return Err(format!("{slot} of {count} is {found:?}"));
        }
        let least = if slot + 1 == count { rows - (rows - 1) / FULL * FULL } else { FULL };
        if found.is_some_and(|chunk| decoded(&chunk) < least) {
            return Err(format!("{slot} of {count} has fewer rows than {least}"));
        }
    }
    let is_known = |path: &Path| {
        path.ends_with("meta/sizes")
            || is_lock(path)
            || (0..10).any(|slot| path == superchunk_path(slot))
    };
    match files.keys().find(|path| !is_known(path)) {
        Some(path) => Err(format!("{} is left over", path.display())),
        None => Ok(()),
    }
}

/// Commits to an array of three chunks, the last one short: what becomes of each chunk, None where
/// it is removed.
fn superchunk_commits(rng: &mut Rng) -> Vec<BTreeMap<usize, Option<Vec<u8>>>> {
    let mut full = |length| Some(buffer(rng, length, FULL));
    let mut commits = vec![
        BTreeMap::from([(0, full(9))]),
        BTreeMap::from([(2, full(40)), (3, full(8))]),
        BTreeMap::from([(1, full(50)), (3, None)]),
        BTreeMap::from([(3, full(5)), (4, full(6)), (5, full(7))]),
        BTreeMap::from([(3, None), (4, None), (5, None), (0, full(77))]),
        BTreeMap::from([(1, None), (2, None)]),
        BTreeMap::from([(0, None)]),
        BTreeMap::from([(0, full(3)), (1, full(4))]),
    ];
    let short = [300, 200, 900].map(|rows| Some(buffer(rng, 20, rows)));
    let [longer, shorter, appended] = short;
    commits.insert(1, BTreeMap::from([(2, longer)]));
    commits.insert(2, BTreeMap::from([(2, shorter)]));
    commits.push(BTreeMap::from([(2, appended)]));
    commits
}

fn after(chunks: &Chunks, commit: &BTreeMap<usize, Option<Vec<u8>>>) -> Chunks {
    let mut chunks = chunks.clone();
    for (slot, content) in commit {
        match content {
            Some(content) if *slot == chunks.len() => chunks.push(content.clone()),
            Some(content) => chunks[*slot].clone_from(content),
            None => chunks.truncate(*slot),
        }
    }
    chunks
}

fn staged_superchunks(commit: &BTreeMap<usize, Option<Vec<u8>>>) -> power::Changes {
    commit.iter().map(|(slot, content)| (vec![*slot as u64], content.clone())).collect()
}

fn superchunk_disk(chunks: &Chunks) -> Disk {
    let files = chunks.iter().enumerate();
    let files =
        files.map(|(slot, chunk)| (superchunk_path(slot), slot as u64 + 2, superchunk(chunk)));
    let counted = (Path::new(ARRAY).join("meta/sizes"), 1, sizes(rows_of(chunks)));
    Disk::new(Path::new(ARRAY), files.chain([counted]))
}

fn three_superchunks(rng: &mut Rng) -> Chunks {
    vec![buffer(rng, 30, FULL), buffer(rng, 20, FULL), buffer(rng, 10, FULL / 4)]
}

#[test]
fn a_power_cut_leaves_files_of_one_chunk_and_the_rows_that_are_counted() {
    let mut tried = 0;
    for (seed, clones) in [(1, false), (2, true), (3, false)] {
        let mut rng = Rng(seed);
        let mut values = vec![three_superchunks(&mut rng)];
        let array = superchunk_array(rows_of(&values[0]));
        let mut disk = superchunk_disk(&values[0]);
        let storage = disk.now().storage(clones);
        let live = store(&storage);
        let (mut history, mut returned) = (Vec::new(), Vec::new());
        for commit in superchunk_commits(&mut rng) {
            let chunks = stage(&live, &array, &staged_superchunks(&commit));
            for outcome in live.commit(&array, &chunks, Policy::Auto) {
                outcome.unwrap();
            }
            history.extend(storage.take_history());
            returned.push(history.len());
            values.push(after(values.last().unwrap(), &commit));
        }
        live.finish_commits(&array).unwrap();
        check_superchunks(&storage, &array, &values[values.len() - 1..]).unwrap();
        for moment in 0..=history.len() {
            if let Some(change) = moment.checked_sub(1).map(|at| &history[at]) {
                disk.apply(change);
            }
            let done = returned.iter().filter(|at| **at <= moment).count();
            for state in disk.states(&mut rng, 12, 6) {
                tried += 1;
                let storage = state.storage(clones);
                recover(&*storage, Path::new(ARRAY)).unwrap();
                let allowed = &values[done..values.len().min(done + 2)];
                check_superchunks(&storage, &array, allowed).unwrap_or_else(|error| {
                    panic!("{error}, in commit {done}, after {:#?}", &history[..moment])
                });
            }
        }
    }
    println!("{tried} states of superchunk files after a power cut, all as they must be");
    assert!(tried > 1000, "{tried} states are too few to tell anything");
}

#[test]
fn an_operation_that_fails_leaves_files_of_one_chunk_and_the_rows_that_are_counted() {
    let faults = [
        Fault { errno: libc::EIO, lasting: false, half_done: false, changes_only: true },
        Fault { errno: libc::ENOSPC, lasting: false, half_done: true, changes_only: true },
        Fault { errno: libc::EIO, lasting: true, half_done: true, changes_only: false },
    ];
    let mut tried = 0;
    let commits = superchunk_commits(&mut Rng(1));
    for (last, fault) in (0..commits.len()).flat_map(|last| faults.map(|fault| (last, fault))) {
        for nth in 1.. {
            let mut rng = Rng(1);
            let mut chunks = three_superchunks(&mut rng);
            for commit in &commits[..last] {
                chunks = after(&chunks, commit);
            }
            let values = [chunks.clone(), after(&chunks, &commits[last])];
            let array = superchunk_array(rows_of(&chunks));
            let mut disk = superchunk_disk(&chunks);
            let storage = disk.now().storage(false);
            let live = store(&storage);
            let staged = stage(&live, &array, &staged_superchunks(&commits[last]));
            storage.fail(nth, fault);
            let outcomes = live.commit(&array, &staged, Policy::Auto);
            storage.fail(0, fault);
            if !storage.has_failed() {
                break;
            }
            let failed = outcomes.iter().any(Result::is_err);
            storage.take_history().iter().for_each(|change| disk.apply(change));
            for state in disk.states(&mut rng, 4, 2) {
                tried += 1;
                let storage = state.storage(false);
                recover(&*storage, Path::new(ARRAY)).unwrap();
                let allowed = if failed { &values[..] } else { &values[1..] };
                check_superchunks(&storage, &array, allowed).unwrap_or_else(|error| {
                    panic!("{error}: commit {last}, {nth}. operation, {fault:?}, failed {failed}")
                });
            }
            for outcome in live.commit(&array, &staged, Policy::Auto) {
                outcome.unwrap_or_else(|error| {
                    panic!("again, commit {last}, {nth}, {fault:?}: {error}")
                });
            }
            live.finish_commits(&array).unwrap();
            recover(&*storage, Path::new(ARRAY)).unwrap();
            check_superchunks(&storage, &array, &values[1..]).unwrap_or_else(|error| {
                panic!("again: {error}: commit {last}, {nth}. operation, {fault:?}")
            });
        }
    }
    println!("{tried} states of superchunk files after a failed operation, all as they must be");
    assert!(tried > 500, "{tried} states are too few to tell anything");
}
