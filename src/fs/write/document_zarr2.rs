//! Zarr v2 documents that are written through the mount: translation to the stored `zarr.json`.

use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

use crate::format::document::{Dialect, Shown, show};
use crate::format::error::MetadataError;
use crate::format::json;
use crate::format::zarr2::{self, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::form::View;
use crate::fs::node::{Node, NodeKind};
use crate::fs::read::overlay_names::zarr2_name;
use crate::fs::state::fs::Fs;
use crate::fs::state::overlay::What;
use crate::fs::write::document_store::whole;
use crate::fs::write::passthrough::Writing;
use crate::source::METADATA_FILE;
use crate::store::content::Content;

/// Document of Zarr v3, or the reason why there is none.
type Translated = std::result::Result<Value, MetadataError>;

impl Fs {
    /// Checks that Zarr v2 documents are generated from a `zarr.json`.
    ///
    /// # Errors
    ///
    /// `ReadOnly` if they are generated from anything else, to which they cannot be translated
    /// back.
    pub(in crate::fs) fn check_zarr3(&self, directory: &Path, node: &Node) -> Result<()> {
        if self.view() != View::Zarr2 || !node.is_translated() {
            return Ok(());
        }
        let is_other =
            matches!(&node.kind, NodeKind::Sharded(array) if !array.source.format.has_keys());
        match is_other || !self.nodes.document_path(directory)?.ends_with(METADATA_FILE) {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Stores the contents of a document in the `zarr.json` of its node. A document outside a Zarr
    /// v3 node is an ordinary file of the source.
    pub(in crate::fs) fn write_zarr2(
        &self,
        path: &Path,
        content: &Content,
        by: &Writing<'_>,
    ) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let node = self.nodes.node(directory)?;
        if !node.is_translated() {
            self.write_source(path, content, by)?;
            self.nodes.forget(directory);
            return Ok(());
        }
        self.check_zarr3(directory, &node)?;
        let text = whole(content)?;
        let written = json::parse(&text).map_err(|error| refused(path, error.into()))?;
        self.translate_zarr2(path, Some(&written), by)
    }

    /// Removes a document. The one that marks a node stays as long as the node's directory: without
    /// it shards would be taken for chunks.
    pub(in crate::fs) fn remove_zarr2(&self, path: &Path, caller: &Caller) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let node = self.nodes.node(directory)?;
        if !node.is_translated() {
            self.remove_name(path)?;
            return self.on_behalf(caller, |storage| storage.remove_file(path));
        }
        self.check_zarr3(directory, &node)?;
        if zarr2_name(path) == Some(ZATTRS) && !self.is_removed(&directory.join(ZARRAY)) {
            self.remove_name(path)?;
            let limited = self.limited(caller);
            let by = Writing { authors: limited.as_slice(), ..Writing::default() };
            return self.translate_zarr2(path, None, &by);
        }
        self.overlay()?.names().put(path, What::Removed, None);
        Ok(())
    }

    fn translate_zarr2(
        &self,
        path: &Path,
        written: Option<&Value>,
        by: &Writing<'_>,
    ) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let node = self.nodes.node(directory)?;
        let name = zarr2_name(path).unwrap_or_default();
        let document = directory.join(METADATA_FILE);
        let turn = self.documents();
        let stored = self.stored(&document);
        let stored = stored.map_err(|e| e.map_or_else(Into::into, |error| refused(path, error)))?;
        let back = match (name, written) {
            (ZMETADATA, Some(written)) => self.consolidated_back(directory, &stored, written),
            _ => self.twin_of(&stored).and_then(|twin| {
                zarr2::back(&stored, &twin, name, written, self.config.view.missing)
            }),
        };
        let back = back.map_err(|error| refused(path, error))?;
        match &node.kind {
            _ if back == stored => self.after_shrinking(directory, &turn),
            NodeKind::Sharded(array) => self.store_shape(&document, (array, by), &back, &turn),
            _ => self.store_document(&document, directory, &back, by),
        }
    }

    /// Returns the unsharded twin, from which the documents are generated, of a node stored as
    /// `stored`.
    fn twin_of(&self, stored: &Value) -> Translated {
        Ok(match show(stored.clone(), self.config.level, Dialect::V3)? {
            Shown::Array(_, twin) | Shown::Group(twin) => twin,
            Shown::AsStored => stored.clone(),
        })
    }

    /// Returns a group with the metadata of the nodes below it, all in their stored form. The
    /// written document must describe each node as the view shows it.
    fn consolidated_back(&self, directory: &Path, group: &Value, written: &Value) -> Translated {
        let stored = |below: &str| {
            let mut parts = Path::new(below).components();
            let is_below = parts.all(|part| matches!(part, Component::Normal(_)));
            let mut node = self.stored(&directory.join(below).join(METADATA_FILE)).ok()?;
            // Nodes below a group are listed beside it.
            node.as_object_mut()?.shift_remove("consolidated_metadata");
            is_below.then_some(node)
        };
        let before = group.get("consolidated_metadata").and_then(|it| it.get("metadata"));
        let mut nodes = before.and_then(Value::as_object).cloned().unwrap_or_default();
        let mut twin = |below: &str| {
            let node = stored(below)?;
            let twin = self.twin_of(&node).ok()?;
            if !below.is_empty() {
                nodes.insert(below.to_owned(), node);
            }
            Some(twin)
        };
        zarr2::check_consolidated(written, self.config.view.missing, &mut twin)?;
        for (below, node) in &mut nodes {
            *node = stored(below).unwrap_or_else(|| node.take());
        }
        let mut group = group.clone();
        group["consolidated_metadata"] =
            json!({"kind": "inline", "must_understand": false, "metadata": nodes});
        Ok(group)
    }

    /// Returns the `zarr.json` of a group whose `.zgroup` was removed, which is to be removed with its
    /// directory.
    pub(in crate::fs) fn removed_group(&self, directory: &Path) -> Result<Option<PathBuf>> {
        let is_group = self.nodes.node(directory)?.is_translated();
        let is_removed = is_group && self.is_removed(&directory.join(ZGROUP));
        Ok(is_removed.then(|| directory.join(METADATA_FILE)))
    }
}

pub(in crate::fs) fn refused(path: &Path, error: MetadataError) -> FsError {
    let error = FsError::Refused { path: path.to_owned(), error };
    log::warn!("{error}");
    error
}
