//! The filesystem's operations against a trivial model: every array, every change of its shards,
//! every listing, whole or in pieces, and every failing read of the source.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::FileFailurePersistence;
use shardfs::fs::{DirEntry, Fs, FsConfig, Listing};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::MemoryStorage;
use shardfs::store::storage::FileKind;
use shardfs::view::inode::ROOT;

use crate::support;
use crate::support::{IndexKind, Model, models, padded, places};

/// What a walk through a mount finds: bytes of each file, or the errno of what fails.
type Found = BTreeMap<String, Result<Vec<u8>, i32>>;

struct Mount {
    storage: Arc<MemoryStorage>,
    fs: Fs,
}

impl Mount {
    fn new(model: &Model, immutable: bool) -> Self {
        let storage = Arc::new(MemoryStorage::default());
        storage.replace("zarr.json", model.metadata().to_string());
        storage.replace("notes.txt", "passed through");
        for shard in places(&model.shards()) {
            if let Some(bytes) = model.shard(&shard) {
                storage.replace(&model.key(&shard), bytes);
            }
        }
        let store = StoreConfig {
            immutable,
            trusted: Duration::ZERO,
            cache_size: 2000,
            open_files: 2,
            ..StoreConfig::default()
        };
        let config = FsConfig { store, ..FsConfig::default() };
        let fs = Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap();
        Self { storage, fs }
    }

    /// Lists, looks up and reads everything below the root, `page` names at a time.
    fn walk(&self, page: usize, listing: Listing) -> Found {
        let mut found = Found::new();
        self.walk_directory(ROOT, "", page, listing, &mut found);
        found
    }

    fn walk_directory(
        &self,
        ino: u64,
        path: &str,
        page: usize,
        listing: Listing,
        found: &mut Found,
    ) {
        let mut position = 0;
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let mut names = Vec::new();
            let listed = self.fs.readdir((ino, None), position, listing, &mut |entry| {
                if names.len() == page {
                    return ControlFlow::Break(());
                }
                names.push((entry.name.to_owned(), entry.kind, entry.next));
                ControlFlow::Continue(())
            });
            if let Err(error) = listed {
                found.insert(format!("{path}/"), Err(error.errno()));
                return;
            }
            let Some(last) = names.last() else { return };
            position = last.2;
            for (name, kind, _) in names {
                if name == "." || name == ".." {
                    continue;
                }
                let text = name.to_str().unwrap();
                let child =
                    if path.is_empty() { text.to_owned() } else { format!("{path}/{text}") };
                assert!(seen.insert(child.clone()), "{child} is listed twice");
                match self.fs.lookup(ino, &name) {
                    Ok(Some(entry)) if kind == FileKind::Directory => {
                        self.walk_directory(entry.attr.ino, &child, page, listing, found);
                    }
                    Ok(Some(entry)) => {
                        let bytes = self.read(entry.attr.ino);
                        if let Ok(bytes) = &bytes {
                            assert_eq!(bytes.len() as u64, entry.attr.size, "{child}");
                        }
                        found.insert(child, bytes);
                    }
                    // Chunks of a shard that could not be read are listed: they may exist.
                    Ok(None) => assert!(self.storage.has_failed(), "{child} is listed but absent"),
                    Err(error) => drop(found.insert(child, Err(error.errno()))),
                }
            }
        }
    }

    fn read(&self, ino: u64) -> Result<Vec<u8>, i32> {
        let opened = self.fs.open(ino).map_err(|error| error.errno())?;
        let mut bytes = Vec::new();
        loop {
            let mut piece = [0; 7];
            let offset = bytes.len() as u64;
            let read = self.fs.read(ino, Some(opened.handle), offset, &mut piece);
            let read = read.map_err(|error| error.errno())?;
            if read == 0 {
                break;
            }
            bytes.extend(&piece[..read]);
        }
        self.fs.release(opened.handle);
        Ok(bytes)
    }

    /// Looks a key up from the root: whether it exists, or the errno.
    fn lookup(&self, key: &str) -> Result<bool, i32> {
        let mut ino = ROOT;
        for name in key.split('/') {
            match self.fs.lookup(ino, name.as_ref()) {
                Ok(Some(entry)) => ino = entry.attr.ino,
                Ok(None) => return Ok(false),
                Err(error) => return Err(error.errno()),
            }
        }
        Ok(true)
    }
}

