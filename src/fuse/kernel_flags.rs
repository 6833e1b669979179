//! What is agreed with the kernel when a mount begins, and for each open file.

use std::time::Duration;

use fuser::{FopenFlags, InitFlags, KernelConfig};

use crate::fs::Pages;
use crate::store::TRUSTED;
use crate::store::storage::FileKind;

/// Time for which the kernel may cache names and attributes of an immutable source.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Maximum number of background requests of the kernel, mainly readahead.
const MAX_BACKGROUND: u16 = 64;

/// Maximum length of the data of a request in bytes.
pub(super) const MAX_REQUEST: u32 = 1 << 20;

/// Kernel settings that apply to a mount as a whole. Benchmarks that compare with a mount use the
/// same.
#[derive(Debug, Clone, Copy)]
pub struct KernelFlags {
    /// `true` if the source does not change.
    pub immutable: bool,
    /// `true` if the mount is writable.
    pub writable: bool,
    /// `true` if users other than the one who mounts may access the mount.
    pub shared: bool,
    /// `true` if names and removals return once they are durable. One that cannot be made durable reports
    /// an error, from which the kernel concludes that nothing was done: it must cache no names of
    /// files.
    pub sync: bool,
}

impl KernelFlags {
    /// Sets limits and capabilities; those that this kernel lacks are left out. Returns whether the
    /// kernel keeps pages of an open file until it is notified.
    pub fn configure(self, config: &mut KernelConfig) -> bool {
        let is_told =
            self.writable && config.add_capabilities(InitFlags::FUSE_EXPLICIT_INVAL_DATA).is_ok();
        if !is_told {
            // The kernel drops pages when the mtime or length has changed. All kernels support it.
            let _ = config.add_capabilities(InitFlags::FUSE_AUTO_INVAL_DATA);
        }
        let wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_CACHE_SYMLINKS
            // Files that are read around the page cache can be mapped nevertheless.
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        // Opening with truncation is then a single change. A directory may have rules other than
        // the caller's umask for the permissions of new files.
        let writing = InitFlags::FUSE_ATOMIC_O_TRUNC | InitFlags::FUSE_DONT_MASK;
        let wanted = if self.writable { wanted | writing } else { wanted };
        // The kernel then requests access control lists: without them it would take the mask of a
        // list for the permissions of the group.
        let lists = if self.shared { InitFlags::FUSE_POSIX_ACL } else { InitFlags::empty() };
        for capability in (wanted | lists).iter() {
            // A kernel that lacks the capability works without it.
            let _ = config.add_capabilities(capability);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_max_write(MAX_REQUEST);
        is_told
    }

    /// Returns the time for which names and attributes may be cached.
    pub fn lasting(self) -> Duration {
        if self.immutable { FOREVER } else { TRUSTED }
    }

    /// Returns the time for which the kernel may cache a name of a file, and the attributes that it is
    /// returned with; `None` stands for one that does not exist.
    pub fn name_lasts(self, kind: Option<FileKind>) -> Duration {
        match kind {
            Some(FileKind::Directory) => self.lasting(),
            _ if self.sync => Duration::ZERO,
            _ => self.lasting(),
        }
    }

    /// Returns the flags of an open file. Writers receive errors when they close it.
    pub fn opened(self, pages: Pages, write: bool) -> FopenFlags {
        let flags = match pages {
            Pages::Kept => FopenFlags::FOPEN_KEEP_CACHE,
            Pages::Dropped | Pages::Renewed => FopenFlags::empty(),
            Pages::Bypassed | Pages::Uncached => FopenFlags::FOPEN_DIRECT_IO,
        };
        if write { flags } else { flags | FopenFlags::FOPEN_NOFLUSH }
    }
}
