//! New version of a shard that is an object: assembled by the store itself of ranges of the version before and of new
//! bytes, if that spares enough, or put as a whole.

use std::io;
use std::path::Path;

use crate::format::plan::parts::{PartLimits, ShardPart, cut};
use crate::format::plan::{Blob, Facts, Mark, Plan, PlanError, Policy};
use crate::store::blob::Sources;
use crate::store::formats::Planner;
use crate::store::storage::{ObjectPart, ObjectStorage, PutError, When, WriteId};

/// What a new version is made of.
pub(super) enum NewVersion {
    /// All of its bytes.
    Whole(Blob),
    /// Parts, some of which are ranges of the version before.
    Parts(Vec<ShardPart>),
}

/// The same with the bytes that are sent.
pub(super) enum Content {
    Whole(Vec<u8>),
    Parts(Vec<ObjectPart>),
}

impl NewVersion {
    /// Plans the next version, of which at most `most` bytes can be sent. `limits` are those of parts, if the store can
    /// assemble it. `None` if there is none, for no chunk is left, or no change.
    pub(super) fn plan(
        plan: &Planner<'_>,
        mark: Mark,
        limits: Option<PartLimits>,
        most: u64,
    ) -> Result<Option<Self>, PlanError> {
        let facts = Facts { mark: Some(mark), ..Facts::default() };
        let parts = |policy| -> Result<Option<Self>, PlanError> {
            let Some(limits) = limits else { return Ok(None) };
            let Plan::Rewrite(blob) = plan(policy, facts)? else { return Ok(None) };
            let parts = cut(&blob, &limits).map(Self::Parts);
            Ok(parts.filter(|parts| parts.nbytes() <= most))
        };
        if let Some(parts) = parts(Policy::Auto)? {
            return Ok(Some(parts));
        }
        let Plan::Rewrite(blob) = plan(Policy::Rewrite, facts)? else { return Ok(None) };
        let whole = Self::Whole(blob);
        // What cannot be sent keeps its gaps.
        match whole.nbytes() > most {
            true => Ok(Some(parts(Policy::Append)?.unwrap_or(whole))),
            false => Ok(Some(whole)),
        }
    }

    /// Returns whether the store makes it of parts.
    pub(super) fn is_assembled(&self) -> bool {
        matches!(self, Self::Parts(_))
    }

    /// Returns the number of bytes that are sent, which are in memory meanwhile.
    pub(super) fn nbytes(&self) -> u64 {
        let sent = |part: &ShardPart| match part {
            ShardPart::Kept(_) => 0,
            ShardPart::Sent(blob) => blob.nbytes,
        };
        match self {
            Self::Whole(blob) => blob.nbytes,
            Self::Parts(parts) => parts.iter().map(sent).fold(0, u64::saturating_add),
        }
    }

    /// Reads the bytes that are sent, those of the version before in batches of about `batch` bytes.
    ///
    /// # Errors
    /// There is no memory for them, or a source cannot be read.
    pub(super) fn collect(&self, sources: &Sources<'_>, batch: u64) -> io::Result<Content> {
        let collected = |part: &ShardPart| {
            Ok(match part {
                ShardPart::Kept(range) => ObjectPart::Kept(*range),
                ShardPart::Sent(blob) => ObjectPart::Sent(sources.collect(blob, batch)?),
            })
        };
        Ok(match self {
            Self::Whole(blob) => Content::Whole(sources.collect(blob, batch)?),
            Self::Parts(parts) => {
                Content::Parts(parts.iter().map(collected).collect::<io::Result<_>>()?)
            }
        })
    }
}

impl Content {
    /// Puts it in the place of the version before, or of none, and returns its entity tag.
    pub(super) fn put(
        self,
        objects: &dyn ObjectStorage,
        path: &Path,
        when: When<'_>,
        id: WriteId,
    ) -> Result<String, PutError> {
        match (self, when) {
            (Self::Whole(content), when) => objects.put(path, content, when, id),
            (Self::Parts(parts), When::Is(before)) => objects.assemble(path, parts, before, id),
            // Without one there are no ranges of it.
            (Self::Parts(_), When::Absent) => Err(PutError::Conflict),
        }
    }
}
