//! Stores that keep to no conditions, and those who write to them alone, as their users promise.
//!
//! ```text
//! begin        GET     PLACE/.shardfs/writer: a note of another writer, which is not old: refused
//!              PUT     the own note
//!              GET     it is still there after a moment
//! each minute  GET     it still is the own note, or none; otherwise nothing more is changed
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
//! A request without an answer may arrive later, and would undo what was put after it. So nothing else is done to its
//! object before it was seen there, or cannot be expected to arrive any more: files wait for that, and commits are tried
//! again. A writer that ends before that leaves its note, as one does that is killed, and whoever comes next changes
//! nothing for as long.

use std::io;
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
use crate::requester;
use crate::store::storage::{PutError, When, WriteId};

/// Longest note that is read, in bytes.
const LONGEST: u64 = 4096;

/// Time after which it is looked whether the note is still the own one.
const MOMENT: Duration = Duration::from_millis(500);

/// Times that the first note is put, if the store does not say that it was.
const TRIES: u32 = 4;

/// Time between two looks at an object that a request may still change.
const LOOK: Duration = Duration::from_secs(1);

/// Time for which the note is removed in the end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// A note that was found.
struct Found {
    writer: Writer,
    /// When it was put, by the store's clock.
    put: SystemTime,
}

impl Found {
    /// Returns how long it was there when another object was put, by the same clock.
    fn age(&self, other: SystemTime) -> Duration {
        other.duration_since(self.put).unwrap_or_default()
    }
}

/// Removes the note when the last storage of a place goes.
pub(super) struct Alone(pub Arc<Client>);

impl Drop for Alone {
    fn drop(&mut self) {
        // A thread that receives answers cannot wait for one.
        if Handle::try_current().is_err() {
            self.0.end_alone();
        }
    }
}

