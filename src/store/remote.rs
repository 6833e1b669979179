//! Sources on the network: objects of a store, read by requests for ranges of bytes.
//!
//! ```text
//! Storage --- storage: names, opening        StorageFile --- file: one version of an object
//!                |                                              |
//!             directories: listings                          windows: what was fetched
//!             names: what is known, since when                  |  and disk_cache, if there is one
//!                |                                              |
//!                +---------------------- client ----------------+
//!                |    requests, waited for; limits on them; errors
//!             writing: requests that change objects, sent once
//!             objects: what is known after that, and what became of requests without an answer
//!             sent: the ends of objects that were put, where their indexes are
//!             files, whole_file, unstored: files that are written as a whole once they are closed
//!             assembling, multipart, assembler: objects that the store assembles of parts
//!             unfinished: those that were begun and not completed
//!             probe: whether the store keeps several writers apart, and what it can assemble
//!             writing_alone, single_writer: how a store is written to that does not
//! ```
//!
//! A file that is open is one version of an object: each request names its entity tag, and a store
//! that has another version by now says so. Nothing else in this crate is asynchronous, or knows
//! that there is a network.

mod assembler;
mod assembling;
mod attributes;
mod cached_part;
mod client;
mod connection;
mod directories;
mod disk_cache;
mod error;
mod file;
mod files;
mod latency;
mod limits;
mod machine;
mod multipart;
mod named;
mod names;
mod objects;
mod openings;
mod options;
mod patience;
mod probe;
mod probe_parts;
mod profile;
mod reports;
mod sent;
mod single_writer;
mod storage;
mod unfinished;
mod unlisted;
mod unstored;
mod url;
mod whole_file;
mod windows;
mod writing;
mod writing_alone;

pub use self::disk_cache::CacheError;
pub use self::options::{RemoteOptions, SetupError};
pub use self::probe::{Deviation, ProbeError, TRIAL};
pub use self::profile::ProfileError;
pub use self::single_writer::WRITER_NOTE;
pub use self::storage::RemoteStorage;
pub use self::unfinished::UnfinishedUpload;
pub use self::url::{Place, Protocol, SourceUrl, UrlError};
pub use self::whole_file::Check;
