//! Which number a path has, as files come, go and change their names.

use std::path::Path;
use std::sync::Arc;

use crate::fs::state::paths::known::{Entries, Known};
use crate::fs::state::paths::tree::{Name, Tree};
use crate::store::storage::Stat;
use crate::view::inode;

#[derive(Default)]
pub(super) struct Table {
    pub(super) known: Entries,
    pub(super) names: Tree,
}

impl Table {
    /// Returns the paths of a number; `None` if the kernel does not know it.
    pub(super) fn paths(&self, ino: u64) -> Option<Vec<Arc<Path>>> {
        Some(self.known.get(ino)?.names().map(|name| self.names.path(name)).collect())
    }

    /// Returns the number of a path for the file that is there now, assigning one if needed.
    pub(super) fn number(
        &mut self,
        path: &Path,
        stat: Option<&Stat>,
        is_taken: impl Fn(u64) -> bool,
    ) -> u64 {
        let file = stat.map(Stat::id);
        if let Some(ino) = self.names.get(path)
            && let Some(known) = self.known.get(ino)
        {
            if known.file() == file {
                let is_open = known.is_open();
                return match stat.and_then(|stat| self.other_name(stat)) {
                    // It left this name and is linked to it again; meanwhile it got another number.
                    Some(other) if other != ino && !is_open => {
                        self.unname(path);
                        self.name(other, path);
                        other
                    }
                    _ => ino,
                };
            }
            // A file other than the one that is open, or that has other names, gets another number.
            let is_of_name = known.has_one_name() && !known.is_open();
            if is_of_name && stat.is_none_or(|stat| self.other_name(stat).is_none()) {
                self.known.set_file(ino, file);
                return ino;
            }
            self.unname(path);
        }
        if let Some(ino) = stat.and_then(|stat| self.other_name(stat)) {
            self.name(ino, path);
            return ino;
        }
        let ino = self.new_number(path, is_taken);
        self.known.set_file(ino, file);
        ino
    }

    /// Gives a path a number that no other file has.
    fn new_number(&mut self, path: &Path, is_taken: impl Fn(u64) -> bool) -> u64 {
        // The kernel would take another file for the one that it knows by that number.
        let is_free = |known: &Known| !known.has_names() && known.lookups == 0 && !known.is_open();
        for attempt in 0.. {
            let ino = inode::of_path(path, attempt);
            if ino == inode::ROOT {
                return ino;
            }
            if !is_taken(ino) && self.known.get(ino).is_none_or(is_free) {
                self.known.get_or_insert(ino);
                self.name(ino, path);
                return ino;
            }
        }
        inode::ROOT
    }

    /// Returns the number of a file that is known by another name; `None` if there is none. A name
    /// that was not looked up for long may belong to a deleted file whose inode number the source
    /// has reused for this one.
    fn other_name(&self, stat: &Stat) -> Option<u64> {
        let (ino, known) = self.known.of_file(stat.id())?;
        (stat.has_hard_links() || known.is_open()).then_some(ino)
    }

    /// Gives a number another name, which is no other number's.
    pub(super) fn name(&mut self, ino: u64, path: &Path) {
        if let Some(known) = self.known.get_mut(ino)
            && let Some(name) = self.names.insert(path, ino)
        {
            known.add_name(name);
        }
    }

    /// Removes the name that a path is.
    pub(super) fn unname(&mut self, path: &Path) {
        if let Some(name) = self.names.find(path)
            && let Some(ino) = self.names.get(path)
        {
            self.remove_name(ino, name);
        }
    }

    fn remove_name(&mut self, ino: u64, name: Name) {
        self.names.remove(name);
        let Some(known) = self.known.get_mut(ino) else { return };
        known.remove_name(name);
        if known.rare().is_some_and(|rare| rare.is_copied) && !known.has_names() {
            known.open_files().iter().for_each(|open| open.leave());
        }
    }

    /// Moves every path at or below `from` to the same place at or below `to`, keeping the numbers. What was there
    /// has no names any more; its open handles stay valid.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) {
        // A directory is never moved below itself, and a file that is one with its new name stays.
        if to.starts_with(from) {
            return;
        }
        let gone: Vec<_> = self.names.below(to).collect();
        for (name, ino) in gone {
            self.remove_name(ino, name);
        }
        self.names.rename(from, to);
    }

    /// Removes a number and its names.
    pub(super) fn drop_number(&mut self, ino: u64) -> Option<Known> {
        let mut known = self.known.remove(ino)?;
        known.take_names().into_iter().for_each(|name| self.names.remove(name));
        Some(known)
    }
}
