//! A whole array as one file: mapping of byte offsets to chunks.
//!
//! ```text
//! array.raw    all items, C order
//! array.npy    header of NumPy, then the same
//! array.mhd    MetaImage header that names array.raw (ITK, ParaView, Fiji)
//! array.nhdr   NRRD header that names array.raw (Slicer, ITK-SNAP)
//!
//! a byte of the items  ->  row of the array (its last axis), position in the row
//!                      ->  chunks along the row, position in each
//! ```

use std::ffi::OsString;
use std::ops::{Deref, Range};

use crate::number::to_usize;

use super::decoded::turn_around;
use super::error::MetadataError;
use super::grid::unravel;
use super::npy::Header;
use super::pipeline::Pipeline;

/// Maximum length of a file, in bytes: the largest offset that the system can seek to.
const MAX_FILE_BYTES: u64 = i64::MAX as u64;
/// Maximum number of axes in NRRD.
const NRRD_AXES: usize = 16;

/// File that holds a whole array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlatFile {
    /// Items after a NumPy header.
    Npy,
    /// Items only.
    Raw,
}

impl FlatFile {
    /// All files, indexed by their numbers.
    pub const ALL: [Self; 2] = [Self::Npy, Self::Raw];

    /// Name of the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Npy => "array.npy",
            Self::Raw => RAW_NAME,
        }
    }
}

const RAW_NAME: &str = "array.raw";

/// Presentation of one array as a file.
#[derive(Debug)]
pub struct FlatForm {
    pipeline: Pipeline,
    shape: Vec<u64>,
    /// Number of chunks along each axis.
    grid: Vec<u64>,
    big_endian: bool,
    npy_header: Vec<u8>,
    /// Length of all items in bytes.
    nbytes: u64,
}

/// Decoded chunks along the last axis; `None` stands for a chunk of fill values.
pub type ChunkRow<C> = Vec<Option<C>>;

/// Callback that returns the chunks in a range along the last axis. The slice holds their other
/// coordinates.
pub type Chunks<'a, C, E> = dyn FnMut(&[u64], Range<u64>) -> Result<ChunkRow<C>, E> + 'a;

impl FlatForm {
    /// Creates the file of an array of `shape` whose chunks are decoded by `pipeline`.
    pub fn new(
        pipeline: Pipeline,
        shape: Vec<u64>,
        big_endian: bool,
    ) -> Result<Self, MetadataError> {
        let descr = pipeline.data_type().descr(big_endian);
        let header = Header { descr, fortran_order: false, shape: shape.clone() };
        let npy_header = header.to_bytes();
        let item = pipeline.data_type().nbytes() as u64;
        let items = match shape.contains(&0) {
            true => Some(0),
            false => shape.iter().try_fold(1_u64, |items, extent| items.checked_mul(*extent)),
        };
        let nbytes = items.and_then(|items| items.checked_mul(item));
        let fits = |nbytes: &u64| {
            nbytes.checked_add(npy_header.len() as u64).is_some_and(|all| all <= MAX_FILE_BYTES)
        };
        let nbytes = nbytes
            .filter(fits)
            .ok_or(MetadataError::Limit { what: "bytes for one file", limit: MAX_FILE_BYTES })?;
        let axes = shape.iter().zip(pipeline.chunk_shape());
        let grid = axes.map(|(extent, chunk)| extent.div_ceil((*chunk).max(1))).collect();
        Ok(Self { pipeline, shape, grid, big_endian, npy_header, nbytes })
    }

    /// Codecs of the array's chunks.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Number of chunks along each axis.
    pub fn grid(&self) -> &[u64] {
        &self.grid
    }

    /// Returns the bytes before the items.
    pub fn header(&self, file: FlatFile) -> &[u8] {
        match file {
            FlatFile::Npy => &self.npy_header,
            FlatFile::Raw => &[],
        }
    }

    /// Length of a file in bytes.
    pub fn nbytes(&self, file: FlatFile) -> u64 {
        self.nbytes + self.header(file).len() as u64
    }

    /// Returns headers for programs that read images, each with the name of its file. Formats that
    /// cannot describe the array are left out.
    pub fn headers(&self) -> Vec<(OsString, Vec<u8>)> {
        let headers = [("array.mhd", self.metaimage()), ("array.nhdr", self.nrrd())];
        headers.into_iter().filter_map(|(name, text)| Some((name.into(), text?.into()))).collect()
    }

    /// Returns NumPy's name of the data type without the byte order.
    fn letters(&self) -> String {
        self.pipeline.data_type().descr(false).split_off(1)
    }