impl Client {
    /// Says that the store keeps to no conditions, and that this process alone writes there: by a note, whose key is
    /// given. `latest` is that of an object that was put a moment ago. Returns for how long requests of a writer
    /// before may arrive.
    ///
    /// # Errors
    /// Another process has said so; those of the requests.
    pub(super) fn begin_alone(
        self: &Arc<Self>,
        key: &Key,
        latest: &Key,
    ) -> Result<Duration, NotAlone> {
        let failed = |error: RequestError| NotAlone::Refused(self.reports().failed(key, &error));
        let before = self.note_at(key).map_err(failed)?;
        let now = || Ok(self.head(latest, If::Any)?.last_modified.into());
        let lease = self.single_writer.lease();
        let mut held = Duration::ZERO;
        if let Some(found) = before {
            let age = found.age(now().map_err(failed)?);
            let Found { writer, .. } = found;
            if age < lease && !writer.is_this() && !writer.has_ended() {
                return Err(NotAlone::Written(writer.name(), age.as_secs()));
            }
            held = if age < lease { self.single_writer.arrival } else { held };
        }
        let renewed = SystemTime::now();
        // The note stays there, too, if this process ends before that.
        self.single_writer.hold(held, latest);
        self.put_first_note(key)?;
        let (sender, ended) = channel();
        // From now on it is removed in the end, if it is this one.
        let note = Note { key: key.clone(), renewed, is_taken: false, _renewals: sender };
        *self.single_writer.note.lock() = Some(note);
        thread::sleep(MOMENT);
        match self.note_at(key).map_err(failed)? {
            Some(found) if found.writer.is_this() => (),
            Some(found) => return Err(NotAlone::Written(found.writer.name(), 0)),
            None => return Err(NotAlone::Refused(io::ErrorKind::NotFound.into())),
        }
        let (client, renewal) = (Arc::downgrade(self), self.single_writer.renewal);
        let renewals = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(renewal) {
                let Some(client) = Weak::upgrade(&client) else { return };
                if let Err(error) = client.renew() {
                    log::debug!("{WRITER_NOTE}: {error}");
                }
            }
        };
        let began = thread::Builder::new().name("renewals".to_owned()).spawn(renewals);
        began.map_err(NotAlone::Refused)?;
        self.single_writer.set_needed(true);
        Ok(held)
    }

    /// Writes on conditions again, as the store is not written to alone after all.
    pub(super) fn cancel_alone(&self) {
        self.single_writer.set_needed(false);
        self.end_alone();
    }

    /// Returns an error if another process has said lately that it writes there alone. `latest` is the key of an object
    /// that was put a moment ago.
    pub(super) fn check_unwritten(&self, key: &Key, latest: &Key) -> Result<(), NotAlone> {
        let failed = |error: RequestError| NotAlone::Refused(self.reports().failed(key, &error));
        let Some(found) = self.note_at(key).map_err(failed)? else { return Ok(()) };
        let age = found.age(self.head(latest, If::Any).map_err(failed)?.last_modified.into());
        // What one has sent that has ended may still arrive.
        match age < self.single_writer.lease() && !found.writer.is_this() {
            true => Err(NotAlone::Written(found.writer.name(), age.as_secs())),
            false => Ok(()),
        }
    }

    /// Returns the note that is there; `None` if there is none.
    fn note_at(&self, key: &Key) -> Result<Option<Found>, RequestError> {
        match self.get(key, Wanted::First(LONGEST), If::Any) {
            Ok(answer) => {
                // What is no note names no process.
                let writer = serde_json::from_slice(&answer.bytes).unwrap_or_default();
                Ok(Some(Found { writer, put: answer.meta.last_modified.into() }))
            }
            Err(RequestError::Absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn put_first_note(&self, key: &Key) -> Result<(), NotAlone> {
        let mut tries = 1;
        loop {
            match self.put_note(key) {
                Err(PutError::Unknown(_)) if tries < TRIES => thread::sleep(MOMENT * tries),
                put => return put.map_err(|error| NotAlone::Refused(to_io(error))),
            }
            tries += 1;
        }
    }

    fn put_note(&self, key: &Key) -> Result<(), PutError> {
        let id = WriteId::random().map_err(PutError::Refused)?;
        let text = serde_json::to_vec_pretty(&Writer::this());
        let text = text.map_err(|error| PutError::Refused(error.into()))?;
        let put = self.put_once(key, text, PutMode::Overwrite, id);
        put.map(|_| ()).map_err(|NotPut { why, .. }| why)
    }

    /// Puts the note anew, if it still is the own one.
    fn renew(&self) -> Result<(), PutError> {
        let Some(key) = self.single_writer.note.lock().as_ref().map(|note| note.key.clone()) else {
            return Ok(());
        };
        let renewing = requester::lock(&self.single_writer.renewing);
        let _renewing = renewing.map_err(PutError::Unknown)?;
        let at = SystemTime::now();
        // Others may have done so, and it may have ended.
        if !self.is_older(self.single_writer.renewal / 2)? {
            return Ok(());
        }
        let unknown = |error| PutError::Unknown(self.reports().failed(&key, &error));
        let found = self.note_at(&key).map_err(unknown)?.map(|found| found.writer);
        // What was removed may be put again: it is no other writer's.
        let other = found.filter(|writer| !writer.is_this());
        if other.is_none() && self.single_writer.note.lock().is_some() {
            self.put_note(&key)?;
        }
        let mut note = self.single_writer.note.lock();
        match (&mut *note, other) {
            (Some(note), None) => note.renewed = at,
            (Some(note), Some(writer)) => {
                note.is_taken = true;
                log::error!(
                    "{key}: {} writes there now, although this was to be the only writer: nothing more is changed",
                    writer.name()
                );
            }
            (None, _) => (),
        }
        Ok(())
    }

    /// Returns whether the note was put longer ago than that, or the clock was set since.
    ///
    /// # Errors
    /// EROFS if another process has put its own, or there is none any more.
    fn is_older(&self, age: Duration) -> Result<bool, PutError> {
        match &*self.single_writer.note.lock() {
            Some(Note { is_taken: true, .. }) | None => {
                Err(PutError::Refused(io::Error::from_raw_os_error(libc::EROFS)))
            }
            Some(note) => Ok(!note.renewed.elapsed().is_ok_and(|it| it < age)),
        }
    }

    /// Returns an error if another process has begun to write. The note is looked at if it was not for too long, as when
    /// this process was stopped.
    fn check_alone(&self) -> Result<(), PutError> {
        let longest = self.single_writer.renewal * 2;
        if self.is_older(longest)? {
            self.renew()?;
            self.is_older(longest)?;
        }
        Ok(())
    }

    /// Waits until no earlier request may change an object, if it is written to without conditions.
    pub(super) fn wait_to_change(&self, key: &Key) -> io::Result<()> {
        let writer = &self.single_writer;
        while writer.is_needed() {
            let left = writer.left(key, None);
            if left.is_zero()
                || writer.left(key, self.tag_and_write(key).map_err(to_io)?.1).is_zero()
            {
                break;
            }
            thread::sleep(left.min(LOOK));
            if requester::is_ending() {
                return Err(requester::interrupted());
            }
        }
        Ok(())
    }

    /// Returns an error if an earlier request may still change an object, which comes from the write `now`.
    fn check_arrived(&self, key: &Key, now: Option<WriteId>) -> Result<(), PutError> {
        let left = self.single_writer.left(key, now);
        if left.is_zero() {
            return Ok(());
        }
        log::debug!(
            "{key}: it is not changed for {} s: a request may still arrive",
            left.as_secs()
        );
        Err(PutError::Unknown(io::Error::from_raw_os_error(libc::ETIMEDOUT)))
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
        let turn = requester::lock(self.single_writer.turn(key));
        let _turn = turn.map_err(PutError::Unknown)?;
        let (tag, write) = self.tag_and_write(key)?;
        self.check_arrived(key, write)?;
        let is_it = match when {
            When::Absent => tag.is_none(),
            When::Is(expected) => tag.is_some_and(|tag| bare(&tag) == expected),
        };
        if !is_it {
            return Err(PutError::Conflict);
        }
        let put = self.put_once(key, content, PutMode::Overwrite, id);
        put.map_err(|NotPut { why, is_answered }| {
            if !is_answered && matches!(why, PutError::Unknown(_)) {
                self.single_writer.note_unanswered(key, Some(id));
            }
            why
        })
    }

    /// Returns the entity tag of what is there, an empty one if it has none, and the write that it comes from.
    fn tag_and_write(&self, key: &Key) -> Result<(Option<String>, Option<WriteId>), PutError> {
        match self.head_and_write(key) {
            Ok((meta, write)) => Ok((Some(meta.e_tag.unwrap_or_default()), write)),
            Err(RequestError::Absent) => Ok((None, None)),
            Err(error) => Err(PutError::Unknown(self.reports().failed(key, &error))),
        }
    }

    /// Removes an object, unless an earlier request may still put it.
    pub(super) fn remove_alone(&self, key: &Key) -> Result<(), PutError> {
        self.check_alone()?;
        let turn = requester::lock(self.single_writer.turn(key));
        let _turn = turn.map_err(PutError::Unknown)?;
        if !self.single_writer.left(key, None).is_zero() {
            let (_, write) = self.tag_and_write(key)?;
            self.check_arrived(key, write)?;
        }
        self.remove_now(key)
    }

    fn remove_now(&self, key: &Key) -> Result<(), PutError> {
        let failed = |error| self.reports().failed(key, &error);
        match self.remove(key) {
            Ok(()) | Err(RequestError::Absent) => Ok(()),
            Err(error @ (RequestError::Denied(_) | RequestError::Unsigned(_))) => {
                Err(PutError::Refused(failed(error)))
            }
            Err(error) => {
                self.single_writer.note_unanswered(key, None);
                Err(PutError::Unknown(failed(error)))
            }
        }
    }

    /// Removes the note, if there is one, and nothing is put from now on. It stays as long as a request without an answer
    /// may still arrive.
    pub(super) fn end_alone(&self) {
        let Some(note) = self.single_writer.note.lock().take() else { return };
        let Some(objects) = self.writes.as_ref().filter(|_| !note.is_taken) else { return };
        if self.single_writer.awaits_any() {
            log::warn!(
                "{}: it stays there, as a request without an answer may still arrive",
                note.key
            );
            return;
        }
        // A renewal may be under way.
        let renewing = self.single_writer.renewing.try_lock_for(LAST_PATIENCE);
        let remove = async {
            let bytes = objects.get(&note.key).await?.bytes().await?;
            match serde_json::from_slice::<Writer>(&bytes) {
                Ok(writer) if writer.is_this() => objects.delete(&note.key).await,
                _ => Ok(()),
            }
        };
        let removed = async { tokio::time::timeout(LAST_PATIENCE, remove).await };
        let removed = renewing.map(|_renewing| self.runtime.block_on(removed));
        if !matches!(removed, Some(Ok(Ok(())))) {
            log::warn!("{}: this note of a writer stays there", note.key);
        }
    }
}

/// Returns the error of a request that changes what nothing else is to change.
pub(super) fn to_io(error: PutError) -> io::Error {
    match error {
        PutError::Conflict => io::Error::from_raw_os_error(libc::ESTALE),
        PutError::Unknown(error) | PutError::Refused(error) => error,
    }
}
