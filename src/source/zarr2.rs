//! Arrays and groups of Zarr v2, whose chunks are files.

use std::io;
use std::path::Path;

use serde_json::Value;

use super::array::ArrayFormat;
use super::config::{Probe, Unsharded};
use super::document::{document_at, parsed, read_document, read_text, text_at};
use super::error::NodeError;
use super::found::{Found, FoundArray, FoundKind, Unusable};
use crate::format::codec::parse_chain;
use crate::format::json;
use crate::format::sharding::ShardedArray;
use crate::format::zarr2::{self, NoTwin, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::memory::ROOM;
use crate::store::formats::unsharded;
use crate::store::storage::{FileKind, Stat, Storage, if_present};

/// Documents of a node.
const DOCUMENTS: &[&str] = &[ZARRAY, ZGROUP, ZATTRS, ZMETADATA];

/// Looks for the array or group of Zarr v2 at a directory.
pub(super) fn look(
    config: &Probe,
    storage: &dyn Storage,
    directory: &Path,
) -> Result<Option<Found>, Box<Unusable>> {
    if config.unsharded != Unsharded::Decoded {
        return Ok(None);
    }
    for name in [ZARRAY, ZGROUP] {
        let (path, is_array) = (directory.join(name), name == ZARRAY);
        let found = attributes(storage, &path);
        let own = found.map_err(|error| Unusable::of(is_array, &path, None, error))?;
        let Some(own) = own else { continue };
        let beside = directory.join(ZATTRS);
        let of_zattrs = |error| Unusable::of(is_array, &beside, Some(own), error);
        let stat = if_present(storage.stat(&beside)).map_err(|error| of_zattrs(error.into()))?;
        let stat = stat.map_or(own, |beside| of_both(own, beside));
        let of_own = |error| Unusable::of(is_array, &path, Some(stat), error);
        let zattrs = text_at(storage, &beside).map_err(of_zattrs)?;
        let text = read_text(storage, &path).map_err(of_own)?;
        let room = ROOM.take(json::memory(&text) + zattrs.as_deref().map_or(0, json::memory));
        let room = room.map_err(|error| of_own(error.into()))?;
        let zattrs = zattrs.as_deref().map(parsed).transpose().map_err(of_zattrs)?;
        let kind = parsed(&text).and_then(|document| match is_array {
            true => array(document, zattrs.as_ref(), config.keeps_stored),
            false => {
                let group = zarr2::group_to_zarr3(&document, zattrs.as_ref())?;
                Ok(FoundKind::Group((!config.keeps_stored).then_some(group)))
            }
        });
        let (kind, stat, room) = (kind.map_err(of_own)?, Some(stat), Some(room));
        return Ok(Some(Found { kind, stat, path, documents: DOCUMENTS, room }));
    }
    Ok(None)
}

/// Returns the attributes of a document; `None` if there is none. A link to nothing is an error.
fn attributes(storage: &dyn Storage, path: &Path) -> io::Result<Option<Stat>> {
    match if_present(storage.lstat(path))? {
        Some(stat) if stat.kind == FileKind::Symlink => storage.stat(path).map(Some),
        stat => Ok(stat),
    }
}

/// Returns the attributes of a text that is made of two documents: the later times, and the
/// permissions that both give.
fn of_both(one: Stat, other: Stat) -> Stat {
    let (mtime, ctime) = (one.mtime.max(other.mtime), one.ctime.max(other.ctime));
    Stat { mode: one.mode & (other.mode | !0o777), mtime, ctime, ..one }
}

/// Returns the array that a document describes; each file is one chunk. The chunks can be located
/// even if there is no such array in Zarr v3.
fn array(
    document: Value,
    zattrs: Option<&Value>,
    keeps_stored: bool,
) -> Result<FoundKind, NodeError> {
    let layout = zarr2::layout(&document)?;
    let (layout, twin) = match zarr2::to_zarr3(&document, zattrs) {
        Ok(twin) => {
            let chain = parse_chain(twin.get("codecs"))?;
            (ShardedArray::unsharded(&twin, chain)?, Ok(twin))
        }
        Err(NoTwin::Metadata(error)) => return Err(error.into()),
        Err(why) => (layout, Err(why.into())),
    };
    let array = FoundArray::of_document(ArrayFormat::Zarr2, layout, unsharded(), twin);
    let stored = keeps_stored.then_some(document);
    // An absent chunk of an array without a fill value stands for nothing in particular.
    Ok(FoundKind::Array(Box::new(FoundArray { stored, keeps_fill: true, ..array })))
}

/// Returns the metadata of the group in `directory`, whose document is at `path`, in Zarr v3 form.
/// It includes the attributes but not the consolidated metadata of other nodes.
pub(super) fn group(
    storage: &dyn Storage,
    directory: &Path,
    path: &Path,
) -> Result<Value, NodeError> {
    let zgroup = read_document(storage, path)?;
    let zattrs = document_at(storage, &directory.join(ZATTRS))?;
    Ok(zarr2::group_to_zarr3(&zgroup, zattrs.as_ref())?)
}
