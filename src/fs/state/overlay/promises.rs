//! Promises of names: what must be durable before something else may be removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Hidden, Name, Names, What};
use crate::fs::state::live_file::{LiveFile, Place};
use crate::fs::state::order::Promise;
use crate::store::StoreError;

impl Names {
    /// Prepares a file to lose the name `path`: the old name may go once the file is durable under
    /// another of its names, and changes that wait for this name wait for that one.
    pub(in crate::fs) fn leave(&mut self, path: &Path, file: &LiveFile) {
        let others: Vec<PathBuf> =
            file.state().names.iter().filter(|name| *name != path).cloned().collect();
        let is_chunk = |name: &&PathBuf| self.get(name).is_some_and(|name| name.place.is_some());
        let is_durable = |name: &PathBuf| {
            self.get(name).is_some_and(|name| name.place.is_some() && name.stage.is_none())
        };
        let Some(other) = others.iter().find(is_chunk).or(others.first()) else { return };
        let is_durable = others.iter().any(is_durable);
        let Some(name) = self.get_mut(path) else { return };
        let mut made = std::mem::take(&mut name.made);
        if is_durable {
            return made.iter().for_each(|promise| promise.keep());
        }
        made.iter().for_each(|promise| promise.pass_to(other));
        if name.place.is_some() {
            let promise = Promise::of(other);
            name.after.push(Arc::clone(&promise));
            made.push(promise);
        }
        if let Some(other) = self.get_mut(other) {
            other.made.extend(made);
        }
    }

    /// Returns a promise that the file called `path` becomes durable.
    pub(in crate::fs) fn promise(&mut self, path: &Path) -> Arc<Promise> {
        let promise = Promise::of(path);
        match self.get_mut(path) {
            Some(name) if name.place.is_none() || name.stage.is_some() => {
                name.made.push(Arc::clone(&promise));
            }
            // Removed in the meantime, or committed.
            _ => promise.keep(),
        }
        promise
    }

    /// Breaks the promises of the name `path`, whose change was given up.
    pub(in crate::fs) fn break_promises(&mut self, path: &Path, error: &Arc<StoreError>) {
        let Some(name) = self.get_mut(path) else { return };
        let made = std::mem::take(&mut name.made);
        made.iter().for_each(|promise| promise.break_for(error));
        self.is_broken |= !made.is_empty();
    }

    /// Restores and returns the names whose removal depended on promises that were broken.
    pub(in crate::fs) fn bring_back(&mut self) -> Vec<(PathBuf, Option<Place>, Arc<StoreError>)> {
        if !std::mem::take(&mut self.is_broken) {
            return Vec::new();
        }
        let broken = |name: &Name| name.after.iter().find_map(|promise| promise.broken());
        let back: Vec<_> = self
            .all(Path::new(""))
            .filter(|(_, name)| matches!(name.what, What::Removed))
            .filter_map(|(path, name)| Some((path, name.place.clone(), broken(name)?)))
            .collect();
        for (path, _, error) in &back {
            self.break_promises(path, error);
            self.take(path);
        }
        back
    }

    /// Hides a file of the source that has another name now, until it can be removed.
    pub(in crate::fs) fn hide(&mut self, path: &Path, hidden: Hidden, after: Vec<Arc<Promise>>) {
        let name = self.put(path, What::Removed, None);
        name.hidden = Some(hidden);
        name.after.extend(after);
    }

    /// Forgets a file of the source that was hidden. Its name stays if it has become that of another
    /// file, or if another file was hidden since.
    pub(in crate::fs) fn unhide(&mut self, path: &Path, hidden: &Hidden) {
        let Some(name) = self.get_mut(path) else { return };
        let is_it = |now: &Hidden| now.stat.version() == hidden.stat.version();
        if !name.hidden.as_ref().is_some_and(is_it) {
            return;
        }
        match name.what {
            What::Removed => drop(self.take(path)),
            What::File(_) | What::Directory => (name.hidden, name.error) = (None, None),
        }
    }

    /// Records that a file of the source was linked to a name that is not durable yet.
    pub(in crate::fs) fn linked(&mut self, from: &Path, promise: Arc<Promise>) {
        self.links.retain(|_, promises| promises.iter().any(|promise| promise.is_open()));
        self.links.entry(from.to_owned()).or_default().push(promise);
    }

    /// Returns the promises that must be kept before a linked file of the source may be removed.
    pub(in crate::fs) fn links(&self, path: &Path) -> Vec<Arc<Promise>> {
        let links = self.links.get(path).into_iter().flatten();
        links.filter(|promise| promise.is_open()).cloned().collect()
    }

    /// Removes and returns these promises, for a file that is about to be hidden until they are
    /// kept.
    pub(in crate::fs) fn take_links(&mut self, path: &Path) -> Vec<Arc<Promise>> {
        let links = self.links(path);
        self.links.remove(path);
        links
    }

    /// Moves the promises of a linked file of the source, or of those in a directory, to its new
    /// name.
    pub(in crate::fs) fn move_links(&mut self, from: &Path, to: &Path) {
        let is_moved = |path: &PathBuf, _: &mut Vec<_>| path.starts_with(from);
        let moved: Vec<_> = self.links.extract_if(is_moved).collect();
        for (path, promises) in moved {
            // It is below `from`.
            let Ok(below) = path.strip_prefix(from) else { continue };
            let path = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
            self.links.entry(path).or_default().extend(promises);
        }
    }
}
