//! Shards that other software has left without an index: found, and repaired where an older index
//! still stands in them.

use std::sync::Arc;

use shardfs::format::index::{ByteRange, IndexCodecs, IndexLocation, ShardIndex};
use shardfs::store::StoreError;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::scan::{Contradiction, Fault, FaultyShard, Remedy};

use crate::power;
use crate::power::{Case, Rng, read, store};
use crate::support::{IndexKind, places};

fn cases() -> Vec<Case> {
    let all = [power::plain(false), power::plain(true), power::other_indexes(), power::nested()];
    all.into_iter().flatten().chain(power::others()).chain(power::draft()).collect()
}

/// Whether an older index of such shards can be found.
fn can_be_found(case: &Case) -> bool {
    let outermost = &case.model.levels[0];
    let has_checksum = !matches!(outermost.index, IndexKind::NoChecksum);
    !outermost.at_start && has_checksum && outermost.after.is_empty()
}

fn scan(case: &Case, storage: &Arc<MemoryStorage>) -> (u64, Vec<FaultyShard>) {
    let mut faulty = Vec::new();
    let mut keep = |shard: Result<FaultyShard, StoreError>| faulty.push(shard.unwrap());
    let mut shards = 0;
    store(storage).scan(&case.array, &mut shards, &mut keep).unwrap();
    (shards, faulty)
}

/// The shards of a case, as paths.
fn shards(case: &Case) -> Vec<String> {
    let files = case.files(&case.model.chunks).into_iter();
    files.map(|(path, _)| path.to_str().unwrap().to_owned()).collect()
}

fn assert_holds(case: &Case, storage: &Arc<MemoryStorage>) {
    for coords in places(&case.model.grid()) {
        let expected = Ok(case.model.chunks.get(&coords).cloned());
        assert_eq!(read(&store(storage), &case.array, &coords), expected, "{}", case.name);
    }
}

#[test]
fn sound_shards_are_counted_and_nothing_else() {
    for case in cases() {
        let storage = case.disk(&case.model.chunks).now().storage(false);
        let (looked_at, faulty) = scan(&case, &storage);
        assert_eq!(looked_at, shards(&case).len() as u64, "{}", case.name);
        assert!(faulty.is_empty(), "{}: {faulty:?}", case.name);
    }
}

/// What a writer has appended that was stopped: chunks, and the first bytes of an index.
#[test]
fn a_shard_with_half_of_an_append_gets_its_older_index_back() {
    let mut rng = Rng(1);
    for case in cases().iter().filter(|case| can_be_found(case)) {
        for appended in [1, 3, 16, 100, 5_000_000] {
            let storage = case.disk(&case.model.chunks).now().storage(false);
            for shard in shards(case) {
                storage.change(&shard, |bytes| {
                    let index = bytes[bytes.len().saturating_sub(10)..].to_vec();
                    bytes.extend(rng.bytes(appended));
                    bytes.extend(&index[..index.len() / 2]);
                });
            }
            let before = storage.files();
            let (_, faulty) = scan(case, &storage);
            assert_eq!(faulty.len(), shards(case).len(), "{}", case.name);
            assert_eq!(before, storage.files(), "to look at shards changes nothing");
            for shard in &faulty {
                let is_sound =
                    matches!(&shard.remedy, Remedy::Older(it) if it.contradiction.is_none());
                assert!(is_sound, "{}: {shard:?}", case.name);
                store(&storage).restore(&case.array, shard).unwrap();
            }
            assert_holds(case, &storage);
            for ((path, _, was), (_, _, is)) in before.iter().zip(storage.files()) {
                assert!(is.starts_with(was), "{}: bytes were changed", path.display());
            }
            assert!(scan(case, &storage).1.is_empty());
        }
    }
}

/// An index of a shard with four chunks: those that exist, by slot, with offset and length.
fn index(chunks: &[(u64, u64, u64)]) -> Vec<u8> {
    let mut index = ShardIndex::empty(&IndexCodecs::USUAL, IndexLocation::End, &[4]).unwrap();
    for (slot, offset, nbytes) in chunks {
        index.set(*slot, Some(ByteRange { offset: *offset, nbytes: *nbytes }));
    }
    index.encode()
}

