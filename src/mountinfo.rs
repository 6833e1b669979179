//! Parser of /proc/self/mountinfo, the table of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Type of the filesystem in /proc/mounts.
pub const FILESYSTEM_TYPE: &str = "fuse.shardfs";

/// One line of the table.
///
/// ```text
/// 36 35 98:0 /root /mount/point rw,noatime shared:1 - fuse.shardfs source rw,user_id=0
/// id    device root  5th field             optional   type         source options
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Number of the mount; it may be reused by a later one.
    pub id: u64,
    /// Number of the FUSE connection, for a FUSE mount: the device's minor number.
    pub connection: u32,
    /// Device of the mounted filesystem.
    pub device: Vec<u8>,
    /// Directory of that filesystem that is mounted.
    pub root: PathBuf,
    /// Mount point.
    pub place: PathBuf,
    /// `true` unless it is read-only.
    pub is_writable: bool,
    /// Type of the filesystem.
    pub kind: Vec<u8>,
    /// Source of the mount.
    pub source: OsString,
    /// User who mounted it, for a FUSE mount.
    pub user: Option<u32>,
}

/// Returns all mounts that this process can see, in the order in which they were made.
pub(crate) fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Parses a table; malformed lines are skipped.
pub(crate) fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect()
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let id = std::str::from_utf8(fields.first()?).ok()?.parse().ok()?;
        let device = *fields.get(2)?;
        let connection = std::str::from_utf8(device).ok()?.split_once(':')?.1.parse().ok()?;
        let (root, place) = (unescape(fields.get(3)?).into(), unescape(fields.get(4)?).into());
        let is_writable = fields.get(5)?.split(|byte| *byte == b',').any(|option| option == b"rw");
        let dash = fields.iter().position(|field| *field == b"-")?;
        let (device, kind) = (device.to_vec(), fields.get(dash + 1)?.to_vec());
        let source = unescape(fields.get(dash + 2)?);
        let options = std::str::from_utf8(fields.get(dash + 3).unwrap_or(&&b""[..])).ok();
        let mut options = options.into_iter().flat_map(|options| options.split(','));
        let user = options.find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
        Some(Self { id, connection, device, root, place, is_writable, kind, source, user })
    }

    /// Returns whether the mount is one of this program.
    pub(crate) fn is_ours(&self) -> bool {
        self.kind == FILESYSTEM_TYPE.as_bytes()
    }

    /// Returns whether the mount lies within its own source. This cannot be detected if the source
    /// was given another name (`-o fsname`).
    pub(crate) fn shows_itself(&self) -> bool {
        let source = Path::new(&self.source);
        source.is_absolute() && self.place != source && self.place.starts_with(source)
    }
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
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_within_what_it_shows_is_told_by_its_names() {
        let shows_itself = |place: &str, source: &str| {
            let kind = FILESYSTEM_TYPE.as_bytes().to_vec();
            let (device, root) = (b"0:1".to_vec(), "/".into());
            let (place, source) = (place.into(), source.into());
            let (id, connection, is_writable, user) = (1, 1, false, None);
            Mount { id, connection, device, root, place, is_writable, kind, source, user }
                .shows_itself()
        };
        assert!(shows_itself("/d/mp", "/d"));
        assert!(shows_itself("/d/a/mp", "/d"));
        // A mount in the place of its source hides the source.
        assert!(!shows_itself("/d", "/d"));
        assert!(!shows_itself("/dd/mp", "/d"));
        assert!(!shows_itself("/d/mp", "d"));
    }
}
