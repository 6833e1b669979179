//! Contents of a source: groups and arrays of every format, found by their documents or by their
//! bytes.
//!
//! Mounts and commands share this module, so they accept the same sources. It only probes and
//! reads; presentation and operations are decided in the layers above.

pub(crate) mod apart;
mod array;
mod blosc2;
mod bloscpack;
mod blz;
mod compact_json;
mod config;
mod document;
mod draft2022;
mod error;
mod found;
mod links;
mod object;
mod open;
mod probe;
mod unfinished;
mod unsupported;
mod walk;
mod wkw;
mod zarr2;
mod zarr3;

pub use self::array::{Array, ArrayFormat};
pub use self::compact_json::CompactJson;
pub use self::config::{Format, OpenConfig, Probe, Unsharded};
pub(crate) use self::document::document_at;
pub use self::document::{METADATA_FILE, NODE_DOCUMENTS, describing, is_document};
pub(crate) use self::error::unfinished;
pub use self::error::{NoTwin, NodeError};
pub use self::found::{Found, FoundArray, FoundKind, Unusable};
pub use self::links::Linked;
pub use self::object::{NoObject, ObjectSource};
pub use self::open::{Documents, NoLevel, OpenError, Source};
pub(crate) use self::unfinished::unfinished_by;
pub use self::unsupported::{Unsupported, is_of_other_format};
pub use self::walk::{BadNode, Node, Nodes, holds_nodes};
