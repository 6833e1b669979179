//! Arrays and groups that are created in Zarr v2, and stored in Zarr v3.
//!
//! ```text
//! .zarray, and .zattrs if it is there              --> array of Zarr v3 --> shards by its rule --> zarr.json
//! .zgroup, and .zattrs, .zmetadata if they are     --> group of Zarr v3                        --> zarr.json
//! ```
//!
//! That is so in mounts with rules for new arrays, unless the source has Zarr v2 here: a hierarchy is of one version.
//! Documents of Zarr v2 that have come before are removed once the source has them in the other form.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::format::json;
use crate::format::zarr2::{self, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::fs::error::Result;
use crate::fs::read::overlay_names::zarr2_name;
use crate::fs::state::fs::Fs;
use crate::fs::write::document_store::{refused, whole};
use crate::fs::write::passthrough::{Writing, keeps_from};
use crate::source::METADATA_FILE;
use crate::store::StoreError;
use crate::store::content::Content;
use crate::store::document::text_of;
use crate::store::gather::made::is_decided;
use crate::store::storage::{FileKind, if_present};
use crate::text::shown;

impl Fs {
    /// Stores a document that makes a directory an array or a group, in Zarr v3. Returns `false` if it makes none:
    /// there is one already, it is no metadata yet, or the hierarchy is one of Zarr v2.
    pub(in crate::fs) fn create_from_zarr2(
        &self,
        path: &Path,
        content: &Content,
        by: &Writing<'_>,
    ) -> Result<bool> {
        let name = zarr2_name(path).unwrap_or_default();
        if ![ZARRAY, ZGROUP].contains(&name) || !self.creates_zarr3() {
            return Ok(false);
        }
        let directory = path.parent().unwrap_or(Path::new(""));
        // A part of a document is completed later.
        let Ok(written) = json::parse(&whole(content)?) else { return Ok(false) };
        let turn = self.documents();
        if self.nodes.node(directory)?.is_translated() || self.is_stored_in_zarr2(directory)? {
            return Ok(false);
        }
        let document = directory.join(METADATA_FILE);
        if is_decided(self.storage.writable()?, directory) {
            log::error!(
                "{}: it is not stored: an array that is being put there has to be finished first: `shardfs \
                 recover` says what is in its way",
                shown(&path)
            );
            return Err(StoreError::InTheWay { path: document }.into());
        }
        let (node, replaced) = self.node_of_zarr2((path, directory), &written, by)?;
        match self.sharded_form((&document, directory), &node)? {
            Some(sharded) => {
                let plain = Content::Memory(Arc::new(json::to_text(&node)));
                let names = (&*document, directory);
                // Others may have made an array there.
                if !self.store_new_array(names, (&sharded, &plain), by, turn)? {
                    return Ok(false);
                }
            }
            None => self.store_document(&document, directory, &node, by)?,
        }
        let fill_value = written.get("fill_value").cloned().unwrap_or_default();
        self.created_fills.note(directory, (name == ZARRAY).then_some(fill_value));
        self.remove_replaced(directory, &replaced, by)?;
        Ok(true)
    }

    /// Returns the document of Zarr v3 that a `.zarray` or a `.zgroup` becomes together with those beside it, and
    /// the documents of which the source has no need any more.
    fn node_of_zarr2(
        &self,
        (path, directory): (&Path, &Path),
        written: &Value,
        by: &Writing<'_>,
    ) -> Result<(Value, Vec<PathBuf>)> {
        let mut replaced = vec![path.to_owned()];
        let mut beside = |name: &str| -> Result<Option<Value>> {
            let path = directory.join(name);
            let document = self.document_of_authors(&path, by)?;
            replaced.extend(document.is_some().then_some(path));
            Ok(document)
        };
        let zattrs = beside(ZATTRS)?;
        let is_array = zarr2_name(path) == Some(ZARRAY);
        let node = match is_array {
            true => zarr2::new_array(written, zattrs.as_ref(), self.config.view.missing),
            false => zarr2::new_group(written, zattrs.as_ref()),
        };
        let node = node.map_err(|error| refused(path, error))?;
        if is_array {
            return Ok((node, replaced));
        }
        let Some(zmetadata) = beside(ZMETADATA)? else { return Ok((node, replaced)) };
        match self.consolidated_back(directory, &node, &zmetadata) {
            Ok(node) => Ok((node, replaced)),
            // It stays where it is.
            Err(error) => {
                let path = replaced.pop().unwrap_or_default();
                log::warn!("{}: it is not consolidated metadata of Zarr v3: {error}", shown(&path));
                Ok((node, replaced))
            }
        }
    }

    /// Returns a document of the source, if it is there and complete, and all who write what is made of it may
    /// read it.
    fn document_of_authors(&self, path: &Path, by: &Writing<'_>) -> Result<Option<Value>> {
        if if_present(self.storage.lstat(path))?.is_none_or(|found| found.kind != FileKind::File) {
            return Ok(None);
        }
        let mut file = self.storage.open(path)?;
        for author in by.authors {
            file = self.open_on_behalf(&author.caller, path)?;
        }
        Ok(json::parse(&text_of(&*file)?).ok())
    }

    /// Returns whether a directory is in a hierarchy that the source has in Zarr v2.
    fn is_stored_in_zarr2(&self, directory: &Path) -> Result<bool> {
        for above in directory.ancestors() {
            if if_present(self.storage.lstat(&above.join(METADATA_FILE)))?.is_some() {
                // One that is no metadata, or none of this view, stays as it is.
                return Ok(above == directory);
            }
            for name in [ZARRAY, ZGROUP] {
                let path = above.join(name);
                if if_present(self.storage.lstat(&path))?.is_some()
                    && json::parse(&self.stored_document(&path)?).is_ok()
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Removes documents of Zarr v2 whose contents are stored in Zarr v3, as far as those who have written that may
    /// do it: the view shows none of them.
    fn remove_replaced(
        &self,
        directory: &Path,
        replaced: &[PathBuf],
        by: &Writing<'_>,
    ) -> Result<()> {
        let source = self.storage.writable()?;
        let Some(opened) = if_present(source.within(directory))? else { return Ok(()) };
        let storage = opened.as_deref().unwrap_or(source);
        let above = storage.stat(directory)?;
        for path in replaced {
            match if_present(storage.lstat(path)) {
                Ok(Some(found)) if !keeps_from(&above, &found, by.authors) => {
                    if let Err(error) = storage.remove_file(path) {
                        log::warn!(
                            "{}: it stays beside the metadata of Zarr v3: {error}",
                            shown(path)
                        );
                    }
                }
                _ => (),
            }
        }
        Ok(())
    }
}
