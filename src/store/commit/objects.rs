//! Commits to a store of objects: each shard is replaced at once, if it still is the version that was planned
//! for.
//!
//! ```text
//! for each shard, some at once:
//!     hold back            if this process has replaced it of late, to let others do so ([`turns`])
//!     load its index       as it was found last, at first
//!     compare              chunks that others have changed since they were staged fail
//!     plan                 the shard anew, of the chunks that are kept and the new ones; or behind what is
//!                          there, which the store copies itself
//!     put                  if it still is that version; or, for a new one, if there still is none
//!         put              done, and durable
//!         conflict         others were faster: again, with what they have written
//!         unknown          the answer was lost: what is there now says which write it comes from;
//!                          this one: done; otherwise again
//! ```
//!
//! A request whose answer was lost may arrive at any time later. It changes nothing then: each version of a
//! shard has bytes of its own ([`Mark`](crate::format::plan::Mark)) and none is ever removed, so the version
//! that the request was made for does not come back.
//!
//! [`turns`]: crate::store::turns

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::members::{Examined, Members, dependent, examine};
use super::new_version::NewVersion;
use super::setbacks::{Progress, Setbacks, chance};
use super::staged::{Outcome, StagedChunk, refused};
use crate::format::Coords;
use crate::memory::UPLOADS;
use crate::store::blob::Sources;
use crate::store::collect::BATCHES;
use crate::store::commit_state::{Attempts, Lineage};
use crate::store::content::Content;
use crate::store::formats::ChangedShard;
use crate::store::loaded::{LoadedShard, ShardId};
use crate::store::storage::{Current, ObjectStorage, PutError, StorageFile, When, WriteId};
use crate::store::turns::Success;
use crate::store::{Freshness, ShardStore, SourceArray, StoreError, io_error};

/// Shards that are replaced at once.
const AT_ONCE: usize = 4;

/// Attempts to let the store assemble a shard, before it is put as a whole.
const ASSEMBLED: u32 = 2;

/// Bytes of a version that are requested at once, to be put together with others, at least: whatever the memory for it.
const LEAST_BATCH: u64 = 2 << 20;

/// The same, at most. A range is half as long at most, and fetched by one request.
const LONGEST_BATCH: u64 = 16 << 20;

/// Bytes of a shard that are sent at most: they are in memory.
const LONGEST: u64 = 1 << 30;

/// Time after which it is looked whether the mount ends, while a commit holds back.
const LOOK: Duration = Duration::from_millis(50);

/// Chunks that have failed, by their numbers in the commit.
type Failed = Vec<(usize, Arc<StoreError>)>;

impl ShardStore {
    /// Returns whether a store of objects was given up, as the mount ends, for it did not answer.
    pub fn is_given_up(&self) -> bool {
        self.commits.is_given_up.load(Ordering::Relaxed)
    }

    /// Records that a store of objects has not answered. Once the mount ends, it is not asked again.
    pub fn note_silence(&self) {
        let is_ending = self.commits.is_ending.load(Ordering::Relaxed);
        self.commits.is_given_up.store(is_ending, Ordering::Relaxed);
    }

    /// Says that the mount ends: commits from now on wait for a store of objects for a short time only.
    pub fn end_soon(&self) {
        self.commits.is_ending.store(true, Ordering::Relaxed);
    }

