//! Arrays that are created through the mount, and stored sharded.
//!
//! ```text
//! document of an array, in a directory   --> rule for its path --> shards of the same chunks --> zarr.json
//!   that is none yet                         (NewShardsRule)       (shard_by)
//! ```
//!
//! What is written to the array from then on are chunks of its shards, as in any other. Chunk files that were there
//! before the document are gathered in shards first. An array to which no rule applies is stored as it is written, and
//! so is one whose document asks for shards itself: see [`crate::fs::as_written`].

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use parking_lot::MutexGuard;
use serde_json::Value;

use crate::format::chunk_key::may_be_key;
use crate::format::error::MetadataError;
use crate::format::from_twin::is_sharded;
use crate::format::reshard::shard_by;
use crate::fs::as_written;
use crate::fs::error::Result;
use crate::fs::form::View;
use crate::fs::node::NodeKind;
use crate::fs::state::fs::Fs;
use crate::fs::write::document_store::refused;
use crate::fs::write::passthrough::Writing;
use crate::source::METADATA_FILE;
use crate::store::consolidated::{check_groups, describe_in_groups};
use crate::store::content::Content;
use crate::store::gather::Where;
use crate::store::storage::{DirItem, FileKind, if_present, kind_of};
use crate::text::shown;

/// Directories within each other in which files of chunks are looked for.
const MOST_DEPTH: usize = 64;

impl Fs {
    /// Returns the document as which an array is stored that is written as `written`, if it is new and there is
    /// a rule for it.
    pub(in crate::fs) fn sharded_form(
        &self,
        (path, directory): (&Path, &Path),
        written: &Value,
    ) -> Result<Option<Value>> {
        let new = &self.config.writing.new_shards;
        let is_shown_as_written =
            matches!(self.view(), View::Zarr3 | View::Zarr2) && self.config.level.is_none();
        let Some(rule) = new.rule_of(directory).filter(|_| is_shown_as_written) else {
            return Ok(None);
        };
        if path != directory.join(METADATA_FILE) || self.has_array(path)? {
            return Ok(None);
        }
        // What has chunk keys may be shards.
        if let NodeKind::Bad = self.nodes.node(directory)?.kind {
            return Ok(None);
        }
        Ok(shard_by(written, rule, new.index_location).unwrap_or_else(|error| {
            log::debug!("{}: it is stored as it is written: {error}", shown(path));
            None
        }))
    }

    /// Stores the document of a new array that is to be sharded, or as it is written if its chunk files, which
    /// would be taken for shards, cannot be put into any. Returns `false` if others have made an array there
    /// meanwhile: what was written is to be stored anew.
    pub(in crate::fs) fn store_new_array(
        &self,
        (path, directory): (&Path, &Path),
        (sharded, written): (&Value, &Content),
        by: &Writing<'_>,
        documents: MutexGuard<'_, ()>,
    ) -> Result<bool> {
        // None comes before the document is there.
        let names = self.no_name_in_source();
        let (chunk, made) = self.below_keys(directory)?;
        // Another mount may be about to put an array there.
        if chunk.is_none() && !Where::has_any(&*self.storage, directory) {
            let source = self.storage.writable()?;
            if let Err(error) = check_groups(source, directory, sharded) {
                let why = format!("a group describes it, and cannot be written: {error}");
                self.store_unsharded((path, directory), written, by, &why)?;
                return Ok(true);
            }
            let changed = describe_in_groups(source, directory, sharded)?;
            let store = || self.store_document(path, directory, sharded, by).map(|()| made);
            let stored = self.in_all_views(directory, store);
            self.forget_nodes(changed.last().map_or(directory, PathBuf::as_path));
            return stored.map(|()| true);
        }
        drop(names);
        // That may take its time.
        drop(documents);
        match self.gather((path, directory), sharded, by)? {
            Ok(()) => (),
            Err(why) => {
                let _documents = self.documents();
                if self.has_array(path)? {
                    self.nodes.forget(directory);
                    return Ok(false);
                }
                let why = format!("chunk files were there before its metadata, and stay: {why}");
                self.store_unsharded((path, directory), written, by, &why)?;
            }
        }
        Ok(true)
    }

