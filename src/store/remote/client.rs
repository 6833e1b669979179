//! Requests to a store, one at a time for the thread that waits for it.
//!
//! ```text
//! thread of the mount --> Client::get --> Limits --> object_store (signs, repeats) --> Connection --> network
//! ```
//!
//! Everything that is asynchronous is in this file, and in that of the connection: other threads wait for one
//! request, at most as long as its timeout.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use super::assembler::Assembler;
use super::attributes::bare;
use super::connection::{Connector, Settings};
use super::error::{RequestError, is_forbidden, is_forbidden_on_web};
use super::latency::Latency;
use super::limits::{Limits, Permit};
use super::options::{Opened, RemoteOptions, SetupError};
use super::patience::{Patience, Received};
use super::reports::Reports;
use super::single_writer::SingleWriter;
use super::url::{Protocol, SourceUrl};
use crate::requester;
use crate::stats::Stats;

/// Longest answer that is asked for at once, in bytes.
pub(super) const LONGEST: u64 = 1 << 30;

/// Longest token for the next page of a listing, in bytes. It becomes a part of a URL.
const LONGEST_TOKEN: usize = 4 << 10;

/// Pauses before what was cut off is asked for again: the first one, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Threads that receive answers.
const THREADS: usize = 2;

/// Part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The first bytes, as far as there are any.
    First(u64),
    /// The last bytes, as far as there are any.
    Last(u64),
    /// A range.
    Range(u64, u64),
}

