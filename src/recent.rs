//! The most recent lines of this process's log, for `.shardfs/log` in its mount.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};

/// Number of lines that are kept.
const MAX_LINES: usize = 1000;
/// Length at which lines are truncated, in bytes: 4 MB for all lines.
const MAX_LINE_BYTES: usize = 4096;

/// Recent lines of this process's log.
pub(crate) static LOG: Recent = Recent::new();

/// Buffer of the most recent lines.
#[derive(Debug)]
pub(crate) struct Recent(Mutex<VecDeque<Box<str>>>);

impl Recent {
    const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Adds a line, without a line feed in it.
    pub(crate) fn push(&self, line: &str) {
        let is_end = |end: &usize| line.is_char_boundary(*end);
        let end = (0..=line.len().min(MAX_LINE_BYTES)).rev().find(is_end).unwrap_or(0);
        let mut lines = self.lock();
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(line[..end].into());
    }

    /// Returns all lines, the oldest first.
    pub(crate) fn text(&self) -> String {
        self.lock().iter().flat_map(|line| [line, "\n"]).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Box<str>>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_and_long_ones_cut_off() {
        let recent = Recent::new();
        (0..1500).for_each(|number| recent.push(&number.to_string()));
        let text = recent.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[999]), (1000, "500", "1499"));
        recent.push(&"ä".repeat(5000));
        assert_eq!(recent.text().lines().last().unwrap().len(), 4096);
    }
}
