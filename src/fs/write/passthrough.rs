//! Writing of files that are passed through to the source.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::zarr2::ZARRAY;
use crate::fs::attr::Entry;
use crate::fs::caller::{Author, Caller};
use crate::fs::error::{FsError, Result};
use crate::fs::form::View;
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::{Handle, Opened};
use crate::fs::state::live_file::{Behind, Bytes, LiveFile, OpenFile};
use crate::memory::zeroed;
use crate::store::access_list::inherited;
use crate::store::content::Content;
use crate::store::put::{put_file, put_moved_document, put_moved_file, put_written_file};
use crate::store::storage::{FileKind, Need, PosixFile, SetStat, Stat, Xattrs, if_present};
use crate::text::shown;

/// File of the source that was one of the mount.
pub(in crate::fs) struct Moved {
    pub file: Arc<dyn PosixFile>,
    /// Number of writes to the file of the mount when its bytes were copied.
    pub writes: u64,
}

impl Fs {
    pub(in crate::fs) fn create_in_source(
        &self,
        path: &Path,
        mode: u32,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        let mode = self.access.permitted_mode(mode, caller);
        // Another mount may put its directory, or the file itself, into shards at any moment.
        let gone = |error| self.gone(path, error);
        let file = self.on_behalf(caller, |storage| storage.create(path, mode)).map_err(gone)?;
        self.tell_of_zarr2(path);
        self.own(path, caller);
        self.after_names(&[path])?;
        let entry = self.path_entry(path).map_err(gone)?;
        let open = OpenFile::new(Behind::Source(file), true, self.opener(caller));
        let opened = self.source_pages(entry.attr.ino, &open).and_then(|pages| {
            // No other process has changed it since.
            self.insert_handle(Handle::Open(open), pages)
        });
        if opened.is_err() {
            self.forget(entry.attr.ino, 1);
        }
        Ok((entry, opened?))
    }

    /// Makes names of the source that have come or gone durable at once if the mount has `-o sync`.
    pub(in crate::fs) fn after_names(&self, paths: &[&Path]) -> Result<()> {
        if !self.config.writing.sync {
            return Ok(());
        }
        let directories: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
        if directories.is_empty() {
            return Ok(());
        }
        let source = self.storage.writable()?;
        for directory in directories {
            // Others may have removed it meanwhile.
            if_present(source.sync_directory(directory))?;
        }
        Ok(())
    }

