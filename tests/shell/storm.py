"""Several mounts of one bucket write chunks of the same shards, while mounts and the store are killed again and again:
what was reported as durable is there, or what its writer has written after it.

    storm.py SHARDFS URL SCRATCH SECONDS MOUNTS GATEWAY STORE

URL is that of an array of uint32 with chunks of 4 x 4 elements, none of which is stored. Each mount has a writer, and
each writer chunks of its own, in all shards. It writes a number into all elements of a chunk, a greater one each time.
GATEWAY and STORE are tests/servers/radosgw.sh and its directory. What mounts could not commit is removed.
"""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

shardfs, url, scratch, seconds, mounts, gateway, store = sys.argv[1:]
scratch, seconds, mounts = Path(scratch), float(seconds), int(mounts)
UNSAVED = Path("/var/lib/shardfs/unsaved")
SIDE = 8
chunks = [(i, j) for i in range(SIDE) for j in range(SIDE)]
# When it is over.
is_over = threading.Event()


def run(*args, timeout=60):
    return subprocess.run(args, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Mount:
    """One mount, made anew after it was killed, and its writer."""

    def __init__(self, number):
        self.number = number
        self.at = scratch / f"mount{number}"
        self.at.mkdir()
        self.own = chunks[number::mounts]
        self.random = random.Random(number)
        self.last = 0
        self.durable = {}
        self.written = {chunk: [] for chunk in self.own}
        self.kills = self.errors = self.syncs = 0
        self.lock = threading.Lock()
        self.process = None
        self.pids = []

    def mount(self):
        until = time.monotonic() + 60
        while not os.path.ismount(self.at):
            options = "--rw", "--foreground", "--commit-interval", "0.5", "-o", "timeout=10"
            with open(scratch / f"log{self.number}", "ab") as log:
                self.process = subprocess.Popen(
                    [shardfs, "mount", *options, url, self.at], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.pids.append(self.process.pid)
            while self.process.poll() is None and not os.path.ismount(self.at):
                time.sleep(0.05)
            # The store may be down.
            assert time.monotonic() < until, f"{self.at}: it cannot be mounted"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.kills += 1
        # No write goes to the directory below.
        with self.lock:
            run("umount", "--lazy", str(self.at))
            self.mount()

    def write(self):
        while not is_over.is_set():
            self.last += 1
            number, chunk = self.last, self.random.choice(self.own)
            self.written[chunk].append(number)
            with self.lock:
                try:
                    self.put(chunk, number)
                except OSError:
                    self.errors += 1
            time.sleep(0.01)

    def put(self, chunk, number):
        path = self.at / "c" / str(chunk[0]) / str(chunk[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(struct.pack("<I", number) * 16)
            file.flush()
            # Not each: what is written meanwhile is committed together.
            if self.random.random() < 0.3:
                os.fsync(file.fileno())
                self.durable[chunk] = number
                self.syncs += 1

    def end(self):
        # Some wait for a store that is slow.
        until = time.monotonic() + 120
        while run(shardfs, "sync", str(self.at), timeout=120).returncode != 0:
            assert time.monotonic() < until, f"{self.at}: it cannot be committed"
            time.sleep(0.5)
        ended = run(shardfs, "umount", str(self.at), timeout=120)
        assert ended.returncode == 0, ended.stderr
        self.process.wait(60)


def kill_store():
    pid = int((Path(store) / "run" / "client.rgw.a.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    run(gateway, "gateway", store)


def main():
    all_mounts = [Mount(number) for number in range(mounts)]
    try:
        storm(all_mounts)
    finally:
        for mount in all_mounts:
            run("umount", "--lazy", str(mount.at))
            if mount.process and mount.process.poll() is None:
                mount.process.kill()
            for pid in mount.pids:
                for left in UNSAVED.glob(f"*-{pid}"):
                    shutil.rmtree(left, ignore_errors=True)


def storm(all_mounts):
    for mount in all_mounts:
        mount.mount()
    writers = [threading.Thread(target=mount.write) for mount in all_mounts]
    for writer in writers:
        writer.start()
    choice, stores, begun = random.Random(1), 0, time.monotonic()
    last = begun
    # On a busy machine until enough has become durable.
    while (passed := time.monotonic() - begun) < seconds - 3 or (syncs(all_mounts) <= seconds and passed < seconds + 300):
        time.sleep(2)
        choice.choice(all_mounts).kill()
        if time.monotonic() - last > 8:
            kill_store()
            stores, last = stores + 1, time.monotonic()
    time.sleep(3)
    is_over.set()
    for writer in writers:
        writer.join()
    for mount in all_mounts:
        mount.end()
    wrong = check(all_mounts)
    for name in "last", "syncs", "errors", "kills":
        print(f"{name}: {sum(getattr(mount, name) for mount in all_mounts)}", end=", ")
    print(f"the store was killed: {stores}")
    sys.stdout.flush()
    assert not wrong, wrong
    assert syncs(all_mounts) > seconds


def syncs(all_mounts):
    return sum(mount.syncs for mount in all_mounts)


def check(all_mounts):
    """What is wrong, as a mount that knows nothing shows it."""
    reader, wrong = scratch / "reader", []
    reader.mkdir()
    made = run(shardfs, "mount", url, str(reader))
    assert made.returncode == 0, made.stderr
    try:
        for mount in all_mounts:
            for chunk in mount.own:
                path = reader / "c" / str(chunk[0]) / str(chunk[1])
                numbers = set(struct.unpack("<16I", path.read_bytes())) if path.exists() else {0}
                durable = mount.durable.get(chunk, 0)
                possible = {number for number in mount.written[chunk] if number >= durable} | {durable}
                if len(numbers) != 1 or not numbers <= possible:
                    wrong.append((chunk, numbers, durable, mount.written[chunk][-5:]))
    finally:
        run(shardfs, "umount", str(reader))
    return wrong


main()
