//! Lengths that nobody has given: as many elements as wanted, in a ratio.

use std::cell::RefCell;
use std::collections::HashMap;

use super::DEFAULT_ELEMENTS;

/// No divisor is looked for further away. Beyond, the whole length is taken.
const DIVISOR_DISTANCE: u64 = 1_000_000;
/// Ends of an interval that differ by more than this factor are far from each other.
const FAR: f64 = 4.0;
/// No length is longer, whatever is asked for.
const MAX_SIZE: f64 = (1_u64 << 62) as f64;

/// Sets the lengths that are 0. All of them grow with one factor: along an axis it is the factor times
/// its `aspect`, rounded down, at least 1, at most the array's extent and the wanted number of elements,
/// then what `map` makes of it. The factor is searched for by halves until the next step cannot change
/// a length by more than 1; then the chunk has the wanted number of elements, or less.
pub(super) fn complete(
    shape: &[u64],
    aspect: Option<&[f64]>,
    elements: Option<u64>,
    lengths: &mut [u64],
    map: &dyn Fn(usize, u64) -> u64,
) {
    let free: Vec<usize> = (0..lengths.len()).filter(|axis| lengths[*axis] == 0).collect();
    if free.is_empty() {
        return;
    }
    let target = elements.unwrap_or(DEFAULT_ELEMENTS);
    let ratio = |axis: usize| aspect.and_then(|ratios| ratios.get(axis)).copied().unwrap_or(1.0);
    let most = |axis: usize| (target.min(shape[axis].max(1)) as f64).min(MAX_SIZE);
    let known = RefCell::new(HashMap::new());
    let length = |axis: usize, factor: f64| {
        let length = whole((ratio(axis) * factor).min(most(axis))).max(1);
        // Few lengths are asked for again and again, and a divisor may be far away.
        *known.borrow_mut().entry((axis, length)).or_insert_with(|| map(axis, length))
    };
    let given = lengths.iter().filter(|length| **length > 0);
    let given = given.fold(1_u64, |product, length| product.saturating_mul(*length));
    let total = |factor: f64| {
        let found = free.iter().map(|axis| length(*axis, factor));
        found.fold(given, u64::saturating_mul)
    };
    let steps = free.iter().map(|axis| ratio(*axis).recip());
    let step = steps.fold(f64::INFINITY, f64::min) / 2.0;
    let limits = free.iter().map(|axis| most(*axis) / ratio(*axis));
    // Twice as much leaves room for rounding.
    let above = (limits.fold(0.0, f64::max) * 2.0).min(f64::MAX);
    let factor = search(step, above, target, &total);
    for axis in free {
        lengths[axis] = length(axis, factor);
    }
}

/// The factor between `step` and `above` for a chunk of `target` elements: the upper end of the last
/// interval if that hits the target, else the lower one. An interval is halved in its logarithm until
/// its ends are within [`FAR`] of each other.
fn search(step: f64, mut above: f64, target: u64, total: &dyn Fn(f64) -> u64) -> f64 {
    let mut below = step;
    let mut total_above = total(above);
    while below + step < above {
        let middle = if above / below > FAR {
            below.sqrt() * above.sqrt()
        } else {
            below + (above - below) / 2.0
        };
        if middle <= below || middle >= above {
            // There is no number in between.
            break;
        }
        let found = total(middle);
        if found >= target {
            (above, total_above) = (middle, found);
        }
        if found <= target {
            below = middle;
        }
    }
    if total_above == target { above } else { below }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2^62")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// The divisor of `length` nearest to `target`, both above 0; the lower of two that are equally near.
pub(super) fn nearest_divisor(length: u64, target: u64) -> u64 {
    let divides = |number: &u64| length.checked_rem(*number) == Some(0);
    if target >= length || divides(&target) {
        return target.min(length);
    }
    let near = (1..DIVISOR_DISTANCE).flat_map(|distance| {
        // 0 divides nothing; so does what is longer.
        [target.saturating_sub(distance), target.saturating_add(distance)]
    });
    near.into_iter().find(divides).unwrap_or(length)
}

/// The multiple of `unit` nearest to `target`, both above 0; the lower of two that are equally near.
pub(super) fn nearest_multiple(unit: u64, target: u64) -> u64 {
    let lower = target - target % unit.max(1);
    match lower.checked_add(unit) {
        _ if target < unit => unit,
        Some(upper) if upper - target < target - lower => upper,
        _ => lower,
    }
}
