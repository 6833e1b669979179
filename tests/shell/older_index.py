"""Chunks of an array in generations, and what of them a shard may show after it was put back to an older index.

older_index.py write VIEW HISTORY GENERATION    make a generation of changes in a mount with the view raw
older_index.py append SHARD HISTORY COUNT CODEC write a shard as a program does that only appends
older_index.py damage SHARD HOW SLOTS SEED      make the index of a shard unreadable
older_index.py ever VIEW HISTORY COUNT          every chunk is as some generation has left it
older_index.py exactly VIEW HISTORY COUNT       the chunks are those that this many generations leave

A history is a number, for random changes of 8 x 8 chunks of 2 KiB; "grown-" and a number, if chunks are only added; or
"moved", for three long chunks.
"""

import gzip
import os
import random
import struct
import sys

EDGE, CHUNK = 8, 2048
LONG = 1 << 16
# Chunks of equal length, the last of which stand where others were: the first index is not written over.
MOVED = ["ab", "c", "ab", "b", "a", "c"]


def content(history, generation, place):
    """What a generation writes to a chunk: no two are equal, and they compress differently well."""
    numbers = random.Random(f"{history} {generation} {place}")
    if history == "moved":
        return numbers.randbytes(LONG)
    head = numbers.randbytes(8)
    noise = numbers.randbytes(numbers.randrange(0, CHUNK - 8, 64))
    return head + noise + head[:1] * (CHUNK - 8 - len(noise))


def changes(history, generation):
    """The changes of a generation by place: new contents, or None where a chunk is removed."""
    if history == "moved":
        return {("abcd".index(name),): content(history, generation, name) for name in MOVED[generation]}
    numbers = random.Random(f"{history} {generation}")
    every = [(row, column) for row in range(EDGE) for column in range(EDGE)]
    if history.startswith("grown"):
        random.Random(history).shuffle(every)
        chosen = every[:24] if generation == 0 else every[16 + 8 * generation : 24 + 8 * generation]
        return {place: content(history, generation, place) for place in chosen}
    chosen = numbers.sample(every, 48 if generation == 0 else 10)
    remove = {place for place in chosen if generation and numbers.random() < 0.2}
    return {place: None if place in remove else content(history, generation, place) for place in chosen}


def states(history, count):
    """All chunks after each generation."""
    now = {}
    for generation in range(count):
        now = now | changes(history, generation)
        yield {place: chunk for place, chunk in now.items() if chunk is not None}


def path_of(view, place):
    return os.path.join(view, "c", *map(str, place)) + ".raw"


def write(view, history, generation):
    for place, chunk in changes(history, generation).items():
        path = path_of(view, place)
        if chunk is None:
            if os.path.exists(path):
                os.remove(path)
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(chunk)


def crc32c(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def append(shard, history, count, codec):
    """Each generation goes behind the one before, with an index of its own."""
    os.makedirs(os.path.dirname(shard), exist_ok=True)
    entries = [(2**64 - 1,) * 2] * (EDGE * EDGE)
    with open(shard, "wb") as file:
        for generation in range(count):
            for (row, column), chunk in changes(history, generation).items():
                slot = row * EDGE + column
                if chunk is None:
                    entries[slot] = (2**64 - 1,) * 2
                    continue
                encoded = gzip.compress(chunk) if codec == "gzip" else chunk
                entries[slot] = (file.tell(), len(encoded))
                file.write(encoded)
            index = b"".join(struct.pack("<QQ", *entry) for entry in entries)
            file.write(index + struct.pack("<I", crc32c(index)))


def damage(shard, how, slots, seed):
    numbers = random.Random(seed)
    with open(shard, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        index = size - slots * 16 - 4
        if how in ("byte", "byte-at-start", "bytes", "sum"):
            # One byte anywhere in the index; or two, next to each other, of it or of its checksum.
            wrong = 1 if how.startswith("byte-") or how == "byte" else 2
            first = {"byte-at-start": 0, "sum": size - 4}.get(how, index)
            end = slots * 16 + 4 if how == "byte-at-start" else size
            place = numbers.randrange(first, end - wrong + 1)
            file.seek(place)
            was = file.read(wrong)
            file.seek(place)
            file.write(bytes(byte ^ numbers.randrange(1, 256) for byte in was))
        elif how == "half":
            file.truncate(index + slots * 8)
        elif how == "few":
            file.truncate(size - numbers.randrange(5, 20))
        else:
            file.write(numbers.randbytes(numbers.randrange(1, 5000)))


def shown(view):
    """The chunks of a mount by place."""
    found = {}
    for directory, _, names in os.walk(os.path.join(view, "c")):
        for name in names:
            path = os.path.join(directory, name)
            place = tuple(map(int, os.path.relpath(path, os.path.join(view, "c"))[: -len(".raw")].split("/")))
            with open(path, "rb") as file:
                found[place] = file.read()
    return found


def ever(view, history, count):
    written = {}
    for state in states(history, count):
        for place, chunk in state.items():
            written.setdefault(place, set()).add(chunk)
    found = shown(view)
    assert found, "there are no chunks"
    wrong = sorted(place for place, chunk in found.items() if chunk not in written.get(place, ()))
    assert not wrong, f"never written there: {wrong}"


def exactly(view, history, count):
    *_, expected = states(history, count)
    found = shown(view)
    wrong = sorted(place for place in found | expected if found.get(place) != expected.get(place))
    assert not wrong, f"others than after {count} generations: {wrong}"


if __name__ == "__main__":
    command, path, *rest = sys.argv[1:]
    match command:
        case "write":
            write(path, rest[0], int(rest[1]))
        case "append":
            append(path, rest[0], int(rest[1]), rest[2])
        case "damage":
            damage(path, rest[0], int(rest[1]), int(rest[2]))
        case "ever":
            ever(path, rest[0], int(rest[1]))
        case "exactly":
            exactly(path, rest[0], int(rest[1]))
