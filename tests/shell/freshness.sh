#!/bin/bash
# Somebody else changes the source under a mount: after at most 1.1 s the mount shows what is there, and
# no reader ever gets a mixture of two versions.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
settle() { sleep 1.1; }

# Chunks of 512 KiB: more than the kernel reads ahead, so a descriptor has parts yet to be fetched.
size=524288
make_array() { python3 "$here/shards.py" array "$1" "${@:2}" --shards 3 --chunks 4 --bytes $size; }
make_shard() { python3 "$here/shards.py" shard "$1" "${@:2}" --chunks 4 --bytes $size; }

# shows FILE VALUE: the chunk has its size and nothing but this byte
shows() {
    python3 - "$1" "$2" $size <<'PY'
import sys

path, value, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb") as f:
    got = f.read()
found = {byte: got.count(byte) for byte in set(got)}
assert got == bytes([value]) * size, f"{path}: {len(got)} bytes, values and counts {found}, expected {value}"
PY
}

make_array "$TMP/template.zarr" 1
make_shard "$TMP/second" 2 --gap 1000
make_shard "$TMP/third" 3 --gap 77777
make_shard "$TMP/fewer" 4 --only 1,2

# fresh: a new copy of the array, mounted; sets MP and source
fresh() {
    source=$(mktemp -d "$TMP/src.XXXXXX")/a.zarr
    cp -r "$TMP/template.zarr" "$source"
    mount_view "$source" "$@"
}

# Ways to change the shard $1 to the contents of the file $2.
by_rename() {
    cp "$2" "$1.tmp"
    mv "$1.tmp" "$1"
}
in_place() { cat "$2" >"$1"; }
in_place_without_truncation() {
    dd if="$2" of="$1" bs=1M conv=notrunc status=none
    truncate -s "$(stat -c %s "$2")" "$1"
}

# --- seen in time --------------------------------------------------------------------------------------

changed() {
    fresh
    shows "$MP/c/0" 1
    shows "$MP/c/1" 1
    shows "$MP/c/5" 1
    stat "$MP/c/0" >/dev/null
    "$1" "$source/c/0" "$TMP/second"
    settle
    shows "$MP/c/0" 2
    shows "$MP/c/3" 2
    shows "$MP/c/5" 1
    "$1" "$source/c/0" "$TMP/third"
    settle
    shows "$MP/c/0" 3
    # And with other chunks present: listing and lookups follow.
    "$1" "$source/c/0" "$TMP/fewer"
    settle
    [[ $(ls "$MP/c") == "$(printf '%s\n' 1 2 4 5 6 7 8 9 10 11 | sort)" ]]
    fails_with "No such file" cat "$MP/c/0"
    shows "$MP/c/1" 4
    "$1" "$source/c/0" "$TMP/second"
    settle
    shows "$MP/c/0" 2
    unmount_view
}
check "a shard replaced by rename" changed by_rename
check "a shard rewritten in place" changed in_place
check "a shard rewritten in place, never empty" changed in_place_without_truncation

# Same size, same inode, and the same mtime: only the ctime tells.
same_stat() {
    fresh
    make_shard "$TMP/same" 9
    shows "$MP/c/0" 1
    local when
    when=$(stat -c %y "$source/c/0")
    in_place_without_truncation "$source/c/0" "$TMP/same"
    touch -d "$when" "$source/c/0"
    settle
    shows "$MP/c/0" 9
    unmount_view
}
check "a shard rewritten with equal size and restored mtime" same_stat

# Chunks that are opened long after the change: the kernel still has their pages, and sees no other date.
same_stat_later() {
    fresh "$@"
    make_shard "$TMP/same" 9
    shows "$MP/c/0" 1
    shows "$MP/c/1" 1
    local when
    when=$(stat -c %y "$source/c/0")
    in_place_without_truncation "$source/c/0" "$TMP/same"
    touch -d "$when" "$source/c/0"
    settle
    shows "$MP/c/0" 9
    settle
    shows "$MP/c/1" 9
    unmount_view
}
check "the same, of a chunk that is opened later" same_stat_later
check "the same in a mount for writing" same_stat_later --rw

# put CHUNK VALUE: writes a chunk through the mount, and waits until it is stored
put() {
    head -c $size /dev/zero | tr '\0' "\\$(printf %o "$2")" >"$MP/c/$1"
    "$SHARDFS" sync "$MP"
}

# What was written here has a date of its own, which ends when others change the shard.
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

# Whoever has read a chunk, or mapped it, does not write old bytes over those of others.
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

# The kernel believes the old length for a second.
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

