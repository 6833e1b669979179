//! Counters of the mount's activity, shown in `.shardfs/stats.json` and `.shardfs/metrics`.

pub mod histogram;
pub mod metrics;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

use self::histogram::Histogram;

/// Counter that any thread may increase.
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

    /// Returns the current value.
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

            #[cfg(test)]
            fn fill(&self) {
                [$(&self.$counter,)*].iter().for_each(|counter| counter.add(u64::MAX));
            }
        }
    };
}

/// Defines the histograms of one section from one list.
macro_rules! histograms {
    ($(#[$doc:meta])* $section:ident { $($(#[$histogram_doc:meta])* $histogram:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $section { $($(#[$histogram_doc])* pub $histogram: Histogram,)* }

        impl $section {
            /// Returns each histogram, with its name.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
                [$((stringify!($histogram), &self.$histogram),)*].into_iter()
            }
        }
    };
}

histograms! {
    /// Times until requests of the kernel were answered.
    Requests {
        /// LOOKUP.
        lookup,
        /// GETATTR.
        getattr,
        /// SETATTR.
        setattr,
        /// READLINK.
        readlink,
        /// OPEN.
        open,
        /// READ.
        read,
        /// WRITE.
        write,
        /// FLUSH, sent for each close.
        flush,
        /// FSYNC and FSYNCDIR.
        fsync,
        /// RELEASE.
        release,
        /// OPENDIR.
        opendir,
        /// READDIR and READDIRPLUS.
        readdir,
        /// CREATE.
        create,
        /// MKNOD.
        mknod,
        /// MKDIR.
        mkdir,
        /// UNLINK.
        unlink,
        /// RMDIR.
        rmdir,
        /// RENAME and RENAME2.
        rename,
        /// LINK.
        link,
        /// SYMLINK.
        symlink,
        /// GETXATTR.
        getxattr,
        /// LISTXATTR.
        listxattr,
        /// SETXATTR.
        setxattr,
        /// REMOVEXATTR.
        removexattr,
        /// STATFS.
        statfs,
    }
}

counters! {
    /// Requests from the kernel.
    Operations {
        /// Names looked up.
        lookup,
        /// Requests for attributes.
        getattr,
        /// Directory pages listed.
        readdir,
        /// Directory entries listed.
        entries,
        /// Files opened.
        open,
        /// Read requests.
        read,
        /// Bytes returned to readers.
        read_bytes,
        /// Write requests.
        write,
        /// Bytes in write requests.
        write_bytes,
        /// Files and directories that the kernel has forgotten; chunks count in writable mounts alone.
        forget,
        /// Requests answered with an error other than "no such file".
        errors,
    }
}

counters! {
    /// Chunks decoded for views that show their elements.
    Decoded {
        /// Chunks decoded.
        chunks,
        /// Decoded length of these chunks in bytes.
        bytes,
        /// Chunks found in the cache.
        hits,
    }
}

