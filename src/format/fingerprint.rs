//! Fingerprints that show whether bytes are the expected ones.
//!
//! A crc32c alone is not sufficient: an index ends with its own crc32c, and so may a chunk. The
//! crc32c of bytes *with* their crc32c at the end is the same number for all of them, and where one
//! such part of a longer sequence is replaced by another, the crc32c of the whole does not change.
//! The same holds for gzip and others with CRC-32. Nothing ends with both checksums at once.

use flate2::Crc;

/// Length of a stored fingerprint in bytes.
pub const FINGERPRINT_BYTES: usize = 8;

/// The crc32c and the CRC-32 of a sequence of bytes.
#[derive(Debug, Default)]
pub struct Fingerprint {
    crc32c: u32,
    crc32: Crc,
}

impl Fingerprint {
    /// Appends bytes to the sequence.
    pub fn update(&mut self, bytes: &[u8]) {
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
        self.crc32.update(bytes);
    }

    /// Returns the fingerprint of all bytes so far.
    pub fn value(&self) -> u64 {
        u64::from(self.crc32c) << 32 | u64::from(self.crc32.sum())
    }

    /// Returns the fingerprint of `bytes`.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut fingerprint = Self::default();
        fingerprint.update(bytes);
        fingerprint.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_end_with_their_own_checksum_are_told_apart() {
        let with = |bytes: &[u8], checksum: u32| [bytes, &checksum.to_le_bytes()].concat();
        let ends = |bytes: &[u8]| {
            let mut crc32 = Crc::new();
            crc32.update(bytes);
            [with(bytes, crc32c::crc32c(bytes)), with(bytes, crc32.sum())]
        };
        for (one, other) in ends(b"one").into_iter().zip(ends(b"two")) {
            assert_ne!(Fingerprint::of(&one), Fingerprint::of(&other));
            // As part of a longer sequence, too.
            let within = |part: &[u8]| Fingerprint::of(&[b"before", part, b"behind"].concat());
            assert_ne!(within(&one), within(&other));
        }
        assert_eq!(crc32c::crc32c(&ends(b"one")[0]), crc32c::crc32c(&ends(b"two")[0]));
    }

    #[test]
    fn it_does_not_matter_how_bytes_are_split() {
        let mut fingerprint = Fingerprint::default();
        assert_eq!(fingerprint.value(), Fingerprint::of(b""));
        fingerprint.update(b"1234");
        fingerprint.update(b"56789");
        // Check values of both checksums, from the catalogue of CRCs.
        assert_eq!(fingerprint.value(), 0xe306_9283_cbf4_3926);
    }
}
