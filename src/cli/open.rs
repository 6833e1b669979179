//! Opening the source of a command.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;

use super::help::Words;
use super::remote::RemoteArgs;
use crate::source::{Format, OpenConfig, OpenError, Source};

const FORMATS: Words = Words(&Format::WORDS);

/// What a source is, where its contents do not say so.
#[derive(Debug, clap::Args)]
pub(super) struct FormatArgs {
    /// What SOURCE is: zarr, draft2022, bloscpack, blosc2, blz or wkw [default: auto, by what is in it]
    #[arg(long, value_name = "FORMAT", value_parser = FORMATS.try_map(|name| Chosen::named(&name)))]
    #[arg(hide_possible_values = true)]
    format: Option<Chosen>,
}

/// A format that is named; `None` is `auto`.
#[derive(Debug, Clone, Copy)]
struct Chosen(Option<Format>);

impl Chosen {
    fn named(name: &str) -> Result<Self, String> {
        format(name).map(Self)
    }
}

/// Parses the name of a format of sources; `None` for `auto`, detection by contents.
pub(super) fn format(name: &str) -> Result<Option<Format>, String> {
    match (Format::named(name), name) {
        (Some(format), _) => Ok(Some(format)),
        (None, "auto") => Ok(None),
        (None, _) => {
            Err(format!("it is none of auto, {}", Format::NAMES.map(|(name, _)| name).join(", ")))
        }
    }
}

impl FormatArgs {
    /// Returns whether the format is named, or its detection asked for.
    pub(super) fn is_given(&self) -> bool {
        self.format.is_some()
    }

    /// Returns the format; `None` detects it.
    pub(super) fn format(&self) -> Option<Format> {
        self.format.and_then(|chosen| chosen.0)
    }
}

/// Level of nested sharding whose chunks a command is about.
#[derive(Debug, clap::Args)]
pub(super) struct LevelArgs {
    /// Level of nested sharding whose chunks are meant: 1 the outermost, 0 the shards themselves; the
    /// innermost if not given, and of arrays with fewer levels
    #[arg(long, value_name = "N")]
    pub level: Option<usize>,
}

/// Opens the source of a command. Messages call its root by its path from then on.
pub(super) fn open(
    path: &Path,
    config: OpenConfig,
    remote: &RemoteArgs,
) -> Result<Source, OpenError> {
    let source = Source::open_place(path, config, &remote.options())?;
    let failed = |error| OpenError::NoLevel { path: path.to_owned(), error };
    source.check_level().map_err(failed)?;
    // A URL has a last name as well.
    crate::text::name_root(&path.canonicalize().unwrap_or_else(|_| source.name.clone()));
    Ok(source)
}

/// Returns the directory to open for a source whose path is absolute, and the file name if the
/// source is a file.
pub(super) fn root_of(source: &Path) -> std::io::Result<(PathBuf, Option<OsString>)> {
    match (source.parent(), source.file_name()) {
        (Some(directory), Some(name)) if source.metadata()?.is_file() => {
            Ok((directory.to_owned(), Some(name.to_owned())))
        }
        _ => Ok((source.to_owned(), None)),
    }
}
