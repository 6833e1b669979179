//! Readers that take the chunks of an array in order, and how far ahead of each of them chunks are
//! pushed into the kernel's page cache.
//!
//! ```text
//! chunks in C order    r r r p p p m p p p . .     r read   p pushed   m marker
//!                          ^ at          ^ end
//! ```
//!
//! The kernel requests only what it has no pages of. So one chunk of each window is left out, its
//! marker: the request for it shows that the reader has come so far, and is the time to push the
//! next window. Windows grow as long as markers are requested. A reader that jumps about requests
//! none, and one that finds everything in the page cache never seems to read in order.
//!
//! What is pushed to a reader that turns elsewhere is lost. So of each array no more may be lost
//! than a small part of what its readers have taken. What is pushed while its reader requests it is
//! lost as well. Without more, a reader as fast as the pushes would meet them again and again, and
//! its windows become shorter each time: a reader that has caught up is left the next few chunks,
//! its lead, so that the pushes get ahead of it again.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;

use lru::LruCache;

use crate::bounded::bounded;

/// Number of readers to tell apart.
const READERS: usize = 16;
/// Number of arrays of which it is remembered what was lost.
// Evaluated by the compiler, which rejects zero.
const ARRAYS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
/// Number of chunks read in order before any are pushed.
const IN_ORDER: u32 = 3;
/// Length of the first window, and of the longest one, in chunks.
const WINDOW: Range<u64> = 4..64;
/// Maximum length of a window in bytes.
pub(in crate::fs) const WINDOW_BYTES: u64 = 4 << 20;
/// Number of reads for which nothing is pushed to a reader whose next chunk cannot be pushed, the
/// first time and at most.
const REST: Range<u64> = 8..1024;
/// Maximum number of chunks that are left to a reader that has caught up.
const LEAD: u64 = 16;
/// Number of chunks of an array that may be lost in any case, and the part of those taken.
const LOSS: (u64, u64) = (16, 20);

/// Readers of a mount.
#[derive(Debug)]
pub(in crate::fs) struct Readers {
    /// The most recent one is the last.
    readers: Vec<Reader>,
    arrays: LruCache<u64, Taken>,
}

impl Default for Readers {
    fn default() -> Self {
        Self { readers: Vec::new(), arrays: bounded(ARRAYS) }
    }
}

/// Numbers of chunks of an array.
#[derive(Debug, Default)]
struct Taken {
    /// Requested, or passed after they were pushed.
    taken: u64,
    /// Pushed for nothing.
    lost: u64,
}

#[derive(Debug)]
struct Reader {
    array: u64,
    /// Number of the chunk that it has requested last.
    at: u64,
    /// Number of chunks that it has requested in order.
    in_order: u32,
    /// First chunk that is not pushed.
    end: u64,
    window: u64,
    /// Numbers and lengths of the chunks that were pushed and not passed yet.
    pushed: VecDeque<(u64, u64)>,
    /// Number of chunks behind the last requested one that would be pushed too late.
    lead: u64,
    /// Number of requests until the next attempt to push.
    resting: u64,
    /// How long it rests the next time.
    rest: u64,
}

/// Chunks to push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fs) struct Window {
    /// Numbers of the chunks.
    pub numbers: Range<u64>,
    /// The first chunk from this one on is left out.
    pub marker: u64,
}

/// Result of a request for a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::fs) struct Requested {
    /// Chunks to push next.
    pub window: Option<Window>,
    /// Number of bytes that were pushed and that the reader has passed.
    pub used: u64,
}

