//! Copying a whole source with its arrays resharded or unsharded: unpack, pack, and repack to
//! another place.
//!
//! ```text
//! plan     the document of each array in the copy; nothing is written if one cannot be made
//! copy     chunks of all arrays                          (transfer)
//!          files that are neither chunks nor metadata
//! finish   documents: arrays, then groups, the root last
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::destination::{Destination, DestinationError};
use super::digest::ContentDigest;
use super::other_file::{OtherFileError, copy_file, copy_link};
use super::shard_file::Packing;
use super::strays::strays;
use super::transfer::{Report, Transfer, TransferError};
use crate::format::chain::SHARDING;
use crate::format::codec::parse_chain;
use crate::format::error::MetadataError;
use crate::format::index::IndexLocation;
use crate::format::reshard::{Resharding, reshard, shard, shard_shape};
use crate::format::shard_rule::ShardRule;
use crate::format::sharding::{ShardedArray, parse_document};
use crate::format::whole_shard::trailing_checksums;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZMETADATA};
use crate::source::CompactJson;
use crate::source::apart::{group_documents, node_path};
use crate::source::{Array, ArrayFormat, BadNode, Linked, Node, Source, is_document};
use crate::source::{METADATA_FILE, NODE_DOCUMENTS, NodeError};
use crate::store::SourceArray;
use crate::store::formats::superchunks::{ROOT_DIRECTORIES, SIZES};
use crate::store::formats::{self, ShardFormat, indexed};
use crate::store::journal::pending;
use crate::store::storage::{DirItem, FileKind, kind_of};
use crate::store::work::WORK_DIRECTORY;
use crate::text::{count, shown};

/// Form of the arrays in a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One file for each chunk.
    Unsharded,
    /// Shards.
    Sharded(Shards),
}

/// Requested form of shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shards {
    /// Size of the shards; `None` keeps the present shape.
    pub rule: Option<ShardRule>,
    /// Location of the shard index; `None` keeps the present one, or means the end if there is
    /// none.
    pub index_location: Option<IndexLocation>,
    /// Order and deduplication of chunks.
    pub packing: Packing,
    /// `true` if present shards, including nested ones, are ignored and only their chunks are
    /// taken.
    pub anew: bool,
}

/// Error of planning or making a copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    /// The metadata of a node cannot be used.
    #[error("{}: {error}", shown(.path))]
    Bad {
        /// The node's directory, relative to the source's root.
        path: PathBuf,
        /// The error.
        error: String,
    },
    /// The array cannot have the requested form.
    #[error("{}: {error}", shown(.path))]
    Metadata {
        /// The array's directory, relative to the source's root.
        path: PathBuf,
        /// The error.
        #[source]
        error: MetadataError,
    },
    /// The array cannot be expressed in Zarr v3.
    #[error("{}: its data type or codecs have no form in Zarr v3", shown(.0))]
    NoForm(PathBuf),
    /// Shards that are compressed as a whole are read-only.
    #[error(
        "{}: its shards are compressed as a whole, such are not written; unpack it, then pack it",
        shown(.0)
    )]
    Compressed(PathBuf),
    /// The array has no shards, and no shard shape was given.
    #[error("{}: it has no shards; `shardfs pack` makes some", shown(.0))]
    Unsharded(PathBuf),
    /// A commit is unfinished.
    #[error(
        "{}: another process is writing to it, or was stopped: `shardfs recover` finishes what was \
         interrupted", shown(.0)
    )]
    Pending(PathBuf),
    /// No array has as many dimensions as the shard shape.
    #[error("no array has {}, as the shard shape has", count(.0, "dimension"))]
    NoSuchRank(usize),
    /// An array could not be copied.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The source could not be read.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Path relative to the source's root.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

