//! `shardfs refs`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::exit::Failure;
use super::interrupt::Interruptible;
use super::local::local;
use super::message::complain;
use super::open::{FormatArgs, open};
use super::output::say;
use super::output_file::{STDOUT, Target, cannot, draft, publish};
use super::progress::{Progress, Unit};
use super::remote::RemoteArgs;
use super::size;
use crate::source::{OpenConfig, Source};
use crate::store::remote::Place;
use crate::text::many;
use crate::text::shown;
use crate::tools::refs::{self, Config, Problem, RefsError, Summary, Version};

/// Maximum number of problems that are printed individually.
const MOST_PRINTED: u64 = 100;

const EXAMPLES: &str = "\
Examples:
  shardfs refs volume.zarr -o volume.json
  shardfs refs volume.zarr --base-url s3://bucket/volume.zarr | gzip > volume.json.gz
  shardfs refs volume.zarr --zarr2 --inline 100 -o volume.json     for readers of Zarr v2";

/// Write references to every inner chunk, as kerchunk and fsspec have them
///
/// The output is one JSON object that makes an unsharded array of a sharded one without a mount and
/// without copying: readers fetch ranges of the shards, from wherever these are. Every array below
/// SOURCE is in it, whatever it is stored as. The shards must stay as they are: references to one
/// that is written to afterwards lead to other bytes.
///
/// A chunk that is missing in the references reads as fill values. So if anything cannot be read,
/// what it is goes to stderr, and no file is written (of what goes to stdout the end is missing, which
/// is no valid JSON). With --skip-damaged the rest is written all the same: a chunk that cannot be
/// read is an empty file then, which readers refuse, and an array without usable metadata is not
/// there.
///
/// Exit codes: 0 everything is in the references, 1 something cannot be read, 2 it could not be done.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// An array, a hierarchy, or a folder of such
    source: PathBuf,
    /// Where to write to, as JSON; - is stdout. An existing file is replaced only with --force; a
    /// device or a named pipe is written to
    #[arg(short, long, value_name = "FILE", default_value = STDOUT)]
    #[arg(value_parser = local())]
    output: PathBuf,
    /// Replace an existing FILE
    #[arg(long)]
    force: bool,
    /// Where readers find SOURCE, for example s3://bucket/volume.zarr [default: its absolute path]
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// A path to put before every key
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Make documents of Zarr v2, which zarr-python before 3 reads, rather than of Zarr v3
    #[arg(long)]
    zarr2: bool,
    /// Version of the form: 1, or 0, which repeats the URL in every reference
    #[arg(long, value_name = "N", default_value = "1", value_parser = ["0", "1"],
        hide_possible_values = true)]
    json_version: String,
    /// Put chunks of at most so many bytes into the references themselves. Chunks of shards that are
    /// compressed as a whole can be had in no other way
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size::parse)]
    inline: u64,
    /// Go on after what cannot be read
    #[arg(long)]
    skip_damaged: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Returns an error if the name of the output file asks for Parquet.
fn check_form(output: &Path) -> Result<(), Failure> {
    let extension = output.extension().map(OsStr::to_ascii_lowercase);
    let extension = extension.as_ref().and_then(|extension| extension.to_str());
    if !matches!(extension, Some("parquet" | "parq" | "pq")) {
        return Ok(());
    }
    let text = format!(
        "{}: references are written as JSON, not as Parquet: give the file another name, such as \
         {}; kerchunk turns JSON into Parquet (kerchunk.df.refs_to_dataframe)",
        shown(output),
        shown(&output.with_extension("json")),
    );
    Err(Failure::System(text))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    check_form(&args.output)?;
    let target = Target::find(&args.output, &args.source, args.force)?;
    let format = args.format.format();
    let source =
        open(&args.source, OpenConfig { format, pad_edge: true, level: None }, &args.remote)?;
    if source.is_archive() {
        let name = shown(&args.source);
        return Err(Failure::System(format!(
            "{name}: references into a ZIP archive are not made; unpack it (`unzip {name}`) and give the directory"
        )));
    }
    let config = config(args)?;
    match target.stream()? {
        Some(stream) => to_stream(args, &source, &config, stream),
        None => to_file(args, &source, &config, target.path()),
    }
}

