//! Sources on an object store: what they show, what they ask for, and what they do when the store
//! misbehaves.

#![cfg(feature = "remote")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shardfs::fs::{Fs, FsError, Listing, View};
use shardfs::source::{OpenConfig, Source};
use shardfs::stats::Stats;
use shardfs::store::remote::{RemoteOptions, RemoteStorage};
use shardfs::store::storage::Storage;
use shardfs::tools::verify::{Step, VerifyConfig, verify};

use crate::support::bucket::{LONG, asked, bucket, files, model, mount, options, server, url};
use crate::support::foreign::{ino, read, shown};
use crate::support::object_server::{Asked, BUCKET, Fault, Server};
use crate::support::{Model, places};

#[test]
fn a_bucket_is_shown_in_every_view_as_the_same_files_are() {
    let files = Arc::new(files());
    for below in ["", "a/deep prefix+%41/"] {
        let server = server(&files, below);
        for view in [View::Zarr3, View::Zarr2, View::Npy, View::Raw, View::Flat] {
            let expected = shown(&mount(Arc::clone(&files) as Arc<_>, view, LONG));
            assert!(expected.len() > 2, "{view:?}: {expected:?}");
            let below = below.replace('%', "%25").replace(' ', "%20");
            let found = shown(&mount(bucket(&server, &below, LONG), view, LONG));
            assert_eq!(found, expected, "{view:?} below {below:?}");
        }
    }
}

#[test]
fn a_chunk_takes_one_request_and_the_others_of_its_shard_none() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let mounting = asked(&server);
    assert!(mounting.len() <= 3, "{mounting:?}");
    // The node of the array.
    ino(&fs, "sharded/zarr.json");
    asked(&server);
    let chunk = ino(&fs, "sharded/c/0/0");
    // One listing has told all that is below the array.
    assert_eq!(asked(&server), ["GET sharded/c/0/0 bytes=-132"]);
    for name in ["sharded/c/0/1", "sharded/c/1/0", "sharded/c/2/1"] {
        ino(&fs, name);
    }
    assert_eq!(asked(&server), [""; 0]);
    assert_eq!(read(&fs, chunk).unwrap(), [0; 10]);
    assert_eq!(asked(&server), ["GET sharded/c/0/0 bytes=1-10"]);
    ino(&fs, "sharded/c/4/0");
    assert_eq!(asked(&server), ["GET sharded/c/1/0 bytes=-132"]);
}

#[test]
fn a_listing_of_directories_asks_for_one_index_each_of_those_above_shards() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let directory = ino(&fs, "sharded/c");
    asked(&server);
    let mut names = Vec::new();
    let list = &mut |entry: &shardfs::fs::DirEntry<'_>| {
        names.push(entry.name.to_owned());
        std::ops::ControlFlow::Continue(())
    };
    fs.readdir((directory, None), 0, Listing::Names, list).unwrap();
    assert!(names.len() >= 8, "{names:?}");
    // Of the two rows of shards; there are four.
    let mut found = asked(&server);
    found.sort();
    found.dedup();
    assert_eq!(found, ["GET sharded/c/0/0 bytes=-132", "GET sharded/c/1/0 bytes=-132"]);
}

/// Bytes that requests have asked for in shards, and their number.
fn data_asked(server: &Server) -> (u64, usize) {
    let asked = server.take_asked();
    let ranges = asked.iter().filter(|(_, what, _)| what.contains("sharded/c/"));
    let nbytes = ranges.filter_map(|(_, _, range)| {
        let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some(to.parse::<u64>().ok()? + 1 - from.parse::<u64>().ok()?)
    });
    let nbytes: Vec<u64> = nbytes.collect();
    (nbytes.iter().sum(), nbytes.len())
}

