//! `shardfs info`.

mod text;
mod writing;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::writing::Writing;
use super::exit::Failure;
use super::open::{FormatArgs, LevelArgs, open};
use super::output::{Output, unless_closed};
use super::output_file::{Target, cannot, draft, publish};
use super::progress::{Progress, Unit};
use super::remote::RemoteArgs;
use super::source_defaults::{Defaults, DefaultsError, defaults_of};
use crate::format::index::IndexLocation;
use crate::format::json::to_strict_text;
use crate::source::{Array, BadNode, Node, OpenConfig, Source};
use crate::text::{Line, json_path, shown};
use crate::tools::info::{ArrayInfo, Contents, Kind, Level, info};
use crate::tools::map::{Map, MapSize};
use crate::tools::svg::svg;

const AFTER_HELP: &str = "\
The median length of chunks is exact as long as no more than 65536 lengths differ; beyond that it is
off by 1 % at most, and printed with \"about\".

The map shows the last two axes, and a picture for each position of the leading ones. Where there are
more chunks than the terminal has room for, a cell is a block of chunks, the darker the fuller.

With --json one object is printed: source, arrays, totals (of all arrays), new_arrays (how arrays that are
created through a mount are stored, if the source says it: shard, index_location), writing (how the store
replaces shards, if that was tried out: shards, which is \"assembled\", \"whole\" or \"unconditional\", or error), bad (nodes
whose metadata cannot be used: path, document, error). Each array has path, format, shape, data_type,
data_type_configuration, dimension_names, fill_value, attributes, codecs, chunk_shape, shard_shape,
chunk_grid, shard_grid, levels, chunks, shards, bytes, ratio, chunk_nbytes, shared, damaged, errors.

Examples:
  shardfs info volume.zarr
  shardfs info volume.zarr --map               which chunks exist
  shardfs info volume.zarr --map=c/0/3         the same of one shard
  shardfs info volume.zarr --svg map.svg       the same as a picture
  shardfs info volume.zarr --json | jq '.arrays[].bytes.dead'

Exit codes: 0 all could be read, 1 something is damaged (see shardfs verify), 2 it could not be done.";

/// Show what an array is, how full it is, and what its bytes are used for
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// An array, a hierarchy of arrays, or a file that is an array
    source: PathBuf,
    /// One JSON object
    #[arg(long, conflicts_with = "map")]
    json: bool,
    /// Show which chunks exist, of the array or of the shard with this key
    #[arg(long, value_name = "SHARD-KEY", num_args = 0..=1, require_equals = true)]
    map: Option<Option<PathBuf>>,
    /// Write the map as an SVG picture; a device or a named pipe is written to
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, requires = "svg")]
    force: bool,
    /// Find out how a store can be written to, with an object that is put and removed
    #[arg(long)]
    try_writing: bool,
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
    let picture = picture(args, &source)?;
    let chosen = match &args.map {
        Some(Some(key)) => Some(shard_of(&source, key)?),
        _ => None,
    };
    let writing = || Writing::of(&args.source, source.is_file(), &args.remote);
    let writing = args.try_writing.then(writing).transpose()?;
    let output = Output::new().map_err(|error| Failure::System(error.to_string()))?;
    let is_terminal = output.is_terminal();
    let mut printer = Printer {
        args,
        source: &source,
        output,
        arrays: 0,
        totals: Contents::of_no_array(),
        bad: Vec::new(),
        writing,
    };
    let shard = chosen.as_ref().map(|(_, shard)| &shard[..]);
    let maps = |array: &Array| maps(args, array, shard, is_terminal);
    let progress = Progress::new(Unit::Things("chunks"), None);
    let step = &mut |chunks| progress.add(chunks);
    // Each array is printed before the next one is examined.
    let take = &mut |about: ArrayInfo, maps: &[Map]| {
        if let Some((title, target)) = &picture {
            let map = maps.last().ok_or_else(|| Failure::System("there is no map".into()))?;
            let names = about.kind.dimension_names.clone().unwrap_or_default();
            save_picture(args, target, &svg(map, title, &names))?;
        }
        progress.pause(|| printer.print(&about, maps)).map_err(Ended::Closed)
    };
    let bad = Mutex::new(Vec::new());
    let printed = match &chosen {
        Some((array, _)) => info(&source, std::iter::once(Arc::clone(array)), &maps, step, take),
        None => {
            let arrays = source.nodes().filter_map(|node| match node {
                Node::Array(array) => Some(array),
                Node::Bad(node) => {
                    bad.lock().push(node);
                    None
                }
                _ => None,
            });
            info(&source, arrays, &maps, step, take)
        }
    };
    drop(progress);
    printer.bad = bad.into_inner();
    match printed {
        Ok(()) => printer.finish(),
        Err(Ended::Closed(error)) => unless_closed(Err(error)),
        Err(Ended::Failed(failure)) => Err(failure),
    }
}