    /// Stores the document of a sharded array as it is written: what is in its directory are shards, and this mount shows
    /// them as such.
    ///
    /// # Errors
    ///
    /// Refused if the view shows an array there that is none like that: what it shows would be taken for shards.
    pub(in crate::fs) fn store_sharded(
        &self,
        (path, directory): (&Path, &Path),
        (content, by): (&Content, &Writing<'_>),
        is_free: bool,
        _documents: MutexGuard<'_, ()>,
    ) -> Result<()> {
        let arrays = self.nodes.as_written();
        let is_there = || self.stored(path).is_ok_and(|document| is_sharded(&document));
        // Others may have put another array there.
        if arrays.has(directory) && self.has_array(path)? && !is_there() {
            self.end_as_written(directory);
        }
        let is_new = !arrays.has(directory);
        let has_place = !is_new || is_free && !self.has_array(path)?;
        let is_shown = self.view() == View::Zarr3 && path == directory.join(METADATA_FILE);
        if !(has_place && is_shown) {
            return Err(refused(path, MetadataError::ShardedThroughView));
        }
        // Before the document becomes visible.
        if !arrays.note(directory) {
            let what = "sharded arrays made through one mount";
            let limit = as_written::MOST as u64;
            return Err(refused(path, MetadataError::Limit { what, limit }));
        }
        let stored = self.write_source(path, content, by);
        match &stored {
            // It may be there though an error is reported.
            Err(_) if is_new && !is_there() => self.end_as_written(directory),
            _ if is_new => log::info!("{}: {}", shown(&directory), as_written::WHY),
            _ => (),
        }
        self.nodes.forget(directory);
        stored
    }

    /// Shows what is in a directory like anywhere else from now on.
    pub(in crate::fs) fn end_as_written(&self, directory: &Path) {
        if self.nodes.as_written().forget(directory) {
            self.nodes.forget(directory);
        }
    }

    /// Stores the document of an array as it is written, though there is a rule for it.
    fn store_unsharded(
        &self,
        (path, directory): (&Path, &Path),
        written: &Content,
        by: &Writing<'_>,
        why: &str,
    ) -> Result<()> {
        self.write_source(path, written, by)?;
        self.nodes.forget(directory);
        let array = shown(&directory);
        log::warn!(
            "{array}: the array is stored unsharded: {why}; `shardfs pack` makes a sharded one of it"
        );
        Ok(())
    }

    /// Returns a file in a directory that may be one of a chunk, and otherwise the directories that may be above
    /// chunks.
    fn below_keys(&self, directory: &Path) -> Result<(Option<PathBuf>, Vec<PathBuf>)> {
        let (mut directories, mut made) = (vec![(directory.to_owned(), 0)], Vec::new());
        while let Some((directory, depth)) = directories.pop() {
            let (mut found, mut failed) = (None, Ok(()));
            let visit = &mut |item: DirItem<'_>| {
                let path = directory.join(item.name);
                if depth == 0 && !item.name.to_str().is_some_and(may_be_key) {
                    return ControlFlow::Continue(());
                }
                match kind_of(&*self.storage, &directory, &item) {
                    Ok(Some(FileKind::Directory)) if depth < MOST_DEPTH => {
                        directories.push((path, depth + 1));
                    }
                    Ok(Some(_)) => found = Some(path),
                    Ok(None) => (),
                    Err(error) => failed = Err(error),
                }
                match (&found, &failed) {
                    (None, Ok(())) => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            };
            if_present(self.storage.list(&directory, 0, visit))?;
            failed?;
            if found.is_some() {
                return Ok((found, Vec::new()));
            }
            made.extend((depth > 0).then_some(directory));
        }
        Ok((None, made))
    }
}
