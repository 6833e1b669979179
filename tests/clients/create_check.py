#!/usr/bin/env python3
"""Checks arrays that shardfs makes and resizes.  Runs with zarr-python 3, TensorStore and NumPy.

    create_check.py arrays SHARDFS DIR    makes arrays in DIR; a line "ok ..." or "FAIL ..." for each check
    create_check.py fill ARRAY            fills an array of uint16 with zarr-python
    create_check.py filled ARRAY          fails unless it holds that for zarr-python and TensorStore
"""
import json
import os
import random
import subprocess
import sys
import warnings

import numpy as np
import tensorstore as ts
import zarr

warnings.simplefilter("ignore")

# Wishes for the layout: shardfs's option, TensorStore's name of it.
WISHES = {
    "chunk": "read_chunk_shape",
    "shard": "write_chunk_shape",
    "soft-chunk": "read_chunk_shape_soft_constraint",
    "soft-shard": "write_chunk_shape_soft_constraint",
    "elements": "chunk_elements",
    "read-elements": "read_chunk_elements",
    "write-elements": "write_chunk_elements",
    "aspect": "chunk_aspect_ratio",
    "read-aspect": "read_chunk_aspect_ratio",
    "write-aspect": "write_chunk_aspect_ratio",
    "order": "inner_order",
}
CODECS = {
    "zstd:3": {"name": "zstd", "configuration": {"level": 3}},
    "gzip:6": {"name": "gzip", "configuration": {"level": 6}},
    "crc32c": {"name": "crc32c"},
    "blosc:lz4:5:shuffle": {"name": "blosc", "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}},
}
DATA_TYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
    "float32", "float64", "complex64", "complex128", "int4", "float8_e4m3fn",
]


def run(shardfs, *arguments):
    return subprocess.run([shardfs, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def listed(value):
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def opened(path, **options):
    return ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}, **options).result()


def by_tensorstore(shape, dtype, wishes, codecs, fill):
    options = {}
    if codecs:
        options["codec"] = ts.CodecSpec({"driver": "zarr3", "codecs": [CODECS[codec] for codec in codecs]})
    if fill is not None:
        options["fill_value"] = fill
    layout = ts.ChunkLayout(**{WISHES[name]: value for name, value in wishes.items()})
    spec = {"driver": "zarr3", "kvstore": "memory://"}
    return ts.open(spec, create=True, dtype=dtype, shape=shape, chunk_layout=layout, **options).result()


def described(store):
    """All that a store says of itself, the places of files aside."""
    return {
        "domain": store.domain.to_json(),
        "dtype": store.dtype.name,
        "chunk_layout": store.chunk_layout.to_json(),
        "codec": store.codec.to_json(),
        "fill_value": np.asarray(store.fill_value).tobytes().hex(),
        "rank": store.rank,
    }


def same(shardfs, path, shape, dtype, wishes, codecs=(), fill=None):
    """Makes an array of both and compares them.  What is wrong, or None."""
    arguments = ["create", path, "--shape", listed(shape), "--dtype", dtype]
    for name, value in wishes.items():
        arguments.append(f"--{name}={listed(value)}")
    for codec in codecs:
        arguments += ["--codec", codec]
    if fill is not None:
        arguments.append(f"--fill={str(fill).lower()}")
    made = run(shardfs, *arguments)
    try:
        expected = described(by_tensorstore(shape, dtype, wishes, codecs, fill))
    except (ValueError, IndexError, OverflowError) as error:
        if made.returncode == 2 and made.stderr.startswith("shardfs: ") and not os.path.exists(path):
            return None
        return f"{arguments}: {made.returncode} {made.stderr!r}, TensorStore: {error}"
    if made.returncode != 0:
        # Fewer inner chunks in a shard than TensorStore allows.
        if "the limit is 16777216" in made.stderr:
            return None
        return f"{arguments}: {made.stderr!r}, TensorStore makes {expected}"
    found = described(opened(path))
    if found != expected:
        return f"{arguments}: {json.dumps(found)}, expected {json.dumps(expected)}"
    array = zarr.open_array(path, mode="r") if dtype in ZARR_TYPES else None
    if array is not None and (array.shape != tuple(shape) or array.dtype.name != dtype):
        return f"{arguments}: zarr-python finds {array.shape} {array.dtype}"
    return None


ZARR_TYPES = [name for name in DATA_TYPES if name not in ("bfloat16", "int4", "float8_e4m3fn")]


def random_wishes(rng):
    rank = rng.choice([1, 2, 3, 3, 4])
    shape = [rng.choice([0, 1, rng.randint(2, 60), rng.randint(60, 4000), 1024, 10**6]) for _ in range(rank)]

    def lengths():
        return [rng.choice([0, -1, rng.randint(1, 80), rng.choice([2, 4, 8, 16, 32, 64, 100])]) for _ in shape]

    def ratios():
        return [rng.choice([1, 2, 0.5, rng.uniform(0.05, 20)]) for _ in shape]

    wishes = {}
    for name in WISHES:
        if rng.random() > 0.25:
            continue
        if name == "order":
            wishes[name] = rng.sample(range(rank), rank)
        elif name.endswith("elements"):
            wishes[name] = rng.choice([1, 100, 4096, 10**6, rng.randint(1, 10**8)])
        elif name.endswith("aspect"):
            wishes[name] = ratios()
        else:
            wishes[name] = lengths()
    hard = wishes.get("chunk"), wishes.get("shard")
    if None not in hard and rng.random() < 0.7:
        wishes["shard"] = [a * rng.randint(1, 6) if a > 0 else b for a, b in zip(*hard)]
    return shape, wishes