    /// Commits chunks like [`Self::commit`], to an array in a store of objects. `contents` are those of all
    /// chunks.
    pub(super) fn commit_objects(
        &self,
        objects: &dyn ObjectStorage,
        array: &SourceArray,
        chunks: &[StagedChunk],
        contents: &[Content],
    ) -> Vec<Outcome> {
        if !array.format.has_index() {
            // Their versions could not be told apart, and a document may count them.
            return refused(chunks, StoreError::ReadOnly { array: array.path.clone() });
        }
        let mut shards: BTreeMap<Coords, Members> = BTreeMap::new();
        for (at, chunk) in chunks.iter().enumerate() {
            let location = array.layout.locate(&chunk.coords);
            shards.entry(location.shard.clone()).or_default().push((at, location));
        }
        let commits = self.commits.of_array(array);
        let _turn = commits.turn.lock();
        // No shard is ever in between two states: readers need not wait, so the state is not locked meanwhile.
        let attempts = Mutex::new(std::mem::take(&mut commits.state.lock().attempts));
        let progress = Progress::begin(&self.commits);
        let helpers = shards.len().min(AT_ONCE).saturating_sub(1);
        let (now, mut shards) = (Instant::now(), Vec::from_iter(shards));
        // Those that have to wait keep no others waiting.
        shards
            .sort_by_cached_key(|(coords, _)| self.commits.turns.wait(array.shard_id(coords), now));
        let (shards, failed) = (Mutex::new(shards.into_iter()), Mutex::new(Failed::new()));
        let work = || {
            loop {
                let next = shards.lock().next();
                let Some((coords, members)) = next else { break };
                let (path, id) = (array.shard_path(&coords), array.shard_id(&coords));
                let replacement = Replacement {
                    store: self,
                    objects,
                    array,
                    chunks,
                    contents,
                    attempts: &attempts,
                    progress: &progress,
                    coords,
                    path,
                    id,
                    members,
                    sent: Vec::new(),
                    not_assembled: 0,
                    refused: None,
                    found: None,
                    failed: Vec::new(),
                };
                let of_shard = replacement.run();
                failed.lock().extend(of_shard);
            }
        };
        thread::scope(|scope| {
            for _ in 0..helpers {
                // Where no thread can be started, this one does it all.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        commits.state.lock().attempts = attempts.into_inner();
        let mut outcomes: Vec<Outcome> = chunks.iter().map(|_| Ok(())).collect();
        for (at, error) in failed.into_inner() {
            outcomes[at] = Err(error);
        }
        outcomes
    }
}

/// Replacement of one shard.
struct Replacement<'a> {
    store: &'a ShardStore,
    objects: &'a dyn ObjectStorage,
    array: &'a SourceArray,
    /// Chunks of the whole commit, and their contents.
    chunks: &'a [StagedChunk],
    contents: &'a [Content],
    attempts: &'a Mutex<Attempts>,
    progress: &'a Progress<'a>,
    coords: Coords,
    path: PathBuf,
    id: ShardId,
    /// Changes that have not failed.
    members: Members,
    /// Writes of this commit of which it is unknown whether they have happened, or will, each with the lineage
    /// that it goes on.
    sent: Vec<(WriteId, Lineage)>,
    /// Attempts to let the store assemble the shard that have failed. After some it is put as a whole.
    not_assembled: u32,
    /// Entity tag of the version that the store has just refused to assemble another one over, as if others had
    /// replaced it.
    refused: Option<String>,
    /// Number of the lineage that the first attempt has met.
    found: Option<u64>,
    failed: Failed,
}

/// What an attempt has done.
enum Done {
    /// There was nothing to replace.
    Nothing,
    /// The shard was replaced, which goes on the lineage of this number; `None` if it is not known.
    Replaced(Option<u64>),
}

/// Reason why an attempt has not replaced the shard.
enum Setback {
    /// Another attempt may.
    Again(StoreError),
    /// No other attempt will.
    Final(StoreError),
}

impl<'a> Replacement<'a> {
    /// Replaces the shard, and returns what has failed.
    fn run(mut self) -> Failed {
        self.store.stats.commits.commits.count();
        let replaced = self.replace();
        self.store.commits.set_busy(self.id, false);
        if let Err(error) = replaced {
            // What is known of it may not be true any more.
            self.store.commits.leave(self.id, None);
            if !matches!(error, StoreError::Contended { .. }) {
                self.store.commits.turns.lose_lineage(self.id);
            }
            self.store.forget(self.id);
            self.store.report(&error);
            let error = Arc::new(error);
            for (at, _) in std::mem::take(&mut self.members) {
                self.attempts
                    .lock()
                    .note(&self.chunks[at].coords, self.chunks[at].content.as_ref());
                self.failed.push((at, Arc::clone(&error)));
            }
        }
        for (at, _) in &self.members {
            self.attempts.lock().forget(&self.chunks[*at].coords);
        }
        self.failed
    }

    fn replace(&mut self) -> Result<(), StoreError> {
        let mut setbacks = Setbacks::none(self.store.config.pause);
        self.hold_back();
        if self.progress.is_over() {
            let late = io::Error::from_raw_os_error(libc::ETIMEDOUT);
            return Err(io_error(&self.path)(late));
        }
        let mut began = Instant::now();
        loop {
            let error = match self.attempt() {
                Ok(done) => {
                    self.note_success(&done, setbacks.lost(), began.elapsed());
                    return Ok(());
                }
                Err(Setback::Final(error)) => {
                    self.progress.note();
                    return Err(error);
                }
                Err(Setback::Again(error)) => error,
            };
            if !is_silence(&error) {
                self.progress.note();
            }
            let took = began.elapsed();
            let pause = setbacks.add(&error, took, self.progress);
            let Some(pause) = pause.filter(|_| !self.progress.is_over()) else {
                return Err(match error {
                    StoreError::Changing { shard } => StoreError::Contended { shard },
                    error => error,
                });
            };
            log::debug!("{error}; another attempt in {} ms", pause.as_millis());
            thread::sleep(pause);
            began = Instant::now();
            self.store.commits.set_busy(self.id, false);
            self.store.forget(self.id);
            match self.objects.current(&self.path) {
                Ok(now) => {
                    let tag = now.as_ref().and_then(|now| now.tag.as_deref());
                    // No other writer has replaced it: the reason was another one.
                    let is_there = self.refused.take().is_some_and(|refused| tag == Some(&refused));
                    self.not_assembled += u32::from(is_there);
                    if let Some(done) = self.made(now) {
                        self.note_success(&done, setbacks.lost(), took);
                        return Ok(());
                    }
                }
                // The next attempt meets the same, or succeeds.
                Err(error) => log::debug!("{}", io_error(&self.path)(error)),
            }
        }
    }

    /// Lets others replace the shard that want to.
    fn hold_back(&self) {
        let commits = &self.store.commits;
        if !self.objects.is_shared() || self.store.config.pause.is_zero() {
            return;
        }
        loop {
            let left = commits.turns.wait(self.id, Instant::now());
            if left.is_zero() || commits.is_ending.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(left.min(LOOK));
            // The store was not asked.
            self.progress.note();
        }
    }

    /// Records what an attempt has done, which has taken this time, after some that were lost to others.
    fn note_success(&self, done: &Done, lost: u32, took: Duration) {
        self.progress.note();
        if let (Done::Replaced(lineage), Some(found)) = (done, self.found) {
            let (at, lineage, chance) = (Instant::now(), *lineage, chance());
            let success = Success { at, found, lineage, lost, took, chance };
            self.store.commits.turns.succeed(self.id, success);
        }
    }

    /// Returns what was done if what is there now comes from a write of this commit, and records it.
    fn made(&self, now: Option<Current>) -> Option<Done> {
        let Current { tag, write } = now?;
        let write = write?;
        let at = self.sent.iter().position(|(sent, _)| *sent == write)?;
        let lineage = match (self.sent.get(at), tag) {
            // It was put over the version that it was made for, and nothing was after it.
            (Some((_, lineage)), Some(tag)) if at + 1 == self.sent.len() => {
                self.leave(*lineage, &tag)
            }
            // The lineage is not known: others may have been there in between.
            _ => {
                self.store.commits.leave(self.id, None);
                None
            }
        };
        Some(Done::Replaced(lineage))
    }

    /// Replaces the shard, if it is the version that it was found to be.
    fn attempt(&mut self) -> Result<Done, Setback> {
        let (store, array) = (self.store, self.array);
        let loaded = store.shard(array, &self.coords, Freshness::Again).map_err(Setback::of)?;
        let version = loaded.as_ref().map(|shard| shard.stat().version());
        let lineage = store.commits.lineage(self.id, version);
        self.found.get_or_insert(lineage.number);
        store.commits.set_busy(self.id, true);
        if let Some(damage) = loaded.as_ref().and_then(|shard| shard.damage()) {
            let error = StoreError::Damaged { shard: self.path.clone(), damage };
            return Err(Setback::Final(error.of_writer()));
        }
        let old = match version {
            None => None,
            Some(version) => {
                let file = store.shard_file(array, &self.coords, version).map_err(Setback::of)?;
                let changing = || StoreError::Changing { shard: self.path.clone() };
                Some(file.ok_or_else(|| Setback::Again(changing()))?)
            }
        };
        self.leave_out_stale(loaded.as_ref(), lineage)?;
        self.leave_out_dependent();
        let old = loaded.as_deref().zip(old.as_deref());
        let id = WriteId::random().map_err(|error| Setback::Final(io_error(&self.path)(error)))?;
        let Some(new) = self.plan(old, id)? else { return Ok(Done::Nothing) };
        let tag = self.put(old.map(|(_, file)| file), &new, (id, lineage))?;
        Ok(Done::Replaced(self.leave(lineage, &tag)))
    }

    /// Leaves out the chunks that others have changed since they were staged.
    fn leave_out_stale(
        &mut self,
        loaded: Option<&Arc<LoadedShard>>,
        lineage: Lineage,
    ) -> Result<(), Setback> {
        let mut stale = Vec::new();
        for (at, location) in &self.members {
            let chunk = &self.chunks[*at];
            let is_ours = |now| self.attempts.lock().has(&chunk.coords, now);
            let same =
                self.store.is_as_staged(self.array, chunk, location, loaded, lineage, &is_ours);
            match same.map_err(Setback::of) {
                Ok(true) => (),
                Ok(false) => {
                    // The version that an earlier request was made for is gone: it changes nothing any more.
                    self.attempts.lock().forget(&chunk.coords);
                    let (shard, position) = (self.path.clone(), location.positions.concat());
                    stale.push((*at, StoreError::Stale { shard, position }));
                }
                Err(Setback::Final(error)) => stale.push((*at, error)),
                // All are compared anew.
                Err(again) => return Err(again),
            }
        }
        self.leave_out(stale);
        Ok(())
    }

    /// Leaves out the chunks that depend on others which have failed.
    fn leave_out_dependent(&mut self) {
        loop {
            let chunks = self.chunks;
            let failed = self.failed.iter().map(|(at, error)| (&chunks[*at].coords, error));
            let dependent = dependent(chunks, &self.members, &failed.collect());
            if dependent.is_empty() {
                return;
            }
            self.members.retain(|(at, _)| !dependent.iter().any(|(other, _)| other == at));
            self.failed.extend(dependent);
        }
    }

    /// Plans the new shard. `None` if nothing is left to do.
    fn plan(
        &mut self,
        old: Option<(&LoadedShard, &dyn StorageFile)>,
        id: WriteId,
    ) -> Result<Option<NewVersion>, Setback> {
        let (store, array) = (self.store, self.array);
        let members = std::mem::take(&mut self.members);
        let shard = ChangedShard {
            path: &self.path,
            coords: &self.coords,
            layout: &array.layout,
            old,
            inner: &|outer, location, level| store.inner_of(array, outer, location, level),
        };
        let examined = examine(array, self.chunks, &shard, &members);
        let planned = examined.map_err(Setback::of).and_then(|examined| {
            let Examined { accepted, refused, plan } = examined;
            let limits = self.objects.part_limits().filter(|_| old.is_some());
            let version = |limits| NewVersion::plan(&*plan, id.bytes(), limits, LONGEST);
            let is_whole = self.not_assembled >= ASSEMBLED;
            let planned = match accepted.is_empty() {
                true => Ok(None),
                false => version(limits.filter(|_| !is_whole)),
            };
            let planned = match planned {
                Ok(Some(whole)) if is_whole && whole.nbytes() > LONGEST => version(limits),
                planned => planned,
            };
            let planned = planned.map_err(|error| shard.no_plan(error));
            Ok((refused, planned.map_err(Setback::Final)?))
        });
        self.members = members;
        let (refused, planned) = planned?;
        self.leave_out(refused);
        // Without one there is no shard, and no chunk for one; or no change is left.
        Ok(planned)
    }

    /// Puts the new shard in the place of the old one, and returns its entity tag.
    fn put(
        &mut self,
        old: Option<&dyn StorageFile>,
        new: &NewVersion,
        (id, lineage): (WriteId, Lineage),
    ) -> Result<String, Setback> {
        let shard = || self.path.clone();
        if new.nbytes() > LONGEST {
            let (nbytes, limit) = (new.nbytes(), LONGEST);
            return Err(Setback::Final(StoreError::TooLongToPut { shard: shard(), nbytes, limit }));
        }
        let when = match old.map(StorageFile::entity_tag) {
            None => When::Absent,
            Some(Some(tag)) => When::Is(tag),
            Some(None) => return Err(Setback::Final(StoreError::Untagged { shard: shard() })),
        };
        let _room = UPLOADS.take(new.nbytes()).map_err(|error| self.again(error))?;
        let sources = Sources { contents: self.contents, old };
        // Readers leave that much of the memory for what is fetched ahead.
        let memory = self.store.config.longest_window.saturating_mul(2);
        let batch = (memory / (AT_ONCE as u64 * BATCHES)).clamp(LEAST_BATCH, LONGEST_BATCH);
        let content = new.collect(&sources, batch).map_err(|error| self.again(error))?;
        match content.put(self.objects, &self.path, when, id) {
            Ok(tag) => Ok(tag),
            Err(PutError::Conflict) => {
                let over = old.and_then(StorageFile::entity_tag).filter(|_| new.is_assembled());
                self.refused = over.map(str::to_owned);
                Err(Setback::Again(StoreError::Contended { shard: shard() }))
            }
            Err(PutError::Refused(error)) => Err(Setback::Final(io_error(&self.path)(error))),
            Err(PutError::Unknown(error)) => {
                self.not_assembled += u32::from(new.is_assembled());
                let again = self.again(error);
                self.sent.push((id, lineage));
                Err(again)
            }
        }
    }

    /// Records the version that a shard was left as: the one with this tag. Returns the number of its lineage, which
    /// does not go on if others have replaced that version already; `None` if it is not known.
    fn leave(&self, lineage: Lineage, tag: &str) -> Option<u64> {
        let (store, array) = (self.store, self.array);
        store.forget(self.id);
        let at = Instant::now();
        let now = || {
            let loaded = store.shard(array, &self.coords, Freshness::Again).ok()??;
            let version = loaded.stat().version();
            let file = store.shard_file(array, &self.coords, version).ok()??;
            Some((version, file.entity_tag() == Some(tag)))
        };
        let now = now();
        let version = now.filter(|(_, is_left)| *is_left).map(|(version, _)| version);
        let left = version.map(|version| Lineage {
            shard: Some(version),
            is_durable: true,
            is_busy: false,
            ..lineage
        });
        if left.is_some() {
            store.commits.note_asked(self.id, at);
        }
        store.commits.leave(self.id, left);
        now.map(|_| lineage.number)
    }

    /// Leaves out chunks, each for its own reason.
    fn leave_out(&mut self, chunks: Vec<(usize, StoreError)>) {
        for (at, error) in chunks {
            self.members.retain(|(other, _)| *other != at);
            self.store.report(&error);
            self.failed.push((at, Arc::new(error)));
        }
    }

    fn again(&self, error: io::Error) -> Setback {
        Setback::Again(io_error(&self.path)(error))
    }
}

impl Setback {
    /// Returns whether what has failed because of an error may succeed later: a moment passes, and so may what
    /// is wrong with the network.
    fn of(error: StoreError) -> Self {
        match error {
            StoreError::Changing { .. } | StoreError::Io { .. } => Self::Again(error),
            error => Self::Final(error.of_writer()),
        }
    }
}

/// Returns whether an error is that the store has not answered.
fn is_silence(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { error, .. } if error.raw_os_error() == Some(libc::ETIMEDOUT))
}
