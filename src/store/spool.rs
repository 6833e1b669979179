//! Spool files, for bytes that wait for their commit and are too many for memory.
//!
//! ```text
//! <unsaved>/.source                     path of the source whose data is below <unsaved>
//! <unsaved>/.spool/7/open               while it is written
//! <unsaved>/.spool/7/waves/c/0/0/1      once it waits for its commit, by the chunk's path
//! ```
//!
//! A spool file has a name, so that it survives if the process is killed: `shardfs recover
//! --unsaved` finds out from the name which chunk it is, and from its modification time whether
//! something newer was saved of the chunk. It is removed when its bytes are no longer needed.
//!
//! A process that has spool files holds a shared lock (`flock`) of `.source`: until it is released,
//! they are not for others to put in.

mod names;
mod record;

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, Timespec, Timestamps, UTIME_NOW, futimens};
use rustix::io::Errno;

pub(crate) use self::names::{
    OPEN_NAME, OTHER_DIRECTORY, REHEARSAL_DIRECTORY, SOURCE_NAME, SPOOL_DIRECTORY, beside_chunks,
    level_directory, level_of,
};
use self::record::Record;
pub(crate) use self::record::{Claim, remove_if_empty, saved_source};
use crate::text::shown;

/// Attempts at something in a directory that other views of the mount, or `recover`, remove when it is empty.
const ATTEMPTS: usize = 500;

/// Creates spool files in a directory, which is created with the first one.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    next: AtomicU64,
    record: Record,
}

/// Spool file, removed when it is dropped.
#[derive(Debug)]
pub struct SpoolFile {
    file: File,
    /// Its own directory in the spool.
    directory: PathBuf,
    path: Mutex<PathBuf>,
}

impl Spool {
    /// Creates a spool below `unsaved`, the directory for changes of `source` that could not be
    /// committed.
    pub(crate) fn new(unsaved: &Path, source: &Path) -> Self {
        let directory = unsaved.join(SPOOL_DIRECTORY);
        Self { directory, next: AtomicU64::new(0), record: Record::new(unsaved, source) }
    }

    /// Creates the next directory in the spool.
    pub(crate) fn next_directory(&self) -> io::Result<PathBuf> {
        self.next_below(&self.directory)
    }

    /// Creates the next directory in the spool, or in one in it.
    fn next_below(&self, above: &Path) -> io::Result<PathBuf> {
        despite_removal(|| {
            let directory = self.numbered_below(above)?;
            // Only after that, so that what is above is not taken for empty. From then on none of it is
            // removed; until then it may have been.
            let named = self.record.name_source(&directory);
            named.and_then(|()| directory.symlink_metadata()).inspect_err(|_| {
                let _ = fs::remove_dir(&directory);
            })?;
            Ok(directory)
        })
    }

    fn numbered_below(&self, above: &Path) -> io::Result<PathBuf> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let directory = above.join(number.to_string());
            made_again(make_directories(above), above)?;
            match DirBuilder::new().mode(0o700).create(&directory) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
                made => return made.map(|()| directory),
            }
        }
    }

    /// Moves a saved file to the spool, where it stays. `name` is its path relative to the source's
    /// root. Returns where it is.
    pub(crate) fn set_aside(&self, saved: &Path, name: &Path) -> io::Result<PathBuf> {
        let directory = self.next_directory()?;
        let to = directory.join(name);
        let made = to.parent().map_or(Ok(()), make_directories);
        made.and_then(|()| fs::rename(saved, &to)).inspect_err(|_| {
            // There are only empty directories in it.
            let _ = fs::remove_dir_all(&directory);
        })?;
        sync_directories_above(&to, &self.directory)?;
        Ok(to)
    }

    /// Checks that files can be saved, which are given by their paths and lengths in bytes: makes them
    /// all, without their contents, and removes them again. No free space, inodes or quotas tell that,
    /// nor whether names and paths are too long. If the process is killed meanwhile, none of them is
    /// taken for what was saved: they are not in a directory with a number in the spool.
    pub(crate) fn rehearse(&self, files: &[(PathBuf, u64)]) -> io::Result<()> {
        let top = self.directory.join(REHEARSAL_DIRECTORY);
        let next_directory = || self.next_below(&top).map(TemporaryDirectory);
        let (mut directory, mut full) = (next_directory()?, Vec::new());
        for (path, nbytes) in files {
            let is_in_the_way = |error: &io::Error| {
                let kind = error.kind();
                matches!(kind, io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
            };
            match make_file(&directory.0.join(path), *nbytes) {
                // Of another view, or of an array that had this name before: saved files move aside.
                Err(error) if is_in_the_way(&error) => {
                    full.push(std::mem::replace(&mut directory, next_directory()?));
                    make_file(&directory.0.join(path), *nbytes)?;
                }
                done => done?,
            }
        }
        // Each is written under another name first.
        self.create().map(drop)
    }

    /// Creates an empty spool file that only its owner can read.
    pub(crate) fn create(&self) -> io::Result<SpoolFile> {
        let directory = self.next_directory()?;
        let path = directory.join(OPEN_NAME);
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.inspect_err(|_| {
            let _ = fs::remove_dir(&directory);
        })?;
        Ok(SpoolFile { file, directory, path: Mutex::new(path) })
    }
}

