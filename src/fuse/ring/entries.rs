//! Memory that requests lie in, and its way to the kernel and back.
//!
//! ```text
//! REGISTER ---------------> the kernel has the entry: header and payload
//!        <--- completion    a request is in it
//! COMMIT_AND_FETCH -------> the answer is in it; the kernel has it again
//! ```
//!
//! The kernel gives an arriving request to an entry that it has. If it has none of the CPU's, the request
//! waits until an answer brings one: that fetches it. An entry that is *registered* then fetches nothing,
//! so all that may ever be needed are registered before the first request.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use memmap2::MmapMut;

use super::super::kernel_flags::MAX_REQUEST;
use super::wire::HEADER_NBYTES;

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

/// Time for which an answer is given once more that the kernel has refused because the mount is ending.
const ENDING: Duration = Duration::from_millis(200);

/// Position of `len` in `struct io_uring_sqe`.
const LEN_IN_SUBMISSION: usize = 24;

/// Memory for a request and its answer.
pub(super) struct Entry {
    /// Header page, then the payload.
    memory: MmapMut,
    /// Address and length of both: two `struct iovec`, which the kernel reads during REGISTER.
    places: Box<[usize; 4]>,
}

impl Entry {
    /// Allocates the memory, whose pages exist once they are written to.
    pub(super) fn new() -> io::Result<Self> {
        let mut memory = MmapMut::map_anon(ENTRY_NBYTES)?;
        let (header, payload) = memory.split_at_mut(HEADER_PAGE);
        let address = |part: &mut [u8]| part.as_mut_ptr().expose_provenance();
        let places = [address(header), header.len(), address(payload), payload.len()];
        Ok(Self { memory, places: Box::new(places) })
    }

    /// Returns the header of the entry, and its payload.
    pub(super) fn parts(&mut self) -> Option<(&mut [u8; HEADER_NBYTES], &mut [u8])> {
        let (header, payload) = self.memory.split_at_mut_checked(HEADER_PAGE)?;
        Some((header.first_chunk_mut()?, payload))
    }
}

/// Queue of the requests of one CPU.
#[derive(Clone)]
pub(super) struct Queue {
    /// Descriptor of the FUSE connection.
    pub device: Arc<OwnedFd>,
    /// Number of the CPU.
    pub number: u16,
}

impl Queue {
    fn register(&self, entry: &Entry) -> squeue::Entry128 {
        let places: *const [usize; 4] = &raw const *entry.places;
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
        request[16..18].copy_from_slice(&self.number.to_ne_bytes());
        let command = opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), number);
        command.cmd(request).addr(Some(address)).build()
    }
}

/// Ring of one thread, with the entries that the kernel has through it. An entry may go to the kernel
/// through another ring than the one that its request came by.
pub(super) struct Entries {
    ring: IoUring<squeue::Entry128>,
    /// Entries that the kernel has, each with the command that gave it, at the position that its
    /// completion names.
    given: Vec<Option<(Entry, squeue::Entry128)>>,
    /// Since when the kernel refuses entries because the mount is ending.
    refused: Option<Instant>,
}

impl Entries {
    /// Creates a ring for `most` entries at a time, which only the calling thread may use.
    pub(super) fn new(most: u32) -> io::Result<Self> {
        let builder = IoUring::builder().setup_single_issuer().setup_defer_taskrun().to_owned();
        let ring = builder.build(most.max(2).next_power_of_two())?;
        Ok(Self { ring, given: Vec::new(), refused: None })
    }

    /// Gives an entry to the kernel for the first time.
    pub(super) fn register(&mut self, queue: &Queue, entry: Entry) -> io::Result<()> {
        let command = queue.register(&entry);
        self.give(entry, command)
    }

    /// Gives an entry to the kernel with the answer of the request that was in it.
    pub(super) fn commit(&mut self, queue: &Queue, entry: Entry, commit_id: u64) -> io::Result<()> {
        self.give(entry, queue.commit(commit_id))
    }

    fn give(&mut self, entry: Entry, command: squeue::Entry128) -> io::Result<()> {
        let free = self.given.iter().position(Option::is_none);
        let position = free.unwrap_or_else(|| {
            self.given.push(None);
            self.given.len() - 1
        });
        let command = command.user_data(position as u64);
        self.given[position] = Some((entry, command.clone()));
        // SAFETY: the command points to `places` and they to `memory`, both of which live at fixed
        // addresses for as long as the entry. The kernel writes to `memory` until the completion arrives:
        // until then the entry lies in `given`, where nothing refers to it, and it is never freed there.
        #[allow(unsafe_code, reason = "see SAFETY")]
        let pushed = unsafe { self.ring.submission().push(&command) };
        pushed.map_err(io::Error::other)
    }

    /// Returns once the kernel has what it was given.
    pub(super) fn submit(&self) -> io::Result<()> {
        self.enter(0)
    }

    /// Returns whether the kernel has all that it was given.
    pub(super) fn is_submitted(&mut self) -> bool {
        self.ring.submission().is_empty()
    }

    /// Returns the next entry that has a request in it; `None` once the mount has ended.
    ///
    /// # Errors
    ///
    /// The kernel refuses an entry.
    pub(super) fn next_request(&mut self) -> io::Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.arrived()? {
                return Ok(Some(entry));
            }
            if self.given.iter().all(Option::is_none) {
                return Ok(None);
            }
            self.enter(1)?;
        }
    }

    /// Returns an entry in which a request has arrived, without waiting for one.
    ///
    /// # Errors
    ///
    /// The kernel has refused an entry.
    pub(super) fn arrived(&mut self) -> io::Result<Option<Entry>> {
        loop {
            let Some(completion) = self.ring.completion().next() else { return Ok(None) };
            let given = usize::try_from(cqueue::Entry::user_data(&completion)).ok();
            let given = given.and_then(|position| self.given.get_mut(position)?.take());
            let (entry, command) = given.ok_or_else(|| io::Error::other("of no entry"))?;
            match cqueue::Entry::result(&completion).saturating_neg() {
                0 => {
                    self.refused = None;
                    return Ok(Some(entry));
                }
                libc::EAGAIN | libc::EINTR => {
                    std::thread::sleep(PAUSE);
                    self.give(entry, command)?;
                }
                // If the mount is being ended, its requests go first, and then the connection.
                libc::ENOENT | libc::EIO
                    if self.refused.get_or_insert_with(Instant::now).elapsed() < ENDING =>
                {
                    std::thread::sleep(PAUSE);
                    self.give(entry, command)?;
                }
                // The mount has ended.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => (),
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Hands over to the kernel what was given, and returns once there are `ncompletions`.
    fn enter(&self, ncompletions: usize) -> io::Result<()> {
        loop {
            match self.ring.submitter().submit_and_wait(ncompletions) {
                Ok(_) => return Ok(()),
                Err(error) if is_for_now(&error) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Entries {
    /// What the kernel may still write to is never freed.
    fn drop(&mut self) {
        self.given.drain(..).for_each(std::mem::forget);
    }
}

/// Returns whether a call is to be repeated.
fn is_for_now(error: &io::Error) -> bool {
    let transient = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
    error.raw_os_error().is_some_and(|errno| transient.contains(&errno))
}
