//! Ends of the objects that were put last: their indexes are needed next, and what was sent need not be fetched.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectMeta;
use parking_lot::Mutex;

use super::attributes::bare;
use super::client::Answer;
use crate::number::to_usize;
use crate::store::byte_cache::ByteCache;
use crate::store::storage::{Expected, ObjectPart};

/// Longest end that is kept, in bytes: that of most indexes.
const LONGEST: usize = 1 << 20;

/// Budget for all ends, in bytes: few objects are put at once, and an index is read as soon as its shard is put.
const BYTES: usize = 8 << 20;

/// Bytes that each object takes besides.
const EACH: usize = 256;

/// First and last bytes of an object, as far as they are sent.
pub(super) struct Ends {
    nbytes: u64,
    first: Vec<u8>,
    last: Vec<u8>,
}

/// The same once the store has it.
pub(super) struct Sent {
    tag: String,
    ends: Ends,
}

/// Objects that were put last.
pub(super) struct SentObjects(Mutex<ByteCache<PathBuf, Arc<Sent>>>);

impl Ends {
    /// Keeps the ends of an object that is put as a whole.
    pub(super) fn of(content: &[u8]) -> Self {
        Self::new(content.len() as u64, content, content)
    }

    /// Keeps the ends of an object that is made of parts.
    pub(super) fn of_parts(parts: &[ObjectPart]) -> Self {
        let nbytes = parts.iter().map(ObjectPart::nbytes).fold(0, u64::saturating_add);
        Self::new(nbytes, sent_of(parts.first()), sent_of(parts.last()))
    }

    fn new(nbytes: u64, first: &[u8], last: &[u8]) -> Self {
        let first = first.get(..LONGEST).unwrap_or(first).to_vec();
        let last = last[last.len().saturating_sub(LONGEST)..].to_vec();
        Self { nbytes, first, last }
    }

    /// Returns the part that is expected to be read, and its offset. `None` if not all of it is kept.
    fn part(&self, expected: Expected) -> Option<(u64, &[u8])> {
        match expected {
            Expected::First(nbytes) => {
                self.first.get(..to_usize(nbytes.min(self.nbytes))).map(|part| (0, part))
            }
            Expected::Last(nbytes) => {
                let nbytes = nbytes.min(self.nbytes);
                let skipped = self.last.len().checked_sub(to_usize(nbytes))?;
                Some((self.nbytes - nbytes, self.last.get(skipped..)?))
            }
        }
    }
}

/// Returns the bytes of a part that are sent.
fn sent_of(part: Option<&ObjectPart>) -> &[u8] {
    match part {
        Some(ObjectPart::Sent(bytes)) => bytes,
        Some(ObjectPart::Kept(_)) | None => &[],
    }
}

impl Sent {
    /// Returns the answer to a request for the part that is expected to be read, if the object is the one that was
    /// sent, and all of that part is kept.
    pub(super) fn answer(&self, meta: ObjectMeta, expected: Expected) -> Option<Answer> {
        let tag = meta.e_tag.as_deref().map(bare);
        let is_it = tag == Some(self.tag.as_str()) && meta.size == self.ends.nbytes;
        let (offset, bytes) = self.ends.part(expected).filter(|_| is_it)?;
        Some(Answer { meta, offset, bytes: bytes.to_vec() })
    }

    /// Returns whether all of the part is kept that is expected to be read.
    pub(super) fn has(&self, expected: Expected) -> bool {
        self.ends.part(expected).is_some()
    }
}

impl SentObjects {
    pub(super) fn new() -> Self {
        Self(Mutex::new(ByteCache::new(BYTES)))
    }

    /// Keeps the ends of an object that was put, and has this entity tag.
    pub(super) fn keep(&self, path: &Path, tag: &str, ends: Ends) {
        let bytes = ends.first.len() + ends.last.len() + path.as_os_str().len() + EACH;
        let sent = Arc::new(Sent { tag: bare(tag).to_owned(), ends });
        self.0.lock().put(path.to_owned(), sent, bytes);
    }

