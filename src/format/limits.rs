//! The limits that metadata and shards must keep. Each is checked by name before anything is
//! allocated or computed from the number that it bounds.

/// Dimensions of an array. NumPy stops at 64.
pub const MAX_RANK: usize = 64;

/// Levels of sharding inside sharding.
pub const MAX_SHARDING_LEVELS: usize = 8;

/// Length of a `zarr.json`. Consolidated metadata takes about a KiB for each array; parsed, a document
/// can take a hundred times its length.
pub const MAX_METADATA_BYTES: u64 = 32 << 20;

/// Values in one document, and names of members: parsed, each takes up to 256 bytes.
pub const MAX_JSON_VALUES: u64 = 2 << 20;

/// Length of one shard index: 16 Mi inner chunks in a shard.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Chunks and directories of one array's view: inode numbers are computed from them.
pub const MAX_TREE_NODES: u64 = 1 << 60;

/// Inner chunks of all shards of a grid, those beyond the array's shape included: positions in a
/// directory listing are computed from them.
pub const MAX_LISTED_SLOTS: u64 = 1 << 61;

/// Runs of equal edge lengths along one axis of a rectilinear chunk grid.
pub const MAX_GRID_RUNS: usize = 1 << 20;

/// Length of one item of an array, in bytes: a text or bytes of a fixed length.
pub const MAX_ITEM_BYTES: usize = 1 << 20;

/// Length of a decoded chunk.
pub const MAX_DECODED_BYTES: usize = 1 << 30;
