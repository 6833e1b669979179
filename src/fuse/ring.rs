//! Requests by rings that the kernel shares with this process (FUSE over io_uring, Linux 6.14).
//!
//! A request goes to the queue of the CPU that its caller runs on, and a thread on the same CPU answers
//! it: no other CPU is woken. A thread has one ring with one entry ([`worker`]), so it is as free to
//! wait as one of fuser's. Threads of other CPUs cannot help, though: where one waits for a commit, a
//! further one is started before none of its CPU is left ([`queue`]). FORGET but for those that a listing
//! causes, INTERRUPT and notifications stay on `/dev/fuse`, where fuser's threads ([`super::classic`])
//! answer them.
//!
//! ```text
//! prepare    threads with their rings, before the kernel learns of it: whatever is missing, such as a
//!            system call that is not permitted, ends in the classic transport
//! INIT       agrees with the kernel that requests come by rings, which holds them back from then on
//! serve      every thread registers its entry; with one for each CPU, requests begin to arrive
//! ```

mod call;
mod queue;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, Sender, channel};
use std::thread::{self, JoinHandle};

use fuser::SessionACL;
use nix::unistd::geteuid;
use thiserror::Error;

use self::call::Allowed;
use self::queue::Queue;
use self::worker::{ENTRY_NBYTES, Entry, Worker};
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
/// Threads at most that are started with the mount; each has memory for a payload.
const MOST_THREADS: usize = 1024;

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
    /// A ring or its memory was refused.
    #[error("the system refuses a ring: {0}")]
    Refused(#[from] io::Error),
}

/// Threads with rings that wait for the mount.
pub struct Rings {
    threads: Vec<Waiting>,
}

/// Thread that waits to be given a queue of a mount.
struct Waiting {
    queue: u16,
    start: Sender<Worker>,
    thread: JoinHandle<()>,
}

impl Rings {
    /// Starts the threads, about `threads` of them, and creates their rings.
    pub fn prepare(threads: usize) -> Result<Self, Unavailable> {
        let (queues, online) = queues_and_online()?;
        let number_of_each = share_out(threads, queues, &online);
        let number_of_each = number_of_each.ok_or(Unavailable::TooManyCpus(queues))?;
        let of_each = (0..).zip(number_of_each);
        let queue_of_each = of_each.flat_map(|(queue, number)| std::iter::repeat_n(queue, number));
        let mut rings = Self { threads: Vec::new() };
        for queue in queue_of_each {
            match start_thread(queue) {
                Ok(thread) => rings.threads.push(thread),
                Err(error) => {
                    rings.end();
                    return Err(error.into());
                }
            }
        }
        Ok(rings)
    }

    /// Returns once the threads have ended, and given back the memory that whoever answers requests in
    /// their place needs.
    pub fn end(self) {
        for Waiting { start, thread, .. } in self.threads {
            // It waits for what this would send.
            drop(start);
            drop(thread.join());
        }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Returns the length in bytes of the memory that the threads share with the kernel.
    pub fn nbytes(&self) -> usize {
        self.threads.len() * ENTRY_NBYTES
    }

    /// Answers the requests of a mount, which has agreed to rings with the kernel, until it ends.
    /// Returns the threads. If one of them cannot go on, it calls `end_mount`.
    pub fn serve(
        self,
        server: &Arc<Server>,
        acl: SessionACL,
        device: OwnedFd,
        end_mount: fn(),
    ) -> Vec<JoinHandle<()>> {
        let allowed = Allowed { acl, owner: geteuid().as_raw() };
        let device = Arc::new(device);
        let last = self.threads.iter().map(|waiting| waiting.queue).max().unwrap_or(0);
        let queues: Vec<_> = (0..=last).map(|number| Arc::new(Queue::new(number))).collect();
        let start = |waiting: Waiting| {
            let (server, device) = (Arc::clone(server), Arc::clone(&device));
            let queue = Arc::clone(&queues[usize::from(waiting.queue)]);
            queue.starts();
            let worker = Worker { server, allowed, device, queue, add_thread, end_mount };
            // A thread that waits for this takes it.
            let _ = waiting.start.send(worker);
            waiting.thread
        };
        self.threads.into_iter().map(start).collect()
    }
}

/// Starts a thread on the CPU of a queue, and returns once its ring exists.
fn start_thread(queue: u16) -> io::Result<Waiting> {
    let (start, workers) = channel();
    let (ready, outcome) = channel();
    let builder = thread::Builder::new().name(format!("ring-{queue}"));
    let thread = builder.spawn(move || {
        pin_to(queue);
        match Entry::new() {
            Ok(entry) => {
                let _ = ready.send(Ok(()));
                wait_and_serve(&workers, entry);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|RecvError| Err(io::Error::other("a thread has ended")))?;
    Ok(Waiting { queue, start, thread })
}

fn wait_and_serve(workers: &Receiver<Worker>, entry: Entry) {
    // Without a mount there is nothing to serve.
    let Ok(worker) = workers.recv() else { return };
    if let Err(error) = worker.run(entry) {
        log::error!("a ring of CPU {} has failed, so the mount ends: {error}", worker.queue.number);
        // The request in its entry has no answer, and who sends one to a queue without threads waits
        // for ever.
        (worker.end_mount)();
    }
}

/// Lets the calling thread run on the CPU of its queue alone. If that is offline, it may run anywhere.
fn pin_to(queue: u16) {
    if let Err(error) = Cpus::one(usize::from(queue)).and_then(|cpu| cpu.bind()) {
        log::debug!("a thread cannot be bound to CPU {queue}: {error}");
    }
}

/// Starts another thread for the queue of a worker.
fn add_thread(worker: &Worker) {
    let queue = &worker.queue;
    match start_thread(queue.number) {
        // A thread that waits for this takes it.
        Ok(waiting) => drop(waiting.start.send(worker.clone())),
        Err(error) => {
            log::debug!("CPU {} has no further thread: {error}", queue.number);
            queue.not_added();
        }
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
