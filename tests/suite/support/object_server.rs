//! Object store on loopback that speaks as much of S3 as shardfs needs, and misbehaves on command.
//!
//! ```text
//! GET  /BUCKET?list-type=2&prefix=&delimiter=&max-keys=&continuation-token=     a page of names
//! GET  /BUCKET/KEY    Range, If-Match, If-None-Match                            bytes of an object
//! HEAD /BUCKET/KEY    the same conditions                                       what is known of it
//! PUT  /BUCKET/KEY    If-Match, If-None-Match: *, x-amz-meta-shardfs-write      another version
//! DELETE /BUCKET/KEY                                                              no object
//! ```
//!
//! It assembles objects of parts: see [`uploads`].
//!
//! As Google's it has generations: x-goog-generation, x-goog-if-generation-match, x-goog-meta-shardfs-write.
//!
//! Without a bucket in between it is a web server: `/PATH`, which lists nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[path = "object_uploads.rs"]
mod uploads;

/// Bucket of all objects.
pub(crate) const BUCKET: &str = "bucket";

/// Headers by which the write is stored that an object comes from, each in another protocol.
const WRITE: [&str; 2] = ["x-amz-meta-shardfs-write", "x-goog-meta-shardfs-write"];

/// What is done instead of answering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This status, and perhaps after how many seconds to ask again.
    Status(u16, Option<u64>),
    /// 403, with this code as the reason.
    Refused(&'static str),
    /// The connection is closed without an answer.
    NoAnswer,
    /// The connection is closed after this number of bytes of the body.
    CutOff(usize),
    /// The answer comes late.
    Late(Duration),
    /// Never any answer, with the connection open.
    Silence,
    /// All of the object, whatever range was asked for.
    WholeObject,
    /// As many bytes as asked for, from another place.
    OtherRange,
    /// The condition of the request is ignored.
    NoConditions,
    /// The condition of the request counts if it holds some time before the object is put.
    EarlyConditions,
    /// What is said of the object is not kept.
    NoMetadata,
    /// A page of a listing without names, after which there is another one.
    EmptyPage,
    /// The body comes in ten parts, with this pause before each.
    Slow(Duration),
    /// This text instead of a listing.
    NoListing(&'static str),
    /// It is done, and the connection is closed without an answer.
    Done,
    /// An object is not assembled, though the status says that all is well.
    ErrorInside,
}

/// When objects were put.
pub(crate) const MODIFIED: &str = "Wed, 25 Nov 2026 10:00:00 GMT";

/// Object of the store.
#[derive(Debug, Clone)]
struct Object {
    /// Bytes that are zero, before all others.
    zeros: usize,
    bytes: Arc<Vec<u8>>,
    tag: String,
    /// The write that it comes from, as its writer calls it.
    write: Option<String>,
    modified: &'static str,
}

impl Object {
    fn len(&self) -> usize {
        self.zeros + self.bytes.len()
    }

    /// Number of the version, as Google's store has one.
    fn generation(&self) -> &str {
        generation(&self.tag)
    }

    fn range(&self, from: usize, to: usize) -> Vec<u8> {
        let tail = |at: usize| at.saturating_sub(self.zeros);
        let mut bytes = vec![0; to.min(self.zeros).saturating_sub(from)];
        bytes.extend_from_slice(&self.bytes[tail(from)..tail(to)]);
        bytes
    }
}

/// Returns the number in an entity tag.
fn generation(tag: &str) -> &str {
    tag.trim_matches('"').trim_start_matches("tag")
}

/// Request that was answered: method, key or query, range.
pub(crate) type Asked = (String, String, String);

type Chooser = Box<dyn FnMut(&Asked) -> Option<Fault> + Send>;

#[derive(Default)]
struct State {
    objects: Mutex<BTreeMap<String, Object>>,
    uploads: Mutex<BTreeMap<String, uploads::Upload>>,
    asked: Mutex<Vec<Asked>>,
    faults: Mutex<Option<Chooser>>,
    tags: AtomicU64,
    latency_ms: AtomicU64,
    page: AtomicU64,
    lists_bare_tags: AtomicBool,
    ended: AtomicBool,
}

impl State {
    /// Returns the number of the next version. No object has 0.
    fn next_tag(&self) -> u64 {
        self.tags.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A running server.
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<State>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        state.page.store(1000, Ordering::Relaxed);
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.ended.load(Ordering::Relaxed) {
                    break;
                }
                let state = Arc::clone(&shared);
                let Ok(stream) = stream else { continue };
                thread::spawn(move || serve(&state, &stream));
            }
        });
        Self { address, state }
    }

    /// Returns the address of the server.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stores an object; it gets another entity tag than any before.
    pub(crate) fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.put_sparse(key, 0, bytes);
    }

    /// Stores an object that begins with a number of zeros, which take no memory.
    pub(crate) fn put_sparse(&self, key: &str, zeros: usize, bytes: impl Into<Vec<u8>>) {
        let tag = self.state.next_tag();
        let (bytes, tag) = (Arc::new(bytes.into()), format!("\"tag{tag}\""));
        let object = Object { zeros, bytes, tag, write: None, modified: MODIFIED };
        self.state.objects.lock().unwrap().insert(key.to_owned(), object);
    }

    /// Says that an object was put at another time, as headers write it.
    pub(crate) fn set_modified(&self, key: &str, modified: &'static str) {
        self.state.objects.lock().unwrap().get_mut(key).unwrap().modified = modified;
    }

    pub(crate) fn remove(&self, key: &str) {
        self.state.objects.lock().unwrap().remove(key).unwrap();
    }

    /// Returns the keys of all objects.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.state.objects.lock().unwrap().keys().cloned().collect()
    }

    /// Returns the number of uploads that were neither completed nor given up.
    pub(crate) fn uploads(&self) -> usize {
        self.state.uploads.lock().unwrap().len()
    }

    /// Sets what goes wrong, request by request.
    pub(crate) fn fail(&self, choose: impl FnMut(&Asked) -> Option<Fault> + Send + 'static) {
        *self.state.faults.lock().unwrap() = Some(Box::new(choose));
    }

    /// Answers as it should from now on.
    pub(crate) fn behave(&self) {
        *self.state.faults.lock().unwrap() = None;
    }

    /// Sets how many names a page of a listing has.
    pub(crate) fn set_page(&self, names: u64) {
        self.state.page.store(names, Ordering::Relaxed);
    }

    /// Listings spell entity tags without quotation marks from now on.
    pub(crate) fn list_bare_tags(&self) {
        self.state.lists_bare_tags.store(true, Ordering::Relaxed);
    }

    /// Sets how long every answer takes.
    pub(crate) fn set_latency(&self, latency: Duration) {
        let latency = u64::try_from(latency.as_millis()).unwrap();
        self.state.latency_ms.store(latency, Ordering::Relaxed);
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.asked.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // The listener waits for a connection.
        drop(TcpStream::connect(self.address));
    }
}

