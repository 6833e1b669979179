//! The directory in which an array is made.

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;

use crate::format::chunk_key::may_be_key;
use crate::format::json;
use crate::store::document::{METADATA_FILE, text_of};
use crate::store::error::StoreError;
use crate::store::io_error;
use crate::store::journal::is_work_file;
use crate::store::storage::{DirItem, FileKind, PosixStorage, Storage, if_present, kind_of};
use crate::store::work::{SHARD_LOCK, WORK_DIRECTORY, is_new_name};

/// Directory in a work directory in which an array is made.
pub(super) const GATHERED: &str = "gathered";
/// Name that the document has besides, once no chunk file is left.
pub(super) const PLACING: &str = "placing.json";

type Result<T> = std::result::Result<T, StoreError>;

/// Returns whether an array is to be in a directory of which not everything is in its place.
pub(crate) fn is_decided(posix: &dyn PosixStorage, directory: &Path) -> bool {
    let made = directory.join(WORK_DIRECTORY).join(GATHERED);
    let is_there = |name: &str| posix.lstat(&made.join(name)).is_ok();
    check_private(posix, &made).is_ok() && (is_there(METADATA_FILE) || is_there(PLACING))
}

/// The same of a source that may be read only, whoever has made it.
pub(crate) fn is_unplaced(storage: &dyn Storage, directory: &Path) -> bool {
    let made = directory.join(WORK_DIRECTORY).join(GATHERED);
    let is_there = |name: &str| storage.lstat(&made.join(name)).is_ok();
    storage.posix().is_some() && (is_there(METADATA_FILE) || is_there(PLACING))
}

/// Returns whether all chunks are in shards in the directory in which an array is made.
pub(super) fn is_complete(posix: &dyn PosixStorage, made: &Path) -> Result<bool> {
    Ok(read_document(posix, made)?.is_some())
}

/// Returns the document of an array that is complete and not yet in its place. `None` if there is none.
pub(super) fn read_document(posix: &dyn PosixStorage, made: &Path) -> Result<Option<Value>> {
    for name in [PLACING, METADATA_FILE] {
        let path = made.join(name);
        let file = if_present(posix.open_plain(&path)).map_err(io_error(&path))?;
        let Some(file) = file else { continue };
        let text = text_of(&*file).map_err(io_error(&path))?;
        let parsed = json::parse(&text).map_err(std::io::Error::other);
        return parsed.map(Some).map_err(io_error(&path));
    }
    Ok(None)
}

/// Checks that a directory is one that no other user could have made: what is in it decides what is removed.
pub(super) fn check_private(posix: &dyn PosixStorage, made: &Path) -> Result<()> {
    let stat = posix.lstat(made).map_err(io_error(made))?;
    let own = rustix::process::geteuid().as_raw();
    match [own, 0].contains(&stat.uid) && stat.mode & 0o022 == 0 {
        true => Ok(()),
        false => Err(StoreError::InTheWay { path: made.to_owned() }),
    }
}

/// Removes an array in the making. What has other names than commits give stays, and the directory with it.
pub(super) fn clear(posix: &dyn PosixStorage, directory: &Path) -> Result<()> {
    let (mut items, mut failed) = (Vec::new(), Ok(()));
    let collect = &mut |item: DirItem<'_>| {
        match kind_of(posix, directory, &item) {
            Ok(kind) => items.extend(kind.map(|kind| (item.name.to_owned(), kind))),
            Err(error) => failed = Err(error),
        }
        if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let listed = if_present(posix.list(directory, 0, collect));
    listed.and(failed).map_err(io_error(directory))?;
    for (name, kind) in items {
        let path = directory.join(&name);
        let key = name.to_str().map(|name| name.strip_suffix(SHARD_LOCK).unwrap_or(name));
        let is_key = key.is_some_and(may_be_key);
        match kind {
            FileKind::Directory if is_key || name == WORK_DIRECTORY => clear(posix, &path)?,
            FileKind::File if is_key || is_new_name(&name) || is_work_file(&name) => {
                posix.remove_file(&path).map_err(io_error(&path))?;
            }
            _ => (),
        }
    }
    posix.remove_directory(directory).map_err(io_error(directory))
}
