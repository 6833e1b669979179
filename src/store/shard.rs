//! Loading of shards: one open, one read of the index, the index verified.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use super::bloscpack::{Chunks, View, chunks_of};
use super::error::{Damage, StoreError, UNREACHABLE};
use super::journal::pending_if_readable;
use super::recover::{Found, examine, old_index, record_of};
use super::storage::{FileKind, Stat, StorageFile, is_dangling};
use super::{Container, Freshness, ShardStore, SourceArray, io_error};
use crate::format::after::{DecodeError, decode, trailing_checksums};
use crate::format::digest::Digest;
use crate::format::index::{ByteRange, EntryError, IndexError, ShardIndex, product};
use crate::format::journal::ShardRecord;
use crate::format::plan::{OldShard, PlanError, overlap};
use crate::format::sharding::{Location, ShardingLevel};
use crate::memory::{ROOM, zeroed};
use crate::text::shown;

/// Attempts to load a shard that keeps changing while its index is read.
const LOAD_ATTEMPTS: usize = 4;

/// Compression ratio of a shard that is seldom exceeded.
const USUAL_RATIO: u64 = 16;
/// Decoded size that is always allowed in the first attempt, however short the shard is.
const USUAL_BYTES: u64 = 1 << 20;

/// Age up to which a validation counts as made just now: the chunks of a shard are looked up in
/// bursts, each with an open right after it.
const JUST_NOW: Duration = Duration::from_millis(10);

/// Identifier of a shard, or of a shard nested in a shard, within its mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ShardId {
    array: u64,
    /// Level of the shard: 0 for a shard, 1 for its inner shards and so on.
    level: usize,
    /// Number of the shard in C order over the grid of its level.
    number: u64,
}

impl ShardId {
    pub(super) fn of_shard(array: &SourceArray, shard: &[u64]) -> Self {
        let axes = shard.iter().zip(&array.layout.shard_grid);
        let number = axes.fold(0, |number, (coord, axis)| number * axis.shards() + coord);
        Self { array: array.id, level: 0, number }
    }

    /// Returns the identifier of the shard at `position` (along the array's axes) inside this one,
    /// which is of `level`.
    pub(super) fn inner(self, array: &SourceArray, level: usize, position: &[u64]) -> Self {
        // The product of the chunks of all levels is within a limit that was checked with the
        // metadata: numbers are unique and do not overflow.
        let axes = position.iter().zip(array.layout.most_chunks(level));
        let number = axes.fold(self.number, |number, (coord, most)| number * most + coord);
        Self { array: self.array, level: level + 1, number }
    }

    pub(super) fn stripe(&self, stripes: usize) -> usize {
        // The remainder is less than a usize, so it fits.
        usize::try_from((self.number ^ (self.array << 3)) % stripes as u64).unwrap_or(0)
    }
}

/// Location of the bytes of a shard, or of a chunk in it.
#[derive(Debug, Clone)]
pub enum Body {
    /// Range of the shard's file.
    InFile {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        nbytes: u64,
    },
    /// Range of a shard that was decoded as a whole.
    InMemory {
        /// The decoded shard.
        bytes: Arc<Vec<u8>>,
        /// Index of the first byte.
        start: usize,
        /// Index past the last byte.
        end: usize,
    },
}

impl Body {
    /// Returns the length in bytes.
    pub fn nbytes(&self) -> u64 {
        match self {
            Self::InFile { nbytes, .. } => *nbytes,
            Self::InMemory { start, end, .. } => (end - start) as u64,
        }
    }

    /// Returns a part of these bytes; the caller has checked that it lies within them.
    fn part(&self, from: u64, nbytes: u64) -> Self {
        match self {
            Self::InFile { offset, .. } => Self::InFile { offset: offset + from, nbytes },
            Self::InMemory { bytes, start, .. } => {
                // Within a slice that is in memory: both fit.
                let from = usize::try_from(from).unwrap_or(0);
                let length = usize::try_from(nbytes).unwrap_or(0);
                let start = start + from;
                Self::InMemory { bytes: Arc::clone(bytes), start, end: start + length }
            }
        }
    }

