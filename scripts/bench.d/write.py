#!/usr/bin/env python3
"""Measure what writing through a mount costs, and add it to the JSON; started by scripts/bench."""

import argparse
import json
import os
import random
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy
import tensorstore
import zarr

import machine
import part
from part import fsync, in_turn, put_away, sync, warm
from variants import BY_RINGS, BenchError, mounted

KIB = 1 << 10
CHUNK = (32, 32, 32)
CHUNK_BYTES = 32 * KIB
UPDATES = 512
# Who rewrites the whole shard for each chunk is measured with fewer, and the time is scaled.
FEW_UPDATES = 8
REWRITES = 100


class Setting:
    """One place for the arrays, and one mount at a time."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.dir = args.run_dir / "write"
        self.dir.mkdir()
        self.mountpoint = args.run_dir / "mount"
        # Chunks along each axis of a shard: 4096 chunks, 128 MiB.
        self.side = 8 if args.quick else 16
        self.random = numpy.random.default_rng(1)

    @contextmanager
    def mount(self, source: Path, by: list[str] = [], options: list[str] = []):
        command = [*self.args.daemon_prefix, *by, self.args.shardfs, "mount", "-f", "--rw", *options, str(source),
                   str(self.mountpoint)]
        unmount = [self.args.shardfs, "umount", str(self.mountpoint)]
        with mounted("shardfs-rw", command, unmount, self.mountpoint, self.args.run_dir):
            yield self.mountpoint

    def array(self, name: str, shards: int, filled: int) -> Path:
        """A new array with `shards` shards along its last axis, the first ones of them filled."""
        path = self.dir / name
        shutil.rmtree(path, ignore_errors=True)
        edge = self.side * CHUNK[0]
        array = zarr.create_array(path, shape=(edge, edge, edge * shards), chunks=CHUNK,
                                  shards=(edge,) * 3, dtype="uint8", fill_value=0, filters=None,
                                  compressors=None, zarr_format=3)
        for shard in range(filled):
            array[:, :, shard * edge:(shard + 1) * edge] = self.block((edge,) * 3)
        sync(path)
        return path

    def block(self, shape) -> numpy.ndarray:
        return self.random.integers(0, 256, shape, dtype="uint8")

    def coords(self) -> list[tuple[int, int, int]]:
        return [(i, j, k) for i in range(self.side) for j in range(self.side)
                for k in range(self.side)]

    def written(self) -> int:
        """Bytes that the mount has written to the source so far."""
        stats = json.loads((self.mountpoint / ".shardfs/stats.json").read_text())
        return stats["source"]["write_bytes"]


def put(path: Path, data: bytes, durable: bool = False) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        if os.write(file, data) != len(data):
            raise BenchError(f"{path}: a short write")
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def one_update(setting: Setting) -> dict:
    """Bytes written for one changed chunk of a full shard."""
    source = setting.array("one", 1, 1)
    rng = random.Random(1)
    costs = []
    with setting.mount(source) as mount:
        for coords in rng.sample(setting.coords(), 32):
            before = setting.written()
            put(mount.joinpath("c", *map(str, coords)), rng.randbytes(CHUNK_BYTES), durable=True)
            costs.append(setting.written() - before)
    index = 16 * setting.side**3 + 4
    return {"bytes": costs, "chunk_bytes": CHUNK_BYTES, "index_bytes": index,
            "goal": CHUNK_BYTES + index + 8 * KIB}


def storm(setting: Setting) -> dict:
    """All chunks of a new shard, one file at a time."""
    runs = []
    for _ in range(setting.args.rounds):
        source = setting.array("storm", 2, 1)
        data = random.Random(1).randbytes(CHUNK_BYTES)
        with setting.mount(source) as mount:
            before = setting.written()
            start = time.perf_counter()
            for i, j, k in setting.coords():
                path = mount / "c" / str(i) / str(j) / str(setting.side + k)
                path.parent.mkdir(parents=True, exist_ok=True)
                put(path, data)
            fsync(mount)
            seconds = time.perf_counter() - start
            runs.append({"seconds": seconds, "source_bytes": setting.written() - before})
    return {"asked": len(setting.coords()) * CHUNK_BYTES, "runs": runs}


def durable_updates(setting: Setting) -> dict:
    """Chunks of one shard, each of them durable before the next, by who can do that."""
    seconds: dict[str, list[float]] = {"shardfs": [], "zarr-python": [], "tensorstore": []}
    counts = {"shardfs": UPDATES, "zarr-python": FEW_UPDATES, "tensorstore": FEW_UPDATES}
    source = setting.array("updates", 1, 1)
    for number, name in in_turn("write: updates", seconds, setting.args.rounds):
        rng = random.Random(f"{number} {name}")
        chosen = [rng.choice(setting.coords()) for _ in range(counts[name])]
        block = setting.block(CHUNK)
        sync(source)
        if name == "shardfs":
            with setting.mount(source) as mount:
                start = time.perf_counter()
                for coords in chosen:
                    put(mount.joinpath("c", *map(str, coords)), block.tobytes(), durable=True)
                seconds[name].append(time.perf_counter() - start)
            continue
        array = opened(name, source)
        start = time.perf_counter()
        for coords in chosen:
            box = tuple(slice(at * n, (at + 1) * n) for at, n in zip(coords, CHUNK))
            if name == "tensorstore":
                array[box].write(block).result()
            else:
                array[box] = block
            # The shard, and its name where it is a new file.
            fsync(source / "c/0/0/0")
            fsync(source / "c/0/0")
        seconds[name].append(time.perf_counter() - start)
    return {"counts": counts, "seconds": seconds}


def opened(name: str, source: Path):
    if name == "zarr-python":
        return zarr.open_array(source, mode="r+")
    return tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{source}/"},
                             "context": {"cache_pool": {"total_bytes_limit": 0}}},
                            open=True).result()


def copy_tree(setting: Setting) -> dict:
    """cp -r of a tree of chunk files into a mount, and to a directory beside it."""
    original = setting.args.data_dir / ("32k-quick" if setting.args.quick else "32k")
    seconds: dict[str, list[float]] = {"shardfs": [], "local": []}
    if machine.has_rings():
        seconds["shardfs-uring"] = []
    written = []
    for _, name in in_turn("write: cp -r", seconds, setting.args.rounds):
        target = setting.dir / "copied"
        put_away(target)
        target.mkdir()
        warm(original / "chunks")
        sync(target)
        if name != "local":
            shutil.copy(original / "array.zarr/zarr.json", target)
            with setting.mount(target, BY_RINGS if name == "shardfs-uring" else []) as mount:
                start = time.perf_counter()
                subprocess.run(["cp", "-r", original / "chunks/c", mount], check=True)
                fsync(mount)
                seconds[name].append(time.perf_counter() - start)
                written.append(setting.written())
        else:
            start = time.perf_counter()
            subprocess.run(["cp", "-r", original / "chunks/c", target], check=True)
            sync(target)
            seconds[name].append(time.perf_counter() - start)
    put_away(target)
    files = [path for path in (original / "chunks/c").rglob("*") if path.is_file()]
    return {"files": len(files), "asked": sum(path.stat().st_size for path in files),
            "seconds": seconds, "source_bytes": written}


def created(setting: Setting) -> dict:
    """An array of chunk files, copied into a new one: as files, as files that are packed then, and through a mount
    that stores new arrays sharded."""
    original = setting.args.data_dir / ("32k-quick" if setting.args.quick else "32k")
    chunks = original / "chunks"
    shard = ",".join(map(str, zarr.open_array(original / "array.zarr", mode="r").shards))
    names = ["local", "mount", "mount, pack", "mount --shard", "mount --shard, chunks first"]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    files, written = {}, []
    steps = {"document first": ["zarr.json", "c"], "chunks first": ["c", "zarr.json"]}
    for _, name in in_turn("write: a new array", seconds, setting.args.rounds):
        target, packed = setting.dir / "created", setting.dir / "packed"
        for tree in target, packed:
            put_away(tree)
        target.mkdir()
        (target / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
        warm(chunks)
        sync(target)
        order = steps["chunks first" if name.endswith("chunks first") else "document first"]

        def copy(to: Path) -> float:
            start = time.perf_counter()
            (to / "new").mkdir()
            for step in order:
                subprocess.run(["cp", "-r", chunks / step, to / "new"], check=True)
            fsync(to) if to == setting.mountpoint else sync(to)
            return time.perf_counter() - start

        array = target / "new"
        if name == "local":
            took = copy(target)
        else:
            options = ["--shard", shard] if "--shard" in name else []
            with setting.mount(target, options=options) as mount:
                took = copy(mount)
                if name == "mount --shard":
                    written.append(setting.written())
            if name.endswith("pack"):
                start = time.perf_counter()
                subprocess.run([setting.args.shardfs, "pack", "--shard", shard, array, packed], check=True,
                               stdout=subprocess.DEVNULL)
                took, array = took + time.perf_counter() - start, packed
        seconds[name].append(took)
        files[name] = sum(path.is_file() for path in array.rglob("*"))
    asked = [path.stat().st_size for path in (chunks / "c").rglob("*") if path.is_file()]
    last = (slice(-8, None),) * 3
    if not (zarr.open_array(target / "new", mode="r")[last] == zarr.open_array(chunks, mode="r")[last]).all():
        raise BenchError("the new array has other values")
    for tree in target, packed:
        put_away(tree)
    return {"chunks": len(asked), "asked": sum(asked), "seconds": seconds, "files": files, "source_bytes": written}


def rewritten(setting: Setting) -> dict:
    """A shard whose chunks are written again and again, with other lengths each time."""
    source = setting.array("rewritten", 1, 0)
    rng = random.Random(1)
    # No reader is asked: a chunk's length is its writer's business here.
    coords = rng.sample(setting.coords(), 64)
    noise = rng.randbytes(2 * CHUNK_BYTES)
    asked = 0
    with setting.mount(source) as mount:
        def write(chosen) -> int:
            nonlocal asked
            for at in chosen:
                path = mount.joinpath("c", *map(str, at))
                path.parent.mkdir(parents=True, exist_ok=True)
                data = noise[:rng.randrange(CHUNK_BYTES // 2, 2 * CHUNK_BYTES)]
                put(path, data)
                asked += len(data)
            fsync(mount)
            return (source / "c/0/0/0").stat().st_size

        sizes = [write(coords)]
        for _ in range(REWRITES):
            sizes.append(write(coords if rng.random() < 0.5 else rng.sample(coords, 32)))
        written = setting.written()
    return {"sizes": sizes, "asked": asked, "source_bytes": written}


PARTS = {"one update": one_update, "storm": storm, "durable updates": durable_updates,
         "copy": copy_tree, "created": created, "rewritten": rewritten}


def main() -> None:
    args = part.parser().parse_args()
    client, args.daemon_prefix = machine.placement(args.cpus)
    (args.run_dir / "mount").mkdir(exist_ok=True)
    setting = Setting(args)
    report = part.report(args, {"zarr-python": "zarr", "tensorstore": "tensorstore"})
    if client:
        # This process is the client, and whoever it starts.
        os.sched_setaffinity(0, {int(client[-1])})
    head = {"quick": args.quick, "shard_chunks": setting.side**3}
    part.measure(report, "write", head, PARTS, setting, args.json)


if __name__ == "__main__":
    part.start(main)
