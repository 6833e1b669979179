"""shardfs: inner chunks of sharded Zarr arrays as files, without a copy.

This module runs the program `shardfs`: `mount` mounts a source, `open` reads one without a mount, the other
functions are the commands of the same names. docs/PYTHON.md has recipes.

Paths are `str` or `os.PathLike`, URLs are `str`. What goes wrong is an `Error`. What the program says beside its
result, such as an option that has no effect, is logged as a warning by the logger "shardfs". Functions may be called by
any thread; an exception such as KeyboardInterrupt ends the program that runs.
"""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version

from ._arguments import Remote
from ._commands import (
    Verification,
    create,
    delete,
    info,
    ls,
    pack,
    refs,
    repack,
    resize,
    status,
    sync,
    umount,
    unpack,
    verify,
)
from ._errors import (
    Busy,
    CommandError,
    DamageError,
    Error,
    MountError,
    OutputError,
    ProgramNotFound,
    UsageError,
)
from ._mount import Mount, mount
from ._open import Mapper, References, open
from ._results import (
    ArrayInfo,
    BadNode,
    ByteCounts,
    Chunk,
    ChunkCounts,
    ChunkLengths,
    CopiedArray,
    Copy,
    Created,
    DamageCounts,
    Deleted,
    Finding,
    Info,
    LeftOut,
    Level,
    MountStatus,
    NewArrays,
    Repacked,
    RepackedArray,
    Resized,
    ShardCounts,
    Stats,
    Summary,
    Totals,
    Writing,
)
from ._run import Lines, find_program

__all__ = [
    "ArrayInfo",
    "BadNode",
    "Busy",
    "ByteCounts",
    "Chunk",
    "ChunkCounts",
    "ChunkLengths",
    "CommandError",
    "CopiedArray",
    "Copy",
    "Created",
    "DamageCounts",
    "DamageError",
    "Deleted",
    "Error",
    "Finding",
    "Info",
    "LeftOut",
    "Level",
    "Lines",
    "Mapper",
    "Mount",
    "MountError",
    "MountStatus",
    "NewArrays",
    "OutputError",
    "ProgramNotFound",
    "References",
    "Remote",
    "Repacked",
    "RepackedArray",
    "Resized",
    "ShardCounts",
    "Stats",
    "Summary",
    "Totals",
    "UsageError",
    "Verification",
    "Writing",
    "__version__",
    "create",
    "delete",
    "find_program",
    "info",
    "ls",
    "mount",
    "open",
    "pack",
    "refs",
    "repack",
    "resize",
    "status",
    "sync",
    "umount",
    "unpack",
    "verify",
]

try:
    __version__ = _version("shardfs")
except _NotInstalled:
    # Imported from a checkout.
    __version__ = "0+unknown"

# Tracebacks name what users import.
for _kind in (Error, ProgramNotFound, UsageError, MountError, Busy, CommandError, DamageError, OutputError):
    _kind.__module__ = __name__
del _kind
