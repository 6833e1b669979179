//! `shardfs create`.

mod report;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use serde_json::{Map, Value};

use self::report::Report;
use super::copy::location;
use super::exit::{Failure, system};
use super::help::Words;
use super::list::List;
use super::mounts::{check_not_made_in_mount, check_unused};
use super::output::print;
use super::remote::{RemoteArgs, place_of};
use super::shard_rule::{NewShard, of_new_array};
use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::chunk_layout::{ChunkShapes, Firmness, LayoutError, Of, Wanted, choose};
use crate::format::data_type::{DataType, DataTypeError};
use crate::format::index::{IndexLocation, product};
use crate::format::json::parse;
use crate::format::new_array::{NewArray, Sizes, codec_from_text};
use crate::format::sample;
use crate::format::shard_rule::{ChunkGrid, ShardRule};
use crate::store::remote::{Place, SourceUrl};
use crate::text::{count, shown};
use crate::tools::array::{Destination, Stored, check_finished, create};

const AFTER_HELP: &str = "\
Shapes are chosen by TensorStore's rule, so both make the same array of the same wishes. What is not \
given is found: inner chunks and shards of about 1048576 elements each, as near to cubes as --aspect \
says; inner chunks divide shards. In --chunk and --shard -1 is the array's whole extent, and 0 leaves \
the choice. Where the two do not go together, what is soft gives way, and two hard ones are an error; \
-1 is always soft. With --shard 256M or x8,8 shards have so many bytes of decoded data at most, or chunks \
along the last axes, as with `shardfs pack`. Equal shapes of inner chunk and shard make an array without shards.

Data types: bool, int2 to int64, uint2 to uint64, float16, float32, float64, bfloat16, float8_e4m3 and \
the like, complex64, complex128, r8, r16, ... Others are JSON objects with a name and a configuration: \
numpy.datetime64 and numpy.timedelta64 with unit and scale_factor, NumPy's U5 as \
'{\"name\": \"fixed_length_utf32\", \"configuration\": {\"length_bytes\": 20}}', S5 as \
null_terminated_bytes and V5 as raw_bytes with length_bytes 5. Texts of any length have no shards.

Codecs: zstd, zstd:3, gzip:5, blosc:lz4:5:shuffle, crc32c, or a JSON object. The codec bytes, \
little-endian, is added where it belongs. Without --codec chunks are stored as they are, as by \
TensorStore: their readers need to know no codec. zarr-python's own choice is --codec zstd.

Examples:
  shardfs create volume.zarr --shape 1000,2000,3000 --dtype uint16 \\
      --codec zstd --chunk 64,64,64 --shard 512,512,512
  shardfs create --dry-run planned.zarr --shape 1000,2000,3000 --dtype float32 \\
      --read-elements 32768 --write-elements 100000000 --aspect 1,2,2
  shardfs create slices.zarr --shape 5000,2048,2048 --dtype uint16 --chunk 1,512,512 --shard 256M
  shardfs create table.zarr --shape 1000000,12 --dtype float64 \\
      --chunk 1000,-1 --soft-shard 100000,12
  shardfs create times.zarr --shape 365 \\
      --dtype '{\"name\": \"numpy.datetime64\", \"configuration\": {\"unit\": \"D\", \"scale_factor\": 1}}'
  shardfs create s3://bucket/volume.zarr --shape 1000,2000,3000 --dtype uint16 --shard 256M
  shardfs create --sample sample.zarr      a small array with something in it, to try shardfs on

Exit codes: 0 done, 2 it could not be done.";

/// Data types that an array can have, after the message that one is not.
const TYPES: &str = "; there are bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, \
                     float64, complex64, complex128, r8, r16, ..., and as JSON objects \
                     numpy.datetime64, numpy.timedelta64, fixed_length_utf32, null_terminated_bytes, \
                     raw_bytes (see `shardfs create --help`)";

const KEYS: Words = Words(&["default", "v2"]);

/// Create an array
///
/// DIR becomes a sharded Zarr v3 array without any chunks: all of it reads as the fill value. Of what is in a store
/// nothing is replaced.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Directory to create, or a place in a store: s3://, gs:// or az://; it must not exist, a directory above must
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// A small sharded array to try shardfs on
    #[arg(long, conflicts_with_all = ["shape", "dtype", "dry_run", "force", "json"])]
    sample: bool,
    /// Extents in elements; '' for an array of one element without dimensions
    #[arg(long, value_name = "N,N,...", required_unless_present = "sample")]
    #[arg(allow_hyphen_values = true)]
    shape: Option<List<u64>>,
    /// Data type: uint8, int16, float32, complex64, bool, r24, ... or a JSON object with a name
    #[arg(long, value_name = "TYPE", required_unless_present = "sample")]
    dtype: Option<String>,
    /// Replace an array that is there; it is deleted. Nothing but an array or an empty directory is
    #[arg(long)]
    force: bool,
    /// Print what would be made, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print it as one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    rest: RestArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// How chunks are laid out.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Chunks and shards")]
struct LayoutArgs {
    /// Shape of inner chunks: what is read at once
    #[arg(long, value_name = "N,N,...", visible_alias = "read-chunk", allow_hyphen_values = true)]
    chunk: Option<List<i64>>,
    /// Shards: what is one file. A shape, chunks along the last axes (x8,8), or bytes at most (256M)
    #[arg(long, value_name = "N,N,...|xN,...|SIZE", visible_alias = "write-chunk")]
    #[arg(allow_hyphen_values = true, value_parser = of_new_array)]
    shard: Option<NewShard>,
    /// Shape of inner chunks that gives way to --shard
    #[arg(
        long,
        value_name = "N,N,...",
        visible_alias = "soft-read-chunk",
        allow_hyphen_values = true
    )]
    soft_chunk: Option<List<i64>>,
    /// Shape of shards that gives way to --chunk
    #[arg(
        long,
        value_name = "N,N,...",
        visible_alias = "soft-write-chunk",
        allow_hyphen_values = true
    )]
    soft_shard: Option<List<i64>>,
    /// Elements of an inner chunk, about, and of a shard: then there are no shards
    #[arg(long, value_name = "N")]
    elements: Option<u64>,
    /// Elements of an inner chunk, about
    #[arg(long, value_name = "N")]
    read_elements: Option<u64>,
    /// Elements of a shard, about
    #[arg(long, value_name = "N")]
    write_elements: Option<u64>,
    /// Lengths of inner chunks and of shards to each other
    #[arg(long, value_name = "A,A,...", allow_hyphen_values = true)]
    aspect: Option<List<f64>>,
    /// Lengths of inner chunks to each other
    #[arg(long, value_name = "A,A,...", allow_hyphen_values = true)]
    read_aspect: Option<List<f64>>,
    /// Lengths of shards to each other
    #[arg(long, value_name = "A,A,...", allow_hyphen_values = true)]
    write_aspect: Option<List<f64>>,
    /// Order of the axes in an inner chunk, slowest first: C, F, or a list such as 2,0,1
    #[arg(long, value_name = "ORDER")]
    order: Option<String>,
}

