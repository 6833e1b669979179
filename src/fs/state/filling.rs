//! Shards that are being filled. In a store to which a shard is put as a whole, each commit of some of its chunks sends
//! all of it: it waits for the others while they come.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::format::Coords;
use crate::fs::state::overlay::{Name, Names};

/// Number of an array, and the coordinates of a shard of it.
pub(in crate::fs) type ShardKey = (u64, Coords);

/// Time from the first look at which a shard waits, within which it is put.
const LONGEST: Duration = Duration::from_secs(60);

/// Shards that wait, as they were looked at last.
#[derive(Debug, Default)]
pub(in crate::fs) struct Filling(HashMap<ShardKey, Seen>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// When it was first found to be filled.
    since: Instant,
    /// Number of chunks that were found.
    chunks: u64,
}

impl Filling {
    /// Returns which of the shards that are being filled, given with the number of their chunks, wait once more, until
    /// the next look after `interval`: those that got a chunk since the last look, for at most [`LONGEST`].
    pub(in crate::fs) fn wait(
        &mut self,
        found: HashMap<ShardKey, u64>,
        now: Instant,
        interval: Duration,
    ) -> HashSet<ShardKey> {
        let mut waiting = HashMap::new();
        for (shard, chunks) in found {
            let seen = self.0.get(&shard).copied();
            let since = seen.map_or(now, |seen| seen.since);
            let has_grown = seen.is_none_or(|seen| seen.chunks < chunks);
            if has_grown && now.duration_since(since).saturating_add(interval) <= LONGEST {
                waiting.insert(shard, Seen { since, chunks });
            }
        }
        self.0 = waiting;
        self.0.keys().cloned().collect()
    }
}

/// Uncommitted changes of one shard.
struct Changes {
    number: u64,
    /// `true` if all of them fill chunks that were empty, and no other change waits for them, nor they for one.
    are_filling: bool,
}

/// Returns the shards that are being filled, with the number of the chunks that come: each change gives contents to a
/// chunk that was empty, none has failed, and there are fewer than the shard has chunks. What empties a chunk that is
/// empty changes nothing.
pub(in crate::fs) fn found(names: &Names) -> HashMap<ShardKey, u64> {
    let mut shards: HashMap<ShardKey, (Changes, u64)> = HashMap::new();
    for (_, name) in names.all(Path::new("")) {
        let (Some(place), Some(stage)) = (&name.place, &name.stage) else { continue };
        let Some(change) = &stage.change else { continue };
        let layout = &place.array.source.layout;
        let key = (place.array.source.id, layout.shard_of(&place.coords));
        let (changes, _) = shards.entry(key).or_insert_with_key(|(_, shard)| {
            let none = Changes { number: 0, are_filling: true };
            (none, layout.chunks_inside(shard).unwrap_or(u64::MAX))
        });
        changes.number += u64::from(change.content.is_some());
        changes.are_filling &= stage.base.is_empty_chunk() && is_alone(name);
    }
    let is_filling =
        |(changes, inside): &(Changes, u64)| changes.are_filling && changes.number < *inside;
    let found = shards.into_iter().filter(|(_, shard)| is_filling(shard));
    found.map(|(shard, (changes, _))| (shard, changes.number)).collect()
}

/// Returns whether a change has not failed, and none waits for another: what a rename has left has to go.
fn is_alone(name: &Name) -> bool {
    let mut promises = name.after.iter().chain(&name.made);
    name.error.is_none() && !promises.any(|promise| promise.is_open())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> ShardKey {
        (1, [0, 2].into_iter().collect())
    }

    const INTERVAL: Duration = Duration::from_secs(5);

    fn waits(filling: &mut Filling, chunks: u64, now: Instant) -> bool {
        filling.wait(HashMap::from([(shard(), chunks)]), now, INTERVAL).contains(&shard())
    }

    #[test]
    fn a_shard_waits_while_chunks_come() {
        let (mut filling, now) = (Filling::default(), Instant::now());
        assert!(waits(&mut filling, 7, now));
        assert!(waits(&mut filling, 9, now));
        assert!(!waits(&mut filling, 9, now));
        // It was committed. What comes next is waited for again.
        assert!(waits(&mut filling, 2, now));
    }

    #[test]
    fn a_shard_is_put_within_a_minute_at_most() {
        let (mut filling, now) = (Filling::default(), Instant::now());
        for look in 0..12_u32 {
            assert!(waits(&mut filling, look.into(), now + look * INTERVAL), "{look}");
        }
        assert!(!waits(&mut filling, 12, now + 12 * INTERVAL));
        assert!(waits(&mut filling, 13, now + 12 * INTERVAL));
        // Where the next look is too late, it does not wait at all.
        let waits = filling.wait(HashMap::from([(shard(), 99)]), now, LONGEST + INTERVAL);
        assert!(waits.is_empty());
    }

    #[test]
    fn a_shard_that_is_filled_no_more_is_forgotten() {
        let (mut filling, now) = (Filling::default(), Instant::now());
        assert!(waits(&mut filling, 7, now));
        assert!(filling.wait(HashMap::new(), now, INTERVAL).is_empty());
        assert!(waits(&mut filling, 7, now + LONGEST));
    }
}