def verdict(name, wrong):
    for text in wrong[:5]:
        print(text, file=sys.stderr)
    print(f"FAIL {name}: {wrong[0]}" if wrong else f"ok {name}", flush=True)


def layouts(shardfs, top):
    rng = random.Random(86)
    wrong, refused = [], 0
    for number in range(300):
        path = os.path.join(top, f"random-{number}")
        shape, wishes = random_wishes(rng)
        wrong.append(same(shardfs, path, shape, rng.choice(["uint8", "uint16"]), wishes))
        refused += not os.path.exists(path)
    wrong = [text for text in wrong if text]
    verdict(f"TensorStore makes the same of 300 random wishes, and refuses the same {refused}", wrong)


def contents(shardfs, top):
    wrong = []
    for dtype in DATA_TYPES:
        for shard in ((10, 12), (5, 4)):
            wishes = {"chunk": (5, 4), "shard": shard, "order": (1, 0)}
            path = os.path.join(top, f"type-{dtype}-{shard[0]}")
            wrong.append(same(shardfs, path, (20, 25), dtype, wishes))
    for dtype, fill in [("uint8", 255), ("int64", -(2**63)), ("float32", float("nan")), ("bool", True),
                        ("float64", float("-inf")), ("float16", 0.1), ("uint64", 2**64 - 1)]:
        path = os.path.join(top, f"fill-{dtype}")
        wrong.append(same(shardfs, path, (20, 25), dtype, {"chunk": (5, 4)},
                          fill=fill))
    for codecs in [["zstd:3"], ["gzip:6"], ["crc32c"], ["blosc:lz4:5:shuffle"], ["zstd:3", "crc32c"]]:
        path = os.path.join(top, "codec-" + "-".join(codecs).replace(":", ""))
        wrong.append(same(shardfs, path, (20, 25), "uint16", {"chunk": (5, 4), "shard": (10, 8)}, codecs))
    wrong.append(same(shardfs, os.path.join(top, "scalar"), (), "float32", {}))
    verdict("TensorStore makes the same of each data type, fill value and codec", [text for text in wrong if text])


def filled(shape):
    return (np.arange(np.prod(shape)) % 60000 + 1).astype("<u2").reshape(shape)


def fill(path):
    array = zarr.open_array(path, mode="r+")
    array[...] = filled(array.shape)


def check_filled(path):
    array = zarr.open_array(path, mode="r")
    want = filled(array.shape)
    assert (array[...] == want).all(), "zarr-python"
    assert (opened(path).read().result() == want).all(), "TensorStore"


def written(shardfs, top):
    wrong = []
    options = {
        "plain": [],
        "start": ["--index-location", "start"],
        "names": ["--dim-names", "y,x", "--attrs", '{"a": {"b": [1, null]}}', "--key-encoding", "v2"],
        "turned": ["--order", "F", "--codec", "zstd"],
        "dots": ["--separator", ".", "--codec", "gzip:1", "--codec", "crc32c"],
        "blosc": ["--codec", "blosc:zstd:5:bitshuffle", "--fill", "9"],
    }
    for name, more in options.items():
        path = os.path.join(top, f"written-{name}")
        made = run(shardfs, "create", path, "--shape", "40,30", "--dtype", "uint16", "--chunk", "4,5", "--shard",
                   "20,15", *more)
        try:
            assert made.returncode == 0, made.stderr
            empty = zarr.open_array(path, mode="r")
            assert (empty[...] == (9 if name == "blosc" else 0)).all(), "a new array is not empty"
            if name == "names":
                assert empty.metadata.dimension_names == ("y", "x"), empty.metadata
                assert dict(empty.attrs) == {"a": {"b": [1, None]}}, dict(empty.attrs)
            fill(path)
            check_filled(path)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__} {error}")
    verdict("zarr-python fills a new array, and reads it back; so does TensorStore", wrong)


def resized(shardfs, top):
    wrong = []
    for name, shard, codec in [("sharded", "20,15", "zstd"), ("plain", "4,5", "crc32c")]:
        path = os.path.join(top, f"resized-{name}")
        try:
            made = run(shardfs, "create", path, "--shape", "40,30", "--dtype", "uint16", "--chunk", "4,5", "--shard",
                       shard, "--codec", codec, "--fill", "7")
            assert made.returncode == 0, made.stderr
            fill(path)
            want = filled((40, 30))
            for shape in [(24, 20), (24, 40), (40, 30)]:
                done = run(shardfs, "resize", path, "--shape", listed(shape), "--json")
                assert done.returncode == 0, done.stderr
                # What lies outside is gone; chunks begin at multiples of 4 and 5.
                grown = np.full(shape, 7, "<u2")
                rows, columns = (min(a, b) for a, b in zip(shape, want.shape))
                grown[:rows, :columns] = want[:rows, :columns]
                want = grown
                array = zarr.open_array(path, mode="r")
                assert array.shape == shape, array.shape
                assert (array[...] == want).all(), f"zarr-python, {shape}"
                assert (opened(path).read().result() == want).all(), f"TensorStore, {shape}"
            # It can still be written.
            array = zarr.open_array(path, mode="r+")
            array[30:40, 25:30] = 5
            want[30:40, 25:30] = 5
            assert (opened(path).read().result() == want).all(), "written after it was resized"
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__} {error}")
    verdict("resized arrays: what is left is as it was, what is outside is gone, also when it grows again", wrong)


def main():
    job, *arguments = sys.argv[1:]
    if job == "arrays":
        for part in (layouts, contents, written, resized):
            part(*arguments)
    elif job == "fill":
        fill(*arguments)
    elif job == "filled":
        check_filled(*arguments)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