fn shown(model: &Model) -> Found {
    let mut shown: Found = model.shown().into_iter().map(|(key, bytes)| (key, Ok(bytes))).collect();
    shown.insert("notes.txt".to_owned(), Ok(b"passed through".to_vec()));
    shown
}

fn without_metadata(mut found: Found) -> Found {
    let text = found.remove("zarr.json").unwrap().unwrap();
    let twin: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert!(!twin.to_string().contains("sharding_indexed"), "{twin}");
    found
}

/// One change of the source by somebody else.
#[derive(Debug, Clone)]
enum Change {
    /// A shard is replaced by one with other chunks.
    Replace(usize, BTreeMap<Vec<u64>, Vec<u8>>),
    /// A shard is rewritten in place.
    Rewrite(usize, BTreeMap<Vec<u64>, Vec<u8>>),
    /// A shard is removed.
    Remove(usize),
}

fn changes(model: &Model) -> impl Strategy<Value = Vec<Change>> + use<> {
    let chunks = || support::chunks(&padded(model));
    let change = prop_oneof![
        (any::<usize>(), chunks()).prop_map(|(shard, chunks)| Change::Replace(shard, chunks)),
        (any::<usize>(), chunks()).prop_map(|(shard, chunks)| Change::Rewrite(shard, chunks)),
        any::<usize>().prop_map(Change::Remove),
    ];
    prop::collection::vec(change, 0..4)
}

impl Change {
    fn apply(&self, model: &mut Model, mount: &Mount) {
        let shards = places(&model.shards());
        let (pick, chunks) = match self {
            Self::Replace(pick, chunks) | Self::Rewrite(pick, chunks) => (*pick, Some(chunks)),
            Self::Remove(pick) => (*pick, None),
        };
        let Some(shard) = shards.get(pick % shards.len().max(1)) else { return };
        let per_shard = model.per_shard();
        let inside = |chunk: &Vec<u64>| {
            chunk
                .iter()
                .zip(&per_shard)
                .zip(shard)
                .all(|((chunk, per), shard)| chunk / per == *shard)
        };
        model.chunks.retain(|chunk, _| !inside(chunk));
        let new = chunks.into_iter().flatten().filter(|(chunk, _)| inside(chunk));
        model.chunks.extend(new.map(|(chunk, bytes)| (chunk.clone(), bytes.clone())));
        let (key, bytes) = (model.key(shard), model.shard(shard));
        match (self, bytes) {
            (_, None) => mount.storage.remove(&key),
            (Self::Rewrite(..), Some(bytes)) if mount.lookup(&key).is_ok() => {
                mount.storage.replace(&key, Vec::new());
                mount.storage.change(&key, |content| *content = bytes);
            }
            (_, Some(bytes)) => mount.storage.replace(&key, bytes),
        }
    }
}

/// Where failures are kept, to be tried first from then on.
const REGRESSIONS: &str = "proptest-regressions/tests/model.txt";

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(REGRESSIONS))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_mount_shows_what_the_model_holds(
        (model, changes) in models().prop_flat_map(|model| {
            let changes = changes(&model);
            (Just(model), changes)
        }),
        page in 1_usize..40,
    ) {
        let mut model = model;
        let mount = Mount::new(&model, false);
        prop_assert_eq!(without_metadata(mount.walk(page, Listing::Entries)), shown(&model));
        for change in &changes {
            change.apply(&mut model, &mount);
            prop_assert_eq!(without_metadata(mount.walk(page, Listing::Names)), shown(&model));
            for coords in places(&padded(&model)) {
                let key = model.key(&coords);
                prop_assert_eq!(mount.lookup(&key), Ok(model.shown().contains_key(&key)), "{}", key);
            }
        }
    }

    #[test]
    fn a_shard_that_is_cut_short_gives_errors_and_nothing_is_missing(
        model in models(), cut in 1_usize..40,
    ) {
        // What is left of an index without a checksum may look like one.
        let mut model = model;
        for level in &mut model.levels {
            if matches!(level.index, IndexKind::NoChecksum) {
                level.index = IndexKind::Usual;
            }
        }
        let mount = Mount::new(&model, false);
        let before = mount.walk(100, Listing::Entries);
        for shard in places(&model.shards()) {
            mount.storage.change(&model.key(&shard), |bytes| {
                let left = bytes.len() / cut;
                // Where the index of an inner shard takes the place of the index, nothing tells.
                if !model.levels[0].seems_whole(&bytes[..left]) {
                    bytes.truncate(left);
                }
            });
        }
        let after = mount.walk(100, Listing::Entries);
        for (key, bytes) in before {
            match after.get(&key) {
                Some(Err(errno)) => prop_assert_eq!(*errno, libc::EIO, "{}", key),
                same => prop_assert_eq!(same, Some(&bytes), "{}", key),
            }
        }
    }
}

