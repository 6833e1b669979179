//! Shard I/O: opens shards, reads and caches their indexes, and finds and reads chunks.
//!
//! ```text
//! chunk coordinates -> shard path, positions   (format::sharding, arithmetic)
//! shard path        -> LoadedShard             (one open, one read of the index; cached)
//! LoadedShard       -> Body of the chunk       (one entry; one more for each nested level)
//! Body              -> ChunkReader             (an open file and a range in it)
//! ```

pub(crate) mod access_list;
mod array;
mod beneath;
mod blob;
mod byte_cache;
mod collect;
mod commit;
mod commit_state;
mod config;
pub(crate) mod consolidated;
pub mod content;
pub(crate) mod decoded;
mod decoded_cache;
pub(crate) mod document;
pub(crate) mod entries;
mod error;
mod fetch_ahead;
mod find;
pub mod formats;
pub(crate) mod gather;
pub(crate) mod identity;
mod index_reader;
pub mod journal;
pub(crate) mod listing;
mod loaded;
pub mod local;
mod lock;
#[cfg(any(test, feature = "memory-storage"))]
pub mod memory;
pub(crate) mod new_shards;
mod outside;
pub mod owner;
pub(crate) mod persistence;
pub(crate) mod put;
mod reader;
pub mod recover;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(not(feature = "remote"))]
#[path = "remote_absent.rs"]
pub mod remote;
mod remote_options;
mod replace;
pub mod scan;
pub(crate) mod scheme;
mod shard;
mod shard_store;
pub(crate) mod spool;
pub mod storage;
mod streams;
mod turns;
mod unfinished;
mod whole_chunk;
mod window;
pub(crate) mod work;
pub mod zip;

pub use self::array::SourceArray;
pub use self::byte_cache::ByteCache;
pub use self::commit::{Maker, Outcome, StagedChunk};
pub use self::commit_state::{Base, Dated};
pub use self::config::{Freshness, StoreConfig, TRUSTED};
pub use self::error::{Damage, StoreError, io_error};
pub use self::loaded::{Body, Chunk, LoadedShard};
pub use self::outside::Outside;
pub use self::reader::ChunkReader;
pub use self::shard_store::ShardStore;
