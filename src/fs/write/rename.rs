//! Renaming and linking of files, and creation of links and special files.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use crate::fs::attr::Entry;
use crate::fs::caller::{Caller, Owner};
use crate::fs::error::{FsError, Result};
use crate::fs::read::decoded::Encoded;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Behind, Bytes, LiveFile, OpenFile, Place};
use crate::fs::state::overlay::{Change, Hidden, What};
use crate::fs::state::target::Target;
use crate::fs::write::passthrough::{Moved, overwrite};
use crate::fs::write::slot::Slot;
use crate::fs::write::unsaved::name_spool_file;
use crate::store::storage::{FileKind, Stat, StorageFile};

impl Fs {
    /// Renames a file or a directory.
    pub fn rename(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        no_replace: bool,
        caller: &Caller,
    ) -> Result<()> {
        self.overlay()?;
        self.make_room()?;
        let (source, target) = (self.slot(from.0, from.1)?, self.slot(to.0, to.1)?);
        let moved = self.peek(from.0, from.1)?.ok_or(FsError::NotFound)?;
        let there = self.peek(to.0, to.1)?;
        if there.is_some() && no_replace {
            return Err(FsError::Exists);
        }
        self.rename_slots(&source, &moved, &target, there.as_ref(), caller)
    }

    fn rename_slots(
        &self,
        from: &Slot,
        moved: &Entry,
        to: &Slot,
        there: Option<&Entry>,
        caller: &Caller,
    ) -> Result<()> {
        let (Some(from_path), Some(to_path)) = (from.path(), to.path()) else {
            let outside = matches!(to, Slot::Outside);
            return Err(if outside { FsError::Invalid } else { FsError::NotPermitted });
        };
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
            (Slot::Source(from), Slot::Source(to)) => {
                self.rename_in_source(from, to, moved, caller)
            }
            // EXDEV makes callers copy and delete instead.
            _ if is_directory(moved) => Err(FsError::CrossDevice),
            // A document is durable when it is written; what it is renamed to may not be.
            (Slot::Document(_), Slot::Document(_) | Slot::Chunk(..) | Slot::Scratch(_)) => {
                Err(FsError::CrossDevice)
            }
            (Slot::Source(from), Slot::Document(to)) => {
                let content = self.source_content(from, caller)?;
                self.write_document(to, &content)?;
                self.remove_source_file(from, caller)?;
                // Later writes through open handles do not change the document.
                self.paths.open_files(moved.attr.ino).iter().for_each(|open| open.leave());
                self.paths.renamed(from, to);
                Ok(())
            }
            _ => {
                if let Slot::Chunk(_, place) = from {
                    self.permit_change(place, caller)?;
                    self.check_removable(place)?;
                }
                if let Slot::Chunk(_, place) = to {
                    self.permit_change(place, caller)?;
                }
                match (from, to) {
                    (Slot::Source(from), to) => {
                        let (stat, file) = self.become_live(from, to, moved, caller)?;
                        self.unname_source(from, stat, to_path, &file, caller)?;
                    }
                    (from, Slot::Source(to)) => self.rename_to_source(from, to, caller)?,
                    (from, to) => self.rename_live(from, to, caller)?,
                }
                self.after_change(to_path)?;
                self.after_change(from_path)
            }
        }
    }

    /// Gives a file of the mount another name outside the source.
    fn rename_live(&self, from: &Slot, to: &Slot, caller: &Caller) -> Result<()> {
        let file = self.brought_here(|| self.file_of(from))?;
        self.name_file(to, &file)?;
        self.unname_file(from, caller)?;
        if let Slot::Document(_) = to {
            // Later writes through open handles do not change the document.
            file.state().open_files().iter().for_each(|open| open.leave());
        }
        Ok(())
    }

    /// Gives a file of the mount a name that is passed through; open handles follow to the file of
    /// the source.
    fn rename_to_source(&self, from: &Slot, to: &Path, caller: &Caller) -> Result<()> {
        let file = self.brought_here(|| self.file_of(from))?;
        // It cannot be a file of the mount and of the source at once.
        if file.state().names.iter().any(|name| Some(&**name) != from.path()) {
            return Err(FsError::CrossDevice);
        }
        self.free_name(to, FileKind::File)?;
        let moved = self.move_to_source(to, &file)?;
        self.unname_file(from, caller)?;
        self.become_source(&file, to, &moved).inspect_err(|_| {
            file.state().open_files().iter().for_each(|open| open.leave());
        })
    }

    /// Turns a file of the source into one of the mount called `to`, to which open handles follow.
    /// Returns its `Stat` in the source and the new file.
    fn become_live(
        &self,
        from: &Path,
        to: &Slot,
        moved: &Entry,
        caller: &Caller,
    ) -> Result<(Stat, Arc<LiveFile>)> {
        // Other names that stay in the source would be names of another file from then on.
        if moved.attr.kind != FileKind::File || self.storage.lstat(from)?.has_hard_links() {
            return Err(FsError::CrossDevice);
        }
        let _turn = self.moves.lock();
        loop {
            let openers = self.paths.open_files(moved.attr.ino);
            let held: Vec<_> = openers.iter().map(|open| open.hold()).collect();
            let Some(known) = self.paths.take(moved.attr.ino, &openers) else { continue };
            match self.make_live((from, to), moved, &openers, known.lookups(), caller) {
                Ok((stat, file)) => {
                    for mut behind in held {
                        *behind = Behind::Live(Arc::clone(&file));
                    }
                    return Ok((stat, file));
                }
                Err(error) => {
                    self.paths.give_back(moved.attr.ino, known);
                    return Err(error);
                }
            }
        }
    }

    /// Creates a file of the mount called `to` from a file of the source whose open handles are
    /// locked.
    fn make_live(
        &self,
        (from, to): (&Path, &Slot),
        moved: &Entry,
        openers: &[Arc<OpenFile>],
        lookups: u64,
        caller: &Caller,
    ) -> Result<(Stat, Arc<LiveFile>)> {
        let attr = &moved.attr;
        let stat = self.storage.lstat(from)?;
        let content = self.source_content(from, caller)?;
        let owner = Owner { uid: attr.uid, gid: attr.gid };
        let file = self.new_file(Some(attr.ino), attr.mode, owner)?;
        {
            let mut state = file.state();
            state.bytes = Bytes::Here(content);
            state.mtime = stat.mtime;
            state.openers = openers.iter().map(Arc::downgrade).collect();
        }
        self.overlay()?.names().set_lookups(&file, lookups);
        match self.name_file(to, &file) {
            Ok(()) => Ok((stat, file)),
            Err(error) => {
                self.overlay()?.names().release(&file);
                Err(error)
            }
        }
    }

    /// Moves the open handles of a file of the mount to the file of the source that it has become.
    fn become_source(&self, file: &Arc<LiveFile>, to: &Path, moved: &Moved) -> Result<()> {
        let _turn = self.moves.lock();
        let openers = loop {
            let openers = file.state().open_files();
            let held: Vec<_> = openers.iter().map(|open| open.hold()).collect();
            let mut state = file.state();
            if state.open_files().len() > openers.len() {
                continue;
            }
            if let Bytes::Here(content) = &state.bytes
                && state.writes != moved.writes
            {
                // Written while the file was being created.
                overwrite(&*moved.file, content)?;
            }
            (state.bytes, state.dirty) = (Bytes::Moved(Arc::clone(&moved.file)), false);
            drop(state);
            for mut behind in held {
                *behind = Behind::Source(Arc::clone(&moved.file) as Arc<dyn StorageFile>);
            }
            break openers;
        };
        openers.iter().for_each(|open| open.stay());
        self.paths.adopt(file.ino, to, &moved.file.stat()?, &openers);
        let lookups = self.overlay()?.names().release(file);
        self.paths.looked_up(file.ino, lookups.saturating_sub(1));
        Ok(())
    }

    /// Hides a file of the source that was renamed; it is removed once it is durable under its new
    /// name.
    fn unname_source(
        &self,
        from: &Path,
        stat: Stat,
        to: &Path,
        file: &LiveFile,
        caller: &Caller,
    ) -> Result<()> {
        let hidden = Hidden { stat, by: self.access.identity(caller)? };
        let mut names = self.overlay()?.names();
        let mut after = names.take_links(from);
        if file.state().names.iter().any(|name| name == to) {
            after.push(names.promise(to));
        }
        names.hide(from, hidden, after);
        Ok(())
    }

    fn rename_in_source(
        &self,
        from: &Path,
        to: &Path,
        moved: &Entry,
        caller: &Caller,
    ) -> Result<()> {
        let mut made = Vec::new();
        if moved.attr.kind == FileKind::Directory {
            // Uncommitted changes of arrays below it are committed where they are.
            self.commit(from)?;
            for array in self.nodes.committed() {
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
        self.free_name(to, moved.attr.kind)?;
        self.on_behalf(caller, |storage| storage.rename(from, to))?;
        let mut names = self.overlay()?.names();
        for path in made {
            names.take(&path);
            if let Ok(below) = path.strip_prefix(from) {
                names.put(&to.join(below), What::Directory, None);
            }
        }
        names.move_links(from, to);
        drop(names);
        self.paths.renamed(from, to);
        self.nodes.forget(from);
        self.nodes.forget(to);
        Ok(())
    }

    /// Creates a hard link to a file.
    pub fn link(&self, ino: u64, parent: u64, name: &OsStr, caller: &Caller) -> Result<Entry> {
        self.overlay()?;
        self.make_room()?;
        let to = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let target = self.target(ino)?;
        if let (Target::Path(from), Slot::Source(to)) = (&target, &to) {
            self.free_name(to, FileKind::File)?;
            self.on_behalf(caller, |storage| storage.link(from, to))?;
            return self.path_entry(to);
        }
        if let (Target::Path(from), Slot::Document(to)) = (&target, &to) {
            let content = self.source_content(from, caller)?;
            self.write_document(to, &content)?;
            self.paths.copied(ino);
        } else {
            if let Slot::Chunk(_, place) = &to {
                self.permit_change(place, caller)?;
            }
            let source = match &target {
                Target::Path(path) => Some(Arc::clone(path)),
                _ => None,
            };
            let file = match source {
                Some(_) => self.file_of_target(target, caller)?,
                None => self.brought_here(|| self.file_of_target(self.target(ino)?, caller))?,
            };
            self.name_file(&to, &file)?;
            match (&source, &to) {
                (Some(_), _) => self.paths.copied(ino),
                (None, Slot::Source(_) | Slot::Document(_)) => file.state().is_copied = true,
                _ => (),
            }
            if let (Some(from), Some(to)) = (source, to.path()) {
                let mut names = self.overlay()?.names();
                let promise = names.promise(to);
                names.linked(&from, promise);
            }
        }
        if let Some(path) = to.path() {
            self.after_change(path)?;
        }
        self.lookup(parent, name)?.ok_or(FsError::NotFound)
    }

    /// Creates a symbolic link.
    pub fn symlink(
        &self,
        parent: u64,
        name: &OsStr,
        target: &Path,
        caller: &Caller,
    ) -> Result<Entry> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let Slot::Source(path) = slot else { return Err(FsError::NotPermitted) };
        self.free_name(&path, FileKind::Symlink)?;
        self.on_behalf(caller, |storage| storage.symlink(target, &path))?;
        self.own(&path, caller);
        self.path_entry(&path)
    }

    /// Creates a named pipe or a socket.
    pub fn make_node(
        &self,
        parent: u64,
        name: &OsStr,
        kind: FileKind,
        mode: u32,
        caller: &Caller,
    ) -> Result<Entry> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let Slot::Source(path) = slot else { return Err(FsError::NotPermitted) };
        self.free_name(&path, kind)?;
        self.on_behalf(caller, |storage| storage.make_node(&path, kind, mode & 0o7777))?;
        self.own(&path, caller);
        self.path_entry(&path)
    }

    /// Finds a file and loads its bytes from its shard: from then on it is not dropped, as it may
    /// have been before.
    fn brought_here(&self, find: impl Fn() -> Result<Arc<LiveFile>>) -> Result<Arc<LiveFile>> {
        const ATTEMPTS: usize = 4;
        for _ in 0..ATTEMPTS {
            let file = find()?;
            self.bring_here(&file)?;
            if self.overlay()?.names().has(&file) {
                return Ok(file);
            }
        }
        Err(FsError::Stale)
    }

    /// Returns the file of a name as a file of the mount.
    fn file_of(&self, slot: &Slot) -> Result<Arc<LiveFile>> {
        match slot {
            Slot::Chunk(path, place) => self.chunk_file(path, place),
            Slot::Document(path) => self.document_file(path),
            Slot::Scratch(path) => {
                let names = self.overlay()?.names();
                match names.get(path).map(|name| name.what.clone()) {
                    Some(What::File(file)) => Ok(file),
                    _ => Err(FsError::NotFound),
                }
            }
            Slot::Source(_) | Slot::Above(..) | Slot::Outside | Slot::Control => {
                Err(FsError::NotPermitted)
            }
        }
    }

    fn file_of_target(&self, target: Target, caller: &Caller) -> Result<Arc<LiveFile>> {
        match target {
            Target::Live(file) => Ok(file),
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                let path = array.path(&coords);
                self.chunk_file(&path, &Place { array, coords })
            }
            Target::Path(path) => {
                let attr = self.path_attr(&path)?;
                let content = self.source_content(&path, caller)?;
                let owner = Owner { uid: attr.uid, gid: attr.gid };
                let file = self.new_file(None, attr.mode, owner)?;
                file.state().bytes = Bytes::Here(content);
                Ok(file)
            }
            _ => Err(FsError::NotPermitted),
        }
    }

    /// Gives a file the name `slot`, replacing what is there. A chunk is staged for commit.
    pub(in crate::fs) fn name_file(&self, slot: &Slot, file: &Arc<LiveFile>) -> Result<()> {
        let path = slot.path().ok_or(FsError::NotPermitted)?;
        self.keep_replaced(path, file)?;
        match slot {
            Slot::Chunk(_, place) => {
                let staged = self.overlay()?.names().get(path).and_then(|name| name.stage.clone());
                let stage = match staged {
                    Some(stage) => stage,
                    None => self.stage(place)?,
                };
                let _turn = file.turn();
                let Bytes::Here(content) = file.state().bytes.clone() else {
                    return Err(FsError::Stale);
                };
                name_spool_file(place, &content);
                let encoded = self.encoded(place, &content);
                let encoded = encoded.inspect_err(|error| log::warn!("{error}"));
                let Encoded { chunk: content, shown } = encoded?;
                let mut names = self.overlay()?.names();
                file.state().shown = shown;
                let number = names.next_number();
                let replaced = names.get(path).map(|name| name.what.clone());
                if let Some(What::File(replaced)) = &replaced
                    && !Arc::ptr_eq(replaced, file)
                {
                    names.leave(path, replaced);
                }
                let name = names.put(path, What::File(Arc::clone(file)), Some(place.clone()));
                name.error = None;
                let stage = name.stage.get_or_insert(stage);
                stage.change = Some(Change { content, number });
                if let Some(What::File(replaced)) = replaced {
                    names.drop_unused(&replaced);
                }
                Ok(())
            }
            Slot::Scratch(_) => {
                let mut names = self.overlay()?.names();
                let replaced = names.get(path).map(|name| name.what.clone());
                if let Some(What::File(replaced)) = &replaced
                    && !Arc::ptr_eq(replaced, file)
                {
                    names.leave(path, replaced);
                }
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
                self.free_name(path, FileKind::File)?;
                self.move_to_source(path, file).map(drop)
            }
            Slot::Above(..) | Slot::Outside | Slot::Control => Err(FsError::NotPermitted),
        }
    }

    /// Open handles and other links of a file keep its contents when its name is taken by another
    /// file.
    fn keep_replaced(&self, path: &Path, by: &Arc<LiveFile>) -> Result<()> {
        let replaced = self.overlay()?.names().get(path).map(|name| name.what.clone());
        if let Some(What::File(replaced)) = replaced
            && !Arc::ptr_eq(&replaced, by)
            && self.is_needed_without(&replaced, path)
        {
            self.bring_here(&replaced)?;
        }
        Ok(())
    }

    /// Returns whether a file is still needed once it has lost a name: it is open or has other
    /// names.
    fn is_needed_without(&self, file: &LiveFile, path: &Path) -> bool {
        let state = file.state();
        state.is_open() || state.names.iter().any(|name| name != path)
    }

    /// Removes the old name of a file.
    fn unname_file(&self, slot: &Slot, caller: &Caller) -> Result<()> {
        match slot {
            Slot::Chunk(path, place) => self.remove_chunk(path, place),
            Slot::Scratch(path) => self.remove_name(path),
            Slot::Document(path) => self.remove_document(path),
            Slot::Source(path) => self.remove_source_file(path, caller),
            Slot::Above(..) | Slot::Outside | Slot::Control => Err(FsError::NotPermitted),
        }
    }
}
