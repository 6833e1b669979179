//! The last steps of gathering, after which there is no way back: chunk files go, shards come, the document last.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::keys::Item;
use super::made::{PLACING, clear};
use super::{GatherError, Gathering, Passed, SETTLED, hash_of};
use crate::format::Coords;
use crate::memory::zeroed;
use crate::store::consolidated::describe_in_groups;
use crate::store::content::Content;
use crate::store::document::METADATA_FILE;
use crate::store::error::StoreError;
use crate::store::storage::{FileKind, PosixStorage, SetStat, StorageFile, if_present};
use crate::store::work::{SHARD_LOCK, WORK_DIRECTORY};
use crate::store::{Freshness, StagedChunk, io_error};
use crate::text::shown;

type Result<T> = std::result::Result<T, StoreError>;

/// Attempts to find each chunk file as it was when its bytes were read.
const ATTEMPTS: usize = 20;

/// Gathering of which each chunk is in a durable shard, and the document beside them: it is carried out, now or by
/// [`super::recover`].
pub(crate) struct Decided<'a>(Gathering<'a>);

/// What has become of the chunk files.
struct Removed {
    /// Directories that were empty.
    empty: Vec<PathBuf>,
    /// `true` if there was any file.
    has_found_any: bool,
    /// Why one of the files is still there.
    left: Option<StoreError>,
}

impl<'a> Gathering<'a> {
    /// Decides that the array is to be in its place. `put` writes its document durably to the path that it is given.
    ///
    /// No file may be written, created or removed in the directory from the last pass on until the array is in its
    /// place.
    pub(crate) fn decide(
        self,
        put: impl FnOnce(&dyn PosixStorage, &Path) -> io::Result<()>,
    ) -> std::result::Result<Decided<'a>, GatherError> {
        let document = self.array.path.join(METADATA_FILE);
        let decide = || {
            self.store.finish_commits(&self.array)?;
            // The names of all directories above the shards, from the first one that this process has made.
            sync(self.posix, &self.directory.join(WORK_DIRECTORY))?;
            sync(self.posix, &self.directory)?;
            put(self.posix, &document).map_err(io_error(&document))
        };
        let Err(error) = decide() else { return Ok(Decided(self)) };
        // It may be there in spite of the error, and would decide later on.
        let removed = remove_if_there(self.posix, &document);
        match removed.and_then(|()| sync(self.posix, &self.array.path)) {
            Ok(()) => {
                self.give_up();
                Err(error.into())
            }
            Err(other) => {
                log::error!("{error}; {other}");
                self.journal.leave();
                Err(GatherError::Decided(self.directory))
            }
        }
    }
}

impl Decided<'_> {
    /// Puts the array into its place. Returns directories of chunks that were empty.
    ///
    /// # Errors
    /// The array is not in its place. Whoever uses the directory next goes on.
    pub(crate) fn place(mut self) -> std::result::Result<Vec<PathBuf>, GatherError> {
        let placed = self.0.carry_on();
        self.0.end(placed)
    }
}

