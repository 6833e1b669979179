//! Extended attributes: access control lists and user attributes, which are those of the source,
//! and on request attributes that report where a chunk is stored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::fs::attr::Ownership;
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::node::At;
use crate::fs::state::fs::Fs;
use crate::fs::state::target::Target;
use crate::store::Freshness;
use crate::store::access_list::{ACCESS_LIST, DEFAULT_LIST};

const SHARD: &str = "user.shardfs.shard";

const OFFSET: &str = "user.shardfs.offset";

const NBYTES: &str = "user.shardfs.nbytes";

impl Ownership {
    /// Returns an access control list of the source with the permissions in the umask cleared.
    fn access_list(&self, mut list: Vec<u8>) -> Vec<u8> {
        const HEADER_BYTES: usize = 4;
        const OWNER: u16 = 1;
        const OTHERS: u16 = 0x20;
        let umask = self.umask.unwrap_or(0);
        for entry in list.get_mut(HEADER_BYTES..).unwrap_or_default().chunks_exact_mut(8) {
            let taken = match u16::from_le_bytes([entry[0], entry[1]]) {
                OWNER => umask >> 6,
                OTHERS => umask,
                _ => umask >> 3,
            };
            // Three bits.
            entry[2] &= !u8::try_from(taken & 7).unwrap_or(7);
        }
        list
    }
}

impl Fs {
    /// Returns the value of an extended attribute.
    pub fn getxattr(&self, ino: u64, name: &OsStr, caller: &Caller) -> Result<Vec<u8>> {
        let target = self.target(ino)?;
        if name == ACCESS_LIST || name == DEFAULT_LIST {
            return self.access_list(&target, name);
        }
        if let Target::Path(path) = &target
            && is_of_users(name)
            && self.check_stored(path).is_ok()
            && self.storage.posix().is_some()
        {
            let value = self.on_behalf(caller, |storage| storage.xattr(path, name, false));
            return value.map_err(absent);
        }
        let mut attributes = self.chunk_attributes(ino)?.into_iter();
        let found = attributes.find(|(attribute, _)| name == *attribute);
        found.map(|(_, value)| value).ok_or(FsError::NoAttribute)
    }

    /// Returns the names of the extended attributes, each terminated by a NUL.
    pub fn listxattr(&self, ino: u64, caller: &Caller) -> Result<Vec<u8>> {
        if let Target::Path(path) = self.target(ino)? {
            if self.storage.posix().is_none() {
                return Ok(Vec::new());
            }
            let names = match self.on_behalf(caller, |storage| storage.xattrs(&path)) {
                Err(error) if error.errno() == libc::EOPNOTSUPP => Vec::new(),
                names => names?,
            };
            let is_shown = |name: &&[u8]| is_passed_through(OsStr::from_bytes(name));
            let names = names.split(|byte| *byte == 0).filter(is_shown);
            return Ok(names.flat_map(|name| [name, b"\0"].concat()).collect());
        }
        let attributes = self.chunk_attributes(ino)?;
        Ok(attributes.iter().flat_map(|(name, _)| [name.as_bytes(), b"\0"].concat()).collect())
    }

    /// Sets an extended attribute of a file of the source.
    pub fn setxattr(
        &self,
        ino: u64,
        name: &OsStr,
        value: &[u8],
        flags: u32,
        caller: &Caller,
    ) -> Result<()> {
        let path = self.changeable(ino, name)?;
        let _turn = self.name_in_source();
        // It may be a shard by now.
        self.check_no_shard_now(&path)?;
        let set = self.on_behalf(caller, |storage| storage.set_xattr(&path, name, value, flags));
        set.map_err(|error| self.gone(&path, error))
    }

    /// Removes an extended attribute of a file of the source.
    pub fn removexattr(&self, ino: u64, name: &OsStr, caller: &Caller) -> Result<()> {
        let path = self.changeable(ino, name)?;
        let _turn = self.name_in_source();
        self.check_no_shard_now(&path)?;
        let removed = self.on_behalf(caller, |storage| storage.remove_xattr(&path, name));
        removed.map_err(|error| absent(self.gone(&path, error)))
    }

