//! Changing attributes.

use std::path::Path;

use super::access::Caller;
use super::live::Place;
use super::write::SetAttr;
use super::{Attr, Fs, FsError, Result, Target};
use crate::store::Freshness;
use crate::store::storage::SetStat;

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
            Target::Path(path) if set.size.is_some() && self.is_document(&path) => {
                let file = self.document_file(&path)?;
                self.set_live_attr(&file, set)?;
                self.live_attr(&file)
            }
            // Its directory in the source is none of the array's.
            Target::Path(path) if path.as_os_str().is_empty() && self.config.file.is_some() => {
                Ok(Attr { ino, ..self.path_attr(&path)? })
            }
            Target::Path(path) => {
                self.check_stored(&path)?;
                self.set_source_attr(&path, set, caller)?;
                Ok(Attr { ino, ..self.path_attr(&path)? })
            }
            Target::ControlDirectory
            | Target::StatsFile
            | Target::WaitingFile
            | Target::Flat(..) => Err(FsError::NotPermitted),
        }
    }

    fn set_source_attr(&self, path: &Path, set: &SetAttr, caller: &Caller) -> Result<()> {
        let stat = SetStat {
            mode: set.mode.map(|mode| mode & 0o7777),
            uid: set.uid,
            gid: set.gid,
            atime: set.atime,
            mtime: set.mtime,
            is_now: set.is_now,
        };
        match self.on_behalf(caller, |storage| storage.set_stat(path, &stat)) {
            // The kernel does that for whoever writes to a file.
            Err(error) if error.errno() == libc::EPERM && self.drops_privileges(path, set)? => {
                self.storage.set_stat(path, &stat)?;
            }
            done => done?,
        }
        if let Some(length) = set.size {
            self.on_behalf(caller, |storage| storage.open_writable(path)?.set_length(length))?;
        }
        Ok(())
    }

    /// Whether all that changes is that a program does not run as its owner or group any more.
    fn drops_privileges(&self, path: &Path, set: &SetAttr) -> Result<bool> {
        let SetAttr { mode: Some(mode), uid: None, gid: None, atime: None, mtime: None, .. } = set
        else {
            return Ok(false);
        };
        let privileges = libc::S_ISUID | libc::S_ISGID;
        let before = self.storage.lstat(path)?.mode;
        Ok((before ^ mode) & 0o7777 & !privileges == 0 && mode & !before & privileges == 0)
    }

    /// Attributes of a chunk that nobody writes at the moment.
    fn set_chunk_attr(&self, place: Place, set: &SetAttr) -> Result<Attr> {
        let source = &place.array.source;
        let path = place.array.path(&place.coords);
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
}
