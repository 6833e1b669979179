//! `shardfs umount`.

use std::path::PathBuf;

use super::exit::Failure;
use super::message::tell;
use super::sync::{killed, leftover, not_written, sync};
use crate::mount::{self, MountError};
use crate::text::{Line, shown};

const AFTER_HELP: &str = "\
Examples:
  shardfs umount /mnt/volume
  shardfs umount --lazy /mnt/volume      even if it is busy; it ends later

Exit codes: 0 unmounted and durable, 1 wrong usage, 2 system error, or not all could be written,
32 it cannot be unmounted.";

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
    let check = if args.lazy { mount::check_mounted } else { mount::check_answers };
    check(&args.mountpoint)?;
    // A mount whose process is dead or hangs must be unmounted all the same.
    let unwritten = match args.lazy {
        true => None,
        false => match sync(&args.mountpoint) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => killed(&args.mountpoint)?,
            Err(error) => Some(not_written(&args.mountpoint, &error, false)),
            Ok(()) => None,
        },
    };
    let leftover = if args.lazy { String::new() } else { leftover(&args.mountpoint) };
    mount::unmount(&args.mountpoint, args.lazy, |pid, name| {
        tell(format_args!(
            "{} is unmounted here, but processes in another mount namespace have it still \
             (a container, a service): process {pid} ({}), for example. What was written is durable. \
             Waiting for half a minute",
            shown(&args.mountpoint),
            Line(&name)
        ));
    })?;
    match unwritten {
        Some(unwritten) => Err(unwritten),
        None if leftover.is_empty() => Ok(()),
        None => Err(MountError::Leftover { path: args.mountpoint.clone(), leftover }.into()),
    }
}
