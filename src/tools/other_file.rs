//! Copies of files that are no part of an array: texts, tables, links beside the chunks.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::destination::{Destination, DestinationError};
use super::shard_file::PIECE_BYTES;
use crate::store::storage::Storage;
use crate::text::shown;

/// Extended attributes that belong to users, and not to the system or the filesystem.
const OF_USERS: &[u8] = b"user.";

/// Error of copying a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtherFileError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The copy cannot be written.
    #[error(transparent)]
    Write(#[from] DestinationError),
}

/// Copies a symbolic link with its target unchanged.
pub(super) fn copy_link(
    source: &dyn Storage,
    path: &Path,
    destination: &Destination,
) -> Result<(), OtherFileError> {
    let no_link = || io::Error::from_raw_os_error(libc::EINVAL);
    let target = source.posix().ok_or_else(no_link)?.read_link(path)?;
    let link = || {
        // Creates the directories above and removes what is at the path.
        drop(destination.create_anew(path, 0)?);
        destination.storage.remove_file(path)?;
        destination.storage.symlink(Path::new(&target), path)
    };
    Ok(link().map_err(destination.failed(path))?)
}

/// Copies a file with its permissions and its extended attributes of users.
pub(super) fn copy_file(
    source: &dyn Storage,
    path: &Path,
    destination: &Destination,
) -> Result<(), OtherFileError> {
    let from = source.open(path)?;
    let mode = from.stat()?.mode;
    let to = destination.create_anew(path, mode).map_err(destination.failed(path))?;
    let (mut buffer, mut at) = (vec![0; PIECE_BYTES], 0);
    loop {
        let read = from.read_at(&mut buffer, at)?;
        if read == 0 {
            to.closed().map_err(destination.failed(path))?;
            return copy_xattrs(source, path, destination);
        }
        to.write_at(&buffer[..read], at).map_err(destination.failed(path))?;
        at += read as u64;
    }
}

/// Copies the extended attributes of users, unless one of the filesystems has none.
fn copy_xattrs(
    source: &dyn Storage,
    path: &Path,
    destination: &Destination,
) -> Result<(), OtherFileError> {
    let is = |errno: i32| move |error: &io::Error| error.raw_os_error() == Some(errno);
    let has_none = is(libc::EOPNOTSUPP);
    let Some(source) = source.posix() else { return Ok(()) };
    let names = match source.xattrs(path) {
        Err(error) if has_none(&error) => return Ok(()),
        names => names?,
    };
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(OF_USERS)) {
        let name = OsStr::from_bytes(name);
        let value = match source.xattr(path, name, false) {
            // Removed in the meantime.
            Err(error) if is(libc::ENODATA)(&error) => continue,
            value => value?,
        };
        match destination.storage.set_xattr(path, name, &value, 0) {
            Err(error) if has_none(&error) => return Ok(()),
            set => {
                let of_name = |error: io::Error| {
                    let text = format!("attribute {}: {error}", shown(&name));
                    io::Error::new(error.kind(), text)
                };
                set.map_err(of_name).map_err(destination.failed(path))?;
            }
        }
    }
    Ok(())
}
