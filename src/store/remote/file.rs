//! Objects as files: one version of an object, of which parts are fetched.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::path::Path as Key;
use parking_lot::Mutex;

use super::attributes::{Object, Owner};
use super::client::{Client, If, Wanted};
use super::error::RequestError;
use super::names::Names;
use super::windows::{Fetch, Windows};
use crate::format::index::ByteRange;
use crate::number::to_usize;
use crate::stats::Stats;
use crate::store::storage::{Stat, StorageFile};

/// Longest part of an object that is fetched at once for a reader, in bytes.
const WINDOW: u64 = 8 << 20;

/// Version of an object, open for reading. Every request for a part of it names the version: bytes
/// of two versions are never mixed.
pub(super) struct RemoteFile {
    pub client: Arc<Client>,
    pub windows: Arc<Windows>,
    pub names: Arc<Names>,
    pub stats: Arc<Stats>,
    pub owner: Owner,
    /// Path of the object, and its key.
    pub path: PathBuf,
    pub key: Key,
    pub object: Object,
    /// Bytes that came with the answer by which the file was opened, and their offset.
    pub first: Mutex<Option<(u64, Vec<u8>)>>,
    /// `true` once the store has answered that the object is another one.
    pub replaced: AtomicBool,
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
        if part.len() == bytes.len() || from + part.len() == bytes.len() {
            *first = None;
        }
        true
    }

    /// Fetches a range of the object.
    fn fetch(&self, from: u64, to: u64) -> Result<Vec<u8>, RequestError> {
        let tag = self.object.tag.as_deref().filter(|tag| !tag.starts_with("W/"));
        let when = tag.map_or(If::Any, If::Is);
        let answer = self.client.get(&self.key, Wanted::Range(from, to), when);
        let answer =
            answer.and_then(|answer| match Object::of(&answer.meta).is_same(&self.object) {
                true => Ok(answer.bytes),
                // A server without tags, or one that ignores conditions.
                false => Err(RequestError::Replaced),
            });
        if let Err(error) = &answer {
            if matches!(
                error,
                RequestError::Replaced | RequestError::Absent | RequestError::BehindEnd
            ) {
                self.names.distrust(&self.path);
                self.replaced.store(true, Ordering::Relaxed);
            }
            if error.is_failure() {
                log::error!("{}: bytes {from} to {to}: {error}", self.key);
            }
        }
        answer
    }

    /// Reads from the window that holds `offset`, at most to its end.
    fn read_window(&self, buffer: &mut [u8], offset: u64, within: ByteRange) -> io::Result<usize> {
        let skipped = (offset - within.offset) / WINDOW * WINDOW;
        let from = within.offset + skipped;
        let to = (from + WINDOW).min(within.offset + within.nbytes);
        let id = self.object.id(&self.key);
        let bytes = self.windows.get(Fetch { object: id, from, to }, || {
            self.fetch(from, to).map_err(|error| error.to_io())
        })?;
        let at = to_usize(offset - from);
        let part = bytes.get(at..).unwrap_or_default();
        let length = part.len().min(buffer.len());
        buffer[..length].copy_from_slice(&part[..length]);
        Ok(length)
    }
}

impl StorageFile for RemoteFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.object.nbytes.saturating_sub(offset);
        let length = to_usize(left.min(buffer.len() as u64));
        self.read_within(&mut buffer[..length], offset, ByteRange { offset, nbytes: length as u64 })
    }

    fn read_within(&self, buffer: &mut [u8], offset: u64, within: ByteRange) -> io::Result<usize> {
        let end = within.offset.saturating_add(within.nbytes).min(self.object.nbytes);
        let length = to_usize(end.saturating_sub(offset).min(buffer.len() as u64));
        let buffer = &mut buffer[..length];
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

    /// Returns the attributes of the version that is open, without a request; once the store has
    /// answered that there is another one, those of that.
    fn stat(&self) -> io::Result<Stat> {
        if !self.replaced.load(Ordering::Relaxed) {
            return Ok(self.object.stat(&self.key, self.owner));
        }
        let meta = self.client.head(&self.key, If::Any).map_err(|error| match error {
            RequestError::Absent => io::Error::from_raw_os_error(libc::ESTALE),
            error => error.to_io(),
        })?;
        Ok(Object::of(&meta).stat(&self.key, self.owner))
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
