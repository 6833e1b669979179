//! Objects of a store that are an array by themselves: Bloscpack files, given by their URL.

#![cfg(feature = "remote")]

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shardfs::fs::{Fs, FsConfig, View, ViewConfig};
use shardfs::source::{Format, NoObject, ObjectSource, OpenConfig, OpenError, Source, Unsupported};
use shardfs::store::memory::MemoryStorage;
use shardfs::store::remote::{RemoteOptions, RemoteStorage};
use shardfs::store::storage::Storage;
use shardfs::tools::verify::{VerifyConfig, verify};

use crate::support::bucket::{LONG, asked, options, url};
use crate::support::foreign::{Layout, bloscpack, shown};
use crate::support::object_server::{BUCKET, Fault, Server};

const LAYOUT: Layout = Layout { digest: 3, offsets: true, metadata: Some(false), known: true };
const KEY: &str = "deep/er/values.blp";

/// A Bloscpack file, with other objects around it.
fn server() -> Server {
    let server = Server::start();
    server.put(KEY, bloscpack(LAYOUT));
    for other in ["deep/er/values.blp2", "deep/er/other", "deep/journal", "zarr.json"] {
        server.put(other, "not of the source");
    }
    server
}

fn found(
    server: &Server,
    key: &str,
    format: Option<Format>,
) -> Result<Option<ObjectSource>, NoObject> {
    let url = url(&format!("s3://{BUCKET}/{key}"));
    let storage = RemoteStorage::new(&url, &options(server, LONG), Arc::default()).unwrap();
    ObjectSource::find(&storage, &url, format)
}

fn mount(storage: Arc<dyn Storage>, file: OsString, view: View) -> Fs {
    let view = ViewConfig { view, ..ViewConfig::default() };
    let config = FsConfig { view, file: Some(file), ..FsConfig::default() };
    Fs::new(storage, config, Arc::default()).unwrap()
}

#[test]
fn an_object_is_shown_in_every_view_as_the_same_file_is() {
    let (server, files) = (server(), MemoryStorage::default());
    files.replace("values.blp", bloscpack(LAYOUT));
    let files: Arc<dyn Storage> = Arc::new(files);
    for view in [View::Zarr3, View::Zarr2, View::Npy, View::Raw, View::Flat] {
        let expected = shown(&mount(Arc::clone(&files), "values.blp".into(), view));
        assert!(expected.len() > 2, "{view:?}: {expected:?}");
        let ObjectSource { storage, file } = found(&server, KEY, None).unwrap().unwrap();
        assert_eq!(shown(&mount(storage, file, view)), expected, "{view:?}");
    }
    let beside: Vec<_> = asked(&server);
    let is_beside = |asked: &&String| asked.split(' ').nth(1) != Some(KEY);
    // Listings are those of what is below the key.
    let is_listing = |asked: &&String| asked.contains(&format!("{KEY}/"));
    let beside: Vec<_> = beside.iter().filter(is_beside).filter(|it| !is_listing(it)).collect();
    assert!(beside.is_empty(), "{beside:?}");
}

#[test]
fn commands_read_an_object_as_they_read_a_file() {
    let server = server();
    for trusted in [LONG, Duration::ZERO] {
        let options = options(&server, trusted);
        let open = |format| {
            let config = OpenConfig { format, ..OpenConfig::default() };
            Source::open_place(Path::new(&format!("s3://{BUCKET}/{KEY}")), config, &options)
        };
        for format in [None, Some(Format::Bloscpack)] {
            let source = open(format).unwrap();
            assert!(source.is_file());
            let counts = verify(&source, VerifyConfig::default(), |_| Ok::<(), ()>(())).unwrap();
            assert_eq!((counts.defects, counts.chunks), (0, 5));
        }
        let other = open(Some(Format::Blz));
        assert!(matches!(other, Err(OpenError::NoNode(_) | OpenError::Unsupported { .. })));
    }
}

#[test]
fn what_is_no_array_is_named() {
    let server = server();
    server.put("a.zip", "PK\x03\x04....");
    server.put("notes", "some text");
    server.put("empty", "");
    server.put("a.zarr/zarr.json", "{}");
    let what = |key: &str| match found(&server, key, None) {
        Ok(found) => Ok(found.is_some()),
        Err(NoObject::Unsupported(what)) => Err(what),
        Err(NoObject::Io(error)) => panic!("{key}: {error}"),
    };
    assert_eq!(what("a.zip"), Err(Unsupported::Zip));
    assert_eq!(what("notes"), Err(Unsupported::File));
    assert_eq!(what("empty"), Err(Unsupported::File));
    let directory = format!("s3://{BUCKET}/a.zarr").into();
    assert_eq!(what("a.zarr/zarr.json"), Err(Unsupported::Document(directory)));
    assert_eq!(what("nothing"), Ok(false));
    assert_eq!(what(""), Ok(false));
    server.fail(|_| Some(Fault::Refused("AccessDenied")));
    assert!(matches!(found(&server, "notes", None), Err(NoObject::Io(_))));
    server.behave();
    // Its reader says what is wrong with it.
    let named = found(&server, "notes", Some(Format::Bloscpack)).unwrap();
    assert!(named.is_some());
}

#[test]
fn an_object_of_a_web_server_is_an_array_only_if_it_is_one() {
    let server = server();
    server.put("pages", "<html>");
    let found = |key: &str| {
        let url = url(&format!("{}/{BUCKET}/{key}", server.url()));
        let options =
            RemoteOptions { timeout: Duration::from_secs(20), ..RemoteOptions::default() };
        let storage = RemoteStorage::new(&url, &options, Arc::default()).unwrap();
        ObjectSource::find(&storage, &url, None).unwrap().is_some()
    };
    assert!(found(KEY));
    assert!(!found("pages"));
    assert!(!found("nothing"));
}
