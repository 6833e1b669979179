//! Names on an object store: what is listed, what is there, and what is absent.

#![cfg(feature = "remote")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shardfs::fs::View;
use shardfs::store::remote::{RemoteOptions, RemoteStorage};
use shardfs::store::storage::{FileKind, Storage};

use crate::support::bucket::{LONG, asked, bucket, files, model, mount, options, server, url};
use crate::support::foreign::{ino, read, shown};
use crate::support::object_server::{BUCKET, Fault, Server};

/// Lists a directory as the kernel does, so many names at a time.
fn listed(storage: &dyn Storage, directory: &str, at_a_time: usize) -> Vec<String> {
    let (mut names, mut from) = (Vec::new(), 0);
    loop {
        let (before, start) = (names.len(), from);
        let visit = &mut |item: shardfs::store::storage::DirItem<'_>| {
            if names.len() - before == at_a_time {
                return ControlFlow::Break(());
            }
            names.push(item.name.to_str().unwrap().to_owned());
            from = item.next;
            ControlFlow::Continue(())
        };
        storage.list(Path::new(directory), start, visit).unwrap();
        if names.len() == before {
            return names;
        }
    }
}

/// Number of listings since the last call.
fn listings(server: &Server) -> usize {
    server.take_asked().iter().filter(|(_, what, _)| what.starts_with('?')).count()
}

#[test]
fn names_on_many_pages_are_all_listed() {
    let files = Arc::new(files());
    let server = server(&files, "");
    let expected = shown(&mount(Arc::clone(&files) as Arc<_>, View::Zarr3, LONG));
    for page in [1, 2, 3] {
        server.set_page(page);
        let found = shown(&mount(bucket(&server, "", LONG), View::Zarr3, LONG));
        assert_eq!(found, expected, "{page} names on a page");
    }
}

