//! Decoding of concatenated gzip members.

use std::io::{self, Read};

use flate2::bufread::GzDecoder;

/// Reader of the contents of gzip members. Like Python's `gzip`, which zarr-python uses, it skips
/// zeros between members and after the last one as padding; anything else that is not a member is
/// an error.
#[derive(Debug)]
pub(crate) struct Members<'a>(GzDecoder<&'a [u8]>);

impl<'a> Members<'a> {
    /// Creates a reader of `members`. The first member must begin at offset 0.
    pub(crate) fn new(members: &'a [u8]) -> Self {
        Self(GzDecoder::new(members))
    }

    /// Returns the bytes after the current member and its padding.
    fn rest(&self) -> &'a [u8] {
        let rest: &'a [u8] = self.0.get_ref();
        let padding = rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
        &rest[padding..]
    }
}

impl Read for Members<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            // `Ok(0)` means that the checksum and the length of the member have been verified.
            match self.0.read(out)? {
                0 if self.rest().is_empty() => return Ok(0),
                0 => self.0 = GzDecoder::new(self.rest()),
                read => return Ok(read),
            }
        }
    }
}
