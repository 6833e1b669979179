//! Chunk files that hold items instead of encoded chunks: `.npy` and raw.
//!
//! ```text
//! encoded chunk  --Pipeline-->  items: the whole chunk, C order, little-endian
//!                               |  clipped at the array's shape, if requested
//!                               |  byte-swapped, if big-endian is requested
//!                               v
//! file           =  header (.npy) or nothing,  items
//! ```
//!
//! The reverse is the same: a file written to the view becomes a whole chunk, or is refused.

use super::npy::{Header, NpyError};
use super::pipeline::Pipeline;
use crate::number::to_usize;
use crate::text::count;

/// Format of chunk files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appearance {
    /// `true` if a NumPy header precedes the items.
    pub npy: bool,
    /// `true` if items are big-endian.
    pub big_endian: bool,
    /// `true` if chunks are clipped at the shape of the array.
    pub clip: bool,
}

/// Presentation of the chunks of one array as files.
#[derive(Debug)]
pub struct DecodedForm {
    pipeline: Pipeline,
    /// Shape of the array in items.
    shape: Vec<u64>,
    appearance: Appearance,
}

/// Error converting a written file to a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrittenError {
    /// The header is invalid.
    #[error(transparent)]
    Npy(#[from] NpyError),
    /// The items have another data type.
    #[error("its items are {found:?}, those of the array {expected:?}")]
    DataType {
        /// Data type in the header.
        found: String,
        /// Data type of the array.
        expected: String,
    },
    /// The shape is not that of the chunk.
    #[error("its shape is {found:?}, that of the chunk {expected:?}")]
    Shape {
        /// Shape in the header.
        found: Vec<u64>,
        /// Shape of the chunk's file.
        expected: Vec<u64>,
    },
    /// The length is not that of the chunk's items.
    #[error("it has {} of items, the chunk has {expected}", count(.found, "byte"))]
    Length {
        /// Number of bytes after the header.
        found: u64,
        /// Expected number of bytes.
        expected: u64,
    },
}

impl DecodedForm {
    /// Creates the presentation of the chunks of an array of `shape`, which are decoded by
    /// `pipeline`.
    pub fn new(pipeline: Pipeline, shape: Vec<u64>, appearance: Appearance) -> Self {
        Self { pipeline, shape, appearance }
    }

    /// Codecs of the array's chunks.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Shape of the array in items.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the shape of the part of a chunk that its file shows.
    pub fn extents(&self, coords: &[u64]) -> Vec<u64> {
        let chunk = self.pipeline.chunk_shape();
        if !self.appearance.clip {
            return chunk.to_vec();
        }
        let axes = chunk.iter().zip(coords).zip(&self.shape);
        axes.map(|((chunk, coord), shape)| {
            shape.saturating_sub(coord.saturating_mul(*chunk)).min(*chunk)
        })
        .collect()
    }

    /// Returns the bytes before the items in a chunk's file.
    pub fn header(&self, coords: &[u64]) -> Vec<u8> {
        if !self.appearance.npy {
            return Vec::new();
        }
        let descr = self.pipeline.data_type().descr(self.appearance.big_endian);
        Header { descr, fortran_order: false, shape: self.extents(coords) }.to_bytes()
    }

    /// Length of a chunk's file in bytes.
    pub fn nbytes(&self, coords: &[u64]) -> u64 {
        self.header(coords).len() as u64 + self.items_nbytes(coords)
    }

    fn items_nbytes(&self, coords: &[u64]) -> u64 {
        // At most a whole chunk, whose length is limited.
        let items: u64 = self.extents(coords).iter().product();
        items * self.pipeline.data_type().nbytes() as u64
    }

    /// Converts a decoded chunk to the items in its file; `None` if they are the same bytes.
    pub fn items(&self, coords: &[u64], chunk: &[u8]) -> Option<Vec<u8>> {
        let extents = self.extents(coords);
        let is_whole = extents == self.pipeline.chunk_shape();
        if is_whole && !self.turns_around() {
            return None;
        }
        let mut items = if is_whole {
            chunk.to_vec()
        } else {
            let length = to_usize(self.items_nbytes(coords));
            let mut items = vec![0; length];
            let item = self.pipeline.data_type().nbytes();
            copy_corner(chunk, self.pipeline.chunk_shape(), &mut items, &extents, &extents, item);
            items
        };
        if self.turns_around() {
            turn_around(&mut items, self.pipeline.data_type().word());
        }
        Some(items)
    }

    fn turns_around(&self) -> bool {
        self.appearance.big_endian && self.pipeline.data_type().word() > 1
    }

    /// Returns a chunk of fill values.
    pub fn filled(&self) -> Vec<u8> {
        self.pipeline.fill().repeat(
            self.pipeline.nbytes().checked_div(self.pipeline.data_type().nbytes()).unwrap_or(0),
        )
    }

