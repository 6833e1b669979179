//! Documents of all nodes, for references.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::absent::{self, Decided};
use super::chunks::ArrayRefs;
use super::config::Config;
use super::error::{Problem, RefsError};
use super::names::{Urls, inside, text};
use crate::format::chunk_key::KeyEncoding;
use crate::format::document::{Dialect, Shown, show};
use crate::format::json;
use crate::format::zarr2::{self, Missing, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::source::METADATA_FILE;
use crate::source::apart::node_path;
use crate::source::{Array, Linked, Node, Source};

/// A node with its documents as references.
pub(super) struct Prepared<'a> {
    /// References to its documents.
    pub text: Vec<u8>,
    /// References to its chunks if it is an array.
    pub array: Option<ArrayRefs<'a>>,
}

/// Prepares the documents of all nodes and of the directories above them; also returns the problems
/// of those that must be left out.
pub(super) fn prepare<'a>(
    source: &'a Source,
    found: &'a [Node],
    config: &'a Config,
    urls: &'a Urls,
    decided: &'a Decided,
) -> Result<(Vec<Prepared<'a>>, Vec<Problem>), RefsError> {
    // An array may have nodes below it; it is not a group then.
    let arrays = found.iter().filter_map(|node| match node {
        Node::Array(array) => Some(node_path(array)),
        _ => None,
    });
    let done = arrays.collect();
    let bad = found.iter().filter_map(|node| match node {
        Node::Bad(node) => Some(node.directory.as_path()),
        _ => None,
    });
    let bad = bad.collect();
    let mut prepared = Preparing {
        config,
        decided,
        by_path: by_path(found),
        bad,
        first: true,
        done,
        linked: BTreeMap::new(),
        unlisted: BTreeSet::new(),
        is_complete: false,
    };
    let (mut nodes, mut left_out) = (Vec::new(), Vec::new());
    for node in found {
        let found = match node {
            Node::Journal(_) => continue,
            Node::Bad(node) => Err(node_problem(&node.path, &node.error)),
            Node::Group(directory) => prepared.group(source, directory),
            Node::Array(array) => prepared.array(source, array, &node_path(array), urls),
        };
        match found {
            Ok(node) => nodes.push(node),
            Err(Unusable::Problem(problem)) => left_out.push(problem),
            Err(Unusable::Failed(error)) => return Err(error),
        }
    }
    prepared.add_linked(source, urls, &mut nodes, &mut left_out)?;
    Ok((nodes, left_out))
}

/// Returns all arrays and groups by their paths. In the draft of 2022 an array and a group may have
/// the same one; it is that of the array.
fn by_path(found: &[Node]) -> BTreeMap<PathBuf, &Node> {
    let groups = found.iter().filter_map(|node| match node {
        Node::Group(directory) => Some((directory.clone(), node)),
        _ => None,
    });
    let arrays = found.iter().filter_map(|node| match node {
        Node::Array(array) => Some((node_path(array), node)),
        _ => None,
    });
    groups.chain(arrays).collect()
}

/// Documents of a node by name; `None` for a document that it does not have.
type Named = Vec<(&'static str, Option<Value>)>;

struct Preparing<'a> {
    config: &'a Config,
    /// Treatment of absent chunks.
    decided: &'a Decided,
    /// All arrays and groups.
    by_path: BTreeMap<PathBuf, &'a Node>,
    /// Directories of those that cannot be used.
    bad: Vec<&'a Path>,
    /// `true` if nothing was written yet.
    first: bool,
    /// Groups whose documents were written, and all arrays, which write their own.
    done: BTreeSet<PathBuf>,
    /// Arrays that consolidated metadata lists at symbolic links, by the paths of those.
    linked: BTreeMap<PathBuf, &'a Array>,
    /// Symbolic links that consolidated metadata lists and that lead to no node.
    unlisted: BTreeSet<PathBuf>,
    /// `true` if all of `linked` is known. A group at a link may list itself, without an end.
    is_complete: bool,
}

/// Reason why a node has no documents.
enum Unusable {
    Problem(Problem),
    Failed(RefsError),
}

impl From<RefsError> for Unusable {
    fn from(error: RefsError) -> Self {
        Self::Failed(error)
    }
}

