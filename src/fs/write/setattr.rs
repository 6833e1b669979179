//! Changes of attributes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::attr::Attr;
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::request::{SetAttr, Writers};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, LiveState, Place};
use crate::fs::state::target::Target;
use crate::store::Freshness;
use crate::store::storage::{Need, PosixStorage, SetStat, Stat, StorageFile, if_present};

/// Open file of the source.
struct OpenFile<'a> {
    ino: u64,
    handle: Option<u64>,
    file: &'a Arc<dyn StorageFile>,
    /// Path by which it was reached; `None` if it has no name any more.
    path: Option<&'a Path>,
}

impl Fs {
    /// Changes attributes of a file.
    pub fn setattr(
        &self,
        ino: u64,
        handle: Option<u64>,
        set: &SetAttr,
        caller: &Caller,
    ) -> Result<Attr> {
        self.overlay()?;
        match handle.and_then(|handle| self.open_handle(handle)) {
            Some(open) if set.size.is_some() => open.check_written()?,
            Some(_) => (),
            None => self.check_not_replaced(ino)?,
        }
        let mut attr = self.setattr_once(ino, handle, set, caller);
        if matches!(attr, Err(FsError::Stale)) {
            // The number has come to refer to another file between lookup and use.
            attr = self.setattr_once(ino, handle, set, caller);
        }
        attr
    }

