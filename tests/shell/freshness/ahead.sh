#!/bin/bash
# Chunks are pushed into the page cache ahead of readers in order: fewer requests, the same bytes, and nothing
# of another version than the shard has.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

python3 "$here/shards.py" array "$TMP/many.zarr" 7 --shards 32 --chunks 64 --bytes 4096
number=2048

# counter NAME: one of the counters of pushed chunks, or of requests
counter() {
    python3 -c 'import json, sys; s = json.load(open(sys.argv[1])); print({**s["operations"], **s["ahead"]}[sys.argv[2]])' \
        "$MP/.shardfs/stats.json" "$1"
}

# take ORDER [N]: reads chunk files in this order, each as far as it goes
take() {
    python3 - "$1" "${2:-$number}" $number "${top:-$MP}/c" "${suffix:-}" <<'PY'
import os
import random
import sys

order, count, number, top, suffix = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
os.listdir(top)         # the kernel knows the chunks from now on
for entry in os.scandir(top):
    entry.stat()
numbers = list(range(number))
if order == "random":
    random.Random(1).shuffle(numbers)
for n in numbers[:count]:
    with open(f"{top}/{n}{suffix}", "rb", buffering=0) as f:
        got = f.read()
    assert got[-4096:] == bytes([7]) * 4096, (n, len(got), set(got))
PY
}

ordered() {
    local requests attempt
    # On a busy machine the reader may get all the CPU that the thread that pushes would need.
    for attempt in 1 2 3; do
        mount_view "$TMP/many.zarr" "$@"
        [[ $* != *npy* ]] || suffix=.npy
        take order
        requests=$(counter read)
        echo "$requests requests, $(counter chunks) chunks pushed, $(counter bytes) B, $(counter used_bytes) B of them used"
        ((requests >= number / 2 || $(counter chunks) <= number / 2)) || break
        ((attempt < 3)) || return 1
        unmount_view
    done
    (($(counter used_bytes) * 100 > $(counter bytes) * 90))
    # What is in the page cache is not pushed again.
    before=$(counter chunks)
    take order
    (($(counter chunks) < before + number / 20))
    unmount_view
    suffix=
}
check "a reader in order requests few chunks" ordered
check "a reader in order requests few chunks (npy)" ordered --view npy

several() {
    local attempt pushed
    # As above.
    for attempt in 1 2 3; do
        mount_view "$TMP/many.zarr" --view zarr3,npy
        top=$MP/zarr3 take order
        top=$MP/npy suffix=.npy take order
        pushed=$(counter chunks)
        unmount_view
        ((pushed <= number)) || return 0
        echo "$attempt: $pushed chunks pushed"
    done
    return 1
}
check "a reader in order requests few chunks of each of two views" several

jumps() {
    mount_view "$TMP/many.zarr" "$@"
    take random $((number / 2))
    echo "$(counter read) requests, $(counter bytes) B pushed of $(counter read_bytes) B"
    (($(counter bytes) * 20 <= $(counter read_bytes)))
    unmount_view
}
check "nothing is pushed to a reader that jumps about" jumps

# rows LENGTH: reads rows of so many chunks, far from each other
rows() {
    mount_view "$TMP/many.zarr"
    python3 - "$1" $number "$MP/c" <<'PY'
import os
import sys

length, number, top = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for entry in os.scandir(top):
    entry.stat()
for row in range(number // 16):
    for n in range(row * 16, row * 16 + length):
        with open(f"{top}/{n}", "rb", buffering=0) as f:
            assert f.read() == bytes([7]) * 4096
PY
    local taken=$((number * $1 / 16))
    echo "$(counter bytes) B pushed, $(counter used_bytes) B of them used, $((taken * 4096)) B read"
    # Some are lost before that is noticed.
    (($(counter bytes) - $(counter used_bytes) <= taken * 4096 / 20 + 32 * 4096))
    unmount_view
}
for length in 3 4 7; do
    check "little is pushed for nothing to a reader of rows of $length chunks" rows $length
done

# Most shards do not exist: no request looks for those between the chunks that are read.
sparse() {
    local source=$TMP/sparse.zarr before opens
    python3 "$here/shards.py" array "$source" 7 --shards 2000 --chunks 1 --bytes 4096
    for ((n = 0; n < 2000; n++)); do
        ((n % 50 == 0)) || rm "$source/c/$n"
    done
    mount_view "$source" "$@"
    before=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["source"]["open"])' "$MP/.shardfs/stats.json")
    for ((n = 0; n < 2000; n += 50)); do cat "$MP/c/$n" >"$TMP/chunk"; done
    opens=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["source"]["open"])' "$MP/.shardfs/stats.json")
    echo "$((opens - before)) files opened"
    ((opens - before < 200))
    unmount_view
}
check "absent shards between the chunks that are read are not looked for" sparse

never() {
    mount_view "$TMP/many.zarr" "$@"
    take order
    (($(counter chunks) == 0))
    unmount_view
}
check "nothing is pushed in a writable mount" never --rw

# Where the kernel does not report opens, a push may wait for a read. It takes another process to end the mount if
# this one is killed then.
unguarded() {
    new_mount_point
    strace -qq -f -o /dev/null -e trace=fsopen -e inject=fsopen:error=EPERM \
        "$SHARDFS" mount --foreground -o immutable "$TMP/many.zarr" "$MP" 2>"$TMP/log" &
    within 20 grep -q 'is mounted on' "$TMP/log"
    grep -q 'umount -f' "$TMP/log"
    take order
    (($(counter chunks) == 0))
    unmount_view
    wait "$!"
}
if ((EUID == 0)); then
    check "a reader in order requests few chunks (immutable)" ordered -o immutable
    check "a reader in order requests few chunks (immutable, npy)" ordered -o immutable --view npy
