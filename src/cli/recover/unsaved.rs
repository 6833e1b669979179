//! `shardfs recover --unsaved`: commits the changes that a mount could not commit.
//!
//! ```text
//! DIR/.source                   path of the source
//! DIR/waves/c/0/0/1             saved when it was given up, or when the mount ended
//! DIR/.level-1/waves/c/0/0/1    the same, a chunk of the first level that is itself a shard
//! DIR/.other/waves/c/0/0/x      no chunk
//! DIR/.other/.older/0/waves/c/0 older than what `recover --unsaved` has put in of the same chunk
//! DIR/.spool/7/waves/c/0/0/1    uncommitted when the process was killed, or saved before
//! DIR/.spool/8/open             was still being written
//! DIR/.spool/9/.source          DIR/.source was still being written: there is nothing else below DIR
//! ```
//!
//! The modification times of the files say what is newest of a chunk: a chunk is also saved
//! in the middle of a mount, and written to again after that.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::cli::exit::{Failure, failed, system};
use crate::cli::mounts::check_apart;
use crate::cli::open::open;
use crate::cli::open::root_of;
use crate::cli::output::say;
use crate::cli::remote::RemoteArgs;
use crate::cli::saved::unsaved_directory;
use crate::fs::{Fs, FsConfig, WriteConfig};
use crate::source::{Format, NODE_DOCUMENTS, OpenConfig};
use crate::store::local::LocalStorage;
use crate::store::remote::{Place, RemoteStorage};
use crate::store::spool::{
    Claim, OPEN_NAME, OTHER_DIRECTORY, SOURCE_NAME, SPOOL_DIRECTORY, level_directory, level_of,
    make_directories, remove_if_empty, saved_source, sync_directories_above,
};
use crate::store::storage::Storage;
use crate::text::{Line, count, shown};
use crate::tools::unsaved::Unsharded;

/// Number of chunks that are committed together at most.
const TOGETHER: usize = 4096;
/// Length of chunks that are committed together, in bytes: they are in memory until then.
const TOGETHER_BYTES: u64 = 64 << 20;

/// Directory of chunks of which something newer was put in, among the files that are no chunks.
const OLDER_DIRECTORY: &str = ".older";

/// A saved file below the directory.
struct Saved {
    /// Path of the saved file.
    file: PathBuf,
    /// Path that it had in the mount.
    path: PathBuf,
    /// Level of nested sharding of which it is a chunk; `None` for the innermost.
    level: Option<usize>,
    /// When it was written. Files of the same tick of the clock are ordered by their numbers in the
    /// spool; one outside it is older, as what was written since has just been marked as newer.
    age: (SystemTime, Option<u64>),
}

/// All that was saved of a chunk.
struct Versions {
    newest: Saved,
    older: Vec<Saved>,
}

impl Versions {
    fn count(&self) -> usize {
        1 + self.older.len()
    }
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
    check_is_none(directory)?;
    let absolute = source.canonicalize().map_err(|error| failed(source, &error))?;
    check_saved_of(directory, &absolute, force)
}

/// Returns an error if a directory is an array or a group: what is in it is removed.
pub(super) fn check_is_none(directory: &Path) -> Result<(), Failure> {
    if NODE_DOCUMENTS.iter().any(|name| directory.join(name).symlink_metadata().is_ok()) {
        let text =
            format!("{}: it is an array or a group, not what a mount has saved", shown(directory));
        return Err(Failure::System(text));
    }
    Ok(())
}

