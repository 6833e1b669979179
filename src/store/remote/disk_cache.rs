//! Parts of objects kept on disk, so that the next mount does not fetch them again.
//!
//! ```text
//! CACHE_DIR/shardfs-parts/
//!   OBJECT/           hash of store, key and entity tag, 32 hexadecimal digits: one version of an object
//!     FROM-TO         bytes of a part, by its offsets in hexadecimal digits (cached_part)
//!     .new-...        a part that is being written
//! ```
//!
//! A part is written under another name and renamed: what is there is whole, or its checksums say
//! that it is not. Several mounts may share a directory. What was used least recently is removed when
//! all together becomes longer than the limit. Only files of these names are ever removed.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, DirEntry, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use super::cached_part;
use crate::stats::Stats;
use crate::text::shown;

/// Directory within the one that is given.
const DIRECTORY: &str = "shardfs-parts";
/// What the name of a part that is being written begins with.
const NEW: &str = ".new-";
/// Objects whose parts are remembered.
const OBJECTS: usize = 4096;
/// Parts that are remembered of all objects together, about 40 bytes each.
const PARTS: usize = 1 << 20;
/// Length of parts that wait to be written, in bytes: what comes faster than the disk takes it is not
/// kept.
const WAITING: u64 = 64 << 20;
/// Time after which the use of a part is noted again.
const USE_NOTED: Duration = Duration::from_secs(60);
/// Age of a part that is being written after which its writer has ended without a trace.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Time for which nothing is written to a disk that has refused to take more.
const PAUSE: Duration = Duration::from_secs(60);

/// Reason why a directory cannot hold a cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be created or opened.
    #[error("cache_dir={}: {error}", shown(.path))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// Other users could put something else in its place.
    #[error(
        "cache_dir={}: it must belong to this user or to root, and others must not be able to write to it",
        shown(.0)
    )]
    Unsafe(PathBuf),
    /// Other users can read or change what is in it.
    #[error("{}: it must be this user's own, and closed to others: chmod 700", shown(.0))]
    NotPrivate(PathBuf),
}

/// Version of an object, as the cache knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CachedObject(String);

