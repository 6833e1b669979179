//! Chunk files that were in a directory before the metadata of their array: gathered in shards.
//!
//! ```text
//! DIR/zarr.json                 the array's document, which comes last
//! DIR/c/0/0                     a chunk file, then a shard
//! DIR/.shardfs/journal, lock    locked meanwhile, as for a commit
//! DIR/.shardfs/gathered/        of this user alone
//!     c/0/0, .shardfs/          shards, made by commits as in any array
//!     zarr.json                 the document, once each chunk is in a durable shard
//!     placing.json              the same, once no chunk file is left
//! ```
//!
//! Until `zarr.json` is there, the chunk files are what counts, and whoever finds `gathered` removes it. From then
//! on whoever finds it goes on: chunk files are removed, each once a shard is known to have its bytes, shards get
//! their names in the array, and its document comes last. So who reads the source finds chunk files or shards
//! without metadata, or all of the array.
//!
//! **Nothing is renamed**: a file gets another name, and loses the first one once the other is durable.

pub(crate) mod found;
mod keys;
mod known;
pub(crate) mod made;
mod place;

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use self::keys::{Item, Keys};
use self::known::KnownFiles;
use self::made::{GATHERED, check_private, clear, is_complete};
use super::commit_state::ContentId;
use super::consolidated::check_groups;
use super::content::Content;
use super::document::METADATA_FILE;
use super::error::StoreError;
use super::formats::indexed;
use super::journal::Journal;
use super::storage::{PosixStorage, Stat, Storage, Version, if_present};
use super::work::{WORK_DIRECTORY, check_directory};
use super::{Freshness, Maker, ShardStore, SourceArray, StagedChunk, StoreConfig, io_error};
use crate::format::plan::Policy;
use crate::format::sharding::parse_document;
use crate::memory::zeroed;
use crate::stats::Stats;
use crate::text::shown;

/// Permissions of the directory in which an array is made.
const PRIVATE: u32 = 0o700;

/// Maximum number of chunk files that are gathered.
const MOST_FILES: usize = 1 << 23;
/// Maximum length of a chunk file in bytes.
const MOST_BYTES: u64 = 1 << 30;
/// Bytes of chunk files that are committed together, unless a single one has more.
const BATCH_BYTES: u64 = 64 << 20;
/// Chunk files that are committed together at most.
const BATCH: usize = 8192;
/// Memory for indexes of the shards that are made, in bytes.
const CACHE_BYTES: usize = 16 << 20;
/// Passes in which files are still found that others are changing.
const MOST_PASSES: usize = 50;
/// Time after which a file that is changed once more has another date.
const SETTLED: Duration = Duration::from_millis(20);

/// Reason why chunk files are not gathered. They stay as they are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatherError {
    /// There is something that no chunk can be made of.
    #[error("{}: {why}", shown(.path))]
    Unfit {
        /// Its path.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// The source, or what was found in it, is in the way.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Chunks could not be committed.
    #[error(transparent)]
    Commit(#[from] Arc<StoreError>),
    /// Another array is to be in this place, and not everything of it is: nothing else may be put there.
    #[error("{}: an array that is being put there has to be finished first: `shardfs recover` says what is in its way", shown(.0))]
    Decided(PathBuf),
}

type Result<T> = std::result::Result<T, GatherError>;

/// Where chunk files are gathered.
#[derive(Clone, Copy)]
pub(crate) struct Where<'a> {
    /// The source.
    pub source: &'a Arc<dyn Storage>,
    /// The same, or the directory that is open in it ([`PosixStorage::within`]).
    pub storage: &'a Arc<dyn Storage>,
    /// The directory, from the source's root.
    pub directory: &'a Path,
    /// Configuration of the mount's store.
    pub config: &'a StoreConfig,
    /// Counters.
    pub stats: &'a Arc<Stats>,
}

