//! Changes that could not be committed, saved as plain files for `shardfs recover --unsaved`.
//!
//! A chunk is saved as it is stored, by its path in the view `zarr3`, whatever view it was written
//! in.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::fs::error::Result;
use crate::fs::state::copy::Copy;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, Place};
use crate::fs::state::overlay::{Name, What};
use crate::store::content::Content;
use crate::store::spool::{beside_chunks, make_directories, sync_directories_above};
use crate::text::shown;

/// Number of bytes of a saved file to read at once.
pub(in crate::fs) const PIECE_BYTES: usize = 1 << 20;

/// What has become of a change that could not be committed when its mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum End {
    /// What was written is saved.
    Saved,
    /// What was written could not be saved, either.
    Lost,
    /// It was a removal.
    NotRemoved,
}

impl End {
    pub(in crate::fs) fn of_written(is_saved: bool) -> Self {
        if is_saved { Self::Saved } else { Self::Lost }
    }
}

impl Fs {
    /// Names the spool file of a file after the first of its names that is a chunk.
    pub(in crate::fs) fn name_spool_file_of(
        &self,
        paths: &[PathBuf],
        content: &Content,
    ) -> Result<()> {
        if let Content::File { .. } = content {
            let names = self.overlay()?.names();
            let place = paths.iter().find_map(|path| names.get(path)?.place.clone());
            drop(names);
            place.iter().for_each(|place| name_spool_file(place, content));
        }
        Ok(())
    }

    /// Saves the bytes of a chunk that cannot be committed; returns whether they are durable now.
    pub(in crate::fs) fn save(
        &self,
        path: &Path,
        file: Option<&LiveFile>,
        content: Option<&Content>,
        why: &dyn std::fmt::Display,
    ) -> bool {
        let Some(content) = content else {
            log::error!("{}: not removed: {why}", shown(path));
            return false;
        };
        let to = self.config.writing.unsaved.join(path);
        match self.write_unsaved(&to, file, content) {
            Ok(()) => {
                // Of the same contents, or of older ones.
                let _copy = file.and_then(|file| file.state().copy.take());
                log::error!("{}: {why}; what was written is in {}", shown(path), shown(&to));
                true
            }
            Err(error) => {
                let (path, to) = (shown(path), shown(&to));
                log::error!(
                    "{path}: {why}; what was written cannot be saved, {to} cannot be written: {error}"
                );
                false
            }
        }
    }

    /// Saves a file that exists in the mount alone, when the mount ends; removals that depend on it
    /// may then proceed. `None` if there is nothing to save.
    pub(in crate::fs) fn save_scratch(&self, path: &Path, name: &Name) -> Option<End> {
        let (file, content) = self.content_to_save(path, name)?;
        let why = "it is no chunk, and was in the mount alone";
        let is_saved = self.save(&beside_chunks(path), Some(file), Some(&content), &why);
        if is_saved {
            name.made.iter().for_each(|promise| promise.keep());
        }
        Some(End::of_written(is_saved))
    }

    /// Saves what was written to a chunk and could not be committed, when the mount ends. `None` if
    /// everything was committed.
    pub(in crate::fs) fn save_chunk(&self, path: &Path, name: &Name) -> Option<End> {
        if name.hidden.is_some() {
            log::error!("{}: renamed, but not removed", shown(path));
            return Some(End::NotRemoved);
        }
        name.place.as_ref()?;
        let why = &"it could not be written to its shard";
        if let Some(change) = name.stage.as_ref().and_then(|stage| stage.change.as_ref()) {
            let path = name.place.as_ref().map_or_else(|| path.to_owned(), Place::saved_path);
            let file = match &name.what {
                What::File(file) => Some(&**file),
                _ => None,
            };
            let is_saved = self.save(&path, file, change.content.as_ref(), why);
            return Some(match change.content {
                Some(_) => End::of_written(is_saved),
                None => End::NotRemoved,
            });
        }
        let What::File(file) = &name.what else { return None };
        let state = file.state();
        let (is_dirty, bytes) = (state.dirty, state.bytes.clone());
        drop(state);
        match bytes {
            Bytes::Here(content) if is_dirty => {
                Some(End::of_written(self.save(path, Some(&**file), Some(&content), why)))
            }
            _ => None,
        }
    }