impl CachedObject {
    /// Returns the version of an object that has an entity tag, in a store.
    pub(super) fn new(store: &str, key: &str, tag: &str, nbytes: u64) -> Self {
        let nbytes = nbytes.to_string();
        let mut hasher = Sha256::new();
        for part in [store, key, tag, &nbytes] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let hash = hasher.finalize();
        Self(hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Date of a directory, which changes with the names in it.
type Date = Option<(i64, i64)>;

/// Where the parts of an object end, by where they begin, and the date that its directory had when it was read.
#[derive(Default)]
struct Parts {
    read: Date,
    ends: BTreeMap<u64, u64>,
}

/// Parts of the objects that were used last.
struct KnownParts {
    objects: LruCache<CachedObject, Parts>,
    /// Number of parts of all objects.
    parts: usize,
}

impl KnownParts {
    fn put(&mut self, object: &CachedObject, parts: Parts) {
        self.parts += parts.ends.len();
        self.parts -= self.objects.put(object.clone(), parts).map_or(0, |old| old.ends.len());
        self.make_room();
    }

    /// Changes what is known of an object, if anything is.
    fn change(&mut self, object: &CachedObject, change: impl FnOnce(&mut Parts)) {
        let Some(parts) = self.objects.get_mut(object) else { return };
        let before = parts.ends.len();
        change(parts);
        self.parts = self.parts + parts.ends.len() - before;
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.objects.len() > OBJECTS || self.parts > PARTS && self.objects.len() > 1 {
            let Some((_, least)) = self.objects.pop_lru() else { break };
            self.parts -= least.ends.len();
        }
    }
}

/// The directory of a cache, which is open: what gets its name later is not used.
struct Root {
    directory: OwnedFd,
}

/// Part that is to be written.
struct Job {
    object: CachedObject,
    offset: u64,
    bytes: Arc<Vec<u8>>,
}

/// Cache on disk.
pub(super) struct DiskCache {
    path: PathBuf,
    root: Mutex<Arc<Root>>,
    limit: u64,
    known: Mutex<KnownParts>,
    waiting: AtomicU64,
    jobs: Mutex<Sender<Job>>,
    stats: Arc<Stats>,
}

impl DiskCache {
    /// Opens or creates a cache. What is put into it is written by a thread of its own, which ends
    /// when the cache is dropped.
    pub(super) fn open(
        directory: &Path,
        limit: u64,
        stats: Arc<Stats>,
    ) -> Result<Arc<Self>, CacheError> {
        let failed = |error| CacheError::Directory { path: directory.to_owned(), error };
        // Not those above it, whose names may be written wrong.
        make(directory).map_err(failed)?;
        // It may be a link; where that leads to later does not count.
        let path = fs::canonicalize(directory).map_err(failed)?;
        if !is_safe(&fs::metadata(&path).map_err(failed)?) {
            return Err(CacheError::Unsafe(directory.to_owned()));
        }
        let path = path.join(DIRECTORY);
        let root = Root::open(&path)?;
        let (jobs, queue) = channel();
        let known = KnownParts { objects: LruCache::unbounded(), parts: 0 };
        let cache = Arc::new(Self {
            path,
            root: Mutex::new(Arc::new(root)),
            limit,
            known: Mutex::new(known),
            waiting: AtomicU64::new(0),
            jobs: Mutex::new(jobs),
            stats,
        });
        let (writer, root) = (Arc::downgrade(&cache), cache.root());
        std::thread::Builder::new()
            .name("cache".to_owned())
            .spawn(move || {
                // It may have had another limit, and nothing may be written any more.
                let used = make_room(&root.path(), limit);
                write_all(&queue, &writer, used);
            })
            .map_err(failed)?;
        Ok(cache)
    }

    /// Returns the bytes from `from` to `to` of an object, if they are there.
    pub(super) fn get(&self, object: &CachedObject, from: u64, to: u64) -> Option<Vec<u8>> {
        let root = self.root();
        let directory = root.path().join(&object.0);
        let (start, end) = self.covering(object, &directory, from, to)?;
        let path = directory.join(part_name(start, end));
        let found = File::open(&path).and_then(|file| {
            let found = cached_part::read(&file, from, to)?;
            // It stays for a shorter time where that is not possible.
            let _ = note_use(&file);
            Ok(found)
        });
        match found {
            Ok(Some(bytes)) => {
                self.stats.remote.cached.count();
                self.stats.remote.cached_bytes.add(bytes.len() as u64);
                return Some(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                log::warn!("{}: {error}", shown(&path));
            }
            _ => {
                log::warn!("{}: it is damaged, and removed", shown(&path));
                let _ = fs::remove_file(&path);
            }
        }
        self.known.lock().change(object, |parts| {
            parts.ends.remove(&start);
        });
        None
    }

    /// Returns whether the bytes from `from` to `to` of an object seem to be there.
    pub(super) fn has(&self, object: &CachedObject, from: u64, to: u64) -> bool {
        self.covering(object, &self.root().path().join(&object.0), from, to).is_some()
    }

    /// Returns the part of an object that holds a range.
    fn covering(
        &self,
        object: &CachedObject,
        directory: &Path,
        from: u64,
        to: u64,
    ) -> Option<(u64, u64)> {
        let find = |parts: &Parts| {
            let mut before = parts.ends.range(..=from).rev().take(16);
            before.find(|(_, end)| **end >= to).map(|(start, end)| (*start, *end))
        };
        let known = &self.known;
        let known = known.lock().objects.get(object).map(|parts| (find(parts), parts.read));
        if let Some((Some(found), _)) = known {
            return Some(found);
        }
        // Read again only if there are other names in it by now.
        let changed = date_of(directory);
        if changed.is_none() || known.is_some_and(|(_, read)| read == changed) {
            return None;
        }
        let names = fs::read_dir(directory)
            .ok()?
            .filter_map(|item| item.ok()?.file_name().into_string().ok());
        let parts =
            Parts { read: changed, ends: names.filter_map(|name| part_of(&name)).collect() };
        let found = find(&parts);
        self.known.lock().put(object, parts);
        found
    }

    /// Keeps a part of an object, which is written some time later.
    pub(super) fn put(&self, object: &CachedObject, offset: u64, bytes: &Arc<Vec<u8>>) {
        let nbytes = bytes.len() as u64;
        if nbytes == 0 || nbytes > self.limit / 2 {
            return;
        }
        if self.waiting.fetch_add(nbytes, Ordering::Relaxed) > WAITING {
            self.waiting.fetch_sub(nbytes, Ordering::Relaxed);
            return;
        }
        let job = Job { object: object.clone(), offset, bytes: Arc::clone(bytes) };
        // Fails if the writer has ended: then nothing is kept.
        let _ = self.jobs.lock().send(job);
    }

    fn root(&self) -> Arc<Root> {
        Arc::clone(&self.root.lock())
    }

    /// Writes a part, and returns the length of its file.
    fn write(&self, job: &Job) -> io::Result<u64> {
        match self.write_in(&self.root(), job) {
            // The whole cache was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let root = Arc::new(Root::open(&self.path).map_err(io::Error::other)?);
                *self.root.lock() = Arc::clone(&root);
                self.write_in(&root, job)
            }
            written => written,
        }
    }

    fn write_in(&self, root: &Root, job: &Job) -> io::Result<u64> {
        let directory = root.path().join(&job.object.0);
        let new = || {
            make(&directory)?;
            let before = date_of(&directory);
            let file = tempfile::Builder::new().prefix(NEW).tempfile_in(&directory)?;
            Ok::<_, io::Error>((before, file))
        };
        let (from, nbytes) = (job.offset, job.bytes.len() as u64);
        let path = directory.join(part_name(from, from + nbytes));
        let (before, mut file) = match new() {
            // Another mount has removed the last part of the object, and the directory with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => new()?,
            new => new?,
        };
        cached_part::write(&mut file, from, &job.bytes)?;
        file.persist(path)?;
        let after = date_of(&directory);
        self.known.lock().change(&job.object, |parts| {
            parts.ends.insert(from, from + nbytes);
            // Other mounts have added nothing since it was read.
            if parts.read == before {
                parts.read = after;
            }
        });
        Ok(cached_part::file_length(nbytes))
    }
}

impl Root {
    /// Opens or creates the directory, which must be closed to others.
    fn open(path: &Path) -> Result<Self, CacheError> {
        let failed = |error| CacheError::Directory { path: path.to_owned(), error };
        make(path).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty());
        let root = Self { directory: directory.map_err(|errno| failed(errno.into()))? };
        match is_private(&fs::metadata(root.path()).map_err(failed)?) {
            true => Ok(root),
            false => Err(CacheError::NotPrivate(path.to_owned())),
        }
    }

    /// Returns a path that leads to the open directory, whatever has its name by now.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }
}

/// Makes a directory, unless there is one.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !path.is_dir() => Err(error),
        _ => Ok(()),
    }
}

