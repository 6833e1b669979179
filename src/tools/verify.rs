//! Verification of a source: everything that readers rely on and no other command checks.
//!
//! ```text
//! source -> names of its arrays' directories, shards            keys    (one thread)
//! shard  -> its index, overlaps, dead bytes                     shard   (all threads)
//! shard, some slots -> their entries, their bytes decoded       chunks  (all threads)
//! findings -> handed over in order, notes of a whole array at the end
//! ```
//!
//! A finding that is legal but worth reporting is a note; every other finding is a defect.

mod checks;
mod chunks;
mod consolidated;
mod finding;
mod keys;
mod older;
mod shard;
mod step;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

pub use self::checks::VerifyConfig;
use self::checks::{Checks, holds_blosc};
use self::chunks::ChunkCheck;
pub use self::finding::{Finding, Looks, What, Within};
use self::keys::{Key, each_key};
pub use self::older::{OlderChunks, check_older};
use self::step::{Checked, Early, Tally};
pub use self::step::{Counts, Step};
use super::parallel::{Give, Stopped, in_order, threads};
use super::parts::SharedShard;
use crate::format::error::MetadataError;
use crate::format::grid::ShardAxis;
use crate::source::{BadNode, Node, NodeError, Source};
use crate::store::journal::pending;

/// A unit of work.
enum Task {
    /// Check a shard as a whole.
    Shard(Arc<Checks>, Arc<SharedShard>),
    /// Check some slots of a shard.
    Chunks(Arc<Checks>, Arc<SharedShard>, Range<u64>),
    /// Report a finding of the finder.
    Found(Finding),
    /// Count an array, which begins.
    Array,
    /// Report the end of the array in a directory.
    End(PathBuf),
}

/// Verifies everything in a source. `take` receives the findings shard by shard, except that a
/// shard with very many findings hands them over early.
///
/// # Errors
/// Returns the first error of `take`, which ends the verification.
pub fn verify<E: Send>(
    source: &Source,
    config: VerifyConfig,
    take: impl FnMut(Step) -> Result<(), E> + Send,
) -> Result<Counts, E> {
    let state = Mutex::new(State { take, counts: Counts::default(), failed: None });
    let lock = || state.lock();
    let early = |step: &mut Step| lock().take_early(std::mem::take(step));
    let find = |give: &mut Give<'_, _>| {
        // Stopped by an error of `take`.
        let _ = source.nodes().try_for_each(|node| find(source, &node, config, give));
        Ok(())
    };
    let work = |task| Ok(work(source, config, &early, task));
    // Counts for the array in progress; arrays come one after the other.
    let mut tally = Tally::default();
    in_order(threads(), find, work, |mut checked: Checked| {
        tally.add(&checked.tally);
        if let Some(array) = checked.ended {
            let notes = std::mem::take(&mut tally).notes();
            checked.step.findings.extend(notes.map(|what| Finding::of_array(&array, what)));
        }
        lock().take(checked.step)
    })?;
    Ok(lock().counts)
}

/// Consumer of findings.
struct State<E, T> {
    take: T,
    counts: Counts,
    /// Error of `take` when called with early findings.
    failed: Option<E>,
}

impl<E, T: FnMut(Step) -> Result<(), E>> State<E, T> {
    fn take(&mut self, mut step: Step) -> Result<(), E> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let notes = step.findings.iter().filter(|finding| finding.is_note()).count() as u64;
        step.counts.notes += notes;
        step.counts.defects += step.findings.len() as u64 - notes;
        self.counts.add(&step.counts);
        (self.take)(step)
    }

    fn take_early(&mut self, step: Step) {
        if self.failed.is_none() {
            self.failed = self.take(step).err();
        }
    }
}

