use super::*;
use crate::store::storage::Timestamp;

fn storage() -> (tempfile::TempDir, LocalStorage) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("source")).unwrap();
    std::fs::write(directory.path().join("outside"), b"secret").unwrap();
    std::fs::write(directory.path().join("source/file"), b"content").unwrap();
    std::os::unix::fs::symlink("../outside", directory.path().join("source/out")).unwrap();
    std::os::unix::fs::symlink("file", directory.path().join("source/in")).unwrap();
    let storage = LocalStorage::open_root(&directory.path().join("source"), Arc::default());
    (directory, storage.unwrap())
}

#[test]
fn links_that_stay_within_are_followed_and_others_are_refused() {
    let (_directory, storage) = storage();
    let mut buffer = [0; 9];
    let file = storage.open(Path::new("in")).unwrap();
    assert_eq!(file.read_at(&mut buffer, 3).unwrap(), 4);
    assert_eq!(&buffer[..4], b"tent");
    for path in ["out", "../outside", "/etc/passwd"] {
        let error = storage.open(Path::new(path)).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{path}");
    }
    assert_eq!(storage.lstat(Path::new("out")).unwrap().kind, FileKind::Symlink);
    assert_eq!(storage.read_link(Path::new("out")).unwrap(), "../outside");
}

#[test]
fn a_listing_goes_on_where_it_stopped() {
    let (_directory, storage) = storage();
    let (mut names, mut from) = (Vec::new(), 0);
    for _ in 0..3 {
        storage
            .list(Path::new(""), from, &mut |item| {
                names.push(item.name.to_owned());
                from = item.next;
                ControlFlow::Break(())
            })
            .unwrap();
    }
    names.sort();
    assert_eq!(names, ["file", "in", "out"]);
}

#[test]
fn what_is_written_is_there_and_nothing_is_written_outside() {
    let (directory, storage) = storage();
    storage.create_directory(Path::new("c")).unwrap();
    let file = storage.create(Path::new("c/new"), 0o640).unwrap();
    file.write_at(b"0123456789", 2).unwrap();
    file.set_length(5).unwrap();
    file.set_mtime(Timestamp { seconds: 7, nanoseconds: 8 }).unwrap();
    file.sync().unwrap();
    assert_eq!(
        storage.create(Path::new("c/new"), 0o640).err().unwrap().raw_os_error(),
        Some(libc::EEXIST)
    );
    storage.rename(Path::new("c/new"), Path::new("file")).unwrap();
    storage.sync_directory(Path::new("c")).unwrap();
    storage.remove_directory(Path::new("c")).unwrap();
    assert_eq!(std::fs::read(directory.path().join("source/file")).unwrap(), b"\0\x00012");
    let mtime = storage.stat(Path::new("file")).unwrap().mtime;
    assert_eq!(mtime, Timestamp { seconds: 7, nanoseconds: 8 });

    let refused = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ELOOP));
    };
    std::os::unix::fs::symlink("..", directory.path().join("source/up")).unwrap();
    refused(storage.create(Path::new("up/new"), 0o600).map(drop));
    refused(storage.open_writable(Path::new("up/outside")).map(drop));
    refused(storage.rename(Path::new("file"), Path::new("up/file")));
    refused(storage.rename(Path::new("up/outside"), Path::new("outside")));
    refused(storage.remove_file(Path::new("up/outside")));
    refused(storage.create_directory(Path::new("up/new")));
    refused(storage.remove_directory(Path::new("up/source")));
}

/// Only root can give files away, so these are the permissions of what others have written.
#[test]
fn a_file_that_keeps_another_owner_or_group_gives_nobody_more_permissions() {
    let (_directory, storage) = storage();
    let file = storage.stat(Path::new("file")).unwrap();
    let of = |mode, uid, gid| Stat { mode, uid, gid, ..file };
    let mine = of(0o600, 1, 2);
    for (like, expected) in [
        (of(0o6664, 1, 2), 0o6664),
        (of(0o6664, 9, 2), 0o2664),
        (of(0o6664, 1, 9), 0o644),
        (of(0o640, 9, 9), 0o600),
        (of(0o604, 9, 9), 0o600),
        (of(0o666, 9, 9), 0o666),
    ] {
        assert_eq!(attributes::permissions_like(&like, &mine), expected, "{:o}", like.mode);
    }
}

