//! Requests by rings that the kernel shares with this process (FUSE over io_uring, Linux 6.14).
//!
//! A request goes to the queue of the CPU that its caller runs on, and a thread on the same CPU answers
//! it: no other CPU is woken. A thread has one ring with one entry ([`worker`]), so it is as free to
//! wait as one of fuser's. FORGET, INTERRUPT and notifications stay on `/dev/fuse`, where fuser's
//! threads ([`super::classic`]) answer them.
//!
//! ```text
//! prepare    threads with their rings, before the kernel learns of it: whatever is missing, such as a
//!            system call that is not permitted, ends in the classic transport
//! INIT       agrees with the kernel that requests come by rings, which holds them back from then on
//! serve      every thread registers its entry; with one for each CPU, requests begin to arrive
//! ```

mod call;
mod wire;
mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, Sender, channel};
use std::thread::{self, JoinHandle};

use fuser::SessionACL;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, geteuid};
use thiserror::Error;

use self::call::Allowed;
use self::worker::{ENTRY_NBYTES, Entry, Worker};
use super::server::Server;

/// Says whether the kernel module takes part: `Y` or `N`.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// CPUs that may ever exist, as a list: `0-7`.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// CPUs that there are, in the same form.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// Threads of a queue at least: one may wait for another, which answers a read meanwhile.
const LEAST_THREADS: usize = 2;
/// Threads at most; each has memory for a payload.
const MOST_THREADS: u16 = 1024;
/// The calling thread.
const SELF: Pid = Pid::from_raw(0);

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
        let queues = number_of_queues()?;
        let of_queue = threads.div_ceil(queues).max(LEAST_THREADS);
        let too_many = |_| Unavailable::TooManyCpus(queues);
        let all = u16::try_from(queues.saturating_mul(of_queue)).map_err(too_many)?;
        if all > MOST_THREADS {
            return Err(Unavailable::TooManyCpus(queues));
        }
        let last = u16::try_from(queues).map_err(too_many)?;
        let queue_of_each = (0..last).flat_map(|queue| std::iter::repeat_n(queue, of_queue));
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
        let start = |waiting: Waiting| {
            let (server, device) = (Arc::clone(server), Arc::clone(&device));
            let worker = Worker { server, allowed, device, queue: waiting.queue, end_mount };
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
        log::error!("a ring of CPU {} has failed, so the mount ends: {error}", worker.queue);
        // The request in its entry has no answer, and who sends one to a queue without threads waits
        // for ever.
        (worker.end_mount)();
    }
}

/// Lets the calling thread run on the CPU of its queue alone. If that is offline, it may run anywhere.
fn pin_to(queue: u16) {
    let mut set = CpuSet::new();
    let pinned = set.set(usize::from(queue)).and_then(|()| sched_setaffinity(SELF, &set));
    if let Err(error) = pinned {
        log::debug!("a thread cannot be bound to CPU {queue}: {error}");
    }
}

/// Returns the number of queues that the kernel has: one for each CPU that may ever exist.
fn number_of_queues() -> Result<usize, Unavailable> {
    match std::fs::read_to_string(SWITCH) {
        Ok(switch) if switch.starts_with('Y') => (),
        Ok(_) => return Err(Unavailable::SwitchedOff),
        Err(_) => return Err(Unavailable::Kernel),
    }
    let set = sched_getaffinity(SELF).map_err(io::Error::from)?;
    let is_set = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    let allowed = (0..CpuSet::count()).filter(is_set).count();
    let online = cpus(ONLINE)?;
    if allowed < online {
        return Err(Unavailable::Cpus { allowed, online });
    }
    Ok(cpus(POSSIBLE)?)
}

/// Returns the number of CPUs in a list of the kernel.
fn cpus(path: &str) -> io::Result<usize> {
    let text = std::fs::read_to_string(path)?;
    let count = count_of(text.trim());
    count
        .ok_or_else(|| io::Error::other(format!("{path}: {:?} is not a list of CPUs", text.trim())))
}

/// Returns how many numbers a list like `0-3,8` names; `None` if it is not one, or names none.
fn count_of(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').try_fold(0_usize, |sum, range| sum.checked_add(count(range)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_cpus_is_counted() {
        assert_eq!(count_of("0"), Some(1));
        assert_eq!(count_of("0-7"), Some(8));
        assert_eq!(count_of("0-3,8,10-11"), Some(7));
        for bad in ["", "a", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count_of(bad), None, "{bad:?}");
        }
    }
}
