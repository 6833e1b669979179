use proptest::prelude::*;

use super::*;

/// Chunks of these lengths in slot order, each followed by a gap of 3 bytes.
fn shard(layout: &ShardLayout<'_>, lengths: &[Option<u64>]) -> (Vec<u8>, ShardIndex) {
    let mut index =
        ShardIndex::empty(layout.codecs, layout.location, layout.chunks_per_shard).unwrap();
    let stored = usize::try_from(index.stored_size()).unwrap();
    let at_start = layout.location == IndexLocation::Start;
    let mut bytes = vec![0xee; if at_start { stored } else { 0 }];
    for (slot, nbytes) in (0..).zip(lengths) {
        if let Some(nbytes) = *nbytes {
            index.set(slot, Some(ByteRange { offset: bytes.len() as u64, nbytes }));
            bytes.extend((0..nbytes).map(|at| old_byte(slot, at)));
            bytes.extend([0xdd; 3]);
        }
    }
    if at_start {
        bytes[..stored].copy_from_slice(&index.encode());
    } else {
        bytes.extend(index.encode());
    }
    (bytes, index)
}

fn old_byte(slot: u64, at: u64) -> u8 {
    u8::try_from((slot * 31 + at) % 97).unwrap()
}

fn new_byte(slot: usize, at: u64) -> u8 {
    u8::try_from(100 + (slot as u64 * 31 + at) % 97).unwrap()
}

fn bytes_of(blob: &Blob, old: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in &blob.pieces {
        match &piece.from {
            Source::Staged(slot) => {
                bytes.extend((0..piece.nbytes).map(|at| new_byte(*slot, at)));
            }
            Source::Kept(offset) => {
                let at = usize::try_from(*offset).unwrap();
                bytes.extend(&old[at..at + usize::try_from(piece.nbytes).unwrap()]);
            }
            Source::Bytes(own) => bytes.extend(&**own),
            Source::Checksum(nbytes) => {
                let from = bytes.len() - usize::try_from(*nbytes).unwrap();
                let checksum = crc32c::crc32c(&bytes[from..]).to_le_bytes();
                bytes.extend(checksum);
            }
        }
    }
    assert_eq!(bytes.len() as u64, blob.nbytes);
    bytes
}

