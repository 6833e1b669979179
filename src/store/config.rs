//! Limits of a store, and how far it may rely on its caches.

use std::time::Duration;

/// Default time for which cached state of the source is used without revalidation, where the caller
/// does not ask for more freshness.
pub const TRUSTED: Duration = Duration::from_secs(1);

/// Limits of a store, and how far it may rely on its caches.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `true` if the source never changes: disables revalidation.
    pub immutable: bool,
    /// Time for which cached state of the source is used without revalidation, where the caller
    /// does not ask for more freshness.
    pub trusted: Duration,
    /// Cache budget for indexes and decoded shards, in bytes.
    pub cache_size: usize,
    /// Cache budget for decoded chunks, in bytes.
    pub decoded_size: usize,
    /// Number of shard files to keep open, if the process may open that many files.
    pub open_files: usize,
    /// Length of the longest shard that is decoded as a whole, in bytes, both encoded and decoded.
    pub decode_limit: u64,
    /// `true` if a last chunk that is shorter than the others is padded, in formats where it may
    /// be.
    pub pad_edge: bool,
    /// `true` if a missing shard is damage in formats in which all exist. Where shards are written, it
    /// must be absence: a damaged one is not replaced.
    pub missing_is_damage: bool,
    /// Length up to which windows grow that are fetched ahead of readers, in bytes, where the source
    /// is on the network: an eighth of the memory for them.
    pub longest_window: u64,
    /// Largest block or page size of the underlying filesystem, in bytes. ext4 was seen to zero the
    /// rest of the last block of a truncated file before the new length was durable.
    pub block_size: u64,
    /// `true` if the mount writes to the source: what one view has stored, another one must not take from its
    /// cache as it was before.
    pub is_written: bool,
    /// Longest pause before a commit to an object is tried again after its first failure. It doubles each time. If it
    /// is 0, none holds back to let others replace the object, either.
    pub pause: Duration,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            immutable: false,
            trusted: TRUSTED,
            cache_size: 64 << 20,
            decoded_size: 128 << 20,
            open_files: 256,
            decode_limit: 1 << 30,
            pad_edge: false,
            missing_is_damage: false,
            longest_window: 64 << 20,
            block_size: 64 << 10,
            is_written: false,
            pause: Duration::from_millis(50),
        }
    }
}

/// Freshness that a caller requires of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Revalidated now: the shard was seen to have changed.
    Again,
    /// Revalidated just now (at most 10 ms ago).
    Now,
    /// Revalidated within [`StoreConfig::trusted`].
    Recent,
}