/// Reason why not all arrays were printed.
enum Ended {
    /// Standard output cannot be written.
    Closed(io::Error),
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Printer of arrays, one after the other.
struct Printer<'a> {
    args: &'a Args,
    source: &'a Source,
    output: Output,
    /// Number of arrays printed.
    arrays: u64,
    /// Statistics of all arrays together.
    totals: Contents,
    /// Nodes whose metadata cannot be used.
    bad: Vec<BadNode>,
    /// How the store can be written to, if that was tried out.
    writing: Option<Writing>,
}

impl Printer<'_> {
    fn print(&mut self, about: &ArrayInfo, maps: &[Map]) -> io::Result<()> {
        let is_first = self.arrays == 0;
        self.arrays += 1;
        let mut contents = about.contents.clone();
        // Errors are printed with their array; the totals only need to know whether there are any.
        contents.errors.truncate(usize::from(self.totals.errors.is_empty()));
        contents.damage.clear();
        self.totals.add_array(contents);
        if self.args.json {
            let before = if is_first { self.head() } else { ",\n".to_owned() };
            let text = to_strict_text(&object(about)).replace('\n', "\n    ");
            return self.output.put(format!("{before}    {text}").as_bytes());
        }
        let map = maps.first().filter(|_| self.args.map.is_some());
        let text = text::about(about, map, text::has_colours(self.output.is_terminal()));
        let gap = if is_first { "" } else { "\n" };
        self.output.put(gap.as_bytes())?;
        self.output.put(text.as_bytes())
    }

    /// Returns the JSON text before the first array.
    fn head(&self) -> String {
        let source = Value::from(self.args.source.to_string_lossy());
        format!("{{\n  \"source\": {source},\n  \"arrays\": [\n")
    }

    fn finish(mut self) -> Result<(), Failure> {
        let storage = self.source.storage.posix().filter(|_| !self.source.is_file());
        let defaults = storage.map(defaults_of);
        let defaults = defaults.and_then(Result::transpose);
        let text = if self.args.json {
            let node = |bad: &BadNode| {
                json!({
                    "path": json_path(&bad.directory),
                    "document": json_path(&bad.path),
                    "error": bad.error.to_string(),
                })
            };
            let bad: Vec<Value> = self.bad.iter().map(node).collect();
            let bad = format!("{:#}", Value::from(bad)).replace('\n', "\n  ");
            let arrays = match self.arrays {
                0 => format!("{}  ]", self.head()),
                _ => "\n  ]".to_owned(),
            };
            let totals = format!("{:#}", totals(self.arrays, &self.totals)).replace('\n', "\n  ");
            let new_arrays = format!("{:#}", new_arrays(defaults.as_ref())).replace('\n', "\n  ");
            let writing = self.writing.as_ref().map_or(Value::Null, Writing::json);
            let writing = format!("{writing:#}").replace('\n', "\n  ");
            format!(
                "{arrays},\n  \"totals\": {totals},\n  \"new_arrays\": {new_arrays},\n  \"writing\": {writing},\n  \
                 \"bad\": {bad}\n}}\n"
            )
        } else {
            let line = |bad: &BadNode| format!("{}\n", Line(bad));
            let totals = match self.arrays {
                0 | 1 => String::new(),
                arrays => text::totals(arrays, &self.totals),
            };
            let bad: String = self.bad.iter().map(line).collect();
            let new_arrays = defaults.as_ref().map(text::new_arrays).unwrap_or_default();
            let writing = self.writing.as_ref().map(Writing::text).unwrap_or_default();
            totals + &new_arrays + &writing + &bad
        };
        unless_closed(self.output.put(text.as_bytes()).and_then(|()| self.output.finish()))?;
        if self.totals.is_damaged() || !self.bad.is_empty() {
            return Err(Failure::Found(String::new()));
        }
        Ok(())
    }
}

fn save_picture(args: &Args, target: &Target, picture: &str) -> Result<(), Failure> {
    let path = target.path();
    let failed = |error| cannot(path, &error);
    if let Some(mut stream) = target.stream()? {
        return stream.write_all(picture.as_bytes()).map_err(failed);
    }
    let mut file = draft(path)?;
    file.write_all(picture.as_bytes()).map_err(failed)?;
    publish(file, path, args.force)
}

/// Number of cells of a picture in a file: enough for a screen.
const PICTURE_CELLS: u64 = 1 << 14;
/// Maximum number of pictures in the file.
const PICTURES: u64 = 64;

/// Creates the requested maps: first that for the terminal, then that for the picture.
fn maps(args: &Args, array: &Array, shard: Option<&[u64]>, is_terminal: bool) -> Vec<Map> {
    let map = |size| match shard {
        Some(shard) => Map::of_shard(array, shard, size),
        None => Map::of_array(array, size),
    };
    let mut maps = Vec::new();
    if args.map.is_some() {
        maps.push(map(text::map_size(is_terminal)));
    }
    if args.svg.is_some() {
        let whole = map(MapSize { columns: 1, rows: 1, pictures: PICTURES });
        let edge = (PICTURE_CELLS / whole.cells()[2].max(1)).isqrt();
        // A single axis continues in the next line.
        let columns = if array.source.layout.rank() < 2 { PICTURE_CELLS } else { edge };
        maps.push(map(MapSize { columns, rows: edge, pictures: PICTURES }));
    }
    maps
}

