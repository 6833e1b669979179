//! Fuzzes `checks::after`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardfs_fuzz::checks::after(bytes));
