//! `shardfs umount`.

use std::path::PathBuf;

use super::exit::Failure;

/// Unmount, and wait until the process behind the mount has ended
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Detach it now even if it is busy; it ends when its last user has left
    #[arg(long, short = 'l')]
    lazy: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    Ok(crate::mount::unmount(&args.mountpoint, args.lazy)?)
}
