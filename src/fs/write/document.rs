//! Metadata documents that are written through the mount: translation back to the stored form.

use std::path::Path;
use std::sync::Arc;

use crate::format::document::Dialect;
use crate::format::error::MetadataError;
use crate::format::from_twin::{is_sharded, translate_back, translate_group_back};
use crate::fs::caller::Owner;
use crate::fs::error::{FsError, Result};
use crate::fs::form::View;
use crate::fs::node::{At, Node, NodeKind};
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, LiveState, Number};
use crate::fs::state::overlay::What;
use crate::fs::write::document_store::{refused, whole};
use crate::fs::write::passthrough::Writing;
use crate::source::METADATA_FILE;
use crate::store::content::Content;
use crate::store::document::text_of;
use crate::text::shown;

impl Fs {
    /// Returns the overlay's file of a document, creating it if needed. `is_read` if it is opened by who may read it:
    /// who has emptied it goes by what it has read before.
    pub(in crate::fs) fn document_file(&self, path: &Path, is_read: bool) -> Result<Arc<LiveFile>> {
        if let Some(What::File(file)) =
            self.overlay()?.names().get(path).map(|name| name.what.clone())
        {
            return Ok(file);
        }
        let attr = self.path_attr(path)?;
        self.described_node(path)?;
        let text = match self.nodes.at(path)? {
            At::Text(text, stat) => {
                if is_read {
                    self.note_served(path, &stat);
                }
                text.to_vec()
            }
            _ => {
                let file = self.storage.open(path)?;
                if is_read {
                    self.note_served(path, &file.stat()?);
                }
                text_of(&*file)?
            }
        };
        let number = Number { ino: attr.ino, generation: self.paths.generation(attr.ino) };
        let overlay = self.overlay()?;
        let mut names = overlay.names();
        // Another thread may have created it first.
        if let Some(What::File(other)) = names.get(path).map(|name| name.what.clone()) {
            return Ok(other);
        }
        let owner = Owner { uid: attr.uid, gid: attr.gid };
        let state = LiveState {
            bytes: Bytes::Here(Content::Memory(Arc::new(text))),
            dirty: false,
            ..LiveState::new(attr.mode, owner, attr.mtime)
        };
        let file = overlay.file(&mut names, Some(number), state);
        names.put(path, What::File(Arc::clone(&file)), None);
        Ok(file)
    }

    /// Stores what was written to a document by this number of writes. An incomplete one may be completed
    /// later.
    pub(in crate::fs) fn publish_document(
        &self,
        path: &Path,
        file: &LiveFile,
        (content, writes): (&Content, u64),
    ) -> Result<()> {
        // Opened and not written yet.
        if content.nbytes() == 0 {
            file.state().dirty = true;
            return Ok(());
        }
        // It was refused once, and would be put over what others have written.
        if file.state().is_stale {
            return Err(FsError::Stale);
        }
        let writers = file.state().writers.clone();
        let stored = self.write_document(path, content, &self.writing(path, file, &writers));
        let mut state = file.state();
        state.dirty |= stored.is_err();
        match &stored {
            // Who has written since may be one of them.
            Ok(()) if state.writes == writes => {
                state.writers.retain(|writer| !writers.contains(writer));
            }
            Ok(()) => (),
            Err(error) => state.is_stale |= self.is_object_of_others(error),
        }
        stored
    }

    /// Returns whether a document was not stored, for others have put another one in the store since it was read.
    fn is_object_of_others(&self, error: &FsError) -> bool {
        let is_stale =
            matches!(error, FsError::Io(error) if error.raw_os_error() == Some(libc::ESTALE));
        self.storage.objects().is_some() && is_stale
    }

    /// Stores a document to which nothing was written, where it need not be metadata. Returns
    /// whether it was stored.
    pub(in crate::fs) fn publish_empty(&self, file: &LiveFile) -> bool {
        let (names, bytes) = {
            let state = file.state();
            (state.names.clone(), state.bytes.clone())
        };
        let (Some(path), Bytes::Here(content)) = (names.first(), bytes) else { return false };
        let writers = file.state().writers.clone();
        let by = self.writing(path, file, &writers);
        content.nbytes() == 0
            && self.is_document(path)
            && self.write_document(path, &content, &by).is_ok()
    }

    /// Takes its name from a document that is open or was removed, after another file was put there:
    /// what is written to the open one from then on is that of a file without a name.
    pub(in crate::fs) fn leave_document(&self, path: &Path) -> Result<()> {
        let mut names = self.overlay()?.names();
        let Some(name) = names.take(path) else { return Ok(()) };
        // It was removed, and is there again.
        let What::File(file) = name.what else { return Ok(()) };
        file.state().dirty = false;
        names.drop_unused(&file);
        drop(names);
        self.identities.disturb(file.ino);
        Ok(())
    }