/// Returns the file after a plan was carried out; `None` if the plan removes it.
fn carry_out(plan: &Plan, old: &[u8]) -> Option<Vec<u8>> {
    match plan {
        Plan::Remove => None,
        Plan::Rewrite(blob) => Some(bytes_of(blob, old)),
        Plan::Clone(update) | Plan::Journal(update) | Plan::Cut(update) => {
            let mut file = old.to_vec();
            for write in &update.writes {
                let bytes = bytes_of(&write.blob, old);
                let at = usize::try_from(write.offset).unwrap();
                file.resize(file.len().max(at + bytes.len()), 0);
                file[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            file.resize(usize::try_from(update.length).unwrap(), 0);
            Some(file)
        }
    }
}

/// Returns the bytes of each slot according to the index of a file.
fn read_back(layout: &ShardLayout<'_>, file: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    let size = ShardIndex::empty(layout.codecs, layout.location, layout.chunks_per_shard);
    let size = usize::try_from(size.unwrap().stored_size()).unwrap();
    let body = &file[..file.len() - layout.checksums * CHECKSUM_BYTES];
    let index = match layout.location {
        IndexLocation::Start => &body[..size],
        IndexLocation::End => &body[body.len() - size..],
    };
    let (codecs, per_shard) = (layout.codecs, layout.chunks_per_shard);
    let index = ShardIndex::decode(index.to_vec(), codecs, layout.location, per_shard).unwrap();
    let limit = match layout.location {
        IndexLocation::Start => body.len(),
        IndexLocation::End => body.len() - size,
    };
    let chunks = index.chunks(limit as u64).unwrap();
    let bytes = |range: ByteRange| {
        let at = usize::try_from(range.offset).unwrap();
        assert!(layout.location == IndexLocation::End || at >= size);
        body[at..at + usize::try_from(range.nbytes).unwrap()].to_vec()
    };
    chunks.into_iter().map(|(slot, range)| (slot, bytes(range))).collect()
}

const SLOTS: usize = 5;

proptest! {
    #[test]
    fn a_carried_out_plan_holds_the_kept_and_the_new_and_spares_what_it_must(
        lengths in prop::collection::vec(prop::option::of(0_u64..20), SLOTS),
        changes in prop::collection::btree_map(
            0..SLOTS as u64, prop::option::of(0_u64..30), 1..=SLOTS),
        at_start: bool,
        exists: bool,
        can_clone: bool,
        linked: bool,
        block in 0_u64..20,
        mark: Option<[u8; 16]>,
        checksums in 0_usize..2,
        policy in prop::sample::select(
            vec![Policy::Auto, Policy::Append, Policy::InPlace, Policy::Rewrite]),
    ) {
        let location = if at_start { IndexLocation::Start } else { IndexLocation::End };
        let layout = ShardLayout {
            codecs: &IndexCodecs::USUAL, location, chunks_per_shard: &[SLOTS as u64], checksums,
        };
        let (old, index) = shard(&layout, &lengths);
        let length = old.len() as u64;
        let before = OldShard { index: &index, start: 0, length };
        let staged = |(slot, nbytes): (&u64, &Option<u64>)| {
            let id = usize::try_from(*slot).unwrap();
            (*slot, nbytes.map(|nbytes| Blob::of(nbytes, Source::Staged(id))))
        };
        let planned: Changes = changes.iter().map(staged).collect();
        let facts = Facts { can_clone, linked, block, mark };
        let plan = plan(&layout, exists.then_some(before), &planned, policy, facts).unwrap();

        let mut expected: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (slot, nbytes) in (0..).zip(&lengths) {
            if let Some(nbytes) = nbytes && exists {
                expected.insert(slot, (0..*nbytes).map(|at| old_byte(slot, at)).collect());
            }
        }
        for (slot, nbytes) in &changes {
            let id = usize::try_from(*slot).unwrap();
            match nbytes {
                None => expected.remove(slot),
                Some(n) => expected.insert(*slot, (0..*n).map(|at| new_byte(id, at)).collect()),
            };
        }
        let file = carry_out(&plan, if exists { &old } else { &[] });
        let found = file.as_ref().map(|file| read_back(&layout, file)).unwrap_or_default();
        prop_assert_eq!(found, expected.clone());
        let stays = exists && mark.is_some();
        prop_assert_eq!(file.is_none(), expected.is_empty() && !stays);
        if let (Some(file), Some(mark)) = (&file, mark) {
            prop_assert!(matches!(plan, Plan::Rewrite(_)));
            let index = match location { IndexLocation::Start => 0, IndexLocation::End => 5 * 16 + 4 };
            let end = file.len() - checksums * CHECKSUM_BYTES - index;
            prop_assert_eq!(&file[end - 16..end], mark);
        }
        check_spared(&plan, &before, &index)?;
        if linked && !matches!(policy, Policy::Auto if can_clone) {
            prop_assert!(matches!(plan, Plan::Remove | Plan::Rewrite(_)));
        }
    }
}

/// Checks that writes do not overlap, that they overwrite bytes in use only in the recorded
/// ranges, and that a cut overwrites none.
fn check_spared(plan: &Plan, old: &OldShard<'_>, index: &ShardIndex) -> Result<(), TestCaseError> {
    let (Plan::Journal(update) | Plan::Cut(update)) = plan else {
        return Ok(());
    };
    let stored = index.stored_size();
    let at_start = index.location() == IndexLocation::Start;
    let offset = if at_start { 0 } else { old.length - stored };
    let chunks = index.chunks(old.length).unwrap().into_iter().map(|(_, range)| range);
    let reached: Vec<_> = chunks.chain([ByteRange { offset, nbytes: stored }]).collect();
    let mut past = 0;
    for write in &update.writes {
        prop_assert!(write.offset >= past && write.blob.nbytes > 0);
        past = write.offset + write.blob.nbytes;
        for at in write.offset..past {
            let byte = ByteRange { offset: at, nbytes: 1 };
            let in_use = reached.iter().any(|range| overlap(*range, byte).is_some());
            let recorded = update.overwritten.iter().any(|r| overlap(*r, byte).is_some());
            prop_assert_eq!(in_use, recorded);
        }
    }
    prop_assert!(past <= update.length);
    if matches!(plan, Plan::Cut(_)) {
        prop_assert!(update.overwritten.is_empty() && update.length <= offset);
    }
    Ok(())
}

const END: ShardLayout<'_> = ShardLayout {
    codecs: &IndexCodecs::USUAL,
    location: IndexLocation::End,
    chunks_per_shard: &[3],
    checksums: 0,
};

fn planned(policy: Policy, changes: &[(u64, Option<u64>)]) -> Plan {
    let (old, index) = shard(&END, &[Some(10), Some(10), Some(10)]);
    let old = OldShard { index: &index, start: 0, length: old.len() as u64 };
    let staged = |(slot, n): &(u64, Option<u64>)| {
        let id = usize::try_from(*slot).unwrap();
        (*slot, n.map(|n| Blob::of(n, Source::Staged(id))))
    };
    plan(&END, Some(old), &changes.iter().map(staged).collect(), policy, Facts::default()).unwrap()
}

#[test]
fn a_chunk_that_fits_no_gap_goes_behind_the_old_index_and_the_new_index_behind_it() {
    let Plan::Journal(update) = planned(Policy::Append, &[(1, Some(7))]) else { panic!() };
    let places: Vec<_> = update.writes.iter().map(|w| (w.offset, w.blob.nbytes)).collect();
    assert_eq!(places, [(39 + 52, 7), (39 + 52 + 7, 52)]);
    assert_eq!((update.length, update.overwritten.len()), (39 + 52 + 7 + 52, 0));
}

#[test]
fn a_chunk_that_fits_a_gap_goes_there() {
    let Plan::Journal(update) = planned(Policy::Append, &[(1, Some(3))]) else { panic!() };
    assert_eq!(update.writes[0].offset, 10);
}

#[test]
fn in_place_a_chunk_goes_over_its_old_bytes_and_its_entry_alone_is_written() {
    let Plan::Journal(update) = planned(Policy::InPlace, &[(1, Some(10))]) else { panic!() };
    assert_eq!(update.writes.len(), 1, "the entry stays as it is");
    assert_eq!(update.overwritten, [ByteRange { offset: 13, nbytes: 10 }]);
    let Plan::Journal(update) = planned(Policy::InPlace, &[(1, Some(9))]) else { panic!() };
    assert_eq!(update.writes.len(), 2);
    assert!(update.writes[1].blob.nbytes < 52 && update.length == 39 + 52);
}

#[test]
fn in_place_a_chunk_whose_range_reaches_into_the_index_is_not_written_over_it() {
    let (old, mut index) = shard(&END, &[Some(10), Some(10), Some(10)]);
    index.set(1, Some(ByteRange { offset: 30, nbytes: 20 }));
    let old = OldShard { index: &index, start: 0, length: old.len() as u64 };
    let changes = Changes::from([(1, Some(Blob::of(20, Source::Staged(1))))]);
    let plan = plan(&END, Some(old), &changes, Policy::InPlace, Facts::default()).unwrap();
    let Plan::Journal(update) = plan else { panic!() };
    assert_eq!(update.writes[0].offset, old.length);
    assert!(update.overwritten.is_empty());
}

#[test]
fn a_shard_that_becomes_complete_keeps_little_of_what_its_commits_have_left() {
    let completed = |gap: u64, last: u64| {
        let (old, mut index) = shard(&END, &[Some(100), Some(100), None]);
        index.set(1, Some(ByteRange { offset: 100 + gap, nbytes: 100 }));
        let length = old.len() as u64 + gap;
        let old = OldShard { index: &index, start: 0, length };
        let changes = Changes::from([(last, Some(Blob::of(150, Source::Staged(0))))]);
        plan(&END, Some(old), &changes, Policy::Auto, Facts::default()).unwrap()
    };
    assert!(matches!(completed(60, 2), Plan::Rewrite(_)));
    // It has been complete before, or is not yet.
    assert!(matches!(completed(60, 1), Plan::Journal(_)));
}

#[test]
fn without_its_last_chunk_a_shard_is_removed() {
    let none = [(0, None), (1, None), (2, None)];
    assert_eq!(planned(Policy::Auto, &none), Plan::Remove);
    assert_eq!(plan(&END, None, &Changes::new(), Policy::Auto, Facts::default()), Ok(Plan::Remove));
}

#[test]
fn without_its_last_chunk_a_shard_that_is_an_object_stays_and_has_another_mark() {
    let (old, index) = shard(&END, &[Some(10), None, None]);
    let before = OldShard { index: &index, start: 0, length: old.len() as u64 };
    let emptied = |mark: u8| {
        let (none, facts) =
            (Changes::from([(0, None)]), Facts { mark: Some([mark; 16]), ..Facts::default() });
        let plan = plan(&END, Some(before), &none, Policy::Auto, facts).unwrap();
        carry_out(&plan, &old).unwrap()
    };
    assert_eq!(read_back(&END, &emptied(1)), BTreeMap::new());
    assert_eq!(emptied(1).len(), 16 + 3 * 16 + 4);
    assert_ne!(emptied(1), emptied(2));
    // None is made for chunks that are not there.
    let facts = Facts { mark: Some([1; 16]), ..Facts::default() };
    assert_eq!(
        plan(&END, None, &Changes::from([(0, None)]), Policy::Auto, facts),
        Ok(Plan::Remove)
    );
}

#[test]
fn an_entry_that_cannot_be_kept_stops_the_commit() {
    let (old, mut index) = shard(&END, &[Some(10), None, None]);
    index.set(2, Some(ByteRange { offset: 90, nbytes: 10 }));
    let old = OldShard { index: &index, start: 0, length: old.len() as u64 };
    let error = plan(&END, Some(old), &Changes::new(), Policy::Auto, Facts::default());
    assert!(matches!(error, Err(PlanError::Entry { slot: 2, .. })));
}
