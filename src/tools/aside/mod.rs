//! Hidden directories in which commands build new arrays or groups and from which they delete old
//! ones.
//!
//! ```text
//! PARENT/NAME                          the old or the new contents, complete at any moment
//! PARENT/.NAME.shardfs-ID/job.json     the marker of the hidden directory's owner, locked
//! PARENT/.NAME.shardfs-ID/new          the new contents, until complete; then exchanged with NAME
//! PARENT/.NAME.shardfs-ID/old          old contents, if not exchanged atomically, or to delete
//! ```
//!
//! Everything a command removes is moved into such a directory first. Directories left by an
//! interrupted command are found by their names, and belong to shardfs if their marker says so; the
//! next command that works on NAME removes them. If a command was interrupted between two renames,
//! the old contents are renamed back.

mod error;
pub(crate) mod marker;
mod permissions;
mod place;
mod removal;

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

pub(crate) use self::error::AsideError;
use self::marker::is_id;
pub(crate) use self::marker::{Marker, is_draft, new_id};
pub(crate) use self::permissions::Permissions;
pub(crate) use self::place::{FileId, Place};
use self::removal::{open_within, remove};
use crate::text::shown;

/// Name of the new contents under construction.
const NEW: &str = "new";
/// Name of the old contents to be removed.
const OLD: &str = "old";

/// Fate of the old contents if the command is interrupted while NAME does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They get their name back.
    Replace,
    /// They are removed.
    Delete,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }
}

/// A hidden directory beside a place. Dropping it removes it with its contents.
#[derive(Debug)]
pub(crate) struct Aside {
    place: Place,
    purpose: Purpose,
    name: CString,
    directory: OwnedFd,
    /// `None` once it was removed.
    marker: Option<Marker>,
}

impl Aside {
    /// Creates a hidden directory beside a place.
    pub(crate) fn begin(place: &Place, purpose: Purpose) -> Result<Self, AsideError> {
        let begin = || {
            let place = place.try_clone()?;
            let id = new_id()?;
            let name = CString::new([&*place.prefix(), id.as_bytes()].concat())?;
            let parent = &place.directory;
            fs::mkdirat(parent, &name, Mode::from_raw_mode(0o777))?;
            let directory = open_within(parent.as_fd(), &name)?;
            let what = json!({"purpose": purpose.name(), "name": place.note()});
            let marker = Marker::create(directory.as_fd(), id, &what);
            let marker = marker.inspect_err(|_| {
                let _ = fs::unlinkat(parent, &name, AtFlags::REMOVEDIR);
            })?;
            fs::fsync(parent)?;
            Ok(Self { place, purpose, name, directory, marker: Some(marker) })
        };
        begin().map_err(|error| AsideError::Io { path: place.path(), error })
    }

