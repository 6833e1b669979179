//! Writers of one store of objects, who know nothing of each other: no order of their requests, and no loss
//! of a request or an answer, loses or invents a chunk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use shardfs::format::plan::Policy;
use shardfs::format::plan::parts::PartLimits;
use shardfs::store::content::Content;
use shardfs::store::storage::{
    Current, FileKind, ObjectPart, ObjectStorage, PutError, Stat, Storage, StorageFile, Timestamp,
    Visit, When, WriteId,
};
use shardfs::store::{Base, Freshness, ShardStore, StagedChunk, StoreConfig, StoreError};

use crate::power;
use crate::power::{Case, Chunks, Rng, parse, staged};
use crate::support;
use crate::support::Coords;

/// Content of a chunk; `None` if there is none.
type Value = Option<Vec<u8>>;

/// Version of an object. Versions with the same bytes are the same one, as where the entity tag is a hash.
#[derive(Clone)]
struct Object {
    tag: String,
    write: Option<WriteId>,
    bytes: Arc<Vec<u8>>,
}

impl Object {
    fn new(bytes: Vec<u8>, write: Option<WriteId>) -> Self {
        Self { tag: blake3::hash(&bytes).to_hex().to_string(), write, bytes: Arc::new(bytes) }
    }

    fn stat(&self) -> Stat {
        let ino = u64::from_str_radix(&self.tag[..15], 16).unwrap();
        let (size, time) = (self.bytes.len() as u64, Timestamp::default());
        let (mtime, ctime, atime) = (time, time, time);
        let (kind, mode) = (FileKind::File, 0o644);
        Stat { dev: 0, ino, kind, mode, uid: 0, gid: 0, links: 1, size, mtime, ctime, atime }
    }
}

/// What a writer wants to do to a chunk.
#[derive(Clone)]
struct Wish {
    content: Value,
    /// Contents that it may replace: the one that it was staged over, and those of its own attempts.
    over: Vec<Value>,
}

/// A request to put an object, which may arrive late.
struct Request {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Entity tag that it names; `None` if there is to be no object.
    tag: Option<String>,
    id: WriteId,
    wishes: BTreeMap<Coords, Wish>,
}

/// The store itself, which checks every change.
struct Bucket {
    case: &'static Case,
    honours_conditions: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<PathBuf, Object>,
    late: Vec<Request>,
    /// Those that arrive when a test lets them.
    held: Vec<Request>,
    /// All contents that each chunk has had, one after the other.
    values: BTreeMap<Coords, Vec<Value>>,
    /// What should not have happened.
    wrong: Vec<String>,
}

impl Bucket {
    fn new(case: &'static Case, honours_conditions: bool) -> Self {
        let chunks = &case.model.chunks;
        let objects = case.files(chunks).into_iter();
        let objects = objects.map(|(path, bytes)| (path, Object::new(bytes, None))).collect();
        let values = places(case).into_iter();
        let values = values.map(|at| (at.clone(), vec![chunks.get(&at).cloned()])).collect();
        let state = State { objects, values, ..State::default() };
        Self { case, honours_conditions, state: Mutex::new(state) }
    }

    /// A request arrives. Returns the new entity tag if its condition holds.
    fn arrive(&self, request: &Request) -> Option<String> {
        let mut state = self.state.lock().unwrap();
        let before = state.objects.get(&request.path).cloned();
        let holds = before.as_ref().map(|object| &object.tag) == request.tag.as_ref();
        if self.honours_conditions && !holds {
            return None;
        }
        let object = Object::new(request.bytes.clone(), Some(request.id));
        let tag = object.tag.clone();
        let (shard, before) = (self.shard_of(&request.path), before.map(|it| it.bytes));
        let before = before.map_or_else(Chunks::new, |it| self.parsed(&shard, &it));
        let after = self.parsed(&shard, &object.bytes);
        for coords in self.case.members(&shard) {
            let (was, is) = (before.get(&coords).cloned(), after.get(&coords).cloned());
            let wish = request.wishes.get(&coords);
            let is_allowed = wish.is_some_and(|wish| {
                is == wish.content && (was == wish.content || wish.over.contains(&was))
            });
            if was != is && !is_allowed {
                state.wrong.push(format!("{coords:?}: {was:?} became {is:?}"));
            }
            state.values.get_mut(&coords).unwrap().push(is);
        }
        state.objects.insert(request.path.clone(), object);
        Some(tag)
    }