    /// Returns the extents, that of the fastest axis first; `None` if there is no axis or an extent
    /// is 0.
    fn fastest_first(&self) -> Option<Vec<String>> {
        let is_image = !self.shape.is_empty() && !self.shape.contains(&0);
        is_image.then(|| self.shape.iter().rev().map(u64::to_string).collect())
    }

    fn metaimage(&self) -> Option<String> {
        let letters = self.letters();
        let (kind, channels) = match letters.as_str() {
            "b1" | "u1" => ("UCHAR", 1),
            "i1" => ("CHAR", 1),
            "i2" => ("SHORT", 1),
            "u2" => ("USHORT", 1),
            "i4" => ("INT", 1),
            "u4" => ("UINT", 1),
            "i8" => ("LONG_LONG", 1),
            "u8" => ("ULONG_LONG", 1),
            "f4" => ("FLOAT", 1),
            "f8" => ("DOUBLE", 1),
            "c8" => ("FLOAT", 2),
            "c16" => ("DOUBLE", 2),
            _ => return None,
        };
        let extents = self.fastest_first()?;
        let order = if self.big_endian { "True" } else { "False" };
        let channels = match channels {
            1 => String::new(),
            channels => format!("ElementNumberOfChannels = {channels}\n"),
        };
        Some(format!(
            "ObjectType = Image\nNDims = {}\nBinaryData = True\nBinaryDataByteOrderMSB = {order}\n\
             CompressedData = False\nDimSize = {}\n{channels}ElementType = MET_{kind}\n\
             ElementDataFile = {RAW_NAME}\n",
            extents.len(),
            extents.join(" "),
        ))
    }

    fn nrrd(&self) -> Option<String> {
        let letters = self.letters();
        let (kind, parts) = match letters.as_str() {
            "b1" | "u1" => ("uint8", 1),
            "i1" => ("int8", 1),
            "i2" => ("int16", 1),
            "u2" => ("uint16", 1),
            "i4" => ("int32", 1),
            "u4" => ("uint32", 1),
            "i8" => ("int64", 1),
            "u8" => ("uint64", 1),
            "f4" => ("float", 1),
            "f8" => ("double", 1),
            "c8" => ("float", 2),
            "c16" => ("double", 2),
            _ => return None,
        };
        let mut extents = self.fastest_first()?;
        if parts > 1 {
            extents.insert(0, parts.to_string());
        }
        if extents.len() > NRRD_AXES {
            return None;
        }
        let order = if self.big_endian { "big" } else { "little" };
        Some(format!(
            "NRRD0004\ntype: {kind}\ndimension: {}\nsizes: {}\nendian: {order}\nencoding: raw\n\
             data file: {RAW_NAME}\n",
            extents.len(),
            extents.join(" "),
        ))
    }

    /// Reads from a file at `offset` and returns the number of bytes, which is less than the length
    /// of `buffer` only at the end of the file. `chunks` is called for decoded chunks as they are
    /// needed: those of a row of chunks at once, but at most `most`.
    pub fn read<C: Deref<Target: AsRef<[u8]>>, E>(
        &self,
        file: FlatFile,
        offset: u64,
        buffer: &mut [u8],
        most: u64,
        chunks: &mut Chunks<'_, C, E>,
    ) -> Result<usize, E> {
        let header = self.header(file);
        let left = to_usize(self.nbytes(file).saturating_sub(offset));
        let length = buffer.len().min(left);
        let buffer = &mut buffer[..length];
        let of_header = header.get(to_usize(offset)..);
        let of_header = of_header.unwrap_or_default();
        let (before, items) = buffer.split_at_mut(of_header.len().min(length));
        before.copy_from_slice(&of_header[..before.len()]);
        if !items.is_empty() {
            self.read_items(
                offset.saturating_sub(header.len() as u64),
                items,
                most.max(1),
                chunks,
            )?;
        }
        Ok(length)
    }

    /// Reads items from `offset` within all items. The buffer must not extend beyond them.
    fn read_items<C: Deref<Target: AsRef<[u8]>>, E>(
        &self,
        offset: u64,
        buffer: &mut [u8],
        most: u64,
        chunks: &mut Chunks<'_, C, E>,
    ) -> Result<(), E> {
        let word = self.pipeline.data_type().word();
        if !self.big_endian || word == 1 {
            return self.read_rows(offset, buffer, most, chunks);
        }
        // Whole words are read, because their bytes are reversed.
        let skipped = to_usize(offset % word as u64);
        let mut words = vec![0; (skipped + buffer.len()).next_multiple_of(word)];
        self.read_rows(offset - skipped as u64, &mut words, most, chunks)?;
        turn_around(&mut words, word);
        buffer.copy_from_slice(&words[skipped..skipped + buffer.len()]);
        Ok(())
    }

