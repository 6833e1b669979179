//! Views: the files shown in place of shards, and the form of each node in a view.

use std::ffi::OsString;

use serde_json::Value;

use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::decoded::{Appearance, DecodedForm};
use crate::format::error::{MetadataError, shape};
use crate::format::flat::FlatForm;
use crate::format::json;
use crate::format::pipeline::{Pipeline, PipelineError};
use crate::format::zarr2::{self, Filled, Missing, NoForm};
use crate::source::NoTwin;

/// Name of an array's metadata where its chunks are not Zarr chunks: a reader of Zarr must not take
/// the absence of chunks for fill values.
const ARRAY_JSON: &str = "array.json";

/// Name of a group's metadata in these views.
const GROUP_JSON: &str = "group.json";

/// Encoding that matches no chunk: no file name ends in a slash.
const NO_CHUNK_FILES: (KeyEncoding, &str) =
    (KeyEncoding { prefix: Prefix::None, separator: Separator::Dot }, "/");

/// Kind of files shown in place of shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// The equivalent unsharded array of Zarr v3.
    #[default]
    Zarr3,
    /// The equivalent unsharded array of Zarr v2.
    Zarr2,
    /// Decoded chunks as NumPy files.
    Npy,
    /// Decoded chunks as raw items.
    Raw,
    /// The whole array as one file.
    Flat,
}

impl View {
    /// Names of the views.
    pub const NAMES: [(&str, Self); 5] = [
        ("zarr3", Self::Zarr3),
        ("zarr2", Self::Zarr2),
        ("npy", Self::Npy),
        ("raw", Self::Raw),
        ("flat", Self::Flat),
    ];

    /// Returns the name of the view.
    pub fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, view)| *view == self).map_or("", |(name, _)| name)
    }

    /// Returns whether the view decodes items, so that an array with unknown codecs is hidden.
    pub fn is_decoded(self) -> bool {
        matches!(self, Self::Npy | Self::Raw | Self::Flat)
    }

    /// Returns the suffix of the names of chunk files.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Npy => ".npy",
            Self::Raw => ".raw",
            Self::Zarr3 | Self::Zarr2 | Self::Flat => "",
        }
    }
}

/// View and its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ViewConfig {
    /// View to show.
    pub view: View,
    /// `true` if it is one of several views of its mount.
    pub is_one_of_several: bool,
    /// `true` if items are in big-endian byte order.
    pub big_endian: bool,
    /// `true` if decoded chunks are clipped at the array's edge.
    pub clip: bool,
    /// Chunks that do not exist but are shown, filled with the fill value.
    pub missing: Missing,
    /// `true` if a written chunk that equals the fill value is stored nevertheless.
    pub keep_fill: bool,
}

/// Form of an array's chunk files.
#[derive(Debug)]
pub enum Form {
    /// Encoded chunks as they are stored.
    Encoded,
    /// Encoded chunks, with one generated for each chunk that does not exist.
    Filled(Box<Filled>),
    /// Decoded chunks.
    Decoded(DecodedForm),
    /// No chunk files: one file of the whole array, in several formats.
    Flat(FlatForm),
}

/// Lengths of the decoded chunks of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// All of them have the same length.
    Equal,
    /// The last one is clipped at the array's edge.
    ShortEnd,
}

/// Array as a view shows it.
pub struct ShownArray {
    /// Key encoding of its chunks.
    pub keys: KeyEncoding,
    /// Suffix of the names of its chunk files.
    pub suffix: &'static str,
    /// Form of its chunk files.
    pub form: Form,
    /// Documents in its directory.
    pub documents: Vec<(OsString, Vec<u8>)>,
    /// `true` if readers that take the fill value for a missing value see other values than in Zarr
    /// v3.
    pub is_misread: bool,
    /// `true` if a chunk that equals the fill value is stored all the same.
    pub keeps_fill: bool,
}

impl ShownArray {
    /// Creates an array whose chunk files are its encoded chunks, with the stored key encoding.
    pub fn as_stored(keys: KeyEncoding) -> Self {
        let (suffix, form, documents) = ("", Form::Encoded, Vec::new());
        Self { keys, suffix, form, documents, is_misread: false, keeps_fill: false }
    }
}