impl Readers {
    /// Called when the beginning of chunk `number` of an array is requested.
    pub(in crate::fs) fn requested(&mut self, array: u64, number: u64) -> Requested {
        let follows = |reader: &Reader| {
            let next = reader.end.max(reader.at + 1);
            reader.array == array && (reader.at..=next).contains(&number)
        };
        let of_array = self.arrays.get_or_insert_mut(array, Taken::default);
        let Some(place) = self.readers.iter().rposition(follows) else {
            of_array.taken += 1;
            if self.readers.len() == READERS {
                let oldest = self.readers.remove(0);
                self.lost(oldest.array, oldest.pushed.len() as u64);
            }
            self.readers.push(Reader::new(array, number));
            return Requested::default();
        };
        let mut reader = self.readers.remove(place);
        let mut requested = Requested::default();
        if number > reader.at {
            let (passed, used) = reader.advance(number);
            of_array.taken += passed + 1;
            let others = self.readers.iter().filter(|other| other.array == array);
            // Also what is yet to be pushed, but no marker.
            let ahead: u64 = others.map(|other| other.end.saturating_sub(other.at + 2)).sum();
            let may_be_lost = LOSS.0 + of_array.taken / LOSS.1;
            let room = may_be_lost.saturating_sub(of_array.lost.saturating_add(ahead));
            requested = Requested { window: reader.next_window(room), used };
        }
        self.readers.push(reader);
        requested
    }

    /// Records that a chunk of `nbytes` bytes was pushed.
    pub(in crate::fs) fn pushed(&mut self, array: u64, number: u64, nbytes: u64) {
        match self.behind(array, number) {
            Some(reader) => {
                reader.pushed.push_back((number, nbytes));
                reader.window = reader.window.min(WINDOW_BYTES / nbytes.max(1));
            }
            None => {
                self.lost(array, 1);
                self.late(array, number);
            }
        }
    }

    /// Records that a chunk was pushed too late if a reader has just passed it.
    fn late(&mut self, array: u64, number: u64) {
        let has_passed = |reader: &&mut Reader| {
            reader.array == array
                && (number..number.saturating_add(WINDOW.end)).contains(&reader.at)
        };
        if let Some(reader) = self.readers.iter_mut().rev().find(has_passed) {
            reader.lead = (reader.lead * 2).clamp(1, LEAD);
        }
    }

    /// Records that a chunk, and those behind it in its window, cannot be pushed: the kernel does
    /// not know it, or it is too long.
    pub(in crate::fs) fn refused(&mut self, array: u64, number: u64) {
        if let Some(reader) = self.behind(array, number) {
            (reader.end, reader.window) = (number, WINDOW.start);
            reader.resting = reader.rest;
            reader.rest = (reader.rest * 2).min(REST.end);
        }
    }

    /// Records that a chunk, and those behind it in its window, are not pushed now.
    pub(in crate::fs) fn cut(&mut self, array: u64, number: u64) {
        if let Some(reader) = self.behind(array, number) {
            reader.end = number;
        }
    }

    /// Returns whether a chunk that was to be pushed is still far enough ahead of its reader.
    pub(in crate::fs) fn is_ahead(&mut self, array: u64, number: u64) -> bool {
        self.behind(array, number).is_some_and(|reader| number - reader.at > reader.lead)
    }

    fn lost(&mut self, array: u64, chunks: u64) {
        self.arrays.get_or_insert_mut(array, Taken::default).lost += chunks;
    }

    /// Returns the reader ahead of which a chunk is pushed.
    fn behind(&mut self, array: u64, number: u64) -> Option<&mut Reader> {
        let is_its = |reader: &&mut Reader| {
            reader.array == array && reader.at < number && number < reader.end
        };
        self.readers.iter_mut().rev().find(is_its)
    }
}

impl Reader {
    fn new(array: u64, at: u64) -> Self {
        let (in_order, end, window, rest) = (1, at + 1, WINDOW.start, REST.start);
        let (pushed, lead, resting) = (VecDeque::new(), 0, 0);
        Self { array, at, in_order, end, window, pushed, lead, resting, rest }
    }

    /// Moves on to a chunk behind the last one. Returns the number of pushed chunks that it has
    /// passed, and of their bytes.
    fn advance(&mut self, number: u64) -> (u64, u64) {
        self.in_order = self.in_order.saturating_add(1);
        self.at = number;
        self.end = self.end.max(number + 1);
        let (mut passed, mut used) = (0, 0);
        while let Some((_, nbytes)) = self.pushed.front().filter(|(pushed, _)| *pushed <= number) {
            (passed, used) = (passed + 1, used + nbytes);
            self.pushed.pop_front();
        }
        if used > 0 {
            self.window = (self.window * 2).clamp(WINDOW.start, WINDOW.end);
            self.rest = REST.start;
        }
        if passed > LEAD {
            self.lead = self.lead.saturating_sub(1);
        }
        (passed, used)
    }

