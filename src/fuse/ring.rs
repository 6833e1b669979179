//! Requests by rings that the kernel shares with this process (FUSE over io_uring, Linux 6.14).
//!
//! A request goes to the queue of the CPU that its caller runs on, and a thread on the same CPU answers
//! it: no other CPU is woken. A thread has one ring with one entry, so it is as free to wait as one of
//! fuser's ([`worker`]). Threads of other CPUs cannot help, though, nor can an entry that is registered once
//! the request is there: so each CPU has entries in reserve ([`entries`]), and as long as it has one, what
//! waits for a commit, which may wait for the lock of another process, holds up nothing else. FORGET but for
//! those that a listing causes, INTERRUPT and notifications stay on `/dev/fuse`, where fuser's threads
//! ([`super::classic`]) answer them.
//!
//! ```text
//! prepare    threads with their rings, and all memory, before the kernel learns of it: whatever is
//!            missing, such as a system call that is not permitted, ends in the classic transport
//! INIT       agrees with the kernel that requests come by rings, which holds them back from then on
//! serve      every thread registers its entries; with one for each CPU, requests begin to arrive
//! ```

mod call;
mod entries;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, SendError, Sender, channel};
use std::thread::{self, JoinHandle};

use fuser::SessionACL;
use nix::unistd::geteuid;
use thiserror::Error;

use self::call::Allowed;
use self::entries::{ENTRY_NBYTES, Entries, Entry, Queue};
use self::worker::{Task, Worker};
use super::server::Server;
use crate::cpus::Cpus;

/// Says whether the kernel module takes part: `Y` or `N`.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// CPUs that may ever exist, as a list: `0-7`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// CPUs that there are, in the same form.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Threads of a queue at least: one may wait for another, which answers a read meanwhile.
const LEAST_THREADS: usize = 2;
/// Threads at most that answer requests from the beginning.
const MOST_THREADS: usize = 1024;
/// Entries in reserve of a CPU; each that was used has a thread of its own.
const RESERVE: usize = 32;
/// Those of a CPU that is offline, which may come.
const RESERVE_OFFLINE: usize = 4;

/// Why requests do not come by rings.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// The kernel has none.
    #[error("this kernel has no FUSE over io_uring")]
    Kernel,
    /// The kernel has it, switched off.
    #[error("it is switched off in the kernel: `echo Y > {SWITCH}` as root switches it on")]
    SwitchedOff,
    /// This process may not run on every CPU, and a thread for each is needed.
    #[error("this process may run on {allowed} of {online} CPUs")]
    Cpus {
        /// CPUs that it may run on.
        allowed: usize,
        /// CPUs that there are.
        online: usize,
    },
    /// There are too many CPUs.
    #[error("{0} CPUs need more than {MOST_THREADS} threads")]
    TooManyCpus(usize),
    /// What they take would leave too little address space to everything else.
    #[error("there is no address space for rings")]
    NoRoom,
    /// A ring or its memory was refused.
    #[error("the system refuses a ring: {0}")]
    Refused(#[from] io::Error),
}

/// Threads with rings that wait for the mount.
pub struct Rings {
    /// Those that have entries in reserve.
    reserves: Vec<(Waiting, Vec<Entry>)>,
    /// Those that answer.
    threads: Vec<(Waiting, Entry)>,
}

/// Thread that waits to be given a queue of a mount.
struct Waiting {
    queue: u16,
    start: Sender<(Worker, Task)>,
    thread: JoinHandle<()>,
}

/// Threads and entries of each queue, in order.
pub struct Plan(Vec<Share>);

struct Share {
    /// Threads that answer, with an entry each.
    threads: usize,
    /// Entries in reserve, which are one more thread's.
    reserve: usize,
}

impl Plan {
    /// Plans for about `threads` threads that answer, without starting any.
    pub fn new(threads: usize) -> Result<Self, Unavailable> {
        let (queues, online) = queues_and_online()?;
        let number_of_each = share_out(threads, queues, &online);
        let number_of_each = number_of_each.ok_or(Unavailable::TooManyCpus(queues))?;
        let reserve = |queue| if online.contains(&queue) { RESERVE } else { RESERVE_OFFLINE };
        let share = |(queue, threads)| Share { threads, reserve: reserve(queue) };
        Ok(Self(number_of_each.into_iter().enumerate().map(share).collect()))
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.0.iter().map(|share| share.threads + 1).sum()
    }

