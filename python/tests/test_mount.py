"""Mounts: what they show, how they end, and what is left of them."""

from __future__ import annotations

import gc
import json
import logging
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardfs
from shardfs import _mount

REAL = os.environ["SHARDFS"]
CHUNK = "waves/c/0/0/0"


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary mountpoints, in which nothing may be left."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    left = mounted_below(tmp_path)
    for mountpoint in left:
        subprocess.run([REAL, "umount", "--lazy", mountpoint], check=False)
    assert not left
    assert list(directory.iterdir()) == []


def mounted_below(path: Path) -> list[str]:
    table = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in table if line.split()[1].startswith(f"{path}/")]



# --- mounting ----------------------------------------------------------------------------------------


def test_with_gives_the_path(sample: Path, nothing_is_left: Path) -> None:
    with shardfs.mount(sample) as path:
        assert isinstance(path, Path) and path.parent == nothing_is_left
        assert (path / CHUNK).stat().st_size == 1504
        assert [mount.state for mount in shardfs.status(path)] == ["serving"]
    assert not path.exists()


def test_a_mountpoint_is_kept(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnt").mkdir()
    monkeypatch.chdir(tmp_path)
    mounted = shardfs.mount("sample.zarr", "mnt")
    assert mounted.path == tmp_path / "mnt" and mounted.is_mounted
    with pytest.raises(shardfs.MountError, match="already mounted"):
        shardfs.mount(sample, mounted.path)
    assert mounted.is_mounted
    # Wherever this process is now.
    monkeypatch.chdir("/")
    with mounted as path:
        assert (path / CHUNK).is_file()
    assert not mounted.is_mounted and (tmp_path / "mnt").is_dir()
    assert "mnt" in repr(mounted)


def test_options_are_passed_on(sample: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    mounted = shardfs.mount(
        sample,
        view=["zarr3", "raw"],
        rw=True,
        options={"uid": 1234, "fsname": "a,b\\c", "umask": "077", "xattr": True, "sync": False, "gid": None},
        update="append",
        dirty_limit="1M",
        commit_interval=0.5,
        shard=["**/time=off", "x8"],
        index_location="start",
        endian="big",
        edge="clip",
        missing="fill",
        keep_fill=True,
        cache_size=1 << 20,
        decoded_size="2M",
        decode_limit="1G",
        format="zarr",
        transport="classic",
        log_file=log,
        log_format="json",
        verbose=2,
    )
    with mounted as path:
        stats = mounted.stats()
        assert stats["views"] == ["zarr3", "raw"] and stats["uncommitted"] == 0
        assert stats["transport"] and stats["transport"]["name"] == "classic"
        (status,) = shardfs.status(path)
        assert (status.source, status.writable, status.user) == ("a,b\\c", True, os.getuid())
        assert status.stats and status.stats["pid"] == stats["pid"]
        chunk = path / "zarr3" / CHUNK
        assert chunk.stat().st_uid == 1234 and chunk.stat().st_mode & 0o777 == 0o600
        assert os.getxattr(chunk, "user.shardfs.nbytes") == b"1504"
        # A chunk that does not exist, at the edge, in the other order of bytes.
        assert (path / "raw/waves/c/0/0/6.raw").stat().st_size == 8192
        assert (path / "raw" / f"{CHUNK}.raw").read_bytes()[:2] == b"\0\1"
        assert not (path / "zarr3/waves/c/0/0/no").exists()
        command = Path(f"/proc/{stats['pid']}/cmdline").read_bytes().split(b"\0")
        assert b"--shard=**/time=off" in command and b"--update=append" in command
    assert '"level":"trace"' in log.read_text()


def test_a_source_of_each_kind(tmp_path: Path, sample: Path) -> None:
    with shardfs.mount(str(sample / "waves"), view="npy") as path:
        assert (path / "c/0/0/0.npy").read_bytes().startswith(b"\x93NUMPY")
    for missing in (tmp_path / "missing", "s3:///none"):
        with pytest.raises(shardfs.Error):
            shardfs.mount(missing)


# --- writing -----------------------------------------------------------------------------------------


def test_what_is_written_is_committed_by_sync_and_in_the_end(sample: Path) -> None:
    mounted = shardfs.mount(sample, rw=True, commit_interval=60)
    with mounted as path:
        content = (path / "waves/c/0/0/1").read_bytes()
        (path / CHUNK).write_bytes(content)
        assert mounted.stats()["uncommitted"] == len(content)
        mounted.sync()
        assert mounted.stats()["uncommitted"] == 0 and "last_commit" in mounted.stats()
        (path / "waves/c/0/0/2").write_bytes(content)
        shardfs.sync(path)
        (path / "waves/c/0/0/3").write_bytes(content)
    lengths = {chunk.key: chunk.nbytes for chunk in shardfs.ls(sample, "waves/c/0/0")}
    assert [lengths[f"waves/c/0/0/{n}"] for n in range(4)] == [len(content)] * 4
    assert shardfs.verify(sample, decode=True).summary.defects == 0


def replace_the_array(sample: Path, path: Path) -> Path:
    """A chunk is written that cannot be committed: another array takes the place of its own.

    Returns where it will be saved.
    """
    saved = Path(json.loads((path / ".shardfs/stats.json").read_text())["unsaved"])
    (path / CHUNK).write_bytes((path / "waves/c/0/0/1").read_bytes())
    (sample / "waves").rename(sample / "old")
    shardfs.create(sample / "waves", shape=(5, 5), dtype="uint8", chunk=(5, 5))
    return saved


WAITING = "not everything could be written.*\n.*waves/c/0/0/0: given up.*\n.*is saved below"


def test_what_cannot_be_committed_is_an_exception_that_names_it(sample: Path) -> None:
    with pytest.raises(shardfs.CommandError, match=WAITING) as caught:
        with shardfs.mount(sample, rw=True, commit_interval=60) as path:
            saved = replace_the_array(sample, path)
    assert caught.value.code == 2 and caught.value.command[1] == "umount"
    # It is unmounted all the same, for everything is saved.
    assert not path.exists()
    assert str(saved) in caught.value.message and (saved / CHUNK).is_file()
    shutil.rmtree(saved)


def test_sync_says_it_too_and_the_mount_stays(sample: Path) -> None:
    mounted = shardfs.mount(sample, rw=True, commit_interval=60)
    saved = replace_the_array(sample, mounted.path)
    with pytest.raises(shardfs.CommandError, match="waves/c/0/0/0: given up"):
        mounted.sync()
    assert mounted.is_mounted
    try:
        mounted.umount()
    except shardfs.CommandError as error:
        assert "waves/c/0/0/0" in error.message
    assert not mounted.is_mounted
    shutil.rmtree(saved)


# --- ends --------------------------------------------------------------------------------------------


def test_umount_may_be_called_again(sample: Path) -> None:
    mounted = shardfs.mount(sample)
    with mounted:
        mounted.umount()
        assert not mounted.is_mounted and not mounted.path.exists()
    mounted.umount()
    with pytest.raises(shardfs.Error):
        mounted.sync()
    with pytest.raises(OSError):
        mounted.stats()


def test_a_busy_mount_stays(sample: Path) -> None:
    mounted = shardfs.mount(sample)
    file = open(mounted.path / CHUNK, "rb")
    with pytest.raises(shardfs.Busy, match=r"is busy: process \d+ \(.*\) has waves/c/0/0/0 open") as caught:
        mounted.umount()
    assert isinstance(caught.value, shardfs.MountError) and caught.value.code == 32
    assert mounted.is_mounted and mounted.path.is_dir()
    assert file.read(2) == b"\x1f\x8b"
    file.close()
    mounted.umount()
    assert not mounted.path.exists()


def test_a_busy_mount_is_detached_if_that_is_asked_for(sample: Path) -> None:
    mounted = shardfs.mount(sample, rw=True)
    with open(mounted.path / CHUNK, "rb") as file:
        mounted.umount(lazy=True)
        assert not mounted.is_mounted and not mounted.path.exists()
        assert file.read(2) == b"\x1f\x8b"


def test_files_that_only_garbage_holds_do_not_keep_it(sample: Path) -> None:
    class Node:
        def __init__(self, path: Path) -> None:
            self.itself = self
            self.file = open(path, "rb")
            self.map = mmap.mmap(self.file.fileno(), 0, prot=mmap.PROT_READ)

    gc.disable()
    try:
        with shardfs.mount(sample) as path:
            Node(path / CHUNK)
    finally:
        gc.enable()


def test_an_exception_of_the_body_unmounts(sample: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        with shardfs.mount(sample) as path:
            1 // 0
    assert not path.exists() and not getattr(caught.value, "__notes__", [])


def test_it_stays_if_unmounting_fails_too(sample: Path, caplog: pytest.LogCaptureFixture) -> None:
    mounted = shardfs.mount(sample)
    with pytest.raises(ZeroDivisionError) as caught:
        with mounted as path:
            file = open(path / CHUNK, "rb")
            1 // 0
    said = getattr(caught.value, "__notes__", caplog.messages)
    assert len(said) == 1 and f"{path} could not be unmounted: {path} is busy" in said[0]
    assert mounted.is_mounted
    file.close()
    mounted.umount()


def test_before_notes_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Old(Exception):
        add_note = None

    _mount._add_note(Old(), "text")
    assert caplog.record_tuples == [("shardfs", logging.ERROR, "text")]


def test_one_that_others_have_unmounted(sample: Path) -> None:
    mounted = shardfs.mount(sample)
    shardfs.umount(mounted.path)
    with pytest.raises(shardfs.MountError, match="is not a mount of shardfs"):
        mounted.umount()
    assert not mounted.path.exists()
    mounted.umount()


def test_one_whose_process_was_killed(sample: Path) -> None:
    mounted = shardfs.mount(sample, rw=True)
    os.kill(mounted.stats()["pid"], signal.SIGKILL)
    with pytest.raises(shardfs.CommandError, match="the process behind it was killed"):
        mounted.umount()
    assert not mounted.is_mounted and not mounted.path.exists()


def test_a_temporary_directory_with_something_in_it_is_left(sample: Path, caplog: pytest.LogCaptureFixture) -> None:
    mounted = shardfs.mount(sample)
    shardfs.umount(mounted.path)
    (mounted.path / "file").write_text("precious")
    with pytest.raises(shardfs.MountError):
        mounted.umount()
    assert (mounted.path / "file").read_text() == "precious"
    assert "the temporary directory is left: Directory not empty" in caplog.text
    (mounted.path / "file").unlink()
    mounted.path.rmdir()


# --- KeyboardInterrupt -------------------------------------------------------------------------------


def interrupted(script: str, sample: Path, directory: Path) -> bytes:
    """What a process says that is interrupted once it is ready."""
    script = f"import os, sys, time, shardfs\nsource = {str(sample)!r}\n{script}"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and b"KeyboardInterrupt" in said, said.decode()
    return said


def test_an_interruption_of_the_body_unmounts(sample: Path, nothing_is_left: Path) -> None:
    body = "with shardfs.mount(source, rw=True):\n    print('ready', flush=True)\n    time.sleep(60)\n"
    interrupted(body, sample, nothing_is_left)


def test_an_interruption_of_mounting_leaves_nothing(sample: Path, nothing_is_left: Path) -> None:
    # It waits for a server that does not answer.
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = f"http://127.0.0.1:{server.getsockname()[1]}/sample.zarr"
        waiting = (
            "import threading\n"
            "started = lambda: open('/proc/self/task/%d/children' % os.getpid()).read()\n"
            "def tell():\n"
            "    while not started(): time.sleep(0.01)\n"
            "    time.sleep(0.2)\n"
            "    print('ready', flush=True)\n"
            "threading.Thread(target=tell).start()\n"
            f"shardfs.mount({source!r})\n"
        )
        interrupted(waiting, sample, nothing_is_left)
