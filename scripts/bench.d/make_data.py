#!/usr/bin/env python3
"""Write a data set twice with zarr-python: sharded, and as one file per chunk.
usage: make_data.py SET DIR        (writes DIR/array.zarr and DIR/chunks)
       make_data.py LISTED DIR     (DIR is an array with very many chunks)
       make_data.py REMOTE DIR     (DIR is an array, sharded only)"""

import itertools
import sys
from pathlib import Path

import google_crc32c
import numpy
import zarr

from data_sets import DATA_SETS, LISTED, REMOTE, DataSet


def create(path: str, data: DataSet, shards: tuple[int, ...] | None) -> zarr.Array:
    return zarr.create_array(
        path, shape=data.shape, chunks=data.chunk, shards=shards, dtype="uint8",
        fill_value=0, filters=None, compressors=None, zarr_format=3,
    )


def make_listed(out: Path, shards: int, chunks: int, chunk_bytes: int) -> None:
    """The shards are put together here: zarr-python takes minutes for a million chunks."""
    zarr.create_array(
        out, shape=(shards * chunks * chunk_bytes,), chunks=(chunk_bytes,),
        shards=(chunks * chunk_bytes,), dtype="uint8", fill_value=0, filters=None, compressors=None,
        zarr_format=3,
    )
    random = numpy.random.default_rng(1)
    index = numpy.empty((chunks, 2), "<u8")
    index[:, 0] = numpy.arange(chunks) * chunk_bytes
    index[:, 1] = chunk_bytes
    checksum = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    out.joinpath("c").mkdir()
    for shard in range(shards):
        body = random.bytes(chunks * chunk_bytes)
        out.joinpath("c", str(shard)).write_bytes(body + index.tobytes() + checksum)


def fill(data: DataSet, arrays: list[zarr.Array]) -> None:
    """Random bytes, the same in all of them."""
    random = numpy.random.default_rng(1)
    starts = (range(0, size, step) for size, step in zip(data.shape, data.shard))
    for corner in itertools.product(*starts):
        box = tuple(slice(at, at + step) for at, step in zip(corner, data.shard))
        block = random.integers(0, 256, data.shard, dtype="uint8")
        for array in arrays:
            array[box] = block


def main() -> None:
    name, out = sys.argv[1:]
    if name in LISTED:
        return make_listed(Path(out), *LISTED[name])
    if name in REMOTE:
        return fill(REMOTE[name], [create(out, REMOTE[name], REMOTE[name].shard)])
    data = DATA_SETS[name]
    # The second one never saw a shard: a mount that shows the same bytes is right.
    fill(data, [create(f"{out}/array.zarr", data, data.shard), create(f"{out}/chunks", data, None)])


if __name__ == "__main__":
    main()
