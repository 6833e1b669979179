//! Readers that take chunks in the order of the grid: which chunks are to be requested before they
//! are read, in windows that grow as long as that goes on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Length of the first window, in bytes.
const FIRST_WINDOW: u64 = 256 << 10;
/// Readers that are followed at once, and single reads that are remembered.
const STREAMS: usize = 64;
const SINGLES: usize = 128;
/// Time after its last read for which a reader has a share of the memory.
const READING: Duration = Duration::from_secs(10);
/// Readers whose windows may all be of the longest length. There are two windows of each in memory, which
/// holds eight of these; a quarter is left to what is read out of order.
const WITH_LONGEST: u64 = 3;
/// How far behind or ahead of its place a read may be to continue a stream: names are sorted as text
/// by some programs.
const JUMP: u64 = 8;

/// Readers that take chunks in order.
#[derive(Debug)]
pub(super) struct Streams {
    /// Length of the longest window, in bytes.
    longest: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: VecDeque<Stream>,
    /// Arrays and numbers of chunks that were read last, and continue no stream.
    singles: VecDeque<(u64, u64)>,
}

/// A reader that takes chunks in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    array: u64,
    /// Chunks from `begin` to `until` are those of the last two windows. Before them nothing is in
    /// order any more.
    begin: u64,
    until: u64,
    /// Where the last window begins.
    last: u64,
    /// Length of its next window in bytes.
    window: u64,
    /// Number of the chunk from which on the next window is requested.
    next: u64,
    /// When it was last continued.
    read: Instant,
}

/// Window of chunks that is to be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The array, by its number.
    pub array: u64,
    /// Number of the first chunk.
    pub from: u64,
    /// Length in bytes.
    pub nbytes: u64,
}

impl Streams {
    /// Creates an empty table for windows of at most this length in bytes.
    pub(super) fn new(longest: u64) -> Self {
        Self { longest, state: Mutex::default() }
    }

    /// Notes that a chunk is read. Returns the window that is to be requested by now.
    pub(super) fn read(&self, array: u64, number: u64) -> Option<Window> {
        let mut state = self.state.lock();
        let continues = |stream: &Stream| {
            let first = stream.begin.saturating_sub(JUMP);
            stream.array == array && (first..=stream.until.saturating_add(JUMP)).contains(&number)
        };
        if let Some(at) = state.streams.iter().position(continues) {
            // The one that was used last stays longest.
            let mut stream = state.streams.remove(at)?;
            stream.read = Instant::now();
            let is_due = number >= stream.next;
            if is_due {
                // Not again before the window is planned.
                stream.next = u64::MAX;
            }
            state.streams.push_front(stream);
            let nbytes = stream.window.min(state.share(self.longest));
            let window = Window { array, from: stream.until.max(number + 1), nbytes };
            return is_due.then_some(window);
        }
        let is_before = |(other, single): &(u64, u64)| {
            *other == array && *single < number && number - *single <= 2
        };
        if let Some(at) = state.singles.iter().position(is_before) {
            state.singles.remove(at);
            let (until, next, window) = (number + 1, u64::MAX, FIRST_WINDOW);
            state.streams.push_front(Stream {
                array,
                begin: number,
                until,
                last: number,
                window,
                next,
                read: Instant::now(),
            });
            state.streams.truncate(STREAMS);
            let nbytes = FIRST_WINDOW.min(state.share(self.longest));
            return Some(Window { array, from: number + 1, nbytes });
        }
        state.singles.push_front((array, number));
        state.singles.truncate(SINGLES);
        None
    }

    /// Notes up to where a window was requested. `is_whole` says whether that is all of it.
    pub(super) fn requested(&self, window: Window, until: u64, is_whole: bool) {
        let mut state = self.state.lock();
        let is_it = |stream: &&mut Stream| {
            stream.array == window.array && stream.next == u64::MAX && stream.until <= window.from
        };
        let Some(stream) = state.streams.iter_mut().find(is_it) else { return };
        stream.until = until.max(stream.until);
        if until > window.from {
            (stream.begin, stream.last) = (stream.last, window.from);
        }
        if is_whole {
            stream.window = (stream.window * 2).min(self.longest);
        }
        // Half of what is requested may be read until the next window is.
        stream.next = match until > window.from {
            true => window.from + (until - window.from) / 2,
            false => 0,
        };
    }
}