impl Where<'_> {
    /// Returns whether chunk files are being gathered in a directory, or were when a process was interrupted.
    pub(crate) fn has_any(storage: &dyn Storage, directory: &Path) -> bool {
        let made = directory.join(WORK_DIRECTORY).join(GATHERED);
        storage.posix().is_some() && storage.lstat(&made).is_ok()
    }

    /// Returns the directory in which the array is made.
    fn made(&self) -> PathBuf {
        self.directory.join(WORK_DIRECTORY).join(GATHERED)
    }
}

/// What a pass has found.
#[derive(Debug)]
pub(crate) enum Passed {
    /// Every file is a chunk, and in a shard.
    All,
    /// A file that is none, such as one that is to be renamed to a chunk. The others are in shards.
    Other(PathBuf),
}

/// Chunk files that are being gathered.
pub(crate) struct Gathering<'a> {
    source: &'a dyn PosixStorage,
    posix: &'a dyn PosixStorage,
    directory: PathBuf,
    /// The array in the making.
    array: SourceArray,
    /// Its document.
    document: Value,
    store: ShardStore,
    chunks: Keys,
    shards: Keys,
    /// Files whose bytes are in shards.
    known: KnownFiles,
    pass: u32,
    /// `true` if a file of the last pass may be changed again without another date.
    is_unsettled: bool,
    /// Owner and permissions, which are those of all files.
    maker: Option<Maker>,
    /// Owner of the shards that are there already, to whom files and directories must belong.
    owner: Option<u32>,
    journal: Journal<'a>,
}

impl<'a> Gathering<'a> {
    /// Begins to gather the chunk files in a directory in shards of the array that `document` describes.
    ///
    /// # Errors
    /// `Locked` if another process goes on gathering them.
    pub(crate) fn begin(place: Where<'a>, document: &Value) -> Result<Self> {
        let posix = place.storage.writable().map_err(io_error(place.directory))?;
        // Others may be about to put an array there.
        let journal = Journal::lock(posix, place.directory)?;
        let begin = || {
            if journal.found().is_some() {
                let why = "an unfinished commit to an array that was here has left a record";
                return Err(GatherError::Unfit { path: journal.path(), why });
            }
            let source = place.source.writable().map_err(io_error(place.directory))?;
            check_groups(source, place.directory, document)?;
            let made = place.made();
            if check_directory(posix, &made)? {
                check_private(posix, &made)?;
                if is_complete(posix, &made)? {
                    return Err(GatherError::Decided(place.directory.to_owned()));
                }
                clear(posix, &made)?;
            }
            Ok(posix.make_directory(&made, PRIVATE).map_err(io_error(&made))?)
        };
        match begin() {
            Ok(()) => Self::new(place, document, journal),
            Err(error) => {
                journal.leave();
                Err(error)
            }
        }
    }

    fn new(place: Where<'a>, document: &Value, journal: Journal<'a>) -> Result<Self> {
        let posix = place.storage.writable().map_err(io_error(place.directory))?;
        let unfit = |why| GatherError::Unfit { path: place.directory.join(METADATA_FILE), why };
        let layout = parse_document(document, None).ok().flatten();
        let layout = layout.ok_or_else(|| unfit("it describes no sharded array"))?;
        let shards = layout.shard_grid.iter().map(crate::format::grid::ShardAxis::shards).collect();
        let chunks = Keys::new(layout.keys, layout.chunk_grid());
        let chunks = chunks.ok_or_else(|| unfit("its grid is too large"))?;
        let shards =
            Keys::new(layout.keys, shards).ok_or_else(|| unfit("its grid is too large"))?;
        let config = StoreConfig { cache_size: CACHE_BYTES, ..place.config.clone() };
        Ok(Self {
            source: place.source.writable().map_err(io_error(place.directory))?,
            posix,
            directory: place.directory.to_owned(),
            array: SourceArray { id: 0, path: place.made(), layout, format: indexed() },
            document: document.clone(),
            // Its own: what it has cached of these shards is of no use once they are elsewhere.
            store: ShardStore::new(Arc::clone(place.storage), config, Arc::clone(place.stats)),
            chunks,
            shards,
            known: KnownFiles::default(),
            pass: 0,
            is_unsettled: false,
            maker: None,
            owner: None,
            journal,
        })
    }

