//! Marker file that identifies a directory as the unfinished work of a command.
//!
//! Only a directory with such a marker ([`crate::format::marker`]) counts as unfinished and is
//! resumed or removed. The marker is written under another name and renamed, so it is never seen incomplete, and it is locked
//! while a process is working in the directory.

use std::ffi::CString;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde_json::Value;

use super::removal::WITHIN;
pub(crate) use crate::format::marker::MARKER;
pub(super) use crate::format::marker::is_id;
use crate::format::marker::{MAX_BYTES, parse, to_text};

/// A marker that was found or created.
#[derive(Debug)]
pub(crate) struct Marker {
    /// Description of the unfinished work.
    pub what: Value,
    /// Random identifier, unique to this marker, in hexadecimal digits.
    pub id: String,
    file: File,
}

impl Marker {
    /// Creates the marker in a directory and locks it. Fails with EEXIST if its name is taken.
    pub(crate) fn create(directory: BorrowedFd<'_>, id: String, what: &Value) -> io::Result<Self> {
        let name = format!("{MARKER}.{id}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = fs::openat(directory, &name, flags, Mode::from_raw_mode(0o666))?;
        let mut file = File::from(file);
        let mut publish = || {
            file.try_lock()?;
            file.write_all(&to_text(&id, what))?;
            file.sync_all()?;
            rename_new(directory, &name, MARKER)?;
            Ok(fs::fsync(directory)?)
        };
        if let Err(error) = publish() {
            let _ = fs::unlinkat(directory, &name, AtFlags::empty());
            return Err(error);
        }
        Ok(Self { what: what.clone(), id, file })
    }

    /// Reads the marker in a directory; `None` if there is none, or if it is not a regular file
    /// with a single link and the contents that [`Self::create`] writes.
    pub(crate) fn find(directory: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match fs::openat2(directory, MARKER, flags, Mode::empty(), WITHIN) {
            Ok(file) => File::from(file),
            // A symbolic link, a directory, a mount point or a socket is not a marker.
            Err(Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::ISDIR | Errno::NXIO) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fs::fstat(&file)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || stat.st_nlink != 1 {
            return Ok(None);
        }
        let mut text = Vec::new();
        (&file).take(MAX_BYTES + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Ok(None);
        }
        Ok(parse(&text).map(|(id, what)| Self { what, id, file }))
    }

    /// Tries to lock a marker that was found. Returns whether it is locked now and still the marker
    /// of its directory.
    pub(crate) fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(fs::fstat(&self.file)?.st_nlink == 1),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes the draft of the marker with identifier `id`, unless a process is still writing it.
    /// Returns whether the draft is gone.
    pub(super) fn remove_draft(directory: BorrowedFd<'_>, id: &str) -> io::Result<bool> {
        let name = format!("{MARKER}.{id}");
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match fs::openat2(directory, &name, flags, Mode::empty(), WITHIN) {
            Ok(file) if File::from(file.try_clone()?).try_lock().is_err() => Ok(false),
            Ok(_) => Ok(fs::unlinkat(directory, &name, AtFlags::empty()).map(|()| true)?),
            Err(Errno::NOENT) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the marker from its directory, and all drafts left by interrupted processes.
    pub(crate) fn remove(self, directory: BorrowedFd<'_>) -> io::Result<()> {
        fs::unlinkat(directory, MARKER, AtFlags::empty())?;
        for entry in fs::Dir::read_from(directory)? {
            let name: CString = entry?.file_name().to_owned();
            if is_draft(name.to_bytes()) {
                fs::unlinkat(directory, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Returns whether a name is that of a draft, under which a marker is written before it is renamed.
pub(crate) fn is_draft(name: &[u8]) -> bool {
    let id = name.strip_prefix(MARKER.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
    id.is_some_and(is_id)
}

/// Returns a random identifier for a marker.
pub(crate) fn new_id() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Renames a file to a name that must not exist.
pub(super) fn rename_new(directory: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
    match fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        // Some filesystems do not support the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            match fs::statat(directory, to, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(fs::renameat(directory, from, directory, to)?),
                Err(error) => Err(error.into()),
                Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
            }
        }
        renamed => Ok(renamed?),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use serde_json::json;

    use super::*;

    fn directory() -> (tempfile::TempDir, OwnedFd) {
        let directory = tempfile::tempdir().unwrap();
        let open = File::open(directory.path()).unwrap().into();
        (directory, open)
    }

    #[test]
    fn a_note_is_found_again_and_excludes_others() {
        let (path, directory) = directory();
        assert!(Marker::find(directory.as_fd()).unwrap().is_none());
        let what = json!({"command": "pack"});
        let made = Marker::create(directory.as_fd(), new_id().unwrap(), &what).unwrap();
        let found = Marker::find(directory.as_fd()).unwrap().unwrap();
        assert_eq!((&found.what, &found.id), (&what, &made.id));
        assert!(!found.try_lock().unwrap());
        let again = Marker::create(directory.as_fd(), new_id().unwrap(), &what);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(path.path().join(format!("{MARKER}.{}", made.id)), "").unwrap();
        made.remove(directory.as_fd()).unwrap();
        assert!(!found.try_lock().unwrap(), "of a directory that has none any more");
        assert_eq!(path.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn nothing_else_counts_as_a_note() {
        let (path, directory) = directory();
        let marker = path.path().join(MARKER);
        let id = new_id().unwrap();
        let good = json!({"shardfs": "unfinished", "version": 1, "id": id, "what": {}}).to_string();
        let is_found = || Marker::find(directory.as_fd()).unwrap().is_some();
        std::fs::write(&marker, &good).unwrap();
        assert!(is_found());
        let old = r#"{"command": "unpack", "source": "/elsewhere"}"#;
        for bad in ["", "{}", "[]", "x", old, &good.replace("unfinished", "finished")] {
            std::fs::write(&marker, bad).unwrap();
            assert!(!is_found(), "{bad}");
        }
        for (from, to) in [(":1,", ":2,"), (&*id, "12"), ("{}", "1")] {
            std::fs::write(&marker, good.replace(from, to)).unwrap();
            assert!(!is_found(), "{from} -> {to}");
        }
        // Valid contents, but the wrong kind of file.
        std::fs::write(&marker, &good).unwrap();
        std::fs::hard_link(&marker, path.path().join("other")).unwrap();
        assert!(!is_found());
        std::fs::remove_file(&marker).unwrap();
        std::os::unix::fs::symlink("other", &marker).unwrap();
        assert!(!is_found());
        std::fs::remove_file(&marker).unwrap();
        std::fs::create_dir(&marker).unwrap();
        assert!(!is_found());
    }
}