/// Returns an error without `force` unless what is in `directory` was saved of this source: an absolute path,
/// or a URL.
pub(super) fn check_saved_of(directory: &Path, source: &Path, force: bool) -> Result<(), Failure> {
    if force {
        return Ok(());
    }
    let recorded = saved_source(directory).map_err(|error| failed(directory, &error))?;
    let of = match recorded {
        Some(recorded) if recorded == source => return Ok(()),
        // The process was killed before it had anything to save.
        None if has_empty_spool(directory).map_err(|error| failed(directory, &error))? => {
            return Ok(());
        }
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
    remote: &RemoteArgs,
) -> Result<(), Failure> {
    let claim = Claim::take(directory).map_err(|error| failed(directory, &error))?;
    let Some(claim) = claim else {
        let why = "another process puts in what is there: once it has ended, this can be run again";
        return Err(failed(directory, &why));
    };
    if claim.is_in_use {
        say(format_args!(
            "{}: of a mount that is alive, which commits them itself: left alone",
            shown(&directory.join(SPOOL_DIRECTORY))
        ));
    }
    let all =
        saved_below(directory, !claim.is_in_use).map_err(|error| failed(directory, &error))?;
    let mut counts = Counts::default();
    for of_level in all.chunk_by(|one, next| one.newest.level == next.newest.level) {
        let level = of_level.first().and_then(|first| first.newest.level);
        let config = OpenConfig { format, level, ..OpenConfig::default() };
        put_level(directory, (source, remote), config, of_level, &mut counts)?;
    }
    let Counts { done, left } = counts;
    if !claim.is_in_use && left == 0 {
        claim.clear(directory).map_err(|error| failed(directory, &error))?;
    }
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

impl Counts {
    /// Says why all that was saved of a chunk stays where it is.
    fn leave(&mut self, versions: &Versions, why: &dyn std::fmt::Display) {
        self.left += versions.count();
        say(format_args!("{}: {}", shown(&versions.newest.file), Line(why)));
    }

    /// Removes the file of a chunk that is in its place as it was saved. Of the older ones only those
    /// of the same bytes go, too.
    fn put(&mut self, directory: &Path, versions: &Versions, place: &str) -> Result<(), Failure> {
        let newest = &versions.newest;
        self.done += 1;
        say(format_args!("{}: is in its {place} now", shown(&newest.path)));
        // Before the newest one is removed: it would be put in the next time.
        for older in &versions.older {
            if holds_same(&older.file, &newest.file).map_err(|error| failed(&older.file, &error))? {
                remove(directory, &older.file).map_err(|error| failed(&older.file, &error))?;
                continue;
            }
            let to = set_aside(directory, older).map_err(|error| failed(&older.file, &error))?;
            self.left += 1;
            say(format_args!(
                "{}: older than what is in its {place}; it is {} now: move it away",
                shown(&older.file),
                shown(&to)
            ));
        }
        remove(directory, &newest.file).map_err(|error| failed(&newest.file, &error))
    }
}

/// Commits saved chunks of one level.
fn put_level(
    directory: &Path,
    (source, remote): (&Path, &RemoteArgs),
    config: OpenConfig,
    all: &[Versions],
    counts: &mut Counts,
) -> Result<(), Failure> {
    let fs = open_fs(source, &config, remote)?;
    let mut others = Vec::new();
    let mut rest = all;
    while !rest.is_empty() {
        let (some, later) = rest.split_at(together(rest));
        rest = later;
        let mut staged = Vec::new();
        for versions in some {
            match stage(&fs, &versions.newest) {
                Ok(true) => staged.push(versions),
                Ok(false) => others.push(versions),
                Err(error) => counts.leave(versions, &error),
            }
        }
        let committed = fs.commit(Path::new(""));
        for versions in staged {
            match is_in_its_shard(&fs, &versions.newest) {
                true => counts.put(directory, versions, "shard")?,
                false => counts.leave(versions, &"not in its shard"),
            }
        }
        committed.map_err(|error| Failure::Found(error.to_string()))?;
    }
    // Everything is committed: this has nothing to save, and removes the journals.
    fs.end_commits();
    for (versions, put) in put_unsharded((source, remote), config, &others)? {
        match put {
            Ok(true) => counts.put(directory, versions, "array")?,
            Ok(false) if is_older(&versions.newest) => {
                counts.leave(versions, &"older than what was put in of its chunk; move it away");
            }
            Ok(false) => {
                let why = format!("is no chunk of {}; move it away", shown(source));
                counts.leave(versions, &why);
            }
            Err(error) => counts.leave(versions, &error),
        }
    }
    Ok(())
}

/// Returns how many of the first saved chunks are committed together: one at least.
fn together(all: &[Versions]) -> usize {
    let nbytes = |versions: &Versions| fs::metadata(&versions.newest.file).map_or(0, |it| it.len());
    let mut sum = 0_u64;
    let fits = |versions: &&Versions| {
        sum = sum.saturating_add(nbytes(versions));
        sum <= TOGETHER_BYTES
    };
    all.iter().take(TOGETHER).take_while(fits).count().max(1)
}

/// What was saved, and whether it is a chunk that was committed, or the error.
type Put<'a> = (&'a Versions, Result<bool, String>);

/// Commits chunks to arrays that are not sharded. Returns for each file whether it was one.
fn put_unsharded<'a>(
    (source, remote): (&Path, &RemoteArgs),
    config: OpenConfig,
    others: &[&'a Versions],
) -> Result<Vec<Put<'a>>, Failure> {
    if others.is_empty() {
        return Ok(Vec::new());
    }
    let source = open(source, config, remote)?;
    let paths: Vec<&Path> = others.iter().map(|other| other.newest.path.as_path()).collect();
    let arrays = Unsharded::above(&source, &paths);
    let put = |saved: &Saved| {
        let content = fs::read(&saved.file).map_err(|error| error.to_string())?;
        arrays.put(&saved.path, content).map_err(|error| error.to_string())
    };
    Ok(others.iter().map(|other| (*other, put(&other.newest))).collect())
}

