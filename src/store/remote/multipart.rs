//! Requests by which a store assembles an object of parts: of ranges of an object that it has, which it copies itself,
//! and of bytes that are sent to it. It makes one of them, at once, when it is asked to complete it.
//!
//! ```text
//! POST   KEY?uploads                     an upload is begun, with the metadata of the object
//! PUT    KEY?partNumber=N&uploadId=ID    a part: bytes; or a range of an object that has this tag
//!            x-amz-copy-source: KEY, x-amz-copy-source-range, x-amz-copy-source-if-match: TAG
//! GET    KEY?uploadId=ID                 the parts, with their lengths
//! POST   KEY?uploadId=ID                 the parts are made an object, if the one with this tag is there
//!            If-Match: TAG
//! DELETE KEY?uploadId=ID                 nothing is made of them
//! ```
//!
//! The library sends those that it knows; copies of ranges, and completion on a condition, it only signs.

use std::io;
use std::time::Duration;

use object_store::multipart::MultipartStore;
use object_store::path::Path as Key;
use object_store::signer::{HeaderMap, HeaderName, HeaderValue, Method};
use object_store::{Attributes, PutMultipartOptions, PutPayload};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use quick_xml::escape::escape;
use serde::Deserialize;

use super::assembler::{Answered, Assembler, SignedRequest, Unanswered};
use super::attributes::bare;
use super::client::Client;
use super::error::{NO_BUCKET, RequestError, last_cause};
use super::writing::{SLOWEST, write_name};
use crate::format::index::ByteRange;
use crate::store::storage::{PutError, WriteId};

/// Bytes that a store copies in a second at least, as far as it is waited for; and of which it makes an object.
const SLOWEST_COPY: u64 = 4 << 20;
const SLOWEST_COMPLETION: u64 = 16 << 20;

/// Characters of keys that stand for themselves in headers.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Namespace of the bodies of requests.
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Longest time that a mount waits for an upload to be given up.
const LONGEST_ABORT: Duration = Duration::from_secs(10);

/// How the text of an error of the library begins that has the status of an answer.
const STATUS: &str = "Server returned non-2xx status code: ";

/// Codes by which a store says that a condition does not hold.
const CONFLICTS: [&str; 2] = ["PreconditionFailed", "ConditionalRequestConflict"];

/// Codes of refusals (400) after which the same request may succeed: of credentials that have expired, and of what was
/// changed on its way.
const PASSING: [&str; 7] = [
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeout",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
];

/// Upload that has begun: the name that the store has given it.
pub(super) type UploadId = String;

