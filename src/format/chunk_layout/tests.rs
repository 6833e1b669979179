use proptest::prelude::*;
use serde_json::Value;

use super::complete::DEFAULT_ELEMENTS;
use super::*;
use crate::format::json;

/// Pairs of constraints in TensorStore's terms, and the shapes that TensorStore 0.1.86 has chosen
/// for them, or a text if it refused them.
const VECTORS: &str = include_str!("vectors.json");

/// Chooses the shapes for constraints in TensorStore's terms.
fn chosen(wishes: &Value) -> Result<ChunkShapes, LayoutError> {
    let numbers = |value: &Value| -> Vec<i64> {
        value.as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
    };
    let shape: Vec<u64> = numbers(&wishes["shape"]).iter().map(|n| n.unsigned_abs()).collect();
    let mut both = [Of::Read, Of::Write].map(|of| Wanted::nothing(of, shape.len()));
    for (at, own) in ["read_chunk", "write_chunk"].into_iter().enumerate() {
        let wanted = &mut both[at];
        for of in ["chunk", own] {
            let wish = |what: &str| wishes.get(format!("{of}_{what}"));
            for (what, firmness) in
                [("shape", Firmness::Hard), ("shape_soft_constraint", Firmness::Soft)]
            {
                if let Some(lengths) = wish(what) {
                    wanted.shape(&numbers(lengths), firmness)?;
                }
            }
            if let Some(ratios) = wish("aspect_ratio") {
                let ratios = ratios.as_array().unwrap().iter().map(|ratio| ratio.as_f64().unwrap());
                wanted.aspect(&ratios.collect::<Vec<_>>())?;
            }
            if let Some(elements) = wish("elements") {
                wanted.elements(elements.as_u64().unwrap())?;
            }
        }
    }
    let [read, write] = both;
    choose(&shape, &read, &write)
}

