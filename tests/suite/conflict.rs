//! Others who change shards between staging and committing, and stores that take turns.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use shardfs::format::plan::Policy;
use shardfs::store::memory::{Fault, MemoryStorage};
use shardfs::store::{Base, Freshness, Outcome, ShardStore, StagedChunk};

use crate::power;
use crate::power::{Case, Changes, Chunks, Rng, apply, parse, read, stage, staged, store};
use crate::support;
use crate::support::{Coords, Model, places};

const POLICIES: [Policy; 4] = [Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite];

/// How others write a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    /// A new file, renamed into place.
    Replace,
    /// The same file, cut off and written anew.
    WriteOver,
    /// Another mount, in each of its ways.
    Mount(Policy),
}

const OTHERS: [Others; 6] = [
    Others::Replace,
    Others::WriteOver,
    Others::Mount(Policy::Auto),
    Others::Mount(Policy::Append),
    Others::Mount(Policy::InPlace),
    Others::Mount(Policy::Rewrite),
];

/// An array in memory, and what it must hold.
struct Array<'a> {
    case: &'a Case,
    storage: Arc<MemoryStorage>,
    chunks: Chunks,
}

impl<'a> Array<'a> {
    fn new(case: &'a Case) -> Self {
        let chunks = case.model.chunks.clone();
        Self { case, storage: case.disk(&chunks).now().storage(false), chunks }
    }

    fn store(&self) -> ShardStore {
        store(&self.storage)
    }

    /// Somebody else changes chunks.
    fn change(&mut self, others: Others, changes: &Changes) {
        apply(&mut self.chunks, changes);
        if let Others::Mount(policy) = others {
            let store = self.store();
            for outcome in
                store.commit(&self.case.array, &stage(&store, &self.case.array, changes), policy)
            {
                outcome.unwrap();
            }
            return;
        }
        let model = Model { chunks: self.chunks.clone(), ..self.case.model.clone() };
        for (coords, _) in changes {
            let shard = power::shard_of(&model, coords);
            let path = self.case.path(&shard);
            let path = path.to_str().unwrap();
            let exists =
                self.storage.files().iter().any(|(other, _, _)| other.to_str() == Some(path));
            match model.shard(&shard) {
                None => self.storage.remove(path),
                Some(bytes) if exists && others == Others::WriteOver => {
                    self.storage.change(path, |content| *content = bytes);
                }
                Some(bytes) => self.storage.replace(path, bytes),
            }
        }
    }

    /// The files that are not of shardfs.
    fn shards(&self) -> Vec<(PathBuf, u64, Vec<u8>)> {
        let mut files = self.storage.files();
        files.retain(|(path, _, _)| !path.starts_with("a/.shardfs"));
        files
    }

    /// What was committed is what is there, and nothing else was touched.
    fn assert_holds(&self, what: &str) {
        let files: BTreeMap<_, _> =
            self.storage.files().into_iter().map(|(path, _, bytes)| (path, bytes)).collect();
        let (reader, mut found) = (self.store(), Chunks::new());
        for shard in places(&self.case.model.shards()) {
            if let Some(bytes) = files.get(&self.case.path(&shard)) {
                found.extend(parse::shard(self.case, &shard, bytes).unwrap());
            }
            for coords in self.case.members(&shard) {
                let expected = Ok(self.chunks.get(&coords).cloned());
                assert_eq!(read(&reader, &self.case.array, &coords), expected, "{what}");
            }
        }
        assert_eq!(found, self.chunks, "{what}");
    }
}

fn cases() -> Vec<Case> {
    let all = [power::plain(false), power::plain(true), power::other_indexes(), power::nested()];
    all.into_iter().flatten().chain(power::others()).chain(power::draft()).collect()
}

/// Two chunks of one shard that exist, where there are two.
fn two_of(case: &Case) -> Option<(Coords, Coords)> {
    places(&case.model.shards()).iter().find_map(|shard| {
        let members = case.members(shard).into_iter();
        let mut there = members.filter(|coords| case.model.chunks.contains_key(coords));
        Some((there.next()?, there.next()?))
    })
}

fn errno(outcome: &Outcome) -> i32 {
    outcome.as_ref().map_or_else(|error| error.errno(), |()| 0)
}

