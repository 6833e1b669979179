//! How a source is opened: its format, and what is read of it.

use std::ffi::OsString;

/// Format of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An array or a hierarchy of Zarr v3 or v2.
    Zarr,
    /// A hierarchy of the Zarr v3 draft of 2022.
    Draft2022,
    /// A Bloscpack file.
    Bloscpack,
    /// BLZ or bcolz arrays.
    Blz,
    /// A frame of Blosc2.
    Blosc2,
    /// Data sets of webknossos-wrap.
    Wkw,
}

impl Format {
    /// Names of the formats on the command line.
    pub const NAMES: [(&str, Self); 6] = [
        ("zarr", Self::Zarr),
        ("draft2022", Self::Draft2022),
        ("bloscpack", Self::Bloscpack),
        ("blz", Self::Blz),
        ("blosc2", Self::Blosc2),
        ("wkw", Self::Wkw),
    ];

    /// What the command line accepts: a word for none of them, and [`Self::NAMES`].
    pub const WORDS: [&str; 7] = ["auto", "zarr", "draft2022", "bloscpack", "blz", "blosc2", "wkw"];

    /// Returns the name of the format on the command line.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, format)| *format == self).map_or("auto", |(name, _)| name)
    }

    /// Returns the format of this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }
}

/// Which arrays without shards are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsharded {
    /// None: documents and chunks stay as they are stored.
    AsStored,
    /// Those that are described by Zarr v3: others have the documents that are wanted.
    Described,
    /// All: their chunks are decoded.
    Decoded,
}

/// Recognition of the nodes of a source ([`super::probe`]): what is wanted of them.
#[derive(Debug, Clone)]
pub struct Probe {
    /// File in the source's root that is opened instead of the whole source; `None` opens the
    /// source.
    pub file: Option<OsString>,
    /// Format to read the source as, whatever it contains; `None` detects it.
    pub format: Option<Format>,
    /// Level of nested sharding whose chunks are wanted, 1 being the outermost; `None` for the
    /// innermost.
    pub level: Option<usize>,
    /// Which arrays without shards are read.
    pub unsharded: Unsharded,
    /// `true` if arrays that record their length have room for more chunks.
    pub grows: bool,
    /// `true` if the documents of arrays are kept as they are stored, and those of groups are not
    /// read for more than their kind; `false` if forms of both are made.
    pub keeps_stored: bool,
}

impl Probe {
    /// Returns whether a directory without a `zarr.json` is probed for other documents each time.
    pub fn tries_documents(&self) -> bool {
        let is_zarr2_read = self.unsharded == Unsharded::Decoded && self.may_be(Format::Zarr);
        is_zarr2_read || self.may_be(Format::Blz) || self.may_be(Format::Wkw)
    }

    pub(super) fn may_be(&self, format: Format) -> bool {
        self.format.is_none_or(|wanted| wanted == format)
    }
}

/// Options for opening a source.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenConfig {
    /// Level of nested sharding whose chunks are shown, 1 being the outermost; `None` for the
    /// innermost.
    pub level: Option<usize>,
    /// Format of the source; detected from its contents if `None`.
    pub format: Option<Format>,
    /// `true` if a last chunk that is shorter than the others is padded to full size, as Zarr
    /// readers expect.
    pub pad_edge: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_can_be_named() {
        assert!(Format::NAMES.iter().map(|(name, _)| *name).eq(Format::WORDS.into_iter().skip(1)));
    }
}
