//! What is known of a store that keeps to no conditions, and of the process that writes there alone. What is done about it
//! is in [`writing_alone`](super::writing_alone).

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use object_store::path::Path as Key;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::error::RequestError;
use crate::store::storage::WriteId;

/// Path of the note.
pub const WRITER_NOTE: &str = ".shardfs/writer";

/// Time after which a request without an answer cannot be expected to arrive any more.
const ARRIVED: Duration = Duration::from_secs(60);

/// Objects that are put at once at most; others may have to wait for one of them.
const TURNS: usize = 64;

/// What is known of writing alone.
pub(super) struct SingleWriter {
    /// `true` if the user promises that nothing else writes there.
    is_promised: bool,
    /// `true` once the store was seen to keep to no conditions.
    pub is_needed: AtomicBool,
    /// The note that says so to others.
    pub note: Mutex<Option<Note>>,
    /// Requests without an answer, by what they put.
    unanswered: Mutex<HashMap<Key, Unanswered>>,
    /// One is held while an object is looked at, and put.
    turns: [Mutex<()>; TURNS],
    by_key: RandomState,
}

/// Reason why this process does not begin to write alone.
pub(super) enum NotAlone {
    /// Another one has said that it does: its name, and the seconds since.
    Written(String, u64),
    /// It cannot be said.
    Refused(io::Error),
}

/// The note of this process.
pub(super) struct Note {
    /// Its key.
    pub key: Key,
    /// When it was put last.
    pub renewed: SystemTime,
    /// `true` once another writer has put one.
    pub is_taken: bool,
    /// Renewals end when it is dropped.
    pub _renewals: Sender<()>,
}

/// Request that may still arrive.
struct Unanswered {
    write: WriteId,
    since: Instant,
}

/// Process that writes, as its note names it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Writer {
    host: String,
    /// Number of the host's start, which no other one has.
    boot: String,
    /// Namespace in which the number of the process counts.
    namespace: String,
    pid: i32,
    /// When it has said so, in seconds since 1970 by its host's clock.
    time: u64,
}

impl Writer {
    /// Returns this process, which says so now.
    pub(super) fn this() -> Self {
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            host: kernel_text("/proc/sys/kernel/hostname"),
            boot: kernel_text("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.to_string_lossy().into_owned(),
            pid: getpid().as_raw_nonzero().get(),
            time: seconds(),
        }
    }

    /// Returns whether it is this process.
    pub(super) fn is_this(&self) -> bool {
        let this = Self::this();
        let whole = |it: &Self| (it.host.clone(), it.boot.clone(), it.namespace.clone(), it.pid);
        whole(self) == whole(&this)
    }

    /// Returns how long ago it has said so, in seconds. One whose clock is wrong is not believed for longer.
    pub(super) fn age(&self) -> u64 {
        seconds().abs_diff(self.time)
    }

    /// Returns whether it is a process of this machine that has ended.
    pub(super) fn has_ended(&self) -> bool {
        let this = Self::this();
        let is_here =
            !self.boot.is_empty() && (&self.boot, &self.namespace) == (&this.boot, &this.namespace);
        // One that was killed is there until its parent has heard of it.
        let is_gone = |pid| test_kill_process(pid) == Err(Errno::SRCH) || is_zombie(pid);
        is_here && Pid::from_raw(self.pid.max(0)).is_none_or(is_gone)
    }

    /// Returns what it is called in messages.
    pub(super) fn name(&self) -> String {
        let host: String = self.host.chars().filter(|char| !char.is_control()).take(64).collect();
        format!("process {} of {host:?}", self.pid)
    }
}

/// Returns whether a process has ended, but is still listed.
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // The name may have any characters in it, and the state is behind it.
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

/// Returns the seconds since 1970.
fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Returns a line that the kernel tells; an empty one if it does not.
fn kernel_text(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

impl SingleWriter {
    /// Returns what is known at first: whether the user promises that nothing else writes there.
    pub(super) fn new(is_promised: bool) -> Self {
        Self {
            is_promised,
            is_needed: AtomicBool::new(false),
            note: Mutex::default(),
            unanswered: Mutex::default(),
            turns: std::array::from_fn(|_| Mutex::default()),
            by_key: RandomState::new(),
        }
    }

    /// Returns whether the user promises that nothing else writes there.
    pub(super) fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// Returns whether objects are put without conditions.
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    /// Waits until nothing else is put at this key, or at some others.
    pub(super) fn turn(&self, key: &Key) -> MutexGuard<'_, ()> {
        let hash = usize::try_from(self.by_key.hash_one(key) % TURNS as u64);
        // Fewer than TURNS.
        self.turns[hash.unwrap_or(0)].lock()
    }

    /// Records a request without an answer.
    pub(super) fn note_unanswered(&self, key: &Key, write: WriteId) {
        let mut unanswered = self.unanswered.lock();
        unanswered.retain(|_, other| other.since.elapsed() < ARRIVED);
        unanswered.insert(key.clone(), Unanswered { write, since: Instant::now() });
    }

    /// Returns an error while a request to put an object may still arrive. `now` is the write that it comes from now.
    pub(super) fn check_arrived(
        &self,
        key: &Key,
        now: Option<WriteId>,
    ) -> Result<(), RequestError> {
        let mut unanswered = self.unanswered.lock();
        let Some(Unanswered { write, since }) = unanswered.get(key) else { return Ok(()) };
        let after = since.elapsed();
        if now != Some(*write) && after < ARRIVED {
            return Err(RequestError::Late { after, why: None });
        }
        unanswered.remove(key);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_machine_may_be_there_still() {
        let this = Writer::this();
        assert!(this.is_this() && this.age() < 60 && !this.has_ended());
        // Larger than any number of a process.
        let ended = Writer { pid: i32::MAX, ..this.clone() };
        assert!(ended.has_ended() && !ended.is_this());
        assert!(Writer { time: this.time + 3600, ..this }.age() > 60, "a clock that is wrong");
        assert!(!Writer { boot: "another".into(), ..ended.clone() }.has_ended());
        assert!(!Writer { namespace: "another".into(), ..ended }.has_ended());
        assert!(!Writer::default().has_ended(), "what is no note");
    }

    #[test]
    fn nothing_is_put_in_the_place_of_what_may_still_arrive() {
        let (writer, key) = (SingleWriter::new(true), Key::from("a"));
        let (one, other) = (WriteId::random().unwrap(), WriteId::random().unwrap());
        assert!(writer.check_arrived(&key, None).is_ok());
        writer.note_unanswered(&key, one);
        for now in [None, Some(other)] {
            assert!(matches!(writer.check_arrived(&key, now), Err(RequestError::Late { .. })));
        }
        assert!(writer.check_arrived(&Key::from("b"), None).is_ok());
        assert!(writer.check_arrived(&key, Some(one)).is_ok());
        assert!(writer.check_arrived(&key, Some(other)).is_ok(), "it was seen there");
    }
}
