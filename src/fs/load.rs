//! Loading of nodes of the source for a view: read anew each time; [`crate::fs::nodes`] caches
//! them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::format::document::keep_stored;
use crate::format::from_twin::named;
use crate::format::json;
use crate::format::sharding::ShardedArray;
use crate::format::zarr2::{self, Missing};
use crate::fs::as_written::AsWritten;
use crate::fs::config::FsConfig;
use crate::fs::created_fills::CreatedFills;
use crate::fs::error::LoadError;
use crate::fs::form::{Form, Lengths, ShownArray, Unshown, View, ViewConfig};
use crate::source::{
    Found, FoundArray, FoundKind, METADATA_FILE, NodeError, Probe, Unsharded, Unusable, document_at,
};
use crate::store::formats::ShardFormat;
use crate::store::storage::{Stat, Storage};
use crate::text::shown;
use crate::view::inode::stable_hash;

/// Documents in the directory of a node of Zarr v3 that are none of its own in the view zarr2.
const DOCUMENTS_BESIDE: [&str; 5] =
    [METADATA_FILE, zarr2::ZARRAY, zarr2::ZATTRS, zarr2::ZGROUP, zarr2::ZMETADATA];

/// Reader of a source's nodes for a view.
pub(super) struct Loader {
    storage: Arc<dyn Storage>,
    probe: Probe,
    /// Finds out where the chunks are of arrays that are shown as they are stored; `None` if the source's names
    /// tell that.
    located: Option<Probe>,
    view: ViewConfig,
    /// Arrays that were created in Zarr v2 by this view.
    created: CreatedFills,
    /// Arrays that were created sharded, and are shown as they are stored.
    as_written: AsWritten,
}

/// Node as a view shows it.
pub(super) struct Loaded {
    /// Kind of the node.
    pub kind: LoadedKind,
    /// Document of the node; `None` if the view shows that of the source.
    pub document: Option<Arc<[u8]>>,
    /// Documents that the source does not have, by name.
    pub extra: Vec<(OsString, Arc<[u8]>)>,
    /// Documents of the source that the view hides.
    pub hidden: &'static [&'static str],
    /// `Stat` of the stored document.
    pub stat: Option<Stat>,
}

/// Kind of a node.
pub(super) enum LoadedKind {
    /// Not a node of its own.
    Inherited,
    /// A group, or an array that is shown as it is stored.
    AsStored,
    /// A hierarchy whose documents are in a directory of their own.
    Apart,
    /// An array whose chunks the view shows.
    Array(Box<LoadedArray>),
}

/// Array whose chunks a view shows.
pub(super) struct LoadedArray {
    /// Locations of its chunks.
    pub layout: ShardedArray,
    /// Format of its shards.
    pub format: Arc<dyn ShardFormat>,
    /// Form of its chunk files.
    pub shown: ShownArray,
    /// Hash of its data type.
    pub data_type: u64,
    /// Hash of everything that the meaning of a chunk's number depends on.
    pub hash: u64,
}

/// Node that cannot be shown, with the reason.
#[derive(Debug)]
pub struct Failed {
    /// Path of its document.
    pub document: PathBuf,
    /// `Stat` of the document; `None` if there is none.
    pub stat: Option<Stat>,
    /// Cause.
    pub error: LoadError,
}

impl Failed {
    /// Creates a failure about a document.
    pub fn new(document: PathBuf, stat: Option<Stat>, error: impl Into<LoadError>) -> Box<Self> {
        Box::new(Self { document, stat, error: error.into() })
    }

    /// Returns whether the cause is that others have put something else there meanwhile.
    pub fn is_stale(&self) -> bool {
        match &self.error {
            LoadError::Node(error) => {
                error.io().is_some_and(|error| error.raw_os_error() == Some(libc::ESTALE))
            }
            LoadError::Unshown(_) => false,
        }
    }

    /// Returns whether the cause is that the view has no form for the node.
    pub fn is_unshown(&self) -> bool {
        matches!(self.error, LoadError::Unshown(_))
    }
}

