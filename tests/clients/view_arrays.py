"""The arrays that views.sh makes, and what is written to them.  NumPy only: both environments import it."""
import numpy as np

# name: shape, inner chunk, shard (None: not sharded), data type, fill value, compressor, more
ARRAYS = {
    "i4_none": ((10, 7), (2, 3), (8, 6), "<i4", -1, "none", {"dims": ["y", "x"]}),
    "u2_zstd": ((9, 20, 13), (4, 5, 3), (8, 10, 9), "<u2", 0, "zstd",
                {"attributes": {"unit": "nm", "n": [1, 2.5, None]}}),
    "f8_gzip": ((23,), (4,), (8,), "<f8", float("nan"), "gzip", {}),
    "f4_blosc": ((16, 12), (4, 4), (8, 8), "<f4", 1.5, "blosc", {}),
    "u1_dot": ((6, 6, 6), (2, 3, 2), (4, 6, 4), "|u1", 0, "zstd", {"keys": ("v2", ".")}),
    "i2_flat_keys": ((12, 9), (5, 2), (10, 4), "<i2", 7, "gzip", {"keys": ("default", ".")}),
    "i8_big": ((5, 6), (2, 2), (4, 6), ">i8", 0, "none", {"big": True}),
    "bool": ((7, 7), (3, 2), (6, 4), "|b1", False, "none", {}),
    "c8": ((4, 5), (2, 2), (4, 4), "<c8", 0, "zstd", {}),
    "f_order": ((8, 10), (3, 4), (6, 8), "<u4", 0, "zstd", {"transpose": True}),
    "u8_all_ones": ((10,), (3,), (6,), "<u8", 2**64 - 1, "none", {}),
    "scalar": ((), (), None, "<f8", 0, "none", {}),
    "plain": ((11, 5), (4, 5), None, "<i4", 0, "zstd", {"dims": ["y", "x"]}),
    "empty": ((0, 5), (2, 2), (4, 4), "<i2", 0, "none", {}),
    "never": ((6, 6), (2, 2), (4, 4), "<u2", 5, "none", {}),
    "sub/deep/line": ((50,), (5,), (20,), "<i2", 0, "zstd", {}),
}
# 256 GiB in a whole file; three chunks exist.
HUGE = "huge"
HUGE_SHAPE, HUGE_CHUNK, HUGE_SHARD = (1 << 20, 1 << 17), (64, 64), (256, 256)
HUGE_BOXES = [((0, 64), (0, 64)), ((524288, 524352), (65536, 65600)),
              (((1 << 20) - 64, 1 << 20), ((1 << 17) - 64, 1 << 17))]
TEXT = [f"w{n}" + "é" * (n % 3) for n in range(20)]

# One group each, for a reader that opens a group or nothing.
NETCDF = {
    "none": ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"),
    "zstd": ("i4", "f8"),
    "blosc": ("u2", "f4"),
    "gzip": ("i4",),
}
NETCDF_SHAPES = {"line": ((17,), (4,), (8,)), "plane": ((7, 9), (3, 4), (6, 8)),
                 "volume": ((5, 6, 7), (2, 3, 4), (4, 6, 4))}
NETCDF_DIMS = {1: ["x"], 2: ["y", "x"], 3: ["z", "y", "x"]}


def values(name):
    """Some chunks hold fill values only, and do not exist."""
    shape, chunk, _, dtype, fill, _, _ = ARRAYS[name]
    dtype = np.dtype(dtype)
    if name == "never":
        return np.full(shape, fill, dtype)
    count = int(np.prod(shape))
    numbers = np.arange(1, count + 1).reshape(shape)
    if dtype.kind == "b":
        found = numbers % 3 == 0
    elif dtype.kind == "c":
        found = (numbers + 1j * numbers[..., ::-1]).astype(dtype)
    else:
        found = (numbers % 251 * (1.25 if dtype.kind == "f" else 1)).astype(dtype)
    if shape and count:
        # The second chunk along the first axis.
        found[chunk[0]:2 * chunk[0]] = fill
    return found


def huge_values(number):
    return (np.arange(64 * 64).reshape(64, 64) % 250 + number + 1).astype("<u2")


def netcdf_values(kind, dtype):
    shape, chunk, _ = NETCDF_SHAPES[kind]
    found = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)
    if np.dtype(dtype).kind == "f":
        found /= 8
    found[chunk[0]:2 * chunk[0]] = 0
    return found


def dataset_values():
    """name: dimensions, values, attributes"""
    temperature = (np.arange(6 * 20 * 30).reshape(6, 20, 30) / 16).astype("<f4")
    temperature[1:3, 4:12] = np.nan
    return {
        "temperature": (["time", "y", "x"], temperature, {"units": "K", "long_name": "temperature of the air"}),
        "mask": (["y", "x"], (np.arange(600).reshape(20, 30) % 7 == 0).astype("|i1"), {}),
        "time": (["time"], np.arange(6, dtype="<i8") * 2,
                 {"units": "days since 2000-01-01", "calendar": "proleptic_gregorian"}),
        "y": (["y"], np.linspace(0, 10, 20), {"units": "m"}),
        "x": (["x"], np.linspace(-3, 3, 30), {"units": "m"}),
    }


# --- writing through the view zarr2 ------------------------------------------------------------------

WRITTEN = ("i4_none", "u2_zstd", "f8_gzip", "f4_blosc", "u1_dot", "i2_flat_keys", "i8_big", "c8", "f_order", "plain")
RESIZED = "sub/deep/line"
RESIZED_TO, FILLED_FROM = 63, 48
ATTRIBUTES = {"title": "written", "numbers": [1, 2.5, None], "nested": {"a": {"b": []}}}


def parts(name):
    """(where, what) one after the other: one chunk, across chunks, an edge, and chunks that become empty."""
    shape, chunk, _, dtype, fill, _, _ = ARRAYS[name]
    boxes = [tuple(slice(0, c) for c in chunk),
             tuple(slice(c // 2, c // 2 + c) for c in chunk),
             tuple(slice(n - 1, n) for n in shape)]
    for number, box in enumerate(boxes):
        size = [len(range(*s.indices(n))) for s, n in zip(box, shape)]
        yield box, (np.arange(int(np.prod(size))).reshape(size) % 90 + 9 * number + 1).astype(dtype)
    row = min(2, -(-shape[0] // chunk[0]) - 1)
    box = (slice(row * chunk[0], min((row + 1) * chunk[0], shape[0])),)
    yield box, np.full((box[0].stop - box[0].start, *shape[1:]), fill, dtype)


def written(name):
    found = values(name)
    for where, what in parts(name):
        found[where] = what
    return found


def resized():
    found = np.zeros(RESIZED_TO, "<i2")
    found[:50] = values(RESIZED)
    found[FILLED_FROM:] = np.arange(FILLED_FROM, RESIZED_TO)
    return found