impl CopyError {
    /// Returns whether its path is that of the source.
    pub(crate) fn is_about_source(&self) -> bool {
        match self {
            Self::Bad { path, .. } | Self::Metadata { path, .. } | Self::Io { path, .. } => {
                path.as_os_str().is_empty()
            }
            Self::NoForm(path) | Self::Compressed(path) => path.as_os_str().is_empty(),
            Self::Unsharded(path) | Self::Pending(path) => path.as_os_str().is_empty(),
            Self::NoSuchRank(_) | Self::Transfer(_) => false,
        }
    }
}

impl From<DestinationError> for CopyError {
    fn from(error: DestinationError) -> Self {
        Self::Transfer(error.into())
    }
}

/// An array as it will be in the copy.
pub(crate) struct Planned<'a> {
    /// The array in the source.
    pub array: &'a Array,
    /// Its directory in the copy, relative to the copy's root.
    pub path: PathBuf,
    /// Its document in the copy.
    pub document: CompactJson,
    /// Layout of its chunks in the copy.
    layout: ShardedArray,
    /// Format of its shards in the copy.
    format: Arc<dyn ShardFormat>,
    /// Packing of its shards.
    packing: Packing,
}

/// Result of copying an array.
#[derive(Debug, Clone)]
pub(crate) struct Copied {
    /// Directory in the copy, relative to the copy's root.
    pub path: PathBuf,
    /// Digest of the chunks.
    pub digest: ContentDigest,
    /// Number of files written.
    pub written: u64,
    /// Number of files that were there already and correct.
    pub kept: u64,
    /// Descriptions of the defects of chunks and shards in the source that could not be read.
    pub damaged: BTreeSet<String>,
    /// Number of files outside the source's shard grid, which are not copied.
    pub outside: u64,
}

/// Result of copying what is neither chunks nor metadata.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Number of files and symbolic links that were copied.
    pub copied: u64,
    /// Number of empty directories that were made.
    pub directories: u64,
    /// Paths of pipes, sockets and devices, which are not copied, and of symbolic links where there can be none.
    pub left_out: Vec<(PathBuf, FileKind)>,
}

/// Contents of a directory that are neither chunks nor metadata, by their paths.
#[derive(Default)]
struct OthersIn {
    files: Vec<PathBuf>,
    links: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    special: Vec<(PathBuf, FileKind)>,
    /// `true` if there is nothing at all.
    is_empty: bool,
}

/// Plan of a copy.
pub(crate) struct Plan<'a> {
    source: &'a Source,
    /// Arrays in path order.
    pub arrays: Vec<Planned<'a>>,
    /// Arrays that are copied without resharding because their rank differs from that of the shard
    /// shape.
    pub other_rank: Vec<PathBuf>,
    /// Nodes that are left out because their metadata cannot be used, each with the reason.
    pub left_out: Vec<BadNode>,
    /// Symbolic links that consolidated metadata lists and that lead to no node of the copy. They
    /// are not listed in the copy.
    pub unlisted: BTreeSet<PathBuf>,
    /// `true` if there can be symbolic links in the copy.
    has_links: bool,
    /// Documents of the groups, by directory.
    groups: BTreeMap<PathBuf, Value>,
    /// Indexes into `arrays`, by directory in the copy.
    by_path: HashMap<PathBuf, usize>,
}

