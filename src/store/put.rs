//! Atomic replacement of whole files, mostly metadata.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content::Content;
use super::lock::has_name;
use super::recover::remove_new;
use super::storage::{PosixFile, PosixStorage, SetStat, Stat, Xattrs};
use super::work::{WORK_DIRECTORY, make_directory, new_name};
use crate::memory::zeroed;
use crate::text::shown;

/// Numbers of the new files, tried one after the other while other processes create files or remove
/// the directory. Commits to the same array count from 1: their new files are not locked, and would
/// be taken for leftovers.
const NUMBERS: Range<u64> = 1 << 32..(1 << 32) + 1000;

/// Length in bytes of the longest file that is in memory as a whole.
const LONGEST_WHOLE: u64 = 1 << 30;

/// Replaces a file, or creates it, and returns once it is durable. At any moment there is the old
/// file or the new one, whole. The new one has the owner and the permissions of the old one before
/// another user can open it.
///
/// It is written in a work directory beside it, where cleaning up after a killed process finds it.
/// It is locked, so that it is not removed before it is complete.
pub(crate) fn put_file(
    storage: &dyn PosixStorage,
    path: &Path,
    content: &Content,
) -> io::Result<()> {
    put_new_file(storage, path, content, 0o666)
}

/// Like [`put_file`], with the permissions of a file that replaces none, before the process's umask
/// is applied.
pub(crate) fn put_new_file(
    storage: &dyn PosixStorage,
    path: &Path,
    content: &Content,
    mode: u32,
) -> io::Result<()> {
    put(storage, path, content, mode, None).map(drop)
}

/// Like [`put_file`], for a file that was moved there: it keeps its owner, permissions and date, as
/// far as this user may set them. Returns the file, open for reading and writing.
pub(crate) fn put_moved_file(
    storage: &dyn PosixStorage,
    path: &Path,
    content: &Content,
    attributes: &SetStat,
) -> io::Result<Arc<dyn PosixFile>> {
    put(storage, path, content, 0o600, Some((attributes, None)))
}

/// Like [`put_moved_file`], for a file with these extended attributes. With an access control list in
/// them it has the permissions of that.
pub(crate) fn put_moved_document(
    storage: &dyn PosixStorage,
    path: &Path,
    content: &Content,
    (attributes, lists): (&SetStat, &Xattrs),
) -> io::Result<()> {
    put(storage, path, content, 0o600, Some((attributes, Some(lists)))).map(drop)
}

/// Like [`put_file`], for a file that replaces one: it has the date in `attributes`.
pub(crate) fn put_written_file(
    storage: &dyn PosixStorage,
    path: &Path,
    content: &Content,
    attributes: &SetStat,
) -> io::Result<()> {
    let date = SetStat { mtime: attributes.mtime, ..SetStat::default() };
    // Others may have removed it in the meantime: then it is like any new file.
    put(storage, path, content, 0o666, None)?.set_stat(&date)
}

