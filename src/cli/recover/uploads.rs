//! `shardfs recover URL`: removes the uploads of shards that mounts have begun, and not completed because they were
//! killed. A store keeps their parts, which cost as much as objects. So it does with objects to try the store out.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo};

use crate::cli::exit::{Failure, failed};
use crate::cli::message::complain;
use crate::cli::open::open;
use crate::cli::output::say;
use crate::cli::remote::RemoteArgs;
use crate::source::{Format, Node, OpenConfig, Source};
use crate::store::remote::{RemoteStorage, SourceUrl, TRIAL};
use crate::store::storage::{Storage, WriteId};
use crate::text::{count, shown};

/// Parses an age: `7d`, `24h`, `30min`, `1h 30m`.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let age: Option<Span> = text.parse().ok();
    let age = age.and_then(|age| age.to_duration(SpanRelativeTo::days_are_24_hours()).ok());
    let age = age.and_then(|age| Duration::try_from(age).ok());
    age.ok_or_else(|| "it is no time such as 7d, 24h, 90min or 0s".to_owned())
}

/// Removes the uploads below a source that are at least as old as `older`. Those of a mount that is at work are younger.
pub(super) fn give_up(
    name: &Path,
    url: &SourceUrl,
    format: Option<Format>,
    older: Duration,
    remote: &RemoteArgs,
) -> Result<(), Failure> {
    // What is named wrongly has no uploads either.
    let source = open(name, OpenConfig { format, ..OpenConfig::default() }, remote)?;
    let storage = RemoteStorage::new(url, &remote.options(), Arc::default());
    let storage = storage.map_err(|error| failed(name, &error))?;
    let uploads = storage.unfinished_uploads().map_err(|error| failed(name, &error))?;
    let has_trials = remove_trials(&storage, older).map_err(|error| failed(name, &error))?;
    if uploads.is_empty() && !has_trials {
        say("nothing to recover");
        return Ok(());
    }
    let (mut left, mut failure) = (0, None);
    for upload in &uploads {
        let path = shown(&upload.path);
        if !is_ours(&source, &upload.path) {
            say(format_args!("{path}: an upload of something else than a shard, left as it is"));
        } else if !is_old(upload.since, older) {
            left += 1;
            say(format_args!("{path}: an upload that may be under way, left as it is (--older)"));
        } else {
            match storage.abort_upload(upload) {
                Ok(()) => say(format_args!("{path}: an upload that was not completed was removed")),
                // The others are removed all the same.
                Err(error) => {
                    let before = failure.replace(failed(&upload.path, &error));
                    before.iter().for_each(complain);
                }
            }
        }
    }
    match (failure, left) {
        (Some(failure), _) => Err(failure),
        (None, 0) => Ok(()),
        (None, left) => Err(Failure::Found(format!("{} left", count(left, "upload")))),
    }
}

/// Removes the objects in a source's root with which mounts have tried the store out, if they are at least as old as
/// `older`: those of mounts that were killed, or may remove nothing. Returns whether there were any.
fn remove_trials(storage: &RemoteStorage, older: Duration) -> io::Result<bool> {
    let Some(objects) = storage.objects().filter(|_| storage.can_list()) else { return Ok(false) };
    let mut found = Vec::new();
    storage.list(Path::new(""), 0, &mut |item| {
        let number = item.name.to_str().and_then(|name| name.strip_prefix(TRIAL));
        if number.is_some_and(|number| WriteId::parse(number).is_some()) {
            found.push(PathBuf::from(item.name));
        }
        ControlFlow::Continue(())
    })?;
    let mut has_removed = false;
    for path in found {
        let since = SystemTime::from(storage.stat(&path)?.mtime);
        if is_old(Some(since), older) {
            objects.remove(&path)?;
            has_removed = true;
            let path = shown(&path);
            say(format_args!(
                "{path}: an object to try the store out, left by a mount, was removed"
            ));
        }
    }
    Ok(has_removed)
}

/// Returns whether an object is one that mounts make of parts: a shard, or the one of a trial.
fn is_ours(source: &Source, path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str);
    let is_shard = |node: Node| match node {
        Node::Array(array) => {
            let below = path.strip_prefix(&array.source.path).ok().and_then(Path::to_str);
            below.is_some_and(|name| array.source.is_shard_name(name))
        }
        _ => false,
    };
    name.is_some_and(|name| name.starts_with(TRIAL)) || source.nodes().any(is_shard)
}

fn is_old(since: Option<SystemTime>, older: Duration) -> bool {
    let age = since.and_then(|since| SystemTime::now().duration_since(since).ok());
    age.unwrap_or_default() >= older
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_time_with_a_unit() {
        assert_eq!(age("24h").unwrap(), Duration::from_secs(86_400));
        assert_eq!(age("7d").unwrap(), Duration::from_secs(7 * 86_400));
        assert_eq!(age("0s").unwrap(), Duration::ZERO);
        assert_eq!(age("1h 30m").unwrap(), Duration::from_secs(5400));
        for bad in ["", "24", "-1h", "yesterday"] {
            age(bad).unwrap_err();
        }
    }
}
