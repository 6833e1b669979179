//! How a source is opened: its format, and what is shown of it.

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
}

impl Format {
    /// Names of the formats on the command line.
    pub const NAMES: [(&str, Self); 4] = [
        ("zarr", Self::Zarr),
        ("draft2022", Self::Draft2022),
        ("bloscpack", Self::Bloscpack),
        ("blz", Self::Blz),
    ];
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
