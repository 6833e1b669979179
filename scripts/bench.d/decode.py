#!/usr/bin/env python3
"""Measure what decoding costs, through the views raw and flat and in the libraries that read the same
arrays into memory, and add it to the JSON; started by scripts/bench."""

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from functools import partial
from math import prod
from pathlib import Path

import machine
import part
from part import in_turn, warm
from variants import BenchError, mounted

THREADS = 2
CHUNK, SHARD = (32, 128, 128), (128, 512, 512)
SHAPES = {False: (512, 1024, 1024), True: (128, 512, 1024)}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CODECS = {
    "zstd": {"name": "zstd", "configuration": {"level": 3}},
    "blosc-lz4": {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}},
}
LIBRARIES = ["tensorstore", "zarrs"]
# How the mount is read: by one program or by as many as the libraries have threads; with cat.
MOUNTED = ["raw, 1 reader", f"raw, {THREADS} readers", "flat, cat"]
# The array of the specification's example is made sparse: 2.4 TB, every 1000th chunk there.
HUGE_SHAPE, HUGE_CHUNK, HUGE_SHARD = (10240, 10240, 11520), (64, 64, 64), (1024, 1024, 1024)
OFFSETS = 10_000


def make(path: Path, codec: str, quick: bool) -> None:
    """An image of smooth waves with four bits of noise, 16-bit numbers."""
    import numpy
    import tensorstore
    shape = SHAPES[quick]
    sharding = {"chunk_shape": CHUNK, "codecs": [BYTES, CODECS[codec]]}
    array = tensorstore.open({
        "driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {"shape": shape, "data_type": "uint16", "fill_value": 0,
                     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHARD}},
                     "codecs": [{"name": "sharding_indexed", "configuration": sharding}]},
    }, create=True, delete_existing=True).result()
    noise = numpy.random.default_rng(1)
    z, y, x = numpy.ogrid[:SHARD[0], :shape[1], :shape[2]]
    for start in range(0, shape[0], SHARD[0]):
        waves = ((z + start) * 40 + (y * y + x * x) // 240) % 30000 + 100
        block = waves.astype("uint16") + noise.integers(0, 16, waves.shape, dtype="uint16")
        array[start:start + SHARD[0]] = block


def read_with(library: str, path: str) -> None:
    """In a process of its own: prints how long the array takes to come into memory."""
    if library == "tensorstore":
        import tensorstore
        array = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}, open=True,
            context=tensorstore.Context({"data_copy_concurrency": {"limit": THREADS}})).result()
        start = time.perf_counter()
        array.read().result()
    else:
        import zarr
        import zarrs  # noqa: F401
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline",
                         "threading.max_workers": THREADS})
        array = zarr.open_array(path, mode="r")
        start = time.perf_counter()
        array[...]
    print(time.perf_counter() - start)