fn node_problem(directory: &Path, why: impl ToString) -> Unusable {
    let (directory, why) = (directory.to_owned(), why.to_string());
    Unusable::Problem(Problem::Node { directory, why })
}

impl<'a> Preparing<'a> {
    fn array(
        &mut self,
        source: &'a Source,
        array: &'a Array,
        path: &Path,
        urls: &'a Urls,
    ) -> Result<Prepared<'a>, Unusable> {
        let directory = &array.source.path;
        let problem = |why: String| node_problem(directory, why);
        let twin = || array.twin().ok_or_else(|| problem("it has no form in Zarr v3".to_owned()));
        let own_path = node_path(array);
        let mut absent = None;
        let (documents, keys) = if let Some(documents) = self.as_stored(source, directory)? {
            let treatment = absent::decided(self.decided, &own_path);
            if treatment.missing == Missing::Auto && treatment.has_absent {
                absent = absent::text_as_stored(array);
            }
            (documents, array.source.layout.keys)
        } else if self.config.zarr2 {
            let treatment = absent::decided(self.decided, &own_path);
            let two = zarr2::array(&twin()?, treatment.missing);
            let two = two.map_err(|error| problem(error.to_string()))?;
            if treatment.has_absent {
                absent = absent::text(&two);
            }
            let documents = [(ZARRAY, Some(two.zarray)), (ZATTRS, two.zattrs)];
            (documents.to_vec(), two.keys)
        } else {
            let keys = KeyEncoding::parse(twin()?.get("chunk_key_encoding"));
            let keys = keys.map_err(|error| problem(error.to_string()))?;
            (vec![(METADATA_FILE, Some(twin()?.clone()))], keys)
        };
        let mut text = Vec::new();
        for above in path.ancestors().skip(1).collect::<Vec<_>>().into_iter().rev() {
            if !self.done.contains(above) {
                self.add_group(source, above, &mut text)?;
            }
        }
        self.add(path, documents, &mut text)?;
        let refs = ArrayRefs {
            array: &array.source,
            store: &source.store,
            keys,
            before: inside(&self.key(path, "")?),
            grid: array.source.layout.chunk_grid(),
            urls,
            config: self.config,
            absent,
        };
        Ok(Prepared { text, array: Some(refs) })
    }

    /// Prepares the arrays that consolidated metadata lists at symbolic links: without references
    /// there, readers would see arrays of fill values.
    fn add_linked(
        &mut self,
        source: &'a Source,
        urls: &'a Urls,
        nodes: &mut Vec<Prepared<'a>>,
        left_out: &mut Vec<Problem>,
    ) -> Result<(), RefsError> {
        self.is_complete = true;
        self.done.extend(self.linked.keys().cloned());
        for (path, array) in self.linked.clone() {
            match self.array(source, array, &path, urls) {
                Ok(node) => nodes.push(node),
                Err(Unusable::Problem(problem)) => left_out.push(problem),
                Err(Unusable::Failed(error)) => return Err(error),
            }
        }
        left_out.extend(std::mem::take(&mut self.unlisted).into_iter().map(|directory| {
            let why = "the symbolic link leads to no array or group of the source, so it is left out \
                       of the consolidated metadata";
            Problem::Node { directory, why: why.to_owned() }
        }));
        Ok(())
    }

    fn group(&mut self, source: &Source, directory: &Path) -> Result<Prepared<'a>, Unusable> {
        let mut text = Vec::new();
        if !self.done.contains(directory) {
            self.add_group(source, directory, &mut text)?;
        }
        Ok(Prepared { text, array: None })
    }

    /// Adds the documents of a group, with consolidated metadata of unsharded arrays.
    fn add_group(
        &mut self,
        source: &Source,
        directory: &Path,
        text: &mut Vec<u8>,
    ) -> Result<(), Unusable> {
        if let Some(mut documents) = self.as_stored(source, directory)? {
            for (_, document) in documents.iter_mut().filter(|(name, _)| *name == ZMETADATA) {
                let nodes = document.as_mut().and_then(|document| document.get_mut("metadata"));
                let above = |key: &str| Path::new(key).parent().unwrap_or(Path::new("")).to_owned();
                self.leave_out_bad(source, nodes, &|key| directory.join(above(key)));
            }
            self.done.insert(directory.to_owned());
            return Ok(self.add(directory, documents, text)?);
        }
        let mut group = source.group(directory).map_err(|error| node_problem(directory, error))?;
        let nodes = group.pointer_mut("/consolidated_metadata/metadata");
        self.leave_out_bad(source, nodes, &|key| directory.join(key));
        let shown = show(group.clone(), None, Dialect::V3);
        let group = match shown.map_err(|error| node_problem(directory, error))? {
            Shown::Group(rewritten) => rewritten,
            Shown::AsStored | Shown::Array(..) => group,
        };
        let documents = if self.config.zarr2 {
            let missing = |path: &str| {
                let path = directory.join(path);
                let linked = self.linked.get(&path);
                absent::decided(self.decided, &linked.map_or(path, |array| node_path(array)))
                    .missing
            };
            let two = zarr2::group(&group, &missing);
            vec![(ZGROUP, Some(two.zgroup)), (ZATTRS, two.zattrs), (ZMETADATA, two.zmetadata)]
        } else {
            vec![(METADATA_FILE, Some(group))]
        };
        self.done.insert(directory.to_owned());
        Ok(self.add(directory, documents, text)?)
    }

    /// Removes what is left out from consolidated metadata, for whose keys `directory_of` returns
    /// the directories of their nodes: readers would see arrays of fill values. Arrays at symbolic
    /// links are noted, to be referenced.
    fn leave_out_bad(
        &mut self,
        source: &Source,
        nodes: Option<&mut Value>,
        directory_of: &dyn Fn(&str) -> PathBuf,
    ) {
        if let Some(Value::Object(nodes)) = nodes {
            nodes.retain(|key, _| {
                let path = directory_of(key);
                if self.by_path.contains_key(&path) {
                    return true;
                }
                !self.bad.iter().any(|bad| path.starts_with(bad)) && self.is_linked(source, path)
            });
        }
    }

    /// Notes an array at a symbolic link. Returns `false` if the link leads to no node.
    fn is_linked(&mut self, source: &Source, path: PathBuf) -> bool {
        let target = match source.follow(&path) {
            Linked::No => return true,
            Linked::To { path: target, .. } => self.by_path.get(&target).copied(),
            Linked::Away => None,
        };
        match target {
            Some(Node::Array(_)) if self.is_complete => self.linked.contains_key(&path),
            Some(Node::Array(array)) => {
                self.linked.insert(path, array);
                true
            }
            Some(_) => true,
            None => {
                self.unlisted.insert(path);
                false
            }
        }
    }

    /// Returns the stored documents of a node if Zarr v2 is requested and the node is stored as
    /// Zarr v2; otherwise `None`.
    fn as_stored(&self, source: &Source, directory: &Path) -> Result<Option<Named>, Unusable> {
        if !self.config.zarr2 {
            return Ok(None);
        }
        let stored = source.zarr2_documents(directory);
        let stored = stored.map_err(|error| node_problem(directory, error))?;
        Ok(stored.map(|documents| documents.into_iter().map(|(n, it)| (n, Some(it))).collect()))
    }

    fn add(
        &mut self,
        directory: &Path,
        documents: Vec<(&str, Option<Value>)>,
        text: &mut Vec<u8>,
    ) -> Result<(), RefsError> {
        for (name, document) in documents {
            let Some(document) = document else { continue };
            let document = String::from_utf8_lossy(&json::to_text(&document)).into_owned();
            let before = if std::mem::take(&mut self.first) { "\n" } else { ",\n" };
            let (key, document) = (self.key(directory, name)?, Value::String(document));
            let line = format!("{before}{}:{document}", Value::String(key));
            text.extend_from_slice(line.as_bytes());
        }
        Ok(())
    }

    /// Returns the key for a name in a directory.
    fn key(&self, directory: &Path, name: &str) -> Result<String, RefsError> {
        let mut key = self.config.prefix.trim_matches('/').to_owned();
        for part in [text(directory)?, name] {
            if !key.is_empty() && !key.ends_with('/') {
                key.push('/');
            }
            key.push_str(part);
        }
        Ok(key)
    }
}