impl<'a> Plan<'a> {
    /// Plans a copy of all `nodes` of the source, to where there can be symbolic links if `has_links` is set. A node
    /// that cannot be used is an error unless `leave_out` is set.
    pub(crate) fn new(
        source: &'a Source,
        nodes: &'a [Node],
        to: &Shape,
        (leave_out, has_links): (bool, bool),
    ) -> Result<Self, CopyError> {
        let (arrays, other_rank, left_out) = (Vec::new(), Vec::new(), Vec::new());
        let (unlisted, groups, by_path) = (BTreeSet::new(), BTreeMap::new(), HashMap::new());
        let mut plan =
            Self { source, arrays, other_rank, left_out, unlisted, has_links, groups, by_path };
        let mut groups = Vec::new();
        for node in nodes {
            match node {
                Node::Array(array) => plan.add(array, to)?,
                Node::Group(path) => groups.push(path.as_path()),
                Node::Bad(node) if leave_out => plan.left_out.push(node.clone()),
                Node::Bad(BadNode { path, error, .. }) => {
                    let (path, error) = (path.clone(), error.to_string());
                    return Err(CopyError::Bad { path, error });
                }
                Node::Journal(_) => (),
            }
        }
        if let Shape::Sharded(Shards { rule: Some(rule), .. }) = to
            && plan.arrays.len() == plan.other_rank.len()
            && let Some(rank) = rule.rank()
        {
            return Err(CopyError::NoSuchRank(rank));
        }
        plan.by_path =
            plan.arrays.iter().enumerate().map(|(at, array)| (array.path.clone(), at)).collect();
        // In the draft of 2022, an array and a group may have the same name.
        groups.retain(|path| plan.at(path).is_none());
        for path in &groups {
            let (path, document) = plan.group(path, &groups)?;
            plan.groups.insert(path, document);
        }
        Ok(plan)
    }

    /// Returns a hash that identifies the files the plan makes. Nodes of other names, or arrays of
    /// another layout, would leave files of one copy in the other.
    pub(crate) fn identity(&self) -> String {
        let mut hash = blake3::Hasher::new();
        let mut add = |kind: &[u8], path: &Path, text: &str| {
            for part in [kind, path.as_os_str().as_encoded_bytes(), text.as_bytes()] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        };
        for array in &self.arrays {
            let mut document = array.document.value();
            for name in ["attributes", "dimension_names"] {
                document.as_object_mut().and_then(|members| members.remove(name));
            }
            add(b"array", &array.path, &document.to_string());
        }
        self.groups.keys().for_each(|path| add(b"group", path, ""));
        hash.finalize().to_hex().to_string()
    }

    fn add(&mut self, array: &'a Array, to: &Shape) -> Result<(), CopyError> {
        let path = array.source.path.clone();
        let record = pending(&*self.source.storage, &path);
        if record.map_err(TransferError::from)?.is_some() {
            return Err(CopyError::Pending(path));
        }
        let planned = match to {
            Shape::Unsharded => unsharded(array),
            Shape::Sharded(shards) if has_rank(array, shards) => {
                let is_kept = array.sharded.is_some() && !shards.anew;
                match is_one_chunk(array, shards) && !is_kept {
                    true => unsharded(array),
                    false => sharded(array, shards),
                }
            }
            Shape::Sharded(_) => {
                self.other_rank.push(path);
                as_it_is(array)
            }
        };
        self.arrays.push(planned?);
        Ok(())
    }

    /// Returns a group's path and document, with the consolidated metadata of arrays below it
    /// updated. It does not have what is left out: readers would see an array of fill values.
    fn group(&mut self, path: &Path, groups: &[&Path]) -> Result<(PathBuf, Value), CopyError> {
        let bad =
            |error: NodeError| CopyError::Bad { path: path.to_owned(), error: error.to_string() };
        let mut document = self.source.group(path).map_err(bad)?;
        let stored = self.source.zarr2_documents(path).map_err(bad)?.unwrap_or_default();
        if let Some((_, stored)) = stored.iter().find(|(name, _)| *name == ZMETADATA) {
            document["consolidated_metadata"] = self.consolidated(path, stored, groups)?;
        }
        let nodes = document.get_mut("consolidated_metadata").and_then(|it| it.get_mut("metadata"));
        if let Some(Value::Object(nodes)) = nodes {
            nodes.retain(|below, node| {
                let below = path.join(below);
                if let Some(array) = self.at(&below) {
                    *node = array.document.value();
                    return true;
                }
                if groups.contains(&below.as_path()) {
                    return true;
                }
                if self.lacks(&below) {
                    return false;
                }
                let is_listed = self.is_linked(&below, groups, node);
                if !is_listed {
                    self.unlisted.insert(below);
                }
                is_listed
            });
        }
        Ok((path.to_owned(), document))
    }

