//! `shardfs umount`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::exit::Failure;
use super::message::tell;
use super::saved::{saved_files, unsaved_root};
use super::sync::{
    closed, is_closed, is_killed, killed, leftover, not_written, sync, would_be_lost,
};
use crate::fs::{IN_THE_END, TO_BE_SAVED};
use crate::mount::{self, MountError};
use crate::store::spool::SPOOL_DIRECTORY;
use crate::text::{Line, shown, word};

/// Time that a mount has to write everything before it is detached without that.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);

/// What becomes of a mount that this user may not look into.
const UNASKED: &str = "; it is unmounted: the process behind it commits what is left, and its log names what \
                       it cannot commit";

const AFTER_HELP: &str = "\
A lazy unmount makes everything durable first if that takes no longer than a few seconds. What is
written later, by those who still use the mount, it cannot know about; it says where to look.

A mount stays, with exit code 2, while its end would lose something: what can neither be committed nor be
saved, for example because both disks are full. Only --lazy unmounts it then.

Examples:
  shardfs umount /mnt/volume
  shardfs umount --lazy /mnt/volume      even if it is busy; it ends later

Exit codes: 0 unmounted, and durable as far as is said above, 1 wrong usage, 2 system error, not all
could be written, or the mount does not answer, 32 it cannot be unmounted.";

/// Unmount, and wait until everything is durable and the process behind the mount has ended
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Detach it now even if it is busy; it ends when its last user has left
    #[arg(long, short = 'l')]
    lazy: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.lazy {
        return detach(&args.mountpoint);
    }
    mount::check_answers(&args.mountpoint)?;
    let mut lost = false;
    // A mount whose process is dead must be unmounted all the same.
    let unwritten = match sync(&args.mountpoint) {
        Err(error) if is_killed(&error) => killed(&args.mountpoint)?,
        Err(error) if is_closed(&error) => closed(&args.mountpoint, UNASKED)?,
        Err(error) => Some(not_written(&args.mountpoint, &error, |waiting| {
            lost = would_be_lost(waiting);
            if lost { stays(&args.mountpoint) } else { String::new() }
        })),
        Ok(()) => None,
    };
    let leftover = leftover(&args.mountpoint);
    if lost && let Some(unwritten) = unwritten {
        return Err(unwritten);
    }
    if would_be_lost(&leftover) {
        let (path, hint) = (args.mountpoint.clone(), stays(&args.mountpoint));
        return Err(MountError::WouldBeLost { path, leftover, hint }.into());
    }
    let unsaved = mount::unsaved_of(&args.mountpoint);
    let saved =
        || unsaved.as_ref().map_or(0, |unsaved| saved_files(unsaved, Some(SPOOL_DIRECTORY)));
    let before = saved();
    let ended = mount::unmount(&args.mountpoint, |pid, name| {
        tell(format_args!(
            "{} is unmounted here, but processes in another mount namespace have it still \
             (a container, a service): process {pid} ({}), for example. What was written is durable. \
             Waiting for half a minute",
            shown(&args.mountpoint),
            Line(&name)
        ));
    });
    let known = match unwritten {
        Some(Failure::Mount(MountError::NotWritten { path, error, waiting, hint })) => {
            let waiting = in_the_past(&waiting);
            Err(MountError::NotWritten { path, error, waiting, hint }.into())
        }
        Some(unwritten) => Err(unwritten),
        None if leftover.is_empty() => match &unsaved {
            Some(unsaved) if saved() > before => Err(saved_late(&args.mountpoint, unsaved)),
            _ => Ok(()),
        },
        None => {
            let (path, leftover) = (args.mountpoint.clone(), in_the_past(&leftover));
            Err(MountError::Leftover { path, leftover }.into())
        }
    };
    match (ended, known) {
        (Ok(()), known) => known,
        // It is unmounted, so nothing else lists what is left out.
        (Err(error @ MountError::Ending(_)), Err(known)) => {
            known.report();
            Err(error.into())
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Returns the error of a mount that was written to after it was synced, and has saved in the end
/// what it could not commit.
fn saved_late(mountpoint: &Path, saved: &Path) -> Failure {
    let leftover = format!(
        "what was written last could not be committed; it is saved below {}: \
         `shardfs recover --unsaved {} SOURCE` puts it in\n",
        shown(saved),
        word(saved)
    );
    MountError::Leftover { path: mountpoint.to_owned(), leftover }.into()
}

/// Returns a list of what the end of a mount would leave out of the source, once it has ended.
fn in_the_past(list: &str) -> String {
    let line = |line: &str| match line.rsplit_once(TO_BE_SAVED) {
        // There was room for it when that was asked.
        Some((what, to)) if is_missing(to.strip_prefix(' ').unwrap_or(to)) => {
            format!(
                "{what}it is lost, it could not be saved as{to} (the log of the mount says why)"
            )
        }
        Some((what, to)) => format!("{what}it is saved as{to}"),
        None => line.replace(IN_THE_END, "what could not be committed"),
    };
    list.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Returns whether there is certainly no file at a path that is shown so.
fn is_missing(path: &str) -> bool {
    let found = Path::new(path).symlink_metadata();
    // A path with unusual characters is shown quoted.
    path.starts_with('/')
        && !path.contains('\\')
        && found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Returns advice for a mount whose end would lose what was written.
fn stays(mountpoint: &Path) -> String {
    let name = word(mountpoint);
    format!(
        "\nso it stays mounted: make room in the source or where it would be saved, then `shardfs umount {name}` \
         again; `shardfs umount --lazy {name}` detaches it all the same"
    )
}

/// Detaches a mount. What is written through it until its last user leaves cannot be known, so a
/// writable one is synced first, and a note says how the rest can be found out.
fn detach(mountpoint: &Path) -> Result<(), Failure> {
    if !mount::is_writable(mountpoint)? {
        return Ok(mount::detach(mountpoint, false).map(drop)?);
    }
    // The mount may hang: only a process that can be left behind sends it requests.
    let command = [OsStr::new("sync"), OsStr::new("--"), mountpoint.as_os_str()];
    let synced = mount::run_within(SYNC_PATIENCE, &command);
    let unwritten = match synced {
        Some(false) => {
            // An error that was given up is reported once.
            let given_up = || io::Error::from_raw_os_error(libc::ESTALE);
            let error = sync(mountpoint).err().unwrap_or_else(given_up);
            match &error {
                error if is_killed(error) => killed(mountpoint)?,
                _ if is_closed(&error) => closed(mountpoint, UNASKED)?,
                _ => {
                    let hint = |waiting: &str| match would_be_lost(waiting) {
                        true => "\nit is detached all the same".to_owned(),
                        false => format!("\nit is detached all the same; {}", later()),
                    };
                    Some(not_written(mountpoint, &error, hint))
                }
            }
        }
        _ => None,
    };
    let has_ended = mount::detach(mountpoint, synced.is_some())?;
    if let Some(unwritten) = unwritten {
        return Err(unwritten);
    }
    if !has_ended {
        let so_far = match synced {
            Some(_) => "what was written so far is durable",
            None => "it did not answer, so whether all was written is not known",
        };
        tell(format_args!("note: {} is detached; {so_far}; {}", shown(mountpoint), later()));
    }
    Ok(())
}

/// Returns how to find out what a process that goes on after its mount was detached cannot commit.
fn later() -> String {
    format!(
        "the process behind it goes on until its last user has left, and commits what is written until \
         then: what it cannot commit is named in its log (journalctl -t shardfs, or the file of \
         --log-file) and saved below {}; `shardfs recover SOURCE` names it as well",
        shown(&unsaved_root())
    )
}
