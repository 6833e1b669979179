//! `zarr.json`: from its bytes to the numbers of its chunks.

use serde_json::Value;
use shardfs::format::codec::parse_chain;
use shardfs::format::document::{Dialect, Shown, show};
use shardfs::format::flat::{FlatFile, FlatForm};
use shardfs::format::index::product;
use shardfs::format::json;
use shardfs::format::limits::{MAX_DECODED_BYTES, MAX_RANK, MAX_SHARDING_LEVELS, MAX_TREE_NODES};
use shardfs::format::metadata::NodeMetadata;
use shardfs::format::pipeline::Pipeline;
use shardfs::format::sharding::ShardedArray;
use shardfs::format::zarr2::{self, Missing, ZARRAY, ZATTRS};
use shardfs::view::inode::InodeRange;
use shardfs::view::tree::ChunkTree;

use super::memory::within;

/// Memory for each byte of a document while it is parsed: a list costs most, `[[[...` takes two
/// bytes a level and four values are reserved in each.
const PARSED: usize = 512;
/// Memory for each byte of a document, besides the document, while it becomes its twin.
const SHOWN: usize = 512;
/// Bytes of text for each byte of a document: indentation by 128 levels.
const WRITTEN: usize = 300;
/// What every step may take besides.
const SLACK: usize = 1 << 16;

/// Whatever the bytes are: parsing, rewriting and numbering keep to the limits and to each other.
pub fn metadata(bytes: &[u8]) {
    let Ok(document) = within(PARSED * bytes.len() + SLACK, || json::parse(bytes)) else {
        return;
    };
    survives_as_text(&document, bytes.len());
    zarr2(&document, bytes.len());
    let show = |document: &Value, level| {
        let document = document.clone();
        within(SHOWN * bytes.len() + SLACK, || show(document, level, Dialect::V3))
    };
    let draft = document.clone();
    if let Ok(Shown::Array(array, twin)) = within(SHOWN * bytes.len() + SLACK, || {
        shardfs::format::document::show(draft, None, Dialect::Draft2022)
    }) {
        assert_eq!(array.chunk_grid().len(), array.rank());
        let again = shardfs::format::document::show(twin, None, Dialect::Draft2022);
        assert!(matches!(again, Ok(Shown::AsStored)), "a twin is not sharded");
    }
    match show(&document, Some(0)) {
        Ok(Shown::AsStored) | Err(_) => (),
        Ok(shown) => panic!("rewritten at level 0: {shown:?}"),
    }
    let innermost = show(&document, None);
    match &innermost {
        Ok(Shown::Array(array, twin)) => {
            same_but_for(&["chunk_grid", "codecs"], &document, twin);
            survives_as_text(twin, bytes.len());
            layout(array);
            views(twin);
            twin_of_a_twin(array, show(twin, None));
        }
        Ok(Shown::Group(twin)) => {
            same_but_for(&["consolidated_metadata"], &document, twin);
            survives_as_text(twin, bytes.len());
            let again = show(twin, None);
            assert!(matches!(again, Ok(Shown::AsStored)), "{again:?}");
        }
        Ok(Shown::AsStored) => views(&document),
        Err(_) => (),
    }
    if let Ok(Shown::Array(outermost, twin)) = show(&document, Some(1)) {
        layout(&outermost);
        assert_eq!(outermost.levels.len(), 1);
        if let Ok(Shown::Array(array, expected)) = innermost {
            in_two_steps(&array, &expected, show(&twin, None));
        }
    }
}

/// What other views make of an unsharded array keeps to its limits; what Zarr v2 says of it leads back.
fn views(document: &Value) {
    if let Ok(pipeline) = Pipeline::parse(document) {
        assert_eq!(pipeline.fill().len(), pipeline.data_type().nbytes());
        assert!(pipeline.nbytes() <= MAX_DECODED_BYTES);
        let shape = document["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        if let Ok(flat) = FlatForm::new(pipeline, shape.collect(), true) {
            assert!(flat.nbytes(FlatFile::Npy) <= i64::MAX as u64);
            flat.headers();
        }
    }
    for missing in [Missing::Auto, Missing::Absent, Missing::Fill] {
        zarr2::group(document, &|_| missing);
        documents2(document, missing);
    }
}

