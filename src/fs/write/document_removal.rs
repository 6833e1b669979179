//! Removal of documents, and of directories with the documents in them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::form::View;
use crate::fs::node::NodeKind;
use crate::fs::state::fs::Fs;
use crate::fs::state::overlay::What;
use crate::requester;
use crate::store::content::Content;
use crate::store::document::text_of;
use crate::store::owner::Owner as WorkOwner;
use crate::store::put::{lists, put_moved_file, take_lists};
use crate::store::recover::recover_within;
use crate::store::storage::{FileKind, SetStat, Stat, Version, if_present};
use crate::store::work::WORK_DIRECTORY;
use crate::text::shown;

impl Fs {
    /// Removes a document. That of a sharded array stays while its chunks exist: without it the
    /// shards would be taken for chunks.
    pub(in crate::fs) fn remove_document(&self, path: &Path, caller: &Caller) -> Result<()> {
        self.permit_name(path, caller)?;
        if self.view() == View::Zarr2 {
            return self.remove_zarr2(path, caller);
        }
        let (directory, node) = self.described_node(path)?;
        // If data and metadata are in separate directories, the data may be gone already.
        if let NodeKind::Sharded(_) = &node.kind
            && if_present(self.storage.lstat(&directory))?.is_some()
        {
            let removed = self.removed_version(path, caller)?;
            let mut names = self.overlay()?.names();
            names.put(path, What::Removed, None).document = Some(removed);
            return Ok(());
        }
        self.remove_name(path)?;
        // A sticky directory may keep from him what he may write to.
        self.on_behalf(caller, |storage| storage.remove_file(path))?;
        self.end_as_written(&directory);
        self.nodes.forget(&directory);
        Ok(())
    }

    /// Returns the version of a document that a caller may remove from its directory.
    fn removed_version(&self, path: &Path, caller: &Caller) -> Result<Version> {
        let (source, above) = (self.storage.writable()?, path.parent().unwrap_or(Path::new("")));
        let opened = source.within(above)?;
        let storage = opened.as_deref().unwrap_or(source);
        self.permit_in_directory((storage, above), caller)?;
        let found = storage.lstat(path)?;
        let is_link = found.kind == FileKind::Symlink;
        Ok(if is_link { source.stat(path)? } else { found }.version())
    }

    /// Removes a directory of the source that is empty in the view.
    pub(in crate::fs) fn remove_source_directory(
        &self,
        path: &Path,
        caller: &Caller,
    ) -> Result<()> {
        drop(self.free_name(path, FileKind::Directory)?);
        let mut document = self.removed_group(path)?;
        if let NodeKind::Sharded(array) = &self.nodes.node(path)?.kind
            && array.source.path == path
        {
            self.commit(path)?;
            self.store.finish_commits(&array.source)?;
            self.store.remove_empty_shards(&array.source, &|_| true)?;
            self.store.remove_empty_directories(&array.source);
            // A document in the directory is removed with it; one elsewhere only if it was removed
            // in the view.
            let described = self.nodes.document_path(path)?;
            if described.starts_with(path) || self.is_removed(&described) {
                // Those outside the array's shape are not listed.
                if self.describes_shards(&described) {
                    return Err(FsError::NotEmpty);
                }
                if self.permit_in_directory((self.storage.writable()?, path), caller).is_ok() {
                    self.store.remove_left_locks(&array.source);
                    self.store.remove_empty_directories(&array.source);
                }
                document = Some(described);
            }
        }
        // Another view may have committed chunks to what this one shows as it is stored.
        for other in self.others() {
            if let NodeKind::Sharded(array) = &other.nodes.node(path)?.kind
                && array.source.path == path
            {
                other.commit(path)?;
                other.store.finish_commits(&array.source)?;
            }
        }
        if document.is_none() {
            self.remove_work(path);
        }
        self.remove_hidden_zarr2(path, caller)?;
        let (removed, _turn) = match &document {
            Some(document) => (self.remove_with_document(path, document, caller), None),
            None => {
                let turn = self.name_in_source();
                let is_none = self.check_no_shard_now(path);
                let remove = || self.on_behalf(caller, |it| it.remove_directory(path));
                (is_none.and_then(|()| remove()), Some(turn))
            }
        };
        if removed.is_ok() {
            // To the kernel the directory is dead, as long as it knows it: another one is to be told from it.
            self.paths.directory_removed(path);
            // Entries of the overlay below the directory are dropped as well.
            let mut names = self.overlay()?.names();
            let below: Vec<_> = names.all(path).map(|(path, _)| path).collect();
            below.iter().chain(&document).for_each(|path| drop(names.take(path)));
            drop(names);
            for other in self.others() {
                other.overlay.iter().for_each(|it| it.names().take_directories(path));
            }
            self.nodes_moved(path, None);
        }
        self.nodes.forget(path);
        removed
    }