/// Returns the title of the picture and where it goes; `None` if no picture is requested.
fn picture(args: &Args, source: &Source) -> Result<Option<(String, Target)>, Failure> {
    let Some(path) = &args.svg else { return Ok(None) };
    let of_shard = matches!(args.map, Some(Some(_)));
    if source.arrays().count() != 1 && !of_shard {
        let text = format!(
            "{}: --svg takes one array, and there are {} here",
            shown(&args.source),
            source.arrays().count()
        );
        return Err(Failure::System(text));
    }
    let target = Target::find(path, &args.source, args.force)?;
    if matches!(target, Target::Stdout) {
        let text = "standard output has the text: give --svg the name of a file";
        return Err(Failure::System(format!("{}: {text}", shown(path))));
    }
    let title = match &args.map {
        Some(Some(key)) => format!("{}: {}", shown(&args.source), shown(&key)),
        _ => shown(&args.source).to_string(),
    };
    Ok(Some((title, target)))
}

/// Returns the array and the coordinates of the shard with a key.
fn shard_of(source: &Source, key: &Path) -> Result<(Arc<Array>, Vec<u64>), Failure> {
    let clean: PathBuf = key.components().collect();
    for array in source.arrays() {
        let layout = &array.source.layout;
        let rest = clean.strip_prefix(&array.source.path).ok().and_then(Path::to_str);
        let coords = rest.and_then(|rest| layout.keys.parse_leading(rest, layout.rank()));
        let coords = coords.filter(|coords| {
            let mut axes = coords.iter().zip(&layout.shard_grid);
            coords.len() == layout.rank() && axes.all(|(coord, axis)| *coord < axis.shards())
        });
        if let Some(coords) = coords {
            return Ok((array, coords));
        }
    }
    Err(Failure::System(format!("{}: no shard of the source has this key", shown(&key))))
}

fn object(about: &ArrayInfo) -> Value {
    let ArrayInfo { path, kind, contents } = about;
    let Kind { format, shape, data_type, codecs, chunk_shape, shard_shape, .. } = kind;
    let Kind { data_type_configuration, dimension_names, fill_value, attributes, .. } = kind;
    let level = |level: &Level| {
        json!({
            "chunk_shape": level.chunk_shape,
            "chunks_per_shard": level.chunks_per_shard,
            "index_location": if level.index_at_start { "start" } else { "end" },
            "index": level.index,
            "codecs_after": level.after,
        })
    };
    let spread = contents.spread().map(|spread| {
        json!({
            "smallest": spread.smallest, "median": spread.median, "largest": spread.largest,
            "median_is_exact": spread.is_exact,
        })
    });
    let counts = counts(contents);
    let errors = [&contents.errors[..], &contents.damage].concat();
    json!({
        "path": json_path(path),
        "format": format, "shape": shape, "data_type": data_type,
        "data_type_configuration": data_type_configuration,
        "dimension_names": dimension_names, "fill_value": fill_value, "attributes": attributes,
        "codecs": codecs,
        "chunk_shape": chunk_shape, "shard_shape": shard_shape,
        "chunk_grid": kind.chunk_grid, "shard_grid": kind.shard_grid,
        "levels": kind.levels.iter().map(level).collect::<Vec<_>>(),
        "chunks": counts["chunks"], "shards": counts["shards"], "bytes": counts["bytes"],
        "ratio": counts["ratio"],
        "chunk_nbytes": spread,
        "shared": counts["shared"], "damaged": counts["damaged"],
        "errors": errors,
    })
}

/// Returns how new arrays are stored as JSON; null if the source does not say it.
fn new_arrays(defaults: Option<&Result<Defaults, DefaultsError>>) -> Value {
    match defaults {
        None => Value::Null,
        Some(Err(error)) => json!({"error": error.to_string()}),
        Some(Ok(Defaults { rules, new_shards })) => {
            let at_start = new_shards.index_location == Some(IndexLocation::Start);
            json!({"shard": rules, "index_location": if at_start { "start" } else { "end" }})
        }
    }
}

/// Returns the statistics of all arrays together as JSON.
fn totals(arrays: u64, contents: &Contents) -> Value {
    let mut totals = counts(contents);
    totals["arrays"] = arrays.into();
    totals
}

/// Returns the statistics of one or several arrays as JSON.
fn counts(contents: &Contents) -> Value {
    let Contents { possible, present, outside, shards_possible, shards, .. } = contents;
    json!({
        "chunks": {
            "present": present, "unreadable": contents.unreadable, "missing": contents.missing(),
            "possible": possible, "outside": outside,
        },
        "shards": {"present": shards, "possible": shards_possible, "outside": contents.stray},
        "bytes": {
            "files": contents.nbytes, "live": contents.live, "overhead": contents.overhead,
            "dead": contents.dead, "unreadable": contents.unreadable_nbytes,
            "decoded": contents.decoded,
        },
        "ratio": text::ratio(contents),
        "shared": contents.shared,
        "damaged": {"shards": contents.damaged_shards, "entries": contents.damaged_entries},
    })
}
