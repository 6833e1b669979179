//! Preparation of a commit, with all steps that can fail before a shard is changed: locks,
//! comparisons, the plan, new files under other names, the record.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::group::Group;
use super::members::{Examined, Members, dependent, examine};
use super::staged::{Commit, Maker, Old, Shard, Work, redate};
use crate::format::Coords;
use crate::format::index::ByteRange;
use crate::format::journal::{CheckedRange, ShardRecord};
use crate::format::plan::{Blob, Facts, Plan, Policy, Update};
use crate::format::sharding::Location;
use crate::store::access_list::{Inherited, inherited};
use crate::store::blob::{bytes_of, fingerprint_of};
use crate::store::commit_state::Lineage;
use crate::store::formats::{ChangedShard, Planner};
use crate::store::loaded::LoadedShard;
use crate::store::lock::{SHARD_PATIENCE, SHORT_PATIENCE, ShardLock};
use crate::store::put::take_lists;
use crate::store::storage::{
    FileKind, PosixFile, PosixStorage, SetStat, Stat, StorageFile, Version, Xattrs, if_present,
};
use crate::store::work::{WORK_DIRECTORY, new_name, unfit_or};
use crate::store::{Freshness, StoreError, io_error};

/// Permissions of a new shard, less the process's umask.
const NEW_SHARD_MODE: u32 = 0o666;
/// Temporary permissions of a file that is yet to get its owner and permissions, from the shard it
/// replaces or from its maker.
const REPLACING_MODE: u32 = 0o600;
/// Temporary permissions of a directory that is yet to get its owner and permissions.
const GIVEN_DIRECTORY_MODE: u32 = 0o700;

/// Time after which a group takes no more shards: other processes wait for the journal.
const MAX_TIME: Duration = Duration::from_secs(1);

impl<'a> Commit<'a> {
    /// Prepares the shards of a group, and returns those left for the next one. The first is never
    /// left, so the commit terminates.
    pub(super) fn prepare_group(
        &mut self,
        mut group: Group,
        budget: &mut u64,
    ) -> (Vec<Shard<'a>>, Group) {
        let (began, mut shards) = (Instant::now(), Vec::new());
        let mut is_first = true;
        while let Some((coords, members)) = group.pop_front() {
            if !is_first && began.elapsed() > MAX_TIME {
                group.push_front((coords, members));
                break;
            }
            let all: Vec<usize> = members.iter().map(|(at, _)| *at).collect();
            let store = self.store;
            let prepared = match shards.is_empty() {
                true => store.with_files(|| self.prepare(&coords, members.clone(), budget)),
                false => self.prepare(&coords, members.clone(), budget),
            };
            match prepared {
                Ok(shard) => shards.extend(shard),
                // The shards before it release their files once they are committed.
                Err(error) if error.is_shortage() && !shards.is_empty() => {
                    group.push_front((coords, members));
                    break;
                }
                Err(error) => self.fail(&all, error),
            }
            is_first = false;
        }
        (shards, group)
    }