#[test]
fn chunks_read_in_order_come_together_and_others_alone() {
    let model = model();
    let in_order: Vec<_> =
        places(&[8, 4]).into_iter().filter(|at| model.chunks.contains_key(at)).collect();
    let read_all = |chunks: &[Vec<u64>]| {
        let server = server(&files(), "");
        let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
        for at in chunks {
            let found = read(&fs, ino(&fs, &format!("sharded/c/{}/{}", at[0], at[1]))).unwrap();
            assert_eq!(found, model.chunks[at], "{at:?}");
        }
        // Requests that no thread waits for may still arrive.
        std::thread::sleep(Duration::from_millis(100));
        data_asked(&server)
    };
    let (nbytes, requests) = read_all(&in_order);
    assert!(requests < in_order.len() / 2, "{requests} requests for {} chunks", in_order.len());
    let shards: usize = places(&[2, 2]).iter().map(|at| model.shard(at).unwrap().len()).sum();
    assert!(nbytes <= shards as u64, "{nbytes} bytes of {shards}");
    // Whoever jumps about gets what it asks for, byte for byte.
    let jumping: Vec<_> = in_order.iter().rev().step_by(2).cloned().collect();
    let (nbytes, requests) = read_all(&jumping);
    let wanted: usize = jumping.iter().map(|at| model.chunks[at].len()).sum();
    assert_eq!((nbytes, requests), (wanted as u64, jumping.len()));
}

#[test]
fn a_replaced_shard_is_never_mixed_with_what_it_was() {
    let server = server(&files(), "");
    // Found, and believed for long.
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let chunk = ino(&fs, "sharded/c/0/0");
    let handle = fs.open(chunk).unwrap().handle;
    let mut other = model();
    other.chunks.insert(vec![0, 0], vec![77; 10]);
    other.chunks.remove(&vec![0, 1]);
    server.put("sharded/c/0/0", other.shard(&[0, 0]).unwrap());
    // Nothing of the old version was read: the new one is as good.
    let mut bytes = [9; 10];
    assert_eq!(fs.read(chunk, Some(handle), 0, &mut bytes).unwrap(), 10);
    assert_eq!(bytes, [77; 10]);
    fs.release(handle);
    assert_eq!(read(&fs, ino(&fs, "sharded/c/0/0")).unwrap(), [77; 10]);
}

#[test]
fn what_has_changed_is_seen_after_the_time_of_trust() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", Duration::ZERO), View::Zarr3, Duration::ZERO);
    let chunk = ino(&fs, "sharded/c/0/0");
    assert_eq!(read(&fs, chunk).unwrap(), [0; 10]);
    asked(&server);
    // Unchanged: a question without an answer's body.
    ino(&fs, "sharded/c/0/0");
    let found = asked(&server);
    assert!(found.iter().any(|it| it == "HEAD sharded/c/0/0"), "{found:?}");
    let mut other = model();
    other.chunks.insert(vec![0, 0], vec![77; 12]);
    server.put("sharded/c/0/0", other.shard(&[0, 0]).unwrap());
    assert_eq!(read(&fs, ino(&fs, "sharded/c/0/0")).unwrap(), [77; 12]);
    server.remove("sharded/c/0/0");
    assert!(fs.lookup(ino(&fs, "sharded/c/0"), "0".as_ref()).unwrap().is_none());
}

/// Returns the contents of all chunks, or the errno of those that could not be read.
fn chunks(fs: &Fs) -> BTreeMap<Vec<u64>, Result<Option<Vec<u8>>, i32>> {
    let mut found = BTreeMap::new();
    for coords in places(&[8, 4]) {
        let name = format!("{}", coords[1]);
        let looked =
            fs.lookup(ino(fs, &format!("sharded/c/{}", coords[0])), name.as_ref()).and_then(
                |entry| entry.map(|entry| read(fs, entry.attr.ino).map_err(Errno)).transpose_io(),
            );
        found.insert(coords, looked.map_err(|error| error.errno()));
    }
    found
}

/// Error of reading, as the helper returns it.
struct Errno(i32);

trait TransposeIo<T> {
    fn transpose_io(self) -> Result<Option<T>, FsError>;
}

impl<T> TransposeIo<T> for Option<Result<T, Errno>> {
    fn transpose_io(self) -> Result<Option<T>, FsError> {
        match self {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(Errno(errno))) => Err(std::io::Error::from_raw_os_error(errno).into()),
        }
    }
}

