//! A store on the network as a [`Storage`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use object_store::ObjectMeta;
use object_store::path::Path as Key;
use parking_lot::Mutex;
use rustix::process::{getegid, geteuid};

use super::attributes::{Object, Owner, bare, directory};
use super::client::{Answer, Client, If, Wanted};
use super::disk_cache::{CachedObject, DiskCache};
use super::error::RequestError;
use super::file::{ObjectVersion, RemoteDirectory, RemoteFile};
use super::names::{Listing, Name, Names};
use super::openings::{Finish, Openings};
use super::options::{RemoteOptions, SetupError};
use super::url::SourceUrl;
use super::windows::Windows;
use crate::stats::Stats;
use crate::store::storage::{
    DirItem, Expected, FileKind, Stat, Storage, StorageFile, Version, Visit,
};

/// Names in a directory up to which a listing is kept as a whole.
const KEPT_NAMES: usize = 20_000;

/// Longest part of an object that is requested before it is opened, in bytes.
const LONGEST_OPENING: u64 = 1 << 20;

/// Longest time for which such a part can be used.
const OPENING_TRUSTED: Duration = Duration::from_secs(10);

/// Names by which it is found out whether a web server has a directory: it lists none.
const NODE_DOCUMENTS: [&str; 3] = ["zarr.json", ".zarray", ".zgroup"];

/// Objects of a store below one key, as files.
pub struct RemoteStorage {
    client: Arc<Client>,
    windows: Arc<Windows>,
    names: Arc<Names>,
    openings: Openings,
    /// What was fetched is kept there, if it is.
    cache: Option<Arc<DiskCache>>,
    /// What the store is called in the cache.
    store: String,
    /// Key of the root, and a slash unless it is empty.
    root: String,
    owner: Owner,
    stats: Arc<Stats>,
}

impl RemoteStorage {
    /// Sets up the connection to a source; sends no request.
    pub fn new(
        url: &SourceUrl,
        options: &RemoteOptions,
        stats: Arc<Stats>,
    ) -> Result<Self, SetupError> {
        let mut hasher = DefaultHasher::new();
        url.to_string().hash(&mut hasher);
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let owner = Owner { uid, gid, store: hasher.finish(), since: SystemTime::now().into() };
        let root = if url.root.is_empty() { String::new() } else { format!("{}/", url.root) };
        let cache = |directory: &PathBuf| {
            DiskCache::open(directory, options.cache_limit, Arc::clone(&stats))
        };
        let client = Arc::new(Client::new(url, options, Arc::clone(&stats))?);
        Ok(Self {
            cache: options.cache_dir.as_ref().map(cache).transpose()?,
            store: format!("{} {}", client.place(), url.base),
            client,
            windows: Arc::new(Windows::new(options.window_bytes)),
            // What is made of an answer, such as an index, is believed for the other half.
            names: Arc::new(Names::new(options.trusted / 2)),
            openings: Openings::new(options.trusted.min(OPENING_TRUSTED)),
            root,
            owner,
            stats,
        })
    }

    /// Returns the key of the object at a path. Nothing is at a path that no key can be.
    fn key(&self, path: &Path) -> io::Result<Key> {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let path = path.to_str().ok_or_else(absent)?;
        Key::parse(format!("{}{path}", self.root)).map_err(|_| absent())
    }

    /// Returns what all keys below a directory begin with.
    fn prefix(&self, directory: &Path) -> io::Result<String> {
        if directory.as_os_str().is_empty() {
            return Ok(self.root.clone());
        }
        Ok(format!("{}/", self.key(directory)?))
    }

    /// Turns the error of a request into one of reading a file, and reports what says something
    /// about the store.
    fn failed(key: &Key, error: &RequestError) -> io::Error {
        if error.is_failure() {
            log::error!("{key}: {error}");
        }
        error.to_io()
    }

