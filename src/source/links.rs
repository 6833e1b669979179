//! Symbolic links to arrays and groups. They are not followed, so what is behind them is in no list:
//! of those that lead out of a source, whoever has linked it must be told. Consolidated metadata may
//! list what is behind a link, though.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
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

/// Where a path of a source leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Linked {
    /// There is no symbolic link on the way.
    No,
    /// To another path of the source.
    To {
        /// The path, relative to the source's root.
        path: PathBuf,
        /// `true` if a link on the way names an absolute path, which leads to the source from
        /// everywhere.
        is_absolute: bool,
    },
    /// Out of the source, or nowhere.
    Away,
}

/// Maximum number of links on the way to a file, as in Linux.
const MAX_LINKS: usize = 40;

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

    /// Returns where a path of the source leads, name by name.
    pub(super) fn follow(&self, path: &Path) -> Linked {
        let Some(root) = &self.root else { return Linked::No };
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Linked::No;
        }
        let names = |path: &Path| path.iter().map(OsString::from).collect::<Vec<_>>();
        let (mut rest, mut real) = (VecDeque::from(names(path)), PathBuf::new());
        let (mut links, mut is_absolute) = (0, false);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                if !real.pop() {
                    return Linked::Away;
                }
                continue;
            }
            let here = root.join(&real).join(&name);
            let Ok(target) = here.read_link() else {
                match here.symlink_metadata() {
                    Ok(_) => real.push(name),
                    Err(_) if links == 0 => return Linked::No,
                    Err(_) => return Linked::Away,
                }
                continue;
            };
            links += 1;
            let mut below = target.as_path();
            if target.is_absolute() {
                let Ok(in_source) = target.strip_prefix(root) else { return Linked::Away };
                below = in_source;
                is_absolute = true;
                real.clear();
            }
            if links > MAX_LINKS {
                return Linked::Away;
            }
            let below = names(below).into_iter().rev().filter(|name| name != ".");
            below.for_each(|name| rest.push_front(name));
        }
        if links == 0 { Linked::No } else { Linked::To { path: real, is_absolute } }
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
    fn links_within_a_source_are_followed_name_by_name() {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().canonicalize().unwrap().join("source");
        std::fs::create_dir_all(root.join("group/waves")).unwrap();
        std::fs::create_dir_all(root.join("other")).unwrap();
        let absolute = root.join("group/waves");
        for (link, target) in [
            ("alias", "group"),
            ("other/up", "../alias/./waves"),
            ("absolute", absolute.to_str().unwrap()),
            ("out", "../source/group"),
            ("away", "/etc"),
            ("nowhere", "nothing"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        let links = OutwardLinks::of(&root);
        let to = |path: &str, is_absolute| Linked::To { path: path.into(), is_absolute };
        for (path, leads) in [
            ("group/waves", Linked::No),
            ("nothing", Linked::No),
            ("../source/alias", Linked::No),
            ("/etc", Linked::No),
            ("alias", to("group", false)),
            ("alias/waves", to("group/waves", false)),
            ("other/up", to("group/waves", false)),
            ("absolute", to("group/waves", true)),
            ("alias/nothing", Linked::Away),
            ("out", Linked::Away),
            ("away", Linked::Away),
            ("nowhere", Linked::Away),
            ("loop", Linked::Away),
        ] {
            assert_eq!(links.follow(Path::new(path)), leads, "{path}");
        }
    }

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
