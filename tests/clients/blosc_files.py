#!/usr/bin/env python3
"""bloscpack makes files, and python-blosc decodes the chunk files that a mount shows of them.

    blosc_files.py make DIRECTORY          one file for each way to store something
    blosc_files.py check FILE MOUNT        the chunks of the mounted file, put together, are what bloscpack unpacks
"""

import collections
import collections.abc
import json
import os
import sys
import tempfile

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


def pack(path: str, how: BloscpackArgs, metadata) -> None:
    with tempfile.NamedTemporaryFile() as source:
        source.write(DATA)
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


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](*sys.argv[2:])
