#!/usr/bin/env python3
"""Compares views of `shardfs mount --view` with the source.  Runs with zarr-python 3, TensorStore and NumPy.

One array (exit code 1 and one line for each difference, or one line "ok"):

    views_check.py decoded EXPECTED ARRAY --form zarr2|npy|raw [options]
    views_check.py flat SOURCE ARRAY [--endian big]

EXPECTED is a manifest of the corpus, or the directory of the array in its source.  ARRAY is the array's directory in
the view.  The options are those of the mount: --endian little|big, --edge full|clip, --missing absent|fill.

Many at once (a line "ok ...", "FAIL ..." or "skipped: ..." for each):

    views_check.py corpus CORPUS VIEWS --form zarr2|npy|raw|flat [options]   VIEWS: lines "store<TAB>directory"
    views_check.py made SOURCE VIEW --form zarr2|npy|raw|flat [options]      the arrays of `make`
    views_check.py jobs CORPUS VIEWS OUT                                     what zarr2_read.py reads of the corpus
    views_check.py made-jobs SOURCE VIEW OUT                                 and of the arrays of `make`

Arrays to look at, and to write to in views_write.py:

    views_check.py make DIR            arrays.zarr, huge.zarr, netcdf.zarr, dataset.zarr
    views_check.py same ZARR3 ZARR2    the chunk files of the two views are equal, byte for byte
"""
import argparse
import glob
import hashlib
import json
import os
import random
import sys
import warnings

import numpy as np

import cases
import view_arrays
from read_array import TensorStore, little_endian

warnings.simplefilter("ignore")

# Files longer than this are read in parts.
LARGE = 1 << 26
# What lseek reaches.
LONGEST = (1 << 63) - 1
CORE = set("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
           "float16 float32 float64 complex64 complex128".split())
DECODED_CODECS = {"bytes", "endian", "transpose", "gzip", "zstd", "blosc", "crc32c"}
METADATA = {"npy": "array.json", "raw": "array.json", "flat": "array.json"}


class Differences(Exception):
    """What is wrong with one array."""

    def __init__(self, found):
        super().__init__(f"{'; '.join(found[:6])}{f' ... {len(found)} differences' if len(found) > 6 else ''}")
        self.found = found


