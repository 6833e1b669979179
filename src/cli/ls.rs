//! `shardfs ls`.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::exit::Failure;
use super::message::complain;
use super::open::{FormatArgs, LevelArgs, open};
use super::output::{Output, unless_closed};
use super::progress::{Progress, Unit};
use super::remote::RemoteArgs;
use crate::source::{OpenConfig, Source};
use crate::text::{many, shown};
use crate::tools::ls::{Extent, Query, Row, Rows, list};
use crate::tools::strays::strays;

const AFTER_HELP: &str = "\
Each line has, separated by tabs: the chunk's key as a mount of SOURCE shows it, the file of its shard,
its offset and its length in bytes there; with -l the crc32c of these bytes. The offset is - where the
shard is compressed as a whole. With --missing: the key, and the shard that would hold the chunk.
With --json each line is an object: key, chunk (its coordinates), shard, offset, nbytes, crc32c.

Examples:
  shardfs ls volume.zarr | wc -l                       how many chunks there are
  shardfs ls volume.zarr c/0/3 -l                      those below c/0/3, with checksums
  shardfs ls volume.zarr --missing | cut -f 1          keys of those that do not exist
  shardfs ls volume.zarr | sort -t \"$(printf '\\t')\" -k 4nr | head    the largest
  shardfs ls volume.zarr --json | jq -r 'select(.nbytes > 1e6).key'

Exit codes: 0 all was listed, 1 something is damaged and is not listed, 2 it could not be done.";

/// List the inner chunks of sharded arrays: where each of them is
///
/// Shards come in C order of their coordinates, and chunks in C order within their shard. Chunks
/// outside of the array's shape are left out. What is damaged is named on stderr.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// An array, a hierarchy of arrays, or a file that is an array
    source: PathBuf,
    /// Only chunks whose keys begin with this, cut off between two parts: c/0 or volume/c/0
    key_prefix: Option<PathBuf>,
    /// With the crc32c of each chunk's bytes: all of them are read
    #[arg(short = 'l', long)]
    long: bool,
    /// One JSON object on each line
    #[arg(long)]
    json: bool,
    /// Chunks that do not exist, instead of those that do
    #[arg(long, conflicts_with_all = ["outside", "long"])]
    missing: bool,
    /// Also chunks outside of the array's shape, in the shards at its edge
    #[arg(long)]
    outside: bool,
    /// End lines with a zero byte: keys may have line breaks in them
    #[arg(short = '0', long)]
    null: bool,
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (level, format) = (args.level.level, args.format.format());
    let config = OpenConfig { level, format, ..OpenConfig::default() };
    let source = open(&args.source, config, &args.remote)?.for_one_pass();
    let query = Query {
        prefix: args.key_prefix.clone(),
        missing: args.missing,
        outside: args.outside,
        checksum: args.long,
    };
    let end = if args.null { 0 } else { b'\n' };
    let mut output = Output::new().map_err(|error| Failure::System(error.to_string()))?;
    let names = if output.is_terminal() { Names::Escaped } else { Names::Raw };
    let write = |row: &Row<'_>, text: &mut Vec<u8>| {
        if args.json {
            write_json(row, text);
        } else {
            write_columns(row, names, text);
        }
        text.push(end);
    };
    // On a terminal the lines themselves show the progress.
    let progress = (!output.is_terminal()).then(|| Progress::new(Unit::Things("chunks"), None));
    let mut damaged = 0_u64;
    let listed = list(&source, &query, &write, |rows: Rows| -> io::Result<()> {
        for error in &rows.errors {
            damaged += 1;
            let say = || complain(error);
            progress.as_ref().map_or_else(say, |progress| progress.pause(say));
        }
        output.put(&rows.text)?;
        progress.iter().for_each(|progress| progress.add(rows.count));
        Ok(())
    });
    let listed = listed.map_err(|error| Failure::System(error.to_string()))?;
    drop(progress);
    unless_closed(listed.and_then(|()| output.finish()))?;
    if args.outside {
        tell_strays(&source, args.key_prefix.as_deref());
    }
    if damaged == 0 { Ok(()) } else { Err(Failure::Found(String::new())) }
}

/// Says of which arrays files lie outside the shard grid: their chunks have no keys in the array.
fn tell_strays(source: &Source, prefix: Option<&Path>) {
    for array in source.arrays() {
        let path = &array.source.path;
        let stray = match prefix.is_none_or(|prefix| path.starts_with(prefix)) {
            true => strays(source, &array),
            false => 0,
        };
        if stray > 0 {
            complain(format_args!(
                "{}: {} outside the shard grid, with chunks that are not listed; `shardfs verify` \
                 names them",
                shown(path),
                many(stray, "file")
            ));
        }
    }
}

