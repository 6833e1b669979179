//! Access control lists that new files inherit from their directory.
//!
//! A file that is made elsewhere and renamed into the directory inherits nothing there: it is given
//! what the filesystem would have given it.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::storage::{PosixStorage, Xattrs};

/// Extended attribute of the list that refines the permission bits of a file.
pub(crate) const ACCESS_LIST: &str = "system.posix_acl_access";
/// Extended attribute of the default list of new files in a directory.
pub(crate) const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Returns permissions without those that depend on the group: group and others get what both of
/// them had, because members of the one group are others to another one.
pub(crate) fn without_group(mode: u32) -> u32 {
    let both = mode >> 3 & mode & 0o7;
    mode & !(libc::S_ISGID | 0o77) | both << 3 | both
}

/// Length of the head of a list, which is followed by its entries.
const HEAD_BYTES: usize = 4;
/// Length of an entry: tag, permissions, id.
const ENTRY_BYTES: usize = 8;

const OWNER: u16 = 1;
const NAMED_USER: u16 = 2;
const GROUP: u16 = 4;
const NAMED_GROUP: u16 = 8;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Access control list of a new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inherited {
    list: Vec<u8>,
    /// Permission bits of a file with this list: those of the group are the mask.
    pub mode: u32,
    /// Permission bits that let no user do more without the list than with it.
    pub narrow_mode: u32,
}

impl Inherited {
    /// Returns the list as an extended attribute.
    pub(crate) fn xattrs(&self) -> Xattrs {
        vec![(ACCESS_LIST.into(), self.list.clone())]
    }

    /// Limits a default list to the permissions `mode`, as the kernel does for a new file.
    fn new(mut list: Vec<u8>, mode: u32) -> Self {
        let permissions = |list: &[u8], tag: u16| {
            let entries = list.get(HEAD_BYTES..).unwrap_or_default();
            let mut entries = entries.chunks_exact(ENTRY_BYTES);
            let entry = entries.find(|entry| tag == u16::from_le_bytes([entry[0], entry[1]]));
            entry.map(|entry| u32::from(entry[2]) & 7)
        };
        let group = if permissions(&list, MASK).is_some() { MASK } else { GROUP };
        let entries = list.get_mut(HEAD_BYTES..).unwrap_or_default();
        for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
            let kept = match u16::from_le_bytes([entry[0], entry[1]]) {
                OWNER => mode >> 6,
                OTHERS => mode,
                tag if tag == group => mode >> 3,
                _ => 7,
            };
            // Three bits.
            entry[2] &= u8::try_from(kept & 7).unwrap_or(0);
        }
        let of = |tag: u16| permissions(&list, tag).unwrap_or(0);
        let mode = of(OWNER) << 6 | of(group) << 3 | of(OTHERS);
        // Whoever is named may belong to the group, or else to the others.
        let entries = list.get(HEAD_BYTES..).unwrap_or_default().chunks_exact(ENTRY_BYTES);
        let is_named = |entry: &&[u8]| {
            [NAMED_USER, NAMED_GROUP].contains(&u16::from_le_bytes([entry[0], entry[1]]))
        };
        let named = entries.filter(is_named).map(|entry| u32::from(entry[2]) & of(group));
        let all = named.fold(7, |all, permissions| all & permissions);
        let narrow_mode = of(OWNER) << 6 | (of(group) & of(GROUP) & all) << 3 | of(OTHERS) & all;
        Self { list, mode, narrow_mode }
    }
}

/// Returns the access control list that a file gets if it is created in a directory with
/// permissions `mode`. `None` if the directory has no default list: then the umask applies.
///
/// # Errors
/// Those of reading the directory's attributes.
pub(crate) fn inherited(
    storage: &dyn PosixStorage,
    directory: &Path,
    mode: u32,
) -> io::Result<Option<Inherited>> {
    const NONE: [i32; 3] = [libc::ENODATA, libc::EOPNOTSUPP, libc::ENOSYS];
    match storage.xattr(directory, OsStr::new(DEFAULT_LIST), true) {
        Err(error) if error.raw_os_error().is_some_and(|errno| NONE.contains(&errno)) => Ok(None),
        list => Ok(Some(Inherited::new(list?, mode))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// List of entries of tag and permissions.
    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |(tag, permissions): &(u16, u16)| {
            [tag.to_le_bytes(), permissions.to_le_bytes(), [255; 2], [255; 2]].concat()
        };
        [vec![2, 0, 0, 0], entries.iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn permissions_asked_for_limit_owner_mask_and_others() {
        let default = list(&[(1, 7), (2, 7), (4, 5), (0x10, 7), (0x20, 5)]);
        let new = Inherited::new(default, 0o664);
        assert_eq!(new.list, list(&[(1, 6), (2, 7), (4, 5), (0x10, 6), (0x20, 4)]));
        assert_eq!((new.mode, new.narrow_mode), (0o664, 0o644));
    }

    #[test]
    fn without_a_mask_they_limit_the_group() {
        let new = Inherited::new(list(&[(1, 7), (4, 7), (0x20, 0)]), 0o646);
        assert_eq!(new.list, list(&[(1, 6), (4, 4), (0x20, 0)]));
        assert_eq!((new.mode, new.narrow_mode), (0o640, 0o640));
    }

    #[test]
    fn without_the_list_nobody_gets_what_it_denies() {
        let new = Inherited::new(list(&[(1, 7), (2, 0), (4, 5), (0x10, 7), (0x20, 5)]), 0o666);
        assert_eq!((new.mode, new.narrow_mode), (0o664, 0o600));
        let new = Inherited::new(list(&[(1, 7), (4, 6), (8, 4), (0x10, 7), (0x20, 6)]), 0o666);
        assert_eq!((new.mode, new.narrow_mode), (0o666, 0o644));
    }

    #[test]
    fn a_list_cut_short_permits_nothing() {
        let new = Inherited::new(vec![2, 0], 0o666);
        assert_eq!((new.mode, new.narrow_mode), (0, 0));
    }
}
