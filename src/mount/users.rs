//! What keeps a mount busy.

use std::path::{Path, PathBuf};

use crate::mountinfo::mounts;
use crate::text::{Line, shown};

/// Number of users that a message names.
const MOST: usize = 3;

/// Returns what uses a mount, for a message: processes of this mount namespace that this user may look into, and
/// mounts on directories in it. Only names are compared: the mount itself is asked nothing.
pub(super) fn of(mountpoint: &Path) -> String {
    let inside = mounts().unwrap_or_default().into_iter().map(|mount| mount.place);
    let inside = inside.filter(|place| place != mountpoint && place.starts_with(mountpoint));
    let mounted = inside.map(|place| format!("something is mounted on {}", shown(&place)));
    let mut users = mounted.chain(processes(mountpoint)).fuse();
    let named: Vec<String> = users.by_ref().take(MOST).collect();
    match (named.is_empty(), users.count()) {
        (true, _) => "a file in it is open or a shell stands in it".to_owned(),
        (false, 0) => named.join(", "),
        (false, more) => format!("{}, and {more} more", named.join(", ")),
    }
}

fn processes(mountpoint: &Path) -> impl Iterator<Item = String> + '_ {
    // Elsewhere the same path is another directory.
    let namespace = |process: &Path| process.join("ns/mnt").read_link().ok();
    let own = namespace(Path::new("/proc/self"));
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(move |process| {
        // `self` and others are among them.
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        // This one has the descriptors that it was started with.
        if pid == std::process::id() {
            return None;
        }
        let process = process.path();
        let what = use_by(&process, mountpoint).filter(|_| namespace(&process) == own)?;
        let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
        Some(format!("process {pid} ({}) {what}", Line(name.trim_end())))
    })
}

/// Returns how a process uses a mount, of which one use is enough. `None` if it does not, or may not be looked
/// into.
fn use_by(process: &Path, mountpoint: &Path) -> Option<String> {
    // A link of /proc is read without a request to what it names.
    let inside = |link: PathBuf| {
        let target = link.read_link().ok()?;
        target.strip_prefix(mountpoint).ok().map(Path::to_owned)
    };
    if ["cwd", "root"].iter().any(|link| inside(process.join(link)).is_some()) {
        return Some("stands in it".to_owned());
    }
    let open = std::fs::read_dir(process.join("fd")).ok()?.flatten();
    let path = open.map(|entry| entry.path()).find_map(inside)?;
    Some(match path.as_os_str().is_empty() {
        true => "has its directory open".to_owned(),
        false => format!("has {} open", shown(&path)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().canonicalize().unwrap();
        let used = || use_by(Path::new("/proc/self"), &directory);
        assert_eq!(used(), None);
        let _open = std::fs::File::create(directory.join("c.0")).unwrap();
        assert_eq!(used().unwrap(), "has c.0 open");
        assert!(of(&directory).starts_with("a file in it is open or"), "of other processes");
    }
}
