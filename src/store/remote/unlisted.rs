//! What a store has whose names cannot be listed: a web server, or a bucket that lets read its objects alone.
//! Single names are tried, and metadata tells of others.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::Instant;

use super::client::{If, Wanted};
use super::directories::{Directories, show};
use super::error::RequestError;
use super::named::{NamedNodes, Nodes};
use super::names::Name;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::named_nodes::named_nodes;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::memory::ROOM;
use crate::store::document::METADATA_FILE;
use crate::store::storage::Visit;

/// Names by which it is found out whether a web server has a directory: it lists none.
const NODE_DOCUMENTS: [&str; 3] = [METADATA_FILE, ZARRAY, ZGROUP];

/// Documents in a directory that has one of the others.
const DOCUMENTS_BESIDE: [(&str, &str); 3] =
    [(ZARRAY, ZATTRS), (ZGROUP, ZATTRS), (ZGROUP, ZMETADATA)];

/// Finds out what a web server has at a path. It is a directory if there is a document of a node
/// in it.
pub(super) fn find(directories: &Directories, path: &Path) -> io::Result<Option<Name>> {
    let at = Instant::now();
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_document = name.starts_with('.') || name.ends_with(".json");
    // A server may refuse some of these names, and have the object.
    let (mut is_directory, mut refused) = (false, None);
    for document in NODE_DOCUMENTS.iter().filter(|_| !is_document) {
        match directories.head(&path.join(document)) {
            Ok(found) => is_directory = found.is_some(),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                refused = refused.or(Some(error));
            }
            Err(error) => return Err(error),
        }
        if is_directory {
            break;
        }
    }
    let found = match is_directory {
        true => Some(Name::Directory),
        false => directories.head(path)?.map(Name::Object),
    };
    if let (None, Some(error)) = (&found, refused) {
        return Err(error);
    }
    directories.names.note(path, at, found.clone());
    Ok(found)
}

/// Visits the documents in a directory of a web server, which does not tell what else is there, and the nodes
/// below it that they, and those above it, name.
pub(super) fn list(
    directories: &Directories,
    named: &NamedNodes,
    (path, from): (&Path, u64),
    visit: &mut Visit<'_>,
) -> io::Result<()> {
    let mut found: Vec<(&str, Name)> = Vec::new();
    for name in NODE_DOCUMENTS {
        found.extend(document(directories, &path.join(name))?.map(|what| (name, what)));
    }
    for (of, name) in DOCUMENTS_BESIDE {
        let has = |name: &str| found.iter().any(|(other, _)| *other == name);
        if has(of) && !has(name) {
            found.extend(document(directories, &path.join(name))?.map(|what| (name, what)));
        }
    }
    let nodes = named_below(directories, named, path)?;
    found.extend(nodes.iter().map(|name| (name.as_str(), Name::Directory)));
    for ((name, what), next) in found.iter().zip(1..) {
        if next > from && show(visit, name, what, next).is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns the document at a path.
fn document(directories: &Directories, path: &Path) -> io::Result<Option<Name>> {
    match directories.names.known(path) {
        Some(known) => Ok(known),
        None => directories.find_object(path),
    }
}

/// Returns the names in a directory of nodes that the documents in it, and in those above it, name.
fn named_below(
    directories: &Directories,
    named: &NamedNodes,
    directory: &Path,
) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for above in directory.ancestors() {
        let below = directory.strip_prefix(above).unwrap_or(directory);
        for name in [METADATA_FILE, ZMETADATA, ZATTRS] {
            for node in named_in(directories, named, &above.join(name))?.iter() {
                let next = Path::new(node).strip_prefix(below).ok();
                let next = next.and_then(|rest| rest.iter().next()?.to_str());
                names.extend(next.map(str::to_owned));
            }
        }
    }
    Ok(names)
}

/// Returns the paths of nodes that a document names, none if there is no such document.
fn named_in(directories: &Directories, named: &NamedNodes, path: &Path) -> io::Result<Nodes> {
    if let Some(nodes) = named.known(path) {
        return Ok(nodes);
    }
    let (at, mut nodes) = (Instant::now(), BTreeSet::new());
    let found = match document(directories, path) {
        // Servers refuse names that begin with a dot. Nothing is absent because it is not named here.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => None,
        found => found?,
    };
    if let Some(Name::Object(object)) = found
        && (1..=MAX_METADATA_BYTES).contains(&object.nbytes)
    {
        let key = directories.key(path)?;
        let wanted = Wanted::Range(0, object.nbytes);
        match directories.client.get(&key, wanted, If::Any) {
            Ok(answer) => {
                let _room = ROOM.take(json::memory(&answer.bytes))?;
                nodes = named_nodes(&answer.bytes);
            }
            // It was removed, or replaced, meanwhile.
            Err(RequestError::Absent | RequestError::BehindEnd | RequestError::Replaced) => (),
            Err(error) => return Err(directories.failed(&key, &error)),
        }
    }
    Ok(named.note(path, at, nodes))
}
