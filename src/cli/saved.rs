//! Where mounts save what they cannot commit, and what is there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::store::spool::{
    OPEN_NAME, OTHER_DIRECTORY, REHEARSAL_DIRECTORY, SOURCE_NAME, saved_source,
};
use crate::text::{shown, word};

/// Returns the directory in which mounts save what they cannot commit in the end, each in one of its
/// own. It must outlive this process and a reboot.
pub(super) fn unsaved_root() -> PathBuf {
    /// Where there is nothing, and nothing can be created by who is not root.
    const NOWHERE: &str = "/nonexistent";
    let state = match rustix::process::geteuid().is_root() {
        true => Some(PathBuf::from("/var/lib")),
        false => state_directory(|name| std::env::var_os(name)).or_else(state_of_user),
    };
    // Never in a directory in which other users can create files, as /tmp is.
    state.unwrap_or_else(|| PathBuf::from(NOWHERE)).join("shardfs/unsaved")
}

/// Returns the directory for the state of this user's programs, by the system's list of users.
fn state_of_user() -> Option<PathBuf> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten()?;
    user.dir.is_absolute().then(|| user.dir.join(".local/state"))
}

/// Returns the directory for the state of a user's programs, by variables of the environment. As the
/// XDG Base Directory Specification has it, paths that are not absolute are ignored: this process is
/// in another directory than its user.
fn state_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(directory("HOME")?.join(".local/state"));
    directory("XDG_STATE_HOME").or_else(home)
}

/// Returns a warning if nothing could be saved below [`unsaved_root`].
pub(super) fn unsavable() -> Option<String> {
    let root = unsaved_root();
    let there = root.ancestors().find(|above| above.exists())?;
    let error = rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK).err()?;
    let (root, error) = (shown(&root), std::io::Error::from(error));
    Some(format!(
        "what could not be committed in the end would be lost: {root} cannot be written to: {error}"
    ))
}

/// Returns the directory of a new mount.
pub(super) fn unsaved_directory() -> PathBuf {
    // Processes in containers may have one number at one second. No colons: they have a meaning to scp and rsync.
    let started = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S%.9fZ");
    unsaved_root().join(format!("{started}-{}", std::process::id()))
}

/// Returns what to do about a directory in which something of a source was saved. `options` are those by which the source
/// is found: words with a space behind each.
pub(super) fn saved_hint(saved: &Path, source: &Path, options: &str) -> String {
    let holds_chunks = holds_files(saved, Some(OTHER_DIRECTORY));
    if !holds_chunks {
        let (saved, source) = (shown(saved), shown(source));
        return format!(
            "{source}: files that were beside chunks in an earlier mount are in {saved}: move them to \
             where they belong, or remove that directory if they are not needed"
        );
    }
    format!(
        "{}: what an earlier mount could not commit is in {}; `shardfs recover --unsaved {} {options}{}` puts its \
         chunks in",
        shown(source),
        shown(saved),
        word(saved),
        word(source)
    )
}

/// Returns the directories in which mounts of a source that have ended have saved something.
pub(super) fn saved_of(source: &Path) -> Vec<PathBuf> {
    let is_of =
        |directory: &Path| saved_source(directory).ok().flatten().as_deref() == Some(source);
    let runs = |directory: &Path| {
        let process = directory.to_str().and_then(|name| name.rsplit_once('-'));
        // One that has ended and waits for its parent has no program.
        let program = |pid: &str| Path::new("/proc").join(pid).join("exe").read_link().ok();
        // Another program may have the number by now.
        let program = process.and_then(|(_, pid)| program(pid));
        program.is_some_and(|program| program.to_string_lossy().contains("shardfs"))
    };
    let entries = std::fs::read_dir(unsaved_root()).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    found.retain(|directory| is_of(directory) && !runs(directory) && holds_files(directory, None));
    found.sort();
    found
}

/// Returns whether one of these directories has chunks that were not committed.
pub(super) fn chunks_wait(saved: &[PathBuf]) -> bool {
    saved.iter().any(|saved| holds_files(saved, Some(OTHER_DIRECTORY)))
}

fn holds_files(directory: &Path, but: Option<&str>) -> bool {
    saved_files(directory, but) > 0
}

/// Returns the number of files in a directory for changes that could not be committed that were
/// saved, and are whole. Directories of the name `but` do not count.
pub(super) fn saved_files(directory: &Path, but: Option<&str>) -> usize {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => {
            let name = entry.file_name();
            match name != REHEARSAL_DIRECTORY && but.is_none_or(|but| name != but) {
                true => saved_files(&entry.path(), but),
                false => 0,
            }
        }
        _ => usize::from(entry.file_name() != OPEN_NAME && entry.file_name() != SOURCE_NAME),
    });
    files.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_is_absolute() {
        let of = |xdg: Option<&str>, home: Option<&str>| {
            state_directory(|name| match name {
                "XDG_STATE_HOME" => xdg.map(Into::into),
                _ => home.map(Into::into),
            })
        };
        assert_eq!(of(Some("/state"), Some("/home/u")), Some("/state".into()));
        for ignored in [None, Some(""), Some("state"), Some("./state")] {
            assert_eq!(of(ignored, Some("/home/u")), Some("/home/u/.local/state".into()));
            assert_eq!(of(ignored, ignored), None, "{ignored:?}");
        }
    }
}
