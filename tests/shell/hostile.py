#!/usr/bin/env python3
"""Journals with records of somebody's choice, byte by byte, written without the program.

    hostile.py JOURNAL KEY SHARD [FIELD=VALUE...]

A record of an interrupted append to SHARD (64 more bytes at its end), called KEY, that a commit could have made.
The fields replace what it says: ino, old_length, index_offset, index_nbytes, length, overwritten (text, at the
start of the file), and index=none for an old index of which nothing is asked.
"""
import os
import struct
import sys
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shards import crc32c, index_size


def fingerprint(data):
    return crc32c(data) << 32 | zlib.crc32(data)


def checked(offset, nbytes, print_):
    return struct.pack("<QQQ", offset, nbytes, print_)


def counted(data):
    return struct.pack("<Q", len(data)) + data


def main():
    journal, key, shard, *fields = sys.argv[1:]
    fields = dict(field.split("=", 1) for field in fields)
    stat = os.stat(shard)
    with open(shard, "rb") as f:
        content = f.read()
    size = len(content)
    nbytes = int(fields.get("index_nbytes", min(index_size(4), size)))
    offset = int(fields.get("index_offset", size - nbytes))
    index = content[offset:offset + nbytes]
    old = fields.get("overwritten", "").encode()
    if old and offset < len(old):
        index = (old + content[len(old):])[offset:offset + nbytes]
    if fields.get("index") == "none":
        offset, nbytes, index = 0, 0, b""
    length = int(fields.get("length", size + 64))
    written = ([(0, len(old))] if old else []) + [(size, 64)]
    record = struct.pack("<I", 1) + counted(key.encode())
    record += struct.pack("<QQ", int(fields.get("ino", stat.st_ino)), int(fields.get("old_length", size)))
    record += checked(offset, nbytes, fingerprint(index)) + struct.pack("<Q", length)
    record += struct.pack("<I", len(written)) + b"".join(checked(o, n, 1) for o, n in written)
    record += struct.pack("<I", 1 if old else 0)
    if old:
        record += struct.pack("<Q", 0) + counted(old)
    os.makedirs(os.path.dirname(journal), exist_ok=True)
    with open(journal, "wb") as f:
        f.write(b"shardfs1" + struct.pack("<QQ", len(record), fingerprint(record)) + record)


main()
