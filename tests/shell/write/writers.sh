#!/bin/bash
# Several writers at once: TensorStore's lock files, many threads, two mounts of one source.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

make_arrays dot

# The write of TensorStore's file store, system call by system call.
cat >"$TMP/tensorstore.py" <<'PY'
import fcntl
import os
import struct
import sys

F_OFD_SETLKW = 38


def lock(fd, kind):
    fcntl.fcntl(fd, F_OFD_SETLKW, struct.pack("hhxxxxqqixxxx", kind, os.SEEK_SET, 0, 0, 0))


def generation(stat):
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def locked(name):
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock(fd, fcntl.F_WRLCK)
            again = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            a, b = os.fstat(fd), os.fstat(again)
            os.close(again)
            if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def write(path, data):
    name = path + ".__lock"
    fd = locked(name)
    # Closed whatever happens: the others wait for this lock.
    try:
        assert os.fstat(fd).st_size == 0
        assert os.writev(fd, [data]) == len(data)
        os.fsync(fd)
        written = generation(os.fstat(fd))
        os.rename(name, path)
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)
        assert generation(os.fstat(fd)) == written, (generation(os.fstat(fd)), written)
        lock(fd, fcntl.F_UNLCK)
        return written
    finally:
        os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return generation(os.fstat(fd)), os.pread(fd, 1 << 20, 0)
    finally:
        os.close(fd)
PY

like_tensorstore() {
    fresh "$1"
    local names=(c/0/1 c/4/4)
    [[ $1 != dot ]] || names=(c.0.1 c.4.4)
    cat >"$work/dance.py" <<'PY'
import os
import sys
import time

sys.path.insert(0, sys.argv[1])
import tensorstore

for path in sys.argv[2:]:
    path = os.path.abspath(path)
    for data in b"first" * 100, b"second" * 500, b"third":
        written = tensorstore.write(path, data)
        assert tensorstore.read(path) == (written, data), (tensorstore.read(path)[0], written)
    # A write of a neighbour leaves this chunk's generation as it is, also once the kernel's cache has expired.
    neighbour = path[:-1] + "5"
    tensorstore.write(neighbour, b"neighbour")
    time.sleep(1.1)
    got = tensorstore.read(path)[0]
    assert got == written, (got, written)
    assert not os.path.exists(path + ".__lock")
PY
    both python3 "$work/dance.py" "$TMP" "${names[@]}"
    settled
}
at_once "TensorStore's lock file: inode and mtime survive rename and commit" like_tensorstore slash
at_once "TensorStore's lock file, keys with dots" like_tensorstore dot

# The lock file of a shard is in the directory of its array, where chunks have names like shards.
lock_of_shard() {
    fresh dot
    : >"$source/c.1.0.__lock"
    [[ -z $(find "$MP" -name '*.__lock') ]]
    fails_with 'No such file' stat "$MP/c.1.0.__lock"
    echo data >"$MP/c.1.0.__lock"
    [[ ! -s $source/c.1.0.__lock && $(<"$MP/c.1.0.__lock") == data ]]
    mv "$MP/c.1.0.__lock" "$MP/c.1.0"
    echo data >"$want/c.1.0"
    rm -f "$source/c.1.0.__lock"
    settled
}
at_once "lock files of shards are not shown, and have nothing to do with those of chunks" lock_of_shard

# A lock file that is left does not keep an array from being removed; one that is held does.
removed_with_locks() {
    fresh_group
    mkdir "$source/dots"
    sed 's/"separator": *"\/"/"separator": "."/' "$source/waves/zarr.json" >"$source/dots/zarr.json"
    grep -q '"separator": "."' "$source/dots/zarr.json"
    : >"$source/dots/c.0.0.0.__lock"
    rm -r "$MP/dots"
    [[ ! -e $source/dots ]]
    : >"$source/waves/c/0/0/1.__lock"
    : >"$source/waves/c/0/0/0.__lock"
    python3 - "$source/waves/c/0/0/0.__lock" "$MP/waves" "$source/waves" <<'PY'
import errno
import fcntl
import os
import shutil
import struct
import sys

lock, array, stored = sys.argv[1:]
held = os.open(lock, os.O_RDWR)
fcntl.fcntl(held, 37, struct.pack("hhxxxxqqixxxx", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK
try:
    shutil.rmtree(array)
except OSError as error:
    assert error.errno in (errno.ENOTEMPTY, errno.EBUSY), error
else:
    raise AssertionError("it was removed")
assert os.path.exists(lock) and os.path.exists(f"{stored}/zarr.json")
os.close(held)
shutil.rmtree(array)
assert not os.path.exists(stored)
PY
    unmount_view
}
at_once "lock files that are left do not keep arrays from being removed" removed_with_locks

# Several at once, each on the same chunk: one after the other, never mixed.
locked() {
    fresh $plane
    cat >"$work/locked.py" <<'PY'
import os
import sys
import threading
import traceback

sys.path.insert(0, sys.argv[1])
import tensorstore

path = os.path.abspath(sys.argv[2])
errors = []


def work(n):
    try:
        for i in range(25):
            tensorstore.write(path, bytes([n]) * 3000)
            data = tensorstore.read(path)[1]
            assert len(data) == 3000 and len(set(data)) == 1, (len(data), set(data))
    except Exception:
        errors.append(traceback.format_exc())


threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not errors, "".join(errors)
tensorstore.write(path, b"last")
PY
    both python3 "$work/locked.py" "$TMP" "${present[0]}"
    settled
}
at_once "several writers with lock files" locked

parallel() {
    fresh $plane
    cat >"$work/parallel.py" <<'PY'
import os
import sys
import threading

root, errors = sys.argv[1], []


def work(n):
    try:
        for i in range(20):
            for row in range(5):
                path = f"{root}/c/{row}/{n}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if i % 2:
                    with open(path, "wb") as f:
                        f.write(bytes([n]) * (100 * n + i))
                else:
                    with open(path + ".tmp", "wb") as f:
                        f.write(bytes([n]) * (100 * n + i))
                    os.rename(path + ".tmp", path)
                with open(path, "rb") as f:
                    assert f.read() == bytes([n]) * (100 * n + i), path
    except Exception as e:
        errors.append(repr(e))


threads = [threading.Thread(target=work, args=(n,)) for n in range(11)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert not errors, "".join(errors)
PY
    python3 "$work/parallel.py" "$want"
    python3 "$work/parallel.py" "$MP"
    settled
}
at_once "eleven writers at once" parallel

two_writers() {
    fresh $plane
    local first=$MP second
    mount_view "$source" --rw
    second=$MP
    cat >"$work/writer.py" <<'PY'
import os
import sys
import time

root, parity = sys.argv[1], int(sys.argv[2])
for i in range(40):
    for row in range(4):
        for column in range(parity, 8, 2):
            with open(f"{root}/c/{row}/{column}", "wb") as f:
                f.write(f"{i} {row} {column} ".encode() * (20 + (i * column) % 7))
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
PY
    mkdir -p "$want"/c/{0..3}
    python3 "$work/writer.py" "$want" 0
    python3 "$work/writer.py" "$want" 1
    local writers=()
    python3 "$work/writer.py" "$first" 0 &
    writers+=($!)
    python3 "$work/writer.py" "$second" 1 &
    writers+=($!)
    wait "${writers[0]}"
    wait "${writers[1]}"
    in_shards --mounted
    sleep 1.1
    same_files "$first"
    same_files "$second"
    unmount_view "$first"
    unmount_view "$second"
    in_shards
}
at_once "two mounts write different chunks of the same shards at once: nothing is lost" two_writers

finish
