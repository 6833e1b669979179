//! Counters of what the mount has done, shown in `.shardfs/stats.json`.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that any thread may increase.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines the counters of one section and their JSON form from one list.
macro_rules! counters {
    ($(#[$doc:meta])* $section:ident { $($(#[$counter_doc:meta])* $counter:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $section { $($(#[$counter_doc])* pub $counter: Counter,)* }

        impl $section {
            fn to_json(&self) -> serde_json::Value {
                serde_json::json!({ $(stringify!($counter): self.$counter.get(),)* })
            }
        }
    };
}

counters! {
    /// Requests from the kernel.
    Operations {
        /// Names looked up.
        lookup,
        /// Attributes asked for.
        getattr,
        /// Directory pages listed.
        readdir,
        /// Directory entries listed.
        entries,
        /// Files opened.
        open,
        /// Read requests.
        read,
        /// Bytes handed to readers.
        read_bytes,
        /// Write requests.
        write,
        /// Bytes that writers asked to be written.
        write_bytes,
        /// Requests answered with an error other than "no such file".
        errors,
    }
}

counters! {
    /// Chunks that were decoded to show their items.
    Decoded {
        /// Chunks decoded.
        chunks,
        /// Bytes of them after decoding.
        bytes,
        /// Chunks that were still kept when they were wanted.
        hits,
    }
}

counters! {
    /// What was asked of the source.
    Source {
        /// Files opened.
        open,
        /// Files asked for their attributes.
        stat,
        /// Reads.
        read,
        /// Bytes read.
        read_bytes,
        /// Directories listed.
        list,
        /// Writes.
        write,
        /// Bytes written.
        write_bytes,
        /// Files and directories synced.
        syncs,
    }
}

counters! {
    /// Shard indexes.
    Indexes {
        /// Indexes read from shards.
        loads,
        /// Bytes of them.
        load_bytes,
        /// Indexes found in the cache.
        hits,
        /// Shards found changed since their index was read.
        changed,
        /// Shards found damaged.
        damaged,
        /// Shards decoded as a whole.
        decoded,
    }
}

counters! {
    /// Commits: staged chunks that were put into their shards.
    Commits {
        /// Commits to an array.
        commits,
        /// Chunks committed, those removed included.
        chunks,
        /// Bytes of them; compare with what was written to the source.
        chunk_bytes,
        /// Chunks that could not be committed.
        failed,
    }
}

/// All counters of a mount.
#[derive(Debug, Default)]
pub struct Stats {
    /// Requests from the kernel.
    pub operations: Operations,
    /// What was asked of the source.
    pub source: Source,
    /// Shard indexes.
    pub indexes: Indexes,
    /// Decoded chunks.
    pub decoded: Decoded,
    /// Commits.
    pub commits: Commits,
}

impl Stats {
    /// The counters as a JSON object of objects.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "operations": self.operations.to_json(),
            "source": self.source.to_json(),
            "indexes": self.indexes.to_json(),
            "decoded": self.decoded.to_json(),
            "commits": self.commits.to_json(),
        })
    }
}