/// Reason why a view cannot show an array.
#[derive(Debug, thiserror::Error)]
pub enum Unshown {
    /// It has no equivalent in Zarr v2.
    #[error("{0}")]
    Zarr2(#[from] NoForm),
    /// It has no equivalent in today's Zarr v3, which is needed to decode its chunks.
    #[error("{0}")]
    NoTwin(#[from] NoTwin),
    /// It cannot be decoded.
    #[error("{0}")]
    Decoded(#[from] PipelineError),
    /// Its shape cannot be used.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
}

impl ViewConfig {
    /// Returns the view of an array with the unsharded metadata `twin` and the chunk key encoding
    /// `keys`.
    pub fn array(
        &self,
        twin: &Value,
        keys: KeyEncoding,
        lengths: Lengths,
    ) -> Result<ShownArray, Unshown> {
        let pipeline = || {
            let pipeline = Pipeline::parse(twin)?;
            Ok::<_, Unshown>(match lengths {
                Lengths::Equal => pipeline,
                Lengths::ShortEnd => pipeline.with_short_end(&extents(twin)?),
            })
        };
        let mut shown = ShownArray::as_stored(keys);
        match self.view {
            View::Zarr3 => return Ok(shown),
            View::Zarr2 => {
                // Formats of one file have no missing chunks.
                let missing = match lengths {
                    Lengths::Equal => self.missing,
                    Lengths::ShortEnd => Missing::Absent,
                };
                let documents = zarr2::array(twin, missing)?;
                shown.is_misread = documents.is_misread;
                if let Some(filled) = documents.filled {
                    shown.form = Form::Filled(Box::new(filled));
                }
                // Keys of Zarr v2 have no prefix.
                shown.keys = KeyEncoding { prefix: Prefix::None, ..keys };
                shown.documents.push((zarr2::ZARRAY.into(), json::to_text(&documents.zarray)));
                let attributes = documents.zattrs.iter();
                shown
                    .documents
                    .extend(attributes.map(|it| (zarr2::ZATTRS.into(), json::to_text(it))));
                return Ok(shown);
            }
            View::Npy | View::Raw => {
                let npy = self.view == View::Npy;
                let appearance = Appearance { npy, big_endian: self.big_endian, clip: self.clip };
                shown.suffix = self.view.suffix();
                let form = DecodedForm::new(pipeline()?, extents(twin)?, appearance);
                shown.form = Form::Decoded(form);
            }
            View::Flat => {
                let form = FlatForm::new(pipeline()?, extents(twin)?, self.big_endian)?;
                shown.documents.extend(form.headers());
                (shown.keys, shown.suffix) = NO_CHUNK_FILES;
                shown.form = Form::Flat(form);
            }
        }
        shown.documents.push((ARRAY_JSON.into(), json::to_text(twin)));
        Ok(shown)
    }

    /// Returns the documents of a group whose metadata, with unsharded twins in it, is `group`. `missing` returns
    /// the policy for an array below it.
    pub fn group(
        &self,
        group: &Value,
        missing: &dyn Fn(&str) -> Missing,
    ) -> Vec<(OsString, Vec<u8>)> {
        match self.view {
            View::Zarr3 => Vec::new(),
            View::Zarr2 => {
                let documents = zarr2::group(group, missing);
                let named = [
                    (zarr2::ZGROUP, Some(documents.zgroup)),
                    (zarr2::ZATTRS, documents.zattrs),
                    (zarr2::ZMETADATA, documents.zmetadata),
                ];
                let there = |(name, document): (&str, Option<Value>)| {
                    Some((name.into(), json::to_text(&document?)))
                };
                named.into_iter().filter_map(there).collect()
            }
            View::Npy | View::Raw | View::Flat => {
                vec![(GROUP_JSON.into(), json::to_text(group))]
            }
        }
    }
}

fn extents(twin: &Value) -> Result<Vec<u64>, MetadataError> {
    shape(twin.get("shape"), "shape")
}
