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

use crate::format::error::MetadataError;
use crate::format::json;
use crate::format::zarr2::{self, NotStored, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::fs::error::Result;
use crate::fs::read::overlay_names::zarr2_name;
use crate::fs::state::fs::Fs;
use crate::fs::write::document_store::{refused, whole};
use crate::fs::write::passthrough::{Writing, keeps_from};
use crate::source::METADATA_FILE;
use crate::store::content::Content;
use crate::store::document::text_of;
use crate::store::storage::{FileKind, SetStat, Stat, if_present};
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
        if self.nodes.node_in_source(directory)?.is_translated()
            || self.is_stored_in_zarr2(directory)?
        {
            return Ok(false);
        }
        let document = directory.join(METADATA_FILE);
        self.check_undecided(path, directory)?;
        let Some(New { node, taken, mode }) =
            self.node_of_zarr2((path, directory), &written, by)?
        else {
            return Ok(false);
        };
        // What no other may read stays so.
        let by = &limited_to(by, mode);
        let fill_value = written.get("fill_value").cloned().unwrap_or_default();
        let form = self.sharded_form((&document, directory), &node)?;
        self.nodes.created().note(directory, (name == ZARRAY).then_some(fill_value));
        let made = match form {
            Some(sharded) => {
                let plain = Content::Memory(Arc::new(json::to_text(&node)));
                let names = (&*document, directory);
                self.store_new_array(names, (&sharded, &plain), by, turn)
            }
            None => {
                // No chunk file is between its creation and its entry.
                let names = self.no_name_in_source();
                let stored = self.store_document(&document, directory, &node, by);
                drop(names);
                drop(turn);
                stored.map(|()| true)
            }
        };
        // Others may have made an array there.
        if !matches!(made, Ok(true)) {
            self.nodes.created().note(directory, None);
            return made;
        }
        self.remove_source(path, by)?;
        for name in [ZATTRS, ZMETADATA] {
            self.take_in(&directory.join(name), &taken, by)?;
        }
        Ok(true)
    }

    /// Removes a document that has become a part of the node's, unless it has come, or was changed, since the node was
    /// made of what was there: then it becomes one now. What cannot become one stays where it is: the node is stored.
    fn take_in(&self, path: &Path, taken: &[(PathBuf, Value)], by: &Writing<'_>) -> Result<()> {
        let translated = match self.document_of_authors(path, by) {
            Ok(None) => return Ok(()),
            Ok(Some((document, _))) => {
                match taken.iter().any(|(of, taken)| of == path && *taken == document) {
                    true => Ok(()),
                    false => self.translate_zarr2(path, Some(&document), by),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = translated {
            log::warn!("{}: it stays beside the metadata of Zarr v3: {error}", shown(&path));
            return Ok(());
        }
        self.remove_source(path, by)
    }

    /// Returns what a `.zarray` or a `.zgroup` becomes together with the documents beside it. `None` if it is to be
    /// stored as it was written, as a rule for its path says, for Zarr v3 cannot say it.
    fn node_of_zarr2(
        &self,
        (path, directory): (&Path, &Path),
        written: &Value,
        by: &Writing<'_>,
    ) -> Result<Option<New>> {
        let (mut taken, mut mode) = (Vec::new(), 0o7777);
        let mut beside = |name: &str| -> Result<Option<Value>> {
            let path = directory.join(name);
            let Some((document, stat)) = self.document_of_authors(&path, by)? else {
                return Ok(None);
            };
            mode &= stat.mode;
            taken.push((path, document.clone()));
            Ok(Some(document))
        };
        let zattrs = beside(ZATTRS)?;
        if zarr2_name(path) == Some(ZARRAY) {
            let node = zarr2::new_array(written, zattrs.as_ref(), self.config.view.missing);
            return match node {
                Ok(node) => Ok(Some(New { node, taken, mode })),
                Err(error) if self.config.writing.new_shards.rule_of(directory).is_none() => {
                    log::warn!("{}: it is stored as it is written: {error}", shown(&path));
                    Ok(None)
                }
                Err(error) => {
                    let is_valid = !matches!(error, NotStored::Metadata(_));
                    let error = refused(path, error);
                    if is_valid {
                        let path = shown(&path);
                        log::warn!(
                            "{path}: with a rule `off` for its path it is stored as it is written"
                        );
                    }
                    Err(error)
                }
            };
        }
        let node = zarr2::new_group(written, zattrs.as_ref());
        let node = node.map_err(|error| refused(path, error))?;
        let Some(zmetadata) = beside(ZMETADATA)? else {
            return Ok(Some(New { node, taken, mode }));
        };
        match self.consolidated_back(directory, &node, &zmetadata) {
            Ok(node) => Ok(Some(New { node, taken, mode })),
            Err(error) => {
                let path = directory.join(ZMETADATA);
                log::warn!("{}: the group is not consolidated: {error}", shown(&path));
                // It stays where it is.
                taken.retain(|(of, _)| *of != path);
                Ok(Some(New { node, taken, mode }))
            }
        }
    }

    /// Returns a document of the source and its attributes, if it is there, and all who write what is made of it may
    /// read it.
    fn document_of_authors(&self, path: &Path, by: &Writing<'_>) -> Result<Option<(Value, Stat)>> {
        if if_present(self.storage.lstat(path))?.is_none_or(|found| found.kind != FileKind::File) {
            return Ok(None);
        }
        let mut file = self.storage.open(path)?;
        for author in by.authors {
            file = self.open_on_behalf(&author.caller, path)?;
        }
        let (text, stat) = (text_of(&*file)?, file.stat()?);
        if text.is_empty() {
            return Ok(None);
        }
        let document = json::parse(&text);
        let document = document.map_err(|error| refused(path, MetadataError::from(error)))?;
        Ok(Some((document, stat)))
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

    /// Removes a document of Zarr v2 whose contents are stored in Zarr v3, as far as those who have written that may do
    /// it: the view shows none of them.
    fn remove_source(&self, path: &Path, by: &Writing<'_>) -> Result<()> {
        let (source, directory) =
            (self.storage.writable()?, path.parent().unwrap_or(Path::new("")));
        let Some(opened) = if_present(source.within(directory))? else { return Ok(()) };
        let storage = opened.as_deref().unwrap_or(source);
        let Some(found) = if_present(storage.lstat(path))? else { return Ok(()) };
        if keeps_from(&storage.stat(directory)?, &found, by.authors) {
            return Ok(());
        }
        if let Err(error) = storage.remove_file(path) {
            log::warn!("{}: it stays beside the metadata of Zarr v3: {error}", shown(&path));
        }
        Ok(())
    }
}

/// Node that documents of Zarr v2 become.
struct New {
    /// Its document of Zarr v3.
    node: Value,
    /// The documents beside the one that was written, which it is made of.
    taken: Vec<(PathBuf, Value)>,
    /// Permission bits that all of these have.
    mode: u32,
}

/// Returns how a document is written that may have these permission bits only.
fn limited_to<'a>(by: &Writing<'a>, mode: u32) -> Writing<'a> {
    let limited = |attributes: SetStat| SetStat {
        mode: attributes.mode.map(|asked| asked & mode),
        ..attributes
    };
    let (attributes, asked) = (by.attributes.map(limited), by.asked.map(|asked| asked & mode));
    Writing { attributes, asked, ..by.clone() }
}