/// The documents of an array in Zarr v2, written as they are shown, change nothing.
fn documents2(document: &Value, missing: Missing) {
    if let Ok(documents) = zarr2::array(document, missing) {
        let shown = zarr2::Shown { twin: document, missing, created_fill: None };
        let back = |name, written| zarr2::back(document, &shown, name, written);
        let back = [back(ZARRAY, Some(&documents.zarray)), back(ZATTRS, documents.zattrs.as_ref())];
        for back in back {
            let again = zarr2::array(&back.expect("it was shown"), missing);
            let again = again.expect("it is what it was");
            assert_eq!(
                (again.zarray, again.zattrs),
                (documents.zarray.clone(), documents.zattrs.clone())
            );
        }
        if let Ok(new) = zarr2::new_array(&documents.zarray, documents.zattrs.as_ref(), missing) {
            zarr2::array(&new, missing).expect("it was checked to be shown");
        }
        // Filters of other items than the array's are shown, but are none of Zarr v3.
        let twin = zarr2::to_zarr3(&documents.zarray, documents.zattrs.as_ref());
        if let Ok(twin) = twin {
            let again = zarr2::array(&twin, missing).expect("it came from there");
            for member in ["shape", "chunks", "dtype", "order", "dimension_separator"] {
                assert_eq!(again.zarray[member], documents.zarray[member]);
            }
        }
    }
}

/// A document of Zarr v2, its own attributes: what tools make of it is metadata of Zarr v3.
fn zarr2(document: &Value, length: usize) {
    let twin = within(SHOWN * length + SLACK, || zarr2::to_zarr3(document, Some(document)));
    if let Ok(twin) = twin {
        assert!(NodeMetadata::parse(&twin).is_ok(), "{twin}");
        let layout = zarr2::layout(document);
        let chain = parse_chain(twin.get("codecs")).expect("a list");
        let same = ShardedArray::unsharded(&twin, chain).map(|array| array.chunk_grid()).ok();
        assert_eq!(layout.map(|array| array.chunk_grid()).ok(), same);
        views(&twin);
    }
}

/// What was written is read as the same again.
fn survives_as_text(document: &Value, length: usize) {
    let limit = WRITTEN * length + SLACK;
    let text = within(4 * limit, || json::to_text(document));
    assert!(text.len() <= limit, "{length} became {}", text.len());
    match json::parse(&text) {
        Ok(again) => assert_eq!(&again, document),
        Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&text)),
    }
}

/// Both documents have the same members in the same order; other members are equal.
fn same_but_for(members: &[&str], document: &Value, twin: &Value) {
    let parts = |value: &Value| {
        let object = value.as_object().expect("an object").clone();
        let names: Vec<String> = object.keys().cloned().collect();
        let kept: Vec<_> =
            object.into_iter().filter(|(name, _)| !members.contains(&name.as_str())).collect();
        (names, kept)
    };
    assert_eq!(parts(document), parts(twin));
}

/// The twin of an array shown down to its innermost chunks has no sharding left, but for one that
/// cannot be looked into.
fn twin_of_a_twin(array: &ShardedArray, again: Result<Shown, impl std::fmt::Debug>) {
    let opaque = array.view_codecs.iter().any(|codec| codec.name == "sharding_indexed");
    match again {
        Ok(Shown::AsStored) => assert!(!opaque),
        Err(_) => assert!(opaque),
        Ok(shown) => panic!("there was more to look into: {shown:?}"),
    }
}

/// Looking into the outermost sharding first, and then into the rest, leads to the same.
fn in_two_steps(array: &ShardedArray, expected: &Value, rest: Result<Shown, impl std::fmt::Debug>) {
    match rest {
        Ok(Shown::Array(below, twin)) => {
            assert_eq!(below.levels.len() + 1, array.levels.len());
            assert_eq!(below.chunk_grid(), array.chunk_grid());
            assert_eq!(&twin, expected);
        }
        Ok(Shown::AsStored) | Err(_) => assert_eq!(array.levels.len(), 1),
        Ok(shown) => panic!("an array became a group: {shown:?}"),
    }
}

