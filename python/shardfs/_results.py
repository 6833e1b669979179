"""What the commands return: frozen dataclasses with the members of their JSON output.

Lengths named `nbytes` or `bytes` are in bytes, shapes and extents in elements. Paths and keys are relative to
the source, which itself is "."; bytes of names that are not UTF-8 are replaced. Members of later versions are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

# --- info --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChunkCounts:
    """Numbers of chunks. `present`, `unreadable` and `missing` together are `possible`."""

    present: int
    """Chunks within the array's shape that exist."""
    unreadable: int
    """Chunks of which damage hides whether they exist."""
    missing: int
    """Chunks that do not exist: they read as the fill value."""
    possible: int
    """Chunks of the chunk grid."""
    outside: int
    """Chunks outside the array's shape that exist in shards at its edge."""


@dataclass(frozen=True)
class ShardCounts:
    """Numbers of shards."""

    present: int
    """Shards of the shard grid that exist; without shards, chunk files."""
    possible: int
    """Shards of the shard grid."""
    outside: int
    """Files whose keys lie outside the shard grid; they are not read."""


@dataclass(frozen=True)
class ByteCounts:
    """What the bytes of the files are used for. All but `decoded` together are `files`."""

    files: int
    """Length of all files of shards."""
    live: int
    """Bytes that belong to chunks; those that chunks share count once."""
    overhead: int
    """Bytes of indexes, headers and checksums."""
    dead: int
    """Bytes that no index refers to."""
    unreadable: int
    """Bytes of which damage hides what they are."""
    decoded: int | None
    """Bytes of the chunks once decoded; None if items have no fixed length."""


@dataclass(frozen=True)
class DamageCounts:
    """Numbers of damaged parts."""

    shards: int
    """Shards that cannot be read."""
    entries: int
    """Chunks and inner shards that a bad entry or index does not locate."""


@dataclass(frozen=True)
class ChunkLengths:
    """Lengths of encoded chunks in bytes."""

    smallest: int
    median: int
    """The lower one if there are two."""
    largest: int
    median_is_exact: bool
    """It is right to 1 % otherwise."""


@dataclass(frozen=True)
class Level:
    """A level of sharding."""

    chunk_shape: tuple[int, ...]
    """Extents of the parts of a shard of this level, in elements."""
    chunks_per_shard: tuple[int, ...] | None
    """Number of these parts along each axis; None if shards differ."""
    index_location: str
    """Place of the index in a shard: "start" or "end"."""
    index: str
    """How the index is encoded, in words."""
    codecs_after: tuple[str, ...]
    """Names of the codecs around the shard, in the order of encoding."""


@dataclass(frozen=True)
class ArrayInfo:
    """An array: what it is, how full it is, and what its bytes are used for."""

    path: str
    """Directory or file of the array."""
    format: str
    """How it is stored, such as "Zarr v3, sharded"."""
    shape: tuple[int, ...] | None
    """Extents in elements; None if not known."""
    data_type: str | None
    """Name of the data type in Zarr v3; None if not known."""
    data_type_configuration: Mapping[str, Any] | None
    """Configuration of the data type in Zarr v3; None if it has none."""
    dimension_names: tuple[str | None, ...] | None
    """A name or None for each axis; None if no axis has a name."""
    fill_value: Any
    """Fill value in its form of Zarr v3; None if there is none. NaN and the infinities are texts."""
    attributes: Mapping[str, Any]
    """User attributes."""
    codecs: tuple[str, ...]
    """Names of a chunk's codecs, in the order of encoding."""
    chunk_shape: tuple[int, ...]
    """Extents of a chunk in elements."""
    shard_shape: tuple[int, ...] | None
    """Extents of a shard in elements; None if shards differ or there are none."""
    chunk_grid: tuple[int, ...]
    """Number of chunks along each axis."""
    shard_grid: tuple[int, ...]
    """Number of shards along each axis; without shards, of chunks."""
    levels: tuple[Level, ...]
    """Levels of sharding, the outermost first; empty without shards that have an index."""
    chunks: ChunkCounts
    shards: ShardCounts
    bytes: ByteCounts
    ratio: float | None
    """Decoded bytes divided by live bytes; None if either is not known, or without chunks."""
    chunk_nbytes: ChunkLengths | None
    """Lengths of the encoded chunks; None without chunks."""
    shared: int
    """Chunks that share their bytes with another chunk."""
    damaged: DamageCounts
    errors: tuple[str, ...]
    """What cannot be listed or read, and up to 100 damaged shards and entries, in words."""


@dataclass(frozen=True)
class Totals:
    """Sums over all arrays of a source; see `ArrayInfo`."""

    chunks: ChunkCounts
    shards: ShardCounts
    bytes: ByteCounts
    ratio: float | None
    shared: int
    damaged: DamageCounts
    arrays: int
    """Number of arrays."""


