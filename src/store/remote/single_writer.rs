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
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::options::RemoteOptions;
use crate::store::storage::WriteId;

/// Path of the note.
pub const WRITER_NOTE: &str = ".shardfs/writer";

/// Objects that are changed at once at most; others may have to wait for one of them.
const TURNS: usize = 64;

/// What is known of writing alone.
pub(super) struct SingleWriter {
    /// `true` if the user promises that nothing else writes there.
    pub is_promised: bool,
    /// Time after which the note is put anew.
    pub renewal: Duration,
    /// Time after which a request without an answer cannot be expected to arrive any more.
    pub arrival: Duration,
    /// `true` once the store was seen to keep to no conditions.
    is_needed: AtomicBool,
    /// The note that says so to others.
    pub note: Mutex<Option<Note>>,
    /// When the requests of a writer before this one have arrived.
    held: Mutex<Option<Instant>>,
    /// Object with which the store is tried out: it was never there before, and nothing else depends on it.
    trial: Mutex<Option<Key>>,
    /// Held while the note is changed.
    pub renewing: Mutex<()>,
    /// Requests without an answer, by what they change.
    unanswered: Mutex<HashMap<Key, Unanswered>>,
    /// One is held while an object is looked at, and changed.
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
    /// What it puts; `None` if it removes the object.
    write: Option<WriteId>,
    since: Instant,
}

/// Process that writes, as its note names it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Writer {
    host: String,
    /// Number of the host's start, which no other one has.
    boot: String,
    /// Namespace in which the number of the process counts.
    namespace: String,
    pid: i32,
}

impl Writer {
    /// Returns this process.
    pub(super) fn this() -> Self {
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Self {
            host: kernel_text("/proc/sys/kernel/hostname"),
            boot: kernel_text("/proc/sys/kernel/random/boot_id"),
            namespace: namespace.to_string_lossy().into_owned(),
            pid: getpid().as_raw_nonzero().get(),
        }
    }

