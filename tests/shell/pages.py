"""What the kernel keeps of files that are open in a writable mount.

    pages.py write FILE SECONDS LAST    threads write ranges of one page and read them back; LAST gets its end
    pages.py compare FILE LAST          FILE holds what LAST says
    pages.py follow FILE SOURCE         others change SOURCE, which is FILE in the mount, while it is open
    pages.py beside DIR SOURCE          the same of files in a directory, just while they are written to

A line for each thing looked at: "ok NAME" or "FAIL NAME: why".
"""

import mmap
import os
import sys
import threading
import time

THREADS, RANGE = 8, 64
MAPPED = {0, 3, 6}


def say(name, found):
    print(f"FAIL {name}: {found}" if found else f"ok   {name}")


def stamped(thread, number):
    return (b"%d:%09d;" % (thread, number)).ljust(RANGE, b"%d" % thread)


class Writer:
    """A thread that has a range of the file for itself."""

    def __init__(self, path, thread):
        self.path, self.thread, self.number, self.old = path, thread, 0, []
        self.at = slice(thread * RANGE, (thread + 1) * RANGE)

    def expect(self, how, found):
        if found != self.last:
            self.old.append(f"{how}: {found[:11]} after {self.last[:11]}")

    def write(self, times):
        descriptor = os.open(self.path, os.O_RDWR)
        mapping = mmap.mmap(descriptor, THREADS * RANGE) if self.thread in MAPPED else None
        for _ in range(times):
            self.number += 1
            self.last = stamped(self.thread, self.number)
            if mapping:
                mapping[self.at] = self.last
                self.expect("mapped", mapping[self.at])
            else:
                os.pwrite(descriptor, self.last, self.at.start)
                self.expect("by its descriptor", os.pread(descriptor, RANGE, self.at.start))
            if self.number % 8 == 0:
                os.fstat(descriptor)
        if mapping:
            mapping.flush()
            mapping.close()
        os.close(descriptor)

    def read(self):
        with open(self.path, "rb") as file:
            self.expect("opened anew", file.read()[self.at])


def write(path, seconds, last):
    end = time.monotonic() + float(seconds)
    writers = [Writer(path, thread) for thread in range(THREADS)]

    def run(writer):
        while time.monotonic() < end:
            # Most open the file anew all the time, some seldom.
            writer.write(500 if writer.thread % 4 == 0 else 5)
            writer.read()

    threads = [threading.Thread(target=run, args=[writer]) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    old = [found for writer in writers for found in writer.old]
    writes = sum(writer.number for writer in writers)
    say("each thread reads what it has written", old and f"{len(old)} of {writes} not: {old[:3]}")
    with open(last, "wb") as file:
        file.write(b"".join(writer.last for writer in writers))


def compare(path, last):
    found, expected = (open(name, "rb").read() for name in (path, last))
    lost = [at for at in range(THREADS) if found[at * RANGE : (at + 1) * RANGE] != expected[at * RANGE :][:RANGE]]
    say("what was written last is there", lost and f"not that of threads {lost}")


def follow(path, source):
    with open(source, "wb") as file:
        file.write(b"a" * 100)
    time.sleep(1.1)
    reading = os.open(path, os.O_RDONLY)
    others = os.open(source, os.O_WRONLY | os.O_APPEND)
    os.pread(reading, 4096, 0)
    zeros = 0
    for _ in range(300):
        os.write(others, b"b" * 7)
        size = os.fstat(reading).st_size
        zeros += os.pread(reading, size, 0).count(0)
        # What the kernel believes of its length ends after a second; who changes attributes asks before.
        os.utime(reading)
    say("no reader of a file that grows gets zeros in the place of what was appended", zeros and f"{zeros} of them")
    own = os.open(path, os.O_WRONLY | os.O_APPEND)
    for _ in range(100):
        os.write(own, b"c" * 5)
        os.write(others, b"d" * 3)
        zeros += os.pread(reading, os.fstat(reading).st_size, 0).count(0)
    say("nor beside writes through the mount", zeros and f"{zeros} of them")
    os.close(own)

    def settled(name):
        found, expected = b"", open(source, "rb").read()
        # Five seconds, and longer where everything takes longer.
        for _ in range(50):
            if found == expected:
                break
            time.sleep(0.1)
            # Nobody asks for attributes.
            found = os.pread(reading, len(expected), 0)
        say(name, found != expected and f"{found[:20]}..., {len(found)} bytes, not {expected[:20]}..., {len(expected)}")

    settled("who reads on sees what was appended")
    with open(source, "r+b") as file:
        file.write(b"changed in place")
    settled("who reads on sees what was changed in place")
    own = os.open(path, os.O_RDWR)
    os.pwrite(own, b"own", 0)
    os.pread(own, 4096, 0)
    dates = os.stat(source)
    with open(source, "r+b") as file:
        file.seek(50)
        file.write(b"others")
    os.utime(source, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    with open(path, "rb") as file:
        file.read()
    settled("who reads on sees what was changed beside a write, though its date was put back")
    for descriptor in (own, others, reading):
        os.close(descriptor)
    with open(path, "rb") as file:
        found = file.read()
    say("and so who opens it anew", found != open(source, "rb").read() and found[:60])


def beside(directory, source):
    # On a busy machine they may be seen later.
    for silence in 3, 10, 30:
        if not (old := old_after(silence, directory, source)):
            break
    say("what others change beside writes is seen soon after them", old and f"not in {len(old)} of {FILES} files")


FILES = 200


def old_after(silence, directory, source):
    """Files in which a change by others, beside writes, is not seen by who reads that many seconds later."""
    files = FILES
    for number in range(files):
        with open(f"{source}/{silence}.{number}", "wb") as file:
            file.write(b"a" * 8192)
    time.sleep(1.1)
    names = [f"{silence}.{number}" for number in range(files)]
    own, others = ([os.open(f"{at}/{name}", os.O_RDWR) for name in names] for at in (directory, source))
    asked, ask = os.pipe()
    done, tell = os.pipe()
    # Another process: threads of one take turns.
    child = os.fork()
    if child == 0:
        for number in range(files):
            os.read(asked, 1)
            end = time.perf_counter() + number % 17 / 6000
            while time.perf_counter() < end:
                pass
            os.pwrite(others[number], b"others", 4096)
            os.write(tell, b".")
        os._exit(0)
    for number in range(files):
        os.pread(own[number], 8192, 0)
        os.write(ask, b".")
        end = time.monotonic() + 0.006
        while time.monotonic() < end:
            os.pwrite(own[number], b"own", 0)
        os.read(done, 1)
    os.waitpid(child, 0)
    # Nobody reads, or asks for attributes, meanwhile.
    time.sleep(silence)
    old = [number for number in range(files) if os.pread(own[number], 6, 4096) != b"others"]
    for descriptor in [*own, *others]:
        os.close(descriptor)
    return old


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    {"write": write, "compare": compare, "follow": follow, "beside": beside}[command](*arguments)
