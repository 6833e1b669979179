//! Contents of a source: groups and arrays of every format, found by their documents or by their
//! bytes.
//!
//! Mounts and commands share this module, so they accept the same sources. It only probes and
//! reads; presentation and operations are decided in the layers above.

mod array;
pub mod bloscpack;
pub mod blz;
mod compact_json;
mod config;
mod document;
pub mod draft2022;
mod error;
mod foreign;
mod open;
mod unsupported;
mod walk;
pub mod zarr2;
pub mod zarr3;

pub use self::array::{Array, ArrayFormat};
pub use self::compact_json::CompactJson;
pub use self::config::{Format, OpenConfig};
pub use self::document::{METADATA_FILE, document_at, read_document, read_text};
pub use self::error::NodeError;
pub use self::foreign::Foreign;
pub use self::open::{Documents, OpenError, Source};
pub use self::unsupported::Unsupported;
pub use self::walk::{Node, Nodes, holds_nodes};
