//! Writing of files that are passed through to the source.

use std::path::Path;
use std::sync::Arc;

use crate::fs::attr::Entry;
use crate::fs::caller::{Author, Caller};
use crate::fs::error::{FsError, Result};
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::{Handle, Opened};
use crate::fs::state::live_file::{Behind, Bytes, LiveFile, OpenFile};
use crate::store::content::Content;
use crate::store::put::{put_file, put_moved_file, put_written_file};
use crate::store::storage::{PosixFile, SetStat, Stat, if_present};

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
        let file = self.on_behalf(caller, |storage| storage.create(path, mode))?;
        self.own(path, caller);
        let entry = self.path_entry(path)?;
        let open = OpenFile::new(Behind::Source(file), true);
        let opened = self.source_pages(entry.attr.ino, &open).and_then(|pages| {
            // No other process has changed it since.
            self.insert_handle(Handle::Open(open), pages)
        });
        if opened.is_err() {
            self.forget(entry.attr.ino, 1);
        }
        Ok((entry, opened?))
    }

    /// Returns the bytes of a file of the source, read with the caller's rights.
    ///
    /// # Errors
    ///
    /// `CrossDevice` if the file is longer than 16 times the dirty limit, taken as at least 1 MiB.
    pub(in crate::fs) fn source_content(&self, path: &Path, caller: &Caller) -> Result<Content> {
        self.path_attr(path)?;
        let file = self.open_on_behalf(caller, path)?;
        let size = file.stat()?.size;
        if size > self.config.writing.dirty_limit.max(1 << 20) * 16 {
            return Err(FsError::CrossDevice);
        }
        self.read_content(size, |buffer, at| file.read_at(buffer, at))
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
        self.permit_name(path, caller)?;
        // A commit that had to come first may have moved this file's bytes to its shard.
        self.bring_here(file)?;
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
        let file = put_moved_file(self.storage.writable()?, path, &content, &attributes)?;
        Ok(Moved { file, writes })
    }

    /// Writes a document of the source, replacing the one at `path`.
    ///
    /// # Errors
    ///
    /// `Denied` if one of its writers may not do that. The kernel has checked it as the mount showed it, and
    /// the path may lead elsewhere since.
    pub(in crate::fs) fn write_source(
        &self,
        path: &Path,
        content: &Content,
        by: &Writing<'_>,
    ) -> Result<()> {
        let is_there = if_present(self.storage.lstat(path))?.is_some();
        let written = if is_there && !by.is_moved { Some(path) } else { path.parent() };
        if !self.may_all_write(written.unwrap_or(Path::new("")), by.authors) {
            return Err(FsError::Denied);
        }
        let storage = self.storage.writable()?;
        match &by.attributes {
            Some(attributes) if by.is_moved => {
                put_moved_file(storage, path, content, attributes)?;
            }
            Some(attributes) => put_written_file(storage, path, content, attributes)?,
            None => put_file(storage, path, content)?,
        }
        Ok(())
    }

    /// Returns the attributes of a document that is written to a file of the mount.
    pub(in crate::fs) fn attributes_of(&self, path: &Path, file: &LiveFile) -> SetStat {
        let parent = path.parent().and_then(|parent| self.storage.stat(parent).ok());
        // New files in the directory inherit its group.
        let is_group_kept = parent.is_some_and(|parent| parent.mode & libc::S_ISGID != 0);
        let state = file.state();
        SetStat {
            mode: Some(state.mode & 0o777),
            uid: Some(state.uid),
            gid: (!is_group_kept).then_some(state.gid),
            mtime: Some(state.mtime),
            ..SetStat::default()
        }
    }
}

/// How a document comes to be written.
#[derive(Debug, Clone, Default)]
pub(in crate::fs) struct Writing<'a> {
    /// Users who have written it and may not do everything, each with his rights at that moment.
    pub authors: &'a [Author],
    /// Attributes that it has if it is new, or is moved; `None` for those of a file of this process.
    pub attributes: Option<SetStat>,
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
    Writing { authors, attributes: Some(attributes), is_moved: true }
}
