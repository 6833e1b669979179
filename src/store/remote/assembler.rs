//! The store as what assembles objects: the library's requests, and those that it can only sign.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody};
use object_store::path::Path as Key;
use object_store::signer::{
    HeaderMap, HeaderName, HeaderValue, Method, SignedUrlOptions, Signer, Url,
};
use parking_lot::Mutex;

use super::error::{RequestError, last_cause};
use crate::store::storage::WriteId;

/// Time for which a signature is good: longer than that which a request may take.
const SIGNED_FOR: Duration = Duration::from_secs(3600);

/// How the parameters of an address begin that are its signature.
const SIGNATURE: &str = "X-Amz-";

/// Store that may assemble objects.
pub(super) struct Assembler {
    pub store: Arc<AmazonS3>,
    pub http: HttpClient,
    pub bucket: String,
    /// `false` if requests are not signed.
    pub is_signed: bool,
    /// Whether it was seen to work.
    pub trust: Mutex<Trust>,
    /// `true` once the parts of one upload were as long as they were asked for.
    pub is_measured: AtomicBool,
    /// Uploads of which it is unknown whether they were completed, or will be.
    pub unfinished: Mutex<Vec<Unfinished>>,
}

/// What is known of how a store assembles objects.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// `true` if it has passed the trial.
    is_proven: bool,
    /// Objects that it has not assembled since the last one that it has.
    failures: u32,
    /// When the last one of them was.
    last: Option<Instant>,
}

/// Objects after which a store that does not assemble them is not asked to, and for how long.
const FAILURES: u32 = 2;
const PAUSE: Duration = Duration::from_secs(600);

/// Upload of which it is unknown whether it was completed.
pub(super) struct Unfinished {
    pub key: Key,
    /// The name that the store has given it.
    pub upload: String,
    /// The write that the object would come from.
    pub id: WriteId,
}

/// A request that the library does not know.
pub(super) struct SignedRequest<'a> {
    pub method: Method,
    pub key: &'a Key,
    /// Parameters behind the address.
    pub query: &'a [(&'a str, &'a str)],
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Answer of a store.
pub(super) struct Answered {
    pub status: u16,
    pub text: String,
}

/// Reason why there is no answer.
pub(super) enum Unanswered {
    /// There are no credentials, or none could be had.
    Unsigned(object_store::Error),
    /// It can be no request.
    Invalid(String),
    /// The answer was lost.
    Lost(RequestError),
}

impl Assembler {
    /// Returns whether the store is asked to assemble objects.
    pub(super) fn is_trusted(&self) -> bool {
        let Trust { is_proven, failures, last } = &*self.trust.lock();
        let is_over = last.is_none_or(|last| last.elapsed() > PAUSE);
        *is_proven && (*failures < FAILURES || is_over)
    }

    /// Says that the store has assembled an object, after a trial or for a commit.
    pub(super) fn has_assembled(&self) {
        *self.trust.lock() = Trust { is_proven: true, ..Trust::default() };
    }

    /// Says that the store has not assembled an object. Returns whether it is not asked to from now on.
    pub(super) fn has_failed(&self) -> bool {
        let mut trust = self.trust.lock();
        trust.failures = trust.failures.saturating_add(1);
        trust.last = Some(Instant::now());
        trust.failures == FAILURES
    }

    /// Sends a request once, and returns the answer.
    pub(super) async fn send(&self, request: SignedRequest<'_>) -> Result<Answered, Unanswered> {
        let SignedRequest { method, key, query, headers, body } = request;
        let mut options = SignedUrlOptions::default().with_query(query.iter().copied());
        options.signed_headers.clone_from(&headers);
        let signed = self.store.signed_url_opts(method.clone(), key, SIGNED_FOR, &options).await;
        let mut url = signed.map_err(Unanswered::Unsigned)?;
        if !self.is_signed {
            remove_signature(&mut url);
        }
        let length = HeaderValue::from(body.len());
        let mut request = HttpRequest::new(HttpRequestBody::from(body));
        *request.method_mut() = method;
        let address = url.as_str().parse();
        *request.uri_mut() = address.map_err(|_| Unanswered::Invalid("its address".to_owned()))?;
        *request.headers_mut() = headers;
        // Some stores insist on it.
        request.headers_mut().insert(HeaderName::from_static("content-length"), length);
        let answer = self.http.execute(request).await.map_err(lost)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().bytes().await.map_err(lost)?;
        Ok(Answered { status, text: String::from_utf8_lossy(&body).into_owned() })
    }
}

fn lost(error: HttpError) -> Unanswered {
    Unanswered::Lost(match error.kind() {
        HttpErrorKind::Timeout => RequestError::Silent,
        _ => RequestError::Other(last_cause(&error)),
    })
}

/// Takes the signature out of an address.
fn remove_signature(url: &mut Url) {
    let pairs = url.query_pairs().into_owned();
    let rest: Vec<_> = pairs.filter(|(name, _)| !name.starts_with(SIGNATURE)).collect();
    url.query_pairs_mut().clear().extend_pairs(rest);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn of_an_address_without_its_signature_the_rest_stays() {
        let mut url = Url::parse(
            "http://localhost/b/a%20b?partNumber=1&uploadId=x%2By&X-Amz-Date=1&X-Amz-Signature=2",
        )
        .unwrap();
        remove_signature(&mut url);
        assert_eq!(url.as_str(), "http://localhost/b/a%20b?partNumber=1&uploadId=x%2By");
    }
}