    fn read(&self, file: &dyn StorageFile) -> std::io::Result<Option<Vec<u8>>> {
        match self {
            Self::InMemory { bytes, start, end } => {
                let part = bytes.get(*start..*end).unwrap_or_default();
                let mut copy = zeroed(part.len() as u64)?;
                copy.copy_from_slice(part);
                Ok(Some(copy))
            }
            Self::InFile { offset, nbytes } => {
                // The caller has checked the length against a limit.
                let mut buffer = zeroed(*nbytes)?;
                let read = file.read_at(&mut buffer, *offset)?;
                Ok((read == buffer.len()).then_some(buffer))
            }
        }
    }
}

/// Shard whose index has been read, or could not be read.
#[derive(Debug)]
pub struct LoadedShard {
    id: ShardId,
    stat: Stat,
    state: Result<Ready, Arc<Damage>>,
    /// Stored bytes of a nested shard. `None` for a shard that is a file.
    stored: Option<Body>,
    /// When the file was last seen to be unchanged, in milliseconds of [`now`].
    checked: AtomicU64,
    /// `true` if a journal record is pending, or a change might have left no trace in the
    /// attributes: revalidate on every access.
    provisional: bool,
}

#[derive(Debug)]
struct Ready {
    body: Body,
    index: ShardIndex,
    /// Ranges of the body that an unfinished commit has overwritten.
    lost: Vec<ByteRange>,
    /// Checksum stored after each chunk.
    digest: Digest,
    /// Chunks that cannot be read, by slot, with the reason.
    refused: HashMap<u64, &'static str>,
    /// Slot of a chunk to be padded, and the number of bytes that full chunks hold.
    padding: Option<(u64, u64)>,
    /// `true` if the file's writer has not finished it.
    is_unfinished: bool,
}

impl Ready {
    fn new(body: Body, index: ShardIndex) -> Self {
        let (lost, refused) = (Vec::new(), HashMap::new());
        let digest = Digest::None;
        Self { body, index, lost, digest, refused, padding: None, is_unfinished: false }
    }
}

/// Reason why an inner chunk of a loaded shard cannot be found.
#[derive(Debug)]
pub(super) enum InnerError {
    Damaged(Arc<Damage>),
    Entry(EntryError),
}

impl LoadedShard {
    /// Returns the attributes of the shard's file when it was loaded.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns the reason why the index cannot be used. `None` if it can.
    pub fn damage(&self) -> Option<Arc<Damage>> {
        self.state.as_ref().err().map(Arc::clone)
    }

    /// Returns the location of the shard's bytes: in a file, or decoded in memory. `None` if the
    /// shard is damaged.
    pub fn body(&self) -> Option<&Body> {
        self.state.as_ref().ok().map(|ready| &ready.body)
    }

    /// Returns the bytes of a nested shard as stored, before the codecs over it are undone. `None`
    /// for a shard that is a file.
    pub fn stored(&self) -> Option<&Body> {
        self.stored.as_ref()
    }

    /// Returns the index, which is made from the contents in formats without one. `None` if the
    /// shard is damaged.
    pub fn index(&self) -> Option<&ShardIndex> {
        self.state.as_ref().ok().map(|ready| &ready.index)
    }

    /// Returns whether some chunks can be located only through those before them: the writer has
    /// not finished the shard, or cannot know where chunks are.
    pub fn is_unfinished(&self) -> bool {
        self.state.as_ref().is_ok_and(|ready| ready.is_unfinished)
    }