@dataclass(frozen=True)
class NewArrays:
    """How arrays that are created through a mount are stored, as the source says it."""

    shard: tuple[str, ...] | None = None
    """Rules as the option `shard` of `mount` has them; the first one that is for an array counts."""
    index_location: str | None = None
    """Place of the index in a shard: "start" or "end"."""
    error: str | None = None
    """Why what the source says cannot be used; the other members are None then."""


@dataclass(frozen=True)
class Writing:
    """How a store can be written to. One of the members is None."""

    shards: str | None = None
    """Shards are "assembled" by the store, put as a "whole", or put as a whole without a condition
    ("unconditional")."""
    error: str | None = None
    """Why nothing can be written."""


@dataclass(frozen=True)
class BadNode:
    """An array or a group whose metadata cannot be used."""

    path: str
    """Its directory."""
    document: str
    """The document that is wrong, or the directory if that cannot be read."""
    error: str
    """What is wrong with it, in words."""


@dataclass(frozen=True)
class Info:
    """What `info` says of a source."""

    source: str
    """The source as it was given."""
    arrays: tuple[ArrayInfo, ...]
    totals: Totals
    new_arrays: NewArrays | None
    """None if the source does not say it."""
    writing: Writing | None
    """None without `try_writing`."""
    bad: tuple[BadNode, ...]
    is_damaged: bool = False
    """Whether something is damaged or cannot be read; see `errors` and `damaged` of the arrays, and `bad`."""


# --- ls and verify -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """An inner chunk, and where it is."""

    key: str
    """Its key as a mount shows it."""
    chunk: tuple[int, ...]
    """Coordinates in the chunk grid."""
    shard: str
    """File of the shard; with `missing`, the one that would hold the chunk."""
    offset: int | None = None
    """Offset in that file in bytes; None if the shard is compressed as a whole, and with `missing`."""
    nbytes: int | None = None
    """Length of the encoded chunk in bytes; None with `missing`."""
    crc32c: str | None = None
    """CRC-32C of the encoded chunk, 8 hexadecimal digits; None without `checksums`."""


@dataclass(frozen=True)
class Finding:
    """A defect, or a note about what is legal."""

    severity: str
    """"defect" or "note"."""
    code: str
    """Kind of the finding, a word that does not change: docs/COMMANDS.md lists them."""
    message: str
    """The finding in words."""
    array: str
    """Directory or file of the array."""
    document: str | None = None
    """Document that is wrong, of the codes "metadata" and "consolidated"."""
    shard: str | None = None
    """File of the shard or chunk; None if the finding is about the array."""
    position: tuple[int, ...] | None = None
    """Coordinates in the shard, one level after the other; None if it is about the whole file."""
    chunk: tuple[int, ...] | None = None
    """Coordinates in the chunk grid; of an inner shard, of its first chunk; None if not known."""


@dataclass(frozen=True)
class Summary:
    """What `verify` has checked, and how much it has found."""

    arrays: int
    """Number of arrays."""
    shards: int
    """Number of shards that exist."""
    files: int
    """Number of chunk files of arrays without shards that exist."""
    chunks: int
    """Number of chunks that exist."""
    bytes: int
    """Length of the indexes and chunks that were read; of chunks, only with `decode`."""
    defects: int
    """Number of defects."""
    notes: int
    """Number of notes."""


# --- create, resize, delete --------------------------------------------------------------------------


@dataclass(frozen=True)
class Created:
    """An array that was created, or with `dry_run` would be. Without shards each chunk counts as one."""

    path: str
    """The place as it was given."""
    written: bool
    """Whether it was created; False with `dry_run`."""
    replaces: bool
    """Whether it takes the place of an array or of an empty directory."""
    sharded: bool
    """Whether chunks are stored in shards."""
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    chunks: int
    """Number of chunks of the whole array."""
    shards: int
    """Number of shards of the whole array."""
    chunks_per_shard: tuple[int, ...]
    """Number of chunks of a shard along each axis."""
    chunk_nbytes: int
    """Length of a decoded chunk in bytes."""
    shard_nbytes: int
    """Length of a decoded shard in bytes."""
    index_nbytes: int
    """Length of the encoded index of a shard in bytes; 0 without shards."""
    metadata: Mapping[str, Any]
    """The zarr.json of the array."""


@dataclass(frozen=True)
class Resized:
    """An array that was resized, or with `dry_run` would be."""

    path: str
    """The place as it was given."""
    written: bool
    """Whether it was changed; False with `dry_run`."""
    shape_before: tuple[int, ...]
    shape: tuple[int, ...]
    removed_chunks: int
    """Number of chunks outside that are removed, those of whole shards included."""
    removed_nbytes: int
    """Length of these chunks in bytes; bytes that chunks of a shard share count once."""
    removed_shards: int
    """Number of shards that are removed as a whole."""


