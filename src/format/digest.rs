//! Checksums of Bloscpack, by their numbers.

use flate2::Crc;
use md5::{Digest as _, Md5};
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

/// Checksum over the bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Digest {
    /// No checksum.
    #[default]
    None,
    /// Adler-32 (RFC 1950), little-endian.
    Adler32,
    /// CRC-32 (RFC 1952), little-endian.
    Crc32,
    /// MD5 (RFC 1321).
    Md5,
    /// SHA-1 (FIPS 180-4).
    Sha1,
    /// SHA-224 (FIPS 180-4).
    Sha224,
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// SHA-384 (FIPS 180-4).
    Sha384,
    /// SHA-512 (FIPS 180-4).
    Sha512,
}

impl Digest {
    /// All checksums, indexed by their numbers.
    const ALL: [Self; 9] = [
        Self::None,
        Self::Adler32,
        Self::Crc32,
        Self::Md5,
        Self::Sha1,
        Self::Sha224,
        Self::Sha256,
        Self::Sha384,
        Self::Sha512,
    ];

    /// Returns the checksum with the given number; `None` if there is none.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Number of the checksum in a Bloscpack header.
    pub fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Adler32 => 1,
            Self::Crc32 => 2,
            Self::Md5 => 3,
            Self::Sha1 => 4,
            Self::Sha224 => 5,
            Self::Sha256 => 6,
            Self::Sha384 => 7,
            Self::Sha512 => 8,
        }
    }

    /// Name of the checksum.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Adler32 => "adler32",
            Self::Crc32 => "crc32",
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha224 => "sha224",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Length of the checksum in bytes.
    pub fn nbytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Adler32 | Self::Crc32 => 4,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Computes the checksum of `bytes` in its stored form.
    pub fn of(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::None => Vec::new(),
            Self::Adler32 => adler2::adler32_slice(bytes).to_le_bytes().to_vec(),
            Self::Crc32 => {
                let mut crc = Crc::new();
                crc.update(bytes);
                crc.sum().to_le_bytes().to_vec()
            }
            Self::Md5 => Md5::digest(bytes).to_vec(),
            Self::Sha1 => Sha1::digest(bytes).to_vec(),
            Self::Sha224 => Sha224::digest(bytes).to_vec(),
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        let hex = |digest: Digest| {
            digest.of(b"abc").iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hex(Digest::None), "");
        // Little-endian: 024d0127 and 352441c2.
        assert_eq!(hex(Digest::Adler32), "27014d02");
        assert_eq!(hex(Digest::Crc32), "c2412435");
        assert_eq!(hex(Digest::Md5), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(hex(Digest::Sha1), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(hex(Digest::Sha256).starts_with("ba7816bf8f01cfea"));
    }

    #[test]
    fn lengths_are_those_of_the_checksums() {
        for number in 0..9 {
            let digest = Digest::from_number(number).unwrap();
            assert_eq!(digest.of(b"abc").len(), digest.nbytes(), "{}", digest.name());
            assert_eq!(digest.number(), number);
        }
        assert_eq!(Digest::from_number(9), None);
    }
}