impl State {
    /// Returns the length of the longest window that a reader gets beside the others: what one has not read
    /// yet must not make room for what another one reads next.
    fn share(&self, longest: u64) -> u64 {
        let is_reading = |stream: &&Stream| stream.read.elapsed() < READING;
        let readers = self.streams.iter().filter(is_reading).count() as u64;
        longest.saturating_mul(WITH_LONGEST) / readers.max(WITH_LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_WINDOW: u64 = 64 << 20;

    fn streams() -> Streams {
        Streams::new(LONGEST_WINDOW)
    }

    /// Reads chunks of 32 KiB, and returns the windows that were requested.
    fn windows(streams: &Streams, numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        let mut windows = Vec::new();
        for number in numbers {
            if let Some(window) = streams.read(1, number) {
                let until = window.from + window.nbytes / (32 << 10);
                windows.push((window.from, until));
                streams.requested(window, until, true);
            }
        }
        windows
    }

    #[test]
    fn who_reads_in_order_is_read_ahead_of_in_growing_windows() {
        let streams = streams();
        let windows = windows(&streams, 0..200);
        assert_eq!(windows[..4], [(2, 10), (10, 26), (26, 58), (58, 122)]);
        // Without gaps, and none that its reader does not come near.
        assert!(windows.is_sorted_by(|one, next| one.1 == next.0));
        assert!(windows.last().is_some_and(|(from, _)| *from < 300), "{windows:?}");
    }

    #[test]
    fn names_sorted_as_text_are_still_in_order() {
        let mut names: Vec<u64> = (0..200).collect();
        names.sort_by_key(|number| format!("{:02}/{}", number / 32, number % 32));
        let streams = streams();
        let windows = windows(&streams, names);
        assert!((4..12).contains(&windows.len()), "{windows:?}");
    }

    #[test]
    fn who_jumps_about_is_not_read_ahead_of() {
        let streams = streams();
        assert_eq!(windows(&streams, (0..200).map(|n| n * 7919 % 100_003)), []);
        // Backwards neither.
        assert_eq!(windows(&streams, (200_000..200_100).rev()), []);
    }

    #[test]
    fn who_has_read_in_order_and_jumps_back_is_not_read_ahead_of() {
        let streams = streams();
        let read = windows(&streams, 0..2000);
        let until = read.last().map_or(0, |(_, until)| *until);
        let jumps = (0..100).map(|n| n * 7919 % (until / 8));
        assert_eq!(windows(&streams, jumps), []);
    }

    #[test]
    fn several_readers_are_followed_each() {
        let streams = streams();
        let windows = windows(&streams, (0..100).flat_map(|n| [n, 10_000 + n, 50_000 + n]));
        assert_eq!(windows.iter().filter(|(from, _)| *from < 1000).count(), 5);
        assert_eq!(windows.len(), 15, "{windows:?}");
    }

    #[test]
    fn many_readers_share_the_memory() {
        const READERS: u64 = 24;
        let streams = streams();
        let numbers = (0..4000).flat_map(|n| (0..READERS).map(move |reader| 100_000 * reader + n));
        let (mut ahead, mut most) = (0, 0);
        let mut until = [0; 24];
        for number in numbers {
            let reader = usize::try_from(number / 100_000).unwrap();
            // What is read makes room.
            ahead -= u64::from(number < until[reader]).min(ahead);
            if let Some(window) = streams.read(1, number) {
                let end = window.from + window.nbytes / (32 << 10);
                ahead += end - window.from;
                until[reader] = end;
                streams.requested(window, end, true);
            }
            most = most.max(ahead);
        }
        assert!(most * (32 << 10) <= 6 * LONGEST_WINDOW, "{most}");
        assert!(most * (32 << 10) > LONGEST_WINDOW, "{most}");
    }

    #[test]
    fn a_window_that_could_not_be_planned_is_planned_by_the_next_read() {
        let streams = streams();
        streams.read(1, 0);
        let window = streams.read(1, 1).unwrap();
        streams.requested(window, window.from, false);
        let again = streams.read(1, 2).unwrap();
        assert_eq!((again.from, again.nbytes), (3, FIRST_WINDOW));
    }
}
