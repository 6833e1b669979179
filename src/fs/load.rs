//! Loading of nodes of the source for a view: read anew each time; [`crate::fs::nodes`] caches
//! them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::format::document::{Dialect, Shown, show};
use crate::format::error::MetadataError;
use crate::format::sharding::ShardedArray;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA, group_to_zarr3};
use crate::format::{draft2022, json};
use crate::fs::config::FsConfig;
use crate::fs::error::LoadError;
use crate::fs::form::{Form, Lengths, ShownArray, Unshown, View, ViewConfig};
use crate::memory::ROOM;
use crate::source::zarr3::{Described, describe};
use crate::source::{
    Foreign, Format, METADATA_FILE, bloscpack, blz, document_at, read_document, read_text, zarr2,
};
use crate::store::formats::superchunks::SIZES;
use crate::store::formats::{ShardFormat, indexed, unsharded};
use crate::store::storage::{FileKind, Stat, Storage, if_present, is_absent};
use crate::text::shown;
use crate::view::inode::stable_hash;

/// Documents of a node of Zarr v3.
const ZARR3: &[&str] = &[METADATA_FILE];

/// Documents of a node of Zarr v2.
const ZARR2: &[&str] = &[ZARRAY, ZGROUP, ZATTRS, ZMETADATA];

/// Reader of a source's nodes for a view.
pub struct Loader {
    storage: Arc<dyn Storage>,
    /// File in the source's root that is mounted instead of the whole source; `None` mounts the
    /// source.
    file: Option<OsString>,
    /// Format to read the source as, whatever it contains; `None` detects it.
    format: Option<Format>,
    level: Option<usize>,
    view: ViewConfig,
    writable: bool,
}

/// Node as a view shows it.
pub struct Loaded {
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
pub enum LoadedKind {
    /// Not a node of its own.
    Inherited,
    /// A group, or an array that is shown as it is stored.
    AsStored,
    /// A hierarchy of the draft of 2022.
    Draft2022,
    /// An array whose chunks the view shows.
    Array(Box<LoadedArray>),
}

/// Array whose chunks a view shows.
pub struct LoadedArray {
    /// Locations of its chunks.
    pub layout: ShardedArray,
    /// Format of its shards.
    pub format: Arc<dyn ShardFormat>,
    /// Form of its chunk files.
    pub shown: ShownArray,
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

    /// Returns whether the cause is that the view has no form for the node.
    pub fn is_unshown(&self) -> bool {
        matches!(self.error, LoadError::Unshown(_))
    }
}

impl Loaded {
    fn as_stored(stat: Stat) -> Self {
        let (kind, document, extra) = (LoadedKind::AsStored, None, Vec::new());
        Self { kind, document, extra, hidden: &[], stat: Some(stat) }
    }
}

impl Loader {
    /// Creates a loader of the nodes of `storage`.
    pub fn new(storage: Arc<dyn Storage>, config: &FsConfig) -> Self {
        let FsConfig { file, format, level, view, writable, .. } = config;
        let (file, format, level, view) = (file.clone(), *format, *level, *view);
        Self { storage, file, format, level, view, writable: *writable }
    }

    /// Returns the view.
    pub fn view(&self) -> View {
        self.view.view
    }

    /// Returns the file in the source's root that is mounted instead of the whole source, if any.
    pub fn file(&self) -> Option<&OsStr> {
        self.file.as_deref()
    }

    /// Returns whether a directory without a `zarr.json` is probed for Zarr v2 documents each time.
    pub fn probes(&self) -> bool {
        self.view().is_decoded() && self.may_be(Format::Zarr)
    }

    /// Returns whether arrays of other formats have room for more chunks. In decoded views they are
    /// read-only.
    fn grows(&self) -> bool {
        self.writable && !self.view().is_decoded()
    }

    fn may_be(&self, format: Format) -> bool {
        self.format.is_none_or(|wanted| wanted == format)
    }

    /// Loads the node at a directory. `path` is that of its document, if it has one of Zarr v3 or
    /// of the draft of 2022, and `stat` the result of its `stat` in the source.
    pub fn load(
        &self,
        directory: &Path,
        path: PathBuf,
        stat: io::Result<Stat>,
    ) -> Result<Loaded, Box<Failed>> {
        let is_file = self.file().is_some_and(|file| path == Path::new(file));
        match stat {
            Ok(stat) if is_file => {
                let loaded = self.bloscpack(directory, &path, stat);
                loaded.map_err(|error| Failed::new(path, Some(stat), error))
            }
            Ok(stat) => {
                let loaded = self.documented(directory, &path, stat);
                loaded.map_err(|error| Failed::new(path, Some(stat), error))
            }
            Err(error) if is_absent(&error) => self.undocumented(directory, path, error),
            Err(error) => Err(Failed::new(path, None, error)),
        }
    }

