//! What is wrong with a chunk: with one that is stored, and with one that is to be stored.

/// Reason why a chunk cannot be read although its shard can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ChunkDefect {
    /// No offset is stored, and it does not follow from the chunk before.
    #[error("its offset is not known, and the chunk before it is damaged")]
    NoOffset,
    /// The offset is less than that of the first possible chunk.
    #[error("its offset points into the header")]
    InHeader,
    /// It begins at the file's end or after it.
    #[error("it would begin beyond the file")]
    BeginsBeyond,
    /// It ends after the file's end.
    #[error("it would end beyond the file")]
    EndsBeyond,
    /// The length in its Blosc header is less than that of the header.
    #[error("its Blosc header gives it fewer bytes than the header has")]
    ShorterThanHeader,
    /// The decoded length in its Blosc header is not that of a chunk.
    #[error("its Blosc header says that it holds more or fewer bytes than a chunk has")]
    OtherLength,
    /// Its header gives it a length that no chunk has.
    #[error("its Blosc2 header gives it a length that no chunk has")]
    Header,
    /// The checksum stored with it is another one.
    #[error("its checksum does not match")]
    Checksum,
    /// It is shorter than the others, and cannot be decoded to be padded.
    #[error("it cannot be decoded to be filled up")]
    NotPaddable,
    /// A file with such a chunk cannot be changed.
    #[error("it cannot be given, so the file cannot be changed")]
    InTheWay,
}

/// Reason why bytes cannot become a chunk of an array, or a chunk cannot be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Chunks behind a removed one would be left.
    #[error("chunks behind it are left: the last one goes first")]
    NotLast,
    /// Chunks before an appended one are missing.
    #[error("chunks before it are missing: chunks are appended one after the other")]
    Gap,
    /// A chunk is appended to one that is shorter than the others.
    #[error("the last chunk is shorter than the others: it has to be filled up first")]
    ShortBefore,
    /// A chunk before it failed in the same commit.
    #[error("a chunk before it could not be written")]
    FailedBefore,
    /// It is not the last chunk, and has fewer rows than the others.
    #[error("it holds fewer rows than the other chunks")]
    FewerRows,
    /// It has more rows than a chunk.
    #[error("it holds more rows than a chunk of this array may")]
    MoreRows,
    /// Its length is no multiple of a row's, or 0.
    #[error("it does not hold whole rows, before compression")]
    PartialRow,
    /// The length of a row is unknown.
    #[error("its data type is none whose size is known")]
    UnknownRow,
    /// It is not the last chunk, and has fewer bytes than the others.
    #[error("it holds fewer bytes than the other chunks of this file, before compression")]
    FewerBytes,
    /// It has more bytes than a chunk.
    #[error("it holds more bytes than a chunk of this file may, before compression")]
    MoreBytes,
    /// Its decoded length is 0 or more than [`MAX_BLOSC`](super::blosc::MAX_BLOSC).
    #[error("it holds no bytes, or more than any Blosc buffer may, before compression")]
    NoBlosc,
    /// It is not a Blosc buffer of the length in its header.
    #[error("it is not a Blosc buffer with as many bytes as its header says")]
    NotBlosc,
    /// Its decoded length cannot be determined.
    #[error("its decoded length is not known")]
    UnknownLength,
    /// It cannot be read where it waits for the commit.
    #[error("it cannot be read where it waits")]
    Unreadable,
    /// The format has no place for a missing chunk.
    #[error("chunks of this format cannot be removed")]
    NotRemovable,
    /// Only arrays of one chunk a file, which are no tables, are written.
    #[error("files with several chunks each, and those of tables, are only read")]
    OnlyRead,
}
