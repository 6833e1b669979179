#!/usr/bin/env python3
"""Measure writing to a bucket through a mount beside programs that write to the bucket themselves, and add it to
the JSON; started by scripts/bench, which has started the gateway. Two stores take part: the gateway, to which a
shard is put as a whole, and the server of the project's own tests, which assembles shards of parts as Amazon's
store does. Both are behind a proxy that is a round trip away and counts what passes."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy
import zarr
from zarr.storage import ObjectStore

import machine
import part
from part import fsync, in_turn, say
from remote import CLIENT_SECONDS, Proxy, delayed, expect, limit, s3_client, set_environment
from remote_readers import obstore_store, tensorstore_array
from variants import BenchError, mounted

CHUNK = (32, 32, 32)
CHUNK_BYTES = 32 << 10
# The server of the tests knows one bucket.
BUCKET = "bucket"
# Who rewrites the whole shard for each chunk is measured with fewer.
UPDATES = {"shardfs": 8, "zarr-python": 2, "tensorstore": 2}
KIB = 1 << 10


@dataclass(frozen=True)
class Array:
    """One shard, which is the whole array."""
    name: str
    shape: tuple[int, int, int]

    @property
    def grid(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(size // step) for size, step in zip(self.shape, CHUNK))))

    @property
    def index_bytes(self) -> int:
        return 16 * len(self.grid) + 4

    def create(self, path: Path) -> zarr.Array:
        return zarr.create_array(path, shape=self.shape, chunks=CHUNK, shards=self.shape, dtype="uint8", fill_value=0,
                                 filters=None, compressors=None, zarr_format=3)


def box(at: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * step, (i + 1) * step) for i, step in zip(at, CHUNK))


@dataclass(frozen=True)
class Store:
    """A store, and the proxy that is before it. `full`: an array that is there. `collect`: what removes the bytes of
    objects that were replaced, if they do not go by themselves."""
    direct: str
    proxy: Proxy
    full: Array
    collect: list[str | Path]

    def tidy(self) -> None:
        if self.collect:
            subprocess.run(self.collect, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def zarr(self, array: Array) -> zarr.Array:
        return zarr.open_array(ObjectStore(obstore_store(self.proxy.endpoint, BUCKET, array.name)), mode="r+")

    def tensorstore(self, array: Array):
        return tensorstore_array(self.proxy.endpoint, BUCKET, array.name)

    def shard_nbytes(self, array: Array) -> int:
        return s3_client(self.direct).head_object(Bucket=BUCKET, Key=f"{array.name}/c/0/0/0")["ContentLength"]


class Setting:
    """The arrays in both stores, and one mount at a time."""

    def __init__(self, args, stores: dict[str, Store]):
        self.args, self.stores = args, stores
        self.new = Array("new", (256,) * 3 if args.quick else (512,) * 3)
        self.random = numpy.random.default_rng(1)
        self.mountpoint = args.run_dir / "mount"

    def prepare(self) -> None:
        """A full shard in each store, the chunk files of a new one, and what that is as an object."""
        top = self.args.fast_dir
        new = top / "new"
        for array in {store.full for store in self.stores.values()}:
            array.create(top / array.name)[...] = self.random.integers(0, 256, array.shape, dtype="uint8")
        self.values = self.random.integers(0, 256, self.new.shape, dtype="uint8")
        self.new.create(new)[...] = self.values
        for at in self.new.grid:
            path = top.joinpath("chunks", "c", *map(str, at))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.values[box(at)].tobytes())
        for store in self.stores.values():
            client = s3_client(store.direct)
            client.create_bucket(Bucket=BUCKET)
            full = top / store.full.name
            client.upload_file(str(full / "c/0/0/0"), BUCKET, f"{full.name}/c/0/0/0")
            for array in (full, new):
                client.upload_file(str(array / "zarr.json"), BUCKET, f"{array.name}/zarr.json")

    @contextmanager
    def mount(self, store: Store, array: Array) -> Iterator[Path]:
        command = [*self.args.daemon_prefix, self.args.shardfs, "mount", "-f", "--rw", "-o",
                   f"endpoint={store.proxy.endpoint}", f"s3://{BUCKET}/{array.name}", str(self.mountpoint)]
        unmount = [self.args.shardfs, "umount", str(self.mountpoint)]
        with mounted("shardfs", command, unmount, self.mountpoint, self.args.run_dir, os.stat) as daemon:
            with limit(daemon):
                yield self.mountpoint

    def block(self) -> numpy.ndarray:
        return self.random.integers(0, 256, CHUNK, dtype="uint8")


@contextmanager
def in_time() -> Iterator[None]:
    """A client that reads and writes the bucket itself ends within a time."""
    def give_up(*_: object) -> None:
        raise BenchError(f"no end after {CLIENT_SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(CLIENT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def put(path: Path, data: bytes) -> None:
    """Replaces a file, durably."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        expect(f"{path}: bytes written", os.write(file, data), len(data))
        os.fsync(file)
    finally:
        os.close(file)


