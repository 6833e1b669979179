#!/usr/bin/env python3
"""Measure a mount of a bucket beside programs that read the bucket themselves, all of them through a proxy
that is a round trip away, and add it to the JSON; started by scripts/bench, which has started the gateway."""

import argparse
import filecmp
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import boto3
import numpy
import zarr
from botocore.config import Config

import machine
import part
from data_sets import REMOTE
from part import in_turn, say
from variants import BenchError, Daemon, mounted

READERS = Path(__file__).with_name("remote_readers.py")
DELAY = Path(__file__).with_name("delay.py")
REGION, BUCKET, PREFIX = "us-east-1", "bench", "array.zarr"
# The mounts: of the bucket; of the same files on this machine, which shows what is not the network's; of
# a bucket that is mounted by rclone, which is how other filesystems of chunk files are used.
MOUNTS = ["shardfs", "shardfs, local", "shardfs, rclone"]
RANDOM_CHUNKS = 200
# Of rclone, which is slow with them.
FEW_CHUNKS = 40
GETS = 20
CHECKED_FILES = 64
THREADS = 16
CLIENT_SECONDS = 900


@dataclass(frozen=True)
class Mount:
    root: Path
    daemon: Daemon

    def remote(self) -> dict[str, int]:
        """What was asked of the store so far."""
        return json.loads((self.root / ".shardfs/stats.json").read_text())["remote"]

    def watch(self, client: Callable[[], dict]) -> dict:
        """What the client says, and what it cost the mount."""
        before, cpu = self.remote(), self.daemon.cpu_seconds()
        run = client()
        # At once: what was requested ahead may still arrive.
        after = self.remote()
        return run | {
            "remote": {name: after[name] - before[name] for name in after},
            "daemon_cpu": round(self.daemon.cpu_seconds() - cpu, 2),
            "mount_seconds": self.daemon.mount_seconds, "memory_kib": self.daemon.memory_kib(),
        }


