#!/bin/bash
# Chunks are written through a mount while others change the source: no stale bytes, no wrong dates.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# put CHUNK VALUE: writes a chunk through the mount, and waits until it is stored
put() {
    head -c $size /dev/zero | tr '\0' "\\$(printf %o "$2")" >"$MP/c/$1"
    "$SHARDFS" sync "$MP"
}

# A chunk that was written here has a date of its own, until others change the shard.
written_here_and_by_others() {
    fresh --rw
    put 0 5
    put 1 6
    shows "$MP/c/0" 5
    settle
    shows "$MP/c/0" 5
    "$1" "$source/c/0" "$TMP/second"
    local when
    when=$(stat -c %.Y "$source/c/0")
    settle
    put 1 7
    settle
    shows "$MP/c/0" 2
    shows "$MP/c/1" 7
    shows "$MP/c/2" 2
    [[ $(stat -c %.Y "$MP/c/0") == "$when" ]]
    [[ $(stat -c %.Y "$MP/c/2") == "$when" ]]
    unmount_view
}
check "chunks written here, then by others by rename, then here" written_here_and_by_others by_rename
check "chunks written here, then by others in place, then here" written_here_and_by_others in_place

# A descriptor or mapping from before the change does not write stale bytes over those of others.
opened_before_others() {
    fresh --rw
    make_shard "$TMP/same" 9
    python3 - "$MP/c/0" "$1" "$source/c/0" "$TMP/same" <<'PY'
import errno
import mmap
import os
import shutil
import sys
import time

chunk, way, shard, other = sys.argv[1:]
size = os.path.getsize(chunk)
opened = os.open(chunk, os.O_RDWR | (os.O_APPEND if way == "append" else 0))
assert os.pread(opened, size, 0) == bytes([1]) * size
mapping = mmap.mmap(opened, 0)
assert mapping[:] == bytes([1]) * size
before = os.stat(shard)
shutil.copyfile(other, shard + ".new")
os.utime(shard + ".new", ns=(before.st_atime_ns, before.st_mtime_ns))
os.rename(shard + ".new", shard)
time.sleep(1.3)
try:
    if way == "mapping":
        mapping[5000] = 7
        mapping.flush()
        os.fsync(opened)
    else:
        os.pwrite(opened, b"7", 5000)
    sys.exit("it is written")
except OSError as error:
    assert error.errno in (errno.ESTALE, errno.EIO), error
del mapping
try:
    os.close(opened)
except OSError as error:
    assert error.errno == errno.ESTALE, error
PY
    "$SHARDFS" sync "$MP" || true
    shows "$MP/c/0" 9
    "$SHARDFS" sync "$MP"
    unmount_view
    mount_view "$source"
    shows "$MP/c/0" 9
    unmount_view
}
for way in write append mapping; do
    check "a descriptor from before a change by others: $way" opened_before_others "$way"
done

# The kernel caches the old length for a second.
append_after_others() {
    fresh --rw
    printf 'first' >"$MP/c/0"
    "$SHARDFS" sync "$MP"
    printf 'note' >"$MP/note"
    stat "$MP/c/0" "$MP/note" >/dev/null
    mkdir "$TMP/other.$1"
    timeout 30 "$SHARDFS" mount --rw "$source" "$TMP/other.$1" </dev/null
    echo "$TMP/other.$1" >>"$TMP/mounts"
    printf ' of all' >>"$TMP/other.$1/c/0"
    "$SHARDFS" sync "$TMP/other.$1"
    printf ' more' >>"$source/note"
    sleep "$1"
    printf ', second' >>"$MP/c/0"
    printf ', last' >>"$MP/note"
    "$SHARDFS" sync "$MP"
    settle
    [[ $(cat "$TMP/other.$1/c/0") == 'first of all, second' ]]
    [[ $(cat "$MP/c/0") == 'first of all, second' ]]
    [[ $(cat "$source/note") == 'note more, last' ]]
    unmount_view "$TMP/other.$1"
    unmount_view
}
check "appending right after others have" append_after_others 0
check "appending a moment after others have" append_after_others 0.3
check "appending after the kernel has seen the new length" append_after_others 1.3

# A chunk keeps its date while others of its shard are written, also when the shard's ctime changes.
dates_stay() {
    fresh --rw
    local old own
    old=$(stat -c %.Y "$MP/c/3")
    put 0 5
    own=$(stat -c %.Y "$MP/c/0")
    put 1 6
    ln "$source/c/0" "$TMP/linked"
    settle
    put 2 7
    [[ $(stat -c %.Y "$MP/c/3") == "$old" ]]
    [[ $(stat -c %.Y "$MP/c/0") == "$own" ]]
    rm "$TMP/linked"
    unmount_view
}
check "dates of chunks that were not written" dates_stay

# One of two such writes fails, which is reported; in the end both views show what is stored.
two_views() {
    "$SHARDFS" create "$TMP/two.zarr" --shape 8,8 --dtype uint8 --chunk 1,1 --shard 4,4 --codec gzip
    mount_view --rw --view zarr3,zarr2 "$TMP/two.zarr"
    python3 - "$MP" "$SHARDFS" <<'PY'
import mmap
import os
import random
import subprocess
import sys
import threading
import time

mount, program = sys.argv[1:]
views = [f"{mount}/zarr3/c/0", f"{mount}/zarr2/0"]
stop = time.monotonic() + 4


def write(view, seed):
    chance = random.Random(seed)
    os.makedirs(view, exist_ok=True)
    n = 0
    while time.monotonic() < stop:
        n += 1
        chunk = chance.randrange(8)
        try:
            with open(f"{view}/{chunk}", "wb", buffering=0) as f:
                f.write(b"%d%07d" % (seed, n))
            with open(f"{chance.choice(views)}/{chunk}", "rb") as f:
                f.read()
        except OSError:
            pass
        time.sleep(0.02)


def direct(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    length = os.readv(descriptor, [buffer])
    os.close(descriptor)
    return buffer[:length]


threads = [threading.Thread(target=write, args=(view, n)) for n, view in enumerate(views)]
for t in threads:
    t.start()
for t in threads:
    t.join()
# Twice: what could not be committed is reported once.
for _ in range(2):
    subprocess.run([program, "sync", mount], check=False)
time.sleep(1.3)
for chunk in range(8):
    shown = {}
    for view in views:
        with open(f"{view}/{chunk}", "rb") as f:
            shown[view] = f.read(), direct(f"{view}/{chunk}")
    assert len({content for both in shown.values() for content in both}) == 1, shown
PY
    unmount_view
}
check "two views that write the same chunks all the time" two_views
