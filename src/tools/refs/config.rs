//! How references are written.

/// Options for writing references.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Path or URL of the source for readers of the references.
    pub base: String,
    /// Prefix of all keys: empty, or a path.
    pub prefix: String,
    /// `true` to write documents of Zarr v2 instead of v3.
    pub zarr2: bool,
    /// Version of the format: 1, or 0 for readers that support no other.
    pub version: Version,
    /// Maximum length in bytes of a chunk that is embedded in the references.
    pub inline: u64,
    /// `true` to continue after a chunk or node that cannot be referenced.
    pub skips: bool,
}

/// Version of the kerchunk format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// Version 0: a single object of references.
    Zero,
    /// Version 1: the references with a template for the common prefix of all paths.
    One,
}