    fn shard_of(&self, path: &Path) -> Coords {
        let shards = places(self.case).into_iter();
        let mut shards = shards.map(|coords| power::shard_of(&self.case.model, &coords));
        shards.find(|shard| self.case.path(shard) == path).unwrap()
    }

    fn parsed(&self, shard: &[u64], bytes: &[u8]) -> Chunks {
        parse::shard(self.case, shard, bytes).unwrap()
    }

    fn object(&self, path: &Path) -> Option<Object> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }
}

/// All places in the chunk grid.
fn places(case: &Case) -> Vec<Coords> {
    support::places(&case.model.grid())
}

/// A writer's way to the store: answers are believed for a while, and both requests and answers get lost.
struct Access {
    bucket: Arc<Bucket>,
    world: OnceLock<Weak<World>>,
    rng: Mutex<Rng>,
    /// One request in so many meets a fault; 0 for none.
    faults: Mutex<usize>,
    /// What happens to the next request to put something.
    next: Mutex<Option<Fault>>,
    /// What is believed of paths, if anything is.
    known: Option<Mutex<BTreeMap<PathBuf, Option<Object>>>>,
    /// Whether the store assembles objects for it.
    assembles: bool,
    wishes: Mutex<BTreeMap<Coords, Wish>>,
}

/// What happens to a request.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// It does not arrive.
    LostBefore,
    /// Its answer does not arrive.
    LostAfter,
    /// It arrives at another time.
    Late,
    /// It arrives twice.
    Twice,
    /// The store says that another one is under way.
    Busy,
    /// It arrives when the test lets it.
    Held,
}

const FAULTS: [Fault; 5] =
    [Fault::LostBefore, Fault::LostAfter, Fault::Late, Fault::Twice, Fault::Busy];

fn no_answer() -> io::Error {
    io::Error::from_raw_os_error(libc::ETIMEDOUT)
}

impl Access {
    fn fault(&self) -> Fault {
        let (faults, mut rng) = (*self.faults.lock().unwrap(), self.rng.lock().unwrap());
        if faults > 0 && rng.one_in(faults) { *rng.pick(&FAULTS) } else { Fault::None }
    }

    /// Others act, and what is late arrives, before a request does.
    fn meanwhile(&self) {
        let world = self.world.get().and_then(Weak::upgrade);
        let (acts, arrives) = {
            let mut rng = self.rng.lock().unwrap();
            (rng.one_in(3), rng.one_in(4))
        };
        if arrives {
            let late = {
                let mut state = self.bucket.state.lock().unwrap();
                let n = state.late.len();
                (n > 0).then(|| state.late.swap_remove(self.rng.lock().unwrap().below(n)))
            };
            late.iter().for_each(|request| drop(self.bucket.arrive(request)));
        }
        if let (true, Some(world)) = (acts, world) {
            let at = self.rng.lock().unwrap().below(world.writers.len());
            world.turn(at);
        }
    }

    /// What is believed to be at a path.
    fn find(&self, path: &Path) -> io::Result<Option<Object>> {
        if let Some(known) = &self.known
            && let Some(object) = known.lock().unwrap().get(path)
        {
            return Ok(object.clone());
        }
        self.ask(path)
    }

    fn ask(&self, path: &Path) -> io::Result<Option<Object>> {
        self.meanwhile();
        if !matches!(self.fault(), Fault::None) {
            return Err(no_answer());
        }
        let object = self.bucket.object(path);
        if let Some(known) = &self.known {
            known.lock().unwrap().insert(path.to_owned(), object.clone());
        }
        Ok(object)
    }

    fn distrust(&self, path: &Path) {
        if let Some(known) = &self.known {
            known.lock().unwrap().remove(path);
        }
    }
}

/// An object that is open: one version of it.
struct Open {
    access: Arc<Access>,
    path: PathBuf,
    object: Object,
}

