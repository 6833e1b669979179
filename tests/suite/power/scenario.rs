//! Commits to be played on a disk that loses power: one of each kind, and sequences.

use std::collections::BTreeMap;

use shardfs::format::plan::Policy;
use shardfs::store::memory::{Change, Fault};

use super::disk::Disk;
use super::{Case, Changes, Chunks, Rng, apply, stage, store};

use crate::support::{Coords, places};

/// Commits one after the other.
pub(crate) struct Scenario {
    pub kind: String,
    pub initial: Chunks,
    pub commits: Vec<Changes>,
}

/// The members of an array's shards: those that exist, and one that does not.
pub(crate) struct Shards {
    pub there: Vec<Vec<Coords>>,
    pub absent: Vec<Coords>,
}

impl Shards {
    pub(crate) fn of(case: &Case) -> Self {
        let shards = places(&case.model.shards());
        let members = shards.iter().map(|shard| case.members(shard));
        let exists = |members: &Vec<Coords>| {
            members.iter().any(|coords| case.model.chunks.contains_key(coords))
        };
        let (there, absent): (Vec<_>, Vec<_>) = members.partition(exists);
        Self { there, absent: absent.into_iter().next().unwrap_or_default() }
    }
}

/// One of each kind of commit.
pub(crate) fn single_commits(case: &Case, rng: &mut Rng) -> Vec<Scenario> {
    let chunks = &case.model.chunks;
    let Shards { there, absent } = Shards::of(case);
    let first = &there[0];
    let present: Vec<_> = first.iter().filter(|coords| chunks.contains_key(*coords)).collect();
    let missing: Vec<_> = first.iter().filter(|coords| !chunks.contains_key(*coords)).collect();
    let (at, length) = (present[0].clone(), chunks[present[0]].len());
    let mut one = |length| vec![(at.clone(), Some(rng.bytes(length)))];
    let mut kinds = vec![
        ("equal", one(length)),
        ("smaller", one(length / 2)),
        ("larger", one(length + 30)),
        ("empty content", one(0)),
        ("delete", vec![(at.clone(), None)]),
        ("last chunk deleted", present.iter().map(|at| ((*at).clone(), None)).collect()),
    ];
    let many = |members: &[Coords], rng: &mut Rng| -> Changes {
        let change = |at: &Coords| (at.clone(), some_content(rng));
        members.iter().map(change).collect()
    };
    kinds.push(("many", many(first, rng)));
    if let Some(missing) = missing.first() {
        kinds.push(("new chunk", vec![((*missing).clone(), Some(rng.bytes(9)))]));
        kinds.push(("new chunk without bytes", vec![((*missing).clone(), Some(vec![]))]));
        kinds.push(("absent chunk deleted", vec![((*missing).clone(), None)]));
    }
    if let Some(new) = absent.first() {
        kinds.push(("new shard", vec![(new.clone(), Some(rng.bytes(12)))]));
        kinds.push(("new shard of many", many(&absent, rng)));
        let mut two = vec![(new.clone(), Some(rng.bytes(5))), (at.clone(), Some(rng.bytes(7)))];
        kinds.push(("new shard and old one", two.clone()));
        two.truncate(1);
        two.extend(present.iter().map(|at| ((*at).clone(), None)));
        kinds.push(("new shard and one removed", two));
    }
    if let Some(second) = there.get(1) {
        kinds.push(("two shards", [many(first, rng), many(second, rng)].concat()));
        let other = second.iter().find(|coords| chunks.contains_key(*coords)).unwrap();
        kinds.push((
            "a chunk in two shards",
            vec![
                (at.clone(), Some(rng.bytes(length))),
                (other.clone(), Some(rng.bytes(length + 9))),
            ],
        ));
    }
    let scenario = |(kind, changes): (&str, Changes)| Scenario {
        kind: kind.to_owned(),
        initial: chunks.clone(),
        commits: vec![changes],
    };
    let mut scenarios: Vec<_> = kinds.into_iter().map(scenario).collect();
    let commits = vec![vec![(at.clone(), Some(rng.bytes(8)))]];
    scenarios.push(Scenario { kind: "new array".into(), initial: Chunks::new(), commits });
    scenarios
}

