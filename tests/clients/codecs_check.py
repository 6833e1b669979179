#!/usr/bin/env python3
"""Encoded chunks with something behind the stream: is a chunk read in the view `raw` exactly where numcodecs reads it?

    codecs_check.py make DIR           arrays, one for each codec, in each chunk file another encoded form
    codecs_check.py compare DIR VIEW   a line for each array: ok, or FAIL and what differs
"""
import json
import os
import pathlib
import random
import struct
import sys
import zlib

import numcodecs
import numpy as np

CHUNK = np.arange(6, dtype="<u2").tobytes()
CODECS = {"gzip": {"level": 1}, "numcodecs.zlib": {"level": 1}, "zstd": {"level": 1, "checksum": False},
          "blosc": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
          "numcodecs.lz4": {"acceleration": 1}}
GARBAGE = b"neither padding nor a stream"


def codec(name):
    configuration = dict(CODECS[name], id=name.removeprefix("numcodecs."))
    if name == "blosc":
        configuration.update(shuffle=1)
        del configuration["typesize"]
    return numcodecs.get_codec(configuration)


def streamed(content):
    """A zstd frame of one stored block that does not tell its length."""
    return bytes.fromhex("28b52ffd0058") + struct.pack("<I", len(content) << 3 | 1)[:3] + content


def skippable(content):
    return struct.pack("<II", 0x184D2A50, len(content)) + content


def forms(name):
    """Encoded chunks, good ones and bad ones."""
    encode = lambda content: bytes(codec(name).encode(content))
    whole = encode(CHUNK)
    found = [whole, b"", b"\0", b"\0" + whole, GARBAGE, whole[:-1] if name != "blosc" else whole]
    for tail in (b"\0", bytes(700), GARBAGE, b"\x1f", bytes(3) + GARBAGE, whole, bytes(4) + whole, encode(b""), whole[:9]):
        found.append(whole + tail)
    numbers = random.Random(name)
    for _ in range(60):
        cuts = sorted(numbers.randrange(len(CHUNK) + 1) for _ in range(numbers.randrange(4)))
        parts = [CHUNK[a:b] for a, b in zip([0, *cuts], [*cuts, len(CHUNK)])]
        encoders = [encode]
        if name == "zstd":
            encoders += [streamed, lambda part: encode(part) + skippable(b"skipped"), lambda part: skippable(b"") + encode(part)]
        if name == "numcodecs.zlib":
            encoders += [zlib.compress]
        text = b""
        for part in parts:
            text += numbers.choice(encoders)(part) + bytes(numbers.choice((0, 0, 0, 1, 5)))
        found.append(text)
    return found


def make(directory):
    for name, configuration in CODECS.items():
        array = directory / name
        encoded = forms(name)
        (array / "c").mkdir(parents=True)
        for number, text in enumerate(encoded):
            (array / "c" / str(number)).write_bytes(text)
        document = {
            "zarr_format": 3, "node_type": "array", "shape": [6 * len(encoded)], "data_type": "uint16", "fill_value": 9,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6]}},
            "chunk_key_encoding": {"name": "default"}, "attributes": {},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
                       {"name": name, "configuration": configuration}]}
        (array / "zarr.json").write_text(json.dumps(document))


def decoded(name, encoded):
    """What zarr-python makes of it, or None."""
    try:
        found = bytes(codec(name).decode(encoded))
    except Exception:
        return None
    return found if len(found) == len(CHUNK) else None


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return None


def compare(directory, view):
    failed = False
    for name in CODECS:
        chunks = sorted(os.listdir(directory / name / "c"), key=int)
        expected = [decoded(name, (directory / name / "c" / key).read_bytes()) for key in chunks]
        found = [read(view / name / "c" / f"{key}.raw") for key in chunks]
        wrong = [key for key, a, b in zip(chunks, expected, found) if a != b]
        good = sum(chunk is not None for chunk in expected)
        if wrong or not good or good == len(chunks):
            texts = [(directory / name / "c" / key).read_bytes()[:64].hex() for key in wrong[:3]]
            print(f"FAIL {name}: {len(wrong)} of {len(chunks)} chunks differ: {' '.join(texts)}")
            failed = True
        else:
            print(f"ok {name}: {good} chunks read, {len(chunks) - good} refused, by numcodecs as well")
    return failed


if __name__ == "__main__":
    paths = [pathlib.Path(path) for path in sys.argv[2:]]
    sys.exit(make(*paths) if sys.argv[1] == "make" else compare(*paths))
