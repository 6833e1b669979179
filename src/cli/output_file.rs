//! Files that a command writes its result to, at a path that the user gives.
//!
//! A regular file appears complete, under a name of its own until then. Devices and pipes are
//! written to as they are: a file in the place of `/dev/null` would be an accident.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::exit::Failure;
use super::mounts::check_apart;
use crate::text::shown;

/// Name of an output file that stands for stdout.
pub(super) const STDOUT: &str = "-";
/// Another such name. What a shell has redirected stdout to has a path of its own, which exists.
const STDOUT_DEVICE: &str = "/dev/stdout";

/// Where a result is written.
#[derive(Debug)]
pub(super) enum Target {
    /// Standard output.
    Stdout,
    /// A character device or a named pipe, which is written to as it is.
    Stream(PathBuf),
    /// A regular file, which is replaced if it exists.
    File(PathBuf),
}

impl Target {
    /// Examines what is at a path. A regular file that exists is refused without `force`; one that
    /// is in the source, or would be, always: among shards it would be a damaged one. Of a symbolic
    /// link the file that it leads to is meant.
    pub(super) fn find(path: &Path, source: &Path, force: bool) -> Result<Self, Failure> {
        let refused = |why: &str| Failure::System(format!("{}: {why}", shown(path)));
        if [STDOUT, STDOUT_DEVICE].iter().any(|name| path == Path::new(name)) {
            return Ok(Self::Stdout);
        }
        let kind = match path.metadata() {
            Ok(found) => found.file_type(),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(path, &error));
            }
            Err(_) if path.is_symlink() => {
                return Err(refused("it is a symbolic link that leads nowhere"));
            }
            Err(_) => {
                check_apart(source, path)?;
                return Ok(Self::File(path.to_owned()));
            }
        };
        if kind.is_char_device() || kind.is_fifo() {
            return Ok(Self::Stream(path.to_owned()));
        }
        if !kind.is_file() {
            let what = match kind {
                kind if kind.is_dir() => "a directory",
                kind if kind.is_socket() => "a socket",
                _ => "a block device",
            };
            return Err(refused(&format!("it is {what}: give the name of a file")));
        }
        if !force {
            return Err(exists(path));
        }
        check_apart(source, path)?;
        Ok(Self::File(path.canonicalize().map_err(|error| cannot(path, &error))?))
    }

    /// Opens what is written to as it is; `None` for a regular file.
    pub(super) fn stream(&self) -> Result<Option<File>, Failure> {
        let opened = match self {
            Self::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Self::Stream(path) => {
                OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(path)
            }
            Self::File(_) => return Ok(None),
        };
        opened.map(Some).map_err(|error| cannot(self.path(), &error))
    }

    /// Returns the path, which messages name.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Stdout => Path::new("standard output"),
            Self::Stream(path) | Self::File(path) => path,
        }
    }
}

/// Creates the file that takes the name `path` once it is complete. It is removed when it is dropped.
pub(super) fn draft(path: &Path) -> Result<NamedTempFile, Failure> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix(".shardfs-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
        .map_err(|error| cannot(path, &error))
}

/// Gives a complete file its name.
pub(super) fn publish(draft: NamedTempFile, path: &Path, force: bool) -> Result<(), Failure> {
    draft.as_file().sync_all().map_err(|error| cannot(path, &error))?;
    let persisted = match force {
        // What has appeared there meanwhile is replaced only if it is a regular file.
        true if fs::symlink_metadata(path).map_or(true, |found| found.is_file()) => {
            draft.persist(path)
        }
        _ => draft.persist_noclobber(path),
    };
    match persisted {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(path)),
        Err(error) => Err(cannot(path, &error.error)),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::System(format!("{}: it exists; --force replaces it", shown(path)))
}

/// Makes the failure of a system call on an output file.
pub(super) fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::System(format!("{}: {error}", shown(path)))
}
