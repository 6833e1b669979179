//! What a mount shows in the place of shards: the views, and what each makes of a node.

use std::ffi::OsString;

use serde_json::Value;

use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::decoded::{Appearance, DecodedForm};
use crate::format::draft2022::NoTwin;
use crate::format::error::{MetadataError, shape};
use crate::format::flat::FlatForm;
use crate::format::json;
use crate::format::pipeline::{Pipeline, PipelineError};
use crate::format::zarr2::{self, Filled, Missing, NoForm};

/// Name of an array's metadata where its chunks are no Zarr chunks: no reader of Zarr must take the
/// absence of chunks for fill values.
const ARRAY_JSON: &str = "array.json";
/// The same of a group.
const GROUP_JSON: &str = "group.json";

/// No name ends in a slash, so none is that of a chunk.
const NO_CHUNK_FILES: (KeyEncoding, &str) =
    (KeyEncoding { prefix: Prefix::None, separator: Separator::Dot }, "/");

/// What is shown in the place of shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum View {
    /// The equivalent unsharded array of Zarr v3.
    #[default]
    Zarr3,
    /// The same of Zarr v2.
    Zarr2,
    /// Decoded chunks as NumPy saves them.
    Npy,
    /// Decoded chunks, items alone.
    Raw,
    /// The whole array as one file.
    Flat,
}

impl View {
    /// What views are called.
    pub const NAMES: [(&str, Self); 5] = [
        ("zarr3", Self::Zarr3),
        ("zarr2", Self::Zarr2),
        ("npy", Self::Npy),
        ("raw", Self::Raw),
        ("flat", Self::Flat),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, view)| *view == self).map_or("", |(name, _)| name)
    }

    /// Whether it shows items, so that an array whose codecs are not known is not shown.
    pub fn is_decoded(self) -> bool {
        matches!(self, Self::Npy | Self::Raw | Self::Flat)
    }
}

/// A view and its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ViewConfig {
    /// What is shown.
    pub view: View,
    /// It is one of several of its mount.
    pub is_one_of_several: bool,
    /// Items have their most significant byte first.
    pub big_endian: bool,
    /// Decoded chunks at the array's edge end where it does.
    pub clip: bool,
    /// Which chunks that do not exist are shown as well, made of the fill value.
    pub missing: Missing,
    /// A chunk that is written and equals the fill value is stored all the same.
    pub keep_fill: bool,
}

/// What the chunk files of an array are.
#[derive(Debug)]
pub enum Form {
    /// Encoded chunks as they are stored.
    Encoded,
    /// The same, and one for each chunk that does not exist.
    Filled(Box<Filled>),
    /// Decoded chunks.
    Decoded(DecodedForm),
    /// None: there is one file of the whole array, in several formats.
    Flat(FlatForm),
}

/// How long the chunks of an array are, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// All of them are equally long.
    Equal,
    /// The last one has no more than what lies in the array.
    ShortEnd,
}

/// How a view shows an array.
pub struct ShownArray {
    /// How keys of its chunks are made.
    pub keys: KeyEncoding,
    /// What names of its chunk files end in.
    pub suffix: &'static str,
    /// What its chunk files are.
    pub form: Form,
    /// Documents in its directory.
    pub documents: Vec<(OsString, Vec<u8>)>,
    /// Readers that take the fill value for a missing value see other values than in Zarr v3.
    pub is_misread: bool,
}

impl ShownArray {
    /// An array whose chunk files are its encoded chunks, with keys as they are stored.
    pub fn as_stored(keys: KeyEncoding) -> Self {
        let (suffix, form, documents) = ("", Form::Encoded, Vec::new());
        Self { keys, suffix, form, documents, is_misread: false }
    }
}

/// Why a view cannot show an array.
#[derive(Debug, thiserror::Error)]
pub enum Unshown {
    /// It has no form in Zarr v2.
    #[error("{0}")]
    Zarr2(#[from] NoForm),
    /// It is of Zarr v2 and has no form in Zarr v3, which its chunks are decoded by.
    #[error("{0}")]
    Zarr2Twin(zarr2::NoTwin),
    /// It has no form in today's Zarr v3.
    #[error("{0}")]
    Draft2022(#[from] NoTwin),
    /// It cannot be decoded.
    #[error("{0}")]
    Decoded(#[from] PipelineError),
    /// Nothing says what its items are.
    #[error("its data type is not known")]
    NoMetadata,
    /// Its shape cannot be used.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
}

impl ViewConfig {
    /// How an array is shown whose unsharded twin's metadata is `twin`, with chunk keys like `keys`.
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
                // Formats of one file have no chunks that are missing.
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
                shown.suffix = if npy { ".npy" } else { ".raw" };
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

    /// The documents of a group, whose metadata with unsharded twins in it is `group`.
    pub fn group(&self, group: &Value) -> Vec<(OsString, Vec<u8>)> {
        match self.view {
            View::Zarr3 => Vec::new(),
            View::Zarr2 => {
                let documents = zarr2::group(group, &|_| self.missing);
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