    fn setattr_once(
        &self,
        ino: u64,
        handle: Option<u64>,
        set: &SetAttr,
        caller: &Caller,
    ) -> Result<Attr> {
        let target = self.target(ino)?;
        // Through a handle its opening was permitted.
        if set.size.is_some() && handle.is_none() && !matches!(target, Target::Path(_)) {
            self.permit_content(&target, Need::Write, caller)?;
        }
        match target {
            Target::Nameless(file) => {
                self.set_open_attr(&OpenFile { ino, handle, file: &file, path: None }, set, caller)
            }
            Target::Live(file) => {
                let open = handle.and_then(|handle| self.open_handle(handle));
                let writers = Writers {
                    by_name: self.opener(caller).filter(|_| handle.is_none()),
                    open: open.into_iter().collect(),
                    mapped: false,
                };
                self.resized_by(&file, set, caller);
                self.set_document_attr(&file, set, caller)?;
                self.set_live_attr(&file, set, &writers)?;
                // Its last handle was closed meanwhile, and it is what is stored: that has to be changed.
                let is_left = {
                    let state = file.state();
                    state.names.is_empty() && !state.is_open()
                };
                if is_left || !self.overlay()?.names().has(&file) {
                    return Err(FsError::Stale);
                }
                self.live_attr(&file)
            }
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                self.set_chunk_attr(Place { array, coords }, set, caller)
            }
            Target::Tree(array, coords) => {
                // A directory above chunks has the attributes of the source's.
                Ok(self.tree_directory(&array, &coords)?.ok_or(FsError::NotFound)?.attr)
            }
            Target::Path(_) if self.storage.files().is_none() => Err(FsError::ReadOnly),
            Target::Path(path) if set.size.is_some() && self.is_document(&path) => {
                let file = self.document_file(&path, false)?;
                self.resized_by(&file, set, caller);
                self.set_live_attr(&file, set, &Writers::default())?;
                self.live_attr(&file)
            }
            // The directory of a mounted file in the source does not belong to the array.
            Target::Path(path) if path.as_os_str().is_empty() && self.config.file.is_some() => {
                Ok(Attr { ino, ..self.path_attr(&path)? })
            }
            Target::Path(path) => {
                let open = handle.and_then(|handle| self.source_handle(handle));
                // Objects that are open for reading are versions, which do not change.
                let is_object = self.storage.posix().is_none();
                let open = open.filter(|file| !is_object || file.posix().is_some());
                if let Some(file) = open.or_else(|| self.paths.open_file(ino, is_object)) {
                    let open = OpenFile { ino, handle, file: &file, path: Some(&path) };
                    return self.set_open_attr(&open, set, caller);
                }
                let _turn = self.name_in_source();
                let stored = self.stored_as(&path)?;
                if *stored == *path {
                    self.check_stored(&path)?;
                    self.check_no_shard_now(&path)?;
                }
                let set = self.set_source_attr(&stored, set, caller);
                set.map_err(|error| self.gone(&path, error))?;
                if *stored != *path {
                    self.nodes.forget(stored.parent().unwrap_or(Path::new("")));
                }
                Ok(Attr { ino, ..self.path_attr(&path)? })
            }
            Target::ControlDirectory | Target::Control(_) | Target::Flat(..) => {
                Err(FsError::NotPermitted)
            }
        }
    }

    /// Records who changes the length of a file of the overlay.
    fn resized_by(&self, file: &LiveFile, set: &SetAttr, caller: &Caller) {
        let limited = set.size.and_then(|_| self.limited(caller));
        limited.iter().for_each(|author| file.state().written_by(author));
    }

    /// Changes the attributes of the document in the source that an open file stands for. What is written to
    /// it will have them.
    fn set_document_attr(&self, file: &LiveFile, set: &SetAttr, caller: &Caller) -> Result<()> {
        let set = SetAttr { size: None, ..*set };
        let path = file.state().names.iter().find(|path| self.is_document(path)).cloned();
        let Some(path) = path.filter(|_| set != SetAttr::default()) else { return Ok(()) };
        let stored = self.stored_as(&path)?;
        match if_present(self.storage.lstat(&stored))? {
            Some(_) => self.set_source_attr(&stored, &set, caller)?,
            None => return Ok(()),
        }
        let mut state = file.state();
        (state.uid, state.gid) = (set.uid.unwrap_or(state.uid), set.gid.unwrap_or(state.gid));
        Ok(())
    }

    fn set_source_attr(&self, path: &Path, set: &SetAttr, caller: &Caller) -> Result<()> {
        self.set_stat(
            set,
            caller,
            || self.storage.lstat(path),
            |storage, stat| storage.set_stat(path, stat),
            |stat| {
                let file = self.storage.writable()?.open_writable(path)?;
                let drops = drops_privileges(&file.stat()?, set);
                drops.then(|| file.set_stat(stat)).transpose()
            },
        )?;
        if let Some(length) = set.size {
            self.on_behalf(caller, |storage| {
                let file = storage.open_writable(path)?;
                file.set_length(length)?;
                // No close follows.
                file.closed()
            })?;
        }
        Ok(())
    }

    /// Changes attributes of an open file of the source, whatever has its name by now.
    fn set_open_attr(&self, open: &OpenFile<'_>, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        let OpenFile { ino, handle, file, path } = *open;
        self.set_stat(
            set,
            caller,
            || file.stat(),
            |_, stat| file.writable()?.set_stat(stat),
            |stat| {
                let drops = drops_privileges(&file.stat()?, set);
                drops.then(|| file.writable()?.set_stat(stat)).transpose()
            },
        )?;
        if let Some(length) = set.size {
            let own = handle.and_then(|handle| self.source_handle(handle));
            match (own, path) {
                (Some(own), _) => own.writable()?.set_length(length)?,
                (None, Some(path)) => {
                    let own = self.on_behalf(caller, |storage| storage.open_writable(path))?;
                    if own.stat()?.id() != file.stat()?.id() {
                        return Err(FsError::Stale);
                    }
                    own.set_length(length)?;
                    // No close follows.
                    own.closed()?;
                }
                (None, None) => {
                    let file = self.paths.open_file(ino, true).ok_or(FsError::NotFound)?;
                    file.writable()?.set_length(length)?;
                }
            }
        }
        self.check_not_gathered(ino, &**file)?;
        self.open_attr(ino, &**file)
    }

    /// Changes attributes other than the length of a file of the source, with the caller's rights. With
    /// those of this process, `drop_privileges` may, if that is all that is asked for: it opens the file, since
    /// others may put another one in its place.
    fn set_stat(
        &self,
        set: &SetAttr,
        caller: &Caller,
        before: impl Fn() -> io::Result<Stat>,
        change: impl Fn(&dyn PosixStorage, &SetStat) -> io::Result<()>,
        drop_privileges: impl Fn(&SetStat) -> io::Result<Option<()>>,
    ) -> Result<()> {
        if let Some(mode) = set.mode {
            let refused = mode & 0o7777 & !self.access.permitted_mode(mode, caller);
            if refused != 0 && refused & !before()?.mode != 0 {
                return Err(FsError::NotPermitted);
            }
        }
        let stat = SetStat {
            mode: set.mode.map(|mode| mode & 0o7777),
            uid: set.uid,
            gid: set.gid,
            atime: set.atime,
            mtime: set.mtime,
            is_now: set.is_now,
            // The kernel requests no attribute if `chown` was called without a new owner or group.
            ctime: *set == SetAttr::default(),
        };
        match self.on_behalf(caller, |storage| change(storage, &stat)) {
            // The kernel does this on behalf of every writer, whatever its rights.
            Err(error) if error.errno() == libc::EPERM && drops_privileges(&before()?, set) => {
                // One that cannot be opened has no privileges to drop.
                drop_privileges(&stat).ok().flatten().ok_or(error)
            }
            done => done,
        }
    }

    /// Changes the attributes of a chunk that is not in the overlay.
    fn set_chunk_attr(&self, place: Place, set: &SetAttr, caller: &Caller) -> Result<Attr> {
        let entry = self.tree_entry(&place.array, &place.coords, Freshness::Now)?;
        let mut attr = entry.ok_or(FsError::NotFound)?.attr;
        let other = |wanted: Option<u32>, has: u32| wanted.is_some_and(|wanted| wanted != has);
        if other(set.uid, attr.uid) || other(set.gid, attr.gid) {
            return Err(FsError::NotPermitted);
        }
        if set.size.is_some() {
            let file = self.own_chunk_file(attr.ino, &place)?;
            let writers = Writers { by_name: self.opener(caller), ..Writers::default() };
            self.set_live_attr(&file, set, &writers)?;
            return self.live_attr(&file);
        }
        if let Some(mtime) = set.mtime {
            if !self.set_chunk_date(&place, mtime)? {
                return Err(FsError::NotFound);
            }
            attr.mtime = mtime;
        }
        Ok(attr)
    }

    /// Returns the place of a chunk whose bytes are here, and in its shard as well: they are used for a link or a rename.
    fn clean_place(&self, file: &LiveFile) -> Result<Option<Place>> {
        let names = self.overlay()?.names();
        let state = file.state();
        if state.dirty || !matches!(state.bytes, Bytes::Here(_)) {
            return Ok(None);
        }
        let place = |path: &PathBuf| {
            let name = names.get(path)?;
            let waits = name.stage.as_ref().is_some_and(|stage| stage.change.is_some());
            name.place.clone().filter(|_| !waits)
        };
        Ok(state.names.iter().find_map(place))
    }

    /// Changes the attributes of a file of the overlay.
    pub(in crate::fs) fn set_live_attr(
        &self,
        file: &Arc<LiveFile>,
        set: &SetAttr,
        writers: &Writers,
    ) -> Result<()> {
        if let Some(length) = set.size {
            self.truncate_live(file, length, writers)?;
            if !self.overlay()?.names().has(file) {
                return Err(FsError::Stale);
            }
            // Truncated by path, not through an open file: no close will stage it.
            if !file.state().is_open() {
                self.publish_closed(file)?;
            }
        }
        let is_stored = |state: &LiveState| matches!(state.bytes, Bytes::Stored(_));
        let mut state = loop {
            // Not in the condition, which would keep the file locked.
            let bytes = file.state().bytes.clone();
            let was_stored = matches!(bytes, Bytes::Stored(_));
            if let (Bytes::Stored(place), Some(mtime)) = (bytes, set.mtime) {
                if !self.set_chunk_date(&place, mtime)? && self.filler(&place.array)?.is_none() {
                    return Err(FsError::NotFound);
                }
            } else if let (Some(place), Some(mtime)) = (self.clean_place(file)?, set.mtime) {
                self.set_chunk_date(&place, mtime)?;
            }
            let state = file.state();
            // A commit may just have taken it to its shard, which has the date that it had.
            if was_stored || set.mtime.is_none() || !is_stored(&state) {
                break state;
            }
        };
        let is_chunk = state.names.iter().any(|name| !self.is_document(name)) && is_stored(&state);
        if let Some(mode) = set.mode.filter(|_| !is_chunk) {
            (state.mode, state.asked) = (mode & 0o7777, mode & 0o7777);
        }
        if let Some(mtime) = set.mtime {
            state.mtime = mtime;
        }
        // A document is a file of its own.
        let is_document = state.names.iter().any(|name| self.is_document(name));
        if is_document && rustix::process::geteuid().is_root() {
            (state.uid, state.gid) = (set.uid.unwrap_or(state.uid), set.gid.unwrap_or(state.gid));
        }
        // The owner is that of the shard.
        let other = |wanted: Option<u32>, has: u32| wanted.is_some_and(|wanted| wanted != has);
        if other(set.uid, state.uid) || other(set.gid, state.gid) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }
}

/// Returns whether the only change is that the setuid or setgid bit is cleared.
fn drops_privileges(before: &Stat, set: &SetAttr) -> bool {
    let SetAttr { mode: Some(mode), uid: None, gid: None, atime: None, mtime: None, .. } = set
    else {
        return false;
    };
    let (privileges, before) = (libc::S_ISUID | libc::S_ISGID, before.mode);
    (before ^ mode) & 0o7777 & !privileges == 0 && mode & !before & privileges == 0
}