    /// Converts the file of a chunk to the whole chunk, C order and little-endian. Items beyond a
    /// clipped file are filled with the fill value.
    pub fn chunk(&self, coords: &[u64], file: &[u8]) -> Result<Vec<u8>, WrittenError> {
        let extents = self.extents(coords);
        let data_type = self.pipeline.data_type();
        let (mut big_endian, mut fortran_order, mut from) = (self.appearance.big_endian, false, 0);
        if self.appearance.npy {
            let (header, start) = Header::parse(file)?;
            // NumPy has no byte order for types that it does not have, and leaves their bytes as they
            // were shown.
            if !header.descr.starts_with('|') {
                big_endian = header.descr.starts_with('>');
            }
            // NumPy also writes `=`, and any byte order for items that have none.
            let kind = |descr: &str| descr.trim_start_matches(['<', '>', '|', '=']).to_owned();
            if kind(&header.descr) != kind(&data_type.descr(false)) {
                let expected = data_type.descr(self.appearance.big_endian);
                return Err(WrittenError::DataType { found: header.descr, expected });
            }
            if header.shape != extents {
                return Err(WrittenError::Shape { found: header.shape, expected: extents });
            }
            (fortran_order, from) = (header.fortran_order, start);
        }
        let items = file.get(from..).unwrap_or_default();
        let (found, expected) = (items.len() as u64, self.items_nbytes(coords));
        if found != expected {
            return Err(WrittenError::Length { found, expected });
        }
        let mut items = match fortran_order && extents.len() > 1 {
            true => c_order(items, &extents, data_type.nbytes()),
            false => items.to_vec(),
        };
        if big_endian && data_type.word() > 1 {
            turn_around(&mut items, data_type.word());
        }
        let whole = self.pipeline.chunk_shape();
        if extents == whole {
            return Ok(items);
        }
        let mut chunk = self.filled();
        copy_corner(&items, &extents, &mut chunk, whole, &extents, data_type.nbytes());
        Ok(chunk)
    }
}

/// Reverses the bytes of each word.
pub(crate) fn turn_around(items: &mut [u8], word: usize) {
    items.chunks_exact_mut(word.max(1)).for_each(<[u8]>::reverse);
}

/// Copies the corner of `extents` from one array of items to another, both in C order.
fn copy_corner(
    from: &[u8],
    from_shape: &[u64],
    to: &mut [u8],
    to_shape: &[u64],
    extents: &[u64],
    item: usize,
) {
    let small = |number: &u64| to_usize(*number);
    let (Some((_, above)), Some(last)) = (extents.split_last(), extents.last().map(small)) else {
        return to.copy_from_slice(from);
    };
    let rows: usize = above.iter().map(small).product();
    for row in 0..rows {
        let (mut rest, mut from_at, mut to_at) = (row, 0, 0);
        let (mut from_step, mut to_step) =
            (from_shape.last().map_or(1, small), to_shape.last().map_or(1, small));
        for (axis, extent) in above.iter().enumerate().rev() {
            let (place, extent) = (rest % small(extent), small(extent));
            rest /= extent;
            from_at += place * from_step;
            to_at += place * to_step;
            from_step *= small(&from_shape[axis]);
            to_step *= small(&to_shape[axis]);
        }
        let (from_at, to_at, length) = (from_at * item, to_at * item, last * item);
        to[to_at..to_at + length].copy_from_slice(&from[from_at..from_at + length]);
    }
}

