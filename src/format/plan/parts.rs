//! Parts of which a store of objects assembles a new version of a shard: ranges of the old version, which it copies
//! itself, and bytes that are sent. Does no I/O.
//!
//! ```text
//! version   |              kept               | new chunks | mark | index |
//! parts     |  copied  |  copied  |  copied   |           sent            |
//!
//! version   | index |              kept               | new chunks | mark |
//! parts     |   sent    |  copied  |  copied  | copied |       sent        |
//! ```
//!
//! Stores ask for a least length of each part but the last: where fewer new bytes come before a range that is kept,
//! so many of its bytes are sent as well. (Amazon S3: 5 MiB, and 10,000 parts.)

use super::{Blob, Piece, Source};
use crate::format::index::ByteRange;

/// What a store asks of parts, and what makes it worth to assemble an object of them. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLimits {
    /// Least length of each part but the last.
    pub least: u64,
    /// Length of a range above which it is copied as several parts, at least twice `least`.
    pub most_copied: u64,
    /// Length from which on no further bytes are sent with the same part, at least `least`.
    pub most_sent: u64,
    /// Number of parts.
    pub count: usize,
    /// Bytes that must be saved, in comparison with an object that is read and put as a whole.
    pub gain: u64,
}

/// Part of a new version of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardPart {
    /// Range of the old version.
    Kept(ByteRange),
    /// Bytes that are sent.
    Sent(Blob),
}

impl ShardPart {
    /// Returns the number of bytes that are read and sent for it.
    fn moved(&self) -> u64 {
        match self {
            Self::Kept(_) => 0,
            Self::Sent(blob) => moved(blob),
        }
    }
}

/// Cuts a version of a shard into parts. `None` if that saves too little, or the store takes fewer parts.
pub fn cut(blob: &Blob, limits: &PartLimits) -> Option<Vec<ShardPart>> {
    let mut cutter = Cut { limits, parts: Vec::new(), waiting: Blob::default() };
    for unit in units(blob) {
        cutter.add(unit);
    }
    cutter.flush();
    let parts = cutter.parts;
    let with_parts = parts.iter().map(ShardPart::moved).fold(0, u64::saturating_add);
    let saved = moved(blob).saturating_sub(with_parts);
    let is_possible = parts.len() <= limits.count;
    (is_possible && saved > 0 && saved >= limits.gain).then_some(parts)
}

/// Returns the number of bytes that are moved to put a blob: all of it is sent, and what is kept is read before.
fn moved(blob: &Blob) -> u64 {
    let kept = blob.pieces.iter().filter(|piece| matches!(piece.from, Source::Kept(_)));
    let kept = kept.map(|piece| piece.nbytes).fold(0, u64::saturating_add);
    kept.saturating_add(blob.nbytes)
}

/// Returns what cannot be cut: single pieces, and a checksum together with the bytes that it is one of, which whoever
/// computes it must have.
fn units(blob: &Blob) -> Vec<Blob> {
    let mut units: Vec<Blob> = Vec::new();
    for piece in &blob.pieces {
        let mut unit = Blob::default();
        if let Source::Checksum(before) = piece.from {
            let mut first = units.len();
            let mut covered = 0_u64;
            while let Some(last) = first.checked_sub(1).filter(|_| covered < before) {
                covered = covered.saturating_add(units[last].nbytes);
                first = last;
            }
            units.drain(first..).for_each(|part| join(&mut unit, part));
        }
        join(&mut unit, Blob { nbytes: piece.nbytes, pieces: vec![piece.clone()] });
        units.push(unit);
    }
    units
}

/// Appends a blob, piece by piece. The sum of all lengths is that of the shard, so it cannot overflow.
fn join(blob: &mut Blob, other: Blob) {
    blob.nbytes += other.nbytes;
    blob.pieces.extend(other.pieces);
}

struct Cut<'a> {
    limits: &'a PartLimits,
    parts: Vec<ShardPart>,
    /// Bytes that are sent with the next part.
    waiting: Blob,
}

