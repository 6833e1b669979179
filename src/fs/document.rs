//! Metadata documents that are written through the mount: translated back to what is stored.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::access::{Caller, Owner};
use super::document2::zarr2_name;
use super::form::View;
use super::live::{Bytes, LiveFile, Place, What};
use super::nodes::{ArrayView, At, Node, NodeKind};
use super::{Fs, FsError, Result};
use crate::format::back::{is_sharded, translate_back, translate_group_back};
use crate::format::document::Dialect;
use crate::format::draft2022;
use crate::format::error::MetadataError;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::memory::zeroed;
use crate::source::METADATA_FILE;
use crate::store::content::Content;
use crate::store::storage::{FileKind, if_present};
use crate::text::shown;

impl Fs {
    /// Whether a path is called like a metadata document of the view.
    pub(super) fn is_document(&self, path: &Path) -> bool {
        match self.view() {
            View::Zarr3 => path.ends_with(METADATA_FILE) || draft2022::is_document(path),
            View::Zarr2 => zarr2_name(path).is_some(),
            // Theirs are for reading only.
            View::Npy | View::Raw | View::Flat => false,
        }
    }

    /// A document, for it to be changed.
    pub(super) fn document_file(&self, path: &Path) -> Result<Arc<LiveFile>> {
        if let Some(What::File(file)) =
            self.overlay()?.names().get(path).map(|name| name.what.clone())
        {
            return Ok(file);
        }
        let attr = self.path_attr(path)?;
        self.described_node(path)?;
        let text = match self.nodes.at(path)? {
            At::Text(text, _) => text.to_vec(),
            _ => self.stored_document(path)?,
        };
        let file =
            self.new_file(Some(attr.ino), attr.mode, Owner { uid: attr.uid, gid: attr.gid })?;
        {
            let mut state = file.state();
            state.bytes = Bytes::Here(Content::Memory(Arc::new(text)));
            (state.dirty, state.mtime) = (false, attr.mtime);
        }
        self.overlay()?.names().put(path, What::File(Arc::clone(&file)), None);
        Ok(file)
    }

    /// The directory of the node that a document describes, and the node, for it to be changed.
    fn described_node(&self, path: &Path) -> Result<(PathBuf, Arc<Node>)> {
        let described = self.nodes.described_by(path)?;
        let directory =
            described.unwrap_or_else(|| path.parent().unwrap_or(Path::new("")).to_owned());
        let node = self.nodes.node(&directory)?;
        match &node.kind {
            // The view's own: the source has none.
            NodeKind::Sharded(array) if !array.source.container.has_keys() => {
                Err(FsError::ReadOnly)
            }
            _ => {
                self.check_zarr3(&directory, &node)?;
                Ok((directory, node))
            }
        }
    }

    pub(super) fn stored_document(&self, path: &Path) -> Result<Vec<u8>> {
        let file = self.storage.open(path)?;
        let size = file.stat()?.size;
        if size > MAX_METADATA_BYTES {
            return Err(FsError::TooLarge);
        }
        let mut text = zeroed(size).map_err(std::io::Error::from)?;
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        Ok(text)
    }

    /// Stores what was written to a document. One that is not finished may be finished later.
    pub(super) fn publish_document(
        &self,
        path: &Path,
        file: &LiveFile,
        content: &Content,
    ) -> Result<()> {
        // Opened and not written yet.
        if content.nbytes() == 0 {
            file.state().dirty = true;
            return Ok(());
        }
        self.write_document(path, content).inspect_err(|_| file.state().dirty = true)
    }

    /// Stores a document to which nothing was written, where it need not be one. Whether that was done.
    pub(super) fn publish_empty(&self, file: &LiveFile) -> bool {
        let (names, bytes) = {
            let state = file.state();
            (state.names.clone(), state.bytes.clone())
        };
        let (Some(path), Bytes::Here(content)) = (names.first(), bytes) else { return false };
        content.nbytes() == 0
            && self.is_document(path)
            && self.write_document(path, &content).is_ok()
    }

