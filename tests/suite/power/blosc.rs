//! Chunks of formats that store Blosc buffers, and faults to commit them under.

use shardfs::store::memory::Fault;

use super::Rng;

/// A Blosc buffer with so many bytes after its header, of a full chunk or a shorter one.
pub(crate) fn buffer(rng: &mut Rng, length: usize, decoded: u32) -> Vec<u8> {
    let mut bytes = vec![2, 1, 0, 1];
    let nbytes = u32::try_from(length).unwrap() + 16;
    for word in [decoded, decoded, nbytes] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(rng.bytes(length));
    bytes
}

/// Bytes of one before compression, as it says.
pub(crate) fn decoded(chunk: &[u8]) -> u32 {
    u32::from_le_bytes(chunk[4..8].try_into().unwrap())
}

/// Faults of some kinds.
pub(crate) const FAULTS: [Fault; 3] = [
    Fault { errno: libc::EIO, times: 1, half_done: false, changes_only: true },
    Fault { errno: libc::ENOSPC, times: 1, half_done: true, changes_only: true },
    Fault { errno: libc::EIO, times: u64::MAX, half_done: true, changes_only: false },
];
