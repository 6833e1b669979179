//! Orders in which chunks are stored in a shard. Readers accept any order; writers differ, and
//! chunks that are neighbours in a file are read together.

/// Order of the positions in a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChunkOrder {
    /// The last axis varies fastest, as in the index.
    #[default]
    C,
    /// The first axis varies fastest.
    F,
    /// Z-order (Morton) curve, which keeps neighbours along all axes close together; used by
    /// zarr-python.
    Morton,
}

impl ChunkOrder {
    /// Names of the orders, as given in options.
    pub const NAMES: [(&str, Self); 3] = [("c", Self::C), ("f", Self::F), ("morton", Self::Morton)];
}

/// Iteration over the positions of a box.
#[derive(Debug)]
pub struct Positions {
    order: ChunkOrder,
    extents: Vec<u64>,
    /// Position returned last.
    position: Vec<u64>,
    /// Number of the next position on the curve, positions beyond the box included.
    next: u64,
    left: u64,
}

impl Positions {
    /// Creates the positions of a box. The product of the extents must fit 64 bits.
    pub fn new(order: ChunkOrder, extents: &[u64]) -> Self {
        let left = extents.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent));
        let (extents, position) = (extents.to_vec(), vec![0; extents.len()]);
        Self { order, extents, position, next: 0, left: left.unwrap_or(0) }
    }

    /// Advances to the next position and returns it; `None` after the last one.
    pub fn advance(&mut self) -> Option<&[u64]> {
        self.left = self.left.checked_sub(1)?;
        match self.order {
            ChunkOrder::C => self.step(|rank, at| rank - 1 - at),
            ChunkOrder::F => self.step(|_, at| at),
            ChunkOrder::Morton => loop {
                decode_morton(self.next, &self.extents, &mut self.position);
                self.next += 1;
                if self.position.iter().zip(&self.extents).all(|(at, extent)| at < extent) {
                    break;
                }
            },
        }
        Some(&self.position)
    }

    /// Increments the position. `axis` maps (rank, n) to the n-th fastest axis.
    fn step(&mut self, axis: impl Fn(usize, usize) -> usize) {
        let rank = self.extents.len();
        if self.next == 0 {
            self.next = 1;
            return;
        }
        for at in (0..rank).map(|at| axis(rank, at)) {
            self.position[at] += 1;
            if self.position[at] < self.extents[at] {
                return;
            }
            self.position[at] = 0;
        }
    }
}

/// Decodes `number` into the position whose bits interleave to it, those of the first axis lowest.
/// An axis has as many bits as its extent needs.
fn decode_morton(number: u64, extents: &[u64], position: &mut [u64]) {
    position.fill(0);
    let bits = |extent: &u64| u64::BITS - extent.saturating_sub(1).leading_zeros();
    let most = extents.iter().map(bits).max().unwrap_or(0);
    let mut rest = number;
    for bit in 0..most {
        for (at, extent) in position.iter_mut().zip(extents) {
            if bit < bits(extent) {
                *at |= (rest & 1) << bit;
                rest >>= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(order: ChunkOrder, extents: &[u64]) -> Vec<Vec<u64>> {
        let mut positions = Positions::new(order, extents);
        let mut all = Vec::new();
        while let Some(position) = positions.advance() {
            all.push(position.to_vec());
        }
        all
    }

    #[test]
    fn each_order_of_a_small_box() {
        assert_eq!(all(ChunkOrder::C, &[2, 3]), [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert_eq!(all(ChunkOrder::F, &[2, 3]), [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]);
        // As returned by zarr-python's morton_order_iter((2, 3)).
        assert_eq!(
            all(ChunkOrder::Morton, &[2, 3]),
            [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]]
        );
        // As returned by morton_order_iter((3, 3)).
        let expected = [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [2, 1], [0, 2], [1, 2], [2, 2]];
        assert_eq!(all(ChunkOrder::Morton, &[3, 3]), expected);
    }

    #[test]
    fn every_order_gives_every_position_once() {
        for extents in [&[][..], &[1], &[5], &[4, 4], &[3, 1, 5], &[2, 7, 3, 2], &[3, 0]] {
            let mut expected = all(ChunkOrder::C, extents);
            expected.sort();
            assert_eq!(expected.len() as u64, extents.iter().product::<u64>());
            for (_, order) in ChunkOrder::NAMES {
                let mut found = all(order, extents);
                found.sort();
                assert_eq!(found, expected, "{order:?} {extents:?}");
            }
        }
    }
}