    /// Stores a document in the place of the one that is there.
    pub(super) fn write_document(&self, path: &Path, content: &Content) -> Result<()> {
        if self.view() == View::Zarr2 {
            return self.write_zarr2(path, content);
        }
        let (directory, node) = self.described_node(path)?;
        let refused = |error: MetadataError| {
            let error = FsError::Refused { path: path.to_owned(), error };
            log::warn!("{error}");
            error
        };
        let text = whole(content)?;
        let is_free = self.is_free(&directory, &node)?;
        let new = match json::parse(&text) {
            // Its name alone is that of a document.
            Err(_) if is_free && !may_be_sharded(&text) => {
                return self.write_plain(path, &directory, content, is_free);
            }
            new => new.map_err(|error| refused(error.into()))?,
        };
        match &node.kind {
            NodeKind::Sharded(array) => {
                let stored = self.stored(path).map_err(|e| e.map_or_else(Into::into, refused))?;
                let (level, dialect) = (self.config.level, Dialect::of(path));
                let back = translate_back(&stored, &new, level, dialect).map_err(refused)?;
                self.store_document(path, &directory, &back)?;
                self.after_shrinking(&directory, array)
            }
            _ => {
                let mut new = new;
                let mut failed = None;
                let absent = [libc::ENOENT, libc::ENOTDIR];
                let mut lookup = |below: &str| {
                    match self.stored(&directory.join(below).join(METADATA_FILE)) {
                        Ok(document) => return Some(document),
                        Err(Err(error)) if !absent.contains(&error.errno()) => failed = Some(error),
                        Err(_) => (),
                    }
                    None
                };
                let changed = translate_group_back(&mut new, &mut lookup, self.config.level)
                    .map_err(refused)?;
                // What cannot be read may be a sharded array, and must not be taken for a plain one.
                if let Some(error) = failed {
                    return Err(error);
                }
                if is_sharded(&new) {
                    return Err(refused(MetadataError::ShardedThroughView));
                }
                if changed {
                    self.store_document(path, &directory, &new)
                } else {
                    self.write_plain(path, &directory, content, is_free)
                }
            }
        }
    }

    /// Whether a document may say anything: it is not in an array, nor in what may be one.
    fn is_free(&self, directory: &Path, node: &Node) -> Result<bool> {
        if let NodeKind::Sharded(_) | NodeKind::Unshown = node.kind {
            return Ok(false);
        }
        let (above, node) = self.nodes.governing(directory)?;
        let is_array = |document: serde_json::Value| {
            document.get("node_type").is_some_and(|kind| kind == "array")
        };
        Ok(match (&node.kind, &node.stat) {
            (NodeKind::Inherited, _) | (NodeKind::AsStored, None) => true,
            (NodeKind::AsStored, Some(_)) if self.nodes.is_plain(above) => true,
            (NodeKind::AsStored, Some(_)) => match self.stored(&self.nodes.document_path(above)?) {
                Ok(document) => !is_array(document),
                Err(Ok(_)) => false,
                Err(Err(error)) => return Err(error),
            },
            _ => false,
        })
    }

    /// Writes a file that is called like a document. What is beside it stays what it is, also if it is
    /// none.
    fn write_plain(
        &self,
        path: &Path,
        directory: &Path,
        content: &Content,
        is_free: bool,
    ) -> Result<()> {
        if !is_free {
            self.write_source(path, content)?;
            self.nodes.forget(directory);
            return Ok(());
        }
        // One after the other: the last one knows what is there.
        let _turn = self.moves.lock();
        // Before anybody sees the file.
        self.nodes.set_plain(directory, None);
        let written = self.write_source(path, content);
        match self.storage.stat(path) {
            Ok(stat) => self.nodes.set_plain(directory, Some(&stat)),
            Err(_) => self.nodes.unset_plain(directory),
        }
        self.nodes.forget(directory);
        written
    }

    /// A document, as it is stored.
    pub(super) fn stored(
        &self,
        path: &Path,
    ) -> std::result::Result<serde_json::Value, std::result::Result<MetadataError, FsError>> {
        let text = self.stored_document(path).map_err(Err)?;
        json::parse(&text).map_err(|error| Ok(error.into()))
    }

    pub(super) fn store_document(
        &self,
        path: &Path,
        directory: &Path,
        document: &serde_json::Value,
    ) -> Result<()> {
        self.write_source(path, &Content::Memory(Arc::new(json::to_text(document))))?;
        self.nodes.forget(directory);
        Ok(())
    }

    /// Removes a document. That of a sharded array stays as long as its chunks are there: without
    /// it its shards would be taken for chunks.
    pub(super) fn remove_document(&self, path: &Path) -> Result<()> {
        if self.view() == View::Zarr2 {
            return self.remove_zarr2(path);
        }
        let (directory, node) = self.described_node(path)?;
        // Where data and metadata are apart, the data may be gone already.
        if let NodeKind::Sharded(_) = &node.kind
            && if_present(self.storage.lstat(&directory))?.is_some()
        {
            let mut names = self.overlay()?.names();
            names.put(path, What::Removed, None);
            return Ok(());
        }
        self.remove_name(path)?;
        self.storage.remove_file(path)?;
        self.nodes.forget(&directory);
        Ok(())
    }

