//! Completion of free lengths, for a number of elements and an aspect ratio.

use std::cell::RefCell;
use std::collections::HashMap;

/// Default number of elements of a chunk.
pub(crate) const DEFAULT_ELEMENTS: u64 = 1 << 20;
/// Maximum distance at which a divisor is searched for. If there is none, the whole length is
/// taken.
const DIVISOR_DISTANCE: u64 = 1_000_000;
/// Ratio of the ends of an interval above which it is halved logarithmically.
const FAR: f64 = 4.0;
/// Upper limit of every chosen length, whatever is requested.
const MAX_SIZE: f64 = (1_u64 << 62) as f64;

/// Chooses the lengths that are 0. They scale with a common factor: the length along an axis is the
/// factor times its `aspect`, rounded down, at least 1, at most the array's extent and the
/// requested number of elements, then adjusted by `map`. The factor is found by bisection, down to
/// a step that cannot change a length by more than 1. The chunk then has the requested number of
/// elements or fewer, unless the given lengths or `map` require more.
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
        // The same few lengths are requested again and again, and a divisor may be far away.
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
    // Doubled to leave room for rounding.
    let above = (limits.fold(0.0, f64::max) * 2.0).min(f64::MAX);
    let factor = search(step, above, target, &total);
    for axis in free {
        lengths[axis] = length(axis, factor);
    }
}

/// Finds the factor between `step` and `above` for a chunk of `target` elements: the upper end of
/// the last interval if it yields exactly `target`, otherwise the lower end. An interval is halved
/// logarithmically until its ends are within [`FAR`] of each other.
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
            // There is no float in between.
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

/// Returns the divisor of `length` nearest to `target`, both above 0; the lower one of two at the
/// same distance.
pub(super) fn nearest_divisor(length: u64, target: u64) -> u64 {
    let divides = |number: &u64| length.checked_rem(*number) == Some(0);
    if target >= length || divides(&target) {
        return target.min(length);
    }
    let near = (1..DIVISOR_DISTANCE).flat_map(|distance| {
        // Neither 0 nor a number above `length` divides it.
        [target.saturating_sub(distance), target.saturating_add(distance)]
    });
    near.into_iter().find(divides).unwrap_or(length)
}

/// Returns the multiple of `unit` nearest to `target`, both above 0; the lower one of two at the
/// same distance.
pub(super) fn nearest_multiple(unit: u64, target: u64) -> u64 {
    let lower = target - target % unit.max(1);
    match lower.checked_add(unit) {
        _ if target < unit => unit,
        Some(upper) if upper - target < target - lower => upper,
        _ => lower,
    }
}