/// Reason why an object was not assembled.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotMade {
    /// As of one that is put.
    #[error("{0}")]
    Put(#[from] PutError),
    /// The store does not do it, and will not the next time.
    #[error("{0}")]
    Unable(#[source] io::Error),
}

impl NotMade {
    /// Returns what an error is before an object was to be completed: whatever the store refuses then, it may still take
    /// the object as a whole.
    pub(super) fn before_completion(self) -> Self {
        match self {
            Self::Put(PutError::Refused(error)) => Self::Unable(error),
            error => error,
        }
    }
}

impl From<NotMade> for PutError {
    fn from(error: NotMade) -> Self {
        match error {
            NotMade::Put(error) => error,
            NotMade::Unable(error) => Self::Refused(error),
        }
    }
}

/// Answer to a part that was copied, or an upload that was completed.
#[derive(Debug, Deserialize)]
struct Made {
    #[serde(rename = "ETag")]
    tag: String,
}

/// Parts of an upload.
#[derive(Debug, Deserialize)]
struct ListedParts {
    #[serde(rename = "Part", default)]
    parts: Vec<ListedPart>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedPart {
    part_number: usize,
    size: u64,
}

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

impl Client {
    /// Returns what objects are assembled with.
    pub(super) fn assembler(&self) -> Result<&Assembler, NotMade> {
        let unable = || NotMade::Unable(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        self.assembler.as_ref().ok_or_else(unable)
    }

    /// Begins an upload of an object which comes from the write `id`.
    pub(super) fn begin_upload(&self, key: &Key, id: WriteId) -> Result<UploadId, NotMade> {
        let store = &self.assembler()?.store;
        let mut attributes = Attributes::new();
        attributes.insert(write_name(self.protocol), id.to_string().into());
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let begun = store.create_multipart_opts(key, options);
        self.wait_for(self.in_time(key, self.patience.timeout(), async {
            begun.await.map_err(|error| self.refused(key, error))
        }))
    }

    /// Makes a part of bytes, and returns its tag. Parts count from 1.
    pub(super) async fn send_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: usize,
        bytes: PutPayload,
    ) -> Result<String, NotMade> {
        let store = &self.assembler()?.store;
        let nbytes = bytes.content_length() as u64;
        let limit = self.patience.timeout().saturating_add(Duration::from_secs(nbytes / SLOWEST));
        // The library counts from 0.
        let sent = store.put_part(key, upload, number.saturating_sub(1), bytes);
        let sent = self
            .in_time(key, limit, async { sent.await.map_err(|error| self.refused(key, error)) });
        let tag = sent.await?.content_id;
        self.stats.remote.bytes_put.add(nbytes);
        Ok(tag)
    }

    /// Makes a part of an object that is there, all of it or a range, if it has this entity tag.
    pub(super) async fn copy_part(
        &self,
        key: &Key,
        upload: &UploadId,
        number: usize,
        (tag, range): (&str, Option<ByteRange>),
    ) -> Result<String, NotMade> {
        let bucket = &self.assembler()?.bucket;
        let mut headers = HeaderMap::new();
        let source = format!("{bucket}/{}", utf8_percent_encode(key.as_ref(), PLAIN));
        headers.insert(HeaderName::from_static("x-amz-copy-source"), text(&source)?);
        headers.insert(HeaderName::from_static("x-amz-copy-source-if-match"), text(tag)?);
        if let Some(ByteRange { offset, nbytes }) = range {
            let last = offset.saturating_add(nbytes).saturating_sub(1);
            let range = text(&format!("bytes={offset}-{last}"))?;
            headers.insert(HeaderName::from_static("x-amz-copy-source-range"), range);
        }
        let nbytes = range.map_or(0, |range| range.nbytes);
        let number = number.to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", upload.as_str())];
        let limit = Duration::from_secs(nbytes / SLOWEST_COPY);
        let limit = self.patience.timeout().saturating_add(limit);
        let (method, query, body) = (Method::PUT, &query[..], Vec::new());
        let made = self.made(SignedRequest { method, key, query, headers, body });
        let Made { tag } = self.in_time(key, limit, made).await?;
        self.stats.remote.bytes_copied.add(nbytes);
        Ok(tag)
    }

    /// Checks that the parts of an upload have these lengths: that ranges were copied as they were asked for.
    pub(super) fn check_lengths(
        &self,
        key: &Key,
        upload: &UploadId,
        lengths: &[u64],
    ) -> Result<(), NotMade> {
        let query = [("uploadId", upload.as_str())];
        let (method, query, headers, body) = (Method::GET, &query[..], HeaderMap::new(), vec![]);
        let answer = self.answer_to(SignedRequest { method, key, query, headers, body });
        let unable = |what| NotMade::Unable(io::Error::other(what));
        let text = match self.wait_for(self.in_time(key, self.patience.timeout(), answer)) {
            Err(NotMade::Put(PutError::Conflict)) => {
                return Err(unable("the store lists no parts"));
            }
            text => text?,
        };
        let listed: Result<ListedParts, _> = quick_xml::de::from_str(&text);
        let listed = listed.map_err(|_| unable("the store lists no parts"))?.parts;
        // A page of them, which has the first ones at least.
        let is_as_asked =
            |part: &ListedPart| lengths.get(part.part_number.wrapping_sub(1)) == Some(&part.size);
        match !listed.is_empty() && listed.iter().all(is_as_asked) {
            true => Ok(()),
            false => Err(unable("the store copies other ranges than it is asked for")),
        }
    }

    /// Makes an object of `nbytes` bytes of the parts with these tags, in the place of the one with the entity tag
    /// `before`. Returns its entity tag, if the store tells it.
    pub(super) fn complete(
        &self,
        key: &Key,
        upload: &UploadId,
        tags: &[String],
        (before, nbytes): (&str, u64),
    ) -> Result<Option<String>, NotMade> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("if-match"), text(before)?);
        let query = [("uploadId", upload.as_str())];
        let (method, query, body) = (Method::POST, &query[..], list_of_parts(tags));
        let made = self.made(SignedRequest { method, key, query, headers, body });
        let limit = Duration::from_secs(nbytes / SLOWEST_COMPLETION);
        let limit = self.patience.timeout().saturating_add(limit);
        let Made { tag } = self.wait_for(self.in_time(key, limit, made))?;
        Ok(Some(bare(&tag).to_owned()).filter(|tag| !tag.is_empty()))
    }

    /// Gives an upload up: what is left of one takes as much space as an object. There is no error if nothing is left of
    /// it.
    ///
    /// # Errors
    /// What was wrong, in words.
    pub(super) fn abort(&self, key: &Key, upload: &UploadId) -> Result<(), String> {
        let Some(Assembler { store, .. }) = &self.assembler else { return Ok(()) };
        let abort = store.abort_multipart(key, upload);
        let aborted = self.runtime.block_on(async {
            tokio::time::timeout(self.patience.timeout().min(LONGEST_ABORT), abort).await
        });
        match aborted {
            // The store has given it up itself.
            Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => Ok(()),
            Ok(Err(error)) => Err(last_cause(&error)),
            Err(_) => Err("no answer".to_owned()),
        }
    }

    /// Sends a request by which something is made, and reads the answer. One that is none may come after it was made.
    async fn made(&self, request: SignedRequest<'_>) -> Result<Made, NotMade> {
        let key = request.key;
        let text = self.answer_to(request).await?;
        quick_xml::de::from_str(&text)
            .map_err(|_| self.no_answer(key, "the answer has no entity tag"))
    }

    /// Sends a request that the library does not know, and returns the text of the answer.
    pub(super) async fn answer_to(&self, request: SignedRequest<'_>) -> Result<String, NotMade> {
        let key = request.key;
        let Answered { status, text } = match self.assembler()?.send(request).await {
            Ok(answer) => answer,
            Err(Unanswered::Unsigned(error)) => return Err(self.not_put(key, error).into()),
            Err(Unanswered::Invalid(what)) => return Err(NotMade::Unable(io::Error::other(what))),
            Err(Unanswered::Lost(error)) => return Err(self.unknown(key, &error).into()),
        };
        // A status of success may come with an error.
        match ((200..300).contains(&status), code_of(&text)) {
            (true, None) => Ok(text),
            (_, code) => Err(self.not_made(key, status, code, &text)),
        }
    }

    /// Returns what an error of the library says of a request for parts.
    fn refused(&self, key: &Key, error: object_store::Error) -> NotMade {
        let said = last_cause(&error);
        let status = said.strip_prefix(STATUS).and_then(|rest| rest.get(..3)?.parse().ok());
        match (status, code_of(&said)) {
            // Of the upload, or of the bucket.
            (Some(404), code) if code.is_none_or(|code| !NO_BUCKET.contains(&code)) => {
                self.no_answer(key, &said)
            }
            (Some(status @ (400 | 405 | 411 | 413 | 501)), code) => {
                self.not_made(key, status, code, &said)
            }
            _ => self.not_put(key, error).into(),
        }
    }

    /// Returns what an answer says that is an error.
    fn not_made(&self, key: &Key, status: u16, code: Option<&str>, said: &str) -> NotMade {
        let said = last_cause(&Said(format!("status {status}: {said}")));
        let failed = |error| self.reports().failed(key, &error);
        match (status, code) {
            (_, Some(code)) if CONFLICTS.contains(&code) => PutError::Conflict.into(),
            (_, Some(code)) if NO_BUCKET.contains(&code) => {
                PutError::Refused(failed(RequestError::Other(said))).into()
            }
            (_, Some("NoSuchUpload")) => self.no_answer(key, &said),
            // The object is gone, or another one.
            (404 | 409 | 412 | 416, _) => PutError::Conflict.into(),
            (401 | 403, _) => PutError::Refused(failed(RequestError::Denied(said))).into(),
            (400, Some(code)) if PASSING.contains(&code) => self.no_answer(key, &said),
            (408 | 429, _) => self.no_answer(key, &said),
            (400..=499 | 501, _) => NotMade::Unable(io::Error::other(said)),
            _ => self.no_answer(key, &said),
        }
    }

    fn no_answer(&self, key: &Key, why: &str) -> NotMade {
        self.unknown(key, &RequestError::Other(why.to_owned())).into()
    }
}

/// Returns the code of an answer that is an error.
fn code_of(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("<Code>")?;
    Some(rest.split_once("</Code>")?.0)
}

/// Returns a value of a header.
fn text(value: &str) -> Result<HeaderValue, NotMade> {
    HeaderValue::from_str(value).map_err(|error| NotMade::Unable(io::Error::other(error)))
}

/// Returns the body of a request that completes an upload.
fn list_of_parts(tags: &[String]) -> Vec<u8> {
    let parts = (1..).zip(tags).map(|(number, tag): (usize, _)| {
        let tag = escape(tag.as_str());
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
    });
    let parts: String = parts.collect();
    format!("<CompleteMultipartUpload xmlns=\"{NAMESPACE}\">{parts}</CompleteMultipartUpload>")
        .into()
}
