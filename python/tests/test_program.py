"""Which program is run, how it is run, and what becomes of its failures."""

from __future__ import annotations

import logging
import os
import pickle
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import shardfs

REAL = os.environ["SHARDFS"]
Fake = Callable[[str], Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Another program in the place of shardfs: a script for the shell."""

    def make(script: str) -> Path:
        path = tmp_path / "fake" / "shardfs"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("SHARDFS", str(path))
        return path

    return make


# --- where it is -------------------------------------------------------------------------------------


def test_the_environment_names_it_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert shardfs.find_program() == REAL
    monkeypatch.setenv("SHARDFS", str(tmp_path))
    with pytest.raises(shardfs.ProgramNotFound, match=f"{tmp_path}: the environment variable SHARDFS names no program"):
        shardfs.info(tmp_path)


def test_then_the_one_beside_the_interpreter_and_in_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: Fake
) -> None:
    program = fake("exit 3")
    monkeypatch.delenv("SHARDFS")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", f"/nowhere:{program.parent}")
    assert shardfs.find_program() == str(program)
    beside = tmp_path / "shardfs"
    beside.write_text("")
    # It is no program yet.
    assert shardfs.find_program() == str(program)
    beside.chmod(0o755)
    assert shardfs.find_program() == str(beside)


def test_one_that_is_nowhere_is_named_with_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SHARDFS")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/scripts")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(shardfs.ProgramNotFound) as caught:
        shardfs.mount(tmp_path)
    message = str(caught.value)
    assert "/scripts" in message and str(tmp_path) in message and "SHARDFS" in message
    assert caught.value.code == 127
    # The directory that was made for it is gone.
    assert list(tmp_path.iterdir()) == []


# --- how it is run -----------------------------------------------------------------------------------


def test_it_gets_no_input_and_the_environment_as_it_is(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_YY")
    fake(f'cat; echo "$LC_ALL|$0|$*" > "{tmp_path}/said"')
    shardfs.sync("a b")
    assert (tmp_path / "said").read_text() == f"xx_YY|{tmp_path}/fake/shardfs|sync -- a b\n"


ODD_NAMES = ["with space", "line\nbreak", "-l", "--help", "é😀", "quote'\"$HOME`", "back\\slash"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_are_taken_as_they_are(name: str, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (sample / "waves").rename(sample / name)
    sample.rename(tmp_path / name)
    # Relative, so that a hyphen stands at the beginning.
    about = shardfs.info(name)
    assert about.source == name and [array.path for array in about.arrays] == [name]
    chunks = list(shardfs.ls(name, f"{name}/c/0/0/0"))
    assert [chunk.key for chunk in chunks] == [f"{name}/c/0/0/0"]
    assert shardfs.verify(Path(name)).summary.chunks == 192
    copied = shardfs.unpack(name, "-copy")
    assert copied.arrays[0].path == name and Path("-copy", name, "c/0/0/0").is_file()
    mountpoint = Path(f"{name}.mnt")
    mountpoint.mkdir()
    with shardfs.mount(name, mountpoint) as path:
        assert path == tmp_path / f"{name}.mnt" and path.is_absolute()
        assert (path / name / "c/0/0/0").stat().st_size == 1504
    assert mountpoint.is_dir() and not list(mountpoint.iterdir())
    assert len(shardfs.open(name).mapper[f"{name}/c/0/0/0"]) == 1504


def test_names_that_are_no_text_are_taken_too(sample: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(bytes(tmp_path) + b"/\xff\xfe")
    sample.rename(odd)
    assert shardfs.info(odd).arrays[0].path == "waves"
    with shardfs.mount(odd) as path:
        assert (path / "waves").is_dir()
    with pytest.raises(ValueError, match="null byte"):
        shardfs.info("a\0b")


# --- what it says ------------------------------------------------------------------------------------


def test_each_kind_of_failure_has_its_class(sample: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    failing: list[tuple[Callable[[], object], type[shardfs.Error], int, str]] = [
        (lambda: shardfs.info(missing), shardfs.CommandError, 2, f"{missing}: No such file or directory (os error 2)"),
        (lambda: list(shardfs.ls(missing)), shardfs.CommandError, 2, "No such file"),
        (lambda: shardfs.verify(missing).summary, shardfs.CommandError, 2, "No such file"),
        (lambda: shardfs.mount(missing), shardfs.MountError, 32, "No such file"),
        (lambda: shardfs.mount(sample, missing), shardfs.MountError, 32, f"mount point {missing}: No such file"),
        (lambda: shardfs.umount(tmp_path), shardfs.MountError, 32, f"{tmp_path} is not a mount of shardfs"),
        (lambda: shardfs.sync(tmp_path), shardfs.MountError, 32, f"{tmp_path} is not a mount of shardfs"),
        (lambda: shardfs.status(tmp_path), shardfs.MountError, 1, f"{tmp_path} is not a mount of shardfs"),
        (lambda: shardfs.mount(sample, view="n5"), shardfs.UsageError, 1, 'view "n5" is none of'),
        (lambda: shardfs.mount(sample, options={"banana": True}), shardfs.UsageError, 1, '"banana"'),
        (lambda: shardfs.mount(sample, dirty_limit="x"), shardfs.UsageError, 1, "invalid value 'x'"),
        (lambda: shardfs.info(sample, level=-1), shardfs.UsageError, 2, "invalid value '-1' for '--level <N>'"),
        (lambda: shardfs.repack(sample, order="z"), shardfs.UsageError, 2, "it is none of c, f, morton"),
        (lambda: shardfs.delete(sample), shardfs.CommandError, 2, "--recursive deletes it"),
    ]
    for call, kind, code, words in failing:
        with pytest.raises(shardfs.Error) as caught:
            call()
        error = caught.value
        assert type(error) is kind and error.code == code, repr(error)
        assert words in error.message and str(error) == error.message
        assert not error.message.startswith(("shardfs: ", "error: ")) and "try '--help'" not in error.message
        assert error.command[0] == REAL and "--" in error.command
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args, again.message) == (kind, error.args, error.message)


def test_an_unknown_argument_is_a_type_error(sample: Path) -> None:
    with pytest.raises(TypeError, match="endpont"):
        shardfs.info(sample, endpont="https://s3.example.org")  # type: ignore[call-arg]


def test_a_program_that_is_killed_is_an_error(fake: Fake) -> None:
    fake("echo 'shardfs: it began' >&2; kill -KILL $$")
    with pytest.raises(shardfs.CommandError, match="it began\nshardfs info was ended by SIGKILL") as caught:
        shardfs.info("x")
    assert caught.value.code == -9
    with pytest.raises(shardfs.CommandError, match="it began\nshardfs ls was ended by SIGKILL"):
        list(shardfs.ls("x"))


def test_warnings_are_logged(sample: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="shardfs"):
        shardfs.mount(sample, commit_interval=3).umount()
    assert caplog.messages == ["the option commit_interval has no effect: the mount is read-only"]


# --- output of other versions ------------------------------------------------------------------------

LINE = '{"key": "c/0", "chunk": [0], "shard": "c/0", "offset": 0, "nbytes": 4%s}'


def test_unknown_members_are_ignored(fake: Fake) -> None:
    more = LINE % ', "new": [1]'
    fake(f"echo '{more}'")
    assert list(shardfs.ls("x")) == [shardfs.Chunk("c/0", (0,), "c/0", 0, 4, None)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"key": "c/0", "chunk": [0]}', "the output has no member shard"),
        ('{"key": "c/0", "chunk": [null], "shard": "c"}', "the output: chunk is no int"),
        ('{"key": "c/0", "chunk": [true], "shard": "c"}', "the output: chunk is no int"),
        ('{"key": "c/0", "chunk": 0, "shard": "c"}', "the output: chunk is no list"),
        ('["key"]', "the output is no object"),
        ("not JSON", "'not JSON'"),
    ],
)
def test_missing_and_other_members_are_errors(fake: Fake, line: str, words: str) -> None:
    fake(f"echo '{LINE % ''}'; echo '{line}'; exec sleep 60")
    listing = shardfs.ls("x")
    assert next(listing).nbytes == 4
    with pytest.raises(shardfs.OutputError) as caught:
        next(listing)
    assert words in caught.value.message and "shardfs ls" in caught.value.message
    assert list(listing) == []


def test_a_last_line_without_an_end_is_an_error(fake: Fake) -> None:
    fake(f"printf '%s' '{LINE % ''}'")
    with pytest.raises(shardfs.OutputError, match="the last line has no end"):
        list(shardfs.ls("x"))
