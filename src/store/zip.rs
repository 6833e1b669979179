//! ZIP archives as places of arrays, which are read alone.
//!
//! ```text
//! archive  | entry | entry | ... | central directory: name, method, lengths, place of each | end |
//!
//! entry    | header | bytes: stored, a range of the file that is read as any other
//!                   |        deflated, decoded into memory when it is opened
//! ```
//!
//! The names of the central directory are kept in order, so what is in a directory is a run of them. Of entries of one
//! name the last one counts, as for programs that unpack them one after the other.

mod entry;
mod names;
mod reader;

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rawzip::{RECOMMENDED_BUFFER_SIZE, ZipArchive};

use self::entry::{Entry, Method, is_same};
use self::names::{Found, Names};
pub use self::reader::ZipError;
use self::reader::{MAX_ENTRIES, Reader};
use super::storage::{DirItem, FileKind, Stat, Storage, StorageFile, Visit};
use crate::text::shown;

/// Bytes at the end of a file in which the end of an archive is looked for: a comment may follow it.
const SEARCHED: u64 = (1 << 16) + 1024;

/// Entries that are named of those that are not shown.
const MOST_NOTES: usize = 100;

/// Extensions of archives, where the first bytes do not say what a file is.
const EXTENSIONS: [&str; 2] = ["zip", "ozx"];

/// The files in an archive.
pub struct ZipStorage {
    archive: ZipArchive<Reader>,
    names: Names<Entry>,
    /// Attributes of the archive when it was opened.
    stat: Stat,
    /// What is to be said of it, as soon as something is looked for in it: of a mount the log is elsewhere before.
    notes: Mutex<Vec<String>>,
    /// `true` once it was said that it is another one by now.
    has_said: AtomicBool,
}

impl ZipStorage {
    /// Returns whether a file is an archive, or is meant to be one, by its name and its first bytes.
    pub fn is_archive(path: &Path, head: &[u8]) -> bool {
        let extension = path.extension().unwrap_or_default();
        head.starts_with(b"PK\x03\x04")
            || head.starts_with(b"PK\x05\x06")
            || EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
    }

    /// Opens the archive that a file of a storage is. `None` if it is none.
    pub fn find(storage: &dyn Storage, path: &Path) -> io::Result<Option<Self>> {
        let file = storage.open(path)?;
        let mut head = [0; 4];
        let read = file.read_at(&mut head, 0)?;
        if !Self::is_archive(path, &head[..read]) {
            return Ok(None);
        }
        Ok(Some(Self::open(file)?))
    }

    /// Opens an archive.
    pub fn open(file: Arc<dyn StorageFile>) -> Result<Self, ZipError> {
        let stat = file.stat()?;
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let located = ZipArchive::with_max_search_space(SEARCHED).locate_in_reader(
            Reader(Arc::clone(&file)),
            &mut buffer,
            stat.size,
        );
        let archive = located.map_err(|(_, error)| error)?;
        if archive.entries_hint() > MAX_ENTRIES {
            return Err(ZipError::TooMany(archive.entries_hint()));
        }
        let (names, notes) = Self::names(&archive)?;
        let (notes, has_said) = (Mutex::new(notes), AtomicBool::default());
        Ok(Self { archive, names, stat, notes, has_said })
    }

    /// Reads the central directory: all names, and what is to be said of those that are not shown.
    fn names(archive: &ZipArchive<Reader>) -> Result<(Names<Entry>, Vec<String>), ZipError> {
        let mut notes = Vec::new();
        let shown = |name: &[u8]| shown(Path::new(OsStr::from_bytes(name))).to_string();
        let mut buffer = vec![0; rawzip::MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
        let (mut names, mut number) = (Names::default(), 0);
        let mut entries = archive.entries(&mut buffer);
        while let Some(record) = entries.next_entry()? {
            number += 1;
            if number > MAX_ENTRIES {
                return Err(ZipError::TooMany(number));
            }
            if record.mode().is_symlink() {
                let name = shown(record.file_path().as_bytes());
                notes.push(format!("entry {name}: it is a symbolic link, and is not shown"));
                continue;
            }
            let entry = Entry {
                method: Method::of(record.compression_method(), record.flags()),
                checksum: record.crc32(),
                way: record.wayfinder(),
            };
            let name = record.file_path();
            // Of a name that is longer than any its beginning will do.
            let lossy =
                || String::from_utf8_lossy(name.as_bytes()).chars().take(200).collect::<String>();
            names
                .add(name.as_bytes(), entry)
                .map_err(|names::LeadsOut| ZipError::LeadsOut(lossy()))?;
        }
        // Without zip64 only the lower bits are there.
        let expected = archive.entries_hint();
        if number & 0xffff != expected & 0xffff {
            return Err(ZipError::Count { found: number, expected });
        }
        for name in names.settle() {
            let name = shown(&name);
            notes.push(format!(
                "entry {name}: another one has its name, or is a directory of it: it is not shown"
            ));
        }
        let others = notes.len().saturating_sub(MOST_NOTES);
        if others > 0 {
            notes.truncate(MOST_NOTES);
            notes.push(format!("{others} more entries are not shown"));
        }
        Ok((names, notes))
    }

    /// Checks that the archive is the one that was opened.
    fn check(&self) -> io::Result<()> {
        if is_same(&self.archive.get_ref().0.stat()?, &self.stat) {
            return Ok(());
        }
        if !self.has_said.swap(true, Ordering::Relaxed) {
            log::error!(
                "the archive has changed since it was opened: nothing more is read from it until it is opened again"
            );
        }
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn named(&self, path: &Path) -> io::Result<Found<'_, Entry>> {
        self.check()?;
        for note in std::mem::take(&mut *self.notes.lock()) {
            log::warn!("{note}");
        }
        let found = self.names.find(path.as_os_str().as_bytes());
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn attributes(&self, path: &Path, found: &Found<'_, Entry>) -> Stat {
        let mut hasher = DefaultHasher::new();
        (self.stat.ino, path.as_os_str().as_bytes()).hash(&mut hasher);
        let ino = hasher.finish();
        let readable = self.stat.mode & 0o444;
        let (kind, size, mode) = match found {
            Found::Directory(_) => (FileKind::Directory, 0, readable | readable >> 2),
            Found::File(entry) => (FileKind::File, entry.way.uncompressed_size_hint(), readable),
        };
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        Stat { ino, kind, size, mode, links, ..self.stat }
    }
}

impl Storage for ZipStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let found = self.named(path)?;
        let stat = self.attributes(path, &found);
        match found {
            Found::Directory(_) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
            Found::File(entry) => entry
                .open(&self.archive, &self.stat, (path.as_os_str().as_bytes(), stat))
                .inspect_err(|error| {
                    log::error!("{}: it cannot be read from its archive: {error}", shown(path));
                }),
        }
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(self.attributes(path, &self.named(path)?))
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        let Found::Directory(directory) = self.named(path)? else {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        };
        self.names.list(directory, from, &mut |name, is_directory, next| {
            let kind = if is_directory { FileKind::Directory } else { FileKind::File };
            visit(DirItem { name: OsStr::from_bytes(name), kind: Some(kind), next })
        });
        Ok(())
    }
}