    /// Puts what is new, or has changed since the last pass, into shards, durably.
    pub(crate) fn pass(&mut self) -> Result<Passed> {
        self.pass += 1;
        self.is_unsettled = false;
        // An earlier pass may have failed before.
        self.known.settle();
        let (pass, chunks, posix) = (self.pass, self.chunks.clone(), self.posix);
        let (mut new, mut other, mut owner) = (Vec::new(), None, self.owner);
        chunks.walk(posix, &self.directory, &mut |item| {
            let (path, coords) = match item {
                Item::File(path, coords) => (path, coords),
                Item::Other(path) => {
                    other = Some(path);
                    return Ok(());
                }
                Item::Left { directory, .. } => {
                    let stat = if_present(posix.lstat(&directory)).map_err(io_error(&directory))?;
                    // Removed meanwhile.
                    let Some(stat) = stat else { return Ok(()) };
                    return match *owner.get_or_insert(stat.uid) == stat.uid {
                        true => Ok(()),
                        false => {
                            Err(unfit(&directory, "it belongs to another user than the others"))
                        }
                    };
                }
            };
            // Removed meanwhile.
            let Some(stat) = if_present(posix.lstat(&path)).map_err(io_error(&path))? else {
                return Ok(());
            };
            let number = chunks.number(&coords);
            if !self.known.finds(number, hash_of(&stat.version()), pass) {
                new.push(number);
            }
            match self.known.len() + new.len() {
                ..=MOST_FILES => Ok(()),
                _ => Err(unfit(&self.directory, "it has more chunk files than are gathered")),
            }
        })?;
        let of_shard = |number: &u64| {
            let shard = self.array.layout.shard_of(&chunks.coords(*number));
            self.shards.number(&shard)
        };
        new.sort_unstable();
        new.sort_by_cached_key(of_shard);
        let mut rest = new.as_slice();
        while !rest.is_empty() {
            rest = self.commit_some(rest)?;
        }
        drop(new);
        self.known.settle();
        self.remove_gone()?;
        if let (Some(owner), Some(maker)) = (owner, self.maker)
            && owner != maker.uid
        {
            let why = "the chunk files belong to another user than their directories";
            return Err(unfit(&self.directory, why));
        }
        Ok(other.map_or(Passed::All, Passed::Other))
    }

    /// The last pass, in which no file is changed: each that is found is known by its version from then on.
    pub(crate) fn last_pass(&mut self) -> Result<Passed> {
        for _ in 0..MOST_PASSES {
            let passed = self.pass()?;
            if !self.is_unsettled {
                return Ok(passed);
            }
            std::thread::sleep(SETTLED);
        }
        Err(unfit(&self.directory, "others change the chunk files all the time"))
    }