    /// Makes a durable copy of a file that is about to lose its only durable place; `None` if that
    /// fails.
    pub(in crate::fs) fn copy(
        &self,
        path: &Path,
        file: &LiveFile,
        content: &Content,
    ) -> Option<Copy> {
        let written = self.spool.next_directory().and_then(|directory| {
            let (to, copy) = (directory.join(path), Copy { directory });
            self.write_unsaved(&to, Some(file), content)?;
            Ok((to, copy))
        });
        match written {
            Ok((to, copy)) => {
                let (path, to) = (shown(path), shown(&to));
                log::info!("{path}: until it has a place in the source, it is in {to}");
                Some(copy)
            }
            Err(error) => {
                let (path, unsaved) = (shown(path), shown(&self.config.writing.unsaved));
                log::error!("{path}: no copy of it can be written to {unsaved}: {error}");
                None
            }
        }
    }

    /// Moves what was saved before under the same name to the spool, where it is older; so it does a
    /// file in the place of a directory above, which is a chunk of an array that has had this name.
    fn set_aside(&self, to: &Path) -> io::Result<()> {
        let unsaved = &self.config.writing.unsaved;
        let is_in_the_way = |saved: &&Path| *saved == to || saved.is_file();
        let above = to.ancestors().take_while(|saved| *saved != unsaved);
        let saved = above.filter(|saved| saved.symlink_metadata().is_ok()).find(is_in_the_way);
        let Some(saved) = saved else { return Ok(()) };
        let name = saved.strip_prefix(unsaved).unwrap_or(saved);
        let aside = self.spool.set_aside(saved, name)?;
        log::warn!("{}: what was saved of it before is in {} now", shown(name), shown(&aside));
        Ok(())
    }

    /// Writes the file `to` outside the source, and returns once it is durable. Until it is whole it
    /// has a name in the spool that is not that of a chunk.
    fn write_unsaved(
        &self,
        to: &Path,
        file: Option<&LiveFile>,
        content: &Content,
    ) -> io::Result<()> {
        let part = self.spool.create()?;
        write_out(part.file(), file, content)?;
        self.set_aside(to)?;
        if let Some(parent) = to.parent() {
            make_directories(parent)?;
        }
        part.become_saved(to)?;
        sync_directories_above(to, &self.config.writing.unsaved)
    }
}

/// Names a spool file after its chunk, except that of a decoded chunk, which is not in its stored
/// form.
pub(in crate::fs) fn name_spool_file(place: &Place, content: &Content) {
    if let Content::File { file, .. } = content
        && place.array.decoded_form().is_none()
        && let Err(error) = file.name_after(&place.saved_path())
    {
        // It can be committed all the same.
        log::debug!("{}: its spool file cannot be named: {error}", shown(&place.saved_path()));
    }
}

/// Writes a file with the owner and the permissions that it had, in directories that only this
/// process's user may enter: the directories that protected it in the source do not protect it
/// here.
fn write_out(mut file: &File, live: Option<&LiveFile>, content: &Content) -> io::Result<()> {
    if let Some(live) = live {
        let (uid, gid, mode) = {
            let state = live.state();
            (state.uid, state.gid, state.mode)
        };
        let mut permitted = 0o777;
        if rustix::process::geteuid().is_root() {
            // It may be the root of a container, or the owner's quota is used up. The bytes are what matters.
            if let Err(error) = fchown(file, Some(uid), Some(gid)) {
                log::warn!("what is saved stays this process's own, not user {uid}'s: {error}");
                permitted = 0o700;
            }
        }
        if let Err(error) = file.set_permissions(Permissions::from_mode(mode & permitted)) {
            log::warn!("what is saved can be read by its owner alone: {error}");
        }
    }
    let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
    while at < content.nbytes() {
        let read = content.read_at(&mut buffer, at)?;
        file.write_all(&buffer[..read])?;
        at += read as u64;
    }
    file.sync_all()
}
