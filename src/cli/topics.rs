//! `shardfs help`: commands, and topics that are of several commands.

use clap::Command;
use clap::error::ErrorKind;

use super::exit::Failure;
use super::help::{Words, wrapped_to_terminal};
use super::output::print;

/// A topic of `shardfs help`.
#[derive(Debug)]
pub(super) struct Topic {
    /// Name on the command line, and of its manual page.
    pub name: &'static str,
    /// A line that says what it is about.
    pub about: &'static str,
    /// Paragraphs and columns, as in the help of commands.
    pub text: &'static str,
}

/// All topics, in the order in which they are listed.
pub(super) const TOPICS: [Topic; 6] = [
    Topic {
        name: "views",
        about: "what a mount shows of an array, and for which program",
        text: VIEWS,
    },
    Topic {
        name: "formats",
        about: "what can be mounted, and how it is recognized",
        text: FORMATS,
    },
    Topic { name: "urls", about: "sources in buckets and on web servers", text: URLS },
    Topic { name: "shards", about: "how large shards are: --shard", text: SHARDS },
    Topic {
        name: "durability",
        about: "when what was written is safe, and where errors appear",
        text: DURABILITY,
    },
    Topic { name: "exit-codes", about: "exit codes of all commands", text: EXIT_CODES },
];

const VIEWS: &str = "\
A view is what shardfs mount --view VIEW shows of each array. Nothing is copied: contents are made from the shards \
when they are read. Several views, separated by commas, are a directory each.