    /// Returns the length in bytes of the memory to share with the kernel.
    pub fn nbytes(&self) -> usize {
        let entries = self.0.iter().map(|share| share.threads + share.reserve);
        entries.sum::<usize>().saturating_mul(ENTRY_NBYTES)
    }
}

impl Rings {
    /// Starts the threads, and creates their rings and memory.
    pub fn prepare(plan: &Plan) -> Result<Self, Unavailable> {
        let mut rings = Self { reserves: Vec::new(), threads: Vec::new() };
        for (queue, share) in (0..).zip(&plan.0) {
            if let Err(error) = rings.prepare_queue(queue, share) {
                rings.end();
                return Err(error.into());
            }
        }
        Ok(rings)
    }

    /// Starts the threads of a queue.
    fn prepare_queue(&mut self, queue: u16, share: &Share) -> io::Result<()> {
        let entries = (0..share.reserve).map(|_| Entry::new()).collect::<io::Result<_>>()?;
        self.reserves.push((start_thread(queue, share.reserve)?, entries));
        for _ in 0..share.threads {
            let entry = Entry::new()?;
            self.threads.push((start_thread(queue, 1)?, entry));
        }
        Ok(())
    }

    /// Returns once the threads have ended, and given back the memory that whoever answers requests in
    /// their place needs.
    pub fn end(self) {
        let reserves = self.reserves.into_iter().map(|(waiting, _)| waiting);
        for Waiting { start, thread, .. } in
            reserves.chain(self.threads.into_iter().map(|(waiting, _)| waiting))
        {
            // It waits for what this would send.
            drop(start);
            drop(thread.join());
        }
    }

    /// Returns the number of threads that answer requests from the beginning.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Returns the length in bytes of the memory that is shared with the kernel. What is in reserve takes
    /// none before it is used.
    pub fn nbytes(&self) -> usize {
        let reserve: usize = self.reserves.iter().map(|(_, entries)| entries.len()).sum();
        (self.threads.len() + reserve) * ENTRY_NBYTES
    }

    /// Answers the requests of a mount, which has agreed to rings with the kernel, until it ends.
    /// Returns the threads, once all their entries are registered; `None` if some were refused, as may be
    /// if the kernel's part was switched off since: some requests could never be answered. A thread that
    /// cannot go on calls `end_mount`.
    pub fn serve(
        self,
        server: &Arc<Server>,
        acl: SessionACL,
        device: OwnedFd,
        end_mount: fn(),
    ) -> Option<Vec<JoinHandle<()>>> {
        let allowed = Allowed { acl, owner: geteuid().as_raw() };
        let (device, answering) = (Arc::new(device), self.threads.len());
        let start = |waiting: Waiting, task| {
            let (server, device) = (Arc::clone(server), Arc::clone(&device));
            let queue = Queue { device, number: waiting.queue };
            let worker = Worker { server, allowed, queue, start_thread: start_another, end_mount };
            // A thread that waits for this takes it.
            let _ = waiting.start.send((worker, task));
            waiting.thread
        };
        // The kernel takes the entry that came last: what is in reserve is to come first.
        let reserves = self.reserves.into_iter().map(|(waiting, entries)| {
            let (registered, outcome) = channel();
            let thread = start(waiting, Task::Reserve(entries, registered));
            outcome.recv().ok().map(|()| thread)
        });
        let mut threads = reserves.collect::<Option<Vec<_>>>()?;
        let (registered, outcomes) = channel();
        let answer = |(waiting, entry)| start(waiting, Task::Register(entry, registered.clone()));
        threads.extend(self.threads.into_iter().map(answer));
        drop(registered);
        // Ends with the last thread that has sent, or has failed.
        (outcomes.iter().count() == answering).then_some(threads)
    }
}

