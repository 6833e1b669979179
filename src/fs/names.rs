//! Operations on names in a writable mount: making, opening, removing, renaming, linking.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::control::DIRECTORY_NAME;
use super::directory::Listing;
use super::document::is_document;
use super::file::{Handle, Opened};
use super::live::{Bytes, Change, LiveFile, Place, What};
use super::nodes::{METADATA_FILE, NodeKind};
use super::write::{Caller, SetAttr, check_writable, chunk_mode};
use super::{Attr, Entry, Fs, FsError, Result, Target};
use crate::format::chunk_key::number;
use crate::store::Freshness;
use crate::store::content::Content;
use crate::store::storage::{FileKind, SetStat, StorageFile};

/// What a name in a directory of the view is for.
pub(super) enum Slot {
    /// A chunk.
    Chunk(PathBuf, Place),
    /// A directory above chunks.
    Above(PathBuf, Place),
    /// A chunk, or a directory above chunks, that the array's shape does not reach.
    Outside,
    /// Any other name in a directory above chunks.
    Scratch(PathBuf),
    /// A metadata document.
    Document(PathBuf),
    /// A path of the source.
    Source(PathBuf),
    /// In `.shardfs`, or its name.
    Control,
}

impl Slot {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Chunk(path, _)
            | Self::Above(path, _)
            | Self::Scratch(path)
            | Self::Document(path)
            | Self::Source(path) => Some(path),
            Self::Outside | Self::Control => None,
        }
    }
}