/// Whether a shard of twenty bytes of chunks and these indexes, the last of which is damaged, has a remedy, and
/// what speaks against it.
fn remedy(indexes: &[&[u8]]) -> Option<Option<Contradiction>> {
    let case = &power::plain(false)[0];
    let storage = case.disk(&case.model.chunks).now().storage(false);
    storage.change(&shards(case)[0], |bytes| *bytes = [&[7; 20][..], &indexes.concat()].concat());
    let (_, faulty) = scan(case, &storage);
    assert_eq!(faulty.len(), 1, "{faulty:?}");
    match &faulty[0].remedy {
        Remedy::Older(older) => Some(older.contradiction),
        Remedy::None(_) => None,
        Remedy::Byte(wrong) => panic!("{wrong:?}"),
    }
}

#[test]
fn a_wrong_byte_of_an_index_is_put_right() {
    let mut rng = Rng(3);
    let mut restored = 0;
    for case in &cases() {
        let outermost = &case.model.levels[0];
        let codecs = &case.array.layout.levels[0].index_codecs;
        if codecs.checksums() != 1 || !outermost.after.is_empty() {
            continue;
        }
        let storage = case.disk(&case.model.chunks).now().storage(false);
        let sound = storage.files();
        let extents = case.array.layout.chunks_per_shard(0, &vec![0; case.array.layout.rank()]);
        let slots: u64 = extents.iter().product();
        let nbytes = usize::try_from(slots * 16).unwrap() + 4;
        for _ in 0..20 {
            for shard in shards(case) {
                storage.change(&shard, |bytes| {
                    let first = if outermost.at_start { 0 } else { bytes.len() - nbytes };
                    let at = first + rng.below(nbytes);
                    bytes[at] ^= 1 << rng.below(8);
                });
            }
            for shard in &scan(case, &storage).1 {
                assert!(matches!(shard.remedy, Remedy::Byte(_)), "{}: {shard:?}", case.name);
                store(&storage).restore(&case.array, shard).unwrap();
                restored += 1;
            }
            let is = storage.files().into_iter().map(|(path, _, bytes)| (path, bytes));
            let was = sound.iter().map(|(path, _, bytes)| (path.clone(), bytes.clone()));
            assert!(is.eq(was), "{}", case.name);
        }
    }
    assert!(restored > 100);
}

#[test]
fn what_speaks_against_an_older_index_is_noticed() {
    let (torn, added) = (&[0x5a; 30][..], &[9; 10][..]);
    let damaged = |chunks: &[(u64, u64, u64)]| {
        let mut index = index(chunks);
        // Of two wrong bytes the checksum does not say which they are.
        index.iter_mut().rev().take(2).for_each(|byte| *byte ^= 1);
        index
    };
    let first = index(&[(0, 0, 10), (1, 10, 10)]);
    assert_eq!(remedy(&[torn]), None);
    assert_eq!(remedy(&[&first, torn]), Some(None));
    assert_eq!(
        remedy(&[&first, added, &damaged(&[(0, 0, 10), (1, 10, 10), (3, 88, 10)])]),
        Some(None)
    );
    // Replaced; removed; in the place of another; in a part of it; over the end of one and the begin of another.
    let all = [(0, 0, 10), (1, 10, 10)];
    for since in [
        &[(0, 0, 10), (1, 88, 10)][..],
        &[(0, 0, 10)],
        &[all[0], all[1], (2, 10, 10)],
        &[all[0], all[1], (2, 3, 5)],
        &[all[0], all[1], (2, 5, 10)],
    ] {
        let last = damaged(since);
        let newer = Some(Some(Contradiction::Newer));
        assert_eq!(remedy(&[&first, added, &last]), newer, "{since:?}");
        assert_eq!(remedy(&[&first, added, &last, torn]), newer, "{since:?}, and more");
        assert_eq!(remedy(&[&first, added, &last[..last.len() - 5]]), newer, "{since:?}, cut off");
    }
    // By indexes before it; the one that counts stands behind a chunk of its own.
    let reused = |chunks: &[(u64, u64, u64)]| {
        let before = index(chunks);
        let after = index(&[(0, 0, 10), (1, 10, 10), (3, 88, 10)]);
        remedy(&[&before, added, &after, torn])
    };
    assert_eq!(reused(&[(0, 0, 10), (1, 10, 10)]), Some(None));
    assert_eq!(reused(&[(2, 10, 10)]), Some(Some(Contradiction::Reused)));
    assert_eq!(reused(&[(0, 0, 12)]), Some(Some(Contradiction::Reused)));
    // Equal chunks that an index stores once.
    let once = index(&[(0, 0, 20), (1, 0, 20)]);
    assert_eq!(
        remedy(&[&once, added, &damaged(&[(0, 0, 20), (1, 0, 20), (2, 0, 20)])]),
        Some(None)
    );
    assert_eq!(remedy(&[added, &first, torn]), Some(Some(Contradiction::Detached)));
}