/// Starts a thread on the CPU of a queue, and returns once it has a ring for `most` entries at a time.
fn start_thread(queue: u16, most: usize) -> io::Result<Waiting> {
    let (start, tasks) = channel();
    let (ready, outcome) = channel();
    let most = u32::try_from(most).map_err(io::Error::other)?;
    let builder = thread::Builder::new().name(format!("ring-{queue}"));
    let thread = builder.spawn(move || {
        pin_to(queue);
        match Entries::new(most) {
            Ok(entries) => {
                let _ = ready.send(Ok(()));
                wait_and_serve(&tasks, entries);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|RecvError| Err(io::Error::other("a thread has ended")))?;
    Ok(Waiting { queue, start, thread })
}

fn wait_and_serve(tasks: &Receiver<(Worker, Task)>, entries: Entries) {
    // Without a mount there is nothing to serve.
    let Ok((worker, task)) = tasks.recv() else { return };
    if let Err(error) = worker.run(entries, task) {
        log::error!("a ring of CPU {} has failed, so the mount ends: {error}", worker.queue.number);
        // The request in its entry has no answer, and who sends one to a queue without threads waits
        // for ever.
        (worker.end_mount)();
    }
}

/// Starts another thread for the queue of a worker; returns its task if there can be none.
fn start_another(worker: &Worker, task: Task) -> Result<(), Task> {
    match start_thread(worker.queue.number, 1) {
        Ok(waiting) => {
            let sent = waiting.start.send((worker.clone(), task));
            sent.map_err(|SendError((_, task))| task)
        }
        Err(error) => {
            log::debug!("CPU {} has no further thread: {error}", worker.queue.number);
            Err(task)
        }
    }
}

/// Lets the calling thread run on the CPU of its queue alone. If that is offline, it may run anywhere.
fn pin_to(queue: u16) {
    if let Err(error) = Cpus::one(usize::from(queue)).and_then(|cpu| cpu.bind()) {
        log::debug!("a thread cannot be bound to CPU {queue}: {error}");
    }
}

/// Returns the number of threads of each queue, about `threads` in all; `None` if these are too many. A
/// CPU that is offline may come: one thread answers what its first callers ask.
fn share_out(threads: usize, queues: usize, online: &BTreeSet<usize>) -> Option<Vec<usize>> {
    let cpus = online.len().max(1);
    let most = MOST_THREADS.checked_sub(queues.saturating_sub(cpus))? / cpus;
    let of_each = threads.div_ceil(cpus).clamp(LEAST_THREADS, most.max(LEAST_THREADS));
    let number = |queue| if online.contains(&queue) { of_each } else { 1 };
    (most >= LEAST_THREADS).then(|| (0..queues).map(number).collect())
}

/// Returns the number of queues that the kernel has, one for each CPU that may ever exist, and the
/// numbers of the CPUs that there are.
fn queues_and_online() -> Result<(usize, BTreeSet<usize>), Unavailable> {
    match std::fs::read_to_string(SWITCH) {
        Ok(switch) if switch.starts_with('Y') => (),
        Ok(_) => return Err(Unavailable::SwitchedOff),
        Err(_) => return Err(Unavailable::Kernel),
    }
    let (allowed, online) = (Cpus::allowed()?.count(), cpus(ONLINE)?);
    if allowed < online.len() {
        return Err(Unavailable::Cpus { allowed, online: online.len() });
    }
    Ok((cpus(POSSIBLE)?.len(), online))
}

/// Returns the CPUs in a list of the kernel.
fn cpus(path: &str) -> io::Result<BTreeSet<usize>> {
    let text = std::fs::read_to_string(path)?;
    let numbers = numbers_of(text.trim());
    numbers
        .ok_or_else(|| io::Error::other(format!("{path}: {:?} is not a list of CPUs", text.trim())))
}

/// Returns the numbers that a list like `0-3,8` names; `None` if it is not one, or names more than there
/// can be CPUs.
fn numbers_of(list: &str) -> Option<BTreeSet<usize>> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last <= usize::from(u16::MAX)).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> = list.split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_names_numbers_and_ranges() {
        let named = |list: &[usize]| Some(list.iter().copied().collect());
        assert_eq!(numbers_of("0"), named(&[0]));
        assert_eq!(numbers_of("0-3"), named(&[0, 1, 2, 3]));
        assert_eq!(numbers_of("0-1,8,10-11"), named(&[0, 1, 8, 10, 11]));
        for bad in ["", "a", "3-1", "0-", "0-65536", "0-18446744073709551615"] {
            assert_eq!(numbers_of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn threads_are_shared_out_among_the_cpus_that_there_are() {
        let online = |cpus: usize| (0..cpus).collect();
        assert_eq!(share_out(8, 2, &online(2)), Some(vec![4, 4]));
        assert_eq!(share_out(1, 3, &online(3)), Some(vec![2, 2, 2]));
        assert_eq!(share_out(8, 4, &online(2)), Some(vec![4, 4, 1, 1]), "two may come");
        // However it is rounded, there are not more than that.
        assert_eq!(share_out(1024, 3, &online(3)), Some(vec![341, 341, 341]));
        assert_eq!(share_out(1024, 4, &online(2)), Some(vec![511, 511, 1, 1]));
        assert_eq!(share_out(8, 1025, &online(8)), None);
        assert_eq!(share_out(8, 600, &online(600)), None);
    }
}
