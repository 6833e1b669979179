//! Objects that are changed, and what is known of them afterwards.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::attributes::{Object, bare};
use super::directories::Directories;
use super::error::RequestError;
use super::names::{Name, Names};
use super::openings::Openings;
use super::writing_alone::to_io;
use crate::store::storage::{Current, ObjectPart, PutError, When, WriteId};
use crate::text::shown;

/// Times that an object is put whose writer waits for it.
const ATTEMPTS: u32 = 5;

/// Pause before the second time. It doubles each time.
const PAUSE: Duration = Duration::from_millis(200);

/// Objects of a source.
pub(super) struct Objects {
    directories: Arc<Directories>,
    names: Arc<Names>,
    openings: Arc<Openings>,
}

impl Objects {
    pub(super) fn new(directories: &Arc<Directories>, openings: &Arc<Openings>) -> Self {
        let names = Arc::clone(&directories.names);
        Self { directories: Arc::clone(directories), names, openings: Arc::clone(openings) }
    }

    /// Returns what is at a path now, whatever is known of it.
    pub(super) fn current(&self, path: &Path) -> io::Result<Option<Current>> {
        let found = self.ask(path)?;
        if let Some((_, Some(write))) = &found {
            let client = &self.directories.client;
            client.note_written(*write);
            client.single_writer.note_arrived(*write);
        }
        Ok(found.map(|(object, write)| Current { tag: tag_of(&object), write }))
    }

    /// Returns the object that is at a path now, and the write that it comes from.
    fn ask(&self, path: &Path) -> io::Result<Option<(Object, Option<WriteId>)>> {
        // What is known of it goes on being believed where there is no answer.
        self.openings.forget(path);
        let (key, at) = (self.directories.key(path)?, Instant::now());
        let error = match self.directories.client.head_and_write(&key) {
            Ok((meta, write)) => {
                let object = Object::of(&meta);
                self.names.note(path, at, Some(Name::Object(object.clone())));
                return Ok(Some((object, write)));
            }
            // That there is nothing is found out twice, if there was an object the last time.
            Err(RequestError::Absent) if self.names.was_object(path) => {
                self.directories.not_found(&key)?
            }
            Err(error) => error,
        };
        if !matches!(error, RequestError::Absent) {
            return Err(self.directories.failed(&key, &error));
        }
        self.names.note(path, at, None);
        Ok(None)
    }

