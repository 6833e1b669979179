//! The table of mounts, from /proc/self/mountinfo.

use std::path::{Component, Path, PathBuf};

use crate::mountinfo::{Mount, mounts, parse};

/// Returns the name of the source that shardfs has mounted on `mountpoint`; `None` if the topmost
/// mount there is not of shardfs.
pub(super) fn mounted_source(mountpoint: &Path) -> Option<String> {
    find(mounts().ok()?, mountpoint)
}

/// Reason why a directory is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    /// The mount point of a shardfs mount that shows this directory, a directory in it, or one
    /// above it.
    Shown(PathBuf),
    /// A mount point that is the directory or lies in it.
    Holds(PathBuf),
}

/// Returns all uses of a directory, whose path must be absolute and without symbolic links. A
/// source that was given another name (`-o fsname`) is not recognized.
pub fn uses_of(directory: &Path) -> Vec<Use> {
    find_uses(mounts().unwrap_or_default(), directory)
}

fn find_uses(mounts: Vec<Mount>, directory: &Path) -> Vec<Use> {
    let found = mounts.into_iter().filter_map(|mount| {
        let is_ours = mount.is_ours();
        let Mount { place, source, .. } = mount;
        let source = Path::new(&source);
        let related = source.starts_with(directory) || directory.starts_with(source);
        if is_ours && source.is_absolute() && related {
            return Some(Use::Shown(place));
        }
        place.starts_with(directory).then_some(Use::Holds(place))
    });
    found.collect()
}

/// Returns where mounts show what a URL names, or what is above or below it.
pub fn mounts_of_url(url: &Path) -> Vec<PathBuf> {
    let is_related = |mount: &Mount| {
        let source = Path::new(&mount.source);
        mount.is_ours() && (source.starts_with(url) || url.starts_with(source))
    };
    let related = mounts().unwrap_or_default().into_iter().filter(is_related);
    related.map(|mount| mount.place).collect()
}

/// Returns the mount point of shardfs that an absolute path lies below, by its name alone: no request is sent to
/// what is mounted there.
pub(super) fn above(path: &Path) -> Option<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let holds = |mount: &Mount| path.starts_with(&mount.place);
    let holder = mounts().ok()?.into_iter().filter(holds);
    let holder = holder.max_by_key(|mount| mount.place.components().count())?;
    (holder.is_ours() && holder.place != path).then_some(holder.place)
}

/// Returns the number of the FUSE connection of the topmost mount on `mountpoint`.
pub(super) fn connection(mountpoint: &Path) -> Option<u32> {
    Some(top(mounts().ok()?, mountpoint)?.connection)
}

/// Returns whether the topmost mount on `mountpoint` is writable.
pub(super) fn is_writable(mountpoint: &Path) -> bool {
    mounts().ok().and_then(|all| top(all, mountpoint)).is_some_and(|mount| mount.is_writable)
}

/// Returns the user who has made the topmost mount on `mountpoint`.
pub(super) fn user(mountpoint: &Path) -> Option<u32> {
    top(mounts().ok()?, mountpoint)?.user
}

/// Returns the number and name of a process in another mount namespace in which a FUSE connection
/// is still mounted. A namespace that was created while the filesystem was mounted has it as well.
pub(super) fn elsewhere(connection: u32) -> Option<(u32, String)> {
    let processes = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok()).find_map(
        |pid: u32| {
            // The process has ended, or belongs to another user.
            let table = std::fs::read(format!("/proc/{pid}/mountinfo")).ok()?;
            let is_it = |mount: &Mount| mount.is_ours() && mount.connection == connection;
            parse(&table).iter().any(is_it).then(|| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                (pid, name.trim_end().to_owned())
            })
        },
    )
}

fn find(mounts: Vec<Mount>, mountpoint: &Path) -> Option<String> {
    let mount = top(mounts, mountpoint)?;
    mount.is_ours().then(|| mount.source.to_string_lossy().into_owned())
}

/// Returns the topmost mount on a mount point; the last one hides the others.
fn top(mounts: Vec<Mount>, mountpoint: &Path) -> Option<Mount> {
    mounts.into_iter().rfind(|mount| mount.place == mountpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
36 35 98:0 / /mnt/a\\040b ro shared:1 master:2 - fuse.shardfs /data/x\\040y.zarr ro,user_id=0\n\
37 35 98:1 / /mnt/c rw - ext4 /dev/sda rw\n\
38 35 98:2 / /mnt/d ro - fuse.shardfs /data/d ro\n\
39 35 98:3 / /mnt/d rw - tmpfs tmpfs rw\n";

    #[test]
    fn the_source_on_a_mount_point_is_found() {
        assert_eq!(find(parse(TABLE), Path::new("/mnt/a b")).as_deref(), Some("/data/x y.zarr"));
        assert_eq!(find(parse(TABLE), Path::new("/mnt/c")), None);
        assert_eq!(find(parse(TABLE), Path::new("/mnt/e")), None);
    }

    #[test]
    fn a_directory_is_in_use_if_it_is_shown_or_holds_a_mount() {
        let uses = |directory: &str| find_uses(parse(TABLE), Path::new(directory));
        let shown = vec![Use::Shown("/mnt/a b".into())];
        assert_eq!(uses("/data/x y.zarr"), shown);
        assert_eq!(uses("/data/x y.zarr/array"), shown);
        assert_eq!(uses("/data/x y.zarr2"), []);
        assert_eq!(uses("/data").len(), 2);
        assert_eq!(uses("/mnt/c"), [Use::Holds("/mnt/c".into())]);
    }

    #[test]
    fn the_user_who_mounted_is_known() {
        let user = |place: &str| top(parse(TABLE), Path::new(place)).unwrap().user;
        assert_eq!((user("/mnt/a b"), user("/mnt/c")), (Some(0), None));
    }

    #[test]
    fn a_mount_hidden_by_another_does_not_count() {
        assert_eq!(find(parse(TABLE), Path::new("/mnt/d")), None);
    }
}
