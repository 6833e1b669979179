//! An array of a source, in whatever format.

use std::ffi::OsStr;
use std::path::PathBuf;

use serde_json::Value;

use super::compact_json::CompactJson;
use crate::store::{Container, SourceArray};

/// An array of a source.
#[derive(Debug)]
pub struct Array {
    /// Where its chunks are.
    pub source: SourceArray,
    /// What it is stored as.
    pub format: ArrayFormat,
    /// Its document, from the source's root, and what is in it, where it has one.
    pub document: Option<(PathBuf, CompactJson)>,
    /// Its metadata as of Zarr v3; None of one that is not sharded, or has no such form.
    pub sharded: Option<CompactJson>,
    /// Metadata of the equivalent unsharded array as of Zarr v3; None if it has no such form.
    pub twin: Option<CompactJson>,
}

/// What an array is stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayFormat {
    /// Zarr v3.
    Zarr3,
    /// Zarr v2.
    Zarr2,
    /// The draft of 2022.
    Draft2022,
    /// A Bloscpack file.
    Bloscpack,
    /// BLZ or bcolz.
    Blz,
}

impl Array {
    /// Metadata of the equivalent unsharded array as of Zarr v3; None if it has no such form.
    pub fn twin(&self) -> Option<Value> {
        self.twin.as_ref().map(CompactJson::value)
    }

    /// Whether each chunk is a file of its own already.
    pub fn is_unsharded(&self) -> bool {
        self.source.container == Container::Chunks
    }

    /// Whether a name in its directory is that of a shard or chunk, or of what stands above them.
    pub fn claims(&self, name: &OsStr) -> bool {
        let layout = &self.source.layout;
        name.to_str().is_some_and(|name| layout.keys.claims(name, layout.rank()))
    }
}
