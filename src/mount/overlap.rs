//! Overlap test for two paths that takes into account symbolic links, `..` through directories yet
//! to be created, bind mounts and shardfs mounts.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::mountinfo::{Mount, mounts};

/// Maximum number of symbolic links followed in one path.
const MOST_LINKS: usize = 40;
/// Maximum number of nested shardfs mounts that are followed.
const MOST_MOUNTS: usize = 8;
/// Directories in which a mount of several views shows each view.
const VIEWS: [&str; 5] = ["zarr3", "zarr2", "npy", "raw", "flat"];

/// A path on a device; with an empty device, a path in this process's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Spot {
    device: Vec<u8>,
    path: PathBuf,
}

/// Returns whether neither path is equal to or inside the other, now or once both are created.
pub fn lie_apart(first: &Path, second: &Path) -> io::Result<bool> {
    // Without the mount table only the paths themselves can be compared.
    let mounts = mounts().unwrap_or_default();
    let (first, second) = (spots(&mounts, will_be(first)?), spots(&mounts, will_be(second)?));
    let meet = |one: &Spot, other: &Spot| {
        one.device == other.device
            && (one.path.starts_with(&other.path) || other.path.starts_with(&one.path))
    };
    Ok(!first.iter().any(|one| second.iter().any(|other| meet(one, other))))
}

/// Returns the path that a file will have once it is created together with its missing parents:
/// absolute, without symbolic links and `..`.
pub fn will_be(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut found = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = parts(&absolute);
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            found.pop();
            continue;
        }
        found.push(part);
        // Missing components are kept as they are, and so is everything below them.
        let Ok(target) = found.read_link() else { continue };
        links += 1;
        if links > MOST_LINKS {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        found.pop();
        if target.is_absolute() {
            found = PathBuf::from("/");
        }
        let mut all = parts(&target);
        all.append(&mut rest);
        rest = all;
    }
    Ok(found)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let part = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(part).collect()
}

/// A path in a mount of shardfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InMount {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// What the path shows, in the source. `None` if the source has another name (`-o fsname`).
    pub in_source: Option<PathBuf>,
}

/// Returns the mount of shardfs that a path lies in; `None` if it lies in none.
pub fn mount_of(path: &Path) -> Option<InMount> {
    find_mount(&mounts().ok()?, &path.canonicalize().ok()?)
}

fn find_mount(mounts: &[Mount], path: &Path) -> Option<InMount> {
    let mount = holder(mounts, path).filter(|mount| mount.is_ours())?;
    let rest = mount.root.strip_prefix("/").ok()?.join(path.strip_prefix(&mount.place).ok()?);
    let (source, mountpoint) = (Path::new(&mount.source), mount.place.clone());
    let in_view = || VIEWS.iter().find_map(|view| rest.strip_prefix(view).ok());
    let in_source = match source.join(&rest) {
        _ if !source.is_absolute() => None,
        shown if shown.exists() => Some(shown),
        shown => Some(in_view().map_or(shown, |rest| source.join(rest))),
    };
    Some(InMount { mountpoint, in_source })
}

/// Returns the mount that a path lies in. The last of several on one mount point hides the others.
fn holder<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let holds = |mount: &&Mount| path.starts_with(&mount.place);
    mounts.iter().filter(holds).max_by_key(|mount| mount.place.components().count())
}

/// Returns all locations a path stands for: the path itself, its location on its device, and, if it
/// is in a shardfs mount, its location in the mount's source.
fn spots(mounts: &[Mount], path: PathBuf) -> Vec<Spot> {
    let (mut spots, mut waiting) = (Vec::new(), vec![(path, 0)]);
    while let Some((path, depth)) = waiting.pop() {
        if let Some(mount) = holder(mounts, &path)
            && let Ok(rest) = path.strip_prefix(&mount.place)
        {
            spots.push(Spot { device: mount.device.clone(), path: mount.root.join(rest) });
            let source = Path::new(&mount.source);
            if mount.is_ours() && source.is_absolute() && depth < MOST_MOUNTS {
                waiting.push((source.join(rest), depth + 1));
                let in_view = VIEWS.iter().find_map(|view| rest.strip_prefix(view).ok());
                waiting.extend(in_view.map(|rest| (source.join(rest), depth + 1)));
            }
        }
        spots.push(Spot { device: Vec::new(), path });
    }
    spots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo::parse;

    #[test]
    fn a_path_is_what_it_will_be_once_it_is_made() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("src/inside")).unwrap();
        std::os::unix::fs::symlink("src/inside", top.join("link")).unwrap();
        std::os::unix::fs::symlink("gone/x", top.join("nowhere")).unwrap();
        std::os::unix::fs::symlink("loop", top.join("loop")).unwrap();
        for (path, expected) in [
            ("src", "src"),
            ("nope/../src/inside", "src/inside"),
            ("nope/a/../../src", "src"),
            ("link/new", "src/inside/new"),
            ("link/../x", "src/x"),
            ("nope/../link/./y", "src/inside/y"),
            ("nowhere/z", "gone/x/z"),
        ] {
            assert_eq!(will_be(&top.join(path)).unwrap(), top.join(expected), "{path}");
        }
        assert_eq!(will_be(&top.join("loop/x")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn places_lie_apart_or_in_each_other() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        std::fs::create_dir_all(path("src/inside")).unwrap();
        let apart = |one: &str, other: &str| lie_apart(&path(one), &path(other)).unwrap();
        assert!(apart("src", "src2") && apart("src", "nope/dest") && apart("src", "src/../dest"));
        for other in ["src", "src/inside", "src/new", "nope/../src/new", "nope/..", "."] {
            assert!(!apart("src", other), "{other}");
            assert!(!apart(other, "src"), "{other}");
        }
    }

    const TABLE: &[u8] = b"\
20 1 8:1 / / rw - ext4 /dev/sda rw\n\
21 20 8:1 /data/src /bind rw - ext4 /dev/sda rw\n\
22 20 0:50 / /mnt/v rw - fuse.shardfs /data/src rw\n\
23 20 0:51 / /mnt/w rw - fuse.shardfs /mnt/v/b rw\n";

    #[test]
    fn bind_mounts_and_mounts_of_ours_are_looked_through() {
        let mounts = parse(TABLE);
        let paths = |path: &str| {
            let spots = spots(&mounts, path.into());
            let on_disk = spots.into_iter().filter(|spot| spot.device == b"8:1");
            on_disk.map(|spot| spot.path.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths("/data/src/a"), ["/data/src/a"]);
        assert_eq!(paths("/bind/a"), ["/data/src/a"]);
        assert_eq!(paths("/mnt/v/a"), ["/data/src/a"]);
        assert_eq!(paths("/mnt/v/npy/a"), ["/data/src/a", "/data/src/npy/a"]);
        assert_eq!(paths("/mnt/w/c"), ["/data/src/b/c"]);
    }
}
