//! Power cuts and failing operations at every moment of a repack in place: every chunk is what it was,
//! and the same command finishes the work.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use shardfs::format::order::ChunkOrder;
use shardfs::format::plan::Policy;
use shardfs::source::{Array, ArrayFormat, Source};
use shardfs::store::SourceArray;
use shardfs::store::formats::indexed;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::owner::Owner;
use shardfs::store::recover::recover;
use shardfs::tools::repack::{How, RepackError, Repacked, repack};
use shardfs::tools::shard_file::Packing;

use crate::power;
use crate::power::blosc::FAULTS;
use crate::power::disk::{Disk, is_lock};
use crate::power::{ARRAY, Case, Chunks, Rng, apply, read, stage, store};
use crate::support::places;

fn cases() -> Vec<Case> {
    let plain = [false, true].into_iter().flat_map(power::plain);
    let others = power::other_indexes().into_iter().chain(power::nested()).chain(power::others());
    plain.chain(others).chain(power::draft()).collect()
}

/// A source of which nothing is known yet.
fn source(storage: &Arc<MemoryStorage>) -> Source {
    Source::over(Path::new(ARRAY), storage.clone(), store(storage))
}

fn run(case: &Case, source: &Source, how: How) -> Result<Repacked, RepackError> {
    let SourceArray { id, path, layout, .. } = &case.array;
    let (layout, format) = (layout.clone(), indexed());
    let array = SourceArray { id: *id, path: path.clone(), layout, format };
    let array = Array {
        source: array,
        format: ArrayFormat::Zarr3,
        document: None,
        sharded: None,
        twin: None,
    };
    repack(source, &array, how, NonZeroUsize::MIN, &|_| ())
}

/// A disk with shards that have dead space, and what is in them.
fn worn(case: &Case, rng: &mut Rng) -> (Disk, Chunks) {
    let mut chunks = case.model.chunks.clone();
    let storage = case.disk(&chunks).now().storage(false);
    let live = store(&storage);
    for _ in 0..3 {
        let present: Vec<_> = chunks.keys().cloned().collect();
        let longer = rng.pick(&present).clone();
        let bytes = rng.bytes(chunks[&longer].len() + 9);
        let changes = vec![(longer, Some(bytes))];
        let staged = stage(&live, &case.array, &changes);
        live.commit(&case.array, &staged, Policy::Append).into_iter().for_each(|it| it.unwrap());
        apply(&mut chunks, &changes);
    }
    live.finish_commits(&case.array).unwrap();
    let files = storage.files().into_iter().filter(|(path, ..)| !is_lock(path));
    (Disk::new(Path::new(ARRAY), files), chunks)
}

fn check(case: &Case, storage: &Arc<MemoryStorage>, chunks: &Chunks) -> Result<(), String> {
    let reader = store(storage);
    for coords in places(&case.model.grid()) {
        let found = read(&reader, &case.array, &coords)?;
        if found.as_ref() != chunks.get(&coords) {
            return Err(format!("{coords:?} reads {found:?}, not {:?}", chunks.get(&coords)));
        }
    }
    Ok(())
}

/// Nothing but shards is left, without dead space.
fn check_finished(case: &Case, storage: &Arc<MemoryStorage>, how: How) {
    let left: Vec<_> = storage.files().into_iter().map(|(path, ..)| path).collect();
    let other = left.iter().find(|path| path.to_string_lossy().contains(".shardfs"));
    assert_eq!(other, None, "{}: it is left over", case.name);
    let again = run(case, &source(storage), how).unwrap();
    let is_done = again.rewritten == 0 || how.packing.dedup;
    assert!(is_done, "{}: {again:?} after it was done", case.name);
}

fn hows() -> Vec<How> {
    let how = |order, dedup| How { packing: Packing { order, dedup }, skip_damaged: false };
    vec![how(ChunkOrder::C, false), how(ChunkOrder::Morton, false), how(ChunkOrder::F, true)]
}

#[test]
fn a_power_cut_leaves_every_chunk_as_it_was() {
    let (mut tried, mut rewritten) = (0, 0);
    for case in cases() {
        for (seed, how) in (1..).zip(hows()) {
            let mut rng = Rng(seed);
            let (mut disk, chunks) = worn(&case, &mut rng);
            let storage = disk.now().storage(false);
            storage.take_history();
            rewritten += run(&case, &source(&storage), how).unwrap().rewritten;
            let history = storage.take_history();
            check(&case, &storage, &chunks).unwrap();
            check_finished(&case, &storage, how);
            for moment in 0..=history.len() {
                if let Some(change) = moment.checked_sub(1).map(|at| &history[at]) {
                    disk.apply(change);
                }
                for state in disk.states(&mut rng, 6, 4) {
                    tried += 1;
                    let fail = |error: String| {
                        let done = &history[..moment];
                        panic!("{}, {how:?}: {error}, after {done:#?}", case.name)
                    };
                    let storage = state.storage(false);
                    check(&case, &storage, &chunks).unwrap_or_else(fail);
                    recover(&*storage, Owner::Array(&case.array)).unwrap();
                    check(&case, &storage, &chunks).unwrap_or_else(fail);
                    if let Err(error) = run(&case, &source(&storage), how) {
                        fail(error.to_string());
                    }
                    check(&case, &storage, &chunks).unwrap_or_else(fail);
                    check_finished(&case, &storage, how);
                }
            }
        }
    }
    println!("{tried} states of arrays that are repacked after a power cut, all as they must be");
    assert!(tried > 5000 && rewritten > 50, "{tried} states, {rewritten} shards");
}

#[test]
fn an_operation_that_fails_leaves_every_chunk_as_it_was() {
    let mut tried = 0;
    for case in cases() {
        let how = How::default();
        for (nth, fault) in (1..).flat_map(|nth| FAULTS.map(|fault| (nth, fault))) {
            let mut rng = Rng(nth);
            let (disk, chunks) = worn(&case, &mut rng);
            let storage = disk.now().storage(false);
            storage.fail(nth, fault);
            let done = run(&case, &source(&storage), how);
            storage.fail(0, fault);
            if !storage.has_failed() {
                break;
            }
            tried += 1;
            let fail = |error: String| -> () {
                panic!("{}, {nth}. operation, {fault:?}, {done:?}: {error}", case.name)
            };
            check(&case, &storage, &chunks).unwrap_or_else(fail);
            if let Err(error) = run(&case, &source(&storage), how) {
                fail(error.to_string());
            }
            check(&case, &storage, &chunks).unwrap_or_else(fail);
            check_finished(&case, &storage, how);
        }
    }
    println!("{tried} failing operations of a repack, all as they must be");
    assert!(tried > 200, "{tried} are too few to tell anything");
}
