"""Frames of Blosc2, made by the library itself, and what a mount shows of them.

    blosc2_files.py make DIR              NAME.b2nd, and what the library reads from it: NAME.npy
    blosc2_files.py check [FRAME MOUNT]...
        of mounts with the views zarr3 and flat: each chunk file is the library's, and no other is there; and so is the array,
        if there is one beside the frame
"""

import os
import sys

import blosc2
import numpy as np

CODECS = "BLOSCLZ", "LZ4", "LZ4HC", "ZLIB", "ZSTD"
FILTERS = ("NOFILTER",), ("SHUFFLE",), ("BITSHUFFLE",), ("DELTA",), ("DELTA", "SHUFFLE"), ("TRUNC_PREC", "SHUFFLE")
# Data type, shape, chunk shape, block shape: blocks that do not divide chunks, chunks that do not divide arrays.
ARRAYS = (
    ("u1", (50,), (20,), (8,)),
    ("<u2", (33, 21), (16, 10), (7, 5)),
    ("<f4", (20, 20, 20), (11, 12, 13), (4, 5, 6)),
    ("<f8", (40, 50), (40, 50), (10, 10)),
    (">i4", (9, 9), (5, 5), (5, 5)),
    ("<c16", (12, 7), (6, 7), (3, 7)),
    ("<i8", (3000,), (1000,), (500,)),
)
numbers = np.random.default_rng(3)


def smooth(shape, dtype):
    return (np.cumsum(numbers.integers(0, 5, np.prod(shape, dtype=int))) % 250).astype(dtype).reshape(shape)


def make(directory):
    def store(name, array):
        np.save(os.path.join(directory, name + ".npy"), array[()] if array.ndim == 0 else array[:])

    def path(name):
        return {"urlpath": os.path.join(directory, name + ".b2nd"), "mode": "w"}

    for codec in CODECS:
        for filters in FILTERS:
            for dtype, shape, chunks, blocks in ARRAYS:
                if "TRUNC_PREC" in filters and "f" not in dtype:
                    continue
                name = f"{codec}-{'-'.join(filters)}-{np.dtype(dtype).name}"
                parameters = {
                    "codec": blosc2.Codec[codec],
                    "filters": [blosc2.Filter[name] for name in filters],
                    "filters_meta": [10 if name == "TRUNC_PREC" else 0 for name in filters],
                }
                store(name, blosc2.asarray(smooth(shape, dtype), chunks=chunks, blocks=blocks, cparams=parameters, **path(name)))
    grid = {"chunks": (10, 20), "blocks": (5, 10)}
    store("stored", blosc2.asarray(smooth((30, 40), "<f4"), cparams={"clevel": 0}, **grid, **path("stored")))
    mixed = smooth((30, 40), "<f4")
    mixed[:10], mixed[10:20, 20:] = 7, 0
    mixed = blosc2.asarray(mixed, **grid, **path("mixed"))
    mixed.vlmeta["who"] = {"name": "me", "list": [1, 2.5, None, True]}
    mixed.vlmeta["n"] = 5
    store("mixed", mixed)
    updated = blosc2.asarray(smooth((30, 40), "<i4"), **grid, **path("updated"))
    updated[5:25, 10:35] = numbers.integers(0, 1 << 30, (20, 25))
    store("updated", updated)
    store("zeros", blosc2.zeros((30, 40), dtype="<f8", **grid, **path("zeros")))
    store("full", blosc2.full((30, 40), 5.5, dtype="<f8", **grid, **path("full")))
    nans = blosc2.nans((30, 40), dtype="<f4", **grid, **path("nans"))
    nans[:10, :20] = 3
    store("nans", nans)
    new = blosc2.uninit((30, 40), dtype="<i4", **grid, **path("new"))
    new[:10] = 1
    store("scalar", blosc2.asarray(np.array(3.5), **path("scalar")))
    # Arrays whose items are those of others.
    carrier = os.path.join(directory, "carrier-")
    one = blosc2.asarray(np.arange(100.0).reshape(10, 10), chunks=(2, 10), **path("one"))
    proxy = blosc2.Proxy(one, urlpath=carrier + "proxy.b2nd", mode="w")
    proxy[0:2, 0:3]
    (one + one * 3).save(urlpath=carrier + "lazy.b2nd")
    records = np.zeros(10, dtype=[("a", "<i4"), ("b", "<f8")])
    blosc2.asarray(records, **path("records"))
    plain = {"urlpath": os.path.join(directory, "plain.b2frame"), "mode": "w", "cparams": {"typesize": 1}}
    blosc2.SChunk(chunksize=1000, data=bytes(range(256)) * 20, **plain)


def chunks(frame, view):
    array = blosc2.open(frame)
    schunk = getattr(array, "schunk", array)
    grid = [-(-extent // chunk) for extent, chunk in zip(array.shape, array.chunks)] if schunk is not array else [schunk.nchunks]
    shown = {
        os.path.relpath(os.path.join(where, name), os.path.join(view, "c"))
        for where, _, names in os.walk(os.path.join(view, "c"))
        for name in names
    }
    for number, coords in enumerate(np.ndindex(*grid)):
        key = "/".join(map(str, coords))
        special = next(item for item in schunk.iterchunks_info() if item.nchunk == number).special
        if special in (blosc2.SpecialValue.ZERO, blosc2.SpecialValue.NAN, blosc2.SpecialValue.UNINIT):
            assert key not in shown, f"{key} is there, {special}"
            continue
        # Of an array without axes the one chunk is called c.
        with open(os.path.join(view, "c", key) if key else os.path.join(view, "c"), "rb") as file:
            content = file.read()
        assert content == schunk.get_chunk(number), key
        assert blosc2.decompress2(content) == schunk.decompress_chunk(number), key
        shown.discard(key)
    assert not shown, shown


def check(*pairs):
    for frame, mount in zip(pairs[::2], pairs[1::2]):
        chunks(frame, os.path.join(mount, "zarr3"))
        expected = os.path.splitext(frame)[0] + ".npy"
        # Of some the library alone knows the data type.
        if os.path.exists(expected):
            array(expected, os.path.join(mount, "flat", "array.npy"))


def array(expected, shown):
    expected, shown = np.load(expected), np.load(shown, mmap_mode="r")
    np.testing.assert_array_equal(shown, expected)
    assert shown.dtype.kind == expected.dtype.kind and shown.shape == expected.shape, (shown.dtype, expected.dtype)


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