    /// Returns what is at a path. `None` if there is nothing.
    fn find(&self, path: &Path) -> io::Result<Option<Name>> {
        if path.as_os_str().is_empty() {
            return Ok(Some(Name::Directory));
        }
        if let Some(known) = self.names.known(path) {
            return Ok(known);
        }
        if !self.client.can_list() {
            return self.find_on_web(path);
        }
        // That of the root first: it often answers for everything below.
        let above = path.parent().unwrap_or(Path::new(""));
        for directory in [Path::new(""), above] {
            if self.names.listing(directory).is_none() && !self.list_below(directory)? {
                self.first_page(directory)?;
            }
            if let Some(known) = self.names.known(path) {
                return Ok(known);
            }
        }
        let at = Instant::now();
        let found = match self.is_directory(path)? {
            true => Some(Name::Directory),
            false => self.head(path)?.map(Name::Object),
        };
        self.names.note(path, at, found.clone());
        Ok(found)
    }

    /// Finds out what a web server has at a path. It is a directory if there is a document of a node
    /// in it.
    fn find_on_web(&self, path: &Path) -> io::Result<Option<Name>> {
        let at = Instant::now();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_document = name.starts_with('.') || name.ends_with(".json");
        let mut documents = NODE_DOCUMENTS.iter().map(|document| path.join(document));
        let is_directory = !is_document
            && documents.try_fold(false, |found, path| {
                Ok::<_, io::Error>(found || self.head(&path)?.is_some())
            })?;
        let found = match is_directory {
            true => Some(Name::Directory),
            false => self.head(path)?.map(Name::Object),
        };
        self.names.note(path, at, found.clone());
        Ok(found)
    }

    fn head(&self, path: &Path) -> io::Result<Option<Object>> {
        let key = self.key(path)?;
        match self.client.head(&key, If::Any) {
            Ok(meta) => Ok(Some(Object::of(&meta))),
            Err(RequestError::Absent) => Ok(None),
            Err(error) => Err(Self::failed(&key, &error)),
        }
    }

    /// Returns whether there is a key below a path.
    fn is_directory(&self, path: &Path) -> io::Result<bool> {
        let prefix = self.prefix(path)?;
        let page = self.client.list(&prefix, None, Some(1));
        let page = page.map_err(|error| Self::failed(&Key::from(prefix), &error))?.result;
        Ok(!page.objects.is_empty() || !page.common_prefixes.is_empty())
    }

    /// Lists all that is below a directory by one request, if there is not too much of it. Returns
    /// whether that was so.
    fn list_below(&self, path: &Path) -> io::Result<bool> {
        if self.names.listing(path).is_some() || self.names.is_large(path) {
            return Ok(false);
        }
        let (prefix, at) = (self.prefix(path)?, Instant::now());
        let page = self.client.list_deep(&prefix);
        let page = page.map_err(|error| Self::failed(&Key::from(prefix.as_str()), &error))?;
        let directories = below(path, &prefix, &page.result.objects);
        // An empty object may stand for a directory, as consoles make one: its key ends with a slash,
        // which only a listing of its directory tells.
        let is_empty = |name: &Name| matches!(name, Name::Object(object) if object.nbytes == 0);
        let has_more = page.page_token.is_some_and(|token| !token.is_empty());
        if has_more || directories.values().flat_map(BTreeMap::values).any(is_empty) {
            self.names.note_large(path);
            return Ok(false);
        }
        for (directory, names) in directories {
            let (is_complete, pages) = (true, Vec::new());
            let names = names.into_iter().collect();
            self.names.note_listing(&directory, Listing { at, names, is_complete, pages });
        }
        Ok(true)
    }

    /// Lists the first names of a directory.
    fn first_page(&self, path: &Path) -> io::Result<Arc<Listing>> {
        let at = Instant::now();
        let (names, next) = self.page(path, None)?;
        let (is_complete, pages) = (next.is_none(), Vec::new());
        Ok(self.names.note_listing(path, Listing { at, names, is_complete, pages }))
    }