#[test]
fn the_shapes_are_those_that_tensorstore_chooses() {
    let vectors = json::parse(VECTORS.as_bytes()).unwrap();
    let mut wrong = Vec::new();
    for pair in vectors.as_array().unwrap() {
        let (wishes, expected) = (&pair[0], &pair[1]);
        let found = chosen(wishes);
        let is_right = match &found {
            Err(_) => expected.is_string(),
            Ok(ChunkShapes { read, write }) => {
                expected["read"] == Value::from(read.clone())
                    && expected["write"] == Value::from(write.clone())
            }
        };
        if !is_right {
            wrong.push(format!("{wishes}: {found:?}, expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[track_caller]
fn refused(wishes: &str, message: &str) {
    let wishes = json::parse(wishes.as_bytes()).unwrap();
    assert_eq!(chosen(&wishes).unwrap_err().to_string(), message);
}

#[test]
fn each_defect_is_named() {
    refused(r#"{"shape": []}"#, "an array without dimensions has no chunk shape to choose");
    refused(
        r#"{"shape": [9, 9], "read_chunk_shape": [2]}"#,
        "the shape of the inner chunk has 1 entry, the array has 2 dimensions",
    );
    refused(
        r#"{"shape": [9], "write_chunk_shape": [-2]}"#,
        "the shard cannot be -2 long along axis 0: write a length from 1 to 2^62-1, 0 to leave it \
         free, or -1 for the whole extent",
    );
    refused(
        r#"{"shape": [9], "read_chunk_shape": [4], "write_chunk_shape": [6]}"#,
        "inner chunks of 4 elements do not divide shards of 6 along axis 0; one of them must be \
         soft, or another number",
    );
    refused(
        r#"{"shape": [9], "chunk_elements": 5, "read_chunk_elements": 6}"#,
        "the number of elements of the inner chunk is asked to be 5 and 6",
    );
    refused(
        r#"{"shape": [9], "chunk_elements": 0}"#,
        "0 elements for the inner chunk: write a number from 1 to 2^62-1",
    );
    refused(
        r#"{"shape": [4611686018427387904]}"#,
        "the array has 4611686018427387904 elements along axis 0, the limit is 2^62-1",
    );
}

#[test]
fn a_ratio_is_a_number_above_0() {
    for ratio in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324] {
        let error = Wanted::nothing(Of::Write, 1).aspect(&[ratio]).unwrap_err();
        assert!(error.to_string().ends_with("is no ratio: write a number above 0"), "{error}");
    }
}

#[test]
fn divisors_and_multiples() {
    assert_eq!([1, 5, 6, 7, 8, 30].map(|n| nearest_divisor(24, n)), [1, 4, 6, 6, 8, 24]);
    assert_eq!(nearest_divisor(12, 5), 4);
    assert_eq!(nearest_divisor(30, 7), 6);
    assert_eq!(nearest_divisor((1 << 61) - 1, 1 << 40), (1 << 61) - 1);
    assert_eq!([1, 4, 5, 6, 7, 9].map(|n| nearest_multiple(4, n)), [4, 4, 4, 4, 8, 8]);
    assert_eq!(nearest_multiple(u64::MAX - 1, u64::MAX), u64::MAX - 1);
}

/// Lengths of all kinds, small ones preferred.
fn length() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -1_i64..40, 2 => 1_i64..5000, 1 => any::<i64>()]
}

fn extent() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0_u64..60, 2 => 0_u64..100_000, 1 => any::<u64>()]
}

/// Constraints on one shape: hard and soft lengths, aspect, elements.
type Wishes = (Of, Vec<i64>, Vec<i64>, Option<Vec<f64>>, Option<u64>);

fn wishes(of: Of, rank: usize) -> impl Strategy<Value = Wishes> {
    let lengths = || prop::collection::vec(length(), rank);
    let ratio = prop_oneof![8 => 0.01_f64..20.0, 1 => any::<f64>(), 1 => Just(f64::MIN_POSITIVE), 1 => Just(f64::MAX)];
    let aspect = prop::option::of(prop::collection::vec(ratio, rank));
    let elements = prop::option::of(prop_oneof![4 => 1_u64..1_000_000, 1 => any::<u64>()]);
    (Just(of), lengths(), lengths(), aspect, elements)
}

fn cases() -> impl Strategy<Value = (Vec<u64>, Vec<Wishes>)> {
    (1_usize..5).prop_flat_map(|rank| {
        let both = (wishes(Of::Read, rank), wishes(Of::Write, rank));
        (prop::collection::vec(extent(), rank), both.prop_map(|(read, write)| vec![read, write]))
    })
}

proptest! {
    #[test]
    fn hard_lengths_are_kept_and_chunks_divide_shards((shape, all) in cases()) {
        let mut wanted = Vec::new();
        for (of, hard, soft, aspect, elements) in &all {
            let mut one = Wanted::nothing(*of, shape.len());
            // Constraints that are refused have no effect.
            let _ = one.shape(hard, Firmness::Hard);
            let _ = one.shape(soft, Firmness::Soft);
            let _ = aspect.as_ref().map(|ratios| one.aspect(ratios));
            let _ = elements.map(|elements| one.elements(elements));
            wanted.push(one);
        }
        if let Ok(found) = choose(&shape, &wanted[0], &wanted[1]) {
            for axis in 0..shape.len() {
                let (read, write) = (found.read[axis], found.write[axis]);
                prop_assert!(read > 0 && write > 0 && write % read == 0, "{found:?}");
                for (one, length) in wanted.iter().zip([read, write]) {
                    if let Length::Hard(hard) = one.lengths[axis] {
                        prop_assert_eq!(length, hard);
                    }
                }
            }
            // Without given lengths, a chunk has at most the requested number of elements, and is
            // not larger than the array.
            let read = &wanted[0];
            let is_free = |one: &Wanted| one.lengths.iter().all(|length| *length == Length::Free);
            if wanted.iter().all(is_free) {
                let total = found.read.iter().try_fold(1_u64, |all, n| all.checked_mul(*n));
                let most = read.elements.unwrap_or(DEFAULT_ELEMENTS);
                prop_assert!(total.is_some_and(|total| total <= most), "{found:?}");
                for (length, extent) in found.read.iter().zip(&shape) {
                    prop_assert!(*length <= (*extent).max(1));
                }
            }
        }
    }
}