class Skipped(Exception):
    """Why an array need not be in the view."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def first_difference(got, want):
    """The same bytes?  Nothing, or where they differ."""
    if got == want:
        return None
    if len(got) != len(want):
        return f"{len(got)} bytes, expected {len(want)}"
    a, b = np.frombuffer(got, "u1"), np.frombuffer(want, "u1")
    where = np.flatnonzero(a != b)
    return f"byte {where[0]} is {a[where[0]]:#04x}, expected {b[where[0]]:#04x} ({len(where)} differ)"


# --- what an array should be --------------------------------------------------------------------------


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
    """Whoever wrote it left out all chunks of fill values only, and no others."""
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


# --- files of one array --------------------------------------------------------------------------------


def listed(top):
    """Files below a directory, hidden ones too."""
    found, waiting = [], [""]
    while waiting:
        base, names = waiting.pop(), set()
        with os.scandir(os.path.join(top, base)) as entries:
            for entry in entries:
                if entry.name in names:
                    # Perhaps without end.
                    raise Differences([f"{base or '.'}: {entry.name} is listed twice"])
                names.add(entry.name)
                path = os.path.join(base, entry.name)
                (waiting if entry.is_dir(follow_symlinks=False) else found).append(path)
        if not names and base:
            found.append(base + "/ (an empty directory)")
    return sorted(found)


def read_file(path):
    """All of it, if its size and reads at odd places agree."""
    size = os.stat(path).st_size
    with open(path, "rb", buffering=0) as f:
        data = bytearray()
        while part := f.read(1 << 16):
            data += part
        data = bytes(data)
        if len(data) != size:
            raise Differences([f"stat says {size} bytes, {len(data)} were read"])
        for offset, count in ((len(data) // 2, 7), (max(0, len(data) - 3), 10), (len(data), 5), (len(data) + 4096, 5),
                              (1, 1), (61, 9), (127, 130), (4095, 3)):
            got = os.pread(f.fileno(), count, offset)
            if got != data[offset:offset + count]:
                raise Differences([f"pread({count}, {offset}) gave {got!r}, expected {data[offset:offset + count]!r}"])
    return data


def npy_problem(path, data, shape, dtype):
    """Header and shape, as they are written and as NumPy reads them; nothing if all is right."""
    if data[:6] != b"\x93NUMPY" or data[6:8] not in (b"\x01\x00", b"\x02\x00"):
        return f"begins with {data[:8]!r}"
    length, start = (int.from_bytes(data[8:10], "little"), 10) if data[6] == 1 else \
        (int.from_bytes(data[8:12], "little"), 12)
    if (start + length) % 64 or data[start + length - 1:start + length] != b"\n":
        return f"header of {start + length} bytes is not filled up to 64 bytes and a line end"
    for how in ({}, {"mmap_mode": "r"}):
        if how and 0 in shape:
            continue
        found = np.load(path, allow_pickle=False, **how)
        words = "with mmap_mode='r' " if how else ""
        if found.shape != shape:
            return f"{words}shape {found.shape}, expected {shape}"
        if dtype is not None and found.dtype != dtype:
            return f"{words}dtype {found.dtype.str}, expected {dtype.str}"
        if not found.flags.c_contiguous:
            return f"{words}in Fortran order"
        if found.tobytes() != data[start + length:]:
            return f"{words}other values than in the file"
        del found
    return None


def swapped(data, dtype):
    """Big endian bytes as little endian ones."""
    return np.frombuffer(data, dtype.newbyteorder(">")).astype(dtype).tobytes()


def in_order(dtype, endian):
    return dtype.newbyteorder(">" if endian == "big" else "<")


def chunk_problem(path, expected, grid, row, options):
    """What is wrong with the file of one chunk; `row` is None where it should be full of fill values."""
    try:
        return difference_in_chunk(path, expected, grid, row, options)
    except Differences as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except Exception as error:  # NumPy refuses it
        return f"{type(error).__name__}: {error}"


def difference_in_chunk(path, expected, grid, row, options):
    form, data = options.form, read_file(path)
    if form == "zarr2":
        if "sha256" in row and sha256(data) != row["sha256"]:
            return f"{len(data)} bytes are not the {row['nbytes']} encoded ones (sha256 {sha256(data)[:16]})"
        return None
    clipped = expected.clipped(grid)
    shape = clipped if options.edge == "clip" else expected.chunk_shape
    dtype = expected.dtype
    if form == "npy":
        problem = npy_problem(path, data, shape, dtype and in_order(dtype, options.endian))
        if problem:
            return problem
        start = 10 if data[6] == 1 else 12
        data = data[start + int.from_bytes(data[8:start], "little"):]
    if dtype is not None:
        if len(data) != np.prod(shape, dtype=int) * dtype.itemsize:
            return f"{len(data)} bytes of values, expected {np.prod(shape, dtype=int) * dtype.itemsize}"
        if options.endian == "big" and dtype.kind == "c":
            data = swapped(data, np.dtype(f"<f{dtype.itemsize // 2}"))
        elif options.endian == "big":
            data = swapped(data, dtype)
    elif options.endian == "big" and expected.data_type == "bfloat16":
        data = swapped(data, np.dtype("<u2"))
    if row is None:
        return first_difference(data, expected.fill(shape))
    if shape == expected.chunk_shape:
        if "decoded_sha256" in row:
            return None if sha256(data) == row["decoded_sha256"] else \
                f"other values (sha256 {sha256(data)[:16]}, expected {row['decoded_sha256'][:16]})" + where(
                    data, expected, grid, shape)
    if expected.metadata["fill_value"] is None:
        # Nobody reads the source.
        return None
    return first_difference(data, expected.region(grid))


def where(data, expected, grid, shape):
    """Which value is the first that is different, as the source is read."""
    try:
        part = np.frombuffer(data, expected.dtype).reshape(shape)[tuple(slice(0, n) for n in expected.clipped(grid))]
        want = np.frombuffer(expected.region(grid), expected.dtype).reshape(part.shape)
        bits = f"V{expected.dtype.itemsize}"
        differ = np.argwhere(np.ascontiguousarray(part).view(bits) != want.view(bits))
        if not len(differ):
            return ": outside of the array"
        at = tuple(map(int, differ[0]))
        return f": {part[at]!r} at {at}, the source has {want[at]!r}"
    except Exception:  # only words
        return ""


def compare_metadata(got, want):
    """array.json and the unsharded twin, nothing else than members that say nothing apart."""
    def plain(value):
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()
                    if not (k in ("configuration", "storage_transformers", "attributes") and not v)}
        return [plain(v) for v in value] if isinstance(value, list) else value

    def codecs(value):
        # "endian" is an older name.
        return [plain({**c, "name": c["name"].replace("endian", "bytes")} if isinstance(c, dict) else {"name": c})
                for c in value]

    for member in sorted(set(got) | set(want)):
        a, b = (codecs(d.get(member) or []) if member == "codecs" else plain(d.get(member)) for d in (got, want))
        if (a or b) and json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            yield f"{member}: {json.dumps(a)[:120]}, expected {json.dumps(b)[:120]}"


def metadata_problems(expected, top, form):
    path = os.path.join(top, METADATA[form])
    try:
        with open(path) as f:
            got = json.load(f)
    except (OSError, ValueError) as error:
        return [f"{METADATA[form]}: {error}"]
    want = dict(expected.metadata, codecs=split_codecs(expected.metadata))
    want["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(expected.chunk_shape)}}
    return [f"{METADATA[form]}: {words}" for words in compare_metadata(got, want)]


def zarr2_problems(expected, top):
    """Is it there as a v2 array?  Raises Skipped if it is there as it is stored, and may be."""
    files = os.listdir(top)
    if ".zarray" not in files and not has_v2_form(expected.metadata) and "zarr.json" in files:
        theirs, ours = listed(top), listed(expected.source)
        if theirs != ours:
            return [f"neither v2 nor as stored: {sorted(set(theirs) ^ set(ours))[:5]}"]
        for name in ours:
            with open(os.path.join(top, name), "rb") as a, open(os.path.join(expected.source, name), "rb") as b:
                if a.read() != b.read():
                    return [f"{name}: not as it is stored"]
        raise Skipped(f"shown as stored: {', '.join(codec_names(split_codecs(expected.metadata)))} "
                      f"of {expected.data_type if isinstance(expected.data_type, str) else expected.data_type['name']}")
    if ".zarray" not in files:
        return ["no .zarray"]
    with open(os.path.join(top, ".zarray")) as f:
        document = json.load(f)
    want = {"zarr_format": 2, "shape": list(expected.shape), "chunks": list(expected.chunk_shape)}
    problems = [f".zarray: {k} is {document.get(k)}, expected {v}"
                for k, v in want.items() if document.get(k) != v]
    separator = separator_of(expected.metadata["chunk_key_encoding"])
    if document.get("dimension_separator", ".") != separator:
        problems.append(f".zarray: dimension_separator is {document.get('dimension_separator')!r}, "
                        f"expected {separator!r}")
    for member in ("compressor", "fill_value", "order", "filters", "dtype"):
        if member not in document:
            problems.append(f".zarray: no {member}")
    return problems


def is_filled2(metadata, top):
    """Whether the view zarr2 shows every chunk: the fill value of an array whose dimensions have names is null."""
    try:
        with open(os.path.join(top, ".zarray")) as f:
            document = json.load(f)
    except OSError:
        return False
    named = metadata.get("dimension_names") is not None or not metadata["shape"]
    return named and document["fill_value"] is None and metadata["fill_value"] is not None


def is_hidden(expected, top):
    """The source itself must be shown as something."""
    return not os.path.lexists(top) or expected.is_source and not listed(top)


def check_decoded(expected, top, options):
    """Raises Differences or Skipped; says how many chunks are right."""
    form = options.form
    reason, must = expected.why_hidden()
    problems = []
    if form == "zarr2":
        # What is stored otherwise is compared as a whole.
        problems = zarr2_problems(expected, top)
    elif reason and is_hidden(expected, top):
        raise Skipped(f"not shown: {reason}")
    elif must:
        raise Differences([f"is shown, but cannot be decoded: {reason}"])
    elif not os.path.isdir(top):
        raise Differences(["is not shown"])
    else:
        problems = metadata_problems(expected, top, form)

    def name(grid):
        return expected.key2(grid) if form == "zarr2" else f"{expected.key(grid)}.{form}"

    rows = dict(expected.present)
    if options.missing == "fill" and form != "zarr2":
        rows |= {grid: None for grid in expected.absent}
    files = {name(grid): (grid, row) for grid, row in rows.items()}
    either = {name(grid) for grid in expected.open_question}
    filled2 = form == "zarr2" and is_filled2(expected.metadata, top)
    if filled2:
        either |= {name(grid) for grid in expected.absent}
    if expected.absent_listed or options.missing == "absent":
        extra = {".zarray", ".zattrs"} if form == "zarr2" else {METADATA[form]}
        found = set(listed(top)) - either - extra
        problems += [f"{n}: listed, but should not be" for n in sorted(found - set(files))]
        problems += [f"{n}: not listed" for n in sorted(set(files) - found)]
    for file, (grid, row) in sorted(files.items()):
        problem = chunk_problem(os.path.join(top, file), expected, grid, row, options)
        if problem:
            problems.append(f"{file}: {problem}")
    if filled2:
        problems += [f"{name(grid)}: is not there" for grid in list(expected.absent)[:2000]
                     if not os.path.lexists(os.path.join(top, name(grid)))]
    elif options.missing == "absent" or form == "zarr2":
        for grid in list(expected.absent)[:2000]:
            if os.path.lexists(os.path.join(top, name(grid))):
                problems.append(f"{name(grid)}: is there, but is empty in the source")
    # Beyond the array there is nothing, whatever is filled.
    for axis in range(len(expected.grid)):
        grid = tuple(n if i == axis else 0 for i, n in enumerate(expected.grid))
        if os.path.lexists(os.path.join(top, name(grid))):
            problems.append(f"{name(grid)}: is there, but outside of the array")
    if problems:
        raise Differences(problems)
    return f"{len(files)} chunks"


# --- whole arrays in one file --------------------------------------------------------------------------

METAIMAGE = {"i1": "MET_CHAR", "u1": "MET_UCHAR", "i2": "MET_SHORT", "u2": "MET_USHORT", "i4": "MET_INT",
             "u4": "MET_UINT", "i8": "MET_LONG_LONG", "u8": "MET_ULONG_LONG",
             "f4": "MET_FLOAT", "f8": "MET_DOUBLE", "b1": "MET_UCHAR"}
NRRD = {
    "i1": ("int8", "int8_t", "signed char"), "u1": ("uint8", "uint8_t", "uchar", "unsigned char"),
    "i2": ("int16", "int16_t", "short", "signed short"), "u2": ("uint16", "uint16_t", "ushort", "unsigned short"),
    "i4": ("int32", "int32_t", "int", "signed int"), "u4": ("uint32", "uint32_t", "uint", "unsigned int"),
    "i8": ("int64", "int64_t", "longlong", "long long"),
    "u8": ("uint64", "uint64_t", "ulonglong", "unsigned long long"),
    "f4": ("float",), "f8": ("double",), "b1": ("uint8", "uint8_t", "uchar", "unsigned char"),
}


def metaimage_problems(path, shape, dtype, endian):
    with open(path) as f:
        lines = [line.split("=", 1) for line in f.read().splitlines() if line.strip()]
    if any(len(line) != 2 for line in lines):
        return ["a line without '='"]
    header = {key.strip(): value.strip() for key, value in lines}
    true = header.get("BinaryDataByteOrderMSB", header.get("ElementByteOrderMSB", "False")).lower() == "true"
    want = {"ObjectType": "Image", "NDims": str(len(shape)), "DimSize": " ".join(map(str, shape[::-1])),
            "ElementType": METAIMAGE[dtype.str[1:]], "ElementDataFile": "array.raw"}
    found = [f"{key} is {header.get(key)!r}, expected {value!r}"
             for key, value in want.items() if header.get(key) != value]
    if lines[-1][0].strip() != "ElementDataFile":
        found.append("ElementDataFile is not the last line")
    if dtype.itemsize > 1 and true != (endian == "big"):
        found.append(f"the byte order is {'big' if true else 'little'}")
    if header.get("CompressedData", "False").lower() != "false":
        found.append("CompressedData")
    if header.get("ElementNumberOfChannels", "1") != "1" or header.get("HeaderSize", "0") != "0":
        found.append("channels or a header that are not there")
    return found


def nrrd_problems(path, shape, dtype, endian):
    with open(path) as f:
        lines = f.read().splitlines()
    if not lines or not lines[0].startswith("NRRD000"):
        return [f"begins with {lines[:1]}"]
    fields = {}
    for line in lines[1:]:
        if line and not line.startswith("#") and ":=" not in line:
            key, _, value = line.partition(":")
            fields[key.strip().lower()] = value.strip()
    found = []
    if fields.get("type") not in NRRD[dtype.str[1:]]:
        found.append(f"type is {fields.get('type')!r}, expected {NRRD[dtype.str[1:]][0]!r}")
    want = {"dimension": str(len(shape)), "sizes": " ".join(map(str, shape[::-1])), "encoding": "raw"}
    if dtype.itemsize > 1:
        want["endian"] = endian
    found += [f"{key} is {fields.get(key)!r}, expected {value!r}"
              for key, value in want.items() if fields.get(key) != value]
    if fields.get("data file", fields.get("datafile")) != "array.raw":
        found.append(f"data file is {fields.get('data file', fields.get('datafile'))!r}, expected 'array.raw'")
    return found


def check_flat(expected, top, options):
    reason, must = expected.why_hidden()
    if reason and is_hidden(expected, top):
        raise Skipped(f"not shown: {reason}")
    if must:
        raise Differences([f"is shown, but cannot be decoded: {reason}"])
    if not os.path.isdir(top):
        raise Differences(["is not shown"])
    shape, dtype = expected.shape, expected.dtype
    count = int(np.prod(shape, dtype=object))
    found = listed(top)
    itemsize = dtype.itemsize if dtype is not None else 1
    if count * itemsize > LONGEST:
        if set(found) & {"array.npy", "array.raw"}:
            raise Differences([f"{count * itemsize} bytes are in no file: {found}"])
        raise Skipped(f"no file is as long as {count * itemsize} bytes")
    problems = metadata_problems(expected, top, "flat")
    headers = dtype is not None and dtype.str[1:] in METAIMAGE and 0 not in shape and shape != ()
    want = {"array.json", "array.npy", "array.raw"} | ({"array.mhd", "array.nhdr"} if headers else set())
    problems += [f"{name}: not listed" for name in sorted(want - set(found))]
    # Where the formats have no such type or shape, whether there is a header is not for us to say.
    problems += [f"{name}: listed, but should not be"
                 for name in found if name not in want | {"array.mhd", "array.nhdr"}]
    if problems:
        raise Differences(problems)
    if headers:
        for name, check in (("array.mhd", metaimage_problems), ("array.nhdr", nrrd_problems)):
            problems += [f"{name}: {words}" for words in check(os.path.join(top, name), shape, dtype, options.endian)]
    if dtype is not None:
        problems += flat_values(expected, top, in_order(dtype, options.endian), count)
    elif expected.assembled and sha256(read_file(os.path.join(top, "array.raw"))) != expected.assembled:
        problems.append("array.raw: other values")
    for name in ("array.npy", "array.raw"):
        if name in found and writable(os.path.join(top, name)):
            problems.append(f"{name}: can be opened for writing")
    if problems:
        raise Differences(problems)
    return f"{count} values"


def writable(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except OSError:
        return False


def flat_values(expected, top, dtype, count):
    """Both files: all values if they are not too many, and slices of them."""
    shape, problems = expected.shape, []
    npy, raw = os.path.join(top, "array.npy"), os.path.join(top, "array.raw")
    if os.stat(raw).st_size != count * dtype.itemsize:
        return [f"array.raw: {os.stat(raw).st_size} bytes, expected {count * dtype.itemsize}"]
    if not count:
        found = np.load(npy, allow_pickle=False)
        if found.shape != shape or found.dtype != dtype or read_file(raw):
            problems.append(f"array.npy: {found.shape} {found.dtype.str}, expected {shape} {dtype.str}")
        return problems
    little = expected.dtype
    boxes = expected.regions
    if boxes is None:
        data = read_file(npy)
        problem = npy_problem(npy, data, shape, dtype)
        if problem:
            return [f"array.npy: {problem}"]
        try:
            values = np.asarray(expected.array[...]).astype(little).reshape(shape)
        except Exception as error:  # zarr-python does not read it
            plain = little_endian(np.load(npy))
            if sha256(plain) != expected.assembled:
                problems.append(f"array.npy: other values ({type(error).__name__} when the source was read)")
            return problems
        want = values.astype(dtype).tobytes()
        for name, got in (("array.npy", data[len(data) - len(want):]), ("array.raw", read_file(raw))):
            problem = first_difference(got, want)
            if problem:
                problems.append(f"{name}: {problem}")

        def region(box):
            return values[box]
    else:
        def region(box):
            # A step from the end is not for every reader.
            backwards = tuple(slice(None, None, -1) if s.step and s.step < 0 else slice(None) for s in box)
            forwards = tuple(slice(r[0], r[-1] + 1, r.step) if (r := sorted_range(s, n)) else slice(0, 0)
                             for s, n in zip(box, shape))
            return np.asarray(expected.array[forwards]).astype(little)[backwards]

    mapped = {"array.npy": np.load(npy, mmap_mode="r", allow_pickle=False),
              "array.raw": np.memmap(raw, dtype, "r", shape=shape)}
    numbers = random.Random(expected.name)
    slices = [tuple(slice(a, b) for a, b in box) for box in boxes or []]
    for _ in range(20):
        slices.append(tuple(random_slice(numbers, n, boxes is not None) for n in shape))
    for name, found in mapped.items():
        if found.shape != shape or found.dtype != dtype:
            problems.append(f"{name}: {found.shape} {found.dtype.str}, expected {shape} {dtype.str}")
            continue
        for box in slices if shape else []:
            problem = first_difference(np.ascontiguousarray(found[box]).astype(little).tobytes(),
                                       np.ascontiguousarray(region(box)).astype(little).tobytes())
            if problem:
                problems.append(f"{name}[{', '.join(f'{s.start}:{s.stop}:{s.step}' for s in box)}]: {problem}")
                break
    return problems


def sorted_range(one, length):
    found = range(*one.indices(length))
    return found if found.step > 0 else found[::-1]


def random_slice(numbers, length, small):
    start, step = numbers.randrange(length), numbers.choice((1, 1, 2, 3, 7))
    stop = min(length, start + 40 * step) if small else numbers.randrange(start, length) + 1
    if numbers.randrange(4) or not start:
        return slice(start, stop, step)
    return slice(stop - 1, start - 1, -step)


# --- many arrays ---------------------------------------------------------------------------------------


def attempt(name, work, *arguments):
    try:
        words = work(*arguments)
        print("ok", f"{name}: {words}" if words else name, flush=True)
    except Skipped as reason:
        print("skipped:", f"{name}: {reason}", flush=True)
    except Exception as error:
        words = str(error) if isinstance(error, (Differences, AssertionError)) and str(error) else \
            f"{type(error).__name__}: {error} (line {line_of(error)})"
        print("FAIL", f"{name}: {' '.join(words.split())[:900]}", flush=True)


def line_of(error):
    found, trace = 0, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == __file__:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def check(expected, top, options):
    return (check_flat if options.form == "flat" else check_decoded)(expected, top, options)


def views_of(path):
    with open(path) as f:
        return dict(line.rstrip("\n").split("\t") for line in f)


def manifest_paths(corpus):
    for family in cases.PUBLIC:
        for path in sorted(glob.glob(os.path.join(corpus, "manifests", family, "*.json"))):
            with open(path) as f:
                manifest = json.load(f)
            yield path, manifest["store"], manifest["node"]


def title(options):
    said = [v for v in (options.endian, options.edge, options.missing) if v in ("big", "clip", "fill")]
    return " ".join([options.form, *said])


def corpus(options):
    views = views_of(options.views)
    for path, store, node in manifest_paths(options.corpus):
        # A store that could not be mounted has been reported.
        if store not in views:
            continue

        def work(path=path, store=store, node=node):
            return check(from_manifest(path), os.path.join(views[store], node).rstrip("/"), options)

        attempt(f"{title(options)} {os.path.relpath(path, os.path.join(options.corpus, 'manifests'))[:-5]}", work)


def made_names(source):
    # The hidden one is a journal, if there is any.
    for base, directories, files in os.walk(source):
        directories[:] = sorted(d for d in directories if not d.startswith("."))
        if "zarr.json" in files:
            with open(os.path.join(base, "zarr.json")) as f:
                if json.load(f)["node_type"] == "array":
                    directories[:] = []
                    yield os.path.relpath(base, source)


def made(options):
    for name in made_names(options.source):
        def work(name=name):
            top = os.path.normpath(os.path.join(options.view, name))
            return check(from_source(os.path.normpath(os.path.join(options.source, name))), top, options)

        attempt(f"{title(options)} {name}", work)


# --- what zarr 2 should read ------------------------------------------------------------------------------


def source_digest(expected, dump):
    """Of all values, or of some boxes; as zarr-python 3 reads them, or as the corpus has them.  Values that it has
    read go into the file `dump`, for better words."""
    try:
        if expected.regions is None:
            values = np.asarray(expected.array[...])
            if values.dtype.kind not in "OTU":
                np.save(dump, values)
            return sha256(little_endian(values))
        digest = hashlib.sha256()
        for box in expected.regions:
            digest.update(little_endian(expected.array[tuple(slice(a, b) for a, b in box)]))
        return digest.hexdigest()
    except Exception:
        if expected.assembled is None:
            raise
        return expected.assembled


def job(name, expected, path, out, number):
    try:
        return described(name, expected, path, out, number)
    except Exception as error:
        return {"id": name, "unread": f"nobody reads the source: {type(error).__name__}: {error}"[:200]}


def described(name, expected, path, out, number):
    dump = f"{out}.{number}.npy"
    metadata = expected.metadata
    dims = metadata.get("dimension_names") or []
    fill = None
    if expected.dtype is not None and metadata["fill_value"] is not None:
        fill = expected.fill(()).hex()
    return {"id": name, "path": path, "regions": expected.regions,
            "sha256": source_digest(expected, dump), "dump": dump,
            "shape": expected.shape, "chunks": expected.chunk_shape,
            "fill": fill, "fill_is_null": metadata["fill_value"] is None,
            "attributes": metadata.get("attributes") or {},
            "dimensions": dims if dims and all(isinstance(d, str) for d in dims) else None,
            "must": has_v2_form(metadata)}


def groups_of(source, view):
    for base, directories, files in os.walk(source):
        if "zarr.json" in files:
            with open(os.path.join(base, "zarr.json")) as f:
                document = json.load(f)
            if document["node_type"] == "group":
                inside = os.path.relpath(base, source)
                yield {"id": f"group {os.path.basename(source)}/{'' if inside == '.' else inside}",
                       "group": os.path.normpath(os.path.join(view, inside)),
                       "attributes": document.get("attributes") or {},
                       "consolidated": document.get("consolidated_metadata") is not None}
            else:
                directories.clear()


def write_jobs(lines, out):
    with open(out, "w") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def jobs(options):
    views, lines = views_of(options.views), []
    for number, (path, store, node) in enumerate(manifest_paths(options.corpus)):
        expected = from_manifest(path)
        if store in views:
            top = os.path.join(views[store], node).rstrip("/")
            lines.append(job(expected.name, expected, top, options.out, number))
    for store, view in views.items():
        lines += groups_of(os.path.join(options.corpus, store), view)
    write_jobs(lines, options.out)


def made_jobs(options):
    lines = []
    for number, name in enumerate(made_names(options.source)):
        path = os.path.normpath(os.path.join(options.source, name))
        lines.append(job(f"{os.path.basename(options.source)}/{name}", from_source(path),
                         os.path.normpath(os.path.join(options.view, name)), options.out, number))
    write_jobs(lines + list(groups_of(options.source, options.view)), options.out)


# --- arrays made here --------------------------------------------------------------------------------------


def create(group, name, shape, chunk, shard, dtype, fill, compressor, dims=None, attributes=None,
           keys=("default", "/"), big=False, transpose=False):
    from zarr import codecs

    compressors = {"none": None, "zstd": codecs.ZstdCodec(level=3), "gzip": codecs.GzipCodec(level=1),
                   "blosc": codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")}[compressor]
    filters = codecs.TransposeCodec(order=tuple(range(len(shape)))[::-1]) if transpose else None
    serializer = codecs.BytesCodec(endian="big") if big else "auto"
    return group.create_array(
        name, shape=shape, chunks=chunk, shards=shard, dtype=dtype, fill_value=fill, compressors=compressors,
        filters=filters, serializer=serializer, dimension_names=dims, attributes=attributes,
        chunk_key_encoding={"name": keys[0], "separator": keys[1]})


def make(options):
    import zarr

    os.makedirs(options.dir, exist_ok=True)
    group = zarr.create_group(os.path.join(options.dir, "arrays.zarr"), attributes={"title": "made", "list": [1, "é"]})
    group.create_group("sub", attributes={"part": True}).create_group("deep")
    for name, (shape, chunk, shard, dtype, fill, compressor, more) in view_arrays.ARRAYS.items():
        array = create(group, name, shape, chunk, shard, dtype, fill, compressor, **more)
        if 0 not in shape:
            array[...] = view_arrays.values(name)
    text = group.create_array("text", shape=(20,), chunks=(3,), shards=(6,), dtype=str)
    text[...] = np.array(view_arrays.TEXT, dtype=object)
    zarr.consolidate_metadata(os.path.join(options.dir, "arrays.zarr"))

    huge = zarr.create_array(
        os.path.join(options.dir, "huge.zarr"), shape=view_arrays.HUGE_SHAPE, chunks=view_arrays.HUGE_CHUNK,
        shards=view_arrays.HUGE_SHARD, dtype="<u2", fill_value=9)
    for number, box in enumerate(view_arrays.HUGE_BOXES):
        huge[tuple(slice(a, b) for a, b in box)] = view_arrays.huge_values(number)

    for compressor, dtypes in view_arrays.NETCDF.items():
        path = os.path.join(options.dir, "netcdf.zarr", compressor)
        group = zarr.create_group(path, attributes={"codec": compressor})
        for kind, (shape, chunk, shard) in view_arrays.NETCDF_SHAPES.items():
            for dtype in dtypes:
                dims = [f"{kind}_{d}" for d in view_arrays.NETCDF_DIMS[len(shape)]]
                array = create(group, f"{kind}_{dtype}", shape, chunk, shard, dtype, 0, compressor, dims=dims)
                array[...] = view_arrays.netcdf_values(kind, dtype)

    path = os.path.join(options.dir, "dataset.zarr")
    group = zarr.create_group(path, attributes={"Conventions": "CF-1.8"})
    for name, (dims, values, attributes) in view_arrays.dataset_values().items():
        shard = tuple(4 * c for c in (2, 4, 5)[-values.ndim:]) if values.ndim > 1 else None
        chunk = (2, 4, 5)[-values.ndim:] if shard else values.shape
        fill = np.nan if values.dtype.kind == "f" else 0
        create(group, name, values.shape, chunk, shard, values.dtype, fill, "zstd", dims=dims,
               attributes=attributes)[...] = values
    zarr.consolidate_metadata(path)


def same(options):
    """Below two directories; keys of v3 begin with "c", keys of v2 do not."""
    documents = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}
    problems, count = [], 0
    for name in made_names(options.zarr3):
        ours, theirs = (os.path.normpath(os.path.join(top, name)) for top in (options.zarr3, options.zarr2))
        if not os.path.exists(os.path.join(theirs, ".zarray")):
            continue
        with open(os.path.join(ours, "zarr.json")) as f:
            metadata = json.load(f)
        encoding = metadata["chunk_key_encoding"]
        prefix = "c" + separator_of(encoding) if encoding["name"] == "default" else ""
        found = set(listed(theirs)) - documents
        for key in listed(ours):
            if key in documents:
                continue
            other = "0" if not metadata["shape"] else key.removeprefix(prefix)
            if other not in found:
                problems.append(f"{name}/{other}: not listed")
                continue
            found.remove(other)
            with open(os.path.join(ours, key), "rb") as a, open(os.path.join(theirs, other), "rb") as b:
                problem = first_difference(b.read(), a.read())
            if problem:
                problems.append(f"{name}/{other}: {problem}")
            count += 1
        if not is_filled2(metadata, theirs):
            problems += [f"{name}/{other}: listed, but should not be" for other in sorted(found)]
    if problems or not count:
        raise Differences(problems or ["nothing to compare"])
    print(f"{count} chunk files are equal")


# --- commands --------------------------------------------------------------------------------------------------


def one(options, work, name):
    try:
        print(f"ok   {name}: {work()}")
    except Skipped as reason:
        print(f"skipped: {name}: {reason}")
    except Differences as error:
        print(*[f"FAIL {name}: {words}" for words in error.found], sep="\n")
        sys.exit(1)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, *arguments, forms=None):
        found = commands.add_parser(name)
        for argument in arguments:
            found.add_argument(argument)
        if forms:
            found.add_argument("--form", choices=forms, required=True)
        found.add_argument("--endian", choices=("little", "big"), default="little")
        found.add_argument("--edge", choices=("full", "clip"), default="full")
        found.add_argument("--missing", choices=("absent", "fill"), default="absent")

    command("decoded", "expected", "array", forms=("zarr2", "npy", "raw"))
    command("flat", "source", "array")
    command("corpus", "corpus", "views", forms=("zarr2", "npy", "raw", "flat"))
    command("made", "source", "view", forms=("zarr2", "npy", "raw", "flat"))
    command("jobs", "corpus", "views", "out")
    command("made-jobs", "source", "view", "out")
    command("make", "dir")
    command("same", "zarr3", "zarr2")
    options = parser.parse_args()
    if options.command == "decoded":
        expected = (from_source if os.path.isdir(options.expected) else from_manifest)(options.expected)
        one(options, lambda: check_decoded(expected, options.array, options), expected.name)
    elif options.command == "flat":
        options.form = "flat"
        expected = (from_source if os.path.isdir(options.source) else from_manifest)(options.source)
        one(options, lambda: check_flat(expected, options.array, options), expected.name)
    elif options.command == "same":
        try:
            same(options)
        except Differences as error:
            sys.exit(str(error))
    else:
        {"corpus": corpus, "made": made, "jobs": jobs, "made-jobs": made_jobs, "make": make}[
            options.command](options)


if __name__ == "__main__":
    main()