    /// Returns a page of the names in a directory, sorted, and what to ask for the next page with.
    #[allow(clippy::type_complexity, reason = "names and a token")]
    fn page(
        &self,
        path: &Path,
        token: Option<String>,
    ) -> io::Result<(Vec<(String, Name)>, Option<String>)> {
        let prefix = self.prefix(path)?;
        let page = self.client.list(&prefix, token, None);
        let page = page.map_err(|error| Self::failed(&Key::from(prefix.as_str()), &error))?;
        let name = |key: &Key| {
            let name = key.as_ref().strip_prefix(prefix.as_str())?.to_owned();
            (!name.is_empty() && !name.contains('/')).then_some(name)
        };
        let directories = page.result.common_prefixes.iter();
        let directories = directories.filter_map(|key| Some((name(key)?, Name::Directory)));
        let objects = page.result.objects.iter();
        let objects = objects
            .filter_map(|meta| Some((name(&meta.location)?, Name::Object(Object::of(meta)))));
        let mut names: Vec<_> = directories.chain(objects).collect();
        // The sort is stable: a directory comes before an object of the same name, and hides it.
        names.sort_by(|(one, _), (other, _)| one.cmp(other));
        names.dedup_by(|(one, _), (other, _)| one == other);
        Ok((names, page.page_token.filter(|token| !token.is_empty())))
    }

    /// Visits the names of a directory page by page, and keeps what it finds.
    fn list_pages(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        let at = Instant::now();
        let known = self.names.listing(path);
        let known = known.map(|listing| listing.pages.clone()).unwrap_or_default();
        let start = known.iter().rev().find(|(number, _)| *number <= from).cloned();
        let (mut number, mut token) = match start {
            Some((number, token)) => (number, Some(token)),
            None => (0, None),
        };
        let (is_from_start, mut first) = (token.is_none(), None);
        let (mut kept, mut pages): (Vec<(String, Name)>, _) = (Vec::new(), known);
        loop {
            let (names, next) = self.page(path, token)?;
            if number == 0 && names.is_empty() && next.is_none() && !path.as_os_str().is_empty() {
                self.names.note(path, at, None);
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            first.get_or_insert_with(|| names.clone());
            if is_from_start && kept.len() + names.len() <= KEPT_NAMES {
                kept.extend(names.iter().cloned());
            } else {
                kept.clear();
            }
            let mut goes_on = true;
            for (name, what) in &names {
                number += 1;
                goes_on =
                    goes_on && (number <= from || show(visit, name, what, number).is_continue());
            }
            token = next;
            match &token {
                Some(token) if pages.last().is_none_or(|(last, _)| *last < number) => {
                    pages.push((number, token.clone()));
                }
                _ => (),
            }
            if token.is_none() || !goes_on {
                break;
            }
        }
        if is_from_start {
            let is_complete = token.is_none() && number == kept.len() as u64;
            let names = if is_complete { kept } else { first.unwrap_or_default() };
            self.names.note_listing(path, Listing { at, names, is_complete, pages });
        }
        Ok(())
    }

    /// Returns what a version of an object is called in the cache; `None` if it is not kept.
    fn cached(&self, key: &Key, object: &Object) -> Option<CachedObject> {
        self.cache.as_ref()?;
        let tag = bare(object.strong_tag()?);
        Some(CachedObject::new(&self.store, key.as_ref(), tag, object.nbytes))
    }

    /// Returns the part of an object that is expected to be read, and its offset, if it is in the
    /// cache on disk. Finds out first which version the object has: a listing tells that of many.
    fn expected_in_cache(
        &self,
        path: &Path,
        key: &Key,
        expected: Expected,
    ) -> io::Result<Option<(Object, u64, Vec<u8>)>> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let Some(Name::Object(object)) = self.find(path)? else { return Ok(None) };
        let (from, to) = match expected {
            Expected::First(nbytes) => (0, nbytes.min(object.nbytes)),
            Expected::Last(nbytes) => (object.nbytes.saturating_sub(nbytes), object.nbytes),
        };
        let found = self.cached(key, &object).and_then(|it| cache.get(&it, from, to));
        Ok(found.map(|bytes| (object, from, bytes)))
    }

    /// Returns how the part of an object is asked for that is expected to be read, and the entity tag on
    /// which that depends. Where the last bytes cannot be asked for without the length of the object, a
    /// listing may have it.
    fn asked(&self, path: &Path, expected: Expected) -> (Wanted, Option<String>) {
        if let (Expected::Last(nbytes), false) = (expected, self.client.has_suffixes())
            && let Some(Some(Name::Object(object))) = self.names.known(path)
            && let Some(tag) = object.strong_tag().filter(|_| object.nbytes > 0)
        {
            let from = object.nbytes.saturating_sub(nbytes);
            return (Wanted::Range(from, object.nbytes), Some(tag.to_owned()));
        }
        (wanted(expected), None)
    }

