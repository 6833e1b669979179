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
mod nodes;

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use tempfile::SpooledTempFile;

use self::chunks::{ArrayRefs, Part};
use self::nodes::{Prepared, Urls, prepare};
use super::parallel::{self, Give};
use crate::format::Coords;
use crate::source::{Node, Source};
use crate::store::{ShardStore, StoreError};
use crate::text::{count, shown};

/// Length in bytes up to which the text of a shard is kept in memory; longer text goes to a
/// temporary file.
const KEPT_BYTES: usize = 4 << 20;

/// Options for writing references.
#[derive(Debug, Clone)]
pub struct Config {
    /// Path or URL of the source for readers of the references.
    pub base: String,
    /// Prefix of all keys: empty, or a path.
    pub prefix: String,
    /// `true` to write documents of Zarr v2 instead of v3.
    pub zarr2: bool,
    /// Version of the format: 1, or 0 for readers that support no other.
    pub version: Version,
    /// Maximum length in bytes of a chunk that is embedded in the references.
    pub inline: u64,
    /// `true` to continue after a chunk or node that cannot be referenced.
    pub skips: bool,
}

/// Version of the kerchunk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 0: a single object of references.
    Zero,
    /// Version 1: the references with a template for the common prefix of all paths.
    One,
}

/// A chunk or node that cannot be referenced.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The node cannot be used, or cannot be expressed in the requested format.
    #[error("{}: {why}", shown(.directory))]
    Node {
        /// Directory of the node, relative to the source's root.
        directory: PathBuf,
        /// Reason.
        why: String,
    },
    /// Chunks cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chunk is not stored in any file as it is.
    #[error(
        "shard {}, chunk {key}: the shard is compressed as a whole, so no range of it is the chunk; \
         the chunk has {}, more than may be put into the references",
        shown(.shard), count(.nbytes, "byte")
    )]
    NotInFile {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Key of the chunk.
        key: String,
        /// Length of the chunk, in bytes.
        nbytes: u64,
    },
    /// Nothing is left out, but missing values are misread: the array does not have a reference for
    /// each absent chunk, so its fill value in Zarr v2 cannot be the missing value.
    #[error(
        "{}: in Zarr v2 its fill value is not what it is in Zarr v3, the missing value: readers of CF \
         conventions, xarray and netCDF among them, see other values",
        shown(.0)
    )]
    Misread(PathBuf),
}

/// Error of writing references.
#[derive(Debug, thiserror::Error)]
pub enum RefsError {
    /// The output cannot be written.
    #[error("{0}")]
    Write(#[source] io::Error),
    /// A temporary file cannot be written or read.
    #[error("a temporary file: {0}")]
    Temporary(#[source] io::Error),
    /// A directory of shards cannot be read, so the existing chunks are unknown.
    #[error(transparent)]
    List(#[from] StoreError),
    /// A name is not UTF-8, which JSON cannot represent.
    #[error("{}: its name is not UTF-8, which references must be", shown(.0))]
    NotText(PathBuf),
}

/// Counts of what was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
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
pub fn write(
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
