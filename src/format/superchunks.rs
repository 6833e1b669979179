//! Length of a BLZ or bcolz array, and its changes when chunks are written or removed.
//!
//! ```text
//! meta/sizes      {"shape": [rows, ...], "nbytes": ..., "cbytes": ...}
//! data/__0.blp    rows 0 to chunklen
//! data/__1.blp    the next ones; the last file may have fewer
//! ```
//!
//! The length is stored twice. A writer that extends the array writes the chunks first and
//! `meta/sizes` after them; one that shortens it does so in the reverse order. So the rows that
//! `meta/sizes` counts exist at any moment. Files in `data` beyond them are no chunks.

use std::collections::BTreeMap;

use serde_json::Value;

use super::chunk_error::Refusal;
use super::error::{MetadataError, shape};

/// Length of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Rows of a chunk, above 0.
    pub chunklen: u64,
    /// Uncompressed bytes of a row; `None` if unknown.
    pub row_bytes: Option<u64>,
    /// Rows of the array.
    pub rows: u64,
}

/// Result of a set of changes to chunks.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Changes that cannot be made, by chunk number, with the reason.
    pub refused: BTreeMap<u64, Refusal>,
    /// Rows of the array after the other changes.
    pub rows: u64,
}

/// New content of chunks by chunk number: uncompressed bytes, `None` for a removal.
pub(crate) type Changes = BTreeMap<u64, Option<u32>>;

impl Extent {
    /// Number of chunks.
    pub fn nchunks(&self) -> u64 {
        self.rows.div_ceil(self.chunklen)
    }

    /// Determines which changes can be made, so that all chunks but the last have all their rows
    /// and none before the last is missing.
    pub fn change(&self, changes: &Changes) -> Outcome {
        let mut nchunks = self.nchunks();
        while let Some(last) = nchunks.checked_sub(1)
            && changes.get(&last) == Some(&None)
        {
            nchunks = last;
        }
        let whole = nchunks.saturating_sub(1).saturating_mul(self.chunklen);
        let mut last = self.chunklen.min(self.rows.saturating_sub(whole));
        let mut refused = BTreeMap::new();
        for (&slot, decoded) in changes {
            let Some(decoded) = decoded else {
                if slot < nchunks {
                    refused.insert(slot, Refusal::NotLast);
                }
                continue;
            };
            match self.rows_in(*decoded) {
                Err(why) => drop(refused.insert(slot, why)),
                Ok(rows) if slot + 1 < nchunks && rows < self.chunklen => {
                    refused.insert(slot, Refusal::FewerRows);
                }
                Ok(_) if slot > nchunks => {
                    refused.insert(slot, Refusal::Gap);
                }
                Ok(_) if slot == nchunks && nchunks > 0 && last < self.chunklen => {
                    refused.insert(slot, Refusal::ShortBefore);
                }
                Ok(rows) if slot + 1 >= nchunks => (nchunks, last) = (slot + 1, rows),
                Ok(_) => (),
            }
        }
        let rows = match nchunks.checked_sub(1) {
            None => 0,
            Some(whole) => whole.saturating_mul(self.chunklen).saturating_add(last),
        };
        Outcome { refused, rows }
    }

    fn rows_in(&self, decoded: u32) -> Result<u64, Refusal> {
        let row = self.row_bytes.ok_or(Refusal::UnknownRow)?;
        let rows = u64::from(decoded).checked_div(row).unwrap_or(0);
        if rows == 0 || rows.checked_mul(row) != Some(decoded.into()) {
            return Err(Refusal::PartialRow);
        }
        match rows <= self.chunklen {
            true => Ok(rows),
            false => Err(Refusal::MoreRows),
        }
    }

    /// Returns `meta/sizes` for this length, derived from the previous one. `longer` is the growth
    /// of the compressed chunks in bytes.
    pub fn sizes(&self, before: &Value, longer: i64) -> Value {
        let mut sizes = before.clone();
        if let Some(rows) = sizes.get_mut("shape").and_then(|shape| shape.get_mut(0)) {
            *rows = self.rows.into();
        }
        let nbytes = self.row_bytes.and_then(|row| row.checked_mul(self.rows));
        if let (Some(old), Some(nbytes)) = (sizes.get_mut("nbytes"), nbytes) {
            *old = nbytes.into();
        }
        if let Some(cbytes) = sizes.get_mut("cbytes")
            && let Some(old) = cbytes.as_i64()
        {
            *cbytes = old.saturating_add(longer).max(0).into();
        }
        sizes
    }
}

