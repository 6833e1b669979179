//! Errors of metadata, and the parsing of numbers that all metadata contains.

use serde_json::Value;

use super::json::JsonError;
use super::limits::MAX_RANK;
use crate::text::count;

/// Error that makes metadata unusable. The message names the member and what it should be.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The document is not valid JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The document is not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// The files of an array without shards are chunks of different lengths.
    #[error("chunk_grid must be regular in an array without shards: others cannot be read here")]
    IrregularChunks,
    /// A required member is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A member has an invalid value.
    #[error("{member} must be {expected}")]
    Invalid {
        /// Name of the member.
        member: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// The version of Zarr is not supported.
    #[error("zarr_format is {0}, only 3 can be read")]
    Format(String),
    /// A member does not have one entry for each dimension of the array.
    #[error("{member} has {}, the array has {}", count(.found, "entry"), count(.rank, "dimension"))]
    Rank {
        /// Name of the member.
        member: &'static str,
        /// Number of its entries.
        found: usize,
        /// Number of dimensions of the array.
        rank: usize,
    },
    /// An inner chunk does not divide its shard.
    #[error("inner chunks of {} do not divide a shard of {shard} along an axis", count(.chunk, "element"))]
    NotDividing {
        /// Length of the inner chunk, in elements.
        chunk: u64,
        /// Length of the shard, in elements.
        shard: u64,
    },
    /// A rectilinear grid ends before the array does.
    #[error("the chunk grid covers {covered} of {} along an axis", count(.extent, "element"))]
    GridTooShort {
        /// Sum of the chunk lengths, in elements.
        covered: u64,
        /// Extent of the array, in elements.
        extent: u64,
    },
    /// A codec before the sharding is unknown and may move chunks.
    #[error("codec {0:?} before sharding_indexed is not known, so chunks cannot be located")]
    UnknownBefore(String),
    /// A codec before the sharding may encode the fill value as another.
    #[error(
        "codec {0:?} before sharding_indexed may change the fill value, so what absent chunks hold is \
         not known"
    )]
    FillBefore(String),
    /// A codec after the sharding is unknown, so it cannot be undone.
    #[error("codec {0:?} after sharding_indexed is not known, so shards cannot be decoded")]
    UnknownAfter(String),
    /// An unknown extension must be understood.
    #[error("extension {0:?} must be understood and is not known")]
    Extension(String),
    /// A document written through the view changes a member that must stay unchanged.
    #[error(
        "{0} cannot be changed through the view; only attributes, shape and dimension_names can"
    )]
    Fixed(String),
    /// A sharded array was put where a view shows another array, or arrays in another form.
    #[error(
        "a sharded array cannot be put here through the view: it shows another array here, which has to be removed \
         first, or arrays in a form that is not that of Zarr v3; `shardfs create`, or any other software, can make \
         it in the source"
    )]
    ShardedThroughView,
    /// A limit of this program is exceeded.
    #[error("too many {what}, the limit is {limit}")]
    Limit {
        /// Unit of the limited number.
        what: &'static str,
        /// Maximum number.
        limit: u64,
    },
}

impl MetadataError {
    pub(crate) fn invalid(member: &'static str, expected: &'static str) -> Self {
        Self::Invalid { member, expected }
    }
}

/// Parses a list of extents.
pub(crate) fn shape(
    value: Option<&Value>,
    member: &'static str,
) -> Result<Vec<u64>, MetadataError> {
    let items = value.ok_or(MetadataError::Missing(member))?;
    let invalid = || MetadataError::invalid(member, "a list of whole numbers from 0 to 2^64-1");
    let items = items.as_array().ok_or_else(invalid)?;
    if items.len() > MAX_RANK {
        return Err(MetadataError::Limit { what: "dimensions", limit: MAX_RANK as u64 });
    }
    items.iter().map(|item| extent(item).ok_or_else(invalid)).collect()
}

/// Parses a whole number; `None` if it is none. Writers in other languages may write it as `4.0`.
pub(crate) fn extent(value: &Value) -> Option<u64> {
    let whole = |number: f64| number >= 0.0 && number.fract() == 0.0 && number < 9e15;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    value.as_u64().or_else(|| value.as_f64().filter(|number| whole(*number)).map(|n| n as u64))
}
