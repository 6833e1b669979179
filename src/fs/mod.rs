//! Filesystem operations in types of this crate, answered from the view and the store. Nothing here
//! depends on the transport that delivers the requests.
//!
//! The methods of [`Fs`] are in three layers, a folder each: its state, reading, and writing. What
//! is read comes from the overlay of uncommitted changes if that has it, and from the source
//! otherwise. Writing uses reading, and never the other way.

mod as_written;
mod asked;
pub(crate) mod attr;
mod caller;
mod config;
mod continued;
mod created_fills;
mod error;
pub(crate) mod form;
mod load;
mod node;
mod nodes;
mod not_shown;
mod placing;
mod plain_files;
mod ranges;
mod read;
mod request;
mod served;
mod state;
mod views;
mod write;

pub use self::attr::{Attr, Entry, Ownership, now};
pub use self::caller::{Caller, Owner};
pub(crate) use self::config::NewShardsRule;
pub use self::config::{FsConfig, NewShards, WriteConfig};
pub use self::error::{FsError, LoadError, Result};
pub use self::form::{View, ViewConfig};
pub use self::node::NodeKind;
pub use self::read::lister::{DirEntry, Listing};
pub use self::read::push::{PageCache, PushAhead};
pub use self::request::{OpenHow, SetAttr, WriteHow};
pub use self::state::control_files::{
    IN_THE_END, LEFTOVER_PATH, LOG_PATH, LOST_IN_THE_END, TO_BE_SAVED, WAITING_PATH,
};
pub use self::state::fs::{Fs, SourceError};
pub use self::state::handle::Opened;
pub use self::state::page_policy::Pages;
pub use self::views::{Place as ViewPlace, Views};
