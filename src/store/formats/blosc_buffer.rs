//! Chunks that are Blosc buffers, whose headers hold their lengths.

use std::io;

use crate::format::blosc::{BLOSC_BYTES, BloscHeader};
use crate::format::chunk_error::Refusal;
use crate::store::content::Content;

/// Returns the decoded length of a Blosc buffer in bytes, or the reason why the content is no Blosc
/// buffer.
pub(super) fn decoded(content: &Content) -> io::Result<Result<u32, Refusal>> {
    let mut start = [0; BLOSC_BYTES];
    let read = content.read_at(&mut start, 0)?;
    let blosc = header(&start[..read]).filter(|blosc| content.nbytes() == u64::from(blosc.nbytes));
    Ok(blosc.map(|blosc| blosc.decoded).ok_or(Refusal::NotBlosc))
}

/// Returns the header of a Blosc buffer that begins with these bytes. `None` if it has none, or a
/// defective one.
pub(super) fn header(bytes: &[u8]) -> Option<BloscHeader> {
    let blosc = BloscHeader::parse(bytes.first_chunk()?);
    blosc.defect(None).is_none().then_some(blosc)
}