class Setting:
    """The array, here and in the bucket, and one mount at a time."""

    def __init__(self, args: argparse.Namespace, endpoint: str):
        self.args, self.endpoint = args, endpoint
        name = "remote-quick" if args.quick else "remote"
        self.data = REMOTE[name]
        self.source = args.data_dir / name
        self.array = zarr.open_array(self.source, mode="r")
        self.mountpoint = args.run_dir / "mount"
        # Where copies go: no disk takes part.
        self.copied = args.fast_dir / "copied"
        # Shards, and chunks of one, along the first axis; the other axes have one shard.
        self.shards = self.data.shape[0] // self.data.shard[0]
        self.side = self.data.shard[0] // self.data.chunk[0]
        self.shard_files = self.data.files // self.shards

    @contextmanager
    def mount(self, how: str) -> Iterator[Mount]:
        run_dir, options = self.args.run_dir, []
        with ExitStack() as below:
            match how:
                case "shardfs":
                    source, options = f"s3://{BUCKET}/{PREFIX}", ["-o", f"endpoint={self.endpoint}"]
                case "shardfs, local":
                    source = self.source
                case "shardfs, rclone":
                    source = below.enter_context(self.rclone()) / PREFIX
                case _:
                    raise ValueError(how)
            command = [*self.args.daemon_prefix, self.args.shardfs, "mount", "-f", *options, str(source),
                       str(self.mountpoint)]
            unmount = [self.args.shardfs, "umount", str(self.mountpoint)]
            # A listing would ask the store for what the client is to wait for.
            with mounted("shardfs", command, unmount, self.mountpoint, run_dir, os.stat) as daemon:
                with limit(daemon):
                    yield Mount(self.mountpoint, daemon)

    @contextmanager
    def rclone(self) -> Iterator[Path]:
        """The bucket as rclone mounts it. Without its cache it begins a new GET for each read that does not
        follow the one before, and chunks are not in the order of their names."""
        run_dir = self.args.run_dir / "rclone"
        mountpoint = run_dir / "mount"
        cached = self.args.fast_dir / "rclone"
        mountpoint.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(cached, ignore_errors=True)
        command = [*self.args.daemon_prefix, self.args.rclone, "mount", "--read-only", "--config", "",
                   "--vfs-cache-mode", "full", "--cache-dir", cached, "--s3-provider", "Ceph", "--s3-env-auth",
                   "--s3-region", REGION, "--s3-endpoint", self.endpoint, f":s3:{BUCKET}", mountpoint]
        unmount = ["fusermount3", "-u", str(mountpoint)]
        with mounted("rclone", [str(word) for word in command], unmount, mountpoint, run_dir, os.stat):
            yield mountpoint
        shutil.rmtree(cached)

    def mounts(self) -> list[str]:
        return [how for how in MOUNTS if self.args.rclone or not how.endswith("rclone")]

    def read(self, reader: str, **arguments: Any) -> dict:
        """What a reader in a process of its own has to say."""
        command = [sys.executable, READERS, reader, json.dumps(arguments)]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=2 * CLIENT_SECONDS)
        return json.loads(ended.stdout)

    def read_bucket(self, reader: str, path: str = PREFIX, **arguments: Any) -> dict:
        return self.read(reader, endpoint=self.endpoint, bucket=BUCKET, path=path, **arguments)

    def run(self, *command: Any, stdout=subprocess.DEVNULL) -> dict:
        return part.measured(self.args.run_dir / "took", *command, stdout=stdout)

    def directories(self, shards: int) -> list[str]:
        """Those that have the chunk files of the first shards, and of no other."""
        return ["c"] if shards == self.shards else [f"c/{i}" for i in range(shards * self.side)]

    def shard_keys(self, shards: int) -> list[str]:
        return [f"c/{shard}/0/0" for shard in range(shards)]

    @cache
    def region_crc(self, shards: int) -> int:
        crc = 0
        for shard in range(shards):
            crc = zlib.crc32(self.array[shard * self.data.shard[0]:(shard + 1) * self.data.shard[0]], crc)
        return crc

    def chunk(self, at: tuple[int, ...]) -> bytes:
        return self.array[tuple(slice(*side) for side in self.box(at))].tobytes()

    def box(self, at: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(i * size, (i + 1) * size) for i, size in zip(at, self.data.chunk)]

    def chunks_crc(self, chunks: list[tuple[int, ...]]) -> int:
        crc = 0
        for at in chunks:
            crc = zlib.crc32(self.chunk(at), crc)
        return crc

    @cache
    def index(self, shard: int) -> numpy.ndarray:
        """Offsets and lengths of its chunks."""
        stored = self.source.joinpath("c", str(shard), "0", "0").read_bytes()
        return numpy.frombuffer(stored[-16 * self.shard_files - 4:-4], "<u8").reshape(*(self.side,) * 3, 2)

    def range(self, at: tuple[int, ...]) -> tuple[str, int, int]:
        """Where a chunk is stored: the key of its shard, its first byte and the one behind its last."""
        shard, i = divmod(at[0], self.side)
        offset, nbytes = map(int, self.index(shard)[i, at[1], at[2]])
        return f"c/{shard}/0/0", offset, offset + nbytes

    def some_chunks(self, seed: Any) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """One of each shard, and some of the others, in random order."""
        rng = random.Random(seed)
        shards = list(range(self.shards))
        rng.shuffle(shards)
        first = [(shard * self.side + rng.randrange(self.side), rng.randrange(self.side),
                  rng.randrange(self.side)) for shard in shards]
        all_chunks = numpy.ndindex(self.data.grid)
        others = sorted(set(all_chunks) - set(first))
        return first, rng.sample(others, RANDOM_CHUNKS)