fn to_stream(args: &Args, source: &Source, config: &Config, out: File) -> Result<(), Failure> {
    let done = write(source, config, &mut BufWriter::new(out), &mut |_| ());
    let unwritten = "the end of the output is missing";
    match done.and_then(|summary| check(args, summary, unwritten)) {
        // The reader has closed the pipe.
        Ok(()) | Err(Written::Pipe) => Ok(()),
        Err(Written::Failed(failure)) => Err(failure),
    }
}

fn to_file(args: &Args, source: &Source, config: &Config, path: &Path) -> Result<(), Failure> {
    let progress = Progress::new(Unit::Things("chunks"), None);
    let (draft, interruptible) = Interruptible::removing(
        "nothing was written",
        || draft(path),
        |draft| draft.path().to_owned(),
    )?;
    let mut out = BufWriter::new(draft);
    let done = write(source, config, &mut out, &mut |chunks| progress.add(chunks));
    drop(progress);
    let failed = |failure| match failure {
        Written::Pipe => Failure::System(format!("{}: broken pipe", shown(path))),
        Written::Failed(failure) => failure,
    };
    let summary = done.map_err(failed)?;
    if args.skip_damaged || summary.problems == 0 {
        let file = out.into_inner().map_err(|error| cannot(path, error.error()))?;
        publish(file, path, args.force)?;
        drop(interruptible);
        report(args, summary);
    }
    check(args, summary, "nothing was written").map_err(failed)
}

fn config(args: &Args) -> Result<Config, Failure> {
    let base = match &args.base_url {
        Some(url) => url.clone(),
        None if matches!(Place::of(&args.source), Ok(Place::Url(_))) => {
            args.source.to_string_lossy().into_owned()
        }
        None => {
            let path = args.source.canonicalize().map_err(|error| cannot(&args.source, &error))?;
            let text = path.to_str().map(ToOwned::to_owned);
            text.ok_or_else(|| refused(&RefsError::NotText(path)))?
        }
    };
    Ok(Config {
        base,
        prefix: args.prefix.clone(),
        zarr2: args.zarr2,
        version: if args.json_version == "0" { Version::Zero } else { Version::One },
        inline: args.inline,
        skips: args.skip_damaged,
    })
}

/// Reason why nothing, or not everything, was written.
enum Written {
    /// The reader has closed the pipe.
    Pipe,
    Failed(Failure),
}

fn write(
    source: &Source,
    config: &Config,
    out: &mut dyn Write,
    done: &mut dyn FnMut(u64),
) -> Result<Summary, Written> {
    let mut problems = 0;
    let mut report = |problem: &Problem| {
        problems += 1;
        match problems {
            ..=MOST_PRINTED if matches!(problem, Problem::NotInFile { .. }) => {
                complain(format_args!("{problem}; --inline says how many may"));
            }
            ..=MOST_PRINTED => complain(problem),
            problems if problems == MOST_PRINTED + 1 => complain(format_args!("...")),
            _ => (),
        }
    };
    refs::write(source, config, out, &mut report, done).map_err(|error| match error {
        RefsError::Write(error) if error.kind() == io::ErrorKind::BrokenPipe => Written::Pipe,
        error => Written::Failed(refused(&error)),
    })
}

fn report(args: &Args, summary: Summary) {
    let Summary { arrays, chunks, .. } = summary;
    say(format_args!(
        "{}: references to {} in {}",
        shown(&args.output),
        many(chunks, "chunk"),
        many(arrays, "array"),
    ));
}

fn check(args: &Args, summary: Summary, unwritten: &str) -> Result<(), Written> {
    match summary.problems {
        0 => Ok(()),
        problems => {
            let what = match args.skip_damaged {
                true => "chunks that cannot be read are empty files, which readers refuse",
                false => unwritten,
            };
            let text = format!("problems: {problems}; {what}");
            Err(Written::Failed(Failure::Found(text)))
        }
    }
}

fn refused(error: &RefsError) -> Failure {
    Failure::System(error.to_string())
}