Views:
  zarr3   zarr.json, c/0/1/2: every inner chunk as it is stored, for readers of Zarr v3; the default
  zarr2   .zarray, .zattrs, 0/1/2: the same chunks, for zarr-python 2, xarray and netCDF-C
  npy     array.json, c/0/1/2.npy: every chunk decoded, a file of NumPy
  raw     array.json, c/0/1/2.raw: every chunk decoded, its items only, for MATLAB, C and scripts
  flat    array.npy, array.raw: the whole array as one file, for np.load(mmap_mode=\"r\") and dd; array.mhd and \
array.nhdr for ITK, Fiji and 3D Slicer

With --rw all but flat can be written. --endian, --edge and --missing say how npy, raw and flat show bytes, chunks at \
the array's edge, and chunks that do not exist.

Examples:
  shardfs mount --view flat volume.zarr /mnt/volume
  shardfs mount --rw --view zarr3,npy volume.zarr /mnt/volume";

const FORMATS: &str = "\
A source is an array, a group or a folder of such, and is recognized by what is in it. --format says what it is where \
that fails.

Formats:
  zarr        zarr.json: Zarr v3 with the codec sharding_indexed, nested too; arrays without shards, and Zarr v2, are \
passed through
  draft2022   hierarchies with the sharding storage transformer of 2022, of zarr-python 2.13 to 2.18
  bloscpack   Bloscpack files (.blp): c/0, c/1, ... are Blosc buffers
  blosc2      frames of Blosc2 (.b2nd, .b2frame, Caterva's), read only: c/0/0, ... are chunks of Blosc2
  blz         directories of BLZ and bcolz: the same
  wkw         directories of webknossos-wrap (header.wkw), read only: c/0/0/0, ... are blocks

A ZIP archive (.zarr.zip, .ozx) is read as the directory that was put into it.

Zarr v2 has no shards. It is decoded in npy, raw and flat, and shardfs pack makes sharded Zarr v3 of it. A sharded array is shown as the unsharded array of its inner chunks. With nested sharding, level=N of -o selects \
which chunks are shown.

Examples:
  shardfs info volume.zarr                  what it is, and how full
  shardfs mount --format blz data /mnt/data";

const URLS: &str = "\
mount, info, ls, verify, refs, create, resize, delete, pack, unpack, repack SOURCE DEST and recover without --scan \
take a URL where they take a path.

URLs:
  s3://BUCKET/KEY        Amazon S3, and what speaks its protocol: with --endpoint Ceph, MinIO, R2 and others
  gs://BUCKET/KEY        Google Cloud Storage
  az://CONTAINER/KEY     Azure Blob Storage, of the account in --account
  https://HOST/PATH      a web server that answers requests for ranges, http:// too; it is only read
  file:///PATH           a path of this machine

Credentials are never an option. They come from the environment (AWS_ACCESS_KEY_ID and the like), from a profile of \
~/.aws, or from the machine; without any, requests are not signed. --anonymous does not sign them in any case, as \
public data needs.

Examples:
  shardfs mount s3://bucket/volume.zarr /mnt/volume
  shardfs info --anonymous --endpoint https://s3.example.org s3://public/volume.zarr
  shardfs mount -o cache_dir=/var/cache/shardfs s3://bucket/volume.zarr /mnt/volume";

const SHARDS: &str = "\
--shard says how large shards are, in create, pack and repack, and in mount --rw for arrays that are created \
through the mount.

Rules:
  256M           at most this many bytes of decoded data, with about as many chunks along each axis
  x8,8           this many chunks along the last axes, one along those before
  512,512,-1     this shape in elements; -1 is the array's whole extent
  off            of mount: arrays are stored as they are written
  PATTERN=RULE   of mount: the rule for arrays whose path matches the pattern; the first match counts

In create, --chunk and --shard take shapes with 0 for what is to be chosen, and --aspect, --soft-shard and others \
choose them by TensorStore's rule: shardfs create --help.

Examples:
  shardfs pack chunks.zarr volume.zarr --shard 256M
  shardfs mount --rw --shard '**/time=off' --shard 256M data.zarr /mnt/data";

const DURABILITY: &str = "\
With --rw, what was written is visible in the mount at once, and is committed to its shards within \
--commit-interval. Durable means that it survives a power cut.

Durable once it has returned without an error:
  fsync                       the file
  fsync of a directory        all that was closed below it
  shardfs sync MOUNTPOINT     all that was closed
  shardfs umount MOUNTPOINT   all of it
  close, rename, unlink       with -o sync

sync(1) and umount(8) do not wait for FUSE mounts. What is no chunk, such as metadata, goes to the source at once. Files \
beside chunks, which are none, exist in the mount alone; its end saves them.

A commit can fail after close: the disk is full, or others have changed the same chunk. Its error is that of fsync, \
shardfs sync and shardfs umount, a line in the log, and .shardfs/waiting.txt in the mount names what waits. What \
cannot be committed when a mount ends is saved below /var/lib/shardfs/unsaved, or ~/.local/state/shardfs/unsaved; \
shardfs recover --unsaved DIR SOURCE puts it in.

Any number of threads and processes may write different chunks of one array at once, and through several mounts where \
the filesystem has locks or the bucket keeps to conditions. Of a chunk that two mounts change, the first commit counts, \
and the other gets ESTALE. Software that takes no locks must not write to the shards at the same time.";

const EXIT_CODES: &str = "\
Of mount, umount and sync, as of mount(8):
  0    done: mounted and answering, unmounted, everything is durable
  1    wrong usage
  2    system error; of umount and sync: not all could be written
  32   it could not be mounted or unmounted

Of all other commands:
  0   done, and nothing is wrong
  1   something wrong was found: damage, a defect
  2   it could not be done, or wrong usage

Messages go to stderr; --json prints results for programs to stdout.";

const SUBJECTS: Words = Words(&[
    "mount",
    "umount",
    "sync",
    "status",
    "recover",
    "info",
    "ls",
    "verify",
    "create",
    "resize",
    "delete",
    "pack",
    "unpack",
    "repack",
    "refs",
    "completions",
    "man",
    "views",
    "formats",
    "urls",
    "shards",
    "durability",
    "exit-codes",
]);

const AFTER_HELP: &str = "\
Examples:
  shardfs help mount
  shardfs help views

Exit codes: 0 done, 2 there is no such command and no such topic.";

/// Print help of a command or on a topic
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// A command; or a topic: views, formats, urls, shards, durability, exit-codes
    #[arg(value_name = "COMMAND|TOPIC", value_parser = SUBJECTS, hide_possible_values = true)]
    subject: Option<String>,
}

/// Prints the help of a part of `command`, the whole command line, or of all of it.
pub(super) fn run(args: &Args, mut command: Command) -> Result<(), Failure> {
    let subject = args.subject.as_deref();
    if let Some(topic) = TOPICS.iter().find(|topic| Some(topic.name) == subject) {
        return print(wrapped_to_terminal(topic.text).as_bytes());
    }
    if let Some(name) = subject.filter(|name| command.find_subcommand(name).is_none()) {
        let names = TOPICS.map(|topic| topic.name).join(", ");
        let text = format!(
            "there is no command and no topic {name:?}; 'shardfs help' lists the commands, the topics are {names}"
        );
        return Err(Failure::ToolUsage(command.error(ErrorKind::InvalidValue, text)));
    }
    // As after the option, which knows about colours and the width of the terminal.
    let words = ["shardfs"].into_iter().chain(subject).chain(["--help"]);
    command.try_get_matches_from(words).map(drop).map_err(Failure::ToolUsage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn completions_name_all_commands_and_topics() {
        let command = Cli::command();
        let commands =
            command.get_subcommands().map(Command::get_name).filter(|name| *name != "help");
        let topics = TOPICS.iter().map(|topic| topic.name);
        assert!(commands.chain(topics).eq(SUBJECTS.0.iter().copied()));
    }

    #[test]
    fn the_list_of_commands_names_all_topics() {
        let help = Cli::command().render_long_help().to_string();
        let topics = help.split("Topics").nth(1).unwrap();
        for topic in TOPICS {
            assert!(
                topics.contains(&format!("\n  {:<10}  {}", topic.name, topic.about)),
                "{}",
                topic.name
            );
        }
    }
}
