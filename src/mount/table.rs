//! What is mounted where: /proc/self/mountinfo.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::FILESYSTEM_TYPE;

/// Name of the source that this program has mounted on `mountpoint`, if it is what one sees there.
pub(super) fn mounted_source(mountpoint: &Path) -> Option<String> {
    find(&std::fs::read("/proc/self/mountinfo").ok()?, mountpoint)
}

/// Why a directory is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    /// This program shows it, something in it, or something that it is in, at that mount point.
    Shown(PathBuf),
    /// Something is mounted there, which is the directory or lies in it.
    Holds(PathBuf),
}

/// What a directory is in use for, whose path is absolute and without symbolic links. A source that was
/// given another name (`-o fsname`) cannot be told by it.
pub fn uses_of(directory: &Path) -> Vec<Use> {
    find_uses(&std::fs::read("/proc/self/mountinfo").unwrap_or_default(), directory)
}

fn find_uses(table: &[u8], directory: &Path) -> Vec<Use> {
    let mounts = table.split(|byte| *byte == b'\n').filter_map(Mount::parse);
    let found = mounts.filter_map(|Mount { place, kind, source }| {
        let source = Path::new(&source);
        let related = source.starts_with(directory) || directory.starts_with(source);
        if kind == FILESYSTEM_TYPE.as_bytes() && source.is_absolute() && related {
            return Some(Use::Shown(place));
        }
        place.starts_with(directory).then_some(Use::Holds(place))
    });
    found.collect()
}

/// One line of the table.
///
/// ```text
/// 36 35 98:0 /root /mount/point rw,noatime shared:1 - fuse.shardfs source rw,user_id=0
///                  5th field               optional   type         source
/// ```
struct Mount {
    place: PathBuf,
    kind: Vec<u8>,
    source: OsString,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let place = unescape(fields.get(4)?).into();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let kind = fields.get(dash + 1)?.to_vec();
        Some(Self { place, kind, source: unescape(fields.get(dash + 2)?) })
    }
}

fn find(table: &[u8], mountpoint: &Path) -> Option<String> {
    let mut mounts = table.split(|byte| *byte == b'\n').filter_map(Mount::parse);
    // The last one on a mount point hides the others.
    let mount = mounts.rfind(|mount| mount.place == mountpoint)?;
    let is_ours = mount.kind == FILESYSTEM_TYPE.as_bytes();
    is_ours.then(|| mount.source.to_string_lossy().into_owned())
}

/// Undoes the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let code = after.first_chunk::<3>().filter(|_| *byte == b'\\');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(code) => {
                name.push(code);
                rest = &after[3..];
            }
            None => {
                name.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(OsStr::from_bytes(&name).as_bytes().to_vec())
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
        assert_eq!(find(TABLE, Path::new("/mnt/a b")).as_deref(), Some("/data/x y.zarr"));
        assert_eq!(find(TABLE, Path::new("/mnt/c")), None);
        assert_eq!(find(TABLE, Path::new("/mnt/e")), None);
    }

    #[test]
    fn a_directory_is_in_use_if_it_is_shown_or_holds_a_mount() {
        let uses = |directory: &str| find_uses(TABLE, Path::new(directory));
        let shown = vec![Use::Shown("/mnt/a b".into())];
        assert_eq!(uses("/data/x y.zarr"), shown);
        assert_eq!(uses("/data/x y.zarr/array"), shown);
        assert_eq!(uses("/data/x y.zarr2"), []);
        assert_eq!(uses("/data").len(), 2);
        assert_eq!(uses("/mnt/c"), [Use::Holds("/mnt/c".into())]);
    }

    #[test]
    fn a_mount_hidden_by_another_does_not_count() {
        assert_eq!(find(TABLE, Path::new("/mnt/d")), None);
    }
}
