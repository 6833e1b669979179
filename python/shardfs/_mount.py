"""Mounts, and their ends."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from . import _arguments as arguments
from . import _commands as commands
from ._arguments import Remote, StrPath, Unpack, flag, option
from ._errors import Busy, Error
from ._results import Stats
from ._run import logger, run

# Seconds for which nothing may be mounted until an interrupted command counts as ended, and at most.
_QUIET = 0.2
_PATIENCE = 10.0


class Mount:
    """A mount. `with` gives its path, and unmounts it in the end; without `with`, call `umount`.

    It stays mounted if this process ends without unmounting it. All methods may be called by any thread.
    """

    path: Path
    """Where it is mounted: an absolute path."""

    def __init__(self, path: Path, is_temporary: bool) -> None:
        self.path = path
        self._is_temporary = is_temporary
        self._has_ended = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<shardfs.Mount {os.fspath(self.path)!r}>"

    def sync(self) -> None:
        """Returns once everything that was written through the mount, and closed, is durable in its shards.

        Raises:
            CommandError: Not everything could be written, which the message lists; or the mount does not answer.
            MountError: It is no longer mounted.
        """
        commands.sync(self.path)

    def stats(self) -> Stats:
        """Its counters; docs/USAGE.md describes them.

        Raises:
            OSError: It is no longer mounted, or the process behind it has ended.
        """
        stats: Stats = json.loads((self.path / ".shardfs" / "stats.json").read_bytes())
        return stats

    def umount(self, lazy: bool = False) -> None:
        """Makes everything durable, and unmounts. Does nothing if that was done.

        A temporary directory is removed then; never what is in it.

        Args:
            lazy: Detach it even if it is busy; it ends when its last user has left. Nothing else detaches it so.

        Raises:
            Busy: A file in it is open or mapped, or a process works in it: it stays mounted.
            CommandError: Not everything could be written, which the message lists. It is unmounted, unless that
                would lose something; see `is_mounted`. Or the mount does not answer, and stays.
            MountError: It cannot be unmounted, or others have unmounted it.
        """
        with self._lock:
            if self._has_ended:
                return
            try:
                self._umount(lazy)
            except KeyboardInterrupt:
                logger.warning("%s: interrupted before it was unmounted", self.path)
                raise
            finally:
                self._has_ended = not self.is_mounted
                if self._has_ended and self._is_temporary:
                    _remove_directory(self.path)

    def _umount(self, lazy: bool) -> None:
        try:
            commands.umount(self.path, lazy=lazy)
        except Busy:
            # Objects that refer to each other keep their files open until they are collected.
            gc.collect()
            commands.umount(self.path, lazy=lazy)

    @property
    def is_mounted(self) -> bool:
        """Whether it is mounted, as the table of mounts says."""
        return _is_mounted(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.umount()
        except Error as failed:
            if error is None:
                raise
            # What has happened first counts.
            _add_note(error, f"and {self.path} could not be unmounted: {failed}")


def mount(
    source: StrPath,
    mountpoint: StrPath | None = None,
    *,
    view: str | Sequence[str] | None = None,
    rw: bool = False,
    options: Mapping[str, object] | None = None,
    update: str | None = None,
    dirty_limit: int | str | None = None,
    commit_interval: float | None = None,
    shard: str | Sequence[str] | None = None,
    index_location: str | None = None,
    endian: str | None = None,
    edge: str | None = None,
    missing: str | None = None,
    keep_fill: bool = False,
    cache_size: int | str | None = None,
    decoded_size: int | str | None = None,
    decode_limit: int | str | None = None,
    format: str | None = None,
    transport: str | None = None,
    log_file: StrPath | None = None,
    log_format: str | None = None,
    verbose: int = 0,
    **remote: Unpack[Remote],
) -> Mount:
    """Mounts a source. Returns once the mount answers.

        with shardfs.mount("volume.zarr") as path:
            (path / "c/0/0/17").read_bytes()

    Leaving the block makes everything durable and unmounts. If that fails, it is an exception which says what
    waits; an exception of the block stays, and gets a note about it (since Python 3.11; before that it is
    logged). Close what is open in the mount before: `Busy` is raised otherwise, and it stays mounted.

    docs/USAGE.md describes the options.

    Args:
        source: An array, a hierarchy, or a file that is an array; a path or a URL.
        mountpoint: A directory; None makes one, which is removed once it is unmounted.
        view: What is shown: "zarr3", the default, "zarr2", "npy", "raw" or "flat"; several are a directory each.
        rw: Allow writing.
        options: Options of `-o`: `{"allow_other": True, "uid": 1000}`. True is an option without a value; those
            with False or None are left out.
        update: How shards are changed: "auto", "append", "in-place" or "rewrite".
        dirty_limit: Memory for uncommitted data, in bytes; or a text: "64M".
        commit_interval: Longest time that closed writes wait for a commit, in seconds.
        shard: How arrays that are created are stored: "256M", "x8,8", "PATTERN=RULE"; or several such rules.
        index_location: Where the indexes of such shards are: "start" or "end".
        endian: Byte order in npy, raw and flat: "little" or "big".
        edge: Chunks at the array's edge in npy and raw: "full", or "clip" to the array's shape.
        missing: Chunks that do not exist: "absent", or "fill" to show them made of the fill value.
        keep_fill: Chunks written to npy and raw are stored even if they equal the fill value.
        cache_size, decoded_size, decode_limit: Memory for indexes, memory for decoded chunks, and longest shard
            that is decoded as a whole; in bytes or as a text.
        format: As for `info`.
        transport: How requests arrive: "auto", "classic" or "uring".
        log_file: File for the log, which goes to syslog otherwise.
        log_format: Form of its lines: "text" or "json".
        verbose: 1 logs more, 2 everything.
        **remote: How a URL is reached; see `Remote`.

    Raises:
        UsageError: An option is none.
        MountError: There is no such source or mountpoint, or something is mounted there.
        CommandError: The system does not permit it.
    """
    line = ["mount", *flag("rw", rw), *flag("keep-fill", keep_fill)]
    for name, value in {
        "view": view if view is None or isinstance(view, str) else ",".join(view),
        "update": update,
        "dirty-limit": dirty_limit,
        "commit-interval": commit_interval,
        "index-location": index_location,
        "endian": endian,
        "edge": edge,
        "missing": missing,
        "cache-size": cache_size,
        "decoded-size": decoded_size,
        "decode-limit": decode_limit,
        "format": format,
        "log-file": log_file,
        "log-format": log_format,
    }.items():
        line += option(name, value)
    for rule in [shard] if isinstance(shard, str) else shard or []:
        line += option("shard", rule)
    line += ["--verbose"] * verbose
    line += _of_o({**(options or {}), **({} if transport is None else {"transport": transport})})
    return _mounted([*line, *arguments.remote(remote), "--", arguments.path(source)], mountpoint)


def _of_o(options: Mapping[str, object]) -> list[str]:
    """Options as mount(8) has them."""
    line = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        text = name if value is True else f"{name}={arguments.word(value)}"
        line.append("-o" + text.replace("\\", "\\\\").replace(",", "\\,"))
    return line


def _mounted(line: Sequence[str], mountpoint: StrPath | None) -> Mount:
    """Mounts, or leaves everything as it was."""
    if mountpoint is not None:
        return _mounted_on(line, os.fsdecode(mountpoint), is_temporary=False)
    made = tempfile.mkdtemp(prefix="shardfs-")
    try:
        return _mounted_on(line, made, is_temporary=True)
    except BaseException:
        _remove_directory(made)
        raise


def _mounted_on(line: Sequence[str], mountpoint: str, is_temporary: bool) -> Mount:
    # Later this process may have another working directory.
    path = Path(os.path.realpath(mountpoint))
    was_mounted = _is_mounted(path)
    try:
        run([*line, os.fspath(path)])
        return Mount(path, is_temporary)
    except BaseException as error:
        if not isinstance(error, Error) and not was_mounted:
            _abandon(path)
        raise


def _abandon(path: Path) -> None:
    """Unmounts what an interrupted command has mounted, or still mounts: it unmounts that itself in the end."""
    quiet_since = time.monotonic()
    given_up = quiet_since + _PATIENCE
    while time.monotonic() < min(quiet_since + _QUIET, given_up):
        if _is_mounted(path):
            with contextlib.suppress(Error):
                commands.umount(path)
            quiet_since = time.monotonic()
        time.sleep(_QUIET / 10)


def _remove_directory(path: StrPath) -> None:
    """Removes a temporary directory, unless something is in it or mounted on it."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("%s: the temporary directory is left: %s", path, error.strerror)


def _is_mounted(path: Path) -> bool:
    """Whether shardfs is mounted there. Asks nothing of the mount, which may not answer."""
    wanted = os.fsencode(path)
    with open("/proc/self/mountinfo", "rb") as table:
        return any(_place_of(line) == wanted for line in table if b" - fuse.shardfs " in line)


def _place_of(line: bytes) -> bytes:
    """The mountpoint in a line of the table of mounts, in which blanks are octal."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), line.split(b" ")[4])


def _add_note(error: BaseException, note: str) -> None:
    add_note = getattr(error, "add_note", None)
    if add_note:
        add_note(note)
    else:
        logger.error("%s", note)
