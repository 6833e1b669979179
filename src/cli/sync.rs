//! `shardfs sync`, which `shardfs umount` does first as well.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::exit::Failure;
use super::message::tell;
use super::saved::unsaved_root;
use crate::fs::{IN_THE_END, LEFTOVER_PATH, LOG_PATH, LOST_IN_THE_END, WAITING_PATH};
use crate::mount::{self, MountError};
use crate::text::{Lines, count, shown, word};

const AFTER_HELP: &str = "\
Examples:
  cp better-chunk /mnt/volume/c/0/0/17 && shardfs sync /mnt/volume

Exit codes: 0 everything is durable, 1 wrong usage, 2 system error, not all could be written, or the
mount does not answer, 32 it is no mount of shardfs.";

/// Return once everything that was written through a mount, and closed, is durable in its shards
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    mount::check_answers(&args.mountpoint)?;
    match sync(&args.mountpoint) {
        Ok(()) => {
            let leftover = leftover(&args.mountpoint);
            if !leftover.is_empty() {
                tell(format_args!("note: {}", Lines(&leftover)));
            }
            Ok(())
        }
        Err(error) if is_killed(&error) => killed(&args.mountpoint)?.map_or(Ok(()), Err),
        Err(error) if is_closed(&error) => {
            closed(&args.mountpoint, "; only that user can make it durable")?.map_or(Ok(()), Err)
        }
        Err(error) => Err(not_written(&args.mountpoint, &error, |it| hint(&args.mountpoint, it))),
    }
}

/// Returns the error of a mount whose process has ended before it; none if it was read-only, which
/// loses nothing.
pub(super) fn killed(mountpoint: &Path) -> Result<Option<Failure>, MountError> {
    let killed = || MountError::killed(mountpoint, unsaved_root());
    Ok(mount::is_writable(mountpoint)?.then(|| killed().into()))
}

/// Returns whether the error of a sync says that the process of the mount has ended: before it was asked
/// (ENOTCONN), or before it has answered.
pub(super) fn is_killed(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Returns whether the error of a sync says that this user may not look into the mount.
pub(super) fn is_closed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EACCES)
}

/// Returns the error of a mount that this user may not look into; none if it is read-only, and so has
/// nothing to write.
pub(super) fn closed(mountpoint: &Path, hint: &str) -> Result<Option<Failure>, MountError> {
    let closed = || MountError::Closed { path: mountpoint.to_owned(), hint: hint.to_owned() };
    Ok(mount::is_writable(mountpoint)?.then(|| closed().into()))
}

/// Makes a mount commit its uncommitted changes. A read-only mount has nothing to do.
pub(super) fn sync(mountpoint: &Path) -> io::Result<()> {
    File::open(mountpoint)?.sync_all()
}

/// Returns what the end of a mount will leave out of its source, a line each; nothing if that may
/// not be known to this user.
pub(super) fn leftover(mountpoint: &Path) -> String {
    shortened(&std::fs::read_to_string(mountpoint.join(LEFTOVER_PATH)).unwrap_or_default())
}

/// Maximum number of changes that a message lists.
const MOST_LISTED: usize = 10;

/// Returns the beginning of a list of changes and the number of the others, with the last line, which
/// says what becomes of them.
fn shortened(list: &str) -> String {
    let is_change = |line: &&str| !line.starts_with(IN_THE_END);
    let (mut changes, ends): (Vec<&str>, Vec<&str>) = list.lines().partition(is_change);
    let more = changes.len().saturating_sub(MOST_LISTED);
    let more = (more > 0).then(|| format!("and {}", count(more, "other change")));
    changes.truncate(MOST_LISTED);
    changes.into_iter().chain(more.as_deref()).chain(ends).collect::<Vec<_>>().join("\n")
}

/// Returns an error that lists what could not be written, with advice that `hint` makes of the list.
pub(super) fn not_written(
    mountpoint: &Path,
    error: &io::Error,
    hint: impl FnOnce(&str) -> String,
) -> Failure {
    // Read once: what was given up is listed until it was read. It may not be known to this user.
    let waiting = std::fs::read_to_string(mountpoint.join(WAITING_PATH)).unwrap_or_default();
    let error = MountError::NotWritten {
        path: mountpoint.to_owned(),
        error: io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)),
        hint: hint(&waiting),
        waiting: shortened(&waiting),
    };
    Failure::Mount(error)
}

/// Returns whether a list of what could not be written says that the end of the mount would lose it.
pub(super) fn would_be_lost(list: &str) -> bool {
    list.lines().any(|line| line.starts_with(LOST_IN_THE_END))
}

/// Advice where nothing is tried again.
const GIVEN_UP: &str = "\nwhat was given up is not tried again: compare what others have written with \
                        what is saved, then `shardfs recover --unsaved DIR SOURCE` puts that in";

/// Returns whether all changes in a list of those that wait were given up.
fn is_given_up(waiting: &str) -> bool {
    let mut changes = waiting.lines().filter(|line| !line.starts_with(IN_THE_END));
    waiting.contains(": given up: ") && changes.all(|line| line.contains(": given up: "))
}

/// Returns advice for a mount that stays, in which `waiting` is what could not be written.
pub(super) fn hint(mountpoint: &Path, waiting: &str) -> String {
    if is_given_up(waiting) {
        return GIVEN_UP.to_owned();
    }
    let [waiting, log] = [WAITING_PATH, LOG_PATH].map(|name| mountpoint.join(name));
    format!(
        "\nwhat waits is tried again at every commit interval; {} lists it, the reasons are in {}: put right what \
         they name, then `shardfs sync {}` again",
        shown(&waiting),
        shown(&log),
        word(mountpoint)
    )
}
