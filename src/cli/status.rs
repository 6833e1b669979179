//! `shardfs status`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::exit::{Failure, system};
use super::message::complain;
use super::output::print;
use crate::fs::WAITING_PATH;
use crate::mount::MountError;
use crate::mount::status::{State, Status, statuses};
use crate::text::{Line, json_path, shown, word};

const AFTER_HELP: &str = "\
STATE is serving; dead, if the process behind a mount has ended; silent, if it has not answered for ten seconds;
closed, if another user has mounted it, who alone may look into it; hidden, if something else is mounted on top of it;
failing, if it answers with another error, or cannot be asked; part, if it is a bind mount of a directory in one, which
is shown only if it is named. UNCOMMITTED is what was written and is not in its shards yet, FAILED
counts attempts to commit a chunk that have failed, ERRORS requests answered with an error, DAMAGED how often a shard
was found whose index cannot be read: `shardfs verify SOURCE` names them.

With --json one object is printed: mounts, a list of objects with mountpoint, source, writable, user (who has mounted
it), state, and of those that are serving stats, which is their .shardfs/stats.json.

Examples:
  shardfs status
  shardfs status /mnt/volume
  shardfs status --json | jq -r '.mounts[] | select(.state != \"serving\").mountpoint'

Exit codes: 0 all are serving, closed, hidden or part, 1 one is dead, silent or failing, or cannot commit what was
written, or nothing of shardfs is mounted where it was asked for, 2 system error or wrong usage.";

/// Show the mounts of this machine: what they show, whether they answer, what waits to be committed
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Show these alone
    mountpoints: Vec<PathBuf>,
    /// Print an object for programs
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let statuses = statuses(&args.mountpoints).map_err(|error| match error {
        MountError::NotMounted(_) | MountError::InMount { .. } => Failure::Found(error.to_string()),
        error => system(error),
    })?;
    match args.json {
        true => print(format!("{:#}\n", document(&statuses)).as_bytes())?,
        false => print(table(&statuses, Timestamp::now()).as_bytes())?,
    }
    let troubles: Vec<_> = statuses.iter().filter_map(trouble).collect();
    troubles.iter().for_each(complain);
    if troubles.is_empty() { Ok(()) } else { Err(Failure::Found(String::new())) }
}

fn name(state: &State) -> &'static str {
    match state {
        State::Serving(_) => "serving",
        State::Hidden => "hidden",
        State::Closed => "closed",
        State::Dead => "dead",
        State::Silent => "silent",
        State::Failing(_) => "failing",
        State::Part => "part",
    }
}

/// Returns what is wrong with a mount, and what to do; `None` if nothing is.
fn trouble(status: &Status) -> Option<String> {
    let path = &status.mountpoint;
    match &status.state {
        State::Serving(stats) if stats["failing"] == true => Some(format!(
            "{}: what was written cannot be committed at the moment: {} says why, and lists it",
            shown(path),
            shown(&path.join(WAITING_PATH)),
        )),
        State::Serving(_) | State::Hidden | State::Closed | State::Part => None,
        State::Dead => Some(format!(
            "{}: the process behind it has ended; `shardfs umount {}` unmounts it{}",
            shown(path),
            word(path),
            if status.is_writable { ", and says what may be lost" } else { "" },
        )),
        State::Silent => {
            let connection = status.connection;
            Some(MountError::Silent { path: path.clone(), connection }.to_string())
        }
        State::Failing(error) => Some(format!("{}: {error}", shown(path))),
    }
}

fn document(statuses: &[Status]) -> Value {
    let mounts = statuses.iter().map(|status| {
        let mut mount = json!({
            "mountpoint": json_path(&status.mountpoint),
            "source": json_path(Path::new(&status.source)),
            "writable": status.is_writable,
            "user": status.user,
            "state": name(&status.state),
        });
        if let State::Serving(stats) = &status.state {
            mount["stats"] = stats.clone();
        }
        mount
    });
    json!({ "mounts": mounts.collect::<Vec<_>>() })
}

/// Titles of the columns.
const TITLES: [&str; 11] = [
    "MOUNT POINT",
    "STATE",
    "SOURCE",
    "VIEW",
    "MODE",
    "TRANSPORT",
    "UNCOMMITTED",
    "LAST COMMIT",
    "FAILED",
    "ERRORS",
    "DAMAGED",
];

type Row = [String; TITLES.len()];

