//! Recognition of unfinished copies: destinations that a command has begun and not completed.
//!
//! Most of the metadata is absent there, so they would look like folders of nothing, and the chunks
//! that are not copied yet like absent ones. Only the marker proves that a directory is one: mounts
//! keep a work directory of the same name.

use std::path::Path;

use super::document::read_text;
use crate::format::marker::{MARKER, MAX_BYTES, describe, parse};
use crate::store::storage::{FileKind, Storage};
use crate::store::work::WORK_DIRECTORY;

/// Returns the command that has begun the copy at a directory, but not completed it; `None` if there
/// is no such copy, or if that cannot be determined.
pub(crate) fn unfinished_by(storage: &dyn Storage, directory: &Path) -> Option<String> {
    let work = directory.join(WORK_DIRECTORY);
    let marker = work.join(MARKER);
    let stat = storage.lstat(&marker).ok()?;
    let is_plain = stat.kind == FileKind::File && stat.links <= 1 && stat.size <= MAX_BYTES;
    if !is_plain || storage.lstat(&work).ok()?.kind != FileKind::Directory {
        return None;
    }
    let (_, job) = parse(&read_text(storage, &marker).ok()?)?;
    Some(describe(&job))
}
