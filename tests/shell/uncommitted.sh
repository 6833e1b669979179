#!/bin/bash
# What was done, or accepted, and is not committed: the mount shows it, whatever is written next.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

if [[ $EUID != 0 ]]; then
    skip 'full disks: only root can mount a tmpfs'
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

# small_disk NAME: a disk in memory. Sets disk.
small_disk() {
    disk=$TMP/disk-$1
    mkdir "$disk"
    mount -t tmpfs -o size=1m tmpfs "$disk"
    echo "$disk" >>"$TMP/mounts"
}

failed_rename() {
    local disk
    small_disk "$1-$2"
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


# In a view that decodes, what cannot become a chunk is refused.
refused_later() {
    local how=$1 disk
    small_disk "refused-$how"
    "$SHARDFS" create "$disk/a" --shape 64 --dtype uint8 --chunk 16 --shard 32
    mount_view "$disk/a" --rw --view raw
    mkdir "$MP/c"
    if [[ $how == stored ]]; then
        printf OOOOOOOOOOOOOOOO >"$MP/c/0.raw"
        "$SHARDFS" sync "$MP"
    fi
    fails_with 'No space' dd if=/dev/zero of="$disk/filler" bs=4K
    printf GGGGGGGGGGGGGGGG >"$MP/c/0.raw"
    printf short >"$TMP/short"
    fails_with Invalid cp "$TMP/short" "$MP/c/0.raw"
    [[ $(cat "$MP/c/0.raw") == GGGGGGGGGGGGGGGG ]]
    fails_with Invalid truncate -s 3 "$MP/c/0.raw"
    [[ $(cat "$MP/c/0.raw") == GGGGGGGGGGGGGGGG ]]
    sleep 1.5
    [[ $(cat "$MP/c/0.raw") == GGGGGGGGGGGGGGGG ]]
    # A part of it is changed, as if nothing had been refused.
    printf X | dd of="$MP/c/0.raw" conv=notrunc status=none
    cat "$MP/.shardfs/waiting.txt"
    fails_with '' grep 'given up' "$MP/.shardfs/waiting.txt"
    rm "$disk/filler"
    within 10 "$SHARDFS" sync "$MP"
    [[ $(cat "$MP/c/0.raw") == XGGGGGGGGGGGGGGG ]]
    unmount_view
    [[ $(head -c 16 "$disk/a/c/0") == XGGGGGGGGGGGGGGG ]]
}
for how in stored new; do
    check "what was accepted on a full disk is kept when a later write is refused ($how)" refused_later "$how"
done

removals() {
    local disk said rc=0
    small_disk removals
    "$SHARDFS" create "$disk/a" --shape 8,65536 --dtype uint8 --chunk 1,8192 --shard 4,32768 --codec gzip
    mount_view "$disk/a" --rw --commit-interval 60
    mkdir -p "$MP/c/0"
    for n in 0 1; do echo "$n" >"$MP/c/0/$n"; done
    "$SHARDFS" sync "$MP"
    fails_with 'No space' dd if=/dev/zero of="$disk/filler" bs=4K
    rm "$MP/c/0/0"
    said=$("$SHARDFS" umount "$MP" 2>&1) || rc=$?
    echo "$said"
    [[ $rc == 2 && $said == *'c/0/0 (removal): '* ]]
    [[ $said == *'what could not be committed is not saved if it is a removal: what was to be removed stays'* ]]
    [[ $said != *'is saved below'* ]]
    rm "$disk/filler"
    "$SHARDFS" ls "$disk/a" | grep -F c/0/0
}
check 'umount names removals that could not be committed, of which nothing is saved' removals

# Fill values are no file; the next write makes it one again.
reappears() {
    "$SHARDFS" create "$TMP/fill" --shape 64 --dtype uint8 --chunk 16 --shard 32
    mount_view "$TMP/fill" --rw --view raw
    mkdir "$MP/c"
    python3 - "$MP/c/0.raw" <<'PY'
import os
import sys

path = sys.argv[1]
file = os.open(path, os.O_CREAT | os.O_RDWR)
for _ in range(3):
    os.pwrite(file, bytes(16), 0)
    os.fsync(file)
    assert not os.path.exists(path)
    os.pwrite(file, b"Z" * 16, 0)
    os.fsync(file)
    assert os.path.exists(path)
os.close(file)
PY
    unmount_view
}
check 'a chunk of fill values is there at once when it is written again through the same descriptor' reappears

# What was accepted is committed while a handle has refused contents: from then on others see what is stored.
others_after_refusal() {
    "$SHARDFS" create "$TMP/others" --shape 64 --dtype uint8 --chunk 16 --shard 32
    mount_view "$TMP/others" --rw --view raw --commit-interval 1
    mkdir "$MP/c"
    python3 - "$MP" "$TMP/others/c/0" <<'PY'
import os
import sys
import time

mount, shard = sys.argv[1:]
path = f"{mount}/c/0.raw"


def shown():
    with open(path, "rb") as file:
        return file.read()


file = os.open(path, os.O_CREAT | os.O_RDWR)
os.write(file, b"G" * 16)
os.close(os.dup(file))
os.ftruncate(file, 3)
try:
    os.close(os.dup(file))
    sys.exit("it was not refused")
except OSError as error:
    assert error.strerror == "Invalid argument", error
assert shown() == b"G" * 16
while not os.path.exists(shard):
    time.sleep(0.1)
time.sleep(0.5)
with open(shard, "r+b") as other:
    other.write(b"H" * 16)
time.sleep(1.3)
assert shown() == b"H" * 16, shown()
try:
    os.close(file)
except OSError as error:
    assert error.strerror == "Invalid argument", error
assert shown() == b"H" * 16
PY
    unmount_view
}
check 'what others store is seen while one has written what is refused' others_after_refusal
