//! `shardfs info`.

mod text;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::exit::Failure;
use super::mounts::check_apart;
use super::output::{Output, unless_closed};
use super::progress::{Progress, Unit};
use crate::text::{Line, shown};
use crate::tools::info::{ArrayInfo, Contents, Kind, Level, info};
use crate::tools::map::{Map, MapSize};
use crate::tools::source::{Array, OpenConfig, Source};
use crate::tools::svg::svg;

const AFTER_HELP: &str = "\
The median length of chunks is exact as long as no more than 65536 lengths differ; beyond that it is
off by 1 % at most, and told with \"about\".

The map shows the last two axes, and a picture for each position of the leading ones. Where there are
more chunks than the terminal has room for, a cell is a block of chunks, the darker the fuller.

With --json one object is printed: source, arrays, bad (nodes whose metadata cannot be used: path,
error). Each array has path, format, shape, data_type, codecs, chunk_shape, shard_shape, chunk_grid,
shard_grid, levels, chunks, shards, bytes, ratio, chunk_nbytes, shared, damaged, errors.

Examples:
  shardfs info volume.zarr
  shardfs info volume.zarr --map               which chunks exist
  shardfs info volume.zarr --map=c/0/3         the same of one shard
  shardfs info volume.zarr --svg map.svg       the same as a picture
  shardfs info volume.zarr --json | jq '.arrays[].bytes.dead'

Exit codes: 0 all could be read, 1 something is damaged (see shardfs verify), 2 it could not be done.";

/// Tell what an array is, how full it is, and what its bytes are used for
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// An array, a hierarchy of arrays, or a file that is an array
    source: PathBuf,
    /// One JSON object
    #[arg(long, conflicts_with = "map")]
    json: bool,
    /// Show which chunks exist, of the array or of the shard with this key
    #[arg(long, value_name = "SHARD-KEY", num_args = 0..=1, require_equals = true)]
    map: Option<Option<PathBuf>>,
    /// Write the map as an SVG picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, requires = "svg")]
    force: bool,
    /// Level of nested sharding whose chunks are meant, 1 the outermost; usually the innermost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    level: Option<u8>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let config = OpenConfig { level: args.level.map(usize::from), ..OpenConfig::default() };
    let source = Source::open(&args.source, config)?.for_one_pass();
    let picture = picture(args, &source)?;
    let chosen = match &args.map {
        Some(Some(key)) => vec![shard_of(&source, key)?],
        _ => source.arrays().map(|array| (array, None)).collect(),
    };
    let mut output = Output::new().map_err(|error| Failure::System(error.to_string()))?;
    let mut told = Told::default();
    for (array, shard) in chosen {
        // One at a time: what is known of an array is told before the next one is looked at.
        let (about, maps) = look(args, &source, array, shard.as_deref(), output.is_terminal());
        told.is_damaged |= about.contents.is_damaged();
        if let Some((title, path)) = &picture {
            let map = maps.last().ok_or_else(|| Failure::System("there is no map".into()))?;
            save(path, &svg(map, title), args.force).map_err(|error| {
                let hint = if error.kind() == io::ErrorKind::AlreadyExists {
                    "; --force replaces it"
                } else {
                    ""
                };
                Failure::System(format!("{}: {error}{hint}", shown(&path)))
            })?;
        }
        if args.json {
            told.arrays.push(object(&about));
            continue;
        }
        let map = maps.first().filter(|_| args.map.is_some());
        let text = text::about(&about, map, text::has_colours(output.is_terminal()));
        let gap = if std::mem::replace(&mut told.any, true) { "\n" } else { "" };
        let put = output.put(gap.as_bytes()).and_then(|()| output.put(text.as_bytes()));
        if put.is_err() {
            return unless_closed(put);
        }
    }
    finish(args, &source, told, output)
}

/// What was told so far.
#[derive(Default)]
struct Told {
    any: bool,
    arrays: Vec<Value>,
    is_damaged: bool,
}

