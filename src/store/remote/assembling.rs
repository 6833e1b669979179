//! Objects that are replaced by ones which the store assembles, and what becomes of uploads that are not completed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::PutPayload;
use object_store::path::Path as Key;

use super::assembler::Unfinished;
use super::client::Client;
use super::multipart::{NotMade, UploadId};
use crate::format::plan::parts::PartLimits;
use crate::stats::Replacing;
use crate::store::storage::{ObjectPart, PutError, WriteId};

/// What Amazon's store asks of parts, and others too. Requests take time, so little is not worth them.
const LIMITS: PartLimits = PartLimits {
    least: 5 << 20,
    most_copied: 128 << 20,
    most_sent: 16 << 20,
    count: 10_000,
    gain: 16 << 20,
};

/// Parts of an object that are made at once.
const AT_ONCE: usize = 4;

/// Times that a part is asked for.
const TRIES: u32 = 4;

/// Pause before the second time. It doubles each time.
const PAUSE: Duration = Duration::from_millis(100);

/// How what is left of uploads is removed.
const HINT: &str =
    ": what is left of it takes space in the store; \"shardfs recover URL\" removes it";

/// Returns whether an error is that there was no answer in all the time for one.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIMEDOUT | libc::EINTR))
}

impl Client {
    /// Returns what the parts of an object must be; `None` if the store cannot assemble one, or was not seen to do so on
    /// a condition.
    pub(super) fn part_limits(&self) -> Option<PartLimits> {
        self.assembler.as_ref().filter(|it| it.is_trusted()).map(|_| LIMITS)
    }

    /// Says in the statistics how shards are replaced from now on.
    pub(super) fn note_replacing(&self) {
        // Others may say so at the same time.
        let mut replacing = self.stats.replacing.lock();
        *replacing = Some(match (self.single_writer.is_needed(), self.part_limits()) {
            (true, _) => Replacing::Unconditionally,
            (false, Some(_)) => Replacing::Assembling,
            (false, None) => Replacing::Whole,
        });
    }

    /// Replaces the object with the entity tag `before` by one that is made of parts. The request that does so is sent
    /// once. Returns the entity tag, if the store tells it.
    pub(super) fn assemble(
        &self,
        key: &Key,
        parts: Vec<ObjectPart>,
        before: &str,
        id: WriteId,
    ) -> Result<Option<String>, PutError> {
        let assembler = self.assembler()?;
        let assembled = self.assembled(key, parts, before, id);
        let error = match assembled {
            Ok(tag) => {
                assembler.has_assembled();
                self.note_replacing();
                return Ok(tag);
            }
            Err(NotMade::Put(PutError::Conflict)) => return Err(PutError::Conflict),
            // It was to be completed.
            Err(NotMade::Put(PutError::Refused(error))) => return Err(PutError::Refused(error)),
            Err(NotMade::Put(PutError::Unknown(error)) | NotMade::Unable(error)) => error,
        };
        if assembler.has_failed() {
            self.note_replacing();
            log::warn!(
                "the store does not assemble shards of parts: they are put as a whole: {error}"
            );
        }
        Err(PutError::Unknown(error))
    }

    fn assembled(
        &self,
        key: &Key,
        parts: Vec<ObjectPart>,
        before: &str,
        id: WriteId,
    ) -> Result<Option<String>, NotMade> {
        let upload = self.begin_upload(key, id).map_err(NotMade::before_completion);
        let upload = upload.inspect_err(|error| {
            if let NotMade::Put(PutError::Unknown(_)) = error {
                log::warn!("{key}: an upload may have begun, whose name is unknown{HINT}");
            }
        })?;
        let lengths: Vec<u64> = parts.iter().map(ObjectPart::nbytes).collect();
        let made = self.parts(key, &upload, before, parts);
        let made = made.and_then(|tags| {
            if !self.assembler()?.is_measured.load(Ordering::Relaxed) {
                self.check_lengths(key, &upload, &lengths)?;
                self.assembler()?.is_measured.store(true, Ordering::Relaxed);
            }
            Ok(tags)
        });
        let made = made.map_err(NotMade::before_completion);
        let tags = made.inspect_err(|_| self.give_up(key, &upload))?;
        let nbytes = lengths.iter().copied().fold(0, u64::saturating_add);
        let completed = self.complete(key, &upload, &tags, (before, nbytes));
        match &completed {
            Ok(_) => (),
            Err(NotMade::Put(PutError::Unknown(_))) => self.keep(key, upload, id),
            Err(_) => self.give_up(key, &upload),
        }
        completed
    }