impl Gathering<'_> {
    /// Ends the work in the directory.
    pub(super) fn end<T>(
        self,
        done: std::result::Result<T, GatherError>,
    ) -> std::result::Result<T, GatherError> {
        match &done {
            Ok(_) => self.journal.remove()?,
            Err(_) => self.journal.leave(),
        }
        done
    }

    /// Goes on from wherever an earlier attempt has ended, once every chunk file is known.
    pub(super) fn carry_on(&mut self) -> std::result::Result<Vec<PathBuf>, GatherError> {
        let made = self.array.path.clone();
        let (document, placing) = (made.join(METADATA_FILE), made.join(PLACING));
        let mut empty = Vec::new();
        if self.is_placed([&placing, &document])? {
            // It comes last. What else is in its place may have been changed since.
            sync(self.posix, &self.directory)?;
            self.remove_names(&placing)?;
            return Ok(empty);
        }
        if if_present(self.posix.lstat(&placing)).map_err(io_error(&placing))?.is_none() {
            empty = self.replace_chunk_files()?;
            name_as_well(self.posix, &document, &placing)?;
        }
        sync(self.posix, &made)?;
        // It must not come back alone: the shards would be taken for chunk files.
        remove_if_there(self.posix, &document)?;
        sync(self.posix, &made)?;
        // Groups that describe the chunk files must not describe shards like that.
        describe_in_groups(self.source, &self.directory, &self.document)
            .map_err(io_error(&self.directory))?;
        self.place_shards()?;
        name_as_well(self.posix, &placing, &self.directory.join(METADATA_FILE))?;
        sync(self.posix, &self.directory)?;
        self.remove_names(&placing)?;
        self.remove_empty_directories();
        Ok(empty)
    }

    /// Returns whether the array's document is in its place already.
    ///
    /// # Errors
    /// `InTheWay` if another one is: nothing is removed or placed then.
    fn is_placed(&self, own: [&Path; 2]) -> Result<bool> {
        let path = self.directory.join(METADATA_FILE);
        let Some(there) = if_present(self.posix.lstat(&path)).map_err(io_error(&path))? else {
            return Ok(false);
        };
        let is_own = |name: &&Path| self.posix.lstat(name).is_ok_and(|own| own.id() == there.id());
        match own.iter().any(is_own) {
            true => Ok(true),
            false => Err(StoreError::InTheWay { path }),
        }
    }

    /// Removes the directories in which there were chunk files and are no shards.
    fn remove_empty_directories(&self) {
        let removed = self.chunks.walk(self.posix, &self.directory, &mut |item| {
            if let Item::Left { directory, .. } = item {
                // It stays if there is anything in it.
                let _ = self.posix.remove_directory(&directory);
            }
            Ok::<(), StoreError>(())
        });
        let _ = removed.inspect_err(|error| log::debug!("{error}"));
    }

    /// Removes the chunk files, each once a shard has its bytes: of those that other processes have written since
    /// the last pass, what they have written. Returns the directories that were empty.
    fn replace_chunk_files(&mut self) -> std::result::Result<Vec<PathBuf>, GatherError> {
        let mut removed = self.remove_known()?;
        let empty = std::mem::take(&mut removed.empty);
        for _ in 0..ATTEMPTS {
            match removed.left {
                None if !removed.has_found_any => return Ok(empty),
                None => (),
                Some(_) => self.gather_anew()?,
            }
            removed = self.remove_known()?;
        }
        match removed.left {
            Some(left) => Err(left.into()),
            None => Ok(empty),
        }
    }

    /// Puts the chunk files that are still there into shards.
    fn gather_anew(&mut self) -> std::result::Result<(), GatherError> {
        // The files that were removed by this process are no removed chunks.
        self.known.clear();
        if let Passed::Other(_) = self.last_pass()? {
            // Others may be about to rename it to a chunk.
            std::thread::sleep(SETTLED);
        }
        Ok(self.store.finish_commits(&self.array)?)
    }

    /// Removes the chunk files of which a shard is known to have the bytes.
    fn remove_known(&self) -> std::result::Result<Removed, GatherError> {
        let (posix, chunks) = (self.posix, &self.chunks);
        let (mut empty, mut left, mut has_found_any) = (Vec::new(), None, false);
        chunks.walk(posix, &self.directory, &mut |item| {
            has_found_any |= !matches!(item, Item::Left { .. });
            match item {
                Item::File(path, coords) => {
                    if !self.remove_if_known(&path, &coords)? {
                        left = Some(StoreError::Changing { shard: path });
                    }
                }
                Item::Other(path) => left = Some(StoreError::InTheWay { path }),
                Item::Left { directory, was_empty } => {
                    // Other mounts may have removed it.
                    if_present(posix.sync_directory(&directory)).map_err(io_error(&directory))?;
                    empty.extend(was_empty.then_some(directory));
                }
            }
            Ok::<(), GatherError>(())
        })?;
        sync(posix, &self.directory)?;
        Ok(Removed { empty, has_found_any, left })
    }

    /// Removes a chunk file if a shard has its bytes: what others have written to it until its last name was gone,
    /// too. Returns whether it is gone.
    fn remove_if_known(
        &self,
        path: &Path,
        coords: &Coords,
    ) -> std::result::Result<bool, GatherError> {
        let file = match if_present(self.posix.open_plain(path)) {
            Ok(Some(file)) => file,
            // Others have removed it.
            Ok(None) => return Ok(true),
            // It is another kind of file by now.
            Err(_) => return Ok(false),
        };
        let before = file.stat().map_err(io_error(path))?;
        let known = self.known.version(self.chunks.number(coords));
        if Some(hash_of(&before.version())) != known {
            return Ok(false);
        }
        self.posix.remove_file(path).map_err(io_error(path))?;
        // Who writes to it from now on finds that it is gone.
        let after = file.stat().map_err(io_error(path))?;
        if (after.size, after.mtime) != (before.size, before.mtime) {
            self.gather_late(path, coords, &*file)?;
        }
        Ok(true)
    }

    /// Puts into its shard what was written to a chunk file at the moment of its removal.
    fn gather_late(
        &self,
        path: &Path,
        coords: &Coords,
        file: &dyn StorageFile,
    ) -> std::result::Result<(), GatherError> {
        let stat = file.stat().map_err(io_error(path))?;
        let mut bytes = zeroed(stat.size).map_err(|error| io_error(path)(error.into()))?;
        let found = file.read_at(&mut bytes, 0).map_err(io_error(path))?;
        bytes.truncate(found);
        let bytes = Arc::new(bytes);
        let commit = || {
            let content = Some(Content::Memory(Arc::clone(&bytes)));
            let base = self.store.base(&self.array, coords, Freshness::Now)?;
            let (coords, maker) = (coords.clone(), self.maker);
            self.commit(&[StagedChunk { coords, content, base, maker, with: Vec::new() }])?;
            Ok(self.store.finish_commits(&self.array)?)
        };
        commit().inspect_err(|_| {
            // It has no name any more: it gets another file, which the next attempt finds.
            let put = || {
                let new = self.posix.create(path, stat.mode & 0o777)?;
                let owner =
                    SetStat { uid: Some(stat.uid), gid: Some(stat.gid), ..SetStat::default() };
                new.write_at(&bytes, 0)?;
                new.set_stat(&owner)?;
                new.sync_all()
            };
            if let Err(error) = put() {
                log::error!("{}: what was written to it last is lost: {error}", shown(&path));
            }
        })
    }

    /// Gives the shards their names in the array.
    fn place_shards(&self) -> Result<()> {
        let (posix, made) = (self.posix, &self.array.path);
        let mut changed = BTreeSet::from([self.directory.clone()]);
        self.shards.walk(posix, made, &mut |item| {
            let Item::File(from, _) = item else { return Ok(()) };
            let name = from.strip_prefix(made).unwrap_or(&from);
            let above = name.parent().unwrap_or(Path::new(""));
            make_directories(posix, (made, &self.directory), above)?;
            let all = above.ancestors().map(|above| self.directory.join(above));
            changed.extend(all.take_while(|above| above.starts_with(&self.directory)));
            name_as_well(posix, &from, &self.directory.join(name))
        })?;
        // Those below come before those that they are in.
        changed.iter().rev().try_for_each(|directory| sync(posix, directory))
    }

    /// Removes the names that the document and shards have had while the array was made. That of the document goes
    /// first: as long as it is there, the array is not in its place, which whoever uses it may change from now on.
    fn remove_names(&self, placing: &Path) -> Result<()> {
        let (posix, made) = (self.posix, &self.array.path);
        remove_if_there(posix, placing)?;
        sync(posix, made)?;
        self.shards.walk(posix, made, &mut |item| {
            match item {
                Item::File(path, _) => posix.remove_file(&path).map_err(io_error(&path))?,
                Item::Left { directory, .. } => {
                    posix.remove_directory(&directory).map_err(io_error(&directory))?;
                }
                // Of a commit that was interrupted: this process holds the lock of all of them.
                Item::Other(path) if path.to_string_lossy().ends_with(SHARD_LOCK) => {
                    posix.remove_file(&path).map_err(io_error(&path))?;
                }
                Item::Other(path) => return Err(StoreError::InTheWay { path }),
            }
            Ok(())
        })?;
        // What an interrupted commit has left of its work is in it still.
        clear(posix, made)
    }
}