    /// Returns whether it is this process.
    pub(super) fn is_this(&self) -> bool {
        *self == Self::this()
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

/// Returns a line that the kernel tells; an empty one if it does not.
fn kernel_text(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

/// Returns whether a process has ended, but is still listed.
fn is_zombie(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // The name may have any characters in it, and the state is behind it.
    stat.is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z")))
}

impl SingleWriter {
    /// Returns what is known at first.
    pub(super) fn new(options: &RemoteOptions) -> Self {
        Self {
            is_promised: options.single_writer,
            renewal: options.renewal,
            arrival: options.arrival,
            is_needed: AtomicBool::new(false),
            note: Mutex::default(),
            held: Mutex::default(),
            trial: Mutex::default(),
            renewing: Mutex::default(),
            unanswered: Mutex::default(),
            turns: std::array::from_fn(|_| Mutex::default()),
            by_key: RandomState::new(),
        }
    }

    /// Returns whether objects are put without conditions.
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    /// Says whether objects are put without conditions.
    pub(super) fn set_needed(&self, is_needed: bool) {
        self.is_needed.store(is_needed, Ordering::Relaxed);
    }

    /// Returns the time after which a note that was not put anew is no writer's any more.
    pub(super) fn lease(&self) -> Duration {
        self.renewal * 3
    }

    /// Changes nothing for this time but the object with which the store is tried out.
    pub(super) fn hold(&self, time: Duration, trial: &Key) {
        *self.held.lock() = Instant::now().checked_add(time);
        *self.trial.lock() = Some(trial.clone());
    }

    /// Returns for how long nothing is changed.
    pub(super) fn left_held(&self) -> Duration {
        let held = self.held.lock();
        held.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the store is tried out with this object.
    fn is_trial(&self, key: &Key) -> bool {
        self.trial.lock().as_ref() == Some(key)
    }

    /// Returns what is held while the object with this key, and some others, are changed.
    pub(super) fn turn(&self, key: &Key) -> &Mutex<()> {
        let hash = usize::try_from(self.by_key.hash_one(key) % TURNS as u64);
        // Fewer than TURNS.
        &self.turns[hash.unwrap_or(0)]
    }

    /// Records a request without an answer: one that puts an object, or removes it.
    pub(super) fn note_unanswered(&self, key: &Key, write: Option<WriteId>) {
        if self.is_trial(key) {
            return;
        }
        let mut unanswered = self.unanswered.lock();
        unanswered.retain(|_, other| other.since.elapsed() < self.arrival);
        unanswered.insert(key.clone(), Unanswered { write, since: Instant::now() });
    }

    /// Returns for how long an object cannot be changed, as earlier requests may still arrive. `now` is the write that it
    /// comes from now.
    pub(super) fn left(&self, key: &Key, now: Option<WriteId>) -> Duration {
        let held = if self.is_trial(key) { Duration::ZERO } else { self.left_held() };
        held.max(self.left_to_arrive(key, now))
    }

    /// The same of requests of this process that change this object.
    fn left_to_arrive(&self, key: &Key, now: Option<WriteId>) -> Duration {
        let mut unanswered = self.unanswered.lock();
        let Some(Unanswered { write, since }) = unanswered.get(key) else { return Duration::ZERO };
        let left = self.arrival.saturating_sub(since.elapsed());
        let has_arrived = write.is_some() && now == *write;
        if has_arrived || left.is_zero() {
            unanswered.remove(key);
            return Duration::ZERO;
        }
        left
    }

    /// Records that an object was seen that a request without an answer has put.
    pub(super) fn note_arrived(&self, write: WriteId) {
        self.unanswered.lock().retain(|_, unanswered| unanswered.write != Some(write));
    }

    /// Returns whether any request without an answer may still arrive.
    pub(super) fn awaits_any(&self) -> bool {
        if !self.left_held().is_zero() {
            return true;
        }
        let unanswered = self.unanswered.lock();
        unanswered.values().any(|other| other.since.elapsed() < self.arrival)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_machine_may_be_there_still() {
        let this = Writer::this();
        assert!(this.is_this() && !this.has_ended());
        // Larger than any number of a process.
        let ended = Writer { pid: i32::MAX, ..this };
        assert!(ended.has_ended() && !ended.is_this());
        assert!(!Writer { boot: "another".into(), ..ended.clone() }.has_ended());
        assert!(!Writer { namespace: "another".into(), ..ended }.has_ended());
        assert!(!Writer::default().has_ended(), "what is no note");
    }

    #[test]
    fn it_is_known_what_may_still_arrive() {
        let writer = SingleWriter::new(&RemoteOptions::default());
        let (key, removed) = (Key::from("a"), Key::from("b"));
        let (one, other) = (WriteId::random().unwrap(), WriteId::random().unwrap());
        let is_free = |key: &Key, now| writer.left(key, now).is_zero();
        assert!(is_free(&key, None) && !writer.awaits_any());
        writer.note_unanswered(&key, Some(one));
        writer.note_unanswered(&removed, None);
        assert!(!is_free(&key, None) && !is_free(&key, Some(other)));
        assert!(!is_free(&removed, None) && !is_free(&removed, Some(one)));
        assert!(is_free(&Key::from("c"), None));
        assert!(is_free(&key, Some(one)));
        assert!(is_free(&key, Some(other)), "it was seen there");
        assert!(writer.awaits_any());
        let writer = SingleWriter { arrival: Duration::ZERO, ..writer };
        assert!(!writer.awaits_any() && writer.left(&removed, None).is_zero());
        let trial = Key::from("trial");
        writer.hold(Duration::from_secs(600), &trial);
        assert!(writer.awaits_any() && writer.left(&trial, None).is_zero());
        assert!(!writer.left(&key, Some(one)).is_zero());
    }
}
