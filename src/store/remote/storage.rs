//! A store on the network as a [`Storage`].

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use object_store::path::Path as Key;
use parking_lot::Mutex;
use rustix::process::{getegid, geteuid};

use super::attributes::{Object, Owner, bare, directory};
use super::client::{Answer, Client, If, Wanted};
use super::directories::{Directories, show};
use super::disk_cache::{CachedObject, DiskCache};
use super::error::RequestError;
use super::file::{ObjectVersion, RemoteDirectory, RemoteFile};
use super::named::NamedNodes;
use super::names::{Name, Names};
use super::objects::Objects;
use super::openings::{Finish, Openings};
use super::options::{RemoteOptions, SetupError};
use super::sent::SentObjects;
use super::unlisted;
use super::unstored::Unstored;
use super::url::SourceUrl;
use super::windows::Windows;
use super::writing_alone::Alone;
use crate::stats::Stats;
use crate::store::storage::{
    Expected, ObjectStorage, PosixStorage, Stat, Storage, StorageFile, Timestamp, Version, Visit,
};

/// Longest part of an object that is requested before it is opened, in bytes.
const LONGEST_OPENING: u64 = 1 << 20;

/// Longest time for which such a part can be used.
const OPENING_TRUSTED: Duration = Duration::from_secs(10);

