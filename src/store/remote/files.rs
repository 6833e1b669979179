//! Files and directories of a store that are made, changed and removed.
//!
//! A file is an object as a whole, which is put when the file is closed, on the condition that it still is the version
//! that was opened. A directory is there as long as something is in it, or as this process lives that has made it.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::attributes::new_number;
use super::names::Name;
use super::objects::{tag_of, untagged};
use super::sent::Ends;
use super::storage::RemoteStorage;
use super::unstored::Here;
use super::whole_file::{Check, WholeFile};
use crate::format::plan::parts::PartLimits;
use crate::store::storage::{
    Current, DirItem, ObjectPart, ObjectStorage, PosixFile, PosixStorage, PutError, SetStat, Space,
    Visit, When, WriteId, is_absent,
};

/// Times that a file is looked at which is being put.
const ATTEMPTS: usize = 8;

/// Positions of names that the store does not have come after all others.
const HERE: u64 = 1 << 61;

fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

impl RemoteStorage {
    /// Opens a file for writing, as it is now.
    fn whole_file(&self, path: &Path) -> io::Result<Arc<WholeFile>> {
        if let Some(file) = self.unstored.file(path).filter(|file| file.is_changed()) {
            return Ok(file);
        }
        if let Some(Name::Directory) = self.find(path)? {
            return Err(errno(libc::EISDIR));
        }
        for _ in 0..ATTEMPTS {
            let at = Instant::now();
            let Some(Current { tag, .. }) = self.objects.current(path)? else {
                return Err(errno(libc::ENOENT));
            };
            if let Some(file) = self.opened(path, at, tag.ok_or_else(|| untagged(path))?)? {
                return Ok(file);
            }
        }
        Err(errno(libc::ESTALE))
    }

    /// Opens the version of an object that was found after some time for writing. Others may have it open in an older
    /// version. `None` if this mount has put another one since.
    fn opened(&self, path: &Path, at: Instant, tag: String) -> io::Result<Option<Arc<WholeFile>>> {
        let opened = (self.open_stored(path)?, tag.clone());
        let file = WholeFile::of(Arc::clone(&self.objects), self.owner, path, opened)?;
        let is_last = || !self.names.has_other(path, at, Some(&tag));
        Ok(self.unstored.open_file(path, Some(&tag), Arc::new(file), is_last))
    }

    /// Returns the file at a path that is open for writing, unless others have put another one there since.
    pub(super) fn here(&self, path: &Path) -> io::Result<Option<Arc<WholeFile>>> {
        let Some(file) = self.unstored.file(path) else { return Ok(None) };
        if file.is_changed() {
            return Ok(Some(file));
        }
        let tag = match self.find_stored(path)? {
            Some(Name::Object(object)) => tag_of(&object),
            _ => None,
        };
        Ok(Some(file).filter(|file| file.is_version(tag.as_deref())))
    }