impl From<Box<Unusable>> for Box<Failed> {
    fn from(unusable: Box<Unusable>) -> Self {
        let Unusable { path, stat, error, .. } = *unusable;
        Failed::new(path, stat, error)
    }
}

impl Loaded {
    /// Creates a node that has no documents other than those of the source.
    fn plain(kind: LoadedKind) -> Self {
        Self { kind, document: None, extra: Vec::new(), hidden: &[], stat: None }
    }
}

impl Loader {
    /// Creates a loader of the nodes of `storage`.
    pub(super) fn new(storage: Arc<dyn Storage>, config: &FsConfig) -> Self {
        let FsConfig { file, format, level, view, writable, .. } = config;
        let unsharded = match view.view {
            View::Zarr3 => Unsharded::AsStored,
            View::Zarr2 => Unsharded::Described,
            View::Npy | View::Raw | View::Flat => Unsharded::Decoded,
        };
        let probe = Probe {
            file: file.clone(),
            format: *format,
            level: *level,
            unsharded,
            // In views that decode, arrays that record their length are read-only.
            grows: *writable && !view.view.is_decoded(),
            keeps_stored: false,
        };
        let is_located = !storage.can_list() && unsharded != Unsharded::Decoded;
        let located = is_located.then(|| Probe { unsharded: Unsharded::Decoded, ..probe.clone() });
        let (created, as_written) = (CreatedFills::default(), AsWritten::default());
        Self { storage, probe, located, view: *view, created, as_written }
    }

    /// Returns the sharded arrays that are shown as they are stored.
    pub(super) fn as_written(&self) -> &AsWritten {
        &self.as_written
    }

    /// Returns the fill values of arrays that were created in Zarr v2.
    pub(super) fn created(&self) -> &CreatedFills {
        &self.created
    }

    /// Returns how missing chunks of the array in a directory are presented.
    pub(super) fn missing(&self, directory: &Path, twin: Option<&Value>) -> Missing {
        self.created.missing(directory, twin, self.view.missing)
    }

    /// Returns the view.
    pub(super) fn view(&self) -> View {
        self.view.view
    }

    /// Returns the file in the source's root that is mounted instead of the whole source, if any.
    pub(super) fn file(&self) -> Option<&OsStr> {
        self.probe.file.as_deref()
    }

    /// Returns whether a directory without a `zarr.json` is probed for other documents each time.
    pub(super) fn probes(&self) -> bool {
        self.probe.tries_documents()
    }

    /// Returns whether the source's root can be of the format that it is read as. `is_apart` says
    /// whether the documents in it are in a directory of their own.
    ///
    /// # Errors
    ///
    /// It cannot be determined whether the root has a document.
    pub(super) fn accepts_root(&self, is_apart: bool) -> io::Result<bool> {
        self.probe.accepts_root(&*self.storage, is_apart)
    }

    /// Loads the node at a directory. `path` is that of its document, if it has one of Zarr v3 or of
    /// the draft of 2022, and `stat` the result of its `stat` in the source.
    pub(super) fn load(
        &self,
        directory: &Path,
        path: &Path,
        stat: io::Result<Stat>,
    ) -> Result<Loaded, Box<Failed>> {
        let stored = stat.as_ref().ok().copied();
        let found = self.probe.node(&*self.storage, directory, path, stat)?;
        // The forms of the view are made within the memory that is reserved for the document.
        let Found { kind, stat, path, documents, room: _room } = found;
        let documents = self.hidden(documents);
        let loaded = match kind {
            FoundKind::Nothing | FoundKind::AsStored if self.located.is_some() => {
                return self.locate(directory, (&path, stored), kind);
            }
            FoundKind::Nothing => Ok(Loaded::plain(LoadedKind::Inherited)),
            FoundKind::AsStored => Ok(Loaded::plain(LoadedKind::AsStored)),
            FoundKind::Apart => Ok(Loaded::plain(LoadedKind::Apart)),
            FoundKind::Group(metadata) => {
                let group = self.with_kept(directory, &path, metadata);
                group.map(|metadata| self.group(directory, metadata, documents)).map_err(Into::into)
            }
            FoundKind::Array(array) => self.array(directory, *array, documents),
        };
        match loaded {
            Ok(loaded) => Ok(Loaded { stat, ..loaded }),
            Err(error) => Err(Failed::new(path, stat, error)),
        }
    }

