//! State of the mounts of this machine.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

use super::asking::{Answer, ask};
use super::error::{ANSWER_PATIENCE, MountError};
use super::find_mounted;
use crate::mountinfo::{Mount, mounts};

/// How many mounts are asked at once, each by a process.
const AT_ONCE: usize = 16;

/// A mount, as the table of mounts and the process behind it describe it.
#[derive(Debug)]
pub struct Status {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Name of its source.
    pub source: OsString,
    /// `true` if it is mounted for writing.
    pub is_writable: bool,
    /// User who has mounted it.
    pub user: Option<u32>,
    /// Number of its FUSE connection.
    pub connection: u32,
    /// Whether it answers, and what.
    pub state: State,
}

/// Whether a mount answers.
#[derive(Debug)]
pub enum State {
    /// It does: its `.shardfs/stats.json`.
    Serving(Value),
    /// Something else is mounted on its mount point, or above it.
    Hidden,
    /// Another user has mounted it, who alone may look into it.
    Closed,
    /// The process behind it has ended.
    Dead,
    /// The process behind it does not answer.
    Silent,
    /// It answers with another error, or cannot be asked.
    Failing(io::Error),
    /// A part of it is mounted there, in which it does not say how it is.
    Part,
}

/// Returns all mounts of shardfs that this process can see, in the order in which they were made, or the one
/// that is on top of each of `mountpoints` if any are given.
///
/// # Errors
///
/// Fails if the table of mounts cannot be read, or if none of shardfs is on one of `mountpoints`.
pub fn statuses(mountpoints: &[PathBuf]) -> Result<Vec<Status>, MountError> {
    let table = || mounts().map_err(|error| MountError::Table { error });
    let asked = match mountpoints {
        // Of a bind mount of a part of one it is not the root.
        [] => table()?.into_iter().filter(|it| it.is_ours() && it.root == Path::new("/")).collect(),
        named => {
            let places = named.iter().map(|named| find_mounted(named));
            let places = places.collect::<Result<Vec<_>, _>>()?;
            let table = table()?;
            let top = |place: PathBuf| {
                let top = table.iter().rfind(|mount| mount.place == place && mount.is_ours());
                top.cloned().ok_or(MountError::NotMounted(place))
            };
            places.into_iter().map(top).collect::<Result<Vec<_>, _>>()?
        }
    };
    Ok(asked.chunks(AT_ONCE).flat_map(ask_all).collect())
}

/// Asks mounts at the same time: some may not answer.
fn ask_all(mounts: &[Mount]) -> Vec<Status> {
    thread::scope(|scope| {
        let ask = |mount| thread::Builder::new().spawn_scoped(scope, move || state(mount));
        let asked: Vec<_> = mounts.iter().map(|mount| (mount, ask(mount))).collect();
        let answer = |(mount, asked): (_, io::Result<thread::ScopedJoinHandle<'_, State>>)| {
            // Without a thread it is asked alone.
            let state = asked.map(|it| it.join().unwrap_or(State::Silent));
            status(mount, state.unwrap_or_else(|_| self::state(mount)))
        };
        asked.into_iter().map(answer).collect()
    })
}

fn state(mount: &Mount) -> State {
    if mount.root != Path::new("/") {
        return State::Part;
    }
    match ask(&mount.place, mount.connection, ANSWER_PATIENCE) {
        Some(Answer::Stats(stats)) => State::Serving(stats),
        Some(Answer::Hidden) => State::Hidden,
        Some(Answer::Error(error)) => match error.raw_os_error() {
            Some(libc::EACCES) => State::Closed,
            Some(libc::ENOTCONN | libc::ECONNABORTED) => State::Dead,
            _ => State::Failing(error),
        },
        None => State::Silent,
    }
}

fn status(mount: &Mount, state: State) -> Status {
    let Mount { place, source, is_writable, user, connection, .. } = mount;
    Status {
        mountpoint: place.clone(),
        source: source.clone(),
        is_writable: *is_writable,
        user: *user,
        connection: *connection,
        state,
    }
}