/// A request as it was sent.
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Answers the requests of a connection, one after the other.
fn serve(state: &State, stream: &TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read_request(&mut reader, stream) {
        if !answer(state, &request, stream) || state.ended.load(Ordering::Relaxed) {
            break;
        }
    }
    drop(stream.shutdown(Shutdown::Both));
}

fn read_request(reader: &mut impl BufRead, mut stream: &TcpStream) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if headers.get("expect").is_some_and(|expected| expected == "100-continue") {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query =
        pairs.map(|(name, value)| (name.to_owned(), decoded(&value.replace('+', " ")))).collect();
    Some(Request { method, path: decoded(path), query, headers, body })
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8().unwrap().into_owned()
}

/// Answers a request; returns whether the connection can be used again.
fn answer(state: &State, request: &Request, stream: &TcpStream) -> bool {
    let path = request.path.trim_start_matches('/');
    let key = match path.split_once('/') {
        Some((BUCKET, key)) => key,
        _ if path == BUCKET => "",
        _ => path,
    };
    let is_listing = path == BUCKET || request.query.contains_key("list-type");
    let range = ["range", "x-amz-copy-source-range"].map(|name| request.headers.get(name).cloned());
    let range = range.into_iter().flatten().next().unwrap_or_default();
    let what = if is_listing {
        format!("?{}", request.query.get("prefix").map_or("", String::as_str))
    } else {
        uploads::name(key, request).unwrap_or_else(|| key.to_owned())
    };
    let asked = (request.method.clone(), what, range.clone());
    state.asked.lock().unwrap().push(asked.clone());
    thread::sleep(Duration::from_millis(state.latency_ms.load(Ordering::Relaxed)));
    let fault = state.faults.lock().unwrap().as_mut().and_then(|choose| choose(&asked));
    match &fault {
        Some(Fault::Status(status, after)) => {
            let after = after.map_or(String::new(), |after| format!("Retry-After: {after}\r\n"));
            let body = "<Error><Code>Fault</Code></Error>";
            return send(stream, *status, &after, body.as_bytes(), None);
        }
        Some(Fault::Refused(code)) => {
            let body = format!("<Error><Code>{code}</Code></Error>");
            // An answer to HEAD has no body.
            let body = if request.method == "HEAD" { "" } else { &body };
            return send(stream, 403, "", body.as_bytes(), None);
        }
        Some(Fault::NoAnswer) => return false,
        Some(Fault::Late(wait)) => thread::sleep(*wait),
        Some(Fault::Silence) => {
            while !state.ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            return false;
        }
        _ => (),
    }
    if fault == Some(Fault::EmptyPage) {
        let next = request.query.get("continuation-token").map_or(0, String::len) % 7;
        let text = format!(
            "<ListBucketResult><NextContinuationToken>{}</NextContinuationToken>\
             <IsTruncated>true</IsTruncated></ListBucketResult>",
            "x".repeat(next + 1)
        );
        return send(stream, 200, "", text.as_bytes(), None);
    }
    if let (Some(Fault::NoListing(text)), true) = (&fault, is_listing) {
        return send(stream, 200, "", text.as_bytes(), None);
    }
    if is_listing {
        return send(stream, 200, "", listing(state, request).as_bytes(), None);
    }
    if let Some((status, head, body)) = uploads::answer(state, key, request, fault.as_ref()) {
        return fault != Some(Fault::Done) && send(stream, status, &head, body.as_bytes(), None);
    }
    if request.method == "PUT" {
        let (status, tag) = replace(state, key, request, fault.as_ref());
        let head = format!("ETag: {tag}\r\nx-goog-generation: {}\r\n", generation(&tag));
        return fault != Some(Fault::Done) && send(stream, status, &head, b"", None);
    }
    if request.method == "DELETE" {
        state.objects.lock().unwrap().remove(key);
        return send(stream, 204, "", b"", None);
    }
    let Some(object) = state.objects.lock().unwrap().get(key).cloned() else {
        return send(stream, 404, "", b"<Error><Code>NoSuchKey</Code></Error>", None);
    };
    let condition =
        |name: &str| request.headers.get(name).map(|tag| tag.trim_matches('"').to_owned());
    let tag = object.tag.trim_matches('"');
    if fault != Some(Fault::NoConditions) {
        if condition("if-match").is_some_and(|wanted| wanted != tag) {
            return send(stream, 412, "", b"", None);
        }
        if condition("if-none-match").is_some_and(|known| known == tag) {
            return send(stream, 304, "", b"", None);
        }
    }
    let size = object.len();
    let mut head = format!(
        "ETag: {}\r\nLast-Modified: {}\r\nAccept-Ranges: bytes\r\n\
         x-goog-generation: {}\r\n",
        object.tag,
        object.modified,
        object.generation()
    );
    if let Some(write) = &object.write {
        for name in WRITE {
            write!(head, "{name}: {write}\r\n").unwrap();
        }
    }
    let is_whole = range.is_empty() || fault == Some(Fault::WholeObject);
    let (status, from, to) = match (is_whole, bounds(&range, size)) {
        (true, _) => (200, 0, size),
        (false, None) => return send(stream, 416, "", b"", None),
        (false, Some((from, to))) => (206, from, to),
    };
    let (from, to) = match fault {
        Some(Fault::OtherRange) if from > 0 => (from - 1, to - 1),
        _ => (from, to),
    };
    if status == 206 {
        write!(head, "Content-Range: bytes {from}-{}/{size}\r\n", to - 1).unwrap();
    }
    let cut = match fault {
        Some(Fault::CutOff(length)) => Some(length),
        _ => None,
    };
    if request.method == "HEAD" {
        let text = format!("HTTP/1.1 {status} X\r\n{head}Content-Length: {size}\r\n\r\n");
        return { stream }.write_all(text.as_bytes()).is_ok();
    }
    let body = object.range(from, to);
    if let Some(Fault::Slow(pause)) = fault {
        let text = format!("HTTP/1.1 {status} X\r\n{head}Content-Length: {}\r\n\r\n", body.len());
        let mut parts = body.chunks(body.len().div_ceil(10).max(1));
        return { stream }.write_all(text.as_bytes()).is_ok()
            && parts.all(|part| {
                thread::sleep(pause);
                { stream }.write_all(part).is_ok()
            });
    }
    send(stream, status, &head, &body, cut)
}

