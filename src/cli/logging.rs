//! Logging: of a mount to stderr in the foreground, to a file or to syslog in the background; of the
//! other commands to stderr, warnings only.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use env_logger::{Builder, Env, Target};
use log::{Level, LevelFilter, Record};
use parking_lot::Mutex;
use serde_json::json;

use crate::recent::LOG;
use crate::text::{Line, shown};

/// Destination of the log.
pub(super) enum Destination {
    Stderr,
    /// Stderr that is a stream of the journal, whose lines begin with their priority.
    Journal,
    Syslog,
    File(PathBuf),
}

impl Destination {
    /// Returns what stderr is.
    pub(super) fn stderr() -> Self {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        let stderr = rustix::fs::fstat(io::stderr());
        let is_it = stderr.is_ok_and(|it| stream == format!("{}:{}", it.st_dev, it.st_ino));
        if is_it { Self::Journal } else { Self::Stderr }
    }
}

/// Form of the lines of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LogFormat {
    /// `2026-01-02T03:04:05.678Z shardfs[12]: warning: ...`; elsewhere than in a file without time and process.
    #[default]
    Text,
    /// An object each, for programs, with `time`, `level`, `pid` and `message`.
    Json,
}

impl LogFormat {
    /// Returns the line for a record, which the mount shows as well.
    fn line(self, record: &Record<'_>, destination: &Destination) -> String {
        let (text, pid) = (message(record), std::process::id());
        match (self, destination) {
            (Self::Json, _) => {
                let (level, message) = (word(record.level()), record.args().to_string());
                json!({ "time": now(), "level": level, "pid": pid, "message": message }).to_string()
            }
            (Self::Text, Destination::File(_)) => format!("{} shardfs[{pid}]: {text}", now()),
            (Self::Text, Destination::Stderr) => format!("shardfs: {text}"),
            (Self::Text, Destination::Journal | Destination::Syslog) => text,
        }
    }
}

/// File of a log, which can be renamed and then opened anew.
#[derive(Debug, Clone)]
pub(super) struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
    /// `true` if its name leads to it, as that of a descriptor (`/dev/fd/8`, `/dev/stderr`) does not for long.
    is_named: bool,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = appended().open(path)?;
        let directory = path.parent().and_then(|directory| directory.canonicalize().ok());
        let is_of_system =
            |directory: &PathBuf| directory.starts_with("/proc") || directory.starts_with("/dev");
        let is_named = file.metadata()?.is_file() && directory.is_some_and(|it| !is_of_system(&it));
        Ok(Self { path: path.to_owned(), file: Arc::new(Mutex::new(file)), is_named })
    }

    /// Opens it anew, so that what follows goes to the file that has its name now. Where that fails it stays the one
    /// that it was.
    pub(super) fn reopen(&self) {
        let path = shown(&self.path);
        if !self.is_named {
            return log::warn!("{path}: not opened anew: it is no file that has a name");
        }
        match opened_anew(&self.path) {
            Ok(file) => {
                *self.file.lock() = file;
                log::info!("{path}: opened anew");
            }
            Err(error) => log::error!("{path}: not opened anew: {error}"),
        }
    }
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.file.lock().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().flush()
    }
}

/// Returns how the file of a log is opened. Of a pipe whoever writes waits for its reader: no line is lost.
fn appended() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    options
}

/// Opens a file that has the name of a log now. A pipe that was put there is not waited for, and not written to.
fn opened_anew(path: &Path) -> io::Result<File> {
    let file = appended().custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
}

/// Starts logging; `verbosity` is the number of `-v` options. `RUST_LOG` overrides it. Returns the log's file if it
/// goes to one.
pub(super) fn start(
    destination: Destination,
    format: LogFormat,
    verbosity: u8,
) -> io::Result<Option<LogFile>> {
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
    let file = match &destination {
        Destination::File(path) => Some(LogFile::open(path)?),
        Destination::Stderr | Destination::Journal | Destination::Syslog => None,
    };
    if let Some(file) = &file {
        builder.target(Target::Pipe(Box::new(file.clone())));
    }
    builder.format(move |out, record| {
        if !is_meant(record) {
            return Ok(());
        }
        let line = format.line(record, &destination);
        match destination {
            Destination::Syslog => syslog(record.level(), &line),
            Destination::Journal => writeln!(out, "<{}>{line}", priority(record.level()))?,
            Destination::Stderr | Destination::File(_) => writeln!(out, "{line}")?,
        }
        Ok(())
    });
    // A second start would be a bug of the caller; the first one keeps logging.
    let _ = builder.try_init();
    Ok(file)
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

/// Returns the priority of a level, as syslog(3) and the journal have it.
fn priority(level: Level) -> i32 {
    match level {
        Level::Error => libc::LOG_ERR,
        Level::Warn => libc::LOG_WARNING,
        Level::Info => libc::LOG_INFO,
        Level::Debug | Level::Trace => libc::LOG_DEBUG,
    }
}

#[allow(unsafe_code, reason = "syslog(3) of the C library knows where the system's log is")]
fn syslog(level: Level, message: &str) {
    let message = std::ffi::CString::new(message.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the format takes one string, and both end with a NUL; syslog(3) is thread-safe.
    unsafe { libc::syslog(libc::LOG_DAEMON | priority(level), c"%s".as_ptr(), message.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_form_that_is_asked_for() {
        let args = format_args!("a/c/0: \"new\nline\"");
        let record = Record::builder().level(Level::Warn).args(args).build();
        let line = |format: LogFormat, destination| format.line(&record, &destination);
        let text = r#"warning: a/c/0: "new\nline""#;
        assert_eq!(line(LogFormat::Text, Destination::Syslog), text);
        assert_eq!(line(LogFormat::Text, Destination::Stderr), format!("shardfs: {text}"));
        let in_file = line(LogFormat::Text, Destination::File(PathBuf::new()));
        assert!(in_file.starts_with("20") && in_file.ends_with(text), "{in_file}");
        let object: serde_json::Value =
            serde_json::from_str(&line(LogFormat::Json, Destination::Stderr)).unwrap();
        assert_eq!(object["message"], "a/c/0: \"new\nline\"");
        assert_eq!(
            (&object["level"], &object["pid"]),
            (&"warning".into(), &std::process::id().into())
        );
    }

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
