//! Stores that keep to no conditions, and those who write to them alone, as their users promise.
//!
//! ```text
//! begin        GET     PLACE/.shardfs/writer: a note of another writer, which is not old: refused
//!              PUT     the own note
//!              GET     it is still there after a moment
//! each minute  GET     it still is the own note; otherwise nothing more is put
//!              PUT     the same anew
//! put          HEAD    what is there is what is to be replaced, or others write there after all
//!              PUT     without a condition
//! end          GET     it is the own note
//!              DELETE  it
//! ```
//!
//! The note is no lock: nothing in such a store is one. Two who begin at the same moment may both go on, and one that
//! was stopped for some minutes may put one more object. It catches accidents.
//!
//! A request without an answer may arrive later, and would undo what was put after it. So nothing else is put in its
//! place before it was seen there, or cannot be expected to arrive any more.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime};

use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutMode};
use tokio::runtime::Handle;

use super::attributes::bare;
use super::client::{Client, If, Wanted};
use super::error::RequestError;
use super::single_writer::{NotAlone, Note, WRITER_NOTE, Writer};
use super::writing::NotPut;
use crate::store::storage::{PutError, When, WriteId};

/// Longest note that is read, in bytes.
const LONGEST: u64 = 4096;

/// Time after which a note that was not put anew is no writer's any more.
const LEASE: Duration = Duration::from_secs(180);

/// Time after which a note is put anew.
const RENEWAL: Duration = Duration::from_secs(60);

/// Time after which it is looked whether the note is still the own one.
const MOMENT: Duration = Duration::from_millis(500);

/// Time for which a note is removed in the end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

