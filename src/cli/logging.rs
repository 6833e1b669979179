//! Logging: of a mount to stderr in the foreground, to a file or to syslog in the background; of the
//! other commands to stderr, warnings only.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use env_logger::{Builder, Env, Target};
use log::{Level, LevelFilter, Record};

use crate::recent::LOG;
use crate::text::Line;

/// Destination of the log.
pub(super) enum Destination<'a> {
    Stderr,
    Syslog,
    File(&'a Path),
}

/// Starts logging; `verbosity` is the number of `-v` options. `RUST_LOG` overrides it.
pub(super) fn start(destination: &Destination<'_>, verbosity: u8) -> io::Result<()> {
    let level = match verbosity {
        0 => LevelFilter::Info,
        1 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let mut builder = Builder::new();
    // Messages of libraries are of interest only for debugging them: RUST_LOG shows them.
    builder.filter_level(LevelFilter::Warn.min(level)).filter_module("shardfs", level);
    builder.filter_module("fuser", LevelFilter::Error.min(level));
    builder.parse_env(Env::default());
    match destination {
        Destination::Stderr => {
            builder.format(|out, record| match is_meant(record) {
                true => writeln!(out, "shardfs: {}", message(record)),
                false => Ok(()),
            });
        }
        Destination::Syslog => {
            builder.format(|_, record| {
                if is_meant(record) {
                    syslog(record.level(), &message(record));
                }
                Ok(())
            });
            builder.target(Target::Pipe(Box::new(io::sink())));
        }
        Destination::File(path) => {
            let file = OpenOptions::new().create(true).append(true).open(path)?;
            let pid = std::process::id();
            builder.format(move |out, record| match is_meant(record) {
                true => writeln!(out, "{} shardfs[{pid}]: {}", now(), message(record)),
                false => Ok(()),
            });
            builder.target(Target::Pipe(Box::new(file)));
        }
    }
    // A second start would be a bug of the caller; the first one keeps logging.
    let _ = builder.try_init();
    Ok(())
}

/// Starts logging for a command other than `mount`: what is wrong, but no reason to fail, goes to
/// stderr.
pub(super) fn start_for_command() {
    let mut builder = Builder::new();
    builder.filter_module("shardfs", LevelFilter::Warn);
    // Commands report the errors of shards and the outcomes of recoveries by themselves.
    for reported in ["shardfs::store::shard_store", "shardfs::store::recover"] {
        builder.filter_module(reported, LevelFilter::Off);
    }
    builder.format(|out, record| writeln!(out, "shardfs: {}", message(record)));
    // A command starts it once; a second start would be a bug, and the first one keeps logging.
    let _ = builder.try_init();
}

/// Returns whether a message is for the log, at the level that `-v` or `RUST_LOG` asks for.
fn is_meant(record: &Record<'_>) -> bool {
    log::max_level() >= LevelFilter::Debug || !is_late_reply(record)
}

/// Returns whether a message of fuser says that a reply came too late: the process that waited for it
/// was interrupted (ENOENT), or the mount has ended (ENODEV). Other errors of replies are defects.
fn is_late_reply(record: &Record<'_>) -> bool {
    let is_late = |text: &str| text.ends_with("(os error 2)") || text.ends_with("(os error 19)");
    record.target().starts_with("fuser::reply") && is_late(&record.args().to_string())
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warning",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}

/// Formats a record as one line, which the mount shows as well.
fn message(record: &Record<'_>) -> String {
    let message = format!("{}: {}", word(record.level()), Line(record.args()));
    LOG.push(&format!("{} {message}", now()));
    message
}

/// Returns the current time in RFC 3339 form, in UTC.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[allow(unsafe_code, reason = "syslog(3) of the C library knows where the system's log is")]
fn syslog(level: Level, message: &str) {
    let priority = match level {
        Level::Error => libc::LOG_ERR,
        Level::Warn => libc::LOG_WARNING,
        Level::Info => libc::LOG_INFO,
        Level::Debug | Level::Trace => libc::LOG_DEBUG,
    };
    let message = std::ffi::CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the format takes one string, and both end with a NUL; syslog(3) is thread-safe.
    unsafe { libc::syslog(libc::LOG_DAEMON | priority, c"%s".as_ptr(), message.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_nobody_waits_for_is_no_error() {
        let is_late = |target: &str, errno: i32| {
            let error = io::Error::from_raw_os_error(errno);
            let text = format!("Failed to send FUSE reply: {error}");
            is_late_reply(&Record::builder().target(target).args(format_args!("{text}")).build())
        };
        assert!(is_late("fuser::reply", libc::ENOENT));
        assert!(is_late("fuser::reply", libc::ENODEV));
        assert!(!is_late("fuser::reply", libc::EINVAL));
        assert!(!is_late("shardfs::fuse", libc::ENOENT));
    }
}
