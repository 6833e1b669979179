//! Turns of the writers that replace one object.
//!
//! Of several that replace it at once one succeeds, and the others have to begin anew with what it has written. Left
//! to themselves, the one that has succeeded does so again: it knows what is there, while the others have to find
//! out. So whoever has succeeded holds back for a while:
//!
//! ```text
//! rivals   writers met of late: attempts lost to others since the last success, or one if they have
//!          replaced the object meanwhile; a tenth of them is forgotten with each success
//! met      hold back for as long as each of them takes, and one more, to twice that
//! none     others may just never succeed: once an eighth of the time that this writer has taken
//!          since the last trial is enough for it, hold back for two attempts, to twice that
//! ```
//!
//! An attempt of others is taken to last as long as the slowest one of this writer: its last one may have been fast
//! because it knew what was there. Nothing is asked of the store for that, nor left there.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::loaded::ShardId;
use crate::bounded::bounded;

/// Objects of which it is remembered who else writes them.
// Evaluated by the compiler, which rejects zero.
const MAX_TURNS: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();

/// Time without a commit after which the other writers of an object are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Part of the rivals that is remembered at the next success.
const REMEMBERED: f64 = 0.9;

/// Rivals fewer than which are none.
const NONE: f64 = 0.5;

/// Part of the slowest attempt's time that is remembered at the next success among others. Alone, all of it is until
/// the next trial: no other attempt of this writer may have to find out what is there.
const SLOWEST: f64 = 0.97;

/// The same at a trial, alone: one attempt may have been slow for a reason that does not come again.
const TRIED: f64 = 0.7;

/// Attempts for whose time a trial holds back, at least; twice that at most.
const TRIAL: f64 = 2.0;

/// Time that attempts have taken before a trial, as a multiple of what that costs.
const WORTH: f64 = 8.0;

/// Longest time to hold back.
const LONGEST: Duration = Duration::from_secs(10);

/// Who else writes the objects that this process has replaced of late.
#[derive(Debug)]
pub(super) struct Turns(Mutex<LruCache<ShardId, Turn>>);

/// Success in replacing an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Success {
    pub(super) at: Instant,
    /// Number of the lineage that the first attempt has met.
    pub(super) found: u64,
    /// Number of the one that the last attempt has gone on; `None` if others may have come in between.
    pub(super) lineage: Option<u64>,
    /// Attempts that were lost to others.
    pub(super) lost: u32,
    /// Time that the last attempt has taken.
    pub(super) took: Duration,
    /// Random number from 0 to 1.
    pub(super) chance: f64,
}

/// What is known of the writers of one object.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// Writers met of late.
    rivals: f64,
    /// Time that an attempt takes, in seconds.
    slowest: f64,
    /// Time that those have taken, in seconds, which have succeeded since the last trial without that a rival was
    /// met.
    alone: f64,
    /// Number of the lineage that the last success has gone on; `None` if a new one would say nothing about other
    /// writers.
    lineage: Option<u64>,
    last: Instant,
    /// Time until which to hold back.
    until: Instant,
}

impl Default for Turns {
    fn default() -> Self {
        Self(Mutex::new(bounded(MAX_TURNS)))
    }
}

