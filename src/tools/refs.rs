//! References to every inner chunk of a source, in the format of kerchunk and fsspec: a JSON object
//! in which each file of the unsharded arrays is a text or a range of a shard.
//!
//! ```text
//! {"version": 1, "templates": {"u": "s3://bucket/x.zarr"}, "refs": {
//! "zarr.json": "{...}",                      a document, of the unsharded twin
//! "c/0/1": ["{{u}}/c/0/0", 4096, 517],       a chunk: file, offset, length
//! "c/0/2": "base64:...",                     a chunk that is in no file as it is, or is small
//! "c/0/3": ""                                a chunk that cannot be read
//! }}
//! ```
//!
//! A missing reference reads as fill values. A chunk that cannot be read is therefore an empty
//! file, which readers fail to decode.

mod absent;
mod chunks;
mod config;
mod error;
mod names;
mod nodes;

use std::io::{Read, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

use self::chunks::{ArrayRefs, Part};
pub(crate) use self::config::{Config, Version};
pub(crate) use self::error::{Problem, RefsError};
use self::names::Urls;
use self::nodes::{Prepared, prepare};
use super::parallel::{self, Give};
use crate::format::Coords;
use crate::source::{Node, Source};
use crate::store::{ShardStore, StoreError};

/// Length in bytes up to which the text of a shard is kept in memory; longer text goes to a
/// temporary file.
const KEPT_BYTES: usize = 4 << 20;

/// Counts of what was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Number of arrays.
    pub arrays: u64,
    /// Number of chunks, including embedded ones.
    pub chunks: u64,
    /// Number of problems.
    pub problems: u64,
}

/// A unit of work; units are written one after the other.
enum Thing<'a> {
    /// Text of a node's documents.
    Text(&'a [u8]),
    /// A shard of an array, by its coordinates.
    Shard(&'a ArrayRefs<'a>, Coords),
}

/// Writes references to `out`. Calls `problem` for what cannot be referenced (at most a hundred
/// times for each shard) and `done` with the number of chunks written. The source should be one
/// whose last chunks are padded.
///
/// After the first problem nothing more is written unless [`Config::skips`] is set; the output is
/// then not valid JSON.
pub(crate) fn write(
    source: &Source,
    config: &Config,
    out: &mut dyn Write,
    problem: &mut dyn FnMut(&Problem),
    done: &mut dyn FnMut(u64),
) -> Result<Summary, RefsError> {
    let store = &source.store;
    let found: Vec<Node> = source.nodes().collect();
    let urls = Urls::new(source, &found, config)?;
    let (decided, misread) = absent::decide(&found, store, config)?;
    let (nodes, left_out) = prepare(source, &found, config, &urls, &decided)?;
    misread.iter().for_each(&mut *problem);
    left_out.iter().for_each(&mut *problem);
    let is_array = |node: &&Prepared<'_>| node.array.is_some();
    let mut summary = Summary {
        arrays: nodes.iter().filter(is_array).count() as u64,
        chunks: 0,
        problems: left_out.len() as u64,
    };
    let goes_on = |problems: u64| config.skips || problems == 0;
    if goes_on(summary.problems) {
        out.write_all(&urls.head()).map_err(RefsError::Write)?;
    }
    let take = |part: Part| {
        part.problems.first.iter().for_each(&mut *problem);
        summary.problems += part.problems.count;
        summary.chunks += part.chunks;
        done(part.chunks);
        if goes_on(summary.problems) { copy(part.text, out) } else { Ok(()) }
    };
    let threads = parallel::threads();
    parallel::in_order(threads, |give| find(store, &nodes, give), |thing| work(&thing), take)?;
    if goes_on(summary.problems) {
        out.write_all(urls.tail()).map_err(RefsError::Write)?;
    }
    out.flush().map_err(RefsError::Write)?;
    Ok(summary)
}

/// Queues the documents and shards of all nodes.
fn find<'a>(
    store: &ShardStore,
    nodes: &'a [Prepared<'a>],
    give: &mut Give<'_, Thing<'a>>,
) -> Result<(), RefsError> {
    for node in nodes {
        if give(Thing::Text(&node.text)).is_err() {
            break;
        }
        let Some(refs) = &node.array else { continue };
        let mut each = |coords: &[u64]| {
            let given = give(Thing::Shard(refs, coords.to_vec()));
            given.map_err(|_| Ended::Stopped)
        };
        let found = match &refs.absent {
            None => store.each_shard(refs.array, &mut each),
            Some(_) => refs.each_shard_of_grid(&mut each),
        };
        match found {
            Ok(()) => (),
            // The error is returned by another thread.
            Err(Ended::Stopped) => break,
            Err(Ended::Failed(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reason why a listing of shards ended.
enum Ended {
    Stopped,
    Failed(StoreError),
}

impl From<StoreError> for Ended {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

fn work(thing: &Thing<'_>) -> Result<Part, RefsError> {
    let mut part = Part::new(KEPT_BYTES);
    match thing {
        Thing::Text(text) => part.text.write_all(text).map_err(RefsError::Temporary)?,
        Thing::Shard(refs, coords) => refs.shard(coords, &mut part)?,
    }
    Ok(part)
}

fn copy(mut text: SpooledTempFile, out: &mut dyn Write) -> Result<(), RefsError> {
    let mut buffer = vec![0; 64 << 10];
    text.seek(SeekFrom::Start(0)).map_err(RefsError::Temporary)?;
    loop {
        let read = text.read(&mut buffer).map_err(RefsError::Temporary)?;
        if read == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..read]).map_err(RefsError::Write)?;
    }
}

#[cfg(test)]
mod tests;
