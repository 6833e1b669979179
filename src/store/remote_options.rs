//! How a store on the network is reached: what users can set.

use std::path::PathBuf;
use std::time::Duration;

use super::config::StoreConfig;

/// Time after which a request that has no answer yet fails, with all of its repetitions.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which an answer is late at the earliest.
const HEDGE_AFTER: Duration = Duration::from_secs(1);

/// Requests that may be under way at once.
const REQUESTS: usize = 64;

/// Time for which a name, an index and a listing are believed.
const TRUSTED: Duration = Duration::from_secs(60);

/// Memory for parts of objects that were fetched, in bytes.
const WINDOW_BYTES: usize = 256 << 20;

/// Time after which the only writer of a store says anew that it is there.
const RENEWAL: Duration = Duration::from_secs(60);

/// Time after which its requests without an answer cannot be expected to arrive any more.
const ARRIVAL: Duration = Duration::from_secs(60);

/// Length of a cache on disk, in bytes.
const CACHE_LIMIT: u64 = 10 << 30;

/// How a store is reached.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// Address of a store that is not the provider's own, such as `https://s3.example.org`.
    pub endpoint: Option<String>,
    /// Region of the bucket.
    pub region: Option<String>,
    /// Profile of the AWS command line whose credentials are used.
    pub profile: Option<String>,
    /// Account of Azure Blob Storage.
    pub account: Option<String>,
    /// `true` if requests are not signed.
    pub anonymous: bool,
    /// `true` if the bucket is part of the host's name, not of the path.
    pub virtual_host: bool,
    /// `true` if who asks pays for requests and transfer.
    pub requester_pays: bool,
    /// `true` if nothing else writes there: needed where the store cannot keep writers apart.
    pub single_writer: bool,
    /// Time after which such a writer says anew that it is there. Others believe it for three times as long.
    pub renewal: Duration,
    /// Time after which a request of such a writer that has no answer cannot be expected to arrive any more.
    pub arrival: Duration,
    /// `true` if names are not listed, as on a web server.
    pub unlisted: bool,
    /// `true` if an object that may not be read is one that does not exist.
    pub forbidden_is_absent: bool,
    /// File of certificates, in PEM form, that are accepted besides those of the system.
    pub ca: Option<PathBuf>,
    /// Time after which a request fails.
    pub timeout: Duration,
    /// Time after which, at the earliest, an answer is late: what it answers is asked for once more, on another
    /// connection.
    pub hedge_after: Duration,
    /// Requests that may be under way at once.
    pub requests: usize,
    /// Time for which a name, an index and a listing are believed.
    pub trusted: Duration,
    /// Memory for parts of objects that were fetched, in bytes.
    pub window_bytes: usize,
    /// Directory in which what was fetched is kept, if it is.
    pub cache_dir: Option<PathBuf>,
    /// Length up to which it is kept, in bytes.
    pub cache_limit: u64,
}

impl RemoteOptions {
    /// Returns how a store of shards reads from there.
    pub fn reading(&self) -> StoreConfig {
        StoreConfig {
            trusted: self.trusted / 2,
            longest_window: (self.window_bytes / 8) as u64,
            ..StoreConfig::default()
        }
    }
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            profile: None,
            account: None,
            anonymous: false,
            virtual_host: false,
            requester_pays: false,
            single_writer: false,
            renewal: RENEWAL,
            arrival: ARRIVAL,
            unlisted: false,
            forbidden_is_absent: false,
            ca: None,
            timeout: TIMEOUT,
            hedge_after: HEDGE_AFTER,
            requests: REQUESTS,
            trusted: TRUSTED,
            window_bytes: WINDOW_BYTES,
            cache_dir: None,
            cache_limit: CACHE_LIMIT,
        }
    }
}