impl Turns {
    /// Returns for how long to hold back from replacing an object.
    pub(super) fn wait(&self, id: ShardId, now: Instant) -> Duration {
        let until = self.0.lock().get(&id).map(|turn| turn.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Records that an object was replaced.
    pub(super) fn succeed(&self, id: ShardId, success: Success) {
        let mut turns = self.0.lock();
        let turn = turns.get(&id).filter(|turn| success.at - turn.last < FORGOTTEN);
        let next = Turn::after(turn, success);
        turns.put(id, next);
    }

    /// Says that the lineage of an object is not known any more, for another reason than that others have replaced it.
    pub(super) fn lose_lineage(&self, id: ShardId) {
        if let Some(turn) = self.0.lock().get_mut(&id) {
            turn.lineage = None;
        }
    }
}

impl Turn {
    fn after(before: Option<&Self>, success: Success) -> Self {
        let Success { at, found, lineage, lost, took, chance } = success;
        let none =
            Self { rivals: 0.0, slowest: 0.0, alone: 0.0, lineage: None, last: at, until: at };
        let before = before.unwrap_or(&none);
        let replaced = before.lineage.is_some_and(|lineage| lineage != found);
        let met = f64::from(lost) + f64::from(u8::from(replaced));
        let rivals = met.max(before.rivals * REMEMBERED);
        let (is_alone, took) = (rivals < NONE, took.as_secs_f64());
        let slowest = took.max(before.slowest * if is_alone { 1.0 } else { SLOWEST });
        let alone = if is_alone { before.alone + took } else { 0.0 };
        let hold = |attempts: f64, chance: f64| {
            (slowest * attempts * (1.0 + chance)).min(LONGEST.as_secs_f64())
        };
        let is_trial = is_alone && alone >= WORTH * hold(TRIAL, 0.5);
        let hold = match (is_alone, is_trial) {
            (false, _) => hold(rivals + 1.0, chance),
            (true, true) => hold(TRIAL, chance),
            (true, false) => 0.0,
        };
        let alone = if is_trial { 0.0 } else { alone };
        let slowest = if is_trial { took.max(slowest * TRIED) } else { slowest };
        Self {
            rivals,
            slowest,
            alone,
            lineage,
            last: at,
            until: at + Duration::from_secs_f64(hold),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const TOOK: Duration = Duration::from_millis(100);

    /// Successes of one writer, one after the other.
    struct Writer {
        turn: Option<Turn>,
        now: Instant,
    }

    impl Writer {
        fn new() -> Self {
            Self { turn: None, now: Instant::now() }
        }

        /// Returns for how many attempts' time the writer holds back after another success.
        fn succeed(&mut self, found: u64, lost: u32, chance: f64) -> f64 {
            self.now += TOOK;
            let lineage = Some(found + u64::from(lost));
            let success = Success { at: self.now, found, lineage, lost, took: TOOK, chance };
            let turn = Turn::after(self.turn.as_ref(), success);
            self.turn = Some(turn);
            (turn.until - self.now).div_duration_f64(TOOK)
        }
    }

    /// One of several writers that replace an object all the time.
    #[derive(Debug, Default)]
    struct Rival {
        /// Version that it has left.
        left: Option<u64>,
        /// Versions that its attempts have begun with: the first one, and the one under way.
        found: Option<u64>,
        begun: Option<u64>,
        since: Duration,
        lost: u32,
        turn: Option<Turn>,
        successes: u32,
    }

    /// Returns how often each of several writers succeeds in ten minutes, where whoever has succeeded last takes a
    /// third of the time that the others do. All but the first one begin after `alone`.
    fn successes(writers: usize, alone: Duration, holds_back: bool) -> Vec<u32> {
        let (fast, slow) = (Duration::from_millis(50), Duration::from_millis(150));
        let (start, mut version, mut state) = (Instant::now(), 0, 1_u64);
        let mut chance = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        let mut rivals: Vec<Rival> = (0..writers).map(|_| Rival::default()).collect();
        let mut events: BTreeSet<(Duration, usize)> =
            (1..writers).map(|at| (alone + fast.mul_f64(chance()), at)).collect();
        events.insert((Duration::ZERO, 0));
        while let Some((now, at)) = events.pop_first().filter(|(now, _)| now.as_secs() < 600) {
            let rival = &mut rivals[at];
            let next = match rival.begun.take() {
                None => {
                    rival.begun = Some(version);
                    rival.found.get_or_insert(version);
                    rival.since = now;
                    let knows = rival.lost == 0 && rival.left == Some(version);
                    now + if knows { fast } else { slow }.mul_f64(0.9 + 0.2 * chance())
                }
                Some(begun) if begun == version => {
                    version += 1;
                    (rival.left, rival.successes) = (Some(version), rival.successes + 1);
                    let (found, lost) =
                        (rival.found.take().unwrap(), std::mem::take(&mut rival.lost));
                    let (took, chance) = (now - rival.since, chance());
                    let success = Success {
                        at: start + now,
                        found,
                        lineage: Some(version),
                        lost,
                        took,
                        chance,
                    };
                    rival.turn = Some(Turn::after(rival.turn.as_ref(), success));
                    let until = rival.turn.filter(|_| holds_back).map(|turn| turn.until - start);
                    until.unwrap_or(now)
                }
                Some(_) => {
                    rival.lost += 1;
                    now + (now - rival.since).mul_f64(chance())
                }
            };
            events.insert((next, at));
        }
        rivals.iter().map(|rival| rival.successes).collect()
    }

    #[test]
    fn none_of_several_writers_starves() {
        for writers in [2, 3, 8, 32] {
            let successes = successes(writers, Duration::ZERO, true);
            let (least, most) = (successes.iter().min().unwrap(), successes.iter().max().unwrap());
            assert!(*least > 30 && *most <= 10 * least, "{writers}: {successes:?}");
        }
        // Left to themselves, one of two does.
        let unfair = successes(2, Duration::ZERO, false);
        assert!(unfair.iter().any(|successes| *successes < 30), "{unfair:?}");
    }

    #[test]
    fn a_writer_that_comes_late_has_its_turns() {
        for writers in [2, 4] {
            let successes = successes(writers, Duration::from_secs(300), true);
            assert!(successes[1..].iter().all(|late| *late > 60), "{writers}: {successes:?}");
        }
    }

    fn is_about(number: f64, other: f64) -> bool {
        (number - other).abs() < 0.001
    }

    #[test]
    fn a_writer_alone_finds_out_whether_there_are_others_in_an_eighth_of_its_time() {
        let mut writer = Writer::new();
        let held: Vec<f64> = (0..250).map(|nth| writer.succeed(7, 0, f64::from(nth % 2))).collect();
        let (total, longest) = (held.iter().sum::<f64>(), held.iter().copied().fold(0.0, f64::max));
        assert!(total > 20.0 && total < 250.0 / 6.0, "{total}");
        assert!(is_about(longest, 4.0), "{longest}");
        assert!(held[..20].iter().all(|held| *held == 0.0), "{held:?}");
    }

    #[test]
    fn a_writer_lets_as_many_others_pass_as_it_has_met_and_one_more() {
        let mut writer = Writer::new();
        assert!(is_about(writer.succeed(1, 5, 0.0), 6.0));
        assert!(is_about(writer.succeed(6, 5, 1.0), 12.0));
        // Those that it meets no more are forgotten.
        let held: Vec<f64> = (0..30).map(|_| writer.succeed(11, 0, 0.0)).collect();
        assert!(is_about(held[0], 5.5), "{held:?}");
        assert!(held[..20].windows(2).all(|pair| pair[1] < pair[0]), "{held:?}");
        assert!(held[25] == 0.0, "{held:?}");
    }

    #[test]
    fn others_that_have_replaced_the_object_meanwhile_were_met() {
        let mut writer = Writer::new();
        assert!(is_about(writer.succeed(1, 0, 0.0), 0.0));
        assert!(is_about(writer.succeed(2, 0, 0.0), 2.0));
    }

    #[test]
    fn others_take_as_long_as_the_slowest_attempt_of_this_writer() {
        let mut writer = Writer::new();
        let at = writer.now;
        let took = Duration::from_secs(1);
        let slow = Success { at, found: 1, lineage: Some(1), lost: 0, took, chance: 0.0 };
        writer.turn = Some(Turn::after(None, slow));
        let held = writer.succeed(2, 0, 0.0);
        assert!(is_about(held, 10.0 * 0.97 * 2.0), "{held}");
    }

    #[test]
    fn one_slow_attempt_does_not_put_trials_off_for_long() {
        let mut writer = Writer::new();
        let (at, took) = (writer.now, Duration::from_secs(30));
        let slow = Success { at, found: 1, lineage: Some(1), lost: 0, took, chance: 0.0 };
        writer.turn = Some(Turn { alone: 0.0, ..Turn::after(None, slow) });
        let trials = (0..10_000).filter(|_| writer.succeed(1, 0, 0.0) > 0.0).count();
        assert!(trials > 50, "{trials}");
    }

    #[test]
    fn a_lineage_that_was_lost_is_no_other_writer() {
        let mut writer = Writer::new();
        assert!(is_about(writer.succeed(1, 0, 0.0), 0.0));
        writer.turn = writer.turn.map(|turn| Turn { lineage: None, ..turn });
        assert!(is_about(writer.succeed(2, 0, 0.0), 0.0));
        assert!(is_about(writer.succeed(3, 0, 0.0), 2.0));
    }

    #[test]
    fn no_writer_holds_back_for_longer_than_ten_seconds() {
        let mut writer = Writer::new();
        assert!(is_about(writer.succeed(1, u32::MAX, 1.0), 100.0));
    }
}
