"""Finding the program, running it, and reading its output while it runs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import selectors
import shutil
import signal
import subprocess
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from ._errors import Busy, CommandError, DamageError, Error, MountError, OutputError, ProgramNotFound, UsageError
from ._parse import Unexpected

T = TypeVar("T")
Self = TypeVar("Self", bound="Lines[Any]")

logger = logging.getLogger("shardfs")

# Seconds within which a command that was asked to end cleans up.
_PATIENCE = 10.0
# Bytes that are read at once from a command.
_BATCH = 1 << 16
# Bytes of messages that are kept of a command that lists much.
_KEPT = 1 << 16
# Commands whose exit codes are those of mount(8).
_OF_MOUNT = ("mount", "umount", "sync")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    command: tuple[str, ...]
    code: int
    output: bytes
    messages: str


# --- the program -------------------------------------------------------------------------------------


def find_program() -> str:
    """The path of the program `shardfs`.

    It is what the environment variable SHARDFS names; else the one beside this interpreter, where a wheel
    puts it; else the one in PATH.

    Raises:
        ProgramNotFound: There is none. The message says where it was looked for.
    """
    named = os.environ.get("SHARDFS")
    if named:
        if _is_program(named):
            return named
        raise ProgramNotFound(f"{named}: the environment variable SHARDFS names no program", 127, ("shardfs",))
    scripts = sysconfig.get_path("scripts")
    beside = os.path.join(scripts, "shardfs")
    if _is_program(beside):
        return beside
    found = shutil.which("shardfs")
    if found:
        return found
    raise ProgramNotFound(
        f"there is no program shardfs: not in {scripts} and not in PATH ({os.environ.get('PATH', '')}); "
        "the environment variable SHARDFS can name it",
        127,
        ("shardfs",),
    )


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


# --- one command -------------------------------------------------------------------------------------


def run(arguments: Sequence[str], fine: Sequence[int] = (0,)) -> Done:
    """Runs a command to its end. Exit codes other than `fine` are raised.

    An exception meanwhile, such as KeyboardInterrupt, ends the command first.
    """
    command = (find_program(), *arguments)
    process = None
    try:
        with _interruption_later():
            process = _start(command)
        output, said = process.communicate()
    except BaseException:
        if process:
            end(process)
        raise
    done = Done(command, process.returncode, output, _words(said))
    if done.code not in fine:
        raise failure(done)
    if done.code == 0:
        tell(done)
    return done


def parsed(parse: Callable[[bytes], T], text: bytes, code: int, command: tuple[str, ...]) -> T:
    """What a parser makes of the output of a command."""
    try:
        return parse(text)
    except Unexpected as error:
        raise OutputError(f"the output of shardfs {command[1]} is not understood: {error}", code, command) from None


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )


@contextlib.contextmanager
def _interruption_later() -> Iterator[None]:
    """Postpones KeyboardInterrupt: while a process is started it would be left behind, its number unknown."""
    handler = signal.getsignal(signal.SIGINT)
    # Other threads are not interrupted.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, if it has not ended, and waits for it. It may clean up first."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    except BaseException:
        # Whoever interrupts this as well does not want to wait.
        process.kill()
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def _words(said: bytes) -> str:
    """Messages without the name of the program before each of them."""
    text = said.decode("utf-8", "backslashreplace")
    return re.sub(r"^shardfs: ", "", text, flags=re.MULTILINE).strip()


def tell(done: Done) -> None:
    """Logs what a command says beside its result: warnings, and what it has left out."""
    for line in done.messages.splitlines():
        logger.warning("%s", line)


def failure(done: Done, result: object = None) -> Error:
    """The exception that an exit code stands for."""
    name, code, text = done.command[1], done.code, done.messages
    if code < 0:
        ended = f"shardfs {name} was ended by {_signal(-code)}"
        return CommandError("\n".join(filter(None, (text, ended))), code, done.command)
    text = text or f"shardfs {name} has ended with exit code {code}"
    # The parser of the command line begins its messages so; its exit code is that of other failures, too.
    if text.startswith("error: "):
        # What follows is for a terminal.
        return UsageError(text.removeprefix("error: ").split("\n\n")[0], code, done.command)
    if code == 1 and name in _OF_MOUNT:
        return UsageError(text, code, done.command)
    if code == 32:
        kind = Busy if name == "umount" and " is busy: " in text else MountError
        return kind(text, code, done.command)
    if code == 1 and name == "status":
        return MountError(text, code, done.command)
    if code == 1:
        return DamageError(text, code, done.command, result)
    return CommandError(text, code, done.command)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- a command that is read while it runs --------------------------------------------------------------


class Lines(Iterator[T], Generic[T]):
    """What a command lists, line by line, while it runs.

    The command waits while nothing is read, so memory stays bounded however much it lists. `close` ends it
    before its end, as does leaving a `with` block, and the end of the last reference to this iterator. It
    is for one thread at a time.
    """

    def __init__(self, arguments: Sequence[str], fine: Sequence[int], item: Callable[[bytes], T | None]) -> None:
        self._closed = True
        self._fine = fine
        self._item = item
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._said = b""
        self._selector = selectors.DefaultSelector()
        self._command = (find_program(), *arguments)
        with _interruption_later():
            self._process = _start(self._command)
            # From now on it is ended when this is.
            self._closed = False
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                self._selector.register(pipe, selectors.EVENT_READ)

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            while True:
                while self._lines:
                    item = parsed(self._item, self._lines.popleft(), 0, self._command)
                    if item is not None:
                        return item
                if self._closed:
                    raise StopIteration
                self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        """Reads what is there; messages as well, for the command waits if there is no room for them."""
        for key, _ in self._selector.select():
            data = os.read(key.fd, _BATCH)
            if not data:
                self._selector.unregister(key.fileobj)
            elif key.fileobj is self._process.stderr:
                self._said = (self._said + data)[:_KEPT]
            else:
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._lines.extend(lines)
        if not self._selector.get_map():
            self._finish()

    def _finish(self) -> None:
        code = self._process.wait()
        self.close()
        done = Done(self._command, code, b"", _words(self._said))
        if code not in self._fine:
            raise failure(done)
        if self._rest:
            raise OutputError(f"the last line has no end: {self._rest[:100]!r}", code, self._command)
        if code == 0:
            tell(done)

    def close(self) -> None:
        """Ends the command if it still runs. What it has not listed by then is left out."""
        if self._closed:
            return
        self._closed = True
        self._lines.clear()
        self._selector.close()
        end(self._process)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