    fn read_rows<C: Deref<Target: AsRef<[u8]>>, E>(
        &self,
        offset: u64,
        buffer: &mut [u8],
        most: u64,
        chunks: &mut Chunks<'_, C, E>,
    ) -> Result<(), E> {
        let item = self.pipeline.data_type().nbytes() as u64;
        let chunk_shape = self.pipeline.chunk_shape();
        // An array without axes is one row of one item.
        let (above, last) = self.shape.split_at(self.shape.len().saturating_sub(1));
        let row_bytes = last.first().unwrap_or(&1) * item;
        let edge = chunk_shape.last().copied().unwrap_or(1) * item;
        let end = offset + buffer.len() as u64;
        let mut held = Held { place: Vec::new(), range: 0..0, row: Vec::new() };
        let (mut at, mut rest) = (offset, buffer);
        while !rest.is_empty() {
            let (row, within) = (at / row_bytes, at % row_bytes);
            let first = within / edge;
            let group = first - first % most;
            let group = group..group.saturating_add(most).min(row_bytes.div_ceil(edge));
            let group_end = group.end.saturating_mul(edge).min(row_bytes);
            let length = (group_end - within).min(rest.len() as u64);
            let (place, start) = place_in_chunks(&unravel(row, above), chunk_shape);
            let needed = first..(within + length).div_ceil(edge);
            if !held.covers(&place, &needed) {
                // More rows follow, so all chunks of the group are requested at once.
                let range = if end - at > row_bytes { group } else { needed };
                held.row.clear();
                let row = chunks(&place, range.clone())?;
                held = Held { place, range, row };
            }
            let (now, later) = rest.split_at_mut(to_usize(length));
            self.copy_row(&held, within, start * edge, edge, now);
            (at, rest) = (at + length, later);
        }
        Ok(())
    }

    /// Copies the part of a row that starts at `within` from its chunks. `start` is the offset of
    /// the row in each chunk; all offsets are in bytes.
    fn copy_row<C: Deref<Target: AsRef<[u8]>>>(
        &self,
        held: &Held<C>,
        within: u64,
        start: u64,
        edge: u64,
        buffer: &mut [u8],
    ) {
        let (mut at, mut rest) = (within, buffer);
        while !rest.is_empty() {
            let (chunk, inside) = (at / edge, at % edge);
            let length = (edge - inside).min(rest.len() as u64);
            let (now, later) = rest.split_at_mut(to_usize(length));
            let from = to_usize(start + inside);
            let bytes = held.chunk(chunk).and_then(|bytes| bytes.get(from..from + now.len()));
            match bytes {
                Some(bytes) => now.copy_from_slice(bytes),
                None => self.fill(to_usize(inside), now),
            }
            (at, rest) = (at + length, later);
        }
    }

    /// Fills `buffer`, which starts `inside` bytes into the row of a chunk, with the fill value.
    fn fill(&self, inside: usize, buffer: &mut [u8]) {
        let fill = self.pipeline.fill();
        match fill.iter().all(|byte| Some(byte) == fill.first()) {
            true => buffer.fill(fill.first().copied().unwrap_or(0)),
            false => {
                let bytes = fill.iter().cycle().skip(inside % fill.len());
                buffer.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
            }
        }
    }
}

/// Chunks along the last axis, as returned by the callback.
struct Held<C> {
    /// The other coordinates of the chunks.
    place: Vec<u64>,
    range: Range<u64>,
    row: ChunkRow<C>,
}

impl<C: Deref<Target: AsRef<[u8]>>> Held<C> {
    fn covers(&self, place: &[u64], range: &Range<u64>) -> bool {
        self.place == place && self.range.start <= range.start && range.end <= self.range.end
    }

    fn chunk(&self, number: u64) -> Option<&[u8]> {
        let at = to_usize(number.checked_sub(self.range.start)?);
        self.row.get(at)?.as_deref().map(AsRef::as_ref)
    }
}

