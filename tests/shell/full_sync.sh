#!/bin/bash
# A full disk below a mount with -o sync: renames that were done, but report an error, and what is written
# right after them.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

if [[ $EUID != 0 ]]; then
    skip 'full disks below -o sync: only root can mount a tmpfs'
    exit 0
fi

cat >"$TMP/failed_rename.py" <<'PY'
"""What the mount shows after a failed rename, and what it stores.

    failed_rename.py MOUNT SOURCE FILLER WHAT HOW    a chunk has 16 KiB, and SOURCE/c/0 begins with the one that is named c/0
"""
import mmap
import os
import sys
import time

mount, source, filler, what, how = sys.argv[1:]
NBYTES = 16384
chunk = f"{mount}/c/0"
other = {"file": f"{chunk}.tmp", "chunk": f"{mount}/c/1"}[what]


def put(path, content, flags=os.O_TRUNC):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    try:
        os.write(file, content)
        os.fsync(file)
    finally:
        os.close(file)


def refused(act, *args):
    try:
        act(*args)
    except OSError as error:
        assert error.strerror == "No space left on device", error
    else:
        raise SystemExit(f"{act} was not refused")


def shown():
    with open(chunk, "rb") as file:
        return file.read()


def stored():
    with open(f"{source}/c/0", "rb") as file:
        return file.read(NBYTES)


def expect(content):
    for found, where in (shown(), "mount"), (stored(), "source"):
        parts = {chr(byte): found.count(byte) for byte in set(found)}
        assert found == content, f"the {where} has {parts}"


put(chunk, b"o" * NBYTES)
if what == "chunk":
    put(other, b"r" * NBYTES)
with open(filler, "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
if what == "file":
    file = os.open(other, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(file, b"r" * NBYTES)
    try:
        os.close(file)
    except OSError:
        pass
refused(os.rename, other, chunk)
os.unlink(filler)

if how == "write":
    put(chunk, b"n" * NBYTES)
    content = bytearray(b"n" * NBYTES)
else:
    # Of what was renamed; a part of it is written before the kernel would have looked the name up by itself.
    put(chunk, b"n" * 9000, 0)
    content = bytearray(b"n" * 9000 + b"r" * (NBYTES - 9000))
expect(content)
time.sleep(1.3)
expect(content)
with open(chunk, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
    mapping[5000] = ord("X")
    mapping.flush()
    os.fsync(file.fileno())
content[5000] = ord("X")
expect(content)
PY

failed_rename() {
    local disk=$TMP/disk-$1-$2
    mkdir "$disk"
    mount -t tmpfs -o size=1m tmpfs "$disk"
    echo "$disk" >>"$TMP/mounts"
    "$SHARDFS" create "$disk/a" --shape 32768 --dtype uint8 --chunk 16384 --shard 32768
    mount_view "$disk/a" --rw -o sync
    mkdir "$MP/c"
    python3 "$TMP/failed_rename.py" "$MP" "$disk/a" "$disk/filler" "$1" "$2"
    unmount_view
    "$SHARDFS" verify --decode "$disk/a" >/dev/null
}
for what in file chunk; do
    for how in write 'write a part'; do
        check "after a rename of a $what that a full disk has failed, $how what the mount shows" failed_rename "$what" "$how"
    done
done

