//! The state of a mounted source: what is known of it, the overlay of uncommitted changes, and the
//! tables of inode numbers and open handles.

pub(super) mod commit_state;
pub(super) mod control_files;
pub(super) mod copy;
pub(super) mod decoded_file;
pub(super) mod failures;
pub(super) mod fill_chunks;
pub(super) mod filling;
pub(super) mod fs;
pub(super) mod handle;
pub(super) mod live_file;
pub(super) mod opener;
pub(super) mod order;
pub(super) mod overlay;
pub(super) mod page_filter;
pub(super) mod page_policy;
pub(super) mod paths;
pub(super) mod prefetch;
pub(super) mod push_queue;
pub(super) mod readahead;
pub(super) mod target;