    /// Returns the ends of the object that was put last at a path, once.
    pub(super) fn take(&self, path: &Path) -> Option<Arc<Sent>> {
        let mut objects = self.0.lock();
        let sent = objects.get(path);
        objects.remove(path);
        sent
    }
}

#[cfg(test)]
mod tests {
    use object_store::path::Path as Key;

    use super::*;
    use crate::format::index::ByteRange;

    fn bytes(nbytes: usize) -> Vec<u8> {
        (0..=250).cycle().take(nbytes).collect()
    }

    fn meta(size: u64, tag: &str) -> ObjectMeta {
        let e_tag = Some(format!("\"{tag}\""));
        let last_modified = std::time::SystemTime::UNIX_EPOCH.into();
        ObjectMeta { location: Key::from("a"), last_modified, size, e_tag, version: None }
    }

    fn kept(ends: Ends) -> Arc<Sent> {
        let objects = SentObjects::new();
        objects.keep(Path::new("a"), "tag", ends);
        let sent = objects.take(Path::new("a")).unwrap();
        assert!(objects.take(Path::new("a")).is_none());
        sent
    }

    #[test]
    fn the_ends_of_a_whole_object_are_those_that_were_sent() {
        let content = bytes(3 * LONGEST);
        let (nbytes, sent) = (content.len() as u64, kept(Ends::of(&content)));
        let found = |expected| {
            sent.answer(meta(nbytes, "tag"), expected).map(|answer| (answer.offset, answer.bytes))
        };
        assert_eq!(found(Expected::First(10)), Some((0, content[..10].to_vec())));
        let last = content[content.len() - 10..].to_vec();
        assert_eq!(found(Expected::Last(10)), Some((nbytes - 10, last)));
        assert_eq!(found(Expected::Last(1 << 21)), None);
        assert!(sent.has(Expected::First(1 << 20)) && !sent.has(Expected::First((1 << 20) + 1)));
    }

    #[test]
    fn a_short_object_is_kept_as_a_whole() {
        let sent = kept(Ends::of(&[1, 2, 3]));
        for expected in [Expected::First(1 << 30), Expected::Last(3), Expected::Last(u64::MAX)] {
            let found = sent.answer(meta(3, "tag"), expected).unwrap();
            assert_eq!((found.offset, found.bytes), (0, vec![1, 2, 3]));
        }
        assert_eq!(
            kept(Ends::of(&[])).answer(meta(0, "tag"), Expected::Last(4)).unwrap().offset,
            0
        );
    }

    #[test]
    fn of_an_object_of_parts_only_what_was_sent_is_known() {
        let range = |offset| ObjectPart::Kept(ByteRange { offset, nbytes: 100 });
        let parts = [range(0), ObjectPart::Sent(bytes(9)), range(100), ObjectPart::Sent(bytes(7))];
        let sent = kept(Ends::of_parts(&parts));
        let found = sent.answer(meta(216, "tag"), Expected::Last(7)).unwrap();
        assert_eq!((found.offset, found.bytes), (209, bytes(7)));
        assert!(!sent.has(Expected::Last(8)) && !sent.has(Expected::First(1)));
        let sent = kept(Ends::of_parts(&[ObjectPart::Sent(bytes(9)), range(0)]));
        assert!(sent.has(Expected::First(9)) && !sent.has(Expected::Last(1)));
    }

    #[test]
    fn another_object_is_none_that_was_sent() {
        let sent = kept(Ends::of(&[1, 2, 3]));
        assert!(sent.answer(meta(3, "other"), Expected::Last(1)).is_none());
        assert!(sent.answer(meta(4, "tag"), Expected::Last(1)).is_none());
        let untagged = ObjectMeta { e_tag: None, ..meta(3, "tag") };
        assert!(sent.answer(untagged, Expected::Last(1)).is_none());
    }
}
