//! Objects as files: one version of an object, of which parts are fetched.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path as Key;
use parking_lot::Mutex;

use super::attributes::{Object, Owner, bare};
use super::client::{Answer, Client, If, Wanted};
use super::disk_cache::{CachedObject, DiskCache};
use super::error::RequestError;
use super::names::Names;
use super::windows::{Fetching, Part, Windows};
use crate::format::index::ByteRange;
use crate::number::to_usize;
use crate::stats::Stats;
use crate::store::storage::{Stat, StorageFile};

/// Longest part of an object that is fetched at once for a reader, in bytes.
const WINDOW: u64 = 8 << 20;

/// Longest gap between two ranges that is fetched with them, in bytes: a request takes longer.
const GAP: u64 = 2 << 20;

/// Version of an object, open for reading. Every request for a part of it names the version: bytes
/// of two versions are never mixed.
pub(super) struct RemoteFile {
    pub windows: Arc<Windows>,
    pub stats: Arc<Stats>,
    pub owner: Owner,
    pub version: Arc<ObjectVersion>,
    /// Bytes that came with the answer by which the file was opened, and their offset.
    pub first: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

/// Version of an object, and whether the store has another one by now.
pub(super) struct ObjectVersion {
    pub client: Arc<Client>,
    pub names: Arc<Names>,
    /// Path of the object, and its key.
    pub path: PathBuf,
    pub key: Key,
    pub object: Object,
    /// Where its parts are kept on disk, if they are.
    pub cache: Option<(Arc<DiskCache>, CachedObject)>,
    /// `true` once the store has answered that the object is another one.
    pub replaced: AtomicBool,
}

impl ObjectVersion {
    /// Returns the bytes of an answer to a request for a range.
    fn bytes(
        &self,
        (from, to): (u64, u64),
        answer: Result<Answer, RequestError>,
    ) -> io::Result<Arc<Vec<u8>>> {
        let answer =
            answer.and_then(|answer| match Object::of(&answer.meta).is_same(&self.object) {
                true => Ok(answer.bytes),
                // A server without tags, or one that ignores conditions.
                false => Err(RequestError::Replaced),
            });
        let bytes = answer.map(Arc::new);
        if let (Ok(bytes), Some((cache, object))) = (&bytes, &self.cache) {
            cache.put(object, from, bytes);
        }
        bytes.map_err(|error| {
            if matches!(
                error,
                RequestError::Replaced | RequestError::Absent | RequestError::BehindEnd
            ) {
                self.names.distrust(&self.path);
                self.replaced.store(true, Ordering::Relaxed);
            }
            let what = format_args!("{}: bytes {from} to {to}", self.key);
            let failed = self.client.reports().failed(&what, &error);
            match error {
                // Its name may be there all the same, for another one. One that is shorter is another one, too.
                RequestError::Absent | RequestError::BehindEnd => {
                    io::Error::from_raw_os_error(libc::ESTALE)
                }
                _ => failed,
            }
        })
    }

    /// Fetches a part, from the cache on disk or by a request. Who waits for it gets the error, if
    /// there is one.
    fn fetch(self: &Arc<Self>, part: Part, fetching: Fetching) {
        let Part { from, to, .. } = part;
        match self.cache.as_ref().and_then(|(cache, object)| cache.get(object, from, to)) {
            Some(bytes) => fetching.end(Ok(Arc::new(bytes))),
            None => self.request(part, fetching),
        }
    }

    fn request(self: &Arc<Self>, Part { from, to, .. }: Part, fetching: Fetching) {
        let version = Arc::clone(self);
        let (key, tag) = (self.key.clone(), self.object.strong_tag().map(str::to_owned));
        self.client.send(key, Wanted::Range(from, to), tag, move |answer| {
            fetching.end(version.bytes((from, to), answer));
        });
    }

    /// Returns whether a part seems to be in the cache on disk.
    fn is_cached(&self, from: u64, to: u64) -> bool {
        self.cache.as_ref().is_some_and(|(cache, object)| cache.has(object, from, to))
    }
}

impl RemoteFile {
    /// Copies from the bytes that came with the opening. They are needed once: what the caller makes
    /// of them is kept elsewhere.
    fn take_first(&self, buffer: &mut [u8], offset: u64) -> bool {
        let mut first = self.first.lock();
        let Some((start, bytes)) = &*first else { return false };
        let Some(from) = offset.checked_sub(*start).map(to_usize) else { return false };
        let Some(part) = from.checked_add(buffer.len()).and_then(|to| bytes.get(from..to)) else {
            return false;
        };
        buffer.copy_from_slice(part);
        if from + part.len() == bytes.len() {
            *first = None;
        }
        true
    }

    fn part(&self, from: u64, to: u64) -> Part {
        Part { object: self.version.object.id(&self.version.key), from, to }
    }