/// Repeats what fails because another view of the mount, or `recover`, has removed a directory meanwhile, for it
/// was empty.
fn despite_removal<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut attempts = 1;
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS => {
                attempts += 1;
            }
            done => return done,
        }
    }
}

/// Turns the error of making a directory that was there, and is removed by now, into that of one that is missing.
fn made_again(made: io::Result<()>, path: &Path) -> io::Result<()> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match path.metadata() {
            // It is there once more.
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(error),
            Err(gone) => Err(gone),
        },
        made => made,
    }
}

/// Directory that is removed with all that is in it when this is dropped.
struct TemporaryDirectory(PathBuf);

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // Created by `Spool::next_directory` for this alone.
        if let Err(error) = fs::remove_dir_all(&self.0) {
            log::warn!("{}: it cannot be removed: {error}", shown(&self.0));
        }
    }
}

/// Makes a file, and the directories above it, and takes the room for so many bytes.
fn make_file(path: &Path, nbytes: u64) -> io::Result<()> {
    if let Some(above) = path.parent() {
        make_directories(above)?;
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    if nbytes == 0 {
        return Ok(());
    }
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, nbytes) {
        Err(Errno::OPNOTSUPP) => {
            io::copy(&mut io::repeat(0).take(nbytes), &mut file)?;
            file.sync_all()
        }
        taken => Ok(taken?),
    }
}

impl SpoolFile {
    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file after the chunk whose bytes it holds, a path relative to the source's root,
    /// from now on.
    pub fn name_after(&self, chunk: &Path) -> io::Result<()> {
        self.mark_newest()?;
        let to = self.directory.join(chunk);
        let mut path = self.path.lock();
        if *path == to {
            return Ok(());
        }
        if let Some(above) = to.parent() {
            make_directories(above)?;
        }
        fs::rename(&*path, &to)?;
        *path = to;
        Ok(())
    }
}

impl SpoolFile {
    /// Gives the file a date that tells that its bytes are newer than all that was saved of the same
    /// chunk: they may have been written before.
    pub(crate) fn mark_newest(&self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?)
    }

    /// Makes it the saved file `to`, which is below the same directory as the spool; it stays there.
    pub(crate) fn become_saved(self, to: &Path) -> io::Result<()> {
        fs::rename(&*self.path.lock(), to)
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        // Created by `Spool::create` for this file alone.
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            log::warn!("{}: it cannot be removed: {error}", shown(&self.directory));
        }
    }
}

impl Spool {
    /// Removes the spool, and the directory for changes that could not be committed, if they are
    /// empty.
    pub(crate) fn remove(&self) {
        self.record.release();
        // Errors are ignored: the spool stays if something is in it, and need not exist.
        let _ = fs::remove_dir(self.directory.join(REHEARSAL_DIRECTORY));
        let _ = fs::remove_dir(&self.directory);
        if let Some(unsaved) = self.directory.parent()
            && let Err(error) = remove_if_empty(unsaved)
        {
            log::warn!("{}: it cannot be removed: {error}", shown(unsaved));
        }
    }
}

/// Syncs the directories above a file that is below `top`, so that it keeps its name.
pub(crate) fn sync_directories_above(file: &Path, top: &Path) -> io::Result<()> {
    for above in file.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        let synced = File::open(above).and_then(|directory| directory.sync_all());
        // Those further up may have been made with `top`, or be closed to this process's user.
        if above.starts_with(top) {
            synced?;
        }
    }
    Ok(())
}

