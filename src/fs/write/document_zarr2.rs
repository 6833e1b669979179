//! Zarr v2 documents that are written through the mount: translation to the stored `zarr.json`.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::format::document::{Dialect, Shown, show};
use crate::format::error::MetadataError;
use crate::format::metadata::NodeMetadata;
use crate::format::zarr2::{self, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Refusal, Result};
use crate::fs::form::View;
use crate::fs::node::{Node, NodeKind};
use crate::fs::read::overlay_names::zarr2_name;
use crate::fs::state::fs::Fs;
use crate::fs::state::overlay::What;
use crate::fs::write::document_store::{refused, whole};
use crate::fs::write::passthrough::Writing;
use crate::source::METADATA_FILE;
use crate::store::content::Content;
use crate::store::storage::if_present;

/// Document of Zarr v3, or the reason why there is none.
type Translated = std::result::Result<Value, Refusal>;

impl Fs {
    /// Returns whether nodes that are created in the view zarr2 are stored in Zarr v3.
    pub(in crate::fs) fn creates_zarr3(&self) -> bool {
        self.view() == View::Zarr2
            && self.config.level.is_none()
            && self.config.writing.new_shards.makes_any()
    }

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

    /// Returns the path of the file that a document is made of, whose attributes it has: the node's document, where
    /// the view has several in its place.
    pub(in crate::fs) fn stored_as<'a>(&self, path: &'a Path) -> Result<Cow<'a, Path>> {
        if self.view() != View::Zarr2 || !self.is_document(path) {
            return Ok(path.into());
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        let node = self.nodes.node(directory)?;
        if !node.is_translated() {
            return Ok(path.into());
        }
        self.check_zarr3(directory, &node)?;
        Ok(self.nodes.document_path(directory)?.into())
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
        let mut node = self.nodes.node(directory)?;
        if !node.is_translated() {
            let _turn = self.documents();
            // Whoever makes a node of the directory reads what is beside its document.
            node = self.nodes.node_in_source(directory)?;
            if !node.is_translated() {
                self.write_source(path, content, by)?;
                self.nodes.forget(directory);
                return Ok(());
            }
        }
        self.check_zarr3(directory, &node)?;
        let text = whole(content)?;
        let written = self
            .parse_written(path, &text)
            .map_err(|error| refused(path, MetadataError::from(error)))?;
        self.translate_zarr2(path, Some(&written), by)
    }

    /// Removes a document. The one that marks an array stays as long as the array's chunks: without it shards would be
    /// taken for chunks. That of a group goes with the last one that is shown.
    pub(in crate::fs) fn remove_zarr2(&self, path: &Path, caller: &Caller) -> Result<()> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let node = self.nodes.node(directory)?;
        if !node.is_translated() {
            self.remove_name(path)?;
            return self.on_behalf(caller, |storage| storage.remove_file(path));
        }
        self.check_zarr3(directory, &node)?;
        let is_marked = [ZARRAY, ZGROUP].iter().any(|name| self.is_removed(&directory.join(name)));
        if zarr2_name(path) == Some(ZATTRS) && !is_marked {
            self.remove_name(path)?;
            let limited = self.limited(caller);
            let by = Writing { authors: limited.as_slice(), ..Writing::default() };
            return self.translate_zarr2(path, None, &by);
        }
        let stored = directory.join(METADATA_FILE);
        let version = self.storage.stat(&stored)?.version();
        self.overlay()?.names().put(path, What::Removed, None).document = Some(version);
        if let NodeKind::Sharded(_) = node.kind {
            return Ok(());
        }
        let _turn = self.documents();
        let shown = node.extra.iter().map(|(name, _)| directory.join(name));
        let is_group = matches!(node.kind, NodeKind::AsStored);
        if is_group && shown.clone().all(|path| self.is_removed(&path)) {
            self.on_behalf(caller, |storage| storage.remove_file(&stored))?;
            let mut names = self.overlay()?.names();
            shown.for_each(|path| drop(names.take(&path)));
            drop(names);
            self.nodes.forget(directory);
        }
        Ok(())
    }

    /// Removes documents of Zarr v2 that were there before the one of Zarr v3 and say nothing any more: the view hides
    /// them.
    pub(in crate::fs) fn remove_hidden_zarr2(
        &self,
        directory: &Path,
        caller: &Caller,
    ) -> Result<()> {
        if self.view() != View::Zarr2 || !self.nodes.node(directory)?.is_translated() {
            return Ok(());
        }
        for name in [ZARRAY, ZATTRS, ZGROUP, ZMETADATA] {
            let path = directory.join(name);
            if if_present(self.storage.lstat(&path))?.is_some() {
                self.on_behalf(caller, |storage| storage.remove_file(&path))?;
            }
        }
        Ok(())
    }

    pub(in crate::fs) fn translate_zarr2(
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
            _ => self.changed_back(directory, &stored, (name, written)),
        };
        let back = back.map_err(|error| refused(path, error))?;
        match &node.kind {
            _ if back == stored => self.after_shrinking(directory, &turn),
            NodeKind::Sharded(array) => self.store_shape(&document, (array, by), &back, &turn),
            _ => self.store_document(&document, directory, &back, by),
        }
    }

    /// Returns the document of a node stored as `stored`, after one of its Zarr v2 documents was written, or
    /// removed.
    fn changed_back(
        &self,
        directory: &Path,
        stored: &Value,
        (name, written): (&str, Option<&Value>),
    ) -> Translated {
        let twin = self.twin_of(stored)?;
        let created_fill = self.nodes.created().of(directory, Some(&twin));
        let shown = zarr2::Shown {
            twin: &twin,
            missing: self.nodes.missing(directory, Some(&twin)),
            created_fill: created_fill.as_ref(),
        };
        Ok(zarr2::back(stored, &shown, name, written)?)
    }

    /// Returns the unsharded twin, from which the documents are generated, of a node stored as
    /// `stored`.
    fn twin_of(&self, stored: &Value) -> Translated {
        Ok(match show(stored.clone(), self.config.level, Dialect::V3)? {
            Shown::Array(_, twin) | Shown::Group(twin) => twin,
            Shown::AsStored => stored.clone(),
        })
    }

    /// Returns a group with the metadata of the nodes below it, all in their stored form. The written document
    /// must describe each node as the view shows it, unless nodes are created here, which may come later than their
    /// description.
    pub(in crate::fs) fn consolidated_back(
        &self,
        directory: &Path,
        group: &Value,
        written: &Value,
    ) -> Translated {
        if !matches!(NodeMetadata::parse(group), Ok(NodeMetadata::Group)) {
            return Err(MetadataError::Fixed(ZMETADATA.to_owned()).into());
        }
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
        let missing = |below: &str| self.nodes.missing(&directory.join(below), None);
        match zarr2::check_consolidated(written, &missing, &mut twin) {
            Ok(()) => {
                for (below, node) in &mut nodes {
                    *node = stored(below).unwrap_or_else(|| node.take());
                }
            }
            Err(_) if self.creates_zarr3() => {
                nodes = Map::new();
                for below in zarr2::described_paths(written)? {
                    let node = self.described_back(
                        &directory.join(below),
                        (written, below),
                        stored(below),
                    )?;
                    nodes.insert(below.to_owned(), node);
                }
            }
            Err(error) => return Err(error.into()),
        }
        let mut group = group.clone();
        group["consolidated_metadata"] =
            json!({"kind": "inline", "must_understand": false, "metadata": nodes});
        Ok(group)
    }

    /// Returns a node as consolidated metadata describes it, in the form in which it is stored, if it is there.
    fn described_back(
        &self,
        directory: &Path,
        (written, below): (&Value, &str),
        stored: Option<Value>,
    ) -> Translated {
        let Some(stored) = stored else {
            return Ok(zarr2::new_described(written, below, self.config.view.missing)?);
        };
        let (mut node, none) = (stored, Value::Object(Map::new()));
        for name in [ZARRAY, ZGROUP] {
            if let Some(document) = zarr2::described(written, below, name) {
                node = self.changed_back(directory, &node, (name, Some(document)))?;
            }
        }
        let attributes = zarr2::described(written, below, ZATTRS).unwrap_or(&none);
        self.changed_back(directory, &node, (ZATTRS, Some(attributes)))
    }

    /// Returns the `zarr.json` of a group whose `.zgroup` was removed, which is to be removed with its
    /// directory.
    pub(in crate::fs) fn removed_group(&self, directory: &Path) -> Result<Option<PathBuf>> {
        let is_group = self.nodes.node(directory)?.is_translated();
        let is_removed = is_group && self.is_removed(&directory.join(ZGROUP));
        Ok(is_removed.then(|| directory.join(METADATA_FILE)))
    }
}
