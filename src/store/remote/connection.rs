//! Connections to a store: what requests cost is counted, and answers that are none are refused.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use parking_lot::Mutex;
use reqwest::Certificate;
use reqwest::redirect::Policy;
use rustls::CertificateError;

use super::error::last_cause;
use super::latency::Latency;
use super::limits::Limits;
use crate::stats::Stats;

/// Longest answer that is no part of an object, in bytes: a listing, or an error.
const LONGEST_OTHER: usize = 64 << 20;

/// Longest time for which an answer may ask to wait before the request is repeated.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Redirections that are followed for one request.
const MOST_REDIRECTIONS: usize = 10;

/// What helps those whose store has a certificate of their own.
const CA_HINT: &str =
    "; certificates that are accepted besides the system's are named with ca= (--ca)";

/// What is wrong with the store; nothing once another answer has come.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// Why the last connection or answer was lost.
    pub lost: Option<String>,
    /// When the last request ended that had no answer in all of its time.
    pub late: Option<Instant>,
    /// `true` once there was an answer.
    pub has_answered: bool,
}

/// How servers are connected to.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// Certificates to trust besides those of the system.
    pub certificates: Vec<Certificate>,
    /// `true` if requests hold credentials, which are for the store alone.
    pub is_signed: bool,
    /// Time for a connection.
    pub connect_timeout: Duration,
    /// Time without a byte of an answer. `None` for requests that are long themselves.
    pub read_timeout: Option<Duration>,
}

/// Makes connections that count requests, and let the limits know of refusals.
#[derive(Debug)]
pub(super) struct Connector {
    pub settings: Settings,
    pub limits: Arc<Limits>,
    pub latency: Arc<Latency>,
    pub trouble: Arc<Mutex<Trouble>>,
    pub stats: Arc<Stats>,
}

#[derive(Debug)]
struct Connection {
    client: HttpClient,
    limits: Arc<Limits>,
    latency: Arc<Latency>,
    trouble: Arc<Mutex<Trouble>>,
    stats: Arc<Stats>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let is_yes = |value: String| value == "true";
        // The machine's own service of credentials, for example, is asked without TLS.
        let is_plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(is_yes);
        let client = reqwest::Client::builder()
            .user_agent(concat!("shardfs/", env!("CARGO_PKG_VERSION")))
            .redirect(self.settings.redirects())
            // An address may hold a signature.
            .referer(false)
            .http1_only()
            .https_only(!is_plain)
            .tls_certs_merge(self.settings.certificates.iter().cloned())
            .connect_timeout(self.settings.connect_timeout);
        let client = match self.settings.read_timeout {
            Some(limit) => client.read_timeout(limit).build(),
            None => client.build(),
        };
        let failed =
            |error| object_store::Error::Generic { store: "HTTP", source: Box::new(error) };
        let client = HttpClient::new(client.map_err(failed)?);
        let (limits, latency) = (Arc::clone(&self.limits), Arc::clone(&self.latency));
        let (trouble, stats) = (Arc::clone(&self.trouble), Arc::clone(&self.stats));
        Ok(HttpClient::new(Connection { client, limits, latency, trouble, stats }))
    }
}

impl Settings {
    /// Returns which redirections are followed: those to another server not, if it would get credentials.
    fn redirects(&self) -> Policy {
        if !self.is_signed {
            return Policy::limited(MOST_REDIRECTIONS);
        }
        Policy::custom(|attempt| {
            let is_same = attempt
                .previous()
                .first()
                .is_some_and(|first| first.origin() == attempt.url().origin());
            if is_same && attempt.previous().len() <= MOST_REDIRECTIONS {
                return attempt.follow();
            }
            let to = attempt.url().host_str().unwrap_or_default().to_owned();
            attempt.error(Said(format!(
                "the store sends to {to}, which is not given the credentials of this one"
            )))
        })
    }
}

