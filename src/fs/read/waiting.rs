//! List of the uncommitted changes, `.shardfs/waiting.txt`.

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
}
