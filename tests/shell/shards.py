#!/usr/bin/env python3
"""Small sharded arrays with known contents, written without any Zarr library.

    shards.py array DIR VALUE [options]    a new array of rank 1 in DIR, all bytes of all chunks = VALUE
    shards.py shard FILE VALUE [options]   one shard of such an array, for example to replace another
    shards.py count DIR                    how many inner chunks the sharded array in DIR has

  --shards N     shards in the array (default 4)
  --chunks N     inner chunks per shard (default 4)
  --bytes N      bytes of an inner chunk (default 4096)
  --gap N        unused bytes before the first chunk: moves every offset
  --only A,B     only these slots exist, the others are empty
  --start        the index is at the start of the shard
"""
import argparse
import json
import os
import struct

EMPTY = 2**64 - 1

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def index_size(slots):
    return 16 * slots + 4


def shard_bytes(a):
    head = index_size(a.chunks) if a.start else 0
    entries, body = [], bytearray(a.gap)
    only = range(a.chunks) if a.only is None else [int(s) for s in a.only.split(",")]
    for slot in range(a.chunks):
        if slot in only:
            entries += [head + len(body), a.bytes]
            body += bytes([a.value]) * a.bytes
        else:
            entries += [EMPTY, EMPTY]
    index = struct.pack(f"<{len(entries)}Q", *entries)
    index += struct.pack("<I", crc32c(index))
    return index + body if a.start else body + index


def metadata(a):
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [a.shards * a.chunks * a.bytes],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [a.chunks * a.bytes]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": {
            "chunk_shape": [a.bytes],
            "codecs": [little],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "start" if a.start else "end"}}],
        "attributes": {"made by": "shards.py"},
    }


def write_array(a):
    os.makedirs(os.path.join(a.path, "c"))
    with open(os.path.join(a.path, "zarr.json"), "w") as f:
        json.dump(metadata(a), f)
    shard = shard_bytes(a)
    for i in range(a.shards):
        with open(os.path.join(a.path, "c", str(i)), "wb") as f:
            f.write(shard)


def count_chunks(array):
    """From the indexes alone: little endian with a checksum, as nearly every array has them."""
    with open(os.path.join(array, "zarr.json")) as f:
        m = json.load(f)
    sharding = next(c for c in m["codecs"] if c["name"] == "sharding_indexed")["configuration"]
    slots = 1
    for outer, inner in zip(m["chunk_grid"]["configuration"]["chunk_shape"], sharding["chunk_shape"]):
        slots *= outer // inner
    size, n = index_size(slots), 0
    for base, _, files in os.walk(array):
        for name in files:
            if name == "zarr.json":
                continue
            with open(os.path.join(base, name), "rb") as f:
                if sharding.get("index_location", "end") == "end":
                    f.seek(-size, os.SEEK_END)
                entries = struct.unpack(f"<{2 * slots}Q", f.read(size)[:-4])
            n += sum(offset != EMPTY for offset in entries[::2])
    return n


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("what", choices=["array", "shard", "count"])
    p.add_argument("path")
    p.add_argument("value", type=int, nargs="?", default=1)
    p.add_argument("--shards", type=int, default=4)
    p.add_argument("--chunks", type=int, default=4)
    p.add_argument("--bytes", type=int, default=4096)
    p.add_argument("--gap", type=int, default=0)
    p.add_argument("--only")
    p.add_argument("--start", action="store_true")
    a = p.parse_args()
    if a.what == "array":
        write_array(a)
    elif a.what == "shard":
        with open(a.path, "wb") as f:
            f.write(shard_bytes(a))
    else:
        print(count_chunks(a.path))


if __name__ == "__main__":
    main()
