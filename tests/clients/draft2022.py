#!/usr/bin/env python3
"""zarr-python 2.16 writes and reads hierarchies of the draft of 2022, with and without its sharding.

    draft2022.py make STORE              a hierarchy with sharded arrays
    draft2022.py values STORE            fingerprints of all arrays, as JSON
    draft2022.py write STORE             writes to all arrays, attributes too; prints what they must be then
    draft2022.py resize STORE            makes the array "a" smaller

ZARR_V3_SHARDING=1 in the environment: sharded arrays are read and written as such.
"""

import hashlib
import json
import os
import sys
import warnings

os.environ["ZARR_V3_EXPERIMENTAL_API"] = "1"
# Whether it is set is what counts, not to what.
SHARDED = os.environ.get("ZARR_V3_SHARDING") == "1"
if not SHARDED:
    os.environ.pop("ZARR_V3_SHARDING", None)

import numcodecs
import numpy
import zarr
from zarr._storage.v3 import DirectoryStoreV3

warnings.simplefilter("ignore")
ARRAYS = {
    # name: shape, chunk, chunks per shard, data type, separator, compressor
    "a": ((7, 9), (2, 3), (2, 2), "<i4", "/", None),
    "grp/dot": ((12, 12), (3, 3), (2, 2), "<f4", ".", numcodecs.Blosc("lz4")),
    "grp/line": ((40,), (4,), (4,), ">i2", "/", numcodecs.Zlib(1)),
    "scalar": ((), (), (1,), "<i4", "/", None),
    "plain": ((10, 10), (5, 5), None, "u1", "/", None),
}


def make(path: str) -> None:
    from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

    store = DirectoryStoreV3(path)
    zarr.group(store=store, path="grp", zarr_version=3)
    for name, (shape, chunk, per_shard, dtype, separator, compressor) in ARRAYS.items():
        sharded = {}
        if per_shard:
            sharded["storage_transformers"] = [
                ShardingStorageTransformer("indexed", chunks_per_shard=per_shard)]
        array = zarr.create(shape, chunks=chunk, dtype=dtype, store=store, path=name, zarr_version=3,
                            compressor=compressor, fill_value=0, dimension_separator=separator, **sharded)
        array[...] = numpy.arange(1, array.size + 1).reshape(shape)


def arrays(path: str, mode: str) -> dict:
    store = DirectoryStoreV3(path)
    return {name: zarr.open_array(store=store, path=name, zarr_version=3, mode=mode) for name in ARRAYS}


def fingerprints(values: dict) -> dict:
    return {name: [list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
            for name, value in values.items()}


def values(path: str) -> dict:
    return fingerprints({name: array[...] for name, array in arrays(path, "r").items()})


def write(path: str) -> dict:
    expected = {}
    for name, array in arrays(path, "r+").items():
        value = array[...]
        # Whole chunks, parts of chunks, and chunks that become empty.
        for number, part in enumerate([numpy.s_[1:5], numpy.s_[:2], numpy.s_[-1:]]):
            if value.ndim:
                array[part] = value[part] = number * 3
        if not value.ndim:
            array[...] = value = numpy.asarray(17, dtype=value.dtype)
        array.attrs["written"] = name
        expected[name] = value
    return fingerprints(expected)


def main() -> None:
    command, path = sys.argv[1:]
    if command == "make":
        make(path)
    elif command == "resize":
        arrays(path, "r+")["a"].resize(4, 4)
    else:
        print(json.dumps({"values": values, "write": write}[command](path)))


if __name__ == "__main__":
    main()