    /// Commits the first ones of these chunks, as many as a commit takes. Returns the others.
    fn commit_some<'b>(&mut self, numbers: &'b [u64]) -> Result<&'b [u64]> {
        let (mut staged, mut read, mut nbytes, mut done) = (Vec::new(), Vec::new(), 0, 0);
        for number in numbers.iter().take(BATCH) {
            if nbytes > BATCH_BYTES {
                break;
            }
            done += 1;
            let coords = self.chunks.coords(*number);
            let path = self.chunks.path(&self.directory, &coords);
            // Removed or replaced meanwhile: the next pass finds what is there then.
            let Some((bytes, version)) = self.read(&path)? else {
                self.is_unsettled = true;
                continue;
            };
            nbytes += bytes.len() as u64;
            let content = Content::Memory(Arc::new(bytes));
            let base = self.store.base(&self.array, &coords, Freshness::Now)?;
            let is_there = ContentId::of(&content).map_err(io_error(&path))?;
            read.push((*number, version));
            if base.chunk == Some(is_there) {
                continue;
            }
            let (content, maker) = (Some(content), self.maker);
            staged.push(StagedChunk { coords, content, base, maker, with: Vec::new() });
        }
        self.commit(&staged)?;
        // One that may be changed again without another date is read again by the next pass.
        let now = SystemTime::now();
        for (number, version) in read {
            if version.is_unsettled(now) {
                self.is_unsettled = true;
                continue;
            }
            self.known.add(number, hash_of(&version), self.pass);
        }
        Ok(&numbers[done..])
    }

    /// Empties the chunks whose files were removed since an earlier pass.
    fn remove_gone(&mut self) -> Result<()> {
        for part in self.known.gone(self.pass).chunks(BATCH) {
            let stage = |number: &u64| {
                let coords = self.chunks.coords(*number);
                let base = self.store.base(&self.array, &coords, Freshness::Now)?;
                Ok(StagedChunk { coords, content: None, base, maker: None, with: Vec::new() })
            };
            let staged: Result<Vec<_>> = part.iter().map(stage).collect();
            self.commit(&staged?)?;
        }
        self.known.keep(self.pass);
        Ok(())
    }

    fn commit(&self, chunks: &[StagedChunk]) -> Result<()> {
        if chunks.is_empty() {
            return Ok(());
        }
        let outcomes = self.store.commit(&self.array, chunks, Policy::Auto);
        Ok(outcomes.into_iter().collect::<std::result::Result<(), _>>()?)
    }

    /// Returns the bytes of a chunk file, and its version. `None` if it is there no more, or changes.
    fn read(&mut self, path: &Path) -> Result<Option<(Vec<u8>, Version)>> {
        let failed = |error: io::Error| GatherError::from(io_error(path)(error));
        let Some(file) = if_present(self.posix.open_plain(path)).map_err(failed)? else {
            return Ok(None);
        };
        let stat = file.stat().map_err(failed)?;
        self.check(path, &stat)?;
        if file.has_access_list().map_err(failed)? {
            return Err(unfit(
                path,
                "it has an access control list, which no chunk of a shard has",
            ));
        }
        let mut bytes = zeroed(stat.size).map_err(|error| failed(error.into()))?;
        let found = file.read_at(&mut bytes, 0).map_err(failed)?;
        let is_same = file.stat().map_err(failed)?.version() == stat.version();
        Ok((is_same && found == bytes.len()).then(|| (bytes, stat.version())))
    }

    /// Checks that a file is like the others: all of them get the owner and the permissions of a shard.
    fn check(&mut self, path: &Path, stat: &Stat) -> Result<()> {
        let Stat { uid, gid, .. } = *stat;
        let mode = stat.mode & 0o777;
        let maker = *self.maker.get_or_insert(Maker { uid, gid, mode, asked: mode });
        let why = if stat.links > 1 {
            "it has other names"
        } else if stat.size > MOST_BYTES {
            "it is too long to be gathered"
        } else if (maker.uid, maker.gid, maker.mode) != (uid, gid, mode) {
            "its owner or its permissions are not those of the other chunk files"
        } else {
            return Ok(());
        };
        Err(unfit(path, why))
    }

    /// Returns the user to whom the files belong. `None` if there are none.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.maker.map(|maker| maker.uid)
    }

    /// Returns the directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether a name in the directory is that of a chunk file, or of a directory of such.
    pub(crate) fn claims(&self, name: &OsStr) -> bool {
        name.to_str().is_some_and(|name| self.chunks.claims(name))
    }

    /// Removes what was made: the chunk files stay as they are.
    pub(crate) fn give_up(self) {
        let made = self.array.path.clone();
        if let Err(error) = clear(self.posix, &made) {
            log::warn!("{}: it is left there: {error}", shown(&made));
        }
        if let Err(error) = self.journal.remove() {
            log::debug!("{error}");
        }
    }
}

fn unfit(path: &Path, why: &'static str) -> GatherError {
    GatherError::Unfit { path: path.to_owned(), why }
}

fn hash_of(version: &Version) -> u64 {
    let mut hasher = DefaultHasher::new();
    version.hash(&mut hasher);
    hasher.finish()
}
