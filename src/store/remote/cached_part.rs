//! Files of the cache on disk: one part of one version of an object, with checksums for each of its
//! blocks, so that a few bytes of it can be read and trusted without reading all.
//!
//! ```text
//! 0         8   magic "shfpart1"
//! 8         8   offset of the part in the object      little-endian, as all numbers
//! 16        8   length of the part, n
//! 24        4b  crc32c of each block of 16 KiB        b = ceil(n / 16 KiB)
//! 24 + 4b   4   crc32c of everything before it
//! 28 + 4b   n   the bytes
//! ```
//!
//! A file that was cut off, or that a failing disk has changed, is as good as none.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use crate::memory::zeroed;
use crate::number::to_usize;

/// What every file begins with.
const MAGIC: &[u8; 8] = b"shfpart1";
/// Length of a block, in bytes.
const BLOCK: u64 = 16 << 10;
/// Length of what stands before the checksums, in bytes.
const HEAD: u64 = 24;
/// Longest part, in bytes.
const LONGEST: u64 = 1 << 30;

fn blocks(nbytes: u64) -> u64 {
    nbytes.div_ceil(BLOCK)
}

/// Returns where the bytes of a part begin in its file.
fn start(nbytes: u64) -> u64 {
    HEAD + 4 * blocks(nbytes) + 4
}

/// Returns the length of the file of a part.
pub(super) fn file_length(nbytes: u64) -> u64 {
    start(nbytes) + nbytes
}

/// Writes a part that begins at `offset` of its object.
pub(super) fn write(file: &mut impl Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut head = MAGIC.to_vec();
    head.extend(offset.to_le_bytes());
    head.extend((bytes.len() as u64).to_le_bytes());
    for block in bytes.chunks(to_usize(BLOCK)) {
        head.extend(crc32c::crc32c(block).to_le_bytes());
    }
    head.extend(crc32c::crc32c(&head).to_le_bytes());
    file.write_all(&head)?;
    file.write_all(bytes)
}

/// Reads the bytes from `from` to `to` of an object from the file of a part of it. `None` if they are
/// not there, or not what was written.
pub(super) fn read(file: &File, from: u64, to: u64) -> io::Result<Option<Vec<u8>>> {
    let mut head = [0; 24];
    file.read_exact_at(&mut head, 0)?;
    let number = |at: usize| head[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (Some(offset), Some(nbytes)) = (number(8), number(16)) else { return Ok(None) };
    let end = offset.checked_add(nbytes);
    let holds = offset <= from && from < to && end.is_some_and(|end| to <= end);
    if !head.starts_with(MAGIC) || !holds || nbytes > LONGEST {
        return Ok(None);
    }
    let mut checksums = zeroed(4 * blocks(nbytes) + 4)?;
    file.read_exact_at(&mut checksums, HEAD)?;
    let Some((checksums, own)) = checksums.split_last_chunk::<4>() else { return Ok(None) };
    if crc32c::crc32c_append(crc32c::crc32c(&head), checksums).to_le_bytes() != *own {
        return Ok(None);
    }
    // Whole blocks, of which the range asked for is a part.
    let first = (from - offset) / BLOCK;
    let until = ((to - offset).next_multiple_of(BLOCK)).min(nbytes);
    let mut bytes = zeroed(until - first * BLOCK)?;
    file.read_exact_at(&mut bytes, start(nbytes) + first * BLOCK)?;
    let expected = checksums.chunks_exact(4).skip(to_usize(first));
    let mut found = bytes.chunks(to_usize(BLOCK)).zip(expected);
    if !found.all(|(block, expected)| crc32c::crc32c(block).to_le_bytes() == *expected) {
        return Ok(None);
    }
    bytes.truncate(to_usize(to - offset - first * BLOCK));
    bytes.drain(..to_usize(from - offset - first * BLOCK));
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn written(offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, offset, bytes).unwrap();
        assert_eq!(out.len() as u64, file_length(bytes.len() as u64));
        out
    }

    #[test]
    fn golden() {
        let expected = [
            b"shfpart1".as_slice(),
            &[5, 0, 0, 0, 0, 0, 0, 0],
            &[9, 0, 0, 0, 0, 0, 0, 0],
            // The check value of crc32c, which is that of these nine digits.
            &[0x83, 0x92, 0x06, 0xe3],
        ];
        let bytes = written(5, b"123456789");
        assert_eq!(bytes[..28], expected.concat());
        assert_eq!(bytes[32..], *b"123456789");
        let own = crc32c::crc32c(&bytes[..28]).to_le_bytes();
        assert_eq!(bytes[28..32], own);
    }

    #[test]
    fn any_range_can_be_read() {
        let length = 3 * BLOCK + 1000;
        let all: Vec<u8> = (0..length).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect();
        let file = file(&written(100, &all));
        let edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK, length - 1, length];
        for from in edges {
            for to in edges.into_iter().filter(|to| *to > from) {
                let found = read(&file, 100 + from, 100 + to).unwrap().unwrap();
                assert!(found == all[to_usize(from)..to_usize(to)], "{from} to {to}");
            }
        }
        assert_eq!(read(&file, 99, 110).unwrap(), None);
        assert_eq!(read(&file, 100, 101 + length).unwrap(), None);
        assert_eq!(read(&file, u64::MAX - 1, u64::MAX).unwrap(), None);
        assert_eq!(read(&file, 110, 110).unwrap(), None);
    }

    #[test]
    fn what_is_damaged_or_cut_off_is_not_there() {
        let all: Vec<u8> = (0..2 * BLOCK).map(|n| u8::try_from(n % 256).unwrap()).collect();
        let good = written(0, &all);
        let is_there =
            |bytes: &[u8], from, to| read(&file(bytes), from, to).is_ok_and(|it| it.is_some());
        assert!(is_there(&good, 0, 10));
        for at in (0..36).chain([36 + 5]) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(!is_there(&bad, 0, 10), "byte {at}");
        }
        // The block that is not read does not matter.
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert!(is_there(&bad, 0, 10));
        assert!(!is_there(&bad, BLOCK, BLOCK + 1));
        for length in [0, 7, 24, 30, 36, good.len() - 1] {
            assert!(!is_there(&good[..length], BLOCK, BLOCK + 1), "{length} bytes");
        }
    }

    #[test]
    fn a_length_that_is_a_lie_takes_no_memory() {
        let mut bad = written(0, b"123");
        bad[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(read(&file(&bad), 0, 3).unwrap(), None);
    }
}