    /// Reads from the window that holds `offset`, at most to its end.
    fn read_window(&self, buffer: &mut [u8], offset: u64, within: ByteRange) -> io::Result<usize> {
        let skipped = (offset - within.offset) / WINDOW * WINDOW;
        let from = within.offset + skipped;
        let to = (from + WINDOW).min(within.offset + within.nbytes);
        let part = self.part(from, to);
        let fetched = self.windows.get(part, |fetching| self.version.fetch(part, fetching))?;
        let start = to_usize(offset - fetched.from);
        let end = to_usize(to - fetched.from).min(fetched.bytes.len());
        let part = fetched.bytes.get(start..end).unwrap_or_default();
        let length = part.len().min(buffer.len());
        buffer[..length].copy_from_slice(&part[..length]);
        Ok(length)
    }
}

/// Joins ranges that lie close together, up to the length of a window. What is returned is sorted.
fn joined(ranges: &[ByteRange], end: u64) -> Vec<(u64, u64)> {
    let within = |range: &ByteRange| {
        let to = range.offset.checked_add(range.nbytes)?.min(end);
        (range.offset < to).then_some((range.offset, to))
    };
    let mut sorted: Vec<(u64, u64)> = ranges.iter().filter_map(within).collect();
    sorted.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in sorted {
        match joined.last_mut() {
            Some(last) if from <= last.1 + GAP && to.max(last.1) - last.0 <= WINDOW => {
                last.1 = last.1.max(to);
            }
            _ => joined.push((from, to)),
        }
    }
    joined
}

impl StorageFile for RemoteFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.version.object.nbytes.saturating_sub(offset);
        let length = to_usize(left.min(buffer.len() as u64));
        self.read_within(&mut buffer[..length], offset, ByteRange { offset, nbytes: length as u64 })
    }

    fn read_within(&self, buffer: &mut [u8], offset: u64, within: ByteRange) -> io::Result<usize> {
        let end = within.offset.saturating_add(within.nbytes).min(self.version.object.nbytes);
        let length = to_usize(end.saturating_sub(offset).min(buffer.len() as u64));
        let buffer = &mut buffer[..length];
        let _timed = self.stats.source_reads.time();
        self.stats.source.read.count();
        self.stats.source.read_bytes.add(length as u64);
        if self.take_first(buffer, offset) {
            return Ok(length);
        }
        let within = ByteRange { nbytes: end.saturating_sub(within.offset), ..within };
        let mut done = 0;
        while done < length {
            match self.read_window(&mut buffer[done..], offset + done as u64, within)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    fn fetch_ahead(&self, ranges: &[ByteRange]) {
        let end = self.version.object.nbytes;
        let is_needed = |range: &&ByteRange| {
            let to = range.offset.saturating_add(range.nbytes).min(end);
            !self.windows.has(self.part(range.offset, to))
                && !self.version.is_cached(range.offset, to)
        };
        let ranges: Vec<ByteRange> = ranges.iter().filter(is_needed).copied().collect();
        for (from, to) in joined(&ranges, end) {
            // A longer one is a chunk that its reader asks for window by window.
            if to - from > WINDOW {
                continue;
            }
            let part = self.part(from, to);
            if let Some(fetching) = self.windows.begin(part) {
                self.version.request(part, fetching);
            }
        }
    }

    fn entity_tag(&self) -> Option<&str> {
        self.version.object.strong_tag().map(bare)
    }

    /// Returns the attributes of the version that is open, without a request; once the store has
    /// answered that there is another one, those of that.
    fn stat(&self) -> io::Result<Stat> {
        let ObjectVersion { client, key, object, replaced, .. } = &*self.version;
        if !replaced.load(Ordering::Relaxed) {
            return Ok(object.stat(key, self.owner));
        }
        let meta = client.head(key, If::Any).map_err(|error| match error {
            RequestError::Absent => io::Error::from_raw_os_error(libc::ESTALE),
            error => error.to_io(),
        })?;
        Ok(Object::of(&meta).stat(key, self.owner))
    }
}

/// Directory that was opened as if it were a file.
pub(super) struct RemoteDirectory(pub Stat);

impl StorageFile for RemoteDirectory {
    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EISDIR))
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_lie_close_are_fetched_at_once() {
        let ranges = |ranges: &[(u64, u64)]| {
            let range =
                |(offset, nbytes): &(u64, u64)| ByteRange { offset: *offset, nbytes: *nbytes };
            joined(&ranges.iter().map(range).collect::<Vec<_>>(), 100 << 20)
        };
        assert_eq!(ranges(&[(20, 10), (0, 10), (5, 10)]), [(0, 30)]);
        let far = 10 + GAP + 1;
        assert_eq!(ranges(&[(0, 10), (far, 1)]), [(0, 10), (far, far + 1)]);
        assert_eq!(ranges(&[(0, 10), (far - 1, 1)]), [(0, far)]);
        // No longer than a window, unless one range is.
        let half = WINDOW / 2;
        let chunks = [(0, half), (half, half), (2 * half, half), (3 * half, 3 * half)];
        assert_eq!(ranges(&chunks), [(0, WINDOW), (WINDOW, 3 * half), (3 * half, 6 * half)]);
        // What lies behind the end is left out.
        assert_eq!(ranges(&[(200 << 20, 5), (u64::MAX, 5), (7, 0)]), []);
    }
}
