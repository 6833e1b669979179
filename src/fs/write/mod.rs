//! Writing, by means of reading: names, contents, documents and attributes; their commits; opening
//! and closing.

pub(super) mod authors;
pub(super) mod content;
pub(super) mod document;
pub(super) mod document_removal;
pub(super) mod document_store;
pub(super) mod document_zarr2;
pub(super) mod gathering;
pub(super) mod intervals;
pub(super) mod links;
pub(super) mod live_names;
pub(super) mod names;
pub(super) mod new_array;
pub(super) mod new_zarr2;
pub(super) mod opening;
pub(super) mod passthrough;
pub(super) mod pending;
pub(super) mod publish;
pub(super) mod recover_unsaved;
pub(super) mod rename;
pub(super) mod setattr;
pub(super) mod slot;
pub(super) mod staging;
pub(super) mod sync;
pub(super) mod unsaved;
pub(super) mod xattr;