    /// Reads the part of an object that is expected to be read.
    fn get(&self, path: &Path, key: &Key, expected: Expected) -> Result<Answer, RequestError> {
        let (asked, tag) = self.asked(path, expected);
        if let Some(tag) = tag {
            match self.client.get(key, asked, If::Is(&tag)) {
                // The listing is old.
                Err(RequestError::Replaced) => self.names.distrust(path),
                answer => return answer,
            }
        }
        self.client.get(key, wanted(expected), If::Any)
    }

    fn file(
        &self,
        path: &Path,
        key: Key,
        object: Object,
        first: Option<(u64, Arc<Vec<u8>>)>,
    ) -> Arc<dyn StorageFile> {
        self.stats.source.open.count();
        let cached = self.cached(&key, &object);
        Arc::new(RemoteFile {
            windows: Arc::clone(&self.windows),
            stats: Arc::clone(&self.stats),
            owner: self.owner,
            version: Arc::new(ObjectVersion {
                client: Arc::clone(&self.client),
                cache: self.cache.clone().zip(cached),
                names: Arc::clone(&self.names),
                path: path.to_owned(),
                key,
                object,
                replaced: AtomicBool::new(false),
            }),
            first: Mutex::new(first),
        })
    }
}

/// Returns the names in a directory and in all directories below it, sorted, from the keys of all
/// objects there. A directory hides an object of its name.
fn below(
    top: &Path,
    prefix: &str,
    objects: &[ObjectMeta],
) -> BTreeMap<PathBuf, BTreeMap<String, Name>> {
    let mut found = BTreeMap::from([(top.to_owned(), BTreeMap::new())]);
    for meta in objects {
        let Some(key) = meta.location.as_ref().strip_prefix(prefix) else { continue };
        let mut directory = top.to_owned();
        let mut parts = key.split('/').peekable();
        while let Some(name) = parts.next().filter(|name| !name.is_empty()) {
            let names = found.entry(directory.clone()).or_default();
            if parts.peek().is_some() {
                names.insert(name.to_owned(), Name::Directory);
                directory.push(name);
            } else {
                names.entry(name.to_owned()).or_insert_with(|| Name::Object(Object::of(meta)));
            }
        }
    }
    found
}

fn wanted(expected: Expected) -> Wanted {
    match expected {
        Expected::First(nbytes) => Wanted::First(nbytes),
        Expected::Last(nbytes) => Wanted::Last(nbytes),
    }
}

fn show(visit: &mut Visit<'_>, name: &str, what: &Name, next: u64) -> ControlFlow<()> {
    let kind = match what {
        Name::Object(_) => FileKind::File,
        Name::Directory => FileKind::Directory,
    };
    visit(DirItem { name: OsStr::new(name), kind: Some(kind), next })
}

impl Storage for RemoteStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        match self.find(path)? {
            Some(Name::Object(object)) => Ok(self.file(path, self.key(path)?, object, None)),
            Some(Name::Directory) => {
                Ok(Arc::new(RemoteDirectory(directory(&self.prefix(path)?, self.owner))))
            }
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn open_expecting(&self, path: &Path, expected: Expected) -> io::Result<Arc<dyn StorageFile>> {
        match self.names.known(path) {
            Some(None) => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
            Some(Some(Name::Directory)) => return self.open(path),
            _ => (),
        }
        let key = self.key(path)?;
        if let Some((object, offset, bytes)) = self.expected_in_cache(path, &key, expected)? {
            return Ok(self.file(path, key, object, Some((offset, Arc::new(bytes)))));
        }
        let (at, answer) = match self.openings.take(path) {
            Some((at, answer)) => (at, Ok(answer)),
            None => (Instant::now(), self.get(path, &key, expected)),
        };
        match answer {
            Ok(Answer { meta, offset, bytes }) => {
                let object = Object::of(&meta);
                self.names.note(path, at, Some(Name::Object(object.clone())));
                let bytes = Arc::new(bytes);
                if let Some((cache, cached)) = self.cache.as_ref().zip(self.cached(&key, &object)) {
                    cache.put(&cached, offset, &bytes);
                }
                Ok(self.file(path, key, object, Some((offset, bytes))))
            }
            Err(error) => {
                if let RequestError::Absent = error {
                    self.names.note(path, at, None);
                }
                Err(Self::failed(&key, &error))
            }
        }
    }

