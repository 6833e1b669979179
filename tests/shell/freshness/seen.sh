#!/bin/bash
# A change of the source by others is visible in the mount after at most 1.1 s.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

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

# Same size, same inode, and the same mtime: only the ctime differs.
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

# Chunks that are opened long after the change: the kernel still caches their pages, and sees the same date.
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

# The numbers of its directories are others from then on. A path is looked up anew; a list of it is no error.
reshaped() {
    local source=$TMP/reshaped$1.zarr
    "$SHARDFS" create "$source" --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view "$source" --rw
    mkdir -p "$MP/c/0"
    head -c 64 /dev/zero >"$MP/c/0/0"
    unmount_view
    mount_view "$source" "$@"
    python3 - "$source/zarr.json" "$MP/c" <<'PY'
import json
import os
import sys
import time

document, directory = sys.argv[1:]
for extent in 72, 80, 88:
    with open(document) as f:
        metadata = json.load(f)
    metadata["shape"][0] = extent
    with open(document + ".new", "w") as f:
        json.dump(metadata, f)
    os.rename(document + ".new", document)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert os.listdir(directory) == ["0"] and os.listdir(directory + "/0") == ["0"]
        time.sleep(0.02)
PY
    unmount_view
}
check "a directory is listed by its path while its array is reshaped" reshaped -oro
check "the same in a mount for writing" reshaped --rw

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

# The user has promised that the source does not change.
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