/// Puts an object, if its condition holds. Returns the status and the new entity tag.
fn replace(state: &State, key: &str, request: &Request, fault: Option<&Fault>) -> (u16, String) {
    let refused = |objects: &BTreeMap<String, Object>| match fault {
        Some(Fault::NoConditions) => None,
        _ => refusal(objects, key, request),
    };
    let mut objects = state.objects.lock().unwrap();
    if let Some(status) = refused(&objects) {
        return (status, String::new());
    }
    if fault == Some(&Fault::EarlyConditions) {
        drop(objects);
        thread::sleep(Duration::from_millis(200));
        objects = state.objects.lock().unwrap();
    }
    let tag = format!("\"tag{}\"", state.next_tag());
    let write = WRITE.iter().find_map(|name| request.headers.get(*name).cloned());
    let write = write.filter(|_| fault != Some(&Fault::NoMetadata));
    let bytes = Arc::new(request.body.clone());
    let object = Object { zeros: 0, bytes, tag: tag.clone(), write, modified: MODIFIED };
    objects.insert(key.to_owned(), object);
    (200, tag)
}

/// Returns the status by which an object is not put, as the condition does not hold.
fn refusal(objects: &BTreeMap<String, Object>, key: &str, request: &Request) -> Option<u16> {
    let header = |name: &str| request.headers.get(name).cloned();
    if let Some(wanted) = header("x-goog-if-generation-match") {
        let now = objects.get(key).map_or("0", Object::generation);
        return (now != wanted).then_some(412);
    }
    let found = objects.get(key).map(|object| object.tag.trim_matches('"').to_owned());
    if header("if-none-match").is_some_and(|any| any == "*") && found.is_some() {
        return Some(412);
    }
    if let Some(wanted) = header("if-match")
        && found.as_deref() != Some(wanted.trim_matches('"'))
    {
        return Some(if found.is_some() { 412 } else { 404 });
    }
    None
}