    /// Loads a node with a document of Zarr v3 or of the draft of 2022.
    fn documented(&self, directory: &Path, path: &Path, stat: Stat) -> Result<Loaded, LoadError> {
        let text = read_text(&*self.storage, path)?;
        let _room = ROOM.take(json::memory(&text));
        let document = json::parse(&text).map_err(MetadataError::from)?;
        let dialect = Dialect::of(path);
        if dialect == Dialect::V3
            && self.may_be(Format::Draft2022)
            && draft2022::is_hierarchy(&document)?
        {
            return Ok(Loaded { kind: LoadedKind::Draft2022, ..Loaded::as_stored(stat) });
        }
        if self.view() != View::Zarr3 {
            return self.translated(directory, document, dialect, stat);
        }
        let (kind, document) = match show(document, self.level, dialect)? {
            Shown::AsStored => (LoadedKind::AsStored, None),
            Shown::Group(twin) => (LoadedKind::AsStored, Some(twin)),
            Shown::Array(layout, twin) => {
                let hash = layout_hash(directory, &twin, &layout);
                let shown = ShownArray::as_stored(layout.keys);
                let array = LoadedArray { layout: *layout, format: indexed(), shown, hash };
                (LoadedKind::Array(Box::new(array)), Some(twin))
            }
        };
        let document = document.map(|document| json::to_text(&document).into());
        Ok(Loaded { kind, document, ..Loaded::as_stored(stat) })
    }

    /// Loads a node of Zarr v3 or of the draft of 2022 in a view that has other documents than the
    /// source.
    fn translated(
        &self,
        directory: &Path,
        document: Value,
        dialect: Dialect,
        stat: Stat,
    ) -> Result<Loaded, LoadError> {
        let (document, keys) = match dialect {
            Dialect::V3 => (document, None),
            Dialect::Draft2022 => {
                // Errors in the metadata of a sharded array are reported in every view.
                draft2022::parse(&document)?;
                let twin = draft2022::to_zarr3(&document).map_err(Unshown::from)?;
                (twin, Some(draft2022::keys(&document)?))
            }
        };
        let (mut layout, format, twin) = match describe(document, self.level)? {
            Described::Group(group) => return Ok(self.group(&group, ZARR3, stat)),
            Described::Sharded(layout, twin) => (*layout, indexed(), twin),
            Described::Unsharded(chain, document) => {
                let layout = ShardedArray::unsharded(&document, chain);
                (layout.map_err(Unshown::Metadata)?, unsharded(), document)
            }
        };
        layout.keys = keys.unwrap_or(layout.keys);
        let array = self.array(directory, &twin, layout, format)?;
        Ok(Loaded { hidden: ZARR3, ..with_documents(array, Vec::new(), stat) })
    }

    /// Loads a directory without a document of Zarr v3.
    fn undocumented(
        &self,
        directory: &Path,
        path: PathBuf,
        absent: io::Error,
    ) -> Result<Loaded, Box<Failed>> {
        if self.may_be(Format::Blz)
            && let Some(loaded) = self.blz(directory)?
        {
            return Ok(loaded);
        }
        // A Zarr v2 array has no shards and is shown as it is stored, except in views that decode.
        if self.probes()
            && let Some(loaded) = self.zarr2(directory)?
        {
            return Ok(loaded);
        }
        // A dangling symbolic link is an error. A document created since the `stat` counts as
        // absent.
        match if_present(self.storage.lstat(&path)) {
            Ok(Some(Stat { kind: FileKind::Symlink, .. })) => Err(Failed::new(path, None, absent)),
            Ok(_) => {
                let (kind, document, extra) = (LoadedKind::Inherited, None, Vec::new());
                Ok(Loaded { kind, document, extra, hidden: &[], stat: None })
            }
            Err(error) => Err(Failed::new(path, None, error)),
        }
    }

    /// Loads the array or group of Zarr v2 at a directory in a view that decodes chunks; `None` if
    /// there is none.
    fn zarr2(&self, directory: &Path) -> Result<Option<Loaded>, Box<Failed>> {
        let storage = &*self.storage;
        for name in [ZARRAY, ZGROUP] {
            let (path, beside) = (directory.join(name), directory.join(ZATTRS));
            let found = if_present(storage.stat(&path));
            let found = found.map_err(|error| Failed::new(path.clone(), None, error))?;
            let Some(own) = found else { continue };
            let of_zattrs = |error: LoadError| Failed::new(beside.clone(), Some(own), error);
            let attributes = if_present(storage.stat(&beside)).map_err(|e| of_zattrs(e.into()))?;
            let stat = attributes.map_or(own, |beside| of_both(own, beside));
            let zattrs = document_at(storage, &beside).map_err(|error| of_zattrs(error.into()))?;
            let loaded =
                read_document(storage, &path).map_err(LoadError::from).and_then(
                    |node| match name {
                        ZARRAY => self.zarr2_array(directory, &node, zattrs.as_ref(), stat),
                        _ => {
                            let group = group_to_zarr3(&node, zattrs.as_ref())?;
                            Ok(self.group(&group, ZARR2, stat))
                        }
                    },
                );
            return loaded.map(Some).map_err(|error| Failed::new(path, Some(stat), error));
        }
        Ok(None)
    }

