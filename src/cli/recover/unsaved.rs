//! `shardfs recover --unsaved`: commits the changes that a mount could not commit.
//!
//! ```text
//! DIR/.source                   path of the source
//! DIR/waves/c/0/0/1             saved when the mount ended
//! DIR/.level-1/waves/c/0/0/1    the same, a chunk of the first level that is itself a shard
//! DIR/.other/waves/c/0/0/x      no chunk
//! DIR/.spool/7/waves/c/0/0/1    uncommitted when the process was killed; highest is newest
//! DIR/.spool/8/open             was still being written
//! ```

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::exit::{Failure, system};
use crate::cli::mount::root_of;
use crate::cli::mounts::check_apart;
use crate::cli::open::open;
use crate::cli::output::say;
use crate::fs::{Fs, FsConfig};
use crate::source::{Format, NODE_DOCUMENTS, OpenConfig};
use crate::store::local::LocalStorage;
use crate::store::spool::{
    OPEN_NAME, SOURCE_NAME, SPOOL_DIRECTORY, level_of, remove_if_empty, saved_source,
};
use crate::text::{Line, count, shown};
use crate::tools::unsaved::Unsharded;

/// Number of chunks that are committed together.
const TOGETHER: usize = 4096;

/// A saved file below the directory.
struct Saved {
    /// Path of the saved file.
    file: PathBuf,
    /// Path that it had in the mount.
    path: PathBuf,
    /// Level of nested sharding of which it is a chunk; `None` for the innermost.
    level: Option<usize>,
}

/// Returns an error if there is no directory of that name.
pub(super) fn check_directory(directory: &Path) -> Result<(), Failure> {
    let why = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => "it is not a directory: name the one in which a mount has saved chunks".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            "there is no such directory: the log \
            of a mount, and `shardfs recover SOURCE`, name the one in which it has saved chunks; \
            once all of them are put in, it is gone"
                .to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(failed(directory, &why))
}

/// Returns an error if `directory` cannot be one in which a mount has saved something, since what is
/// in it is removed; and without `force` unless that was saved of `source`.
pub(super) fn check_source(directory: &Path, source: &Path, force: bool) -> Result<(), Failure> {
    check_apart(source, directory)?;
    if NODE_DOCUMENTS.iter().any(|name| directory.join(name).symlink_metadata().is_ok()) {
        let text =
            format!("{}: it is an array or a group, not what a mount has saved", shown(directory));
        return Err(Failure::System(text));
    }
    if force {
        return Ok(());
    }
    let absolute = source.canonicalize().map_err(|error| failed(source, &error))?;
    let recorded = saved_source(directory).map_err(|error| failed(directory, &error))?;
    let of = match recorded {
        Some(recorded) if recorded == absolute => return Ok(()),
        Some(recorded) => format!("it was saved of {}", shown(&recorded)),
        None => format!("it has no {SOURCE_NAME} that says of what it was saved"),
    };
    Err(Failure::System(format!(
        "{}: {of}; --force puts it into {} all the same",
        shown(directory),
        shown(source)
    )))
}

/// Commits every chunk saved below `directory` to `source`, and removes the files of those that are
/// durable there.
pub(super) fn put_in(
    directory: &Path,
    source: &Path,
    format: Option<Format>,
) -> Result<(), Failure> {
    let all = saved_below(directory).map_err(|error| failed(directory, &error))?;
    let levels: BTreeSet<Option<usize>> = all.iter().map(|saved| saved.level).collect();
    let mut counts = Counts::default();
    for level in levels {
        let of_level: Vec<&Saved> = all.iter().filter(|saved| saved.level == level).collect();
        put_level(
            directory,
            source,
            OpenConfig { format, level, ..OpenConfig::default() },
            &of_level,
            &mut counts,
        )?;
    }
    let Counts { done, left } = counts;
    say(format_args!("{} put in, {} left", count(done, "chunk"), count(left, "file")));
    match left {
        0 => Ok(()),
        left => {
            Err(Failure::Found(format!("{} still below {}", count(left, "file"), shown(directory))))
        }
    }
}

/// Numbers of saved files that were put in, and of those that were not.
#[derive(Default)]
struct Counts {
    done: usize,
    left: usize,
}

/// Commits saved chunks of one level.
fn put_level(
    directory: &Path,
    source: &Path,
    config: OpenConfig,
    all: &[&Saved],
    Counts { done, left }: &mut Counts,
) -> Result<(), Failure> {
    let fs = open_fs(source, &config)?;
    let mut others = Vec::new();
    for some in all.chunks(TOGETHER) {
        let mut staged = Vec::new();
        for &saved in some {
            match stage(&fs, saved) {
                Ok(true) => staged.push(saved),
                Ok(false) => others.push(saved),
                Err(error) => {
                    *left += 1;
                    say(format_args!("{}: {}", shown(&saved.file), Line(error)));
                }
            }
        }
        let committed = fs.commit(Path::new(""));
        // Of several that were saved of a chunk, the last one was staged over the others.
        let newest: HashMap<&Path, &Saved> =
            staged.iter().map(|saved| (saved.path.as_path(), *saved)).collect();
        for saved in staged {
            if !newest.get(&*saved.path).is_some_and(|newest| is_in_its_shard(&fs, newest)) {
                *left += 1;
                say(format_args!("{}: not in its shard", shown(&saved.file)));
                continue;
            }
            *done += 1;
            say(format_args!("{}: is in its shard now", shown(&saved.path)));
            remove(directory, &saved.file).map_err(|error| failed(&saved.file, &error))?;
        }
        committed.map_err(|error| Failure::Found(error.to_string()))?;
    }
    // Everything is committed: this has nothing to save, and removes the journals.
    fs.end_commits();
    for (saved, put) in put_unsharded(source, config, &others)? {
        match put {
            Ok(true) => {
                *done += 1;
                say(format_args!("{}: is in its array now", shown(&saved.path)));
                remove(directory, &saved.file).map_err(|error| failed(&saved.file, &error))?;
            }
            Ok(false) => {
                *left += 1;
                say(format_args!(
                    "{}: is no chunk of {}; move it away",
                    shown(&saved.file),
                    shown(source)
                ));
            }
            Err(error) => {
                *left += 1;
                say(format_args!("{}: {}", shown(&saved.file), Line(error)));
            }
        }
    }
    Ok(())
}

