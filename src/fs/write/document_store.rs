//! Documents as they are stored in the source, and what follows from a shorter shape.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::format::error::MetadataError;
use crate::format::json::{self, JsonError};
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::metadata::NodeMetadata;
use crate::fs::caller::Author;
use crate::fs::error::{FsError, Refusal, Result};
use crate::fs::node::{ArrayView, At, NodeKind};
use crate::fs::state::fs::{Fs, Shrinking};
use crate::fs::state::live_file::Place;
use crate::fs::state::opener::Opener;
use crate::fs::state::overlay::What;
use crate::fs::write::passthrough::Writing;
use crate::memory::zeroed;
use crate::store::StoreError;
use crate::store::content::Content;
use crate::store::document::text_of;
use crate::store::gather::made::is_decided;
use crate::store::storage::{Need, if_present};
use crate::text::shown;

impl Fs {
    pub(in crate::fs) fn stored_document(&self, path: &Path) -> Result<Vec<u8>> {
        Ok(text_of(&*self.storage.open(path)?)?)
    }

    /// Returns a document as it is stored.
    pub(in crate::fs) fn stored(
        &self,
        path: &Path,
    ) -> std::result::Result<serde_json::Value, std::result::Result<MetadataError, FsError>> {
        let text = self.stored_document(path).map_err(Err)?;
        json::parse(&text).map_err(|error| Ok(error.into()))
    }

    /// Parses a document that was written.
    ///
    /// The text that is shown may be longer than the one that its writer knows it as. Who writes over it without
    /// cutting it off has written all of it: what is left of the one that was shown does not count.
    pub(in crate::fs) fn parse_written(
        &self,
        path: &Path,
        text: &[u8],
    ) -> std::result::Result<serde_json::Value, JsonError> {
        let parsed = json::parse(text);
        if parsed.is_err()
            && let Some(end) = json::first_length(text)
            && let Ok(At::Text(shown, _)) = self.nodes.at(path)
            && shown.len() == text.len()
            && shown[end..] == text[end..]
        {
            return json::parse(&text[..end]);
        }
        parsed
    }

    /// Checks that no array is to be in a directory whose shards have to come to their place first.
    pub(in crate::fs) fn check_undecided(&self, path: &Path, directory: &Path) -> Result<()> {
        // Nothing is gathered in a store of objects.
        if !self.storage.posix().is_some_and(|storage| is_decided(storage, directory)) {
            return Ok(());
        }
        log::error!(
            "{}: it is not stored: an array that is being put there has to be finished first: `shardfs recover` \
             says what is in its way",
            shown(&path)
        );
        Err(StoreError::InTheWay { path: path.to_owned() }.into())
    }

    /// Removes what is left of the making of an array, before its document is replaced: that would be taken for the one
    /// of another array otherwise, which is in the way of this one.
    pub(in crate::fs) fn finish_placing(&self, path: &Path, directory: &Path) -> Result<()> {
        if self.storage.posix().is_some_and(|storage| is_decided(storage, directory)) {
            self.nodes.goes_on(directory);
        }
        self.check_undecided(path, directory)
    }

    /// Returns whether there is the document of an array, which keeps its form, or one that is not understood.
    pub(in crate::fs) fn has_array(&self, path: &Path) -> Result<bool> {
        if if_present(self.storage.lstat(path))?.is_none() {
            return Ok(false);
        }
        let text = self.stored_document(path)?;
        // A part of one, or nothing, is about to be one.
        let Ok(document) = json::parse(&text) else { return Ok(false) };
        Ok(!matches!(NodeMetadata::parse(&document), Ok(NodeMetadata::Group)))
    }

    pub(in crate::fs) fn store_document(
        &self,
        path: &Path,
        directory: &Path,
        document: &serde_json::Value,
        by: &Writing<'_>,
    ) -> Result<()> {
        self.write_source(path, &Content::Memory(Arc::new(json::to_text(document))), by)?;
        self.nodes.forget(directory);
        Ok(())
    }