    /// Gives a node that consolidated metadata lists at a symbolic link the document of the array
    /// that the link leads to. Returns `false` if the link, which is copied as it is, leads to no
    /// node of the copy.
    fn is_linked(&self, path: &Path, groups: &[&Path], node: &mut Value) -> bool {
        match self.source.follow(path) {
            Linked::No => true,
            _ if !self.has_links => false,
            Linked::To { path: target, is_absolute: false } => match self.at(&target) {
                Some(array) => {
                    *node = array.document.value();
                    true
                }
                None => groups.contains(&target.as_path()),
            },
            Linked::To { .. } | Linked::Away => false,
        }
    }

    /// Returns whether what is no node of the copy is left out, or was below a node that is.
    fn lacks(&self, path: &Path) -> bool {
        self.left_out.iter().any(|bad| path.starts_with(&bad.directory))
    }

    /// Returns the array at a directory of the copy; `None` if there is none.
    fn at(&self, path: &Path) -> Option<&Planned<'a>> {
        self.by_path.get(path).map(|at| &self.arrays[*at])
    }

    /// Returns Zarr v3 consolidated metadata for a group that had it in Zarr v2, as `stored`.
    fn consolidated(
        &self,
        group: &Path,
        stored: &Value,
        groups: &[&Path],
    ) -> Result<Value, CopyError> {
        let mut nodes = BTreeMap::new();
        let mut add = |path: &Path, document: &Value| {
            if let Some(below) = path.strip_prefix(group).ok().and_then(Path::to_str)
                && !below.is_empty()
            {
                nodes.insert(below.to_owned(), document.clone());
            }
        };
        self.arrays.iter().for_each(|array| add(&array.path, &array.document.value()));
        for path in groups.iter().filter(|path| **path != group) {
            let bad = |error: NodeError| {
                let (path, error) = (path.to_path_buf(), error.to_string());
                CopyError::Bad { path, error }
            };
            add(path, &self.source.group(path).map_err(bad)?);
        }
        // Those at symbolic links get the documents of their targets.
        let listed = stored.get("metadata").and_then(Value::as_object);
        for key in listed.into_iter().flat_map(serde_json::Map::keys) {
            let path = group.join(Path::new(key).parent().unwrap_or(Path::new("")));
            if key.ends_with(ZARRAY) && self.source.follow(&path) != Linked::No {
                add(&path, &Value::Null);
            }
        }
        Ok(json!({"kind": "inline", "must_understand": false, "metadata": nodes}))
    }

    /// Copies the chunks of an array.
    pub(crate) fn copy(
        &self,
        array: &Planned<'_>,
        destination: &Destination,
        threads: NonZeroUsize,
        report: &Report<'_>,
    ) -> Result<Copied, CopyError> {
        let (path, packing) = (array.path.clone(), array.packing);
        let (layout, format) = (array.layout.clone(), Arc::clone(&array.format));
        let copy = SourceArray { id: 0, path: path.clone(), layout, format };
        let (source, array) = (self.source, array.array);
        if path != array.source.path {
            destination.make_like(&path, &array.source.path)?;
        }
        let transfer = Transfer::new(source, array, destination, copy, packing);
        let done = transfer.run(threads, report)?;
        let (digest, written, kept, damaged) = (done.digest, done.written, done.kept, done.damaged);
        let outside = strays(source, array);
        Ok(Copied { path, digest, written, kept, damaged, outside })
    }

    /// Writes the documents, which completes the copy; everything else must have been written.
    pub(crate) fn finish(&self, destination: Destination) -> Result<(), CopyError> {
        // Nodes further down come first.
        for Planned { array, path, document, .. } in self.arrays.iter().rev() {
            let source = &array.source.path;
            // An array without a document is described in its directory, or in its file.
            let described = array.document.as_ref().map_or(source, |(path, _)| path);
            let mode = self.mode_of(source, [described.clone()]);
            destination.put_document(&path.join(METADATA_FILE), &document.value(), mode)?;
        }
        for (path, document) in self.groups.iter().rev() {
            let mode = self.mode_of(path, group_documents(path));
            destination.put_document(&path.join(METADATA_FILE), document, mode)?;
        }
        Ok(destination.finish()?)
    }

    /// Returns the permissions that all documents of a node give: those in its directory, and
    /// others.
    fn mode_of(&self, directory: &Path, others: impl IntoIterator<Item = PathBuf>) -> u32 {
        let names = NODE_DOCUMENTS.into_iter().chain([ZATTRS, ZMETADATA]);
        let documents = names.map(|name| directory.join(name)).chain(others);
        let modes = documents.filter_map(|path| Some(self.source.storage.stat(&path).ok()?.mode));
        modes.fold(0o666, |all, mode| all & mode)
    }

    /// Copies the files, symbolic links and empty directories that are neither chunks nor metadata,
    /// for a source whose arrays are directories. Returns once they are durable.
    pub(crate) fn copy_others(&self, destination: &Destination) -> Result<Others, CopyError> {
        let mut others = Others::default();
        if !self.arrays.iter().all(|array| array.array.has_own_directory()) {
            return Ok(others);
        }
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            // The chunks of a node that is left out are left out, too.
            let has_array = || self.arrays.iter().any(|array| array.path.starts_with(&directory));
            if self.left_out.iter().any(|bad| bad.directory == directory) && !has_array() {
                continue;
            }
            if self.is_of_blz(&directory) {
                continue;
            }
            let mut found = self.others_in(&directory)?;
            if found.is_empty {
                destination.make_like(&directory, &directory)?;
                others.directories += 1;
            }
            if !self.has_links {
                let links = found.links.drain(..).map(|path| (path, FileKind::Symlink));
                others.left_out.extend(links);
            }
            others.copied += (found.files.len() + found.links.len()) as u64;
            let from = &*self.source.storage;
            for path in found.files {
                copy_file(from, &path, destination).map_err(failed_at(&path))?;
            }
            for path in found.links {
                copy_link(from, &path, destination).map_err(failed_at(&path))?;
            }
            others.left_out.append(&mut found.special);
            directories.append(&mut found.directories);
        }
        if others.copied + others.directories > 0 {
            destination.sync()?;
        }
        Ok(others)
    }

    /// Returns whether a directory is that of an array or a table of BLZ or bcolz, or lies in one: what is in it
    /// describes the array.
    fn is_of_blz(&self, directory: &Path) -> bool {
        let is_array = |planned: &Planned<'_>| {
            planned.array.format == ArrayFormat::Blz
                && directory.starts_with(&planned.array.source.path)
        };
        let has = |name: &str| self.source.storage.stat(&directory.join(name)).is_ok();
        self.arrays.iter().any(is_array) || has(SIZES) || has(ROOT_DIRECTORIES)
    }

    /// Finds what is in a directory of the source and neither a chunk nor metadata.
    fn others_in(&self, directory: &Path) -> Result<OthersIn, CopyError> {
        let mut nodes = directory.ancestors();
        let array = nodes.find_map(|above| Some((above, self.at(above)?.array)));
        let hides = |path: &Path, kind| {
            let below =
                array.and_then(|(above, array)| Some((array, path.strip_prefix(above).ok()?)));
            below.is_some_and(|(array, path)| array.hides(path, kind))
        };
        let mut found = OthersIn { is_empty: true, ..OthersIn::default() };
        let mut failed = Ok(());
        let visit = &mut |item: DirItem<'_>| {
            found.is_empty = false;
            let path = directory.join(item.name);
            let is_own = item.name.to_str().is_some_and(is_document) || item.name == WORK_DIRECTORY;
            match kind_of(&*self.source.storage, directory, &item) {
                Ok(Some(kind)) if !is_own && !hides(&path, kind) => match kind {
                    FileKind::Directory => found.directories.push(path),
                    FileKind::File => found.files.push(path),
                    FileKind::Symlink => found.links.push(path),
                    kind => found.special.push((path, kind)),
                },
                Ok(_) => (),
                Err(error) => {
                    failed = Err(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        };
        let listed = self.source.storage.list(directory, 0, visit).and(failed);
        listed.map_err(|error| CopyError::Io { path: directory.to_owned(), error })?;
        // Directories of chunks are made for the chunks that are in them.
        found.is_empty &= !hides(directory, FileKind::File);
        Ok(found)
    }
}

/// Returns a function that turns the error of copying a file into one of copying the source.
fn failed_at(path: &Path) -> impl FnOnce(OtherFileError) -> CopyError + '_ {
    |error| match error {
        OtherFileError::Read(error) => CopyError::Io { path: path.to_owned(), error },
        OtherFileError::Write(error) => error.into(),
    }
}

