//! Requests that change a store.
//!
//! ```text
//! the object is                 Amazon S3            Google                            Azure
//! absent                        If-None-Match: *     x-goog-if-generation-match: 0     If-None-Match: *
//! the one with this tag         If-Match: TAG        x-goog-if-generation-match: N     If-Match: "TAG"
//! ```
//!
//! Some stores that speak the protocol of S3 compare tags without quotation marks, and none minds their absence.
//! Google's generation of the object with a tag is asked for first.

use std::future::Future;
use std::io;
use std::time::Duration;

use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, Error, GetOptions, ObjectMeta, ObjectStoreExt, PutMode, PutOptions,
    UpdateVersion,
};

use super::attributes::bare;
use super::client::{Client, If, requester_ends};
use super::error::{RequestError, last_cause};
use super::patience::Received;
use super::url::Protocol;
use crate::requester;
use crate::store::storage::{PutError, When, WriteId};

/// Returns the name by which the identity of a write is stored with an object.
pub(super) fn write_name(protocol: Protocol) -> Attribute {
    Attribute::Metadata(match protocol {
        // Names are words there.
        Protocol::Azure => "shardfs_write".into(),
        // Proxies leave out headers with underscores.
        Protocol::S3 | Protocol::Gcs | Protocol::Web => "shardfs-write".into(),
    })
}

/// Bytes that are sent in a second at least, as far as it is waited for.
pub(super) const SLOWEST: u64 = 256 << 10;

/// How the text of an answer begins by which a store refuses a request.
const REFUSED: &str = "Server returned non-2xx status code: 4";

/// The same if it is busy.
const BUSY: &str = "Server returned non-2xx status code: 503";

/// What follows if the same request may succeed later.
const PASSING: [&str; 3] = ["08", "09", "29"];

/// Reason why an object was not put, or may not have been.
pub(super) struct NotPut {
    /// The reason.
    pub why: PutError,
    /// `true` if the store has answered: the request changes nothing later.
    pub is_answered: bool,
}

impl From<PutError> for NotPut {
    fn from(why: PutError) -> Self {
        Self { why, is_answered: false }
    }
}

/// Returns whether an error is the store's answer that it has not done, and will not do, what was asked for.
fn is_answered(error: &Error) -> bool {
    let text = last_cause(error);
    // A request that was not received as a whole may be so later; other numbers come from gateways, or from stores that
    // have failed in the middle of it.
    let is_refused = text.strip_prefix(REFUSED).is_some_and(|rest| !rest.starts_with("08"));
    is_refused || text.starts_with(BUSY) && text.contains("SlowDown")
}

impl Client {
    /// Returns what the store says of an object, and the write that it comes from.
    pub(super) fn head_and_write(
        &self,
        key: &Key,
    ) -> Result<(ObjectMeta, Option<WriteId>), RequestError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let received = Received::default();
        let found = self.wait(&received, async {
            let _permit = self.permit(&received).await;
            let found = self.first_answer(key, &options).await?;
            let write = found.attributes.get(&write_name(self.protocol));
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
    pub(super) fn put(
        &self,
        key: &Key,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<Option<String>, PutError> {
        let mode = match when {
            When::Absent => PutMode::Create,
            When::Is(tag) => PutMode::Update(self.version(key, tag)?),
        };
        self.put_once(key, content, mode, id).map_err(|NotPut { why, .. }| why)
    }

    /// Puts an object, whatever the condition is. Returns its entity tag, if the store tells it.
    pub(super) fn put_once(
        &self,
        key: &Key,
        content: Vec<u8>,
        mode: PutMode,
        id: WriteId,
    ) -> Result<Option<String>, NotPut> {
        let Some(objects) = &self.writes else {
            return Err(PutError::Refused(io::Error::from_raw_os_error(libc::EROFS)).into());
        };
        let is_replaced = matches!(mode, PutMode::Update(_));
        let mut attributes = Attributes::new();
        attributes.insert(write_name(self.protocol), id.to_string().into());
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        let nbytes = content.len() as u64;
        let limit = self.patience.timeout().saturating_add(Duration::from_secs(nbytes / SLOWEST));
        let request = objects.put_opts(key, content.into(), options);
        let done = self.wait_for::<_, NotPut>(self.in_time(key, limit, async {
            request.await.map_err(|error| match error {
                // It was removed in the meantime. Whoever puts another one in its place finds out whether it is that.
                Error::NotFound { .. } if is_replaced => PutError::Conflict.into(),
                error => {
                    let is_answered = is_answered(&error);
                    NotPut { why: self.not_put(key, error), is_answered }
                }
            })
        }))?;
        self.stats.remote.bytes_put.add(nbytes);
        Ok(done.e_tag.map(|tag| bare(&tag).to_owned()).filter(|tag| !tag.is_empty()))
    }

    /// Returns what comes of a request that changes something, within this time.
    pub(super) async fn in_time<T, E: From<PutError>>(
        &self,
        key: &Key,
        limit: Duration,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let late = || self.unknown(key, &RequestError::Late { after: limit, why: None });
        tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(late().into()))
    }

    /// Waits for requests, none of which is one of those that readers wait for: an object may take minutes, and few are
    /// put at once.
    pub(super) fn wait_for<T, E: From<PutError>>(
        &self,
        requests: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.runtime.block_on(async {
            tokio::select! {
                done = requests => done,
                // Who waits for a commit is none of those: see `requester::serve_none`.
                () = requester_ends() => Err(PutError::Unknown(requester::interrupted()).into()),
            }
        })
    }

    /// Returns the error of a request of which it is unknown what has become.
    pub(super) fn unknown(&self, key: &Key, error: &RequestError) -> PutError {
        self.note_error(error);
        PutError::Unknown(self.reports().failed(key, error))
    }

    /// Returns by what a condition names the version with an entity tag.
    fn version(&self, key: &Key, tag: &str) -> Result<UpdateVersion, PutError> {
        let (e_tag, version) = match self.protocol {
            Protocol::S3 | Protocol::Web => (tag.to_owned(), None),
            Protocol::Azure => (format!("\"{tag}\""), None),
            Protocol::Gcs => {
                let found = match self.head(key, If::Any) {
                    Err(RequestError::Absent) => return Err(PutError::Conflict),
                    found => found,
                };
                let found =
                    found.map_err(|error| PutError::Unknown(self.reports().failed(key, &error)))?;
                if found.e_tag.as_deref().map(bare) != Some(tag) {
                    return Err(PutError::Conflict);
                }
                (tag.to_owned(), found.version)
            }
        };
        Ok(UpdateVersion { e_tag: Some(e_tag), version })
    }

    /// Returns what an error says of an object that was to be put.
    pub(super) fn not_put(&self, key: &Key, error: Error) -> PutError {
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

    /// Removes an object.
    pub(super) fn remove(&self, key: &Key) -> Result<(), RequestError> {
        let Some(objects) = &self.writes else { return Ok(()) };
        let received = Received::default();
        self.wait(&received, async {
            let _permit = self.permit(&received).await;
            objects.delete(key).await.map_err(RequestError::from)
        })
    }
}
