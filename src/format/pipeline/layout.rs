//! Rearrangement of items: transposes, boxes, byte order and byte shuffle.
//!
//! Lengths are those of slices in memory, so their sums and products do not overflow.

/// Approximate number of items along both axes of a transpose tile: rows are about a cache line
/// long or longer, and the cache lines of a tile fit into the first-level cache.
const TILE: usize = 32;

/// Axis of a transpose: its length, and the items between neighbours along it in source and
/// destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    pub length: usize,
    pub from: usize,
    pub to: usize,
}

/// Transpose between two arrays in C order.
#[derive(Debug, Clone)]
pub(super) struct Transpose {
    /// Axes in the order of the encoded array. Axes of length 1 are omitted, and axes that are
    /// contiguous on both sides are merged.
    encode: Vec<Axis>,
    decode: Vec<Axis>,
}

/// Returns the items between neighbours along each axis of an array in C order.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

impl Transpose {
    /// Creates the transpose in which axis `j` of the encoded array is axis `axes[j]` of an array
    /// of `shape`. `None` if no item moves.
    pub(super) fn new(shape: &[usize], axes: &[usize]) -> Option<Self> {
        if shape.contains(&0) {
            return None;
        }
        let encoded: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
        let (array_strides, encoded_strides) = (strides(shape), strides(&encoded));
        let encode: Vec<Axis> = axes
            .iter()
            .zip(&encoded_strides)
            .map(|(axis, to)| Axis { length: shape[*axis], from: array_strides[*axis], to: *to })
            .collect();
        let mut decode = encode.clone();
        for axis in &mut decode {
            std::mem::swap(&mut axis.from, &mut axis.to);
        }
        decode.sort_by_key(|axis| std::cmp::Reverse(axis.to));
        let (encode, decode) = (merged(encode), merged(decode));
        (encode.len() > 1).then_some(Self { encode, decode })
    }

    /// Transposes the array to its encoded form. Both have the same number of items of `item`
    /// bytes.
    pub(super) fn encode(&self, from: &[u8], to: &mut [u8], item: usize) {
        transpose(&self.encode, from, to, item);
    }

    /// Transposes the encoded form to the array.
    pub(super) fn decode(&self, from: &[u8], to: &mut [u8], item: usize) {
        transpose(&self.decode, from, to, item);
    }
}