    /// Visits the names of a directory: those of the store, and those that it does not have.
    pub(super) fn list_all(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        let here = self.unstored.names(path);
        let mut is_over = false;
        if from < HERE {
            let mut visit = |item: DirItem<'_>| {
                let flow = visit(item);
                is_over = flow.is_break();
                flow
            };
            match self.directories.list(path, from, &mut visit) {
                Err(error) if is_absent(&error) && self.unstored.is_directory(path) => (),
                listed => listed?,
            }
        }
        for Here { name, kind, number } in here.iter().filter(|_| !is_over) {
            let next = HERE + number;
            if next <= from || matches!(self.find_stored(&path.join(name)), Ok(Some(_))) {
                continue;
            }
            let item = DirItem { name: name.as_os_str(), kind: Some(*kind), next };
            if let ControlFlow::Break(()) = visit(item) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the operations that change files, for those who share them.
    pub fn shared_files(self: &Arc<Self>) -> Arc<dyn PosixStorage> {
        Arc::clone(self) as Arc<dyn PosixStorage>
    }

    /// Puts an object in the place of the one with the entity tag `base`, or of none. Returns its entity tag.
    ///
    /// # Errors
    /// ESTALE if another one is there; those of the requests.
    pub fn put_object(
        &self,
        path: &Path,
        content: &[u8],
        base: Option<&str>,
    ) -> io::Result<String> {
        self.objects.put_file(path, || Ok(content.to_vec()), base, &mut Vec::new())
    }

    /// Creates a file that is put when it is closed, in the place of the object with the entity tag `base` or of none, if
    /// `check` agrees. It is no loss if it is never closed.
    pub fn new_file(
        &self,
        path: &Path,
        base: Option<String>,
        check: Check,
    ) -> io::Result<Arc<dyn PosixFile>> {
        self.directories.key(path).map_err(|_| errno(libc::EINVAL))?;
        let file = WholeFile::new(Arc::clone(&self.objects), self.owner, path, new_number(path));
        Ok(Arc::new(file.drafted(base, check)))
    }

    /// Keeps the directory of what was removed, although nothing may be left in it.
    fn keep_above(&self, path: &Path) {
        path.parent().into_iter().for_each(|above| self.unstored.add_directory(above));
    }
}

impl ObjectStorage for RemoteStorage {
    fn current(&self, path: &Path) -> io::Result<Option<Current>> {
        self.objects.current(path)
    }

    fn put(
        &self,
        path: &Path,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<String, PutError> {
        let ends = Ends::of(&content);
        let tag = self.objects.put(path, content, when, id)?;
        self.sent.keep(path, &tag, ends);
        Ok(tag)
    }

    fn part_limits(&self) -> Option<PartLimits> {
        self.client.part_limits()
    }

    fn assemble(
        &self,
        path: &Path,
        parts: Vec<ObjectPart>,
        before: &str,
        id: WriteId,
    ) -> Result<String, PutError> {
        let ends = Ends::of_parts(&parts);
        let tag = self.objects.assemble(path, parts, before, id)?;
        self.sent.keep(path, &tag, ends);
        Ok(tag)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.objects.remove(path)
    }

    fn is_shared(&self) -> bool {
        !self.client.single_writer.is_needed()
    }

    fn ended(&self) {
        self.client.tell_of_uploads();
    }

    fn end(&self) -> Vec<(PathBuf, Arc<dyn PosixFile>)> {
        let files = self.unstored.files().into_iter().filter(|(_, file)| file.is_changed());
        let ended = files.map(|(path, file)| {
            file.end();
            (path, file as Arc<dyn PosixFile>)
        });
        ended.collect()
    }
}

impl PosixStorage for RemoteStorage {
    fn open_file(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        Ok(self.whole_file(path)?)
    }

    fn open_plain(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        Ok(self.whole_file(path)?)
    }

    fn open_writable(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        Ok(self.whole_file(path)?)
    }

    fn read_link(&self, _path: &Path) -> io::Result<OsString> {
        Err(errno(libc::EINVAL))
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::ENDLESS)
    }

    fn put_whole(
        &self,
        path: &Path,
        content: &dyn Fn() -> io::Result<Vec<u8>>,
        expected: Option<(u64, u64)>,
    ) -> Option<io::Result<Arc<dyn PosixFile>>> {
        let put = || -> io::Result<Arc<dyn PosixFile>> {
            let base = self.objects.base(path, expected.map(|(_, number)| number))?;
            let replaced = self.unstored.file(path);
            let nbytes = Cell::new(0);
            let counted = || content().inspect(|bytes| nbytes.set(bytes.len() as u64));
            let tag = self.objects.put_file(path, counted, base.as_deref(), &mut Vec::new())?;
            if let Some(replaced) = replaced {
                replaced.leave();
                self.unstored.take_file(path, &replaced);
            }
            // Not what is there by now, which may be of others.
            let opened = (self.version(path, nbytes.get(), &tag)?, tag.clone());
            let file = WholeFile::of(Arc::clone(&self.objects), self.owner, path, opened)?;
            let file = Arc::new(file);
            self.unstored.put_file(path, Arc::clone(&file));
            Ok(file)
        };
        Some(put())
    }