#[test]
fn an_index_without_a_checksum_that_cannot_be_one_is_told() {
    for case in power::other_indexes().iter().filter(|case| case.name == "end, no checksum") {
        let storage = case.disk(&case.model.chunks).now().storage(false);
        for shard in shards(case) {
            storage.change(&shard, |bytes| bytes.extend([0; 77]));
        }
        let (_, faulty) = scan(case, &storage);
        assert_eq!(faulty.len(), shards(case).len());
        assert!(faulty.iter().all(|shard| matches!(shard.fault, Fault::Implausible)), "{faulty:?}");
    }
}

#[test]
fn what_cannot_be_repaired_is_told_and_left_alone() {
    for case in cases() {
        let storage = case.disk(&case.model.chunks).now().storage(false);
        for shard in shards(&case) {
            storage.change(&shard, |bytes| {
                // Neither the index at the start nor the one at the end is left.
                let length = bytes.len();
                bytes[..length.min(20)].fill(0xaa);
                bytes[length.saturating_sub(20)..].fill(0xaa);
                bytes.extend([0xbb; 30]);
            });
        }
        let before = storage.files();
        let (_, faulty) = scan(&case, &storage);
        for shard in &faulty {
            assert!(matches!(shard.remedy, Remedy::None(_)), "{}: {shard:?}", case.name);
            store(&storage).restore(&case.array, shard).unwrap();
        }
        assert_eq!(faulty.len(), shards(&case).len(), "{}", case.name);
        assert_eq!(before, storage.files(), "{}", case.name);
    }
}

#[test]
fn a_chunk_outside_a_shard_that_was_cut_off_is_told() {
    for case in power::plain(true) {
        let storage = case.disk(&case.model.chunks).now().storage(false);
        let shard = &shards(&case)[0];
        storage.change(shard, |bytes| bytes.truncate(bytes.len() - 1));
        let (_, faulty) = scan(&case, &storage);
        assert_eq!(faulty.len(), 1, "{}", case.name);
        let fault = faulty[0].fault.to_string();
        assert!(fault.contains("points outside the shard"), "{fault}");
    }
}

#[test]
fn a_shard_that_was_changed_since_it_was_looked_at_is_left_alone() {
    let case = &power::plain(false)[0];
    let storage = case.disk(&case.model.chunks).now().storage(false);
    let shard = &shards(case)[0];
    storage.change(shard, |bytes| bytes.push(1));
    let (_, faulty) = scan(case, &storage);
    storage.change(shard, |bytes| bytes.push(2));
    let before = storage.files();
    let refused = store(&storage).restore(&case.array, &faulty[0]);
    assert!(matches!(refused, Err(StoreError::Changing { .. })), "{refused:?}");
    let shards = |files: Vec<(std::path::PathBuf, u64, Vec<u8>)>| {
        files.into_iter().filter(|(path, ..)| !path.starts_with("a/.shardfs")).collect::<Vec<_>>()
    };
    assert_eq!(shards(before), shards(storage.files()));
}
