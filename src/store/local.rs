//! The source on a local or mounted filesystem.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom};

use super::storage::{DirItem, FileKind, Space, Stat, Storage, StorageFile, Timestamp, Visit};
use crate::stats::Stats;

/// Directory entries are read in pieces of this size.
const LIST_BUFFER_BYTES: usize = 64 << 10;

/// A directory of the local machine. Every path is resolved beneath it: the kernel refuses
/// symbolic links that lead out.
pub struct LocalStorage {
    root: OwnedFd,
    stats: Arc<Stats>,
}

impl LocalStorage {
    /// Opens the directory `root`.
    pub fn open_root(root: &Path, stats: Arc<Stats>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(root, flags, Mode::empty())?;
        Ok(Self { root, stats })
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }

    fn stat_with(&self, path: &Path, flags: OFlags) -> io::Result<Stat> {
        self.stats.source.stat.count();
        stat_of(&self.open_beneath(path, flags | OFlags::PATH)?)
    }
}

impl Storage for LocalStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.stats.source.open.count();
        // A named pipe in a shard's place must not block the mount.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_beneath(path, flags)?;
        Ok(Arc::new(LocalFile { file, stats: Arc::clone(&self.stats) }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.stat_with(path, OFlags::empty())
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.stat_with(path, OFlags::NOFOLLOW)
    }

    /// One system call. It may follow links out of the source, but a file that was once opened
    /// within the source is the same file wherever it is found.
    fn is_unchanged(&self, path: &Path, known: &Stat) -> bool {
        self.stats.source.stat.count();
        let stat = fs::statat(&self.root, path, AtFlags::empty());
        stat.is_ok_and(|stat| from_raw(&stat).unchanged(known))
    }

    fn read_link(&self, path: &Path) -> io::Result<OsString> {
        let link = self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let target = fs::readlinkat(&link, c"", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        self.stats.source.list.count();
        let directory = self.open_beneath(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if from != 0 {
            fs::seek(&directory, SeekFrom::Start(from))?;
        }
        let mut buffer = vec![MaybeUninit::uninit(); LIST_BUFFER_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let item =
                DirItem { name, kind: kind_of(entry.file_type()), next: entry.next_entry_cookie() };
            if visit(item) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let space = fs::fstatvfs(&self.root)?;
        Ok(Space {
            block_size: u32::try_from(space.f_frsize).unwrap_or(4096),
            blocks: space.f_blocks,
            free: space.f_bfree,
            available: space.f_bavail,
            files: space.f_files,
            free_files: space.f_ffree,
        })
    }
}

struct LocalFile {
    file: OwnedFd,
    stats: Arc<Stats>,
}

impl StorageFile for LocalFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(rustix::io::Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        self.stats.source.read.count();
        self.stats.source.read_bytes.add(filled as u64);
        Ok(filled)
    }

    fn stat(&self) -> io::Result<Stat> {
        stat_of(&self.file)
    }
}

fn stat_of(file: &OwnedFd) -> io::Result<Stat> {
    Ok(from_raw(&fs::fstat(file)?))
}

fn from_raw(stat: &fs::Stat) -> Stat {
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    Stat {
        dev: stat.st_dev,
        ino: stat.st_ino,
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::File),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn kind_of(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> (tempfile::TempDir, LocalStorage) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("source")).unwrap();
        std::fs::write(directory.path().join("outside"), b"secret").unwrap();
        std::fs::write(directory.path().join("source/file"), b"content").unwrap();
        std::os::unix::fs::symlink("../outside", directory.path().join("source/out")).unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("source/in")).unwrap();
        let storage = LocalStorage::open_root(&directory.path().join("source"), Arc::default());
        (directory, storage.unwrap())
    }

    #[test]
    fn links_that_stay_within_are_followed_and_others_are_refused() {
        let (_directory, storage) = storage();
        let mut buffer = [0; 9];
        let file = storage.open(Path::new("in")).unwrap();
        assert_eq!(file.read_at(&mut buffer, 3).unwrap(), 4);
        assert_eq!(&buffer[..4], b"tent");
        for path in ["out", "../outside", "/etc/passwd"] {
            let error = storage.open(Path::new(path)).err().unwrap();
            assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{path}");
        }
        assert_eq!(storage.lstat(Path::new("out")).unwrap().kind, FileKind::Symlink);
        assert_eq!(storage.read_link(Path::new("out")).unwrap(), "../outside");
    }

    #[test]
    fn a_listing_goes_on_where_it_stopped() {
        let (_directory, storage) = storage();
        let (mut names, mut from) = (Vec::new(), 0);
        for _ in 0..3 {
            storage
                .list(Path::new(""), from, &mut |item| {
                    names.push(item.name.to_owned());
                    from = item.next;
                    ControlFlow::Break(())
                })
                .unwrap();
        }
        names.sort();
        assert_eq!(names, ["file", "in", "out"]);
    }
}
