//! Times on the command line.

use std::time::Duration;

/// Parses a number of seconds, possibly with a fraction.
pub(super) fn seconds(value: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = value.trim_end_matches('s').parse().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{value:?} is not a number of seconds"))
}
