//! Whether a store assembles objects of parts as commits rely on it, which is tried out with the object that
//! [`probe`](super::probe) has made.
//!
//! ```text
//! one                copy it, if it has another entity tag     refused
//! one                copy it, if it has its entity tag         a part
//! one                list the parts                            that one, as long as it is
//! one                assemble it of that, in the place of      refused
//!                    one with another entity tag
//! several at once    assemble it, in the place of one with     one succeeds
//!                    its entity tag
//! one                ask what is there                         what that one has put, and that it has
//! ```
//!
//! An upload that is not completed must go when it is given up. Most stores copy and assemble, and look at no
//! condition: there, shards are put as a whole.

use std::fmt;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use object_store::path::Path as Key;

use super::multipart::{NotMade, UploadId};
use super::storage::RemoteStorage;
use crate::store::storage::{Current, ObjectStorage, PutError, WriteId};

/// An entity tag that no object has.
pub(super) const OTHER_TAG: &str = "0123456789abcdef0123456789abcdef";

/// Length of the object in bytes.
const NBYTES: u64 = 16;

/// Objects that are assembled at once.
const AT_ONCE: usize = 4;

/// Pauses before it is tried out again.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(400), Duration::from_millis(800)];

/// Reason why shards are put as a whole.
#[derive(Debug)]
enum Shortfall {
    /// A request has failed.
    Failed(NotMade),
    /// The condition of a copy is ignored.
    CopiesOther,
    /// The condition of an assembly is ignored.
    ReplacesOther,
    /// It does not count if they arrive at once.
    ReplacesTwice,
    /// Uploads cannot be given up.
    KeepsUploads(String),
    /// What is there is not what was assembled last, or has lost what was said of it.
    Forgotten,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "it cannot assemble objects: {error}"),
            Self::CopiesOther => f.write_str("it copies an object that is another one"),
            Self::ReplacesOther => f.write_str("it replaces an object that is another one"),
            Self::ReplacesTwice => {
                f.write_str("of several at once that replace a version, several succeed")
            }
            Self::KeepsUploads(why) => {
                write!(f, "uploads that are not completed cannot be given up: {why}")
            }
            Self::Forgotten => f.write_str("an object is not the one that was assembled last"),
        }
    }
}

impl RemoteStorage {
    /// Finds out whether shards can be assembled of parts, with the object at a path that this source has made.
    pub(super) fn try_parts(&self, path: &Path) {
        let Some(assembler) = &self.client.assembler else { return };
        let mut tried = self.assembled(path);
        for pause in PAUSES {
            // A store that is busy.
            if !matches!(tried, Err(Shortfall::Failed(NotMade::Put(PutError::Unknown(_))))) {
                break;
            }
            thread::sleep(pause);
            tried = self.assembled(path);
        }
        match tried {
            Ok(()) => {
                assembler.has_assembled();
                log::info!(
                    "the store assembles shards of parts: of a long one only what is new is sent"
                );
            }
            Err(shortfall) => {
                log::info!(
                    "shards are put as a whole, as the store assembles none on a condition: {shortfall}"
                );
            }
        }
    }

    fn assembled(&self, path: &Path) -> Result<(), Shortfall> {
        let key = self.directories.key(path).map_err(PutError::Refused)?;
        let now = self.current(path).map_err(PutError::Unknown)?;
        let tag = now.and_then(|now| now.tag).ok_or(Shortfall::Forgotten)?;
        let upload = self.client.begin_upload(&key, random()?)?;
        let kept = self.keeps_to_conditions(&key, &upload, &tag);
        let given_up = self.given_up(&key, &upload);
        kept?;
        given_up?;
        let (winner, tag) = self.race_parts(&key, &tag)?;
        match self.current(path).map_err(PutError::Unknown)? {
            Some(Current { tag: Some(now), write: Some(write) })
                if write == winner && tag.is_none_or(|tag| tag == now) =>
            {
                Ok(())
            }
            _ => Err(Shortfall::Forgotten),
        }
    }

