#!/usr/bin/env python3
"""Inner chunks of one shard written in parallel by dask: what dask.sh checks.

    dask_check.py make SOURCE                   makes sharded arrays of zeros
    dask_check.py store SCHEDULER PATH...       stores the numbers into each array of PATH, a task for
                                                each inner chunk; several PATHs share the tasks
    dask_check.py lost PATH                     prints the share of the numbers that is not there

The program of zarr-python's issue 3682, which loses about a third of what it writes: each task reads a
shard, changes one chunk in it, and writes the shard, while others do the same.
"""
import sys

import dask
import dask.array as da
import numpy as np
import zarr

SHAPE = (96, 96, 96)
CHUNK = (16, 16, 16)
SHARD = (48, 48, 48)
# The index at either end, with and without a compressor.
ARRAYS = {
    "end": {"compressors": None},
    "start": {"compressors": None},
    "zstd": {"compressors": "auto"},
}


def numbers():
    # No zero: what was lost is zero.
    return np.arange(1, np.prod(SHAPE) + 1, dtype="float64").reshape(SHAPE)


def make(source):
    group = zarr.create_group(source)
    for name, options in ARRAYS.items():
        shards = {"shape": SHARD, "index_location": name} if name == "start" else SHARD
        group.create_array(name, shape=SHAPE, dtype="float64", chunks=CHUNK, shards=shards, **options)


def store(scheduler, paths):
    """The blocks go to the paths in turn, as if each was on a machine of its own."""
    plain = numbers()
    with dask.config.set(scheduler=scheduler, num_workers=8):
        for name in ARRAYS:
            whole = da.from_array(plain, chunks=CHUNK)
            targets = [zarr.open_array(f"{path}/{name}") for path in paths]
            sources, regions, stored = [], [], []
            for at, block in enumerate(np.ndindex(*whole.numblocks)):
                region = tuple(slice(i * n, (i + 1) * n) for i, n in zip(block, CHUNK))
                sources.append(whole.blocks[block])
                regions.append(region)
                stored.append(targets[at % len(targets)])
            da.store(sources, stored, regions=regions, lock=False)


def lost(path):
    plain = numbers()
    shares = [(zarr.open_array(f"{path}/{name}", mode="r")[:] != plain).mean() for name in ARRAYS]
    print(f"{100 * sum(shares) / len(shares):.1f} %")


def main():
    what, *arguments = sys.argv[1:]
    if what == "make":
        make(*arguments)
    elif what == "store":
        store(arguments[0], arguments[1:])
    else:
        lost(*arguments)


if __name__ == "__main__":
    main()