/// Each case with each way in which others write and this mount commits.
fn each(mut test: impl FnMut(&Case, Others, Policy, &str)) {
    for case in cases() {
        for others in OTHERS {
            for policy in POLICIES {
                test(&case, others, policy, &format!("{}, {others:?}, {policy:?}", case.name));
            }
        }
    }
}

#[test]
fn a_chunk_that_others_left_alone_is_merged_into_what_they_wrote() {
    each(|case, others, policy, what| {
        let Some((ours, theirs)) = two_of(case) else { return };
        let (mut array, mut rng) = (Array::new(case), Rng(1));
        for length in [0, 3, array.chunks[&theirs].len(), 50] {
            let store = array.store();
            let mine = vec![(ours.clone(), Some(rng.bytes(9)))];
            let chunks = stage(&store, &case.array, &mine);
            array.change(others, &vec![(theirs.clone(), Some(rng.bytes(length)))]);
            let outcomes = store.commit(&case.array, &chunks, policy);
            assert_eq!(errno(&outcomes[0]), 0, "{what}: {outcomes:?}");
            apply(&mut array.chunks, &mine);
            array.assert_holds(what);
        }
    });
}

#[test]
fn a_chunk_that_others_changed_is_stale_and_stays_as_they_wrote_it() {
    each(|case, others, policy, what| {
        let Some((ours, beside)) = two_of(case) else { return };
        let mut rng = Rng(2);
        // As long as before, so that it may be in the same place; or not.
        let same = case.model.chunks[&ours].len();
        for new in [Some(same), Some(same + 7), Some(0), None] {
            let mut array = Array::new(case);
            let store = array.store();
            let mine =
                vec![(ours.clone(), Some(rng.bytes(9))), (beside.clone(), Some(rng.bytes(4)))];
            let chunks = stage(&store, &case.array, &mine);
            array.change(others, &vec![(ours.clone(), new.map(|length| rng.bytes(length)))]);
            let outcomes = store.commit(&case.array, &chunks, policy);
            assert_eq!(errno(&outcomes[0]), libc::ESTALE, "{what}");
            // The other chunk of the same commit is not held up.
            assert_eq!(errno(&outcomes[1]), 0, "{what}: {outcomes:?}");
            apply(&mut array.chunks, &mine[1..].to_vec());
            array.assert_holds(what);
        }
    });
}

#[test]
fn others_who_change_a_chunk_twice_are_noticed_although_it_is_in_its_old_place() {
    each(|case, others, policy, what| {
        let Some((ours, _)) = two_of(case) else { return };
        let (mut array, mut rng) = (Array::new(case), Rng(3));
        let store = array.store();
        let chunks = stage(&store, &case.array, &vec![(ours.clone(), Some(rng.bytes(9)))]);
        let length = array.chunks[&ours].len();
        array.change(others, &vec![(ours.clone(), Some(rng.bytes(length + 1)))]);
        array.change(others, &vec![(ours.clone(), Some(rng.bytes(length)))]);
        let outcomes = store.commit(&case.array, &chunks, policy);
        assert_eq!(errno(&outcomes[0]), libc::ESTALE, "{what}");
        array.assert_holds(what);
    });
}

#[test]
fn a_shard_that_others_deleted_takes_new_chunks_and_changed_ones_are_stale() {
    each(|case, others, policy, what| {
        if matches!(others, Others::WriteOver) {
            return;
        }
        let (mut array, mut rng) = (Array::new(case), Rng(4));
        let shard = vec![0; case.model.shape.len()];
        let members = case.members(&shard);
        let store = array.store();
        let mine: Changes =
            members.iter().map(|coords| (coords.clone(), Some(rng.bytes(8)))).collect();
        let chunks = stage(&store, &case.array, &mine);
        let before = array.chunks.clone();
        let gone = members.iter().map(|coords| (coords.clone(), None)).collect();
        array.change(others, &gone);
        let outcomes = store.commit(&case.array, &chunks, policy);
        for (change, outcome) in mine.iter().zip(&outcomes) {
            let expected = if before.contains_key(&change.0) { libc::ESTALE } else { 0 };
            assert_eq!(errno(outcome), expected, "{what}: {outcome:?}");
            if outcome.is_ok() {
                apply(&mut array.chunks, &vec![change.clone()]);
            }
        }
        array.assert_holds(what);
    });
}