/// A saved file, and whether it is a chunk that was committed, or the error.
type Put<'a> = (&'a Saved, Result<bool, String>);

/// Commits chunks to arrays that are not sharded. Returns for each file whether it was one.
fn put_unsharded<'a>(
    source: &Path,
    config: OpenConfig,
    others: &[&'a Saved],
) -> Result<Vec<Put<'a>>, Failure> {
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let source = open(source, config)?;
    let paths: Vec<&Path> = others.iter().map(|saved| saved.path.as_path()).collect();
    let arrays = Unsharded::above(&source, &paths);
    let put = |saved: &Saved| {
        let content = fs::read(&saved.file).map_err(|error| error.to_string())?;
        arrays.put(&saved.path, content).map_err(|error| error.to_string())
    };
    Ok(others.iter().map(|saved| (*saved, put(saved))).collect())
}

fn open_fs(source: &Path, config: &OpenConfig) -> Result<Fs, Failure> {
    let absolute = source.canonicalize().map_err(|error| failed(source, &error))?;
    let (root, file) = root_of(&absolute).map_err(|error| failed(source, &error))?;
    let storage = LocalStorage::open_root(&root, Arc::default());
    let storage = Arc::new(storage.map_err(|error| failed(source, &error))?);
    let OpenConfig { format, level, .. } = *config;
    let config = FsConfig { file, format, level, writable: true, ..FsConfig::default() };
    Fs::new(storage, config, Arc::default()).map_err(|error| failed(source, &error))
}

fn stage(fs: &Fs, saved: &Saved) -> Result<bool, Failure> {
    let mut file = File::open(&saved.file).map_err(|error| failed(&saved.file, &error))?;
    let staged = fs.put_saved(&saved.path, &mut file);
    staged.map_err(|error| Failure::Found(error.to_string()))
}

/// Returns whether a saved chunk is in its shard as it was saved: only then may the file go.
fn is_in_its_shard(fs: &Fs, saved: &Saved) -> bool {
    let held = File::open(&saved.file)
        .map_err(|error| failed(&saved.file, &error))
        .and_then(|mut file| fs.holds_saved(&saved.path, &mut file).map_err(system));
    held.unwrap_or_else(|error| {
        say(format_args!("{}: {}", shown(&saved.file), Line(error)));
        false
    })
}

/// Returns the files below a directory, in the order in which they were written.
fn saved_below(directory: &Path) -> io::Result<Vec<Saved>> {
    let mut all = Vec::new();
    let spool = directory.join(SPOOL_DIRECTORY);
    let mut numbers = Vec::new();
    if is_directory(&spool)? {
        for entry in fs::read_dir(&spool)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if let Some(number) = number
                && is_directory(&entry.path())?
            {
                numbers.push(number);
            }
        }
    }
    numbers.sort_unstable();
    for number in numbers {
        let top = spool.join(number.to_string());
        collect(&top, &top, &mut all)?;
    }
    // Files saved at the end are newer than everything in the spool.
    collect(directory, directory, &mut all)?;
    all.retain(|saved| ![OPEN_NAME, SOURCE_NAME].map(Path::new).contains(&&*saved.path));
    Ok(all)
}

/// Returns whether a directory of the spool exists; an error if there is something else. Committed
/// files are removed, so nothing behind a symbolic link may be used.
fn is_directory(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(true),
        Ok(_) => Err(io::Error::other(format!("{} is no directory; move it away", shown(path)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds the files at or below `directory`, with their paths relative to `top`.
fn collect(top: &Path, directory: &Path, all: &mut Vec<Saved>) -> io::Result<()> {
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (file, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() && file != top.join(SPOOL_DIRECTORY) {
            collect(top, &file, all)?;
        } else if kind.is_file()
            && let Ok(path) = file.strip_prefix(top)
        {
            let (level, path) = level_of(path);
            all.push(Saved { path: path.to_owned(), level, file });
        }
    }
    Ok(())
}

/// Removes a file, and the directories above it that become empty, up to `top`.
fn remove(top: &Path, file: &Path) -> io::Result<()> {
    fs::remove_file(file)?;
    for above in file.ancestors().skip(1).take_while(|above| above.starts_with(top)) {
        if fs::remove_dir(above).is_err() {
            break;
        }
    }
    remove_if_empty(top)
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::System(format!("{}: {error}", shown(path)))
}
