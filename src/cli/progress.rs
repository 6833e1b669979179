//! Progress of commands that take a while: a bar on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar is drawn anew.
const TICK: Duration = Duration::from_millis(100);

/// How far a command is, in bytes or in things. Threads may share it.
pub(super) struct Progress {
    bar: ProgressBar,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes.
    Bytes,
    /// Chunks, shards and the like.
    Things(&'static str),
}

impl Progress {
    /// Of `total` units, where that is known. Indicatif draws to stderr, and only if it is a terminal.
    pub(super) fn new(unit: Unit, total: Option<u64>) -> Self {
        let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        // A test sees to it that they are valid; a bar can be drawn without as well.
        if let Ok(style) = ProgressStyle::with_template(&template(unit, total.is_some())) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// Whether anybody sees it.
    pub(super) fn is_shown() -> bool {
        std::io::IsTerminal::is_terminal(&std::io::stderr())
    }

    /// So much more is done.
    pub(super) fn add(&self, done: u64) {
        self.bar.inc(done);
    }

    /// Writes something to the terminal without disturbing the bar.
    pub(super) fn pause<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }
}

fn template(unit: Unit, has_end: bool) -> String {
    let (done, all, rate) = match unit {
        Unit::Bytes => ("{bytes}", "{total_bytes}", "{binary_bytes_per_sec}"),
        Unit::Things(_) => ("{human_pos}", "{human_len}", "{per_sec}"),
    };
    let name = if let Unit::Things(name) = unit { name } else { "" };
    match has_end {
        true => format!("{{wide_bar}} {done}/{all} {name} {rate}, {{eta}} left"),
        false => format!("{{spinner}} {done} {name} {rate}"),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_templates_are_valid() {
        for unit in [Unit::Bytes, Unit::Things("shards")] {
            for has_end in [false, true] {
                ProgressStyle::with_template(&template(unit, has_end)).unwrap();
            }
        }
    }
}