    fn zarr2_array(
        &self,
        directory: &Path,
        zarray: &Value,
        zattrs: Option<&Value>,
        stat: Stat,
    ) -> Result<Loaded, LoadError> {
        let (layout, twin) = zarr2::layout_and_twin(zarray, zattrs)?;
        let twin = twin.map_err(Unshown::Zarr2Twin)?;
        let mut array = self.array(directory, &twin, layout, unsharded())?;
        // An absent chunk of an array without a fill value stands for nothing in particular.
        array.shown.keeps_fill = true;
        Ok(Loaded { hidden: ZARR2, ..with_documents(array, Vec::new(), stat) })
    }

    /// Makes the view's form of an array with the unsharded metadata `twin`.
    fn array(
        &self,
        directory: &Path,
        twin: &Value,
        layout: ShardedArray,
        format: Arc<dyn ShardFormat>,
    ) -> Result<LoadedArray, LoadError> {
        let shown = self.view.array(twin, layout.keys, Lengths::Equal)?;
        if shown.is_misread {
            log::warn!(
                "{}: in the view zarr2 its fill value is not what it is in Zarr v3, the missing value: \
                 readers of CF conventions, xarray and netCDF among them, see other values",
                self::shown(directory)
            );
        }
        let hash = self.form_hash(twin, &shown.form, layout_hash(directory, twin, &layout));
        Ok(LoadedArray { layout, format, shown, hash })
    }

    /// Makes the view's form of a group, without the documents `hidden`.
    fn group(&self, group: &Value, hidden: &'static [&'static str], stat: Stat) -> Loaded {
        let extra = shared(self.view.group(group));
        Loaded { extra, hidden, ..Loaded::as_stored(stat) }
    }

    /// Loads the mounted Bloscpack file.
    fn bloscpack(&self, directory: &Path, path: &Path, stat: Stat) -> Result<Loaded, LoadError> {
        let found = bloscpack::array(&*self.storage, path.as_os_str(), &stat, self.grows())?;
        self.foreign(directory, found, stat)
    }

    /// Loads the BLZ or bcolz array at a directory, or the column of a table; `None` if there is
    /// none.
    fn blz(&self, directory: &Path) -> Result<Option<Loaded>, Box<Failed>> {
        let storage = &*self.storage;
        let fail = |stat, error| Failed::new(directory.to_owned(), stat, error);
        let io_failed = |error: io::Error| fail(None, error.into());
        let sizes = if_present(storage.stat(&directory.join(SIZES))).map_err(io_failed)?;
        let (stat, found) = match sizes {
            Some(stat) => (stat, blz::array(storage, directory, self.grows())),
            None => match blz::column(storage, directory).map_err(io_failed)? {
                Some((stat, found)) => (stat, found.map(Some)),
                None => return Ok(None),
            },
        };
        let loaded = match found {
            Ok(Some(found)) => self.foreign(directory, found, stat),
            // A table: its columns are below.
            Ok(None) => Ok(Loaded::as_stored(stat)),
            Err(error) => Err(error.into()),
        };
        loaded.map(Some).map_err(|error| fail(Some(stat), error))
    }

    /// Loads an array whose metadata is not a Zarr document.
    fn foreign(&self, directory: &Path, found: Foreign, stat: Stat) -> Result<Loaded, LoadError> {
        let Foreign { array, format, identity, mut documents } = found;
        // The metadata appears, vanishes or changes with the array's length, without changing the
        // meaning of inode numbers: it is not hashed.
        let hash = layout_hash(directory, &identity, &array.layout);
        let (shown, hidden) = match (&array.metadata, self.view()) {
            (_, View::Zarr3) => (ShownArray::as_stored(array.layout.keys), [].as_slice()),
            (Some(twin), _) => {
                (self.view.array(twin, array.layout.keys, Lengths::ShortEnd)?, ZARR3)
            }
            (None, _) => return Err(Unshown::NoMetadata.into()),
        };
        let hash =
            array.metadata.as_ref().map_or(hash, |twin| self.form_hash(twin, &shown.form, hash));
        if !hidden.is_empty() {
            documents.retain(|(name, _)| name != METADATA_FILE);
        }
        let array = LoadedArray { layout: array.layout, format, shown, hash };
        Ok(Loaded { hidden, ..with_documents(array, documents, stat) })
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

/// Combines an array with the documents of its view and with others.
fn with_documents(
    mut array: LoadedArray,
    mut documents: Vec<(OsString, Vec<u8>)>,
    stat: Stat,
) -> Loaded {
    documents.append(&mut array.shown.documents);
    let (kind, extra) = (LoadedKind::Array(Box::new(array)), shared(documents));
    Loaded { kind, document: None, extra, hidden: &[], stat: Some(stat) }
}

/// Returns the attributes of a text that is made of two documents: the later times, and the
/// permissions that both give.
fn of_both(one: Stat, other: Stat) -> Stat {
    let (mtime, ctime) = (one.mtime.max(other.mtime), one.ctime.max(other.ctime));
    Stat { mode: one.mode & (other.mode | !0o777), mtime, ctime, ..one }
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