/// Two to four commits, which go on with what the ones before have left.
pub(crate) fn sequence(case: &Case, rng: &mut Rng) -> Scenario {
    let all = places(&case.model.grid());
    let Shards { there, .. } = Shards::of(case);
    let mut commits = Vec::new();
    for _ in 0..rng.below(3) + 2 {
        // Mostly in one shard, so that commits meet each other's traces.
        let among = if rng.one_in(3) { &all } else { &there[0] };
        let mut changes = BTreeMap::new();
        for _ in 0..rng.below(3) + 1 {
            changes.insert(rng.pick(among).clone(), some_content(rng));
        }
        if rng.one_in(10) {
            changes = there[0].iter().map(|coords| (coords.clone(), None)).collect();
        }
        commits.push(changes.into_iter().collect());
    }
    let initial = if rng.one_in(8) { Chunks::new() } else { case.model.chunks.clone() };
    Scenario { kind: "sequence".into(), initial, commits }
}

pub(crate) fn some_content(rng: &mut Rng) -> Option<Vec<u8>> {
    let length = match rng.below(8) {
        0 | 1 => return None,
        2 => 0,
        3 => 60 + rng.below(60),
        _ => rng.below(30),
    };
    Some(rng.bytes(length))
}

/// How a scenario's commits are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ways {
    /// None: another one for each commit.
    pub policy: Option<Policy>,
    pub clones: bool,
}

pub(crate) const WAYS: [Ways; 5] = [
    Ways { policy: Some(Policy::Auto), clones: false },
    Ways { policy: Some(Policy::Auto), clones: true },
    Ways { policy: Some(Policy::Append), clones: false },
    Ways { policy: Some(Policy::InPlace), clones: false },
    Ways { policy: Some(Policy::Rewrite), clones: false },
];
pub(crate) const POLICIES: [Policy; 4] =
    [Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite];

/// A scenario that was played.
pub(crate) struct Played {
    /// The disk before.
    pub disk: Disk,
    pub history: Vec<Change>,
    /// The chunks before, and after each commit.
    pub values: Vec<Chunks>,
    /// How much of the history there was when each commit returned.
    pub returned: Vec<usize>,
}

impl Ways {
    pub(crate) fn policy(self, rng: &mut Rng) -> Policy {
        self.policy.unwrap_or_else(|| *rng.pick(&POLICIES))
    }

    pub(crate) fn play(
        self,
        case: &Case,
        scenario: &Scenario,
        rng: &mut Rng,
    ) -> Result<Played, String> {
        let disk = case.disk(&scenario.initial);
        let storage = disk.now().storage(self.clones);
        let mut live = store(&storage);
        let mut values = vec![scenario.initial.clone()];
        let (mut history, mut returned) = (Vec::new(), Vec::new());
        for changes in &scenario.commits {
            // Sometimes by another process, which does not remember the commit before.
            if self.policy.is_none() && rng.one_in(4) {
                live = store(&storage);
            }
            let chunks = stage(&live, &case.array, changes);
            for outcome in live.commit(&case.array, &chunks, self.policy(rng)) {
                outcome.map_err(|error| error.to_string())?;
            }
            history.extend(storage.take_history());
            returned.push(history.len());
            let mut value = values.last().unwrap().clone();
            apply(&mut value, changes);
            values.push(value);
        }
        Ok(Played { disk, history, values, returned })
    }
}

/// Faults of each kind.
pub(crate) const FAULTS: [Fault; 6] = {
    const fn fault(errno: i32, times: u64, half_done: bool, changes_only: bool) -> Fault {
        Fault { errno, times, half_done, changes_only }
    }
    [
        fault(libc::EIO, 1, false, true),
        fault(libc::ENOSPC, 1, true, true),
        fault(libc::EIO, 1, false, false),
        fault(libc::EIO, u64::MAX, false, true),
        fault(libc::ENOSPC, u64::MAX, true, true),
        fault(libc::EIO, u64::MAX, true, false),
    ]
};
