//! Checks of commands against existing mounts and overlapping paths.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::exit::{Failure, system};
use super::message::complain;
use super::sync::{closed, hint, is_closed, not_written, sync};
use crate::mount::{
    InMount, Use, check_answers, is_writable, lie_apart, mount_of, mounts_of_url, store_of,
    uses_of, will_be,
};
use crate::store::remote::{RemoteOptions, RemoteStorage, SourceUrl};
use crate::text::{shown, word};

/// What a command does with its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It reads it.
    Read,
    /// It changes it.
    Change,
}

/// Commits the uncommitted changes in mounts of a source. A mount that is read-only, or whose process
/// is dead, has none. Those in mounts of other users cannot be known: that is said, and nothing is
/// changed.
pub(super) fn commit_mounts(source: &Path, purpose: Purpose) -> Result<(), Failure> {
    // A missing source is reported when it is opened.
    let Ok(whole) = source.canonicalize() else { return Ok(()) };
    for used in uses_of(&whole) {
        let Use::Shown(mountpoint) = used else { continue };
        commit_mount(&mountpoint, purpose)?;
    }
    Ok(())
}

/// The same for what is mounted on this machine of a place in a store.
pub(super) fn commit_mounts_of_url(
    url: &SourceUrl,
    remote: &RemoteOptions,
    purpose: Purpose,
) -> Result<(), Failure> {
    let path = PathBuf::from(url.to_string());
    if mounts_of_url(&path).is_empty() {
        return Ok(());
    }
    // Which store it is depends on the environment and on profiles, too. No request is sent.
    let storage = RemoteStorage::new(url, remote, Arc::default());
    let storage = storage.map_err(|error| system(format!("{url}: {error}")))?;
    mounts_in_store(&path, storage.address())
        .iter()
        .try_for_each(|mountpoint| commit_mount(mountpoint, purpose))
}

/// Returns where mounts show what a URL names, or what is above or below it. `store` tells the store apart from others
/// with buckets of the same name; mounts that do not say which one they show count.
fn mounts_in_store(url: &Path, store: &str) -> Vec<PathBuf> {
    let mut mounts = mounts_of_url(url);
    mounts.retain(|mountpoint| {
        let other = check_answers(mountpoint).ok().and_then(|()| store_of(mountpoint));
        other.is_none_or(|other| may_be_same(&other, store))
    });
    mounts
}

/// Returns whether two addresses of stores may be of the same one.
fn may_be_same(one: &str, other: &str) -> bool {
    // The provider's own may be named or left out.
    let is_of_provider = |address: &str| {
        let hosts = ["amazonaws.com", "googleapis.com", "windows.net"];
        address.is_empty() || hosts.iter().any(|host| address.contains(host))
    };
    let plain = |address: &str| address.to_lowercase().replace("://localhost", "://127.0.0.1");
    plain(one) == plain(other) || is_of_provider(one) || is_of_provider(other)
}

fn commit_mount(mountpoint: &Path, purpose: Purpose) -> Result<(), Failure> {
    // It may be unmounted by now.
    if !is_writable(mountpoint).unwrap_or(false) {
        return Ok(());
    }
    check_answers(mountpoint)?;
    match (sync(mountpoint), purpose) {
        (Ok(()), _) => (),
        (Err(error), _) if error.raw_os_error() == Some(libc::ENOTCONN) => (),
        (Err(error), Purpose::Read) if is_closed(&error) => {
            let place = shown(mountpoint);
            complain(format_args!(
                "warning: {place}: mounted by another user: uncommitted changes cannot be seen"
            ));
        }
        (Err(error), Purpose::Change) if is_closed(&error) => {
            let refused = closed(mountpoint, "; nothing was changed: it must be unmounted first")?;
            refused.map_or(Ok(()), Err)?;
        }
        (Err(error), _) => {
            return Err(not_written(mountpoint, &error, |it| hint(mountpoint, it)));
        }
    }
    Ok(())
}