def one_chunk(setting: Setting) -> dict:
    """Chunks of a full shard, each durable before the next."""
    runs = {store: {how: [] for how in UPDATES} for store in setting.stores}
    # Its conditional requests are refused by this gateway, and it repeats them for ever.
    del runs["as a whole"]["tensorstore"]
    for name, store in setting.stores.items():
        array = store.full
        for _, how in in_turn(f"remote: one chunk, {name}", runs[name], setting.args.rounds):
            run = {"seconds": [], "bytes": []}
            chosen = setting.random.permutation(array.grid)[:UPDATES[how]]
            blocks = [(tuple(map(int, at)), setting.block()) for at in chosen]
            with ExitStack() as stack:
                if how == "shardfs":
                    root = stack.enter_context(setting.mount(store, array))
                else:
                    stack.enter_context(in_time())
                    opened = store.zarr(array) if how == "zarr-python" else store.tensorstore(array)
                for at, block in blocks:
                    before, start = store.proxy.passed(), time.perf_counter()
                    match how:
                        case "shardfs":
                            put(root.joinpath("c", *map(str, at)), block.tobytes())
                        case "zarr-python":
                            opened[box(at)] = block
                        case "tensorstore":
                            opened[box(at)].write(block).result()
                    run["seconds"].append(time.perf_counter() - start)
                    run["bytes"].append(store.proxy.passed() - before)
            found = zarr.open_array(ObjectStore(obstore_store(store.direct, BUCKET, array.name)), mode="r")
            for at, block in blocks:
                expect(f"{how}: {at} is what was written", bool((found[box(at)] == block).all()), True)
            runs[name][how].append(run)
            store.tidy()
    sizes = {name: {"index": store.full.index_bytes, "shard": CHUNK_BYTES * len(store.full.grid)}
             for name, store in setting.stores.items()}
    return {"chunk_bytes": CHUNK_BYTES, "sizes": sizes, "runs": runs,
            "goal": CHUNK_BYTES + sizes["assembled"]["index"] + 64 * KIB}


def new_shard(setting: Setting) -> dict:
    """All chunk files of a new shard, one after the other, and the shard itself as an object."""
    array, top = setting.new, setting.args.fast_dir
    key, object_file = f"{array.name}/c/0/0/0", str(top / "new/c/0/0/0")
    runs = {store: {"shardfs": [], "boto3": []} for store in setting.stores}
    for name, store in setting.stores.items():
        client = s3_client(store.proxy.endpoint)
        for _, how in in_turn(f"remote: a new shard, {name}", runs[name], setting.args.rounds):
            client.delete_object(Bucket=BUCKET, Key=key)
            store.tidy()
            with ExitStack() as stack:
                if how == "shardfs":
                    root = stack.enter_context(setting.mount(store, array))
                before, start = store.proxy.passed(), time.perf_counter()
                if how == "shardfs":
                    subprocess.run(["cp", "-r", top / "chunks/c", root], check=True)
                    fsync(root)
                else:
                    client.upload_file(object_file, BUCKET, key)
                seconds = time.perf_counter() - start
                passed = store.proxy.passed() - before
            expect(f"{how}: values", bool((store.zarr(array)[...] == setting.values).all()), True)
            runs[name][how].append({"seconds": seconds, "bytes": passed, "stored": store.shard_nbytes(array)})
    return {"chunks": len(array.grid), "bytes": CHUNK_BYTES * len(array.grid) + array.index_bytes, "runs": runs}


def alone(part: Callable[[Setting], dict]) -> Callable[[Setting], dict]:
    """A part that fails by an error of the bench: libraries have errors of their own."""
    def run(setting: Setting) -> dict:
        try:
            return part(setting)
        except (BenchError, OSError, subprocess.SubprocessError):
            raise
        except Exception as error:
            raise BenchError(f"{type(error).__name__}: {error}") from error

    return run


PARTS = {"one chunk": alone(one_chunk), "new shard": alone(new_shard)}


@contextmanager
def test_server(program: str, empty: Path) -> Iterator[str]:
    """The address of the server of the project's tests; it ends with its input."""
    empty.mkdir()
    with subprocess.Popen([program, empty], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def main() -> None:
    parser = part.parser()
    parser.add_argument("--endpoint", required=True, help="of the gateway")
    parser.add_argument("--latency", type=float, required=True, help="of a round trip, in milliseconds")
    parser.add_argument("--fast-dir", type=Path, required=True, help="in memory, if possible")
    parser.add_argument("--store", required=True, help="the server of the project's tests")
    parser.add_argument("--gateway", type=Path, required=True, help="what has started the gateway")
    parser.add_argument("--rclone", help="takes no part")
    args = parser.parse_args()
    collect = [args.gateway, "collect", args.fast_dir / "store"]
    args.fast_dir /= "writing"
    args.fast_dir.mkdir()
    set_environment()
    (args.run_dir / "mount").mkdir(exist_ok=True)
    client, args.daemon_prefix = machine.placement(args.cpus)
    report = part.report(args, {"zarr-python": "zarr"} | {name: name for name in ["boto3", "obstore", "tensorstore"]})
    report["versions"]["radosgw"] = machine.first_line(["radosgw", "--version"])
    with ExitStack() as stack:
        def store(endpoint: str, full: Array, collect: list) -> Store:
            return Store(endpoint, stack.enter_context(delayed(endpoint, args.latency)), full, collect)

        tests = stack.enter_context(test_server(args.store, args.fast_dir / "empty"))
        # The gateway gets a shorter one, all of which is put each time.
        long, short = ((512, 256, 256),) * 2 if args.quick else ((1024, 512, 512), (512, 256, 512))
        stores = {"assembled": store(tests, Array("long", long), []),
                  "as a whole": store(args.endpoint, Array("short", short), collect)}
        setting = Setting(args, stores)
        say("remote writing: uploading")
        setting.prepare()
        if client:
            os.sched_setaffinity(0, {int(client[-1])})
        head = {"quick": args.quick, "latency_ms": args.latency}
        part.measure(report, "remote_write", head, PARTS, setting, args.json)


if __name__ == "__main__":
    part.start(main)