fn finish(args: &Args, source: &Source, told: Told, mut output: Output) -> Result<(), Failure> {
    let bad: Vec<_> = source.bad_nodes().collect();
    let text = if args.json {
        let node = |(path, error): &(&Path, &crate::fs::NodeError)| json!({"path": path.to_string_lossy(), "error": error.to_string()});
        let document = json!({
            "source": source.name.to_string_lossy(),
            "arrays": told.arrays,
            "bad": bad.iter().map(node).collect::<Vec<_>>(),
        });
        format!("{document:#}\n")
    } else {
        let line = |(path, error): &(&Path, &crate::fs::NodeError)| {
            format!("{}: {}\n", shown(path), Line(error))
        };
        bad.iter().map(line).collect()
    };
    unless_closed(output.put(text.as_bytes()).and_then(|()| output.finish()))?;
    if told.is_damaged || !bad.is_empty() {
        return Err(Failure::Found(String::new()));
    }
    Ok(())
}

/// Cells of a picture for a file: enough for a screen.
const PICTURE_CELLS: u64 = 1 << 16;
/// Pictures in it.
const PICTURES: u64 = 64;

fn look(
    args: &Args,
    source: &Source,
    array: &Array,
    shard: Option<&[u64]>,
    is_terminal: bool,
) -> (ArrayInfo, Vec<Map>) {
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
        maps.push(map(MapSize { columns: edge, rows: edge, pictures: PICTURES }));
    }
    let progress = Progress::new(Unit::Things("chunks"), None);
    let about = info(source, array, &maps, &mut |chunks| progress.add(chunks));
    (about, maps)
}

/// The title and the file of the picture, if there is to be one.
fn picture(args: &Args, source: &Source) -> Result<Option<(String, PathBuf)>, Failure> {
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
    if args.force && path.symlink_metadata().is_ok() {
        check_apart(&args.source, path)?;
    }
    if !args.force && path.symlink_metadata().is_ok() {
        return Err(Failure::System(format!("{}: it exists; --force replaces it", shown(&path))));
    }
    let title = match &args.map {
        Some(Some(key)) => format!("{}: {}", shown(&args.source), shown(&key)),
        _ => shown(&args.source).to_string(),
    };
    Ok(Some((title, path.clone())))
}

/// Puts a file there at once, with all of its content.
fn save(path: &Path, content: &str, force: bool) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(parent.unwrap_or(Path::new(".")))?;
    file.write_all(content.as_bytes())?;
    let readable: fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(readable)?;
    if force {
        file.persist(path)?
    } else {
        file.persist_noclobber(path)?
    };
    Ok(())
}

/// The array and the coordinates of the shard with a key.
fn shard_of<'a>(source: &'a Source, key: &Path) -> Result<(&'a Array, Option<Vec<u64>>), Failure> {
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
            return Ok((array, Some(coords)));
        }
    }
    Err(Failure::System(format!("{}: no shard of the source has this key", shown(&key))))
}

fn object(about: &ArrayInfo) -> Value {
    let ArrayInfo { path, kind, contents } = about;
    let Kind { format, shape, data_type, codecs, chunk_shape, shard_shape, .. } = kind;
    let level = |level: &Level| {
        json!({
            "chunk_shape": level.chunk_shape,
            "chunks_per_shard": level.chunks_per_shard,
            "index_location": if level.index_at_start { "start" } else { "end" },
            "index": level.index,
            "codecs_after": level.after,
        })
    };
    let Contents { possible, present, outside, shards_possible, shards, .. } = contents;
    let spread = contents.spread().map(|spread| {
        json!({
            "smallest": spread.smallest, "median": spread.median, "largest": spread.largest,
            "median_is_exact": spread.is_exact,
        })
    });
    json!({
        "path": path.to_string_lossy(),
        "format": format, "shape": shape, "data_type": data_type, "codecs": codecs,
        "chunk_shape": chunk_shape, "shard_shape": shard_shape,
        "chunk_grid": kind.chunk_grid, "shard_grid": kind.shard_grid,
        "levels": kind.levels.iter().map(level).collect::<Vec<_>>(),
        "chunks": {"present": present, "possible": possible, "outside": outside},
        "shards": {"present": shards, "possible": shards_possible},
        "bytes": {
            "files": contents.nbytes, "live": contents.live, "overhead": contents.overhead,
            "dead": contents.dead, "decoded": contents.decoded,
        },
        "ratio": text::ratio(contents),
        "chunk_nbytes": spread,
        "shared": contents.shared,
        "damaged": {"shards": contents.damaged_shards, "entries": contents.damaged_entries},
        "errors": contents.errors,
    })
}
