//! Bytes of a file as they lie in the page cache, to be handed to the kernel without a copy.
//!
//! The file may be cut short at any time, and touching its bytes would then kill the process. The
//! kernel's writev does not die: it fails with EFAULT, and the reader of the chunk gets EIO. So
//! these bytes can be sent but not looked at.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::Mmap;

/// A file that is mapped as a whole.
pub(super) struct FileMap(Arc<Mmap>);

impl FileMap {
    /// Maps `file`; None if it is too long for the address space, or empty.
    #[allow(unsafe_code, reason = "the one place where files are mapped")]
    pub(super) fn new(file: &OwnedFd) -> Option<Self> {
        // SAFETY: a map must not be read while others change or cut the file. It is not: its
        // bytes leave this module only as a slice for `writev`, whose copy in the kernel bears
        // both, and no code of this process loads from it (`MappedBytes::send`).
        let map = unsafe { Mmap::map(file) }.ok().filter(|map| !map.is_empty())?;
        Some(Self(Arc::new(map)))
    }

    /// A range of the file, if it lies within what was mapped.
    pub(super) fn range(&self, offset: u64, length: usize) -> Option<MappedBytes> {
        let from = usize::try_from(offset).ok()?;
        let range = from..from.checked_add(length)?;
        (range.end <= self.0.len()).then(|| MappedBytes { map: Arc::clone(&self.0), range })
    }
}

/// Bytes of a mapped file. They stay mapped as long as this value lives.
pub struct MappedBytes {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl MappedBytes {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Hands the bytes to `writev`. `sink` must not load from the slice: see the module.
    pub fn send(&self, sink: impl FnOnce(&[u8])) {
        sink(self.map.get(self.range.clone()).unwrap_or_default());
    }
}

impl fmt::Debug for MappedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MappedBytes").field(&self.range).finish()
    }
}
