//! Recognition of nodes: what a directory or a file of a source is, for mounts and commands alike.
//!
//! A directory with a `zarr.json` is what that document says. Any other is tried by each line of
//! [`DIRECTORIES`] in turn; a file that is opened as a source, by [`FILES`].

use std::io;
use std::path::Path;

use serde_json::Value;

use super::config::{Format, Probe, Unsharded};
use super::document::{METADATA_FILE, read_text};
use super::error::NodeError;
use super::found::{Found, FoundKind, Unusable};
use super::{apart, blosc2, bloscpack, blz, draft2022, wkw, zarr2, zarr3};
use crate::format::document::Dialect;
use crate::format::error::MetadataError;
use crate::format::json;
use crate::format::wkw::HEADER;
use crate::format::zarr2::{ZARRAY, ZGROUP};
use crate::memory::ROOM;
use crate::store::formats::superchunks::SIZES;
use crate::store::storage::{FileKind, Stat, Storage, if_present, is_absent};

/// Result of looking for a node of one format: `None` if there is none.
type Looked = Result<Option<Found>, Box<Unusable>>;

/// Looks for a node of one format at a directory.
type InDirectory = fn(&Probe, &dyn Storage, &Path) -> Looked;

/// Looks for an array of one format in a file, whose attributes are given.
type InFile = fn(&Probe, &dyn Storage, (&Path, Stat)) -> Looked;

/// Formats whose nodes are directories without a document of Zarr v3, in the order of trial.
const DIRECTORIES: [(Format, InDirectory); 3] =
    [(Format::Blz, blz::look), (Format::Wkw, wkw::look), (Format::Zarr, zarr2::look)];

/// Formats whose arrays are files.
const FILES: [(Format, InFile); 2] =
    [(Format::Blosc2, blosc2::look), (Format::Bloscpack, bloscpack::look)];

/// Names of files whose presence in a directory indicates a node there, and of which format.
pub(super) const INDICATIONS: [(&str, Format); 6] = [
    (METADATA_FILE, Format::Zarr),
    (METADATA_FILE, Format::Draft2022),
    (SIZES, Format::Blz),
    (HEADER, Format::Wkw),
    (ZARRAY, Format::Zarr),
    (ZGROUP, Format::Zarr),
];

impl Probe {
    /// Returns whether the source's root can be of the format that it is read as. A directory of
    /// arrays can be of most formats. `is_apart` says whether the documents in it are in a directory
    /// of their own.
    ///
    /// # Errors
    /// It cannot be determined whether the root has a document.
    pub fn accepts_root(&self, storage: &dyn Storage, is_apart: bool) -> io::Result<bool> {
        let is_file = self.file.is_some();
        let path = Path::new(METADATA_FILE);
        Ok(match self.format {
            None => true,
            Some(Format::Bloscpack | Format::Blosc2) => is_file,
            Some(Format::Zarr) => !is_file,
            Some(Format::Blz | Format::Wkw) => {
                !is_file && if_present(storage.lstat(path))?.is_none()
            }
            Some(Format::Draft2022) => is_apart,
        })
    }

    /// Recognizes the node at a directory. `path` is that of its document, if it has one of Zarr v3
    /// or of the draft of 2022, and `stat` the result of its `stat` in the source.
    ///
    /// # Errors
    /// There is a node, but its metadata cannot be used; or that cannot be determined.
    pub fn node(
        &self,
        storage: &dyn Storage,
        directory: &Path,
        path: &Path,
        stat: io::Result<Stat>,
    ) -> Result<Found, Box<Unusable>> {
        let is_file = self.file.as_deref().is_some_and(|file| path == Path::new(file));
        match stat {
            Ok(stat) if is_file => self.file(storage, path, stat),
            Err(error) if is_file => Err(Unusable::of(true, path, None, error)),
            Ok(stat) => self.documented(storage, path, stat),
            Err(error) if is_absent(&error) => self.undocumented(storage, directory, path, error),
            Err(error) => Err(Unusable::new(path, None, error)),
        }
    }

    /// Recognizes a file that is opened instead of the whole source.
    fn file(&self, storage: &dyn Storage, path: &Path, stat: Stat) -> Result<Found, Box<Unusable>> {
        for (format, look) in FILES {
            if self.may_be(format)
                && let Some(found) = look(self, storage, (path, stat))?
            {
                return Ok(found);
            }
        }
        Ok(Found::nothing(path))
    }

    /// Reads a node with a document of Zarr v3 or of the draft of 2022.
    fn documented(
        &self,
        storage: &dyn Storage,
        path: &Path,
        stat: Stat,
    ) -> Result<Found, Box<Unusable>> {
        let unusable = |error: NodeError| Unusable::new(path, Some(stat), error);
        let text = read_text(storage, path).map_err(unusable)?;
        let room = ROOM.take(json::memory(&text)).map_err(|error| unusable(error.into()))?;
        let document = json::parse(&text).map_err(MetadataError::from);
        let document = document.map_err(|error| unusable(error.into()))?;
        let dialect = Dialect::of(path);
        let is_array = dialect == Dialect::Draft2022
            || document.get("node_type").is_some_and(|kind| kind == "array");
        let kind = self.described(document, dialect);
        let kind = kind.map_err(|error| Box::new(Unusable { is_array, ..*unusable(error) }))?;
        let (stat, path) = (Some(stat), path.to_owned());
        Ok(Found { kind, stat, path, documents: zarr3::DOCUMENTS, room: Some(room) })
    }

    /// Reads what a document describes.
    fn described(&self, document: Value, dialect: Dialect) -> Result<FoundKind, NodeError> {
        let Self { level, unsharded, keeps_stored, .. } = *self;
        if dialect == Dialect::V3
            && self.may_be(Format::Draft2022)
            && apart::is_hierarchy(&document)?
        {
            return Ok(FoundKind::Apart);
        }
        match dialect {
            _ if unsharded == Unsharded::AsStored => zarr3::sharded(document, level, dialect),
            Dialect::V3 => zarr3::node(document, level, keeps_stored),
            Dialect::Draft2022 => draft2022::array(document, level, keeps_stored),
        }
    }

    /// Recognizes a directory without a document of Zarr v3.
    fn undocumented(
        &self,
        storage: &dyn Storage,
        directory: &Path,
        path: &Path,
        absent: io::Error,
    ) -> Result<Found, Box<Unusable>> {
        // A dangling symbolic link is an error. A document created since the `stat` counts as
        // absent.
        match if_present(storage.lstat(path)) {
            Ok(Some(Stat { kind: FileKind::Symlink, .. })) => {
                return Err(Unusable::new(path, None, absent));
            }
            Ok(_) => (),
            Err(error) => return Err(Unusable::new(path, None, error)),
        }
        // The data of nodes whose documents are apart is what those say.
        if Dialect::of(path) == Dialect::Draft2022 {
            return Ok(Found::nothing(path));
        }
        for (format, look) in DIRECTORIES {
            if self.may_be(format)
                && let Some(found) = look(self, storage, directory)?
            {
                return Ok(found);
            }
        }
        Ok(Found::nothing(path))
    }
}