/// Gives a file another name, which may be its own already. The first name stays, unless the filesystem has no
/// files of two names.
fn name_as_well(posix: &dyn PosixStorage, from: &Path, to: &Path) -> Result<()> {
    const NO_LINKS: [i32; 4] = [libc::EPERM, libc::EOPNOTSUPP, libc::ENOSYS, libc::EMLINK];
    let in_the_way = || StoreError::InTheWay { path: to.to_owned() };
    match posix.link(from, to) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            let id = |path: &Path| Some(posix.lstat(path).ok()?.id());
            match id(from).is_some() && id(from) == id(to) {
                true => Ok(()),
                false => Err(in_the_way()),
            }
        }
        Err(error) if error.raw_os_error().is_some_and(|errno| NO_LINKS.contains(&errno)) => {
            match if_present(posix.lstat(to)).map_err(io_error(to))? {
                Some(_) => Err(in_the_way()),
                None => posix.rename(from, to).map_err(io_error(to)),
            }
        }
        Err(error) => Err(io_error(to)(error)),
    }
}

/// Creates the directories of a path in one directory that another one has, with owner and permissions.
fn make_directories(
    posix: &dyn PosixStorage,
    (like, directory): (&Path, &Path),
    path: &Path,
) -> Result<()> {
    let mut above: Vec<&Path> = path.ancestors().filter(|it| !it.as_os_str().is_empty()).collect();
    above.reverse();
    for name in above {
        let (from, to) = (like.join(name), directory.join(name));
        match posix.create_directory(&to) {
            Ok(()) => give_like(posix, &from, &to)?,
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                let made = posix.lstat(&from).map_err(io_error(&from))?;
                let there = posix.lstat(&to).map_err(io_error(&to))?;
                // Others could put a directory of another user there. One of this user may be from an attempt that
                // was interrupted before it was given away.
                let is_own = there.uid == rustix::process::geteuid().as_raw();
                if there.kind != FileKind::Directory || there.uid != made.uid && !is_own {
                    return Err(StoreError::InTheWay { path: to });
                }
                if there.uid != made.uid {
                    give_like(posix, &from, &to)?;
                }
            }
            Err(error) => return Err(io_error(&to)(error)),
        }
    }
    Ok(())
}

/// Gives a new directory the owner and the permissions of another one, as far as this user may.
fn give_like(posix: &dyn PosixStorage, like: &Path, directory: &Path) -> Result<()> {
    let stat = posix.lstat(like).map_err(io_error(like))?;
    let (uid, gid, mode) = (Some(stat.uid), Some(stat.gid), Some(stat.mode & 0o7777));
    let set = SetStat { uid, gid, mode, ..SetStat::default() };
    let given = posix.give_new(directory, &set);
    // It stays this user's.
    let _ = given.inspect_err(|error| log::debug!("{}: {error}", shown(&directory)));
    Ok(())
}

fn remove_if_there(posix: &dyn PosixStorage, path: &Path) -> Result<()> {
    if_present(posix.remove_file(path)).map(drop).map_err(io_error(path))
}

fn sync(posix: &dyn PosixStorage, directory: &Path) -> Result<()> {
    posix.sync_directory(directory).map_err(io_error(directory))
}