    /// Returns the range of the index in the file. `None` if it is not there in one piece: for a
    /// damaged shard, one that is decoded as a whole, and formats without an index.
    pub fn index_range(&self, array: &SourceArray) -> Option<ByteRange> {
        let Ok(Ready { body: Body::InFile { offset, nbytes }, index, .. }) = &self.state else {
            return None;
        };
        if array.container != Container::Shards {
            return None;
        }
        let place = index.place(*nbytes)?;
        Some(ByteRange { offset: offset + place.offset, nbytes: place.nbytes })
    }

    /// Returns the checksum stored after each chunk.
    pub(super) fn digest(&self) -> Digest {
        self.state.as_ref().map_or(Digest::None, |ready| ready.digest)
    }

    /// Returns the number of bytes to which the chunk at a position is to be padded. `None` if it
    /// is not padded.
    pub(super) fn padding(&self, level: &ShardingLevel, position: &[u64]) -> Option<u64> {
        let ready = self.state.as_ref().ok()?;
        let (slot, full) = ready.padding?;
        (ready.index.slot(level.in_shard_axes(position)) == slot).then_some(full)
    }

    /// Returns the shard in the form that the planner of commits takes. `None` if it is damaged, or
    /// not in a file.
    pub(super) fn as_planned(&self) -> Option<OldShard<'_>> {
        let Ok(Ready { body: Body::InFile { offset, nbytes }, index, .. }) = &self.state else {
            return None;
        };
        Some(OldShard { index, start: *offset, length: *nbytes })
    }

    /// Returns the chunks of a file that is a list of them, by their numbers, and the numbers of
    /// those that cannot be read. Both are empty if the file is damaged.
    pub(super) fn numbered(&self) -> Result<(BTreeMap<u64, ByteRange>, BTreeSet<u64>), PlanError> {
        let Ok(Ready { body, index, refused, .. }) = &self.state else { return Ok(<_>::default()) };
        let chunks = index.chunks(body.nbytes());
        let chunks = chunks.map_err(|(slot, error)| PlanError::Entry { slot, error })?;
        let refused: BTreeSet<u64> = refused.keys().copied().collect();
        Ok((chunks.into_iter().filter(|(slot, _)| !refused.contains(slot)).collect(), refused))
    }

    /// Returns whether the index cannot be used.
    pub fn is_damaged(&self) -> bool {
        self.state.is_err()
    }

    /// Returns the location of the inner chunk at `position` along the array's axes, in a shard of
    /// `level`. `None` if it is empty.
    pub(super) fn inner(
        &self,
        level: &ShardingLevel,
        position: &[u64],
    ) -> Result<Option<Body>, InnerError> {
        let ready =
            self.state.as_ref().map_err(|damage| InnerError::Damaged(Arc::clone(damage)))?;
        if !ready.refused.is_empty()
            && let slot = ready.index.slot(level.in_shard_axes(position))
            && let Some(why) = ready.refused.get(&slot)
        {
            return Err(InnerError::Entry(EntryError::Refused(why)));
        }
        let range = ready.index.range(level.in_shard_axes(position), ready.body.nbytes());
        let range = range.map_err(InnerError::Entry)?;
        if let Some(range) = range
            && ready.lost.iter().any(|lost| overlap(*lost, range).is_some())
        {
            return Err(InnerError::Damaged(Arc::new(Damage::Unfinished)));
        }
        Ok(range.map(|range| ready.body.part(range.offset, range.nbytes)))
    }

    /// Returns the memory that the cache counts. A shard nested in a decoded one counts its own
    /// part of the shared bytes: together, those parts are what keeps them in memory.
    fn memory(&self) -> usize {
        let state = match &self.state {
            Ok(Ready { body: Body::InMemory { start, end, .. }, index, .. }) => {
                end - start + index.memory()
            }
            Ok(Ready { index, .. }) => index.memory(),
            Err(_) => 0,
        };
        size_of::<Self>() + state
    }

    fn is_trusted(&self, trusted: Duration) -> bool {
        !self.provisional && is_recent(self.checked.load(Ordering::Relaxed), trusted)
    }
}

