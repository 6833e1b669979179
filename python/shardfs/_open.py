"""Reading arrays without a mount, by references to the chunks in their shards."""

from __future__ import annotations

import base64
import errno
import importlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from . import _commands as commands
from ._arguments import Remote, StrPath, Unpack

if TYPE_CHECKING:
    # Both are optional, and the former has no types.
    from fsspec.implementations.reference import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        ReferenceFileSystem,
    )
    from zarr.storage import FsspecStore  # type: ignore[import-not-found, unused-ignore]


class References:
    """A source that is read by references; see `open`."""

    references: dict[str, Any]
    """The references, of version 0 of kerchunk's form: a text, or `[url, offset, length]`, for each key."""

    def __init__(self, references: dict[str, Any], fsspec_options: Mapping[str, Any]) -> None:
        self.references = references
        self._fsspec_options = dict(fsspec_options)

    @cached_property
    def fs(self) -> ReferenceFileSystem:
        """A read-only filesystem of fsspec, in which every chunk is a file.

        Raises:
            ImportError: fsspec is not installed, or what it needs for the URL of the source.
        """
        return self._filesystem(asynchronous=False)

    def store(self) -> FsspecStore:
        """A store that zarr-python 3 and xarray open: `zarr.open(it, mode="r")`, `xarray.open_zarr(it)`.

        Raises:
            ImportError: zarr-python 3 or fsspec is not installed, or what it needs for the URL of the source.
        """
        try:
            # Read by name, since both are optional.
            storage = importlib.import_module("zarr.storage")
            kind = storage.FsspecStore
        except (ImportError, AttributeError) as error:
            raise ImportError(f"shardfs.open(...).store() needs zarr-python 3: {error}") from error
        store: FsspecStore = kind(fs=self._filesystem(asynchronous=True), read_only=True, path="")
        return store

    @cached_property
    def mapper(self) -> Mapper:
        """A read-only mapping of keys to bytes. Of a source on this machine it needs nothing else installed."""
        return Mapper(self)

    def _filesystem(self, asynchronous: bool) -> ReferenceFileSystem:
        try:
            module = importlib.import_module("fsspec.implementations.reference")
        except ImportError as error:
            raise ImportError(f"shardfs.open: fsspec is not installed: {error}") from error
        # Both must wait in the same way.
        options = {**self._fsspec_options, "asynchronous": asynchronous}
        fs: ReferenceFileSystem = module.ReferenceFileSystem(
            self.references, remote_options=options, asynchronous=asynchronous
        )
        return fs


class Mapper(MutableMapping[str, bytes]):
    """Keys of an unsharded array or hierarchy, and the bytes of its documents and encoded chunks.

    It cannot be changed; it is a `MutableMapping` because zarr-python 2 takes no other mapping. All methods may
    be called by any thread.
    """

    def __init__(self, source: References) -> None:
        self._source = source

    def __getitem__(self, key: str) -> bytes:
        """The bytes of a key.

        Raises:
            KeyError: There is no such document or chunk: readers take the fill value.
            OSError: It cannot be read, or its shard has become shorter.
        """
        reference = self._source.references[key]
        if isinstance(reference, str):
            if reference.startswith("base64:"):
                return base64.b64decode(reference[len("base64:") :])
            return reference.encode()
        url, offset, nbytes = reference if len(reference) == 3 else (reference[0], 0, None)
        if url.startswith("/"):
            return _local_range(url, offset, nbytes)
        found = self._source.fs.cat_file(key)
        if nbytes is not None and len(found) != nbytes:
            raise _has_changed(url)
        return bytes(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.references)

    def __len__(self) -> int:
        return len(self._source.references)

    def __contains__(self, key: object) -> bool:
        return key in self._source.references

    def __setitem__(self, key: str, value: bytes) -> NoReturn:
        raise TypeError("it is read-only: write through a mount")

    def __delitem__(self, key: str) -> NoReturn:
        raise TypeError("it is read-only: write through a mount")


def _local_range(path: str, offset: int, nbytes: int | None) -> bytes:
    """Bytes of a file."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = os.fstat(file).st_size if nbytes is None else offset + nbytes
        parts = []
        while offset < end:
            # One call reads at most 2 GiB.
            part = os.pread(file, end - offset, offset)
            if not part:
                raise _has_changed(path)
            parts.append(part)
            offset += len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def _has_changed(path: str) -> OSError:
    return OSError(errno.ESTALE, "the file is shorter than the reference says: it has changed", path)


def open(
    source: StrPath,
    *,
    base_url: str | None = None,
    zarr2: bool = False,
    inline: int | str | None = None,
    skip_damaged: bool = False,
    format: str | None = None,
    fsspec_options: Mapping[str, Any] | None = None,
    **remote: Unpack[Remote],
) -> References:
    """Opens a source for reading without a mount: readers get each chunk as a byte range of its shard.

        zarr.open(shardfs.open("volume.zarr").store(), mode="r")

    All references are made at once, and kept in memory: some hundred bytes for each chunk. They become stale
    when shards change: open the source again then.

    Args:
        source: As for `info`.
        base_url: Where the source is read, if not where it is.
        zarr2: Documents of Zarr v2, for zarr-python 2, rather than of v3.
        inline: Chunks of at most so many bytes (100, "1K") are kept in memory themselves; the only way for
            shards that are compressed as a whole.
        skip_damaged: Go on if something cannot be read: readers refuse such a chunk.
        format: As for `info`.
        fsspec_options: Options of the filesystem of fsspec that reads a URL, such as `{"anon": True}` for s3.
        **remote: How the program reaches a URL; see `Remote`.

    Raises:
        DamageError: Something cannot be read; the message lists it.
        CommandError: There is no such source, or it cannot be read.
    """
    references = commands.refs(
        source,
        base_url=base_url,
        zarr2=zarr2,
        json_version=0,
        inline=inline,
        skip_damaged=skip_damaged,
        format=format,
        **remote,
    )
    return References(_with_names_once(references), fsspec_options or {})


def _with_names_once(references: dict[str, Any]) -> dict[str, Any]:
    """The same with one text for each file, however many references name it."""
    names: dict[str, str] = {}
    for reference in references.values():
        if isinstance(reference, list):
            reference[0] = names.setdefault(reference[0], reference[0])
    return references
