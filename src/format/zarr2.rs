//! Translation between Zarr v3 and Zarr v2 metadata: nodes of Zarr v3 as Zarr v2 documents, edits
//! to those back to Zarr v3, and nodes of Zarr v2 as nodes of Zarr v3, existing or new.
//!
//! ```text
//! zarr.json, array   .zarray   shape, chunks, dtype, compressor, filters, fill_value, order
//!                    .zattrs   attributes; dimension_names as _ARRAY_DIMENSIONS, as xarray does
//! zarr.json, group   .zgroup   the format number only
//!                    .zattrs   attributes
//!                    .zmetadata, if its metadata is consolidated: all of these, by path
//! ```
//!
//! The bytes of a chunk are the same in both; keys lose their `c`. Zarr v2, storage specification:
//! <https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>; where it leaves room, this follows
//! what zarr-python 2.18 reads and writes.

mod chain;
mod created;
mod data_type;
mod dimensions;
mod document_names;
mod error;
mod form;
mod from_zarr3;
mod missing;
mod to_zarr3;

pub use self::created::{
    NotStored, created, described, described_paths, may_be_created_with, new_array, new_described,
    new_group,
};
pub use self::document_names::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA, is_document};
pub use self::error::NoForm;
pub use self::form::{Array2, Group2, array, group};
pub use self::from_zarr3::{Shown, back, check_consolidated};
pub use self::missing::{Filled, Missing};
pub use self::to_zarr3::{NoTwin, group_to_zarr3, layout, to_zarr3};

#[cfg(test)]
mod tests;
