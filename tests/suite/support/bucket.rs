//! A hierarchy on an object store of the tests, and mounts of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use shardfs::fs::{Fs, FsConfig, View, ViewConfig};
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::remote::{Place, RemoteOptions, RemoteStorage, SourceUrl};
use shardfs::store::storage::Storage;

use crate::power;
use crate::support::foreign::bcolz;
use crate::support::object_server::{BUCKET, Server};
use crate::support::{IndexKind, Model, places};

pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) fn model() -> Model {
    let level = power::level(&[4, 2], IndexKind::Usual, false);
    let chunks = (0..8_u8).flat_map(|i| (0..4_u8).map(move |j| (i, j)));
    let chunks = chunks.filter(|(i, j)| (i * 4 + j) % 5 != 3);
    let chunks = chunks.map(|(i, j)| (vec![i.into(), j.into()], vec![i * 4 + j; 10])).collect();
    Model {
        shape: vec![8, 4],
        chunk: vec![1, 1],
        levels: vec![level],
        keys: ("default", "/"),
        chunks,
    }
}

/// A hierarchy: a group, a sharded array, an array of Zarr v2, a table, and a file beside them.
pub(crate) fn files() -> MemoryStorage {
    let files = MemoryStorage::default();
    let (model, group) = (model(), json!({"zarr_format": 3, "node_type": "group"}));
    files.replace("zarr.json", group.to_string());
    files.replace("sharded/zarr.json", model.metadata().to_string());
    for shard in places(&model.shards()) {
        if let Some(bytes) = model.shard(&shard) {
            files.replace(&format!("sharded/{}", model.key(&shard)), bytes);
        }
    }
    let zarray = json!({"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "C", "filters": null});
    files.replace("v2/.zarray", zarray.to_string());
    files.replace("v2/0", vec![1, 2]);
    bcolz(&files, "table/");
    files.replace("notes.txt", "passed through");
    files.replace("empty", "");
    files
}

/// A server with the files below a key.
pub(crate) fn server(files: &MemoryStorage, below: &str) -> Server {
    let server = Server::start();
    for (path, _, bytes) in files.files() {
        server.put(&format!("{below}{}", path.to_str().unwrap()), bytes);
    }
    server
}

pub(crate) fn url(text: &str) -> SourceUrl {
    match Place::of(Path::new(text)).unwrap() {
        Place::Url(url) => url,
        Place::Path(path) => panic!("a path: {path:?}"),
    }
}

pub(crate) fn options(server: &Server, trusted: Duration) -> RemoteOptions {
    RemoteOptions {
        endpoint: Some(server.url()),
        anonymous: true,
        trusted,
        timeout: Duration::from_secs(60),
        // Requests are counted.
        hedge_after: LONG,
        ..RemoteOptions::default()
    }
}

pub(crate) fn bucket(server: &Server, below: &str, trusted: Duration) -> Arc<dyn Storage> {
    bucket_by("s3", server, below, trusted)
}

/// The same by another protocol.
pub(crate) fn bucket_by(
    scheme: &str,
    server: &Server,
    below: &str,
    trusted: Duration,
) -> Arc<dyn Storage> {
    let url = url(&format!("{scheme}://{BUCKET}/{below}"));
    Arc::new(RemoteStorage::new(&url, &options(server, trusted), Arc::default()).unwrap())
}

pub(crate) fn mount(storage: Arc<dyn Storage>, view: View, trusted: Duration) -> Fs {
    let store = StoreConfig { trusted, ..StoreConfig::default() };
    let view = ViewConfig { view, ..ViewConfig::default() };
    Fs::new(storage, FsConfig { store, view, ..FsConfig::default() }, Arc::default()).unwrap()
}

/// Requests since the last call, as text.
pub(crate) fn asked(server: &Server) -> Vec<String> {
    let asked = server.take_asked().into_iter();
    asked
        .map(|(method, what, range)| format!("{method} {what} {range}").trim().to_owned())
        .collect()
}
