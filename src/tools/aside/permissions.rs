//! Owner and permissions of what is replaced, which what replaces it gets.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, Gid, Mode, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use crate::store::access_list::{ACCESS_LIST, DEFAULT_LIST, without_group};

/// Access control list of a file, and that of files made in a directory.
const LISTS: [&str; 2] = [ACCESS_LIST, DEFAULT_LIST];
/// Maximum length of an extended attribute.
const MAX_LIST_BYTES: usize = 64 << 10;

/// Owner and permissions of a file or directory, with its access control lists.
#[derive(Debug)]
pub(crate) struct Permissions {
    stat: Stat,
    lists: Vec<(&'static str, Vec<u8>)>,
}

impl Permissions {
    /// Reads those of an open file.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let mut lists = Vec::new();
        for name in LISTS {
            let mut list = vec![0; MAX_LIST_BYTES];
            match fs::fgetxattr(file, name, &mut list[..]) {
                Ok(length) => list.truncate(length),
                Err(error) if has_none(error) => continue,
                Err(error) => return Err(error.into()),
            }
            lists.push((name, list));
        }
        Ok(Self { stat: fs::fstat(file)?, lists })
    }

    /// Gives them to a new file, which no other user may open yet. Only root gives files away: the
    /// file of another user stays this user's, and if the group is none of this user's, group and
    /// others get what both of them had.
    pub(crate) fn give(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.stat.st_uid), Gid::from_raw(self.stat.st_gid));
        let mut mode = self.stat.st_mode & 0o7777;
        let given = match fs::fchown(file, Some(uid), Some(gid)) {
            Err(Errno::PERM) => fs::fchown(file, None, Some(gid)),
            given => given,
        };
        match given {
            Err(Errno::PERM) => mode = without_group(mode),
            given => given?,
        }
        for name in LISTS {
            let set = match self.lists.iter().find(|(of, _)| *of == name) {
                Some((_, list)) => fs::fsetxattr(file, name, list, XattrFlags::empty()),
                None => match fs::fremovexattr(file, name) {
                    Err(error) if has_none(error) => Ok(()),
                    removed => removed,
                },
            };
            set?;
        }
        Ok(fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }
}

/// Returns whether an error means that there is no such list, or that the filesystem has none.
fn has_none(error: Errno) -> bool {
    [Errno::NODATA, Errno::OPNOTSUPP, Errno::NOSYS].contains(&error)
}
