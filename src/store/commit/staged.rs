//! What a commit does: the staged chunks, the shards that they change, and the change to each.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::format::Coords;
use crate::format::journal::ShardRecord;
use crate::format::plan::{Policy, Update};
use crate::store::blob::Sources;
use crate::store::commit_state::{ArrayCommits, Base, Lineage};
use crate::store::content::Content;
use crate::store::journal::Journal;
use crate::store::loaded::ShardId;
use crate::store::lock::ShardLock;
use crate::store::storage::{
    PosixFile, PosixStorage, SetStat, Stat, StorageFile, Timestamp, Version,
};
use crate::store::{ShardStore, SourceArray, StoreError};

/// Attempts to date a file, a millisecond apart: together longer than a tick of the clock.
const MAX_TOUCHES: usize = 20;

/// Chunk to be committed.
#[derive(Debug, Clone)]
pub struct StagedChunk {
    /// Coordinates of the chunk, which must lie in the chunk grid.
    pub coords: Coords,
    /// New bytes; `None` empties the chunk.
    pub content: Option<Content>,
    /// State of the chunk that the change was staged over.
    pub base: Base,
    /// Owner and permissions for a shard that does not exist yet; those of this process if `None`.
    pub maker: Option<Maker>,
    /// Chunks of the same shard and commit on which this one depends: it is committed only if they
    /// are.
    pub with: Vec<Coords>,
}

/// Owner and permissions of new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// User.
    pub uid: u32,
    /// Group, unless the directory passes on its own.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Permission bits asked for: those where the directory passes on an access control list.
    pub asked: u32,
}

/// Result of committing one staged chunk.
pub type Outcome = Result<(), Arc<StoreError>>;

/// Returns the outcomes of a commit none of whose chunks can be committed.
pub(super) fn refused(chunks: &[StagedChunk], error: StoreError) -> Vec<Outcome> {
    let error = Arc::new(error);
    chunks.iter().map(|_| Err(Arc::clone(&error))).collect()
}

/// Commit of one group of shards.
pub(super) struct Commit<'a> {
    pub(super) store: &'a ShardStore,
    pub(super) storage: &'a dyn PosixStorage,
    pub(super) array: &'a SourceArray,
    /// Chunks of all groups.
    pub(super) chunks: &'a [StagedChunk],
    /// Contents of all chunks; empty for a chunk to be removed.
    pub(super) contents: &'a [Content],
    pub(super) policy: Policy,
    pub(super) state: &'a mut ArrayCommits,
    pub(super) journal: Journal<'a>,
    pub(super) outcomes: &'a mut [Outcome],
}

/// Shard with changes.
pub(super) struct Shard<'a> {
    pub(super) id: ShardId,
    pub(super) path: PathBuf,
    /// Chunks of the shard, by their number in the commit.
    pub(super) chunks: Vec<usize>,
    pub(super) lineage: Lineage,
    pub(super) _lock: Option<ShardLock<'a>>,
    pub(super) old: Option<Old>,
    pub(super) work: Work,
    /// Directories to be synced for its name to be durable.
    pub(super) directories: Vec<PathBuf>,
}

/// Existing state of a shard.
pub(super) struct Old {
    pub(super) stat: Stat,
    pub(super) file: Arc<dyn PosixFile>,
    /// `true` if the file has other hard links, or its name is a symbolic link: the file must keep
    /// its content.
    pub(super) is_linked: bool,
}

/// Change to be made to a shard.
pub(super) enum Work {
    /// Nothing: the shard is as wanted.
    Nothing,
    /// Replace the shard by the file with this name, which is complete and durable.
    Replace(PathBuf, Version),
    /// Update the shard in place, under a record.
    Journal(Update, ShardRecord),
    /// Write to ranges that no reader uses, then truncate.
    Cut(Update),
    /// Remove the shard.
    Remove,
}

impl<'a> Commit<'a> {
    /// Remembers the contents that chunks may have got by a commit that failed.
    pub(super) fn note_attempts(&mut self, touched: &[usize]) {
        for at in touched {
            let chunk = &self.chunks[*at];
            match self.outcomes[*at].is_ok() {
                true => self.state.attempts.forget(&chunk.coords),
                false => self.state.attempts.note(&chunk.coords, chunk.content.as_ref()),
            }
        }
    }

    pub(super) fn fail(&mut self, chunks: &[usize], error: StoreError) {
        self.store.report(&error);
        let error = Arc::new(error);
        for at in chunks {
            self.outcomes[*at] = Err(Arc::clone(&error));
        }
    }

    pub(super) fn key(&self, shard: &[u64]) -> Vec<u8> {
        self.array.shard_name(shard).into_os_string().into_vec()
    }

    /// Records that a shard could not be committed.
    pub(super) fn give_up(&mut self, shard: &Shard<'_>, error: StoreError) {
        self.leave(shard, false, false);
        self.fail(&shard.chunks, error);
    }

    /// Records the state in which a shard was left: whether it was changed, and whether that is
    /// durable.
    pub(super) fn leave(&self, shard: &Shard<'_>, changed: bool, is_durable: bool) {
        // Not by its name: another process may already have put another file there.
        let left = match (&shard.work, &shard.old) {
            (Work::Replace(_, version), _) if changed => Ok(Some(*version)),
            (Work::Remove, _) if changed => Ok(None),
            (_, None) => Ok(None),
            (_, Some(old)) => old.file.stat().map(|stat| Some(stat.version())),
        };
        let lineage = left.ok().map(|left| Lineage { shard: left, is_durable, ..shard.lineage });
        self.store.commits.leave(shard.id, lineage);
        self.store.forget(shard.id);
    }

    pub(super) fn sources<'b>(&'b self, old: Option<&'b Old>) -> Sources<'b> {
        Sources { contents: self.contents, old: old.map(|old| &*old.file as &dyn StorageFile) }
    }
}

/// Bumps the mtime past the old and the current one, so that readers notice the change even within
/// one clock tick, or if they read the attributes during the write: the kernel dates a write when
/// it begins.
pub(super) fn redate(file: &dyn PosixFile, before: &Stat) -> io::Result<()> {
    let Timestamp { seconds, nanoseconds } = file.stat()?.mtime.max(before.mtime);
    let next = match nanoseconds {
        999_999_999 => Timestamp { seconds: seconds.saturating_add(1), nanoseconds: 0 },
        _ => Timestamp { seconds, nanoseconds: nanoseconds + 1 },
    };
    match file.set_mtime(next) {
        // Any time can be set by the owner alone, the current one by every user who may write.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            touch(file, Timestamp { seconds, nanoseconds })
        }
        set => set,
    }
}

/// Sets the mtime to the current time, and waits for the clock until that is past `latest`. Where it
/// will not be soon, because `latest` is in the future, it is past the start of the write at least.
fn touch(file: &dyn PosixFile, latest: Timestamp) -> io::Result<()> {
    let (atime, mtime) = (Some(latest), Some(latest));
    let now = SetStat { atime, mtime, is_now: true, ..SetStat::default() };
    for _ in 0..MAX_TOUCHES {
        file.set_stat(&now)?;
        if file.stat()?.mtime > latest {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
