#!/bin/bash
# No read and no listing ever returns a mixture of two versions.

# On a busy machine.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-2400}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# across CHANGE DELAY REREAD: a descriptor that has read half of a chunk goes on after the change.  All of
# the old version, or an error; with REREAD another reader has fetched the new version in between.
across() {
    fresh
    python3 - "$MP/c/0" "$2" "$3" $size "$1" "$source/c/0" "$TMP/second" <<'PY'
import errno
import os
import shutil
import sys
import time

path, delay, reread, size, how, shard, new = sys.argv[1:]
half = int(size) // 2
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)        # no readahead past what is asked for
got = os.pread(fd, 4096, 0)
if how == "by_rename":
    shutil.copyfile(new, shard + ".tmp")
    os.rename(shard + ".tmp", shard)
else:
    with open(new, "rb") as f, open(shard, "r+b") as g:
        g.write(f.read())
        g.truncate()
time.sleep(float(delay))
if reread == "yes":
    with open(path, "rb") as f:
        fresh = f.read()
    assert set(fresh) == {2}, f"a new reader gets {set(fresh)}"
try:
    for offset in range(4096, int(size), 65536):
        got += os.pread(fd, 65536, offset)
    # Once more from the start: the page that was read first may have been dropped.
    got += os.pread(fd, 4096, 0)
    print("values", set(got))
    assert len(set(got)) == 1, f"mixed: {({b: got.count(b) for b in set(got)})}"
except OSError as e:
    print("error", errno.errorcode[e.errno])
    assert e.errno in (errno.EIO, errno.ESTALE), e
PY
    unmount_view
}
for how in by_rename in_place; do
    check "an open descriptor, at once ($how)" across $how 0 no
    check "an open descriptor, later ($how)" across $how 1.2 no
    check "an open descriptor, after another has read the new version ($how)" across $how 1.2 yes
done

# beside LATER: a reader that has its first bytes from the kernel's pages, which another one has filled, goes on
# after a change in place: LATER if it was opened when that one had ended.
beside() {
    fresh
    python3 - "$MP/c/0" "$1" "$source/c/0" "$TMP/second" <<'PY'
import errno
import os
import sys
import time

path, later, shard, new = sys.argv[1:]


def opened():
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


first = opened()
second = None if later else opened()
os.pread(first, 4096, 0)
if later:
    os.close(first)
    time.sleep(1.3)
    second = opened()
got = os.pread(second, 4096, 0)
with open(new, "rb") as f, open(shard, "r+b") as g:
    g.write(f.read())
    g.truncate()
try:
    got += os.pread(second, 65536, 8192)
    print("values", set(got))
    assert len(set(got)) == 1, f"mixed: {({b: got.count(b) for b in set(got)})}"
except OSError as e:
    print("error", errno.errorcode[e.errno])
    assert e.errno in (errno.EIO, errno.ESTALE), e
PY
    unmount_view
}
check "a descriptor whose first bytes another one has read" beside ''
check "a descriptor whose first bytes another one has read, which is closed" beside later