#[test]
fn nothing_is_changed_through_a_link_within_the_source() {
    let (directory, storage) = storage();
    let top = directory.path().join("source");
    std::fs::create_dir(top.join("real")).unwrap();
    std::fs::write(top.join("real/file"), b"mine").unwrap();
    std::os::unix::fs::symlink("real", top.join("alias")).unwrap();
    let through = |name: &str| Path::new("alias").join(name);
    let refused = |what: &str, result: io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ELOOP), "{what}");
    };
    refused("open a link", storage.open_writable(Path::new("in")).map(drop));
    refused("read a link", storage.open_plain(Path::new("in")).map(drop));
    refused("open", storage.open_writable(&through("file")).map(drop));
    refused("read", storage.open_plain(&through("file")).map(drop));
    refused("create", storage.create(&through("new"), 0o600).map(drop));
    refused("clone", storage.clone_file(Path::new("file"), &through("new"), 0o600).map(drop));
    refused("rename from", storage.rename(&through("file"), Path::new("moved")));
    refused("rename to", storage.rename(Path::new("file"), &through("file")));
    refused("link", storage.link(Path::new("file"), &through("new")));
    refused("symlink", storage.symlink(Path::new("x"), &through("new")));
    refused("remove", storage.remove_file(&through("file")));
    refused("mkdir", storage.create_directory(&through("new")));
    refused("rmdir", storage.remove_directory(&through("new")));
    let set = SetStat { mode: Some(0o777), ..SetStat::default() };
    refused("set", storage.set_stat(&through("file"), &set));
    refused("sync", storage.sync_directory(Path::new("alias")));
    assert_eq!(std::fs::read(top.join("real/file")).unwrap(), b"mine");
    assert_eq!(top.join("real").read_dir().unwrap().count(), 1);
    // The link itself is a name like any other.
    storage.remove_file(Path::new("alias")).unwrap();
    // Reading follows it.
    assert_eq!(storage.open(Path::new("in")).unwrap().stat().unwrap().size, 7);
}

#[test]
fn a_clone_has_the_content_or_leaves_nothing_behind() {
    let (directory, storage) = storage();
    match storage.clone_file(Path::new("file"), Path::new("clone"), 0o600) {
        Ok(clone) => assert_eq!(clone.stat().unwrap().size, 7),
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
            assert!(!directory.path().join("source/clone").exists());
        }
    }
}

#[test]
fn a_lock_excludes_another_open_file_until_it_is_given_back() {
    let (_directory, storage) = storage();
    let open = || storage.open_writable(Path::new("file")).unwrap();
    let (first, second) = (open(), open());
    assert!(first.try_lock().unwrap() && !second.try_lock().unwrap());
    first.unlock().unwrap();
    assert!(second.try_lock().unwrap() && !first.try_lock().unwrap());
    // Closing releases the lock, too.
    drop(second);
    assert!(first.try_lock().unwrap());
}

/// The kernel gives up on a ".." while anything is renamed, in whatever filesystem.
#[test]
fn a_link_with_dots_is_followed_while_others_rename() {
    let (top, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(top.path().join("d")).unwrap();
    std::fs::write(top.path().join("f"), b"content").unwrap();
    std::os::unix::fs::symlink("../f", top.path().join("d/link")).unwrap();
    let storage = LocalStorage::open_root(top.path(), Arc::default()).unwrap();
    let is_done = AtomicBool::new(false);
    let begin = std::time::Instant::now();
    let failed = std::thread::scope(|scope| {
        for number in 0..3 {
            let (from, to) = (format!("{number}"), format!("{number}.new"));
            let names = [from, to].map(|name| elsewhere.path().join(name));
            std::fs::write(&names[0], b"").unwrap();
            let is_done = &is_done;
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    std::fs::rename(&names[0], &names[1]).unwrap();
                    std::fs::rename(&names[1], &names[0]).unwrap();
                }
            });
        }
        let mut failed = Vec::new();
        while begin.elapsed() < Duration::from_secs(1) {
            failed.extend(storage.open(Path::new("d/link")).err());
        }
        is_done.store(true, Ordering::Relaxed);
        failed
    });
    assert!(failed.is_empty(), "{} errors, {:?}", failed.len(), failed.first());
}

#[test]
fn only_what_was_just_made_is_given_away() {
    let (directory, storage) = storage();
    let set = SetStat { mode: Some(0o750), ..SetStat::default() };
    let give = |name: &str| storage.give_new(Path::new(name), &set);
    storage.make_directory(Path::new("new"), 0o700).unwrap();
    give("new").unwrap();
    assert_eq!(storage.stat(Path::new("new")).unwrap().mode, 0o750);

    let refused = |name: &str| {
        assert_eq!(give(name).unwrap_err().raw_os_error(), Some(libc::EPERM), "{name}");
    };
    // Something with contents has taken its name.
    storage.make_directory(Path::new("new/below"), 0o700).unwrap();
    refused("new");
    refused("file");
    storage.create(Path::new("empty"), 0o600).unwrap();
    storage.link(Path::new("empty"), Path::new("other name")).unwrap();
    refused("empty");
    // Another user's.
    if rustix::process::geteuid().is_root() {
        storage.make_directory(Path::new("others"), 0o700).unwrap();
        std::os::unix::fs::chown(directory.path().join("source/others"), Some(12345), None)
            .unwrap();
        refused("others");
        // Nothing is given away.
        let set = SetStat { uid: Some(12345), mode: Some(0o750), ..SetStat::default() };
        storage.give_new(Path::new("others"), &set).unwrap();
    }
}
