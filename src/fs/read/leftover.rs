//! What the end of a mount leaves out of the source, and its list, `.shardfs/leftover.txt`.

use std::path::{Path, PathBuf};

use crate::format::zarr2::ZARRAY;
use crate::fs::form::View;
use crate::fs::node::NodeKind;
use crate::fs::read::overlay_names::zarr2_name;
use crate::fs::state::control_files::{LOST_IN_THE_END, TO_BE_SAVED};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile};
use crate::fs::state::overlay::{Name, What};
use crate::store::content::Content;
use crate::store::spool::beside_chunks;
use crate::text::shown;

impl Fs {
    /// Returns a line for each file and removal, in all views of the mount, that the end of the
    /// mount will leave out of the source.
    pub(in crate::fs) fn leftover_text(&self) -> String {
        let own = self.own_leftover_text();
        let text = self.others().fold(own, |text, other| text + &other.own_leftover_text());
        let lost = self.unsavable(!text.is_empty());
        text + &lost.unwrap_or_default()
    }

    /// Returns a line that says why the end of the mount could not save what it could not commit. `None`
    /// if it could, or if that need not be known (`is_needed`): finding out writes to the disk.
    pub(in crate::fs) fn unsavable(&self, is_needed: bool) -> Option<String> {
        let files = if is_needed { self.files_to_save() } else { Vec::new() };
        if files.is_empty() {
            return None;
        }
        let error = self.spool.rehearse(&files).err()?;
        let place = shown(&self.config.writing.unsaved);
        Some(format!("{LOST_IN_THE_END}it cannot be saved below {place}: {error}\n"))
    }

    /// Returns the paths and lengths in bytes of the files in which everything is saved that is in the
    /// mount alone.
    pub(in crate::fs) fn files_to_save(&self) -> Vec<(PathBuf, u64)> {
        let mut files = self.own_files_to_save();
        self.others().for_each(|other| files.extend(other.own_files_to_save()));
        files
    }

    fn own_files_to_save(&self) -> Vec<(PathBuf, u64)> {
        let Some(overlay) = &self.overlay else { return Vec::new() };
        let names = overlay.names();
        let to_save = |(path, name): (PathBuf, &Name)| {
            let Some(place) = &name.place else {
                let nbytes = self.content_to_save(&path, name)?.1.nbytes();
                return Some((beside_chunks(&path), nbytes));
            };
            if let Some(change) = name.stage.as_ref().and_then(|stage| stage.change.as_ref()) {
                return Some((place.saved_path(), change.content.as_ref()?.nbytes()));
            }
            let What::File(file) = &name.what else { return None };
            let state = file.state();
            match &state.bytes {
                Bytes::Here(content) if state.dirty => Some((path, content.nbytes())),
                _ => None,
            }
        };
        names.all(Path::new("")).filter_map(to_save).collect()
    }

    fn own_leftover_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let Some(overlay) = &self.overlay else { return text };
        for (path, name) in overlay.names().all(Path::new("")) {
            if name.place.is_none() && self.content_to_save(&path, name).is_some() {
                let to = self.config.writing.unsaved.join(beside_chunks(&path));
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{}: no chunk, in the mount alone; {TO_BE_SAVED} {}",
                    shown(&path),
                    shown(&to)
                );
            }
        }
        for path in self.staying_documents() {
            let _ = writeln!(
                text,
                "{}: removed, but its array is not; it stays in the source",
                shown(&path)
            );
        }
        text
    }

    /// Returns a file that is no chunk, and its contents, if they are lost with the mount unless they
    /// are saved. Lock files and the like are not worth it.
    pub(in crate::fs) fn content_to_save<'a>(
        &self,
        path: &Path,
        name: &'a Name,
    ) -> Option<(&'a LiveFile, Content)> {
        let What::File(file) = &name.what else { return None };
        let (bytes, is_dirty) = {
            let state = file.state();
            (state.bytes.clone(), state.dirty)
        };
        let Bytes::Here(content) = bytes else { return None };
        let is_stored = self.is_document(path) && !is_dirty;
        let is_needed = content.nbytes() > 0 || !name.made.is_empty();
        (is_needed && !is_stored).then_some((&**file, content))
    }

    /// Returns the documents that were removed in the mount, but not in the source, because their
    /// array was not empty.
    pub(in crate::fs) fn removed_documents(&self) -> Vec<PathBuf> {
        let Some(overlay) = &self.overlay else { return Vec::new() };
        let names = overlay.names();
        let removed = names
            .all(Path::new(""))
            .filter(|(_, name)| matches!(name.what, What::Removed) && name.hidden.is_none());
        removed.map(|(path, _)| path).filter(|path| self.is_document(path)).collect()
    }

    /// Returns the removed documents that stay in the source if the mount ends now: nothing but
    /// them says what the shards contain.
    pub(in crate::fs) fn staying_documents(&self) -> Vec<PathBuf> {
        let mut removed = self.removed_documents();
        removed.retain(|path| {
            let is_mark = self.view() != View::Zarr2 || zarr2_name(path) == Some(ZARRAY);
            is_mark && self.describes_shards(path)
        });
        removed
    }

    /// Returns whether there may be a shard of the array that a document describes.
    pub(in crate::fs) fn describes_shards(&self, document: &Path) -> bool {
        let described = self.nodes.described_by(document).ok().flatten();
        let directory = described.as_deref().or_else(|| document.parent());
        let node = directory.and_then(|directory| self.nodes.node(directory).ok());
        let Some(node) = node else { return true };
        let NodeKind::Sharded(array) = &node.kind else { return false };
        // The last axis is that of files; directories above them may have been left.
        let is_outside = || self.store.reach(&array.source).last().is_some_and(|most| *most > 0);
        self.store.each_shard_below(&array.source, &[], &mut |_| Err(())).is_err() || is_outside()
    }
}
