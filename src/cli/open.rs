//! Opening the source of a command.

use std::path::Path;

use crate::source::{OpenConfig, OpenError, Source};

/// Opens the source of a command. Messages call its root by its path from then on.
pub(super) fn open(path: &Path, config: OpenConfig) -> Result<Source, OpenError> {
    let source = Source::open(path, config)?;
    if let Ok(path) = path.canonicalize() {
        crate::text::name_root(&path);
    }
    Ok(source)
}