#[test]
fn answers_that_are_lost_or_wrong_are_errors_or_repeated_and_never_absence() {
    let files = Arc::new(files());
    let model = model();
    let expected = |coords: &Vec<u64>| model.chunks.get(coords).cloned();
    let (mut errors, faults) = (0, Arc::new(AtomicU64::new(0)));
    let seeds = std::env::var("REMOTE_SEEDS").map_or(16, |number| number.parse().unwrap());
    for seed in 0..seeds {
        let server = server(&files, "");
        let url = url(&format!("s3://{BUCKET}"));
        let options = options(&server, Duration::ZERO);
        let storage = Arc::new(RemoteStorage::new(&url, &options, Arc::default()).unwrap());
        let fs = mount(storage, View::Zarr3, Duration::ZERO);
        for row in 0..8 {
            ino(&fs, &format!("sharded/c/{row}"));
        }
        let mut random = u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15) | 1;
        let injected = Arc::clone(&faults);
        server.fail(move |asked: &Asked| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if !asked.1.contains("sharded/c/") || random % 3 > 0 {
                return None;
            }
            injected.fetch_add(1, Ordering::Relaxed);
            Some(match random >> 20 & 7 {
                0 => Fault::Status(500, None),
                1 => Fault::Status(503, Some(0)),
                2 => Fault::NoAnswer,
                3 => Fault::CutOff(5),
                4 => Fault::Late(Duration::from_millis(20)),
                5 => Fault::WholeObject,
                6 => Fault::OtherRange,
                _ => Fault::NoConditions,
            })
        });
        for (coords, found) in chunks(&fs) {
            match found {
                Ok(found) => assert_eq!(found, expected(&coords), "{coords:?}, seed {seed}"),
                Err(errno) => {
                    errors += 1;
                    assert!([libc::EIO, libc::ETIMEDOUT].contains(&errno), "{coords:?}: {errno}");
                }
            }
        }
        server.behave();
        for (coords, found) in chunks(&fs) {
            assert_eq!(found, Ok(expected(&coords)), "{coords:?} afterwards, seed {seed}");
        }
    }
    let faults = faults.load(Ordering::Relaxed);
    println!("{faults} faults, {errors} chunks that could not be read, none wrong or absent");
    assert!(errors > 0);
}

#[test]
fn an_answer_that_comes_slowly_is_waited_for_as_long_as_it_comes() {
    let server = server(&files(), "");
    // Each part within the time, all of them not. On a busy machine parts are late: then with more time, and with more
    // bytes, which give a request more time.
    let found = [(600, 60), (2400, 240), (9600, 960)].into_iter().map(|(timeout, kibibytes)| {
        let (timeout, content) = (Duration::from_millis(timeout), vec![7; kibibytes << 10]);
        server.put("large", content.clone());
        let options = RemoteOptions { timeout, ..options(&server, LONG) };
        let storage = RemoteStorage::new(&url(&format!("s3://{BUCKET}")), &options, Arc::default());
        let fs = mount(Arc::new(storage.unwrap()), View::Zarr3, LONG);
        server.behave();
        let large = ino(&fs, "large");
        server.fail(move |asked: &Asked| {
            asked.1.ends_with("large").then_some(Fault::Slow(timeout / 4))
        });
        let begun = Instant::now();
        let found = read(&fs, large);
        (found == Ok(content), begun.elapsed() > timeout)
    });
    assert!(found.into_iter().any(|found| found == (true, true)));
}

/// Timeout that passes while a test waits for it, and not on the way there, be the machine ever so busy.
const SHORT: Duration = Duration::from_secs(5);

/// Time after which a request is waited for as long as any, although one had no answer in time.
const REPEATED: Duration = Duration::from_secs(1);

