//! Power cuts at every moment of a commit: whatever a disk may have kept of it is read, recovered,
//! read again, and parsed by other code.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use shardfs::store::memory::{Change, Fault, MemoryStorage};
use shardfs::store::owner::Owner;
use shardfs::store::recover::{Found, recover};

use crate::power;
use crate::power::disk::{Disk, State, is_lock};
use crate::power::scenario::{
    FAULTS, POLICIES, Played, Scenario, WAYS, Ways, sequence, single_commits,
};
use crate::power::{Case, Changes, Chunks, Rng, apply, parse, read, reader, stage, store};
use crate::support::{Coords, places};

/// States tried by all tests of this file.
static STATES: AtomicU64 = AtomicU64::new(0);

/// How much is tried.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// States at each moment: that many without torn writes, and that many with some.
    states: (usize, usize),
    /// One state in so many is recovered with a power cut in between.
    recovery: usize,
    /// One state in so many goes on with another commit.
    goes_on: usize,
}

const USUAL: Effort = Effort { states: (16, 8), recovery: 40, goes_on: 10 };
const AFTER_FAULTS: Effort = Effort { states: (6, 3), recovery: 60, goes_on: 20 };
const WITHIN_RECOVERY: Effort = Effort { states: (8, 4), recovery: usize::MAX, goes_on: 40 };

/// One array, and what was tried with it.
struct Trial<'a> {
    case: &'a Case,
    clones: bool,
    rng: Rng,
    seen: HashSet<u64>,
    tried: u64,
}

impl<'a> Trial<'a> {
    fn new(case: &'a Case, clones: bool, seed: u64) -> Self {
        Self { case, clones, rng: Rng(seed), seen: HashSet::new(), tried: 0 }
    }

