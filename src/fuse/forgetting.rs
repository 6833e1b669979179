//! Asks the kernel to forget files that nothing uses.
//!
//! The kernel keeps what it has looked up until its memory is short, and that is the machine's; for as long this
//! process must know each of these files too ([`Fs::surplus`](crate::fs::Fs::surplus)).

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fuser::{INodeNo, Notifier};

use crate::fs::Views;
use crate::view::inode::in_view;

/// Time between two looks at how many the kernel knows.
const INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread that does this, if a view needs it. The kernel makes it wait while a directory is being changed,
/// and such a change waits for answers of this process: so there is none unless the mount `is_guarded`, which ends it
/// if this process is killed meanwhile.
pub fn start(
    views: &Arc<Views>,
    is_guarded: bool,
    notifier: impl Fn() -> Notifier,
) -> io::Result<()> {
    if !is_guarded || !views.all().iter().any(|fs| fs.makes_shards()) {
        return Ok(());
    }
    let (views, notifier) = (Arc::downgrade(views), notifier());
    std::thread::Builder::new()
        .name("forgetting".to_owned())
        .spawn(move || run(&views, &notifier))?;
    Ok(())
}

/// Runs until the mount ends.
fn run(views: &Weak<Views>, notifier: &Notifier) {
    loop {
        std::thread::sleep(INTERVAL);
        let Some(views) = views.upgrade() else { return };
        for (view, fs) in views.numbered() {
            for (directory, name) in fs.surplus() {
                // It may have been removed, or the kernel has forgotten it by now.
                let _ = notifier.inval_entry(INodeNo(in_view(view, directory)), &name);
            }
        }
    }
}