/// What has come already gives the rest no more time than an answer that does not begin.
#[test]
fn an_answer_that_stops_in_the_middle_is_an_error_in_time() {
    let files = files();
    files.replace("large", vec![7; 1 << 20]);
    let took = || {
        let server = server(&files, "");
        let options = RemoteOptions { timeout: SHORT, ..options(&server, LONG) };
        let storage = RemoteStorage::new(&url(&format!("s3://{BUCKET}")), &options, Arc::default());
        let fs = mount(Arc::new(storage.unwrap()), View::Zarr3, LONG);
        let large = ino(&fs, "large");
        let mut is_first = true;
        server.fail(move |asked: &Asked| {
            let fault = if is_first { Fault::CutOff(120 << 10) } else { Fault::Silence };
            let is_large = asked.1.ends_with("large");
            is_first &= !is_large;
            is_large.then_some(fault)
        });
        let asked = Instant::now();
        let found = read(&fs, large).map(|bytes| bytes.len());
        assert!(matches!(found, Err(libc::EIO | libc::ETIMEDOUT)), "{found:?}");
        asked.elapsed()
    };
    // At the slowest rate, 120 KiB take 7.5 s. On a busy machine the answers are late.
    assert!((0..5).any(|_| took() < SHORT + Duration::from_secs(5)));
}

#[test]
fn a_listing_ends_with_the_first_answer_that_does_not_come() {
    let server = server(&files(), "");
    let options = RemoteOptions { timeout: SHORT, ..options(&server, LONG) };
    let storage = RemoteStorage::new(&url(&format!("s3://{BUCKET}")), &options, Arc::default());
    let fs = mount(Arc::new(storage.unwrap()), View::Zarr3, LONG);
    let row = ino(&fs, "sharded/c/0");
    server.fail(|asked: &Asked| asked.1.contains("sharded/c/").then_some(Fault::Silence));
    let list = || {
        let (mut names, mut position) = (0, 0);
        loop {
            let before = names;
            let listed = fs.readdir((row, None), position, Listing::Names, &mut |entry| {
                (names, position) = (names + 1, entry.next);
                std::ops::ControlFlow::Continue(())
            });
            listed.map_err(|error| error.errno())?;
            if names == before {
                return Ok(names);
            }
        }
    };
    assert_eq!(list(), Err(libc::ETIMEDOUT));
    server.behave();
    std::thread::sleep(REPEATED);
    assert!(list().unwrap() > 2);
}

/// A document in which no name is found says of all objects that they are absent.
#[test]
fn what_is_no_listing_or_not_all_of_one_is_an_error_and_not_absence() {
    for text in [
        "<Error><Code>InternalError</Code><Message>Again</Message></Error>",
        "<html><body>a page</body></html>",
        "<ListAllMyBucketsResult></ListAllMyBucketsResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>1</Size>",
        "",
    ] {
        let server = server(&files(), "");
        let fs = mount(bucket(&server, "", Duration::ZERO), View::Zarr3, Duration::ZERO);
        let sharded = ino(&fs, "sharded");
        server.fail(move |_| Some(Fault::NoListing(text)));
        let found = fs.lookup(sharded, std::ffi::OsStr::new("c"));
        assert_eq!(found.map(|_| ()).map_err(|error| error.errno()), Err(libc::EIO), "{text}");
        server.behave();
        assert!(fs.lookup(sharded, std::ffi::OsStr::new("c")).unwrap().is_some());
    }
}

#[test]
fn a_store_that_is_silent_is_an_error_after_the_timeout_and_recovers() {
    let server = server(&files(), "");
    let url = url(&format!("s3://{BUCKET}"));
    let options = RemoteOptions { timeout: SHORT, ..options(&server, LONG) };
    let storage = Arc::new(RemoteStorage::new(&url, &options, Arc::default()).unwrap());
    let fs = mount(storage, View::Zarr3, LONG);
    let chunk = ino(&fs, "sharded/c/0/0");
    server.fail(|_| Some(Fault::Silence));
    let begun = Instant::now();
    assert_eq!(read(&fs, chunk), Err(libc::ETIMEDOUT));
    assert!(begun.elapsed() < Duration::from_secs(30));
    server.behave();
    std::thread::sleep(REPEATED);
    assert_eq!(read(&fs, chunk).unwrap(), [0; 10]);
}