    /// Cuts the power at every moment of a history.
    fn cut(
        &mut self,
        disk: &Disk,
        history: &[Change],
        effort: Effort,
        allowed: &dyn Fn(usize) -> Vec<&'a Chunks>,
    ) -> Result<(), String> {
        let mut disk = disk.clone();
        for moment in 0..=history.len() {
            if let Some(change) = moment.checked_sub(1).map(|at| &history[at]) {
                disk.apply(change);
            }
            let allowed = allowed(moment);
            let (most, torn) = effort.states;
            for state in disk.states(&mut self.rng, most, torn) {
                if self.seen.insert(state.hash(allowed.len() + 8 * moment_key(&allowed))) {
                    self.check(&state, &allowed, effort).map_err(|error| {
                        let done = shorten(&history[..moment]);
                        format!("{error}\nafter {done:#?}\nfound {:#?}", summary(&state))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Whatever a state shows, before and after recovery, must be allowed.
    fn check(
        &mut self,
        state: &State,
        allowed: &[&'a Chunks],
        effort: Effort,
    ) -> Result<(), String> {
        self.tried += 1;
        let storage = state.storage(self.clones);
        self.only_read(&storage, allowed).map_err(|error| format!("before recovery: {error}"))?;
        let found = recover(&*storage, Owner::Array(&self.case.array))
            .map_err(|error| error.to_string())?;
        if found.iter().any(|(_, found)| *found == Found::Lost) {
            return Err(format!("recovery found {found:?}"));
        }
        let history = storage.take_history();
        let chunks = self.whole(&storage, allowed)?;
        if self.rng.one_in(effort.recovery) {
            self.cut(&state.disk(), &history, WITHIN_RECOVERY, &|_| allowed.to_vec())
                .map_err(|error| format!("power cut in recovery: {error}"))?;
        }
        if self.rng.one_in(effort.goes_on) {
            self.go_on(&storage, chunks).map_err(|error| format!("going on: {error}"))?;
        }
        Ok(())
    }

    /// The values that a state may show; a state is tried once with each.
    fn check_all(&mut self, states: Vec<State>, allowed: &[&'a Chunks]) -> Result<(), String> {
        for state in states {
            self.check(&state, allowed, AFTER_FAULTS)
                .map_err(|error| format!("{error}\nfound {:#?}", summary(&state)))?;
        }
        Ok(())
    }

    /// Before recovery, each chunk is old or new or cannot be had.
    fn only_read(&self, storage: &Arc<MemoryStorage>, allowed: &[&Chunks]) -> Result<(), String> {
        let reader = reader(storage);
        for coords in places(&self.case.model.grid()) {
            if let Ok(found) = read(&reader, &self.case.array, &coords)
                && !allowed.iter().any(|chunks| chunks.get(&coords) == found.as_ref())
            {
                return Err(format!("{coords:?} reads {found:?}"));
            }
        }
        assert_eq!(storage.take_history(), [], "a reader has written");
        Ok(())
    }

    /// Every chunk can be read, those of a shard are of one time, the shards are sound, and no file
    /// is left over. The chunks.
    fn whole(&self, storage: &Arc<MemoryStorage>, allowed: &[&Chunks]) -> Result<Chunks, String> {
        let files: BTreeMap<PathBuf, Vec<u8>> =
            storage.files().into_iter().map(|(path, _, bytes)| (path, bytes)).collect();
        let (reader, mut all) = (reader(storage), Chunks::new());
        let mut expected = BTreeSet::new();
        for shard in places(&self.case.model.shards()) {
            let path = self.case.path(&shard);
            let chunks = match files.get(&path) {
                None => Chunks::new(),
                Some(bytes) => parse::shard(self.case, &shard, bytes)
                    .map_err(|error| format!("{}: {error}", path.display()))?,
            };
            if files.contains_key(&path) && chunks.is_empty() {
                return Err(format!("{}: no chunk is in it", path.display()));
            }
            expected.insert(path);
            let members = self.case.members(&shard);
            let same = |allowed: &&&Chunks| {
                members.iter().all(|coords| allowed.get(coords) == chunks.get(coords))
            };
            if !allowed.iter().any(|allowed| same(&allowed)) {
                return Err(format!("shard {shard:?} holds {chunks:?}"));
            }
            for coords in &members {
                match read(&reader, &self.case.array, coords) {
                    Ok(found) if found.as_ref() == chunks.get(coords) => (),
                    other => return Err(format!("{coords:?} reads {other:?}")),
                }
            }
            all.extend(chunks);
        }
        let left = files.keys().find(|path| !expected.contains(*path) && !is_lock(path));
        let work = storage.directories().into_iter().find(|path| path.ends_with(".shardfs"));
        match left.or(work.as_ref()) {
            Some(left) => Err(format!("{} is left over", left.display())),
            None => Ok(all),
        }
    }

    /// A recovered array takes another commit.
    fn go_on(&mut self, storage: &Arc<MemoryStorage>, mut chunks: Chunks) -> Result<(), String> {
        let store = store(storage);
        let changes = sequence(self.case, &mut self.rng).commits.swap_remove(0);
        let policy = *self.rng.pick(&POLICIES);
        for outcome in
            store.commit(&self.case.array, &stage(&store, &self.case.array, &changes), policy)
        {
            outcome.map_err(|error| error.to_string())?;
        }
        store.finish_commits(&self.case.array).map_err(|error| error.to_string())?;
        apply(&mut chunks, &changes);
        self.whole(storage, &[&chunks]).map(drop)
    }
}

/// What is done after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The same store commits the failed chunks again.
    Retry,
    /// The process was killed: another one goes on where it stopped.
    Killed,
}

/// Lets the `nth` operation of a scenario's last commit fail, and looks at what that leaves. The
/// number of states tried, None if there are not as many operations. One second attempt in `cuts`
/// is played with power cuts.
fn fault(
    case: &Case,
    scenario: &Scenario,
    ways: Ways,
    (nth, fault): (u64, Fault),
    (after, cuts): (After, usize),
    rng: &mut Rng,
) -> Result<Option<u64>, String> {
    let mut disk = case.disk(&scenario.initial);
    let storage = disk.now().storage(ways.clones);
    let mut live = store(&storage);
    let (last, earlier) = scenario.commits.split_last().unwrap();
    let mut old = scenario.initial.clone();
    for changes in earlier {
        let chunks = stage(&live, &case.array, changes);
        for outcome in live.commit(&case.array, &chunks, ways.policy(rng)) {
            outcome.map_err(|error| error.to_string())?;
        }
        apply(&mut old, changes);
    }
    let policy = ways.policy(rng);
    let chunks = stage(&live, &case.array, last);
    storage.fail(nth, fault);
    let outcomes = live.commit(&case.array, &chunks, policy);
    storage.fail(0, fault);
    if !storage.has_failed() {
        return Ok(None);
    }
    let history = storage.take_history();
    history.iter().for_each(|change| disk.apply(change));
    let mut history = shorten(&history);
    let mut new = old.clone();
    apply(&mut new, last);
    // Chunks that have failed are old or new, the others new.
    let done = |(change, outcome): (&(Coords, Option<Vec<u8>>), &Result<_, _>)| {
        outcome.is_ok().then(|| change.clone())
    };
    let done: Changes = last.iter().zip(&outcomes).filter_map(done).collect();
    let mut least = old.clone();
    apply(&mut least, &done);
    let (least, new) = (&least, &new);
    let mut trial = Trial::new(case, ways.clones, rng.next());
    let said: Vec<_> = outcomes.iter().map(|o| o.as_ref().map_err(ToString::to_string)).collect();
    let said = format!("{said:?}");
    let (few, torn) = AFTER_FAULTS.states;
    let tell = |error: String, history: &[String]| format!("{said}: {error}\nafter {history:#?}");
    let mut states = disk.states(rng, few, torn);
    states.push(disk.now());
    trial.check_all(states, &[least, new]).map_err(|error| tell(error, &history))?;
    for coords in places(&case.model.grid()) {
        if let Ok(found) = read(&live, &case.array, &coords)
            && ![least, new].iter().any(|chunks| chunks.get(&coords) == found.as_ref())
        {
            return Err(tell(format!("the store reads {coords:?} as {found:?}"), &history));
        }
    }
    let again: Vec<_> = match after {
        After::Retry => {
            let failed = chunks.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_err());
            failed.map(|(chunk, _)| chunk.clone()).collect()
        }
        After::Killed => {
            // With `shardfs recover` in between, or without.
            if rng.one_in(3) {
                recover(&*storage, Owner::Array(&case.array)).map_err(|error| error.to_string())?;
            }
            live = store(&storage);
            stage(&live, &case.array, last)
        }
    };
    for outcome in live.commit(&case.array, &again, policy) {
        outcome.map_err(|error| tell(format!("{after:?}: {error}"), &history))?;
    }
    let (before, again) = (disk.clone(), storage.take_history());
    if rng.one_in(cuts) {
        let allowed = |at: usize| if at < again.len() { vec![least, new] } else { vec![new] };
        trial
            .cut(&before, &again, AFTER_FAULTS, &allowed)
            .map_err(|error| tell(error, &history))?;
    }
    again.iter().for_each(|change| disk.apply(change));
    history.push("-- again".to_owned());
    history.extend(shorten(&again));
    let mut states = disk.states(rng, few, torn);
    states.push(disk.now());
    trial.check_all(states, &[new]).map_err(|error| tell(error, &history))?;
    Ok(Some(trial.tried))
}

/// Lets every operation of commits fail, in each way.
fn faults(name: &str, cases: &[Case], sequences: usize, sparse: usize) {
    let (begun, mut tried, mut commits) = (Instant::now(), 0, 0);
    for (number, case) in cases.iter().enumerate() {
        let mut rng = Rng(number as u64);
        let mut scenarios = single_commits(case, &mut Rng(number as u64));
        scenarios.extend((0..sequences).map(|at| sequence(case, &mut Rng(at as u64))));
        let mixed = Ways { policy: None, clones: true };
        for (scenario, ways) in scenarios
            .iter()
            .flat_map(|scenario| WAYS.into_iter().chain([mixed]).map(move |ways| (scenario, ways)))
        {
            for (kind, after) in FAULTS
                .into_iter()
                .flat_map(|fault| [After::Retry, After::Killed].map(|after| (fault, after)))
            {
                let mut nth = 1 + rng.below(sparse) as u64;
                loop {
                    let seed = rng.next();
                    match fault(case, scenario, ways, (nth, kind), (after, 30), &mut Rng(seed)) {
                        Ok(None) => break,
                        Ok(Some(states)) => (tried, commits) = (tried + states, commits + 1),
                        Err(error) => panic!(
                            "{}, {}, {ways:?}, {kind:?} at {nth}, {after:?}: {:?}\n{error}",
                            case.name, scenario.kind, scenario.commits
                        ),
                    }
                    nth += 1 + rng.below(2 * sparse - 1) as u64;
                }
            }
        }
    }
    STATES.fetch_add(tried, Ordering::Relaxed);
    say(&format!("{name}: {tried} states after {commits} faults, {:.1?}", begun.elapsed()));
}

/// States are the same only if the same is allowed in them.
fn moment_key(allowed: &[&Chunks]) -> usize {
    std::ptr::from_ref(allowed[0]) as usize
}

fn shorten(history: &[Change]) -> Vec<String> {
    history.iter().map(|change| format!("{change:?}")).collect()
}

fn summary(state: &State) -> Vec<String> {
    let file = |(path, ino, bytes): &(PathBuf, u64, Vec<u8>)| {
        format!("{} = {ino}: {} bytes {bytes:?}", path.display(), bytes.len())
    };
    state.files.iter().map(file).collect()
}

/// Plays scenarios and cuts the power at every moment of each.
fn power_cuts(name: &str, cases: &[Case], sequences: usize) {
    let begun = Instant::now();
    let mut tried = 0;
    for (number, case) in cases.iter().enumerate() {
        let mut rng = Rng(number as u64);
        let mut run = |scenario: &Scenario, ways: Ways| {
            let seed = rng.next();
            let result = ways.play(case, scenario, &mut rng).and_then(|played| {
                let Played { disk, history, values, returned } = &played;
                let mut trial = Trial::new(case, ways.clones, seed);
                let allowed = |moment: usize| {
                    let done = returned.iter().filter(|at| **at <= moment).count();
                    values[done..].iter().take(2).collect()
                };
                trial.cut(disk, history, USUAL, &allowed)?;
                tried += trial.tried;
                Ok(())
            });
            if let Err(error) = result {
                let Scenario { kind, commits, .. } = scenario;
                panic!("{}, {kind}, {ways:?}, seed {seed}: {commits:?}\n{error}", case.name);
            }
        };
        for ways in WAYS {
            for scenario in single_commits(case, &mut Rng(number as u64)) {
                run(&scenario, ways);
            }
            for at in 0..sequences {
                run(&sequence(case, &mut Rng(at as u64)), ways);
            }
        }
        for at in 0..2 * sequences {
            let mixed = Ways { policy: None, clones: at % 2 == 0 };
            run(&sequence(case, &mut Rng(1000 + at as u64)), mixed);
        }
    }
    STATES.fetch_add(tried, Ordering::Relaxed);
    say(&format!("{name}: {tried} states after power cuts, {:.1?}", begun.elapsed()));
}

/// Past the capture of output, so that it is seen also where all goes well.
fn say(line: &str) {
    let total = STATES.load(Ordering::Relaxed);
    let _ = writeln!(std::io::stderr(), "crash: {line} ({total} so far)");
}

#[test]
fn power_cuts_with_the_index_at_the_end_leave_old_or_new_chunks() {
    power_cuts("index at the end", &power::plain(false), 12);
}

#[test]
fn power_cuts_with_the_index_at_the_start_leave_old_or_new_chunks() {
    power_cuts("index at the start", &power::plain(true), 12);
}

#[test]
fn power_cuts_with_other_index_codecs_leave_old_or_new_chunks() {
    power_cuts("other index codecs", &power::other_indexes(), 4);
}

#[test]
fn power_cuts_with_nested_shards_leave_old_or_new_chunks() {
    power_cuts("nested", &power::nested(), 6);
}

#[test]
fn power_cuts_with_turned_checked_and_single_chunks_leave_old_or_new_chunks() {
    power_cuts("turned, checked, single", &power::others(), 4);
}

#[test]
fn power_cuts_with_shards_of_the_draft_of_2022_leave_old_or_new_chunks() {
    power_cuts("draft of 2022", &power::draft(), 4);
}

#[test]
fn faults_with_plain_shards_lose_nothing_and_commits_can_be_tried_again() {
    let cases = power::plain(false).into_iter().chain(power::plain(true)).collect::<Vec<_>>();
    faults("faults, plain", &cases, 3, 40);
}

#[test]
fn faults_with_other_shards_lose_nothing_and_commits_can_be_tried_again() {
    let cases = [power::other_indexes(), power::nested(), power::others(), power::draft()];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    faults("faults, others", &cases, 2, 100);
}

#[test]
fn a_shard_that_was_not_cut_off_for_good_takes_further_commits() {
    let case = &power::plain(false)[0];
    let long = |at: u64, length| (vec![at], Some(vec![u8::try_from(at).unwrap(); length]));
    let initial = Chunks::from([(vec![0], vec![7; 20]), (vec![3], vec![8; 200])]);
    // What the first one frees the second one cuts off. A second attempt writes as far as the index
    // that was cut off, and ends within it.
    let commits = vec![vec![(vec![3], None)], vec![long(1, 80)]];
    let scenario = Scenario { kind: "cut".into(), initial, commits };
    let ways = WAYS[2];
    let played = ways.play(case, &scenario, &mut Rng(0)).unwrap();
    let shorter = |change: &Change| matches!(change, Change::SetLength { ino: 1, .. });
    assert!(played.history.iter().any(shorter), "nothing was cut off: {:#?}", played.history);
    let (mut rng, mut tried) = (Rng(0), 0);
    for kind in FAULTS {
        for after in [After::Retry, After::Killed] {
            for nth in 1.. {
                match fault(case, &scenario, ways, (nth, kind), (after, 1), &mut rng) {
                    Ok(Some(states)) => tried += states,
                    Ok(None) => break,
                    Err(error) => panic!("{kind:?} at {nth}, {after:?}: {error}"),
                }
            }
        }
    }
    STATES.fetch_add(tried, Ordering::Relaxed);
    say(&format!("faults, cut off: {tried} states"));
}
