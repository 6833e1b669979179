"""Files of a view, and their bytes."""
import hashlib
import os

import numpy as np

from .results import Differences


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


def writable(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except OSError:
        return False
