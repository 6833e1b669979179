//! A process that has as many files open as it may have: what needs one only for a moment is done all the same.
//!
//! The limit is the process's, so this is a program of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use shardfs::store::local::LocalStorage;
use shardfs::store::storage::{PosixStorage, Storage};

/// Acts, and some times more if that has failed after it has waited: another thread was in the middle of an act of its
/// own, and did not get on.
fn patiently<T>(act: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
    for _ in 0..20 {
        let begun = Instant::now();
        let result = act();
        if result.is_ok() || begun.elapsed() < Duration::from_secs(1) {
            return result;
        }
    }
    act()
}

#[test]
fn names_are_looked_up_and_removed_whatever_others_have_open() {
    let top = tempfile::tempdir().unwrap();
    std::fs::write(top.path().join("f"), b"content").unwrap();
    let names: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    for name in &names {
        std::fs::write(top.path().join(name), b"").unwrap();
    }
    let storage = LocalStorage::open_root(top.path(), Arc::default()).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(40), ..limit }).unwrap();
    let (is_done, were_all_open) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut open = Vec::new();
                while !is_done.load(Ordering::Relaxed) {
                    match storage.open(Path::new("f")) {
                        Ok(file) => open.push(file),
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                            were_all_open.store(true, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        let begun = Instant::now();
        while !were_all_open.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let failed: Vec<_> = names
            .iter()
            .filter_map(|name| {
                let size = patiently(|| storage.stat(Path::new("f")).map(|stat| stat.size));
                let removed = patiently(|| storage.remove_file(Path::new(name)));
                let as_expected = matches!(size, Ok(7)) && removed.is_ok();
                (!as_expected).then_some((name, size, removed))
            })
            .collect();
        is_done.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{} of {}: {:?}", failed.len(), names.len(), failed.first());
    });
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(were_all_open.load(Ordering::Relaxed));
}
