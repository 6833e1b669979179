//! What could not be committed is saved as plain files, for its owner to try again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use super::Fs;
use super::live::{Bytes, Name, What};
use crate::store::content::Content;
use crate::text::{Line, shown};

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

    /// Saves the bytes of a chunk that cannot be committed.
    pub(super) fn save(&self, path: &Path, content: Option<&Content>, why: &dyn std::fmt::Display) {
        let Some(content) = content else {
            return log::error!("{}: not removed: {why}", shown(&path));
        };
        let to = self.config.writing.unsaved.join(path);
        match write_out(&to, content) {
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

    /// Saves what the mount alone knows of a name, when it ends. Whether there was anything.
    pub(super) fn save_at_end(&self, path: &Path, name: &Name) -> bool {
        if let Some(change) = name.stage.as_ref().and_then(|stage| stage.change.as_ref()) {
            self.save(path, change.content.as_ref(), &"it could not be written to its shard");
            return true;
        }
        let What::File(file) = &name.what else { return false };
        let Bytes::Here(content) = file.state().bytes.clone() else { return false };
        // Lock files and the like.
        if content.nbytes() == 0 || name.place.is_some() {
            return false;
        }
        self.save(path, Some(&content), &"it is no chunk, and was in the mount alone");
        true
    }
}

fn write_out(path: &Path, content: &Content) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = File::create(path)?;
    let (mut buffer, mut at) = (vec![0; 1 << 20], 0);
    while at < content.nbytes() {
        let read = content.read_at(&mut buffer, at)?;
        file.write_all(&buffer[..read])?;
        at += read as u64;
    }
    file.sync_all()
}