impl Fs {
    /// The path of a directory in the view.
    pub(super) fn directory_path(&self, target: &Target) -> Result<PathBuf> {
        match target {
            Target::Path(path) => Ok(path.to_path_buf()),
            Target::Tree(array, coords) if coords.len() < array.tree.rank() => {
                let source = &array.source;
                Ok(source.path.join(source.layout.keys.key(coords)))
            }
            Target::ControlDirectory => Err(FsError::NotPermitted),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn slot(&self, parent: u64, name: &OsStr) -> Result<Slot> {
        let target = self.target(parent)?;
        let directory = match self.directory_path(&target) {
            Err(FsError::NotPermitted) => return Ok(Slot::Control),
            directory => directory?,
        };
        let path = directory.join(name);
        let text = name.to_str();
        match target {
            Target::Tree(array, coords) => {
                let child = text.and_then(|name| array.tree.child(&coords, name));
                Ok(match child {
                    Some(coords) => in_tree(path, Place { array, coords }),
                    None if text.and_then(number).is_some() => Slot::Outside,
                    None => Slot::Scratch(path),
                })
            }
            _ if directory.as_os_str().is_empty() && name == DIRECTORY_NAME => Ok(Slot::Control),
            _ if name == METADATA_FILE => Ok(Slot::Document(path)),
            _ => {
                if let NodeKind::Sharded(array) = &self.nodes.node(&directory)?.kind
                    && let Some(text) = text
                    && array.source.layout.keys.claims(text, array.tree.rank())
                {
                    let array = Arc::clone(array);
                    return Ok(match array.tree.top(text) {
                        Some(coords) => in_tree(path, Place { array, coords }),
                        None => Slot::Outside,
                    });
                }
                if let NodeKind::Sharded(array) = &self.nodes.node(&directory)?.kind
                    && array.tree.top_depth() == array.tree.rank()
                    && resembles_chunk(name, array.source.layout.keys.prefixed)
                    && !self.is_in_source(&path)
                {
                    return Ok(Slot::Scratch(path));
                }
                Ok(Slot::Source(path))
            }
        }
    }

    fn is_in_source(&self, path: &Path) -> bool {
        self.storage.lstat(path).is_ok()
    }

    /// What a name stands for, without telling the kernel of it.
    fn peek(&self, parent: u64, name: &OsStr) -> Result<Option<Entry>> {
        let entry = self.lookup(parent, name)?;
        if let Some(entry) = &entry {
            self.forget(entry.attr.ino, 1);
        }
        Ok(entry)
    }

    /// What the mount itself knows of a name: Some(None) if it was removed.
    #[allow(clippy::option_option, reason = "unknown and removed are different answers")]
    pub(super) fn lookup_staged(&self, parent: u64, name: &OsStr) -> Result<Option<Option<Entry>>> {
        let Some(overlay) = &self.overlay else { return Ok(None) };
        if overlay.names().is_empty() {
            return Ok(None);
        }
        let target = self.target(parent)?;
        let Ok(directory) = self.directory_path(&target) else { return Ok(None) };
        let what = overlay.names().get(&directory.join(name)).map(|name| name.what.clone());
        Ok(match what {
            None => None,
            Some(What::Removed) => Some(None),
            Some(What::File(file)) => Some(Some(self.live_entry(&file)?)),
            // As any directory above chunks.
            Some(What::Directory) => None,
        })
    }

    /// Makes a file and opens it, or opens the one that is there unless it must be new.
    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        how: OpenHow,
        caller: Caller,
    ) -> Result<(Entry, Opened)> {
        let slot = self.slot(parent, name)?;
        if let Some(entry) = self.lookup(parent, name)? {
            if how.exclusive {
                return Err(FsError::Exists);
            }
            let opened = self.open_for(entry.attr.ino, how)?;
            return Ok((entry, opened));
        }
        let path = match &slot {
            Slot::Control => return Err(FsError::NotPermitted),
            Slot::Outside => return Err(FsError::Invalid),
            Slot::Above(..) => return Err(FsError::IsDirectory),
            Slot::Source(path) => return self.create_in_source(path, mode, caller),
            Slot::Chunk(path, _) | Slot::Scratch(path) | Slot::Document(path) => path,
        };
        let (place, mode) = match &slot {
            Slot::Chunk(_, place) => (Some(place), chunk_mode(mode)),
            _ => (None, mode),
        };
        let stage = place.map(|place| self.stage(place)).transpose()?;
        let ino = place.map(|Place { array, coords }| array.inodes.ino(array.tree.number(coords)));
        let file = self.new_file(ino, mode, caller)?;
        {
            let mut names = self.overlay()?.names();
            let name = names.put(path, What::File(Arc::clone(&file)), place.cloned());
            if let Some(stage) = stage {
                name.stage.get_or_insert(stage);
            }
        }
        let entry = self.live_entry(&file)?;
        Ok((entry, self.open_live(&file)?))
    }

    fn create_in_source(&self, path: &Path, mode: u32, caller: Caller) -> Result<(Entry, Opened)> {
        let file = self.storage.create(path, mode)?;
        self.own(path, caller);
        let attr = self.path_attr(path)?;
        let opened = self.insert_handle(Handle::File(file), true)?;
        Ok((self.path_entry(path, attr), opened))
    }

    /// What root makes for somebody else is theirs.
    fn own(&self, path: &Path, caller: Caller) {
        let set = SetStat { uid: Some(caller.uid), gid: Some(caller.gid), ..SetStat::default() };
        if rustix::process::geteuid().is_root()
            && let Err(error) = self.storage.set_stat(path, &set)
        {
            log::debug!("{}: {error}", path.display());
        }
    }

    /// Opens a file, also for writing.
    pub fn open_for(&self, ino: u64, how: OpenHow) -> Result<Opened> {
        self.stats.operations.open.count();
        if self.overlay.is_none() {
            return if how.write { Err(FsError::ReadOnly) } else { self.open(ino) };
        }
        let file = match self.target(ino)? {
            Target::Live(file) => file,
            Target::Tree(array, coords) if how.write && coords.len() == array.tree.rank() => {
                let path = array.source.path.join(array.source.layout.keys.chunk_key(&coords));
                self.chunk_file(&path, &Place { array, coords })?
            }
            Target::Path(path) if how.write && is_document(&path) => self.document_file(&path)?,
            Target::Path(path) if how.write => {
                self.path_attr(&path)?;
                let file = self.storage.open_writable(&path)?;
                if how.truncate {
                    file.set_length(0)?;
                }
                return self.insert_handle(Handle::File(file), true);
            }
            Target::StatsFile | Target::WaitingFile | Target::ControlDirectory if how.write => {
                return Err(FsError::NotPermitted);
            }
            _ => return self.open(ino),
        };
        let opened = self.open_live(&file)?;
        if how.truncate {
            self.truncate_live(&file, 0)?;
        }
        Ok(opened)
    }

    fn open_live(&self, file: &Arc<LiveFile>) -> Result<Opened> {
        self.opened(file);
        // What is written to a document may be refused: the kernel must not keep it.
        let cached = !file.state().names.iter().any(|name| is_document(name));
        let opened = self.insert_handle(Handle::Live(Arc::clone(file)), cached);
        if opened.is_err() {
            self.closed(file);
        }
        opened
    }

    /// Removes a file.
    pub fn unlink(&self, parent: u64, name: &OsStr) -> Result<()> {
        let slot = self.slot(parent, name)?;
        let entry = self.peek(parent, name)?.ok_or(FsError::NotFound)?;
        self.unlink_slot(&slot, entry.attr.kind)
    }

    fn unlink_slot(&self, slot: &Slot, kind: FileKind) -> Result<()> {
        if kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        match slot {
            Slot::Control => Err(FsError::NotPermitted),
            Slot::Outside | Slot::Above(..) => Err(FsError::IsDirectory),
            Slot::Chunk(path, place) => self.remove_chunk(path, place),
            Slot::Scratch(path) => {
                self.remove_name(path)?;
                Ok(())
            }
            Slot::Document(path) => self.remove_document(path),
            Slot::Source(path) => Ok(self.storage.remove_file(path)?),
        }
    }

    /// Takes a name of the mount out, and its file if nobody needs that any more.
    pub(super) fn remove_name(&self, path: &Path) -> Result<()> {
        let mut names = self.overlay()?.names();
        if let Some(name) = names.take(path)
            && let What::File(file) = &name.what
        {
            file.state().dirty = false;
            names.drop_unused(file);
        }
        Ok(())
    }

    /// Stages the removal of a chunk.
    fn remove_chunk(&self, path: &Path, place: &Place) -> Result<()> {
        check_writable(place)?;
        let before = self.overlay()?.names().get(path).cloned();
        let stage = match before.as_ref().and_then(|name| name.stage.clone()) {
            Some(stage) => stage,
            None => self.stage(place)?,
        };
        let live = match before.map(|name| name.what) {
            Some(What::File(file)) => Some(file),
            _ => None,
        };
        if let Some(file) = &live {
            // Who has it open goes on reading what it held.
            self.bring_here(file)?;
        }
        let mut names = self.overlay()?.names();
        let number = names.next_number();
        let name = names.put(path, What::Removed, Some(place.clone()));
        let stage = name.stage.get_or_insert(stage);
        stage.change = Some(Change { content: None, number });
        if let Some(file) = live {
            let without_name = file.state().names.is_empty();
            if without_name {
                file.state().dirty = false;
            }
            names.drop_unused(&file);
        }
        // Its directory stays when nothing is left in it, until it is removed.
        let tree = &place.array.tree;
        for above in path.ancestors().skip(1).take(tree.rank() - tree.top_depth()) {
            if names.get(above).is_none() {
                names.put(above, What::Directory, None);
            }
        }
        drop(names);
        self.after_change(path)
    }

    /// With `-o sync` every change is a commit.
    fn after_change(&self, path: &Path) -> Result<()> {
        if self.config.writing.sync { self.commit(path) } else { Ok(()) }
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: u64, name: &OsStr, mode: u32, caller: Caller) -> Result<Entry> {
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        match slot {
            Slot::Above(path, place) => {
                check_writable(&place)?;
                self.overlay()?.names().put(&path, What::Directory, None);
                let entry = self.tree_directory(&place.array, &place.coords)?;
                entry.ok_or(FsError::NotFound)
            }
            Slot::Source(path) => {
                self.storage.create_directory(&path)?;
                self.own(&path, caller);
                let set = SetStat { mode: Some(mode & 0o7777), ..SetStat::default() };
                self.storage.set_stat(&path, &set)?;
                let attr = self.path_attr(&path)?;
                Ok(self.path_entry(&path, attr))
            }
            Slot::Outside => Err(FsError::Invalid),
            _ => Err(FsError::NotPermitted),
        }
    }

    /// Removes a directory in which nothing is.
    pub fn rmdir(&self, parent: u64, name: &OsStr) -> Result<()> {
        let slot = self.slot(parent, name)?;
        // The kernel knows the directory: its number leads somewhere.
        let entry = self.peek(parent, name)?.ok_or(FsError::NotFound)?;
        match entry.attr.kind {
            FileKind::Directory => self.remove_empty(&slot, entry.attr.ino),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn remove_empty(&self, slot: &Slot, ino: u64) -> Result<()> {
        let path = slot.path().ok_or(FsError::NotPermitted)?;
        if !self.lists_nothing(ino)? {
            // What was removed below may still be in its shards.
            self.commit(path)?;
            if !self.lists_nothing(ino)? {
                return Err(FsError::NotEmpty);
            }
        }
        match slot {
            Slot::Above(path, place) => {
                self.overlay()?.names().take(path);
                self.commit(path)?;
                let shards = self.shard_directory(&place.array, &place.coords);
                // It stays where others have something in it, or more of its shards are left.
                let _ = self.storage.remove_directory(&shards);
                Ok(())
            }
            Slot::Source(path) => self.remove_source_directory(path),
            _ => Err(FsError::NotPermitted),
        }
    }

    fn lists_nothing(&self, ino: u64) -> Result<bool> {
        let mut empty = true;
        self.readdir(ino, 0, Listing::Names, &mut |entry| {
            if entry.name == "." || entry.name == ".." {
                return ControlFlow::Continue(());
            }
            empty = false;
            ControlFlow::Break(())
        })?;
        Ok(empty)
    }

    /// Gives a file or a directory another name.
    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), no_replace: bool) -> Result<()> {
        let (source, target) = (self.slot(from.0, from.1)?, self.slot(to.0, to.1)?);
        let moved = self.peek(from.0, from.1)?.ok_or(FsError::NotFound)?;
        let there = self.peek(to.0, to.1)?;
        self.rename_slots(&source, &moved, &target, there.as_ref(), no_replace)
    }

    fn rename_slots(
        &self,
        from: &Slot,
        moved: &Entry,
        to: &Slot,
        there: Option<&Entry>,
        no_replace: bool,
    ) -> Result<()> {
        let (Some(_), Some(to_path)) = (from.path(), to.path()) else {
            let outside = matches!(to, Slot::Outside);
            return Err(if outside { FsError::Invalid } else { FsError::NotPermitted });
        };
        if there.is_some() && no_replace {
            return Err(FsError::Exists);
        }
        // Two names of one file stay two names.
        if there.is_some_and(|there| there.attr.ino == moved.attr.ino) {
            return Ok(());
        }
        let is_directory = |entry: &Entry| entry.attr.kind == FileKind::Directory;
        match (is_directory(moved), there.map(is_directory)) {
            (true, Some(false)) => return Err(FsError::NotDirectory),
            (false, Some(true)) => return Err(FsError::IsDirectory),
            _ => (),
        }
        match (from, to) {
            (Slot::Source(from), Slot::Source(to)) => self.rename_in_source(from, to, moved),
            // Others copy and remove where this is the answer.
            _ if is_directory(moved) => Err(FsError::CrossDevice),
            (Slot::Document(_), Slot::Document(_)) => Err(FsError::CrossDevice),
            (Slot::Source(from), Slot::Document(to)) => {
                let content = self.source_content(from)?;
                self.write_document(to, &content)?;
                self.storage.remove_file(from)?;
                self.paths.renamed(from, to);
                Ok(())
            }
            _ => {
                let file = self.file_of(from, moved)?;
                self.bring_here(&file)?;
                self.name_file(to, &file)?;
                self.unname_file(from)?;
                self.after_change(to_path)
            }
        }
    }

    fn rename_in_source(&self, from: &Path, to: &Path, moved: &Entry) -> Result<()> {
        let mut made = Vec::new();
        if moved.attr.kind == FileKind::Directory {
            // What waits for arrays below it goes where they are.
            self.commit(from)?;
            for array in self.nodes.arrays() {
                if array.source.path.starts_with(from) {
                    self.store.finish_commits(&array.source)?;
                }
            }
            for (path, name) in self.overlay()?.names().all(from) {
                match name.what {
                    What::Directory => made.push(path),
                    What::File(_) | What::Removed => return Err(FsError::CrossDevice),
                }
            }
        }
        self.storage.rename(from, to)?;
        let mut names = self.overlay()?.names();
        for path in made {
            names.take(&path);
            if let Ok(below) = path.strip_prefix(from) {
                names.put(&to.join(below), What::Directory, None);
            }
        }
        drop(names);
        self.paths.renamed(from, to);
        self.nodes.forget(from);
        self.nodes.forget(to);
        Ok(())
    }

    /// The file that a name stands for, as one of the mount's own.
    fn file_of(&self, slot: &Slot, entry: &Entry) -> Result<Arc<LiveFile>> {
        match slot {
            Slot::Chunk(path, place) => self.chunk_file(path, place),
            Slot::Document(path) => self.document_file(path),
            Slot::Source(path) => {
                if entry.attr.kind != FileKind::File {
                    return Err(FsError::CrossDevice);
                }
                let content = self.source_content(path)?;
                let caller = Caller { uid: entry.attr.uid, gid: entry.attr.gid };
                self.paths.take(entry.attr.ino);
                let file = self.new_file(Some(entry.attr.ino), entry.attr.mode, caller)?;
                {
                    let mut state = file.state();
                    state.bytes = Bytes::Here(content);
                    state.mtime = entry.attr.mtime;
                }
                Ok(file)
            }
            Slot::Scratch(path) => {
                let names = self.overlay()?.names();
                match names.get(path).map(|name| name.what.clone()) {
                    Some(What::File(file)) => Ok(file),
                    _ => Err(FsError::NotFound),
                }
            }
            Slot::Above(..) | Slot::Outside | Slot::Control => Err(FsError::NotPermitted),
        }
    }

    /// Gives a file the name `slot`, in the place of what is there. A chunk is handed over to be
    /// committed.
    fn name_file(&self, slot: &Slot, file: &Arc<LiveFile>) -> Result<()> {
        let path = slot.path().ok_or(FsError::NotPermitted)?;
        self.keep_replaced(path, file)?;
        match slot {
            Slot::Chunk(_, place) => {
                let staged = self.overlay()?.names().get(path).and_then(|name| name.stage.clone());
                let stage = match staged {
                    Some(stage) => stage,
                    None => self.stage(place)?,
                };
                let Bytes::Here(content) = file.state().bytes.clone() else {
                    return Err(FsError::Stale);
                };
                let mut names = self.overlay()?.names();
                let number = names.next_number();
                let replaced = names.get(path).map(|name| name.what.clone());
                let name = names.put(path, What::File(Arc::clone(file)), Some(place.clone()));
                let stage = name.stage.get_or_insert(stage);
                stage.change = Some(Change { content: Some(content), number });
                if let Some(What::File(replaced)) = replaced {
                    names.drop_unused(&replaced);
                }
                Ok(())
            }
            Slot::Scratch(_) => {
                let mut names = self.overlay()?.names();
                let replaced = names.get(path).map(|name| name.what.clone());
                names.put(path, What::File(Arc::clone(file)), None);
                if let Some(What::File(replaced)) = replaced {
                    names.drop_unused(&replaced);
                }
                Ok(())
            }
            Slot::Document(_) => {
                let Bytes::Here(content) = file.state().bytes.clone() else {
                    return Err(FsError::Stale);
                };
                self.write_document(path, &content)
            }
            Slot::Source(_) => {
                let Bytes::Here(content) = file.state().bytes.clone() else {
                    return Err(FsError::Stale);
                };
                self.write_source(path, &content)
            }
            Slot::Above(..) | Slot::Outside | Slot::Control => Err(FsError::NotPermitted),
        }
    }

    /// Who has a file open goes on reading what it held when another one takes its name.
    fn keep_replaced(&self, path: &Path, by: &Arc<LiveFile>) -> Result<()> {
        let replaced = self.overlay()?.names().get(path).map(|name| name.what.clone());
        if let Some(What::File(replaced)) = replaced
            && !Arc::ptr_eq(&replaced, by)
            && replaced.state().opened > 0
        {
            self.bring_here(&replaced)?;
        }
        Ok(())
    }

    /// The name that a file had before.
    fn unname_file(&self, slot: &Slot) -> Result<()> {
        match slot {
            Slot::Chunk(path, place) => self.remove_chunk(path, place),
            Slot::Scratch(path) => self.remove_name(path),
            Slot::Document(path) => self.remove_document(path),
            Slot::Source(path) => Ok(self.storage.remove_file(path)?),
            Slot::Above(..) | Slot::Outside | Slot::Control => Err(FsError::NotPermitted),
        }
    }

    /// One more name for a file.
    pub fn link(&self, ino: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let to = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let target = self.target(ino)?;
        if let (Target::Path(from), Slot::Source(to)) = (&target, &to) {
            self.storage.link(from, to)?;
            let attr = self.path_attr(to)?;
            return Ok(self.path_entry(to, attr));
        }
        if let (Target::Path(from), Slot::Document(to)) = (&target, &to) {
            let content = self.source_content(from)?;
            self.write_document(to, &content)?;
        } else {
            let file = self.file_of_target(target)?;
            self.bring_here(&file)?;
            self.name_file(&to, &file)?;
        }
        if let Some(path) = to.path() {
            self.after_change(path)?;
        }
        self.lookup(parent, name)?.ok_or(FsError::NotFound)
    }

    fn file_of_target(&self, target: Target) -> Result<Arc<LiveFile>> {
        match target {
            Target::Live(file) => Ok(file),
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                let path = array.source.path.join(array.source.layout.keys.chunk_key(&coords));
                self.chunk_file(&path, &Place { array, coords })
            }
            Target::Path(path) => {
                let attr = self.path_attr(&path)?;
                let content = self.source_content(&path)?;
                let caller = Caller { uid: attr.uid, gid: attr.gid };
                let file = self.new_file(None, attr.mode, caller)?;
                file.state().bytes = Bytes::Here(content);
                Ok(file)
            }
            _ => Err(FsError::NotPermitted),
        }
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, parent: u64, name: &OsStr, target: &Path) -> Result<Entry> {
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let Slot::Source(path) = slot else { return Err(FsError::NotPermitted) };
        self.storage.symlink(target, &path)?;
        let attr = self.path_attr(&path)?;
        Ok(self.path_entry(&path, attr))
    }

