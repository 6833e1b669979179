//! How long a request is waited for.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::connection::Trouble;
use super::error::RequestError;
use super::limits::Limits;

/// Bytes of a second by which the time for a request becomes longer: who gets more of them than that gets all.
const SLOWEST: u64 = 16 << 10;

/// Time after a request without an answer in time in which the next one is not waited for as long: the
/// kernel repeats a lookup that has failed, and its caller would wait for both.
const REPEATED: Duration = Duration::from_secs(1);
/// Part of the usual time for which such a request is waited for.
const REPEATED_PART: u32 = 10;

/// Time that a request may take to a server that has never answered, while connections to it fail.
const UNANSWERED: Duration = Duration::from_secs(15);
/// Time after which it is looked whether that is so.
const LOOK: Duration = Duration::from_secs(1);

/// How far a request is: when it was sent, how much of the answer has come, and when. What comes once more
/// counts once: an answer that is always cut off at the same place is not waited for without end.
#[derive(Debug, Default)]
pub(super) struct Received(Mutex<Progress>);

#[derive(Debug, Default)]
struct Progress {
    sent: Option<Instant>,
    nbytes: u64,
    last: Option<Instant>,
}

impl Received {
    /// Notes that the request is sent. Until then, as many others were under way as may be.
    pub(super) fn sent(&self) {
        self.0.lock().sent.get_or_insert_with(Instant::now);
    }

    /// Notes that so many bytes of the answer have come.
    pub(super) fn note(&self, nbytes: u64) {
        let mut received = self.0.lock();
        if nbytes > received.nbytes {
            (received.nbytes, received.last) = (nbytes, Some(Instant::now()));
        }
    }

    /// Returns the rest of the time for a request that was asked for at some time, of which `limit` may pass
    /// without a byte: of its own answer once it is sent, before that of those of `others`, for which it waits.
    fn left(&self, limit: Duration, asked: Instant, others: Option<Instant>) -> Duration {
        let Progress { sent, nbytes, last } = *self.0.lock();
        let Some(sent) = sent else {
            let since = others.map_or(asked, |others| others.max(asked));
            return limit.saturating_sub(since.elapsed());
        };
        let all = limit.saturating_add(Duration::from_secs(nbytes / SLOWEST));
        let all = all.saturating_sub(sent.elapsed());
        all.min(limit.saturating_sub(last.unwrap_or(sent).elapsed()))
    }
}

/// How long requests to a store are waited for.
pub(super) struct Patience {
    timeout: Duration,
    trouble: Arc<Mutex<Trouble>>,
    limits: Arc<Limits>,
}

impl Patience {
    /// Returns that of a store: `timeout` is the time for a request, `trouble` what connections find, and
    /// `limits` those of the requests under way.
    pub(super) fn new(
        timeout: Duration,
        trouble: Arc<Mutex<Trouble>>,
        limits: Arc<Limits>,
    ) -> Self {
        Self { timeout, trouble, limits }
    }

    /// Returns the time for a request.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Notes why an answer was lost.
    pub(super) fn note_lost(&self, why: String) {
        self.trouble.lock().lost = Some(why);
    }

    /// Returns what comes of a request, which may take the longer the more of its answer has come, as long as
    /// more comes: a slow network is no reason to give it up.
    pub(super) async fn in_time<T>(
        &self,
        received: &Received,
        request: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let began = Instant::now();
        let is_repeated = self.trouble.lock().late.is_some_and(|at| at.elapsed() < REPEATED);
        tokio::pin!(request);
        loop {
            let limit = self.limit(is_repeated);
            let left = received.left(limit, began, self.limits.last_progress());
            if left.is_zero() {
                return Err(self.late(limit, is_repeated));
            }
            // By then it may be known that there is no such server.
            if let Ok(result) = tokio::time::timeout(left.min(LOOK), &mut request).await {
                return result;
            }
        }
    }

    /// Returns the time that a request may take without an answer.
    fn limit(&self, is_repeated: bool) -> Duration {
        let trouble = self.trouble.lock();
        match is_repeated {
            true => self.timeout / REPEATED_PART,
            // A server that was never there is rather a wrong address than one that is about to come back.
            false if !trouble.has_answered && trouble.lost.is_some() => {
                self.timeout.min(UNANSWERED)
            }
            false => self.timeout,
        }
    }

    /// Returns the error of a request that has taken longer than this.
    fn late(&self, limit: Duration, is_repeated: bool) -> RequestError {
        let mut trouble = self.trouble.lock();
        if !is_repeated {
            trouble.late = Some(Instant::now());
        }
        RequestError::Late { after: limit, why: trouble.lost.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waits_for_others_has_time_as_long_as_they_progress() {
        let (received, limit) = (Received::default(), Duration::from_secs(10));
        let now = Instant::now();
        let Some(asked) = now.checked_sub(Duration::from_secs(25)) else { return };
        assert_eq!(received.left(limit, asked, None), Duration::ZERO);
        let long_ago = now.checked_sub(Duration::from_secs(11));
        assert_eq!(received.left(limit, asked, long_ago), Duration::ZERO);
        assert!(received.left(limit, asked, Some(now)) > Duration::from_secs(9));
        // Once it is sent, its own answer counts.
        received.sent();
        assert!(received.left(limit, asked, None) > Duration::from_secs(9));
    }
}