    fn create(&self, path: &Path, _mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        // Checks the name as well.
        self.directories.key(path).map_err(|_| errno(libc::EINVAL))?;
        // What is known of it may be old, and it would be refused when it is closed.
        let is_there = self.here(path)?.is_some() || self.find(path)?.is_some();
        let at = Instant::now();
        if is_there || self.objects.current(path)?.is_some() {
            return Err(errno(libc::EEXIST));
        }
        let number = new_number(path);
        let file = Arc::new(WholeFile::new(Arc::clone(&self.objects), self.owner, path, number));
        let is_last = || !self.names.has_other(path, at, None);
        match self.unstored.open_file(path, None, Arc::clone(&file), is_last) {
            Some(added) if Arc::ptr_eq(&added, &file) => Ok(added),
            _ => {
                file.leave();
                Err(errno(libc::EEXIST))
            }
        }
    }

    fn clone_file(
        &self,
        _original: &Path,
        _path: &Path,
        _mode: u32,
    ) -> io::Result<Arc<dyn PosixFile>> {
        Err(errno(libc::EOPNOTSUPP))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        // Callers copy what is in a directory instead.
        if self.unstored.file(from).is_none() && matches!(self.find(from)?, Some(Name::Directory)) {
            return Err(errno(libc::EXDEV));
        }
        self.directories.key(to).map_err(|_| errno(libc::EINVAL))?;
        let file = self.whole_file(from)?;
        let replaced = self.unstored.file(to);
        let base = match self.objects.current(to)? {
            Some(Current { tag, .. }) => Some(tag.ok_or_else(|| untagged(to))?),
            None => None,
        };
        let renamed = file.rename(to, base.as_deref());
        if !file.is_at(to) {
            return renamed;
        }
        if let Some(replaced) = replaced {
            replaced.leave();
            self.unstored.take_file(to, &replaced);
        }
        self.unstored.take_file(from, &file);
        self.unstored.put_file(to, file);
        self.keep_above(from);
        renamed
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let known = self.unstored.file(path);
        match (self.here(path)?, self.find(path)?) {
            (Some(file), _) => file.remove()?,
            (None, Some(Name::Object(_))) => self.objects.remove(path)?,
            (None, Some(Name::Directory)) => return Err(errno(libc::EISDIR)),
            (None, None) => return Err(errno(libc::ENOENT)),
        }
        if let Some(known) = known {
            self.unstored.take_file(path, &known);
        }
        self.keep_above(path);
        Ok(())
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.directories.key(path).map_err(|_| errno(libc::EINVAL))?;
        if self.here(path)?.is_some() || self.find(path)?.is_some() {
            return Err(errno(libc::EEXIST));
        }
        self.unstored.add_directory(path);
        Ok(())
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let is_here = self.unstored.is_directory(path);
        if !self.unstored.names(path).is_empty() || self.objects.has_any(path)? {
            return Err(errno(libc::ENOTEMPTY));
        }
        self.unstored.take_directory(path);
        self.names.note_removed(path);
        self.keep_above(path);
        if is_here { Ok(()) } else { Err(errno(libc::ENOENT)) }
    }

    fn link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(errno(libc::EPERM))
    }

    fn symlink(&self, _target: &Path, _path: &Path) -> io::Result<()> {
        Err(errno(libc::EPERM))
    }

    fn set_stat(&self, path: &Path, set: &SetStat) -> io::Result<()> {
        self.owner.check(set)?;
        match self.unstored.file(path) {
            Some(file) => PosixFile::set_stat(&*file, set),
            None => Ok(()),
        }
    }

    fn sync_directory(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}