fn has_rank(array: &Array, shards: &Shards) -> bool {
    shards.rule.as_ref().is_none_or(|rule| rule.fits(array.source.layout.rank()))
}

/// Returns whether shards of an array would have one chunk each, without being asked for in that shape.
fn is_one_chunk(array: &Array, shards: &Shards) -> bool {
    let is_of_one = |rule: &ShardRule| {
        !matches!(rule, ShardRule::Shape(_))
            && shape_by(rule, array) == array.source.layout.chunk_shape()
    };
    shards.rule.as_ref().is_some_and(is_of_one)
}

/// Plans an array with a file for each chunk.
fn unsharded(array: &Array) -> Result<Planned<'_>, CopyError> {
    let path = &array.source.path;
    let document = array.twin().ok_or_else(|| CopyError::NoForm(path.clone()))?;
    let layout = parse_chain(document.get("codecs"))
        .and_then(|chain| ShardedArray::unsharded(&document, chain));
    planned(array, document, layout, formats::unsharded(), Packing::default())
}

/// Plans an array with the requested shards.
fn sharded<'a>(array: &'a Array, shards: &Shards) -> Result<Planned<'a>, CopyError> {
    let path = || array.source.path.clone();
    let how = Resharding {
        shard_shape: shards.rule.as_ref().map(|rule| shape_by(rule, array)),
        index_location: shards.index_location,
    };
    let old = array.sharded.as_ref().filter(|_| !shards.anew).map(CompactJson::value);
    let document = match (&old, &array.twin(), &how.shard_shape) {
        (Some(sharded), ..) => reshard(sharded, &how),
        (None, Some(twin), Some(_)) => shard(twin, &how),
        (None, None, _) => return Err(CopyError::NoForm(path())),
        (None, Some(_), None) => return Err(CopyError::Unsharded(path())),
    };
    let document = document.map_err(|error| CopyError::Metadata { path: path(), error })?;
    let layout = parse_document(&document, None)
        .and_then(|layout| layout.ok_or(MetadataError::Missing(SHARDING)));
    if let Ok(layout) = &layout
        && layout.levels.iter().any(|level| trailing_checksums(&level.after).is_none())
    {
        return Err(CopyError::Compressed(path()));
    }
    planned(array, document, layout, indexed(), shards.packing)
}

/// Plans an array that keeps its form.
fn as_it_is(array: &Array) -> Result<Planned<'_>, CopyError> {
    if array.sharded.is_some() { sharded(array, &Shards::default()) } else { unsharded(array) }
}

fn planned(
    array: &Array,
    document: Value,
    layout: Result<ShardedArray, MetadataError>,
    format: Arc<dyn ShardFormat>,
    packing: Packing,
) -> Result<Planned<'_>, CopyError> {
    let path = node_path(array);
    match layout {
        Ok(layout) => Ok(Planned {
            array,
            path,
            document: CompactJson::new(&document),
            layout,
            format,
            packing,
        }),
        Err(error) => Err(CopyError::Metadata { path, error }),
    }
}

/// Returns the shape of an array's shards by a rule, in elements.
fn shape_by(rule: &ShardRule, array: &Array) -> Vec<u64> {
    shard_shape(rule, &array.source.layout, array.twin().as_ref())
}

#[cfg(test)]
mod tests;
