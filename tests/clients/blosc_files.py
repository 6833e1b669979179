#!/usr/bin/env python3
"""bloscpack makes files, and python-blosc decodes the chunk files that a mount shows of them.

    blosc_files.py make DIRECTORY          one file for each way to store something
    blosc_files.py check FILE MOUNT        the chunks of the mounted file, put together, are what bloscpack unpacks
    blosc_files.py write FILE MOUNT        replaces chunks, and appends some where the file has room; each time
                                           bloscpack unpacks what was written
    blosc_files.py others FILE MOUNT       bloscpack changes the file too: what does not concern the same chunks counts
    blosc_files.py directory PATH          a directory as BLZ and bcolz write it
    blosc_files.py superchunks PATH MOUNT  replaces chunks of a mounted one, and takes back what has no place
    blosc_files.py storm MOUNT LOG SEED    writes chunks until the mount ends; those that are durable stand in the log
    blosc_files.py after FILE LOG          every chunk is of one write, and none is older than its last durable one
    blosc_files.py refused FILE MOUNT      what is no chunk of the file is not written to it
"""

import collections
import collections.abc
import errno
import json
import os
import random
import sys
import tempfile
import time

# bloscpack 0.16 is of 2018.
for name in ("MutableMapping", "Mapping", "Sequence"):
    if not hasattr(collections, name):
        setattr(collections, name, getattr(collections.abc, name))

import blosc
import bloscpack
import numpy
from bloscpack import append
from bloscpack.args import BloscArgs, BloscpackArgs, MetadataArgs

CHECKSUMS = ["None", "adler32", "crc32", "md5", "sha1", "sha224", "sha256", "sha384", "sha512"]
DATA = numpy.arange(30000, dtype="<i4").tobytes()


def make(directory: str) -> None:
    for number, checksum in enumerate(CHECKSUMS):
        offsets = number % 2 == 0
        path = f"{directory}/{checksum}.blp"
        pack(path, BloscpackArgs(offsets=offsets, checksum=checksum, max_app_chunks=10 if offsets else 0),
             {"about": checksum} if number % 3 else None)
    pack(f"{directory}/appended.blp", BloscpackArgs(), None)
    with tempfile.NamedTemporaryFile() as more:
        more.write(DATA[:5000])
        more.flush()
        append.append(f"{directory}/appended.blp", more.name)
    array = numpy.arange(1000, dtype="<f8").reshape(20, 50)
    bloscpack.pack_ndarray_to_file(array, f"{directory}/array.blp", chunk_size=1600)
    # Its last chunk is a short one.
    bloscpack.pack_ndarray_to_file(numpy.arange(1010, dtype="<f8"), f"{directory}/uneven.blp", chunk_size=1600)


def pack(path: str, how: BloscpackArgs, metadata, data: bytes = DATA) -> None:
    with tempfile.NamedTemporaryFile() as source:
        source.write(data)
        source.flush()
        bloscpack.pack_file_to_file(source.name, path, chunk_size=10000, metadata=metadata, bloscpack_args=how,
                                    blosc_args=BloscArgs(typesize=4), metadata_args=MetadataArgs())


def check(path: str, mount: str) -> None:
    with open(f"{mount}/header.json") as f:
        header = json.load(f)
    chunks = sorted(os.listdir(f"{mount}/c"), key=int)
    assert len(chunks) == header["nchunks"], (chunks, header)
    parts = []
    for chunk in chunks:
        with open(f"{mount}/c/{chunk}", "rb") as f:
            parts.append(blosc.decompress(f.read()))
    with tempfile.TemporaryDirectory() as directory:
        out = f"{directory}/out"
        bloscpack.unpack_file_from_file(path, out)
        with open(out, "rb") as f:
            assert b"".join(parts) == f.read()
    if os.path.basename(path) == "array.blp":
        with open(f"{mount}/zarr.json") as f:
            zarr = json.load(f)
        values = numpy.frombuffer(b"".join(parts), dtype=zarr["data_type"])
        assert (values.reshape(zarr["attributes"]["shape"]) == bloscpack.unpack_ndarray_from_file(path)).all()


def unpacked(path: str) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        bloscpack.unpack_file_from_file(path, f"{directory}/out")
        with open(f"{directory}/out", "rb") as f:
            return f.read()


def put(path: str, data: bytes, renamed: bool = False, durable: bool = False) -> None:
    written = f"{path}.partial" if renamed else path
    with open(written, "wb") as f:
        f.write(data)
        if durable:
            f.flush()
            os.fsync(f.fileno())
    if renamed:
        os.rename(written, path)


