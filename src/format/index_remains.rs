//! What is left of an index that cannot be read, behind an older one.
//!
//! ```text
//! a shard whose newest index was cut off, or has wrong bytes in it:
//!
//!   | chunks | older index | newer chunks | entry entry entry en
//!                          |<------------- tail ------------->|
//! ```
//!
//! Entries that are in both indexes show where the newest one began, and with it which slot each of
//! its entries is of.

use std::collections::HashMap;

use super::index::{
    ByteRange, CHECKSUM_BYTES, ENTRY_BYTES, IndexCodecs, IndexLocation, ShardIndex, product,
};
use super::search::FoundIndex;
use super::space::Space;
use crate::number::to_usize;

/// Byte that fills the entries of which nothing is left: no shard is so long.
const NOTHING: u8 = 0x5a;

/// What is left of an index, by slot; `None` where a chunk is empty.
pub(crate) type Remains = Vec<(u64, Option<ByteRange>)>;

/// Number of places that are considered, of those for which as much speaks.
const MOST_PLACES: usize = 4;

/// Returns what `tail`, the bytes at the end of a shard from `start` on, has of an index that is
/// newer than `older`: several, if it is not certain where that one began; none if no index can be
/// recognised there. They are made one after the other: each has the length of an index.
pub(crate) fn remains<'a>(
    (tail, start): (&'a [u8], u64),
    older: &FoundIndex,
    codecs: &'a IndexCodecs,
    chunks_per_shard: &'a [u64],
) -> impl Iterator<Item = Remains> + 'a {
    // As many as the older index has, which was decoded.
    let slots =
        product(chunks_per_shard).filter(|it| codecs.stored_size(*it).is_some()).unwrap_or(0);
    let nbytes = slots * ENTRY_BYTES;
    let at = move |begin: u64| {
        let mut bytes = vec![NOTHING; to_usize(nbytes)];
        // Its first entries may be before the tail, the last ones be cut off.
        let from = begin.max(start);
        let found = tail.get(to_usize(from - start)..).unwrap_or_default();
        let room = bytes.get_mut(to_usize(from - begin)..).unwrap_or_default();
        let length = found.len().min(room.len());
        room[..length].copy_from_slice(&found[..length]);
        ShardIndex::readable_entries(bytes, codecs, chunks_per_shard, begin)
    };
    let begins = begins_of((tail, start), older, codecs);
    // Though no chunk is where it was, it may stand in its place.
    let stored = nbytes + (codecs.checksums() * CHECKSUM_BYTES) as u64;
    let place = IndexLocation::End.place(stored, start + tail.len() as u64);
    let is_new = |place: &ByteRange| place.offset >= start && !begins.contains(&place.offset);
    let place = place.filter(is_new);
    let most_wrong = if begins.is_empty() { (slots / 4).max(1) } else { 0 };
    let in_place = move |place: ByteRange| {
        let left = at(place.offset);
        let ranges: Vec<ByteRange> = left.iter().filter_map(|(_, range)| *range).collect();
        let is_empty = ranges.is_empty();
        let wrong = slots - left.len() as u64 + Space::new(ranges).clashes().len() as u64;
        (!is_empty && wrong <= most_wrong).then_some(left)
    };
    begins.into_iter().map(at).chain(place.into_iter().filter_map(in_place))
}

/// Returns whether there is an entry of an empty chunk in some bytes, as in what an index leaves whose
/// end is missing.
pub(crate) fn has_empty_entry(tail: &[u8]) -> bool {
    tail.windows(to_usize(ENTRY_BYTES)).any(|entry| entry.iter().all(|byte| *byte == u8::MAX))
}