else
    skip "chunks are pushed in an immutable mount: not root"
fi
if ((EUID == 0)) && [[ -z $(ls /sys/fs/fuse/connections) ]] && strace -o /dev/null true 2>/dev/null; then
    check "nothing is pushed in an immutable mount without a guard" unguarded
else
    skip "an immutable mount without a guard: root is needed, strace, and nothing at /sys/fs/fuse/connections"
fi

# has_ended PID: nothing is left of it, but for a zombie that waits for its parent, not for a thread.
has_ended() {
    [[ ! -e /proc/$1 ]] || [[ $(cat "/proc/$1"/task/*/stat 2>/dev/null | sed 's/.*) //' | cut -c1 | sort -u) == Z ]]
}
# A push that waited for a page of a read that is not answered any more could not be killed.
killed() {
    local pid reader
    for ((round = 0; round < ${KILLS:-10}; round++)); do
        mount_view "$TMP/many.zarr" "$@"
        pid=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$MP/.shardfs/stats.json")
        (take order || true) 2>/dev/null &
        reader=$!
        sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
        kill -KILL "$pid"
        for ((tries = 0; tries < 200; tries++)); do
            if has_ended "$pid"; then break; fi
            sleep 0.05
        done
        has_ended "$pid"
        umount -l "$MP"
        wait "$reader"
    done
}
if ((EUID == 0)); then
    check "a mount that is killed while chunks are pushed ends" killed
    check "a mount that is killed while chunks are pushed ends (immutable)" killed -o immutable
else
    skip "a mount that is killed while chunks are pushed ends: umount needs root"
fi

# A writer replaces shards just where readers in order are. Every chunk is of one version, and none is older than a
# second.
changing() {
    local source=$TMP/changing.zarr
    rm -rf "$source"
    python3 "$here/shards.py" array "$source" 1 --shards 1024 --chunks 16 --bytes 1024
    mount_view "$source" "$@"
    PYTHONPATH=$here python3 - "$MP/c" "$source/c" "${CHANGES:-20000}" "${suffix:-}" <<'PY'
import itertools
import json
import os
import sys
import threading
import time
from types import SimpleNamespace

from shards import shard_bytes

view, source, changes, suffix = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
SHARDS, CHUNKS, NBYTES = 1024, 16, 1024
VERSIONS = 250
made = [shard_bytes(SimpleNamespace(chunks=CHUNKS, bytes=NBYTES, value=v, gap=v % 3 * 100, only=None, start=False))
        for v in range(VERSIONS)]
# When each shard got each version, the last ones only.
history = [[(0.0, 1)] for _ in range(SHARDS)]
at, done, failed, reads, errors = [0, SHARDS // 2], False, [], 0, 0


def is_pushed():
    with open(f"{os.path.dirname(view)}/.shardfs/stats.json") as f:
        return json.load(f)["ahead"]["chunks"] > 0


def change():
    global done
    try:
        # A busy machine may push none between two changes: then the changes go on, more slowly.
        limit = time.monotonic() + 300
        for step in itertools.count():
            if step >= changes and step % 100 == 0 and (is_pushed() or time.monotonic() > limit):
                break
            # Just ahead of one of the readers, in what may be on its way to the page cache.
            shard = (at[step % 2] + step // 2 % 6) % SHARDS
            version = (history[shard][-1][1] + 1) % VERSIONS
            path = f"{source}/{shard}"
            with open(path + ".tmp", "wb") as f:
                f.write(made[version])
            os.rename(path + ".tmp", path)
            history[shard] = history[shard][-40:] + [(time.monotonic(), version)]
            time.sleep(0.0002 if step < changes else 0.01)
    finally:
        done = True


def read(reader):
    global reads, errors
    while not done:
        for entry in os.scandir(view):
            entry.stat()
        for n in range(SHARDS * CHUNKS):
            n = (n + reader * SHARDS // 2 * CHUNKS) % (SHARDS * CHUNKS)
            shard = at[reader] = n // CHUNKS
            began = time.monotonic()
            known = list(history[shard])
            try:
                with open(f"{view}/{n}{suffix}", "rb", buffering=0) as f:
                    got = f.read()
            except OSError:
                errors += 1
                continue
            reads += 1
            values = set(got[-NBYTES:])
            # What was replaced more than 1.2 s before the open must not be seen.
            old = {version for (_, version), (replaced, _) in zip(known, known[1:]) if replaced < began - 1.2}
            kept = {version for when, version in history[shard] if when >= began - 1.2} | {known[-1][1]}
            if len(values) != 1 or values & (old - kept):
                failed.append((n, values, known[-3:], began))
            if done:
                return


threads = [threading.Thread(target=change)] + [threading.Thread(target=read, args=(r,)) for r in (0, 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{changes} changes, {reads} chunks read, {errors} errors, {len(failed)} wrong: {failed[:3]}")
assert not failed and reads > 1000 and errors < reads
PY
    echo "$(counter chunks) chunks pushed"
    # How many depends on which thread runs.
    (($(counter chunks) > 0))
    unmount_view
}
check "shards that change just where readers in order are" changing
suffix=.npy check "the same of decoded chunks" changing --view npy
