//! What is mounted where: /proc/self/mountinfo.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::FILESYSTEM_TYPE;

/// Name of the source that this program has mounted on `mountpoint`, if it is what one sees there.
pub(super) fn mounted_source(mountpoint: &Path) -> Option<String> {
    find(&std::fs::read("/proc/self/mountinfo").ok()?, mountpoint)
}

/// ```text
/// 36 35 98:0 /root /mount/point rw,noatime shared:1 - fuse.shardfs source rw,user_id=0
///                  5th field               optional   type         source
/// ```
fn find(table: &[u8], mountpoint: &Path) -> Option<String> {
    let lines = table.split(|byte| *byte == b'\n');
    let mut on_it = lines.filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let place = unescape(fields.get(4)?);
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (kind, source) = (fields.get(dash + 1)?, fields.get(dash + 2)?);
        (place == mountpoint.as_os_str()).then(|| (kind.to_vec(), unescape(source)))
    });
    // The last one on a mount point hides the others.
    let (kind, source) = on_it.next_back()?;
    (kind == FILESYSTEM_TYPE.as_bytes()).then(|| source.to_string_lossy().into_owned())
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
    fn a_mount_hidden_by_another_does_not_count() {
        assert_eq!(find(TABLE, Path::new("/mnt/d")), None);
    }
}
