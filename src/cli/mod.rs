//! The command line: one file for each subcommand, options turned into configuration.

mod completions;
mod copy;
mod create;
mod delete;
mod exit;
mod help;
mod info;
mod interrupt;
mod list;
mod local;
mod logging;
mod ls;
mod man;
mod message;
mod mount;
mod mount_job;
mod mounts;
mod open;
mod options;
mod output;
mod output_file;
mod pack;
mod progress;
mod recover;
mod refs;
mod remote;
mod repack;
mod resize;
mod saved;
mod seconds;
mod shard_rule;
mod size;
mod source_defaults;
mod status;
mod sync;
mod topics;
mod transport;
mod umount;
mod unpack;
mod verify;
mod views;

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::exit::Failure;

const AFTER_HELP: &str = "\
Examples:
  shardfs mount volume.zarr /mnt/volume      every inner chunk of volume.zarr is a file now
  ls /mnt/volume/c/0/0
  shardfs umount /mnt/volume

Called as mount.shardfs it works from /etc/fstab:
  /data/volume.zarr  /mnt/volume  shardfs  ro,allow_other  0  0

Topics of shardfs help:
  views       what a mount shows of an array, and for which program
  formats     what can be mounted, and how it is recognized
  urls        sources in buckets and on web servers
  shards      how large shards are: --shard
  durability  when what was written is safe, and where errors appear
  exit-codes  exit codes of all commands";

/// Mount sharded arrays so that every inner chunk is its own file; inspect, verify and convert shards
///
/// Arrays and hierarchies of Zarr v3, sharded or not, and of its draft of 2022; of Zarr v2; Bloscpack
/// files; frames of Blosc2; BLZ and bcolz directories. Views show them as Zarr v3, as Zarr v2, as NumPy
/// files, as raw items, or as one file for the whole array.
#[derive(Debug, Parser)]
#[command(name = "shardfs", version, after_long_help = AFTER_HELP, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mount(Box<mount::Args>),
    #[command(alias = "unmount")]
    Umount(umount::Args),
    Sync(sync::Args),
    Status(status::Args),
    Recover(recover::Args),
    Info(info::Args),
    Ls(ls::Args),
    Verify(verify::Args),
    Create(Box<create::Args>),
    Resize(resize::Args),
    Delete(delete::Args),
    Pack(pack::Args),
    Unpack(unpack::Args),
    Repack(repack::Args),
    Refs(refs::Args),
    Completions(completions::Args),
    Man(man::Args),
    Help(topics::Args),
}

/// Raises the limit of open files to the maximum: every open chunk keeps its shard open, and so do
/// commits.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // On failure the usual number of files can be open.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    raise_file_limit();
    survive_file_size_limit();
    let mut arguments = std::env::args_os().peekable();
    let name = arguments.next().unwrap_or_default();
    set_process_name(&name);
    if name == crate::mount::PROBE {
        let (mountpoint, connection) = (arguments.next(), arguments.next());
        let mountpoint = mountpoint.unwrap_or_default();
        let connection = connection.unwrap_or_default();
        return crate::mount::probe(Path::new(&mountpoint), connection.as_bytes()).into();
    }
    if name == crate::mount::GUARD {
        crate::mount::run_guard(arguments);
        return ExitCode::SUCCESS;
    }
    let done = if is_mount_helper(&name, arguments.peek()) {
        parse::<mount::HelperArgs>(name, arguments)
            .map_err(Failure::Usage)
            .and_then(mount::run_helper)
    } else {
        let is_of_mount = arguments.peek().is_some_and(|command| is_of_mount(command));
        let usage = if is_of_mount { Failure::Usage } else { Failure::ToolUsage };
        parse::<Cli>(name, arguments).map_err(usage).and_then(|cli| run_command(cli.command))
    };
    let code = done.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS);
    output::unsaid().map_or(code, Failure::report)
}

/// Lets `ps`, `top` and `pkill` know this process by the name of its program. It starts itself through
/// a link in /proc, whose name it would have otherwise.
fn set_process_name(program: &OsStr) {
    let name = match program == crate::mount::GUARD {
        // `pkill shardfs` means the process behind the mount.
        true => OsStr::new("fuse-guard"),
        false => Path::new(program).file_name().unwrap_or_default(),
    };
    if let Ok(name) = CString::new(name.as_bytes()) {
        // It is only a name.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Lets a write beyond the file size limit of the process fail with EFBIG. By default the signal that
/// comes with it kills the process, and a mount has changes of all its users.
fn survive_file_size_limit() {
    let seen = Arc::new(AtomicBool::new(false));
    if let Err(error) = signal_hook::flag::register(libc::SIGXFSZ, seen) {
        log::debug!("SIGXFSZ: {error}");
    }
}

fn run_command(command: Command) -> Result<(), Failure> {
    // A mount logs where its options say.
    if !matches!(command, Command::Mount(_)) {
        logging::start_for_command();
    }
    match command {
        Command::Mount(args) => mount::run(*args),
        Command::Umount(args) => umount::run(&args),
        Command::Sync(args) => sync::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Recover(args) => recover::run(&args),
        Command::Create(args) => create::run(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Delete(args) => delete::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Repack(args) => repack::run(&args),
        Command::Unpack(args) => unpack::run(&args),
        Command::Refs(args) => refs::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Help(args) => topics::run(&args, help::fitted(Cli::command())),
    }
}

/// Returns whether mount(8) is the caller: by one of the helper's names, or through mount.fuse,
/// which passes the source in place of a subcommand.
fn is_mount_helper(name: &OsStr, first: Option<&OsString>) -> bool {
    let names = ["mount.shardfs", "mount.fuse.shardfs"].map(OsStr::new);
    Path::new(name).file_name().is_some_and(|name| names.contains(&name))
        || first.is_some_and(|first| first.as_encoded_bytes().contains(&b'/'))
}

/// Returns whether a command has the exit codes of mount(8).
fn is_of_mount(command: &OsStr) -> bool {
    ["mount", "umount", "unmount", "sync"].iter().any(|name| command == *name)
}

fn parse<T: Parser>(
    name: OsString,
    arguments: impl Iterator<Item = OsString>,
) -> Result<T, clap::Error> {
    let command = help::fitted(T::command());
    let matches = command.try_get_matches_from(std::iter::once(name).chain(arguments))?;
    T::from_arg_matches(&matches)
}