@dataclass(frozen=True)
class Deleted:
    """An array or a group that was deleted, or with `dry_run` would be."""

    path: str
    """The place as it was given."""
    written: bool
    """Whether it was deleted; False with `dry_run`."""
    kind: str
    """"array", "group", or "leftovers" if only an interrupted command has left something."""
    files: int
    """Number of files or objects; without directories and leftovers."""
    nbytes: int | None
    """Length of the files in bytes; None in a store, where it is not known."""
    leftovers: int
    """Number of hidden directories of interrupted commands that are removed as well."""


# --- pack, unpack, repack ----------------------------------------------------------------------------


@dataclass(frozen=True)
class CopiedArray:
    """An array of a copy."""

    path: str
    """Its directory, relative to the destination."""
    chunks: int
    """Number of chunks that were copied."""
    nbytes: int
    """Length of these encoded chunks in bytes."""
    digest: str
    """Digest of the chunks, however they are stored: 64 hexadecimal digits."""
    files_written: int
    """Number of files of shards or chunks that were written."""
    files_kept: int
    """Number of such files that were there before and right."""
    damaged: tuple[str, ...]
    """Chunks and shards of the source that cannot be read, in words."""
    outside: int
    """Number of files outside the source's shard grid, which are not copied."""
    other_rank: bool
    """Whether it is copied as it is because `shard` is for another number of dimensions."""


@dataclass(frozen=True)
class LeftOut:
    """A node, a link or a special file that is not in a copy."""

    path: str
    """Its path in the source."""
    error: str
    """Why it was left out, in words."""


@dataclass(frozen=True)
class Copy:
    """A copy that was made by `pack`, `unpack`, or `repack` with a destination."""

    command: str
    """The command."""
    source: str
    """The source as it was given."""
    destination: str
    """The destination as it was given."""
    resumed: bool
    """Whether an interrupted copy was resumed."""
    arrays: tuple[CopiedArray, ...]
    other_files: int
    """Number of other files and symbolic links that were copied."""
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class RepackedArray:
    """An array whose shards were compacted."""

    path: str
    """Its directory."""
    shards: int
    """Number of shards that exist."""
    shards_rewritten: int
    """Number of shards that were written anew."""
    bytes_before: int
    """Length of the shards before, in bytes."""
    bytes_after: int
    """Length of the shards after, in bytes."""
    shards_damaged: int
    """Number of damaged shards that stay as they are."""
    shards_cut: int
    """Number of shards that lack the chunks that cannot be read, with `skip_damaged`."""
    damaged: tuple[str, ...]
    """What is damaged in these shards, in words."""


@dataclass(frozen=True)
class Repacked:
    """What `repack` in place has done."""

    command: str
    """The command."""
    source: str
    """The source as it was given."""
    arrays: tuple[RepackedArray, ...]
    """The arrays with shards."""


# --- status ------------------------------------------------------------------------------------------


class _StatsAlways(TypedDict):
    transport: dict[str, Any] | None
    store: dict[str, Any] | None
    address: str | None
    operations: dict[str, int]
    source: dict[str, int]
    remote: dict[str, int]
    indexes: dict[str, int]
    decoded: dict[str, int]
    ahead: dict[str, int]
    commits: dict[str, int]
    views: list[str]
    pid: int
    seconds: int


class Stats(_StatsAlways, total=False):
    """Counters of a mount since it was made: its .shardfs/stats.json, as it is.

    docs/schemas/stats.schema.json describes the members. They are not checked: in a list of all mounts they
    come from whoever has mounted something.
    """

    uncommitted: int
    """Bytes that were written and are not in their shards yet; absent in a read-only mount."""
    failing: bool
    """Whether the last commit of all has failed; absent in a read-only mount."""
    last_commit: str
    """Time of the last commit, RFC 3339 in UTC; absent if there was none."""
    unsaved: str
    """Directory for what cannot be committed in the end; absent if read-only."""


@dataclass(frozen=True)
class MountStatus:
    """A mount of this machine."""

    mountpoint: str
    source: str
    """Its source as the table of mounts names it."""
    writable: bool
    user: int | None
    """Id of the user who has mounted it; None if not known."""
    state: str
    """"serving"; "dead": its process has ended; "silent": no answer within ten seconds; "failing": it answers
    with an error; "hidden": another mount is above it; "closed": only another user may look into it; "part": a
    bind mount of a directory in one."""
    stats: Stats | None = None
    """Its counters; None unless it is serving."""
