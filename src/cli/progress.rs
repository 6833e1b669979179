//! Progress of long commands: a bar on a terminal, nothing elsewhere.

use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// Interval at which a bar is redrawn.
const TICK: Duration = Duration::from_millis(100);

/// Progress of a command, in bytes or items. Can be shared between threads.
pub(super) struct Progress {
    bar: ProgressBar,
}

/// Unit of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes.
    Bytes,
    /// Items with this name, such as chunks or shards.
    Things(&'static str),
}

impl Progress {
    /// Starts progress over `total` units, if known. Indicatif draws to stderr, and only if it is a
    /// terminal.
    pub(super) fn new(unit: Unit, total: Option<u64>) -> Self {
        let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
        // A test checks that the templates are valid; a bar can be drawn without a style, too.
        if let Ok(style) = ProgressStyle::with_template(&template(unit, total.is_some())) {
            bar.set_style(style.with_key("rate", rate));
        }
        bar.enable_steady_tick(TICK);
        Self { bar }
    }

    /// Returns whether progress is visible.
    pub(super) fn is_shown() -> bool {
        std::io::IsTerminal::is_terminal(&std::io::stderr())
    }

    /// Adds to the amount done.
    pub(super) fn add(&self, done: u64) {
        self.bar.inc(done);
    }

    /// Calls `write`, which can write to the terminal without disturbing the bar.
    pub(super) fn pause<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }
}

/// Writes the number of items per second. One item in two seconds is worth a decimal, a thousand are
/// not.
fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    let rate = state.per_sec();
    let decimals = if rate < 10.0 { 1 } else { 0 };
    // Text in memory can always be written.
    let _ = write!(out, "{rate:.decimals$}/s");
}

fn template(unit: Unit, has_end: bool) -> String {
    let (done, all, rate) = match unit {
        Unit::Bytes => ("{bytes}", "{total_bytes}", "{binary_bytes_per_sec}"),
        Unit::Things(_) => ("{human_pos}", "{human_len}", "{rate}"),
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