/// Condition on the version of an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum If<'a> {
    /// None.
    Any,
    /// It has this entity tag.
    Is(&'a str),
    /// It has another one.
    IsNot(&'a str),
}

/// Answer to a request for a part of an object.
#[derive(Debug)]
pub(super) struct Answer {
    /// What the store says of the object.
    pub meta: ObjectMeta,
    /// Offset of the bytes in the object.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Connection to a store.
pub(super) struct Client {
    objects: Arc<dyn ObjectStore>,
    /// The same for what changes it, which repeats no request; `None` if it can only be read.
    pub(super) writes: Option<Arc<dyn ObjectStore>>,
    /// What assembles objects of parts; `None` if nothing does.
    pub(super) assembler: Option<Assembler>,
    /// What is known of writing to a store that keeps to no conditions.
    pub(super) single_writer: SingleWriter,
    /// Protocol, by which conditions are expressed.
    pub(super) protocol: Protocol,
    pages: Option<Arc<dyn PaginatedListStore>>,
    has_suffixes: bool,
    lacks_credentials: bool,
    place: String,
    pub(super) limits: Arc<Limits>,
    latency: Arc<Latency>,
    pub(super) patience: Patience,
    failure: Mutex<Option<String>>,
    reports: Reports,
    pub(super) forbidden_is_absent: bool,
    /// Tells by the text of a refusal whether it means that there is no such object.
    is_absent: fn(&str) -> bool,
    pub(super) stats: Arc<Stats>,
    pub(super) runtime: Handle,
    _threads: Threads,
}

/// Threads that receive answers. They end with the connection, without being waited for: one may be
/// looking up a name.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// Sets up a connection; sends no request.
    pub(super) fn new(
        url: &SourceUrl,
        options: &RemoteOptions,
        stats: Arc<Stats>,
    ) -> Result<Self, SetupError> {
        // Fails if it is set already: then it is this one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("requests")
            .enable_all()
            .build()
            .map_err(SetupError::Runtime)?;
        let limits = Arc::new(Limits::new(options.requests));
        let (latency, trouble) = (Arc::new(Latency::new(options.hedge_after)), Arc::default());
        let connected = |settings: Settings| Connector {
            settings,
            limits: Arc::clone(&limits),
            latency: Arc::clone(&latency),
            trouble: Arc::clone(&trouble),
            stats: Arc::clone(&stats),
        };
        let opened = options.open(url, connected)?;
        let patience = Patience::new(options.timeout, trouble, Arc::clone(&limits));
        let Opened { objects, writes, assembler, pages, has_suffixes, place, lacks_credentials } =
            opened;
        // Fails if it is set already: then it is this one.
        let _ = stats.address.set(place.trim_end_matches([' ', '/']).to_owned());
        Ok(Self {
            objects,
            writes,
            assembler,
            single_writer: SingleWriter::new(options),
            protocol: url.protocol,
            pages,
            has_suffixes,
            lacks_credentials,
            place,
            limits,
            latency,
            patience,
            failure: Mutex::default(),
            reports: Reports::default(),
            forbidden_is_absent: options.forbidden_is_absent,
            is_absent: is_absent(options, url.protocol),
            stats,
            runtime: runtime.handle().clone(),
            _threads: Threads(Some(runtime)),
        })
    }

    /// Returns what tells the store apart from others with buckets of the same name.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Returns whether the names in a directory can be listed.
    pub(super) fn can_list(&self) -> bool {
        self.pages.is_some()
    }

    /// Reads a part of an object.
    pub(super) fn get(
        &self,
        key: &Key,
        wanted: Wanted,
        when: If<'_>,
    ) -> Result<Answer, RequestError> {
        let answer = match wanted {
            Wanted::Last(nbytes) if !self.has_suffixes => {
                let meta = self.head(key, when)?;
                if meta.size == 0 {
                    return Ok(Answer { meta, offset: 0, bytes: Vec::new() });
                }
                let start = meta.size.saturating_sub(nbytes);
                let tag = meta.e_tag.clone();
                let when = tag.as_deref().map_or(If::Any, If::Is);
                self.fetch(key, Wanted::Range(start, meta.size), when)
            }
            wanted => self.fetch(key, wanted, when),
        };
        match answer {
            // Of an empty object no range can be asked for.
            Err(RequestError::BehindEnd) => {
                let meta = self.head(key, when)?;
                match meta.size {
                    0 => Ok(Answer { meta, offset: 0, bytes: Vec::new() }),
                    _ => Err(RequestError::BehindEnd),
                }
            }
            answer => answer,
        }
    }

    /// Returns what the store says of an object.
    pub(super) fn head(&self, key: &Key, when: If<'_>) -> Result<ObjectMeta, RequestError> {
        let options = GetOptions { head: true, ..conditional(when) };
        let received = Received::default();
        let found = self.wait(&received, async {
            let _permit = self.permit(&received).await;
            Ok(self.first_answer(key, &options).await?.meta)
        });
        match found {
            // Only an answer with a body says why.
            Err(RequestError::Denied(_)) if self.forbidden_is_absent => {
                Ok(self.fetch(key, Wanted::First(1), when)?.meta)
            }
            found => found,
        }
    }

    /// Waits until a request may be sent.
    pub(super) async fn permit(&self, received: &Received) -> Permit<'_> {
        let permit = self.limits.acquire().await;
        received.sent();
        permit
    }

    /// Sends a request for an object. One whose answer is late is sent once more, on another
    /// connection, and the first answer counts; unless the store has said that there are too many.
    pub(super) async fn first_answer(
        &self,
        key: &Key,
        options: &GetOptions,
    ) -> Result<GetResult, RequestError> {
        let ask = || self.objects.get_opts(key, options.clone());
        let first = ask();
        tokio::pin!(first);
        let result = match tokio::time::timeout(self.latency.late_after(), &mut first).await {
            Ok(result) => result,
            Err(_) if self.limits.is_refused(Instant::now()) => first.await,
            Err(_) => {
                self.stats.remote.sent_twice.count();
                tokio::select! {
                    result = &mut first => result,
                    result = ask() => result,
                }
            }
        };
        result.map_err(|error| {
            self.explained(RequestError::from_store(error, |text| self.is_absence(text)))
        })
    }

    /// Returns whether a refusal means that there is no such object. Whoever finds nothing at all may want to know of
    /// it.
    fn is_absence(&self, text: &str) -> bool {
        let is_absent = (self.is_absent)(text);
        if is_absent {
            let unsigned =
                if self.lacks_credentials { ", as no credentials were found" } else { "" };
            let said =
                format!("it was refused{unsigned}, which absent=403 takes for absence: {text}");
            *self.failure.lock() = Some(said);
        }
        is_absent
    }

    /// Says of a refusal that the request was not signed, if that may be why. Who takes refusals for absence
    /// has data in mind that is open to all.
    fn explained(&self, error: RequestError) -> RequestError {
        match error {
            RequestError::Denied(text) | RequestError::NotListed(text)
                if self.lacks_credentials && !self.forbidden_is_absent =>
            {
                RequestError::Unsigned(text)
            }
            error => error,
        }
    }

    /// Lists a page of the keys that begin with `prefix`, and of the directories among them. `None`
    /// as the token asks for the first page.
    pub(super) fn list(
        &self,
        prefix: &str,
        token: Option<String>,
        most: Option<usize>,
    ) -> Result<PaginatedListResult, RequestError> {
        self.list_page(prefix, token, most, Some("/"))
    }

    /// Lists the first page of all keys that begin with `prefix`, however deep.
    pub(super) fn list_deep(&self, prefix: &str) -> Result<PaginatedListResult, RequestError> {
        self.list_page(prefix, None, None, None)
    }

    fn list_page(
        &self,
        prefix: &str,
        token: Option<String>,
        most: Option<usize>,
        delimiter: Option<&'static str>,
    ) -> Result<PaginatedListResult, RequestError> {
        let Some(pages) = &self.pages else {
            return Err(RequestError::Other("a web server lists no directories".to_owned()));
        };
        self.stats.remote.lists.count();
        let options = PaginatedListOptions {
            delimiter: delimiter.map(Into::into),
            max_keys: most,
            page_token: token,
            ..PaginatedListOptions::default()
        };
        let prefix = if prefix.is_empty() { None } else { Some(prefix) };
        let received = Received::default();
        let page = self.wait(&received, async {
            let _permit = self.permit(&received).await;
            let page = pages.list_paginated(prefix, options).await;
            page.map_err(|error| self.explained(RequestError::from_listing(error)))
        })?;
        match page.page_token.as_ref().map_or(0, String::len) {
            0..=LONGEST_TOKEN => Ok(page),
            longer => Err(RequestError::Wrong(format!("a token of {longer} bytes"))),
        }
    }

    /// Sends a request that no thread waits for, and passes on what came of it.
    pub(super) fn send(
        self: &Arc<Self>,
        key: Key,
        wanted: Wanted,
        tag: Option<String>,
        done: impl FnOnce(Result<Answer, RequestError>) + Send + 'static,
    ) {
        let client = Arc::clone(self);
        self.runtime.spawn(async move {
            let when = tag.as_deref().map_or(If::Any, If::Is);
            let received = Received::default();
            let result =
                client.patience.in_time(&received, client.request(&key, wanted, when, &received));
            let result = result.await;
            client.note_failure(&result);
            done(result);
        });
    }

    /// Returns whether the last bytes of an object can be asked for without its length.
    pub(super) fn has_suffixes(&self) -> bool {
        self.has_suffixes
    }

    /// Sends a request for a part of an object, and waits for it.
    fn fetch(&self, key: &Key, wanted: Wanted, when: If<'_>) -> Result<Answer, RequestError> {
        let received = Received::default();
        self.wait(&received, self.request(key, wanted, when, &received))
    }

    /// Sends a request for a part of an object, again as often as the answer is cut off. Where objects have
    /// tags, the library has gone on after what had come.
    async fn request(
        &self,
        key: &Key,
        wanted: Wanted,
        when: If<'_>,
        received: &Received,
    ) -> Result<Answer, RequestError> {
        let mut pause = PAUSES.0;
        loop {
            match self.attempt(key, wanted, when, received).await {
                Err(RequestError::CutOff(why)) => {
                    self.stats.remote.lost.count();
                    self.patience.note_lost(why);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
                answer => return answer,
            }
        }
    }

    async fn attempt(
        &self,
        key: &Key,
        wanted: Wanted,
        when: If<'_>,
        received: &Received,
    ) -> Result<Answer, RequestError> {
        let range = match wanted {
            Wanted::First(nbytes) => GetRange::Bounded(0..nbytes),
            Wanted::Last(nbytes) => GetRange::Suffix(nbytes),
            Wanted::Range(from, to) => GetRange::Bounded(from..to),
        };
        let options = GetOptions { range: Some(range), ..conditional(when) };
        let _permit = self.permit(received).await;
        let result = self.first_answer(key, &options).await?;
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let expected = range.end.saturating_sub(range.start);
        // Listings of some stores spell tags without quotation marks.
        let has_tag = |tag: &str| meta.e_tag.as_deref().map(bare) == Some(bare(tag));
        match when {
            // The server has ignored the condition.
            If::Is(tag) if !has_tag(tag) => return Err(RequestError::Replaced),
            If::IsNot(tag) if has_tag(tag) => return Err(RequestError::Unchanged),
            _ => (),
        }
        if let Wanted::Range(from, to) = wanted
            && range != (from..to)
        {
            // It was longer when it was found.
            if range == (from..meta.size) && meta.size < to {
                return Err(RequestError::Replaced);
            }
            return Err(RequestError::Wrong(format!("{} bytes from {}", expected, range.start)));
        }
        if expected > LONGEST {
            return Err(RequestError::Wrong(format!("{expected} bytes")));
        }
        let mut bytes = Vec::new();
        let length = usize::try_from(expected).map_err(|_| RequestError::NoMemory)?;
        bytes.try_reserve_exact(length).map_err(|_| RequestError::NoMemory)?;
        let mut stream = result.into_stream();
        while let Some(part) = stream.next().await {
            let part = part.map_err(RequestError::of_body)?;
            if bytes.len() + part.len() > length {
                return Err(RequestError::Wrong(format!("more than the {length} bytes announced")));
            }
            bytes.extend_from_slice(&part);
            received.note(bytes.len() as u64);
            self.limits.progressed();
        }
        if bytes.len() < length {
            let text = format!("{} of the {length} bytes announced", bytes.len());
            return Err(RequestError::CutOff(text));
        }
        self.stats.remote.bytes.add(expected);
        Ok(Answer { meta, offset: range.start, bytes })
    }

    /// Waits for a request, at most as long as it may take, and as the process lives that needs it.
    pub(super) fn wait<T>(
        &self,
        received: &Received,
        request: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let result = self.runtime.block_on(async {
            tokio::select! {
                result = self.patience.in_time(received, request) => result,
                () = requester_ends() => Err(RequestError::Interrupted),
            }
        });
        self.note_failure(&result);
        result
    }

    fn note_failure<T>(&self, result: &Result<T, RequestError>) {
        if let Err(error) = result {
            self.note_error(error);
        }
    }

    /// Remembers what was wrong with a request, if it says something about the store.
    pub(super) fn note_error(&self, error: &RequestError) {
        if error.is_failure() {
            self.stats.remote.failed.count();
            *self.failure.lock() = Some(error.to_string());
        }
    }

    /// Returns which failures were reported.
    pub(super) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Returns what was wrong with the last request that has failed.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }
}

/// Returns what tells whether a refusal means that there is no such object. A store that checks
/// credentials says by a code whether it is that.
fn is_absent(options: &RemoteOptions, protocol: Protocol) -> fn(&str) -> bool {
    match (options.forbidden_is_absent, protocol) {
        (false, _) => |_| false,
        (true, Protocol::Web) => is_forbidden_on_web,
        (true, _) => is_forbidden,
    }
}

/// Returns when the process that waits for this thread is to end.
pub(super) async fn requester_ends() {
    while !requester::is_ending() {
        tokio::time::sleep(requester::LOOK).await;
    }
}

fn conditional(when: If<'_>) -> GetOptions {
    match when {
        If::Any => GetOptions::default(),
        If::Is(tag) => GetOptions { if_match: Some(tag.to_owned()), ..GetOptions::default() },
        If::IsNot(tag) => {
            GetOptions { if_none_match: Some(tag.to_owned()), ..GetOptions::default() }
        }
    }
}