truncated() {
    fresh
    shows "$MP/c/0" 1
    truncate -s 1000 "$source/c/0"
    settle
    # Damage, not absence: an error, and still listed.
    fails_with "Input/output error" cat "$MP/c/0"
    fails_with "Input/output error" cat "$MP/c/1"
    [[ -n $(find "$MP/c" -name 0) ]]
    shows "$MP/c/4" 1
    in_place "$source/c/0" "$TMP/second"
    settle
    shows "$MP/c/0" 2
    unmount_view
}
check "a shard truncated, then repaired" truncated

deleted() {
    fresh
    shows "$MP/c/0" 1
    rm "$source/c/0"
    settle
    fails_with "No such file" cat "$MP/c/0"
    [[ $(find "$MP/c" -type f | wc -l) == 8 ]]
    by_rename "$source/c/0" "$TMP/third"
    settle
    shows "$MP/c/0" 3
    [[ $(find "$MP/c" -type f | wc -l) == 12 ]]
    unmount_view
}
check "a shard deleted, then created" deleted

created() {
    rm -rf "$TMP/hole.zarr"
    cp -r "$TMP/template.zarr" "$TMP/hole.zarr"
    rm "$TMP/hole.zarr/c/1"
    mount_view "$TMP/hole.zarr"
    fails_with "No such file" cat "$MP/c/4"
    cp "$TMP/second" "$TMP/hole.zarr/c/1.tmp"
    mv "$TMP/hole.zarr/c/1.tmp" "$TMP/hole.zarr/c/1"
    settle
    shows "$MP/c/4" 2
    [[ $(find "$MP/c" -type f | wc -l) == 12 ]]
    unmount_view
}
check "a shard created, after its absence was seen" created

metadata() {
    fresh
    grep -q '"made by"' "$MP/zarr.json"
    [[ $(find "$MP/c" -type f | wc -l) == 12 ]]
    # Attributes, and a shape that hides the last shard.
    python3 - "$source/zarr.json" <<'PY'
import json
import os
import sys

with open(sys.argv[1]) as f:
    m = json.load(f)
m["attributes"] = {"made by": "somebody else", "more": "x" * 10000}
m["shape"] = [m["shape"][0] * 2 // 3]
with open(sys.argv[1] + ".tmp", "w") as f:
    json.dump(m, f)
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
PY
    settle
    python3 - "$MP/zarr.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as f:
    m = json.load(f)
assert m["attributes"]["made by"] == "somebody else"
assert m["shape"] == [8 * 524288]
assert "sharding" not in str(m)
PY
    [[ $(find "$MP/c" -type f | wc -l) == 8 ]]
    fails_with "No such file" cat "$MP/c/9"
    unmount_view
}
check "zarr.json changed" metadata

new_array() {
    mkdir "$TMP/group.zarr"
    echo '{"zarr_format": 3, "node_type": "group", "attributes": {}}' >"$TMP/group.zarr/zarr.json"
    mount_view "$TMP/group.zarr"
    fails_with "No such file" ls "$MP/a"
    cp -r "$TMP/template.zarr" "$TMP/group.zarr/a"
    settle
    [[ $(find "$MP/a/c" -type f | wc -l) == 12 ]]
    shows "$MP/a/c/0" 1
    rm -r "$TMP/group.zarr/a"
    settle
    fails_with "No such file" ls "$MP/a"
    unmount_view
}
check "an array appears in a group, and goes" new_array

# --- never a mixture -----------------------------------------------------------------------------------

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
stop = time.monotonic() + 4
mixed, reads, errors = [], 0, []


def write():
    n = 0
    while time.monotonic() < stop:
        shutil.copyfile(versions[n % len(versions)], shard + ".tmp")
        os.rename(shard + ".tmp", shard)
        n += 1
        time.sleep(0.02)


def read(name):
    global reads
    while time.monotonic() < stop:
        try:
            with open(os.path.join(view, name), "rb", buffering=0) as f:
                got = b""
                while part := f.read(50000):
                    got += part
            if len(set(got)) != 1 or len(got) != 524288:
                mixed.append((name, len(got), {b: got.count(b) for b in set(got)}))
            reads += 1
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

# Of two such writes one is given up, and reported; what both views show in the end is what is stored.
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

# --- promised not to change ------------------------------------------------------------------------------

immutable() {
    fresh -o immutable
    shows "$MP/c/0" 1
    truncate -s 1000 "$source/c/1"
    # A broken promise may show old bytes or an error, but may not end the daemon.
    shows "$MP/c/4" 1 || fails_with "Input/output error" cat "$MP/c/4"
    shows "$MP/c/8" 1
    unmount_view
}
check "immutable, although the source shrinks" immutable