    /// Gives an upload up. A store in which that cannot be done would be filled with what is left of them.
    fn given_up(&self, key: &Key, upload: &UploadId) -> Result<(), Shortfall> {
        self.client.abort(key, upload).map_err(Shortfall::KeepsUploads)
    }

    /// Checks that an upload neither copies another version than the one that is named, nor replaces one.
    fn keeps_to_conditions(
        &self,
        key: &Key,
        upload: &UploadId,
        tag: &str,
    ) -> Result<(), Shortfall> {
        let copied = |tag| self.client.wait_for(self.client.copy_part(key, upload, 1, (tag, None)));
        match copied(OTHER_TAG) {
            Err(NotMade::Put(PutError::Conflict)) => (),
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(Shortfall::CopiesOther),
        }
        let part = copied(tag)?;
        self.client.check_lengths(key, upload, &[NBYTES])?;
        match self.client.complete(key, upload, &[part], (OTHER_TAG, 0)) {
            Err(NotMade::Put(PutError::Conflict)) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Shortfall::ReplacesOther),
        }
    }

    /// Lets several uploads replace an object at once. Returns the write that has done so, and the entity tag, if the
    /// store tells it.
    fn race_parts(&self, key: &Key, tag: &str) -> Result<(WriteId, Option<String>), Shortfall> {
        let begun = at_once((0..AT_ONCE).map(|_| || self.begin_with_part(key)));
        let complete = |(id, upload, part): (WriteId, UploadId, String)| {
            let completed = self.client.complete(key, &upload, &[part], (tag, 0));
            match completed {
                Ok(_) => (),
                Err(NotMade::Put(PutError::Unknown(_))) => self.client.keep(key, upload, id),
                Err(_) => self.given_up(key, &upload)?,
            }
            Ok((id, completed))
        };
        let answers = at_once(begun.into_iter().map(|begun| || complete(begun?)));
        let mut winners = Vec::new();
        for answer in answers {
            match answer? {
                (id, Ok(tag)) => winners.push((id, tag)),
                (_, Err(NotMade::Put(PutError::Conflict))) => (),
                (_, Err(error)) => return Err(error.into()),
            }
        }
        let winner = winners.pop().filter(|_| winners.is_empty());
        winner.ok_or(Shortfall::ReplacesTwice)
    }

    /// Begins an upload with one part, which no other has.
    fn begin_with_part(&self, key: &Key) -> Result<(WriteId, UploadId, String), Shortfall> {
        let id = random()?;
        let upload = self.client.begin_upload(key, id)?;
        let sent = self.client.send_part(key, &upload, 1, content(id).into());
        match self.client.wait_for(sent) {
            Ok(part) => Ok((id, upload, part)),
            Err(error) => {
                self.given_up(key, &upload)?;
                Err(error.into())
            }
        }
    }
}

/// Does all of that at once, each in a thread of its own.
fn at_once<T: Send, Act: FnOnce() -> Result<T, Shortfall> + Send>(
    acts: impl Iterator<Item = Act>,
) -> Vec<Result<T, Shortfall>> {
    thread::scope(|scope| {
        let threads = acts.map(|act| thread::Builder::new().spawn_scoped(scope, act));
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter().map(|thread| {
            let lost = |_| PutError::Refused(io::ErrorKind::Other.into());
            thread.map_err(PutError::Refused)?.join().map_err(lost)?
        });
        ended.collect()
    })
}

fn random() -> Result<WriteId, PutError> {
    WriteId::random().map_err(PutError::Refused)
}

/// Returns bytes that no other object has: an entity tag may be made of them.
pub(super) fn content(id: WriteId) -> Vec<u8> {
    id.bytes().to_vec()
}

impl From<PutError> for Shortfall {
    fn from(error: PutError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<NotMade> for Shortfall {
    fn from(error: NotMade) -> Self {
        Self::Failed(error)
    }
}
