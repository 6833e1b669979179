//! Power cuts at every moment of a commit to a Bloscpack file: whatever a disk may have kept of it is
//! read, recovered, read again, and parsed by other code.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfs::format::bloscpack::Header;
use shardfs::format::foreign;
use shardfs::format::plan::Policy;
use shardfs::store::SourceArray;
use shardfs::store::formats::one_file;
use shardfs::store::memory::{Change, MemoryStorage};
use shardfs::store::owner::Owner;
use shardfs::store::recover::{Found, recover};

use crate::power;
use crate::power::blosc::{FAULTS, buffer, decoded};
use crate::power::disk::{Disk, State, is_lock};
use crate::power::{ARRAY, Rng, read, stage, store};

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
        let format = one_file(NAME.as_ref());
        SourceArray { id: 1, path: ARRAY.into(), layout: array.layout, format }
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
        let found =
            recover(&*storage, Owner::Array(&self.array)).map_err(|error| error.to_string())?;
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
    let tried = each_way(|scenario, policy, clones, seed| {
        let mut tried = 0;
        for fault in FAULTS {
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
                recover(&*storage, Owner::Array(&array)).map_err(|error| error.to_string())?;
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
