//! Notification of the kernel of changes by other processes to open files.

use std::sync::{Arc, Weak};
use std::time::Instant;

use fuser::Notifier;

use super::kernel_cache::KeptPages;
use crate::fs::{Caller, Views};
use crate::store::TRUSTED;

/// Background task that notifies the kernel of changes by other processes to files open through a
/// mount.
pub struct Revalidation {
    pub(super) views: Weak<Views>,
    pub(super) kept: Arc<KeptPages>,
}

impl Revalidation {
    /// Runs until the mount ends.
    pub fn run(self, notifier: Notifier) {
        self.kept.serve(notifier);
        loop {
            self.kept.drop_until(Instant::now() + TRUSTED);
            let Some(views) = self.views.upgrade() else { return };
            self.kept.settle();
            for (ino, handle) in self.kept.following() {
                let asked = self.kept.ask();
                if let Ok((attr, _)) = views.getattr(ino, Some(handle), &Caller::own()) {
                    self.kept.follow(asked, ino, handle, &attr);
                }
            }
        }
    }
}
