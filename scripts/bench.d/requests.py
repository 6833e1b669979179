#!/usr/bin/env python3
"""Count the requests that everyday programs make of a mount, by what the kernel traces, and add them to
the JSON; started by scripts/bench. Nothing is timed."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy
import zarr

import part
from part import say
from variants import BenchError, mounted

SHAPE, CHUNK, SHARD = (128, 128, 128), (8, 8, 8), (64, 64, 64)
FILES = 16**3
TRACING = Path("/sys/kernel/tracing")
EVENT = re.compile(r"fuse_request_send: connection (\d+) .*\(FUSE_(\w+)\)")
# What ends with a mount, or is no part of a pattern.
LEFT_OUT = {"INIT", "DESTROY", "FORGET", "BATCH_FORGET", "INTERRUPT"}

READS = {
    "find -type f": ["find", "c", "-type", "f"],
    "find -size": ["find", "c", "-type", "f", "-size", "+1k"],
    "du": ["du", "-s", "c"],
    "ls -lR": ["ls", "-lR", "c"],
    "tar c": ["sh", "-c", "tar cf - c | cat"],
    "cp -r, out": ["cp", "-r", "c", "{out}"],
    "rsync -a, out": ["rsync", "-a", "c", "{out}"],
    "grep -r": ["grep", "-rc", "nothing", "c"],
    "zarr-python, all": [sys.executable, "-c", "import zarr; zarr.open_array('.', mode='r')[:]"],
    "tensorstore, all": [
        sys.executable, "-c",
        "import os, tensorstore; tensorstore.open({'driver': 'zarr3', 'kvstore': {'driver': 'file', "
        "'path': os.getcwd() + '/'}}, open=True).result().read().result()"],
}
WRITES = {
    "cp -r, in": ["cp", "-r", "{tree}/c", "."],
    "tar x": ["sh", "-c", "tar cf - -C {tree} c | tar xf -"],
    "rsync -a, in": ["rsync", "-a", "{tree}/c", "."],
    "zarr-python, write all": [
        sys.executable, "-c",
        "import numpy, zarr; zarr.open_array('.', mode='r+')[:] = numpy.full({shape}, 7, 'uint8')"],
}


@contextmanager
def traced():
    """Events of requests, in an instance of their own; yields its file of events."""
    own = not (TRACING / "instances").exists()
    if own:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
    instance = TRACING / "instances" / f"shardfs-{os.getpid()}"
    try:
        instance.mkdir()
        (instance / "buffer_size_kb").write_text("65536")
        (instance / "events/fuse/fuse_request_send/enable").write_text("1")
        yield instance / "trace"
    except OSError as error:
        raise BenchError(f"requests cannot be traced: {error}") from error
    finally:
        if instance.exists():
            (instance / "events/fuse/fuse_request_send/enable").write_text("0")
            instance.rmdir()
        if own:
            subprocess.run(["umount", TRACING], check=True)


class Setting:
    def __init__(self, args, trace: Path):
        self.args, self.trace = args, trace
        self.dir = args.run_dir / "requests"
        self.dir.mkdir()
        self.mountpoint = args.run_dir / "mount"
        self.tree = self.dir / "tree"

    def array(self, name: str, filled: bool, shards) -> Path:
        path = self.dir / name
        array = zarr.create_array(path, shape=SHAPE, chunks=CHUNK, shards=shards, dtype="uint8",
                                  fill_value=0, filters=None, compressors=None, zarr_format=3)
        if filled:
            array[:] = numpy.random.default_rng(1).integers(1, 256, SHAPE, dtype="uint8")
        return path

    def count(self, command: list[str], source: Path, options: list[str]) -> dict[str, int]:
        """The requests of one program on a fresh mount, by name."""
        out = self.dir / f"out-{time.monotonic_ns()}"
        filled = {"out": str(out), "tree": str(self.tree), "shape": str(SHAPE)}
        command = [re.sub(r"\{(\w+)\}", lambda found: filled[found[1]], word) for word in command]
        args = [self.args.shardfs, "mount", "-f", *options, str(source), str(self.mountpoint)]
        unmount = [self.args.shardfs, "umount", str(self.mountpoint)]
        with mounted("shardfs", args, unmount, self.mountpoint, self.args.run_dir):
            connection = os.minor(os.stat(self.mountpoint).st_dev)
            self.trace.write_text("")
            ended = subprocess.run(command, cwd=self.mountpoint, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
            events = self.trace.read_text()
        # grep finds nothing.
        if ended.returncode not in (0, 1) or (ended.returncode and command[0] != "grep"):
            raise BenchError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
        counts = Counter(name for number, name in EVENT.findall(events) if int(number) == connection)
        return {name: number for name, number in counts.items() if name not in LEFT_OUT}


def reads(setting: Setting) -> dict:
    source = setting.array("read", True, SHARD)
    found = {}
    for options in ([], ["-o", "immutable"]):
        for name, command in READS.items():
            found[f"{name}{', immutable' if options else ''}"] = setting.count(command, source, options)
    return found


def writes(setting: Setting) -> dict:
    setting.tree = setting.array("tree", True, None)
    found = {}
    for number, (name, command) in enumerate(WRITES.items()):
        source = setting.array(f"write-{number}", False, SHARD)
        found[name] = setting.count(command, source, ["--rw"])
    return found


def main() -> None:
    args = part.parser().parse_args()
    (args.run_dir / "mount").mkdir(exist_ok=True)
    report = part.report(args, {"zarr-python": "zarr", "tensorstore": "tensorstore"})
    try:
        with traced() as trace:
            setting = Setting(args, trace)
            part.measure(report, "requests", {"files": FILES}, {"reads": reads, "writes": writes},
                         setting, args.json)
    except (BenchError, subprocess.SubprocessError) as error:
        say(f"requests are not counted: {error}")


if __name__ == "__main__":
    part.start(main)
