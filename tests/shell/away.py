"""Several processes write chunks of one mount while its store goes away for a time: each write is done, or delayed, or
fails; what waits is bounded; and once the store is back, the same mount stores all that was accepted.

    away.py SHARDFS MOUNTPOINT STORE SECONDS LIMIT SOURCE OPTIONS

MOUNTPOINT is a mount of SOURCE, an array with 16 x 16 chunks, with --dirty-limit LIMIT (bytes). STORE is the number of
the store's process, which is stopped for SECONDS. OPTIONS are those of -o, with which another mount finds SOURCE.
"""

import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

shardfs, root, store, seconds, limit, source, options = sys.argv[1:]
root, store, seconds, limit = Path(root), int(store), float(seconds), int(limit)
WRITERS, SIDE, NUMBERS = 4, 16, 8192
NBYTES = 4 * NUMBERS
CHUNKS = [(i, j) for i in range(SIDE) for j in range(SIDE)]
# What a request to the store may take, and a commit that waits for it, when it is back.
LONGEST = 90


def path_of(top, chunk):
    return top / "c" / str(chunk[0]) / str(chunk[1])


class Writer(threading.Thread):
    """Writes a greater number into a chunk of its own each time, again and again until it is accepted."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.own = CHUNKS[number::WRITERS]
        self.random = random.Random(number)
        self.durable, self.accepted = {}, {}
        self.last = self.errors = self.syncs = 0
        self.longest = 0.0
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.is_set():
            self.last += 1
            chunk, begin = self.random.choice(self.own), time.monotonic()
            while not self.put(chunk, self.last):
                self.errors += 1
                time.sleep(0.05)
            self.longest = max(self.longest, time.monotonic() - begin)

    def put(self, chunk, number):
        is_durable = self.random.random() < 0.1
        try:
            write(chunk, number, is_durable)
        except OSError:
            return False
        self.accepted[chunk] = number
        if is_durable:
            self.durable[chunk] = number
            self.syncs += 1
        return True


def write(chunk, number, is_durable):
    file = os.open(path_of(root, chunk), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        assert os.write(file, struct.pack("<I", number) * NUMBERS) == NBYTES
        if is_durable:
            os.fsync(file)
    finally:
        os.close(file)


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def is_stopped():
    """Whether all threads of the store are: one after the other is stopped."""
    states = (task / "stat" for task in Path(f"/proc/{store}/task").iterdir())
    try:
        return all(state.read_text().rpartition(") ")[2].startswith("T") for state in states)
    except (FileNotFoundError, ProcessLookupError):
        # One of them has ended, as it does with its connection.
        return False


def waiting():
    """Bytes of the chunks that wait, at most."""
    lines = (root / ".shardfs/waiting.txt").read_text().splitlines()
    return NBYTES * sum(line.startswith("c/") for line in lines)


def main():
    for chunk in CHUNKS:
        path_of(root, chunk).parent.mkdir(parents=True, exist_ok=True)
        write(chunk, 0, False)
    writers = [Writer(number) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    most = 0
    try:
        soon = time.monotonic() + LONGEST
        while not all(writer.syncs for writer in writers):
            assert time.monotonic() < soon, "nothing is durable while the store is there"
            time.sleep(0.1)
        before = sum(writer.syncs for writer in writers)
        os.kill(store, signal.SIGSTOP)
        soon = time.monotonic() + LONGEST
        while not is_stopped():
            assert time.monotonic() < soon, "the store cannot be stopped"
            time.sleep(0.01)
        back = time.monotonic() + seconds
        while time.monotonic() < back:
            time.sleep(0.2)
            most = max(most, waiting())
    finally:
        os.kill(store, signal.SIGCONT)
        for writer in writers:
            writer.is_over.set()
    until = time.monotonic() + LONGEST
    for writer in writers:
        writer.join(until - time.monotonic())
        assert not writer.is_alive(), "a writer waits for ever"
    while run(shardfs, "sync", root).returncode != 0:
        assert time.monotonic() < until, (root / ".shardfs/waiting.txt").read_text()
        time.sleep(0.5)
    longest, errors = max(writer.longest for writer in writers), sum(writer.errors for writer in writers)
    print(f"writes: {sum(writer.last for writer in writers)}, errors: {errors}, durable before: {before}, in all: "
          f"{sum(writer.syncs for writer in writers)}, longest: {longest:.1f} s, at most {most} bytes waited")
    # It was away, and that is what bounds them.
    assert errors or longest > seconds / 2, (errors, longest)
    # Each writer may have one that was accepted and one that was not.
    assert 0 < most <= limit + 2 * WRITERS * NBYTES, most
    check(writers)


def check(writers):
    """What another mount finds is what was accepted last."""
    expected = {chunk: 0 for chunk in CHUNKS}
    for writer in writers:
        assert all(number >= writer.durable.get(chunk, 0) for chunk, number in writer.accepted.items())
        expected |= writer.accepted
    with tempfile.TemporaryDirectory() as reader:
        made = run(shardfs, "mount", "-o", options, source, reader)
        assert made.returncode == 0, made.stderr
        try:
            for chunk, number in expected.items():
                content = path_of(Path(reader), chunk).read_bytes()
                assert content == struct.pack("<I", number) * NUMBERS, (chunk, number, content[:4])
        finally:
            run(shardfs, "umount", reader)


main()
