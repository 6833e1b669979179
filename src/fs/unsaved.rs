//! What could not be committed is saved as plain files, for `shardfs recover --unsaved` to put in.
//!
//! A chunk is saved as it is stored, by its path in the view `zarr3`, whatever view it was written in.

use std::ffi::OsStr;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::access::Caller;
use super::live::{Bytes, LiveFile, Name, Place, What};
use super::nodes::NodeKind;
use super::slot::Slot;
use super::{Fs, Result};
use crate::format::Coords;
use crate::store::content::Content;
use crate::store::spool::make_directories;
use crate::text::{Line, shown};

/// Bytes of a saved file that are read at once.
const PIECE_BYTES: usize = 1 << 20;

impl Fs {
    /// What waits to be committed, in all views of the mount.
    pub(super) fn waiting_text(&self) -> String {
        self.others().fold(self.own_waiting_text(), |text, other| text + &other.own_waiting_text())
    }

    /// What waits to be committed, a line each, and why if it could not be.
    fn own_waiting_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let Some(overlay) = &self.overlay else { return text };
        let names = overlay.names();
        for (path, name) in names.all(Path::new("")) {
            let change = name.stage.as_ref().and_then(|stage| stage.change.as_ref());
            let error = match &name.what {
                What::File(file) => file.state().error.clone(),
                _ => None,
            };
            // Writing to a string cannot fail.
            let _ = match (change, error) {
                (None, _) => Ok(()),
                (Some(_), None) => writeln!(text, "{}", shown(&path)),
                (Some(_), Some(error)) => writeln!(text, "{}: {}", shown(&path), Line(error)),
            };
        }
        if !text.is_empty() {
            let place = shown(&self.config.writing.unsaved);
            let _ = writeln!(text, "what cannot be committed in the end is saved below {place}");
        }
        text
    }

    /// Names the spool file of a file after the first of its names that is a chunk.
    pub(super) fn name_spool_file_of(&self, paths: &[PathBuf], content: &Content) -> Result<()> {
        if let Content::File { .. } = content {
            let names = self.overlay()?.names();
            let place = paths.iter().find_map(|path| names.get(path)?.place.clone());
            drop(names);
            place.iter().for_each(|place| name_spool_file(place, content));
        }
        Ok(())
    }

    /// Saves the bytes of a chunk that cannot be committed.
    pub(super) fn save(
        &self,
        path: &Path,
        file: Option<&LiveFile>,
        content: Option<&Content>,
        why: &dyn std::fmt::Display,
    ) {
        let Some(content) = content else {
            return log::error!("{}: not removed: {why}", shown(&path));
        };
        let to = self.config.writing.unsaved.join(path);
        match write_out(&to, file, content) {
            Ok(()) => {
                log::error!("{}: {why}; what was written is in {}", shown(&path), shown(&to));
            }
            Err(error) => log::error!(
                "{}: {why}; what was written is lost, {} cannot be written: {error}",
                shown(&path),
                shown(&to)
            ),
        }
    }

    /// Stages a chunk that was saved, to be committed over what its shard holds. Whether `path`, of
    /// the view, is one of a chunk.
    pub fn put_saved(&self, path: &Path, content: &mut dyn Read) -> Result<bool> {
        let Some(place) = self.chunk_at(path)? else { return Ok(false) };
        let file = self.new_file(None, 0o644, Caller::own().owner())?;
        let (mut buffer, mut at) = (vec![0; PIECE_BYTES], 0);
        loop {
            match content.read(&mut buffer)? {
                0 => break,
                read => {
                    self.write_live(&file, at, &buffer[..read])?;
                    at += read as u64;
                }
            }
        }
        self.name_file(&Slot::Chunk(path.to_owned(), place), &file)?;
        file.state().dirty = false;
        Ok(true)
    }

    /// Whether a chunk waits for its commit.
    pub fn is_waiting(&self, path: &Path) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        let names = overlay.names();
        names.get(path).is_some_and(|name| name.stage.is_some())
    }

    /// The chunk of the view with this path.
    fn chunk_at(&self, path: &Path) -> Result<Option<Place>> {
        for directory in path.ancestors().skip(1) {
            let node = self.nodes.node(directory)?;
            let NodeKind::Sharded(array) = &node.kind else { continue };
            let Ok(key) = path.strip_prefix(&array.source.path) else { continue };
            let mut names = key.iter().map(OsStr::to_str);
            let mut coords = names.next().flatten().and_then(|name| array.tree.top(name));
            for name in names {
                let child = |coords: Coords| array.tree.child(&coords, name?);
                coords = coords.and_then(child);
            }
            let is_chunk = |coords: &Coords| coords.len() == array.tree.rank();
            let array = Arc::clone(array);
            return Ok(coords.filter(is_chunk).map(|coords| Place { array, coords }));
        }
        Ok(None)
    }

    /// Saves what the mount alone knows of a name, when it ends. Whether there was anything.
    pub(super) fn save_at_end(&self, path: &Path, name: &Name) -> bool {
        if let Some(change) = name.stage.as_ref().and_then(|stage| stage.change.as_ref()) {
            let path = name.place.as_ref().map_or_else(|| path.to_owned(), chunk_path);
            let file = match &name.what {
                What::File(file) => Some(&**file),
                _ => None,
            };
            let why = "it could not be written to its shard";
            self.save(&path, file, change.content.as_ref(), &why);
            return true;
        }
        let What::File(file) = &name.what else { return false };
        let Bytes::Here(content) = file.state().bytes.clone() else { return false };
        // Lock files and the like.
        if content.nbytes() == 0 || name.place.is_some() {
            return false;
        }
        let why = "it is no chunk, and was in the mount alone";
        self.save(path, Some(&**file), Some(&content), &why);
        true
    }
}

/// The path of a chunk in the view `zarr3`, from the source's root.
pub(super) fn chunk_path(place: &Place) -> PathBuf {
    let source = &place.array.source;
    source.path.join(source.layout.keys.chunk_key(&place.coords))
}

/// Names a spool file after its chunk; not one of a decoded chunk, for it is not stored like that.
pub(super) fn name_spool_file(place: &Place, content: &Content) {
    if let Content::File { file, .. } = content
        && place.array.decoded_form().is_none()
        && let Err(error) = file.name_after(&chunk_path(place))
    {
        // It can be committed all the same.
        log::debug!("{}: its spool file cannot be named: {error}", shown(&chunk_path(place)));
    }
}

/// Writes a file with the owner and the permissions that it had, in directories that only this
/// process's user may enter: those that protected it in the source do not protect it here.
fn write_out(path: &Path, live: Option<&LiveFile>, content: &Content) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_directories(parent)?;
    }
    let mut how = OpenOptions::new();
    let mut file = how.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    if let Some(live) = live {
        let (uid, gid, mode) = {
            let state = live.state();
            (state.uid, state.gid, state.mode)
        };
        if rustix::process::geteuid().is_root() {
            fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
    }
    let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
    while at < content.nbytes() {
        let read = content.read_at(&mut buffer, at)?;
        file.write_all(&buffer[..read])?;
        at += read as u64;
    }
    file.sync_all()
}