fn merged(axes: Vec<Axis>) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes.into_iter().filter(|axis| axis.length != 1) {
        match merged.last_mut() {
            Some(outer)
                if outer.from == axis.from.saturating_mul(axis.length)
                    && outer.to == axis.to.saturating_mul(axis.length) =>
            {
                *outer = Axis { length: outer.length * axis.length, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

fn transpose(axes: &[Axis], from: &[u8], to: &mut [u8], item: usize) {
    match item {
        1 => items::<1>(axes, from, to),
        2 => items::<2>(axes, from, to),
        4 => items::<4>(axes, from, to),
        8 => items::<8>(axes, from, to),
        16 => items::<16>(axes, from, to),
        _ => any_items(axes, from, to, item),
    }
}

/// Calls `visit` with the offsets in source and destination of each position along `axes`.
fn for_each_start(axes: &[Axis], mut visit: impl FnMut(usize, usize)) {
    let mut position = vec![0; axes.len()];
    let (mut from, mut to) = (0, 0);
    loop {
        visit(from, to);
        let mut axis = axes.len();
        loop {
            let Some(next) = axis.checked_sub(1) else { return };
            axis = next;
            position[axis] += 1;
            from += axes[axis].from;
            to += axes[axis].to;
            if position[axis] < axes[axis].length {
                break;
            }
            from -= axes[axis].from * axes[axis].length;
            to -= axes[axis].to * axes[axis].length;
            position[axis] = 0;
        }
    }
}

fn items<const N: usize>(axes: &[Axis], from: &[u8], to: &mut [u8]) {
    let (from, _) = from.as_chunks::<N>();
    let (to, _) = to.as_chunks_mut::<N>();
    let Some((columns, outer)) = axes.split_last() else { return };
    let Some(at) = outer.iter().position(|axis| axis.from == 1) else {
        // The innermost axis is the same on both sides.
        for_each_start(outer, |start, end| {
            to[end..end + columns.length].copy_from_slice(&from[start..start + columns.length]);
        });
        return;
    };
    let mut outer = outer.to_vec();
    let rows = outer.remove(at);
    // If there are few rows or columns, the tile is longer along the other axis.
    let high = (TILE * TILE / columns.length.min(TILE)).min(rows.length);
    let wide = (TILE * TILE / rows.length.min(TILE)).min(columns.length);
    for_each_start(&outer, |start, end| {
        for row in (0..rows.length).step_by(high) {
            for column in (0..columns.length).step_by(wide) {
                let from = &from[start + column * columns.from + row..];
                let to = &mut to[end + row * rows.to + column..];
                let tile = (high.min(rows.length - row), wide.min(columns.length - column));
                transpose_tile(from, columns.from, to, rows.to, tile);
            }
        }
    });
}

/// Transposes one tile of (rows, columns). Columns are `from_step` items apart in the source, rows
/// `to_step` items in the destination.
fn transpose_tile<const N: usize>(
    from: &[[u8; N]],
    from_step: usize,
    to: &mut [[u8; N]],
    to_step: usize,
    (rows, columns): (usize, usize),
) {
    // The longer side is the inner loop.
    if columns >= rows {
        for row in 0..rows {
            let line = to[row * to_step..][..columns].iter_mut();
            for (target, source) in line.zip(from[row..].iter().step_by(from_step)) {
                *target = *source;
            }
        }
    } else {
        for column in 0..columns {
            let line = from[column * from_step..][..rows].iter();
            for (source, target) in line.zip(to[column..].iter_mut().step_by(to_step)) {
                *target = *source;
            }
        }
    }
}

fn any_items(axes: &[Axis], from: &[u8], to: &mut [u8], item: usize) {
    for_each_start(axes, |start, end| {
        to[end * item..(end + 1) * item].copy_from_slice(&from[start * item..(start + 1) * item]);
    });
}

/// Copies a box, whose last axis is contiguous on both sides.
pub(super) fn copy_box(axes: &[Axis], from: &[u8], to: &mut [u8], item: usize) {
    let (rows, length) = match axes.split_last() {
        Some((row, outer)) => (outer, row.length * item),
        None => (axes, item),
    };
    for_each_start(rows, |start, end| {
        let (start, end) = (start * item, end * item);
        to[end..end + length].copy_from_slice(&from[start..start + length]);
    });
}

/// Box inside an array in C order.
#[derive(Debug)]
pub(super) struct Region<'a> {
    /// Shape of the array in items.
    pub shape: &'a [usize],
    /// Position of the box in the array.
    pub origin: &'a [usize],
    /// Shape of the box in items.
    pub extent: &'a [usize],
    /// Length of an item in bytes.
    pub item: usize,
}

impl Region<'_> {
    /// Number of axes outside of a row. A row covers the trailing axes along which the box is as
    /// long as the array, and the axis before them.
    fn outer(&self) -> usize {
        let whole = self.extent.iter().zip(self.shape).rev().take_while(|(e, s)| e == s).count();
        self.extent.len().saturating_sub(whole + 1)
    }

    /// Calls `visit` with the offset in the array and the length of each row of the box, in bytes.
    fn rows(&self, mut visit: impl FnMut(usize, usize)) {
        if self.extent.contains(&0) {
            return;
        }
        let strides = strides(self.shape);
        let start: usize = self.origin.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        let outer = self.outer();
        let row = self.extent[outer..].iter().product::<usize>() * self.item;
        let axis = |(length, from): (&usize, &usize)| Axis { length: *length, from: *from, to: 0 };
        let axes: Vec<Axis> = self.extent.iter().zip(&strides).take(outer).map(axis).collect();
        for_each_start(&axes, |from, _| visit((start + from) * self.item, row));
    }

    /// Copies the box into the array.
    pub(super) fn put(&self, content: &[u8], array: &mut [u8]) {
        let mut rest = content;
        self.rows(|at, row| {
            let (line, more) = rest.split_at(row);
            array[at..at + row].copy_from_slice(line);
            rest = more;
        });
    }

    /// Copies the box out of the array.
    pub(super) fn take(&self, array: &[u8], content: &mut [u8]) {
        let mut end = 0;
        self.rows(|at, row| {
            content[end..end + row].copy_from_slice(&array[at..at + row]);
            end += row;
        });
    }

    /// Returns the byte range of the box in the array; `None` if it is not contiguous.
    pub(super) fn one_piece(&self) -> Option<std::ops::Range<usize>> {
        if self.extent[..self.outer()].iter().any(|length| *length != 1) {
            return None;
        }
        let mut piece = 0..0;
        self.rows(|at, row| piece = at..at + row);
        Some(piece)
    }
}

/// Fills `out` with copies of one item.
pub(super) fn fill(out: &mut [u8], item: &[u8]) {
    if let Some(byte) = item.first()
        && item.iter().all(|other| other == byte)
    {
        out.fill(*byte);
        return;
    }
    for place in out.chunks_exact_mut(item.len().max(1)) {
        place.copy_from_slice(item);
    }
}

/// Returns whether `bytes` are copies of one item.
pub(super) fn is_filled(bytes: &[u8], item: &[u8]) -> bool {
    // In equal items, each byte equals the byte one item before it.
    let first = bytes.len().min(item.len());
    bytes[..first] == item[..first] && bytes[first..] == bytes[..bytes.len() - first]
}

/// Reverses the bytes of each word.
pub(super) fn swap(bytes: &mut [u8], word: usize) {
    match word {
        0 | 1 => (),
        2 => reverse::<2>(bytes),
        4 => reverse::<4>(bytes),
        8 => reverse::<8>(bytes),
        _ => bytes.chunks_exact_mut(word).for_each(<[u8]>::reverse),
    }
}

fn reverse<const N: usize>(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<N>().0.iter_mut().for_each(|word| word.reverse());
}

/// Groups the first bytes of all elements, then the second ones, and so on. The length of `bytes`
/// must be a multiple of `element`.
pub(super) fn shuffle(bytes: &[u8], out: &mut [u8], element: usize) {
    match planes(bytes.len(), element) {
        Some(transpose) => transpose.encode(bytes, out, 1),
        None => out.copy_from_slice(bytes),
    }
}

/// Undoes [`shuffle`].
pub(super) fn unshuffle(bytes: &[u8], out: &mut [u8], element: usize) {
    match element {
        2 => unshuffle_elements::<2>(bytes, out),
        4 => unshuffle_elements::<4>(bytes, out),
        8 => unshuffle_elements::<8>(bytes, out),
        _ => match planes(bytes.len(), element) {
            Some(transpose) => transpose.decode(bytes, out, 1),
            None => out.copy_from_slice(bytes),
        },
    }
}

fn planes(nbytes: usize, element: usize) -> Option<Transpose> {
    Transpose::new(&[nbytes.checked_div(element)?, element], &[1, 0])
}

/// Fast path for the usual lengths of elements: writes whole elements.
fn unshuffle_elements<const N: usize>(bytes: &[u8], out: &mut [u8]) {
    let count = bytes.len() / N;
    let planes: [&[u8]; N] = std::array::from_fn(|plane| &bytes[plane * count..][..count]);
    for (at, element) in out.as_chunks_mut::<N>().0.iter_mut().enumerate().take(count) {
        for (byte, plane) in element.iter_mut().zip(planes) {
            *byte = plane[at];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation by the definition, one item at a time.
    fn slowly(from: &[u8], shape: &[usize], axes: &[usize], item: usize) -> Vec<u8> {
        let encoded: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
        let (inside, outside) = (strides(shape), strides(&encoded));
        let mut to = vec![0; from.len()];
        for n in 0..from.len() / item {
            let at = |axis: usize| n / inside[axis] % shape[axis];
            let m: usize = axes.iter().zip(&outside).map(|(axis, step)| at(*axis) * step).sum();
            to[m * item..][..item].copy_from_slice(&from[n * item..][..item]);
        }
        to
    }

    fn permuted(rank: usize) -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
        let shape = proptest::collection::vec(prop_oneof![1..5_usize, 30..40_usize], rank);
        (shape, Just((0..rank).collect::<Vec<_>>()).prop_shuffle())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn transposes_are_what_they_are_defined_as(
            (shape, axes) in (0..4_usize).prop_flat_map(permuted),
            item in prop_oneof![Just(1_usize), Just(2), Just(3), Just(4), Just(8), Just(16)],
        ) {
            let nbytes = shape.iter().product::<usize>() * item;
            #[allow(clippy::cast_possible_truncation, reason = "a pattern")]
            let from: Vec<u8> = (0..nbytes).map(|at| (at % 251) as u8).collect();
            let expected = slowly(&from, &shape, &axes, item);
            match Transpose::new(&shape, &axes) {
                None => prop_assert_eq!(&expected, &from),
                Some(transpose) => {
                    let mut encoded = vec![0; nbytes];
                    transpose.encode(&from, &mut encoded, item);
                    prop_assert!(expected == encoded);
                    let mut decoded = vec![0; nbytes];
                    transpose.decode(&encoded, &mut decoded, item);
                    prop_assert!(from == decoded);
                }
            }
        }
    }

    #[test]
    fn axes_without_items_move_nothing() {
        assert!(Transpose::new(&[3, 0, 2], &[2, 1, 0]).is_none());
        assert!(Transpose::new(&[], &[]).is_none());
        assert!(Transpose::new(&[1, 5, 1], &[1, 2, 0]).is_none());
    }

    #[test]
    fn boxes_go_in_and_come_out() {
        let region = |origin, extent| Region { shape: &[2, 3, 4], origin, extent, item: 1 };
        let mut array: Vec<u8> = (0..24).collect();
        let mut content = [0; 4];
        region(&[0, 1, 2], &[1, 2, 2]).take(&array, &mut content);
        assert_eq!(content, [6, 7, 10, 11]);
        region(&[1, 0, 0], &[1, 2, 2]).put(&content, &mut array);
        assert_eq!(array[12..20], [6, 7, 14, 15, 10, 11, 18, 19]);
        assert_eq!(region(&[1, 1, 0], &[1, 2, 4]).one_piece(), Some(16..24));
        assert_eq!(region(&[0, 0, 0], &[2, 3, 4]).one_piece(), Some(0..24));
        assert_eq!(region(&[0, 0, 0], &[2, 1, 4]).one_piece(), None);
        let scalar = Region { shape: &[], origin: &[], extent: &[], item: 8 };
        assert_eq!(scalar.one_piece(), Some(0..8));
    }

    #[test]
    fn items_are_repeated_and_words_reversed() {
        let mut bytes = [0; 6];
        fill(&mut bytes, &[1, 2]);
        assert_eq!(bytes, [1, 2, 1, 2, 1, 2]);
        assert!(is_filled(&bytes, &[1, 2]));
        assert!(!is_filled(&bytes, &[2, 1]) && !is_filled(&[1, 2, 1, 3], &[1, 2]));
        assert!(is_filled(&[], &[1, 2]));
        for (word, expected) in [(2, [2, 1, 4, 3, 6, 5]), (3, [3, 2, 1, 6, 5, 4])] {
            let mut bytes = [1, 2, 3, 4, 5, 6];
            swap(&mut bytes, word);
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn bytes_are_shuffled_by_their_place_in_an_element() {
        let mut out = [0; 6];
        shuffle(&[1, 2, 3, 4, 5, 6], &mut out, 2);
        assert_eq!(out, [1, 3, 5, 2, 4, 6]);
        let mut back = [0; 6];
        unshuffle(&out, &mut back, 2);
        assert_eq!(back, [1, 2, 3, 4, 5, 6]);
        shuffle(&[6, 5, 4, 3, 2, 1], &mut back, 0);
        assert_eq!(back, [6, 5, 4, 3, 2, 1]);
        for element in 1..10 {
            let bytes: Vec<u8> = (0..10 * element).collect();
            let mut out = vec![0; bytes.len()];
            shuffle(&bytes, &mut out, element.into());
            assert_eq!(out[..10], (0..10).map(|at| at * element).collect::<Vec<_>>());
            let mut back = vec![0; bytes.len()];
            unshuffle(&out, &mut back, element.into());
            assert_eq!(back, bytes);
        }
    }
}