/// Shows a source, which may be a URL, to put chunks into it.
fn open_fs(source: &Path, config: &OpenConfig, remote: &RemoteArgs) -> Result<Fs, Failure> {
    if let Ok(Place::Url(url)) = Place::of(source) {
        let storage = RemoteStorage::new(&url, &remote.options(), Arc::default());
        let storage = storage.map_err(|error| failed(source, &error))?;
        storage.check_writable().map_err(|error| failed(source, &error))?;
        return writable_fs(source, Arc::new(storage), None, config);
    }
    let absolute = source.canonicalize().map_err(|error| failed(source, &error))?;
    let (root, file) = root_of(&absolute).map_err(|error| failed(source, &error))?;
    let storage = LocalStorage::open_root(&root, Arc::default());
    let storage = Arc::new(storage.map_err(|error| failed(source, &error))?);
    writable_fs(&absolute, storage, file, config)
}

fn writable_fs(
    source: &Path,
    storage: Arc<dyn Storage>,
    file: Option<OsString>,
    config: &OpenConfig,
) -> Result<Fs, Failure> {
    let OpenConfig { format, level, .. } = *config;
    // As for a mount: what is staged there must not lie where other users could put something else.
    let (unsaved, whole) = (unsaved_directory(), source.to_owned());
    let writing = WriteConfig { unsaved, source: whole, ..WriteConfig::default() };
    let config = FsConfig { file, format, level, writable: true, writing, ..FsConfig::default() };
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

/// Returns what was saved below a directory, by level and path, in its spool only if `with_spool`.
fn saved_below(directory: &Path, with_spool: bool) -> io::Result<Vec<Versions>> {
    let mut all = Vec::new();
    let spool = directory.join(SPOOL_DIRECTORY);
    if is_directory(&spool)? && with_spool {
        for entry in fs::read_dir(&spool)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok());
            if number.is_some() && is_directory(&entry.path())? {
                collect(&entry.path(), &entry.path(), number, &mut all)?;
            }
        }
    }
    collect(directory, directory, None, &mut all)?;
    all.retain(|saved| ![OPEN_NAME, SOURCE_NAME].map(Path::new).contains(&&*saved.path));
    let mut chunks: BTreeMap<(Option<usize>, PathBuf), Vec<Saved>> = BTreeMap::new();
    for saved in all {
        chunks.entry((saved.level, saved.path.clone())).or_default().push(saved);
    }
    let versions = |mut all: Vec<Saved>| {
        all.sort_by_key(|saved| saved.age);
        all.pop().map(|newest| Versions { newest, older: all })
    };
    Ok(chunks.into_values().filter_map(versions).collect())
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

