//! The one wrong byte by which a CRC-32C does not match.
//!
//! ```text
//! checked bytes                       checksum
//! | b0 | b1 | .. | bk | 0 .. 0 | bn |  c0 c1 c2 c3 |
//!                  ^ wrong by e
//!
//! stored XOR computed = CRC of e, and of the n - k zeros behind it
//! ```
//!
//! The CRC is linear: going back through the zeros, one byte after the other, finds for each place the error that would
//! explain the difference. By chance one does in a place of 2^24.

/// Length of the checksum.
const CHECKSUM: usize = 4;

/// Byte that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongByte {
    /// Its position.
    pub at: usize,
    /// What would stand there.
    pub right: u8,
}

/// Returns all single bytes of `bytes` with which its last four are the CRC-32C of those before: most of the time one at
/// most. None if they are so already.
pub(crate) fn wrong_bytes(bytes: &[u8]) -> Vec<WrongByte> {
    let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM>() else { return Vec::new() };
    let difference = u32::from_le_bytes(*stored) ^ crc32c::crc32c(body);
    if difference == 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let in_checksum = difference.to_le_bytes();
    if let [(at, error)] =
        in_checksum.iter().enumerate().filter(|(_, error)| **error != 0).collect::<Vec<_>>()[..]
    {
        found.push(WrongByte { at: body.len() + at, right: stored[at] ^ error });
    }
    let steps = Steps::new();
    let mut left = difference;
    for (at, byte) in body.iter().enumerate().rev() {
        if let Some(error) = steps.error_of(left) {
            found.push(WrongByte { at, right: byte ^ error });
        }
        left = steps.before_a_zero(left);
    }
    found
}

/// Steps of a CRC-32C over one byte, forwards and backwards.
struct Steps {
    /// What an error of a byte, the last one, changes in the checksum.
    of_error: [u32; 256],
    /// The error of which the highest byte of that is this one: no two have the same.
    by_highest: [u8; 256],
}

impl Steps {
    fn new() -> Self {
        let (mut of_error, mut by_highest) = ([0; 256], [0; 256]);
        for error in 0..=u8::MAX {
            let changed = crc32c::crc32c(&[error]) ^ crc32c::crc32c(&[0]);
            of_error[usize::from(error)] = changed;
            by_highest[usize::from(highest(changed))] = error;
        }
        Self { of_error, by_highest }
    }

    /// Returns the error of the last byte that changes a checksum by `changed`; `None` if there is none.
    fn error_of(&self, changed: u32) -> Option<u8> {
        let error = self.by_highest[usize::from(highest(changed))];
        (self.of_error[usize::from(error)] == changed).then_some(error)
    }

    /// Returns what is a change of `changed` behind a byte that is not wrong, before it.
    fn before_a_zero(&self, changed: u32) -> u32 {
        let low = self.by_highest[usize::from(highest(changed))];
        ((changed ^ self.of_error[usize::from(low)]) << 8) | u32::from(low)
    }
}

fn highest(word: u32) -> u8 {
    word.to_be_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound(nbytes: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..=u8::MAX).cycle().map(|at| at.wrapping_mul(37)).take(nbytes).collect();
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        for nbytes in [1, 2, 16, 64, 333] {
            let bytes = sound(nbytes);
            assert_eq!(wrong_bytes(&bytes), []);
            for at in 0..bytes.len() {
                for error in [1, 0x80, 0xff, 0x5a] {
                    let mut wrong = bytes.clone();
                    wrong[at] ^= error;
                    assert_eq!(wrong_bytes(&wrong), [WrongByte { at, right: bytes[at] }]);
                }
            }
        }
    }

    #[test]
    fn of_two_wrong_bytes_none_is_found() {
        let bytes = sound(160);
        for at in 0..bytes.len() - 1 {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x11;
            wrong[at + 1] ^= 0x22;
            for WrongByte { at, right } in wrong_bytes(&wrong) {
                // By chance: then it is right indeed.
                wrong[at] = right;
                assert_eq!(wrong_bytes(&wrong), []);
            }
        }
        assert_eq!(wrong_bytes(&[]), []);
        assert_eq!(wrong_bytes(&[1, 2, 3]), []);
    }

    #[test]
    fn every_byte_that_is_found_makes_the_checksum_match() {
        let mut state = 7_u32;
        for _ in 0..2000 {
            let mut bytes: Vec<u8> = (0..4100)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    highest(state)
                })
                .collect();
            for WrongByte { at, right } in wrong_bytes(&bytes.clone()) {
                bytes[at] = right;
                assert_eq!(wrong_bytes(&bytes), []);
            }
        }
    }
}
