//! Names of what is saved, and of what waits to be saved.

use std::path::{Path, PathBuf};

/// Directory of spool files, below the one for changes that could not be committed.
pub(crate) const SPOOL_DIRECTORY: &str = ".spool";
/// Name of the file that holds the path of the source, below the same directory.
pub(crate) const SOURCE_NAME: &str = ".source";
/// Directory of files that are no chunks, by their paths in the view, there and in the spool.
pub(crate) const OTHER_DIRECTORY: &str = ".other";
/// Beginning of the names of directories of chunks that are themselves shards.
const LEVEL_PREFIX: &str = ".level-";
/// Name of a spool file that is still being written.
pub(crate) const OPEN_NAME: &str = "open";

/// Directory in the spool for files without contents, made to see whether as many can be saved.
pub(crate) const REHEARSAL_DIRECTORY: &str = ".rehearsal";

/// Returns the path under which a file is saved that is no chunk: in another view its own path may
/// be that of a chunk.
pub(crate) fn beside_chunks(path: &Path) -> PathBuf {
    Path::new(OTHER_DIRECTORY).join(path)
}

/// Returns the name of the directory of chunks of a level of nested sharding that are themselves
/// shards: the chunks in them have the same keys.
pub(crate) fn level_directory(level: usize) -> String {
    format!("{LEVEL_PREFIX}{level}")
}

/// Returns the level of the chunk with a saved path, `None` for the innermost, and its own path.
pub(crate) fn level_of(saved: &Path) -> (Option<usize>, &Path) {
    let mut names = saved.components();
    let level = names
        .next()
        .and_then(|first| first.as_os_str().to_str()?.strip_prefix(LEVEL_PREFIX)?.parse().ok());
    match level {
        Some(level) => (Some(level), names.as_path()),
        None => (None, saved),
    }
}
