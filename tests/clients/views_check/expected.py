"""What an array should be, from a manifest of the corpus or from its source."""
import json
import os
import random

import numpy as np

import cases
import view_arrays
from read_array import TensorStore, little_endian

from .files import sha256

# Sources of more bytes than this are compared in parts.
LARGE = 1 << 26
CORE = set("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
           "float16 float32 float64 complex64 complex128".split())
DECODED_CODECS = {"bytes", "endian", "transpose", "gzip", "zstd", "blosc", "crc32c"}


def numpy_dtype(data_type):
    """Little endian; None if NumPy has none of its own."""
    if isinstance(data_type, dict):
        kind = {"numpy.datetime64": "M8", "numpy.timedelta64": "m8"}.get(data_type["name"])
        if kind is None:
            return None
        configuration = data_type["configuration"]
        scale, unit = configuration.get("scale_factor", 1), configuration["unit"]
        return np.dtype(f"<{kind}" if unit == "generic" else f"<{kind}[{scale if scale != 1 else ''}{unit}]")
    return np.dtype(data_type).newbyteorder("<") if data_type in CORE else None


def fill_value(value, dtype):
    """As zarr.json has it."""
    if isinstance(value, list):
        part = np.dtype(f"<f{dtype.itemsize // 2}")
        return np.array([fill_value(v, part) for v in value], part).view(dtype)[0]
    if value is None:
        return np.zeros((), dtype)[()]
    if value == "NaN" and dtype.kind == "f":
        # The one that the specification names.
        bits = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}[dtype.itemsize]
        return np.array(bits, f"<u{dtype.itemsize}").view(dtype)[()]
    if isinstance(value, str) and value.startswith("0x"):
        return np.frombuffer(bytes.fromhex(value[2:])[::-1], dtype)[0]
    if value == "NaT":
        return np.array("NaT", dtype)[()]
    if isinstance(value, str):
        return dtype.type(value.replace("Infinity", "inf"))
    return np.array(value).astype(dtype)[()] if dtype.kind in "mM" else dtype.type(value)


def codec_names(codecs):
    return [c if isinstance(c, str) else c["name"] for c in codecs]


def split_codecs(metadata):
    """The chain of the unsharded array, nested sharding too."""
    codecs = list(metadata["codecs"])
    while "sharding_indexed" in codec_names(codecs):
        at = codec_names(codecs).index("sharding_indexed")
        codecs = codecs[:at] + codecs[at]["configuration"]["codecs"]
    return codecs


def has_v2_form(metadata):
    """Whether every way of writing it down as a v2 array knows: others may or may not be shown as such."""
    rank = len(metadata["shape"])
    kind = metadata["data_type"]
    if isinstance(kind, dict) or kind not in CORE or metadata["chunk_grid"]["name"] != "regular":
        return False
    codecs = split_codecs(metadata)
    names = codec_names(codecs)
    if names[:1] == ["transpose"]:
        order = codecs[0]["configuration"]["order"]
        if order not in (list(range(rank)), list(range(rank))[::-1], "C", "F"):
            return False
        names = names[1:]
    return names[:1] in (["bytes"], ["endian"]) and names[1:] in ([], ["gzip"], ["zstd"], ["blosc"])


