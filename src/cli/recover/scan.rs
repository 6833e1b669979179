//! `shardfs recover --scan`: shards that cannot be read, and their repair by older indexes.

use std::fmt::{self, Display};
use std::sync::Arc;

use super::super::exit::Failure;
use super::super::message::complain;
use super::super::output::say;
use super::Args;
use crate::source::{Array, Node, Source};
use crate::store::LoadedShard;
use crate::store::scan::{Contradiction, FaultyShard, OlderIndex, Remedy, WrongByte};
use crate::text::{Line, count, shown};
use crate::tools::verify::{Finding, OlderChunks, Within, check_older};

/// Counts of the shards scanned, and of those that cannot be read by outcome.
#[derive(Default)]
struct Counts {
    shards: u64,
    /// Repaired by one byte, which is as good as never broken.
    mended: u64,
    /// Mendable so.
    mendable: u64,
    repaired: u64,
    /// Repaired in spite of a doubt.
    forced: u64,
    repairable: u64,
    /// Repairable by `--force` only.
    doubtful: u64,
    hopeless: u64,
    /// Not examined or not repaired, because of an error.
    failed: u64,
}

/// Reason to doubt that an older index finds the chunks as they were when it was written.
enum Doubt {
    /// Some cannot be read or decoded.
    Defects(OlderChunks),
    /// The shard itself speaks against it.
    Contradiction(Contradiction),
    /// It is a file with several names.
    Linked(u64),
    /// Its chunks cannot be decoded here.
    NotDecoded,
    /// One byte may explain by chance that several are wrong.
    Chance,
}

impl Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defects(OlderChunks { defects, first, .. }) => {
                write!(f, ", but there {} in what it reaches", are(*defects))?;
                first.as_ref().map_or(Ok(()), |first| write!(f, ": {}", In(first)))
            }
            Self::Contradiction(contradiction) => write!(f, ", but {contradiction}"),
            Self::Linked(names) => {
                write!(f, ", but the file has {names} names, and changes under all of them")
            }
            Self::Chance => f.write_str(
                ", but in an index of this length a byte may do so by chance where several are wrong",
            ),
            Self::NotDecoded => f.write_str(
                ", but chunks of this array cannot be decoded here: nothing shows whether it finds them",
            ),
        }
    }
}

fn are(defects: u64) -> String {
    let verb = if defects == 1 { "is" } else { "are" };
    format!("{verb} {}", count(defects, "defect"))
}

/// A defect, without the name of the shard that it is in.
struct In<'a>(&'a Finding);

impl Display for In<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Within { is_shard, position, .. }) = &self.0.within {
            let what = if *is_shard { "inner shard" } else { "chunk" };
            write!(f, "{what} at {position:?}: ")?;
        }
        self.0.what.fmt(f)
    }
}

/// Examines every shard of a source, and repairs with `--write`.
pub(super) fn scan(args: &Args, source: &Source) -> Result<(), Failure> {
    let mut counts = Counts::default();
    for node in source.nodes() {
        match node {
            Node::Array(array) if array.source.format.has_index() => {
                scan_array(args, source, &array, &mut counts);
            }
            Node::Bad(node) => {
                counts.hopeless += 1;
                say(Line(node));
            }
            Node::Array(_) | Node::Group(_) | Node::Journal(_) => (),
        }
    }
    let repaired = counts.mended + counts.repaired + counts.forced;
    say(format_args!("{} checked, {repaired} repaired", count(counts.shards, "shard")));
    match (counts.problems(), counts.failed) {
        (problems, 0) if problems.is_empty() => Ok(()),
        (problems, 0) => Err(Failure::Found(problems)),
        (problems, _) => Err(Failure::System(problems)),
    }
}

impl Counts {
    /// Returns what is not as it should be; nothing if all is well.
    fn problems(&self) -> String {
        let Self { mendable, repaired, forced, repairable, doubtful, failed, hopeless, .. } = self;
        let all = [
            (mendable, "can be repaired by --write, which puts back one byte"),
            (
                repaired,
                "repaired by an older index: what was written there since then is gone, and a chunk may \
                 show bytes of another all the same: compare them with what you have",
            ),
            (forced, "repaired by --force: chunks there may show bytes of other chunks"),
            (
                repairable,
                "can be repaired by --write, which brings back chunks as an older index has them",
            ),
            (
                doubtful,
                "can be repaired by --write --force alone, after which chunks may show bytes of others: \
                 copy them before",
            ),
            (hopeless, "cannot be repaired"),
            (failed, "could not be examined or repaired, because of an error"),
        ];
        let found = all.iter().filter(|(n, _)| **n > 0);
        found.map(|(n, what)| format!("{n} {what}")).collect::<Vec<_>>().join("; ")
    }
}