#[test]
fn what_is_repeated_at_once_is_not_waited_for_as_long_again() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let server = server(&files(), "");
    let url = url(&format!("s3://{BUCKET}"));
    let options = RemoteOptions { timeout: TIMEOUT, ..options(&server, Duration::ZERO) };
    let storage = RemoteStorage::new(&url, &options, Arc::default()).unwrap();
    server.fail(|_| Some(Fault::Silence));
    let wait = || {
        let begun = Instant::now();
        let error = storage.stat(Path::new("zarr.json")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
        begun.elapsed()
    };
    assert!(wait() >= TIMEOUT);
    // Where it is not at once, on a busy machine, it is waited for as long again.
    assert!((0..5).any(|_| wait() < TIMEOUT));
    // Others have all of the time again.
    std::thread::sleep(REPEATED);
    assert!(wait() >= TIMEOUT);
    server.behave();
    std::thread::sleep(REPEATED);
    assert!(storage.stat(Path::new("zarr.json")).is_ok());
}

#[test]
fn a_store_that_cannot_be_reached_is_an_error_that_says_why() {
    // A port that nothing listens on, and that no server of another test is given.
    let endpoint = Some("http://127.0.0.1:1".to_owned());
    let options =
        RemoteOptions { endpoint, anonymous: true, timeout: SHORT, ..RemoteOptions::default() };
    let url = url(&format!("s3://{BUCKET}"));
    let storage = RemoteStorage::new(&url, &options, Arc::default()).unwrap();
    assert_eq!(storage.failure(), None);
    let error = storage.stat(Path::new("zarr.json")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
    let why = storage.failure().unwrap();
    assert!(why.contains("no answer in time (5 s)") && why.contains("refused"), "{why}");
}

#[test]
fn a_server_without_ranges_is_an_error() {
    let server = server(&files(), "");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let chunk = ino(&fs, "sharded/c/0/0");
    server.fail(|_| Some(Fault::WholeObject));
    assert_eq!(read(&fs, chunk), Err(libc::EIO));
}

/// A mount that asks once more for what is late, and its counters.
fn counted(server: &Server) -> (Fs, Arc<Stats>) {
    let (url, stats) = (url(&format!("s3://{BUCKET}")), Arc::new(Stats::default()));
    let hedge_after = RemoteOptions::default().hedge_after;
    let options = RemoteOptions { hedge_after, ..options(server, LONG) };
    let storage = RemoteStorage::new(&url, &options, Arc::clone(&stats)).unwrap();
    (mount(Arc::new(storage), View::Zarr3, LONG), stats)
}

#[test]
fn an_answer_that_is_late_is_asked_for_on_another_connection() {
    let server = server(&files(), "");
    let (fs, stats) = counted(&server);
    let chunk = ino(&fs, "sharded/c/0/0");
    let mut asked = 0;
    server.fail(move |_| {
        asked += 1;
        (asked == 1).then_some(Fault::Late(Duration::from_secs(60)))
    });
    let begun = Instant::now();
    assert_eq!(read(&fs, chunk).unwrap(), [0; 10]);
    assert!(begun.elapsed() < Duration::from_secs(50));
    // What else is late on a busy machine is asked for twice as well.
    assert!(stats.remote.sent_twice.get() > 0);
    assert_eq!(stats.remote.failed.get(), 0);
}

#[test]
fn a_store_that_refuses_requests_is_not_asked_twice() {
    let counts = || {
        let server = server(&files(), "");
        let (fs, stats) = counted(&server);
        let chunk = ino(&fs, "sharded/c/0/0");
        let (mut asked, before) = (0, stats.remote.sent_twice.get());
        server.fail(move |_| {
            asked += 1;
            (asked == 1).then_some(Fault::Status(503, Some(2)))
        });
        assert_eq!(read(&fs, chunk).unwrap(), [0; 10]);
        (stats.remote.sent_twice.get() - before, stats.remote.throttled.get())
    };
    // On a busy machine the refusal may come late.
    assert!((0..5).any(|_| counts() == (0, 1)));
}

#[test]
fn tags_are_the_same_with_and_without_quotation_marks() {
    let server = server(&files(), "");
    server.list_bare_tags();
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    // Its version comes from a listing, its bytes from an answer.
    assert_eq!(read(&fs, ino(&fs, "notes.txt")).unwrap(), *b"passed through");
    assert_eq!(read(&fs, ino(&fs, "sharded/c/0/0")).unwrap(), [0; 10]);
}

#[test]
fn a_shard_of_no_bytes_is_damaged_and_not_absent() {
    let server = server(&files(), "");
    server.put("sharded/c/0/0", "");
    server.put("sharded/c/0/1", "short");
    let fs = mount(bucket(&server, "", LONG), View::Zarr3, LONG);
    let found = chunks(&fs);
    assert_eq!(found[&vec![0, 0]], Err(libc::EIO));
    assert_eq!(found[&vec![0, 2]], Err(libc::EIO));
    assert_eq!(found[&vec![4, 0]], Ok(Some(vec![16; 10])));
}

/// Reads every chunk on a new mount with a cache on disk; returns how many GETs of shards that takes.
fn gets_with_cache(server: &Server, directory: &Path, expected: &Model) -> usize {
    let url = url(&format!("s3://{BUCKET}"));
    let cache_dir = Some(directory.to_owned());
    let options = RemoteOptions { cache_dir, ..options(server, LONG) };
    let storage = Arc::new(RemoteStorage::new(&url, &options, Arc::default()).unwrap());
    let fs = mount(storage, View::Zarr3, LONG);
    asked(server);
    for (coords, found) in chunks(&fs) {
        assert_eq!(found, Ok(expected.chunks.get(&coords).cloned()), "{coords:?}");
    }
    // What was fetched is written some time later.
    std::thread::sleep(Duration::from_millis(500));
    asked(server).iter().filter(|it| it.starts_with("GET sharded/c/")).count()
}

#[test]
fn what_is_in_the_cache_on_disk_is_not_fetched_again_until_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let (server, mut model) = (server(&files(), ""), model());
    // What was not written before a mount ended is fetched once more.
    let is_kept =
        |model: &Model| (0..20).any(|_| gets_with_cache(&server, directory.path(), model) == 0);
    assert!(gets_with_cache(&server, directory.path(), &model) >= 8);
    assert!(is_kept(&model));
    // The index and the chunks of one of four shards.
    model.chunks.insert(vec![0, 0], vec![77; 12]);
    server.put("sharded/c/0/0", model.shard(&[0, 0]).unwrap());
    let again = gets_with_cache(&server, directory.path(), &model);
    assert!((2..8).contains(&again), "{again}");
    assert!(is_kept(&model));
    // What is damaged is fetched again.
    for object in std::fs::read_dir(directory.path().join("shardfs-parts")).unwrap() {
        for part in std::fs::read_dir(object.unwrap().path()).unwrap() {
            let path = part.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(path, bytes).unwrap();
        }
    }
    assert!(gets_with_cache(&server, directory.path(), &model) >= 8);
    assert!(is_kept(&model));
}

