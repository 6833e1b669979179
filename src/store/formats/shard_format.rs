//! What a format of shards is: the trait that each implements, and what its methods take and
//! return.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::length::Length;
use crate::format::chunk_error::Refusal;
use crate::format::index::ByteRange;
use crate::format::journal::ShardRecord;
use crate::format::plan::{Blob, Facts, Plan, PlanError, Policy};
use crate::format::sharding::{Location, ShardedArray};
use crate::stats::Stats;
use crate::store::content::Content;
use crate::store::error::{Damage, StoreError};
use crate::store::loaded::{LoadedShard, Ready};
use crate::store::storage::{Expected, Stat, Storage, StorageFile};

/// Format in which the shards of an array are stored: how its files are named, where their chunks
/// are, and how they change.
///
/// A shard is a file of the source, and holds the chunks of one cell of the shard grid. Paths are
/// relative to the array's directory.
pub trait ShardFormat: Debug + Send + Sync {
    /// Returns the name of the format. No two have the same: an array whose format has another name
    /// than before is another array.
    fn name(&self) -> &'static str;

    /// Returns the path of a shard.
    fn shard_name(&self, layout: &ShardedArray, shard: &[u64]) -> PathBuf;

    /// Returns whether a journal or a note of locks beside such shards may name this file, in the
    /// spelling of [`Self::shard_name`]. The shard may lie beyond the grid: the array may have been
    /// longer when the name was written. `layout` is `None` if there is no metadata of an array.
    fn is_shard_name(&self, layout: Option<&ShardedArray>, name: &str) -> bool;

    /// Returns whether a view hides this name of the array's directory: it is that of a file of
    /// shards, or has nothing to do with the array. A view shows chunks in its place.
    fn hides(&self, _name: &OsStr) -> bool {
        false
    }

    /// Returns whether each shard is a file named by its key, in directories for keys with slashes
    /// in them; a key without a file is an empty shard. Then every chunk may be absent.
    fn has_keys(&self) -> bool {
        false
    }

    /// Returns whether an index is stored in each shard.
    fn has_index(&self) -> bool {
        false
    }

    /// Returns whether each file is one chunk, byte for byte.
    fn is_bare(&self) -> bool {
        false
    }

    /// Returns whether the array is one file, in a directory that may have nothing else to do with
    /// the array. Such files share the directory's journal.
    fn is_one_file(&self) -> bool {
        false
    }

    /// Returns the directory of the shards, if they are numbered files, whose names views do not
    /// show. All shards up to the array's length exist; so its chunks are removed from the end
    /// backwards.
    fn numbered_in(&self) -> Option<&Path> {
        None
    }

    /// Returns whether shards are numbered files.
    fn is_numbered(&self) -> bool {
        self.numbered_in().is_some()
    }

    /// Returns the number in the name of a file in the directory of numbered shards, from 0. `None`
    /// if it is no such name.
    fn number_of(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Returns whether chunks are Blosc buffers, whatever the codecs of the array.
    fn holds_blosc(&self) -> bool {
        false
    }

    /// Returns whether chunks can be committed. A format whose arrays can implements [`Self::accept`].
    fn is_writable(&self, _layout: &ShardedArray) -> bool {
        false
    }

    /// Returns whether the last chunk of the array can be removed.
    fn can_shrink(&self) -> bool {
        true
    }

    /// Returns the part of a shard with these chunks along its axes that [`Self::read`] needs, if it
    /// is known before the shard's length is.
    fn expected(&self, layout: &ShardedArray, chunks_per_shard: &[u64]) -> Option<Expected> {
        let _ = (layout, chunks_per_shard);
        None
    }

    /// Reads where the chunks of a shard are.
    ///
    /// # Errors
    /// The file cannot be read. What is wrong with its contents is returned as [`Damage`].
    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>>;

    /// Returns what the file at `path`, which is a shard of `nbytes` bytes and not damaged, holds
    /// besides chunks and an index.
    fn framing(&self, _storage: &dyn Storage, _path: &Path, _nbytes: u64) -> io::Result<Framing> {
        Ok(Framing::default())
    }

    /// Returns the length of an array that records it in a document of its own, in `directory`.
    /// `None` if it does not: then any shard of the grid may exist. [`Self::check`] of a format that
    /// records it returns the decoded length of each chunk.
    fn length(
        &self,
        _storage: &dyn Storage,
        _directory: &Path,
    ) -> Result<Option<Length>, StoreError> {
        Ok(None)
    }

    /// Checks that some bytes can be a chunk, as far as they show by themselves. Returns their
    /// decoded length in bytes if they hold it, or the reason why they cannot be a chunk.
    fn check(&self, _content: &Content) -> io::Result<Result<Option<u32>, Refusal>> {
        Ok(Ok(None))
    }

    /// Returns whether some bytes are a whole shard, with as many chunks as `shard` has, as far as they show that
    /// by themselves.
    fn is_shard(
        &self,
        _layout: &ShardedArray,
        _shard: &[u64],
        _content: &Content,
    ) -> io::Result<bool> {
        Ok(false)
    }

    /// Examines changes to a shard, and returns those that it refuses and how to plan the others.
    fn accept<'a>(
        &self,
        shard: &ChangedShard<'a>,
        _changes: Vec<Change<'a>>,
    ) -> Result<Accepted<'a>, StoreError> {
        Err(StoreError::ReadOnly { array: shard.path.to_owned() })
    }

    /// Returns the range of what takes the place of an index for recovery: what a commit in place
    /// changes last, and what distinguishes a shard from any other file. `None` if a shard of
    /// `nbytes` bytes with that name is never changed in place.
    fn index_range(
        &self,
        layout: Option<&ShardedArray>,
        name: &str,
        nbytes: u64,
    ) -> Option<ByteRange> {
        let _ = (layout, name, nbytes);
        None
    }

    /// Returns whether `bytes`, from `range` in a shard of `nbytes` bytes with that name, are such
    /// an index.
    fn is_index(
        &self,
        layout: Option<&ShardedArray>,
        name: &str,
        nbytes: u64,
        range: ByteRange,
        bytes: &[u8],
    ) -> bool {
        let _ = (layout, name, nbytes, range, bytes);
        false
    }
}

