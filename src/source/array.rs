//! An array of a source, independent of its storage format.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::compact_json::CompactJson;
use super::config::Format;
use crate::store::SourceArray;
use crate::store::storage::FileKind;

/// An array of a source.
#[derive(Debug)]
pub struct Array {
    /// Location and layout of the chunks.
    pub source: SourceArray,
    /// Storage format.
    pub format: ArrayFormat,
    /// Path of the array's document, relative to the source's root, and its contents; `None` if the
    /// format has no document.
    pub document: Option<(PathBuf, CompactJson)>,
    /// Metadata of the sharded array in Zarr v3 form; `None` if the array is not sharded or cannot
    /// be expressed in Zarr v3.
    pub sharded: Option<CompactJson>,
    /// Metadata of the unsharded twin in Zarr v3 form; `None` if it cannot be expressed in Zarr v3.
    pub twin: Option<CompactJson>,
}

/// Storage format of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayFormat {
    /// Zarr v3.
    Zarr3,
    /// Zarr v2.
    Zarr2,
    /// The Zarr v3 draft of 2022.
    Draft2022,
    /// A Bloscpack file.
    Bloscpack,
    /// BLZ or bcolz.
    Blz,
    /// A frame of Blosc2.
    Blosc2,
    /// A data set of webknossos-wrap.
    Wkw,
}

impl ArrayFormat {
    /// Returns the format of sources whose arrays are stored like this.
    pub fn of(self) -> Format {
        match self {
            Self::Zarr3 | Self::Zarr2 => Format::Zarr,
            Self::Draft2022 => Format::Draft2022,
            Self::Bloscpack => Format::Bloscpack,
            Self::Blz => Format::Blz,
            Self::Blosc2 => Format::Blosc2,
            Self::Wkw => Format::Wkw,
        }
    }
}

impl Array {
    /// Returns the metadata of the unsharded twin in Zarr v3 form; `None` if it cannot be expressed
    /// in Zarr v3.
    pub fn twin(&self) -> Option<Value> {
        self.twin.as_ref().map(CompactJson::value)
    }

    /// Returns the codec of its chunks that no reader of Zarr knows, because it is that of another format. `None` if all are
    /// known.
    pub fn own_codec(&self) -> Option<String> {
        const OWN: [&str; 2] = ["blosc2", "lz4_block"];
        let twin = self.twin()?;
        let names = twin.get("codecs")?.as_array()?.iter().filter_map(|codec| codec.get("name"));
        names.filter_map(Value::as_str).find(|name| OWN.contains(name)).map(str::to_owned)
    }

    /// Returns whether each chunk is stored as a file of its own.
    pub fn is_unsharded(&self) -> bool {
        self.source.format.is_bare()
    }

    /// Returns the name of the format, as users read it.
    pub fn format_name(&self) -> &'static str {
        match (self.format, self.is_unsharded()) {
            (ArrayFormat::Zarr3, true) => "Zarr v3, unsharded: each chunk is a file",
            (ArrayFormat::Zarr3, _) => "Zarr v3, sharded",
            (ArrayFormat::Zarr2, _) => "Zarr v2: each chunk is a file",
            (ArrayFormat::Draft2022, true) => "Zarr v3 draft of 2022, unsharded",
            (ArrayFormat::Draft2022, _) => "Zarr v3 draft of 2022, sharded",
            (ArrayFormat::Bloscpack, _) => "Bloscpack file",
            (ArrayFormat::Blz, _) => "BLZ or bcolz array",
            (ArrayFormat::Blosc2, _) => "Blosc2 frame",
            (ArrayFormat::Wkw, _) => "webknossos-wrap",
        }
    }

    /// Returns whether the array's document lies in the directory of its chunks, where other files
    /// and nodes may lie, too: a node of Zarr as it is today or was in version 2, of webknossos-wrap,
    /// of BLZ or bcolz.
    pub fn has_own_directory(&self) -> bool {
        use ArrayFormat::{Blz, Wkw, Zarr2, Zarr3};
        matches!(self.format, Zarr3 | Zarr2 | Wkw | Blz)
    }

    /// Returns whether the array is stored with the documents of Zarr v2.
    pub fn is_zarr2(&self) -> bool {
        self.format == ArrayFormat::Zarr2
    }

    /// Returns whether a name in the array's directory belongs to a shard or chunk, or to a
    /// directory above one.
    pub fn claims(&self, name: &OsStr) -> bool {
        let layout = &self.source.layout;
        name.to_str().is_some_and(|name| layout.keys.claims(name, layout.rank()))
    }

    /// Returns whether a view shows chunks in the place of a file of some kind at a path in the
    /// array's directory. Of an array without shards it shows what is between the chunk files, too.
    pub fn hides(&self, path: &Path, kind: FileKind) -> bool {
        let layout = &self.source.layout;
        let is_key = || {
            let key = path.to_str();
            key.is_some_and(|key| layout.keys.parse_leading(key, layout.rank()).is_some())
        };
        // A commit has it there for a moment.
        if path.to_str().is_some_and(|name| self.source.is_lock_name(name)) {
            return true;
        }
        if path.iter().next().is_some_and(|name| self.source.format.hides(name)) {
            return true;
        }
        path.iter().next().is_some_and(|name| self.claims(name))
            && (!self.is_unsharded() || kind != FileKind::Directory && is_key())
    }
}