/// Returns whether `moment`, in milliseconds of [`now`], is less than `trusted` ago.
fn is_recent(moment: u64, trusted: Duration) -> bool {
    now().saturating_sub(moment) < u64::try_from(trusted.as_millis()).unwrap_or(0)
}

/// Returns the milliseconds since the first call, plus one.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// Parameters for decoding one level of shards.
struct Decoding<'a> {
    level: &'a ShardingLevel,
    chunks_per_shard: Vec<u64>,
    limit: u64,
}

impl ShardStore {
    /// Returns the shard at `coords` in the shard grid, from the cache if it is fresh enough.
    /// `None` if there is none. A damaged shard is returned as such, and was logged when it was
    /// loaded.
    pub fn shard(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let id = ShardId::of_shard(array, coords);
        let trusted = self.trusted_for(freshness);
        let trusted = |shard: &LoadedShard| self.config.immutable || shard.is_trusted(trusted);
        // While this mount commits to the shard, its cached index still holds for all chunks but
        // those being committed. `Again` is required where the bytes are to be read.
        let ours = |shard: &LoadedShard| {
            freshness != Freshness::Again && !shard.provisional && self.commits.is_busy(id)
        };
        let cached = self.shards.lock().get(&id);
        if let Some(shard) = &cached
            && (trusted(shard) || ours(shard))
        {
            self.stats.indexes.hits.count();
            return Ok(cached);
        }
        let path = array.shard_path(coords);
        if let Some(shard) = cached {
            if self.is_current(&shard, &path) {
                self.stats.indexes.hits.count();
                return Ok(Some(shard));
            }
            self.stats.indexes.changed.count();
        } else if self.is_absent(id, freshness) {
            return Ok(None);
        }
        let _loading = self.loading_lock(&id);
        // Another thread may have loaded it while this one waited for the lock.
        if let Some(shard) = self.shards.lock().get(&id)
            && (trusted(&shard) || self.is_current(&shard, &path))
        {
            self.stats.indexes.hits.count();
            return Ok(Some(shard));
        }
        let asked = now();
        let loaded = self.with_files(|| self.load(array, coords, id, &path));
        // `Changing` is reported by the caller once retries are exhausted.
        let loaded = loaded.inspect_err(|error| match error {
            StoreError::Changing { .. } => (),
            error => self.report(error),
        })?;
        match &loaded {
            Some(shard) => self.shards.lock().put(id, Arc::clone(shard), shard.memory()),
            None => {
                self.shards.lock().remove(&id);
                self.absent.lock().put(id, asked);
            }
        }
        Ok(loaded)
    }

    /// Returns how long ago a shard may have been validated.
    fn trusted_for(&self, freshness: Freshness) -> Duration {
        match freshness {
            Freshness::Again => Duration::ZERO,
            Freshness::Now => self.config.trusted.min(JUST_NOW),
            Freshness::Recent => self.config.trusted,
        }
    }

    /// Returns whether the shard was found absent, recently enough.
    fn is_absent(&self, id: ShardId, freshness: Freshness) -> bool {
        let Some(asked) = self.absent.lock().get(&id).copied() else { return false };
        self.config.immutable || is_recent(asked, self.trusted_for(freshness))
    }

    fn is_current(&self, shard: &LoadedShard, path: &Path) -> bool {
        let asked = now();
        let current = !shard.provisional && self.storage.is_unchanged(path, &shard.stat);
        if current {
            shard.checked.store(asked, Ordering::Relaxed);
        }
        current
    }

    /// Returns whether a shard was changed so recently that another change might leave its
    /// attributes as they are. What a commit of this mount has left is exempt: it sets a date that
    /// no other writer would.
    fn may_look_unchanged(&self, id: ShardId, stat: &Stat) -> bool {
        !self.config.immutable
            && stat.is_unsettled(SystemTime::now())
            && !self.commits.has_left(id, stat)
    }

