//! References to every inner chunk of a source, as kerchunk and fsspec have them: one JSON object in
//! which each file of the unsharded arrays is a text, or a range of a shard.
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
//! What is missing reads as fill values. So a chunk that cannot be read is an empty file, which
//! readers cannot decode and refuse.

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

/// Text of a shard that is kept in memory until it is written; more goes to a temporary file.
const KEPT_BYTES: usize = 4 << 20;

/// What references are like.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the source is for those who use the references: a path or a URL.
    pub base: String,
    /// What all keys begin with; empty, or a path.
    pub prefix: String,
    /// Documents of Zarr v2 rather than v3.
    pub zarr2: bool,
    /// Version of the form: 1, or 0 for those who know no other.
    pub version: Version,
    /// Chunks of so many bytes are put into the references themselves.
    pub inline: u64,
    /// Goes on after what cannot be referred to.
    pub skips: bool,
}

/// Version of kerchunk's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One object.
    Zero,
    /// With a template for what all paths begin with.
    One,
}

/// Something that cannot be referred to.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A node cannot be used, or has no form in the format asked for.
    #[error("{}: {why}", shown(.directory))]
    Node {
        /// Its directory, from the source's root.
        directory: PathBuf,
        /// Why.
        why: String,
    },
    /// Chunks cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A chunk is in no file as it is.
    #[error(
        "shard {}, chunk {key}: the shard is compressed as a whole, so no range of it is the chunk; \
         the chunk has {}, more than may be put into the references",
        shown(.shard), count(.nbytes, "byte")
    )]
    NotInFile {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// The chunk's key.
        key: String,
        /// Its length.
        nbytes: u64,
    },
    /// Nothing that is left out. The array has no reference for each chunk that does not exist, so
    /// that its fill value in Zarr v2 cannot be the missing value.
    #[error(
        "{}: in Zarr v2 its fill value is not what it is in Zarr v3, the missing value: readers of CF \
         conventions, xarray and netCDF among them, see other values",
        shown(.0)
    )]
    Misread(PathBuf),
}

/// Why references cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RefsError {
    /// They cannot be written where they are to go.
    #[error("{0}")]
    Write(#[source] io::Error),
    /// They cannot be kept until they are.
    #[error("a temporary file: {0}")]
    Temporary(#[source] io::Error),
    /// A directory of shards cannot be read: nobody knows which chunks there are.
    #[error(transparent)]
    List(#[from] StoreError),
    /// JSON has no such texts.
    #[error("{}: its name is not UTF-8, which references must be", shown(.0))]
    NotText(PathBuf),
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Arrays.
    pub arrays: u64,
    /// Chunks, those that were put in among them.
    pub chunks: u64,
    /// What could not be referred to.
    pub problems: u64,
}

/// What is worked on, one after the other.
enum Thing<'a> {
    /// Documents.
    Text(&'a [u8]),
    /// A shard of an array.
    Shard(&'a ArrayRefs<'a>, Coords),
}

/// Writes references to `out`, tells what cannot be referred to (no more than a hundred of a shard), and
/// how many chunks were done. The source should be one whose last chunks are filled up. After the first
/// problem nothing more is written unless [`Config::skips`]: what is there then is no valid JSON.
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

/// All nodes' documents and shards.
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
            // Somebody else tells why.
            Err(Ended::Stopped) => break,
            Err(Ended::Failed(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Why a listing of shards ended.
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
