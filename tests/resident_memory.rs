//! Memory that a mount takes, by what the system counts for the process: a program of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use shardfs::format::zarr2::Missing;
use shardfs::fs::{Fs, FsConfig, View, ViewConfig};
use shardfs::store::memory::MemoryStorage;
use shardfs::view::inode::ROOT;

/// Bytes of memory that this process uses.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn chunks_that_do_not_exist_take_no_memory_for_each_array_that_shows_them() {
    const NBYTES: u64 = 32 << 20;
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("zarr.json", json!({"zarr_format": 3, "node_type": "group"}).to_string());
    let arrays: Vec<String> = (0..12).map(|n| format!("a{n}")).collect();
    for array in &arrays {
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": [2 * NBYTES],
            "data_type": "uint8", "fill_value": 7,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [NBYTES]}},
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]});
        storage.replace(&format!("{array}/zarr.json"), document.to_string());
        storage.replace(&format!("{array}/c/1"), *b"chunk 1");
    }
    let view = ViewConfig { view: View::Zarr2, missing: Missing::Fill, ..ViewConfig::default() };
    let config = FsConfig { view, ..FsConfig::default() };
    let fs = Fs::new(storage, config, Arc::default()).unwrap();
    let ino = |path: &str| {
        let step = |at, name: &OsStr| fs.lookup(at, name).unwrap().unwrap().attr.ino;
        Path::new(path).iter().fold(ROOT, step)
    };
    let read = |ino| {
        let opened = fs.open(ino).unwrap();
        let mut bytes = vec![0; 1 << 17];
        let read = fs.read(ino, Some(opened.handle), 0, &mut bytes).unwrap();
        fs.release(opened.handle);
        bytes.truncate(read);
        bytes
    };
    let before = memory();
    for array in &arrays {
        assert_eq!(read(ino(&format!("{array}/1"))), b"chunk 1");
        let absent = ino(&format!("{array}/0"));
        assert_eq!(fs.getattr(absent, None).unwrap().0.size, NBYTES);
        assert_eq!(read(absent), [7; 1 << 17]);
    }
    let taken = memory().saturating_sub(before);
    assert!(taken < 4 * NBYTES, "{} MiB", taken >> 20);
}
