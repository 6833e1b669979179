//! Errors of requests, and what they are to a reader of files.

use std::error::Error;
use std::io;
use std::time::Duration;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

/// How the text of an answer of some status begins. An answer of another status may hold these numbers
/// as well, in what the server says.
const BEHIND_END: &str = "Server returned non-2xx status code: 416";
const UNKNOWN_USER: &str = "Server returned non-2xx status code: 401";
const REFUSED: [&str; 2] = [UNKNOWN_USER, "Server returned non-2xx status code: 403"];
const NOT_ALLOWED: &str = "Server returned non-2xx status code: 405";

/// Codes by which stores say that what is missing is not the object alone, but all that would hold it.
pub(super) const NO_BUCKET: [&str; 3] =
    ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"];

/// Longest text of an error, in bytes: the store may say any amount.
const LONGEST_TEXT: usize = 400;

/// What may help those who are refused access to an object.
const FORBIDDEN_HINT: &str =
    "; a store that says so of what does not exist is read with \"absent=403\"";

/// What may help those who are refused a listing.
const UNLISTED_HINT: &str = "; a store that refuses only to list names is read with \"no_list\", perhaps \
                             with \"absent=403\"";

/// What helps those whose bucket is elsewhere.
const REGION_HINT: &str = "; the region of a bucket is named with region= (--region)";

/// Reason why a request has brought nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// There is no such object.
    #[error("there is no such object")]
    Absent,
    /// The object is not the one that was asked for any more.
    #[error("it was replaced")]
    Replaced,
    /// The object is still the one that the caller knows.
    #[error("it is unchanged")]
    Unchanged,
    /// The range asked for begins behind the object's end.
    #[error("the range begins behind its end")]
    BehindEnd,
    /// The process that needs the answer was ended.
    #[error("the process that has asked was ended")]
    Interrupted,
    /// No answer came, as often as it was asked for.
    #[error("no answer")]
    Silent,
    /// There was no answer in time.
    #[error("no answer in time ({} s){}", .after.as_secs_f64(), because(.why.as_deref()))]
    Late {
        /// Time that was waited for it.
        after: Duration,
        /// Why the last connection or answer was lost, if one was.
        why: Option<String>,
    },
    /// The store refuses access (401, 403).
    #[error("access is refused: {0}{hint}", hint = if is_hidden(.0) { FORBIDDEN_HINT } else { "" })]
    Denied(String),
    /// The store refuses access, and the request was not signed because there is nothing to sign with.
    #[error(
        "access is refused: {0}; the request was not signed, because there are no credentials in the \
         environment, in a profile or of this machine"
    )]
    Unsigned(String),
    /// The store refuses to list names (401, 403).
    #[error("a listing is refused: {0}{hint}", hint = if is_hidden(.0) { UNLISTED_HINT } else { "" })]
    NotListed(String),
    /// The server sends whole objects to those who ask for ranges.
    #[error("the server cannot send a part of a file: it does not support requests for ranges")]
    NoRanges,
    /// The answer is not what was asked for.
    #[error("the answer is no answer to the request: {0}")]
    Wrong(String),
    /// The answer has ended too early.
    #[error("the answer was cut off: {0}")]
    CutOff(String),
    /// There is no memory for the answer.
    #[error("there is no memory for the answer")]
    NoMemory,
    /// A listing has a key that no path can have.
    #[error("{0}")]
    BadKey(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl RequestError {
    /// Returns the error as one of reading a file. Only what the store has said to be absent is so:
    /// a store that cannot be reached says nothing about its objects.
    pub(super) fn to_io(&self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Self::Absent => libc::ENOENT,
            Self::Replaced => libc::ESTALE,
            Self::Denied(_) | Self::NotListed(_) | Self::Unsigned(_) => libc::EACCES,
            Self::Late { .. } | Self::Silent => libc::ETIMEDOUT,
            Self::Interrupted => libc::EINTR,
            Self::NoMemory => libc::ENOMEM,
            Self::Unchanged
            | Self::BehindEnd
            | Self::BadKey(_)
            | Self::NoRanges
            | Self::Wrong(_)
            | Self::CutOff(_)
            | Self::Other(_) => libc::EIO,
        })
    }

    /// Returns whether it says something about the store, not about the object: that is logged.
    pub(super) fn is_failure(&self) -> bool {
        !matches!(
            self,
            Self::Absent | Self::Replaced | Self::Unchanged | Self::BehindEnd | Self::Interrupted
        )
    }

    /// Returns what an error says that comes in the middle of an answer.
    pub(super) fn of_body(error: StoreError) -> Self {
        match Self::from(error) {
            Self::Other(text) | Self::Wrong(text) => Self::CutOff(text),
            error => error,
        }
    }

    /// Returns what an error of the store says of a listing.
    pub(super) fn from_listing(error: StoreError) -> Self {
        match Self::from(error) {
            Self::Denied(text) => Self::NotListed(text),
            error => error,
        }
    }

    /// Returns what an error of the store says. `is_absent` tells by the text of a refusal whether that
    /// is how the store says that there is no such object.
    pub(super) fn from_store(error: StoreError, is_absent: impl Fn(&str) -> bool) -> Self {
        match Self::from(error) {
            Self::Denied(text) if is_absent(&text) => Self::Absent,
            error => error,
        }
    }
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::NotFound { .. } => {
                let text = last_cause(&error);
                let is_other = text.starts_with(NOT_ALLOWED)
                    || NO_BUCKET.iter().any(|code| text.contains(code));
                if is_other { Self::Other(text) } else { Self::Absent }
            }
            StoreError::InvalidPath { .. } => Self::BadKey(last_cause(&error)),
            StoreError::Precondition { .. } => Self::Replaced,
            StoreError::NotModified { .. } => Self::Unchanged,
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                Self::Denied(last_cause(&error))
            }
            _ => {
                let text = last_cause(&error);
                if is_timeout(&error) {
                    Self::Silent
                } else if ["non-partial response", "Range request not supported"]
                    .iter()
                    .any(|said| text.contains(said))
                {
                    Self::NoRanges
                } else if REFUSED.iter().any(|refused| text.starts_with(refused)) {
                    // Of a listing.
                    Self::Denied(text)
                } else if text.contains("redirect without LOCATION") {
                    Self::Other(format!("{text}{REGION_HINT}"))
                } else if text.starts_with(BEHIND_END) {
                    Self::BehindEnd
                } else if text.contains("Requested ") || text.contains("Content-Range") {
                    Self::Wrong(text)
                } else {
                    Self::Other(text)
                }
            }
        }
    }
}