#[async_trait]
impl HttpService for Connection {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let remote = &self.stats.remote;
        remote.requests.count();
        // Signatures are in headers and in queries; neither is logged.
        let host = request.uri().host().unwrap_or_default().to_owned();
        let host = request.uri().port().map_or(host.clone(), |port| format!("{host}:{port}"));
        let query = plain_query(request.uri().query().unwrap_or_default());
        let what = format!("{} {host}{}{query}", request.method(), request.uri().path());
        let header = |name| request.headers().get(name).and_then(|it| it.to_str().ok());
        let is_ranged = header("range").is_some();
        // Of what is read, or copied.
        let range = header("range").or_else(|| header("x-amz-copy-source-range"));
        let is_listing = request.uri().query().is_some_and(asks_for_listing);
        let what = range.map_or_else(|| what.clone(), |range| format!("{what} {range}"));
        let asked = Instant::now();
        let answer = self.client.execute(request).await;
        let after = asked.elapsed();
        self.stats.answers.add(after);
        match &answer {
            Err(error) => {
                remote.lost.count();
                let cause = last_cause(error);
                log::debug!("{what}: {cause} after {after:.1?}");
                self.trouble.lock().lost = Some(format!("{host}: {cause}"));
            }
            Ok(answer) => {
                let status = answer.status().as_u16();
                *self.trouble.lock() = Trouble {
                    lost: (status >= 500).then(|| answer.status().to_string()),
                    late: None,
                    has_answered: true,
                };
                log::debug!("{what}: {status} after {after:.1?}");
                match status {
                    429 | 503 => {
                        remote.throttled.count();
                        self.limits.refused(asked + after);
                        let wait =
                            answer.headers().get("retry-after").and_then(|it| it.to_str().ok());
                        let wait = wait.and_then(|seconds| seconds.parse().ok());
                        if let Some(wait) = wait.map(Duration::from_secs) {
                            tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
                        }
                    }
                    500.. => remote.lost.count(),
                    _ => {
                        self.latency.note(after);
                        self.limits.answered();
                    }
                }
            }
        }
        let answer = answer.map_err(|error| refused_certificate(&error).unwrap_or(error))?;
        if let Some(region) = other_region(&answer) {
            let text =
                format!("the bucket is in the region {region}: name it with region= (--region)");
            return Err(HttpError::new(HttpErrorKind::Unknown, Said(text)));
        }
        match answer.status().is_success() {
            true if is_ranged => Ok(answer),
            true if is_listing => checked_listing(answer).await,
            _ => Ok(answer.map(limited)),
        }
    }
}

/// Returns whether a text can be the name of a region.
pub(super) fn is_region(text: &str) -> bool {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
    !text.is_empty() && text.len() < 64 && text.chars().all(is_plain)
}

/// Returns the region of the bucket if that is why the store refuses a request.
fn other_region(answer: &HttpResponse) -> Option<&str> {
    let is_refusal = answer.status().as_u16() == 301;
    let region =
        answer.headers().get("x-amz-bucket-region").filter(|_| is_refusal)?.to_str().ok()?;
    is_region(region).then_some(region)
}

/// Returns the error of a connection to a server whose certificate is not accepted: it will not be the next
/// time either, so the library is not to repeat the request. `None` if it is another one.
fn refused_certificate(error: &HttpError) -> Option<HttpError> {
    let hint = match certificate_error(error)? {
        CertificateError::UnknownIssuer => CA_HINT,
        _ => "",
    };
    let said = Said(format!("{}{hint}", last_cause(error)));
    Some(HttpError::new(HttpErrorKind::Unknown, said))
}

/// Returns what is wrong with the certificate of a server, if that is among the causes of an error.
fn certificate_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a CertificateError> {
    if let Some(rustls::Error::InvalidCertificate(defect)) = error.downcast_ref() {
        return Some(defect);
    }
    // The source of such an error is that of the one within.
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match within {
        Some(within) => certificate_error(within),
        None => certificate_error(error.source()?),
    }
}

/// Returns what of a query says what is asked for, and is no secret, with a question mark before it if there is any.
fn plain_query(query: &str) -> String {
    let is_plain = |part: &&str| {
        let name = part.split_once('=').map_or(*part, |(name, _)| name);
        matches!(name, "prefix" | "uploads" | "partNumber" | "comp")
    };
    let plain: Vec<&str> = query.split('&').filter(is_plain).collect();
    // Its value is of no use to a reader.
    let upload = query.split('&').any(|part| part.starts_with("uploadId=")).then_some("uploadId");
    let plain: Vec<&str> = plain.into_iter().chain(upload).collect();
    if plain.is_empty() { String::new() } else { format!("?{}", plain.join("&")) }
}

