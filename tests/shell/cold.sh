#!/bin/bash
# What a mount reads, and when: nothing at the start, one index for one chunk, and no more memory than
# it was given.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

# stats.json's number of shard indexes read from the source.
index_reads() {
    python3 - "$MP/.shardfs/stats.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as f:
    stats = json.load(f)
print(stats["indexes"]["loads"])
PY
}

# expect_reads N COMMAND...: COMMAND makes the mount read exactly N indexes
expect_reads() {
    local want=$1 before after
    shift
    before=$(index_reads)
    "$@" >/dev/null
    after=$(index_reads)
    echo "$((after - before)) indexes read, expected $want: $*"
    [[ $((after - before)) == "$want" ]]
}

python3 "$here/shards.py" array "$TMP/many.zarr" 5 --shards 2000 --chunks 64 --bytes 64

counted() {
    mount_view "$TMP/many.zarr" "$@"
    [[ $(index_reads) == 0 ]]
    expect_reads 0 cat "$MP/zarr.json"
    expect_reads 0 stat "$MP" "$MP/c"
    expect_reads 1 stat "$MP/c/64000"
    expect_reads 0 stat "$MP/c/64000"
    expect_reads 0 cat "$MP/c/64001" "$MP/c/64063"
    expect_reads 1 cat "$MP/c/64064"
    expect_reads 2 cat "$MP/c/0" "$MP/c/127999"
    # Names that cannot be chunks, or lie outside the array, need no index.
    expect_reads 0 fails_with "No such file" stat "$MP/c/128000"
    expect_reads 0 fails_with "No such file" stat "$MP/c/x"
    unmount_view
}
check "one chunk needs one index" counted
check "one chunk needs one index (immutable)" counted -o immutable

# Each index once for a whole listing, though it has 64 names.
listed() {
    mount_view "$TMP/many.zarr"
    local before after
    before=$(index_reads)
    [[ $(find "$MP/c" -type f | wc -l) == 128000 ]]
    after=$(index_reads)
    echo "$((after - before)) indexes read"
    ((after - before >= 2000 && after - before <= 2100))
    unmount_view
}
check "a listing reads every index once" listed

# Mounting does not look at the shards: as fast for 2000 as for 1, and damage is not met.
at_start() {
    cp -r "$TMP/many.zarr" "$TMP/broken.zarr"
    find "$TMP/broken.zarr/c" -type f -exec truncate -s 3 {} +
    mount_view "$TMP/broken.zarr"
    cat "$MP/zarr.json" >/dev/null
    fails_with "Input/output error" cat "$MP/c/5"
    unmount_view
}
check "mounting reads no shard" at_start

# VmRSS of the daemon in KiB
resident() { awk '/^VmRSS/ { print $2 }' "/proc/$(daemon_of "$MP")/status"; }

# 20 MB of indexes through a cache of 1 MB.
bounded() {
    python3 "$here/shards.py" array "$TMP/large.zarr" 5 --shards 20 --chunks 65536 --bytes 1
    mount_view "$TMP/large.zarr" --cache-size 1048576
    local i before after
    cat "$MP/c/0" >/dev/null
    before=$(resident)
    for ((i = 0; i < 20; i++)); do
        stat "$MP/c/$((i * 65536))" "$MP/c/$((i * 65536 + 65535))" >/dev/null
    done
    after=$(resident)
    echo "$before KiB before, $after KiB after"
    ((after - before < 10000))
    unmount_view
}
check "the cache keeps to its size" bounded

# Memory is not a question of how many files were looked at.
by_count() {
    mount_view "$TMP/many.zarr"
    local before after files
    mapfile -t -n 2000 files < <(find "$MP/c" -type f)
    cat "${files[@]}" >/dev/null
    before=$(resident)
    find "$MP/c" -type f -printf '%s\n' | sort -u | wc -l
    find "$MP/c" -type f -printf '%s\n' | sort -u | wc -l
    after=$(resident)
    echo "$before KiB before, $after KiB after"
    ((after - before < 20000))
    unmount_view
}
check "128,000 files cost no memory each" by_count
