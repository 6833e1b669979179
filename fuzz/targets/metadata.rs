//! Fuzzes `checks::metadata`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardfs_fuzz::checks::metadata(bytes));