#[test]
fn a_directory_hides_an_object_of_its_name() {
    let server = Server::start();
    server.put("a", "an object");
    server.put("a/b", "below it");
    // As consoles make a directory.
    server.put("c/", "");
    let storage = bucket(&server, "", LONG);
    let mut names = Vec::new();
    storage
        .list(Path::new(""), 0, &mut |item| {
            names.push((item.name.to_str().unwrap().to_owned(), item.kind.unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap();
    use shardfs::store::storage::FileKind::Directory;
    assert_eq!(names, [("a".to_owned(), Directory), ("c".to_owned(), Directory)]);
    assert_eq!(storage.stat(Path::new("a")).unwrap().kind, Directory);
}

#[test]
fn a_directory_that_only_an_empty_object_stands_for_is_empty() {
    let server = Server::start();
    server.put("a", "an object");
    server.put("c/", "");
    for (page, trusted) in [(1000, LONG), (1, LONG), (1000, Duration::ZERO)] {
        server.set_page(page);
        let storage = bucket(&server, "", trusted);
        assert_eq!(listed(&*storage, "", 10), ["a", "c"]);
        assert_eq!(listed(&*storage, "c", 10), [""; 0]);
        assert_eq!(storage.stat(Path::new("c")).unwrap().kind, FileKind::Directory);
        let nothing = &mut |_: shardfs::store::storage::DirItem<'_>| ControlFlow::Continue(());
        let absent = storage.list(Path::new("d"), 0, nothing).unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(libc::ENOENT));
    }
}

#[test]
fn an_absent_shard_is_absent_by_one_answer() {
    let server = server(&files(), "");
    server.remove("sharded/c/1/1");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    ino(&fs, "sharded/zarr.json");
    asked(&server);
    let directory = ino(&fs, "sharded/c/5");
    asked(&server);
    for name in ["2", "3", "2"] {
        assert!(fs.lookup(directory, name.as_ref()).unwrap().is_none());
    }
    let found = asked(&server);
    assert!(found.len() <= 1, "{found:?}");
}

#[test]
fn access_that_is_refused_is_no_absence() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let above = ino(&fs, "sharded/c/0");
    server.fail(|asked| asked.1.contains("c/0/0").then_some(Fault::Status(403, None)));
    let refused = fs.lookup(above, "0".as_ref()).map(|entry| entry.is_some());
    // It is there, and damaged: its chunks cannot be read.
    assert!(matches!(refused, Ok(true) | Err(_)), "{refused:?}");
}

#[test]
fn what_may_not_be_read_is_absent_if_the_user_says_so_but_not_what_credentials_are_too_old_for() {
    let server = server(&files(), "");
    server.remove("sharded/c/0/0");
    let url = url(&format!("s3://{BUCKET}"));
    let options = RemoteOptions { forbidden_is_absent: true, ..options(&server, Duration::ZERO) };
    let storage = Arc::new(RemoteStorage::new(&url, &options, Arc::default()).unwrap());
    let fs = mount(storage, View::Zarr3, Duration::ZERO);
    let above = ino(&fs, "sharded/c/0");
    let refuse = |code| {
        server.fail(move |asked| asked.1.contains("c/0/0").then_some(Fault::Refused(code)));
    };
    refuse("AccessDenied");
    assert!(fs.lookup(above, "0".as_ref()).unwrap().is_none());
    for code in ["ExpiredToken", "InvalidAccessKeyId", "RequestTimeTooSkewed"] {
        refuse(code);
        let found = fs.lookup(above, "0".as_ref()).map(|entry| entry.is_some());
        assert!(matches!(found, Ok(true) | Err(_)), "{code}: {found:?}");
    }
}

#[test]
fn a_web_server_shows_an_array_without_listing_it() {
    let files = files();
    let server = Server::start();
    for (path, _, bytes) in files.files() {
        server.put(&format!("data/{}", path.to_str().unwrap()), bytes);
    }
    let url = url(&format!("{}/data/sharded", server.url()));
    let options = RemoteOptions { trusted: LONG, ..RemoteOptions::default() };
    let storage = Arc::new(RemoteStorage::new(&url, &options, Arc::default()).unwrap());
    let fs = mount(storage, View::Zarr3, LONG);
    let model = model();
    let found: BTreeMap<_, _> =
        shown(&fs).into_iter().filter(|(name, _)| name.starts_with("c/")).collect();
    let expected = model
        .chunks
        .iter()
        .map(|(coords, bytes)| (format!("c/{}/{}", coords[0], coords[1]), Ok(bytes.clone())));
    assert_eq!(found, expected.collect());
}

#[test]
fn names_are_found_where_pages_split_them_in_the_order_of_keys() {
    let server = Server::start();
    // "s1/" comes after "s1-j/", and "s1" before "s1-a".
    let names = ["s0", "s1", "s1-a", "s1-b", "s1-c", "s1-j", "s1!", "s2", "s3", "t"];
    for name in names {
        server.put(&format!("{name}/zarr.json"), "{}");
    }
    server.put("s1", "an object that its directory hides");
    for page in [1, 2, 3, 4, 5] {
        server.set_page(page);
        let storage = bucket(&server, "", LONG);
        let found: BTreeSet<String> = listed(&*storage, "", usize::MAX).into_iter().collect();
        assert_eq!(found, names.map(str::to_owned).into(), "{page} names on a page");
        for name in names {
            let document = format!("{name}/zarr.json");
            assert_eq!(storage.stat(Path::new(name)).unwrap().kind, FileKind::Directory, "{name}");
            assert_eq!(storage.stat(Path::new(&document)).unwrap().size, 2, "{name}");
        }
    }
}

#[test]
fn a_listing_that_is_read_piece_by_piece_asks_for_each_page_once() {
    let server = Server::start();
    for number in 0..95 {
        server.put(&format!("d/{number:02}"), "x");
    }
    server.set_page(10);
    let storage = bucket(&server, "", LONG);
    assert_eq!(listed(&*storage, "d", 7).len(), 95);
    // One finds out that there is more than a page below.
    assert_eq!(listings(&server), 11);
    assert_eq!(listed(&*storage, "d", 7).len(), 95);
    assert_eq!(listings(&server), 0);
}

#[test]
fn a_listing_too_long_to_be_kept_asks_for_each_page_once_as_well() {
    let server = Server::start();
    for number in 0..21_500 {
        server.put(&format!("d/{number:05}"), "");
    }
    let storage = bucket(&server, "", LONG);
    let names = listed(&*storage, "d", 300);
    assert_eq!((names.len(), names.is_sorted()), (21_500, true));
    // 22 pages, after as many have shown that they are too many.
    assert!(listings(&server) <= 46);
    assert_eq!(listed(&*storage, "d", 300).len(), 21_500);
    assert!(listings(&server) <= 23);
}

#[test]
fn a_reader_of_a_listing_misses_nothing_if_it_expires_and_others_list_anew_meanwhile() {
    let server = Server::start();
    for number in 0..50 {
        server.put(&format!("d/{number:02}"), "x");
    }
    let storage = bucket(&server, "", Duration::ZERO);
    let (mut names, mut from) = (BTreeSet::new(), 0);
    let mut some = |from: &mut u64| {
        let (mut left, start) = (10, *from);
        let visit = &mut |item: shardfs::store::storage::DirItem<'_>| {
            left -= 1;
            names.insert(item.name.to_str().unwrap().to_owned());
            *from = item.next;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        storage.list(Path::new("d"), start, visit).unwrap();
        left < 10
    };
    assert!(some(&mut from));
    server.remove("d/03");
    while some(&mut from) {
        // Another one begins anew, and sees what is there now.
        assert_eq!(listed(&*storage, "d", 10).len(), 49);
    }
    assert_eq!(names.len(), 50);
}

#[test]
fn a_listing_without_an_end_is_an_error() {
    let server = Server::start();
    server.put("d/x", "y");
    server.fail(|asked| asked.1.starts_with('?').then_some(Fault::EmptyPage));
    let storage = bucket(&server, "", LONG);
    let visit = &mut |_: shardfs::store::storage::DirItem<'_>| ControlFlow::Continue(());
    let error = storage.list(Path::new("d"), 0, visit).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(listings(&server) <= 110);
}

#[test]
fn a_key_that_no_path_can_have_hides_nothing_elsewhere() {
    let server = server(&files(), "");
    server.put("x//y", "nothing can be called so");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    assert_eq!(read(&fs, ino(&fs, "sharded/c/0/0")).unwrap(), [0; 10]);
    assert_eq!(read(&fs, ino(&fs, "notes.txt")).unwrap(), *b"passed through");
}

#[test]
fn what_a_listing_has_is_not_absent_because_something_answers_404() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let above = ino(&fs, "sharded/c/0");
    // As a proxy does whose server is being restarted.
    server.fail(|asked| {
        (asked.1 == "sharded/c/0/0" && asked.0 == "GET").then_some(Fault::Status(404, None))
    });
    let found = fs.lookup(above, "0".as_ref()).map(|entry| entry.is_some());
    assert!(matches!(found, Ok(true) | Err(_)), "{found:?}");
    server.behave();
    server.remove("sharded/c/0/0");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    assert!(fs.lookup(ino(&fs, "sharded/c/0"), "0".as_ref()).unwrap().is_none());
}

#[test]
fn what_was_there_is_not_absent_because_something_answers_404_once_no_listing_is_believed() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", Duration::ZERO), View::Zarr3, Duration::ZERO);
    let above = ino(&fs, "sharded/c/0");
    assert!(fs.lookup(above, "0".as_ref()).unwrap().is_some());
    for methods in [["GET", "HEAD"], ["HEAD", "HEAD"], ["GET", "GET"]] {
        server.fail(move |asked| {
            let is_it = asked.1 == "sharded/c/0/0" && methods.contains(&asked.0.as_str());
            is_it.then_some(Fault::Status(404, None))
        });
        let found = fs.lookup(above, "0".as_ref()).map(|entry| entry.is_some());
        assert!(matches!(found, Ok(true) | Err(_)), "{methods:?}: {found:?}");
    }
    server.behave();
    assert!(fs.lookup(above, "0".as_ref()).unwrap().is_some());
    server.remove("sharded/c/0/0");
    assert!(fs.lookup(above, "0".as_ref()).unwrap().is_none());
}