/// Codes by which stores forbid what they may also hide. Credentials that are wrong or have expired have
/// others.
const FORBIDDEN: [&str; 3] =
    ["AccessDenied", "AuthorizationFailure", "AuthorizationPermissionMismatch"];

/// Returns whether the store forbids what it may also hide, by the text of the refusal.
pub(super) fn is_forbidden(text: &str) -> bool {
    FORBIDDEN.iter().any(|code| text.contains(code))
}

/// Returns whether a web server forbids what it may also hide. One that asks for a login does not.
pub(super) fn is_forbidden_on_web(text: &str) -> bool {
    !text.starts_with(UNKNOWN_USER)
}

/// Returns whether a refusal may be another one than of the credentials: by its code, if it has one.
fn is_hidden(text: &str) -> bool {
    let has_code = text.contains("<Code>");
    text.contains("403 Forbidden") && (!has_code || is_forbidden(text))
}

/// Returns whether a request ended because no answer came.
fn is_timeout(error: &StoreError) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        let http = error.downcast_ref::<HttpError>();
        if http.is_some_and(|http| http.kind() == HttpErrorKind::Timeout) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn because(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(": {why}"))
}

/// Returns the text of the innermost cause, in one line: those around it repeat it, with addresses. Of the
/// answer of a store only code and message: some repeat credentials in the rest.
pub(super) fn last_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    let element = |name: &str| {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let from = text.find(&open)?;
        let to = from + text[from..].find(&close)? + close.len();
        text.get(from..to)
    };
    let mut short = match (text.find('<'), element("Code")) {
        (Some(body), Some(code)) => {
            format!("{}{code}{}", &text[..body], element("Message").unwrap_or_default())
        }
        _ => text,
    };
    if short.len() > LONGEST_TEXT {
        let end = (0..=LONGEST_TEXT).rev().find(|end| short.is_char_boundary(*end));
        short.truncate(end.unwrap_or(0));
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(String);

    fn not_found(text: &str) -> RequestError {
        let source = Box::new(Said(text.to_owned()));
        StoreError::NotFound { path: "a".to_owned(), source }.into()
    }

    #[test]
    fn only_an_object_is_absent() {
        let status = |rest: &str| format!("Server returned non-2xx status code: {rest}");
        let missing = status("404 Not Found: <Error><Code>NoSuchKey</Code></Error>");
        assert!(matches!(not_found(&missing), RequestError::Absent));
        assert!(matches!(not_found(&status("404 Not Found: ")), RequestError::Absent));
        for other in [
            "404 Not Found: <Error><Code>NoSuchBucket</Code></Error>",
            "404 Not Found: <Error><Code>ContainerNotFound</Code></Error>",
            "405 Method Not Allowed: ",
        ] {
            assert!(matches!(not_found(&status(other)), RequestError::Other(_)), "{other}");
        }
    }

    #[test]
    fn a_login_that_is_asked_for_is_not_absence() {
        let text = |code| format!("Server returned non-2xx status code: {code}");
        assert!(!is_forbidden_on_web(&text("401 Unauthorized: ")));
        assert!(is_forbidden_on_web(&text("403 Forbidden: ")));
        assert!(is_forbidden("<Code>AuthorizationFailure</Code>"));
        assert!(!is_forbidden("<Code>InvalidAccessKeyId</Code>"));
    }

    #[test]
    fn of_what_a_store_says_only_code_and_message_are_repeated() {
        let body = "status code: 400 Bad Request: <?xml version=\"1.0\"?> <Error><Code>InvalidToken</Code>\
                    <Message>The token is malformed.</Message><Token-0>secret</Token-0></Error>";
        let text = last_cause(&Said(body.to_owned()));
        let kept = "status code: 400 Bad Request: <Code>InvalidToken</Code>\
                    <Message>The token is malformed.</Message>";
        assert_eq!(text, kept);
        assert_eq!(last_cause(&Said("a\n  b".to_owned())), "a b");
        let long = last_cause(&Said("ä".repeat(1000)));
        assert!(long.len() <= LONGEST_TEXT + 3 && long.ends_with("..."));
    }
}
