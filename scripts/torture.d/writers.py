"""Processes that write to a mount and note outside of it what they did and what is durable.

Each chunk belongs to one writer, so its versions have an order. A line of a writer's log begins
with a time in seconds:

    w ARRAY CHUNK VERSION HOW   this version is about to be written
    x ARRAY CHUNK VERSION HOW   the chunk is about to be removed, which is a version too
    m ARRAY CHUNK VERSION KEPT PATH   so it is, by renaming its version KEPT to PATH of the mount
    d ARRAY CHUNK VERSION HOW   this version is durable: an fsync after it has returned
    a ARRAY CHUNK VERSION HOW   the call that ended this version has returned without an error
    u ARRAY CHUNK VERSION HOW   a call failed on the way to this version: it may be there in part
    f TEXT                      an error that the filesystem below may have caused
    e TEXT                      something went wrong
"""

import errno
import os
import random
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from arrays import Array, Wrong

# A directory of the source that has nothing to do with arrays.
LOOSE = "loose"
# What writers meet once the daemon is gone.
GONE = {errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN}
# What faults below the source look like from above.
FAULTS = {errno.EIO, errno.ENOSPC}


@dataclass
class History:
    """What is known of one chunk."""

    durable: int = 0  # the version that cannot be lost; 0: the chunk was never there
    # Versions it may have, and whether it is there in them.
    present: dict[int, bool] = field(default_factory=lambda: {0: False})
    last: int = 0
    accepted: int = 0  # the last version whose writer was told of no error
    partial: int = 0  # the last version that may be there in part
    # Removals by renaming: which version must be there then, and where.
    moves: dict[int, tuple[int, str]] = field(default_factory=dict)

    def check_torn(self, wrong: Wrong) -> None:
        """What holds no version at all: its writer may have been told so."""
        if self.partial <= max(self.accepted, self.durable):
            raise wrong

    def check_accepted(self, version: int | None) -> None:
        """Whether a chunk may be this version once everything was committed."""
        self.check(version)
        if version is None:
            version = max(seq for seq, there in self.present.items() if not there)
        if version < self.accepted:
            raise Wrong(f"version {version}, but nobody was told that version {self.accepted} "
                        f"was not written; {self}")

    def attempt(self, version: int, there: bool) -> None:
        self.present[version] = there
        self.last = max(self.last, version)

    def check(self, version: int | None) -> None:
        """Whether the chunk may be this version, None: absent, after a crash."""
        if version is None:
            if any(seq >= self.durable and not there for seq, there in self.present.items()):
                return
            raise Wrong(f"absent, but version {self.durable} is durable; {self}")
        if not self.present.get(version):
            raise Wrong(f"version {version}, which cannot be; {self}")
        if version < self.durable:
            raise Wrong(f"version {version}, but version {self.durable} is durable; {self}")

    def moved(self) -> list[tuple[int, str]]:
        """Where an absent chunk must be under another name, in one of these places; empty if it may
        have been removed altogether."""
        removals = [seq for seq, there in self.present.items() if seq >= self.durable and not there]
        if not all(seq in self.moves for seq in removals):
            return []
        return [self.moves[seq] for seq in removals]

    def settle(self, version: int | None) -> None:
        """The chunk was found like this for good: what else was written is lost and stays so."""
        self.check(version)
        there = version is not None
        if version is None:
            version = max(seq for seq, there in self.present.items() if not there)
        self.durable, self.present = version, {version: there}
        self.accepted = self.partial = 0
        self.moves.clear()

    def __str__(self) -> str:
        recent = sorted(self.present.items())[-8:]
        return "known: " + " ".join(f"{seq}{'' if there else ' (removed)'}"
                                    for seq, there in recent)


