//! What holds for every input, however hostile: shared by the fuzz targets (`fuzz/`) and the
//! replay of their seeds (`tests/fuzz_seeds.rs`). Each check takes any bytes and panics where
//! something does not hold.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "checks fail by panicking"
)]
#![allow(unreachable_pub, reason = "the fuzz targets' library includes these files")]

mod after;
mod blosc2;
mod index;
mod memory;
mod metadata;

pub use after::after;
pub use blosc2::blosc2;
pub use index::index;
pub use metadata::metadata;

/// Takes the parts of a structured input off its front; zeros where it has ended.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (front, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        let mut array = [0; N];
        array[..front.len()].copy_from_slice(front);
        array
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }
}
