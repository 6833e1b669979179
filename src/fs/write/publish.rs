//! Publication of what was written to a file of the overlay, when it is closed or synced.

use std::path::Path;
use std::sync::Arc;

use crate::fs::error::{FsError, Result};
use crate::fs::read::decoded::Encoded;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, LiveState, OpenFile, Place, Shown};
use crate::fs::state::overlay::{Change, Name};
use crate::store::content::Content;
use crate::text::shown;

impl Fs {
    /// Stages the contents of a file for commit, under all names that are chunks.
    pub(in crate::fs) fn publish(&self, file: &Arc<LiveFile>) -> Result<()> {
        self.publish_unless(file, |_| false)
    }

    /// The same as a handle is closed that may have written nothing. Not while another one is in the middle of writing, which
    /// may have truncated the file a moment ago: its own close does so. The end of a handle comes at any time after
    /// the close, and half a chunk would be committed.
    pub(in crate::fs) fn publish_beside(
        &self,
        file: &Arc<LiveFile>,
        open: &Arc<OpenFile>,
    ) -> Result<()> {
        self.publish_unless(file, |state| state.is_written_beside(open))
    }

    fn publish_unless(
        &self,
        file: &Arc<LiveFile>,
        is_incomplete: impl Fn(&LiveState) -> bool,
    ) -> Result<()> {
        // Another close may have taken what is dirty, and not have stored it yet.
        let turn = file.turn();
        if !file.state().dirty {
            return Ok(());
        }
        self.stage_names(file)?;
        let (paths, bytes, writes) = {
            let state = file.state();
            // In the section in which its bytes are taken: who truncates it has it open before.
            if is_incomplete(&state) {
                return Ok(());
            }
            (state.names.clone(), state.bytes.clone(), state.writes)
        };
        let Bytes::Here(content) = bytes else {
            file.state().dirty = false;
            return Ok(());
        };
        self.name_spool_file_of(&paths, &content)?;
        let mut changes = Vec::new();
        for path in &paths {
            changes.extend(self.encoded_as(path, file, &content)?.map(|encoded| (path, encoded)));
        }
        {
            // In one critical section: a commit of older contents must not mark these as committed.
            let mut names = self.overlay()?.names();
            let mut state = file.state();
            for (path, encoded) in changes {
                let number = names.next_number();
                let Some(name) = names.of_file(path, file) else { continue };
                let seen = encoded.seen(&content);
                let Encoded { chunk, shown } = encoded;
                if let Some(stage) = &mut name.stage {
                    stage.change = Some(Change { content: chunk, shown: seen, number });
                    // The error of the previous contents, which will not be retried.
                    name.error = None;
                }
                state.shown = shown;
            }
            state.dirty = state.writes != writes;
        }
        if let Some(path) = paths.iter().find(|path| self.is_document(path)) {
            // Before anything newer of the file is.
            self.publish_document(path, file, (&content, writes))?;
        }
        drop(turn);
        self.relieve()
    }

    /// Encodes the contents of a file for the chunk with that name; `None` if the name is not that
    /// of a chunk.
    fn encoded_as(
        &self,
        path: &Path,
        file: &Arc<LiveFile>,
        content: &Content,
    ) -> Result<Option<Encoded>> {
        let place = match self.overlay()?.names().of_file(path, file) {
            Some(Name { place: Some(place), stage: Some(_), .. }) => place.clone(),
            _ => return Ok(None),
        };
        // A refusal that was logged before, with the same contents since, is not logged again.
        let is_told = !matches!(file.state().shown, Shown::Written);
        let encoded = self.encoded(&place, content).inspect_err(|error| {
            // A shell closes a file once before it writes to it.
            let level = match is_told || content.nbytes() == 0 {
                true => log::Level::Debug,
                false => log::Level::Warn,
            };
            log::log!(level, "{error}");
        });
        if encoded.is_err() {
            // In one critical section: a commit of what was accepted makes others see what is stored.
            let mut names = self.overlay()?.names();
            let accepted =
                names.of_file(path, file).and_then(|name| name.stage.as_ref()?.change.as_ref());
            file.state().shown = match accepted.map(|change| change.shown.clone()) {
                Some(Some(content)) => Shown::Instead(content),
                Some(None) => Shown::Nothing,
                None => Shown::Stored(place),
            };
        }
        encoded.map(Some)
    }