fn table(statuses: &[Status], now: Timestamp) -> String {
    if statuses.is_empty() {
        return String::new();
    }
    let titles = TITLES.map(str::to_owned);
    let rows: Vec<Row> =
        std::iter::once(titles).chain(statuses.iter().map(|status| row(status, now))).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
    let line = |row: &Row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Returns the cells of a mount; a dash is what is not known, or does not apply.
fn row(status: &Status, now: Timestamp) -> Row {
    let stats = match &status.state {
        State::Serving(stats) => stats,
        _ => &Value::Null,
    };
    let text = |at: &str| stats.pointer(at).and_then(Value::as_str).map(str::to_owned);
    let number = |at: &str| stats.pointer(at).and_then(Value::as_u64);
    let views = stats.get("views").and_then(Value::as_array);
    let views = views.map(|all| all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","));
    let uncommitted = number("/uncommitted").map(|nbytes| HumanBytes(nbytes).to_string());
    let last = text("/last_commit").and_then(|time| time.parse::<Timestamp>().ok());
    let failed = number("/commits/failed").filter(|_| status.is_writable);
    // Any user can mount something that says it is of shardfs.
    let or_dash = |cell: Option<String>| cell.map_or("-".to_owned(), |it| Line(it).to_string());
    [
        shown(&status.mountpoint).to_string(),
        name(&status.state).to_owned(),
        shown(Path::new(&status.source)).to_string(),
        or_dash(views),
        if status.is_writable { "rw" } else { "ro" }.to_owned(),
        or_dash(text("/transport/name")),
        or_dash(uncommitted),
        or_dash(last.map(|last| ago(last, now))),
        or_dash(failed.map(|count| count.to_string())),
        or_dash(number("/operations/errors").map(|count| count.to_string())),
        or_dash(number("/indexes/damaged").map(|count| count.to_string())),
    ]
}

/// Returns how long ago something was: `3 minutes ago`.
fn ago(then: Timestamp, now: Timestamp) -> String {
    let time = Duration::try_from(now.duration_since(then)).unwrap_or_default();
    format!("{} ago", HumanDuration(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(place: &str, state: State) -> Status {
        Status {
            mountpoint: place.into(),
            source: "/data/x y.zarr".into(),
            is_writable: true,
            user: Some(0),
            connection: 7,
            state,
        }
    }

    #[test]
    fn the_columns_are_as_wide_as_what_is_in_them() {
        let stats = json!({
            "transport": { "name": "classic" },
            "views": ["zarr3", "npy"],
            "uncommitted": 2048,
            "last_commit": "2026-05-04T03:02:01.000Z",
            "operations": { "errors": 3 },
            "indexes": { "damaged": 2 },
            "commits": { "failed": 1 },
        });
        let all = [status("/mnt/a\n", State::Serving(stats)), status("/mnt/long", State::Dead)];
        let now = "2026-05-04T03:05:01Z".parse().unwrap();
        let expected = "\
MOUNT POINT  STATE    SOURCE          VIEW       MODE  TRANSPORT  UNCOMMITTED  LAST COMMIT    FAILED  ERRORS  DAMAGED
/mnt/a\\n     serving  /data/x y.zarr  zarr3,npy  rw    classic    2.00 KiB     3 minutes ago  1       3       2
/mnt/long    dead     /data/x y.zarr  -          rw    -          -            -              -       -       -
";
        assert_eq!(table(&all, now), expected);
        assert_eq!(table(&[], now), "");
    }

    #[test]
    fn a_mount_cannot_forge_lines() {
        let stats = json!({ "views": ["a\nb"], "transport": { "name": "\u{1b}[2J" } });
        let table = table(&[status("/mnt/a", State::Serving(stats))], Timestamp::UNIX_EPOCH);
        assert_eq!(table.lines().count(), 2);
        assert!(!table.contains('\u{1b}'), "{table}");
    }

    #[test]
    fn what_is_wrong_comes_with_what_to_do() {
        let said = |state| trouble(&status("/mnt/x", state));
        assert_eq!(said(State::Closed), None);
        assert_eq!(said(State::Serving(json!({ "failing": false }))), None);
        let full = said(State::Serving(json!({ "failing": true }))).unwrap();
        assert!(full.contains("/mnt/x/.shardfs/waiting.txt"), "{full}");
        let dead = "/mnt/x: the process behind it has ended; `shardfs umount /mnt/x` unmounts it, and says what may be lost";
        assert_eq!(said(State::Dead).unwrap(), dead);
        assert!(said(State::Silent).unwrap().contains("/connections/7/abort"));
    }
}
