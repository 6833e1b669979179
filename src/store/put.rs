//! Files that are replaced as a whole: metadata, for the most part.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content::Content;
use super::lock::has_name;
use super::storage::{Stat, Storage, StorageFile};
use super::work::{WORK_DIRECTORY, make_directory, new_name};

/// Others who make files or remove the directory are given way to so many times.
const ATTEMPTS: u64 = 1000;

/// Writes a file in the place of the one that is there, if there is one, and returns once it is safe.
/// At any moment there is the old file or the new one, whole; the new one has the owner and the
/// permissions of the old one before anybody can open it.
///
/// It is written in a work directory beside it, where whoever clears up after a killed process finds
/// it. It is locked, so nobody does before.
pub fn put_file(storage: &dyn Storage, path: &Path, content: &Content) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let work = directory.join(WORK_DIRECTORY);
    let before = storage.stat(path).ok();
    let (temporary, file) = make_new(storage, &work, before.as_ref())?;
    let write = || {
        let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
        while at < content.nbytes() {
            let read = content.read_at(&mut buffer, at)?;
            file.write_at(&buffer[..read], at)?;
            at += read as u64;
        }
        if let Some(before) = &before {
            file.set_owner(before)?;
        }
        file.sync()?;
        storage.rename(&temporary, path)?;
        storage.sync_directory(directory)
    };
    let written = write().inspect_err(|_| drop(storage.remove_file(&temporary)));
    // Whoever has something else in it needs it.
    let _ = storage.remove_directory(&work);
    written
}

/// A new file in a work directory, which is made where it is missing.
fn make_new(
    storage: &dyn Storage,
    work: &Path,
    before: Option<&Stat>,
) -> io::Result<(PathBuf, Arc<dyn StorageFile>)> {
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    for number in 1..ATTEMPTS {
        make_directory(storage, work).map_err(io::Error::other)?;
        let path = work.join(new_name(number));
        match storage.create(&path, mode) {
            Ok(file) => {
                // Somebody may be about to clear it up.
                if file.try_lock()? && has_name(storage, &*file, &path)? {
                    return Ok((path, file));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}