    /// Performs all steps for a shard that can fail before anything is changed. `None` if nothing
    /// is left to do.
    pub(super) fn prepare(
        &mut self,
        coords: &Coords,
        mut members: Members,
        budget: &mut u64,
    ) -> Result<Option<Shard<'a>>, StoreError> {
        let path = self.array.shard_path(coords);
        let id = self.array.shard_id(coords);
        if self.state.unsettled.contains(&self.key(coords)) {
            return Err(StoreError::Unsettled { shard: path });
        }
        let removals = members.iter().all(|(at, _)| self.chunks[*at].content.is_none());
        let absent = |error: io::Error| error.raw_os_error() == Some(libc::ENOENT);
        if removals && self.storage.lstat(&path).is_err_and(absent) {
            let lineage = self.store.commits.lineage(id, None);
            let chunks = members.iter().map(|(at, _)| *at).collect();
            let directories = if lineage.is_durable { vec![] } else { self.directories(&path) };
            let (work, old, _lock) = (Work::Nothing, None, None);
            return Ok(Some(Shard { id, path, chunks, lineage, _lock, old, work, directories }));
        }
        let maker = members.iter().find_map(|(at, _)| self.chunks[*at].maker);
        let made = Cell::new(false);
        let make_directory = || {
            made.set(true);
            self.make_directories(&path, maker)
        };
        let is_held = self.state.held.contains(coords);
        let patience = if is_held { SHORT_PATIENCE } else { SHARD_PATIENCE };
        let lock = ShardLock::take(self.storage, &path, &make_directory, patience);
        match &lock {
            Err(StoreError::Locked { .. }) => drop(self.state.held.insert(coords.to_vec())),
            _ => drop(self.state.held.remove(coords)),
        }
        if made.get() {
            self.store.commits.doubt(id);
        }
        let lock = lock?;
        let loaded = self.store.shard(self.array, coords, Freshness::Again)?;
        let lineage =
            self.store.commits.lineage(id, loaded.as_ref().map(|shard| shard.stat().version()));
        self.store.commits.set_busy(id, true);
        if let Some(damage) = loaded.as_ref().and_then(|shard| shard.damage()) {
            return Err(StoreError::Damaged { shard: path, damage }.of_writer());
        }
        let old = match &loaded {
            None if self.is_elsewhere(&path)? => {
                return Err(StoreError::Changing { shard: path });
            }
            None => None,
            Some(loaded) => Some(self.open_old(loaded, &path)?),
        };
        let mut shortage = None;
        members.retain(|(at, location)| {
            let same = self.is_as_staged(*at, location, loaded.as_ref(), lineage);
            let stale = match same {
                Ok(true) => return true,
                Ok(false) => {
                    let position = location.positions.concat();
                    StoreError::Stale { shard: path.clone(), position }
                }
                Err(error) if error.is_shortage() => {
                    shortage = Some(error);
                    return true;
                }
                Err(error) => error,
            };
            self.fail(&[*at], stale);
            false
        });
        if let Some(error) = shortage {
            return Err(error);
        }
        self.leave_out_dependent(&mut members);
        let (store, array) = (self.store, self.array);
        let shard = ChangedShard {
            path: &path,
            coords,
            layout: &array.layout,
            old: loaded.as_deref().zip(old.as_ref().map(|old| &*old.file as &dyn StorageFile)),
            inner: &|outer, location, level| store.inner_of(array, outer, location, level),
        };
        let work = self.work(&shard, old.as_ref(), &members, maker, budget)?;
        let Some((chunks, work)) = work else { return Ok(None) };
        if let (false, Work::Journal(..) | Work::Cut(_), Some(old)) =
            (lineage.is_durable, &work, &old)
        {
            // An update in place relies on the visible state of the file being on disk.
            old.file.sync().map_err(io_error(&path))?;
        }
        let directories = match work {
            _ if !lineage.is_durable => self.directories(&path),
            Work::Replace(..) | Work::Remove => {
                path.parent().into_iter().map(Path::to_owned).collect()
            }
            Work::Nothing | Work::Journal(..) | Work::Cut(_) => vec![],
        };
        let _lock = Some(lock);
        Ok(Some(Shard { id, path, chunks, lineage, _lock, old, work, directories }))
    }

    /// Returns whether a shard that was not found by its path is in the directory that is committed to: the
    /// path leads elsewhere by now.
    fn is_elsewhere(&self, path: &Path) -> Result<bool, StoreError> {
        let found = |storage: &dyn PosixStorage| {
            let found = if_present(storage.lstat(path)).map_err(io_error(path))?;
            Ok::<_, StoreError>(found.map(|stat| stat.id()))
        };
        let here = found(self.storage)?;
        // Where chunks are counted, a file beyond their number is none of the array's.
        let expected = match self.array.format.has_keys() {
            true => None,
            false => found(self.store.posix(self.array)?)?,
        };
        Ok(here.is_some() && here != expected)
    }

    /// Removes the members that depend on chunks that have failed.
    fn leave_out_dependent(&mut self, members: &mut Members) {
        loop {
            let failed: BTreeMap<&Coords, &Arc<StoreError>> = self
                .chunks
                .iter()
                .zip(self.outcomes.iter())
                .filter_map(|(chunk, outcome)| Some((&chunk.coords, outcome.as_ref().err()?)))
                .collect();
            let dependent = dependent(self.chunks, members, &failed);
            if dependent.is_empty() {
                return;
            }
            for (at, error) in dependent {
                members.retain(|(other, _)| *other != at);
                self.outcomes[at] = Err(error);
            }
        }
    }

    /// Returns the directories on the way to a shard, up to that of the array.
    fn directories(&self, shard: &Path) -> Vec<PathBuf> {
        let within = |path: &&Path| path.starts_with(&self.array.path);
        shard.ancestors().skip(1).take_while(within).map(Path::to_owned).collect()
    }

    fn open_old(&self, loaded: &LoadedShard, path: &Path) -> Result<Old, StoreError> {
        let storage = self.storage;
        // A new file replaces a symbolic link; the link's target stays as it is.
        let found = if_present(storage.lstat(path)).map_err(io_error(path))?;
        // Another process has removed it since it was loaded.
        let found = found.ok_or_else(|| StoreError::Changing { shard: path.to_owned() })?;
        let is_linked = found.kind == FileKind::Symlink;
        let file = match is_linked {
            // It may lead out of the array's directory.
            true => self.store.posix(self.array)?.open_file(path),
            false => storage.open_writable(path),
        };
        let file = file.map_err(|error| unfit_or(storage, path, error))?;
        let stat = file.stat().map_err(io_error(path))?;
        if stat.version() != loaded.stat().version() {
            return Err(StoreError::Changing { shard: path.to_owned() });
        }
        Ok(Old { stat, file, is_linked: is_linked || stat.links > 1 })
    }

    /// Returns whether no other writer has changed the chunk since it was staged.
    fn is_as_staged(
        &self,
        at: usize,
        location: &Location,
        loaded: Option<&Arc<LoadedShard>>,
        lineage: Lineage,
    ) -> Result<bool, StoreError> {
        let chunk = &self.chunks[at];
        let is_ours = |now| self.state.attempts.has(&chunk.coords, now);
        self.store.is_as_staged(self.array, chunk, location, loaded, lineage, &is_ours)
    }

    /// Determines what is to be done to a shard, for the members that its format accepts: their
    /// numbers in the commit are returned with it, the others fail. `None` if none is left.
    fn work(
        &mut self,
        shard: &ChangedShard<'_>,
        old: Option<&Old>,
        members: &[(usize, Location)],
        maker: Option<Maker>,
        budget: &mut u64,
    ) -> Result<Option<(Vec<usize>, Work)>, StoreError> {
        if members.is_empty() {
            return Ok(None);
        }
        let Examined { accepted, refused, plan } =
            examine(self.array, self.chunks, shard, members)?;
        for (at, error) in refused {
            self.fail(&[at], error);
        }
        if accepted.is_empty() {
            return Ok(None);
        }
        self.plan(shard, old, &*plan, maker, budget).map(|work| Some((accepted, work)))
    }

    /// Plans the changes to a shard, and prepares as much as possible without touching it.
    fn plan(
        &mut self,
        shard: &ChangedShard<'_>,
        old: Option<&Old>,
        plan: &Planner<'_>,
        maker: Option<Maker>,
        budget: &mut u64,
    ) -> Result<Work, StoreError> {
        let (path, coords) = (shard.path, shard.coords);
        let mut policy = if self.state.stuck { Policy::Rewrite } else { self.policy };
        let mut facts = Facts {
            can_clone: !self.store.commits.no_clones.load(Ordering::Relaxed),
            linked: old.is_some_and(|old| old.is_linked),
            block: self.store.config.block_size,
            mark: None,
        };
        // Repeats at most once for each reason: clones turn out to be impossible, or the record
        // would be too long.
        loop {
            let work = match plan(policy, facts).map_err(|error| shard.no_plan(error))? {
                Plan::Remove => Work::Remove,
                Plan::Cut(update) => Work::Cut(update),
                Plan::Rewrite(blob) => self.write_new(path, old, maker, &blob)?,
                Plan::Clone(update) => match self.write_clone(path, old, &update) {
                    Ok(work) => work,
                    Err(StoreError::Io { error, .. })
                        if error.raw_os_error() == Some(libc::EOPNOTSUPP) && facts.can_clone =>
                    {
                        self.store.commits.no_clones.store(true, Ordering::Relaxed);
                        facts.can_clone = false;
                        continue;
                    }
                    // The name is a link that leads out of the array's directory.
                    Err(StoreError::Io { error, .. })
                        if error.raw_os_error() == Some(libc::EXDEV) && facts.can_clone =>
                    {
                        facts.can_clone = false;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Plan::Journal(update) => {
                    let Some(rest) = budget.checked_sub(self.record_bytes(coords, &update)) else {
                        policy = Policy::Rewrite;
                        continue;
                    };
                    *budget = rest;
                    let record = self.record(coords, path, old, &update)?;
                    Work::Journal(update, record)
                }
            };
            return Ok(work);
        }
    }

    /// Creates a file under a name that is not in use as long as the journal is locked.
    fn make_new(
        &mut self,
        make: impl Fn(&Path) -> io::Result<Arc<dyn PosixFile>>,
    ) -> io::Result<(PathBuf, Arc<dyn PosixFile>)> {
        loop {
            self.state.names += 1;
            let name = new_name(self.state.names);
            let path = self.array.path.join(WORK_DIRECTORY).join(name);
            match make(&path) {
                // A leftover that another mount could not remove.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => (),
                made => return made.map(|file| (path, file)),
            }
        }
    }

    /// Rewrites a shard under another name.
    pub(super) fn write_new(
        &mut self,
        shard: &Path,
        old: Option<&Old>,
        maker: Option<Maker>,
        blob: &Blob,
    ) -> Result<Work, StoreError> {
        let storage = self.storage;
        let given = match old {
            Some(_) => None,
            None => self.inherited(shard, maker).map_err(io_error(shard))?,
        };
        let has_owner = old.is_some() || maker.is_some() || given.is_some();
        let mode = if has_owner { REPLACING_MODE } else { NEW_SHARD_MODE };
        let (temporary, file) =
            self.make_new(|path| storage.create(path, mode)).map_err(io_error(shard))?;
        let write = || {
            self.sources(old).put(&*file, 0, blob)?;
            if old.is_none() {
                self.give_file(&*file, shard, maker, given.as_ref())?;
            }
            finish_new(&*file, old)
        };
        self.keep_or_remove(shard, temporary, write())
    }

    /// Changes a clone of a shard.
    fn write_clone(
        &mut self,
        shard: &Path,
        old: Option<&Old>,
        update: &Update,
    ) -> Result<Work, StoreError> {
        let storage = self.storage;
        let (temporary, file) = self
            .make_new(|path| storage.clone_file(shard, path, REPLACING_MODE))
            .map_err(io_error(shard))?;
        // Others may have put another file in its place since it was opened.
        let cloned = storage.stat(shard).map(|stat| stat.version());
        if !old.is_some_and(|old| cloned.is_ok_and(|version| version == old.stat.version())) {
            // If it cannot be removed, the next mount removes it.
            let _ = storage.remove_file(&temporary);
            return Err(StoreError::Changing { shard: shard.to_owned() });
        }
        let write = || {
            self.sources(old).put_all(&*file, &update.writes)?;
            file.set_length(update.length)?;
            finish_new(&*file, old)
        };
        self.keep_or_remove(shard, temporary, write())
    }

    fn keep_or_remove(
        &self,
        shard: &Path,
        temporary: PathBuf,
        written: io::Result<Version>,
    ) -> Result<Work, StoreError> {
        match written {
            Ok(version) => Ok(Work::Replace(temporary, version)),
            Err(error) => {
                // If it cannot be removed, the next mount removes it.
                let _ = self.storage.remove_file(&temporary);
                Err(io_error(shard)(error))
            }
        }
    }

    /// Returns an upper bound of the bytes that an in-place update takes in the record.
    fn record_bytes(&self, coords: &[u64], update: &Update) -> u64 {
        const SHARD: usize = 128;
        const RANGE: usize = 24;
        let ranges = update.writes.len() + update.overwritten.len();
        let all = SHARD + self.key(coords).len() + ranges * RANGE;
        let kept = update.overwritten.iter().map(|old| old.nbytes);
        kept.fold(all as u64, u64::saturating_add)
    }

    fn record(
        &self,
        coords: &[u64],
        path: &Path,
        old: Option<&Old>,
        update: &Update,
    ) -> Result<ShardRecord, StoreError> {
        // A shard that is updated in place exists.
        let changing = || StoreError::Changing { shard: path.to_owned() };
        let Old { stat, file, .. } = old.ok_or_else(changing)?;
        let keep = |range: &ByteRange| Ok((range.offset, bytes_of(&**file, *range)?));
        let record = || {
            Ok(ShardRecord {
                key: self.key(coords),
                ino: stat.ino,
                old_length: stat.size,
                old_index: CheckedRange {
                    range: update.old_index,
                    fingerprint: fingerprint_of(&**file, update.old_index)?,
                },
                length: update.length,
                written: self.sources(old).check_all(&update.writes)?,
                overwritten: update.overwritten.iter().map(keep).collect::<io::Result<_>>()?,
            })
        };
        record().map_err(io_error(path))
    }

    /// Returns the attributes that a new file or directory would have if its maker had created it
    /// in its place.
    fn made_by(&self, maker: Maker, path: &Path, made: Stat) -> io::Result<Stat> {
        let above = self.storage.stat(path.parent().unwrap_or(Path::new("")))?;
        let passes_on = above.mode & libc::S_ISGID != 0;
        let gid = if passes_on { above.gid } else { maker.gid };
        Ok(Stat { uid: maker.uid, gid, mode: maker.mode, ..made })
    }

    /// Returns the access control list that a new shard would have if it had been created in its
    /// place rather than in the work directory.
    fn inherited(&self, shard: &Path, maker: Option<Maker>) -> io::Result<Option<Inherited>> {
        let above = shard.parent().unwrap_or(Path::new(""));
        inherited(self.storage, above, maker.map_or(NEW_SHARD_MODE, |maker| maker.asked))
    }

    /// Gives a new shard to its maker, with the access control list that it would have inherited.
    /// The owner comes first: no other group gets what is for the owner's.
    fn give_file(
        &self,
        file: &dyn PosixFile,
        shard: &Path,
        maker: Option<Maker>,
        list: Option<&Inherited>,
    ) -> io::Result<()> {
        if let Some(maker) = maker {
            // That of the work directory.
            file.take_xattrs(&Xattrs::new())?;
            let mode = if list.is_some() { REPLACING_MODE } else { maker.mode };
            file.set_owner(&self.made_by(Maker { mode, ..maker }, shard, file.stat()?)?)?;
        }
        // It sets the permissions, too.
        list.map_or(Ok(()), |list| file.take_xattrs(&list.xattrs()))
    }

    /// Gives a new directory to its maker; users who may read the new files may search it.
    fn give_directory(&self, path: &Path, maker: Option<Maker>) -> io::Result<()> {
        let Some(maker) = maker else { return Ok(()) };
        let made = self.storage.stat(path)?;
        let searchable = |mode: u32| mode | (mode & 0o444) >> 2;
        let above = path.parent().unwrap_or(Path::new(""));
        let mode = match inherited(self.storage, above, searchable(maker.asked))? {
            Some(inherited) => inherited.mode,
            None => searchable(maker.mode),
        } | made.mode & libc::S_ISGID;
        let Stat { uid, gid, mode, .. } = self.made_by(Maker { mode, ..maker }, path, made)?;
        let (uid, gid, mode) = (Some(uid), Some(gid), Some(mode));
        self.storage.give_new(path, &SetStat { uid, gid, mode, ..SetStat::default() })
    }

    /// Creates the missing directories of a shard.
    fn make_directories(&self, shard: &Path, maker: Option<Maker>) -> Result<(), StoreError> {
        let below = shard.strip_prefix(&self.array.path).unwrap_or(shard);
        let mut directory = self.array.path.clone();
        let names: Vec<_> = below.parent().into_iter().flat_map(Path::components).collect();
        for name in names {
            directory.push(name);
            let made = match maker {
                Some(_) => self.storage.make_directory(&directory, GIVEN_DIRECTORY_MODE),
                None => self.storage.create_directory(&directory),
            };
            match made {
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                    return Err(unfit_or(self.storage, &directory, error));
                }
                Err(_) => (),
                Ok(()) => {
                    let given = self.give_directory(&directory, maker);
                    given.map_err(io_error(&directory)).inspect_err(|_| {
                        // It would stay closed to those who may write to it.
                        let _ = self.storage.remove_directory(&directory);
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Makes a new file durable, with the owner, permissions and extended attributes of the file it
/// replaces and a later date. Returns its version.
fn finish_new(file: &dyn PosixFile, old: Option<&Old>) -> io::Result<Version> {
    if let Some(old) = old {
        take_lists(file, &old.file.lasting_xattrs()?, &old.stat)?;
        redate(file, &old.stat)?;
    }
    file.sync()?;
    Ok(file.stat()?.version())
}
