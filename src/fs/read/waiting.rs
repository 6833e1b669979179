//! Lists of the uncommitted changes, `.shardfs/waiting.txt`, and of what no commit will bring to the
//! source, `.shardfs/leftover.txt`.

use std::path::Path;

use crate::fs::state::fs::Fs;
use crate::text::{Line, shown};

impl Fs {
    /// Returns a list of the uncommitted changes in all views of the mount.
    pub(in crate::fs) fn waiting_text(&self) -> String {
        self.others().fold(self.own_waiting_text(), |text, other| text + &other.own_waiting_text())
    }

    /// Returns a line for each uncommitted change, with the error if it could not be committed.
    fn own_waiting_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let Some(overlay) = &self.overlay else { return text };
        let names = overlay.names();
        for (path, name) in names.all(Path::new("")) {
            let is_changed = name.stage.as_ref().is_some_and(|stage| stage.change.is_some());
            if !is_changed && name.hidden.is_none() {
                continue;
            }
            let path = shown(&path);
            let before = name.after.iter().find_map(|promise| promise.path());
            // Writing to a string cannot fail.
            let _ = match (&name.error, before) {
                (Some(error), _) => writeln!(text, "{path}: {}", Line(error)),
                (None, Some(before)) => writeln!(text, "{path}: after {}", shown(&before)),
                (None, None) => writeln!(text, "{path}"),
            };
        }
        drop(names);
        text += &self.failures.list();
        if !text.is_empty() {
            let place = shown(&self.config.writing.unsaved);
            let _ = writeln!(text, "what cannot be committed in the end is saved below {place}");
        }
        text
    }
    /// Returns a line for each file and removal, in all views of the mount, that the end of the
    /// mount will leave out of the source.
    pub(in crate::fs) fn leftover_text(&self) -> String {
        let own = self.own_leftover_text();
        self.others().fold(own, |text, other| text + &other.own_leftover_text())
    }

    fn own_leftover_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let Some(overlay) = &self.overlay else { return text };
        for (path, name) in overlay.names().all(Path::new("")) {
            if name.place.is_none() && self.content_to_save(&path, name).is_some() {
                let to = self.config.writing.unsaved.join(&path);
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{}: no chunk, in the mount alone; when that ends, it is saved as {}",
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
}