/// What else an array's metadata says.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Content and names")]
struct RestArgs {
    /// A codec of inner chunks; more than one in the order of encoding
    #[arg(long = "codec", value_name = "CODEC")]
    codecs: Vec<String>,
    /// Fill value; the default is 0, false, or NaT
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    fill: Option<String>,
    /// Names of the dimensions; one left empty has none
    #[arg(long, value_name = "NAME,NAME,...")]
    dim_names: Option<String>,
    /// Attributes: a JSON object, or @ and the name of a file with one
    #[arg(long, value_name = "JSON|@FILE")]
    attrs: Option<String>,
    /// Where shards have their index; the default is the end
    #[arg(long, value_name = "start|end", value_parser = location())]
    #[arg(hide_possible_values = true)]
    index_location: Option<IndexLocation>,
    /// How chunks are called: c/0/1 (default) or 0.1 (v2)
    #[arg(long, value_name = "default|v2", default_value = "default", hide_default_value = true)]
    #[arg(value_parser = KEYS.try_map(|text| prefix(&text)), hide_possible_values = true)]
    key_encoding: Prefix,
    /// What stands between the numbers of a name; the default is / for default and . for v2
    #[arg(long, value_name = "/|.", value_parser = separator)]
    separator: Option<Separator>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let directory = match place_of(&args.directory)? {
        Place::Url(url) => return create_in_store(args, &url),
        Place::Path(directory) => directory,
    };
    let directory = &directory;
    check_not_made_in_mount(directory)?;
    if args.sample {
        check_finished(directory).map_err(system)?;
        return create_sample(directory).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let why = "it exists, and --sample replaces nothing: give another name";
                system(format!("{}: {why}", shown(&directory)))
            }
            io::ErrorKind::NotFound if !directory.exists() => {
                let above = directory.parent().unwrap_or(directory);
                system(format!("{}: there is no such directory; make it first", shown(&above)))
            }
            _ => system(format!("{}: {error}", shown(&directory))),
        });
    }
    let array = args.array()?;
    let (document, sizes) = array.document().map_err(system)?;
    let destination = Destination::find(directory, args.force).map_err(system)?;
    let replaces = destination.replaces();
    if replaces {
        check_unused(&destination.path())?;
    }
    if !args.dry_run {
        create(destination, &document).map_err(system)?;
    }
    args.report(&array, (&document, &sizes), replaces)
}

