//! Chunk files that are put into shards when the document of their array comes, under kills and power cuts: at any
//! moment they are found, as files or in shards, and an array that is found is whole.
//!
//! `CRASH_GATHER_SEEDS=N` plays so many scenarios for each layout.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardfs::fs::{Fs, FsConfig, NewShards, View, ViewConfig, WriteConfig};
use shardfs::stats::Stats;
use shardfs::store::StoreConfig;
use shardfs::store::memory::{Change, MemoryStorage};
use shardfs::view::inode::ROOT;

use crate::power::Rng;
use crate::power::disk::{BLOCK, Disk, State};
use crate::power::mounted::User;

type Chunks = BTreeMap<String, Vec<u8>>;

/// Eight chunks, in two rows; two of each are to be in a shard.
fn document(separator: &str) -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": [2, 16], "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "codecs": [{"name": "bytes"}]})
}

/// The same in Zarr v2.
fn zarray(separator: &str) -> Value {
    json!({"zarr_format": 2, "shape": [2, 16], "chunks": [1, 4], "dtype": "|u1", "fill_value": 0, "order": "C",
        "compressor": null, "filters": null, "dimension_separator": separator})
}

fn mount(storage: &Arc<MemoryStorage>, view: View, writing: Option<WriteConfig>) -> Fs {
    let store =
        StoreConfig { trusted: Duration::ZERO, block_size: BLOCK as u64, ..StoreConfig::default() };
    let view = ViewConfig { view, ..ViewConfig::default() };
    let writable = writing.is_some();
    let writing = writing.unwrap_or_default();
    let config = FsConfig { store, view, writable, writing, ..FsConfig::default() };
    Fs::new(storage.clone(), config, Arc::new(Stats::default())).unwrap()
}

struct Trial {
    view: View,
    /// Name of the document that makes the array.
    document: &'static str,
    /// Files that were durable before it.
    chunks: Chunks,
    rng: Rng,
    seen: HashSet<u64>,
    tried: u64,
    /// States in which there are files, and in which there is the array.
    outcomes: [u64; 2],
}

impl Trial {
    fn check(&mut self, state: &State) -> Result<(), String> {
        let storage = state.storage(false);
        let holds = |user: &User<'_>, what: &str| {
            for (path, bytes) in &self.chunks {
                let found = user.read(path);
                if found.as_ref() != Some(bytes) {
                    return Err(format!("{what}: {path} is {found:?}, not {bytes:?}"));
                }
            }
            Ok(())
        };
        let others = mount(&storage, self.view, None);
        let is_array = User(&others).read(self.document).is_some();
        if is_array {
            holds(&User(&others), "a reader finds the array")?;
        }
        // It goes on, or cleans up.
        let fs = mount(&storage, self.view, Some(WriteConfig::default()));
        holds(&User(&fs), "the next mount")?;
        let is_array = User(&fs).read(self.document).is_some();
        self.outcomes[usize::from(is_array)] += 1;
        if fs.end_commits() != 0 {
            return Err("not everything is committed".to_owned());
        }
        drop(fs);
        let left =
            storage.files().into_iter().find(|(path, ..)| path.starts_with("a/.shardfs/gathered"));
        if let Some((path, ..)) = left {
            return Err(format!("{} is left", path.display()));
        }
        holds(&User(&mount(&storage, self.view, None)), "a reader after that")
    }

    fn cut(&mut self, disk: &Disk) -> Result<(), String> {
        let mut states = disk.states(&mut self.rng, 12, 6);
        states.push(disk.now());
        for state in states {
            if !self.seen.insert(state.hash(0)) {
                continue;
            }
            self.tried += 1;
            self.check(&state).map_err(|error| format!("{error}\nfound {:#?}", state.files))?;
        }
        Ok(())
    }

    fn play(&mut self, document: &Value, at_start: bool) -> Result<(), String> {
        let group = json!({"zarr_format": 3, "node_type": "group"}).to_string();
        let mut disk = Disk::new(Path::new("d"), [("zarr.json".into(), 1, group.into_bytes())]);
        disk.apply(&Change::SyncDirectory { path: "".into() });
        let storage = disk.now().storage(false);
        let mut new_shards = NewShards::of_at_most(8);
        if at_start {
            new_shards = new_shards.with_index_at_start();
        }
        let writing = WriteConfig { new_shards, ..WriteConfig::default() };
        let fs = mount(&storage, self.view, Some(writing));
        let user = User(&fs);
        for (path, bytes) in &self.chunks {
            user.write(path, bytes, true);
        }
        for directory in ["a/c", "a"] {
            if let Some(ino) = user.ino(directory) {
                fs.fsyncdir(ino, None).unwrap();
            }
        }
        fs.fsyncdir(ROOT, None).unwrap();
        storage.take_history().iter().for_each(|change| disk.apply(change));
        user.write(self.document, document.to_string().as_bytes(), false);
        for change in &storage.take_history() {
            self.cut(&disk)?;
            disk.apply(change);
        }
        self.cut(&disk)
    }
}

fn seeds() -> u64 {
    std::env::var("CRASH_GATHER_SEEDS").map_or(4, |number| number.parse().unwrap())
}

#[test]
fn chunk_files_are_found_at_any_moment_while_they_are_put_into_shards() {
    play_all("c", View::Zarr3, "a/zarr.json", &document);
}

#[test]
fn files_of_zarr_v2_are_found_at_any_moment_while_they_become_zarr_v3() {
    play_all("", View::Zarr2, "a/.zarray", &zarray);
}

/// Plays all scenarios; chunk keys begin with `prefix`.
fn play_all(prefix: &str, view: View, name: &'static str, document: &dyn Fn(&str) -> Value) {
    let (begun, mut tried, mut outcomes) = (Instant::now(), 0, [0; 2]);
    for (separator, at_start) in [("/", false), (".", false), ("/", true)] {
        for seed in 0..seeds() {
            let mut rng = Rng(seed);
            let mut chunks = Chunks::new();
            for (row, at) in (0..2).flat_map(|row| (0..4).map(move |at| (row, at))) {
                if !rng.one_in(4) {
                    let length = rng.below(6) + 1;
                    let key = format!("{prefix}{separator}{row}{separator}{at}");
                    let key = if prefix.is_empty() { &key[1..] } else { &key };
                    chunks.insert(format!("a/{key}"), rng.bytes(length));
                }
            }
            if view == View::Zarr2 {
                // As it is shown.
                let zattrs = format!("{:#}\n", json!({"unit": "m"}));
                chunks.insert("a/.zattrs".to_owned(), zattrs.into_bytes());
            }
            let (seen, document) = (HashSet::new(), document(separator));
            let mut trial =
                Trial { view, document: name, chunks, rng, seen, tried: 0, outcomes: [0; 2] };
            if let Err(error) = trial.play(&document, at_start) {
                panic!("{separator:?}, at the start {at_start}, seed {seed}: {error}");
            }
            tried += trial.tried;
            outcomes[0] += trial.outcomes[0];
            outcomes[1] += trial.outcomes[1];
        }
    }
    let took = begun.elapsed();
    let _ = writeln!(std::io::stderr(), "crash_gather: {tried} states {outcomes:?}, {took:.1?}");
    assert!(outcomes.iter().all(|count| *count > 50), "{outcomes:?}");
}
