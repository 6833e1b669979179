//! Conversion of the numbers of files to the numbers of memory.

const _: () = assert!(
    usize::BITS >= u64::BITS,
    "shardfs needs 64-bit addresses: sizes and offsets in files are used as indexes in memory"
);

/// Returns a size, an offset or a count as `usize`, which holds every `u64`.
#[allow(clippy::cast_possible_truncation, reason = "asserted above: usize has 64 bits")]
pub(crate) const fn to_usize(number: u64) -> usize {
    number as usize
}