    /// Changes attributes of a file.
    pub fn setattr(&self, ino: u64, handle: Option<u64>, set: &SetAttr) -> Result<Attr> {
        self.overlay()?;
        match self.target(ino)? {
            Target::Path(path) if set.size.is_some() && self.storage.lstat(&path).is_err() => {
                // Removed, and open.
                let file = handle.and_then(|handle| self.source_handle(handle));
                let file = file.ok_or(FsError::NotFound)?;
                file.set_length(set.size.unwrap_or(0))?;
                Ok(self.config.ownership.attr(ino, &file.stat()?))
            }
            Target::Live(file) => {
                self.set_live_attr(&file, set)?;
                self.live_attr(&file)
            }
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                self.set_chunk_attr(Place { array, coords }, set)
            }
            Target::Tree(array, coords) => {
                // A directory above chunks is as the source's is.
                Ok(self.tree_directory(&array, &coords)?.ok_or(FsError::NotFound)?.attr)
            }
            Target::Path(path) if set.size.is_some() && is_document(&path) => {
                let file = self.document_file(&path)?;
                self.set_live_attr(&file, set)?;
                self.live_attr(&file)
            }
            Target::Path(path) => {
                self.path_attr(&path)?;
                self.storage.set_stat(
                    &path,
                    &SetStat {
                        mode: set.mode.map(|mode| mode & 0o7777),
                        uid: set.uid,
                        gid: set.gid,
                        atime: set.atime,
                        mtime: set.mtime,
                    },
                )?;
                if let Some(length) = set.size {
                    self.storage.open_writable(&path)?.set_length(length)?;
                }
                Ok(Attr { ino, ..self.path_attr(&path)? })
            }
            Target::ControlDirectory | Target::StatsFile | Target::WaitingFile => {
                Err(FsError::NotPermitted)
            }
        }
    }

    /// Attributes of a chunk that nobody writes at the moment.
    fn set_chunk_attr(&self, place: Place, set: &SetAttr) -> Result<Attr> {
        let source = &place.array.source;
        let path = source.path.join(source.layout.keys.chunk_key(&place.coords));
        let entry = self.tree_entry(&place.array, &place.coords, Freshness::Now)?;
        let mut attr = entry.ok_or(FsError::NotFound)?.attr;
        let other = |wanted: Option<u32>, has: u32| wanted.is_some_and(|wanted| wanted != has);
        if other(set.uid, attr.uid) || other(set.gid, attr.gid) {
            return Err(FsError::NotPermitted);
        }
        if set.size.is_some() {
            let file = self.chunk_file(&path, &place)?;
            self.set_live_attr(&file, set)?;
            return self.live_attr(&file);
        }
        if let Some(mtime) = set.mtime {
            let chunk = self.store.chunk(source, &place.coords, Freshness::Recent)?;
            let chunk = chunk.ok_or(FsError::NotFound)?;
            self.set_chunk_date(&place, &chunk.shard, mtime);
            attr.mtime = mtime;
        }
        Ok(attr)
    }

    /// Writes to an open file.
    pub fn write(&self, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.stats.operations.write.count();
        match self.writable_handle(ino, handle)? {
            Written::Live(file) => self.write_live(&file, offset, data)?,
            Written::Source(file) => file.write_at(data, offset)?,
        }
        self.stats.operations.write_bytes.add(data.len() as u64);
        Ok(())
    }

    /// What is behind an open file that is written to.
    fn writable_handle(&self, ino: u64, handle: u64) -> Result<Written> {
        if let Some(file) = self.live_handle(handle) {
            return Ok(Written::Live(file));
        }
        // A file of the source that was renamed onto a chunk since it was opened.
        if let Some(file) = self.live(ino) {
            return Ok(Written::Live(file));
        }
        self.source_handle(handle).map(Written::Source).ok_or(FsError::BadHandle)
    }

    /// A file was closed, by one of those who have it open.
    pub fn flush(&self, ino: u64, handle: u64) -> Result<()> {
        let Ok(Written::Live(file)) = self.writable_handle(ino, handle) else { return Ok(()) };
        self.publish(&file)?;
        if self.config.writing.sync {
            self.commit_file(&file)?;
        }
        self.take_error(&file)
    }

    /// Returns once what was written to a file is safe.
    pub fn fsync(&self, ino: u64, handle: u64) -> Result<()> {
        match self.writable_handle(ino, handle) {
            Ok(Written::Source(file)) => Ok(file.sync()?),
            Ok(Written::Live(file)) => {
                self.publish(&file)?;
                self.commit_file(&file)?;
                self.take_error(&file)
            }
            // Opened for reading only, as a chunk that is in its shard.
            Err(_) => Ok(()),
        }
    }

    /// Commits the chunks that a file stands for, and what waits beside them.
    fn commit_file(&self, file: &LiveFile) -> Result<()> {
        let names = file.state().names.clone();
        let mut first = Ok(());
        for name in names {
            let place = self.overlay()?.names().get(&name).and_then(|name| name.place.clone());
            if let Some(place) = place {
                // Those of the same array come along: one record, one turn at the lock.
                let committed = self.commit(&place.array.source.path);
                let own = file.state().error.take();
                first = first.and(match own {
                    Some(error) => Err(FsError::Commit(error)),
                    None => committed.or(Ok(())),
                });
            }
        }
        first
    }

    /// Returns once everything below a directory is safe.
    pub fn fsyncdir(&self, ino: u64) -> Result<()> {
        let target = self.target(ino)?;
        let path = match &target {
            Target::ControlDirectory => return Ok(()),
            target => self.directory_path(target)?,
        };
        let committed = self.commit(&path);
        if let Target::Path(path) = &target {
            self.storage.sync_directory(path)?;
        }
        committed
    }

    /// The bytes of a file of the source.
    fn source_content(&self, path: &Path) -> Result<Content> {
        self.path_attr(path)?;
        let file = self.storage.open(path)?;
        let size = file.stat()?.size;
        if size > self.config.writing.dirty_limit.max(1 << 20) * 16 {
            return Err(FsError::CrossDevice);
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(Content::Memory(Arc::new(bytes)))
    }

    /// Writes a file of the source, in the place of the one that is there.
    pub(super) fn write_source(&self, path: &Path, content: &Content) -> Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".shardfs-new");
        let temporary = PathBuf::from(temporary);
        let _ = self.storage.remove_file(&temporary);
        let write = || {
            let file = self.storage.create(&temporary, 0o666)?;
            let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
            while at < content.nbytes() {
                let read = content.read_at(&mut buffer, at)?;
                file.write_at(&buffer[..read], at)?;
                at += read as u64;
            }
            if let Ok(before) = self.storage.stat(path) {
                file.set_owner(&before)?;
            }
            file.sync()?;
            self.storage.rename(&temporary, path)?;
            self.storage.sync_directory(path.parent().unwrap_or(Path::new("")))
        };
        write().inspect_err(|_| drop(self.storage.remove_file(&temporary)))?;
        Ok(())
    }
}

/// What is written to.
enum Written {
    Live(Arc<LiveFile>),
    Source(Arc<dyn StorageFile>),
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// For writing.
    pub write: bool,
    /// Its content is dropped.
    pub truncate: bool,
    /// It must not exist.
    pub exclusive: bool,
}

/// Whether a file is called like a chunk, but for what follows: temporary files and locks are.
fn resembles_chunk(name: &OsStr, prefixed: bool) -> bool {
    match name.as_encoded_bytes() {
        [b'c', b'.', ..] => prefixed,
        [first, ..] => !prefixed && first.is_ascii_digit(),
        [] => false,
    }
}

fn in_tree(path: PathBuf, place: Place) -> Slot {
    if place.coords.len() == place.array.tree.rank() {
        Slot::Chunk(path, place)
    } else {
        Slot::Above(path, place)
    }
}