#[test]
fn a_shard_that_others_created_takes_the_chunks_that_are_not_in_it() {
    each(|case, others, policy, what| {
        let (mut array, mut rng) = (Array::new(case), Rng(5));
        let grid = places(&case.model.shards());
        let all = grid.iter().map(|shard| case.members(shard));
        let absent =
            |members: &Vec<Coords>| members.iter().all(|coords| !array.chunks.contains_key(coords));
        let Some(members) = all.filter(|members| members.len() > 1).find(absent) else { return };
        let store = array.store();
        let mine: Changes =
            members[..2].iter().map(|coords| (coords.clone(), Some(rng.bytes(8)))).collect();
        let chunks = stage(&store, &case.array, &mine);
        array.change(others, &vec![(members[0].clone(), Some(rng.bytes(8)))]);
        let outcomes = store.commit(&case.array, &chunks, policy);
        assert_eq!(errno(&outcomes[0]), libc::ESTALE, "{what}");
        assert_eq!(errno(&outcomes[1]), 0, "{what}: {outcomes:?}");
        apply(&mut array.chunks, &mine[1..].to_vec());
        array.assert_holds(what);
    });
}

#[test]
fn two_stores_that_commit_in_turn_see_each_others_chunks() {
    for case in cases() {
        for mut rng in (0..8).map(Rng) {
            let mut array = Array::new(&case);
            let stores = [array.store(), array.store()];
            let all = places(&case.model.grid());
            for turn in 0..12 {
                let (store, coords) = (&stores[turn % 2], rng.pick(&all).clone());
                let length = rng.below(40);
                let content = (!rng.one_in(4)).then(|| rng.bytes(length));
                let changes = vec![(coords, content)];
                let chunks = stage(store, &case.array, &changes);
                let policy = *rng.pick(&POLICIES);
                for outcome in store.commit(&case.array, &chunks, policy) {
                    outcome.unwrap();
                }
                apply(&mut array.chunks, &changes);
                array.assert_holds(&format!("{}, turn {turn}", case.name));
            }
        }
    }
}

#[test]
fn commits_of_ones_own_in_between_make_no_chunk_stale() {
    for case in cases() {
        for policy in POLICIES {
            let what = format!("{}, {policy:?}", case.name);
            let (mut array, mut rng) = (Array::new(&case), Rng(6));
            let store = array.store();
            let shard = vec![0; case.model.shape.len()];
            let members = case.members(&shard);
            // All staged first, then committed twice: each, and each again over the first base.
            let bases: Vec<Base> = members
                .iter()
                .map(|coords| store.base(&case.array, coords, Freshness::Now).unwrap())
                .collect();
            for length in [5, 30] {
                for (coords, base) in members.iter().zip(&bases) {
                    let change = (coords.clone(), Some(rng.bytes(length)));
                    let chunk = staged(coords, change.1.clone(), base.clone());
                    let outcomes = store.commit(&case.array, &[chunk], policy);
                    assert_eq!(errno(&outcomes[0]), 0, "{what}: {outcomes:?}");
                    apply(&mut array.chunks, &vec![change]);
                    array.assert_holds(&what);
                }
            }
            // But others are still noticed.
            array.change(Others::WriteOver, &vec![(members[0].clone(), Some(rng.bytes(30)))]);
            let chunk = staged(&members[0], None, bases[0].clone());
            let outcomes = store.commit(&case.array, &[chunk], policy);
            assert_eq!(errno(&outcomes[0]), libc::ESTALE, "{what}");
            array.assert_holds(&what);
        }
    }
}

#[test]
fn a_chunk_that_others_changed_to_what_is_staged_is_not_stale() {
    each(|case, others, policy, what| {
        let Some((ours, _)) = two_of(case) else { return };
        for content in [Some(vec![7; 9]), Some(vec![]), None] {
            let mut array = Array::new(case);
            let store = array.store();
            let change = vec![(ours.clone(), content)];
            let chunks = stage(&store, &case.array, &change);
            array.change(others, &change);
            let outcomes = store.commit(&case.array, &chunks, policy);
            assert_eq!(errno(&outcomes[0]), 0, "{what}: {outcomes:?}");
            array.assert_holds(what);
        }
    });
}

