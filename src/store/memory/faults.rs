//! Failures injected into a storage in memory.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Failure of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Errno that is returned.
    pub errno: i32,
    /// Number of consecutive operations that fail; `u64::MAX` for all from then on.
    pub times: u64,
    /// `true` if a failing write has written half of its bytes.
    pub half_done: bool,
    /// `true` if only operations that write, sync or change names are counted and fail.
    pub changes_only: bool,
}

/// Injected failures, and counts of operations.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) fault: Mutex<Option<(u64, Fault)>>,
    pub(super) failed: AtomicU64,
    pub(super) operations: AtomicU64,
}

impl Faults {
    /// Counts an operation, and returns the failure planned for it.
    pub(super) fn check(&self, changes: bool) -> Result<(), Fault> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let mut planned = self.fault.lock();
        let Some((left, fault)) = &mut *planned else {
            return Ok(());
        };
        if fault.changes_only && !changes {
            return Ok(());
        }
        *left = left.saturating_sub(1);
        if *left > 0 {
            return Ok(());
        }
        let failing = *fault;
        fault.times -= u64::from(fault.times < u64::MAX);
        if fault.times == 0 {
            *planned = None;
        }
        self.failed.fetch_add(1, Ordering::Relaxed);
        Err(failing)
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        Self::from_raw_os_error(fault.errno)
    }
}