    /// Returns the path of the file of the source if the attribute can be changed.
    fn changeable(&self, ino: u64, name: &OsStr) -> Result<PathBuf> {
        self.overlay()?;
        match self.target(ino)? {
            Target::Path(path) if is_passed_through(name) => {
                self.check_stored(&path)?;
                Ok(path.to_path_buf())
            }
            _ => Err(FsError::NotSupported),
        }
    }

    /// Returns the access control list of the file from which a node takes its permissions.
    fn access_list(&self, target: &Target, name: &OsStr) -> Result<Vec<u8>> {
        let path = match target {
            Target::Path(path) => match self.nodes.at(path)? {
                At::Text(..) => self.document_of(path)?,
                _ => path.to_path_buf(),
            },
            Target::Flat(array, _) => self.nodes.document_path(&array.source.path)?,
            _ => self.shards_of(target).ok_or(FsError::NoAttribute)?,
        };
        let follow = !matches!(target, Target::Path(_));
        let storage = self.storage.posix().ok_or(FsError::NoAttribute)?;
        let list = match storage.xattr(&path, name, follow) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && follow => {
                let above = self.shown_for(target)?.ok_or(FsError::NoAttribute)?;
                storage.xattr(&above, name, follow)
            }
            list => list,
        };
        let list = list.map_err(|error| absent(error.into()))?;
        Ok(self.config.ownership.access_list(list))
    }

    fn chunk_attributes(&self, ino: u64) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let Target::Tree(array, coords) = self.target(ino)? else {
            return Ok(Vec::new());
        };
        if coords.len() < array.tree.rank() {
            return Ok(Vec::new());
        }
        let chunk = self.store.chunk(&array.source, &coords, Freshness::Now)?;
        let chunk = chunk.ok_or(FsError::NotFound)?;
        let shard = array.source.shard_path(&array.source.layout.shard_of(&coords));
        let mut attributes = vec![
            (SHARD, shard.as_os_str().as_bytes().to_vec()),
            (NBYTES, chunk.nbytes().to_string().into_bytes()),
        ];
        // A chunk in a shard that is compressed as a whole has no offset in the file.
        attributes.extend(chunk.offset().map(|offset| (OFFSET, offset.to_string().into_bytes())));
        Ok(attributes)
    }
}

/// Returns whether an attribute is a user attribute, other than those of shardfs.
fn is_of_users(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(b"user.") && !name.starts_with(b"user.shardfs.")
}

/// Returns whether an attribute of a file of the source is shown and can be changed.
fn is_passed_through(name: &OsStr) -> bool {
    is_of_users(name) || name == ACCESS_LIST || name == DEFAULT_LIST
}

/// Maps errors that mean that there is no list: the kernel refuses access on any other error.
fn absent(error: FsError) -> FsError {
    match error.errno() {
        libc::ENODATA | libc::EOPNOTSUPP | libc::ENOENT | libc::ENOTDIR => FsError::NoAttribute,
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_umask_takes_permissions_from_every_entry_of_a_list() {
        let entry = |tag: u16, permissions: u16, id: u32| {
            let parts = [tag.to_le_bytes(), permissions.to_le_bytes()].concat();
            [parts, id.to_le_bytes().to_vec()].concat()
        };
        let list = |p: [u16; 4]| {
            let entries =
                [(1, p[0], u32::MAX), (2, p[1], 7), (4, p[2], u32::MAX), (32, p[3], u32::MAX)];
            let entries = entries.map(|(tag, permissions, id)| entry(tag, permissions, id));
            [vec![2, 0, 0, 0], entries.concat()].concat()
        };
        let ownership = |umask| Ownership { umask, ..Ownership::default() };
        assert_eq!(ownership(None).access_list(list([7, 7, 6, 5])), list([7, 7, 6, 5]));
        assert_eq!(ownership(Some(0o124)).access_list(list([7, 7, 6, 5])), list([6, 5, 4, 1]));
        assert_eq!(ownership(Some(0o777)).access_list(vec![2, 0]), [2, 0]);
    }
}
