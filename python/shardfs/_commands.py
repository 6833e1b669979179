"""The commands that work without a mount, and `sync`, `umount` and `status`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from . import _arguments as arguments
from ._arguments import DataType, Remote, Shape, StrPath, Unpack, flag, option
from ._parse import document, parser
from ._results import (
    Chunk,
    Copy,
    Created,
    Deleted,
    Finding,
    Info,
    MountStatus,
    Repacked,
    Resized,
    Summary,
)
from ._run import Lines, failure, parsed, run, tell

T = TypeVar("T")

_INFO = parser(Info)
_CHUNK = parser(Chunk)
_FINDING = parser(Finding)
_CREATED = parser(Created)
_RESIZED = parser(Resized)
_DELETED = parser(Deleted)
_COPY = parser(Copy)
_REPACKED = parser(Repacked)


@dataclasses.dataclass(frozen=True)
class _Mounts:
    mounts: tuple[MountStatus, ...]


@dataclasses.dataclass(frozen=True)
class _Last:
    summary: Summary


_MOUNTS = parser(_Mounts)
_LAST = parser(_Last)


def _ask(parse: Callable[[bytes], T], line: Sequence[str]) -> T:
    """What a command prints that has succeeded."""
    done = run(line)
    return parsed(parse, done.output, done.code, done.command)


# --- looking -----------------------------------------------------------------------------------------


def info(
    source: StrPath,
    *,
    level: int | None = None,
    format: str | None = None,
    try_writing: bool = False,
    **remote: Unpack[Remote],
) -> Info:
    """What the arrays of a source are, how full they are, and what their bytes are used for.

    Damage is no exception: `is_damaged` of the result says whether there is any.

    Args:
        source: An array, a hierarchy of arrays, or a file that is an array; a path or a URL.
        level: Level of nested sharding whose chunks are meant: 1 the outermost, 0 the shards themselves; the
            innermost if not given.
        format: What the source is, if its contents do not say it: "zarr", "draft2022", "bloscpack" or "blz".
        try_writing: Find out how a store can be written to, with an object that is put and removed.
        **remote: How a URL is reached; see `Remote`.

    Raises:
        CommandError: There is no such source, or it cannot be read.
    """
    line = ["info", "--json", *option("level", level), *option("format", format)]
    line += [*flag("try-writing", try_writing), *arguments.remote(remote), "--", arguments.path(source)]
    done = run(line, fine=(0, 1))
    found = parsed(_INFO, done.output, done.code, done.command)
    return dataclasses.replace(found, is_damaged=done.code == 1)


def ls(
    source: StrPath,
    key_prefix: StrPath | None = None,
    *,
    checksums: bool = False,
    missing: bool = False,
    outside: bool = False,
    level: int | None = None,
    format: str | None = None,
    **remote: Unpack[Remote],
) -> Lines[Chunk]:
    """The inner chunks of sharded arrays, while they are found: shards in C order, and chunks in C order in each.

    Args:
        source, level, format, **remote: As for `info`.
        key_prefix: Only chunks whose keys begin with this, cut off between two parts: "volume/c/0".
        checksums: With the CRC-32C of each encoded chunk: all of them are read.
        missing: Chunks that do not exist, instead of those that do.
        outside: Also chunks outside the array's shape, in the shards at its edge.

    Returns:
        An iterator; to close it ends the program. Errors are raised by it, after the chunks that were found:

    Raises:
        DamageError: Some chunks are not listed because of damage.
        CommandError: There is no such source, or it cannot be read.
    """
    line = ["ls", "--json", *flag("long", checksums), *flag("missing", missing), *flag("outside", outside)]
    line += [*option("level", level), *option("format", format), *arguments.remote(remote), "--"]
    line += [arguments.path(source), *([] if key_prefix is None else [arguments.path(key_prefix)])]
    return Lines(line, (0,), _CHUNK)


class Verification(Iterator[Finding]):
    """What `verify` finds, while it looks: an iterator of `Finding`, and its `summary` afterwards.

    To close it, or to leave a `with` block, ends the program.
    """

    def __init__(self, line: Sequence[str]) -> None:
        self._summary: list[Summary] = []
        self._findings = _findings(line, self._summary)

    def __next__(self) -> Finding:
        return next(self._findings)

    @property
    def summary(self) -> Summary:
        """What was checked, and how much was found.

        The check is made to its end first; findings that were not iterated over by then are only counted.

        Raises:
            RuntimeError: It was closed before its end.
            CommandError: As for `verify`.
        """
        if not self._summary:
            for _ in self._findings:
                pass
        if not self._summary:
            raise RuntimeError("the verification was ended before it was complete")
        return self._summary[0]

    def close(self) -> None:
        """Ends the program if it still runs."""
        self._findings.close()

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _findings(line: Sequence[str], summary: list[Summary]) -> Lines[Finding]:
    def item(text: bytes) -> Finding | None:
        if not text.startswith(b'{"summary"'):
            return _FINDING(text)
        summary.append(_LAST(text).summary)
        return None

    return Lines(line, (0, 1), item)


def verify(
    source: StrPath,
    *,
    decode: bool = False,
    level: int | None = None,
    format: str | None = None,
    **remote: Unpack[Remote],
) -> Verification:
    """Checks a source: every index, entry and key; continues after a defect and reports all of them.

    Defects are no exceptions: `summary.defects` is their number.

    Args:
        source, level, format, **remote: As for `info`.
        decode: Decode every chunk as well, and verify checksums over whole shards: every byte is read.

    Returns:
        An iterator of findings, with a `summary`. Errors are raised by it:

    Raises:
        CommandError: There is no such source, or it cannot be read.
    """
    line = ["verify", "--json", *flag("decode", decode), *option("level", level), *option("format", format)]
    return Verification([*line, *arguments.remote(remote), "--", arguments.path(source)])


# --- whole arrays ------------------------------------------------------------------------------------


def create(
    place: StrPath,
    *,
    shape: Shape,
    dtype: DataType,
    chunk: Shape | None = None,
    shard: Shape | str | None = None,
    soft_chunk: Shape | None = None,
    soft_shard: Shape | None = None,
    elements: int | None = None,
    read_elements: int | None = None,
    write_elements: int | None = None,
    aspect: Sequence[float] | None = None,
    read_aspect: Sequence[float] | None = None,
    write_aspect: Sequence[float] | None = None,
    order: str | None = None,
    codecs: Sequence[str | Mapping[str, Any]] = (),
    fill: object = None,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Mapping[str, Any] | None = None,
    index_location: str | None = None,
    key_encoding: str | None = None,
    separator: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    **remote: Unpack[Remote],
) -> Created:
    """Creates an array of Zarr v3 without any chunks: all of it reads as the fill value.

    Shapes that are not given are chosen by TensorStore's rule; docs/COMMANDS.md describes how.

    Args:
        place: Directory to create, or a place in a store ("s3://bucket/volume.zarr").
        shape: Extents in elements.
        dtype: Name of a data type of Zarr v3 ("uint16"), or an object with `name` and `configuration`; or a data type
            of NumPy (`numpy.uint16`), whatever its byte order.
        chunk: Extents of an inner chunk in elements; -1 is the whole extent, 0 is chosen.
        shard: Extents of a shard in elements; or chunks along the last axes ("x8,8"), or decoded bytes at most
            ("256M"). Those of the chunk make an array without shards.
        soft_chunk, soft_shard: Extents that give way to the other shape.
        elements, read_elements, write_elements: Numbers of elements, about: of both, of an inner chunk, of a
            shard.
        aspect, read_aspect, write_aspect: Lengths along the axes to each other, of the same.
        order: Order of the axes in an inner chunk, slowest first: "C", "F", or a list such as "2,0,1".
        codecs: Codecs of inner chunks in the order of encoding: "zstd:3", or objects. None by default.
        fill: Fill value: a number, a truth value, a text, bytes. 0, False or NaT by default.
        dimension_names: A name or None for each axis.
        attributes: User attributes; as JSON at most 128 KiB.
        index_location: Where shards have their index: "start" or "end".
        key_encoding: How chunks are called: "default" or "v2".
        separator: What stands between the numbers of a name: "/" or ".".
        force: Replace an array, or an empty directory, that is there.
        dry_run: Create nothing.
        **remote: How a URL is reached; see `Remote`.

    Raises:
        UsageError: An argument is none.
        CommandError: The shapes do not go together, something is there, or it cannot be written.
    """
    line = ["create", "--json", *flag("force", force), *flag("dry-run", dry_run)]
    for name, value in {
        "shape": arguments.lengths(shape),
        "dtype": arguments.data_type(dtype),
        "chunk": arguments.lengths(chunk),
        "shard": arguments.rule(shard),
        "soft-chunk": arguments.lengths(soft_chunk),
        "soft-shard": arguments.lengths(soft_shard),
        "elements": elements,
        "read-elements": read_elements,
        "write-elements": write_elements,
        "aspect": arguments.ratios(aspect),
        "read-aspect": arguments.ratios(read_aspect),
        "write-aspect": arguments.ratios(write_aspect),
        "order": order,
        "fill": arguments.fill(fill),
        "dim-names": arguments.names(dimension_names),
        "attrs": None if attributes is None else json.dumps(attributes, allow_nan=False),
        "index-location": index_location,
        "key-encoding": key_encoding,
        "separator": separator,
    }.items():
        line += option(name, value)
    for codec in codecs:
        line += option("codec", arguments.json_or_word(codec))
    return _ask(_CREATED, [*line, *arguments.remote(remote), "--", arguments.path(place)])


def resize(
    place: StrPath, shape: Shape, *, keep_outside: bool = False, dry_run: bool = False, **remote: Unpack[Remote]
) -> Resized:
    """Changes the shape of an array of Zarr v3. Where it shrinks, chunks outside are removed.

    Args:
        place: Directory of the array, or its URL.
        shape: New extents in elements, one for each dimension.
        keep_outside: Leave chunks that lie outside; they are seen again when the array grows.
        dry_run: Change nothing.
        **remote: How a URL is reached; see `Remote`.

    Raises:
        CommandError: It is no such array, or it cannot be changed.
    """
    line = ["resize", "--json", *option("shape", arguments.lengths(shape)), *flag("keep-outside", keep_outside)]
    line += [*flag("dry-run", dry_run), *arguments.remote(remote), "--", arguments.path(place)]
    return _ask(_RESIZED, line)


def delete(
    place: StrPath, *, recursive: bool = False, dry_run: bool = False, **remote: Unpack[Remote]
) -> Deleted:
    """Deletes an array or a group of Zarr v3.

    Args:
        place: Its directory, or its URL.
        recursive: A group as well, or an array with others below it, with everything below.
        dry_run: Delete nothing.
        **remote: How a URL is reached; see `Remote`.

    Raises:
        CommandError: It is none, it is in use, or it cannot be deleted.
    """
    line = ["delete", "--json", *flag("recursive", recursive), *flag("dry-run", dry_run)]
    return _ask(_DELETED, [*line, *arguments.remote(remote), "--", arguments.path(place)])


# --- copies ------------------------------------------------------------------------------------------


def _copy(parse: Callable[[bytes], T], line: Sequence[str], skip_damaged: bool) -> T:
    """What a copying command has done; damage is raised unless the caller knows of it."""
    done = run([*line[:1], "--json", *flag("skip-damaged", skip_damaged), *line[1:]], fine=(0, 1))
    if done.code == 0:
        return parsed(parse, done.output, done.code, done.command)
    result = parsed(parse, done.output, done.code, done.command) if done.output else None
    if result is None or not skip_damaged:
        raise failure(done, result)
    return result


def pack(
    source: StrPath,
    destination: StrPath,
    shard: Shape | str,
    *,
    index: str | None = None,
    order: str | None = None,
    dedup: bool = False,
    format: str | None = None,
    force: bool = False,
    skip_damaged: bool = False,
    threads: int | None = None,
    **remote: Unpack[Remote],
) -> Copy:
    """Puts the chunk files of an array or a hierarchy into shards; encoded chunks stay the same.

    A call that was interrupted is resumed by the same call.

    Args:
        source: Zarr v3 or v2, or whatever else can be mounted; a path or a URL.
        destination: Directory to make, or a place in a store.
        shard: Extents of a shard in elements (-1 is the whole extent), chunks along the last axes ("x8,8"), or
            decoded bytes at most ("256M").
        index: Where a shard's index is: "start" or "end", the default.
        order: Order of the chunks in a shard: "c", the default, "f" or "morton".
        dedup: Equal chunks of a shard share their bytes.
        format: As for `info`.
        force: Replace a Zarr array or group that is there, or begin an unfinished one anew.
        skip_damaged: Leave out what cannot be read. The result says what that is.
        threads: Threads that copy.
        **remote: How URLs are reached; see `Remote`.

    Raises:
        DamageError: The source is damaged, and the copy is not finished; `result` says what is wrong.
        CommandError: It could not be made.
    """
    line = ["pack", *option("shard", arguments.rule(shard)), *option("index", index), *option("order", order)]
    line += [*flag("dedup", dedup), *option("format", format), *flag("force", force), *option("threads", threads)]
    line += [*arguments.remote(remote), "--", arguments.path(source), arguments.path(destination)]
    return _copy(_COPY, line, skip_damaged)


def unpack(
    source: StrPath,
    destination: StrPath,
    *,
    level: int | None = None,
    format: str | None = None,
    force: bool = False,
    skip_damaged: bool = False,
    threads: int | None = None,
    **remote: Unpack[Remote],
) -> Copy:
    """Makes a file of each chunk: the unsharded form of an array or a hierarchy.

    A call that was interrupted is resumed by the same call.

    Args:
        level: As for `info`.
        source, destination, format, force, skip_damaged, threads, **remote: As for `pack`.

    Raises:
        DamageError: The source is damaged, and the copy is not finished; `result` says what is wrong.
        CommandError: It could not be made.
    """
    line = ["unpack", *option("level", level), *option("format", format), *flag("force", force)]
    line += [*option("threads", threads), *arguments.remote(remote), "--"]
    return _copy(_COPY, [*line, arguments.path(source), arguments.path(destination)], skip_damaged)


@overload
def repack(
    source: StrPath,
    destination: None = None,
    *,
    order: str | None = None,
    dedup: bool = False,
    format: str | None = None,
    skip_damaged: bool = False,
    threads: int | None = None,
) -> Repacked: ...


@overload
def repack(
    source: StrPath,
    destination: StrPath,
    *,
    shard: Shape | str | None = None,
    index: str | None = None,
    order: str | None = None,
    dedup: bool = False,
    format: str | None = None,
    force: bool = False,
    skip_damaged: bool = False,
    threads: int | None = None,
    **remote: Unpack[Remote],
) -> Copy: ...


def repack(
    source: StrPath,
    destination: StrPath | None = None,
    *,
    shard: Shape | str | None = None,
    index: str | None = None,
    order: str | None = None,
    dedup: bool = False,
    format: str | None = None,
    force: bool = False,
    skip_damaged: bool = False,
    threads: int | None = None,
    **remote: Unpack[Remote],
) -> Repacked | Copy:
    """Writes shards anew, without dead space: where they are, or as a copy, in which they may have another shape.

    Args:
        source: An array or a hierarchy with shards.
        destination: Directory to make, or a place in a store; None replaces the shards where they are.
        skip_damaged: Leave out what cannot be read; in place for good. The result says what that is.
        shard, index, force, **remote: As for `pack`; with a destination alone.
        order, dedup, format, threads: As for `pack`.

    Raises:
        DamageError: Shards are damaged: they stay as they are, or the copy is not finished; `result` says
            what is wrong.
        UsageError, CommandError: It could not be done.
    """
    line = ["repack", *option("shard", arguments.rule(shard)), *option("index", index), *option("order", order)]
    line += [*flag("dedup", dedup), *option("format", format), *flag("force", force), *option("threads", threads)]
    line += [*arguments.remote(remote), "--", arguments.path(source)]
    if destination is None:
        return _copy(_REPACKED, line, skip_damaged)
    return _copy(_COPY, [*line, arguments.path(destination)], skip_damaged)


# --- references --------------------------------------------------------------------------------------


@overload
def refs(
    source: StrPath,
    output: None = None,
    *,
    base_url: str | None = None,
    prefix: str | None = None,
    zarr2: bool = False,
    json_version: Literal[0, 1] = 1,
    inline: int | str | None = None,
    skip_damaged: bool = False,
    format: str | None = None,
    **remote: Unpack[Remote],
) -> dict[str, Any]: ...


@overload
def refs(
    source: StrPath,
    output: StrPath,
    *,
    force: bool = False,
    base_url: str | None = None,
    prefix: str | None = None,
    zarr2: bool = False,
    json_version: Literal[0, 1] = 1,
    inline: int | str | None = None,
    skip_damaged: bool = False,
    format: str | None = None,
    **remote: Unpack[Remote],
) -> Path: ...


def refs(
    source: StrPath,
    output: StrPath | None = None,
    *,
    force: bool = False,
    base_url: str | None = None,
    prefix: str | None = None,
    zarr2: bool = False,
    json_version: Literal[0, 1] = 1,
    inline: int | str | None = None,
    skip_damaged: bool = False,
    format: str | None = None,
    **remote: Unpack[Remote],
) -> dict[str, Any] | Path:
    """References to every inner chunk, as kerchunk and fsspec have them; `open` reads through such.

    Args:
        source, format, **remote: As for `info`.
        output: File to write to, as JSON.
        force: Replace that file if it exists.
        base_url: Where readers find the source; its absolute path by default.
        prefix: A path to put before every key.
        zarr2: Make documents of Zarr v2 rather than of v3.
        json_version: Version of the form; 0 repeats the URL in every reference.
        inline: Chunks of at most so many bytes (100, "1K") are put into the references themselves.
        skip_damaged: Go on after what cannot be read: such a chunk is an empty text.

    Returns:
        The references: all of them in memory; or, with `output`, the path of the file.

    Raises:
        DamageError: Something cannot be read. Nothing is written then, unless with `skip_damaged`.
        CommandError: It could not be done.
    """
    line = ["refs", *flag("force", force), *option("base-url", base_url), *option("prefix", prefix)]
    line += [*flag("zarr2", zarr2), *option("json-version", json_version), *option("inline", inline)]
    line += [*flag("skip-damaged", skip_damaged), *option("format", format), *arguments.remote(remote)]
    line += [*option("output", output), "--", arguments.path(source)]
    done = run(line, fine=(0, 1))
    if done.code == 1 and not skip_damaged:
        raise failure(done)
    if done.code == 1:
        # Nothing else says what is missing.
        tell(done)
    if output is not None:
        return Path(output)
    found = parsed(document, done.output, done.code, done.command)
    return dict(found)


# --- mounts ------------------------------------------------------------------------------------------


def sync(mountpoint: StrPath) -> None:
    """Returns once everything that was written through a mount, and closed, is durable in its shards.

    Raises:
        MountError: It is no mount of shardfs.
        CommandError: Not everything could be written, which the message lists; or the mount does not answer.
    """
    run(["sync", "--", arguments.path(mountpoint)])


def umount(mountpoint: StrPath, *, lazy: bool = False) -> None:
    """Makes everything durable, unmounts, and waits until the process behind the mount has ended.

    Args:
        mountpoint: Where it is mounted.
        lazy: Detach it now even if it is busy; it ends when its last user has left.

    Raises:
        Busy: It is in use, and stays mounted.
        MountError: It is no mount of shardfs, or cannot be unmounted.
        CommandError: Not everything could be written, which the message lists: it is unmounted, unless that
            would lose something; or the mount does not answer.
    """
    run(["umount", *flag("lazy", lazy), "--", arguments.path(mountpoint)])


def status(*mountpoints: StrPath) -> tuple[MountStatus, ...]:
    """The mounts of this machine: whether they answer, and their counters.

    A mount that does not answer is no exception: its `state` says it. It takes ten seconds to know that.

    Args:
        *mountpoints: These alone, in this order; all mounts if none is given.

    Raises:
        MountError: Nothing of shardfs is mounted there.
        CommandError: There is no such directory, or the mounts of this machine are not known.
    """
    done = run(["status", "--json", "--", *map(arguments.path, mountpoints)], fine=(0, 1))
    if not done.output:
        raise failure(done)
    return parsed(_MOUNTS, done.output, done.code, done.command).mounts