/// Creates an array in a store.
fn create_in_store(args: &Args, url: &SourceUrl) -> Result<(), Failure> {
    if args.sample {
        let name = shown(&args.directory);
        return Err(system(format!("{name}: it is a URL, and --sample makes a directory")));
    }
    let array = args.array()?;
    let (document, sizes) = array.document().map_err(system)?;
    let stored = Stored::open(url, &args.remote.options()).map_err(system)?;
    let done = match args.dry_run {
        true => stored.check_absent(),
        false => stored.create(&document),
    };
    done.map_err(system)?;
    args.report(&array, (&document, &sizes), false)
}

impl Args {
    /// Prints what was created, or would be.
    fn report(
        &self,
        array: &NewArray,
        (document, sizes): (&Value, &Sizes),
        replaces: bool,
    ) -> Result<(), Failure> {
        let report = Report { directory: &self.directory, array, sizes, document };
        let text = match (self.json, self.dry_run) {
            (true, is_dry) => report.json(!is_dry, replaces),
            (false, true) => report.plan(),
            (false, false) => report.done(replaces),
        };
        print(&text)
    }

    fn array(&self) -> Result<NewArray, Failure> {
        let Self { shape, dtype, rest, .. } = self;
        let shape = shape.as_ref().map(|shape| shape.0.clone()).unwrap_or_default();
        let data_type = named(dtype.as_deref().unwrap_or_default(), "--dtype")?;
        let item = DataType::parse(&data_type).map_err(unknown_type)?;
        let fill = rest.fill.as_ref().map(|text| item.fill_from_text(text)).transpose();
        let codecs = rest.codecs.iter().map(|text| codec_from_text(text, &item));
        Ok(NewArray {
            chunks: self.layout.chunks(&shape, item.nbytes())?,
            order: self.layout.order(shape.len())?,
            fill_value: fill.map_err(system)?,
            codecs: codecs.collect::<Result<_, _>>().map_err(system)?,
            index_location: rest.index_location,
            keys: rest.keys(),
            dimension_names: rest.names(),
            attributes: rest.attributes()?,
            data_type,
            shape,
        })
    }
}

impl LayoutArgs {
    fn chunks(&self, shape: &[u64], item_nbytes: usize) -> Result<ChunkShapes, Failure> {
        let mut both = [Of::Read, Of::Write].map(|of| Wanted::nothing(of, shape.len()));
        self.want(&mut both).map_err(system)?;
        let [read, write] = both;
        let chosen = match choose(shape, &read, &write) {
            // A scalar array has one element, and one chunk for it.
            Err(LayoutError::NoAxes) => ChunkShapes { read: Vec::new(), write: Vec::new() },
            chosen => chosen.map_err(system)?,
        };
        match &self.shard {
            Some(NewShard::Rule(rule)) => self.shards_by(rule, shape, item_nbytes, chosen.read),
            Some(NewShard::Lengths(_)) | None => Ok(chosen),
        }
    }

    /// Returns the shapes of inner chunks, and of shards by a rule.
    fn shards_by(
        &self,
        rule: &ShardRule,
        shape: &[u64],
        item_nbytes: usize,
        chunk_shape: Vec<u64>,
    ) -> Result<ChunkShapes, Failure> {
        if self.wishes_for_shards() {
            let text = "--shard with a number of chunks or of bytes says all about the shards: leave the \
                        other options for them out, or write their shape";
            return Err(system(text));
        }
        if let Some(named) = rule.rank().filter(|_| !rule.fits(shape.len())) {
            let (named, rank) = (count(named, "number"), count(shape.len(), "dimension"));
            return Err(system(format!("--shard has {named}, the array {rank}")));
        }
        let items = product(&chunk_shape).unwrap_or(u64::MAX);
        let grid = ChunkGrid {
            chunks: shape
                .iter()
                .zip(&chunk_shape)
                .map(|(all, chunk)| all.div_ceil(*chunk))
                .collect(),
            chunk_shape: &chunk_shape,
            chunk_nbytes: items.saturating_mul(item_nbytes as u64),
        };
        let write = rule.shape(&grid);
        Ok(ChunkShapes { read: chunk_shape, write })
    }

    /// Returns whether other options than --shard say what shards are like.
    fn wishes_for_shards(&self) -> bool {
        self.soft_shard.is_some()
            || self.elements.or(self.write_elements).is_some()
            || self.write_aspect.is_some()
    }