/// Objects of a store below one key, as files.
pub struct RemoteStorage {
    pub(super) client: Arc<Client>,
    windows: Arc<Windows>,
    pub(super) names: Arc<Names>,
    openings: Arc<Openings>,
    /// Nodes that documents name. Where names can be listed, nothing is here.
    named: NamedNodes,
    /// What was fetched is kept there, if it is.
    cache: Option<Arc<DiskCache>>,
    /// What the store is called in the cache.
    store: String,
    pub(super) directories: Arc<Directories>,
    /// What is changed.
    pub(super) objects: Arc<Objects>,
    /// What was put last.
    pub(super) sent: SentObjects,
    /// What is here alone.
    pub(super) unstored: Unstored,
    /// Ends with the last storage of the place.
    alone: Arc<Alone>,
    pub(super) owner: Owner,
    /// Time for which an answer is believed.
    trusted: Duration,
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
        // What is made of an answer, such as an index, is believed for the other half.
        let trusted = options.trusted / 2;
        let names = Arc::new(Names::new(trusted));
        let directories = Arc::new(Directories {
            client: Arc::clone(&client),
            names: Arc::clone(&names),
            root,
            only: None,
        });
        let openings = Arc::new(Openings::new(trusted.min(OPENING_TRUSTED)));
        Ok(Self {
            objects: Arc::new(Objects::new(&directories, &openings)),
            sent: SentObjects::new(),
            unstored: Unstored::default(),
            alone: Arc::new(Alone(Arc::clone(&client))),
            cache: options.cache_dir.as_ref().map(cache).transpose()?,
            store: format!("{} {}", client.place(), url.base),
            client,
            windows: Arc::new(Windows::new(options.window_bytes)),
            names,
            openings,
            named: NamedNodes::new(trusted),
            directories,
            owner,
            trusted,
            stats,
        })
    }

    /// Returns a storage of the object alone that the source's URL names, and the object's name in it.
    /// `None` if there is no such object, only others below it, or nothing.
    ///
    /// # Errors
    /// It cannot be determined.
    pub fn only_object(&self) -> io::Result<Option<(Self, OsString)>> {
        let whole = self.directories.root.trim_end_matches('/');
        let (above, name) = whole.rsplit_once('/').unwrap_or(("", whole));
        if name.is_empty() {
            return Ok(None);
        }
        let root = if above.is_empty() { String::new() } else { format!("{above}/") };
        let object = self.of_root(root, Some(name.to_owned()));
        let found = object.find(Path::new(name))?;
        Ok(found.map(|_| (object, OsString::from(name))))
    }

    /// Returns a storage of the whole bucket, by the same connection.
    pub fn of_bucket(&self) -> Self {
        self.of_root(String::new(), None)
    }

    /// Returns a storage of what is below another key, or of one object there, by the same connection.
    fn of_root(&self, root: String, only: Option<String>) -> Self {
        let names = Arc::new(Names::new(self.trusted));
        let directories = Arc::new(Directories {
            client: Arc::clone(&self.client),
            names: Arc::clone(&names),
            root,
            only,
        });
        let openings = Arc::new(Openings::new(self.trusted.min(OPENING_TRUSTED)));
        Self {
            objects: Arc::new(Objects::new(&directories, &openings)),
            sent: SentObjects::new(),
            unstored: Unstored::default(),
            alone: Arc::clone(&self.alone),
            client: Arc::clone(&self.client),
            windows: Arc::clone(&self.windows),
            names,
            openings,
            named: NamedNodes::new(self.trusted),
            cache: self.cache.clone(),
            store: self.store.clone(),
            directories,
            owner: self.owner,
            trusted: self.trusted,
            stats: Arc::clone(&self.stats),
        }
    }

    /// Returns what is at a path. `None` if there is nothing.
    pub(super) fn find(&self, path: &Path) -> io::Result<Option<Name>> {
        match path.as_os_str().is_empty() || self.unstored.is_directory(path) {
            true => Ok(Some(Name::Directory)),
            false => self.find_stored(path),
        }
    }

    /// Returns what the store has at a path that is not its root.
    pub(super) fn find_stored(&self, path: &Path) -> io::Result<Option<Name>> {
        if let Some(known) = self.names.known(path) {
            return Ok(known);
        }
        if let Some(only) = &self.directories.only {
            return if path == Path::new(only) {
                self.directories.find_object(path)
            } else {
                Ok(None)
            };
        }
        if !self.client.can_list() {
            return unlisted::find(&self.directories, path);
        }
        // That of the root first: it often answers for everything below.
        let above = path.parent().unwrap_or(Path::new(""));
        for directory in [Path::new(""), above] {
            if self.names.listing(directory).is_none() && !self.directories.list_below(directory)? {
                self.directories.first_page(directory)?;
            }
            if let Some(known) = self.names.known(path) {
                return Ok(known);
            }
        }
        let at = Instant::now();
        let found = match self.directories.is_directory(path)? {
            true => Some(Name::Directory),
            false => self.directories.head(path)?.map(Name::Object),
        };
        self.names.note(path, at, found.clone());
        Ok(found)
    }

    /// Returns what a version of an object is called in the cache; `None` if it is not kept.
    fn cached(&self, key: &Key, object: &Object) -> Option<CachedObject> {
        self.cache.as_ref()?;
        // In memory it is believed for a time, but what is on disk stays.
        if object.is_unsettled(SystemTime::now()) {
            return None;
        }
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
        // Without listings, of what is no object nothing is expected.
        let found = match self.names.known(path) {
            Some(known) => known,
            None if self.client.can_list() => self.find(path)?,
            None => self.directories.find_object(path)?,
        };
        let Some(Name::Object(object)) = found else { return Ok(None) };
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

    /// Returns the part of an object that is expected to be read, from what this mount has put last. `None` if it is not
    /// known.
    ///
    /// # Errors
    /// The store does not answer whether it still has that.
    fn get_sent(
        &self,
        path: &Path,
        key: &Key,
        expected: Expected,
    ) -> Option<Result<Answer, RequestError>> {
        let sent = self.sent.take(path).filter(|sent| sent.has(expected))?;
        match self.client.head(key, If::Any) {
            Ok(meta) => sent.answer(meta, expected).map(Ok),
            // Another request would be waited for in vain.
            Err(
                error @ (RequestError::Late { .. }
                | RequestError::Silent
                | RequestError::Interrupted),
            ) => Some(Err(error)),
            Err(_) => None,
        }
    }

    /// Reads the part of an object that is expected to be read.
    fn get(&self, path: &Path, key: &Key, expected: Expected) -> Result<Answer, RequestError> {
        if let Some(answer) = self.get_sent(path, key, expected) {
            return answer;
        }
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

    /// Opens what the store has at a path, for reading.
    pub(super) fn open_stored(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        match self.find(path)? {
            Some(Name::Object(object)) => {
                Ok(self.file(path, self.directories.key(path)?, object, None))
            }
            Some(Name::Directory) => Ok(Arc::new(RemoteDirectory(directory(
                &self.directories.prefix(path)?,
                self.owner,
            )))),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    /// Opens a version of an object that was just put.
    pub(super) fn version(
        &self,
        path: &Path,
        nbytes: u64,
        tag: &str,
    ) -> io::Result<Arc<dyn StorageFile>> {
        let modified = Timestamp::from(SystemTime::now()).seconds;
        let object = Object { nbytes, tag: Some(format!("\"{tag}\"")), modified };
        Ok(self.file(path, self.directories.key(path)?, object, None))
    }
}

fn wanted(expected: Expected) -> Wanted {
    match expected {
        Expected::First(nbytes) => Wanted::First(nbytes),
        Expected::Last(nbytes) => Wanted::Last(nbytes),
    }
}

impl Storage for RemoteStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        match self.here(path)? {
            Some(file) => Ok(file),
            None => self.open_stored(path),
        }
    }

    fn open_as_file(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        if let Some(file) = self.here(path)? {
            return Ok(file);
        }
        if !self.client.can_list() && self.names.known(path).is_none() {
            // It is known from now on.
            self.directories.find_object(path)?;
        }
        self.open(path)
    }

    fn open_expecting(&self, path: &Path, expected: Expected) -> io::Result<Arc<dyn StorageFile>> {
        if let Some(file) = self.here(path)? {
            return Ok(file);
        }
        match self.names.known(path) {
            Some(None) => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
            Some(Some(Name::Directory)) => return self.open(path),
            _ => (),
        }
        let key = self.directories.key(path)?;
        if let Some((object, offset, bytes)) = self.expected_in_cache(path, &key, expected)? {
            return Ok(self.file(path, key, object, Some((offset, Arc::new(bytes)))));
        }
        let opening = self.openings.take(path);
        let opening = opening.filter(|(at, _)| !self.names.is_outdated(path, *at));
        let (at, answer) = match opening {
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
                let error = match error {
                    RequestError::Absent if self.names.was_object(path) => {
                        self.directories.not_found(&key)?
                    }
                    error => error,
                };
                if let RequestError::Absent = error {
                    self.names.note(path, at, None);
                }
                Err(self.client.reports().failed(&key, &error))
            }
        }
    }

    fn announce(&self, path: &Path, expected: Expected) -> bool {
        let (Expected::First(nbytes) | Expected::Last(nbytes)) = expected;
        if self.unstored.file(path).is_some() {
            return true;
        }
        if matches!(self.names.known(path), Some(None | Some(Name::Directory))) {
            return true;
        }
        let (wanted, tag) = self.asked(path, expected);
        let is_possible = self.client.has_suffixes() || !matches!(wanted, Wanted::Last(_));
        if nbytes > LONGEST_OPENING || !is_possible {
            return false;
        }
        let Ok(key) = self.directories.key(path) else { return true };
        if self.cache.is_some() && self.client.can_list() {
            // Which version it has is not found out here: nothing is waited for.
            let is_known = self.names.known(path).is_some();
            if !is_known || matches!(self.expected_in_cache(path, &key, expected), Ok(Some(_))) {
                return is_known;
            }
        }
        let opening = match self.openings.begin(path, nbytes) {
            Ok(opening) => opening,
            Err(is_answered) => return is_answered,
        };
        let (names, path, at) = (Arc::clone(&self.names), path.to_owned(), opening.at);
        let finish = Finish(opening);
        self.client.send(key, wanted, tag, move |answer| {
            // Who opens what was an object finds out more.
            if let Err(RequestError::Absent) = &answer
                && !names.was_object(&path)
            {
                names.note(&path, at, None);
            }
            // Who opens the object asks for it again, and gets the error.
            finish.with(answer.ok());
        });
        false
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.stats.source.stat.count();
        if let Some(file) = self.here(path)? {
            return file.stat();
        }
        match self.find(path)? {
            Some(Name::Object(object)) => Ok(object.stat(&self.directories.key(path)?, self.owner)),
            Some(Name::Directory) => Ok(directory(&self.directories.prefix(path)?, self.owner)),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn has_version(&self, path: &Path, version: &Version) -> bool {
        if let Ok(Some(file)) = self.here(path) {
            return file.stat().is_ok_and(|stat| stat.version() == *version);
        }
        let Ok(key) = self.directories.key(path) else { return false };
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
            // Who opens it next finds out whether that is so.
            Err(RequestError::Absent) if self.names.was_object(path) => return false,
            Err(RequestError::Absent) => None,
            Err(error) => {
                self.client.reports().failed(&key, &error);
                return false;
            }
        };
        let is_same = now.as_ref().is_some_and(is_it);
        self.names.note(path, at, now.map(Name::Object));
        is_same
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        self.stats.source.list.count();
        if let Some(only) = &self.directories.only {
            if from == 0
                && let Some(what) = self.find(Path::new(only))?
            {
                let _ = show(visit, only, &what, 1);
            }
            return Ok(());
        }
        if !self.client.can_list() {
            return unlisted::list(&self.directories, &self.named, (path, from), visit);
        }
        self.list_all(path, from, visit)
    }

    fn can_list(&self) -> bool {
        self.directories.only.is_some() || self.client.can_list()
    }

    fn pins_versions(&self) -> bool {
        true
    }

    fn failure(&self) -> Option<String> {
        self.client.failure()
    }

    fn objects(&self) -> Option<&dyn ObjectStorage> {
        self.client.writes.is_some().then_some(self as &dyn ObjectStorage)
    }

    fn files(&self) -> Option<&dyn PosixStorage> {
        let has_files = self.client.writes.is_some() && self.directories.only.is_none();
        has_files.then_some(self as &dyn PosixStorage)
    }
}