    fn decoding<'a>(&self, array: &'a SourceArray, level: usize, shard: &[u64]) -> Decoding<'a> {
        Decoding {
            level: &array.layout.levels[level],
            chunks_per_shard: array.layout.chunks_per_shard(level, shard),
            limit: self.config.decode_limit,
        }
    }

    /// Finds a chunk in a shard's file from the file's current contents alone, without the caches.
    /// `None` if it is not there, or cannot be located.
    pub(super) fn body_in(
        &self,
        array: &SourceArray,
        location: &Location,
        file: &dyn StorageFile,
        stat: &Stat,
    ) -> std::io::Result<Option<Body>> {
        let mut body = Body::InFile { offset: 0, nbytes: stat.size };
        for (number, (level, position)) in
            array.layout.levels.iter().zip(&location.positions).enumerate()
        {
            let decoding = self.decoding(array, number, &location.shard);
            let state = match number {
                0 if array.container != Container::Shards => {
                    self.read_container(array, &decoding, file, stat, None)?
                }
                0 => self.read_shard(&decoding, file, stat)?,
                _ => self.read_ready(&decoding, file, body)?,
            };
            let Ok(ready) = state else { return Ok(None) };
            let range = ready.index.range(level.in_shard_axes(position), ready.body.nbytes());
            let Ok(Some(range)) = range else { return Ok(None) };
            body = ready.body.part(range.offset, range.nbytes);
        }
        Ok(Some(body))
    }

    fn load(
        &self,
        array: &SourceArray,
        coords: &[u64],
        id: ShardId,
        path: &Path,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let decoding = self.decoding(array, 0, coords);
        if let Some(shards) = self.shards_now(array)?
            && coords.first().is_some_and(|number| *number >= shards)
        {
            return Ok(None);
        }
        for _ in 0..LOAD_ATTEMPTS {
            let asked = now();
            let file = match self.storage.open(path) {
                Ok(file) => file,
                Err(error) => return self.not_opened(id, path, error),
            };
            let before = file.stat().map_err(io_error(path))?;
            let pending = self.pending(array, coords)?;
            let state = match &pending {
                _ if array.container != Container::Shards => {
                    self.read_container(array, &decoding, &*file, &before, pending.as_ref())
                }
                None => self.read_shard(&decoding, &*file, &before),
                Some(record) => self.read_pending(&decoding, &*file, &before, record),
            };
            let state = state.map_err(io_error(path))?;
            // A commit may have begun, or ended, since its record was looked for.
            if state.is_err() && self.pending(array, coords)? != pending {
                continue;
            }
            let after = file.stat().map_err(io_error(path))?;
            if !before.unchanged(&after) {
                continue;
            }
            self.files.lock().put(id, (after, file));
            let mut shard = self.loaded(id, path, after, state, asked);
            shard.provisional = pending.is_some() || self.may_look_unchanged(id, &after);
            return Ok(Some(Arc::new(shard)));
        }
        Err(StoreError::Changing { shard: path.to_owned() })
    }

    /// Handles a shard that cannot be opened: it is absent, damaged, or not accessible to this
    /// user.
    fn not_opened(
        &self,
        id: ShardId,
        path: &Path,
        error: std::io::Error,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        match error.raw_os_error() {
            Some(libc::ENOENT) if !self.is_dangling(path)? => Ok(None),
            Some(errno) if UNREACHABLE.contains(&errno) => {
                let stat = self.storage.lstat(path).unwrap_or(NO_STAT);
                let damage = Damage::Unreachable(error);
                Ok(Some(Arc::new(self.loaded(id, path, stat, Err(damage), now()))))
            }
            _ => Err(StoreError::Io { path: path.to_owned(), error }),
        }
    }

    /// Returns whether ENOENT is due to a dangling symbolic link.
    pub(super) fn is_dangling(&self, path: &Path) -> Result<bool, StoreError> {
        is_dangling(&*self.storage, path).map_err(io_error(path))
    }

    fn loaded(
        &self,
        id: ShardId,
        path: &Path,
        stat: Stat,
        state: Result<Ready, Damage>,
        asked: u64,
    ) -> LoadedShard {
        let state = state.map_err(Arc::new);
        if let Err(damage) = &state {
            self.stats.indexes.damaged.count();
            let (shard, damage) = (path.to_owned(), Arc::clone(damage));
            self.report(&StoreError::Damaged { shard, damage });
        }
        let checked = AtomicU64::new(asked);
        LoadedShard { id, stat, state, stored: None, checked, provisional: false }
    }

    /// Returns the record of an unfinished commit to a shard. `None` if there is none.
    fn pending(
        &self,
        array: &SourceArray,
        coords: &[u64],
    ) -> Result<Option<ShardRecord>, StoreError> {
        let record = pending_if_readable(&*self.storage, &array.path, |error| self.report(error));
        let record = record.map_err(io_error(&array.path))?;
        Ok(record.and_then(|record| record_of(&record, &array.shard_name(coords)).cloned()))
    }

    /// Reads a shard for which the journal has a record: another process is about to change it, or
    /// was interrupted by a power cut. Takes the new state if everything was written, otherwise the
    /// old one.
    fn read_pending(
        &self,
        decoding: &Decoding<'_>,
        file: &dyn StorageFile,
        stat: &Stat,
        record: &ShardRecord,
    ) -> std::io::Result<Result<Ready, Damage>> {
        match examine(file, record)? {
            Found::Finished | Found::Replaced | Found::Foreign => {
                return self.read_shard(decoding, file, stat);
            }
            Found::Unfinished => (),
            Found::Lost => return Ok(Err(Damage::Unfinished)),
        }
        let Some(bytes) = old_index(file, record)? else {
            return Ok(Err(Damage::Unfinished));
        };
        let (codecs, location) = (&decoding.level.index_codecs, decoding.level.index_location);
        let index = ShardIndex::decode(bytes, codecs, location, &decoding.chunks_per_shard);
        let lost = record.overwritten.iter();
        let lost =
            lost.map(|(offset, old)| ByteRange { offset: *offset, nbytes: old.len() as u64 });
        let body = Body::InFile { offset: 0, nbytes: record.old_length };
        let ready = |index| Ready { lost: lost.collect(), ..Ready::new(body, index) };
        Ok(index.map(ready).map_err(Damage::from))
    }

    /// Returns the shard of the next level inside `outer`, which is of `level`, that a chunk lies
    /// in. `None` if it is empty.
    pub(super) fn inner_of(
        &self,
        array: &SourceArray,
        outer: &LoadedShard,
        location: &Location,
        level: usize,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let position = &location.positions[level];
        let body = outer.inner(&array.layout.levels[level], position);
        match body.map_err(|error| self.inner_error(array, location, level, error))? {
            None => Ok(None),
            Some(body) => {
                let id = outer.id.inner(array, level, position);
                self.inner_shard(array, location, id, outer, body).map(Some)
            }
        }
    }

    fn read_shard(
        &self,
        decoding: &Decoding<'_>,
        file: &dyn StorageFile,
        stat: &Stat,
    ) -> std::io::Result<Result<Ready, Damage>> {
        if stat.kind != FileKind::File {
            return Ok(Err(Damage::NotAFile(stat.kind)));
        }
        if stat.size == 0 {
            return Ok(Err(Damage::Empty));
        }
        self.read_ready(decoding, file, Body::InFile { offset: 0, nbytes: stat.size })
    }

    /// Reads a shard of another format, and makes an index of its contents.
    fn read_container(
        &self,
        array: &SourceArray,
        decoding: &Decoding<'_>,
        file: &dyn StorageFile,
        stat: &Stat,
        pending: Option<&ShardRecord>,
    ) -> std::io::Result<Result<Ready, Damage>> {
        if stat.kind != FileKind::File {
            return Ok(Err(Damage::NotAFile(stat.kind)));
        }
        let Some(view) = View::durable(file, stat.size, pending)? else {
            return Ok(Err(Damage::Unfinished));
        };
        let Chunks { contents, digest, full } = match chunks_of(&array.container, &view)? {
            Ok(chunks) => chunks,
            Err(error) => return Ok(Err(error.into())),
        };
        let last = (contents.ranges.len() as u64).checked_sub(1);
        // In a Bloscpack file the last chunk is padded only if the chunk before it is as long as
        // the header says.
        let is_whole = |last: &u64| *last > 0 && !contents.refused.contains_key(&(last - 1));
        let is_file = matches!(array.container, Container::Bloscpack(_));
        let last = last.filter(|last| !is_file || is_whole(last));
        let is_short = |full: &u64| self.config.pad_edge && contents.last_decoded < *full;
        let padding = last.zip(full.filter(is_short));
        if contents.is_unfinished {
            log::warn!("{}: its writer has not finished it", shown(&array.shard_path(&[0])));
        }
        self.stats.indexes.loads.count();
        let slots = product(&decoding.chunks_per_shard).unwrap_or(u64::MAX);
        let Some(index) = contents.index(&decoding.chunks_per_shard) else {
            return Ok(Err(IndexError::Limit { slots }.into()));
        };
        let body = Body::InFile { offset: 0, nbytes: view.size() };
        let (lost, refused, is_unfinished) =
            (view.lost(), contents.refused, contents.is_unfinished);
        let ready = Ready::new(body, index);
        Ok(Ok(Ready { lost, digest, refused, padding, is_unfinished, ..ready }))
    }

    /// Reads the index of the shard whose stored bytes are `stored`.
    fn read_ready(
        &self,
        decoding: &Decoding<'_>,
        file: &dyn StorageFile,
        stored: Body,
    ) -> std::io::Result<Result<Ready, Damage>> {
        let body = match self.undo_after(decoding, file, stored)? {
            Ok(body) => body,
            Err(damage) => return Ok(Err(damage)),
        };
        let level = decoding.level;
        let slots = product(&decoding.chunks_per_shard).unwrap_or(u64::MAX);
        let Some(size) = level.index_codecs.stored_size(slots) else {
            return Ok(Err(IndexError::Limit { slots }.into()));
        };
        let Some(place) = level.index_location.place(size, body.nbytes()) else {
            return Ok(Err(Damage::TooShort { found: body.nbytes(), index: size }));
        };
        let Some(bytes) = body.part(place.offset, size).read(file)? else {
            return Ok(Err(Damage::TooShort { found: body.nbytes(), index: size }));
        };
        self.stats.indexes.loads.count();
        self.stats.indexes.load_bytes.add(size);
        let (codecs, location) = (&level.index_codecs, level.index_location);
        let index = ShardIndex::decode(bytes, codecs, location, &decoding.chunks_per_shard);
        Ok(index.map(|index| Ready::new(body, index)).map_err(Damage::from))
    }

    /// Undoes the codecs over the whole shard. Checksums over a shard in a file are not verified:
    /// that would read all of it, and the index has its own.
    fn undo_after(
        &self,
        decoding: &Decoding<'_>,
        file: &dyn StorageFile,
        stored: Body,
    ) -> std::io::Result<Result<Body, Damage>> {
        let (after, found) = (&decoding.level.after, stored.nbytes());
        if let Some(trailing) = trailing_checksums(after) {
            return Ok(match found.checked_sub(trailing) {
                Some(nbytes) => Ok(stored.part(0, nbytes)),
                None => Err(Damage::TooShort { found, index: trailing }),
            });
        }
        let limit = decoding.limit;
        if found > limit {
            return Ok(Err(Damage::TooLong { found, limit }));
        }
        self.stats.indexes.decoded.count();
        // The decoded length is not known in advance. Most shards fit into a small reservation,
        // which lets many be decoded at once; one that does not is decoded again with the full
        // limit.
        let usual = found.saturating_mul(USUAL_RATIO).max(USUAL_BYTES);
        for most in [usual.min(limit), limit] {
            // Room for the stored bytes, the decoded ones, and an intermediate between two
            // compressors.
            let _room = ROOM.take(most.saturating_mul(2).saturating_add(found));
            let Some(bytes) = stored.read(file)? else {
                return Ok(Err(Damage::TooShort { found, index: found }));
            };
            return Ok(match decode(after, bytes, most) {
                Err(DecodeError::TooLong { .. }) if most < limit => continue,
                Err(DecodeError::NoMemory(error)) => return Err(error.into()),
                Err(error) => Err(error.into()),
                Ok(mut bytes) => {
                    bytes.shrink_to_fit();
                    Ok(Body::InMemory { start: 0, end: bytes.len(), bytes: Arc::new(bytes) })
                }
            });
        }
        // The last attempt returns from the loop.
        Ok(Err(Damage::TooLong { found, limit }))
    }

    /// Returns the shard of `level` + 1 that is stored as a chunk at `body` inside `parent`.
    pub(super) fn inner_shard(
        &self,
        array: &SourceArray,
        location: &Location,
        id: ShardId,
        parent: &LoadedShard,
        body: Body,
    ) -> Result<Arc<LoadedShard>, StoreError> {
        let outer = &location.shard;
        let current = |shard: &LoadedShard| shard.stat.unchanged(&parent.stat);
        let _loading = self.loading_lock(&id);
        let cached = self.shards.lock().get(&id).filter(|shard| current(shard));
        let shard = match cached {
            Some(shard) => {
                self.stats.indexes.hits.count();
                shard
            }
            None => self.load_inner(array, outer, id, parent, body)?,
        };
        match &shard.state {
            Ok(_) => Ok(shard),
            Err(damage) => {
                let (path, damage) = (array.shard_path(outer), Arc::clone(damage));
                let position = location.positions[id.level - 1].clone();
                let error = StoreError::InnerDamaged { shard: path, position, damage };
                self.report(&error);
                Err(error)
            }
        }
    }

    fn load_inner(
        &self,
        array: &SourceArray,
        outer: &[u64],
        id: ShardId,
        parent: &LoadedShard,
        body: Body,
    ) -> Result<Arc<LoadedShard>, StoreError> {
        let path = array.shard_path(outer);
        let changing = || StoreError::Changing { shard: path.clone() };
        let file = self.shard_file(array, outer, &parent.stat)?.ok_or_else(changing)?;
        let decoding = self.decoding(array, id.level, outer);
        let stored = Some(body.clone());
        let state = self.read_ready(&decoding, &*file, body).map_err(io_error(&path))?;
        if !self.config.immutable {
            let after = file.stat().map_err(io_error(&path))?;
            if !after.unchanged(&parent.stat) {
                return Err(changing());
            }
        }
        let state = state.map_err(Arc::new);
        if state.is_err() {
            self.stats.indexes.damaged.count();
        }
        let checked = AtomicU64::new(parent.checked.load(Ordering::Relaxed));
        let (stat, provisional) = (parent.stat, parent.provisional);
        let shard = Arc::new(LoadedShard { id, stat, state, stored, checked, provisional });
        self.shards.lock().put(id, Arc::clone(&shard), shard.memory());
        Ok(shard)
    }
}

/// Placeholder for attributes that cannot be read; it equals those of no file.
const NO_STAT: Stat = Stat {
    dev: 0,
    ino: 0,
    kind: FileKind::File,
    mode: 0,
    uid: 0,
    gid: 0,
    links: 1,
    size: 0,
    mtime: super::storage::Timestamp { seconds: 0, nanoseconds: 0 },
    ctime: super::storage::Timestamp { seconds: 0, nanoseconds: 0 },
    atime: super::storage::LastRead(super::storage::Timestamp { seconds: 0, nanoseconds: 0 }),
};
