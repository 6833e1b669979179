#!/usr/bin/env python3
"""Two writable mounts of a group and TensorStore on its source write different chunks of the same
shards at once.  In the end each chunk must hold what its writer last knew to be safe.

    together.py make SOURCE
    together.py write SECONDS SOURCE MOUNT MOUNT

Prints a line for each result: "ok NAME" or "FAIL NAME".
"""

import multiprocessing
import os
import random
import sys
import time
import traceback

import numpy
import tensorstore
import zarr

# Rows of chunks are dealt out to the writers in turn: every shard has chunks of each of them.
ROWS, COLUMNS, CHUNK, ROWS_PER_SHARD = 48, 2, 4096, 16
ARRAYS = {"end": "end", "start": "start"}


def make(source: str) -> None:
    group = zarr.create_group(source, zarr_format=3)
    for name, location in ARRAYS.items():
        codec = zarr.codecs.ShardingCodec(chunk_shape=(1, CHUNK), index_location=location)
        array = group.create_array(name, shape=(ROWS, COLUMNS * CHUNK), dtype="uint8", fill_value=0,
                                   chunks=(ROWS_PER_SHARD, COLUMNS * CHUNK), serializer=codec,
                                   compressors=None, filters=None)
        array[: ROWS // 2] = 1


def through_mount(mount: str):
    """A chunk file is replaced, or written over; fsync makes it safe."""
    def write(array: str, row: int, column: int, value: bytes) -> None:
        path = f"{mount}/{array}/c/{row}/{column}"
        replaced = value[0] % 2
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new" if replaced else path, "wb", buffering=0) as f:
            f.write(value)
            if not replaced:
                os.fsync(f.fileno())
        if replaced:
            os.rename(path + ".new", path)
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
    return write


def through_tensorstore(source: str):
    """Each write replaces the shard, under TensorStore's own lock."""
    arrays = {}
    for name in ARRAYS:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{source}/{name}"}}
        arrays[name] = tensorstore.open(spec).result()

    def write(array: str, row: int, column: int, value: bytes) -> None:
        part = arrays[array][row, column * CHUNK:(column + 1) * CHUNK]
        while True:
            try:
                part.write(numpy.frombuffer(value, dtype="uint8")).result()
                return
            except ValueError as error:
                # It reads without a lock, and may meet an index that is just being written.
                if "DATA_LOSS" not in str(error):
                    raise
    return write


def writer(number: int, kind, place: str, until: float, results) -> None:
    rng, write, written, count = random.Random(number), kind(place), {}, 0
    try:
        while time.monotonic() < until:
            array = rng.choice(list(ARRAYS))
            row, column = rng.randrange(ROWS // 3) * 3 + number, rng.randrange(COLUMNS)
            # No chunk of zeros: it would be none.
            value = bytes([rng.randrange(1, 256)]) + rng.randbytes(CHUNK - 1)
            write(array, row, column, value)
            written[array, row, column] = value
            count += 1
        results.put((number, count, written, None))
    except Exception:
        results.put((number, count, written, traceback.format_exc()))


def write(seconds: float, source: str, mounts: list[str]) -> None:
    context = multiprocessing.get_context("spawn")
    results, until = context.Queue(), time.monotonic() + seconds
    jobs = [(through_mount, mounts[0]), (through_mount, mounts[1]), (through_tensorstore, source)]
    processes = [context.Process(target=writer, args=(number, kind, place, until, results))
                 for number, (kind, place) in enumerate(jobs)]
    for process in processes:
        process.start()
    ended = [results.get(timeout=seconds + 120) for _ in processes]
    for process in processes:
        process.join()
    for number, count, written, error in sorted(ended, key=lambda one: one[0]):
        name = ["mount", "other mount", "tensorstore"][number]
        print(f"FAIL {name}: {error}" if error else f"ok {name}: {count} durable writes at once")
        wrong = [place for place, value in written.items() if not holds(source, place, value)]
        print(f"FAIL {name}: lost {wrong}" if wrong else f"ok {name}: nothing lost")


def holds(source: str, place: tuple[str, int, int], value: bytes) -> bool:
    name, row, column = place
    array = zarr.open_array(f"{source}/{name}", mode="r")
    return array[row, column * CHUNK:(column + 1) * CHUNK].tobytes() == value


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        write(float(sys.argv[2]), sys.argv[3], sys.argv[4:])