fn date_of(directory: &Path) -> Date {
    fs::metadata(directory).ok().map(|found| (found.mtime(), found.mtime_nsec()))
}

/// Writes what is put into a cache that has so many bytes, until it is dropped.
fn write_all(queue: &Receiver<Job>, cache: &Weak<DiskCache>, mut used: u64) {
    let mut paused = None::<Instant>;
    while let Ok(job) = queue.recv() {
        let Some(cache) = cache.upgrade() else { break };
        let nbytes = job.bytes.len() as u64;
        if paused.is_none_or(|at| at.elapsed() > PAUSE) {
            match cache.write(&job) {
                Ok(written) => used = used.saturating_add(written),
                Err(error) => {
                    paused = Some(Instant::now());
                    log::warn!("{}: nothing is kept for a minute: {error}", shown(&cache.path));
                }
            }
            if used > cache.limit {
                used = make_room(&cache.root().path(), cache.limit);
            }
        }
        drop(job);
        cache.waiting.fetch_sub(nbytes, Ordering::Relaxed);
    }
}

/// Removes what was used least recently if there is more than the limit, until a tenth of it is free.
/// Returns the length of what is left.
fn make_room(root: &Path, limit: u64) -> u64 {
    // There may be millions of parts: none is remembered.
    let mut by_second: BTreeMap<u64, u64> = BTreeMap::new();
    visit_parts(root, &mut |part| {
        let bytes = by_second.entry(part.used).or_default();
        *bytes = bytes.saturating_add(part.nbytes);
    });
    let mut left = by_second.values().copied().fold(0, u64::saturating_add);
    let most = limit / 10 * 9;
    if left <= limit {
        return left;
    }
    let mut kept = left;
    let last = by_second.iter().find_map(|(second, nbytes)| {
        kept = kept.saturating_sub(*nbytes);
        (kept <= most).then_some(*second)
    });
    visit_parts(root, &mut |part| {
        if left <= most || last.is_some_and(|last| part.used > last) {
            return;
        }
        if fs::remove_file(&part.path).is_ok() {
            left = left.saturating_sub(part.nbytes);
        }
        // Fails while there is another part of the same object.
        let _ = part.path.parent().map(fs::remove_dir);
    });
    left
}