# A chunk that is opened within a second after a change, while the kernel still has its name, is another file than the
# one that was open before (renewed SUFFIX OPTION...): neither a mapping of it nor a lookup by others mixes or ends them.
renewed() {
    fresh "${@:2}"
    python3 - "$MP/c/0$1" "$source/c/0" "$TMP/second" <<'PY'
import mmap
import os
import shutil
import sys
import time

path, shard, new = sys.argv[1:]
old = os.open(path, os.O_RDONLY)
os.posix_fadvise(old, 0, 0, os.POSIX_FADV_RANDOM)
os.pread(old, 1000, 0)                  # a page of the first version
shutil.copyfile(new, shard + ".tmp")
os.rename(shard + ".tmp", shard)
time.sleep(0.2)
fd = os.open(path, os.O_RDONLY)
size = os.fstat(fd).st_size
with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
    found = set(mapped[size // 2:]) | set(mapped[128:1000])
    assert found == {2}, f"mapped: {found}"
time.sleep(1.2)
os.stat(path)
found = set(os.pread(fd, size, 128))
assert found == {2}, f"after a lookup: {found}"
PY
    unmount_view
}
check "a chunk that is opened at once after a change is another file" renewed ''
check "the same of a decoded chunk" renewed .npy --view npy

# A decoded chunk that is open while its shard is replaced: neither it nor one that is opened afterwards, in the same
# second, mixes the two.
decoded() {
    fresh "$@"
    python3 - "$MP/c/0.npy" "$source/c/0" "$TMP/second" <<'PY'
import errno
import os
import shutil
import sys
import time

path, shard, new = sys.argv[1:]
old = os.open(path, os.O_RDONLY)
os.posix_fadvise(old, 0, 0, os.POSIX_FADV_RANDOM)
got = os.pread(old, 1000, 0)
shutil.copyfile(new, shard + ".tmp")
os.rename(shard + ".tmp", shard)
time.sleep(0.3)
other = open(path, "rb", buffering=0)
for wait in 0, 1.5:
    time.sleep(wait)
    # A reader that was given an error does not go on.
    try:
        if old is None:
            raise OSError(errno.EIO, "given up")
        rest = b"".join(os.pread(old, 4096, at) for at in range(4096, os.fstat(old).st_size, 4096))
        assert set(rest) == {1}, {byte: rest.count(byte) for byte in set(rest)}
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ESTALE), error
        old = None
    try:
        other.seek(4096)
        rest = other.readall()
        assert set(rest) == {2}, {byte: rest.count(byte) for byte in set(rest)}
    except OSError as error:
        assert wait and error.errno in (errno.EIO, errno.ESTALE), error
PY
    unmount_view
}
check "a decoded chunk that is open while it is replaced" decoded --view npy
check "the same in a mount for writing" decoded --view npy --rw

# What changes around an open decoded chunk does not end it.
decoded_stays() {
    fresh "$@"
    python3 - "$MP/c/0.npy" "$source/c/0" <<'PY'
import os
import shutil
import sys
import time

path, shard = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
got = os.pread(fd, 1000, 0)
os.chmod(shard, 0o640)
time.sleep(1.2)
got += os.pread(fd, 4096, 8192)
os.link(shard, shard + ".copy")
os.remove(shard + ".copy")
shutil.copyfile(shard, shard + ".tmp")
os.rename(shard + ".tmp", shard)
time.sleep(1.2)
got += os.pread(fd, 4096, 65536)
assert set(got[128:]) == {1}, set(got[128:])
PY
    unmount_view
}
check "a decoded chunk stays open while its shard is replaced by a copy" decoded_stays --view npy
check "a decoded chunk stays open likewise in a mount for writing" decoded_stays --view npy --rw

# Readers and a writer that replaces shards all the time: every read of a whole file is of one version.
storm() {
    fresh
    python3 - "$MP/c" "$source/c/0" "$TMP/second" "$TMP/third" <<'PY'
import os
import shutil
import sys
import threading
import time

view, shard, *versions = sys.argv[1:]
begun = time.monotonic()
mixed, reads, errors, latest = [], 0, [], 0


def is_over():
    # On a busy machine all of it takes longer. Each reader may end with an error.
    passed = time.monotonic() - begun
    return passed > 300 or passed > 4 and reads > 20 and reads > len(errors) + 3


def write():
    n = 0
    while not is_over():
        shutil.copyfile(versions[n % len(versions)], shard + ".tmp")
        os.rename(shard + ".tmp", shard)
        n += 1
        # As long as a file is read in.
        time.sleep(max(0.02, latest))


def read(name):
    global reads, latest
    while not is_over():
        began = time.monotonic()
        try:
            with open(os.path.join(view, name), "rb", buffering=0) as f:
                got = b""
                while part := f.read(50000):
                    got += part
            if len(set(got)) != 1 or len(got) != 524288:
                mixed.append((name, len(got), {b: got.count(b) for b in set(got)}))
            reads += 1
            latest = time.monotonic() - began
        except OSError as e:
            errors.append(e.errno)


threads = [threading.Thread(target=write)] + [threading.Thread(target=read, args=(n,)) for n in ("0", "0", "3")]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(reads, "reads,", len(errors), "errors", set(errors), mixed[:3])
assert not mixed, f"{len(mixed)} of {reads} reads mixed"
# Giving up on a reader whose shard was replaced is allowed, but not all the time.
assert reads > 20 and reads > len(errors)
PY
    settle
    unmount_view
}
check "readers while shards are replaced all the time" storm

# Directory listings during that: every name once, chunks that were there all the time are never missing.
listings() {
    fresh
    python3 - "$MP/c" "$source/c/0" "$TMP/second" "$TMP/fewer" <<'PY'
import os
import shutil
import sys
import threading
import time

view, shard, *versions = sys.argv[1:]
stop = time.monotonic() + 2
always = {"1", "2", *map(str, range(4, 12))}


def write():
    n = 0
    while time.monotonic() < stop:
        shutil.copyfile(versions[n % 2], shard + ".tmp")
        os.rename(shard + ".tmp", shard)
        n += 1
        time.sleep(0.05)


thread = threading.Thread(target=write)
thread.start()
while time.monotonic() < stop:
    names = os.listdir(view)
    assert len(names) == len(set(names)), names
    assert always <= set(names), always - set(names)
thread.join()
PY
    unmount_view
}
check "listings while shards are replaced all the time" listings
