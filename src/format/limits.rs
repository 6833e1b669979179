//! Limits on metadata and shards. Each limit is checked before anything is allocated or computed
//! from the number it bounds.

/// Maximum number of dimensions of an array, as in NumPy.
pub const MAX_RANK: usize = 64;

/// Maximum number of nested levels of sharding.
pub const MAX_SHARDING_LEVELS: usize = 8;

/// Maximum length of a `zarr.json` in bytes. Consolidated metadata takes about a KiB for each
/// array; parsed, a document can take a hundred times its length.
pub const MAX_METADATA_BYTES: u64 = 32 << 20;

/// Maximum number of values and member names in a document. Parsed, each takes up to 256 bytes.
pub const MAX_JSON_VALUES: u64 = 2 << 20;

/// Maximum length of a shard index in bytes: 16 Mi inner chunks in a shard.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Maximum number of chunks and directories in the view of an array. Inode numbers are computed
/// from them.
pub const MAX_TREE_NODES: u64 = 1 << 60;

/// Maximum number of inner chunks in all shards of a grid, those beyond the array's shape included.
/// Positions in directory listings are computed from them.
pub const MAX_LISTED_SLOTS: u64 = 1 << 61;

/// Maximum number of runs of equal edge lengths along one axis of a rectilinear chunk grid.
pub const MAX_GRID_RUNS: usize = 1 << 20;

/// Maximum length of an array item in bytes, for texts and bytes of a fixed length.
pub const MAX_ITEM_BYTES: usize = 1 << 20;

/// Maximum length of a decoded chunk in bytes.
pub const MAX_DECODED_BYTES: usize = 1 << 30;
