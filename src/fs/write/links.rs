//! Creation of links and special files.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::fs::attr::Entry;
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::state::fs::Fs;
use crate::fs::state::target::Target;
use crate::fs::write::passthrough::moved_by;
use crate::fs::write::slot::Slot;
use crate::store::storage::{FileKind, Need, PosixStorage};

impl Fs {
    /// Creates a hard link to a file.
    pub fn link(&self, ino: u64, parent: u64, name: &OsStr, caller: &Caller) -> Result<Entry> {
        self.overlay()?;
        self.make_room()?;
        let to = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        self.check_slot(&to)?;
        self.check_not_replaced(ino)?;
        let target = self.target(ino)?;
        // Writing to another name of it would be no change of a document, and would not be checked.
        if let Target::Path(from) = &target
            && self.is_document(from)
            && !matches!(to, Slot::Document(_))
        {
            return Err(FsError::CrossDevice);
        }
        if let (Target::Path(from), Slot::Source(to)) = (&target, &to) {
            let _turn = self.free_name(to, FileKind::File)?;
            self.check_no_shard_now(from)?;
            self.on_behalf(caller, |storage| storage.link(from, to))?;
            self.after_names(&[to])?;
            return self.path_entry(to);
        }
        if let (Target::Path(from), Slot::Document(to)) = (&target, &to) {
            // Others follow links, and wait for pipes.
            if self.storage.lstat(from)?.kind != FileKind::File {
                return Err(FsError::CrossDevice);
            }
            let (content, stat) = self.source_content(from, caller)?;
            let limited = self.limited(caller);
            self.write_document(to, &content, &moved_by(limited.as_slice(), &stat))?;
            self.leave_document(to)?;
            self.paths.copied(ino);
        } else {
            // The bytes of a chunk are read, and what they become may have other permissions.
            let reader = self.permit_opening(&target, Need::Read, caller)?;
            if let Slot::Chunk(_, place) = &to {
                self.permit_change(place, caller)?;
            }
            let source = match &target {
                Target::Path(path) => Some(Arc::clone(path)),
                _ => None,
            };
            let file = match source {
                Some(_) => self.overlay()?.keep(self.file_of_target(target, caller)?),
                None => self.brought_here(
                    || self.file_of_target(self.target(ino)?, caller),
                    reader.as_deref(),
                )?,
            };
            self.name_file(&to, &file, caller).inspect_err(|_| {
                // It has no other name.
                if let (Some(_), Ok(overlay)) = (&source, self.overlay()) {
                    overlay.names().release(&file);
                }
            })?;
            match (&source, &to) {
                (Some(_), _) => self.paths.copied(ino),
                (None, Slot::Source(_) | Slot::Document(_)) => file.state().is_copied = true,
                _ => (),
            }
            if let (Some(from), Some(to)) = (source, to.path()) {
                let mut names = self.overlay()?.names();
                let promise = names.promise(to);
                self.paths.copy_waits(ino, &promise);
                names.linked(&from, promise);
            }
        }
        if let Some(path) = to.path() {
            self.after_change(path)?;
        }
        self.relieve_after_name();
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
        self.make_in_source(parent, name, FileKind::Symlink, caller, |storage, path| {
            storage.symlink(target, path)
        })
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
        let mode = self.access.permitted_mode(mode, caller);
        self.make_in_source(parent, name, kind, caller, |storage, path| {
            storage.make_node(path, kind, mode)
        })
    }

    /// Makes a new name that only the source can have: no chunk and no document is of this kind.
    fn make_in_source(
        &self,
        parent: u64,
        name: &OsStr,
        kind: FileKind,
        caller: &Caller,
        make: impl FnOnce(&dyn PosixStorage, &Path) -> io::Result<()>,
    ) -> Result<Entry> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        let Slot::Source(path) = slot else { return Err(FsError::NotPermitted) };
        self.check_passed_through()?;
        let _turn = self.free_name(&path, kind)?;
        self.on_behalf(caller, |storage| make(storage, &path))?;
        self.own(&path, caller);
        self.after_names(&[&path])?;
        self.path_entry(&path)
    }
}