/// Part in the directory.
struct FoundPart {
    /// When it was used, in seconds since 1970.
    used: u64,
    nbytes: u64,
    path: PathBuf,
}

/// Visits all parts. What writers that were killed have left is removed.
fn visit_parts(root: &Path, visit: &mut dyn FnMut(FoundPart)) {
    let items = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let is_name = |name: &str| name.len() == 32 && name.bytes().all(|it| it.is_ascii_hexdigit());
    let is_object = |item: &DirEntry| {
        let is_directory = item.file_type().is_ok_and(|kind| kind.is_dir());
        is_directory && item.file_name().to_str().is_some_and(is_name)
    };
    let objects = items(root).filter(is_object);
    for item in objects.flat_map(|object| items(&object.path())) {
        let (name, Ok(found)) = (item.file_name(), item.metadata()) else { continue };
        let name = name.to_str().unwrap_or_default();
        if part_of(name).is_some() {
            let used = u64::try_from(found.mtime()).unwrap_or_default();
            visit(FoundPart { used, nbytes: found.len(), path: item.path() });
        } else if name.starts_with(NEW)
            && found.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > ABANDONED))
        {
            let _ = fs::remove_file(item.path());
        }
    }
}

/// Notes that a part is used: its date decides how long it stays.
fn note_use(file: &File) -> io::Result<()> {
    let found = file.metadata()?.modified()?;
    match found.elapsed() {
        Ok(age) if age <= USE_NOTED => Ok(()),
        _ => file.set_modified(SystemTime::now()),
    }
}

fn part_name(from: u64, to: u64) -> String {
    format!("{from:x}-{to:x}")
}

/// Returns the offsets in the name of a part.
fn part_of(name: &str) -> Option<(u64, u64)> {
    let (from, to) = name.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    (from < to && part_name(from, to) == name).then_some((from, to))
}

/// Returns whether a directory is closed to other users.
fn is_private(found: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0
}

