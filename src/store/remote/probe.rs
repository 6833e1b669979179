//! What a store makes of conditions, which is tried out before anything is written to it.
//!
//! ```text
//! several at once    put an object, if there is none     one succeeds
//! one                put it, with another entity tag     refused
//! several at once    put it, with its entity tag         one succeeds
//! one                ask what is there                   what that one has put, and that it has
//! some               assemble it of parts                see `probe_parts`
//! one                remove it
//! ```
//!
//! There are stores that ignore conditions, and stores that look at them before other requests are done. Chunks
//! that several hosts write would be lost there, and none of them would hear of it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::probe_parts::{OTHER_TAG, content};
use super::single_writer::{NotAlone, WRITER_NOTE};
use super::storage::RemoteStorage;
use crate::store::storage::{Current, ObjectStorage, PutError, When, WriteId};
use crate::text::shown;

/// How the name begins of the object with which a store is tried out.
pub const TRIAL: &str = ".shardfs-";

/// Requests that are sent at once.
const AT_ONCE: usize = 8;

/// Times that a request is sent which has no answer, or one that says nothing: a store that is busy.
const TRIES: u32 = 6;

/// Pause before the second time. It doubles each time.
const PAUSE: Duration = Duration::from_millis(200);

/// Times that a version is replaced by several requests at once.
const RACES: usize = 3;

/// What lets one process write to a store that ignores conditions.
const SINGLE_WRITER_HINT: &str =
    ", unless single_writer (--single-writer) says that nothing else writes there";

/// Reason why nothing is written to a store.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nothing is known of how it keeps writers apart.
    #[error("it can only be read: what is below s3://, gs:// and az:// can be written to")]
    Protocol,
    /// What is there is not known.
    #[error("its names cannot be listed, so that what is there is not known: leave --no-list out")]
    Unlisted,
    /// It refuses to be written to, or does not answer.
    #[error("it cannot be written to: {0}")]
    Refused(#[source] io::Error),
    /// It does not do what commits rely on.
    #[error(
        "the store cannot keep writers apart, so that chunks would be lost: {0}; nothing is written to it{hint}",
        hint = if .0.is_of_conditions() { SINGLE_WRITER_HINT } else { "" }
    )]
    Unreliable(Deviation),
    /// Another process has said that it is the only writer: its name, and the seconds since.
    #[error(
        "the store cannot keep writers apart, and {0} writes there, as it has said {1} s ago ({WRITER_NOTE}): \
         end it, or wait until that is 3 minutes ago"
    )]
    Written(String, u64),
}

impl ProbeError {
    /// Returns whether the source can be read all the same.
    pub fn is_readable(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

/// What a store does otherwise than commits rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deviation {
    /// `If-None-Match: *` is not kept to.
    CreatedTwice,
    /// `If-Match` is not kept to.
    OtherVersion,
    /// `If-Match` is not kept to by requests that arrive at once.
    ReplacedTwice,
    /// What is there is not what was put last.
    Forgotten,
    /// Objects do not keep what is said of them.
    NoMetadata,
}

impl From<NotAlone> for ProbeError {
    fn from(error: NotAlone) -> Self {
        match error {
            NotAlone::Written(name, seconds) => Self::Written(name, seconds),
            NotAlone::Refused(error) => Self::Refused(error),
        }
    }
}

impl Deviation {
    /// Returns whether all is well where there is one writer alone.
    fn is_of_conditions(self) -> bool {
        match self {
            Self::CreatedTwice | Self::OtherVersion | Self::ReplacedTwice => true,
            Self::Forgotten | Self::NoMetadata => false,
        }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CreatedTwice => {
                "of requests that create an object (If-None-Match), several succeed"
            }
            Self::OtherVersion => "an object is replaced that is another one (If-Match)",
            Self::ReplacedTwice => {
                "of requests at once that replace a version (If-Match), several succeed"
            }
            Self::Forgotten => "an object is not the one that was put last",
            Self::NoMetadata => "objects do not keep their metadata (x-amz-meta-)",
        })
    }
}

impl RemoteStorage {
    /// Returns an error unless commands can find out what is in the store, and change it.
    pub fn check_listed(&self) -> Result<(), ProbeError> {
        match (&self.client.writes, self.client.can_list()) {
            (None, _) => Err(ProbeError::Protocol),
            (Some(_), false) => Err(ProbeError::Unlisted),
            (Some(_), true) => Ok(()),
        }
    }