fn scan_array(args: &Args, source: &Source, array: &Arc<Array>, counts: &mut Counts) {
    let mut shards = 0;
    let scanned = source.store.scan(&array.source, &mut shards, &mut |shard| {
        let shard = match shard {
            Ok(shard) => shard,
            Err(error) => {
                counts.failed += 1;
                return complain(error);
            }
        };
        let FaultyShard { path, fault, remedy, slots, .. } = &shard;
        match remedy {
            Remedy::None(why) => {
                counts.hopeless += 1;
                say(format_args!("{}: {fault}; {why}", shown(&path)));
            }
            Remedy::Byte(wrong) => {
                let loaded = source.store.as_with(&array.source, &shard.coords, wrong);
                // Of a short index the checksum speaks for it, whether or not chunks can be decoded; of a long one they
                // do not prove it: any bytes may be items that are not compressed.
                let doubt = match doubt_of(source, array, &shard.coords, &loaded) {
                    None | Some(Doubt::NotDecoded) if !wrong.is_certain() => Some(Doubt::Chance),
                    Some(Doubt::NotDecoded) => None,
                    found => found,
                };
                let outcome = repair(args, source, array, &shard, doubt.is_some(), counts);
                let WrongByte { at, found, right, .. } = wrong;
                say(format_args!(
                    "{}: {fault}; with {right:#04x} in place of {found:#04x} at byte {at} it matches{}{outcome}",
                    shown(&path),
                    Line(doubt.map_or(String::new(), |doubt| doubt.to_string())),
                ));
            }
            Remedy::Older(older) => {
                let (offset, chunks) = (older.index.offset, older.index.chunks.len());
                let doubt = doubt(source, array, &shard, older);
                let outcome = repair(args, source, array, &shard, doubt.is_some(), counts);
                say(format_args!(
                    "{}: {fault}; an older index of {chunks} of {} stands at byte {offset}{}{outcome}",
                    shown(&path),
                    count(*slots, "chunk"),
                    Line(doubt.map_or(String::new(), |doubt| doubt.to_string())),
                ));
            }
        }
    });
    counts.shards += shards;
    // Other arrays are scanned though the shards of one cannot be listed.
    if let Err(error) = scanned {
        counts.failed += 1;
        complain(error);
    }
}

/// Examines what an older index reaches.
fn doubt(
    source: &Source,
    array: &Arc<Array>,
    shard: &FaultyShard,
    older: &OlderIndex,
) -> Option<Doubt> {
    if let Some(contradiction) = older.contradiction {
        return Some(Doubt::Contradiction(contradiction));
    }
    let loaded = source.store.as_of_older(&array.source, &shard.coords, older);
    doubt_of(source, array, &shard.coords, &loaded)
}

/// Examines what an index reaches that a shard does not have yet.
fn doubt_of(
    source: &Source,
    array: &Arc<Array>,
    coords: &[u64],
    loaded: &Arc<LoadedShard>,
) -> Option<Doubt> {
    let names = loaded.stat().links;
    match check_older(source, array, coords, loaded) {
        found if found.defects > 0 => Some(Doubt::Defects(found)),
        _ if names > 1 => Some(Doubt::Linked(names)),
        found => (!found.are_decoded).then_some(Doubt::NotDecoded),
    }
}

/// Repairs a shard if that is asked for, and returns what was done. Others are repaired though one
/// cannot be.
fn repair(
    args: &Args,
    source: &Source,
    array: &Array,
    shard: &FaultyShard,
    is_doubtful: bool,
    counts: &mut Counts,
) -> String {
    if args.write && (args.force || !is_doubtful) {
        if let Err(error) = source.store.restore(&array.source, shard) {
            counts.failed += 1;
            return format!("; not repaired: {error}");
        }
        let (counted, done) = match &shard.remedy {
            Remedy::Byte(_) => (&mut counts.mended, ", and does now"),
            _ => (&mut counts.repaired, ", a copy of it stands at the end now"),
        };
        *(if is_doubtful { &mut counts.forced } else { counted }) += 1;
        return done.to_owned();
    }
    let counted = match &shard.remedy {
        Remedy::Byte(_) => &mut counts.mendable,
        _ => &mut counts.repairable,
    };
    *(if is_doubtful { &mut counts.doubtful } else { counted }) += 1;
    if args.write { "; not repaired".to_owned() } else { String::new() }
}