/// Form in which names are written.
#[derive(Debug, Clone, Copy)]
enum Names {
    /// Unchanged, for programs.
    Raw,
    /// With escapes in place of terminal control characters.
    Escaped,
}

impl Names {
    fn write(self, name: &[u8], text: &mut Vec<u8>) {
        match self {
            Self::Raw => text.extend_from_slice(name),
            Self::Escaped => {
                text.extend_from_slice(shown(OsStr::from_bytes(name)).to_string().as_bytes());
            }
        }
    }
}

fn write_columns(row: &Row<'_>, names: Names, text: &mut Vec<u8>) {
    names.write(row.key, text);
    text.push(b'\t');
    names.write(row.shard, text);
    let Some(Extent { offset, nbytes, crc32c }) = row.place else { return };
    text.push(b'\t');
    match offset {
        Some(offset) => number(text, offset),
        None => text.push(b'-'),
    }
    text.push(b'\t');
    number(text, nbytes);
    if let Some(crc32c) = crc32c {
        text.extend_from_slice(format!("\t{crc32c:08x}").as_bytes());
    }
}

fn write_json(row: &Row<'_>, text: &mut Vec<u8>) {
    text.extend_from_slice(b"{\"key\":");
    string(text, row.key);
    text.extend_from_slice(b",\"chunk\":[");
    for (axis, coord) in row.chunk.iter().enumerate() {
        if axis > 0 {
            text.push(b',');
        }
        number(text, *coord);
    }
    text.extend_from_slice(b"],\"shard\":");
    string(text, row.shard);
    if let Some(Extent { offset, nbytes, crc32c }) = row.place {
        text.extend_from_slice(b",\"offset\":");
        match offset {
            Some(offset) => number(text, offset),
            None => text.extend_from_slice(b"null"),
        }
        text.extend_from_slice(b",\"nbytes\":");
        number(text, nbytes);
        if let Some(crc32c) = crc32c {
            text.extend_from_slice(format!(",\"crc32c\":\"{crc32c:08x}\"").as_bytes());
        }
    }
    text.push(b'}');
}

fn number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a JSON string; bytes that are not UTF-8 are replaced.
fn string(text: &mut Vec<u8>, bytes: &[u8]) {
    let lossy = OsStr::from_bytes(bytes).to_string_lossy();
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(text, &*lossy);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(row: &Row<'_>, text: &mut Vec<u8>) {
        write_columns(row, Names::Raw, text);
    }

    fn written(write: fn(&Row<'_>, &mut Vec<u8>), place: Option<Extent>) -> String {
        let mut text = Vec::new();
        let row = Row { key: b"a \"b\"/c/0/1", chunk: &[0, 1], shard: b"a \"b\"/c/0/0", place };
        write(&row, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn rows_in_both_forms() {
        let place = Extent { offset: Some(12), nbytes: 3, crc32c: Some(0xff) };
        let columns = "a \"b\"/c/0/1\ta \"b\"/c/0/0\t12\t3\t000000ff";
        assert_eq!(written(raw, Some(place)), columns);
        let json = r#"{"key":"a \"b\"/c/0/1","chunk":[0,1],"shard":"a \"b\"/c/0/0","offset":12,"nbytes":3,"crc32c":"000000ff"}"#;
        assert_eq!(written(write_json, Some(place)), json);
        let place = Extent { offset: None, nbytes: 3, crc32c: None };
        assert!(written(raw, Some(place)).ends_with("\t-\t3"));
        assert!(written(write_json, Some(place)).ends_with(r#","offset":null,"nbytes":3}"#));
        assert_eq!(written(raw, None), "a \"b\"/c/0/1\ta \"b\"/c/0/0");
    }

    #[test]
    fn names_are_raw_for_programs_and_escaped_on_a_terminal() {
        let written = |names| {
            let (key, shard) = (b"a\n\xff/c/0", b"a\n\xff/c/0");
            let mut text = Vec::new();
            write_columns(&Row { key, chunk: &[0], shard, place: None }, names, &mut text);
            text
        };
        assert_eq!(written(Names::Raw), b"a\n\xff/c/0\ta\n\xff/c/0");
        assert_eq!(written(Names::Escaped), b"a\\n\\xff/c/0\ta\\n\\xff/c/0");
    }
}
