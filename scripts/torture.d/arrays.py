"""The arrays that are written to, and their shards as they lie on the disk, without shardfs."""

import gzip
import json
import os
import random
import struct
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import google_crc32c
import numpy

EMPTY = 2**64 - 1
MAGIC = b"tort"
HEADER = struct.Struct("<4sIIIII")  # magic, array, chunk, version, bytes of the pattern, checksum


class Wrong(Exception):
    """Something is not as it must be."""


@dataclass
class Array:
    """Of rank 2. A chunk is a row of `length` bytes: they stand together in the array, too."""

    name: str
    number: int
    length: int  # bytes of a decoded chunk
    per_shard: tuple[int, int]  # chunks along each axis of a shard
    grid: tuple[int, int]  # chunks along each axis
    at_start: bool = False  # where the index is
    index_checksum: bool = True
    separator: str = "/"
    packed: bool = False  # chunks are compressed, so their stored lengths vary
    nested: tuple[int, int] | None = None  # chunks along each axis of a shard within the shard
    around: bool = False  # a checksum over the whole shard
    chunks: int = field(init=False)

    def __post_init__(self):
        self.chunks = self.grid[0] * self.grid[1]

    def coords(self, chunk: int) -> tuple[int, int]:
        return divmod(chunk, self.grid[1])

    def key(self, coords: tuple[int, int]) -> str:
        return self.separator.join(["c", *map(str, coords)])

    def chunk_key(self, chunk: int) -> str:
        return self.key(self.coords(chunk))

    def shard_of(self, chunk: int) -> tuple[int, int]:
        return tuple(at // n for at, n in zip(self.coords(chunk), self.per_shard))

    def shard_key(self, chunk: int) -> str:
        return self.key(self.shard_of(chunk))

    def shards(self) -> list[tuple[int, int]]:
        rows, columns = (-(-size // n) for size, n in zip(self.grid, self.per_shard))
        return [(i, j) for i in range(rows) for j in range(columns)]

    def metadata(self) -> dict:
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        inner = [{"name": "bytes"}]
        if self.packed:
            inner.append({"name": "gzip", "configuration": {"level": 1}})
        index = [little, {"name": "crc32c"}] if self.index_checksum else [little]

        def sharding(shape, codecs):
            return {"name": "sharding_indexed", "configuration": {
                "chunk_shape": shape, "codecs": codecs, "index_codecs": index,
                "index_location": "start" if self.at_start else "end"}}

        codecs = [sharding([1, self.length], inner)]
        if self.nested:
            rows, columns = self.nested
            codecs = [sharding([rows, columns * self.length], codecs)]
        if self.around:
            codecs.append({"name": "crc32c"})
        return {
            "zarr_format": 3, "node_type": "array", "data_type": "uint8", "fill_value": 0,
            "shape": [self.grid[0], self.grid[1] * self.length],
            "chunk_grid": {"name": "regular", "configuration": {
                "chunk_shape": [self.per_shard[0], self.per_shard[1] * self.length]}},
            "chunk_key_encoding": {"name": "default",
                                   "configuration": {"separator": self.separator}},
            "codecs": codecs, "attributes": {},
        }

    # --- contents: they say what they are ------------------------------------------------------

    def content(self, chunk: int, version: int) -> bytes:
        """The stored bytes of a version of a chunk. No two versions have 8 bytes in common at
        one place, so that bytes of one between those of another are noticed."""
        room = self.length - HEADER.size
        # The rest are zeros: compressed chunks have many lengths.
        nbytes = random.Random(chunk * 1_000_003 + version).randrange(room // 8 + 1) * 8 \
            if self.packed else room // 8 * 8
        seed = zlib.crc32(struct.pack("<III", self.number, chunk, version))
        words = numpy.arange(nbytes // 4, dtype=numpy.uint32) * numpy.uint32(2654435761)
        words ^= numpy.uint32(seed)
        words[1::2] = numpy.uint32(version)
        body = words.tobytes()
        head = (self.number, chunk, version, nbytes)
        check = zlib.crc32(struct.pack("<IIII", *head) + body)
        plain = HEADER.pack(MAGIC, *head, check) + body
        plain += bytes(self.length - len(plain))
        return gzip.compress(plain, 1, mtime=0) if self.packed else plain

    def decode(self, stored: bytes) -> bytes:
        if not self.packed:
            return stored
        try:
            return gzip.decompress(stored)
        except (OSError, EOFError, zlib.error) as error:
            raise Wrong(f"{len(stored)} bytes that are no gzip: {error}") from error

    def version(self, chunk: int, stored: bytes) -> int:
        """Which version of the chunk these stored bytes are."""
        plain = self.decode(stored)
        if len(plain) != self.length:
            raise Wrong(f"{len(plain)} bytes instead of {self.length}")
        magic, number, whose, version, nbytes, check = HEADER.unpack_from(plain)
        if magic != MAGIC or nbytes > self.length - HEADER.size:
            raise Wrong(f"no chunk begins with {plain[:HEADER.size].hex()}")
        if (number, whose) != (self.number, chunk):
            raise Wrong(f"the content of chunk {whose} of array {number}")
        body = plain[HEADER.size:HEADER.size + nbytes]
        if check != zlib.crc32(struct.pack("<IIII", number, whose, version, nbytes) + body):
            raise Wrong(f"version {version} with a wrong checksum: torn")
        if any(plain[HEADER.size + nbytes:]):
            raise Wrong(f"version {version} with something behind it: torn")
        return version

    # --- shards --------------------------------------------------------------------------------

    def index_bytes(self, slots: int) -> int:
        return 16 * slots + 4 * self.index_checksum

    def read_shard(self, data: bytes, shard: tuple[int, int]) -> dict[int, bytes]:
        """The stored bytes of every chunk of a shard. Wrong if the shard is not a valid one."""
        if self.around:
            data, check = data[:-4], data[-4:]
            if crc32c(data) != check:
                raise Wrong("the checksum around the shard is wrong")
        corner = tuple(at * n for at, n in zip(shard, self.per_shard))
        parts = self.parts(data, self.slots())
        if not self.nested:
            return self.named(parts, corner, self.per_shard)
        across = self.per_shard[1] // self.nested[1]
        found = {}
        for slot, part in parts.items():
            inner = tuple(start + at * n
                          for start, at, n in zip(corner, divmod(slot, across), self.nested))
            parts_of_it = self.parts(part, self.nested[0] * self.nested[1])
            found |= self.named(parts_of_it, inner, self.nested)
        return found

    def slots(self) -> int:
        slots = self.per_shard[0] * self.per_shard[1]
        return slots // (self.nested[0] * self.nested[1]) if self.nested else slots

    def named(self, parts: dict[int, bytes], corner: tuple[int, int],
              shape: tuple[int, int]) -> dict[int, bytes]:
        found = {}
        for slot, part in parts.items():
            row, column = (start + at for start, at in zip(corner, divmod(slot, shape[1])))
            if row >= self.grid[0] or column >= self.grid[1]:
                raise Wrong(f"slot {slot} lies outside the array and is not empty")
            found[row * self.grid[1] + column] = part
        return found

    def parts(self, data: bytes, slots: int) -> dict[int, bytes]:
        size = self.index_bytes(slots)
        if len(data) < size:
            raise Wrong(f"{len(data)} bytes, less than the index")
        start = 0 if self.at_start else len(data) - size
        index = data[start:start + size]
        if self.index_checksum and crc32c(index[:-4]) != index[-4:]:
            raise Wrong("the index has a wrong checksum")
        words = struct.unpack_from(f"<{2 * slots}Q", index)
        used = [(start, size, "index")]
        parts = {}
        for slot, (offset, nbytes) in enumerate(zip(words[::2], words[1::2])):
            if (offset, nbytes) == (EMPTY, EMPTY):
                continue
            if offset + nbytes > len(data):
                raise Wrong(f"slot {slot}: {offset}+{nbytes} is beyond {len(data)} bytes")
            used.append((offset, nbytes, slot))
            parts[slot] = data[offset:offset + nbytes]
        used.sort()
        for (offset, nbytes, one), (after, _, other) in zip(used, used[1:]):
            if offset + nbytes > after:
                raise Wrong(f"{one} and {other} have bytes in common")
        return parts

    def write_shard(self, path: Path, versions: dict[int, int], shard: tuple[int, int]) -> None:
        """Makes a shard, with gaps as a shard has that was changed before."""
        corner = tuple(at * n for at, n in zip(shard, self.per_shard))
        stored = {}
        for chunk, version in versions.items():
            place = tuple(at - start for at, start in zip(self.coords(chunk), corner))
            stored[place] = self.content(chunk, version)
        if self.nested:
            inner: dict[tuple[int, int], dict] = {}
            for place, part in stored.items():
                outer = tuple(at // n for at, n in zip(place, self.nested))
                within = tuple(at % n for at, n in zip(place, self.nested))
                inner.setdefault(outer, {})[within] = part
            stored = {place: self.joined(parts, self.nested) for place, parts in inner.items()}
            shape = tuple(n // m for n, m in zip(self.per_shard, self.nested))
        else:
            shape = self.per_shard
        data = self.joined(stored, shape)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data + crc32c(data) if self.around else data)

    def joined(self, stored: dict[tuple[int, int], bytes], shape: tuple[int, int]) -> bytes:
        slots = shape[0] * shape[1]
        words, body = [EMPTY] * (2 * slots), bytearray()
        start = self.index_bytes(slots) if self.at_start else 0
        for (row, column), part in stored.items():
            slot = row * shape[1] + column
            words[2 * slot:2 * slot + 2] = start + len(body), len(part)
            body += part
            body += bytes((slot % 3) * 17)
        index = struct.pack(f"<{2 * slots}Q", *words)
        if self.index_checksum:
            index += crc32c(index)
        return index + bytes(body) if self.at_start else bytes(body) + index

    def as_json(self) -> dict:
        return asdict(self)


def crc32c(data: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.value(bytes(data)))


def make_source(source: Path, arrays: list[Array], versions: list[dict[int, int]]) -> None:
    """A group with these arrays; only chunks that have a version exist."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    source.mkdir()
    (source / "zarr.json").write_text(json.dumps(group))
    for array, known in zip(arrays, versions):
        top = source / array.name
        top.mkdir()
        (top / "zarr.json").write_text(json.dumps(array.metadata()))
        by_shard: dict[tuple[int, int], dict[int, int]] = {}
        for chunk, version in known.items():
            by_shard.setdefault(array.shard_of(chunk), {})[chunk] = version
        for shard, members in by_shard.items():
            array.write_shard(top / array.key(shard), members, shard)


def read_source(source: Path, array: Array) -> dict[int, bytes]:
    """The stored bytes of all chunks of an array, from its shards."""
    found = {}
    for shard in array.shards():
        path = source / array.name / array.key(shard)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        try:
            chunks = array.read_shard(data, shard)
        except Wrong as wrong:
            raise Wrong(f"shard {path}: {wrong}") from wrong
        if not chunks:
            raise Wrong(f"shard {path} holds no chunk and is there")
        found |= chunks
    return found


def left_over(source: Path, arrays: list[Array], other: str) -> list[str]:
    """Files and directories of the source that are none of its shards and documents, but for those in
    another directory."""
    wanted = {source / "zarr.json"}
    for array in arrays:
        wanted.add(source / array.name / "zarr.json")
        wanted |= {source / array.name / array.key(shard) for shard in array.shards()}
    left = []
    for top, directories, files in os.walk(source):
        if Path(top) == source and other in directories:
            directories.remove(other)
        left += [str(path) for name in files
                 if (path := Path(top, name)) not in wanted and not name.startswith(".tmp-")]
        left += [str(Path(top, name)) for name in directories if name == ".shardfs"]
    return left


def pending(source: Path, array: Array) -> set[str]:
    """Keys of the shards that the record of an unfinished commit names."""
    try:
        data = (source / array.name / ".shardfs/journal").read_bytes()
    except FileNotFoundError:
        return set()
    if len(data) < 24:
        return set()
    magic, nbytes, check = struct.unpack_from("<8sQQ", data)
    body = data[24:24 + nbytes]
    fingerprint = google_crc32c.value(body) << 32 | zlib.crc32(body)
    if magic != b"shardfs1" or not nbytes or check != fingerprint:
        return set()
    keys = set()
    at = 4
    for _ in range(struct.unpack_from("<I", body)[0]):
        (length,) = struct.unpack_from("<Q", body, at)
        keys.add(body[at + 8:at + 8 + length].decode())
        at += 8 + length + 8 + 8 + 24 + 8  # the key, inode, old length, old index, length
        (count,) = struct.unpack_from("<I", body, at)
        at += 4 + 24 * count
        (count,) = struct.unpack_from("<I", body, at)
        at += 4
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", body, at + 8)
            at += 16 + length
    return keys


def some_arrays(rng: random.Random) -> list[Array]:
    """One to three arrays of different kinds, a few megabytes each at most."""
    arrays = []
    for number in range(rng.choice([1, 1, 2, 3])):
        length, per_shard, grid = rng.choice([
            (64, (16, 16), (32, 30)),
            (520, (8, 8), (20, 16)),
            (520, (1, 64), (4, 128)),
            (4096, (4, 4), (8, 12)),
            (4096, (8, 16), (16, 32)),
            (5000, (2, 32), (4, 64)),
            (32768, (2, 4), (4, 8)),
            (100_000, (2, 2), (4, 5)),
            (400_000, (1, 3), (2, 3)),
        ])
        array = Array(f"a{number}", number, length, per_shard, grid)
        array.at_start = rng.random() < 0.4
        array.index_checksum = rng.random() < 0.9
        array.separator = "." if rng.random() < 0.2 else "/"
        array.packed = rng.random() < 0.4
        array.around = rng.random() < 0.1
        if rng.random() < 0.15 and per_shard[0] % 2 == 0 and per_shard[1] % 2 == 0:
            array.nested = (per_shard[0] // 2, per_shard[1] // 2)
        arrays.append(array)
    return arrays