#[test]
fn every_failing_operation_of_the_source_gives_an_error_or_the_right_bytes() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..30 {
        let model = models().new_tree(&mut runner).unwrap().current();
        let expected = shown(&model);
        let mount = Mount::new(&model, false);
        let before = mount.storage.operations();
        mount.walk(100, Listing::Entries);
        let operations = mount.storage.operations() - before;
        for nth in 1..=operations {
            let mount = Mount::new(&model, false);
            mount.storage.fail_nth(nth);
            let found = mount.walk(100, Listing::Entries);
            for (key, bytes) in &expected {
                let parents = key.match_indices('/').map(|(at, _)| key[..at].to_owned());
                let failed = |path: String| {
                    [path.clone(), format!("{path}/")]
                        .iter()
                        .any(|path| found.get(path).is_some_and(Result::is_err))
                };
                match found.get(key) {
                    Some(Err(errno)) => assert_eq!(*errno, libc::EIO, "{key}"),
                    Some(found) => assert_eq!(found, bytes, "{key}, operation {nth}"),
                    None => assert!(
                        parents.chain([String::new()]).any(failed),
                        "{key} is missing without an error, operation {nth}"
                    ),
                }
            }
        }
    }
}

#[test]
fn shards_of_a_rectilinear_grid_are_shown_as_one_regular_grid() {
    let edges: [u64; 4] = [2, 3, 1, 3];
    let part = |chunks: BTreeMap<Vec<u64>, Vec<u8>>, per_shard: u64| Model {
        shape: vec![2 * per_shard],
        chunk: vec![2],
        levels: vec![support::Level {
            per_shard: vec![per_shard],
            order: vec![0],
            index: IndexKind::Usual,
            at_start: true,
            after: vec![],
        }],
        keys: ("default", "."),
        chunks,
    };
    let mut metadata = part(BTreeMap::new(), 1).metadata();
    metadata["shape"] = serde_json::json!([17]);
    metadata["chunk_grid"] = serde_json::json!({"name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[4, 6, 2, [6, 1]]]}});
    let storage = Arc::new(MemoryStorage::default());
    storage.replace("zarr.json", metadata.to_string());
    let (mut expected, mut first) = (Found::new(), 0_u64);
    for (shard, edge) in edges.into_iter().enumerate() {
        // Every third chunk is empty.
        let present = (0..edge).filter(|place| (first + place) % 3 != 2);
        let chunks: BTreeMap<_, _> = present
            .map(|place| (vec![place], vec![u8::try_from(first + place).unwrap(); 5]))
            .collect();
        for (place, bytes) in &chunks {
            expected.insert(format!("c.{}", first + place[0]), Ok(bytes.clone()));
        }
        // The third shard has no chunk at all, and so does not exist.
        if let Some(bytes) = part(chunks, edge).shard(&[0]) {
            storage.replace(&format!("c.{shard}"), bytes);
        }
        first += edge;
    }
    let fs = Fs::new(storage.clone(), FsConfig::default(), Arc::new(Stats::default())).unwrap();
    let mount = Mount { storage, fs };
    let mut found = mount.walk(3, Listing::Entries);
    let twin = found.remove("zarr.json").unwrap().unwrap();
    let twin: serde_json::Value = serde_json::from_slice(&twin).unwrap();
    let grid = serde_json::json!({"name": "regular", "configuration": {"chunk_shape": [2]}});
    assert_eq!(twin["chunk_grid"], grid);
    assert_eq!(found, expected);
}

#[test]
fn many_readers_of_a_cold_shard_read_its_index_once() {
    const READERS: u64 = 8;
    let model = Model {
        shape: vec![READERS],
        chunk: vec![1],
        levels: vec![support::Level {
            per_shard: vec![READERS],
            order: vec![0],
            index: IndexKind::Usual,
            at_start: false,
            after: vec![],
        }],
        keys: ("v2", "."),
        chunks: (0..READERS).map(|chunk| (vec![chunk], vec![1; 9])).collect(),
    };
    let mount = Mount::new(&model, false);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for chunk in 0..READERS {
            let (mount, barrier) = (&mount, &barrier);
            scope.spawn(move || {
                barrier.wait();
                assert_eq!(mount.lookup(&chunk.to_string()), Ok(true));
            });
        }
    });
    assert_eq!(mount.fs.stats().indexes.loads.get(), 1);
}

