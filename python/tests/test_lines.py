"""Lists that are read while the program runs, and what ends it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardfs

REAL = os.environ["SHARDFS"]


def children() -> list[str]:
    """Programs that this process has started and that have not ended: their names."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            for pid in Path(f"/proc/self/task/{task}/children").read_text().split():
                found.append(Path(f"/proc/{pid}/comm").read_text().strip())
        except FileNotFoundError:
            continue
    return found


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """An array of so many chunks that nothing lists them before it is read."""
    place = tmp_path / "endless.zarr"
    shardfs.create(place, shape=(1000, 1000, 1000), dtype="uint8", chunk=(1, 1, 100), shard=(100, 100, 1000))
    return place


def test_a_list_comes_while_it_is_made_and_closing_ends_the_program(endless: Path) -> None:
    listing = shardfs.ls(endless, missing=True)
    assert next(listing).chunk == (0, 0, 0)
    assert len(children()) == 1
    listing.close()
    assert children() == [] and list(listing) == []
    listing.close()


def test_so_does_leaving_a_block_and_losing_the_last_reference(endless: Path) -> None:
    with shardfs.ls(endless, missing=True) as listing:
        next(listing)
    assert children() == []
    gc.disable()
    try:
        for chunk in shardfs.ls(endless, missing=True):
            break
        assert children() == []
    finally:
        gc.enable()
    # One that is not looked at at all.
    shardfs.ls(endless, missing=True)
    assert children() == []


def test_memory_is_bounded(endless: Path) -> None:
    with shardfs.ls(endless, missing=True) as listing:
        for _ in range(100_000):
            next(listing)
        (pid,) = [pid for pid in map(int, Path("/proc/self/task", str(os.getpid()), "children").read_text().split())]
        # It waits for its reader: a pipe holds some hundred lines.
        written = Path(f"/proc/{pid}/io").read_text()
        nbytes = int(next(line for line in written.splitlines() if line.startswith("wchar")).split()[1])
        assert nbytes < 100_000 * 100 + 10**6


def test_many_messages_do_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "shardfs"
    line = '{"key": "c", "chunk": [], "shard": "c", "offset": 0, "nbytes": 4}'
    fake.write_text(f"#!/bin/sh\nyes 'shardfs: damaged' | head -n 100000 >&2\necho '{line}'\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("SHARDFS", str(fake))
    listing = shardfs.ls("x")
    assert next(listing).nbytes == 4
    with pytest.raises(shardfs.DamageError) as caught:
        next(listing)
    assert caught.value.message.startswith("damaged\ndamaged\n") and len(caught.value.message) < 1 << 16


def test_threads_may_run_commands_at_once(tmp_path: Path) -> None:
    source = tmp_path / "sample.zarr"
    subprocess.run([REAL, "create", "--sample", source], check=True)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(3):
                assert len(list(shardfs.ls(source))) == 192
                assert shardfs.info(source).totals.chunks.present == 192
                with pytest.raises(shardfs.CommandError, match=f"missing-{number}"):
                    shardfs.info(f"missing-{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_an_interruption_while_a_program_starts_comes_when_it_has_started(tmp_path: Path) -> None:
    came = []

    def interrupted(number: int, frame: object) -> None:
        came.append(children())
        raise KeyboardInterrupt

    start = subprocess.Popen.__init__

    def started(*arguments: Any, **more: Any) -> None:
        start(*arguments, **more)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subprocess.Popen, "__init__", started)
            for call in (shardfs.info, shardfs.ls):
                with pytest.raises(KeyboardInterrupt):
                    call(tmp_path)
                assert len(came.pop()) == 1 and children() == []
        assert signal.getsignal(signal.SIGINT) is interrupted
    finally:
        signal.signal(signal.SIGINT, before)


# --- KeyboardInterrupt -------------------------------------------------------------------------------

# What a process does that is interrupted while its program waits, with the path of a source, and of a directory.
INTERRUPTED = {
    # Nothing reads the pipe.
    "a command": "os.mkfifo(f'{there}/pipe'); print('ready', flush=True); shardfs.refs(source, f'{there}/pipe')",
    "a list": "listing = shardfs.ls(source, missing=True); print('ready', flush=True)\nfor chunk in listing: pass",
    "a long wait": "listing = shardfs.ls(source, missing=True); next(listing); print('ready', flush=True)\n"
    "with listing: time.sleep(60)",
}


@pytest.mark.parametrize("what", INTERRUPTED)
def test_an_interruption_ends_the_program(what: str, endless: Path, tmp_path: Path) -> None:
    script = f"import os, time, shardfs\nsource, there = {str(endless)!r}, {str(tmp_path)!r}\n{INTERRUPTED[what]}\n"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    started = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    assert within(20, lambda: started.read_text() != "")
    (pid,) = started.read_text().split()
    # To this process alone, not to its program as a terminal would.
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in said and process.returncode == -signal.SIGINT, said.decode()
    is_left = Path(f"/proc/{pid}").exists()
    if is_left:
        os.kill(int(pid), signal.SIGKILL)
    assert not is_left
