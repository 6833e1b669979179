//! Digest of an array's encoded chunks that does not depend on how they are stored.
//!
//! Each chunk is hashed with BLAKE3 over its coordinates, its length and its bytes; the digest of
//! the array is the sum of these hashes. It is therefore equal for shards of any shape with chunks
//! in any order and for files of one chunk each, and threads need not agree on an order.
//!
//! ```text
//! BLAKE3( rank, coordinates, nbytes: u64 little-endian each | encoded chunk )   as four u64
//! sum of those of all chunks, each u64 for itself, modulo 2^64
//! ```

use std::fmt;

use blake3::Hasher;

/// Digest of the chunks of an array.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContentDigest {
    sum: [u64; 4],
    /// Number of chunks.
    pub chunks: u64,
    /// Total length of the chunks, in bytes.
    pub nbytes: u64,
}

/// Digest of one chunk in progress.
pub(crate) struct ChunkDigest {
    hash: Hasher,
    nbytes: u64,
}

impl ChunkDigest {
    /// Starts the digest of the chunk at `coords`, whose length is `nbytes`.
    pub(crate) fn new(coords: &[u64], nbytes: u64) -> Self {
        let mut hash = Hasher::new();
        hash.update(&(coords.len() as u64).to_le_bytes());
        for coord in coords {
            hash.update(&coord.to_le_bytes());
        }
        hash.update(&nbytes.to_le_bytes());
        Self { hash, nbytes }
    }

    /// Adds further bytes of the chunk.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// Returns the digest of the chunk.
    pub(crate) fn finish(self) -> ContentDigest {
        let hash = self.hash.finalize();
        let mut sum = [0; 4];
        for (word, bytes) in sum.iter_mut().zip(hash.as_bytes().as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        ContentDigest { sum, chunks: 1, nbytes: self.nbytes }
    }
}

impl ContentDigest {
    /// Adds the digest of other chunks of the same array.
    pub fn add(&mut self, other: &Self) {
        for (word, more) in self.sum.iter_mut().zip(other.sum) {
            *word = word.wrapping_add(more);
        }
        self.chunks += other.chunks;
        self.nbytes += other.nbytes;
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sum.iter().flat_map(|word| word.to_le_bytes()).try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(coords: &[u64], bytes: &[u8]) -> ContentDigest {
        let mut digest = ChunkDigest::new(coords, bytes.len() as u64);
        let (front, back) = bytes.split_at(bytes.len() / 2);
        digest.update(front);
        digest.update(back);
        digest.finish()
    }

    fn sum(parts: &[ContentDigest]) -> ContentDigest {
        let mut sum = ContentDigest::default();
        parts.iter().for_each(|part| sum.add(part));
        sum
    }

    #[test]
    fn the_order_does_not_count_and_everything_else_does() {
        let (a, b) = (of(&[0, 1], b"one"), of(&[1, 0], b"two"));
        assert_eq!(sum(&[a, b]), sum(&[b, a]));
        assert_eq!((sum(&[a, b]).chunks, sum(&[a, b]).nbytes), (2, 6));
        assert_ne!(sum(&[a, b]), sum(&[of(&[0, 1], b"two"), of(&[1, 0], b"one")]));
        assert_ne!(of(&[0, 1], b"one"), of(&[1, 0], b"one"));
        assert_ne!(sum(&[a]), sum(&[a, of(&[2, 2], b"")]));
    }

    #[test]
    fn it_is_what_the_documentation_says() {
        // Python: blake3(struct.pack("<QQQ", 1, 7, 2) + b"hi").hexdigest()
        let expected = "2d1e14cfe9d2b6592849ba99e6b6002872070f2bbb9aa1ecf4637db59a8f1699";
        assert_eq!(of(&[7], b"hi").to_string(), expected);
    }
}
