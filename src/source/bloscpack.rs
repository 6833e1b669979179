//! Bloscpack files, each of which is an array by itself.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_json::Value;

use super::array::ArrayFormat;
use super::config::Probe;
use super::error::NodeError;
use super::found::{Found, FoundArray, FoundKind, Unusable};
use super::zarr3;
use crate::format::{foreign, json};
use crate::store::formats::bloscpack::file;
use crate::store::formats::file_state::FileState;
use crate::store::formats::one_file;
use crate::store::journal::pending_if_readable;
use crate::store::recover::record_of;
use crate::store::storage::{FileKind, Stat, Storage};

/// Reads the Bloscpack file at a path in the source's root, with its attributes.
pub(super) fn look(
    config: &Probe,
    storage: &dyn Storage,
    (path, stat): (&Path, Stat),
) -> Result<Option<Found>, Box<Unusable>> {
    let array = array(storage, path.as_os_str(), &stat, config.grows);
    let array = array.map_err(|error| Unusable::of(true, path, Some(stat), error))?;
    let (kind, path) = (FoundKind::Array(array), path.to_owned());
    Ok(Some(Found { kind, stat: Some(stat), path, documents: zarr3::DOCUMENTS, room: None }))
}

/// Reads the Bloscpack file `name`. If it `grows`, spare offsets count as room for more chunks.
fn array(
    storage: &dyn Storage,
    name: &OsStr,
    stat: &Stat,
    grows: bool,
) -> Result<Box<FoundArray>, NodeError> {
    if stat.kind != FileKind::File {
        return Err(NodeError::NotAFile(stat.kind));
    }
    let file = storage.open(Path::new(name))?;
    let pending = pending_if_readable(storage, Path::new(""), |error| log::warn!("{error}"))?;
    let pending = pending.as_ref().and_then(|record| record_of(record, Path::new(name)));
    // If neither state can be restored, the file is read as it is now: damage shows in its chunks.
    let state = FileState::durable(&*file, stat.size, pending)?;
    let state = state.unwrap_or_else(|| FileState::now(&*file, stat.size));
    let head = file::head(&state)??;
    let nchunks = match head.header.nchunks {
        Some(nchunks) => nchunks,
        None => file::contents(&state, &head)?.ranges.len() as u64,
    };
    let text = head.metadata.as_ref().map(|(_, text)| text);
    let metadata = text.and_then(|text| json::parse(text).ok());
    let place = head.metadata.as_ref().map(|(place, _)| place);
    let is_bare = place.is_some_and(|place| place.is_bare);
    let spare = match head.offsets {
        Some(_) if grows && !is_bare => head.header.spare_offsets()?,
        _ => 0,
    };
    let array = foreign::bloscpack(&head.header, nchunks, spare, metadata.as_ref())?;
    let header = foreign::header_json(&head.header, place);
    let mut documents = vec![(OsString::from("header.json"), json::to_text(&header))];
    if let Some(text) = text {
        documents.push(("metadata.json".into(), text.clone()));
    }
    let format = one_file(name);
    Ok(FoundArray::of_own_format(ArrayFormat::Bloscpack, array, format, documents, Value::Null))
}
