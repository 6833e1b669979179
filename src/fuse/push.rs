//! Notifications that put pages into the kernel's page cache (`FUSE_NOTIFY_STORE`).
//!
//! ```text
//! length of it all u32 | code 4 u32 | 0 u64          fuse_out_header
//! inode u64 | offset u64 | length u32 | 0 u32        fuse_notify_store_out
//! contents
//! ```
//!
//! All numbers are in the byte order of the machine. fuser's own notifier does not say whether the
//! kernel knows the inode.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use fuser::{INodeNo, Notifier};
use rustix::io::{Errno, writev};

use crate::fs::{PageCache, PushAhead, Views};
use crate::view::inode::in_view;

/// Code of the notification.
const STORE: u32 = 4;
/// Length of everything before the contents.
const HEADER_NBYTES: usize = 40;

/// Page cache of a mount.
struct Pages {
    /// FUSE connection.
    device: OwnedFd,
    notifier: Notifier,
    /// Number of the view in its mount.
    view: u64,
}

/// Starts the threads that push what readers are about to request, one for each view in which that
/// is done. `is_guarded`: whether the mount ends if this process is killed while one of them waits.
pub fn start(
    views: &Views,
    is_guarded: bool,
    device: impl Fn() -> io::Result<OwnedFd>,
    notifier: impl Fn() -> Notifier,
) -> io::Result<()> {
    for (view, fs) in views.numbered() {
        let Some(ahead) = PushAhead::start(fs, is_guarded) else { continue };
        let pages = Pages { device: device()?, notifier: notifier(), view };
        let thread = std::thread::Builder::new().name("ahead".to_owned());
        thread.spawn(move || ahead.run(&pages))?;
    }
    Ok(())
}

impl PageCache for Pages {
    fn push(&self, ino: u64, content: &[u8]) -> io::Result<bool> {
        let header = header(in_view(self.view, ino), content.len())?;
        match writev(&self.device, &[IoSlice::new(&header), IoSlice::new(content)]) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn drop_pages(&self, ino: u64) {
        if let Err(error) = self.notifier.inval_inode(INodeNo(in_view(self.view, ino)), 0, 0) {
            log::debug!("the kernel cannot drop the pages of file {ino}: {error}");
        }
    }
}

/// Returns what precedes `nbytes` bytes of contents, which begin at the file's start.
fn header(ino: u64, nbytes: usize) -> io::Result<[u8; HEADER_NBYTES]> {
    let too_long = |_| io::Error::from(io::ErrorKind::FileTooLarge);
    let length = u32::try_from(nbytes).map_err(too_long)?;
    let all = u32::try_from(nbytes + HEADER_NBYTES).map_err(too_long)?;
    let mut header = [0; HEADER_NBYTES];
    header[0..4].copy_from_slice(&all.to_ne_bytes());
    header[4..8].copy_from_slice(&STORE.to_ne_bytes());
    header[16..24].copy_from_slice(&ino.to_ne_bytes());
    header[32..36].copy_from_slice(&length.to_ne_bytes());
    Ok(header)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_notification_has_the_layout_of_the_kernels_header() {
        let numbers: Vec<u32> = header(7, 1000)
            .unwrap()
            .chunks_exact(4)
            .map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap()))
            .collect();
        let ino = if cfg!(target_endian = "little") { [7, 0] } else { [0, 7] };
        assert_eq!(numbers, [1040, 4, 0, 0, ino[0], ino[1], 0, 0, 1000, 0]);
        assert!(header(7, u32::MAX as usize).is_err());
    }
}