impl Client {
    /// Says that the store keeps to no conditions, and that this process alone writes there: by a note, whose key is
    /// given.
    ///
    /// # Errors
    /// Another process has said so; those of the requests.
    pub(super) fn begin_alone(self: &Arc<Self>, key: Key) -> Result<(), NotAlone> {
        self.single_writer.is_needed.store(true, Ordering::Relaxed);
        let failed = |error: RequestError| NotAlone::Refused(self.reports().failed(&key, &error));
        if let Some(writer) = self.writer_of(&key).map_err(failed)?
            && writer.age() < LEASE.as_secs()
            && !writer.is_this()
            && !writer.has_ended()
        {
            return Err(NotAlone::Written(writer.name(), writer.age()));
        }
        let renewed = SystemTime::now();
        self.put_note(&key).map_err(|NotPut { why, .. }| NotAlone::Refused(to_io(why)))?;
        thread::sleep(MOMENT);
        match self.writer_of(&key).map_err(failed)? {
            Some(writer) if writer.is_this() => (),
            Some(writer) => return Err(NotAlone::Written(writer.name(), writer.age())),
            None => return Err(NotAlone::Refused(io::ErrorKind::NotFound.into())),
        }
        let (sender, ended) = channel();
        let client = Arc::downgrade(self);
        let renewals = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(RENEWAL) {
                let Some(client) = Weak::upgrade(&client) else { return };
                if let Err(error) = client.renew() {
                    log::debug!("{WRITER_NOTE}: {error}");
                }
            }
        };
        let began = thread::Builder::new().name("renewals".to_owned()).spawn(renewals);
        began.map_err(NotAlone::Refused)?;
        *self.single_writer.note.lock() =
            Some(Note { key, renewed, is_taken: false, _renewals: sender });
        Ok(())
    }

    /// Returns who has put a note; `None` if there is none. What is no note is one of a time long ago.
    fn writer_of(&self, key: &Key) -> Result<Option<Writer>, RequestError> {
        match self.get(key, Wanted::First(LONGEST), If::Any) {
            Ok(answer) => Ok(Some(serde_json::from_slice(&answer.bytes).unwrap_or_default())),
            Err(RequestError::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn put_note(&self, key: &Key) -> Result<(), NotPut> {
        let id = WriteId::random().map_err(PutError::Refused)?;
        let text = serde_json::to_vec_pretty(&Writer::this());
        let text = text.map_err(|error| PutError::Refused(error.into()))?;
        self.put_once(key, text, PutMode::Overwrite, id).map(|_| ())
    }

    /// Puts the note anew, if it still is the own one.
    fn renew(&self) -> Result<(), PutError> {
        let (key, at) = match &*self.single_writer.note.lock() {
            Some(note) => (note.key.clone(), SystemTime::now()),
            None => return Ok(()),
        };
        let _turn = self.single_writer.turn(&key);
        let unknown = |error| PutError::Unknown(self.reports().failed(&key, &error));
        let taken = self.writer_of(&key).map_err(unknown)?;
        // What was removed may be put again: it is no other writer's.
        let taken = taken.filter(|writer| !writer.is_this());
        if taken.is_none() {
            self.put_note(&key).map_err(|NotPut { why, .. }| why)?;
        }
        if let Some(note) = &mut *self.single_writer.note.lock() {
            match taken {
                None => note.renewed = at,
                Some(writer) if !note.is_taken => {
                    note.is_taken = true;
                    log::error!(
                        "{key}: {} writes there now, although this was to be the only writer: nothing more is put",
                        writer.name()
                    );
                }
                Some(_) => (),
            }
        }
        Ok(())
    }

    /// Returns an error if another process has begun to write. The note is looked at if it was not for too long, as when
    /// this process was stopped.
    fn check_alone(&self) -> Result<(), PutError> {
        let is_due = || match &*self.single_writer.note.lock() {
            Some(Note { is_taken: true, .. }) => {
                Err(PutError::Refused(io::Error::from_raw_os_error(libc::EROFS)))
            }
            Some(note) => Ok(note.renewed.elapsed().is_ok_and(|age| age > RENEWAL * 2)),
            None => Ok(false),
        };
        if is_due()? {
            self.renew()?;
            is_due()?;
        }
        Ok(())
    }

    /// Puts an object in the place of the one that `when` names, without a condition: nothing else writes there.
    pub(super) fn put_alone(
        &self,
        key: &Key,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<Option<String>, PutError> {
        self.check_alone()?;
        let _turn = self.single_writer.turn(key);
        let unknown = |error| PutError::Unknown(self.reports().failed(key, &error));
        let now = match self.head_and_write(key) {
            Ok((meta, write)) => Some((meta.e_tag, write)),
            Err(RequestError::Absent) => None,
            Err(error) => return Err(unknown(error)),
        };
        let write = now.as_ref().and_then(|(_, write)| *write);
        self.single_writer.check_arrived(key, write).map_err(unknown)?;
        let is_it = match (when, &now) {
            (When::Absent, None) => true,
            (When::Is(tag), Some((Some(now), _))) => bare(now) == tag,
            _ => false,
        };
        if !is_it {
            return Err(PutError::Conflict);
        }
        let put = self.put_once(key, content, PutMode::Overwrite, id);
        put.map_err(|NotPut { why, is_answered }| {
            if !is_answered && matches!(why, PutError::Unknown(_)) {
                self.single_writer.note_unanswered(key, id);
            }
            why
        })
    }

    /// Returns an error if an object cannot be removed yet: a request to put it may still arrive, or another process
    /// writes there.
    pub(super) fn check_removable(&self, key: &Key) -> Result<(), RequestError> {
        if !self.single_writer.is_needed() {
            return Ok(());
        }
        let refused = |error: PutError| RequestError::Other(error.to_string());
        self.check_alone().map_err(refused)?;
        self.single_writer.check_arrived(key, None)
    }

    /// Removes the note, if there is one.
    pub(super) fn end_alone(&self) {
        let Some(note) = self.single_writer.note.lock().take() else { return };
        let Some(objects) = self.writes.as_ref().filter(|_| !note.is_taken) else { return };
        let remove = async {
            let bytes = objects.get(&note.key).await?.bytes().await?;
            match serde_json::from_slice::<Writer>(&bytes) {
                Ok(writer) if writer.is_this() => objects.delete(&note.key).await,
                _ => Ok(()),
            }
        };
        let removed = async { tokio::time::timeout(LAST_PATIENCE, remove).await };
        let removed = self.runtime.block_on(removed);
        if !matches!(removed, Ok(Ok(()))) {
            log::warn!("{}: this note of a writer stays there", note.key);
        }
    }
}

/// Returns the error of a request that puts what nothing else is to put.
fn to_io(error: PutError) -> io::Error {
    match error {
        PutError::Conflict => io::Error::from_raw_os_error(libc::ESTALE),
        PutError::Unknown(error) | PutError::Refused(error) => error,
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A thread that receives answers cannot wait for one.
        if Handle::try_current().is_err() {
            self.end_alone();
        }
    }
}