/// Returns an error if a directory that is to be replaced or removed is mounted by shardfs, or
/// contains a mount point.
pub(super) fn check_unused(directory: &Path) -> Result<(), Failure> {
    let name = shown(directory);
    let whole =
        will_be(directory).map_err(|error: io::Error| system(format!("{name}: {error}")))?;
    match uses_of(&whole).first() {
        None => Ok(()),
        Some(Use::Shown(place)) => Err(system(format!(
            "{name} is mounted on {}; unmount it first: shardfs umount {}",
            shown(place),
            word(place)
        ))),
        Some(Use::Holds(place)) => Err(system(format!(
            "{name}: something is mounted on {}; unmount it first",
            shown(place)
        ))),
    }
}

/// Returns an error if what is to be removed from a store is mounted on this machine.
pub(super) fn check_unused_url(url: &Path, store: &str) -> Result<(), Failure> {
    match mounts_in_store(url, store).first() {
        None => Ok(()),
        Some(place) => Err(system(format!(
            "{} is mounted on {}; unmount it first: shardfs umount {}",
            shown(url),
            shown(place),
            word(place)
        ))),
    }
}

/// Returns an error if an array lies in a mount of shardfs, where its metadata cannot be replaced.
/// `what` is to be done with it.
pub(super) fn check_not_in_mount(array: &Path, what: &str) -> Result<(), Failure> {
    let Some(InMount { mountpoint, in_source }) = mount_of(array) else { return Ok(()) };
    // A source that is mounted on itself is hidden.
    let there = in_source.filter(|path| !path.starts_with(&mountpoint));
    let there = there.map_or(String::new(), |path| format!(", {}", shown(&path)));
    let (array, mount) = (shown(array), shown(&mountpoint));
    Err(system(format!(
        "{array}: the mount on {mount} shows it: {what} it in the source{there}, or unmount it first"
    )))
}

/// Returns an error if a directory that is to be created would lie in a mount of shardfs: an array is
/// made beside its place and renamed, and no view can show an array that is not complete.
pub(super) fn check_not_made_in_mount(directory: &Path) -> Result<(), Failure> {
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    let found = mount_of(parent.unwrap_or(Path::new(".")));
    let Some(InMount { mountpoint, in_source }) = found else { return Ok(()) };
    let there = in_source.filter(|path| !path.starts_with(&mountpoint));
    let there = there.zip(directory.file_name()).map_or(String::new(), |(path, name)| {
        format!(", as {}; a mount shows it within a second", shown(&path.join(name)))
    });
    let (name, mount) = (shown(directory), shown(&mountpoint));
    Err(system(format!(
        "{name}: an array cannot be created through the mount on {mount}: create it in the source{there}"
    )))
}

/// Returns an error if the source and the destination lie in each other.
pub(super) fn check_apart(source: &Path, destination: &Path) -> Result<(), Failure> {
    match lie_apart(source, destination) {
        Ok(true) => Ok(()),
        Ok(false) => Err(in_each_other(destination)),
        Err(error) => Err(system(format!("{}: {error}", shown(destination)))),
    }
}

/// Returns the error for a source and a destination of which one lies in the other.
pub(super) fn in_each_other(destination: &Path) -> Failure {
    system(format!("{}: source and destination must not lie in each other", shown(destination)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_apart_only_by_addresses_that_are_certain() {
        let (one, other) = ("http://127.0.0.1:9000", "http://127.0.0.1:9001");
        assert!(!may_be_same(one, other) && may_be_same(one, one));
        assert!(may_be_same(one, "http://LocalHost:9000"));
        // The provider's own.
        assert!(may_be_same("", one) && may_be_same("https://s3.us-east-1.amazonaws.com", ""));
        assert!(!may_be_same("http://127.0.0.1:9000 account", "http://127.0.0.1:9000 another"));
    }
}