    /// Stores a document, replacing the one that is there. What it makes of other files is done as far as
    /// its writers may do it.
    pub(in crate::fs) fn write_document(
        &self,
        path: &Path,
        content: &Content,
        by: &Writing<'_>,
    ) -> Result<()> {
        let stored = self.store_written(path, content, by);
        if let Err(FsError::Refused { .. }) = stored
            && self.overlay()?.names().get(path).is_some_and(|name| name.document.is_some())
        {
            log::warn!(
                "{}: the array that was removed there is in the source as long as its directory: remove that \
                 first, to make another one",
                shown(&path)
            );
        }
        stored
    }

    fn store_written(&self, path: &Path, content: &Content, by: &Writing<'_>) -> Result<()> {
        if self.view() == View::Zarr2 {
            return match self.create_from_zarr2(path, content, by)? {
                true => Ok(()),
                false => self.write_zarr2(path, content, by),
            };
        }
        let (directory, node) = self.described_node(path)?;
        let refused = |error: MetadataError| refused(path, error);
        let text = whole(content)?;
        let is_free = self.is_free(&directory, &node)?;
        let new = match self.parse_written(path, &text) {
            // It is no metadata: only its name is that of a document.
            Err(_) if is_free => {
                return self.write_plain(path, &directory, (content, by), is_free);
            }
            new => new.map_err(|error| refused(error.into()))?,
        };
        match &node.kind {
            NodeKind::Sharded(array) => {
                let turn = self.documents();
                self.finish_placing(path, &array.source.path)?;
                let stored = self.stored(path);
                let stored = stored.map_err(|e| e.map_or_else(Into::into, refused))?;
                let (level, dialect) = (self.config.level, Dialect::of(path));
                let back = translate_back(&stored, &new, level, dialect).map_err(refused)?;
                self.store_shape(path, (array, by), &back, &turn)
            }
            _ => {
                let turn = self.documents();
                // Others may have made an array of it since: its document must not be replaced as it is written.
                if let NodeKind::Sharded(_) = &self.described_node(path)?.1.kind {
                    drop(turn);
                    return self.store_written(path, content, by);
                }
                // Its chunks are in shards that have to come to their place first.
                self.check_undecided(path, &directory)?;
                let mut new = new;
                let mut failed = None;
                let absent = [libc::ENOENT, libc::ENOTDIR];
                let mut lookup = |below: &str| {
                    let below = directory.join(below);
                    if self.config.level == Some(0) || self.nodes.as_written().has(&below) {
                        return None;
                    }
                    match self.stored(&below.join(METADATA_FILE)) {
                        Ok(document) => return Some(document),
                        Err(Err(error)) if !absent.contains(&error.errno()) => failed = Some(error),
                        Err(_) => (),
                    }
                    None
                };
                let changed = translate_group_back(&mut new, &mut lookup, self.config.level)
                    .map_err(refused)?;
                // A node that cannot be read may be a sharded array, and must not be treated as an
                // unsharded one.
                if let Some(error) = failed {
                    return Err(error);
                }
                let names = (path, &*directory);
                // At level 0 it is shown as it is stored anyway.
                if is_sharded(&new) && self.config.level != Some(0) {
                    // Others may have made an array of a directory above since.
                    let node = self.nodes.node(&directory)?;
                    let is_free = self.is_free(&directory, &node)?;
                    return self.store_sharded(names, (content, by), is_free, turn);
                }
                // Others have removed it meanwhile.
                if self.nodes.as_written().has(&directory) && !self.has_array(path)? {
                    self.end_as_written(&directory);
                }
                if let Some(sharded) = self.sharded_form((path, &directory), &new)? {
                    match self.store_new_array(names, (&sharded, content), by, turn)? {
                        true => Ok(()),
                        false => self.store_written(path, content, by),
                    }
                } else {
                    match changed {
                        true => self.store_document(path, &directory, &new, by)?,
                        false => {
                            drop(turn);
                            self.write_plain(path, &directory, (content, by), is_free)?;
                        }
                    }
                    // It is another node now.
                    self.end_as_written(&directory);
                    Ok(())
                }
            }
        }
    }

    /// Returns whether a document may have arbitrary contents: it is neither in an array nor in
    /// what may be one.
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
            (NodeKind::AsStored, Some(_)) => match self.stored(&self.nodes.document_path(above)?) {
                Ok(document) => !is_array(document),
                Err(Ok(_)) => self.nodes.is_plain(above),
                Err(Err(error)) => return Err(error),
            },
            _ => false,
        })
    }

    /// Writes a file with the name of a document. The kind of the files beside it does not change,
    /// even if it is not metadata.
    fn write_plain(
        &self,
        path: &Path,
        directory: &Path,
        (content, by): (&Content, &Writing<'_>),
        is_free: bool,
    ) -> Result<()> {
        if !is_free {
            let _turn = self.documents();
            self.write_source(path, content, by)?;
            self.nodes.forget(directory);
            return Ok(());
        }
        // Serialized: the last writer records the current state.
        let _moves = self.moves.lock();
        let _turn = self.documents();
        // Before the file becomes visible.
        self.nodes.set_plain(directory, None);
        let written = self.write_source(path, content, by);
        match self.storage.stat(path) {
            Ok(stat) => self.nodes.set_plain(directory, Some(stat.version())),
            Err(_) => self.nodes.unset_plain(directory),
        }
        self.nodes.forget(directory);
        written
    }
}