    /// Puts an object, if what is there is what `when` says, by one request. Returns its entity tag.
    pub(super) fn put(
        &self,
        path: &Path,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<String, PutError> {
        let key = self.directories.key(path).map_err(PutError::Refused)?;
        let client = &self.directories.client;
        let put = match client.single_writer.is_needed() {
            true => client.put_alone(&key, content, when, id),
            false => client.put(&key, content, when, id),
        };
        self.forget(path);
        if when == When::Absent && !matches!(put, Err(PutError::Refused(_))) {
            self.names.note_put(path);
        }
        let put = put?;
        self.directories.client.note_replaced(&key);
        self.tag_after(path, put, id)
    }

    /// Puts an object that the store assembles, in the place of the one with the entity tag `before`. Returns its entity
    /// tag.
    pub(super) fn assemble(
        &self,
        path: &Path,
        parts: Vec<ObjectPart>,
        before: &str,
        id: WriteId,
    ) -> Result<String, PutError> {
        let key = self.directories.key(path).map_err(PutError::Refused)?;
        let made = self.directories.client.assemble(&key, parts, before, id);
        self.forget(path);
        let made = made?;
        self.directories.client.note_replaced(&key);
        self.tag_after(path, made, id)
    }

    /// Returns the entity tag of an object that was put, or assembled, by the write `id`: the one in the answer, if there
    /// is one.
    fn tag_after(&self, path: &Path, tag: Option<String>, id: WriteId) -> Result<String, PutError> {
        match tag {
            Some(tag) => Ok(tag),
            // The store does not say: what is there now is it, or is made by those who came after.
            None => match self.current(path).map_err(PutError::Unknown)? {
                Some(Current { tag: Some(tag), write: Some(write) }) if write == id => Ok(tag),
                _ => Err(PutError::Unknown(io::Error::from_raw_os_error(libc::EIO))),
            },
        }
    }

    /// Puts an object in the place of the one with the entity tag `base`, or of none, and finds out what has become of
    /// requests without an answer: of those in `before`, too, which is added to. Returns its entity tag.
    ///
    /// # Errors
    /// ESTALE if another one is there; those of the requests.
    pub(super) fn put_file(
        &self,
        path: &Path,
        content: impl Fn() -> io::Result<Vec<u8>>,
        base: Option<&str>,
        before: &mut Vec<WriteId>,
    ) -> io::Result<String> {
        let (began, limit) = (Instant::now(), self.directories.client.patience.timeout());
        let key = self.directories.key(path)?;
        let (mut base, mut sent) = (base.map(str::to_owned), Vec::new());
        let mut attempt = 1;
        loop {
            let id = WriteId::random()?;
            let when = base.as_deref().map_or(When::Absent, When::Is);
            self.directories.client.wait_to_change(&key)?;
            let error = match self.put(path, content()?, when, id) {
                Ok(tag) => return Ok(tag),
                Err(PutError::Refused(error)) => return Err(error),
                Err(PutError::Conflict) if sent.is_empty() && before.is_empty() => {
                    return Err(changed(path));
                }
                // It may be one of those that were sent before.
                Err(PutError::Conflict) => changed(path),
                Err(PutError::Unknown(error)) => {
                    sent.push(id);
                    before.push(id);
                    error
                }
            };
            match self.current(path) {
                Ok(Some(Current { tag: Some(tag), write: Some(write) }))
                    if sent.contains(&write) =>
                {
                    return Ok(tag);
                }
                // What was to be put before is there, and not what is to be put now.
                Ok(Some(Current { tag: Some(tag), write: Some(write) }))
                    if before.contains(&write) && attempt < ATTEMPTS =>
                {
                    base = Some(tag);
                    attempt += 1;
                    continue;
                }
                Ok(now) if now.as_ref().and_then(|now| now.tag.as_deref()) != base.as_deref() => {
                    return Err(changed(path));
                }
                // It still is what it was.
                Ok(_) if attempt < ATTEMPTS && began.elapsed() < limit => (),
                _ => return Err(error),
            }
            thread::sleep(PAUSE * 2_u32.pow(attempt - 1));
            attempt += 1;
        }
    }

    /// Removes an object.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let key = self.directories.key(path)?;
        let client = &self.directories.client;
        if client.single_writer.is_needed() {
            let removed = client.remove_alone(&key);
            self.forget(path);
            removed.map_err(to_io)?;
            self.names.note_removed(path);
            return Ok(());
        }
        let removed = client.remove(&key);
        self.forget(path);
        match removed {
            // Others have removed it.
            Ok(()) | Err(RequestError::Absent) => {
                self.names.note_removed(path);
                Ok(())
            }
            Err(error) => Err(self.directories.failed(&key, &error)),
        }
    }

    /// Returns the entity tag of what is at a path, as far as is known. `None` if there is nothing.
    ///
    /// # Errors
    /// ESTALE if that is another one than the `expected` version, given by its number.
    pub(super) fn base(&self, path: &Path, expected: Option<u64>) -> io::Result<Option<String>> {
        let found = match self.names.known(path) {
            Some(Some(Name::Directory)) => {
                return Err(io::Error::from_raw_os_error(libc::EISDIR));
            }
            Some(Some(Name::Object(object))) => Some(object),
            Some(None) => None,
            None => self.ask(path)?.map(|(object, _)| object),
        };
        let key = self.directories.key(path)?;
        let is_other =
            |object: &Object| expected.is_some_and(|expected| expected != object.id(&key));
        // One that was removed is made anew, whoever has removed it.
        if found.as_ref().is_some_and(is_other) {
            self.names.distrust(path);
            return Err(changed(path));
        }
        found.map(|object| tag_of(&object).ok_or_else(|| untagged(path))).transpose()
    }

    /// Forgets what is known of an object that is changed.
    fn forget(&self, path: &Path) {
        self.openings.forget(path);
        self.names.distrust(path);
    }

    /// Returns whether there is any object below a directory now.
    pub(super) fn has_any(&self, directory: &Path) -> io::Result<bool> {
        self.directories.is_directory(directory)
    }
}

/// Returns the entity tag of a version, as conditions name it.
pub(super) fn tag_of(object: &Object) -> Option<String> {
    object.strong_tag().map(|tag| bare(tag).to_owned())
}

/// Reports that others have changed a file.
fn changed(path: &Path) -> io::Error {
    log::warn!("{}: others have changed it since it was read: it is not written", shown(&path));
    io::Error::from_raw_os_error(libc::ESTALE)
}

/// Reports that versions of a file cannot be told apart.
pub(super) fn untagged(path: &Path) -> io::Error {
    log::error!(
        "{}: the store gives it no entity tag, so that others' changes would be lost: it is not written",
        shown(&path)
    );
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}
