//! Requests that change a store, and what they leave of what was known.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, Error, GetOptions, ObjectMeta, PutMode, PutOptions, UpdateVersion,
};

use super::attributes::{Object, bare};
use super::client::{Client, If};
use super::error::{RequestError, last_cause};
use super::names::Name;
use super::patience::Received;
use super::storage::RemoteStorage;
use crate::store::storage::{Current, ObjectStorage, PutError, When, WriteId};

/// Name by which the identity of a write is stored with an object.
const WRITE: &str = "shardfs-write";

/// Bytes that are sent in a second at least, as far as it is waited for.
const SLOWEST: u64 = 256 << 10;

/// How the text of an answer begins by which a store refuses a request.
const REFUSED: &str = "Server returned non-2xx status code: 4";

/// What follows if the same request may succeed later.
const PASSING: [&str; 3] = ["08", "09", "29"];

impl Client {
    /// Returns what the store says of an object, and the write that it comes from.
    fn head_and_write(&self, key: &Key) -> Result<(ObjectMeta, Option<WriteId>), RequestError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let received = Received::default();
        let found = self.wait(&received, async {
            let _permit = self.permit(&received).await;
            let found = self.first_answer(key, &options).await?;
            let write = found.attributes.get(&Attribute::Metadata(WRITE.into()));
            let write = write.and_then(|text| WriteId::parse(text));
            Ok((found.meta, write))
        });
        match found {
            // Only an answer with a body says whether that is absence.
            Err(RequestError::Denied(_)) if self.forbidden_is_absent => {
                Ok((self.head(key, If::Any)?, None))
            }
            found => found,
        }
    }

    /// Puts an object. The request is sent once: only who has asked for it can tell whether it is to be sent
    /// again.
    fn put(
        &self,
        key: &Key,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<Option<String>, PutError> {
        let Some(objects) = &self.writes else {
            return Err(PutError::Refused(io::Error::from_raw_os_error(libc::EROFS)));
        };
        let mode = match when {
            When::Absent => PutMode::Create,
            When::Is(tag) => {
                PutMode::Update(UpdateVersion { e_tag: Some(tag.to_owned()), version: None })
            }
        };
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata(WRITE.into()), id.to_string().into());
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        let nbytes = content.len() as u64;
        let limit = self.patience.timeout().saturating_add(Duration::from_secs(nbytes / SLOWEST));
        // None of the permits of readers: an object may take minutes, and few are put at once.
        let request = objects.put_opts(key, content.into(), options);
        let put = self.runtime.block_on(async { tokio::time::timeout(limit, request).await });
        match put {
            Ok(Ok(done)) => {
                self.stats.remote.bytes_put.add(nbytes);
                Ok(done.e_tag.map(|tag| bare(&tag).to_owned()).filter(|tag| !tag.is_empty()))
            }
            Ok(Err(error)) => Err(self.not_put(key, error)),
            Err(_) => {
                let late = RequestError::Late { after: limit, why: None };
                self.note_error(&late);
                Err(PutError::Unknown(self.reports().failed(key, &late)))
            }
        }
    }

    /// Returns what an error says of an object that was to be put.
    fn not_put(&self, key: &Key, error: Error) -> PutError {
        let is_conflict = matches!(
            error,
            Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. }
        );
        if is_conflict {
            return PutError::Conflict;
        }
        let text = last_cause(&error);
        let status = text.strip_prefix(REFUSED);
        let is_final = status.is_some_and(|rest| !PASSING.iter().any(|it| rest.starts_with(it)))
            || matches!(
                error,
                Error::NotFound { .. }
                    | Error::PermissionDenied { .. }
                    | Error::Unauthenticated { .. }
                    | Error::InvalidPath { .. }
                    | Error::NotSupported { .. }
                    | Error::NotImplemented { .. }
            );
        let failed = match RequestError::from(error) {
            // Not of the object, which is about to be made: of the bucket.
            RequestError::Absent => RequestError::Other(text),
            error => error,
        };
        self.note_error(&failed);
        let failed = self.reports().failed(key, &failed);
        if is_final { PutError::Refused(failed) } else { PutError::Unknown(failed) }
    }
}

impl RemoteStorage {
    /// Forgets what is known of an object that is changed.
    fn forget(&self, path: &Path) {
        self.openings.forget(path);
        self.names.distrust(path);
    }

    /// Asks what is at a path. That there is nothing is found out twice, if there was an object the last time.
    fn ask(&self, path: &Path, was_object: bool) -> io::Result<Option<Current>> {
        let (key, at) = (self.directories.key(path)?, Instant::now());
        match self.client.head_and_write(&key) {
            Ok((meta, write)) => {
                let object = Object::of(&meta);
                let tag = object.strong_tag().map(|tag| bare(tag).to_owned());
                self.names.note(path, at, Some(Name::Object(object)));
                Ok(Some(Current { tag, write }))
            }
            Err(error) => {
                let error = match error {
                    RequestError::Absent if was_object => self.directories.not_found(&key)?,
                    error => error,
                };
                if !matches!(error, RequestError::Absent) {
                    return Err(self.client.reports().failed(&key, &error));
                }
                self.names.note(path, at, None);
                Ok(None)
            }
        }
    }
}

impl ObjectStorage for RemoteStorage {
    fn current(&self, path: &Path) -> io::Result<Option<Current>> {
        // What is known of it goes on being believed where there is no answer.
        self.openings.forget(path);
        self.ask(path, self.names.was_object(path))
    }

    fn put(
        &self,
        path: &Path,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<String, PutError> {
        let key = self.directories.key(path).map_err(PutError::Refused)?;
        let put = self.client.put(&key, content, when, id);
        self.forget(path);
        if when == When::Absent && !matches!(put, Err(PutError::Refused(_))) {
            self.names.note_put(path);
        }
        match put? {
            Some(tag) => Ok(tag),
            // The store does not say: what is there now is it, or is made by those who came after.
            None => match self.current(path).map_err(PutError::Unknown)? {
                Some(Current { tag: Some(tag), write: Some(write) }) if write == id => Ok(tag),
                _ => Err(PutError::Unknown(io::Error::from_raw_os_error(libc::EIO))),
            },
        }
    }
}
