//! Threads of one CPU: those that answer requests, and the one that has entries in reserve.
//!
//! Each thread that answers has a ring of its own with one entry in it. So a request that takes long holds
//! up none of those that other threads of the same CPU can answer, and nothing but the thread's own calls
//! ever touches the ring. The kernel takes the entry that came back last, so it takes one in reserve only
//! if all threads of the CPU are busy: then there is one thread more, which keeps the entry.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use fuser::Errno;

use super::super::kernel_cache::without_waiting;
use super::super::server::Server;
use super::call::{Allowed, answer};
use super::entries::{Entries, Entry, Queue};
use super::wire::{Call, encode_outcome};

/// What a thread begins with.
pub(super) enum Task {
    /// Register an entry, send that it is, and answer what comes in it.
    Register(Entry, Sender<()>),
    /// Answer the request in the entry, and what else comes in it.
    Answer(Entry),
    /// Register entries in reserve, send that they are, and give each to another thread once it is used.
    Reserve(Vec<Entry>, Sender<()>),
}

/// Thread that serves one queue.
#[derive(Clone)]
pub(super) struct Worker {
    /// Filesystem.
    pub server: Arc<Server>,
    /// Users whose requests are answered.
    pub allowed: Allowed,
    /// The queue.
    pub queue: Queue,
    /// Starts a thread with a task for the queue; returns the task if there can be none.
    pub start_thread: fn(&Self, Task) -> Result<(), Task>,
    /// Ends the mount.
    pub end_mount: fn(),
}

impl Worker {
    /// Serves until the mount ends.
    ///
    /// # Errors
    ///
    /// The kernel refuses an entry. If it may still write to its memory, that is never freed.
    pub(super) fn run(&self, mut entries: Entries, task: Task) -> io::Result<()> {
        let first = match task {
            Task::Answer(entry) => Some(entry),
            Task::Register(entry, registered) => {
                let first = self.register(&mut entries, [entry], registered)?;
                first.map_or_else(|| entries.next_request(), |entry| Ok(Some(entry)))?
            }
            Task::Reserve(reserve, registered) => {
                return self.keep(entries, reserve, registered);
            }
        };
        let mut next = first;
        while let Some(entry) = next {
            self.answer(&mut entries, entry)?;
            next = entries.next_request()?;
        }
        Ok(())
    }

    /// Registers entries, and sends that they are. Returns one if a request has arrived in it already.
    fn register(
        &self,
        entries: &mut Entries,
        new: impl IntoIterator<Item = Entry>,
        registered: Sender<()>,
    ) -> io::Result<Option<Entry>> {
        for entry in new {
            entries.register(&self.queue, entry)?;
        }
        let arrived = loop {
            entries.submit()?;
            // An entry that is refused has come back at once; or is given once more.
            let arrived = entries.arrived()?;
            if arrived.is_some() || entries.is_submitted() {
                break arrived;
            }
        };
        // Whoever waits for this has not gone.
        let _ = registered.send(());
        Ok(arrived)
    }

    /// Has entries in reserve, until each is with a thread of its own.
    fn keep(
        &self,
        mut entries: Entries,
        reserve: Vec<Entry>,
        registered: Sender<()>,
    ) -> io::Result<()> {
        let mut arrived = self.register(&mut entries, reserve, registered)?;
        loop {
            let next = arrived.take().map_or_else(|| entries.next_request(), |it| Ok(Some(it)))?;
            let Some(entry) = next else { return Ok(()) };
            if let Err(Task::Answer(entry)) = (self.start_thread)(self, Task::Answer(entry)) {
                // From now on the kernel prefers these entries to those of threads that have nothing to do, and
                // another request, for which the kernel may wait, can be in the next of them already.
                without_waiting(|| self.answer(&mut entries, entry))?;
                entries.submit()?;
            }
        }
    }

    /// Answers the request in an entry, and gives that back to the kernel.
    fn answer(&self, entries: &mut Entries, mut entry: Entry) -> io::Result<()> {
        let commit_id = self.answered(&mut entry);
        entries.commit(&self.queue, entry, commit_id)
    }

    /// Answers the request in the entry; returns the number by which the answer is given.
    fn answered(&self, entry: &mut Entry) -> u64 {
        // The memory is longer than both parts.
        let Some((header, payload)) = entry.parts() else { return 0 };
        let call = Call::decode(header);
        // As fuser does, which answers for a request that was dropped.
        let answered =
            catch_unwind(AssertUnwindSafe(|| answer(&self.server, self.allowed, &call, payload)));
        let answered = answered.unwrap_or_else(|_| {
            log::error!("a request with opcode {} ended in a panic", call.opcode);
            Err(Errno::EIO)
        });
        let outcome = answered.map_err(Errno::code).and_then(|nbytes| {
            // Payloads are shorter than that.
            u32::try_from(nbytes).map_err(|_| libc::EIO)
        });
        encode_outcome(header, call.unique, outcome);
        call.commit_id
    }
}
