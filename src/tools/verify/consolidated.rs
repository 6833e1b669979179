//! Checks of the consolidated metadata of a group against the documents of the arrays below it.

use std::path::{Component, Path};

use serde_json::Value;

use super::Task;
use super::finding::{Finding, What};
use crate::format::metadata::{ArrayMetadata, NodeMetadata};
use crate::source::{METADATA_FILE, Source};
use crate::tools::parallel::{Give, Stopped};

/// Reports each array that the consolidated metadata of a group describes as another one than its
/// own document does. Only what tells where chunks are is compared: attributes that are older
/// deceive no reader about data.
pub(super) fn check(
    source: &Source,
    group: &Path,
    give: &mut Give<'_, Task>,
) -> Result<(), Stopped> {
    // What cannot be read or used is reported for the node itself.
    let Ok(Some(document)) = source.document(group) else { return Ok(()) };
    let nodes = document.get("consolidated_metadata").and_then(|it| it.get("metadata"));
    for (below, entry) in nodes.and_then(Value::as_object).into_iter().flatten() {
        let is_below = |part| matches!(part, Component::Normal(_));
        if !Path::new(below).components().all(is_below) {
            continue;
        }
        let array = group.join(below);
        let Ok(own) = source.document(&array) else { continue };
        if let Some(how) = contradiction(entry, own.as_ref()) {
            let what = What::Consolidated { document: group.join(METADATA_FILE), how };
            give(Task::Found(Finding::of_array(&array, what)))?;
        }
    }
    Ok(())
}

/// Returns what an entry says of an array that its own document contradicts; `None` for nothing.
fn contradiction(entry: &Value, own: Option<&Value>) -> Option<String> {
    let Ok(NodeMetadata::Array(_)) = NodeMetadata::parse(entry) else { return None };
    let Some(own) = own else { return Some("lists it, and it has no zarr.json".to_owned()) };
    let (before, now) = (ArrayMetadata::parse(entry).ok()?, ArrayMetadata::parse(own).ok()?);
    if before.shape != now.shape {
        let (before, now) = (before.shape, now.shape);
        return Some(format!("says shape {before:?}, its own says {now:?}"));
    }
    let is_same = before.grid == now.grid && before.keys == now.keys;
    (!is_same).then(|| "says another chunk grid or other chunk keys than its own".to_owned())
}