    /// Makes all parts, and returns their tags. Whatever comes of them, none is asked for afterwards.
    fn parts(
        &self,
        key: &Key,
        upload: &UploadId,
        before: &str,
        parts: Vec<ObjectPart>,
    ) -> Result<Vec<String>, NotMade> {
        let has_failed = AtomicBool::new(false);
        let numbered = (1..).zip(parts);
        let parts = numbered.map(|(number, part)| {
            let part = self.part(key, upload, before, number, part);
            let has_failed = &has_failed;
            async move {
                if has_failed.load(Ordering::Relaxed) {
                    return None;
                }
                let part = part.await;
                has_failed.fetch_or(part.is_err(), Ordering::Relaxed);
                Some(part)
            }
        });
        let made = futures_util::stream::iter(parts).buffered(AT_ONCE).collect::<Vec<_>>();
        let made = self.wait_for::<_, NotMade>(async { Ok(made.await) })?;
        made.into_iter().flatten().collect()
    }

    /// Makes a part, and returns its tag. It is asked for again if it is unknown what has become of it.
    async fn part(
        &self,
        key: &Key,
        upload: &UploadId,
        before: &str,
        number: usize,
        part: ObjectPart,
    ) -> Result<String, NotMade> {
        let payload = match part {
            ObjectPart::Kept(range) => Err(range),
            ObjectPart::Sent(bytes) => Ok(PutPayload::from(bytes)),
        };
        let mut tries = 1;
        loop {
            let made = match &payload {
                Ok(payload) => self.send_part(key, upload, number, payload.clone()).await,
                Err(range) => self.copy_part(key, upload, number, (before, Some(*range))).await,
            };
            match made {
                Err(NotMade::Put(PutError::Unknown(error)))
                    if tries < TRIES && !is_silence(&error) =>
                {
                    log::debug!("{key}: part {number}: {error}");
                    tokio::time::sleep(PAUSE * 2_u32.pow(tries - 1)).await;
                    tries += 1;
                }
                made => return made,
            }
        }
    }

    /// Gives up an upload that this mount has begun, and does not complete.
    fn give_up(&self, key: &Key, upload: &UploadId) {
        if let Err(why) = self.abort(key, upload) {
            log::warn!("{key}: an upload that is not completed stays in the store ({why}){HINT}");
        }
    }

    /// Keeps the name of an upload that may be completed at any time: some stores lose objects of which an upload is given
    /// up meanwhile.
    pub(super) fn keep(&self, key: &Key, upload: UploadId, id: WriteId) {
        if let Some(assembler) = &self.assembler {
            assembler.unfinished.lock().push(Unfinished { key: key.clone(), upload, id });
        }
    }

    /// Says that an object is the one of this write: if it was assembled, nothing of its upload is left.
    pub(super) fn note_written(&self, id: WriteId) {
        let Some(assembler) = &self.assembler else { return };
        let mut unfinished = assembler.unfinished.lock();
        if let Some(at) = unfinished.iter().position(|unfinished| unfinished.id == id) {
            unfinished.swap_remove(at);
            assembler.has_assembled();
            self.note_replacing();
        }
    }

    /// Says that an object was put in the place of all those before it, or that there is none any more: no upload can be
    /// completed that was to replace one of them.
    pub(super) fn note_replaced(&self, key: &Key) {
        let Some(assembler) = &self.assembler else { return };
        let outdated: Vec<Unfinished> = {
            let mut unfinished = assembler.unfinished.lock();
            unfinished.extract_if(.., |unfinished| unfinished.key == *key).collect()
        };
        outdated.iter().for_each(|unfinished| self.give_up(key, &unfinished.upload));
    }

    /// Says which uploads may not have been completed.
    pub(super) fn tell_of_uploads(&self) {
        let Some(assembler) = &self.assembler else { return };
        for Unfinished { key, .. } in assembler.unfinished.lock().drain(..) {
            log::warn!("{key}: an upload may not have been completed{HINT}");
        }
    }
}
