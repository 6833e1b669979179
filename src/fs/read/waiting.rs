//! List of the uncommitted changes, `.shardfs/waiting.txt`.

use std::path::Path;

use crate::fs::state::control_files::IN_THE_END;
use crate::fs::state::fs::Fs;
use crate::fs::state::overlay::Name;
use crate::text::{Line, shown, word};

impl Fs {
    /// Returns a list of the uncommitted changes in all views of the mount, and what becomes of them
    /// if the end of the mount cannot commit them.
    pub(in crate::fs) fn waiting_text(&self) -> String {
        let own = self.own_waiting_text();
        let text = self.others().fold(own, |text, other| text + &other.own_waiting_text());
        let has_failed = self.has_failed() || self.others().any(|other| other.has_failed());
        let has_removals = self.has_removals() || self.others().any(|other| other.has_removals());
        let removals = match has_removals {
            true => format!(
                "{IN_THE_END} is not saved if it is a removal: what was to be removed stays in the source\n"
            ),
            false => String::new(),
        };
        match self.unsavable(has_failed) {
            _ if text.is_empty() => text,
            Some(lost) => text + &removals + &lost,
            None if self.files_to_save().is_empty() && !text.contains(": given up: ") => {
                text + &removals
            }
            None => {
                let writing = &self.config.writing;
                let (place, source, options) =
                    (&writing.unsaved, &writing.source, &writing.source_options);
                format!(
                    "{text}{removals}{IN_THE_END} is saved below {}; `shardfs recover --unsaved {} {options}{}` puts it in\n",
                    shown(place),
                    word(place),
                    word(source)
                )
            }
        }
    }

    /// Returns whether a removal waits to be committed.
    fn has_removals(&self) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        overlay.names().all(Path::new("")).any(|(_, name)| is_removal(name))
    }

    /// Returns whether a change could not be committed so far.
    fn has_failed(&self) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        overlay.names().all(Path::new("")).any(|(_, name)| name.error.is_some())
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
            let removal = if is_removal(name) { " (removal)" } else { "" };
            let path = format!("{}{removal}", shown(&path));
            let before = name.after.iter().find_map(|promise| promise.path());
            // Writing to a string cannot fail.
            let _ = match (&name.error, before) {
                (Some(error), _) => writeln!(text, "{path}: {}", Line(error)),
                (None, Some(before)) => writeln!(text, "{path}: after {}", shown(&before)),
                (None, None) => writeln!(text, "{path}"),
            };
        }
        drop(names);
        text + &self.failures.list()
    }
}

/// Returns whether what waits under a name is the removal of what is stored, of which nothing can be saved.
fn is_removal(name: &Name) -> bool {
    let change = name.stage.as_ref().and_then(|stage| stage.change.as_ref());
    name.hidden.is_some() || change.is_some_and(|change| change.content.is_none())
}
