"""What is compared: how each variant is mounted, and what is read back about its daemon."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_sets import DataSet

# In the order they run. A mount and its floor are neighbours, so that they see the same machine.
NAMES = [
    "local", "floor-copying", "baseline", "shardfs", "shardfs-uring", "floor",
    "floor-copying-immutable", "baseline-immutable", "shardfs-immutable", "shardfs-uring-immutable",
    "floor-immutable", "squashfuse_ll", "ratarmount",
]
# Before the command of a mount whose requests come by io_uring. scripts/bench asks for the classic transport
# in the environment, which programs that are too old for the option leave alone.
BY_RINGS = ["env", "SHARDFS_TRANSPORT=uring"]
MOUNT_SECONDS = 60
END_SECONDS = 20


class BenchError(Exception):
    """The measurement itself went wrong (never: a time was too long)."""


@dataclass(frozen=True)
class Tools:
    shardfs: str
    # Another build of shardfs, to compare with.
    baseline: str
    floor: str
    ratarmount: str


def source_name(name: str) -> str:
    """What the variant reads, within the data set's directory; the floor reads nothing."""
    match name.removesuffix("-immutable"):
        case "shardfs" | "shardfs-uring" | "baseline":
            return "array.zarr"
        case "squashfuse_ll":
            return "chunks.squashfs"
        case "ratarmount" | "floor-copying":
            return "chunks.tar"
        case _:
            return "chunks"


def mount_command(name: str, tools: Tools, data: DataSet, dir: Path, mountpoint: Path) -> list[str]:
    """The daemon's command line; every daemon stays in front, so its pid is the child's."""
    immutable = ["-o", "immutable"] if name.endswith("-immutable") else []
    match name.removesuffix("-immutable"):
        case "shardfs":
            args = [tools.shardfs, "mount", "-f", *immutable, dir / "array.zarr", mountpoint]
        case "shardfs-uring":
            args = [*BY_RINGS, tools.shardfs, "mount", "-f", *immutable, dir / "array.zarr", mountpoint]
        case "baseline":
            args = [tools.baseline, "mount", "-f", *immutable, dir / "array.zarr", mountpoint]
        case "floor":
            grid = "x".join(map(str, data.grid))
            args = [tools.floor, *immutable, "--grid", grid,
                    "--chunk-bytes", data.chunk_bytes, mountpoint]
        case "floor-copying":
            grid = "x".join(map(str, data.grid))
            args = [tools.floor, *immutable, "--grid", grid, "--chunk-bytes", data.chunk_bytes,
                    "--copy-from", dir / "chunks.tar", mountpoint]
        case "squashfuse_ll":
            args = ["squashfuse_ll", "-f", dir / "chunks.squashfs", mountpoint]
        case "ratarmount":
            args = [tools.ratarmount, "-f", "--index-file", dir / "chunks.tar.index.sqlite",
                    dir / "chunks.tar", mountpoint]
        case _:
            raise ValueError(name)
    return [str(arg) for arg in args]


def unmount_command(name: str, tools: Tools, mountpoint: Path) -> list[str] | None:
    """None: a signal to the daemon unmounts it."""
    if name.startswith("floor"):
        return None
    if name.startswith(("shardfs", "baseline")):
        return [tools.shardfs, "umount", str(mountpoint)]
    return ["fusermount3", "-u", str(mountpoint)]


class Daemon:
    def __init__(self, process: subprocess.Popen, mount_seconds: float):
        self.process = process
        self.mount_seconds = mount_seconds

    def cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()  # the name may hold anything; field 3 comes first
        utime, stime = int(fields[11]), int(fields[12])
        return (utime + stime) / os.sysconf("SC_CLK_TCK")

    def memory_kib(self) -> dict[str, int]:
        """Peak RSS, and how much of the RSS now is not mapped from a file."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return {key: int(fields[field].split()[0])
                for key, field in (("peak_rss", "VmHWM"), ("anonymous", "RssAnon"))}


@contextmanager
def mounted(name: str, command: list[str], unmount: list[str] | None,
            mountpoint: Path, run_dir: Path, ready: Callable = os.listdir) -> Iterator[Daemon]:
    """Runs a daemon for as long as the block lasts. Its pid stands in run_dir/pids meanwhile, for
    the caller to end it should this process die. `ready`: what says of the mount that it is there."""
    log = run_dir / f"{name}.log"
    start = time.perf_counter()
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   start_new_session=True)
    pids = run_dir / "pids"
    pids.write_text(f"{process.pid}\n")
    try:
        wait_until_mounted(process, mountpoint, log, ready)
        yield Daemon(process, time.perf_counter() - start)
        if unmount:
            subprocess.run(unmount, check=True, timeout=END_SECONDS, stdout=subprocess.DEVNULL)
        else:
            process.terminate()
        process.wait(END_SECONDS)
        if is_mounted(mountpoint):
            raise BenchError(f"{name} ended and left its mount behind")
    except (OSError, subprocess.SubprocessError) as error:
        if process.poll() is None:
            raise
        raise BenchError(f"{name} ended with {process.returncode}\n{log.read_text()}") from error
    finally:
        end(process, mountpoint)
        pids.write_text("")


def wait_until_mounted(process: subprocess.Popen, mountpoint: Path, log: Path,
                       ready: Callable) -> None:
    deadline = time.monotonic() + MOUNT_SECONDS
    # An array that is to be written has no chunks yet, and floors have no metadata.
    while not (is_mounted(mountpoint) and ready(mountpoint)):
        if process.poll() is not None:
            raise BenchError(f"the mount failed: {' '.join(process.args)}\n{log.read_text()}")
        if time.monotonic() > deadline:
            raise BenchError(f"no mount after {MOUNT_SECONDS} s: {' '.join(process.args)}")
        time.sleep(0.001)


def end(process: subprocess.Popen, mountpoint: Path) -> None:
    """Whatever state the daemon is in: nothing mounted and no process left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if is_mounted(mountpoint):
        subprocess.run(["fusermount3", "-u", "-z", str(mountpoint)], check=False)


def is_mounted(path: Path) -> bool:
    """Asks the kernel's table: stat (os.path.ismount) fails on a mount whose daemon died."""
    mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    return any(line.split()[1] == str(path) for line in mounts)