    fn want(&self, both: &mut [Wanted; 2]) -> Result<(), LayoutError> {
        let shard = match &self.shard {
            Some(NewShard::Lengths(lengths)) => Some(lengths),
            Some(NewShard::Rule(_)) | None => None,
        };
        let shapes =
            [(self.chunk.as_ref(), self.soft_chunk.as_ref()), (shard, self.soft_shard.as_ref())];
        let elements = [self.read_elements, self.write_elements];
        let aspects = [&self.read_aspect, &self.write_aspect];
        let own = shapes.into_iter().zip(elements).zip(aspects);
        for (wanted, (((hard, soft), elements), aspect)) in both.iter_mut().zip(own) {
            for (lengths, firmness) in [(hard, Firmness::Hard), (soft, Firmness::Soft)] {
                if let Some(List(lengths)) = lengths {
                    wanted.shape(lengths, firmness)?;
                }
            }
            for elements in [self.elements, elements].into_iter().flatten() {
                wanted.elements(elements)?;
            }
            for List(ratios) in [&self.aspect, aspect].into_iter().flatten() {
                wanted.aspect(ratios)?;
            }
        }
        Ok(())
    }

    fn order(&self, rank: usize) -> Result<Option<Vec<usize>>, Failure> {
        Ok(match self.order.as_deref() {
            None => None,
            Some("C") => Some((0..rank).collect()),
            Some("F") => Some((0..rank).rev().collect()),
            Some(list) => match list.parse::<List<usize>>() {
                Ok(List(order)) => Some(order),
                Err(error) => {
                    let text = format!("--order {list:?}: {error}; write C, F, or the axes");
                    return Err(system(text));
                }
            },
        })
    }
}

impl RestArgs {
    fn keys(&self) -> KeyEncoding {
        let usual = match self.key_encoding {
            Prefix::None => Separator::Dot,
            _ => Separator::Slash,
        };
        KeyEncoding { prefix: self.key_encoding, separator: self.separator.unwrap_or(usual) }
    }

    fn names(&self) -> Option<Vec<Option<String>>> {
        let name = |name: &str| Some(name.trim().to_owned()).filter(|name| !name.is_empty());
        self.dim_names.as_ref().map(|names| match names.as_str() {
            // An array without dimensions.
            "" => Vec::new(),
            names => names.split(',').map(name).collect(),
        })
    }

    fn attributes(&self) -> Result<Map<String, Value>, Failure> {
        let Some(text) = &self.attrs else { return Ok(Map::new()) };
        let text = match text.strip_prefix('@') {
            Some(file) => {
                fs::read(file).map_err(|error| system(format!("--attrs {file}: {error}")))?
            }
            None => text.clone().into_bytes(),
        };
        match parse(&text) {
            Ok(Value::Object(attributes)) => Ok(attributes),
            Ok(_) => {
                Err(system("--attrs: write a JSON object, or @ and the name of a file with one"))
            }
            Err(error) => Err(system(format!("--attrs: {error}"))),
        }
    }
}

/// Returns a name as a JSON string, or parses a JSON object.
fn named(text: &str, option: &str) -> Result<Value, Failure> {
    if !text.trim_start().starts_with('{') {
        return Ok(text.into());
    }
    parse(text.as_bytes()).map_err(|error| system(format!("{option}: {error}")))
}

/// Returns an error that names the data types if this one is none of them.
fn unknown_type(error: DataTypeError) -> Failure {
    let types = match error {
        DataTypeError::Unknown(_) | DataTypeError::NoFixedSize(_) => TYPES,
        _ => "",
    };
    system(format!("{error}{types}"))
}

fn prefix(text: &str) -> Result<Prefix, String> {
    match text {
        "default" => Ok(Prefix::Apart),
        "v2" => Ok(Prefix::None),
        _ => Err("write default or v2".to_owned()),
    }
}

fn separator(text: &str) -> Result<Separator, String> {
    match text {
        "/" => Ok(Separator::Slash),
        "." => Ok(Separator::Dot),
        _ => Err("write / or .".to_owned()),
    }
}

fn create_sample(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
    // The error is reported; what cannot be removed stays.
    fill_sample(directory).inspect_err(|_| drop(fs::remove_dir_all(directory)))
}

fn fill_sample(directory: &Path) -> io::Result<()> {
    for (name, content) in sample::files() {
        let path = directory.join(name);
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent)?;
        let mut file = tempfile::NamedTempFile::new_in(parent)?;
        file.write_all(&content)?;
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(readable)?;
        file.persist(&path)?;
    }
    Ok(())
}
