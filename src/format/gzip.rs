//! gzip members, one after the other.

use std::io::{self, Read};

use flate2::bufread::GzDecoder;

/// Reads what gzip members hold, as Python's `gzip` does, whose reading zarr-python has: zeros between
/// members and after the last one are padding; anything else that is no member is an error.
#[derive(Debug)]
pub struct Members<'a>(GzDecoder<&'a [u8]>);

impl<'a> Members<'a> {
    /// Reads `members`, the first of which begins at once.
    pub fn new(members: &'a [u8]) -> Self {
        Self(GzDecoder::new(members))
    }

    /// What follows the member that has been read, and its padding.
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
            // It ends once the member's checksum and length have been compared.
            match self.0.read(out)? {
                0 if self.rest().is_empty() => return Ok(0),
                0 => self.0 = GzDecoder::new(self.rest()),
                read => return Ok(read),
            }
        }
    }
}
