#!/usr/bin/env python3
"""Write a data set twice with zarr-python: sharded, and as one file per chunk.
usage: make_data.py SET DIR        (writes DIR/array.zarr and DIR/chunks)"""

import itertools
import sys

import numpy
import zarr

from data_sets import DATA_SETS, DataSet


def create(path: str, data: DataSet, shards: tuple[int, ...] | None) -> zarr.Array:
    return zarr.create_array(
        path, shape=data.shape, chunks=data.chunk, shards=shards, dtype="uint8",
        fill_value=0, filters=None, compressors=None, zarr_format=3,
    )


def main() -> None:
    name, out = sys.argv[1:]
    data = DATA_SETS[name]
    # The second one never saw a shard: a mount that shows the same bytes is right.
    arrays = create(f"{out}/array.zarr", data, data.shard), create(f"{out}/chunks", data, None)
    random = numpy.random.default_rng(1)
    starts = (range(0, size, step) for size, step in zip(data.shape, data.shard))
    for corner in itertools.product(*starts):
        box = tuple(slice(at, at + step) for at, step in zip(corner, data.shard))
        block = random.integers(0, 256, data.shard, dtype="uint8")
        for array in arrays:
            array[box] = block


if __name__ == "__main__":
    main()