    /// Says, once, that arrays of Zarr v2 are stored as they are written though there are rules for new arrays.
    pub(in crate::fs) fn tell_of_zarr2(&self, path: &Path) {
        let is_plain = self.view() == View::Zarr3 && self.config.writing.new_shards.makes_any();
        if is_plain && path.ends_with(ZARRAY) && !self.told_of_zarr2.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{}: arrays of Zarr v2 are stored as they are written; the view zarr2 stores them sharded: \
                 `--view zarr2`",
                shown(&path)
            );
        }
    }

    /// Returns the bytes of a file of the source, read with the caller's rights, and its attributes.
    ///
    /// # Errors
    ///
    /// `CrossDevice` if the file is longer than 16 times the dirty limit, taken as at least 1 MiB.
    pub(in crate::fs) fn source_content(
        &self,
        path: &Path,
        caller: &Caller,
    ) -> Result<(Content, Stat)> {
        self.path_attr(path)?;
        let file = self.open_on_behalf(caller, path)?;
        let stat = file.stat()?;
        if stat.size > self.config.writing.dirty_limit.max(1 << 20) * 16 {
            return Err(FsError::CrossDevice);
        }
        let content = self.read_content(stat.size, |buffer, at| file.read_at(buffer, at))?;
        Ok((content, stat))
    }

    /// Writes a file of the mount to the source, replacing the one at `path`, if the caller may
    /// give files names there. The new file keeps its owner, which need not be the caller, so it is
    /// created with this process's rights. It stays open; `writes` of the result records the
    /// contents it was made from.
    pub(in crate::fs) fn move_to_source(
        &self,
        path: &Path,
        file: &LiveFile,
        caller: &Caller,
    ) -> Result<Moved> {
        let (source, directory) = (self.storage.writable()?, parent_of(path));
        let opened = source.within(directory)?;
        match &opened {
            Some(opened) => self.permit_in_directory((&**opened, directory), caller)?,
            None => self.permit_name(path, caller)?,
        }
        let storage = opened.as_deref().unwrap_or(source);
        if let (Some(author), Some(there)) =
            (self.limited(caller), if_present(storage.lstat(path))?)
            && self.access.acts()
            && keeps_from(&storage.stat(directory)?, &there, &[author])
        {
            return Err(FsError::NotPermitted);
        }
        // A commit that had to come first may have moved this file's bytes to its shard.
        let opener = self.opener(caller);
        let reader: Vec<_> = opener.iter().map(|opener| (&**opener, Need::Read)).collect();
        self.bring_here(file, &reader)?;
        let (bytes, writes, attributes) = {
            let state = file.state();
            let attributes = SetStat {
                mode: Some(self.access.permitted_mode(state.mode, caller)),
                uid: Some(state.uid),
                gid: Some(state.gid),
                mtime: Some(state.mtime),
                ..SetStat::default()
            };
            (state.bytes.clone(), state.writes, attributes)
        };
        let Bytes::Here(content) = bytes else { return Err(FsError::Stale) };
        let file = put_moved_file(storage, path, &content, &attributes)?;
        Ok(Moved { file, writes })
    }

    /// Writes a document of the source, replacing the one at `path`.
    ///
    /// # Errors
    ///
    /// `Denied` if one of its writers may not do that. The kernel has checked it as the mount showed it, and
    /// the path may lead elsewhere since. Where this process cannot act as they, that is all.
    pub(in crate::fs) fn write_source(
        &self,
        path: &Path,
        content: &Content,
        by: &Writing<'_>,
    ) -> Result<()> {
        let (source, directory) = (self.storage.writable()?, parent_of(path));
        if self.storage.objects().is_some() {
            return self.put_document(path, content);
        }
        // One lookup for what is checked and what is written: others may exchange directories meanwhile.
        let opened = source.within(directory)?;
        let storage = opened.as_deref().unwrap_or(source);
        let there = if_present(storage.lstat(path))?;
        // It replaces a link, which may lead out of the directory.
        let is_link = there.as_ref().is_some_and(|there| there.kind == FileKind::Symlink);
        if self.access.acts() && !by.authors.is_empty() {
            let is_written = there.is_some() && !is_link && !by.is_moved;
            let written = if is_written { path } else { directory };
            self.permit_all_in((storage, directory), written, by.authors)?;
            if let (true, Some(there)) = (by.is_moved, &there)
                && keeps_from(&storage.stat(directory)?, there, by.authors)
            {
                return Err(FsError::NotPermitted);
            }
        }
        let storage = if is_link { source } else { storage };
        let Some(attributes) = &by.attributes else {
            return Ok(put_file(storage, path, content)?);
        };
        if there.is_some() && !by.is_moved {
            return Ok(put_written_file(storage, path, content, attributes)?);
        }
        let list = by.asked.map(|asked| inherited(storage, directory, asked)).transpose()?;
        let lists = list.flatten().map_or_else(Xattrs::new, |list| list.xattrs());
        Ok(put_moved_document(storage, path, content, (attributes, &lists))?)
    }

    /// Puts a document into a store of objects, in the place of the version that was read or written here last.
    fn put_document(&self, path: &Path, content: &Content) -> Result<()> {
        let bytes = || {
            let mut bytes = zeroed(content.nbytes())?;
            content.read_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let put = self.storage.writable()?.put_whole(path, &bytes, self.served().last(path));
        let put = put.ok_or(FsError::ReadOnly)?.and_then(|file| file.stat());
        match &put {
            Ok(stat) => self.served().note(path, stat.id()),
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                self.served().refuse(path);
                // What is there now is read by whoever tries again.
                self.nodes.forget(parent_of(path));
            }
            Err(_) => (),
        }
        Ok(put.map(drop)?)
    }

    /// Returns how what was written to a file of the mount becomes a document.
    pub(in crate::fs) fn writing<'a>(
        &self,
        path: &Path,
        file: &LiveFile,
        authors: &'a [Author],
    ) -> Writing<'a> {
        // New files in the directory inherit its group.
        let parent = self.storage.stat(parent_of(path));
        let is_group_kept = parent.is_ok_and(|parent| parent.mode & libc::S_ISGID != 0);
        let state = file.state();
        let attributes = SetStat {
            mode: Some(state.mode & 0o777),
            uid: Some(state.uid),
            gid: (!is_group_kept).then_some(state.gid),
            mtime: Some(state.mtime),
            ..SetStat::default()
        };
        let (attributes, asked) = (Some(attributes), Some(state.asked & 0o777));
        Writing { authors, attributes, asked, is_moved: false }
    }
}

/// How a document comes to be written.
#[derive(Debug, Clone, Default)]
pub(in crate::fs) struct Writing<'a> {
    /// Users who have written it and may not do everything, each with his rights at that moment.
    pub authors: &'a [Author],
    /// Attributes that it has if it is new, or is moved; `None` for those of a file of this process.
    pub attributes: Option<SetStat>,
    /// Permissions asked for at its creation, which a default access control list of the directory limits.
    /// `None` for a file that has been made elsewhere in the source, and takes no such list.
    pub asked: Option<u32>,
    /// `true` if a file with another name becomes the document, whatever was there.
    pub is_moved: bool,
}

/// Replaces the contents of a file.
pub(in crate::fs) fn overwrite(file: &dyn PosixFile, content: &Content) -> std::io::Result<()> {
    let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
    while at < content.nbytes() {
        let read = content.read_at(&mut buffer, at)?;
        file.write_at(&buffer[..read], at)?;
        at += read as u64;
    }
    file.set_length(content.nbytes())
}

/// Returns how a file of the source with these attributes becomes a document.
pub(in crate::fs) fn moved_by<'a>(authors: &'a [Author], stat: &Stat) -> Writing<'a> {
    let attributes = SetStat {
        mode: Some(stat.mode & 0o777),
        uid: Some(stat.uid),
        gid: Some(stat.gid),
        mtime: Some(stat.mtime),
        ..SetStat::default()
    };
    Writing { authors, attributes: Some(attributes), asked: None, is_moved: true }
}

/// Returns whether a directory is sticky and keeps one of these users from replacing a file in it.
pub(in crate::fs) fn keeps_from(directory: &Stat, there: &Stat, authors: &[Author]) -> bool {
    let owns = |author: &Author| [there.uid, directory.uid].contains(&author.caller.uid);
    directory.mode & libc::S_ISVTX != 0 && !authors.iter().all(owns)
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}
