//! What fuzzing found and what it started from: every seed below `tests/fuzz/seeds` keeps the
//! checks of its fuzz target, and so do seeds with a few changes. `fuzz/README.md` tells how to
//! look for more.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "fuzz/checks/mod.rs"]
mod checks;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use shardfs::format::document::{Dialect, Shown, show};
use shardfs::format::json;

type Check = fn(&[u8]);

/// The seeds of a target, by name.
fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds").join(target);
    let mut paths: Vec<PathBuf> =
        directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn replay(target: &str, check: Check) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty());
    for (path, bytes) in seeds {
        // Printed only where the check fails.
        println!("{}", path.display());
        check(&bytes);
    }
}

#[test]
fn metadata_seeds_hold() {
    replay("metadata", checks::metadata);
}

#[test]
fn index_seeds_hold() {
    replay("index", checks::index);
}

#[test]
fn blosc2_seeds_hold() {
    replay("blosc2", checks::blosc2);
}

#[test]
fn after_seeds_hold() {
    replay("after", checks::after);
}

/// Text in place of a number in a document.
const NUMBERS: [&str; 18] = [
    "0",
    "1",
    "2",
    "4",
    "6",
    "60",
    "65",
    "-1",
    "4.0",
    "1.5",
    "-0.0",
    "1e308",
    "1e999",
    "NaN",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
];
/// Words in place of eight bytes.
const WORDS: [u64; 8] = [0, 1, 15, 1 << 31, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];

/// One change to a seed.
#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Truncate(Index),
    Remove(Index, usize),
    Repeat(Index, usize),
    /// The end of another seed goes on from here.
    Splice(Index, Index, Index),
    /// Another number in a document.
    Number(Index, &'static str),
    /// Lists or objects around what follows, with or without their ends.
    Nest(Index, (&'static str, &'static str), usize),
    /// Another word in bytes.
    Word(Index, [u8; 8]),
}

fn bytes_change() -> impl Strategy<Value = Change> {
    let word = (select(&WORDS[..]), any::<bool>())
        .prop_map(|(word, big)| if big { word.to_be_bytes() } else { word.to_le_bytes() });
    prop_oneof![
        4 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        1 => any::<Index>().prop_map(Change::Truncate),
        1 => (any::<Index>(), 1..64_usize).prop_map(|(at, n)| Change::Remove(at, n)),
        1 => (any::<Index>(), 1..64_usize).prop_map(|(at, n)| Change::Repeat(at, n)),
        1 => any::<(Index, Index, Index)>().prop_map(|(at, seed, from)| Change::Splice(at, seed, from)),
        2 => (any::<Index>(), word).prop_map(|(at, word)| Change::Word(at, word)),
    ]
}

fn text_change() -> impl Strategy<Value = Change> {
    let around = select(&[("[", "]"), (r#"{"a":"#, "}"), (r#"[["NaN"],"#, "]"), ("[", "")][..]);
    let depth = select(&[1, 2, 60, 126, 200, 4000][..]);
    prop_oneof![
        1 => bytes_change(),
        12 => (any::<Index>(), select(&NUMBERS[..])).prop_map(|(at, text)| Change::Number(at, text)),
        1 => (any::<Index>(), around, depth).prop_map(|(at, around, n)| Change::Nest(at, around, n)),
    ]
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        // A place in the bytes or right after them.
        let place = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
        match self {
            Self::Flip(_, _) if bytes.is_empty() => (),
            Self::Flip(at, bit) => *at.get_mut(bytes) ^= 1 << bit,
            Self::Truncate(at) => bytes.truncate(place(at, bytes)),
            Self::Remove(at, n) => {
                let from = place(at, bytes);
                bytes.drain(from..bytes.len().min(from + n));
            }
            Self::Repeat(at, n) => {
                let from = place(at, bytes);
                let part = bytes[from..bytes.len().min(from + n)].to_vec();
                bytes.splice(from..from, part);
            }
            Self::Splice(at, seed, from) => {
                let other = seed.get(seeds);
                bytes.truncate(place(at, bytes));
                bytes.extend_from_slice(&other[place(from, other)..]);
            }
            Self::Number(at, text) => replace_number(bytes, at, text),
            Self::Nest(at, (open, close), depth) => {
                let nested = [open.repeat(*depth), "1".to_owned(), close.repeat(*depth)];
                replace_number(bytes, at, &nested.concat());
            }
            Self::Word(at, word) => {
                let at = place(at, bytes);
                bytes.splice(at..bytes.len().min(at + word.len()), word.iter().copied());
            }
        }
    }
}

/// Replaces one of the runs of digits, if there is one.
fn replace_number(bytes: &mut Vec<u8>, at: &Index, text: &str) {
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> =
        (0..bytes.len()).filter(|at| digit(*at) && !digit(at.wrapping_sub(1))).collect();
    if !starts.is_empty() {
        let start = *at.get(&starts);
        let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        bytes.splice(start..start + length, text.bytes());
    }
}

/// An input, shown as the text of a byte string.
struct Input(Vec<u8>);

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// Runs a check on changed seeds.
fn changed(seeds: &[Vec<u8>], check: Check, cases: u32, change: impl Strategy<Value = Change>) {
    let changes = prop::collection::vec(change, 1..5);
    let inputs = (any::<Index>(), changes).prop_map(|(seed, changes)| {
        let mut bytes = seed.get(seeds).clone();
        for change in &changes {
            change.apply(&mut bytes, seeds);
        }
        Input(bytes)
    });
    // What fails is to become a seed, so nothing else keeps it.
    let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
    let outcome = TestRunner::new(config).run(&inputs, |Input(bytes)| {
        check(&bytes);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// The bytes of those seeds of a target that are worth changing.
fn bytes_of(target: &str, worth: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    seeds(target).into_iter().map(|(_, bytes)| bytes).filter(|bytes| worth(bytes)).collect()
}

#[test]
fn changed_metadata_holds() {
    let sharded = |bytes: &[u8]| {
        let document = json::parse(bytes).ok();
        let shown = document.and_then(|document| show(document, None, Dialect::V3).ok());
        shown.is_some_and(|shown| !matches!(shown, Shown::AsStored))
    };
    changed(&bytes_of("metadata", sharded), checks::metadata, 30_000, text_change());
}

#[test]
fn changed_indexes_hold() {
    changed(&bytes_of("index", |_| true), checks::index, 40_000, bytes_change());
}

#[test]
fn changed_frames_hold() {
    changed(&bytes_of("blosc2", |_| true), checks::blosc2, 60_000, bytes_change());
}

#[test]
fn changed_shards_hold() {
    changed(&bytes_of("after", |_| true), checks::after, 30_000, bytes_change());
}
