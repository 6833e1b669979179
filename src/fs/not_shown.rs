//! Directories that a view cannot show, with the reasons, which `.shardfs` lists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::text::{Line, shown};

/// Maximum number of directories that are remembered.
const MAX_DIRECTORIES: usize = 10_000;

/// Directories visited so far that the view cannot show.
#[derive(Default)]
pub(super) struct NotShown(Mutex<BTreeMap<PathBuf, String>>);

impl NotShown {
    /// Remembers why the view cannot show a directory, and logs it unless the reason is unchanged.
    pub(super) fn note(&self, directory: &Path, document: &Path, why: String) {
        let mut directories = self.0.lock();
        if directories.get(directory).is_some_and(|known| *known == why) {
            return;
        }
        log::warn!("{}: {why}", shown(document));
        if directories.len() < MAX_DIRECTORIES || directories.contains_key(directory) {
            directories.insert(directory.to_owned(), why);
        }
    }

    /// Forgets a directory, which can be shown now.
    pub(super) fn remove(&self, directory: &Path) {
        self.0.lock().remove(directory);
    }

    /// Forgets a directory and all below it.
    pub(super) fn remove_below(&self, directory: &Path) {
        self.0.lock().retain(|path, _| !path.starts_with(directory));
    }

    /// Returns a line for each directory, with the reason.
    pub(super) fn text(&self) -> String {
        let directories = self.0.lock();
        let line = |(path, why): (&PathBuf, &String)| format!("{}: {}\n", shown(path), Line(why));
        let all: String = directories.iter().map(line).collect();
        if directories.len() < MAX_DIRECTORIES { all } else { all + "...\n" }
    }
}
