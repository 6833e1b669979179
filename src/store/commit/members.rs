//! Changes to one shard: which of them can be made.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::staged::StagedChunk;
use crate::format::Coords;
use crate::format::chunk_error::Refusal;
use crate::format::sharding::Location;
use crate::store::formats::{Accepted, Change, ChangedShard, Planner};
use crate::store::{SourceArray, StoreError};

/// Chunks of a shard: their numbers in the commit, and their locations.
pub(super) type Members = Vec<(usize, Location)>;

/// Changes to a shard that its format has examined.
pub(super) struct Examined<'a> {
    /// Numbers of the chunks that can be changed.
    pub accepted: Vec<usize>,
    /// The others, with the reason.
    pub refused: Vec<(usize, StoreError)>,
    /// Plans the changes that can be made.
    pub plan: Box<Planner<'a>>,
}

/// Asks the format of an array which changes a shard can take.
pub(super) fn examine<'a>(
    array: &SourceArray,
    chunks: &'a [StagedChunk],
    shard: &ChangedShard<'a>,
    members: &'a [(usize, Location)],
) -> Result<Examined<'a>, StoreError> {
    let changes = members.iter().map(|(at, location)| Change {
        at: *at,
        location,
        content: chunks[*at].content.as_ref(),
    });
    let Accepted { refused, plan } = array.format.accept(shard, changes.collect())?;
    let why: HashMap<usize, Refusal> = refused.into_iter().collect();
    let (mut accepted, mut refused) = (Vec::new(), Vec::new());
    for (at, location) in members {
        let Some(why) = why.get(at).copied() else {
            accepted.push(*at);
            continue;
        };
        let (shard, position) = (shard.path.to_owned(), location.positions.concat());
        refused.push((*at, StoreError::Refused { shard, position, why }));
    }
    Ok(Examined { accepted, refused, plan })
}

/// Returns the members that depend on chunks that have `failed`, with the reason for that.
pub(super) fn dependent(
    chunks: &[StagedChunk],
    members: &[(usize, Location)],
    failed: &BTreeMap<&Coords, &Arc<StoreError>>,
) -> Vec<(usize, Arc<StoreError>)> {
    let why = |at: usize| chunks[at].with.iter().find_map(|other| failed.get(other));
    members.iter().filter_map(|(at, _)| Some((*at, Arc::clone(why(*at)?)))).collect()
}