/// Returns an error if other users may replace what is in a directory: they could have this process
/// read, and remove, files that only it may. Mounts make directories in which no other user may do
/// so.
fn check_private(directory: &Path) -> io::Result<()> {
    let found = fs::metadata(directory)?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own {
        let (name, user) = (shown(directory), found.uid());
        let why = format!("{name}: it is the directory of user {user}: run this as that user");
        return Err(io::Error::other(why));
    }
    if found.mode() & 0o022 != 0 {
        let name = shown(directory);
        let why = format!("{name}: other users may write to it: chmod -R go-w, if all is yours");
        return Err(io::Error::other(why));
    }
    Ok(())
}

/// Returns whether there is a spool below a directory, and nothing that was saved.
fn has_empty_spool(directory: &Path) -> io::Result<bool> {
    Ok(is_directory(&directory.join(SPOOL_DIRECTORY))? && saved_below(directory, true)?.is_empty())
}

/// Adds the files at or below `directory`, with their paths relative to `top`, which has this number
/// in the spool.
fn collect(
    top: &Path,
    directory: &Path,
    number: Option<u64>,
    all: &mut Vec<Saved>,
) -> io::Result<()> {
    check_private(directory)?;
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (file, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() && file != top.join(SPOOL_DIRECTORY) {
            collect(top, &file, number, all)?;
        } else if kind.is_file()
            && let Ok(path) = file.strip_prefix(top)
        {
            let (level, path) = level_of(path);
            let age = (entry.metadata()?.modified()?, number);
            all.push(Saved { path: path.to_owned(), level, age, file });
        }
    }
    Ok(())
}

/// Returns whether two files hold the same bytes.
fn holds_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) =
        (BufReader::new(File::open(one)?), BufReader::new(File::open(other)?));
    loop {
        let (ours, theirs) = (one.fill_buf()?, other.fill_buf()?);
        let nbytes = ours.len().min(theirs.len());
        if nbytes == 0 || ours[..nbytes] != theirs[..nbytes] {
            return Ok(ours.is_empty() && theirs.is_empty());
        }
        one.consume(nbytes);
        other.consume(nbytes);
    }
}

/// Moves a file to where it is not put in over what is newer, durably. Returns where it is.
fn set_aside(top: &Path, saved: &Saved) -> io::Result<PathBuf> {
    let below = top.join(OTHER_DIRECTORY).join(OLDER_DIRECTORY);
    let level = saved.level.map(level_directory).unwrap_or_default();
    let mut numbers = (0_u64..).map(|number| below.join(number.to_string()));
    let free = numbers.find(|directory| directory.symlink_metadata().is_err());
    let to = free.ok_or(io::ErrorKind::AlreadyExists)?.join(level).join(&saved.path);
    to.parent().map_or(Ok(()), make_directories)?;
    fs::rename(&saved.file, &to)?;
    sync_directories_above(&to, top)?;
    remove_empty_above(top, &saved.file);
    Ok(to)
}

/// Returns whether a file was set aside before.
fn is_older(saved: &Saved) -> bool {
    saved.path.starts_with(Path::new(OTHER_DIRECTORY).join(OLDER_DIRECTORY))
}

/// Removes a file, and the directories above it that become empty, up to `top`.
fn remove(top: &Path, file: &Path) -> io::Result<()> {
    fs::remove_file(file)?;
    remove_empty_above(top, file);
    remove_if_empty(top)
}

fn remove_empty_above(top: &Path, file: &Path) {
    for above in file.ancestors().skip(1).take_while(|above| above.starts_with(top)) {
        if fs::remove_dir(above).is_err() {
            break;
        }
    }
}