/// Shard to be read.
pub struct Reading<'a> {
    /// Its path, relative to the source's root.
    pub path: &'a Path,
    /// Its file.
    pub file: &'a dyn StorageFile,
    /// The attributes of the file.
    pub stat: &'a Stat,
    /// Layout of its array.
    pub layout: &'a ShardedArray,
    /// Chunks in it, along each of its axes.
    pub chunks_per_shard: &'a [u64],
    /// Record of a commit to it that another process makes, or that was interrupted.
    pub pending: Option<&'a ShardRecord>,
    /// `true` if a last chunk that is shorter than the others is padded.
    pub pads_end: bool,
    /// Length of the longest shard that is decoded as a whole, in bytes, both encoded and decoded.
    pub decode_limit: u64,
    /// Counters of what is read.
    pub stats: &'a Stats,
}

/// What a file holds besides chunks and an index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Framing {
    /// Bytes before the first chunk.
    pub head: u64,
    /// Bytes at the end, behind the last chunk.
    pub tail: u64,
    /// Bytes that follow each chunk.
    pub after_chunk: u64,
}

/// Function that returns the shard of the next level inside a shard of a level that a chunk lies in.
/// `None` if it is empty.
pub(super) type Inner<'a> =
    dyn Fn(&LoadedShard, &Location, usize) -> Result<Option<Arc<LoadedShard>>, StoreError> + 'a;

/// Shard to be changed.
#[derive(Clone, Copy)]
pub struct ChangedShard<'a> {
    /// Its path, relative to the source's root.
    pub path: &'a Path,
    /// Its coordinates in the shard grid.
    pub coords: &'a [u64],
    /// Layout of its array.
    pub layout: &'a ShardedArray,
    /// Its present state. `None` if there is no such shard.
    pub old: Option<(&'a LoadedShard, &'a dyn StorageFile)>,
    /// Loads shards nested in it.
    pub inner: &'a Inner<'a>,
}

impl ChangedShard<'_> {
    /// Turns an error of the planner into that of a commit.
    pub fn no_plan(&self, error: PlanError) -> StoreError {
        StoreError::Plan { shard: self.path.to_owned(), error }
    }
}

/// Change of a chunk of a shard.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    /// Number of the chunk in the commit.
    pub at: usize,
    /// Location of the chunk.
    pub location: &'a Location,
    /// New content; `None` for a removal.
    pub content: Option<&'a Content>,
}

/// Function that plans changes, by the policy and the facts given.
pub(crate) type Planner<'a> = dyn Fn(Policy, Facts) -> Result<Plan, PlanError> + 'a;

/// Result of examining changes to a shard.
pub struct Accepted<'a> {
    /// Changes that cannot be made, by the chunk's number in the commit, with the reason.
    pub refused: Vec<(usize, Refusal)>,
    /// Plans the others.
    pub plan: Box<Planner<'a>>,
}

impl<'a> Accepted<'a> {
    /// Returns the changes to a file of one chunk, of which the last one counts: `file` makes the
    /// new file of the chunk's number in the commit and its content.
    pub fn of_single(changes: &[Change<'a>], file: impl Fn(usize, &Content) -> Blob) -> Self {
        let new = changes.last().and_then(|change| Some(file(change.at, change.content?)));
        let plan = move |_, _| Ok(new.clone().map_or(Plan::Remove, Plan::Rewrite));
        Self { refused: Vec::new(), plan: Box::new(plan) }
    }
}