/// Places and numbers of chunks lie within each other's bounds.
fn layout(array: &ShardedArray) {
    let grid = array.chunk_grid();
    let rank = array.rank();
    assert!(rank <= MAX_RANK && grid.len() == rank && array.chunk_shape().len() == rank);
    assert!((1..=MAX_SHARDING_LEVELS).contains(&array.levels.len()));
    for level in 0..array.levels.len() {
        index_is_limited(array, level, array.most_chunks(level).collect());
    }
    for axis in &array.shard_grid {
        // A listing asks for the shard after the last one, too.
        axis.span(axis.shards());
    }
    if grid.iter().all(|extent| *extent > 0) {
        for chunk in corners(&grid) {
            place(array, &chunk);
        }
    }
    if let Ok(tree) = ChunkTree::new(array.keys, "", grid) {
        numbers(&tree);
    }
}

fn index_is_limited(array: &ShardedArray, level: usize, chunks: Vec<u64>) {
    let size = product(&chunks).and_then(|n| array.levels[level].index_codecs.stored_size(n));
    assert!(size.is_some(), "level {level}: {chunks:?}");
}

/// A chunk is in a shard that has it, and its place leads back to it.
fn place(array: &ShardedArray, chunk: &[u64]) {
    let location = array.locate(chunk);
    assert_eq!(location.positions.len(), array.levels.len());
    let innermost = array.chunk_shape();
    for (axis, grid) in array.shard_grid.iter().enumerate() {
        let shard = location.shard[axis];
        assert!(shard < grid.shards());
        let (first, edge) = grid.span(shard);
        assert!(first <= chunk[axis] && chunk[axis] < first + edge);
        assert!(edge <= grid.longest_edge());
        let in_shard = array.levels.iter().zip(&location.positions);
        let found = in_shard.fold(first, |at, (level, position)| {
            at + position[axis] * (level.chunk_shape[axis] / innermost[axis])
        });
        assert_eq!(found, chunk[axis]);
    }
    let mut number = 0_u64;
    for (at, level) in array.levels.iter().enumerate() {
        let chunks = array.chunks_per_shard(at, &location.shard);
        let position: Vec<u64> = level.in_shard_axes(&location.positions[at]).collect();
        assert_eq!(position.len(), chunks.len());
        let within = position.iter().zip(&chunks).all(|(p, n)| p < n);
        assert!(within, "{position:?} of {chunks:?}");
        index_is_limited(array, at, chunks);
        // Shards are told apart by a number that must not overflow.
        let axes = location.positions[at].iter().zip(array.most_chunks(at));
        number = axes.fold(number, |number, (p, most)| number * most + p);
    }
}

/// Numbers of a tree's nodes and their coordinates, names and inode numbers are one to one.
fn numbers(tree: &ChunkTree) {
    assert!((1..=MAX_TREE_NODES).contains(&tree.nodes()));
    assert_eq!(tree.coords(tree.nodes()), None);
    let last = tree.coords(tree.nodes() - 1).expect("the last node");
    assert_eq!(tree.number(&last), tree.nodes() - 1);
    let range = InodeRange::new(tree.nodes(), tree.nodes().wrapping_mul(0x9e37_79b9), 1);
    for depth in 0..=tree.rank() {
        let extents = &tree.grid()[..depth];
        if extents.contains(&0) {
            break;
        }
        for coords in corners(extents) {
            let number = tree.number(&coords);
            assert!(number < tree.nodes());
            assert_eq!(tree.coords(number).as_ref(), Some(&coords));
            assert_eq!(InodeRange::split(range.ino(number)), Some((range, number)));
            let name = tree.name(&coords);
            if depth == tree.top_depth() {
                assert_eq!(tree.top(&name), Some(coords));
            } else if depth > tree.top_depth() {
                assert_eq!(tree.child(&coords[..depth - 1], &name), Some(coords));
            }
        }
    }
}

/// The first and the last place of a box that is not empty, and for each axis the last place
/// along it alone.
fn corners(extents: &[u64]) -> Vec<Vec<u64>> {
    let last: Vec<u64> = extents.iter().map(|extent| extent - 1).collect();
    let mut corners = vec![vec![0; extents.len()]];
    for (axis, end) in last.iter().enumerate() {
        let mut corner = vec![0; extents.len()];
        corner[axis] = *end;
        corners.push(corner);
    }
    corners.push(last);
    corners
}
