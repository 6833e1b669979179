//! Finding all sharded arrays of a source.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FsConfig;
use super::error::{METADATA_FILE, NodeError};
use super::nodes::{ArrayView, Node, NodeKind, Nodes};
use crate::format::back::is_sharded;
use crate::format::draft2022;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::store::journal::WORK_DIRECTORY;
use crate::store::storage::{FileKind, Storage};

/// The directories of all sharded arrays of a source, whose own metadata can be read.
pub fn sharded_arrays(storage: &dyn Storage) -> std::io::Result<Vec<PathBuf>> {
    find(storage, false)
}

/// Those, and others in which a mount has a journal, or has left one: with arrays of other formats.
pub fn written_arrays(storage: &dyn Storage) -> std::io::Result<Vec<PathBuf>> {
    find(storage, true)
}

fn find(storage: &dyn Storage, with_journals: bool) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, mut directories) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(directory) = directories.pop() {
        let document = document_at(storage, &directory.join(METADATA_FILE));
        if let Some(document) = document {
            if draft2022::is_hierarchy(&document).unwrap_or(false) {
                find_in_draft(storage, &directory, &mut found)?;
                continue;
            }
            if document.get("node_type").and_then(serde_json::Value::as_str) == Some("array") {
                if is_sharded(&document) {
                    found.push(directory);
                }
                // Below an array there are chunks only.
                continue;
            }
        }
        each_entry(storage, &directory, &mut |path, kind| {
            let is_directory = kind == Some(FileKind::Directory);
            if is_directory && path.ends_with(WORK_DIRECTORY) {
                found.extend(with_journals.then(|| directory.clone()));
            } else if is_directory {
                directories.push(path);
            }
        })?;
    }
    Ok(found)
}

/// The same for a hierarchy of the draft of 2022: its arrays' documents stand together.
fn find_in_draft(
    storage: &dyn Storage,
    hierarchy: &Path,
    found: &mut Vec<PathBuf>,
) -> std::io::Result<()> {
    let mut directories = vec![draft2022::metadata_directory(hierarchy)];
    while let Some(directory) = directories.pop() {
        each_entry(storage, &directory, &mut |path, kind| {
            if kind == Some(FileKind::Directory) {
                directories.push(path);
            } else if let Some(data) = draft2022::data_of(hierarchy, &path)
                && document_at(storage, &path).is_some_and(|document| is_sharded(&document))
            {
                found.push(data);
            }
        })?;
    }
    Ok(())
}

fn each_entry(
    storage: &dyn Storage,
    directory: &Path,
    act: &mut dyn FnMut(PathBuf, Option<FileKind>),
) -> std::io::Result<()> {
    storage.list(directory, 0, &mut |item| {
        act(directory.join(item.name), item.kind);
        std::ops::ControlFlow::Continue(())
    })
}

/// A document, if it can be read.
fn document_at(storage: &dyn Storage, path: &Path) -> Option<serde_json::Value> {
    let read = || {
        let file = storage.open(path)?;
        let size = file.stat()?.size.min(MAX_METADATA_BYTES);
        let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        std::io::Result::Ok(text)
    };
    json::parse(&read().ok()?).ok()
}

/// A sharded array of a source, or its directory and what is wrong with it.
pub type OpenedArray = Result<Arc<ArrayView>, (PathBuf, NodeError)>;

/// All sharded arrays of a source, each as far as its metadata can be used.
pub fn open_arrays(storage: &Arc<dyn Storage>) -> std::io::Result<Vec<OpenedArray>> {
    let nodes = Nodes::new(Arc::clone(storage), &FsConfig::default());
    let open = |directory: PathBuf| match nodes.check(&directory) {
        Ok(Node { kind: NodeKind::Sharded(array), .. }) => Some(Ok(array)),
        // Changed since it was found.
        Ok(_) => None,
        Err(error) => Some(Err((directory, error))),
    };
    Ok(sharded_arrays(&**storage)?.into_iter().filter_map(open).collect())
}