fn put(
    storage: &dyn PosixStorage,
    path: &Path,
    content: &Content,
    mode: u32,
    attributes: Option<(&SetStat, Option<&Xattrs>)>,
) -> io::Result<Arc<dyn PosixFile>> {
    let whole = || {
        if content.nbytes() > LONGEST_WHOLE {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let mut bytes = zeroed(content.nbytes())?;
        content.read_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    if let Some(done) = storage.put_whole(path, &whole, None) {
        return done;
    }
    let directory = path.parent().unwrap_or(Path::new(""));
    let work = directory.join(WORK_DIRECTORY);
    let before = match storage.stat(path) {
        Ok(before) => Some(before),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        // The owner and permissions of the existing file would be lost.
        Err(error) => return Err(error),
    };
    // No other user may open it before it has its owner and permissions.
    let mode = if before.is_some() || attributes.is_some() { 0o600 } else { mode };
    let (temporary, file) = make_new(storage, &work, mode)?;
    let write = || {
        let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
        while at < content.nbytes() {
            let read = content.read_at(&mut buffer, at)?;
            file.write_at(&buffer[..read], at)?;
            at += read as u64;
        }
        match (attributes, &before) {
            (Some((attributes, lists)), _) => set_attributes(&*file, attributes, lists)?,
            (None, Some(before)) => {
                if let Some(lists) = lists(storage, path)? {
                    take_lists(&*file, &lists, before)?;
                }
                file.set_owner(before)?;
            }
            (None, None) => (),
        }
        file.sync()?;
        storage.rename(&temporary, path)?;
        storage.sync_directory(directory)?;
        // The file has its own name now, so it is not removed as a leftover.
        file.unlock()
    };
    let written = write().inspect_err(|_| {
        // Once it has its own name, another file may have this one.
        if has_name(storage, &*file, &temporary).unwrap_or(false) {
            drop(storage.remove_file(&temporary));
        }
    });
    // The directory stays if other files are in it.
    let _ = storage.remove_directory(&work);
    written.map(|()| file)
}

/// Checks that files in a directory can be replaced, as far as that can be known before.
pub(crate) fn check_can_put(storage: &dyn PosixStorage, directory: &Path) -> io::Result<()> {
    if storage.posix().is_none() {
        // A store of objects takes a request or does not.
        return Ok(());
    }
    let work = directory.join(WORK_DIRECTORY);
    let (temporary, _file) = make_new(storage, &work, 0o600)?;
    storage.remove_file(&temporary)?;
    let _ = storage.remove_directory(&work);
    Ok(())
}

/// Returns the extended attributes that a file which replaces the one at `path` must have; `None` if
/// this user may not read it, so that no more than its owner is known.
pub(crate) fn lists(storage: &dyn PosixStorage, path: &Path) -> io::Result<Option<Xattrs>> {
    match storage.open_plain(path).and_then(|file| file.lasting_xattrs()) {
        Ok(lists) => Ok(Some(lists)),
        Err(error) if is_unreadable(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_unreadable(error: &io::Error) -> bool {
    let unreadable = [libc::EACCES, libc::EPERM, libc::ELOOP, libc::ENOENT];
    error.raw_os_error().is_some_and(|errno| unreadable.contains(&errno))
}

/// Sets the attributes of a file, and its access control list if one is given or is to be none. Only root
/// can give files away: if that fails, the file stays this user's, with the same permissions.
fn set_attributes(
    file: &dyn PosixFile,
    attributes: &SetStat,
    lists: Option<&Xattrs>,
) -> io::Result<()> {
    let mut set = *attributes;
    // A list is for the file's group, so it comes after the owner; until then no other user may open it.
    if let Some(lists) = lists {
        let owner = SetStat { uid: set.uid.take(), gid: set.gid.take(), ..SetStat::default() };
        match file.set_stat(&owner) {
            Err(error) if error.raw_os_error() != Some(libc::EPERM) => return Err(error),
            _ => file.take_xattrs(lists)?,
        }
        set.mode = set.mode.filter(|_| lists.is_empty());
    }
    match file.set_stat(&set) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            file.set_stat(&SetStat { uid: None, gid: None, ..set })
        }
        set => set,
    }
}

/// Creates a new file in a work directory, which is created if it is missing.
fn make_new(
    storage: &dyn PosixStorage,
    work: &Path,
    mode: u32,
) -> io::Result<(PathBuf, Arc<dyn PosixFile>)> {
    for number in NUMBERS {
        make_directory(storage, work).map_err(io::Error::other)?;
        let path = work.join(new_name(number));
        match storage.create(&path, mode) {
            Ok(file) => {
                // Another process may be about to remove it as a leftover.
                if file.try_lock()? && has_name(storage, &*file, &path)? {
                    return Ok((path, file));
                }
            }
            // Left by a process that was killed or could not remove it, or about to be renamed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if let Err(error) = remove_new(storage, &path) {
                    log::debug!("{}: {error}", shown(&path));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// Gives a new file the owner and permissions in `like`, and these extended attributes. An access
/// control list is for the file's group, so it comes after the owner; until then no other user may
/// open the file.
pub(crate) fn take_lists(file: &dyn PosixFile, xattrs: &Xattrs, like: &Stat) -> io::Result<()> {
    file.set_owner(&Stat { mode: 0o600, ..*like })?;
    file.take_xattrs(xattrs)?;
    file.set_owner(like)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::local::LocalStorage;

    #[test]
    fn new_files_of_a_running_commit_stay() {
        let top = tempfile::tempdir().unwrap();
        let work = top.path().join("d/.shardfs");
        fs::create_dir_all(&work).unwrap();
        let of_commit = [1, 2, 3].map(|number| work.join(new_name(number)));
        of_commit.iter().for_each(|path| fs::write(path, [1]).unwrap());
        let storage = LocalStorage::open_root(top.path(), Arc::default()).unwrap();
        put_file(&storage, Path::new("d/f"), &Content::Memory(vec![3].into())).unwrap();
        assert!(of_commit.iter().all(|path| fs::read(path).unwrap() == [1]));
    }

    #[test]
    fn what_a_killed_process_has_left_goes_with_the_next_file() {
        let top = tempfile::tempdir().unwrap();
        let work = top.path().join("d/.shardfs");
        let [first, second] = [0, 1].map(|at| new_name(NUMBERS.start + at));
        fs::create_dir_all(&work).unwrap();
        fs::write(work.join(&first), [1]).unwrap();
        fs::write(work.join(&second), [2]).unwrap();
        let storage = LocalStorage::open_root(top.path(), Arc::default()).unwrap();
        let put = || put_file(&storage, Path::new("d/f"), &Content::Memory(vec![3].into()));
        // A file that is locked: its process is still writing it.
        let held = storage.open_writable(&Path::new("d/.shardfs").join(&second)).unwrap();
        assert!(held.try_lock().unwrap());
        put().unwrap();
        assert!(!work.join(&first).exists() && work.join(&second).exists());
        drop(held);
        fs::write(work.join(&first), [1]).unwrap();
        put().unwrap();
        assert!(!work.exists());
        assert_eq!(fs::read(top.path().join("d/f")).unwrap(), [3]);
    }
}