def sync(mount: str) -> None:
    fd = os.open(mount, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(path: str, mount: str) -> None:
    numbers = random.Random(path)
    with open(f"{mount}/header.json") as f:
        header = json.load(f)
    full, typesize = header["chunk_size"], header["typesize"]
    parts = [b""] * header["nchunks"]
    for chunk in os.listdir(f"{mount}/c"):
        with open(f"{mount}/c/{chunk}", "rb") as f:
            parts[int(chunk)] = blosc.decompress(f.read())

    def store(number: int, data: bytes, **how) -> None:
        put(f"{mount}/c/{number}", blosc.compress(data, typesize=typesize), **how)
        parts[number:number + 1] = [data]

    def committed() -> None:
        sync(mount)
        assert unpacked(path) == b"".join(parts)
        for number, data in enumerate(parts):
            with open(f"{mount}/c/{number}", "rb") as f:
                assert blosc.decompress(f.read()) == data, number

    last = len(parts) - 1
    # Longer than before, shorter, as long as before.
    store(1, numbers.randbytes(full))
    committed()
    store(1, bytes(full), renamed=True)
    committed()
    store(2, parts[2][::-1])
    store(0, numbers.randbytes(full))
    committed()
    store(0, numbers.randbytes(full))
    committed()
    # The end of the file moves; the last chunk may be a short one.
    for length in full, full // 2 // typesize * typesize, full:
        store(last, numbers.randbytes(length))
        committed()
    store(last, bytes(full))
    committed()
    spare = header.get("max_app_chunks", 0) if header["offsets"] else 0
    for added in (1, 2, 3)[:3 if spare >= 6 else 0]:
        for _ in range(added):
            store(len(parts), numbers.randbytes(full), renamed=added == 2)
        committed()
    if spare >= 7:
        # The last but one must not be a short one.
        store(len(parts), numbers.randbytes(full // 3))
        committed()
    with open(f"{mount}/header.json") as f:
        now = json.load(f)
    appended = len(parts) - header["nchunks"]
    assert now["nchunks"] == len(parts) and now["last_chunk"] == len(parts[-1]), now
    if spare:
        assert now["max_app_chunks"] == spare - appended, now
    assert sorted(os.listdir(f"{mount}/c"), key=int) == [str(number) for number in range(len(parts))]
    for number in range(len(parts)):
        store(number, numbers.randbytes(len(parts[number])), durable=number % 5 == 0)
    committed()


def fails(error: int, what, *args, **kwargs) -> None:
    try:
        what(*args, **kwargs)
    except OSError as e:
        assert e.errno == error, e
    else:
        raise AssertionError(f"expected errno {error}")


SUPERCHUNK = b"blpk\x01\0\0\0" + (1).to_bytes(8, "little")


def directory(path: str) -> None:
    rows = numpy.arange(34 * 20, dtype="<f8").reshape(34, 20)
    os.makedirs(f"{path}/data")
    os.makedirs(f"{path}/meta")
    for number in range(5):
        with open(f"{path}/data/__{number}.blp", "wb") as f:
            f.write(SUPERCHUNK + blosc.compress(rows[8 * number:8 * number + 8].tobytes(), typesize=8))
    documents = {"meta/sizes": {"shape": [34, 20], "nbytes": 5440, "cbytes": 1000}, "__attrs__": {},
                 "meta/storage": {"dtype": "float64", "chunklen": 8, "expectedlen": 34, "dflt": 0.0,
                                  "bparams": {"clevel": 5, "shuffle": True}}}
    for name, document in documents.items():
        with open(f"{path}/{name}", "w") as f:
            json.dump(document, f)


def superchunks(path: str, mount: str) -> None:
    """34 rows of 160 bytes, 8 rows in a chunk."""
    numbers = random.Random(1)
    expected: list[bytes] = []

    def stored() -> list[bytes]:
        """What a reader that knows nothing of the mount finds."""
        with open(f"{path}/meta/sizes") as f:
            sizes = json.load(f)
        rows = sizes["shape"][0]
        assert sizes["shape"] == [rows, 20] and sizes["nbytes"] == rows * 160, sizes
        parts = []
        for number in range((rows + 7) // 8):
            with open(f"{path}/data/__{number}.blp", "rb") as f:
                assert f.read(16) == SUPERCHUNK
                parts.append(blosc.decompress(f.read()))
            assert len(parts[-1]) == 160 * min(8, rows - 8 * number), number
        return parts

    def committed() -> None:
        sync(mount)
        assert stored() == expected
        chunks = sorted(int(name) for name in os.listdir(f"{mount}/c"))
        assert [number for number in chunks if os.listdir(f"{mount}/c/{number}")] == list(range(len(expected)))
        for number, data in enumerate(expected):
            with open(f"{mount}/c/{number}/0", "rb") as f:
                assert blosc.decompress(f.read()) == data

    def store(number: int, rows: int, **how) -> None:
        data = numbers.choice([numbers.randbytes, bytes])(160 * rows)
        os.makedirs(f"{mount}/c/{number}", exist_ok=True)
        put(f"{mount}/c/{number}/0", blosc.compress(data, typesize=8), **how)
        expected[number:number + 1] = [data]

    expected = stored()
    committed()
    for _ in range(3):
        for number in numbers.sample(range(5), 3):
            store(number, 8 if number < 4 else 2, renamed=number % 2 == 0)
        committed()
    # What has no place is told, and what was there stays.
    for number, nbytes in (0, 320), (0, 1440), (4, 1440), (4, 319):
        with open(f"{mount}/c/{number}/0", "rb") as f:
            before = f.read()
        fails(errno.EINVAL, put, f"{mount}/c/{number}/0", blosc.compress(bytes(nbytes), typesize=1), durable=True)
        put(f"{mount}/c/{number}/0", before, durable=True)
    with open(f"{mount}/c/4/0", "rb") as f:
        before = f.read()
    fails(errno.EINVAL, put, f"{mount}/c/4/0", b"no buffer")
    put(f"{mount}/c/4/0", before)
    committed()
    for name in "data", "data/__9.blp":
        fails(errno.EPERM if name == "data" else errno.ENOENT, os.mkdir, f"{mount}/{name}")
    # Longer: the last chunk is filled up first.
    os.mkdir(f"{mount}/c/5")
    fails(errno.EINVAL, put, f"{mount}/c/5/0", blosc.compress(bytes(1280), typesize=8), durable=True)
    os.unlink(f"{mount}/c/5/0")
    store(4, 5)
    committed()
    store(4, 8)
    store(5, 8, renamed=True)
    committed()
    for number in 6, 7, 8:
        store(number, 8 if number < 8 else 3)
    committed()
    # Shorter, from the end.
    fails(errno.EPERM, os.unlink, f"{mount}/c/3/0")
    fails(errno.EPERM, os.rename, f"{mount}/c/3/0", f"{mount}/c/3/other")
    os.unlink(f"{mount}/c/8/0")
    os.rmdir(f"{mount}/c/8")
    expected.pop()
    committed()
    store(7, 1)
    committed()
    for number in 7, 6:
        os.unlink(f"{mount}/c/{number}/0")
        expected.pop()
    store(5, 4)
    committed()
    # Removed and made again at once.
    os.unlink(f"{mount}/c/5/0")
    store(5, 8)
    store(6, 2)
    committed()
    for number in 6, 5:
        os.unlink(f"{mount}/c/{number}/0")
        os.rmdir(f"{mount}/c/{number}")
        expected.pop()
    committed()
    # A chunk whose file is missing is made.
    os.unlink(f"{path}/data/__1.blp")
    time.sleep(1.1)
    fails(errno.ENOENT, os.stat, f"{mount}/c/1/0")
    store(1, 8)
    committed()
    # What is in data beyond the array is none of it.
    with open(f"{path}/data/__5.blp", "wb") as f:
        f.write(SUPERCHUNK + blosc.compress(bytes(1280), typesize=8))
    time.sleep(1.1)
    committed()
    fails(errno.ENOENT, os.stat, f"{mount}/c/5/0")
    store(5, 8)
    committed()
    # The documents are written through.
    with open(f"{mount}/meta/sizes") as f:
        sizes = json.load(f)
    os.unlink(f"{mount}/c/5/0")
    expected.pop()
    committed()
    assert sizes["shape"] == [48, 20]
    put(f"{mount}/__attrs__", b'{"unit": "nm"}')
    with open(f"{path}/__attrs__") as f:
        assert json.load(f) == {"unit": "nm"}


def storm(mount: str, log: str, seed: str) -> None:
    numbers = random.Random(seed)
    with open(f"{mount}/header.json") as f:
        header = json.load(f)
    count, full = header["nchunks"], header["chunk_size"]
    # Later than what earlier storms have left.
    version = time.monotonic_ns() // 1000
    with open(log, "a", buffering=1) as durable:
        while True:
            version += 1
            number = numbers.randrange(count)
            # Most are as long as the one that they replace, which is written over.
            level = 0 if numbers.random() < 0.9 else 5
            data = blosc.compress(version.to_bytes(8, "little") * (full // 8), typesize=8, clevel=level)
            try:
                put(f"{mount}/c/{number}", data, durable=True)
            except OSError:
                return
            durable.write(f"{number} {version}\n")


def after(path: str, log: str) -> None:
    durable: dict[int, int] = {}
    with open(log) as f:
        for line in f.read().splitlines():
            number, version = map(int, line.split())
            durable[number] = version
    values = numpy.frombuffer(unpacked(path), dtype="<u8")
    full = len(values) // 12
    for number, version in durable.items():
        chunk = values[number * full:(number + 1) * full]
        assert len(set(chunk)) == 1 and chunk[0] >= version, (number, version, set(chunk))


def others(path: str, mount: str) -> None:
    with open(f"{mount}/header.json") as f:
        full = json.load(f)["chunk_size"]
    before = unpacked(path)
    new = bytes(reversed(before[full:2 * full]))
    put(f"{mount}/c/1", blosc.compress(new, typesize=4))
    with tempfile.NamedTemporaryFile() as more:
        more.write(DATA[:full + 1])
        more.flush()
        append.append(path, more.name)
    sync(mount)
    after = before[:full] + new + before[2 * full:] + DATA[:full + 1]
    assert unpacked(path) == after
    # The same chunk: what is in the file counts.
    put(f"{mount}/c/2", blosc.compress(new, typesize=4))
    pack(f"{path}.new", BloscpackArgs(), None, bytes(full) + bytes(reversed(DATA[full:])))
    os.replace(f"{path}.new", path)
    written = unpacked(path)
    try:
        sync(mount)
    except OSError as e:
        assert e.errno == errno.ESTALE, e
    else:
        raise AssertionError("a chunk that others have changed was written over")
    assert unpacked(path) == written
    time.sleep(1.1)
    put(f"{mount}/c/2", blosc.compress(new, typesize=4), durable=True)
    assert unpacked(path) == written[:2 * full] + new + written[3 * full:]


def refused(path: str, mount: str) -> None:
    with open(f"{mount}/header.json") as f:
        header = json.load(f)
    full, count = header["chunk_size"], header["nchunks"]
    before = unpacked(path)
    beside = sorted(os.listdir(os.path.dirname(path)))

    buffer = blosc.compress(bytes(full), typesize=1)
    with open(f"{mount}/c/1", "rb") as f:
        good = f.read()
    # At close; and the file is as it was.
    fails(errno.EINVAL, put, f"{mount}/c/1", b"no Blosc buffer at all")
    fails(errno.EINVAL, put, f"{mount}/c/1", buffer + b"more")
    fails(errno.EINVAL, sync, mount)
    assert unpacked(path) == before
    put(f"{mount}/c/1", good)
    sync(mount)
    # Only the last one may be short, none may be long, none may be missing.
    fails(errno.EINVAL, put, f"{mount}/c/1", blosc.compress(bytes(full - 1), typesize=1), durable=True)
    fails(errno.EINVAL, put, f"{mount}/c/1", blosc.compress(bytes(full + 1), typesize=1), durable=True)
    put(f"{mount}/c/1", good, durable=True)
    gap = f"{mount}/c/{count + 1}"
    fails(errno.EINVAL, put, gap, buffer, durable=True)
    assert unpacked(path) == before
    os.unlink(gap)
    sync(mount)
    fails(errno.EINVAL, put, f"{mount}/c/{count + header['max_app_chunks']}", buffer)
    for name in "c/0", f"c/{count - 1}":
        fails(errno.EPERM, os.unlink, f"{mount}/{name}")
        fails(errno.EPERM, os.rename, f"{mount}/{name}", f"{mount}/c/other")
    # What is beside the file is none of the mount's business.
    for name in "new", "header.json", "zarr.json", os.path.basename(path):
        fails(errno.EEXIST if os.path.exists(f"{mount}/{name}") else errno.EPERM, os.mkdir, f"{mount}/{name}")
    fails(errno.EPERM, put, f"{mount}/new", b"")
    fails(errno.EPERM, os.rename, f"{mount}/c/0", f"{mount}/new")
    fails(errno.EPERM, os.unlink, f"{mount}/header.json")
    fails(errno.EROFS, os.chmod, f"{mount}/header.json", 0o600)
    fails(errno.EROFS, os.open, f"{mount}/header.json", os.O_WRONLY)
    mode = os.stat(os.path.dirname(path)).st_mode
    os.chmod(mount, 0o711)
    assert os.stat(os.path.dirname(path)).st_mode == mode
    sync(mount)
    assert unpacked(path) == before
    # Beside the journal, as long as the mount lasts.
    left = [name for name in sorted(os.listdir(os.path.dirname(path))) if name not in (".shardfs", *beside)]
    assert not left, left


if __name__ == "__main__":
    {"make": make, "check": check, "write": write, "directory": directory, "superchunks": superchunks,
     "storm": storm, "after": after, "others": others, "refused": refused}[sys.argv[1]](*sys.argv[2:])