/// Creates a directory and those above it, accessible to their owner alone.
pub(crate) fn make_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_saved_is_put_in_by_one_process_and_no_spool_of_a_mount_that_lives() {
        let top = tempfile::tempdir().unwrap();
        let unsaved = top.path().join("unsaved");
        let spool = Spool::new(&unsaved, Path::new("/data/a.zarr"));
        let file = spool.create().unwrap();
        let claim = Claim::take(&unsaved).unwrap().unwrap();
        assert!(claim.is_in_use);
        assert!(Claim::take(&unsaved).unwrap().is_none());
        // A program that another test is about to start has all descriptors, and so the locks, for a
        // moment.
        let soon = |is_it: fn(&Claim) -> bool| {
            (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                Claim::take(&unsaved).unwrap().is_some_and(|claim| is_it(&claim))
            })
        };
        drop(claim);
        assert!(soon(|claim| claim.is_in_use));
        drop((file, spool));
        assert!(soon(|claim| !claim.is_in_use));
        fs::remove_file(unsaved.join(SOURCE_NAME)).unwrap();
        assert!(soon(|claim| !claim.is_in_use));
    }

    /// A program that another test is about to start has all descriptors, and so the locks, for a moment.
    fn removed_soon(spool: &Spool, unsaved: &Path) {
        for _ in 0..500 {
            spool.remove();
            if !unsaved.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it is still there");
    }

    #[test]
    fn a_directory_that_was_removed_is_locked_again() {
        let top = tempfile::tempdir().unwrap();
        let unsaved = top.path().join("unsaved");
        let spool = Spool::new(&unsaved, Path::new("/data/a.zarr"));
        drop(spool.create().unwrap());
        fs::remove_dir_all(&unsaved).unwrap();
        let _file = spool.create().unwrap();
        assert!(Claim::take(&unsaved).unwrap().unwrap().is_in_use);
    }

    #[test]
    fn directories_that_others_remove_when_they_are_empty_are_made_again() {
        let top = tempfile::tempdir().unwrap();
        let unsaved = top.path().join("unsaved");
        let spool = || Spool::new(&unsaved, Path::new("/data/a.zarr"));
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        spool().remove();
                        std::thread::sleep(Duration::from_micros(100));
                    }
                });
            }
            let create = || {
                for n in 0..200 {
                    let spool = spool();
                    let file = spool.create().unwrap();
                    file.name_after(Path::new("c/0")).unwrap();
                    assert_eq!(saved_source(&unsaved).unwrap(), Some("/data/a.zarr".into()), "{n}");
                    spool.rehearse(&[("c/1".into(), 0)]).unwrap();
                    drop(file);
                    spool.remove();
                }
            };
            let ended =
                [scope.spawn(create), scope.spawn(create)].map(std::thread::ScopedJoinHandle::join);
            // Also after a failure: the others wait for that.
            is_done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(Result::unwrap);
        });
        removed_soon(&spool(), &unsaved);
    }

    #[test]
    fn a_rehearsal_finds_out_what_cannot_be_saved_and_leaves_nothing() {
        let top = tempfile::tempdir().unwrap();
        let unsaved = top.path().join("unsaved");
        let spool = Spool::new(&unsaved, Path::new("/data/a.zarr"));
        let rehearse = |files: &[(&str, u64)]| {
            let files: Vec<_> = files.iter().map(|(path, n)| (PathBuf::from(path), *n)).collect();
            let outcome = spool.rehearse(&files);
            let spool = unsaved.join(SPOOL_DIRECTORY);
            assert_eq!(fs::read_dir(spool.join(REHEARSAL_DIRECTORY)).unwrap().count(), 0);
            assert_eq!(fs::read_dir(spool).unwrap().count(), 1, "all is in that directory");
            outcome
        };
        rehearse(&[("a/c/0/1", 1 << 20), ("b", 0), ("a/c/0/1", 5)]).unwrap();
        rehearse(&[("a/c/0/1", 4), ("a/c/0/1/0", 4), ("a/c/0", 4)]).unwrap();
        let name_too_long = rehearse(&[("b", 1), (&"x".repeat(256), 1)]).unwrap_err();
        assert_eq!(name_too_long.raw_os_error(), Some(libc::ENAMETOOLONG));
        assert!(rehearse(&[("a", 1 << 62)]).is_err());
        removed_soon(&spool, &unsaved);
    }

    #[test]
    fn a_spool_file_has_the_name_of_its_chunk_until_it_is_dropped() {
        let top = tempfile::tempdir().unwrap();
        let unsaved = top.path().join("unsaved");
        let spool = Spool::new(&unsaved, Path::new("/data/a.zarr"));
        assert!(!unsaved.exists(), "made only when it is needed");
        let file = spool.create().unwrap();
        assert_eq!(saved_source(&unsaved).unwrap(), Some("/data/a.zarr".into()));
        file.file().write_all_at(b"bytes", 0).unwrap();
        assert_eq!(fs::read(unsaved.join(".spool/0/open")).unwrap(), b"bytes");
        for chunk in ["waves/c/0/1", "waves/c/0/1", "other/c/2"] {
            file.name_after(Path::new(chunk)).unwrap();
            let path = unsaved.join(".spool/0").join(chunk);
            assert_eq!(fs::read(&path).unwrap(), b"bytes");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        let second = spool.create().unwrap();
        drop(file);
        assert!(!unsaved.join(".spool/0/other").exists());
        drop(second);
        removed_soon(&spool, &unsaved);
    }
}
