"""An array that is one file, with headers of several formats."""
import os
import random

import numpy as np

from read_array import little_endian

from .documents import is_hidden, metadata_problems
from .files import first_difference, in_order, listed, npy_problem, read_file, sha256, writable
from .results import Differences, Skipped

# The largest offset that lseek reaches.
LONGEST = (1 << 63) - 1
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