#[test]
fn a_damaged_shard_is_not_written() {
    for case in cases() {
        // Without a checksum, a bad index may look like a good one.
        let level = &case.model.levels[0];
        if matches!(level.index, support::IndexKind::NoChecksum) {
            continue;
        }
        for policy in POLICIES {
            for cut in [true, false] {
                let array = Array::new(&case);
                let shard = vec![0; case.model.shape.len()];
                let (path, coords) = (case.path(&shard), case.members(&shard).swap_remove(0));
                let store = array.store();
                let base = store.base(&case.array, &coords, Freshness::Now).unwrap();
                array.storage.change(path.to_str().unwrap(), |bytes| {
                    if cut {
                        bytes.truncate(2);
                        return;
                    }
                    // The index is at one end.
                    let trailing = 4 * level.after.len() + 6;
                    let at = if level.at_start { 3 } else { bytes.len() - trailing };
                    bytes[at] ^= 1;
                });
                let before = array.shards();
                for (base, content) in [
                    (base, Some(vec![1; 5])),
                    (Base::default(), Some(vec![1; 5])),
                    (Base::default(), None),
                ] {
                    let chunks: [StagedChunk; 1] = [staged(&coords, content, base)];
                    let outcomes = store.commit(&case.array, &chunks, policy);
                    assert_eq!(errno(&outcomes[0]), libc::EIO, "{}: {outcomes:?}", case.name);
                }
                assert_eq!(
                    store.base(&case.array, &coords, Freshness::Now).unwrap_err().errno(),
                    libc::EIO
                );
                assert_eq!(array.shards(), before, "{}", case.name);
            }
        }
    }
}

#[test]
fn a_chunk_can_be_staged_while_it_is_being_committed() {
    for case in [power::plain(false), power::plain(true)].into_iter().flatten() {
        for policy in POLICIES {
            let mut array = Array::new(&case);
            let store = array.store();
            let (coords, _) = two_of(&case).unwrap();
            let length = case.model.chunks[&coords].len();
            let (turns, rng) = (60, Rng(7));
            let commit = |mut rng: Rng| {
                for _ in 0..turns {
                    let changes = vec![(coords.clone(), Some(rng.bytes(length)))];
                    let chunks = stage(&store, &case.array, &changes);
                    let outcomes = store.commit(&case.array, &chunks, policy);
                    assert_eq!(errno(&outcomes[0]), 0, "{}, {policy:?}: {outcomes:?}", case.name);
                }
            };
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| commit(rng.clone()));
                }
            });
            // Both write the same, the last turn is the last of one of them.
            let mut last = rng.clone();
            let last = (0..turns).map(|_| last.bytes(length)).last();
            apply(&mut array.chunks, &vec![(coords, last)]);
            array.assert_holds(case.name);
        }
    }
}

#[test]
fn a_chunk_can_be_staged_after_another_mount_was_killed_while_it_wrote_over_it() {
    let case = power::plain(false).swap_remove(0);
    let (coords, _) = two_of(&case).unwrap();
    let fault = Fault { errno: libc::EIO, times: u64::MAX, half_done: true, changes_only: true };
    let mut unfinished = 0;
    for nth in 1..20 {
        let mut array = Array::new(&case);
        let other = array.store();
        let chunks = stage(&other, &case.array, &vec![(coords.clone(), Some(vec![1; 4]))]);
        array.storage.fail(nth, fault);
        let failed = other.commit(&case.array, &chunks, Policy::InPlace)[0].is_err();
        array.storage.fail(0, fault);
        let store = array.store();
        unfinished += usize::from(failed && read(&store, &case.array, &coords).is_err());
        array.change(Others::Mount(Policy::InPlace), &vec![(coords.clone(), Some(vec![2; 4]))]);
        array.assert_holds("after another mount was killed");
    }
    assert!(unfinished > 0, "nothing was left unfinished");
}

#[test]
fn of_a_chunk_that_is_staged_twice_the_last_content_is_committed() {
    for case in cases() {
        let mut array = Array::new(&case);
        let store = array.store();
        let coords = vec![0; case.model.shape.len()];
        let changes = vec![(coords.clone(), Some(vec![1; 4])), (coords, Some(vec![2; 5]))];
        let chunks = stage(&store, &case.array, &changes);
        for outcome in store.commit(&case.array, &chunks, Policy::Auto) {
            outcome.unwrap();
        }
        apply(&mut array.chunks, &changes);
        array.assert_holds(case.name);
    }
}
