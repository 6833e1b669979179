//! What a command makes aside, or has set aside, of an array or a group: a hidden directory beside it.
//!
//! ```text
//! PARENT/NAME                          what users see: the old one or the new one, whole, at any moment
//! PARENT/.NAME.shardfs-ID/job.json     the note that says whose the hidden directory is, locked
//! PARENT/.NAME.shardfs-ID/new          the new one, until it is complete; then they change places
//! PARENT/.NAME.shardfs-ID/old          the old one, where they cannot at once, or where it is deleted
//! ```
//!
//! Whatever a command removes is in such a directory first. Those that were left by a command that was
//! stopped are found by their names, and are ours if the note in them says so; the next command that
//! works on NAME removes them. One that was stopped between two renames gives the old one back.

mod marker;
mod removal;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde_json::{Value, json};

use self::marker::is_id;
pub use self::marker::{MARKER, Marker, is_draft, new_id};
use self::removal::{open_within, remove};
use crate::text::shown;

/// What is being made.
const NEW: &str = "new";
/// What goes away.
const OLD: &str = "old";
/// Bytes of a name that stand in that of its hidden directory: a name has 255 at most.
const NAME_BYTES: usize = 200;

/// Why something was not put into its place, or not removed.
#[derive(Debug, thiserror::Error)]
pub enum AsideError {
    /// Another filesystem, or another part of this one, can be seen there.
    #[error(
        "{}: something is mounted there, or it is another filesystem: nothing in it was touched; \
         unmount it, then run the command again", shown(.0)
    )]
    Mounted(PathBuf),
    /// Another directory stands where the old one stood.
    #[error("{}: others have replaced it meanwhile; it stays as it is, run the command again", shown(.0))]
    Replaced(PathBuf),
    /// The system reports an error.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Where.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

/// What tells a file from all others, as long as it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(u64, u64);

impl From<&fs::Stat> for FileId {
    fn from(stat: &fs::Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

/// A directory that is to be made, replaced or removed, by the one that holds it and its name.
#[derive(Debug)]
pub struct Place {
    /// The directory that holds it: absolute and without symbolic links.
    pub parent: PathBuf,
    /// Its name there.
    pub name: OsString,
    directory: OwnedFd,
}

impl Place {
    /// The place of a path, whose parent must be there. The path itself may be that of a symbolic link.
    pub fn of(path: &Path) -> io::Result<Self> {
        let (parent, name) = match path.file_name() {
            Some(name) => match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => (parent.canonicalize()?, name),
                _ => (Path::new(".").canonicalize()?, name),
            },
            // Such as `.` or `..`.
            None => {
                let whole = path.canonicalize()?;
                let name = whole.file_name().ok_or(io::ErrorKind::InvalidInput)?;
                let parent = whole.parent().ok_or(io::ErrorKind::InvalidInput)?;
                return Self::open(parent.to_owned(), name.to_owned());
            }
        };
        Self::open(parent, name.to_owned())
    }

    fn open(parent: PathBuf, name: OsString) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::open(&parent, flags, Mode::empty())?;
        Ok(Self { parent, name, directory })
    }

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Attributes of what is there, a symbolic link included; None if nothing is.
    pub fn stat(&self) -> io::Result<Option<fs::Stat>> {
        match fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the directory that is there; it may be a mount point.
    pub fn open_directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.directory, &self.name, flags, Mode::empty())?)
    }

    /// Makes an empty directory there.
    pub fn make_directory(&self) -> io::Result<OwnedFd> {
        fs::mkdirat(&self.directory, &self.name, Mode::from_raw_mode(0o777))?;
        fs::fsync(&self.directory)?;
        self.open_directory()
    }

    fn try_clone(&self) -> io::Result<Self> {
        let (parent, name) = (self.parent.clone(), self.name.clone());
        Ok(Self { parent, name, directory: self.directory.try_clone()? })
    }

    /// What the name of a hidden directory beside it begins with.
    fn prefix(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        [b".", &name[..name.len().min(NAME_BYTES)], b".shardfs-"].concat()
    }

    /// The name as it stands in a note.
    fn note(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}

/// What becomes of an old one that was set aside, if the command is stopped while NAME is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It gets its name back.
    Replace,
    /// It goes.
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

/// A hidden directory beside a place. Removed with what is in it when it is dropped.
#[derive(Debug)]
pub struct Aside {
    place: Place,
    purpose: Purpose,
    name: CString,
    directory: OwnedFd,
    /// None once it was removed.
    marker: Option<Marker>,
}

impl Aside {
    /// Makes one beside a place.
    pub fn begin(place: &Place, purpose: Purpose) -> Result<Self, AsideError> {
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

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.place.parent.join(OsStr::from_bytes(self.name.to_bytes()))
    }

