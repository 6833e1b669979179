//! Consolidated metadata of the groups above a node that is created, resized or deleted.
//!
//! Readers that use it read nothing else: a shape of before would be fill values where chunks were
//! removed, and an array that is not listed would not exist.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde_json::{Map, Value};

use super::error::ArrayError;
use super::node::document_in;
use crate::format::json;
use crate::source::{METADATA_FILE, NodeError};
use crate::store::content::Content;
use crate::store::local::LocalStorage;
use crate::store::put::put_file;
use crate::store::storage::Storage;

/// Time to wait for another command that updates the document of a group.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two attempts to lock it.
const RETRY: Duration = Duration::from_millis(10);

/// What a command has done with a node.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    /// An array was created, or has replaced another one.
    Created(&'a Value),
    /// The metadata of an array has changed.
    Changed(&'a Value),
    /// The node was deleted, with everything below it.
    Deleted,
}

/// Lets the consolidated metadata of all groups above a node say what it is now. `node` is absolute
/// and without symbolic links. Groups without consolidated metadata, or that describe other nodes,
/// stay as they are. A directory without a document may be below a group that describes the node all
/// the same; what a document that cannot be read describes is not known.
pub(super) fn update_above(node: &Path, change: Change<'_>) -> Result<(), ArrayError> {
    let mut updated = Ok(());
    for group in node.ancestors().skip(1) {
        let Some(below) = node.strip_prefix(group).ok().and_then(Path::to_str) else { continue };
        let of_group = match document_in(group) {
            Ok(Some(mut document)) => match update(&mut document, below, change) {
                true => update_group(group, below, change),
                false => Ok(()),
            },
            // A pipe or a device lists no nodes.
            Err(ArrayError::Metadata { error: NodeError::NotAFile(_), .. }) => Ok(()),
            found => found.map(drop).map_err(io::Error::other),
        };
        if let Err(error) = of_group {
            updated = Err(ArrayError::Stale { group: group.to_owned(), error });
        }
    }
    updated
}

/// Updates the document of a group as it is once no other command does.
fn update_group(group: &Path, below: &str, change: Change<'_>) -> io::Result<()> {
    let _turn = lock_group(group)?;
    let document = document_in(group).map_err(io::Error::other)?;
    let Some(mut document) = document else { return Ok(()) };
    match update(&mut document, below, change) {
        true => put_document(group, &document),
        false => Ok(()),
    }
}

/// Waits until no other command updates the document of a group, but not for ever: every user who
/// may read the directory can lock it. `None` where the filesystem has no locks.
fn lock_group(group: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::open(group, flags, Mode::empty())?;
    let began = Instant::now();
    loop {
        match fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(directory)),
            Err(Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => thread::sleep(RETRY),
            Err(Errno::WOULDBLOCK) => return Err(Errno::WOULDBLOCK.into()),
            Err(_) => return Ok(None),
        }
    }
}

/// Updates the entry of a node in the consolidated metadata of a group. Returns whether the group
/// has changed.
pub(super) fn update(group: &mut Value, below: &str, change: Change<'_>) -> bool {
    let nodes = group.get_mut("consolidated_metadata").and_then(|it| it.get_mut("metadata"));
    let Some(Value::Object(nodes)) = nodes else { return false };
    match change {
        Change::Created(array) if is_listed(nodes, Path::new(below).parent()) => {
            nodes.insert(below.to_owned(), array.clone()).as_ref() != Some(array)
        }
        Change::Created(array) | Change::Changed(array) => match nodes.get_mut(below) {
            Some(entry) if entry != array => {
                *entry = array.clone();
                true
            }
            _ => false,
        },
        Change::Deleted => {
            let before = nodes.len();
            nodes.retain(|path, _| !Path::new(path).starts_with(below));
            nodes.len() != before
        }
    }
}

/// Returns whether a group is one of `nodes`, or the one that lists them.
fn is_listed(nodes: &Map<String, Value>, group: Option<&Path>) -> bool {
    let group = group.and_then(Path::to_str).unwrap_or_default();
    group.is_empty() || nodes.contains_key(group)
}

fn put_document(group: &Path, document: &Value) -> io::Result<()> {
    let storage = LocalStorage::open_root(group, Arc::default())?;
    let content = Content::Memory(Arc::new(json::to_text(document)));
    put_file(storage.writable()?, Path::new(METADATA_FILE), &content)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_that_update_one_group_at_once_lose_nothing() {
        let group = tempfile::tempdir().unwrap();
        let group = group.path().canonicalize().unwrap();
        let document = json!({"zarr_format": 3, "node_type": "group",
            "consolidated_metadata": {"kind": "inline", "metadata": {}}});
        std::fs::write(group.join(METADATA_FILE), document.to_string()).unwrap();
        let array = json!({"zarr_format": 3, "node_type": "array"});
        let create = |command: usize| {
            for number in 0..10 {
                let path = group.join(format!("{command}-{number}"));
                update_above(&path, Change::Created(&array)).unwrap();
            }
        };
        let create = &create;
        thread::scope(|threads| {
            (0..4).for_each(|command| drop(threads.spawn(move || create(command))));
        });
        let document = document_in(&group).unwrap().unwrap();
        let nodes = document["consolidated_metadata"]["metadata"].as_object().unwrap();
        assert_eq!(nodes.len(), 40);
    }
}