    /// Returns the absolute path of the hidden directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.place.parent.join(OsStr::from_bytes(self.name.to_bytes()))
    }

    /// Returns the path of the old contents in the hidden directory.
    pub(crate) fn old_path(&self) -> PathBuf {
        self.path().join(OLD)
    }

    /// Leaves the directory as it is, like a killed process.
    #[cfg(test)]
    pub(crate) fn abandon(mut self) {
        self.marker = None;
    }

    /// Creates an empty directory for the new contents, with the owner and the permissions of the
    /// directory at the place, if there is one.
    pub(crate) fn make_new(&self) -> Result<(PathBuf, OwnedFd), AsideError> {
        let path = self.path().join(NEW);
        let make = || {
            let permissions = match self.place.open_directory() {
                Ok(old) => Some(Permissions::of(old.as_fd())?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            // No other user may enter it before it has them.
            let mode = if permissions.is_some() { 0o700 } else { 0o777 };
            fs::mkdirat(&self.directory, NEW, Mode::from_raw_mode(mode))?;
            let directory = open_within(self.directory.as_fd(), c"new")?;
            permissions.iter().try_for_each(|it| it.give(directory.as_fd()))?;
            Ok(directory)
        };
        match make() {
            Ok(directory) => Ok((path, directory)),
            Err(error) => Err(AsideError::Io { path, error }),
        }
    }

    /// Moves the contents of the place into the hidden directory.
    pub(crate) fn take(&self) -> Result<(), AsideError> {
        let Place { directory, name, .. } = &self.place;
        let taken = fs::renameat(directory, name, &self.directory, OLD);
        self.settle(taken)
    }

    /// Renames the old contents back to their place, which must not have been taken meanwhile.
    pub(crate) fn give_back(&self) -> Result<(), AsideError> {
        let (from, Place { directory: to, name, .. }) = (&self.directory, &self.place);
        let given = match fs::renameat_with(from, OLD, to, name, RenameFlags::NOREPLACE) {
            // A plain rename of a directory replaces an empty directory at most.
            Err(error) if is_unknown(error) => fs::renameat(from, OLD, to, name),
            given => given,
        };
        self.settle(given)
    }

    /// Renames the new contents, which must be durable, to their place. If `old` is given, the
    /// directory there must be `old` and the two are exchanged; otherwise the place must be free or
    /// an empty directory. Returns once the rename is durable.
    pub(crate) fn publish(&self, old: Option<FileId>) -> Result<(), AsideError> {
        let put = match old {
            None => fs::renameat(&self.directory, NEW, &self.place.directory, &self.place.name),
            Some(old) => self.exchange(old),
        };
        self.settle(put)
    }

    fn exchange(&self, old: FileId) -> Result<(), Errno> {
        let (from, Place { directory: to, name, .. }) = (&self.directory, &self.place);
        let now = fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileId::from(&now) != old {
            return Err(Errno::STALE);
        }
        match fs::renameat_with(from, NEW, to, name, RenameFlags::EXCHANGE) {
            Err(error) if is_unknown(error) => (),
            exchanged => return exchanged,
        }
        // If interrupted between the two renames, removal of this directory renames the old
        // contents back.
        fs::renameat(to, name, from, OLD)?;
        fs::fsync(from)?;
        fs::renameat(from, NEW, to, name)
    }

    fn settle(&self, renamed: Result<(), Errno>) -> Result<(), AsideError> {
        let sync = |()| {
            fs::fsync(&self.directory)?;
            fs::fsync(&self.place.directory)
        };
        renamed.and_then(sync).map_err(|error| match error {
            Errno::BUSY | Errno::XDEV => AsideError::Mounted(self.place.path()),
            Errno::STALE => AsideError::Replaced(self.place.path()),
            error => AsideError::Io { path: self.place.path(), error: error.into() },
        })
    }

    /// Removes the hidden directory with its contents. Old contents that were to be replaced are
    /// renamed back if nothing has taken their place.
    pub(crate) fn remove(mut self) -> Result<(), AsideError> {
        self.clear()
    }

    fn clear(&mut self) -> Result<(), AsideError> {
        let Some(marker) = self.marker.take() else { return Ok(()) };
        let path = self.path();
        let failed = |error| AsideError::Io { path: path.clone(), error };
        if self.purpose == Purpose::Replace
            && fs::statat(&self.directory, OLD, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            && self.place.stat().map_err(failed)?.is_none()
        {
            self.give_back()?;
        }
        for name in [NEW, OLD] {
            remove(self.directory.as_fd(), OsStr::new(name), &path)?;
        }
        // The marker goes last: without it the owner of the rest is unknown.
        let removed = marker.remove(self.directory.as_fd()).and_then(|()| {
            fs::unlinkat(&self.place.directory, &self.name, AtFlags::REMOVEDIR)?;
            Ok(fs::fsync(&self.place.directory)?)
        });
        removed.map_err(failed)
    }

    /// Opens the hidden directory `name` and locks its marker; `None` if it is not one of this
    /// place, or if another process is working in it.
    fn find(place: &Place, name: CString) -> io::Result<Option<Self>> {
        let directory = match open_within(place.directory.as_fd(), &name) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(marker) = Marker::find(directory.as_fd())? else { return Ok(None) };
        let says = |name: &str| marker.what.get(name).and_then(Value::as_str);
        let is_of = name.to_bytes() == [&*place.prefix(), marker.id.as_bytes()].concat()
            && says("name") == Some(&place.note());
        let all = [Purpose::Replace, Purpose::Delete];
        let purpose = all.into_iter().find(|it| says("purpose") == Some(it.name()));
        match purpose {
            Some(purpose) if is_of && marker.try_lock()? => {
                let (place, marker) = (place.try_clone()?, Some(marker));
                Ok(Some(Self { place, purpose, name, directory, marker }))
            }
            _ => Ok(None),
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            log::warn!("left behind: {error}");
        }
    }
}

/// Hidden directories left beside a place by interrupted commands. Dropping the value does not
/// remove them.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// Directories with a valid marker.
    ours: Vec<CString>,
    /// Directories without one, which may hold nothing but an unfinished marker.
    unborn: Vec<CString>,
}

impl Leftovers {
    /// Finds the leftovers of a place, except those in which a process is still working.
    pub(crate) fn find(place: &Place) -> io::Result<Self> {
        let prefix = place.prefix();
        let mut found = Vec::new();
        for entry in Dir::read_from(&place.directory)? {
            let entry = entry?;
            let may_be = [FileType::Directory, FileType::Unknown].contains(&entry.file_type());
            if may_be && entry.file_name().to_bytes().starts_with(&prefix) {
                found.push(entry.file_name().to_owned());
            }
        }
        let (mut ours, mut unborn) = (Vec::new(), Vec::new());
        for name in found {
            match Aside::find(place, name.clone())? {
                Some(mut aside) => {
                    // Without its marker, dropping `aside` removes nothing.
                    aside.marker = None;
                    ours.push(name);
                }
                None => unborn.push(name),
            }
        }
        Ok(Self { ours, unborn })
    }

    /// Returns the number of leftovers with a valid marker.
    pub(crate) fn count(&self) -> usize {
        self.ours.len()
    }

    /// Removes those leftovers that are still as they were found.
    pub(crate) fn remove(self, place: &Place) -> Result<(), AsideError> {
        let failed = |error| AsideError::Io { path: place.path(), error };
        for name in self.ours {
            if let Some(aside) = Aside::find(place, name).map_err(failed)? {
                aside.remove()?;
            }
        }
        for name in self.unborn {
            if let Err(error) = remove_unborn(place, &name) {
                log::debug!(
                    "{}: {error}",
                    shown(&place.parent.join(OsStr::from_bytes(name.to_bytes())))
                );
            }
        }
        Ok(())
    }
}

/// Removes a hidden directory whose creator was interrupted before the marker was in place: it has
/// an identifier in its name and contains nothing but a draft of the marker with that identifier.
fn remove_unborn(place: &Place, name: &CString) -> io::Result<()> {
    let id = name.to_bytes().strip_prefix(&*place.prefix()).and_then(|id| str::from_utf8(id).ok());
    let Some(id) = id.filter(|id| is_id(id.as_bytes())) else { return Ok(()) };
    let directory = open_within(place.directory.as_fd(), name)?;
    if Marker::remove_draft(directory.as_fd(), id)? {
        // Fails if there is anything else in it.
        fs::unlinkat(&place.directory, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes the leftovers of interrupted commands beside a place.
pub(crate) fn sweep(place: &Place) -> Result<(), AsideError> {
    let found = Leftovers::find(place);
    found.map_err(|error| AsideError::Io { path: place.path(), error })?.remove(place)
}

/// Returns whether an error means that the filesystem does not support a kind of rename.
fn is_unknown(error: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP].contains(&error)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::marker::MARKER;
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let names = std::fs::read_dir(path).unwrap().map(name);
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Creates a directory with a file in it, and returns its place.
    fn old() -> (tempfile::TempDir, Place) {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("a")).unwrap();
        std::fs::write(top.path().join("a/old"), "x").unwrap();
        let place = Place::of(&top.path().join("a")).unwrap();
        (top, place)
    }

    /// A command interrupted at any moment leaves the old contents or the new ones.
    #[test]
    fn a_command_that_was_stopped_leaves_the_old_one_or_the_new_one() {
        for moment in 0..4 {
            let (top, place) = old();
            let stat = FileId::from(&place.stat().unwrap().unwrap());
            let aside = Aside::begin(&place, Purpose::Replace).unwrap();
            let (new, _) = aside.make_new().unwrap();
            std::fs::write(new.join("new"), "x").unwrap();
            match moment {
                0 => (),
                // Interrupted between the two renames, for filesystems without an atomic exchange.
                1 => aside.take().unwrap(),
                // Interrupted after the second rename.
                2 => {
                    aside.take().unwrap();
                    aside.publish(None).unwrap();
                }
                _ => aside.publish(Some(stat)).unwrap(),
            }
            aside.abandon();
            sweep(&place).unwrap();
            let expected = if moment < 2 { "old" } else { "new" };
            assert_eq!(names(&top.path().join("a")), [expected], "{moment}");
            assert_eq!(names(top.path()), ["a"], "{moment}");
        }
    }

    #[test]
    fn only_what_has_our_note_is_removed() {
        let (top, place) = old();
        let aside = Aside::begin(&place, Purpose::Replace).unwrap();
        let name = aside.path().file_name().unwrap().to_owned();
        let copy = |to: &str, note: &str| {
            let directory = top.path().join(to);
            std::fs::create_dir_all(directory.join("old")).unwrap();
            std::fs::write(directory.join(MARKER), note).unwrap();
        };
        let note = std::fs::read_to_string(aside.path().join(MARKER)).unwrap();
        copy(".a.shardfs-00000000000000000000000000000000", &note);
        copy(".a.shardfs-11111111111111111111111111111111", "{}");
        copy(".b.shardfs-22222222222222222222222222222222", &note);
        // The directory of a process that is still working.
        sweep(&place).unwrap();
        assert_eq!(names(top.path()).len(), 5);
        aside.abandon();
        sweep(&place).unwrap();
        assert_eq!(names(top.path()).len(), 4);
        assert!(!top.path().join(name).exists());
    }

    #[test]
    fn what_was_begun_without_a_note_goes_if_nothing_else_is_in_it() {
        let (top, place) = old();
        let ids = ["0", "1", "2"].map(|digit| digit.repeat(32));
        for id in &ids {
            std::fs::create_dir(top.path().join(format!(".a.shardfs-{id}"))).unwrap();
        }
        let file = |id: &str, name: String| top.path().join(format!(".a.shardfs-{id}")).join(name);
        std::fs::write(file(&ids[1], format!("{MARKER}.{}", ids[1])), "{").unwrap();
        std::fs::write(file(&ids[2], "mine".to_owned()), "x").unwrap();
        std::fs::create_dir(top.path().join(".a.shardfs-mine")).unwrap();
        sweep(&place).unwrap();
        assert_eq!(
            names(top.path()),
            [format!(".a.shardfs-{}", ids[2]), ".a.shardfs-mine".into(), "a".into()]
        );
        assert!(file(&ids[2], "mine".to_owned()).exists());
    }

    #[test]
    fn what_was_set_aside_to_be_replaced_is_given_back_when_it_is_not() {
        let (top, place) = old();
        let aside = Aside::begin(&place, Purpose::Replace).unwrap();
        aside.take().unwrap();
        assert!(!top.path().join("a").exists());
        drop(aside);
        assert_eq!(
            (names(top.path()), names(&top.path().join("a"))),
            (vec!["a".to_owned()], vec!["old".to_owned()])
        );
    }

    #[test]
    fn long_names_have_hidden_directories_too() {
        let top = tempfile::tempdir().unwrap();
        let place = Place::of(&top.path().join("n".repeat(255))).unwrap();
        Aside::begin(&place, Purpose::Replace).unwrap().remove().unwrap();
        assert_eq!(names(top.path()).len(), 0);
    }
}
