//! Data sets of webknossos-wrap: directories with a `header.wkw`.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::json;

use super::array::ArrayFormat;
use super::config::Probe;
use super::error::NodeError;
use super::found::{Found, FoundArray, FoundKind, Unusable};
use super::zarr3;
use crate::format::chunk_key::number;
use crate::format::json;
use crate::format::wkw::{HEADER, HEADER_BYTES, WkwError, WkwHeader};
use crate::store::formats::wkw_files;
use crate::store::storage::{Stat, Storage, if_present};

/// Maximum number of names that are looked at to find out how far a data set reaches.
const MAX_NAMES: usize = 1 << 22;

/// Maximum number of files that a data set would have without gaps: each is looked for.
const MAX_FILES: u64 = 1 << 24;

/// Looks for the data set in a directory.
pub(super) fn look(
    _config: &Probe,
    storage: &dyn Storage,
    directory: &Path,
) -> Result<Option<Found>, Box<Unusable>> {
    let path = directory.join(HEADER);
    let unreadable = |error: io::Error| Unusable::new(directory, None, error);
    let Some(stat) = if_present(storage.stat(&path)).map_err(unreadable)? else { return Ok(None) };
    let array = array(storage, directory, &path, &stat);
    let array = array.map_err(|error| Unusable::of(true, &path, Some(stat), error))?;
    let (kind, stat, path) = (FoundKind::Array(array), Some(stat), directory.to_owned());
    Ok(Some(Found { kind, stat, path, documents: zarr3::DOCUMENTS, room: None }))
}

fn array(
    storage: &dyn Storage,
    directory: &Path,
    path: &Path,
    stat: &Stat,
) -> Result<Box<FoundArray>, NodeError> {
    let mut bytes = [0; HEADER_BYTES];
    let read = storage.open(path)?.read_at(&mut bytes, 0)?;
    let header = WkwHeader::parse(&bytes[..read], stat.size)?;
    let files = reach(storage, directory)?;
    let array = header.array(files)?;
    let documents = vec![("header.json".into(), json::to_text(&header.json()))];
    let format = wkw_files(header);
    let identity = json!({ "files": files });
    Ok(FoundArray::of_own_format(ArrayFormat::Wkw, array, format, documents, identity))
}

/// Returns how many files a data set has along x, y and z at most, by their names.
fn reach(storage: &dyn Storage, directory: &Path) -> Result<[u64; 3], NodeError> {
    let mut left = MAX_NAMES;
    let mut reach = [0; 3];
    for z in numbers(storage, directory, ("z", ""), &mut left)? {
        let planes = directory.join(format!("z{z}"));
        for y in numbers(storage, &planes, ("y", ""), &mut left)? {
            let row = planes.join(format!("y{y}"));
            for x in numbers(storage, &row, ("x", ".wkw"), &mut left)? {
                for (most, at) in reach.iter_mut().zip([x, y, z]) {
                    let beyond = || WkwError::Names(format!("z{z}/y{y}/x{x}.wkw"));
                    *most = at.checked_add(1).ok_or_else(beyond)?.max(*most);
                }
            }
        }
    }
    let files = reach.iter().try_fold(1_u64, |files, along| files.checked_mul(*along));
    match files.is_some_and(|files| files <= MAX_FILES) {
        true => Ok(reach),
        false => Err(WkwError::Limit("data sets").into()),
    }
}

/// Returns the numbers in the names of a directory that have these beginnings and ends.
fn numbers(
    storage: &dyn Storage,
    directory: &Path,
    (before, behind): (&str, &str),
    left: &mut usize,
) -> Result<Vec<u64>, NodeError> {
    let mut found = Vec::new();
    let listed = storage.list(directory, 0, &mut |item| {
        let Some(less) = left.checked_sub(1) else { return ControlFlow::Break(()) };
        *left = less;
        let name = item.name.to_str().and_then(|name| name.strip_prefix(before));
        found.extend(name.and_then(|name| name.strip_suffix(behind)).and_then(number));
        ControlFlow::Continue(())
    });
    match listed {
        // A file has the name of a directory.
        Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(()) if *left == 0 => Err(WkwError::Limit("data sets").into()),
        Ok(()) => Ok(found),
    }
}