    /// Returns an error if another process has said lately that it alone writes to the store. `latest` is the path of an
    /// object that was put a moment ago.
    pub fn check_unwritten(&self, latest: &Path) -> Result<(), ProbeError> {
        let key = |path: &Path| self.directories.key(path).map_err(ProbeError::Refused);
        Ok(self.client.check_unwritten(&key(Path::new(WRITER_NOTE))?, &key(latest)?)?)
    }

    /// Returns what tells the store apart from others with buckets of the same name.
    pub fn address(&self) -> &str {
        self.client.place().trim_end_matches([' ', '/'])
    }

    /// Says that nothing more is written, if this was the only writer of a store.
    pub fn end_alone(&self) {
        self.client.end_alone();
    }

    /// Tries out whether several hosts can write to the store and lose nothing. An object is made below the
    /// source's root for that, and removed.
    ///
    /// # Errors
    /// They cannot, or it cannot be determined.
    pub fn check_writable(&self) -> Result<(), ProbeError> {
        if self.client.writes.is_none() {
            return Err(ProbeError::Protocol);
        }
        if self.client.single_writer.is_needed() {
            return Ok(());
        }
        // A store that is busy is asked again, and no user has to hear of that.
        let trial = self.client.reports().begin_trial();
        let name = WriteId::random().map_err(ProbeError::Refused)?;
        let path = PathBuf::from(format!("{TRIAL}{name}"));
        let tried = match self.try_conditions(&path) {
            Err(ProbeError::Unreliable(how))
                if how.is_of_conditions() && self.client.single_writer.is_promised =>
            {
                self.try_alone(&path, how)
            }
            tried => tried,
        };
        let key = self.directories.key(&path).map_err(ProbeError::Refused)?;
        match self.client.remove(&key) {
            // What is not there is not replaced either.
            Ok(()) => self.client.note_replaced(&key),
            Err(_) if matches!(tried, Err(ProbeError::Refused(_))) => (),
            Err(error) => log::warn!(
                "{}: it was made to find out what the store can do, and stays: {error}",
                shown(&path)
            ),
        }
        drop(trial);
        if let (Err(ProbeError::Refused(_)), Some(why)) = (&tried, self.client.failure()) {
            log::error!("{}: {why}", shown(&path));
        }
        tried
    }

    fn try_conditions(&self, path: &Path) -> Result<(), ProbeError> {
        let unreliable = |how| Err(ProbeError::Unreliable(how));
        let Some(mut made) = self.race(path, When::Absent)? else {
            return unreliable(Deviation::CreatedTwice);
        };
        if !self.refuses_other(path)? {
            return unreliable(Deviation::OtherVersion);
        }
        for _ in 0..RACES {
            let Some(next) = self.race(path, When::Is(&made.1))? else {
                return unreliable(Deviation::ReplacedTwice);
            };
            made = next;
        }
        let (winner, tag) = made;
        match self.current(path).map_err(ProbeError::Refused)? {
            Some(Current { tag: Some(now), write }) if now == tag => match write {
                Some(write) if write == winner => {
                    self.try_parts(path);
                    self.client.note_replacing();
                    Ok(())
                }
                _ => unreliable(Deviation::NoMetadata),
            },
            _ => unreliable(Deviation::Forgotten),
        }
    }

    /// Begins to write to a store that keeps to no conditions, and tries out what is needed of it even so: the object
    /// that is there is the one that was put last, and says so.
    fn try_alone(&self, path: &Path, how: Deviation) -> Result<(), ProbeError> {
        let key = |path: &Path| self.directories.key(path).map_err(ProbeError::Refused);
        let begun = self.client.begin_alone(&key(Path::new(WRITER_NOTE))?, &key(path)?);
        let tried = begun.map_err(ProbeError::from).and_then(|held| {
            let mut tries = 1;
            while let Err(error) = self.try_puts(path) {
                let is_passing = matches!(&error, ProbeError::Refused(error) if is_passing(error));
                if tries == TRIES || !is_passing {
                    return Err(error);
                }
                thread::sleep(PAUSE * 2_u32.pow(tries - 1));
                tries += 1;
            }
            log::info!("{how}: nothing else may write there, as single_writer says");
            if !held.is_zero() {
                log::info!(
                    "requests of a writer before this one may still arrive: nothing is changed in the \
                     next {} s",
                    held.as_secs()
                );
            }
            Ok(())
        });
        tried.inspect_err(|_| self.client.cancel_alone())
    }

