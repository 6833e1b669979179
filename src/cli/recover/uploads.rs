//! `shardfs recover URL`: removes the uploads of shards that mounts have begun, and not completed because they were
//! killed. A store keeps their parts, which cost as much as objects.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::{Span, SpanRelativeTo};

use crate::cli::exit::{Failure, failed};
use crate::cli::message::complain;
use crate::cli::open::open;
use crate::cli::output::say;
use crate::cli::remote::RemoteArgs;
use crate::source::{Format, Node, OpenConfig, Source};
use crate::store::remote::{RemoteStorage, SourceUrl, TRIAL, UnfinishedUpload};
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
    if uploads.is_empty() {
        say("nothing to recover");
        return Ok(());
    }
    let (mut left, mut failure) = (0, None);
    for upload in &uploads {
        let path = shown(&upload.path);
        if !is_ours(&source, &upload.path) {
            say(format_args!("{path}: an upload of something else than a shard, left as it is"));
        } else if !is_old(upload, older) {
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

fn is_old(upload: &UnfinishedUpload, older: Duration) -> bool {
    let age = upload.since.and_then(|since| SystemTime::now().duration_since(since).ok());
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