    /// Returns the documents of a directory that the view hides, where it shows others: those that describe the node,
    /// `documents`, and those that would be taken for the view's own.
    fn hidden(&self, documents: &'static [&'static str]) -> &'static [&'static str] {
        match (self.view(), documents) {
            (View::Zarr2, [METADATA_FILE]) => &DOCUMENTS_BESIDE,
            _ => documents,
        }
    }

    /// Returns a node that is shown as it is stored, where names cannot be listed: an array's chunks are found by
    /// its grid, for none of the directories above them can be told from what is not there.
    fn locate(
        &self,
        directory: &Path,
        (path, stat): (&Path, Option<Stat>),
        kind: FoundKind,
    ) -> Result<Loaded, Box<Failed>> {
        let plain = match kind {
            FoundKind::AsStored => LoadedKind::AsStored,
            _ => LoadedKind::Inherited,
        };
        let Some(probe) = &self.located else { return Ok(Loaded::plain(plain)) };
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let found = probe.node(&*self.storage, directory, path, stat.ok_or_else(absent))?;
        let Found { kind: FoundKind::Array(array), stat, .. } = found else {
            return Ok(Loaded { stat: found.stat, ..Loaded::plain(plain) });
        };
        let FoundArray { layout, format, twin, .. } = *array;
        let twin = twin.unwrap_or_default();
        let hash = layout_hash(directory, &twin, &layout);
        let data_type = stable_hash([named(&twin["data_type"]).to_string().as_bytes()]);
        let shown = ShownArray::as_stored(layout.keys);
        let array = LoadedArray { layout, format, shown, data_type, hash };
        Ok(Loaded { stat, ..Loaded::plain(LoadedKind::Array(Box::new(array))) })
    }

    /// Returns the metadata of a group, whose arrays were rewritten in it, with those as they are stored that are shown
    /// like that. `None` if the document is to be shown as it is stored, too.
    fn with_kept(
        &self,
        directory: &Path,
        path: &Path,
        metadata: Option<Value>,
    ) -> Result<Option<Value>, NodeError> {
        if !self.as_written.has_below(directory) {
            return Ok(metadata);
        }
        let Some(mut shown) = metadata else { return Ok(None) };
        let Some(stored) = document_at(&*self.storage, path)? else { return Ok(Some(shown)) };
        keep_stored(&mut shown, &stored, directory, &|path| self.as_written.has(path));
        Ok(Some(shown).filter(|shown| *shown != stored))
    }

    /// Makes the view's form of a group. The view shows its own documents in the place of
    /// `documents`, except that the one view with documents of Zarr v3 rewrites the text.
    fn group(
        &self,
        directory: &Path,
        metadata: Option<Value>,
        documents: &'static [&'static str],
    ) -> Loaded {
        let group = Loaded::plain(LoadedKind::AsStored);
        match (metadata, self.view()) {
            (None, _) => group,
            (Some(twin), View::Zarr3) => Loaded { document: Some(text_of(&twin)), ..group },
            (Some(twin), _) => {
                let missing = |below: &str| self.missing(&directory.join(below), None);
                let extra = shared(self.view.group(&twin, &missing));
                Loaded { extra, hidden: documents, ..group }
            }
        }
    }

    /// Makes the view's form of an array. The view shows its own documents in the place of
    /// `documents`, except that the one view with documents of Zarr v3 rewrites the text.
    fn array(
        &self,
        directory: &Path,
        found: FoundArray,
        documents: &'static [&'static str],
    ) -> Result<Loaded, LoadError> {
        let FoundArray { layout, format, twin, has_document, identity, has_short_end, .. } = found;
        let (mut shown, twin) = match (twin, self.view()) {
            (twin, View::Zarr3) => (ShownArray::as_stored(layout.keys), twin.ok()),
            (Ok(twin), _) => {
                let lengths = if has_short_end { Lengths::ShortEnd } else { Lengths::Equal };
                let view =
                    ViewConfig { missing: self.missing(directory, Some(&twin)), ..self.view };
                (view.array(&twin, layout.keys, lengths)?, Some(twin))
            }
            (Err(why), _) => return Err(Unshown::from(why).into()),
        };
        shown.keeps_fill |= found.keeps_fill;
        if shown.is_misread && has_document {
            log::warn!(
                "{}: in the view zarr2 its fill value is not what it is in Zarr v3, the missing value: \
                 readers of CF conventions, xarray and netCDF among them, see other values",
                self::shown(directory)
            );
        }
        // Metadata of an array without a document appears, vanishes or changes with the array's
        // length, without changing the meaning of inode numbers: it is not hashed.
        let no_twin = Value::Null;
        let twin_or_null = twin.as_ref().unwrap_or(&no_twin);
        let hash = layout_hash(directory, identity.as_ref().unwrap_or(twin_or_null), &layout);
        let hash = match &twin {
            Some(twin) => self.form_hash(twin, &shown.form, hash),
            None => hash,
        };
        let data_type = named(&twin_or_null["data_type"]).to_string();
        let data_type = stable_hash([data_type.as_bytes()]);
        let mut extra = found.shown_beside;
        let (mut document, mut hidden) = (None, documents);
        if self.view() == View::Zarr3 {
            hidden = &[];
            match twin {
                Some(twin) if has_document => document = Some(text_of(&twin)),
                Some(twin) => extra.push((METADATA_FILE.into(), json::to_text(&twin))),
                None => (),
            }
        }
        extra.append(&mut shown.documents);
        let extra = shared(extra);
        let kind =
            LoadedKind::Array(Box::new(LoadedArray { layout, format, shown, data_type, hash }));
        Ok(Loaded { kind, document, extra, hidden, stat: None })
    }

    /// Returns the hash of a layout together with what decoded chunks depend on: when that changes,
    /// the chunks are different ones, and so are the files.
    fn form_hash(&self, twin: &Value, form: &Form, layout_hash: u64) -> u64 {
        if let Form::Filled(filled) = form {
            return stable_hash([filled.values.as_bytes(), &layout_hash.to_le_bytes()]);
        }
        if !self.view().is_decoded() {
            return layout_hash;
        }
        let members = ["shape", "data_type", "fill_value", "codecs"];
        let members = members.map(|name| twin.get(name).map(ToString::to_string));
        let parts = members.iter().flatten().map(String::as_bytes);
        stable_hash(parts.chain([layout_hash.to_le_bytes().as_slice()]))
    }
}

fn text_of(document: &Value) -> Arc<[u8]> {
    json::to_text(document).into()
}

fn shared(documents: Vec<(OsString, Vec<u8>)>) -> Vec<(OsString, Arc<[u8]>)> {
    documents.into_iter().map(|(name, text)| (name, text.into())).collect()
}

/// Hashes what the meaning of inode numbers depends on: the path, the shape, both grids, the keys
/// and the codecs around the chunks. Attributes and the like do not count.
fn layout_hash(directory: &Path, twin: &Value, layout: &ShardedArray) -> u64 {
    let member = |name: &str| twin.get(name).map(ToString::to_string).unwrap_or_default();
    let members = ["shape", "chunk_grid", "chunk_key_encoding", "codecs"].map(member);
    let layout = format!("{:?} {:?}", layout.shard_grid, layout.levels);
    let parts = members.iter().map(String::as_bytes);
    stable_hash(parts.chain([layout.as_bytes(), directory.as_os_str().as_bytes()]))
}