    /// Removes what an interrupted mount has left of its work in a directory that is no array: it is hidden, and would
    /// keep the directory from being removed.
    fn remove_work(&self, path: &Path) {
        let Some(storage) = self.storage.posix() else { return };
        if !matches!(self.storage.lstat(&path.join(WORK_DIRECTORY)), Ok(found) if found.kind == FileKind::Directory)
        {
            return;
        }
        if let Err(error) = recover_within(storage, WorkOwner::Directory(path), Duration::ZERO) {
            log::debug!("{}: {error}", shown(path));
        }
    }

    /// Removes a directory together with the document of its node. The document must go first where
    /// it is in the directory; it is put back if the directory cannot be removed, for it alone says
    /// what is left there.
    fn remove_with_document(&self, path: &Path, document: &Path, caller: &Caller) -> Result<()> {
        // What was begun is finished, or put back.
        let _undisturbed = requester::serve_none();
        let source = self.storage.writable()?;
        // What is put back is put where it was, whatever others exchange meanwhile.
        let above = document.parent().unwrap_or(Path::new(""));
        let opened = source.within(above)?;
        let storage = opened.as_deref().unwrap_or(source);
        self.permit_in_directory((storage, above), caller)?;
        let is_link = storage.lstat(document)?.kind == FileKind::Symlink;
        // Which may lead out of the directory.
        let storage = if is_link { source } else { storage };
        let file = storage.open_file(document)?;
        let (text, stat) = (text_of(&*file)?, file.stat()?);
        let lists = lists(storage, document)?;
        storage.remove_file(document)?;
        let removed = self.on_behalf(caller, |storage| storage.remove_directory(path));
        if removed.is_err() {
            let attributes = SetStat {
                mode: Some(stat.mode & 0o7777),
                uid: Some(stat.uid),
                gid: Some(stat.gid),
                mtime: Some(stat.mtime),
                ..SetStat::default()
            };
            let content = Content::Memory(Arc::new(text));
            let put = put_moved_file(storage, document, &content, &attributes);
            let put = put.and_then(|file| match &lists {
                Some(lists) => take_lists(&*file, lists, &stat),
                None => Ok(()),
            });
            if let Err(error) = put {
                log::error!(
                    "{}: it was removed and cannot be put back as it was: {error}",
                    shown(document)
                );
            }
        }
        removed
    }

    /// Removes documents that were removed while their array was not empty, if it is empty now.
    pub(in crate::fs) fn remove_documents_at_end(&self) {
        let Some(overlay) = &self.overlay else { return };
        let staying = self.staying_documents();
        for path in self.removed_documents() {
            let removed = overlay.names().take(&path).and_then(|name| name.document);
            // The other documents of Zarr v2 are made of the same.
            if self.view() == View::Zarr2 && removed.is_none() {
                continue;
            }
            if staying.contains(&path) {
                log::error!("{}: it stays, for its array has not been removed", shown(&path));
            } else if let Err(error) =
                self.stored_as(&path).and_then(|path| self.remove_if_unchanged(&path, removed))
            {
                log::error!("{}: {error}", shown(&path));
            }
        }
    }

    /// Removes a document, unless others have put another one in its place.
    fn remove_if_unchanged(&self, path: &Path, removed: Option<Version>) -> Result<()> {
        let (source, directory) =
            (self.storage.writable()?, path.parent().unwrap_or(Path::new("")));
        let Some(opened) = if_present(source.within(directory))? else { return Ok(()) };
        let storage = opened.as_deref().unwrap_or(source);
        let is_link = |found: Stat| found.kind == FileKind::Symlink;
        let storage = match if_present(storage.lstat(path))?.is_some_and(is_link) {
            true => source,
            false => storage,
        };
        let Some(now) = if_present(storage.stat(path))? else { return Ok(()) };
        if removed.is_none_or(|removed| !removed.has_same_content(&now.version())) {
            log::warn!("{}: others have written it since it was removed: it stays", shown(path));
            return Ok(());
        }
        storage.remove_file(path)?;
        // The mount ends: nothing else makes it durable.
        Ok(storage.sync_directory(directory)?)
    }
}