@contextmanager
def limit(daemon: Daemon) -> Iterator[None]:
    """A client that waits for a mount cannot be ended, but the mount can."""
    def give_up(*_: object) -> None:
        say(f"no end after {CLIENT_SECONDS} s: the mount is killed")
        daemon.process.kill()

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(CLIENT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def expect(what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise BenchError(f"{what}: {found}, expected {expected}")


def copying(setting: Setting, shards: int) -> dict:
    """All chunk files of some shards, from a mount into memory; the shards themselves, and their part of
    the array."""
    copied, data = setting.copied, setting.data
    size = shards * setting.shard_files * data.chunk_bytes
    reserve = machine.Reserve(size)
    runs: dict[str, list[dict]] = {how: [] for how in [*setting.mounts(), "boto3", "tensorstore"]}
    for _, how in in_turn(f"remote: copying {shards} of {setting.shards}", runs, setting.args.rounds):
        shutil.rmtree(copied, ignore_errors=True)
        copied.mkdir()
        reserve.take()
        reserve.release()
        match how:
            case "boto3":
                files = {f"{PREFIX}/{key}": str(copied / key.replace("/", "-"))
                         for key in setting.shard_keys(shards)}
                run = setting.read("boto3_download", endpoint=setting.endpoint, bucket=BUCKET, files=files)
                for key, path in files.items():
                    same = filecmp.cmp(setting.source / key.removeprefix(f"{PREFIX}/"), path, shallow=False)
                    expect(f"{how}: {key} is what was uploaded", same, True)
            case "tensorstore":
                run = setting.read_bucket("tensorstore_region", first=0, last=shards * data.shard[0])
                expect(f"{how}: CRC-32", run["crc32"], setting.region_crc(shards))
            case _:
                with setting.mount(how) as mount:
                    sources = [mount.root / name for name in setting.directories(shards)]
                    run = mount.watch(partial(setting.run, "cp", "-r", *sources, copied))
                check_copy(setting, how, shards)
        runs[how].append(run)
    shutil.rmtree(copied)
    return {"shards": shards, "files": shards * setting.shard_files, "bytes": size, "runs": runs}


def check_copy(setting: Setting, how: str, shards: int) -> None:
    top = setting.copied / "c" if shards == setting.shards else setting.copied
    sizes = [path.stat().st_size for path in top.rglob("*") if path.is_file()]
    expect(f"{how}: chunk files", len(sizes), shards * setting.shard_files)
    expect(f"{how}: sizes of chunk files", set(sizes), {setting.data.chunk_bytes})
    keys = list(numpy.ndindex(shards * setting.side, *setting.data.grid[1:]))
    for at in keys[::max(1, len(keys) // CHECKED_FILES)]:
        same = top.joinpath(*map(str, at)).read_bytes() == setting.chunk(at)
        expect(f"{how}: {at} is the chunk that was written", same, True)


def random_chunks(setting: Setting) -> dict:
    """Chunks here and there, one after the other: first one of each shard, whose index nothing has read
    yet, then others."""
    runs: dict[str, list[dict]] = {how: [] for how in ["one GET", "tensorstore", *setting.mounts()]}
    for number, how in in_turn("remote: random chunks", runs, setting.args.rounds):
        first, others = setting.some_chunks(number)
        match how:
            case "one GET":
                ranges = [setting.range(at) for at in first + others]
                found = setting.read_bucket("obstore_ranges", ranges=ranges)
                expect(f"{how}: CRC-32", found["crc32"], setting.chunks_crc(first + others))
                run = {"first": {"seconds": found["seconds"][:len(first)]},
                       "others": {"seconds": found["seconds"][len(first):]}}
            case "tensorstore":
                boxes = [[setting.box(at) for at in chunks] for chunks in (first, others)]
                found = setting.read_bucket("tensorstore_chunks", boxes=boxes)
                run = dict(zip(("first", "others"), found["lists"]))
            case _:
                if how.endswith("rclone"):
                    others = others[:FEW_CHUNKS]
                with setting.mount(how) as mount:
                    run = {name: mount.watch(partial(chunk_files, setting, mount.root, chunks))
                           for name, chunks in (("first", first), ("others", others))}
        for name, chunks in (("first", first), ("others", others)):
            if "crc32" in run[name]:
                expect(f"{how}: CRC-32", run[name]["crc32"], setting.chunks_crc(chunks))
        runs[how].append(run)
    return {"chunks": RANDOM_CHUNKS, "runs": runs}


def chunk_files(setting: Setting, root: Path, chunks: list[tuple[int, ...]]) -> dict:
    paths = [str(root.joinpath("c", *map(str, at))) for at in chunks]
    return setting.read("chunk_files", paths=paths)


def listing(setting: Setting, shards: int) -> dict:
    """ls -lR, and beside it what one request takes."""
    runs: dict[str, list[dict]] = {how: [] for how in ["one GET", *setting.mounts()]}
    out = setting.args.fast_dir / "listed"
    for number, how in in_turn(f"remote: ls -lR of {shards}", runs, setting.args.rounds):
        if how == "one GET":
            ranges = [setting.range(at) for at in setting.some_chunks(number)[1][:GETS]]
            runs[how].append({"seconds": setting.read_bucket("obstore_ranges", ranges=ranges)["seconds"]})
            continue
        with setting.mount(how) as mount, out.open("wb") as stdout:
            sources = [mount.root / name for name in setting.directories(shards)]
            runs[how].append(mount.watch(partial(setting.run, "ls", "-lR", *sources, stdout=stdout)))
        sizes = [int(line.split()[4]) for line in out.read_text().splitlines() if line.startswith("-")]
        expect(f"{how}: chunk files", len(sizes), shards * setting.shard_files)
        expect(f"{how}: sizes of chunk files", set(sizes), {setting.data.chunk_bytes})
    return {"shards": shards, "files": shards * setting.shard_files, "runs": runs}


def zarr_python(setting: Setting) -> dict:
    """All of the array with zarr-python: chunk by chunk from a mount, and shard by shard from S3."""
    runs: dict[str, list[dict]] = {how: [] for how in [*setting.mounts()[:2], "obstore"]}
    for _, how in in_turn("remote: zarr-python", runs, setting.args.rounds):
        if how == "obstore":
            source = {"endpoint": setting.endpoint, "bucket": BUCKET, "path": PREFIX}
            run = setting.read("zarr_array", source=source, threads=THREADS)
        else:
            with setting.mount(how) as mount:
                run = mount.watch(partial(setting.read, "zarr_array", source=str(mount.root),
                                          threads=THREADS))
        expect(f"{how}: CRC-32", run["crc32"], setting.region_crc(setting.shards))
        runs[how].append(run)
    return {"bytes": setting.data.files * setting.data.chunk_bytes, "threads": THREADS, "runs": runs}


@dataclass(frozen=True)
class Proxy:
    """What is further away than the store behind it."""
    endpoint: str
    process: subprocess.Popen

    def passed(self) -> int:
        """Bytes on the wire so far, in both directions."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def delayed(endpoint: str, milliseconds: float) -> Iterator[Proxy]:
    """The same store, further away."""
    port = endpoint.rpartition(":")[2]
    command = [sys.executable, DELAY, port, str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            yield Proxy(f"http://127.0.0.1:{int(proxy.stdout.readline())}", proxy)
        finally:
            proxy.kill()


def s3_client(endpoint: str):
    # Ceph's gateway knows no checksums behind a body, which boto3 sends unless it is told not to.
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    return boto3.client("s3", endpoint_url=endpoint, config=config)


def upload(source: Path, endpoint: str) -> None:
    client = s3_client(endpoint)
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), BUCKET, f"{PREFIX}/{path.relative_to(source)}")


def set_environment() -> None:
    """Nothing but what scripts/bench says of the store counts."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "RCLONE_")) and name not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del os.environ[name]
    os.environ |= {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
                   "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                   "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def main() -> None:
    parser = part.parser()
    parser.add_argument("--endpoint", required=True, help="of the gateway")
    parser.add_argument("--latency", type=float, required=True, help="of a round trip, in milliseconds")
    parser.add_argument("--fast-dir", type=Path, required=True, help="in memory, if possible")
    parser.add_argument("--rclone", help="if there is one")
    args = parser.parse_args()
    set_environment()
    (args.run_dir / "mount").mkdir(exist_ok=True)
    client, args.daemon_prefix = machine.placement(args.cpus)
    packages = ["boto3", "obstore", "tensorstore"]
    report = part.report(args, {"zarr-python": "zarr"} | {name: name for name in packages})
    report["versions"] |= {"radosgw": machine.first_line(["radosgw", "--version"]),
                           "cp": machine.first_line(["cp", "--version"])}
    if args.rclone:
        report["versions"]["rclone"] = machine.first_line([args.rclone, "--version"])
    else:
        report["skipped"]["shardfs, rclone"] = "no rclone"
    with delayed(args.endpoint, args.latency) as proxy:
        setting = Setting(args, proxy.endpoint)
        say("remote: uploading")
        upload(setting.source, args.endpoint)
        if client:
            # This process is the client, and whoever it starts; the store and the proxy are neither.
            os.sched_setaffinity(0, {int(client[-1])})
        some = [setting.range(at) for at in setting.some_chunks(0)[1][:GETS]]
        direct = setting.read("obstore_ranges", endpoint=args.endpoint, bucket=BUCKET, path=PREFIX, ranges=some)
        head = {"quick": args.quick, "latency_ms": args.latency, "shards": setting.shards,
                "shard_files": setting.shard_files, "chunk_bytes": setting.data.chunk_bytes,
                "direct_seconds": direct["seconds"]}
        parts = {"copying one shard": partial(copying, shards=1),
                 "copying all shards": partial(copying, shards=setting.shards),
                 "random chunks": random_chunks,
                 "listing one shard": partial(listing, shards=1),
                 "listing all shards": partial(listing, shards=setting.shards),
                 "zarr-python": zarr_python}
        steal = machine.stolen_seconds()
        part.measure(report, "remote", head, parts, setting, args.json)
        head["stolen_seconds"] = round(machine.stolen_seconds() - steal, 2)
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    part.start(main)
