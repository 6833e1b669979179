//! Control groups whose processes are ended all at once, such as those of the system's services.

use std::io;
use std::path::{Path, PathBuf};

use crate::mountinfo::{Mount, mounts};

/// What the names of groups end with that systemd ends as a whole.
const UNITS: [&str; 2] = [".service", ".mount"];

/// Takes this process out of the group that it was started in, if the system may end that as a whole. Returns
/// whether this process stays if it does so.
pub(super) fn leave_unit() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    !own_group(&groups).is_some_and(|group| is_unit(&group)) || leave().is_ok()
}

/// Returns the group of a process, from the table of its groups in all hierarchies. `None` if it has none in
/// that of version 2.
fn own_group(groups: &str) -> Option<PathBuf> {
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

fn is_unit(group: &Path) -> bool {
    let name = group.file_name().unwrap_or_default().to_string_lossy();
    UNITS.iter().any(|end| name.ends_with(end))
}

/// Moves this process to the root of the hierarchy, which is no group that could be ended. Only root can.
fn leave() -> io::Result<()> {
    let is_root = |mount: &Mount| mount.kind == b"cgroup2" && mount.root == Path::new("/");
    let hierarchy = mounts()?.into_iter().find(is_root);
    let hierarchy = hierarchy.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    std::fs::write(hierarchy.place.join("cgroup.procs"), "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_and_mounts_are_ended_as_a_whole_and_sessions_are_not() {
        let unit = |groups: &str| own_group(groups).map(|group| is_unit(&group));
        assert_eq!(unit("1:cpu:/a.service\n0::/system.slice/mnt-volume.mount\n"), Some(true));
        assert_eq!(unit("0::/system.slice/job.service"), Some(true));
        assert_eq!(unit("0::/user.slice/user-1000.slice/session-3.scope"), Some(false));
        assert_eq!(unit("0::/\n"), Some(false));
        assert_eq!(unit("4:memory:/a.service\n"), None);
    }
}
