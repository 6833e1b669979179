//! The names of files of the mount: given, taken away, replaced.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::caller::{Caller, Owner};
use crate::fs::error::{FsError, Result};
use crate::fs::read::decoded::Encoded;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, Place};
use crate::fs::state::opener::Opener;
use crate::fs::state::overlay::{Change, Kept, What};
use crate::fs::state::target::Target;
use crate::fs::write::content::Prepared;
use crate::fs::write::passthrough::Writing;
use crate::fs::write::slot::Slot;
use crate::fs::write::unsaved::name_spool_file;
use crate::store::storage::{FileKind, Need};

impl Fs {
    /// Finds a file and loads its bytes from its shard: from then on it is not dropped, as it may
    /// have been before.
    pub(in crate::fs) fn brought_here(
        &self,
        find: impl Fn() -> Result<Arc<LiveFile>>,
        reader: Option<&Opener>,
    ) -> Result<Kept<'_>> {
        const ATTEMPTS: usize = 4;
        let by: Vec<_> = reader.map(|reader| (reader, Need::Read)).into_iter().collect();
        for _ in 0..ATTEMPTS {
            let file = self.keep_here(&find()?, &by)?;
            if self.overlay()?.names().has(&file) {
                return Ok(file);
            }
        }
        Err(FsError::Stale)
    }

    /// Returns the file of a name as a file of the mount.
    pub(in crate::fs) fn file_of(&self, slot: &Slot) -> Result<Arc<LiveFile>> {
        match slot {
            Slot::Chunk(path, place) => self.chunk_file(path, place),
            Slot::Document(path) => self.document_file(path, true),
            Slot::Scratch(path) => {
                let names = self.overlay()?.names();
                match names.get(path).map(|name| name.what.clone()) {
                    Some(What::File(file)) => Ok(file),
                    _ => Err(FsError::NotFound),
                }
            }
            Slot::Source(_) | Slot::Above(..) | Slot::Outside { .. } | Slot::Control => {
                Err(FsError::NotPermitted)
            }
        }
    }

    pub(in crate::fs) fn file_of_target(
        &self,
        target: Target,
        caller: &Caller,
    ) -> Result<Arc<LiveFile>> {
        match target {
            Target::Live(file) => Ok(file),
            Target::Tree(array, coords) if coords.len() == array.tree.rank() => {
                let ino = array.inodes.ino(array.tree.number(&coords));
                self.own_chunk_file(ino, &Place { array, coords })
            }
            Target::Path(path) => {
                let attr = self.path_attr(&path)?;
                let (content, _) = self.source_content(&path, caller)?;
                let owner = Owner { uid: attr.uid, gid: attr.gid };
                let file = self.new_file(None, attr.mode, owner)?;
                file.state().bytes = Bytes::Here(content);
                Ok(file)
            }
            _ => Err(FsError::NotPermitted),
        }
    }

    /// Gives a file the name `slot`, replacing what is there. A chunk is staged for commit.
    pub(in crate::fs) fn name_file(
        &self,
        slot: &Slot,
        file: &Arc<LiveFile>,
        caller: &Caller,
    ) -> Result<()> {
        let path = slot.path().ok_or(FsError::NotPermitted)?;
        let _replaced = self.keep_replaced(path, file, caller)?;
        match slot {
            Slot::Chunk(_, place) => {
                let prepared = self.prepare(path, place)?;
                let _turn = file.turn();
                let (bytes, writes) = {
                    let state = file.state();
                    (state.bytes.clone(), state.writes)
                };
                let Bytes::Here(content) = bytes else { return Err(FsError::Stale) };
                name_spool_file(place, &content);
                let encoded = self.encoded(place, &content);
                let encoded = encoded.inspect_err(|error| log::warn!("{error}"));
                let encoded = encoded?;
                let seen = encoded.seen(&content);
                let Encoded { chunk: content, shown } = encoded;
                let (mut names, stage) = self.names_with(path, place, prepared)?;
                self.end_chunk_file(&names, path, place, Some(&**file));
                let is_stored = |name: &PathBuf| {
                    let is_chunk = names.get(name).is_some_and(|name| name.place.is_some());
                    name != path && (is_chunk || self.is_document(name))
                };
                {
                    let mut state = file.state();
                    state.shown = shown;
                    // What is staged now is all that was written, unless it is stored elsewhere, too.
                    state.dirty &= state.writes != writes || state.names.iter().any(is_stored);
                }
                let number = names.next_number();
                let replaced = names.get(path).map(|name| name.what.clone());
                if let Some(What::File(replaced)) = &replaced
                    && !Arc::ptr_eq(replaced, file)
                {
                    names.leave(path, replaced);
                }
                let name = names.put(path, What::File(Arc::clone(file)), Some(place.clone()));
                name.error = None;
                let stage = name.stage.get_or_insert(stage);
                stage.change = Some(Change { content, shown: seen, number });
                if let Some(What::File(replaced)) = replaced {
                    names.drop_unused(&replaced);
                }
                Ok(())
            }
            Slot::Scratch(_) => {
                let mut names = self.overlay()?.names();
                let replaced = names.get(path).map(|name| name.what.clone());
                if let Some(What::File(replaced)) = &replaced
                    && !Arc::ptr_eq(replaced, file)
                {
                    names.leave(path, replaced);
                }
                names.put(path, What::File(Arc::clone(file)), None);
                if let Some(What::File(replaced)) = replaced {
                    names.drop_unused(&replaced);
                }
                Ok(())
            }
            Slot::Document(_) => {
                let Bytes::Here(content) = file.state().bytes.clone() else {
                    return Err(FsError::Stale);
                };
                let own = file.state().writers.clone();
                let writers = [own, self.limited(caller).into_iter().collect()].concat();
                let by = Writing { is_moved: true, ..self.writing(path, file, &writers) };
                self.write_document(path, &content, &by)?;
                self.leave_document(path)
            }
            Slot::Source(_) => {
                let _turn = self.free_name(path, FileKind::File)?;
                self.move_to_source(path, file, caller).map(drop)
            }
            Slot::Above(..) | Slot::Outside { .. } | Slot::Control => Err(FsError::NotPermitted),
        }
    }

    /// Open handles and other links of a file keep its contents when its name is taken by another
    /// file.
    fn keep_replaced(
        &self,
        path: &Path,
        by: &Arc<LiveFile>,
        caller: &Caller,
    ) -> Result<Option<Kept<'_>>> {
        let replaced = self.overlay()?.names().get(path).map(|name| name.what.clone());
        if let Some(What::File(replaced)) = replaced
            && !Arc::ptr_eq(&replaced, by)
            && self.is_needed_without(&replaced, path)
        {
            let opener = self.opener(caller);
            let by: Vec<_> = opener.iter().map(|opener| (&**opener, Need::Write)).collect();
            return self.keep_here(&replaced, &by).map(Some);
        }
        Ok(None)
    }

    /// Returns whether a file is still needed once it has lost a name: it is open or has other
    /// names.
    fn is_needed_without(&self, file: &LiveFile, path: &Path) -> bool {
        let state = file.state();
        state.is_open() || state.names.iter().any(|name| name != path)
    }

    /// Removes the old name of a file; that of a chunk as it was `prepared`.
    pub(in crate::fs) fn unname_file(
        &self,
        slot: &Slot,
        prepared: Option<Prepared>,
        caller: &Caller,
    ) -> Result<()> {
        match slot {
            Slot::Chunk(path, place) => self.remove_chunk((path, place), prepared, false, caller),
            Slot::Scratch(path) => self.remove_name(path),
            Slot::Document(path) => self.remove_document(path, caller),
            Slot::Source(path) => self.remove_source_file(path, caller),
            Slot::Above(..) | Slot::Outside { .. } | Slot::Control => Err(FsError::NotPermitted),
        }
    }
}
