//! Consolidated metadata of an array that is stored in another form than it was written in.
//!
//! Groups may describe the arrays below them, and their readers look no further. A group that was written before an
//! array describes it as it was written, and says nothing of shards.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::content::Content;
use super::document::METADATA_FILE;
use super::error::{StoreError, io_error};
use super::put::{check_can_put, put_file};
use super::storage::{PosixStorage, if_present};
use crate::format::from_twin::describe_stored;
use crate::format::json;
use crate::memory::ROOM;

/// Member of a group that describes what is below it.
const CONSOLIDATED: &[u8] = b"\"consolidated_metadata\"";

/// Makes the groups above an array, which is at `directory`, describe it as it is stored. Returns those that have
/// described it otherwise. `storage` is the whole source.
///
/// What a document says besides stays, also of a document that cannot be read.
pub(crate) fn describe_in_groups(
    storage: &dyn PosixStorage,
    directory: &Path,
    stored: &Value,
) -> io::Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    each_group(storage, directory, stored, &mut |above, group| {
        let text = Content::Memory(Arc::new(json::to_text(group)));
        put_file(storage, &above.join(METADATA_FILE), &text)?;
        changed.push(above.to_owned());
        Ok(())
    })?;
    Ok(changed)
}

/// Checks that the groups can be written that [`describe_in_groups`] would change.
pub(crate) fn check_groups(
    storage: &dyn PosixStorage,
    directory: &Path,
    stored: &Value,
) -> Result<(), StoreError> {
    each_group(storage, directory, stored, &mut |above, _| check_can_put(storage, above))
        .map_err(io_error(directory))
}

/// Visits the groups above an array that describe it otherwise than it is stored, with what they are to be.
fn each_group(
    storage: &dyn PosixStorage,
    directory: &Path,
    stored: &Value,
    visit: &mut dyn FnMut(&Path, &Value) -> io::Result<()>,
) -> io::Result<()> {
    for above in directory.ancestors().skip(1) {
        let below = directory.strip_prefix(above).ok().and_then(Path::to_str);
        let text = text_of(storage, &above.join(METADATA_FILE))?;
        let (Some(below), Some(text)) = (below, text) else { continue };
        let _room = ROOM.take(json::memory(&text))?;
        let Ok(mut group) = json::parse(&text) else { continue };
        if describe_stored(&mut group, below, stored) {
            visit(above, &group)?;
        }
    }
    Ok(())
}

/// Returns the text of a document that may have consolidated metadata. `None` if it has none, is none, or is
/// behind a link, behind which nothing is written.
fn text_of(storage: &dyn PosixStorage, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match if_present(storage.open_plain(path)) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => None,
        file => file?,
    };
    let Some(file) = file else { return Ok(None) };
    let text = match super::document::text_of(&*file) {
        Err(error) if error.raw_os_error() == Some(libc::EFBIG) => return Ok(None),
        text => text?,
    };
    let is_consolidated = text.windows(CONSOLIDATED.len()).any(|part| part == CONSOLIDATED);
    Ok(is_consolidated.then_some(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::memory::MemoryStorage;
    use crate::store::storage::Storage;

    #[test]
    fn every_group_above_describes_an_array_as_it_is_stored() {
        let keys = json!({"name": "default", "configuration": {"separator": "/"}});
        let array = |chunk: u64, codecs: Value, attributes: Value| {
            json!({"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8",
                "fill_value": 0, "chunk_key_encoding": keys, "codecs": codecs, "attributes": attributes,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}}})
        };
        let written = array(2, json!([{"name": "bytes"}]), json!({"a": 1}));
        let sharding = json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [2],
            "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}]}}]);
        let stored = array(4, sharding.clone(), json!({}));
        let group = |path: &str| {
            json!({"zarr_format": 3, "node_type": "group", "consolidated_metadata": {
                "kind": "inline", "must_understand": false,
                "metadata": {path: written, "other": written}}})
        };
        let storage = MemoryStorage::default();
        storage.replace("zarr.json", group("g/a").to_string());
        storage.replace("g/zarr.json", group("a").to_string());
        storage.replace("g/a/c/0", "");
        let describe =
            || describe_in_groups(storage.posix().unwrap(), Path::new("g/a"), &stored).unwrap();
        assert_eq!(describe(), [Path::new("g"), Path::new("")]);
        for (document, path) in [("zarr.json", "g/a"), ("g/zarr.json", "a")] {
            let text = text_of(&storage, Path::new(document)).unwrap().unwrap();
            let found: Value = serde_json::from_slice(&text).unwrap();
            let nodes = &found["consolidated_metadata"]["metadata"];
            // Of the attributes, those that the group knows.
            assert_eq!(nodes[path], array(4, sharding.clone(), json!({"a": 1})), "{document}");
            assert_eq!(nodes["other"], written, "{document}");
        }
        assert!(describe().is_empty());
    }
}
