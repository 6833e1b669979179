//! Frames of Blosc2, each of which is an array by itself: `.b2nd`, those of Caterva, and others.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_json::json;

use super::array::ArrayFormat;
use super::config::{Format, Probe};
use super::error::NodeError;
use super::found::{Found, FoundArray, FoundKind, Unusable};
use super::zarr3;
use crate::format::blosc2::{Blosc2Error, ChunkPlace};
use crate::format::{foreign, json};
use crate::store::formats::blosc2::{Frame, frame, is_frame, metadata};
use crate::store::formats::blosc2_frame;
use crate::store::formats::file_state::FileState;
use crate::store::storage::{FileKind, Stat, Storage};
use crate::text::shown;

/// Reads the frame at a path in the source's root. `None` if it is none, and not said to be one.
pub(super) fn look(
    config: &Probe,
    storage: &dyn Storage,
    (path, stat): (&Path, Stat),
) -> Result<Option<Found>, Box<Unusable>> {
    let unusable = |error: NodeError| Unusable::of(true, path, Some(stat), error);
    let is_named = config.format == Some(Format::Blosc2);
    if stat.kind != FileKind::File {
        return if is_named { Err(unusable(NodeError::NotAFile(stat.kind))) } else { Ok(None) };
    }
    let file = storage.open(path).map_err(|error| unusable(error.into()))?;
    if !is_named && !is_frame(&*file).map_err(|error| unusable(error.into()))? {
        return Ok(None);
    }
    let array = array(&FileState::now(&*file, stat.size), path.as_os_str()).map_err(unusable)?;
    let (kind, path) = (FoundKind::Array(array), path.to_owned());
    Ok(Some(Found { kind, stat: Some(stat), path, documents: zarr3::DOCUMENTS, room: None }))
}

fn array(file: &FileState<'_>, name: &OsStr) -> Result<Box<FoundArray>, NodeError> {
    let found = frame(file)??;
    let opened = found.opened();
    let Frame { header, array, places } = found;
    let fill = ChunkPlace::fill(&places)?;
    let mut documents = Vec::new();
    let mut attributes = serde_json::Map::new();
    if header.has_metadata {
        match metadata(file, &header)? {
            Ok(found) => attributes = found,
            Err(error @ Blosc2Error::Kind(_)) => return Err(error.into()),
            // The array can be read without it.
            Err(error) => log::warn!("{}: metadata is not shown: {error}", shown(Path::new(name))),
        }
        let text = json::to_text(&json!(attributes));
        documents.push((OsString::from("vlmeta.json"), text));
    }
    let mut described = foreign::blosc2_header_json(&header, array.as_ref());
    // What those are that are not stored.
    described["absent_chunks"] = json!(fill.map(|fill| fill.to_string()));
    documents.insert(0, ("header.json".into(), json::to_text(&described)));
    let array = foreign::blosc2(&header, array.as_ref(), fill, attributes)?;
    let format = blosc2_frame(name, opened);
    // A chunk that is absent shows what no other array does.
    let identity = json!({ "fill": fill.map(|fill| fill.to_string()) });
    Ok(FoundArray::of_own_format(ArrayFormat::Blosc2, array, format, documents, identity))
}
