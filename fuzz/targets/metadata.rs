//! Fuzzes `checks::metadata`.

#![no_main]

#[path = "../../tests/fuzz/checks/mod.rs"]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::metadata(bytes));