impl StorageFile for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.access.meanwhile();
        if !matches!(self.access.fault(), Fault::None) {
            return Err(no_answer());
        }
        let now = self.access.bucket.object(&self.path);
        if now.is_none_or(|now| now.tag != self.object.tag) {
            self.access.distrust(&self.path);
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        let rest = usize::try_from(offset).ok().and_then(|at| self.object.bytes.get(at..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(self.object.stat())
    }

    fn entity_tag(&self) -> Option<&str> {
        Some(&self.object.tag)
    }
}

/// The same, as what a [`ShardStore`] is given.
struct Shared(Arc<Access>);

impl Storage for Shared {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let object =
            self.0.find(path)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(Arc::new(Open { access: Arc::clone(&self.0), path: path.to_owned(), object }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let object =
            self.0.find(path)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(object.stat())
    }

    fn list(&self, _path: &Path, _from: u64, _visit: &mut Visit<'_>) -> io::Result<()> {
        Ok(())
    }

    fn pins_versions(&self) -> bool {
        true
    }

    fn objects(&self) -> Option<&dyn ObjectStorage> {
        Some(self)
    }
}

impl ObjectStorage for Shared {
    /// No commit removes one.
    fn remove(&self, _path: &Path) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    fn current(&self, path: &Path) -> io::Result<Option<Current>> {
        self.0.distrust(path);
        let object = self.0.ask(path)?;
        Ok(object.map(|object| Current { tag: Some(object.tag), write: object.write }))
    }

    fn put(
        &self,
        path: &Path,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<String, PutError> {
        let tag = match when {
            When::Absent => None,
            When::Is(tag) => Some(tag.to_owned()),
        };
        self.send(path, content, tag, id)
    }

    fn part_limits(&self) -> Option<PartLimits> {
        let limits = PartLimits { least: 8, most_copied: 40, most_sent: 20, count: 100, gain: 1 };
        self.0.assembles.then_some(limits)
    }

    /// Each part is copied at a time of its own.
    fn assemble(
        &self,
        path: &Path,
        parts: Vec<ObjectPart>,
        before: &str,
        id: WriteId,
    ) -> Result<String, PutError> {
        self.0.distrust(path);
        let mut bytes = Vec::new();
        for part in parts {
            self.0.meanwhile();
            if !matches!(self.0.fault(), Fault::None) {
                return Err(PutError::Unknown(no_answer()));
            }
            match part {
                ObjectPart::Sent(sent) => bytes.extend(sent),
                ObjectPart::Kept(range) => {
                    let now = self.0.bucket.object(path).filter(|now| now.tag == before);
                    let now = now.ok_or(PutError::Conflict)?;
                    let at = usize::try_from(range.offset).unwrap();
                    let nbytes = usize::try_from(range.nbytes).unwrap();
                    bytes.extend_from_slice(&now.bytes[at..at + nbytes]);
                }
            }
        }
        self.send(path, bytes, Some(before.to_owned()), id)
    }
}

impl Shared {
    fn send(
        &self,
        path: &Path,
        bytes: Vec<u8>,
        tag: Option<String>,
        id: WriteId,
    ) -> Result<String, PutError> {
        let wishes = self.0.wishes.lock().unwrap().clone();
        let request = Request { path: path.to_owned(), bytes, tag, id, wishes };
        self.0.distrust(path);
        self.0.meanwhile();
        let next = self.0.next.lock().unwrap().take();
        let answer = match next.unwrap_or_else(|| self.0.fault()) {
            Fault::None => self.0.bucket.arrive(&request),
            Fault::Twice => {
                let first = self.0.bucket.arrive(&request);
                self.0.meanwhile();
                self.0.bucket.arrive(&request);
                first
            }
            Fault::Busy => None,
            fault => {
                match fault {
                    Fault::LostAfter => drop(self.0.bucket.arrive(&request)),
                    Fault::Late => self.0.bucket.state.lock().unwrap().late.push(request),
                    Fault::Held => self.0.bucket.state.lock().unwrap().held.push(request),
                    _ => (),
                }
                return Err(PutError::Unknown(no_answer()));
            }
        };
        answer.ok_or(PutError::Conflict)
    }
}

/// A host with a mount of its own.
struct Writer {
    number: usize,
    access: Arc<Access>,
    store: ShardStore,
    rng: Rng,
    staged: BTreeMap<Coords, (StagedChunk, Wish)>,
}

/// All writers; the one that is acting is away.
struct World {
    bucket: Arc<Bucket>,
    writers: Vec<Mutex<Option<Writer>>>,
}

impl World {
    fn new(case: &'static Case, rng: &mut Rng, honours_conditions: bool) -> Arc<Self> {
        let bucket = Arc::new(Bucket::new(case, honours_conditions));
        let (faults, number) = (*rng.pick(&[0, 2, 4, 10]), 2 + rng.below(3));
        let writer = |number| {
            let access = Arc::new(Access {
                bucket: Arc::clone(&bucket),
                world: OnceLock::new(),
                rng: Mutex::new(Rng(rng.next())),
                faults: Mutex::new(faults),
                next: Mutex::default(),
                known: rng.one_in(2).then(Mutex::default),
                assembles: rng.one_in(2),
                wishes: Mutex::default(),
            });
            let config = StoreConfig {
                trusted: Duration::ZERO,
                pause: Duration::ZERO,
                cache_size: 1 << 20,
                open_files: 4,
                ..StoreConfig::default()
            };
            let storage = Arc::new(Shared(Arc::clone(&access)));
            let store = ShardStore::new(storage, config, Arc::default());
            let (rng, staged) = (Rng(rng.next()), BTreeMap::new());
            Mutex::new(Some(Writer { number, access, store, rng, staged }))
        };
        let writers = (0..number).map(writer).collect();
        let world = Arc::new(Self { bucket, writers });
        for writer in &world.writers {
            let writer = writer.lock().unwrap();
            writer.as_ref().unwrap().access.world.set(Arc::downgrade(&world)).unwrap();
        }
        world
    }

    /// A writer acts, unless it is acting already.
    fn turn(&self, at: usize) {
        let writer = self.writers[at].lock().unwrap().take();
        if let Some(mut writer) = writer {
            match writer.rng.below(5) {
                0..=2 => writer.stage(&self.bucket),
                _ => writer.commit(&self.bucket),
            }
            *self.writers[at].lock().unwrap() = Some(writer);
        }
    }

    /// Nothing is lost any more: all commit what is left.
    fn end(&self) {
        for writer in &self.writers {
            *writer.lock().unwrap().as_ref().unwrap().access.faults.lock().unwrap() = 0;
        }
        let late = std::mem::take(&mut self.bucket.state.lock().unwrap().late);
        late.iter().for_each(|request| drop(self.bucket.arrive(request)));
        for writer in &self.writers {
            let mut one = writer.lock().unwrap().take().unwrap();
            one.commit(&self.bucket);
            assert!(one.staged.is_empty(), "writer {}: not all was committed", one.number);
            *writer.lock().unwrap() = Some(one);
        }
    }
}

impl Writer {
    /// Writes to a chunk, over what this writer sees of it.
    fn stage(&mut self, bucket: &Bucket) {
        let case = bucket.case;
        let coords = self.rng.pick(&places(case)).clone();
        let length = 9 + self.rng.below(8);
        let content = (!self.rng.one_in(5)).then(|| self.rng.bytes(length));
        if let Some((chunk, wish)) = self.staged.get_mut(&coords) {
            chunk.content = content.clone().map(|bytes| Content::Memory(bytes.into()));
            wish.content = content;
            return;
        }
        let Ok(base) = self.store.base(&case.array, &coords, Freshness::Again) else { return };
        let values = bucket.state.lock().unwrap().values[&coords].clone();
        let is_base = |value: &Value| {
            let content = value.clone().map(|bytes| Content::Memory(bytes.into()));
            base.is_same_chunk(&Base::default().committed(content.as_ref()).unwrap())
        };
        let over: Vec<Value> = values.into_iter().filter(is_base).take(1).collect();
        assert_eq!(over.len(), 1, "{coords:?}: it never had the content that it was staged over");
        let chunk = staged(&coords, content.clone(), base);
        self.staged.insert(coords, (chunk, Wish { content, over }));
    }

    fn commit(&mut self, bucket: &Bucket) {
        let wishes = self.staged.iter().map(|(coords, (_, wish))| (coords.clone(), wish.clone()));
        *self.access.wishes.lock().unwrap() = wishes.collect();
        let chunks: Vec<StagedChunk> = self.staged.values().map(|(it, _)| it.clone()).collect();
        let outcomes = self.store.commit(&bucket.case.array, &chunks, Policy::Auto);
        let mut state = bucket.state.lock().unwrap();
        for (chunk, outcome) in chunks.iter().zip(outcomes) {
            let coords = &chunk.coords;
            let (_, wish) = self.staged.get_mut(coords).unwrap();
            let values = &state.values[coords];
            let wrong = match outcome.as_ref().map_err(Arc::as_ref) {
                Ok(()) => {
                    let is_there = values.contains(&wish.content);
                    (!is_there).then(|| format!("{:?} is not durable", wish.content))
                }
                Err(StoreError::Stale { .. }) => {
                    // Others have changed it after what it was staged over.
                    let is_own =
                        |value: &Value| wish.over.contains(value) || *value == wish.content;
                    let from = values.iter().position(|value| *value == wish.over[0]);
                    let changed = values[from.unwrap_or(0)..].iter().any(|value| !is_own(value));
                    (!changed).then(|| "it is given up, and none has changed it".to_owned())
                }
                Err(
                    StoreError::Io { .. }
                    | StoreError::Contended { .. }
                    | StoreError::Changing { .. },
                ) => {
                    wish.over.push(wish.content.clone());
                    continue;
                }
                Err(error) => Some(error.to_string()),
            };
            self.staged.remove(coords);
            state.wrong.extend(wrong.map(|wrong| format!("{coords:?}: {wrong}")));
        }
    }
}

fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let plain = power::plain(false).into_iter().chain(power::plain(true));
        plain.chain(power::nested()).chain(power::others()).chain(power::draft()).collect()
    })
}

