//! What becomes of the pages that the kernel keeps of a file.

/// Page cache policy for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Cached pages are valid and kept.
    Kept,
    /// Cached pages are dropped, and the file is read again.
    Dropped,
    /// Reads bypass the cached pages and the cached length (direct I/O).
    Bypassed,
}

impl Pages {
    /// Returns [`Pages::Kept`] if what the kernel has cached is valid, otherwise
    /// [`Pages::Bypassed`].
    pub(super) fn kept_if(holds: bool) -> Self {
        if holds { Self::Kept } else { Self::Bypassed }
    }
}