#[test]
fn a_chunk_whose_bytes_are_gone_is_an_error_and_not_absent() {
    let server = server(&files(), "");
    for trusted in [LONG, Duration::MAX] {
        let fs = mount(bucket(&server, "", trusted), View::Zarr3, trusted);
        let chunk = ino(&fs, "sharded/c/0/0");
        server.fail(|asked| {
            let is_data = asked.0 == "GET" && !asked.2.starts_with("bytes=-");
            (is_data && asked.1.contains("c/0/0")).then_some(Fault::Status(404, None))
        });
        let found = read(&fs, chunk);
        assert!(found.is_err() && found != Err(libc::ENOENT), "{found:?}");
        server.behave();
    }
}

#[test]
fn a_web_server_that_wants_a_login_or_another_method_has_nothing_absent() {
    let files = files();
    let server = Server::start();
    for (path, _, bytes) in files.files() {
        server.put(&format!("data/{}", path.to_str().unwrap()), bytes);
    }
    let url = url(&format!("{}/data/sharded", server.url()));
    let options = RemoteOptions {
        trusted: Duration::ZERO,
        forbidden_is_absent: true,
        timeout: Duration::from_secs(5),
        ..RemoteOptions::default()
    };
    let storage = Arc::new(RemoteStorage::new(&url, &options, Arc::default()).unwrap());
    let fs = mount(storage, View::Zarr3, Duration::ZERO);
    let above = ino(&fs, "c/0");
    for (status, is_absence) in [(401, false), (405, false), (403, true)] {
        server.fail(move |asked| asked.1.ends_with("c/0/0").then_some(Fault::Status(status, None)));
        let found = fs.lookup(above, "0".as_ref()).map(|entry| entry.is_some());
        assert_eq!(matches!(found, Ok(false)), is_absence, "{status}: {found:?}");
    }
}
