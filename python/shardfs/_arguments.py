"""Arguments of Python functions as those of the command line."""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypedDict, Union

if sys.version_info >= (3, 11):
    from typing import Unpack as Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:
    # Of no meaning then, but annotations name it.
    Unpack = dict

StrPath = Union[str, os.PathLike[str]]
# Extents along each axis.
Shape = Union[Sequence[SupportsIndex], SupportsIndex]


class Named(Protocol):
    """Such as `numpy.dtype`."""

    @property
    def name(self) -> str: ...


# A name, an object with a name and a configuration, `numpy.dtype("uint16")` or `numpy.uint16`.
DataType = Union[str, Mapping[str, Any], Named, type]


class Remote(TypedDict, total=False):
    """How a source that is a URL is reached. All are optional; docs/REMOTE.md describes them."""

    endpoint: str
    """Address of a store that is not the provider's own, such as "https://s3.example.org"."""
    region: str
    """Region of the bucket."""
    profile: str
    """Profile of ~/.aws to use."""
    account: str
    """Account of Azure Blob Storage."""
    anonymous: bool
    """Do not sign requests: for public data."""
    virtual_host: bool
    """The bucket is part of the host's name, not of the path."""
    requester_pays: bool
    """Requests and transfer are paid for by who asks."""
    no_list: bool
    """Do not list names, which may be refused: look for those that the metadata lets expect."""
    single_writer: bool
    """Write to a store that cannot keep writers apart: nothing else writes there."""
    absent: int
    """Take objects that may not be read for absent ones: 403."""
    ca: StrPath
    """Accept the certificates in this file, too."""
    timeout: float
    """How long a request may take, with its repetitions, in seconds."""
    requests: int
    """How many requests may be under way at once."""


def path(place: StrPath) -> str:
    """A path or a URL as an argument; what is no UTF-8 in it stays as it is."""
    return os.fsdecode(place)


def flag(name: str, is_given: bool) -> list[str]:
    """An option without a value."""
    return [f"--{name}"] if is_given else []


def option(name: str, value: object) -> list[str]:
    """An option with a value; None leaves it out."""
    return [] if value is None else [f"--{name}={word(value)}"]


def word(value: object) -> str:
    """A value of an option as a text."""
    return os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)


def lengths(values: Shape | None) -> str | None:
    """A shape: `512,-1`."""
    if values is None:
        return None
    each = values if isinstance(values, Iterable) else [values]
    return ",".join(str(operator.index(it)) for it in each)


def rule(shard: Shape | str | None) -> str | None:
    """The size of shards: a shape, or a text such as `256M` or `x8,8`."""
    return shard if shard is None or isinstance(shard, str) else lengths(shard)


def ratios(values: Sequence[float] | None) -> str | None:
    """Numbers, separated by commas."""
    return None if values is None else ",".join(str(it) for it in values)


def names(values: Sequence[str | None] | None) -> str | None:
    """Names of dimensions, separated by commas.

    Raises:
        ValueError: One has a comma in it, which the command line cannot have.
    """
    if values is None:
        return None
    for name in values:
        if name and ("," in name or name != name.strip()):
            raise ValueError(f"the name of a dimension may have no comma, and no blank at its ends: {name!r}")
    # An empty text is for an array without dimensions.
    return ",".join(name or " " for name in values)


def json_or_word(value: str | Mapping[str, Any]) -> str:
    """A name, or an object with a name and a configuration."""
    return value if isinstance(value, str) else json.dumps(value, allow_nan=False)


def data_type(value: DataType) -> str:
    """A data type of Zarr, or one of NumPy by its name."""
    if isinstance(value, (str, Mapping)):
        return json_or_word(value)
    return value.__name__ if isinstance(value, type) else value.name


def fill(value: object) -> str | None:
    """A fill value: a number, a truth value, a text; a complex number; bytes."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        value = list(value)
    elif not isinstance(value, (bool, int, float, complex)) and hasattr(value, "item"):
        # A scalar of NumPy.
        value = value.item()
    if isinstance(value, complex):
        value = [value.real, value.imag]
    return json.dumps(value)


def remote(given: Remote) -> list[str]:
    """Options for sources that are URLs.

    Raises:
        TypeError: One is not known.
    """
    unknown = given.keys() - Remote.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument: {', '.join(sorted(unknown))}")
    found = []
    for name, value in given.items():
        name = name.replace("_", "-")
        found += flag(name, value) if isinstance(value, bool) else option(name, value)
    return found
