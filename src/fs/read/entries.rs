//! Attributes and entries of what is stored in the source.

use std::ffi::OsStr;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::Arc;

use crate::format::chunk_key::may_be_key;
use crate::fs::attr::{Attr, Entry};
use crate::fs::error::{FsError, Result};
use crate::fs::node::{ArrayView, At, NodeKind};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::LiveFile;
use crate::fs::state::page_policy::FileKey;
use crate::fs::state::page_policy::Pages;
use crate::source::is_document;
use crate::store::storage::{FileKind, Stat, StorageFile, Timestamp, Version, if_present};
use crate::store::{Dated, Freshness};
use crate::view::inode;

impl Fs {
    /// Returns whether a directory of the source is hidden because the view cannot decode the array
    /// in it.
    pub(in crate::fs) fn is_unshown(&self, path: &Path) -> Result<bool> {
        if !self.config.view.view.is_decoded() {
            return Ok(false);
        }
        let unshown = matches!(self.nodes.node(path)?.kind, NodeKind::Unshown);
        Ok(unshown)
    }

    /// Returns whether a chunk's inode number now belongs to another file, which was that chunk.
    pub(in crate::fs) fn has_moved(&self, ino: u64) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        self.paths.has_adopted(ino) || overlay.names().by_ino(ino).is_some()
    }

    /// Returns the file of the overlay with an inode number if it has this name.
    pub(in crate::fs) fn live_called(&self, ino: u64, path: &Path) -> Option<Arc<LiveFile>> {
        let file = self.overlay.as_ref()?.names().by_ino(ino)?;
        let is_called = file.state().names.iter().any(|name| name == path);
        is_called.then_some(file)
    }

    /// Returns an inode number that no file has.
    pub(in crate::fs) fn unused_number(&self) -> u64 {
        inode::of_live(match &self.overlay {
            Some(overlay) => overlay.names().next_number(),
            None => self.next_number(),
        })
    }

    /// Checks that what the view shows at a path is stored in the source at that path.
    ///
    /// # Errors
    ///
    /// `ReadOnly` for text that the view generates, other than documents that can be translated
    /// back, and `NotFound` for paths that the view hides.
    pub(in crate::fs) fn check_stored(&self, path: &Path) -> Result<()> {
        match self.nodes.at(path)? {
            At::Text(..) if self.config.file.is_some() || !self.is_document(path) => {
                Err(FsError::ReadOnly)
            }
            At::Stored | At::Text(..) => Ok(()),
            At::Hidden => Err(FsError::NotFound),
        }
    }

    /// Returns the attributes of a path as the view shows it; the inode number is that of a
    /// listing.
    pub(in crate::fs) fn path_attr(&self, path: &Path) -> Result<Attr> {
        Ok(self.path_attr_and_stat(path)?.0)
    }

    /// Returns the attributes of a path as the view shows it, and its `Stat` in the source if it is
    /// passed through.
    fn path_attr_and_stat(&self, path: &Path) -> Result<(Attr, Option<Stat>)> {
        let Some(directory) = path.parent() else {
            let stat = self.storage.lstat(path)?;
            return Ok((self.config.ownership.attr(inode::ROOT, &stat), Some(stat)));
        };
        let (ownership, ino) = (&self.config.ownership, self.paths.number(path));
        match self.nodes.at(path)? {
            At::Text(text, stat) => {
                return Ok((ownership.file(ino, &stat, text.len() as u64), None));
            }
            At::Hidden => return Err(FsError::NotFound),
            At::Stored => (),
        }
        let Some(stat) = if_present(self.storage.lstat(path))? else {
            self.check_absent(path, directory)?;
            return Err(FsError::NotFound);
        };
        self.check_shown(path, directory, stat.kind)?;
        if stat.kind == FileKind::Directory && self.is_unshown(path)? {
            return Err(FsError::NotFound);
        }
        Ok((ownership.attr(ino, &stat), Some(stat)))
    }

    /// Refuses what must not be passed through: shards of an array, and files that may be shards of
    /// an array whose metadata cannot be used. The path may have been looked up before its array
    /// became what it is.
    pub(in crate::fs) fn check_shown(
        &self,
        path: &Path,
        directory: &Path,
        kind: FileKind,
    ) -> Result<()> {
        let (above, node) = self.nodes.governing(directory)?;
        let below = path.strip_prefix(above).ok().and_then(|below| below.iter().next()?.to_str());
        match &node.kind {
            NodeKind::Sharded(array) => {
                // Shards have other names than chunks in some views.
                let is_of_array = |name| array.tree.claims(name) || array.hides(OsStr::new(name));
                if below.is_some_and(is_of_array) { Err(FsError::Stale) } else { Ok(()) }
            }
            NodeKind::Bad if kind != FileKind::Directory && !below.is_some_and(is_document) => {
                Err(FsError::BadMetadata(path.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is a shard by now: its array may have been made since the path was looked up.
    fn check_no_shard(&self, path: &Path) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new(""));
        // Of whatever kind: what metadata cannot be used is refused elsewhere.
        self.check_shown(path, directory, FileKind::Directory)
    }

    /// The same, whatever was known of its array: another mount may just have made it.
    pub(in crate::fs) fn check_no_shard_now(&self, path: &Path) -> Result<()> {
        self.revalidate_key(path)?;
        self.check_no_shard(path)
    }

    /// Compares what is known of the directories above a path with the source now, if it may be a chunk of an array
    /// or stand beside one.
    pub(in crate::fs) fn revalidate_key(&self, path: &Path) -> Result<()> {
        let is_key = |name: Option<&OsStr>| {
            let name = name.and_then(OsStr::to_str);
            name.is_some_and(|name| {
                may_be_key(name.strip_suffix(self.view().suffix()).unwrap_or(name))
            })
        };
        if is_key(path.file_name()) || is_key(path.parent().and_then(Path::file_name)) {
            self.nodes.revalidate_above(path)?;
        }
        Ok(())
    }

    /// Returns the error of an operation on a file that the kernel knows by its number: where a file had been that has
    /// become a chunk of a shard since, ESTALE makes the kernel look the name up again.
    pub(in crate::fs) fn gone(&self, path: &Path, error: FsError) -> FsError {
        let is_claimed = || {
            // Another mount may just have made the array.
            self.revalidate_key(path).ok()?;
            let (above, node) = self.nodes.governing(path.parent()?).ok()?;
            let NodeKind::Sharded(array) = &node.kind else { return None };
            let top = path.strip_prefix(above).ok()?.iter().next()?.to_str()?;
            array.tree.claims(top).then_some(())
        };
        match error.errno() {
            libc::ENOENT if is_claimed().is_some() => FsError::Stale,
            _ => error,
        }
    }

    /// Refuses to report as absent what may be a chunk of an array whose metadata cannot be used: most
    /// chunks have no shard of the same name, and readers interpret absence as fill values.
    fn check_absent(&self, path: &Path, directory: &Path) -> Result<()> {
        let suffix = self.view().suffix();
        let is_key = |below: &str| may_be_key(below.strip_suffix(suffix).unwrap_or(below));
        // Most absent names are none: nothing is looked up for them.
        if !path.file_name().and_then(OsStr::to_str).is_some_and(is_key) {
            return Ok(());
        }
        let (above, node) = self.nodes.governing(directory)?;
        let NodeKind::Bad = node.kind else { return Ok(()) };
        match path.strip_prefix(above).ok().and_then(Path::to_str).is_some_and(is_key) {
            true => Err(FsError::BadMetadata(path.to_owned())),
            false => Ok(()),
        }
    }

    pub(in crate::fs) fn remember(&self, path: &Path, stat: Option<&Stat>) -> u64 {
        // A file that was renamed away keeps the number of its first path, and the kernel knows its new name
        // by that number for a while after it was committed. The names are locked before the table of paths,
        // as everywhere.
        let names = self.overlay.as_ref().map(|overlay| overlay.names());
        let is_of_another = |ino| {
            names.as_ref().is_some_and(|names| names.by_ino(ino).is_some() || names.is_known(ino))
        };
        self.paths.remember(path, stat, is_of_another)
    }

    /// Returns the entry of a path as the view shows it, and counts a lookup for the reply to the
    /// kernel.
    pub(in crate::fs) fn path_entry(&self, path: &Path) -> Result<Entry> {
        let (mut attr, stat) = self.path_attr_and_stat(path)?;
        attr.ino = self.remember(path, stat.as_ref());
        let content = self.path_content(&attr, stat.as_ref());
        self.identities.changed_recently(attr.ino, content);
        // While this file is open, another file of the same name has another inode number.
        // In a writable mount the mount itself changes files, and they stay the same files.
        let is_fixed = stat.is_some() || self.overlay.is_some();
        let generation = if is_fixed { self.paths.generation(attr.ino) } else { content };
        Ok(Entry { attr, generation, lasting: true })
    }

    /// Returns a fingerprint of the contents of a document or of a file that is passed through.
    pub(in crate::fs) fn path_content(&self, attr: &Attr, stat: Option<&Stat>) -> u64 {
        match (attr.kind, stat) {
            (FileKind::File, Some(stat)) => self.fingerprint(&stat.version()),
            (FileKind::File, None) => self.fingerprint(&(attr.size, attr.mtime, attr.ctime)),
            _ => 0,
        }
    }

    /// Returns the entry of a chunk or of a directory above chunks; `None` if it does not exist.
    pub(in crate::fs) fn tree_entry(
        &self,
        array: &ArrayView,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Entry>> {
        if coords.len() < array.tree.rank() {
            return self.tree_directory(array, coords);
        }
        let number = array.source.layout.locate(coords).shard;
        let found = match self.overlay {
            Some(_) => self.store.dated_chunk(&array.source, coords, freshness)?,
            None => self.store.chunk(&array.source, coords, freshness)?.map(|chunk| (chunk, None)),
        };
        let Some((chunk, dated)) = found else {
            let Some(stat) = self.filler(array)? else { return Ok(None) };
            let nbytes = self.absent_nbytes(array)?;
            self.identities.shown_absent(array.source.id);
            return Ok(Some(self.dated_entry(array, coords, (&stat, None), nbytes)));
        };
        self.shard_changed_recently(array, &number, &chunk.shard);
        let date = dated.and_then(|dated| self.date_of(array, coords, dated));
        Ok(Some(self.dated_entry(array, coords, (&chunk.shard, date), chunk.nbytes())))
    }

    /// Returns the entry of a chunk whose shard was found as `shard`, with its date; that of the shard if it is `None`.
    pub(in crate::fs) fn dated_entry(
        &self,
        array: &ArrayView,
        coords: &[u64],
        (shard, date): (&Stat, Option<Timestamp>),
        nbytes: u64,
    ) -> Entry {
        let ino = array.inodes.ino(array.tree.number(coords));
        let nbytes = array.file_nbytes(coords, nbytes);
        let mut attr = self.config.ownership.file(ino, shard, nbytes);
        if let (Some(_), Some(date)) = (&self.overlay, date) {
            attr.mtime = date;
        }
        if self.overlay.is_some() {
            attr.ctime = attr.mtime;
        }
        attr.atime = attr.mtime;
        // The chunk may vanish once what is written to it is closed.
        let lasting = self.overlay.is_none() || array.decoded_form().is_none();
        Entry { attr, generation: self.generation(ino, &shard.version()), lasting }
    }

    /// Returns the generation of a chunk's file. A new generation cuts off open files, so that no
    /// process reads a new file as if it were the old one. In a writable mount that changes files it
    /// stays the same until another file takes the chunk's place.
    fn generation(&self, ino: u64, shard: &Version) -> u64 {
        match self.overlay {
            Some(_) => self.commits.replaced(ino),
            None => self.fingerprint(shard),
        }
    }

    /// Returns the entry of a directory above chunks. It exists if the source has the directory of
    /// the shards below it, or if it, or something in it, was created through the mount.
    pub(in crate::fs) fn tree_directory(
        &self,
        array: &ArrayView,
        coords: &[u64],
    ) -> Result<Option<Entry>> {
        self.tree_directory_by(array, coords, |path| Ok(self.store.shard_directory(path)?))
    }

    /// The same, with the attributes of the directory of shards as `stat` returns them.
    pub(in crate::fs) fn tree_directory_by(
        &self,
        array: &ArrayView,
        coords: &[u64],
        stat: impl FnOnce(&Path) -> Result<Option<Stat>>,
    ) -> Result<Option<Entry>> {
        if !array.source.format.has_keys() {
            // The source has no directories of chunks.
            let stat = self.storage.stat(&array.source.path)?;
            let ino = array.inodes.ino(array.tree.number(coords));
            let attr = self.config.ownership.attr(ino, &stat);
            return Ok(Some(Entry { attr, generation: 0, lasting: true }));
        }
        let path = self.shard_directory(array, coords);
        let stat = match stat(&path)? {
            Some(stat) => stat,
            None if self.is_made(array, coords) || self.shows_all(array) => {
                self.nearest_directory(array, coords)?.1
            }
            None => return Ok(None),
        };
        let ino = array.inodes.ino(array.tree.number(coords));
        let attr = self.config.ownership.attr(ino, &stat);
        // One that was removed through this mount is another one when it is made again.
        let generation = self.overlay.as_ref().map_or(0, |_| self.commits.replaced(ino));
        Ok(Some(Entry { attr, generation, lasting: true }))
    }

    /// Returns the attributes of an open file of the source.
    pub(in crate::fs) fn open_attr(&self, ino: u64, file: &dyn StorageFile) -> Result<Attr> {
        Ok(self.config.ownership.attr(ino, &file.stat()?))
    }

    /// Returns whether the kernel may have stale attributes of a shard's chunks cached.
    pub(in crate::fs) fn shard_changed_recently(
        &self,
        array: &ArrayView,
        shard: &[u64],
        stat: &Stat,
    ) -> bool {
        if self.config.store.immutable {
            return false;
        }
        let content = self.shard_content(array, shard, stat.version());
        let changed =
            |content| self.identities.changed_recently(self.shard_identity(array, shard), content);
        content.is_none_or(changed)
    }

    /// Records that the kernel has been given the entry of a chunk.
    pub(in crate::fs) fn chunk_shown(&self, array: &ArrayView, coords: &[u64], entry: &Entry) {
        self.chunk_looked_up(entry.attr.ino);
        // In a writable mount the number stands for the file, whatever is written to it.
        if self.overlay.is_none() && !self.config.store.immutable {
            let shard = array.source.layout.locate(coords).shard;
            let key = self.shard_identity(array, &shard);
            self.identities.shown(key.file, entry.generation, entry.attr.ino);
        }
    }

    /// Returns the page cache policy for opening a chunk whose shard was found as `shard`.
    ///
    /// # Errors
    ///
    /// `Outdated` if the kernel knows the chunk by what another shard held.
    pub(in crate::fs) fn chunk_pages(
        &self,
        array: &ArrayView,
        coords: &[u64],
        shard: Version,
        ino: u64,
    ) -> Result<Pages> {
        if self.config.store.immutable {
            return Ok(Pages::Kept);
        }
        let number = array.source.layout.locate(coords).shard;
        let key = self.shard_identity(array, &number);
        let Some(content) = self.shard_content(array, &number, shard) else {
            self.identities.served_older(key, ino);
            return Ok(Pages::Bypassed);
        };
        if self.overlay.is_none() && self.identities.refuses(key, content, ino) {
            return Err(FsError::Outdated);
        }
        Ok(self.identities.opened(key, content, ino))
    }

    /// Returns whether the contents of a chunk, whose shard was found as `shard`, may be added to the
    /// pages that the kernel has of it.
    pub(in crate::fs) fn may_push(
        &self,
        array: &ArrayView,
        coords: &[u64],
        shard: &Stat,
        ino: u64,
    ) -> bool {
        if self.config.store.immutable {
            return true;
        }
        let number = array.source.layout.locate(coords).shard;
        let identity = self.shard_identity(array, &number);
        let content = self.shard_content(array, &number, shard.version());
        content.is_some_and(|content| self.identities.may_push(identity, content, ino))
    }

    /// Returns the key of a shard in [`Identities`].
    pub(in crate::fs) fn shard_identity(&self, array: &ArrayView, shard: &[u64]) -> FileKey {
        let id = array.source.id;
        FileKey { file: self.hasher.hash_one((id, shard)), array: Some(id) }
    }

    /// Returns an identifier of the contents of a shard that stays the same over commits of this
    /// mount, which leave what the kernel has cached of its chunks valid. `None` if `version` is out
    /// of date.
    fn shard_content(&self, array: &ArrayView, shard: &[u64], version: Version) -> Option<u64> {
        match self.overlay {
            Some(_) => self.store.lineage_of(&array.source, shard, version),
            None => Some(self.fingerprint(&version)),
        }
    }

    /// Returns the modification time of a chunk whose shard was found as `shard`, as far as this mount knows it.
    /// `None` if a commit of this mount has replaced the shard since.
    pub(in crate::fs) fn chunk_date(
        &self,
        array: &ArrayView,
        coords: &[u64],
        shard: &Stat,
    ) -> Option<Timestamp> {
        if self.overlay.is_none() {
            return Some(shard.mtime);
        }
        let number = array.source.layout.locate(coords).shard;
        let dated = self.store.dated(&array.source, &number, shard.version()).ok()?;
        let own = dated.and_then(|dated| self.date_of(array, coords, dated));
        Some(own.unwrap_or(shard.mtime))
    }

    /// Returns the modification time of a chunk of a shard with these dates; `None` if that is the shard's.
    pub(in crate::fs) fn date_of(
        &self,
        array: &ArrayView,
        coords: &[u64],
        dated: Dated,
    ) -> Option<Timestamp> {
        match self.commits.dates.lock().get(&array.path(coords)) {
            Some((number, date)) if *number == dated.number => Some(*date),
            // Never written here, or by another process since.
            _ => dated.since,
        }
    }
}
