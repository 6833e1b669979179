//! Files that are replaced as a whole: metadata, for the most part.

use std::io;
use std::path::{Path, PathBuf};

use super::content::Content;
use super::storage::Storage;

/// Writes a file in the place of the one that is there, if there is one, and returns once it is safe.
/// At any moment there is the old file or the new one, whole; the new one has the owner and the
/// permissions of the old one.
pub fn put_file(storage: &dyn Storage, path: &Path, content: &Content) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".shardfs-new");
    let temporary = PathBuf::from(temporary);
    let _ = storage.remove_file(&temporary);
    let write = || {
        let file = storage.create(&temporary, 0o666)?;
        let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
        while at < content.nbytes() {
            let read = content.read_at(&mut buffer, at)?;
            file.write_at(&buffer[..read], at)?;
            at += read as u64;
        }
        if let Ok(before) = storage.stat(path) {
            file.set_owner(&before)?;
        }
        file.sync()?;
        storage.rename(&temporary, path)?;
        storage.sync_directory(path.parent().unwrap_or(Path::new("")))
    };
    write().inspect_err(|_| drop(storage.remove_file(&temporary)))
}
