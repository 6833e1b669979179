//! Thread that answers the requests of one CPU, one at a time.
//!
//! ```text
//! REGISTER ---------------> the kernel has the entry: header and payload
//!        <--- completion    a request is in it
//! COMMIT_AND_FETCH -------> the answer is in it; the kernel has it again
//! ```
//!
//! Each thread has a ring of its own with one entry in it. So a request that takes long holds up none
//! of those that other threads of the same CPU can answer, and nothing but the thread's own calls
//! ever touches the ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::Errno;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use memmap2::MmapMut;

use super::super::kernel_flags::MAX_REQUEST;
use super::super::server::Server;
use super::call::{Allowed, answer};
use super::queue::Queue;
use super::wire::{Call, HEADER_NBYTES, encode_outcome};

/// Length of the memory for the header of an entry: a page, which the kernel asks for.
const HEADER_PAGE: usize = 4096;

/// Length of the longest payload in bytes.
const PAYLOAD_NBYTES: usize = MAX_REQUEST as usize;

/// Length in bytes of the memory of an entry.
pub(super) const ENTRY_NBYTES: usize = HEADER_PAGE + PAYLOAD_NBYTES;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Time until a call is repeated that the kernel could not carry out for now.
const PAUSE: Duration = Duration::from_micros(100);

/// Position of `len` in `struct io_uring_sqe`.
const LEN_IN_SUBMISSION: usize = 24;

/// Ring with its only entry.
pub(super) struct Entry {
    ring: IoUring<squeue::Entry128>,
    /// Header page, then the payload.
    memory: MmapMut,
    /// Where both are, as the kernel reads it during REGISTER.
    places: Box<[libc::iovec; 2]>,
}

impl Entry {
    /// Creates a ring that only the calling thread may use, and its memory.
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)?;
        let mut memory = MmapMut::map_anon(ENTRY_NBYTES)?;
        let (header, payload) = memory.split_at_mut(HEADER_PAGE);
        let place = |part: &mut [u8]| libc::iovec {
            iov_base: part.as_mut_ptr().cast(),
            iov_len: part.len(),
        };
        let places = Box::new([place(header), place(payload)]);
        Ok(Self { ring, memory, places })
    }

    /// Returns the header of the entry, and its payload.
    fn parts(&mut self) -> Option<(&mut [u8; HEADER_NBYTES], &mut [u8])> {
        let (header, payload) = self.memory.split_at_mut_checked(HEADER_PAGE)?;
        Some((header.first_chunk_mut()?, payload))
    }

    /// Gives the entry to the kernel, and returns once it has it back.
    fn exchange(&mut self, command: &squeue::Entry128) -> io::Result<i32> {
        // SAFETY: the command points to `places` and they to `memory`, both of which live at fixed
        // addresses for as long as this value. The kernel writes to `memory` until the completion
        // arrives, and this function, which has the only reference to it, returns no earlier.
        #[allow(unsafe_code, reason = "see SAFETY")]
        let pushed = unsafe { self.ring.submission().push(command) };
        // There is room: the submission before has been completed.
        pushed.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => (),
                Err(error) if is_for_now(&error) => std::thread::sleep(PAUSE),
                // Nothing can be said of the entry then: see `Worker::run`.
                Err(error) => return Err(error),
            }
            if let Some(completion) = self.ring.completion().next() {
                return Ok(cqueue::Entry::result(&completion));
            }
        }
    }
}

/// Returns whether a call is to be repeated.
fn is_for_now(error: &io::Error) -> bool {
    let transient = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| transient.contains(&errno))
}

/// Time for which an answer is given once more that the kernel has refused because the mount is ending.
const ENDING: Duration = Duration::from_millis(200);

/// Thread that answers requests of one queue.
#[derive(Clone)]
pub(super) struct Worker {
    /// Filesystem.
    pub server: Arc<Server>,
    /// Users whose requests are answered.
    pub allowed: Allowed,
    /// Descriptor of the FUSE connection.
    pub device: Arc<OwnedFd>,
    /// The queue.
    pub queue: Arc<Queue>,
    /// Starts another thread for the queue.
    pub add_thread: fn(&Self),
    /// Ends the mount.
    pub end_mount: fn(),
}

impl Worker {
    /// Answers requests until the mount ends.
    ///
    /// # Errors
    ///
    /// The kernel refuses the entry. If it may still write to its memory, that is never freed.
    pub(super) fn run(&self, mut entry: Entry) -> io::Result<()> {
        let outcome = self.exchange_until_end(&mut entry);
        if outcome.is_err() {
            std::mem::forget(entry);
        }
        outcome
    }

    fn exchange_until_end(&self, entry: &mut Entry) -> io::Result<()> {
        let mut command = self.register(entry);
        let mut refused: Option<Instant> = None;
        loop {
            match entry.exchange(&command)?.saturating_neg() {
                0 => {
                    command = self.commit(self.answer(entry));
                    refused = None;
                }
                libc::EAGAIN | libc::EINTR => (),
                // If the mount is being ended, its requests go first, and then the connection.
                libc::ENOENT | libc::EIO
                    if refused.get_or_insert_with(Instant::now).elapsed() < ENDING =>
                {
                    std::thread::sleep(PAUSE);
                }
                // The mount has ended.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => {
                    return Ok(());
                }
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Answers the request in the entry; returns the number by which the answer is given.
    fn answer(&self, entry: &mut Entry) -> u64 {
        // The memory is longer than both parts.
        let Some((header, payload)) = entry.parts() else { return 0 };
        let call = Call::decode(header);
        let may_wait = call.may_wait();
        if self.queue.take(may_wait) {
            (self.add_thread)(self);
        }
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
        self.queue.give_back(may_wait);
        encode_outcome(header, call.unique, outcome);
        call.commit_id
    }

    fn register(&self, entry: &Entry) -> squeue::Entry128 {
        let places: *const [libc::iovec; 2] = &raw const *entry.places;
        let mut command = self.command(REGISTER, 0, places.addr() as u64);
        let nparts: u32 = 2;
        // SAFETY: `Entry128` is `repr(C)` and begins with `struct io_uring_sqe`, whose `len` has these
        // four bytes; any value of them is valid. The crate has no function that sets it.
        #[allow(unsafe_code, reason = "see SAFETY")]
        unsafe {
            let len = ptr::from_mut(&mut command).cast::<u8>().add(LEN_IN_SUBMISSION);
            len.cast::<u32>().write_unaligned(nparts);
        }
        command
    }

    fn commit(&self, commit_id: u64) -> squeue::Entry128 {
        self.command(COMMIT_AND_FETCH, commit_id, 0)
    }

    /// Returns a command: `fuse_uring_cmd_req` has flags u64, the commit id u64, the queue u16.
    fn command(&self, number: u32, commit_id: u64, address: u64) -> squeue::Entry128 {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.queue.number.to_ne_bytes());
        let command = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), number);
        command.cmd(request).addr(Some(address)).build()
    }
}
