//! Fuzzes `checks::blosc2`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardfs_fuzz::checks::blosc2(bytes));