class Expected:
    """One array: `present` and `absent` are {grid: row}, a row like those of the manifests."""

    def __init__(self, name, source, metadata, chunk_shape):
        self.name, self.source, self.metadata = name, source, metadata
        self.shape, self.chunk_shape = tuple(metadata["shape"]), tuple(chunk_shape)
        self.grid = tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape))
        self.data_type = metadata["data_type"]
        self.dtype = numpy_dtype(self.data_type)
        self.present, self.absent, self.open_question = {}, {}, set()
        self.absent_listed = True
        self.is_source = False
        self._array = None

    def why_hidden(self):
        """A reason not to show it decoded, and whether it must be hidden."""
        if self.data_type == "string" or self.data_type == "variable_length_bytes":
            return "values of variable length", True
        if self.dtype is None or isinstance(self.data_type, dict):
            return f"data type {self.data_type if isinstance(self.data_type, str) else self.data_type['name']}", False
        unknown = set(codec_names(split_codecs(self.metadata))) - DECODED_CODECS
        if unknown:
            return f"codec {', '.join(sorted(unknown))}", False
        if self.metadata["fill_value"] is None:
            return "fill_value null", False
        return None, False

    def key(self, grid):
        """In the unsharded Zarr v3 array."""
        encoding = self.metadata["chunk_key_encoding"]
        separator = separator_of(encoding)
        if encoding["name"] == "default":
            return separator.join(["c", *map(str, grid)])
        return separator.join(map(str, grid)) if grid else "0"

    def key2(self, grid):
        separator = separator_of(self.metadata["chunk_key_encoding"])
        return separator.join(map(str, grid)) if grid else "0"

    def clipped(self, grid):
        return tuple(min(c, n - i * c) for i, c, n in zip(grid, self.chunk_shape, self.shape))

    @property
    def array(self):
        if self._array is None:
            import zarr

            try:
                self._array = zarr.open_array(self.source, mode="r")
            except Exception:
                # It refuses some that are right.
                self._array = TensorStore(self.source)
        return self._array

    def region(self, grid):
        """A chunk without what is outside of the array, as bytes."""
        box = tuple(slice(i * c, i * c + n) for i, c, n in zip(grid, self.chunk_shape, self.clipped(grid)))
        return little_endian(self.array[box if box else ...])

    def fill(self, shape):
        return np.full(shape, fill_value(self.metadata["fill_value"], self.dtype), self.dtype).tobytes()


def separator_of(encoding):
    default = "/" if encoding["name"] == "default" else "."
    return (encoding.get("configuration") or {}).get("separator", default)


def from_manifest(path):
    with open(path) as f:
        manifest = json.load(f)
    level = manifest["levels"][-1]
    corpus = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(path))))
    source = os.path.join(corpus, manifest["store"], manifest["node"]).rstrip("/")
    expected = Expected(manifest["case"], source, level["view_metadata"], level["chunk_shape"])
    expected.absent_listed = level["absent_listed"]
    expected.is_source = not manifest["node"]
    for row in level["chunks"]:
        grid = tuple(row["grid"])
        if "accept" in row:
            expected.open_question.add(grid)
        elif row.get("beyond_grid"):
            continue
        elif row["present"]:
            expected.present[grid] = row
        else:
            expected.absent[grid] = row
    if not expected.absent_listed:
        # Some that are no neighbours of one another.
        numbers = random.Random(expected.name)
        for _ in range(20):
            grid = tuple(numbers.randrange(n) for n in expected.grid)
            if grid not in expected.present:
                expected.absent[grid] = {}
    expected.assembled = manifest["crosscheck"].get("assembled_sha256")
    expected.regions = cases.regions(manifest)
    return expected


def from_source(path):
    """The array must have been written without the chunks of fill values only, and with all others."""
    with open(os.path.join(path, "zarr.json")) as f:
        metadata = json.load(f)
    import zarr

    chunk_shape = zarr.open_array(path, mode="r").chunks
    expected = Expected(os.path.basename(path), path, metadata, chunk_shape)
    expected.assembled, expected.regions = None, None
    if expected.dtype is None:
        for grid in np.ndindex(*expected.grid):
            # Lengths and bytes: nothing but lengths of 0 is nothing at all.
            (expected.present if any(expected.region(grid)) else expected.absent)[grid] = {}
        return expected
    if np.prod(expected.shape, dtype=object) * expected.dtype.itemsize > LARGE:
        expected.absent_listed = False
        expected.regions = view_arrays.HUGE_BOXES
        for box in view_arrays.HUGE_BOXES:
            grid = tuple(start // c for (start, _), c in zip(box, chunk_shape))
            expected.present[grid] = {}
            expected.absent[tuple(i + 1 if i == 0 else i - 1 for i in grid)] = {}
        return expected
    for grid in np.ndindex(*expected.grid):
        found = expected.region(grid)
        rows = expected.absent if found == expected.fill(expected.clipped(grid)) else expected.present
        rows[grid] = {} if rows is expected.absent else {"decoded_sha256": sha256(padded(expected, grid, found))}
    return expected


def padded(expected, grid, clipped):
    """The whole chunk, of which `clipped` is in the array."""
    whole = np.frombuffer(expected.fill(expected.chunk_shape), expected.dtype).reshape(expected.chunk_shape).copy()
    part = np.frombuffer(clipped, expected.dtype).reshape(expected.clipped(grid))
    whole[tuple(slice(0, n) for n in part.shape)] = part
    return whole.tobytes()