    /// Discards what was written to a chunk file and cannot become a chunk: what was accepted before and
    /// waits for its commit is kept, or else what is stored. A file that is open is left as it is: its
    /// close ends it.
    pub(in crate::fs) fn revert(&self, file: &Arc<LiveFile>) {
        let Ok(overlay) = self.overlay() else { return };
        let mut names = overlay.names();
        let mut state = file.state();
        if state.is_open() || !state.dirty {
            return;
        }
        let (mut paths, mut places) = (state.names.clone(), Vec::new());
        // What is shown of a chunk that is not decoded is another one than what was written only if that was refused.
        let was_refused = !matches!(state.shown, Shown::Written);
        let is_refused = |place: &Place| place.array.decoded_form().is_some() || was_refused;
        paths.retain(|path| {
            let place = names.of_file(path, file).and_then(|name| name.place.clone());
            let place = place.filter(is_refused);
            places.extend(place.clone());
            place.is_some()
        });
        let Some(place) = places.pop() else { return };
        // Elsewhere any bytes are allowed.
        if place.array.decoded_form().is_none() && paths.len() < state.names.len() {
            return;
        }
        let mut waiting =
            paths.iter().filter_map(|path| names.get(path)?.stage.as_ref()?.change.as_ref());
        let accepted = waiting.next().map(|change| change.shown.clone());
        if matches!(&state.bytes, Bytes::Here(content) if content.nbytes() == 0) {
            log::warn!(
                "{}: it is not written: it has no bytes",
                shown(&place.array.path(&place.coords))
            );
        }
        state.dirty = false;
        (state.bytes, state.shown) = match accepted {
            Some(Some(content)) => (Bytes::Here(content), Shown::Written),
            Some(None) => (Bytes::Here(Content::Memory(Arc::default())), Shown::Nothing),
            None => {
                state.staged = false;
                for path in &paths {
                    names.get_mut(path).into_iter().for_each(|name| name.stage = None);
                }
                (Bytes::Stored(place.clone()), Shown::Written)
            }
        };
        drop((state, names));
        // A decoded chunk is never in the kernel's cache before it is accepted.
        if place.array.decoded_form().is_none() {
            self.served_other(&place, file.ino);
        }
    }

    /// Adds an open handle to a file.
    pub(in crate::fs) fn opened(&self, file: &Arc<LiveFile>, open: &Arc<OpenFile>) -> Result<()> {
        let mut state = file.state();
        // Opened by a name that is passed through by now.
        if let Bytes::Moved(_) = state.bytes {
            return Err(FsError::Stale);
        }
        state.openers.push(Arc::downgrade(open));
        Ok(())
    }

    /// Removes an open handle from a file, and reverts or drops the file if it was the last one.
    pub(in crate::fs) fn closed(&self, file: &Arc<LiveFile>, open: &Arc<OpenFile>) {
        // Stages what was written without a flush, for instance through a mapping.
        if let Err(error) = self.publish_beside(file, open) {
            log::debug!("{error}");
        }
        let last = {
            let mut state = file.state();
            state.openers.retain(|other| other.as_ptr() != Arc::as_ptr(open));
            !state.is_open()
        };
        if last && file.state().dirty && !self.publish_empty(file) {
            self.revert(file);
        }
        if last {
            self.end_document(file);
        } else if let Some(overlay) = &self.overlay {
            overlay.names().drop_unused(file);
        }
    }

    /// Drops a file without open handles if it is no longer needed. A document is in the source
    /// now, or was refused: it loses its name at once, so that no open finds what is being dropped.
    fn end_document(&self, file: &Arc<LiveFile>) {
        let Some(overlay) = &self.overlay else { return };
        let mut names = overlay.names();
        // Opened in the meantime: its close ends it.
        if file.state().is_open() {
            return;
        }
        let documents = file.state().names.clone();
        for name in documents.iter().filter(|name| self.is_document(name)) {
            file.state().dirty = false;
            names.take(name);
            // The kernel may have cached what was refused.
            self.identities.disturb(file.ino);
        }
        names.drop_unused(file);
    }

    /// Stages what was written to a file without open handles, as when it is truncated by its path.
    pub(in crate::fs) fn publish_closed(&self, file: &Arc<LiveFile>) -> Result<()> {
        let published = self.publish(file).inspect_err(|_| self.revert(file));
        let is_document = file.state().names.first().is_some_and(|name| self.is_document(name));
        if !is_document {
            return published;
        }
        let is_refused = published.is_ok() && file.state().dirty && !self.publish_empty(file);
        self.end_document(file);
        if is_refused { Err(FsError::Invalid) } else { published }
    }
}
