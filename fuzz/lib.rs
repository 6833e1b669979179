//! The checks of `tests/fuzz/`, built once for all targets.

#[path = "../tests/fuzz/checks/mod.rs"]
pub mod checks;