#[test]
fn stores_with_buckets_of_one_name_share_nothing_in_a_cache() {
    let directory = tempfile::tempdir().unwrap();
    let (one, model) = (server(&files(), ""), model());
    assert!(gets_with_cache(&one, directory.path(), &model) >= 8);
    // The same keys, tags and lengths, and perhaps other bytes.
    let other = server(&files(), "");
    assert!(gets_with_cache(&other, directory.path(), &model) >= 8);
}

#[test]
fn commands_read_buckets() {
    let server = server(&files(), "x/");
    let name = format!("s3://{BUCKET}/x");
    let open = || {
        let (config, options) = (OpenConfig::default(), options(&server, LONG));
        Source::open_place(Path::new(&name), config, &options)
    };
    let source = open().unwrap();
    let counts = verify(&source, VerifyConfig::default(), |_| Ok::<(), ()>(())).unwrap();
    assert_eq!((counts.defects, counts.chunks > 20), (0, true));
    let mut broken = model().shard(&[1, 0]).unwrap();
    *broken.last_mut().unwrap() ^= 1;
    server.put("x/sharded/c/1/0", broken);
    let mut findings = Vec::new();
    let take = |step: Step| {
        findings.extend(step.findings.iter().map(ToString::to_string));
        Ok::<(), ()>(())
    };
    assert_eq!(verify(&open().unwrap(), VerifyConfig::default(), take).unwrap().defects, 1);
    assert!(findings[0].contains("sharded/c/1/0"), "{findings:?}");
}
