//! `shardfs create`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::exit::Failure;
use crate::format::sample;

/// Create an array
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory to create; it must not exist
    directory: PathBuf,
    /// A small sharded array to try shardfs on: the only kind for now
    #[arg(long, required = true)]
    sample: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let directory = &args.directory;
    create(directory).map_err(|error| Failure::System(format!("{}: {error}", directory.display())))
}

fn create(directory: &Path) -> io::Result<()> {
    fs::create_dir(directory)?;
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
