//! Address space for the threads of a session.

use std::num::NonZeroUsize;

use memmap2::MmapOptions;

use super::MountError;

/// Bytes that fuser's buffer of a thread takes: requests of at most 16 MiB, and their headers.
const BUFFER_BYTES: usize = (16 << 20) + (4 << 10);

/// Bytes of a thread's stack, as Rust's library makes them.
const STACK_BYTES: usize = 2 << 20;

/// Bytes that the C library sets aside for what threads allocate, for each of up to eight threads for
/// each CPU.
const ARENA_BYTES: usize = 64 << 20;

/// Bytes left to everything else that a mount allocates.
const REST_BYTES: usize = 64 << 20;

/// Returns an error if there is no room for so many threads that answer requests.
///
/// A buffer that cannot be allocated ends the process, and a mount that nothing answers for would be
/// left. So it is tried before anything is mounted.
pub(super) fn check(threads: usize) -> Result<(), MountError> {
    let error = match reserve(threads, threads, 0) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let fitting = fitting(threads / 2);
    Err(MountError::NoRoom { threads, fitting, error })
}

/// Returns the number of threads that there is room for: as many as wanted, or a half of that, a
/// quarter and so on. `None` if there is not even room for two.
pub fn fitting(wanted: usize) -> Option<usize> {
    let fewer = std::iter::successors(Some(wanted), |&fewer| Some(fewer / 2));
    fewer.take_while(|&fewer| fewer >= 2).find(|&fewer| reserve(fewer, fewer, 0).is_ok())
}

/// Returns whether there is room for so many threads that answer requests beside `others`, of other kinds,
/// that take `nbytes` bytes in all.
pub fn fits_beside(threads: usize, others: usize, nbytes: usize) -> bool {
    reserve(threads, threads.saturating_add(others), nbytes).is_ok()
}

/// Maps what `threads` threads with fuser's buffers, of `all` threads, need beside `nbytes` bytes, and
/// gives it back. No memory is used.
fn reserve(threads: usize, all: usize, nbytes: usize) -> std::io::Result<()> {
    let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let arenas = all.min(cpus.saturating_mul(8)).saturating_mul(ARENA_BYTES);
    let buffers = threads.saturating_mul(BUFFER_BYTES);
    let bytes = all.saturating_mul(STACK_BYTES).saturating_add(buffers).saturating_add(arenas);
    let bytes = bytes.saturating_add(nbytes).saturating_add(REST_BYTES);
    MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map(drop)
}