    /// Where what was set aside is.
    pub fn old_path(&self) -> PathBuf {
        self.path().join(OLD)
    }

    /// Leaves it as it is, as whoever is killed does.
    #[cfg(test)]
    pub fn abandon(mut self) {
        self.marker = None;
    }

    /// Makes the directory of the new one, empty.
    pub fn make_new(&self) -> Result<(PathBuf, OwnedFd), AsideError> {
        let path = self.path().join(NEW);
        let made = fs::mkdirat(&self.directory, NEW, Mode::from_raw_mode(0o777))
            .and_then(|()| open_within(self.directory.as_fd(), c"new"));
        match made {
            Ok(directory) => Ok((path, directory)),
            Err(error) => Err(AsideError::Io { path, error: error.into() }),
        }
    }

    /// Sets what is at the place aside.
    pub fn take(&self) -> Result<(), AsideError> {
        let Place { directory, name, .. } = &self.place;
        let taken = fs::renameat(directory, name, &self.directory, OLD);
        self.settle(taken)
    }

    /// Gives what was set aside its name back, which nothing else may have meanwhile.
    pub fn give_back(&self) -> Result<(), AsideError> {
        let (from, Place { directory: to, name, .. }) = (&self.directory, &self.place);
        let given = match fs::renameat_with(from, OLD, to, name, RenameFlags::NOREPLACE) {
            // A directory takes the place of an empty one at most.
            Err(error) if is_unknown(error) => fs::renameat(from, OLD, to, name),
            given => given,
        };
        self.settle(given)
    }

    /// Puts the new one, which must be durable, into its place. If the directory `old` is there they
    /// change places; nothing, or an empty directory, gives way. Returns once that is durable.
    pub fn publish(&self, old: Option<FileId>) -> Result<(), AsideError> {
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
        // In between, whoever removes this gives it back.
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

    /// Removes it with all that is in it; what was about to be replaced, and by nothing, is given back.
    pub fn remove(mut self) -> Result<(), AsideError> {
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
        // The note goes last: without it nobody knows whose the rest is.
        let removed = marker.remove(self.directory.as_fd()).and_then(|()| {
            fs::unlinkat(&self.place.directory, &self.name, AtFlags::REMOVEDIR)?;
            Ok(fs::fsync(&self.place.directory)?)
        });
        removed.map_err(failed)
    }

    /// The one of that name, if it is ours and nobody is at it.
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

/// What commands that were stopped have left beside a place; kept until it is removed.
#[derive(Debug)]
pub struct Leftovers {
    /// Those with a note.
    ours: Vec<CString>,
    /// Those that may be ours and hold nothing but a note that was not finished.
    unborn: Vec<CString>,
}

impl Leftovers {
    /// Finds them; those that somebody is still at are not among them.
    pub fn find(place: &Place) -> io::Result<Self> {
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
                    // Whoever only looks removes nothing.
                    aside.marker = None;
                    ours.push(name);
                }
                None => unborn.push(name),
            }
        }
        Ok(Self { ours, unborn })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ours.len()
    }

    /// Removes them, those that are still as they were found.
    pub fn remove(self, place: &Place) -> Result<(), AsideError> {
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

/// Removes a hidden directory whose maker was stopped before its note was there: it has the random
/// number in its name, and nothing in it but a note of that number.
fn remove_unborn(place: &Place, name: &CString) -> io::Result<()> {
    let id = name.to_bytes().strip_prefix(&*place.prefix()).and_then(|id| str::from_utf8(id).ok());
    let Some(id) = id.filter(|id| is_id(id.as_bytes())) else { return Ok(()) };
    let directory = open_within(place.directory.as_fd(), name)?;
    if Marker::remove_draft(directory.as_fd(), id)? {
        // Fails if there is anything else.
        fs::unlinkat(&place.directory, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes what commands that were stopped have left beside a place.
pub fn sweep(place: &Place) -> Result<(), AsideError> {
    let found = Leftovers::find(place);
    found.map_err(|error| AsideError::Io { path: place.path(), error })?.remove(place)
}

/// Whether a filesystem does not know a kind of rename.
fn is_unknown(error: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP].contains(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let names = std::fs::read_dir(path).unwrap().map(name);
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A directory with a file in it, at a place.
    fn old() -> (tempfile::TempDir, Place) {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("a")).unwrap();
        std::fs::write(top.path().join("a/old"), "x").unwrap();
        let place = Place::of(&top.path().join("a")).unwrap();
        (top, place)
    }

    /// Whoever is stopped, at whatever moment, leaves the old one or the new one.
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
                // Where names cannot be exchanged: in between.
                1 => aside.take().unwrap(),
                // And after it.
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
        // Of somebody who is still at it.
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