/// Returns whether no other user can rename what is in a directory.
fn is_safe(found: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let others_write = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
    found.is_dir() && [own, 0].contains(&found.uid()) && !others_write
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn within(seconds: u64, is_done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_done() {
            assert!(begun.elapsed() < Duration::from_secs(seconds), "not in time");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn open(directory: &Path, limit: u64) -> Arc<DiskCache> {
        DiskCache::open(directory, limit, Arc::default()).unwrap()
    }

    fn object(key: &str) -> CachedObject {
        CachedObject::new("s3://bucket", key, "tag", 1000)
    }

    fn put(cache: &DiskCache, object: &CachedObject, from: u64, bytes: &[u8]) {
        cache.put(object, from, &Arc::new(bytes.to_vec()));
        within(10, || cache.waiting.load(Ordering::Relaxed) == 0);
    }

    /// Paths of all parts.
    fn parts(directory: &Path) -> Vec<PathBuf> {
        let mut parts = Vec::new();
        visit_parts(&directory.join(DIRECTORY), &mut |part| parts.push(part.path));
        parts
    }

    #[test]
    fn what_was_put_is_there_for_the_next_as_well() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, object) = (open(directory.path(), 1 << 20), object("a"));
        assert_eq!(cache.get(&object, 0, 3), None);
        put(&cache, &object, 10, b"0123456789");
        assert_eq!(cache.get(&object, 12, 15).unwrap(), b"234");
        assert_eq!(cache.get(&object, 12, 21), None);
        let next = open(directory.path(), 1 << 20);
        assert_eq!(next.get(&object, 10, 20).unwrap(), b"0123456789");
        // What one of them adds, the other finds.
        put(&cache, &object, 100, b"abc");
        assert_eq!(next.get(&object, 100, 103).unwrap(), b"abc");
        assert_eq!(next.get(&self::object("b"), 10, 20), None);
        assert_ne!(object, CachedObject::new("s3://bucket", "a", "other", 1000));
        assert_ne!(object, CachedObject::new("s3://bucketa", "", "tag", 1000));
    }

    #[test]
    fn what_is_damaged_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, object) = (open(directory.path(), 1 << 20), object("a"));
        put(&cache, &object, 0, b"0123456789");
        let path = parts(directory.path()).remove(0);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(cache.get(&object, 0, 3), None);
        assert!(!path.exists());
        // Cut off, as by a power cut.
        put(&cache, &object, 0, b"0123456789");
        fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(cache.get(&object, 0, 3), None);
        put(&cache, &object, 0, b"0123456789");
        assert_eq!(cache.get(&object, 0, 3).unwrap(), b"012");
    }

    #[test]
    fn the_least_recently_used_parts_are_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let limit = 10 * cached_part::file_length(1000);
        let cache = open(directory.path(), limit);
        let root = directory.path().join(DIRECTORY);
        fs::write(root.join("0-a"), "of the user").unwrap();
        fs::create_dir(root.join("other")).unwrap();
        fs::write(root.join("other/0-a"), "of the user").unwrap();
        let objects: Vec<_> = (0..10).map(|n| object(&n.to_string())).collect();
        for (object, age) in objects.iter().zip((1..=10).rev()) {
            put(&cache, object, 0, &[7; 1000]);
            let path = root.join(&object.0).join(part_name(0, 1000));
            let old = SystemTime::now() - Duration::from_secs(100 * age);
            File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
        }
        // The oldest is used again.
        assert!(cache.get(&objects[0], 0, 1).is_some());
        put(&cache, &object("one more"), 0, &[7; 1000]);
        let left = |object: &CachedObject| root.join(&object.0).exists();
        let left: Vec<bool> = objects.iter().map(left).collect();
        assert_eq!(left, [true, false, false, true, true, true, true, true, true, true]);
        assert!(root.join("0-a").exists() && root.join("other/0-a").exists());
    }

    #[test]
    fn what_is_longer_than_half_of_the_limit_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let cache = open(directory.path(), 1000);
        put(&cache, &object("a"), 0, &[1; 501]);
        assert_eq!(parts(directory.path()), [] as [PathBuf; 0]);
    }

    #[test]
    fn what_killed_writers_have_left_is_removed_after_an_hour() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join(DIRECTORY);
        let below = root.join(&object("a").0);
        DirBuilder::new().recursive(true).mode(0o700).create(&below).unwrap();
        for (name, age) in [(".new-old", 2 * ABANDONED), (".new-young", ABANDONED / 2)] {
            let file = File::create(below.join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        }
        // Its thread looks at them before it writes.
        put(&open(directory.path(), 1 << 20), &object("b"), 0, b"1");
        assert!(!below.join(".new-old").exists() && below.join(".new-young").exists());
    }

    #[test]
    fn what_other_users_could_change_or_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let refused = || DiskCache::open(directory.path(), 1, Arc::default()).err().unwrap();
        set(directory.path(), 0o777);
        assert!(matches!(refused(), CacheError::Unsafe(_)));
        // As /tmp is.
        set(directory.path(), 0o1777);
        let cache = open(directory.path(), 1);
        assert_eq!(fs::metadata(&cache.path).unwrap().mode() & 0o777, 0o700);
        set(&cache.path, 0o750);
        assert!(refused().to_string().ends_with("closed to others: chmod 700"));
        fs::remove_dir(&cache.path).unwrap();
        fs::write(&cache.path, "").unwrap();
        assert!(matches!(refused(), CacheError::Directory { .. }));
    }

    #[test]
    fn what_others_put_in_the_place_of_the_directory_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, object) = (open(directory.path(), 1 << 20), object("a"));
        put(&cache, &object, 0, b"0123456789");
        // As another user could in /tmp, once the user has removed it.
        let aside = directory.path().join("aside");
        fs::rename(&cache.path, &aside).unwrap();
        let theirs = cache.path.join(&object.0);
        fs::create_dir_all(&theirs).unwrap();
        let part = aside.join(&object.0).join(part_name(0, 10));
        fs::copy(part, theirs.join(part_name(100, 110))).unwrap();
        fs::set_permissions(&cache.path, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(cache.get(&object, 0, 10).unwrap(), b"0123456789");
        assert_eq!(cache.get(&object, 100, 110), None);
        put(&cache, &object, 20, b"0123456789");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
        // Nor is it, once the one that was open is gone.
        fs::remove_dir_all(&aside).unwrap();
        put(&cache, &object, 40, b"0123456789");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 1);
        assert_eq!(cache.get(&object, 40, 50), None);
        fs::remove_dir_all(&cache.path).unwrap();
    }

    #[test]
    fn a_cache_that_its_user_removes_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, object) = (open(directory.path(), 1 << 20), object("a"));
        put(&cache, &object, 0, b"0123456789");
        fs::remove_dir_all(&cache.path).unwrap();
        assert_eq!(cache.get(&object, 0, 3), None);
        put(&cache, &object, 0, b"0123456789");
        assert_eq!(cache.get(&object, 0, 3).unwrap(), b"012");
        assert_eq!(fs::metadata(&cache.path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_this_cache_has_written_is_known_without_reading_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, object) = (open(directory.path(), 1 << 20), object("a"));
        put(&cache, &object, 0, b"0123456789");
        assert!(cache.has(&object, 0, 3) && !cache.has(&object, 20, 23));
        put(&cache, &object, 20, b"0123456789");
        let known = cache.known.lock();
        let parts = known.objects.peek(&object).unwrap();
        assert_eq!((parts.ends.len(), known.parts), (2, 2));
        assert_eq!(parts.read, date_of(&cache.path.join(&object.0)));
    }

    #[test]
    fn a_directory_that_is_gone_keeps_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, object) = (open(directory.path(), 1 << 20), object("a"));
        put(&cache, &object, 0, b"0123456789");
        let root = cache.path.clone();
        fs::remove_dir_all(&root).unwrap();
        fs::write(&root, "a file").unwrap();
        assert_eq!(cache.get(&object, 0, 3), None);
        put(&cache, &object, 20, b"0123456789");
        assert_eq!(cache.get(&object, 20, 23), None);
    }
}
