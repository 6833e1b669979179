use super::*;
use crate::fs::state::live_file::Behind;
use crate::store::memory::MemoryStorage;
use crate::store::storage::{PosixStorage, Storage};

/// Storage with one file, which can be replaced.
struct Source(MemoryStorage);

impl Source {
    fn new() -> Self {
        let source = Self(MemoryStorage::default());
        source.0.replace("a", "old");
        source
    }

    fn remember(&self, paths: &Paths, path: &str) -> u64 {
        let stat = self.0.lstat(Path::new(path)).unwrap();
        paths.remember(Path::new(path), Some(&stat), |_| false)
    }

    fn opened(&self, path: &str) -> (Stat, Arc<OpenFile>) {
        let file = self.0.open(Path::new(path)).unwrap();
        (file.stat().unwrap(), OpenFile::new(Behind::Source(file), false, None))
    }

    fn open(&self, paths: &Paths, ino: u64, path: &str) -> Arc<OpenFile> {
        let (stat, file) = self.opened(path);
        paths.opened(ino, &stat, &file).unwrap();
        file
    }
}

fn name(paths: &Paths, ino: u64) -> Option<String> {
    match paths.find(ino)? {
        Found::Paths(names) => Some(names[0].to_str()?.to_owned()),
        Found::Open(_) => Some("open".into()),
    }
}

#[test]
fn a_path_is_known_until_it_is_forgotten_as_often_as_it_was_remembered() {
    let (paths, source) = (Paths::default(), Source::new());
    let ino = source.remember(&paths, "a");
    assert_eq!(ino, inode::of_path(Path::new("a"), 0));
    assert_eq!(source.remember(&paths, "a"), ino);
    paths.forget(ino, 1);
    assert_eq!(name(&paths, ino).as_deref(), Some("a"));
    paths.forget(ino, 1);
    assert_eq!(name(&paths, ino), None);
    assert_eq!(paths.remember(Path::new(""), None, |_| false), inode::ROOT);
    assert_eq!(name(&paths, inode::ROOT).as_deref(), Some(""));
}

#[test]
fn a_number_means_its_path_until_somebody_opens_the_file() {
    let (paths, source) = (Paths::default(), Source::new());
    let ino = source.remember(&paths, "a");
    source.0.replace("a", "new");
    assert_eq!(source.remember(&paths, "a"), ino);

    let open = source.open(&paths, ino, "a");
    source.0.replace("a", "newer");
    let other = source.remember(&paths, "a");
    assert_ne!(other, ino);
    assert_eq!(paths.number(Path::new("a")), other);
    assert_eq!(name(&paths, ino).as_deref(), Some("open"));
    assert_eq!(name(&paths, other).as_deref(), Some("a"));
    drop(open);
    assert_eq!(name(&paths, ino), None);

    // Once the kernel has forgotten both, the state is as at the start.
    paths.forget(ino, 2);
    paths.forget(other, 1);
    assert_eq!(source.remember(&paths, "a"), ino);
}

#[test]
fn of_a_handle_that_has_ended_nothing_stays_in_memory() {
    let (paths, source) = (Paths::default(), Source::new());
    let ino = source.remember(&paths, "a");
    let (ended, open) = (source.open(&paths, ino, "a"), source.open(&paths, ino, "a"));
    drop(ended);
    paths.closed(ino);
    let handles = || paths.lock().known.get(ino).and_then(Known::rare).map(|rare| rare.open.len());
    assert_eq!(handles(), Some(1));
    assert_eq!(paths.open_files(ino).len(), 1);
    drop(open);
    paths.closed(ino);
    assert_eq!(handles(), None);
    assert_eq!(name(&paths, ino).as_deref(), Some("a"));
    // The kernel has forgotten it.
    paths.forget(ino, 1);
    paths.closed(ino);
}

#[test]
fn a_file_that_is_opened_under_the_number_of_another_open_one_is_refused() {
    let (paths, source) = (Paths::default(), Source::new());
    let ino = source.remember(&paths, "a");
    let _open = source.open(&paths, ino, "a");
    source.0.replace("a", "new");
    let (stat, file) = source.opened("a");
    let opened = paths.opened(ino, &stat, &file);
    assert!(matches!(opened, Err(FsError::Stale)));
}

#[test]
fn hard_links_have_one_number_that_lasts_as_long_as_one_of_them() {
    let (paths, source) = (Paths::default(), Source::new());
    let ino = source.remember(&paths, "a");
    source.0.link(Path::new("a"), Path::new("b")).unwrap();
    assert_eq!(source.remember(&paths, "b"), ino);
    paths.removed(Path::new("a"));
    assert_eq!(name(&paths, ino).as_deref(), Some("b"));
    // A new file with the first name is not a link of theirs.
    source.0.replace("a", "new");
    assert_ne!(source.remember(&paths, "a"), ino);
    paths.removed(Path::new("b"));
    assert_eq!(name(&paths, ino), None);
}