/// Returns where an index may begin that has entries of `older`: where most of them say.
fn begins_of((tail, start): (&[u8], u64), older: &FoundIndex, codecs: &IndexCodecs) -> Vec<u64> {
    let entry = |(slot, range): &(u64, ByteRange)| {
        Some((ShardIndex::entry_bytes(codecs, *range)?, slot * ENTRY_BYTES))
    };
    let known: HashMap<[u8; 16], u64> = older.chunks.iter().filter_map(entry).collect();
    let mut votes: HashMap<u64, u64> = HashMap::new();
    for (at, window) in (start..).zip(tail.windows(to_usize(ENTRY_BYTES))) {
        let place = <[u8; 16]>::try_from(window).ok().and_then(|window| known.get(&window));
        if let Some(begin) = place.and_then(|place| at.checked_sub(*place)) {
            *votes.entry(begin).or_default() += 1;
        }
    }
    let most = votes.values().max().copied();
    let mut begins: Vec<u64> =
        votes.into_iter().filter(|(_, votes)| Some(*votes) == most).map(|it| it.0).collect();
    begins.sort_unstable_by(|one, other| other.cmp(one));
    begins.truncate(MOST_PLACES);
    begins
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFTEN: [u64; 1] = [6];

    fn index(codecs: &IndexCodecs, chunks: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut index = ShardIndex::empty(codecs, IndexLocation::End, &OFTEN).unwrap();
        for (slot, offset, nbytes) in chunks {
            index.set(*slot, Some(ByteRange { offset: *offset, nbytes: *nbytes }));
        }
        index.encode()
    }

    fn older(chunks: &[(u64, u64, u64)]) -> FoundIndex {
        let range = |(slot, offset, nbytes): &(u64, u64, u64)| {
            (*slot, ByteRange { offset: *offset, nbytes: *nbytes })
        };
        FoundIndex { offset: 0, bytes: Vec::new(), chunks: chunks.iter().map(range).collect() }
    }

    #[test]
    fn an_index_of_which_a_part_is_left_is_found_wherever_it_is() {
        let was = older(&[(0, 0, 10), (1, 10, 10), (4, 20, 5)]);
        let now = [(1, 10, 10), (2, 0, 10), (4, 25, 5)];
        let all = vec![
            (0, None),
            (1, Some(ByteRange { offset: 10, nbytes: 10 })),
            (2, Some(ByteRange { offset: 0, nbytes: 10 })),
            (3, None),
            (4, Some(ByteRange { offset: 25, nbytes: 5 })),
            (5, None),
        ];
        for big_endian in [false, true] {
            let codecs = match big_endian {
                false => IndexCodecs::USUAL,
                true => IndexCodecs::USUAL
                    .others()
                    .find(|it| *it != IndexCodecs::USUAL && it.checksums() == 1)
                    .unwrap(),
            };
            let bytes = index(&codecs, &now);
            let found =
                |tail: &[u8]| remains((tail, 1000), &was, &codecs, &OFTEN).collect::<Vec<_>>();
            for before in [0, 3, 200] {
                let mut tail = vec![0x77; before];
                tail.extend(&bytes);
                // All of it, something behind it, the last entry cut off, all but two.
                assert!(found(&tail).contains(&all));
                let more = [&tail[..], &[1, 2, 3]].concat();
                assert!(found(&more).contains(&all));
                let cut = &tail[..before + 90];
                assert!(found(cut).contains(&all[..5].to_vec()));
                let cut = &tail[..before + 32];
                assert_eq!(found(cut), [&all[..2]]);
                // Where it begins is not there any more.
                let end = &tail[before + 8..];
                assert!(found(end).contains(&all[1..].to_vec()));
            }
        }
    }

    #[test]
    fn an_empty_entry_is_found_wherever_it_is() {
        let found = |before, entry, behind| {
            has_empty_entry(&[&vec![3; before][..], &vec![0xff; entry], &vec![7; behind]].concat())
        };
        assert!(found(0, 16, 0) && found(5, 16, 9) && found(1, 40, 0));
        assert!(!found(0, 0, 0) && !found(20, 15, 20) && !found(0, 15, 0));
    }

    #[test]
    fn an_index_with_other_chunks_is_found_in_its_place_alone() {
        let was = older(&[(0, 0, 10), (1, 10, 10)]);
        let mut bytes = index(&IndexCodecs::USUAL, &[(0, 10, 10), (1, 0, 10)]);
        *bytes.last_mut().unwrap() ^= 1;
        let all = vec![
            (0, Some(ByteRange { offset: 10, nbytes: 10 })),
            (1, Some(ByteRange { offset: 0, nbytes: 10 })),
            (2, None),
            (3, None),
            (4, None),
            (5, None),
        ];
        assert!(remains((&bytes, 50), &was, &IndexCodecs::USUAL, &OFTEN).any(|it| it == all));
        for tail in [&[][..], &[0x99; 300], &[0xff; 300], &[0; 300]] {
            assert_eq!(remains((tail, 50), &was, &IndexCodecs::USUAL, &OFTEN).count(), 0);
        }
    }
}