counters! {
    /// Operations on the source.
    Source {
        /// Files opened.
        open,
        /// Files whose attributes were read.
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
    /// Requests to a store on the network.
    Remote {
        /// Requests sent, repeated ones included.
        requests,
        /// Pages of listings asked for.
        lists,
        /// Bytes fetched.
        bytes,
        /// Bytes of objects that were put.
        bytes_put,
        /// Bytes that the store has copied itself, from one version of an object to the next.
        bytes_copied,
        /// Parts of objects found in the cache on disk.
        cached,
        /// Bytes read from there.
        cached_bytes,
        /// Requests that the store refused because they were too many.
        throttled,
        /// Requests without an answer, or answered by an error of the server, which are repeated.
        lost,
        /// Requests sent once more because their answers were late.
        sent_twice,
        /// Requests that have failed, with all of their repetitions.
        failed,
    }
}

counters! {
    /// Shard indexes.
    Indexes {
        /// Indexes read from shards.
        loads,
        /// Stored length of these indexes in bytes.
        load_bytes,
        /// Indexes found in the cache.
        hits,
        /// Shards found to have changed since their index was read.
        changed,
        /// Shards found to be damaged.
        damaged,
        /// Shards decoded as a whole.
        decoded,
    }
}

counters! {
    /// Chunks pushed into the kernel's page cache before they are requested.
    Ahead {
        /// Chunks pushed.
        chunks,
        /// Bytes pushed.
        bytes,
        /// Bytes pushed that their reader has passed since.
        used_bytes,
    }
}

counters! {
    /// Commits of staged chunks to their shards.
    Commits {
        /// Commits to an array.
        commits,
        /// Chunks committed, including those removed.
        chunks,
        /// Length of these chunks in bytes, for comparison with the bytes written to the source.
        chunk_bytes,
        /// Chunks that could not be committed.
        failed,
    }
}

/// How the kernel's requests reach the mount.
#[derive(Debug)]
pub struct Transport {
    /// `classic` or `uring`.
    pub name: &'static str,
    /// Number of threads that answer requests.
    pub threads: usize,
    /// Length in bytes of the memory that rings share with the kernel; 0 for the classic one.
    pub shared_nbytes: usize,
    /// Why it is the classic one.
    pub why: Option<String>,
}

impl Transport {
    fn to_json(&self) -> serde_json::Value {
        let Self { name, threads, shared_nbytes, why } = self;
        let mut json =
            serde_json::json!({ "name": name, "threads": threads, "shared_bytes": shared_nbytes });
        if let Some(why) = why {
            json["why"] = why.as_str().into();
        }
        json
    }
}

/// How shards are replaced in a store of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacing {
    /// The store assembles the new one of what it has and of what is sent.
    Assembling,
    /// All of the new one is sent.
    Whole,
    /// The same, without a condition: the store keeps to none, and nothing else writes there.
    Unconditionally,
}

impl Replacing {
    /// Returns its name in `stats.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Assembling => "assembled",
            Self::Whole => "whole",
            Self::Unconditionally => "unconditional",
        }
    }
}

/// All counters of a mount.
#[derive(Debug, Default)]
pub struct Stats {
    /// How requests arrive; set when the mount begins.
    pub transport: OnceLock<Transport>,
    /// How shards are replaced; `None` if nothing is written to a store of objects.
    pub replacing: Mutex<Option<Replacing>>,
    /// Requests from the kernel.
    pub operations: Operations,
    /// Times until they were answered.
    pub requests: Requests,
    /// What tells the store that is the source apart from others, if it is one.
    pub address: OnceLock<String>,
    /// Operations on the source.
    pub source: Source,
    /// Times that reads from it have taken.
    pub source_reads: Histogram,
    /// Requests to a store on the network.
    pub remote: Remote,
    /// Times until its answers began.
    pub answers: Histogram,
    /// Shard indexes.
    pub indexes: Indexes,
    /// Decoded chunks.
    pub decoded: Decoded,
    /// Chunks pushed ahead of their readers.
    pub ahead: Ahead,
    /// Commits.
    pub commits: Commits,
    /// When the last chunks were committed; `None` if none were.
    pub last_commit: Mutex<Option<SystemTime>>,
}

impl Stats {
    /// Returns the counters as a JSON object of objects.
    pub fn to_json(&self) -> serde_json::Value {
        let mut remote = self.remote.to_json();
        remote["wait_ms"] = self.answers.milliseconds().into();
        serde_json::json!({
            "transport": self.transport.get().map(Transport::to_json),
            "store": self.replacing.lock().map(|replacing| serde_json::json!({ "shards": replacing.name() })),
            "address": self.address.get(),
            "operations": self.operations.to_json(),
            "source": self.source.to_json(),
            "remote": remote,
            "indexes": self.indexes.to_json(),
            "decoded": self.decoded.to_json(),
            "ahead": self.ahead.to_json(),
            "commits": self.commits.to_json(),
        })
    }

    /// Sets all counters to their maximum.
    #[cfg(test)]
    pub(crate) fn fill(&self) {
        self.operations.fill();
        self.source.fill();
        self.remote.fill();
        self.indexes.fill();
        self.decoded.fill();
        self.ahead.fill();
        self.commits.fill();
        let others = [&self.source_reads, &self.answers];
        self.requests.all().map(|(_, it)| it).chain(others).for_each(Histogram::fill);
    }
}