/// Reorders items from an array whose first axis varies fastest to C order.
fn c_order(items: &[u8], extents: &[u64], item: usize) -> Vec<u8> {
    let mut ordered = Vec::with_capacity(items.len());
    let small = |number: &u64| to_usize(*number);
    let count: usize = extents.iter().map(small).product();
    for place in 0..count {
        let (mut rest, mut coords) = (place, vec![0; extents.len()]);
        for (coord, extent) in coords.iter_mut().zip(extents).rev() {
            *coord = rest % small(extent);
            rest /= small(extent);
        }
        let axes = coords.iter().zip(extents).rev();
        let at = axes.fold(0, |at, (coord, extent)| at * small(extent) + coord) * item;
        ordered.extend_from_slice(&items[at..at + item]);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(shape: &[u64], appearance: Appearance) -> DecodedForm {
        form_of("uint16", shape, appearance)
    }

    fn form_of(data_type: &str, shape: &[u64], appearance: Appearance) -> DecodedForm {
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape,
            "data_type": data_type, "fill_value": 7,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
            "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]});
        DecodedForm::new(Pipeline::parse(&document).unwrap(), shape.to_vec(), appearance)
    }

    fn numbers(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    const RAW: Appearance = Appearance { npy: false, big_endian: false, clip: false };

    #[test]
    fn whole_chunks_are_shown_as_they_are() {
        let form = form(&[3, 4], RAW);
        assert_eq!((form.extents(&[1, 1]), form.nbytes(&[1, 1])), (vec![2, 3], 12));
        assert_eq!(form.items(&[1, 1], &numbers(&[1, 2, 3, 4, 5, 6])), None);
        assert_eq!(form.filled(), numbers(&[7; 6]));
    }

    #[test]
    fn edges_are_clipped_and_filled_up_again() {
        let form = form(&[3, 4], Appearance { clip: true, ..RAW });
        assert_eq!((form.extents(&[0, 1]), form.nbytes(&[0, 1])), (vec![2, 1], 4));
        assert_eq!((form.extents(&[1, 0]), form.nbytes(&[1, 0])), (vec![1, 3], 6));
        let chunk = numbers(&[1, 2, 3, 4, 5, 6]);
        assert_eq!(form.items(&[0, 0], &chunk), None);
        assert_eq!(form.items(&[0, 1], &chunk), Some(numbers(&[1, 4])));
        assert_eq!(form.items(&[1, 0], &chunk), Some(numbers(&[1, 2, 3])));
        assert_eq!(form.chunk(&[0, 1], &numbers(&[1, 4])), Ok(numbers(&[1, 7, 7, 4, 7, 7])));
    }

    #[test]
    fn big_endian_items_are_turned_around_both_ways() {
        let form = form(&[2, 3], Appearance { big_endian: true, ..RAW });
        let (chunk, file) =
            (numbers(&[1, 2, 3, 4, 5, 6]), numbers(&[1, 2, 3, 4, 5, 6].map(u16::swap_bytes)));
        assert_eq!(form.items(&[0, 0], &chunk).as_ref(), Some(&file));
        assert_eq!(form.chunk(&[0, 0], &file), Ok(chunk));
    }

    #[test]
    fn a_file_of_numpy_in_any_order_becomes_a_chunk() {
        let form = form(&[2, 3], Appearance { npy: true, ..RAW });
        let file = |descr: &str, fortran_order, items: &[u16]| {
            let header = Header { descr: descr.to_owned(), fortran_order, shape: vec![2, 3] };
            [header.to_bytes(), numbers(items)].concat()
        };
        let chunk = numbers(&[1, 2, 3, 4, 5, 6]);
        assert_eq!(form.header(&[0, 0]), file("<u2", false, &[]));
        assert_eq!(form.nbytes(&[0, 0]), 128 + 12);
        let good = [
            file("<u2", false, &[1, 2, 3, 4, 5, 6]),
            file("<u2", true, &[1, 4, 2, 5, 3, 6]),
            file(">u2", false, &[1, 2, 3, 4, 5, 6].map(u16::swap_bytes)),
        ];
        for file in good {
            assert_eq!(form.chunk(&[0, 0], &file).as_ref(), Ok(&chunk));
        }
    }

    #[test]
    fn items_without_a_byte_order_are_read_in_the_one_that_is_shown() {
        for big_endian in [false, true] {
            let form = form_of("bfloat16", &[2, 3], Appearance { npy: true, big_endian, ..RAW });
            let chunk = numbers(&[1, 2, 3, 4, 5, 6]);
            let items = form.items(&[0, 0], &chunk).unwrap_or_else(|| chunk.clone());
            // As NumPy saves what it has loaded from `>V2`.
            let header =
                Header { descr: "|V2".to_owned(), fortran_order: false, shape: vec![2, 3] };
            let saved = [header.to_bytes(), items.clone()].concat();
            assert_eq!(form.chunk(&[0, 0], &saved).as_ref(), Ok(&chunk));
            let shown = [form.header(&[0, 0]), items].concat();
            assert_eq!(form.chunk(&[0, 0], &shown).as_ref(), Ok(&chunk));
        }
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        let npy = form(&[2, 3], Appearance { npy: true, ..RAW });
        let file = |descr: &str, shape: &[u64], items: &[u16]| {
            let (descr, shape) = (descr.to_owned(), shape.to_vec());
            let header = Header { descr, fortran_order: false, shape }.to_bytes();
            npy.chunk(&[0, 0], &[header, numbers(items)].concat()).unwrap_err().to_string()
        };
        assert_eq!(
            file("<i2", &[2, 3], &[0; 6]),
            "its items are \"<i2\", those of the array \"<u2\""
        );
        assert_eq!(file("<u2", &[3, 2], &[0; 6]), "its shape is [3, 2], that of the chunk [2, 3]");
        assert_eq!(file("<u2", &[2, 3], &[0; 5]), "it has 10 bytes of items, the chunk has 12");
        assert_eq!(npy.chunk(&[0, 0], b""), Err(NpyError::Magic.into()));
        let raw = form(&[2, 3], RAW);
        let wrong = WrittenError::Length { found: 13, expected: 12 };
        assert_eq!(raw.chunk(&[0, 0], &[0; 13]), Err(wrong));
    }
}
