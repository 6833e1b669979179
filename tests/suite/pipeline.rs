//! The codecs of chunks against arrays that real software wrote, where the corpus is there:
//! `SHARDFS_CORPUS`, or `../shared/corpus` beside this repository.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use shardfs::format::json;
use shardfs::format::pipeline::Pipeline;

fn corpus() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    let corpus = std::env::var_os("SHARDFS_CORPUS").map_or_else(beside, PathBuf::from);
    corpus.join("manifests").is_dir().then_some(corpus)
}

/// The manifests, by family and name.
fn manifests(corpus: &Path) -> BTreeMap<String, Value> {
    let entries = |path: &Path| {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.collect::<Vec<_>>()
    };
    let families = entries(&corpus.join("manifests"));
    let files = families.iter().flat_map(|family| entries(family));
    files
        .filter(|file| file.extension().is_some_and(|extension| extension == "json"))
        .map(|file| {
            let name = file.strip_prefix(corpus.join("manifests")).unwrap().display().to_string();
            (name, json::parse(&std::fs::read(&file).unwrap()).unwrap())
        })
        .collect()
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

/// The encoded bytes of a chunk; None where they have no place of their own in a file.
fn encoded(corpus: &Path, manifest: &Value, chunk: &Value) -> Option<Vec<u8>> {
    let number = |member: &str| usize::try_from(chunk[member].as_u64()?).ok();
    let (offset, nbytes) = (number("offset")?, number("nbytes")?);
    let base = corpus.join(manifest["store"].as_str()?);
    let base = base.join(manifest["node"].as_str().unwrap_or_default());
    let shard = std::fs::read(base.join(chunk["shard"].as_str()?)).unwrap();
    Some(shard[offset..offset + nbytes].to_vec())
}

/// Shards as chunks of one array: its stored metadata makes a pipeline with sharding inside.
fn check_shards(corpus: &Path, manifest: &Value, level: &Value, name: &str) -> usize {
    let base = corpus.join(manifest["store"].as_str().unwrap());
    let base = base.join(manifest["node"].as_str().unwrap_or_default());
    let document = json::parse(&std::fs::read(base.join("zarr.json")).unwrap()).unwrap();
    let pipeline = match Pipeline::parse(&document) {
        Ok(pipeline) => pipeline,
        Err(error) => {
            println!("{name}, whole shards: {error}");
            return 0;
        }
    };
    let numbers = |value: &Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let extent = numbers(&level["chunk_shape"]);
    let item = pipeline.data_type().nbytes();
    let mut shards = BTreeMap::new();
    for chunk in level["chunks"].as_array().unwrap() {
        let Some(expected) = chunk["decoded_sha256"].as_str() else { continue };
        if chunk["beyond_grid"] == true {
            continue;
        }
        let key = chunk["shard"].as_str().unwrap();
        let shard = shards.entry(key).or_insert_with(|| {
            let mut room = vec![0; pipeline.nbytes()];
            let stored = std::fs::read(base.join(key)).unwrap();
            pipeline.decode(&stored, &mut room).unwrap_or_else(|e| panic!("{name} {key}: {e}"));
            room
        });
        let grid = numbers(&chunk["grid"]);
        let starts = grid.iter().zip(&extent).zip(pipeline.chunk_shape());
        let origin: Vec<u64> = starts.map(|((at, n), shard)| at * n % shard).collect();
        let mut content = Vec::new();
        part(shard, pipeline.chunk_shape(), &origin, &extent, item, &mut content);
        assert_eq!(sha256(&content), expected, "{name} {key} {grid:?}");
    }
    for shard in shards.values() {
        let mut again = vec![0xa5; shard.len()];
        pipeline.decode(&pipeline.encode(shard).unwrap(), &mut again).unwrap();
        assert!(again == *shard, "{name}");
    }
    shards.len()
}

/// Appends a box of an array in C order to `content`.
fn part(
    array: &[u8],
    shape: &[u64],
    origin: &[u64],
    extent: &[u64],
    item: usize,
    content: &mut Vec<u8>,
) {
    let ([length, ..], [at, below @ ..], [count, inner @ ..]) = (shape, origin, extent) else {
        content.extend_from_slice(&array[..item]);
        return;
    };
    let step = array.len() / usize::try_from(*length).unwrap();
    for index in *at..at + count {
        let start = usize::try_from(index).unwrap() * step;
        part(&array[start..start + step], &shape[1..], below, inner, item, content);
    }
}

/// Checks the chunks of one level; how many there were.
fn check_level(
    corpus: &Path,
    manifest: &Value,
    level: &Value,
    name: &str,
) -> Result<usize, String> {
    let pipeline = match Pipeline::parse(&level["view_metadata"]) {
        Ok(pipeline) => pipeline,
        Err(error) => return Err(error.to_string()),
    };
    let mut checked = 0;
    let mut room = vec![0; pipeline.nbytes()];
    for chunk in level["chunks"].as_array().unwrap() {
        let Some(expected) = chunk["decoded_sha256"].as_str() else { continue };
        let Some(encoded) = encoded(corpus, manifest, chunk) else { continue };
        let key = &chunk["key"];
        pipeline.decode(&encoded, &mut room).unwrap_or_else(|e| panic!("{name} {key}: {e}"));
        assert_eq!(sha256(&room), expected, "{name} {key}");
        let again = pipeline.encode(&room).unwrap();
        let before = std::mem::replace(&mut room, vec![0xa5; pipeline.nbytes()]);
        pipeline.decode(&again, &mut room).unwrap();
        assert!(before == room, "{name} {key}");
        checked += 1;
    }
    Ok(checked)
}

#[test]
fn chunks_of_the_corpus_decode_to_what_their_writers_meant() {
    let Some(corpus) = corpus() else {
        println!("no corpus, nothing is checked");
        return;
    };
    let (mut levels, mut chunks, mut shards, mut unknown) = (0, 0, 0, Vec::new());
    for (name, manifest) in manifests(&corpus) {
        for level in manifest["levels"].as_array().unwrap() {
            if level["view_metadata"]["zarr_format"].as_u64() != Some(3) {
                continue;
            }
            match check_level(&corpus, &manifest, level, &name) {
                Ok(checked) => chunks += checked,
                Err(reason) => {
                    println!("{name}: {reason}");
                    unknown.push(reason);
                }
            }
            levels += 1;
        }
        if let Some(innermost) = manifest["levels"].as_array().unwrap().last()
            && innermost["view_metadata"]["zarr_format"].as_u64() == Some(3)
            && innermost["level"] != 0
        {
            shards += check_shards(&corpus, &manifest, innermost, &name);
        }
    }
    println!(
        "{levels} levels of arrays, {chunks} chunks, {shards} shards; {} levels are not known",
        unknown.len()
    );
    assert!(chunks > 0 && shards > 0);
    unknown.retain(|reason| reason != "items of data type \"string\" have no fixed size");
    assert_eq!(unknown, [""; 0]);
}
