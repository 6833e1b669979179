//! Findings and counts of a part of the verification, as they are collected.

use std::path::PathBuf;

use super::finding::{Finding, What};

/// Maximum number of findings that a unit of work holds back to keep the order; beyond that they
/// are handed over at once.
pub(super) const MOST_KEPT: usize = 4096;

/// Findings and counts of a part of the verification.
#[derive(Debug, Default)]
pub struct Step {
    /// Findings.
    pub findings: Vec<Finding>,
    /// Counts of what was verified.
    pub counts: Counts,
}

/// Counts of what was verified, and of findings.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Number of arrays.
    pub arrays: u64,
    /// Number of shards that exist.
    pub shards: u64,
    /// Number of files that exist of arrays without shards: each is one chunk.
    pub files: u64,
    /// Number of chunks that exist.
    pub chunks: u64,
    /// Number of bytes of indexes and chunks that were read.
    pub bytes: u64,
    /// Number of defects.
    pub defects: u64,
    /// Number of notes.
    pub notes: u64,
}

/// Counts for notes that are reported once for an array.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    pub older: u64,
    pub older_shards: u64,
    pub dead: u64,
    pub dead_shards: u64,
    pub outside: u64,
    pub shared: u64,
    pub wrapped: u64,
    pub no_bytes_unknown: u64,
}

/// Result of a unit of work.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub step: Step,
    pub tally: Tally,
    /// Directory of an array whose results are complete; `None` in between.
    pub ended: Option<PathBuf>,
}

/// Function that takes findings ahead of their turn.
pub(super) type Early<'a> = dyn Fn(&mut Step) + Sync + 'a;

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.arrays += other.arrays;
        self.shards += other.shards;
        self.files += other.files;
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.defects += other.defects;
        self.notes += other.notes;
    }
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.older += other.older;
        self.older_shards += other.older_shards;
        self.dead += other.dead;
        self.dead_shards += other.dead_shards;
        self.outside += other.outside;
        self.shared += other.shared;
        self.wrapped += other.wrapped;
        self.no_bytes_unknown += other.no_bytes_unknown;
    }

    pub(super) fn notes(self) -> impl Iterator<Item = What> {
        let dead = What::Dead { nbytes: self.dead, shards: self.dead_shards };
        let older = What::OlderIndexes { indexes: self.older, shards: self.older_shards };
        let all = [
            (self.older, older),
            (self.dead, dead),
            (self.outside, What::Outside(self.outside)),
            (self.shared, What::Shared(self.shared)),
            (self.wrapped, What::Wrapped(self.wrapped)),
            (self.no_bytes_unknown, What::NoBytesUnknown(self.no_bytes_unknown)),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(_, what)| what)
    }
}

impl Checked {
    /// Adds a finding, and hands all of them over early if there are too many.
    pub(super) fn found(&mut self, early: &Early<'_>, finding: Finding) {
        self.step.findings.push(finding);
        if self.step.findings.len() >= MOST_KEPT {
            early(&mut self.step);
        }
    }
}