class Setting:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.mountpoint = args.run_dir / "mount"
        self.mountpoint.mkdir(exist_ok=True)
        grid = [shape // chunk for shape, chunk in zip(SHAPES[args.quick], CHUNK)]
        keys = ["c/" + "/".join(map(str, at)) + ".raw" for at in itertools.product(*map(range, grid))]
        # Each reader has a part of the array of its own.
        self.lists = []
        for number in range(THREADS):
            own = keys[number * len(keys) // THREADS:(number + 1) * len(keys) // THREADS]
            self.lists.append(args.run_dir / f"list{number}")
            self.lists[-1].write_text("".join(f"{key}\n" for key in own))
        self.all = args.run_dir / "list"
        self.all.write_text("".join(f"{key}\n" for key in keys))

    def mount(self, view: str, source: Path):
        command = [*self.args.daemon_prefix, self.args.shardfs, "mount", "-f", "--view", view,
                   str(source), str(self.mountpoint)]
        unmount = [self.args.shardfs, "umount", str(self.mountpoint)]
        return mounted(f"shardfs-{view}", command, unmount, self.mountpoint, self.args.run_dir)

    def time(self, how: str, source: Path) -> float:
        if how in LIBRARIES:
            command = [sys.executable, __file__, "--library", how, str(source)]
            return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with self.mount(how.split(",")[0], source):
            if how.startswith("flat"):
                commands = [["cat", self.mountpoint / "array.raw"]]
            else:
                lists = [self.all] if "1 reader" in how else self.lists
                commands = [[self.args.reader, name, self.mountpoint] for name in lists]
            start = time.perf_counter()
            readers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
            ended = [reader.wait() for reader in readers]
            seconds = time.perf_counter() - start
        if any(ended):
            raise BenchError(f"{how}: a reader ended with {ended}")
        return seconds


def decoding(setting: Setting, codec: str) -> dict:
    source = setting.args.data_dir / f"decode-{codec}{'-quick' if setting.args.quick else ''}"
    seconds: dict[str, list[float]] = {how: [] for how in [*LIBRARIES, *MOUNTED]}
    warm(source)
    for _, how in in_turn(f"decode: {codec}", seconds, setting.args.rounds):
        seconds[how].append(setting.time(how, source))
    return {"bytes": 2 * prod(SHAPES[setting.args.quick]), "chunk_bytes": 2 * prod(CHUNK),
            "seconds": seconds}


def huge(setting: Setting) -> dict:
    """The daemon's memory while an array of 2.4 TB is read here and there."""
    import numpy
    import tensorstore
    source = setting.args.run_dir / "huge.zarr"
    sharding = {"chunk_shape": HUGE_CHUNK, "codecs": [BYTES, CODECS["zstd"]]}
    array = tensorstore.open({
        "driver": "zarr3", "kvstore": {"driver": "file", "path": f"{source}/"},
        "metadata": {"shape": HUGE_SHAPE, "data_type": "uint16", "fill_value": 7,
                     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": HUGE_SHARD}},
                     "codecs": [{"name": "sharding_indexed", "configuration": sharding}]},
    }, create=True).result()
    place = random.Random(1)
    for shard in itertools.product(*(range(0, n, 2 * s) for n, s in zip(HUGE_SHAPE, HUGE_SHARD))):
        at = [start + 64 * place.randrange(8) for start in shard]
        box = tuple(slice(a, min(a + 64, n)) for a, n in zip(at, HUGE_SHAPE))
        array[box] = numpy.full([b.stop - b.start for b in box], place.randrange(1, 60_000), "uint16")
    with setting.mount("flat", source) as daemon:
        path = setting.mountpoint / "array.raw"
        size = path.stat().st_size
        file = os.open(path, os.O_RDONLY)
        start = time.perf_counter()
        for _ in range(OFFSETS):
            if len(os.pread(file, 4096, place.randrange(size - 4096))) != 4096:
                raise BenchError("a short read")
        seconds = time.perf_counter() - start
        os.close(file)
        memory = daemon.memory_kib()
    return {"bytes": size, "offsets": OFFSETS, "seconds": seconds, "memory_kib": memory}


def main() -> None:
    parser = part.parser(required=False)
    parser.add_argument("--library", nargs=2, metavar=("LIBRARY", "ARRAY"))
    parser.add_argument("--make", nargs=2, metavar=("CODEC", "ARRAY"))
    args = parser.parse_args()
    if args.library:
        return read_with(*args.library)
    if args.make:
        return make(Path(args.make[1]), args.make[0], args.quick)
    _client, args.daemon_prefix = machine.placement(args.cpus)
    setting = Setting(args)
    names = {"zarr-python": "zarr", "tensorstore": "tensorstore", "zarrs (Python)": "zarrs"}
    report = part.report(args, names)
    parts = {codec: partial(decoding, codec=codec) for codec in CODECS}
    head = {"quick": args.quick, "threads": THREADS}
    part.measure(report, "decode", head, {**parts, "huge": huge}, setting, args.json)


if __name__ == "__main__":
    part.start(main)