    /// Returns what to push next, of which no more than `room` chunks may turn out to be lost.
    fn next_window(&mut self, room: u64) -> Option<Window> {
        if self.resting > 0 {
            self.resting -= 1;
            return None;
        }
        let window = self.window.min(room);
        let is_due = self.end - self.at <= window / 2 + 1;
        if self.in_order < IN_ORDER || window < 2 || !is_due {
            return None;
        }
        let numbers = self.end..self.at.saturating_add(1).saturating_add(window);
        if numbers.is_empty() {
            return None;
        }
        self.end = numbers.end;
        let marker = numbers.start + (numbers.end - numbers.start) / 2;
        Some(Window { numbers, marker })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NBYTES: u64 = 1000;

    fn request(readers: &mut Readers, number: u64) -> Requested {
        readers.requested(1, number)
    }

    /// Reads the chunks `numbers` through a page cache that holds what is pushed. Returns the
    /// numbers of requests, of chunks pushed and of bytes known to be used.
    fn read(readers: &mut Readers, numbers: impl IntoIterator<Item = u64>) -> (u64, u64, u64) {
        let (mut cached, mut counts) = (std::collections::HashSet::new(), (0, 0, 0));
        for number in numbers {
            if !cached.insert(number) {
                continue;
            }
            counts.0 += 1;
            let Requested { window, used } = request(readers, number);
            counts.2 += used;
            let Some(Window { numbers, marker }) = window else { continue };
            for number in numbers.filter(|number| *number != marker) {
                counts.1 += 1;
                cached.insert(number);
                readers.pushed(1, number, NBYTES);
            }
        }
        counts
    }

    fn read_three(readers: &mut Readers) {
        let windows = [0, 1, 2].map(|number| request(readers, number).window);
        assert_eq!(windows, [None, None, Some(Window { numbers: 3..7, marker: 5 })]);
    }

    #[test]
    fn a_reader_in_order_requests_the_first_chunks_and_the_markers() {
        let mut readers = Readers::default();
        let (requests, pushed, used) = read(&mut readers, 0..10_000);
        assert!(requests < 10_000 / 20, "{requests}");
        assert!((10_000 - requests..10_000 - requests + WINDOW.end).contains(&pushed));
        assert!(pushed * NBYTES - used <= WINDOW.end * 2 * NBYTES, "{pushed} {used}");
    }

    #[test]
    fn nothing_is_pushed_to_a_reader_that_jumps_about() {
        let mut readers = Readers::default();
        let jumps = (0..1000_u64).map(|step| step * 7919 % 1009);
        assert_eq!(read(&mut readers, jumps), (1000, 0, 0));
        assert_eq!(read(&mut Readers::default(), (0..1000).step_by(2)), (500, 0, 0));
        assert_eq!(read(&mut Readers::default(), (0..1000).rev()), (1000, 0, 0));
    }

    #[test]
    fn each_of_several_readers_has_its_own_window() {
        let mut readers = Readers::default();
        let starts = (0..READERS as u64).map(|reader| reader * 100_000);
        let mixed = (0..1000).flat_map(|step| starts.clone().map(move |start| start + step));
        let (requests, ..) = read(&mut readers, mixed);
        assert!(requests < READERS as u64 * 1000 / 4, "{requests}");
    }

    #[test]
    fn little_is_lost_of_what_is_pushed_to_readers_of_short_rows() {
        for row in [3, 4, 6, 10, 50] {
            let mut readers = Readers::default();
            let (rows, apart) = (20_000 / row, row * 10);
            let numbers = (0..rows).flat_map(|number| {
                let start = number * 7919 % rows * apart;
                start..start + row
            });
            let (_, pushed, used) = read(&mut readers, numbers);
            let lost = pushed - used / NBYTES;
            assert!(lost <= 20_000 / LOSS.1 + 2 * LOSS.0, "{row}: {lost} of {pushed}");
        }
    }

    #[test]
    fn what_is_yet_to_be_pushed_counts_as_if_it_were() {
        let mut readers = Readers::default();
        let rows = (0..READERS as u64).flat_map(|row| row * 1000..row * 1000 + 3);
        let windows: Vec<_> =
            rows.filter_map(|number| request(&mut readers, number).window).collect();
        let granted: u64 =
            windows.iter().map(|window| window.numbers.end - window.numbers.start).sum();
        // One of each is a marker.
        let granted = granted - windows.len() as u64;
        assert!((3..=LOSS.0 + 3).contains(&granted), "{granted}");
    }

    #[test]
    fn a_reader_whose_chunks_the_kernel_does_not_know_rests_longer_each_time() {
        let mut readers = Readers::default();
        let mut attempts = Vec::new();
        for number in 0..100 {
            if let Some(window) = request(&mut readers, number).window {
                attempts.push(number);
                readers.refused(1, window.numbers.start);
            }
        }
        assert_eq!(attempts, [2, 11, 28, 61]);
    }

    #[test]
    fn long_chunks_make_short_windows() {
        let mut readers = Readers::default();
        read_three(&mut readers);
        readers.pushed(1, 3, WINDOW_BYTES / 2);
        readers.cut(1, 4);
        let Requested { window, used } = request(&mut readers, 4);
        assert_eq!(used, WINDOW_BYTES / 2);
        assert_eq!(window, Some(Window { numbers: 5..9, marker: 7 }));
    }

    #[test]
    fn what_a_reader_has_passed_is_not_pushed() {
        let mut readers = Readers::default();
        read_three(&mut readers);
        assert!(readers.is_ahead(1, 3) && !readers.is_ahead(2, 3) && !readers.is_ahead(1, 7));
        request(&mut readers, 3);
        assert!(!readers.is_ahead(1, 3) && readers.is_ahead(1, 4));
    }

    #[test]
    fn a_reader_that_has_caught_up_is_left_the_next_chunks() {
        let mut readers = Readers::default();
        read_three(&mut readers);
        let ahead = |readers: &mut Readers| (4..20).find(|number| readers.is_ahead(1, *number));
        request(&mut readers, 3);
        assert_eq!(ahead(&mut readers), Some(4));
        for lead in [1, 2, 4, 8, LEAD, LEAD] {
            readers.pushed(1, 3, NBYTES);
            assert_eq!(readers.readers[0].lead, lead);
        }
        assert_eq!(ahead(&mut readers), None);
        readers.readers[0].lead = 2;
        assert_eq!(ahead(&mut readers), Some(6));
        // Many that come in time make it shorter.
        readers.readers[0].end = 100;
        (10..11 + LEAD).for_each(|number| readers.pushed(1, number, NBYTES));
        request(&mut readers, 50);
        assert_eq!(readers.readers[0].lead, 1);
    }

    /// A reader that is about as fast as what pushes ahead of it: for each request it takes, two
    /// chunks are pushed, one of which was begun before.
    #[test]
    fn few_chunks_are_pushed_too_late() {
        let begin = |queue: &mut VecDeque<u64>, readers: &mut Readers| {
            let place = queue.iter().position(|next| readers.is_ahead(1, *next))?;
            queue.drain(..=place).next_back()
        };
        let (mut readers, mut cached) = (Readers::default(), std::collections::HashSet::new());
        let (mut queue, mut begun) = (VecDeque::new(), None);
        let (mut requests, mut late) = (0, 0);
        for number in 0..10_000 {
            if cached.contains(&number) {
                continue;
            }
            requests += 1;
            if let Some(Window { numbers, marker }) = request(&mut readers, number).window {
                queue.extend(numbers.filter(|number| *number != marker));
            }
            let pushed = [begun, begin(&mut queue, &mut readers)];
            begun = begin(&mut queue, &mut readers);
            for chunk in pushed.into_iter().flatten() {
                late += u32::from(chunk <= number);
                cached.insert(chunk);
                readers.pushed(1, chunk, NBYTES);
            }
        }
        assert!(
            requests < 10_000 / 2 && late < 10_000 / 20,
            "{requests} requests, {late} too late"
        );
    }
}
