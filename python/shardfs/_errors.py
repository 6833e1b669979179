"""What goes wrong, by kind."""

from __future__ import annotations


class Error(Exception):
    """A command has failed. What `except shardfs.Error` catches has one of the classes below.

    It can be pickled, so it passes from one process to another.
    """

    message: str
    """What the program says, in its words: a line for each message, without `shardfs: ` before them."""
    code: int
    """Exit code of the program; the negative number of a signal that has ended it."""
    command: tuple[str, ...]
    """The command line that was run, the program first."""

    def __init__(self, message: str, code: int, command: tuple[str, ...]) -> None:
        super().__init__(message, code, command)
        self.message = message
        self.code = code
        self.command = command

    def __str__(self) -> str:
        return self.message


class ProgramNotFound(Error):
    """There is no program `shardfs` to run. The message says where it was looked for; the code is 127."""


class UsageError(Error):
    """An argument or an option is none, or is in conflict with another."""


class MountError(Error):
    """A source cannot be mounted, a mount cannot be unmounted, or what is named is no mount of shardfs."""


class Busy(MountError):
    """A mount is in use: a file in it is open or mapped, or a process works in it. It is still mounted."""


class CommandError(Error):
    """The command could not be carried out: the message says why."""


class DamageError(Error):
    """Damage of the source keeps a command from doing all that was asked for."""

    result: object
    """What it has done nevertheless, for commands that say it: a `Copy` or a `Repacked`; None otherwise."""

    def __init__(self, message: str, code: int, command: tuple[str, ...], result: object = None) -> None:
        super().__init__(message, code, command)
        # What is pickled.
        self.args = (message, code, command, result)
        self.result = result


class OutputError(Error):
    """The program's output is not what this module expects: it is of another version, or of another program."""
