//! Names and numbers of what the mount shows: pure arithmetic, no I/O.
//!
//! Every chunk and every directory above chunks has a number in its array ([`tree`]); an inode
//! number is composed of the array's number and that one ([`inode`]). Nothing is stored per chunk.

pub mod inode;
pub mod tree;