    fn announce(&self, path: &Path, expected: Expected) -> bool {
        let (Expected::First(nbytes) | Expected::Last(nbytes)) = expected;
        if matches!(self.names.known(path), Some(None | Some(Name::Directory))) {
            return true;
        }
        let (wanted, tag) = self.asked(path, expected);
        let is_possible = self.client.has_suffixes() || !matches!(wanted, Wanted::Last(_));
        if nbytes > LONGEST_OPENING || !is_possible {
            return false;
        }
        let Ok(key) = self.key(path) else { return true };
        if self.cache.is_some() && self.client.can_list() {
            // Which version it has is not found out here: nothing is waited for.
            let is_known = self.names.known(path).is_some();
            if !is_known || matches!(self.expected_in_cache(path, &key, expected), Ok(Some(_))) {
                return is_known;
            }
        }
        let opening = match self.openings.begin(path) {
            Ok(opening) => opening,
            Err(is_answered) => return is_answered,
        };
        let (names, path, at) = (Arc::clone(&self.names), path.to_owned(), opening.at);
        let finish = Finish(opening);
        self.client.send(key, wanted, tag, move |answer| {
            if let Err(RequestError::Absent) = &answer {
                names.note(&path, at, None);
            }
            // Who opens the object asks for it again, and gets the error.
            finish.with(answer.ok());
        });
        false
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.stats.source.stat.count();
        match self.find(path)? {
            Some(Name::Object(object)) => Ok(object.stat(&self.key(path)?, self.owner)),
            Some(Name::Directory) => Ok(directory(&self.prefix(path)?, self.owner)),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn has_version(&self, path: &Path, version: &Version) -> bool {
        let Ok(key) = self.key(path) else { return false };
        let is_it = |object: &Object| object.stat(&key, self.owner).version() == *version;
        if let Some(known) = self.names.known(path) {
            return matches!(known, Some(Name::Object(object)) if is_it(&object));
        }
        let at = Instant::now();
        let last = self.names.last(path).filter(is_it);
        let when =
            last.as_ref().and_then(|object| object.tag.as_deref()).map_or(If::Any, If::IsNot);
        let now = match self.client.head(&key, when) {
            Ok(meta) => Some(Object::of(&meta)),
            Err(RequestError::Unchanged) => last,
            Err(RequestError::Absent) => None,
            Err(error) => {
                Self::failed(&key, &error);
                return false;
            }
        };
        let is_same = now.as_ref().is_some_and(is_it);
        self.names.note(path, at, now.map(Name::Object));
        is_same
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        self.stats.source.list.count();
        if !self.client.can_list() {
            return self.list_documents(path, from, visit);
        }
        if from == 0 {
            let _ = self.list_below(path)?;
        }
        let Some(listing) = self.names.listing(path).filter(|listing| listing.is_complete) else {
            return self.list_pages(path, from, visit);
        };
        if listing.names.is_empty() && !path.as_os_str().is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        for (next, (name, what)) in (1..).zip(&listing.names) {
            if next > from && show(visit, name, what, next).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn can_list(&self) -> bool {
        self.client.can_list()
    }

    fn pins_versions(&self) -> bool {
        true
    }

    fn failure(&self) -> Option<String> {
        self.client.failure()
    }
}

impl RemoteStorage {
    /// Visits the documents in a directory of a web server, which does not tell what else is there.
    fn list_documents(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        let mut next = 0;
        for name in NODE_DOCUMENTS {
            let Some(what) = self.find(&path.join(name))? else { continue };
            next += 1;
            if next > from && show(visit, name, &what, next).is_break() {
                break;
            }
        }
        Ok(())
    }
}
