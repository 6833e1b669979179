//! Fuzzes `checks::index`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardfs_fuzz::checks::index(bytes));
