//! Names and numbers of what the mount shows: pure arithmetic, no I/O.
//!
//! Every chunk and every directory above one has a number in its array ([`tree`]); an inode
//! number is the array's number and that ([`inode`]). Nothing is remembered per chunk.

pub mod inode;
pub mod tree;