/// Returns whether a request is one for a listing: of S3 and GCS, or of Azure.
fn asks_for_listing(query: &str) -> bool {
    query.split('&').any(|part| part.starts_with("list-type=") || part == "comp=list")
}

/// Returns an answer that is a listing. What is none, or not all of one, has no names in it that could be
/// found: every object would be absent.
async fn checked_listing(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = answer.into_parts();
    let text = limited(body).bytes().await?;
    match defect_of_listing(&text) {
        None => Ok(HttpResponse::from_parts(parts, text.into())),
        Some(defect) => Err(HttpError::new(HttpErrorKind::Decode, Said(defect.to_owned()))),
    }
}

/// Returns what is wrong with the text of a listing. Names in it are escaped, so no `<` is part of one.
fn defect_of_listing(text: &[u8]) -> Option<&'static str> {
    let Ok(text) = str::from_utf8(text) else { return Some("what should be a listing is no text") };
    let has = |words: &str| text.contains(words);
    let is_whole = |root: &str| has(&format!("<{root}")) && has(&format!("</{root}>"));
    if is_whole("EnumerationResults") {
        return None;
    }
    if !is_whole("ListBucketResult") {
        return Some("what should be a listing is none, or not all of one");
    }
    let has_token = has("<NextContinuationToken>") && !has("<NextContinuationToken></");
    let is_cut = has("<IsTruncated>true</IsTruncated>") && !has_token;
    is_cut.then_some("the listing has more names than it can be asked for: it needs ListObjectsV2")
}

/// Limits the length of an answer that is taken into memory as a whole.
fn limited(body: HttpResponseBody) -> HttpResponseBody {
    let too_long = |error: Box<dyn Error + Send + Sync>| {
        HttpError::new(HttpErrorKind::Decode, Said(error.to_string()))
    };
    HttpResponseBody::new(Limited::new(body, LONGEST_OTHER).map_err(too_long))
}

/// What is wrong with an answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Said(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_query_no_secret_is_logged() {
        assert_eq!(plain_query("list-type=2&prefix=a%2F&X-Amz-Signature=1"), "?prefix=a%2F");
        assert_eq!(plain_query("uploads&X-Amz-Credential=k"), "?uploads");
        assert_eq!(plain_query("uploadId=a&partNumber=3&sig=x"), "?partNumber=3&uploadId");
        assert_eq!(plain_query("sv=1&sig=abc"), "");
        assert_eq!(plain_query(""), "");
    }

    #[test]
    fn a_listing_is_told_by_its_root_and_can_be_asked_for_to_its_end() {
        let listing = |inside: &str| {
            format!("<?xml?><ListBucketResult xmlns=\"x\">{inside}</ListBucketResult>")
        };
        for good in [
            listing("<IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents>"),
            listing(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
            ),
            listing(""),
            "<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>".to_owned(),
        ] {
            assert_eq!(defect_of_listing(good.as_bytes()), None, "{good}");
        }
        for bad in [
            String::new(),
            "<html><body></body></html>".to_owned(),
            "<Error><Code>InternalError</Code></Error>".to_owned(),
            "<ListAllMyBucketsResult></ListAllMyBucketsResult>".to_owned(),
            "<ListBucketResult><Contents><Key>a</Key></Contents>".to_owned(),
            listing("<IsTruncated>true</IsTruncated>"),
            listing(
                "<IsTruncated>true</IsTruncated><NextContinuationToken></NextContinuationToken>",
            ),
        ] {
            assert!(defect_of_listing(bad.as_bytes()).is_some(), "{bad}");
        }
        assert!(asks_for_listing("delimiter=%2F&list-type=2") && asks_for_listing("comp=list&x=1"));
        assert!(!asks_for_listing("prefix=comp%3Dlist"));
    }
}