def read_log(path: Path, histories: dict[tuple[int, int], History],
             until: float) -> list[tuple[float, str]]:
    """Adds what a writer has noted; returns its errors with their times.

    What was durable later than `until` is not counted: where power is cut nobody is told of an
    fsync later than that, but here filesystems live on for a moment and may say anything.
    """
    errors = []
    for line in path.read_text().splitlines():
        when, kind, rest = line.split(" ", 2)
        if kind == "e":
            errors.append((float(when), rest))
        # Those of whole arrays are read elsewhere.
        if kind in "ef" or kind.isupper():
            continue
        number, chunk, version = map(int, rest.split()[:3])
        history = histories.setdefault((number, chunk), History())
        if kind == "d" and float(when) > until:
            continue
        if kind == "d":
            history.durable = max(history.durable, version)
        elif kind == "a":
            history.accepted = max(history.accepted, version)
        elif kind == "u":
            history.partial = max(history.partial, version)
        elif kind == "m":
            kept, path = rest.split(" ", 4)[3:]
            history.moves[version] = int(kept), path
        else:
            history.attempt(version, kind == "w")
    return errors


@contextmanager
def closed_on_error(file: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(file)
        raise


class Writer:
    fault_errors = FAULTS

    def __init__(self, arrays: list[Array], mount: Path, log: Path, number: int, of: int,
                 histories: dict[tuple[int, int], History], sync: bool, faults: bool, seed: str):
        self.arrays, self.mount, self.faults = arrays, mount, faults
        # The chunk that is being changed.
        self.changing: tuple[int, int] | None = None
        self.number, self.sync = number, sync
        self.random = random.Random(seed)
        self.log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.fsyncs = self.random.choice([0, 0.02, 0.1, 0.5])
        self.own = [(a.number, chunk) for a in arrays for chunk in range(a.chunks)
                    if chunk % of == number]
        self.versions = {chunk: histories[chunk].last if chunk in histories else 0
                         for chunk in self.own}
        # What must be read now: (length, checksum), None if it was removed.
        self.now: dict[tuple[int, int], tuple[int, int] | None] = {}
        self.unsafe: set[tuple[int, int]] = set()
        self.temporary = 0

    def log(self, line: str) -> None:
        os.write(self.log_file, f"{time.monotonic():.6f} {line}\n".encode())

    def run(self, stopped) -> None:
        # From here it is found even after it was detached; by its path the writer would go on in
        # the directory below it.
        while True:
            try:
                os.chdir(self.mount)
                break
            except OSError as error:
                fault = self.faults and error.errno in self.fault_errors
                self.log(f"{'f' if fault else 'e'} chdir: {error}")
                # The mount has already ended, or its disk: whether it may have, the time tells.
                if not fault or stopped():
                    return
        self.mount = Path(".")
        errors = 0
        while not stopped():
            try:
                self.step()
            except OSError as error:
                fault = self.faults and error.errno in self.fault_errors
                self.log(f"{'f' if fault else 'e'} {self.doing}: {error}")
                if self.changing is not None:
                    number, at = self.changing
                    self.log(f"u {number} {at} {self.versions[self.changing]} {self.doing}")
                    self.changing = None
                errors += not fault
                if error.errno in GONE or errors > 20:
                    return
                time.sleep(0.002)
            except Wrong as wrong:
                self.log(f"e {self.doing}: {wrong}")
                return

    def step(self) -> None:
        kinds = {self.write: 50, self.replace: 15, self.patch: 10, self.remove: 10,
                 self.read: 6, self.list: 1, self.sync_directory: 3, self.burst: 1,
                 self.link: 4, self.bring: 8, self.move_away: 4}
        (kind,) = self.random.choices(list(kinds), kinds.values())
        chunk = self.random.choice(self.own)
        self.doing = f"{kind.__name__} {self.path(chunk)}"
        kind(chunk)

    def path(self, chunk: tuple[int, int]) -> Path:
        array = self.arrays[chunk[0]]
        return self.mount / array.name / array.chunk_key(chunk[1])

    # --- one change ------------------------------------------------------------------------------

    def begin(self, chunk: tuple[int, int], kind: str) -> int:
        self.versions[chunk] += 1
        self.log(f"{kind} {chunk[0]} {chunk[1]} {self.versions[chunk]} {self.doing}")
        self.now.pop(chunk, None)
        self.unsafe.discard(chunk)
        self.changing = chunk
        return self.versions[chunk]

    def done(self, chunk: tuple[int, int], content: bytes | None, durable: bool) -> None:
        self.changing = None
        self.log(f"a {chunk[0]} {chunk[1]} {self.versions[chunk]} {self.doing}")
        self.now[chunk] = None if content is None else (len(content), zlib.crc32(content))
        if durable or self.sync:
            how = "fsync" if durable else "-o sync"
            self.log(f"d {chunk[0]} {chunk[1]} {self.versions[chunk]} {how}")
        else:
            self.unsafe.add(chunk)

    def content(self, chunk: tuple[int, int]) -> bytes:
        return self.arrays[chunk[0]].content(chunk[1], self.begin(chunk, "w"))

    def open(self, path: Path, flags: int) -> int:
        for last in [False] * 9 + [True]:
            try:
                return os.open(path, flags, 0o644)
            except FileNotFoundError:
                # A directory goes with its last chunk.
                if last or not flags & os.O_CREAT:
                    raise
                # It may go again at once.
                with suppress(FileExistsError):
                    path.parent.mkdir(parents=True, exist_ok=True)
        raise AssertionError

    def put(self, file: int, content: bytes) -> None:
        pieces = self.random.choice([1, 1, 2, 3])
        step = -(-len(content) // pieces)
        for at in range(0, len(content), step):
            piece = content[at:at + step]
            while piece:
                piece = piece[os.write(file, piece):]

    def finish(self, file: int) -> bool:
        """Closes a file; whether it was synced before."""
        try:
            if durable := self.random.random() < self.fsyncs:
                os.fsync(file)
        finally:
            os.close(file)
        return durable

    def write(self, chunk: tuple[int, int]) -> None:
        content = self.content(chunk)
        file = self.open(self.path(chunk), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with closed_on_error(file):
            self.put(file, content)
        self.done(chunk, content, self.finish(file))

    def replace(self, chunk: tuple[int, int]) -> None:
        path, content = self.path(chunk), self.content(chunk)
        other = self.temporary_name(path)
        file = self.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            self.put(file, content)
            if self.random.random() < 0.3:
                os.fsync(file)
            if self.random.random() < 0.5:
                # It is closed even if that fails.
                closing, file = file, None
                os.close(closing)
            os.rename(other, path)
        except BaseException:
            if file is not None:
                os.close(file)
            self.drop(other)
            raise
        self.done(chunk, content, file is not None and self.finish(file))

    def bring(self, chunk: tuple[int, int]) -> None:
        """A file that is none of this array's, renamed to the chunk's name."""
        path, content = self.path(chunk), self.content(chunk)
        place = self.path(self.random.choice(self.own)).parent
        directory = self.random.choice([place, self.mount / LOOSE])
        with self.temporary_file(directory / "x", content) as other:
            self.rename(other, path)
        self.done(chunk, content, False)

    def move_away(self, chunk: tuple[int, int]) -> None:
        """A chunk becomes a file of the source's own."""
        if not self.now.get(chunk):
            return
        kept = self.versions[chunk]
        other = self.temporary_name(self.mount / LOOSE / "x")
        version = self.begin(chunk, "x")
        self.log(f"m {chunk[0]} {chunk[1]} {version} {kept} {LOOSE}/{other.name}")
        try:
            self.rename(self.path(chunk), other)
        except OSError as error:
            # A fault has left a second name: a file that has one is not moved out of the mount.
            if error.errno == errno.EXDEV and os.stat(self.path(chunk)).st_nlink > 1:
                error.errno = errno.EIO
            raise
        self.done(chunk, None, False)

    def rename(self, old: Path, new: Path) -> None:
        for _ in range(10):
            try:
                return os.rename(old, new)
            except FileNotFoundError:
                # A directory goes with its last chunk.
                with suppress(FileExistsError):
                    new.parent.mkdir(parents=True, exist_ok=True)
        os.rename(old, new)

    @contextmanager
    def temporary_file(self, path: Path, content: bytes) -> Iterator[Path]:
        """A new file beside `path`, closed; removed if its use fails."""
        other = self.temporary_name(path)
        file = self.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                self.put(file, content)
            finally:
                os.close(file)
            yield other
        except BaseException:
            self.drop(other)
            raise

    def drop(self, other: Path) -> None:
        """Removes what a failed operation has left, if it can."""
        with suppress(OSError):
            os.unlink(other)

    def link(self, chunk: tuple[int, int]) -> None:
        """As clients do that must not overwrite."""
        path = self.path(chunk)
        if self.now.get(chunk, ()) is not None:
            return
        content = self.content(chunk)
        with self.temporary_file(path, content) as other:
            os.link(other, path)
            os.unlink(other)
        self.done(chunk, content, False)

    def temporary_name(self, path: Path) -> Path:
        self.temporary += 1
        return path.with_name(f".tmp-{os.getpid()}-{self.temporary}")

    def patch(self, chunk: tuple[int, int]) -> None:
        """Over the old bytes, without cutting them off first; the end first."""
        if not self.now.get(chunk) or self.arrays[chunk[0]].packed:
            return
        content = self.content(chunk)
        file = self.open(self.path(chunk), os.O_RDWR)
        half = len(content) // 2
        with closed_on_error(file):
            os.pwrite(file, content[half:], half)
            os.pwrite(file, content[:half], 0)
        self.done(chunk, content, self.finish(file))

    def remove(self, chunk: tuple[int, int]) -> None:
        if not self.now.get(chunk):
            return
        self.begin(chunk, "x")
        os.unlink(self.path(chunk))
        self.done(chunk, None, False)

    def burst(self, chunk: tuple[int, int]) -> None:
        """All own chunks of a shard, one after the other; now and then they are removed."""
        array = self.arrays[chunk[0]]
        shard = array.shard_of(chunk[1])
        members = [one for one in self.own
                   if one[0] == chunk[0] and array.shard_of(one[1]) == shard]
        what = self.remove if self.random.random() < 0.3 else self.write
        for one in members:
            self.doing = f"burst {what.__name__} {self.path(one)}"
            what(one)

    # --- what else there is ----------------------------------------------------------------------

    def read(self, chunk: tuple[int, int]) -> None:
        """A writer sees at once what it has written."""
        known = self.random.sample(list(self.now), min(3, len(self.now)))
        for one in known:
            wanted = self.now[one]
            self.doing = f"read {self.path(one)}"
            try:
                found = self.path(one).read_bytes()
            except FileNotFoundError:
                if wanted is not None:
                    raise Wrong("not there just after it was written") from None
                continue
            if wanted is None:
                raise Wrong("there again after it was removed")
            if (len(found), zlib.crc32(found)) != wanted:
                raise Wrong(f"not what was written: {describe(self.arrays, one, found)}, "
                            f"instead of version {self.versions[one]}")

    def list(self, chunk: tuple[int, int]) -> None:
        directory = self.path(chunk).parent
        try:
            names = set(os.listdir(directory))
        except FileNotFoundError:
            names = set()
        for one, wanted in self.now.items():
            path = self.path(one)
            if path.parent != directory or (path.name in names) == (wanted is not None):
                continue
            if wanted is not None:
                raise Wrong(f"{path.name} is not listed, but there")
            # In a shard that could not be read every chunk may exist; it must not have any content.
            if self.faults:
                self.doing = f"read {path}, which is listed, but removed"
                with suppress(FileNotFoundError):
                    path.read_bytes()
                    raise Wrong("there again after it was removed")
                continue
            raise Wrong(f"{path.name} is listed, but removed")

    def sync_directory(self, chunk: tuple[int, int]) -> None:
        """All that was written below it before is durable then."""
        directory = self.path(chunk).parent
        for _ in range(self.random.randrange(4)):
            directory = directory.parent
        before = [one for one in self.unsafe if directory in self.path(one).parents]
        self.doing = f"fsync {directory}"
        try:
            file = os.open(directory, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fsync(file)
        finally:
            os.close(file)
        for one in before:
            self.log(f"d {one[0]} {one[1]} {self.versions[one]} {self.doing}")
            self.unsafe.discard(one)


def describe(arrays: list[Array], chunk: tuple[int, int], stored: bytes) -> str:
    try:
        return f"version {arrays[chunk[0]].version(chunk[1], stored)}"
    except Wrong as wrong:
        return str(wrong)