#[test]
fn a_listing_looks_at_a_directory_of_shards_once() {
    let lookups = |rows: u64| {
        let level = support::Level {
            per_shard: vec![rows, 1],
            order: vec![0, 1],
            index: IndexKind::Usual,
            at_start: false,
            after: vec![],
        };
        let mount = Mount::new(
            &Model {
                shape: vec![rows, 1],
                chunk: vec![1, 1],
                levels: vec![level],
                keys: ("default", "/"),
                chunks: (0..rows).map(|row| (vec![row, 0], vec![1; 9])).collect(),
            },
            // Indexes are not asked for again, nor is the metadata.
            true,
        );
        let directory = mount.fs.lookup(ROOT, "c".as_ref()).unwrap().unwrap().attr.ino;
        let list = || {
            let mut names = 0;
            let mut sink = |item: &DirEntry<'_>| {
                names += u64::from(item.entry.is_some() && item.name.to_str() != Some("."));
                ControlFlow::Continue(())
            };
            mount.fs.readdir((directory, None), 0, Listing::Entries, &mut sink).unwrap();
            names
        };
        assert_eq!(list(), rows);
        let before = mount.storage.operations();
        list();
        mount.storage.operations() - before
    };
    assert_eq!(lookups(16), lookups(2));
}

#[test]
fn an_open_chunk_never_mixes_old_and_new_bytes() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut model = models().new_tree(&mut runner).unwrap().current();
    model.shape = vec![4];
    model.chunk = vec![2];
    model.keys = ("default", "/");
    model.levels.truncate(1);
    model.levels[0] = support::Level {
        per_shard: vec![2],
        order: vec![0],
        index: IndexKind::Usual,
        at_start: false,
        after: vec![],
    };
    let with = |byte: u8| BTreeMap::from([(vec![0], vec![byte; 14]), (vec![1], vec![byte; 3])]);
    model.chunks = with(1);
    let mount = Mount::new(&model, false);
    let c = mount.fs.lookup(ROOT, "c".as_ref()).unwrap().unwrap();
    let ino = mount.fs.lookup(c.attr.ino, "0".as_ref()).unwrap().unwrap().attr.ino;
    let other = mount.fs.lookup(c.attr.ino, "1".as_ref()).unwrap().unwrap().attr.ino;
    let read_of = |ino: u64, handle: u64, offset: u64| {
        let mut bytes = vec![0; 7];
        let read = mount.fs.read(ino, Some(handle), offset, &mut bytes);
        read.map(|read| bytes[..read].to_vec()).map_err(|error| error.errno())
    };
    let read = |handle: u64, offset: u64| read_of(ino, handle, offset);
    let change = |model: &mut Model, byte: u8| {
        model.chunks = with(byte);
        let shard = model.shard(&[0]).unwrap();
        mount.storage.change("c/0", |bytes| *bytes = shard);
    };
    let open = |ino: u64| mount.fs.open(ino).unwrap().handle;
    let (begun, fresh, unread) = (open(ino), open(ino), open(other));
    assert_eq!(read(begun, 0), Ok(vec![1; 7]));
    change(&mut model, 2);
    // One of which old bytes were read gets no new ones, whoever has read them; another one is read as it is.
    assert_eq!(read(begun, 7), Err(libc::EIO));
    assert_eq!(read(fresh, 0), Err(libc::EIO));
    assert_eq!(read_of(other, unread, 0), Ok(vec![2; 3]));
    change(&mut model, 3);
    assert_eq!(read_of(other, unread, 1), Err(libc::EIO));
    // A shard that was replaced as a whole still has its old bytes for those who opened it.
    // Once its name was looked up: it is another file than the one that the kernel knows.
    assert_eq!(mount.fs.open(ino).unwrap_err().errno(), libc::ESTALE);
    let look_up = || mount.fs.lookup(c.attr.ino, "0".as_ref()).unwrap();
    look_up();
    let replaced = mount.fs.open(ino).unwrap().handle;
    assert_eq!(read(replaced, 0), Ok(vec![3; 7]));
    model.chunks = with(4);
    mount.storage.replace("c/0", model.shard(&[0]).unwrap());
    assert_eq!(read(replaced, 7), Ok(vec![3; 7]));
    look_up();
    assert_eq!(mount.read(ino), Ok(vec![4; 14]));
}