/// Returns the bytes that a header asks for: `bytes=1-5`, `bytes=1-`, `bytes=-5`.
fn bounds(range: &str, size: usize) -> Option<(usize, usize)> {
    let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (from, to) = match (from.parse::<usize>(), to.parse::<usize>()) {
        (Ok(from), Ok(to)) => (from, (to + 1).min(size)),
        (Ok(from), Err(_)) => (from, size),
        (Err(_), Ok(length)) => (size.saturating_sub(length), size),
        (Err(_), Err(_)) => return None,
    };
    (from < to).then_some((from, to))
}

fn send(stream: &TcpStream, status: u16, head: &str, body: &[u8], cut: Option<usize>) -> bool {
    let text = format!("HTTP/1.1 {status} X\r\n{head}Content-Length: {}\r\n\r\n", body.len());
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(&body[..cut.unwrap_or(body.len()).min(body.len())]);
    { stream }.write_all(&bytes).is_ok() && cut.is_none()
}

/// Returns a page of the names below a prefix, in the form of ListObjectsV2.
fn listing(state: &State, request: &Request) -> String {
    let get = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let (prefix, token) = (get("prefix"), get("continuation-token"));
    let page = state.page.load(Ordering::Relaxed);
    let most = get("max-keys").parse().unwrap_or(page).min(page);
    let delimited = get("delimiter") == "/";
    let is_bare = state.lists_bare_tags.load(Ordering::Relaxed);
    let objects = state.objects.lock().unwrap();
    let mut names: BTreeMap<String, Option<&Object>> = BTreeMap::new();
    for (key, object) in objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        match key[prefix.len()..].find('/').filter(|_| delimited) {
            Some(at) => drop(names.insert(key[..=prefix.len() + at].to_owned(), None)),
            None => drop(names.insert(key.clone(), Some(object))),
        }
    }
    let later: Vec<_> = names.iter().filter(|(name, _)| **name > token).collect();
    let shown = &later[..later.len().min(usize::try_from(most).unwrap())];
    let mut text = String::from("<ListBucketResult>");
    for (name, object) in shown {
        match object {
            None => {
                write!(text, "<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>").unwrap();
            }
            Some(object) => write!(
                text,
                "<Contents><Key>{name}</Key><LastModified>2026-11-25T10:00:00.123Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                object.tag.replace('"', if is_bare { "" } else { "&quot;" }),
                object.len()
            )
            .unwrap(),
        }
    }
    if let Some((last, _)) = shown.last().filter(|_| shown.len() < later.len()) {
        write!(text, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
        text.push_str("<IsTruncated>true</IsTruncated>");
    }
    text + "</ListBucketResult>"
}