    /// Tries out whether an object is the one that was put last, and says so.
    fn try_puts(&self, path: &Path) -> Result<(), ProbeError> {
        let put = |when: When<'_>| {
            let id = WriteId::random().map_err(ProbeError::Refused)?;
            match self.put(path, content(id), when, id) {
                Ok(tag) => Ok((id, tag)),
                Err(PutError::Conflict) => Err(ProbeError::Unreliable(Deviation::Forgotten)),
                Err(PutError::Refused(error) | PutError::Unknown(error)) => {
                    Err(ProbeError::Refused(error))
                }
            }
        };
        // One of those that were put at once is there.
        let found = self.current(path).map_err(ProbeError::Refused)?.and_then(|now| now.tag);
        let (_, first) = put(found.as_deref().map_or(When::Absent, When::Is))?;
        let (write, tag) = put(When::Is(&first))?;
        match self.current(path).map_err(ProbeError::Refused)? {
            Some(now) if now == Current { tag: Some(tag.clone()), write: Some(write) } => {
                self.client.note_replacing();
                Ok(())
            }
            Some(Current { tag: Some(now), .. }) if now == tag => {
                Err(ProbeError::Unreliable(Deviation::NoMetadata))
            }
            _ => Err(ProbeError::Unreliable(Deviation::Forgotten)),
        }
    }

    /// Returns whether an object is not replaced by a request that names another version.
    fn refuses_other(&self, path: &Path) -> Result<bool, ProbeError> {
        let id = WriteId::random().map_err(ProbeError::Refused)?;
        let mut tries = 0;
        loop {
            let error = match self.put(path, content(id), When::Is(OTHER_TAG), id) {
                Ok(_) => return Ok(false),
                Err(PutError::Conflict) => return Ok(true),
                Err(PutError::Refused(error)) => return Err(ProbeError::Refused(error)),
                Err(PutError::Unknown(error)) => error,
            };
            tries += 1;
            if tries == TRIES {
                return Err(ProbeError::Refused(error));
            }
            thread::sleep(PAUSE * 2_u32.pow(tries - 1));
        }
    }

    /// Lets several requests put an object at once. Returns the write that has done so, and the entity tag;
    /// `None` if several have.
    fn race(&self, path: &Path, when: When<'_>) -> Result<Option<(WriteId, String)>, ProbeError> {
        let (mut tries, mut sent) = (0, Vec::new());
        loop {
            let error = match self.race_once(path, when, &mut sent) {
                Err(ProbeError::Refused(error)) if is_passing(&error) => error,
                raced => return raced,
            };
            tries += 1;
            if tries == TRIES {
                return Err(ProbeError::Refused(error));
            }
            thread::sleep(PAUSE * 2_u32.pow(tries - 1));
        }
    }

    /// Does so once. `sent` are the writes of all times: one of an earlier time may arrive late.
    fn race_once(
        &self,
        path: &Path,
        when: When<'_>,
        sent: &mut Vec<WriteId>,
    ) -> Result<Option<(WriteId, String)>, ProbeError> {
        let ids = (0..AT_ONCE).map(|_| WriteId::random()).collect::<io::Result<Vec<_>>>();
        let ids = ids.map_err(ProbeError::Refused)?;
        sent.extend(&ids);
        let answers = thread::scope(|scope| {
            let put = |id: WriteId| move || (id, self.put(path, content(id), when, id));
            let threads = ids.iter().map(|id| thread::Builder::new().spawn_scoped(scope, put(*id)));
            let threads = threads.collect::<io::Result<Vec<_>>>()?;
            let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
            Ok(ended.filter_map(Result::ok).collect::<Vec<_>>())
        });
        let (mut done, mut failed) = (Vec::new(), None);
        for (id, answer) in answers.map_err(ProbeError::Refused)? {
            match answer {
                Ok(tag) => done.push((id, tag)),
                Err(PutError::Conflict) => (),
                Err(PutError::Unknown(error)) => failed = failed.or(Some(error)),
                Err(PutError::Refused(error)) => return Err(ProbeError::Refused(error)),
            }
        }
        match (done.len(), failed) {
            (0, failed) => match self.current(path).map_err(ProbeError::Refused)? {
                Some(Current { tag: Some(tag), write: Some(write) }) if sent.contains(&write) => {
                    Ok(Some((write, tag)))
                }
                _ => Err(ProbeError::Refused(failed.unwrap_or_else(|| {
                    io::Error::other("of several requests at once none has put anything")
                }))),
            },
            (1, _) => Ok(done.pop()),
            _ => Ok(None),
        }
    }
}

/// Returns whether a request may succeed that is sent again: the store has not said why it did not, as one does
/// that is busy.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), None | Some(libc::EIO | libc::ETIMEDOUT))
}
