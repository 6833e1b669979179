#!/usr/bin/env python3
"""Sharded arrays of every layout, written and read without any Zarr library: what the shards of a source
really hold, whatever a mount says about it.

    arrays.py make DIR LAYOUT      a new array in DIR; every third chunk or so is empty
    arrays.py layouts              the names of the layouts
    arrays.py extract SOURCE OUT   the inner chunks of every array of the tree SOURCE as plain files in OUT,
                                   and the other files as they are; zarr.json of sharded arrays are left out
    arrays.py check SOURCE         the same without OUT

Both readers end with 1 and name what is wrong if a shard breaks any rule: checksums, half-empty entries,
ranges outside the file or in the index, ranges that overlap, shards without chunks, files that are neither
shard nor metadata.

  --mounted    a mount may have its journal beside the shards
  --outside    chunks that the array's shape does not reach are read too; they are refused otherwise
"""
import argparse
import gzip
import itertools
import json
import os
import random
import struct
import sys

from shards import EMPTY, crc32c

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


def product(numbers):
    result = 1
    for n in numbers:
        result *= n
    return result


# --- layouts ---------------------------------------------------------------------------------------------


def sharding(chunk, codecs=(LITTLE,), index=(LITTLE, CRC), location="end"):
    return {"name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk, "codecs": list(codecs), "index_codecs": list(index), "index_location": location}}


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": list(order)}}


def array(shape, shard, codecs, keys=("default", "/")):
    return {
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "chunk_key_encoding": {"name": keys[0], "configuration": {"separator": keys[1]}},
        "fill_value": 0, "codecs": codecs, "attributes": {"made by": "arrays.py"},
    }


# No shape is a multiple of the shard's: the last shards have slots that no chunk of the array has.
PLANE = {"shape": [20, 44], "shard": [8, 16], "codecs": [sharding([4, 4])]}
LAYOUTS = {
    "slash": array(**PLANE),
    "dot": array(**PLANE, keys=("default", ".")),
    "v2-slash": array(**PLANE, keys=("v2", "/")),
    "v2-dot": array(**PLANE, keys=("v2", ".")),
    "start": array(**PLANE | {"codecs": [sharding([4, 4], location="start")]}),
    "big-endian": array(**PLANE | {"codecs": [sharding([4, 4], index=[transpose(2, 0, 1), BIG])]}),
    "transposed": array(**PLANE | {"codecs": [transpose(1, 0), sharding([8, 2])]}),
    "checksum": array(**PLANE | {"codecs": [sharding([4, 4]), CRC]}),
    "nested": array([40, 44], [16, 16], [sharding([8, 8], [sharding([4, 2])])]),
    "nested-start": array([40, 44], [16, 16], [
        sharding([8, 8], [sharding([4, 2], location="start"), CRC], location="start")]),
    # Read-only in a mount.
    "compressed": array(**PLANE | {"codecs": [sharding([4, 4]), GZIP]}),
    "rank-0": array([], [], [sharding([])]),
    "rank-1": array([100], [24], [sharding([4])]),
    "rank-3": array([7, 9, 11], [4, 4, 8], [sharding([2, 2, 2])]),
}


class Level:
    """One sharding: where the entry of a chunk is in the index, and which chunk it is."""

    def __init__(self, codecs, shape, axes):
        codecs = objects(codecs)
        names = [c["name"] for c in codecs]
        at = names.index("sharding_indexed")
        for codec in codecs[:at]:
            order = codec["configuration"]["order"]
            shape, axes = [shape[i] for i in order], [axes[i] for i in order]
        self.after = names[at + 1:]
        assert set(self.after) <= {"crc32c", "gzip"}, names
        config = codecs[at]["configuration"]
        self.inner = config["chunk_shape"]
        self.axes = axes
        self.per_shard = [outer // inner for outer, inner in zip(shape, self.inner)]
        self.slots = product(self.per_shard)
        self.at_start = config.get("index_location", "end") == "start"
        self.codecs = objects(config["codecs"])
        index = objects(config["index_codecs"])
        self.index_checksum = any(c["name"] == "crc32c" for c in index)
        self.big = any(c.get("configuration", {}).get("endian") == "big" for c in index)
        # From a word's place as stored to its place in C order.
        shape, self.words = [*self.per_shard, 2], list(range(2 * self.slots))
        for codec in index:
            if codec["name"] == "transpose":
                order = codec["configuration"]["order"]
                stored = [shape[i] for i in order]
                strides = [product(shape[i + 1:]) for i in range(len(shape))]
                places = itertools.product(*map(range, stored))
                self.words = [self.words[sum(p * strides[i] for p, i in zip(place, order))] for place in places]
                shape = stored
        self.index_size = 16 * self.slots + 4 * self.index_checksum
        nested = any(c["name"] == "sharding_indexed" for c in self.codecs)
        self.below = Level(self.codecs, self.inner, axes) if nested else None

    def coordinates(self, parent, slot):
        place = []
        for extent in reversed(self.per_shard):
            place.insert(0, slot % extent)
            slot //= extent
        coordinates = list(parent)
        for axis, extent, p in zip(self.axes, self.per_shard, place):
            coordinates[axis] = parent[axis] * extent + p
        return tuple(coordinates)

    def innermost(self):
        return self.below.innermost() if self.below else self

    def edges(self, rank):
        edges = [0] * rank
        for axis, edge in zip(self.innermost().axes, self.innermost().inner):
            edges[axis] = edge
        return edges

    # --- bytes ---

    def read(self, blob, parent):
        """(coordinates, bytes) of every chunk"""
        for codec in reversed(self.after):
            blob = gzip.decompress(blob) if codec == "gzip" else verified(blob, "shard")
        if len(blob) < self.index_size:
            raise Fault(f"{len(blob)} bytes, its index has {self.index_size}")
        raw = blob[:self.index_size] if self.at_start else blob[len(blob) - self.index_size:]
        if self.index_checksum:
            raw = verified(raw, "index")
        stored = struct.unpack(f"{'>' if self.big else '<'}{2 * self.slots}Q", raw)
        words = [0] * len(stored)
        for place, word in zip(self.words, stored):
            words[place] = word
        first, end = (self.index_size, len(blob)) if self.at_start else (0, len(blob) - self.index_size)
        ranges = set()
        for slot in range(self.slots):
            offset, nbytes = words[2 * slot:2 * slot + 2]
            if (offset, nbytes) == (EMPTY, EMPTY):
                continue
            if EMPTY in (offset, nbytes):
                raise Fault(f"slot {slot} is half empty")
            if offset < first or offset + nbytes > end:
                raise Fault(f"slot {slot}: {offset}+{nbytes} is not in {first}..{end}")
            if nbytes:
                ranges.add((offset, offset + nbytes))
            inside, where = blob[offset:offset + nbytes], self.coordinates(parent, slot)
            if self.below:
                yield from self.below.read(inside, where)
            else:
                yield where, inside
        ordered = sorted(ranges)
        for (_, end), (begin, _) in zip(ordered, ordered[1:]):
            if begin < end:
                raise Fault(f"ranges overlap at {begin}")

    def write(self, chunks, parent, gap):
        """The shard's bytes, None if no chunk of it is in the dict `chunks`"""
        words, body, found = [EMPTY] * (2 * self.slots), bytearray(gap), False
        head = self.index_size if self.at_start else 0
        for slot in range(self.slots):
            where = self.coordinates(parent, slot)
            inside = self.below.write(chunks, where, gap) if self.below else chunks.get(where)
            if inside is not None:
                words[2 * slot:2 * slot + 2] = head + len(body), len(inside)
                body += inside
                found = True
        if not found:
            return None
        raw = struct.pack(f"{'>' if self.big else '<'}{2 * self.slots}Q", *(words[place] for place in self.words))
        if self.index_checksum:
            raw += struct.pack("<I", crc32c(raw))
        blob = raw + body if self.at_start else bytes(body) + raw
        for codec in self.after:
            blob = gzip.compress(blob) if codec == "gzip" else blob + struct.pack("<I", crc32c(blob))
        return bytes(blob)


def objects(codecs):
    """Some writers leave bare names."""
    return [{"name": c} if isinstance(c, str) else c for c in codecs]


class Fault(Exception):
    pass


def verified(data, what):
    if len(data) < 4 or crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise Fault(f"checksum of the {what}")
    return data[:-4]


# --- keys ------------------------------------------------------------------------------------------------


def encoding(meta):
    name = meta["chunk_key_encoding"]["name"]
    separator = meta["chunk_key_encoding"].get("configuration", {}).get("separator")
    return name, separator or ("/" if name == "default" else ".")


def key(meta, coordinates):
    name, separator = encoding(meta)
    parts = ["c"] if name == "default" else [] if coordinates else ["0"]
    return separator.join([*parts, *map(str, coordinates)])


def coordinates_of(meta, path):
    """None if it is no chunk key"""
    name, separator = encoding(meta)
    rank = len(meta["shape"])
    if rank == 0:
        return () if path == key(meta, ()) else None
    parts = path.split(separator)
    if name == "default" and parts.pop(0) != "c":
        return None
    if len(parts) != rank or not all(p.isdecimal() and str(int(p)) == p for p in parts):
        return None
    return tuple(map(int, parts))


# --- arrays ----------------------------------------------------------------------------------------------


def chunk_grid(meta):
    shape = meta["shape"]
    level = Level(meta["codecs"], meta["chunk_grid"]["configuration"]["chunk_shape"], list(range(len(shape))))
    return level, [-(-extent // edge) for extent, edge in zip(shape, level.edges(len(shape)))]


def make(path, name):
    """Chunks of all sizes, empty ones too; gaps between them, as after a rewrite."""
    meta = LAYOUTS[name]
    level, grid = chunk_grid(meta)
    numbers = random.Random(name)
    chunks = {}
    for where in itertools.product(*map(range, grid)):
        if not grid or numbers.random() < 0.7:
            chunks[where] = numbers.randbytes(numbers.choice([0, 1, 15, 200, 1000, 5000]))
    os.makedirs(path)
    with open(os.path.join(path, "zarr.json"), "w") as f:
        json.dump(meta, f, indent=2)
    outer = meta["chunk_grid"]["configuration"]["chunk_shape"]
    shards = [range(-(-extent // edge)) for extent, edge in zip(meta["shape"], outer)]
    for where in itertools.product(*shards):
        blob = level.write(chunks, where, 100)
        if blob is not None:
            file = os.path.join(path, key(meta, where))
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as f:
                f.write(blob)


def documents(root):
    """{directory: its metadata} of a tree"""
    found = {}
    for base, _, files in os.walk(root):
        if "zarr.json" in files:
            with open(os.path.join(base, "zarr.json")) as f:
                found[os.path.relpath(base, root)] = json.load(f)
    return found


def is_sharded(meta):
    return any(c["name"] == "sharding_indexed" for c in objects(meta.get("codecs", [])))


def read_tree(root, mounted, outside):
    """(path in the view, bytes), or (None, what is wrong)"""
    nodes = documents(root)
    for base, directories, files in os.walk(root):
        directories.sort()
        for name in sorted(files):
            path = os.path.join(base, name)
            relative = os.path.relpath(path, root)
            parts = relative.split("/")
            if ".shardfs" in parts:
                if not mounted:
                    yield None, f"{relative}: was left behind"
                continue
            parents = ["/".join(parts[:n]) or "." for n in range(len(parts) - 1, -1, -1)]
            node = next((p for p in parents if p in nodes), None)
            meta = nodes.get(node, {})
            with open(path, "rb") as f:
                data = f.read()
            if not is_sharded(meta):
                yield relative, data
                continue
            inside = os.path.relpath(path, os.path.join(root, node))
            if inside == "zarr.json":
                continue
            where = coordinates_of(meta, inside)
            if where is None:
                yield None, f"{relative}: neither shard nor metadata"
                continue
            level, grid = chunk_grid(meta)
            try:
                chunks = list(level.read(data, where))
            except Fault as fault:
                yield None, f"{relative}: {fault}"
                continue
            if not chunks:
                yield None, f"{relative}: a shard without chunks"
            for where, chunk in chunks:
                name = os.path.normpath(os.path.join(node, key(meta, where)))
                if not outside and any(c >= extent for c, extent in zip(where, grid)):
                    yield None, f"{name}: outside the array's shape"
                else:
                    yield name, chunk


def extract(root, out, mounted, outside):
    wrong = False
    for name, data in read_tree(root, mounted, outside):
        if name is None:
            wrong = True
            print(data)
        elif out:
            file = os.path.join(out, name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, "wb") as f:
                f.write(data)
    sys.exit(wrong)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("what", choices=["make", "layouts", "extract", "check"])
    p.add_argument("path", nargs="?")
    p.add_argument("more", nargs="?")
    p.add_argument("--mounted", action="store_true")
    p.add_argument("--outside", action="store_true")
    a = p.parse_intermixed_args()
    if a.what == "make":
        make(a.path, a.more)
    elif a.what == "layouts":
        print(*LAYOUTS, sep="\n")
    else:
        extract(a.path, a.more, a.mounted, a.outside)


if __name__ == "__main__":
    main()
