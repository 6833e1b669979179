#!/usr/bin/env python3
"""Every way in which programs write chunk files, one after the other, on some chunks of an array.

    patterns.py DIR LAYOUT     an array as arrays.py makes it, or a plain directory with its chunk files

Prints what each step has led to: an ordinary directory and a mount must print the same.
"""
import errno
import hashlib
import itertools
import mmap
import os
import random
import sys

import arrays

numbers = random.Random(7)


def some_bytes():
    return numbers.randbytes(numbers.choice([1, 20, 300, 4096, 9000]))


def write_file(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o644)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def create_or_truncate(path):
    write_file(path, some_bytes())


def exclusively(path):
    write_file(path, some_bytes(), os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def without_truncation(path):
    write_file(path, some_bytes(), os.O_RDWR | os.O_CREAT)


def append(path):
    for _ in range(3):
        write_file(path, some_bytes(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def make_empty(path):
    write_file(path, b"")


def truncate_by_name(path):
    os.truncate(path, os.stat(path).st_size // 2)


def extend_by_name(path):
    os.truncate(path, os.stat(path).st_size + 5000)


def truncate_open(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, 0)
    os.write(fd, b"file channel")
    os.ftruncate(fd, 5)
    os.close(fd)


def in_pieces(path):
    """Out of order, with a hole that reads as zeros; read back before it is closed."""
    data = some_bytes()
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, data, 5000)
    os.pwrite(fd, b"first", 0)
    os.pwrite(fd, b"middle", 2999)
    print("    before close:", fingerprint(os.pread(fd, 1 << 20, 0)))
    os.close(fd)


def vectored(path):
    """TensorStore's file store: writev, fsync, all before the descriptor is closed."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.writev(fd, [b"one", some_bytes(), b"three"])
    os.fsync(fd)
    os.close(fd)


def by_rename(path):
    """zarr-python's local store"""
    temporary = os.path.splitext(path)[0] + f".{numbers.getrandbits(128):032x}.partial"
    write_file(temporary, some_bytes())
    os.rename(temporary, path)
    gone(temporary)


def by_rename_while_open(path):
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, some_bytes())
    os.fsync(fd)
    os.rename(temporary, path)
    # The descriptor is the chunk's now.
    os.pwrite(fd, b"after the rename", 2)
    print("    same file:", os.fstat(fd).st_ino == os.stat(path).st_ino)
    os.close(fd)


def by_link(path):
    """zarr-python where nothing may be replaced"""
    temporary = path + ".partial"
    write_file(temporary, some_bytes())
    try:
        os.link(temporary, path)
    finally:
        os.unlink(temporary)


def by_mapping(path):
    with open(path, "r+b") as f:
        f.truncate(6000)
        with mmap.mmap(f.fileno(), 6000) as m:
            m[100:110] = b"by mapping"
            m[5990:] = b"at the end"
            m.flush()


def remove(path):
    os.unlink(path)
    gone(path)


def remove_while_open(path):
    fd = os.open(path, os.O_RDWR)
    os.unlink(path)
    gone(path)
    os.pwrite(fd, b"still mine", 1)
    print("    open:", fingerprint(os.pread(fd, 1 << 20, 0)))
    os.close(fd)


def replace_while_read(path):
    """A reader goes on with what it has opened."""
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 1, 0)
    by_rename(path)
    print("    reader:", fingerprint(os.pread(fd, 1 << 20, 0)))
    os.close(fd)


def from_chunk_to_chunk(path, other):
    os.rename(path, other)
    gone(path)


def twice(path):
    """What is written later counts, though it is written while the first is on its way."""
    write_file(path, some_bytes())
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    write_file(path, some_bytes())
    os.fsync(fd)
    os.close(fd)
    write_file(path, some_bytes())


def gone(path):
    try:
        os.stat(path)
    except FileNotFoundError:
        return
    raise AssertionError(f"{path} is still there")


PATTERNS = [
    create_or_truncate, exclusively, without_truncation, append, make_empty, truncate_by_name, extend_by_name,
    truncate_open, in_pieces, vectored, by_rename, by_rename_while_open, by_link, by_mapping, remove,
    remove_while_open, replace_while_read, from_chunk_to_chunk, twice,
]


def fingerprint(data):
    return f"{len(data)} {hashlib.sha256(data).hexdigest()[:12]}"


def state(path):
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as f:
            data = f.read()
    except FileNotFoundError:
        return "none"
    assert size == len(data), f"{path}: {size} bytes, read {len(data)}"
    return fingerprint(data)


def main():
    root, layout = sys.argv[1:]
    meta = arrays.LAYOUTS[layout]
    _, grid = arrays.chunk_grid(meta)
    keys = [arrays.key(meta, where) for where in itertools.product(*map(range, grid))]
    numbers.shuffle(keys)
    for n in range(6 * len(PATTERNS)):
        pattern = PATTERNS[n % len(PATTERNS)]
        # What a step writes does not depend on the outcome of another.
        numbers.seed(n)
        chosen = [keys[(n + i) % len(keys)] for i in range(pattern.__code__.co_argcount)]
        if len(set(chosen)) < len(chosen):
            continue
        paths = [os.path.join(root, key) for key in chosen]
        for path in paths:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            pattern(*paths)
            outcome = "done"
        except OSError as e:
            outcome = errno.errorcode[e.errno]
        print(pattern.__name__, *chosen, outcome, *map(state, paths), flush=True)
        # Commits in between: afterwards chunks are in shards, not in the mount.
        if n % 7 == 6:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(fd)
            os.close(fd)


if __name__ == "__main__":
    main()