impl Cut<'_> {
    fn add(&mut self, unit: Blob) {
        if let [Piece { nbytes, from: Source::Kept(offset) }] = unit.pieces[..] {
            let lacking = match self.waiting.nbytes {
                0 => 0,
                waiting => self.limits.least.saturating_sub(waiting),
            };
            let rest = nbytes.checked_sub(lacking);
            if let Some(rest) = rest.filter(|rest| *rest >= self.limits.least.max(1)) {
                if lacking > 0 {
                    join(&mut self.waiting, Blob::of(lacking, Source::Kept(offset)));
                }
                self.flush();
                self.copy(offset + lacking, rest);
                return;
            }
        }
        join(&mut self.waiting, unit);
        if self.waiting.nbytes >= self.limits.most_sent {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.waiting.nbytes > 0 {
            self.parts.push(ShardPart::Sent(std::mem::take(&mut self.waiting)));
        }
    }

    /// Copies a range, as parts of about the same length: none of them is too short.
    fn copy(&mut self, mut offset: u64, nbytes: u64) {
        let count = nbytes.div_ceil(self.limits.most_copied.max(1)).max(1);
        for at in 0..count {
            let nbytes = nbytes / count + u64::from(at < nbytes % count);
            self.parts.push(ShardPart::Kept(ByteRange { offset, nbytes }));
            offset += nbytes;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: PartLimits =
        PartLimits { least: 10, most_copied: 25, most_sent: 30, count: 100, gain: 1 };

    fn kept(offset: u64, nbytes: u64) -> Piece {
        Piece { nbytes, from: Source::Kept(offset) }
    }

    fn new(at: usize, nbytes: u64) -> Piece {
        Piece { nbytes, from: Source::Staged(at) }
    }

    fn blob(pieces: &[Piece]) -> Blob {
        let nbytes = pieces.iter().map(|piece| piece.nbytes).sum();
        Blob { nbytes, pieces: pieces.to_vec() }
    }

    fn copied(offset: u64, nbytes: u64) -> ShardPart {
        ShardPart::Kept(ByteRange { offset, nbytes })
    }

    fn sent(pieces: &[Piece]) -> ShardPart {
        ShardPart::Sent(blob(pieces))
    }

    #[test]
    fn what_is_kept_is_copied_and_the_rest_is_sent() {
        let appended = blob(&[kept(0, 60), new(0, 3), new(1, 4)]);
        let expected =
            [copied(0, 20), copied(20, 20), copied(40, 20), sent(&[new(0, 3), new(1, 4)])];
        assert_eq!(cut(&appended, &LIMITS).unwrap(), expected);
    }

    #[test]
    fn a_part_that_is_too_short_takes_bytes_of_what_is_kept() {
        let at_start = blob(&[new(0, 4), kept(7, 30), new(1, 2)]);
        let expected = [sent(&[new(0, 4), kept(7, 6)]), copied(13, 24), sent(&[new(1, 2)])];
        assert_eq!(cut(&at_start, &LIMITS).unwrap(), expected);
        // What would be left of it is too short to be copied.
        assert_eq!(cut(&blob(&[new(0, 4), kept(7, 15), new(1, 2)]), &LIMITS), None);
    }

    #[test]
    fn bytes_with_a_checksum_are_sent() {
        let checked =
            [new(0, 3), kept(0, 40), Piece { nbytes: 4, from: Source::Checksum(43) }, kept(50, 20)];
        let expected = [sent(&checked[..3]), copied(50, 20)];
        assert_eq!(cut(&blob(&checked), &LIMITS).unwrap(), expected);
    }

    #[test]
    fn parts_must_save_something_and_not_be_too_many() {
        let appended = blob(&[kept(0, 60), new(0, 3)]);
        let with = |change: fn(&mut PartLimits)| {
            let mut limits = LIMITS;
            change(&mut limits);
            cut(&appended, &limits).is_some()
        };
        // Read and sent once, but for three bytes.
        assert!(with(|limits| limits.gain = 120) && !with(|limits| limits.gain = 121));
        assert!(with(|limits| limits.count = 4) && !with(|limits| limits.count = 3));
        assert_eq!(cut(&blob(&[new(0, 100)]), &PartLimits { gain: 0, ..LIMITS }), None);
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let piece = (0..3_u8, 1..80_u64, 0..1000_u64);
        prop::collection::vec(piece, 1..12).prop_map(|all| {
            let mut before = 0;
            let mut pieces = Vec::new();
            for (kind, nbytes, at) in all {
                let piece = match kind {
                    0 => kept(at, nbytes),
                    1 => new(1, nbytes),
                    _ => Piece { nbytes: 4, from: Source::Checksum(before.min(at)) },
                };
                before += piece.nbytes;
                pieces.push(piece);
            }
            pieces
        })
    }

    proptest! {
        #[test]
        fn parts_hold_all_bytes_in_order_and_none_but_the_last_is_too_short(pieces in pieces()) {
            let whole = blob(&pieces);
            let Some(parts) = cut(&whole, &LIMITS) else { return Ok(()) };
            let mut joined = Blob::default();
            for (at, part) in parts.iter().enumerate() {
                let part = match part {
                    ShardPart::Kept(range) => blob(&[kept(range.offset, range.nbytes)]),
                    ShardPart::Sent(sent) => {
                        let mut before = 0;
                        for piece in &sent.pieces {
                            if let Source::Checksum(nbytes) = piece.from {
                                prop_assert!(nbytes <= before);
                            }
                            before += piece.nbytes;
                        }
                        sent.clone()
                    }
                };
                prop_assert!(part.nbytes >= LIMITS.least || at + 1 == parts.len());
                joined.append(part).unwrap();
            }
            let mut expected = Blob::default();
            expected.append(whole).unwrap();
            prop_assert_eq!(joined, expected);
        }
    }
}
