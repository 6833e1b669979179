//! Symbolic links to arrays and groups outside of a source. They are not followed, so what is behind
//! them is in no list: whoever has linked it must be told.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::probe::INDICATIONS;
use crate::text::{many, shown};

/// Links of a source that are not followed; a warning about them is logged once.
#[derive(Debug, Default)]
pub(super) struct OutwardLinks {
    /// Real path of the source's root; `None` if it has none.
    root: Option<PathBuf>,
    is_told: AtomicBool,
}

/// Links that one pass over a source has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UnfollowedLinks {
    /// The first of them, relative to the source's root.
    first: PathBuf,
    /// Their number.
    count: u64,
}

impl OutwardLinks {
    /// Creates the links of a source whose root has this real path.
    pub(super) fn of(root: &Path) -> Self {
        Self { root: Some(root.to_owned()), is_told: AtomicBool::new(false) }
    }

    /// Adds a symbolic link to those found if it leads to an array or a group outside of the source.
    pub(super) fn examine(&self, link: &Path, found: &mut UnfollowedLinks) {
        let Some(root) = &self.root else { return };
        // A link that leads nowhere leads to no array.
        let Ok(target) = root.join(link).canonicalize() else { return };
        let is_node =
            || INDICATIONS.iter().any(|(name, _)| target.join(name).symlink_metadata().is_ok());
        if target.starts_with(root) || !is_node() {
            return;
        }
        if found.count == 0 {
            found.first = link.to_owned();
        }
        found.count += 1;
    }

    /// Logs what a complete pass has found, unless an earlier one did.
    pub(super) fn tell(&self, found: &UnfollowedLinks) {
        if found.count > 0 && !self.is_told.swap(true, Ordering::Relaxed) {
            log::warn!("{}", found.warning());
        }
    }
}

impl UnfollowedLinks {
    /// Returns why nothing behind the links is listed, and what to do; there is at least one link.
    fn why(&self) -> String {
        let (what, are) = match self.count {
            1 => ("a symbolic link to an array or a group".to_owned(), "it is"),
            more => (
                format!("the first of {} to arrays or groups", many(more, "symbolic link")),
                "they are",
            ),
        };
        format!(
            "{what} outside of the source: {are} not followed; give the target itself as the \
             source, or bind it in the place of the link (mount --bind)"
        )
    }

    /// Returns a warning about the links, of which there is at least one.
    fn warning(&self) -> String {
        format!("{}: {}", shown(&self.first), self.why())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_nodes_outside_of_the_source_count() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        for array in ["source/inside", "outside"] {
            std::fs::create_dir_all(top.join(array)).unwrap();
            std::fs::write(top.join(array).join("zarr.json"), "{}").unwrap();
        }
        std::fs::create_dir(top.join("folder")).unwrap();
        let root = top.join("source");
        for (link, target) in [
            ("inner", "inside"),
            ("absolute", root.join("inside").to_str().unwrap()),
            ("nowhere", "../nothing"),
            ("folder", "../folder"),
            ("one", "../outside"),
            ("two", top.join("outside").to_str().unwrap()),
        ] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let (links, mut found) = (OutwardLinks::of(&root), UnfollowedLinks::default());
        for name in ["inner", "absolute", "nowhere", "folder", "one", "two"] {
            links.examine(Path::new(name), &mut found);
        }
        assert_eq!(found, UnfollowedLinks { first: "one".into(), count: 2 });
        assert!(found.warning().starts_with("one: the first of 2 symbolic links to"), "{found:?}");
    }
}