/// Returns the coordinates of the chunks that hold a row of the array, and the number of the row in
/// them.
fn place_in_chunks(coords: &[u64], chunk_shape: &[u64]) -> (Vec<u64>, u64) {
    let mut row = 0;
    let mut place = Vec::with_capacity(coords.len());
    for (coord, chunk) in coords.iter().zip(chunk_shape) {
        place.push(coord / chunk);
        row = row * chunk + coord % chunk;
    }
    (place, row)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn form(shape: &[u64], chunk: &[u64], data_type: &str, big_endian: bool) -> FlatForm {
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape,
            "data_type": data_type, "fill_value": 258,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]});
        let pipeline = Pipeline::parse(&document).unwrap();
        FlatForm::new(pipeline, shape.to_vec(), big_endian).unwrap()
    }

    /// Chunk of an array whose items are numbered; every fifth chunk does not exist.
    fn chunk_of(form: &FlatForm, coords: &[u64]) -> Option<Arc<[u8]>> {
        if coords.iter().sum::<u64>() % 5 == 4 {
            return None;
        }
        let chunk = form.pipeline.chunk_shape();
        let count: u64 = chunk.iter().product();
        let item = |place| {
            let within = unravel(place, chunk);
            let axes = coords.iter().zip(chunk).zip(&within).zip(&form.shape);
            let number = axes.fold(0, |number, (((coord, chunk), within), extent)| {
                number * extent + coord * chunk + within
            });
            u16::try_from(number % 60_000).unwrap().to_le_bytes()
        };
        Some((0..count).flat_map(item).collect())
    }

    fn whole(form: &FlatForm) -> Vec<u8> {
        let count: u64 = form.shape.iter().product();
        let item = |place| {
            let coords = unravel(place, &form.shape);
            let axes = coords.iter().zip(form.pipeline.chunk_shape());
            let chunk: u64 = axes.map(|(coord, chunk)| coord / chunk).sum();
            let number = if chunk % 5 == 4 { 258 } else { u16::try_from(place % 60_000).unwrap() };
            if form.big_endian { number.to_be_bytes() } else { number.to_le_bytes() }
        };
        (0..count).flat_map(item).collect()
    }

    fn read(form: &FlatForm, file: FlatFile, most: u64, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; length];
        let rank_0 = form.shape.is_empty();
        let mut chunks = |place: &[u64], range: Range<u64>| {
            let coords = |last| if rank_0 { vec![] } else { [place, &[last]].concat() };
            Ok::<_, Infallible>(range.map(|last| chunk_of(form, &coords(last))).collect())
        };
        let read = form.read(file, offset, &mut buffer, most, &mut chunks).unwrap();
        buffer.truncate(read);
        buffer
    }

    proptest! {
        #[test]
        fn every_part_of_the_file_is_that_of_the_array(
            axes in prop::collection::vec((1_u64..7, 1_u64..5), 0..4),
            big_endian: bool, at in 0.0..1.1_f64, most in 1_u64..5, length in 0_usize..400,
        ) {
            let (shape, chunk): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
            let form = form(&shape, &chunk, "uint16", big_endian);
            let all = whole(&form);
            prop_assert_eq!(form.nbytes(FlatFile::Raw), all.len() as u64);
            prop_assert_eq!(read(&form, FlatFile::Raw, most, 0, all.len() + 1), &all[..]);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
            let from = (at * all.len() as f64) as usize;
            let expected = all.get(from..).unwrap_or_default();
            let part = read(&form, FlatFile::Raw, most, from as u64, length);
            prop_assert_eq!(&part, &expected[..expected.len().min(length)]);
            let npy = [form.header(FlatFile::Npy), &all].concat();
            prop_assert_eq!(read(&form, FlatFile::Npy, most, from as u64, length + 200),
                &npy[from..(from + length + 200).min(npy.len())]);
        }
    }

    #[test]
    fn headers_name_the_raw_file() {
        let text = |form: FlatForm, at: usize| {
            form.headers().get(at).map(|(_, text)| String::from_utf8(text.clone()).unwrap())
        };
        let image = || form(&[5, 40, 30], &[2, 2, 2], "uint16", false);
        assert_eq!(
            text(image(), 0).unwrap(),
            "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n\
             CompressedData = False\nDimSize = 30 40 5\nElementType = MET_USHORT\n\
             ElementDataFile = array.raw\n"
        );
        assert_eq!(
            text(image(), 1).unwrap(),
            "NRRD0004\ntype: uint16\ndimension: 3\nsizes: 30 40 5\nendian: little\nencoding: raw\n\
             data file: array.raw\n"
        );
        assert_eq!(text(form(&[], &[], "uint16", false), 0), None);
        assert_eq!(text(form(&[0], &[1], "uint16", false), 0), None);
    }

    #[test]
    fn an_array_beyond_what_can_be_sought_in_is_refused() {
        let pipeline = |shape: &[u64]| {
            let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape,
                "data_type": "uint16", "fill_value": 0,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
                "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]});
            FlatForm::new(Pipeline::parse(&document).unwrap(), shape.to_vec(), false)
        };
        assert_eq!(pipeline(&[(1 << 62) - 128]).unwrap().nbytes(FlatFile::Npy), (1 << 63) - 128);
        for extent in [1 << 62, u64::MAX] {
            let error = pipeline(&[extent]).unwrap_err().to_string();
            assert_eq!(error, "too many bytes for one file, the limit is 9223372036854775807");
        }
    }
}
