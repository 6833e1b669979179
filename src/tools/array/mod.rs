//! Creating, resizing and deleting arrays and groups without a mount.
//!
//! Readers see a complete array at any moment: a new one is built aside and exchanged with the old
//! one, a deleted one is moved aside first ([`super::aside`]), and a resize replaces `zarr.json`
//! before it removes chunks. Consolidated metadata above is updated by the same command. In stores of objects
//! ([`stored`]) documents come last and go first.

mod consolidated;
mod create;
mod delete;
mod error;
mod node;
mod resize;
mod stored;

pub(crate) use self::create::{Destination, create};
pub(crate) use self::delete::{Deletion, Kind};
pub(crate) use self::node::check_finished;
pub(crate) use self::resize::{Resize, Resized};
pub(crate) use self::stored::{Stored, StoredDeletion};
