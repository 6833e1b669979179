//! Reading: lookups, attributes, listings and contents, of the source and of the overlay.

pub(super) mod access;
pub(super) mod chunk_listing;
pub(super) mod decoded;
pub(super) mod directory;
pub(super) mod entries;
pub(super) mod grid_listing;
pub(super) mod leftover;
pub(super) mod lister;
pub(super) mod lookup;
pub(super) mod open_handles;
pub(super) mod openers;
pub(super) mod overlay_files;
pub(super) mod overlay_names;
pub(super) mod permitted_lookup;
pub(super) mod presence;
pub(super) mod push;
pub(super) mod reading;
pub(super) mod stored;
pub(super) mod waiting;
