//! Power cuts and failing operations at every moment of a commit to an array of superchunk files, which
//! grows and shrinks: the rows that `meta/sizes` counts are there, in chunks that are old or new.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardfs::format::foreign;
use shardfs::format::plan::Policy;
use shardfs::store::SourceArray;
use shardfs::store::formats::superchunks::{FILES, Form, superchunks};
use shardfs::store::memory::MemoryStorage;
use shardfs::store::owner::Owner;
use shardfs::store::recover::recover;

use crate::power;
use crate::power::blosc::{FAULTS, buffer, decoded};
use crate::power::disk::{Disk, is_lock};
use crate::power::{ARRAY, Rng, read, stage, store};

/// Rows of a whole chunk, each of one byte.
const FULL: u32 = 1000;

/// The chunks of an array, one after the other.
type Chunks = Vec<Vec<u8>>;

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
    let (form, extent) = (Form::Single, found.extent);
    let format = superchunks(FILES, form, extent, true);
    SourceArray { id: 1, path: ARRAY.into(), layout: found.array.layout, format }
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
                recover(&*storage, Owner::Array(&array)).unwrap();
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
    let mut tried = 0;
    let commits = superchunk_commits(&mut Rng(1));
    for (last, fault) in (0..commits.len()).flat_map(|last| FAULTS.map(|fault| (last, fault))) {
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
                recover(&*storage, Owner::Array(&array)).unwrap();
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
            recover(&*storage, Owner::Array(&array)).unwrap();
            check_superchunks(&storage, &array, &values[1..]).unwrap_or_else(|error| {
                panic!("again: {error}: commit {last}, {nth}. operation, {fault:?}")
            });
        }
    }
    println!("{tried} states of superchunk files after a failed operation, all as they must be");
    assert!(tried > 500, "{tried} states are too few to tell anything");
}