/// Returns what was wrong in a history.
fn history(seed: u64, honours_conditions: bool) -> Vec<String> {
    let mut rng = Rng(seed);
    let case = rng.pick(cases());
    let world = World::new(case, &mut rng, honours_conditions);
    for _ in 0..6 + rng.below(20) {
        world.turn(rng.below(world.writers.len()));
    }
    world.end();
    // Who reads it all anew finds what is there.
    let state = world.bucket.state.lock().unwrap();
    let mut wrong = state.wrong.clone();
    for (path, object) in &state.objects {
        let shard = world.bucket.shard_of(path);
        let chunks = world.bucket.parsed(&shard, &object.bytes);
        for coords in case.members(&shard) {
            let last = state.values[&coords].last().unwrap();
            if chunks.get(&coords) != last.as_ref() {
                wrong.push(format!("{coords:?}: it is not what it was last"));
            }
        }
    }
    wrong
}

/// Two versions with the same chunks have the same entity tag where that is a hash of the bytes.
#[test]
fn a_request_that_arrives_late_does_not_find_the_version_that_it_was_made_for_once_more() {
    for case in cases() {
        for (removes, assembles) in [(false, false), (true, false), (false, true), (true, true)] {
            let bucket = Arc::new(Bucket::new(case, true));
            let access = Arc::new(Access {
                bucket: Arc::clone(&bucket),
                world: OnceLock::new(),
                rng: Mutex::new(Rng(1)),
                faults: Mutex::default(),
                next: Mutex::default(),
                known: None,
                assembles,
                wishes: Mutex::default(),
            });
            let config = StoreConfig {
                trusted: Duration::ZERO,
                pause: Duration::ZERO,
                ..StoreConfig::default()
            };
            let store =
                ShardStore::new(Arc::new(Shared(Arc::clone(&access))), config, Arc::default());
            let coords = case.model.chunks.keys().next().unwrap();
            let commit = |content: &Value| {
                let changes = vec![(coords.clone(), content.clone())];
                let staged = power::stage(&store, &case.array, &changes);
                for outcome in store.commit(&case.array, &staged, Policy::Auto) {
                    outcome.unwrap();
                }
            };
            // A version that shardfs has made, to which the shard is brought back.
            let (before, other) = (Some(vec![1; 9]), Some(vec![2; 9]).filter(|_| !removes));
            commit(&before);
            *access.next.lock().unwrap() = Some(Fault::Held);
            commit(&other);
            commit(&before);
            let held = bucket.state.lock().unwrap().held.pop().unwrap();
            assert_eq!(bucket.arrive(&held), None, "{}", case.name);
            assert_eq!(power::read(&store, &case.array, coords).unwrap(), before, "{}", case.name);
        }
    }
}

fn histories() -> u64 {
    std::env::var("SHARDFS_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(4_000)
}

#[test]
fn no_order_of_requests_and_no_loss_of_one_loses_or_invents_a_chunk() {
    for seed in 0..histories() {
        let wrong = history(seed, true);
        assert!(wrong.is_empty(), "history {seed}: {wrong:#?}");
    }
}

/// So the check above can fail.
#[test]
fn where_conditions_are_ignored_chunks_are_lost_and_that_is_noticed() {
    assert!((0..200).any(|seed| !history(seed, false).is_empty()));
}
