//! What a directory or a file of a source is, with all that a reader needs to use it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::array::{Array, ArrayFormat};
use super::compact_json::CompactJson;
use super::error::{NoTwin, NodeError};
use crate::format::foreign::ForeignArray;
use crate::format::sharding::ShardedArray;
use crate::memory::Taken;
use crate::store::SourceArray;
use crate::store::formats::ShardFormat;
use crate::store::storage::Stat;

/// What a directory or a file of a source is.
#[derive(Debug)]
pub struct Found {
    /// Its kind.
    pub kind: FoundKind,
    /// Attributes of what describes it: those of its document, or of the file that is an array.
    /// `None` if nothing does.
    pub stat: Option<Stat>,
    /// Path of what describes it, which errors are about.
    pub path: PathBuf,
    /// Names of the documents in its directory that describe it, or would: a view that has others
    /// shows none of them.
    pub documents: &'static [&'static str],
    /// Memory reserved for its document, and for the forms that are made of it. It must be kept until
    /// they are.
    pub room: Option<Taken<'static>>,
}

/// Kind of what was found.
#[derive(Debug)]
pub enum FoundKind {
    /// Not a node of its own.
    Nothing,
    /// A node that is shown as it is stored.
    AsStored,
    /// A hierarchy whose documents are in a directory of their own ([`super::apart`]).
    Apart,
    /// A group: its metadata in Zarr v3 form, with unsharded twins in the place of sharded arrays.
    /// `None` if the configuration does not ask for it.
    Group(Option<Value>),
    /// An array.
    Array(Box<FoundArray>),
}

/// Array that was found.
#[derive(Debug)]
pub struct FoundArray {
    /// Format of its metadata.
    pub kind: ArrayFormat,
    /// Locations of its chunks.
    pub layout: ShardedArray,
    /// Format of its shards.
    pub format: Arc<dyn ShardFormat>,
    /// Metadata of its unsharded twin in Zarr v3 form, or the reason why there is no such form. If
    /// arrays without shards stay as they are, it is in the form of the stored document.
    pub twin: Result<Value, NoTwin>,
    /// Its document as it is stored. `None` if there is none, or the configuration does not
    /// ask for it.
    pub stored: Option<Value>,
    /// Forms of its metadata for which the stored document is kept.
    pub(super) forms: StoredForms,
    /// Documents of its own format that are shown beside its chunks, by name.
    pub shown_beside: Vec<(OsString, Vec<u8>)>,
    /// `true` if it has a document of Zarr, which a view replaces by one of its own.
    pub has_document: bool,
    /// What, besides the layout, distinguishes it from another array in its place. `None` if that is
    /// its metadata.
    pub identity: Option<Value>,
    /// `true` if an absent chunk does not stand for chunks of the fill value.
    pub keeps_fill: bool,
    /// `true` if its last chunk ends where the array ends.
    pub has_short_end: bool,
}

impl FoundArray {
    /// Creates an array whose metadata is a Zarr document.
    pub(super) fn of_document(
        kind: ArrayFormat,
        layout: ShardedArray,
        format: Arc<dyn ShardFormat>,
        twin: Result<Value, NoTwin>,
    ) -> Self {
        Self {
            kind,
            layout,
            format,
            twin,
            stored: None,
            forms: StoredForms::default(),
            shown_beside: Vec::new(),
            has_document: true,
            identity: None,
            keeps_fill: false,
            has_short_end: false,
        }
    }

    /// Creates an array whose metadata is not a Zarr document, with `shown_beside`, the documents of
    /// its own format, and `identity`, which distinguishes it from another array in its place.
    pub(super) fn of_own_format(
        kind: ArrayFormat,
        array: ForeignArray,
        format: Arc<dyn ShardFormat>,
        shown_beside: Vec<(OsString, Vec<u8>)>,
        identity: Value,
    ) -> Box<Self> {
        let ForeignArray { layout, metadata } = array;
        let twin = metadata.ok_or(NoTwin::NoDataType);
        let identity = Some(identity);
        let plain = Self::of_document(kind, layout, format, twin);
        Box::new(Self { shown_beside, has_document: false, identity, has_short_end: true, ..plain })
    }

    /// Converts into an [`Array`] of a source, whose document is at `path`.
    pub(super) fn into_array(self, directory: PathBuf, path: PathBuf) -> Array {
        let Self { kind, layout, format, twin, stored, forms, .. } = self;
        let source = SourceArray { id: 0, path: directory, layout, format };
        let kept = stored.as_ref().map(CompactJson::new);
        let (sharded, twin) = match forms {
            StoredForms::Twin => (None, kept.clone().or_else(|| compact(twin.ok()))),
            StoredForms::Sharded => (kept.clone(), compact(twin.ok())),
            StoredForms::None { sharded } => (compact(sharded), compact(twin.ok())),
        };
        Array { source, format: kind, document: kept.map(|kept| (path, kept)), sharded, twin }
    }
}

fn compact(document: Option<Value>) -> Option<CompactJson> {
    document.as_ref().map(CompactJson::new)
}

/// Forms of an array's metadata that are its stored document, whose text is then kept only once.
#[derive(Debug)]
pub(super) enum StoredForms {
    /// It is the unsharded twin: the array has no shards.
    Twin,
    /// It is the sharded array in Zarr v3 form.
    Sharded,
    /// Neither. `sharded` is the sharded array in Zarr v3 form, if there is one.
    None {
        /// Metadata in Zarr v3 form.
        sharded: Option<Value>,
    },
}

impl Default for StoredForms {
    fn default() -> Self {
        Self::None { sharded: None }
    }
}

/// Node whose metadata cannot be used.
#[derive(Debug)]
pub struct Unusable {
    /// Path of what describes it.
    pub path: PathBuf,
    /// Attributes of what describes it. `None` if they cannot be read.
    pub stat: Option<Stat>,
    /// `true` if it is an array: what lies in its directory may be shards or chunks.
    pub is_array: bool,
    /// Cause.
    pub error: NodeError,
}

impl Found {
    /// Nothing at a directory whose document would be at `path`.
    pub(super) fn nothing(path: &Path) -> Self {
        let (kind, path) = (FoundKind::Nothing, path.to_owned());
        Self { kind, stat: None, path, documents: &[], room: None }
    }
}

impl Unusable {
    /// Creates the error of a node that need not be an array.
    pub(super) fn new(path: &Path, stat: Option<Stat>, error: impl Into<NodeError>) -> Box<Self> {
        let (path, error) = (path.to_owned(), error.into());
        Box::new(Self { path, stat, is_array: false, error })
    }

    /// Creates the error of a node, which is an array or not.
    pub(super) fn of(
        is_array: bool,
        path: &Path,
        stat: Option<Stat>,
        error: impl Into<NodeError>,
    ) -> Box<Self> {
        Box::new(Self { is_array, ..*Self::new(path, stat, error) })
    }
}