/// Returns the number of rows recorded in `meta/sizes`.
pub(crate) fn rows(sizes: &Value) -> Result<u64, MetadataError> {
    let shape = shape(sizes.get("shape"), "shape")?;
    shape
        .first()
        .copied()
        .ok_or_else(|| MetadataError::invalid("shape", "a list that is not empty"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// 34 rows of 10 bytes, 8 rows in a chunk: four full chunks and one of two rows.
    const ARRAY: Extent = Extent { chunklen: 8, row_bytes: Some(10), rows: 34 };

    fn change(changes: &[(u64, Option<u32>)]) -> (Vec<u64>, u64) {
        let outcome = ARRAY.change(&changes.iter().copied().collect());
        (outcome.refused.into_keys().collect(), outcome.rows)
    }

    #[test]
    fn chunks_are_replaced_by_ones_with_as_many_rows() {
        assert_eq!(change(&[(0, Some(80)), (4, Some(20))]), (vec![], 34));
        assert_eq!(
            change(&[(0, Some(70)), (1, Some(90)), (2, Some(75)), (3, Some(0))]),
            (vec![0, 1, 2, 3], 34)
        );
    }

    #[test]
    fn the_last_chunk_decides_how_long_the_array_is() {
        assert_eq!(change(&[(4, Some(80))]), (vec![], 40));
        assert_eq!(change(&[(4, Some(10))]), (vec![], 33));
    }

    #[test]
    fn chunks_are_appended_behind_a_full_one() {
        assert_eq!(change(&[(4, Some(80)), (5, Some(80)), (6, Some(30))]), (vec![], 51));
        assert_eq!(change(&[(5, Some(80))]), (vec![5], 34), "the last one is short");
        assert_eq!(change(&[(4, Some(80)), (6, Some(80))]), (vec![6], 40), "one is missing");
        assert_eq!(change(&[(4, Some(80)), (5, Some(30)), (6, Some(80))]), (vec![6], 43));
    }

    #[test]
    fn chunks_are_removed_from_the_end() {
        assert_eq!(change(&[(4, None)]), (vec![], 32));
        assert_eq!(change(&[(3, None), (4, None), (2, Some(50))]), (vec![], 21));
        assert_eq!(change(&[(3, None)]), (vec![3], 34));
        assert_eq!(change(&[(3, None), (4, None), (4, None), (5, Some(80))]), (vec![5], 24));
        assert_eq!(change(&(0..5).map(|slot| (slot, None)).collect::<Vec<_>>()), (vec![], 0));
        assert_eq!(change(&[(7, None)]), (vec![], 34), "there is none");
    }

    #[test]
    fn an_empty_array_grows_too() {
        let empty = Extent { rows: 0, ..ARRAY };
        let outcome = empty.change(&Changes::from([(0, Some(80)), (1, Some(40))]));
        assert_eq!(outcome, Outcome { refused: BTreeMap::new(), rows: 12 });
    }

    #[test]
    fn without_the_size_of_a_row_nothing_is_written() {
        let unknown = Extent { row_bytes: None, ..ARRAY };
        let outcome = unknown.change(&Changes::from([(0, Some(80))]));
        assert_eq!((outcome.refused.len(), outcome.rows), (1, 34));
    }

    #[test]
    fn sizes_are_kept_up_to_date() {
        let before = json!({"shape": [34, 5], "nbytes": 340, "cbytes": 200, "more": true});
        let after = Extent { rows: 40, ..ARRAY }.sizes(&before, -50);
        assert_eq!(after, json!({"shape": [40, 5], "nbytes": 400, "cbytes": 150, "more": true}));
        assert_eq!([rows(&before).unwrap(), rows(&after).unwrap()], [34, 40]);
    }
}