    /// Removes a directory of the source in which the view shows nothing.
    pub(super) fn remove_source_directory(&self, path: &Path, caller: &Caller) -> Result<()> {
        self.free_name(path, FileKind::Directory)?;
        if let NodeKind::Sharded(array) = &self.nodes.node(path)?.kind
            && array.source.path == path
        {
            self.commit(path)?;
            self.store.finish_commits(&array.source)?;
            self.store.remove_empty_directories(&array.source);
            // Beside its data it goes with them; elsewhere if it was removed.
            let document = self.nodes.document_path(path)?;
            if document.starts_with(path) || self.is_removed(&document) {
                self.storage.remove_file(&document)?;
                self.overlay()?.names().take(&document);
            }
        }
        self.remove_translated_group(path)?;
        let removed = self.on_behalf(caller, |storage| storage.remove_directory(path));
        if removed.is_ok() {
            // Nor does the mount know anything of what was below it.
            let mut names = self.overlay()?.names();
            let below: Vec<_> = names.all(path).map(|(path, _)| path).collect();
            below.iter().for_each(|path| drop(names.take(path)));
        }
        self.nodes.forget(path);
        removed
    }

    /// Removes documents that were removed while their array was not empty.
    pub(super) fn remove_documents_at_end(&self) {
        let Some(overlay) = &self.overlay else { return };
        let removed: Vec<_> = overlay
            .names()
            .all(Path::new(""))
            .filter(|(_, name)| matches!(name.what, What::Removed) && name.hidden.is_none())
            .filter(|(path, _)| self.is_document(path))
            .map(|(path, _)| path)
            .collect();
        for path in removed {
            if self.view() == View::Zarr2 {
                log::warn!("{}: it stays, for its directory was not removed", shown(&path));
                overlay.names().take(&path);
                continue;
            }
            log::warn!("{}: removed, its array's shards are not", shown(&path));
            if let Err(error) = self.storage.remove_file(&path) {
                log::error!("{}: {error}", shown(&path));
            }
            overlay.names().take(&path);
        }
    }

    /// Removes the chunks that the array's shape does not reach any more.
    pub(super) fn after_shrinking(&self, directory: &Path, before: &Arc<ArrayView>) -> Result<()> {
        let node = self.nodes.node(directory)?;
        let NodeKind::Sharded(now) = &node.kind else { return Ok(()) };
        let shrunk = now.tree.grid().iter().zip(before.tree.grid()).any(|(now, was)| now < was);
        if !shrunk || self.config.writing.keep_outside {
            return Ok(());
        }
        log::info!("{}: the array has shrunk; chunks outside are removed", shown(directory));
        // What waits for those is of the old shape.
        self.commit(directory)?;
        self.leave_outside(directory, now.tree.grid())?;
        let policy = self.config.writing.policy;
        self.nodes.note_commit(before);
        let removed = self.store.remove_outside(&before.source, now.tree.grid(), policy);
        removed.map(drop).map_err(FsError::Commit)
    }
}

impl Fs {
    /// Files of chunks that a smaller shape does not reach are removed, as the chunks are: what is written
    /// to one that is open is in no array, whatever shape that has later.
    fn leave_outside(&self, directory: &Path, grid: &[u64]) -> Result<()> {
        let is_outside = |place: &Place| {
            place.array.source.path == directory
                && !place.coords.iter().zip(grid).all(|(coord, extent)| coord < extent)
        };
        let outside: Vec<(PathBuf, What)> = self
            .overlay()?
            .names()
            .all(directory)
            .filter(|(_, name)| name.place.as_ref().is_some_and(is_outside))
            .map(|(path, name)| (path, name.what.clone()))
            .collect();
        for (path, what) in outside {
            if let What::File(file) = &what
                && let Err(error) = self.bring_here(file)
            {
                log::debug!("{}: {error}", shown(&path));
            }
            self.remove_name(&path)?;
        }
        Ok(())
    }
}

pub(super) fn whole(content: &Content) -> Result<Vec<u8>> {
    if content.nbytes() > MAX_METADATA_BYTES {
        return Err(FsError::TooLarge);
    }
    let mut text = zeroed(content.nbytes()).map_err(std::io::Error::from)?;
    content.read_at(&mut text, 0)?;
    Ok(text)
}

/// Whether a text that cannot be parsed may be meant for a sharded array.
fn may_be_sharded(text: &[u8]) -> bool {
    let name = b"sharding_indexed";
    text.windows(name.len()).any(|part| part == name)
}