    /// Stores the document of an array that was written, and removes the chunks outside
    /// its new shape, but for those in shards that these users may not write to. What fails is tried
    /// again at the next change of the document, and at the end of the mount.
    ///
    /// The documents stay locked: no view must let the array grow again, and have chunks stored
    /// there, while they are removed.
    pub(in crate::fs) fn store_shape(
        &self,
        path: &Path,
        (before, by): (&Arc<ArrayView>, &Writing<'_>),
        document: &serde_json::Value,
        documents: &MutexGuard<'_, ()>,
    ) -> Result<()> {
        let directory = &before.source.path;
        // What could not be removed must not be in a larger shape again.
        self.after_shrinking(directory, documents)?;
        // Before it is stored: it may be there though an error is reported.
        let noted = || Shrinking { before: Arc::clone(before), writers: by.authors.to_vec() };
        self.shrinking.lock().entry(directory.clone()).or_insert_with(noted);
        self.store_document(path, directory, document, by)?;
        self.after_shrinking(directory, documents)
    }

    /// Removes the chunks outside the shape of an array if it has become smaller.
    pub(in crate::fs) fn after_shrinking(
        &self,
        directory: &Path,
        _documents: &MutexGuard<'_, ()>,
    ) -> Result<()> {
        let before = self.shrinking.lock().get(directory).cloned();
        let Some(Shrinking { before, writers }) = before else { return Ok(()) };
        if let NodeKind::Sharded(now) = &self.nodes.node(directory)?.kind {
            let mut axes = now.tree.grid().iter().zip(before.tree.grid());
            // Others may have put another array there.
            let is_same = now.source.layout.has_same_chunks(&before.source.layout);
            if is_same && axes.any(|(now, was)| now < was) && !self.config.writing.keep_outside {
                self.remove_outside(directory, (&before, &writers), now)?;
            }
        }
        self.shrinking.lock().remove(directory);
        Ok(())
    }

    /// Removes what is outside the shapes of arrays that have become smaller, where that has failed
    /// before. Returns the number of arrays of which it fails again.
    pub(in crate::fs) fn finish_shrinking(&self) -> usize {
        let unfinished: Vec<PathBuf> = self.shrinking.lock().keys().cloned().collect();
        for directory in unfinished {
            if let Err(error) = self.after_shrinking(&directory, &self.documents()) {
                let why = "chunks outside its shape are still stored";
                log::error!("{}: {why}: {error}", shown(&directory));
            }
        }
        self.shrinking.lock().len()
    }

    fn remove_outside(
        &self,
        directory: &Path,
        (before, writers): (&Arc<ArrayView>, &[Author]),
        now: &ArrayView,
    ) -> Result<()> {
        log::info!("{}: the array has shrunk; chunks outside are removed", shown(directory));
        // Uncommitted changes of these chunks belong to the old shape.
        self.commit(directory)?;
        self.leave_outside(directory, now.tree.grid(), writers)?;
        let policy = self.config.writing.policy;
        self.nodes.note_commit(before);
        let source = &before.source;
        let opened = self.open_array(now)?;
        let storage = opened.as_deref().or_else(|| self.storage.posix());
        let may_change = |shard: &[u64]| {
            let shard = source.shard_path(shard);
            let may = match &opened {
                Some(opened) if self.access.acts() => {
                    self.permit_all_in((&**opened, directory), &shard, writers).is_ok()
                }
                _ => self.may_all_write(&shard, writers),
            };
            if !may {
                log::warn!(
                    "{}: chunks outside the array's new shape stay: whoever has changed the shape may not \
                     write to this shard",
                    shown(&shard)
                );
            }
            may
        };
        let removed =
            self.store.remove_outside(storage, source, now.tree.grid(), policy, &may_change);
        removed.map(drop).map_err(FsError::Commit)
    }

    /// Removes the files of chunks outside a smaller shape from the overlay, as the chunks are
    /// removed: what is written through an open handle reaches no array, whatever shape that has
    /// later.
    fn leave_outside(&self, directory: &Path, grid: &[u64], writers: &[Author]) -> Result<()> {
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
        let openers: Vec<_> = writers.iter().cloned().map(Opener::new).collect();
        let by: Vec<_> = openers.iter().map(|opener| (opener, Need::Write)).collect();
        for (path, what) in outside {
            let kept = match &what {
                What::File(file) => self.keep_here(file, &by).map(Some),
                What::Removed | What::Directory => Ok(None),
            };
            if let Err(error) = &kept {
                log::debug!("{}: {error}", shown(&path));
            }
            self.remove_name(&path)?;
        }
        Ok(())
    }
}

/// Returns the error of a document that is not stored, which the log names.
pub(in crate::fs) fn refused(path: &Path, error: impl Into<Refusal>) -> FsError {
    let error = FsError::Refused { path: path.to_owned(), error: error.into() };
    log::warn!("{error}");
    error
}

/// Returns the bytes of a document that was written.
pub(in crate::fs) fn whole(content: &Content) -> Result<Vec<u8>> {
    if content.nbytes() > MAX_METADATA_BYTES {
        return Err(FsError::TooLarge);
    }
    let mut text = zeroed(content.nbytes()).map_err(std::io::Error::from)?;
    content.read_at(&mut text, 0)?;
    Ok(text)
}
