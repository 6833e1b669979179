//! What fuzzing found and what it started from: every seed below `tests/fuzz/seeds` keeps the
//! checks of its fuzz target, and so do seeds with a few changes. `fuzz/README.md` tells how to
//! look for more.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

#[path = "fuzz/checks/mod.rs"]
mod checks;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::{Index, select};

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
fn after_seeds_hold() {
    replay("after", checks::after);
}

/// Text in place of a number in a document.
const EXTREMES: [&str; 14] = [
    "0",
    "1",
    "-1",
    "65",
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
    let around = select(&[("[", "]"), (r#"{"a":"#, "}"), ("[", ""), (r#"[["NaN"],"#, "]")][..]);
    let depth = select(&[1, 2, 60, 126, 200, 4000][..]);
    prop_oneof![
        3 => bytes_change(),
        5 => (any::<Index>(), select(&EXTREMES[..])).prop_map(|(at, text)| Change::Number(at, text)),
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
            Self::Number(at, text) => {
                let digit = |at: &usize| bytes.get(*at).is_some_and(u8::is_ascii_digit);
                let starts = |at: &usize| digit(at) && !digit(&at.wrapping_sub(1));
                let numbers: Vec<usize> = (0..bytes.len()).filter(starts).collect();
                if let Some(from) = numbers.get(at.index(numbers.len().max(1))) {
                    let end = (*from..).find(|at| !digit(at)).unwrap_or(bytes.len());
                    bytes.splice(from..&end, text.bytes());
                }
            }
            Self::Nest(at, (open, close), depth) => {
                let at = place(at, bytes);
                let text = [open.repeat(*depth), "1".to_owned(), close.repeat(*depth)].concat();
                // In place of a character, so that a value may become the nested one.
                bytes.splice(at..bytes.len().min(at + 1), text.bytes());
            }
            Self::Word(at, word) => {
                let at = place(at, bytes);
                bytes.splice(at..bytes.len().min(at + word.len()), word.iter().copied());
            }
        }
    }
}

/// Runs a check on changed seeds.
fn changed(target: &str, check: Check, cases: u32, change: impl Strategy<Value = Change>) {
    let seeds: Vec<Vec<u8>> = seeds(target).into_iter().map(|(_, bytes)| bytes).collect();
    let inputs = (any::<Index>(), prop::collection::vec(change, 1..5));
    let config = ProptestConfig { cases, ..ProptestConfig::with_source_file(file!()) };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&inputs, |(seed, changes)| {
        let mut bytes = seed.get(&seeds).clone();
        for change in &changes {
            change.apply(&mut bytes, &seeds);
        }
        check(&bytes);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn changed_metadata_holds() {
    changed("metadata", checks::metadata, 30_000, text_change());
}

#[test]
fn changed_indexes_hold() {
    changed("index", checks::index, 30_000, bytes_change());
}

#[test]
fn changed_shards_hold() {
    changed("after", checks::after, 20_000, bytes_change());
}