fn find(
    source: &Source,
    node: &Node,
    config: VerifyConfig,
    give: &mut Give<'_, Task>,
) -> Result<(), Stopped> {
    let directory = node.directory();
    journal(source, node, give)?;
    let array = match node {
        Node::Group(_) => return consolidated::check(source, directory, give),
        Node::Journal(_) => return Ok(()),
        Node::Bad(BadNode { path, error, .. }) => {
            let what = match &**error {
                NodeError::Grid(MetadataError::IrregularChunks) => What::NotRead(error.to_string()),
                NodeError::Unfinished(_) => What::UnfinishedCopy(error.to_string()),
                error => What::Metadata { document: path.clone(), error: error.to_string() },
            };
            return give(Task::Found(Finding::of_array(directory, what)));
        }
        Node::Array(array) => array,
    };
    give(Task::Array)?;
    let checks = Arc::new(Checks::new(Arc::clone(array)));
    if let (true, Err(error)) = (config.decode && !holds_blosc(array), &checks.pipeline) {
        let error = match array.twin {
            Some(_) => error.to_string(),
            None => "its data type or compressor has no name in Zarr v3".to_owned(),
        };
        give(Task::Found(Finding::of_array(directory, What::NotDecoded(error))))?;
    }
    let is_chunk_file = array.is_unsharded();
    let of_file = |path, what| {
        Task::Found(Finding { is_chunk_file, ..Finding::of_shard(directory, path, what) })
    };
    each_key(source, array, &mut |key| match key {
        Key::Shard(coords) => {
            let shard = SharedShard::new(array, coords);
            give(Task::Shard(Arc::clone(&checks), Arc::clone(&shard)))?;
            shard.parts().try_for_each(|slots| {
                give(Task::Chunks(Arc::clone(&checks), Arc::clone(&shard), slots))
            })
        }
        Key::Stray(path) => {
            let grid = array.source.layout.shard_grid.iter().map(ShardAxis::shards);
            give(of_file(path, What::Stray(grid.collect())))
        }
        Key::Beyond(path) => give(of_file(path, What::Beyond)),
        Key::Lock(path) => give(of_file(path, What::Lock)),
        Key::Temporary(path) => give(of_file(path, What::Temporary)),
        Key::Other(path) => give(of_file(path, What::NoKey)),
        Key::Bad(error) => give(Task::Found(Finding::of_error(directory, error, None))),
    })?;
    give(Task::End(directory.to_owned()))
}

/// Reports the journal record that an interrupted mount has left. The journal is in the node's
/// directory or, for an array that is a file, beside the file.
fn journal(source: &Source, node: &Node, give: &mut Give<'_, Task>) -> Result<(), Stopped> {
    if matches!(node, Node::Group(_) | Node::Bad(_)) {
        return Ok(());
    }
    let directory = node.directory();
    match pending(&*source.storage, directory) {
        Ok(None) => Ok(()),
        Ok(Some(record)) => {
            let what = What::Pending(record.shards.len() as u64);
            give(Task::Found(Finding::of_array(directory, what)))
        }
        Err(error) => give(Task::Found(Finding::of_error(directory, error, None))),
    }
}

fn work(source: &Source, config: VerifyConfig, early: &Early<'_>, task: Task) -> Checked {
    match task {
        Task::Found(finding) => {
            let step = Step { findings: vec![finding], counts: Counts::default() };
            Checked { step, ..Checked::default() }
        }
        Task::Array => {
            let counts = Counts { arrays: 1, ..Counts::default() };
            let step = Step { findings: Vec::new(), counts };
            Checked { step, ..Checked::default() }
        }
        Task::End(array) => Checked { ended: Some(array), ..Checked::default() },
        Task::Shard(checks, shard) => {
            of_files(&checks, early, |early| shard::check(source, config, early, &checks, &shard))
        }
        Task::Chunks(checks, shard, slots) => of_files(&checks, early, |early| {
            ChunkCheck::new(source, config, early, &checks, &shard).check(slots)
        }),
    }
}

/// Runs a check, whose findings are about shards, or about files of chunks if the array has none.
fn of_files(
    checks: &Checks,
    early: &Early<'_>,
    check: impl FnOnce(&Early<'_>) -> Checked,
) -> Checked {
    let mark = |step: &mut Step| {
        let is_chunk_file = checks.array.is_unsharded();
        step.findings.iter_mut().for_each(|finding| finding.is_chunk_file = is_chunk_file);
    };
    let mut checked = check(&|step| {
        mark(step);
        early(step);
    });
    mark(&mut checked.step);
    checked
}