#[test]
fn a_renamed_file_keeps_its_number_and_an_open_one_that_it_replaces_too() {
    let (paths, source) = (Paths::default(), Source::new());
    source.0.replace("b", "other");
    let (a, b) = (source.remember(&paths, "a"), source.remember(&paths, "b"));
    let _open = source.open(&paths, b, "b");
    source.0.rename(Path::new("a"), Path::new("b")).unwrap();
    paths.renamed(Path::new("a"), Path::new("b"));
    assert_eq!(source.remember(&paths, "b"), a);
    assert_eq!(name(&paths, b).as_deref(), Some("open"));
}

/// Reports files without open handles to the kernel.
fn remember_all<'a>(paths: &Paths, names: impl IntoIterator<Item = &'a str>) -> Vec<u64> {
    names.into_iter().map(|name| paths.remember(Path::new(name), None, |_| false)).collect()
}

#[test]
fn what_is_below_a_renamed_directory_moves_and_nothing_beside_it() {
    let paths = Paths::default();
    let below = remember_all(&paths, ["d", "d/a", "d/a.b", "d/a/b", "d/z"]);
    let beside = remember_all(&paths, ["a", "d!", "d!/a", "d.old", "d.old/a", "da", "e/d/a"]);
    let gone = remember_all(&paths, ["to", "to/a"]);
    paths.renamed(Path::new("d"), Path::new("to"));
    let named = |numbers: &[u64]| -> Vec<_> {
        numbers.iter().map(|ino| name(&paths, *ino).unwrap_or_default()).collect()
    };
    assert_eq!(named(&below), ["to", "to/a", "to/a.b", "to/a/b", "to/z"]);
    assert_eq!(named(&beside), ["a", "d!", "d!/a", "d.old", "d.old/a", "da", "e/d/a"]);
    assert_eq!(named(&gone), ["", ""]);
}

#[test]
fn a_rename_does_not_look_at_all_names() {
    let paths = Paths::default();
    let names: Vec<String> = (0..100_000).map(|number| format!("c/0/{number}")).collect();
    remember_all(&paths, names.iter().map(String::as_str));
    // Of this thread: it may have to wait for others.
    let time = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
    let begin = time();
    for number in 0..2000 {
        let (from, to) = (format!("c/0/{number}"), format!("c/1/{number}"));
        paths.renamed(Path::new(&from), Path::new(&to));
    }
    // A scan of all names would take minutes in a debug build, seconds at best.
    assert!(time() - begin < 5, "{} s", time() - begin);
}

#[test]
fn a_file_that_left_a_name_and_is_linked_to_it_again_has_one_number() {
    let (paths, source) = (Paths::default(), Source::new());
    let old = source.remember(&paths, "a");
    // By another process.
    source.0.rename(Path::new("a"), Path::new("b")).unwrap();
    let ino = source.remember(&paths, "b");
    assert_ne!(ino, old);
    source.0.link(Path::new("b"), Path::new("a")).unwrap();
    assert_eq!(source.remember(&paths, "a"), ino);
    assert_eq!(name(&paths, old), None);
}

#[test]
fn a_number_that_is_given_back_counts_what_was_looked_up_meanwhile() {
    let (paths, source) = (Paths::default(), Source::new());
    let ino = source.remember(&paths, "a");
    assert_eq!(source.remember(&paths, "a"), ino);
    let taken = paths.take(ino, &[]).unwrap();
    assert_eq!(source.remember(&paths, "a"), ino);
    paths.give_back(ino, taken);
    paths.forget(ino, 2);
    assert_eq!(name(&paths, ino).as_deref(), Some("a"));
    paths.forget(ino, 1);
    assert_eq!(name(&paths, ino), None);
}

#[test]
fn files_that_were_not_looked_up_for_long_are_given_up_first() {
    let (paths, source) = (Paths::default(), Source::new());
    paths.remember(Path::new("d"), None, |_| false);
    for name in ["d/0", "d/1", "d/2", "d/3", "x/y"] {
        source.0.replace(name, "x");
        source.remember(&paths, name);
    }
    let ino = inode::of_path(Path::new("d/1"), 0);
    let open = source.open(&paths, ino, "d/1");
    let directory = inode::of_path(Path::new("d"), 0);
    let names = |most| -> Vec<_> {
        let mut names = paths.surplus(most);
        names.sort();
        names.into_iter().map(|(ino, name)| (ino, name.into_string().unwrap())).collect()
    };
    assert!(names(6).is_empty());
    assert!(names(0).is_empty(), "all were looked up since the beginning");
    source.remember(&paths, "d/2");
    // One is open, another was looked up, and of x no number is known.
    assert_eq!(names(0), [(directory, "0".into()), (directory, "3".into())]);
    drop(open);
    paths.closed(ino);
    assert_eq!(names(5).len(), 1, "no more than needed");
    let all: Vec<_> = names(0).into_iter().map(|(_, name)| name).collect();
    assert_eq!(all, ["0", "1", "2", "3"]);
}
