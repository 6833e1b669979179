#!/bin/bash
# Others change the source while chunks wait for their commit: they are merged, or saved and ESTALE is reported.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Sets MP and source; $work/other.zarr is the same array after another process has changed chunk c/0/0.
changed_elsewhere() {
    fresh $plane --commit-interval 1000
    local writer=$MP
    cp -r "$source" "$work/other.zarr"
    mount_view "$work/other.zarr" --rw
    cp "$data/text" "$MP/c/0/0"
    unmount_view
    MP=$writer
}

merged() {
    changed_elsewhere
    both cp "$data/page" c/0/1
    cp "$work/other.zarr/c/0/0" "$source/c/0/0.new"
    mv "$source/c/0/0.new" "$source/c/0/0"
    cp "$data/text" "$want/c/0/0"
    sync "$MP"
    in_shards --mounted
    sleep 1.1
    settled
}
at_once "a shard replaced by others before the commit: other chunks are merged" merged

stale() {
    changed_elsewhere
    : >"$log"
    python3 - "$MP/c/0/0" "$source" <<'PY'
import errno
import os
import sys

path, source = sys.argv[1:]
fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
os.write(fd, b"too late")
os.rename(os.path.join(os.path.dirname(source), "other.zarr/c/0/0"), source + "/c/0/0")
try:
    os.fsync(fd)
    raise AssertionError("no error")
except OSError as e:
    assert e.errno == errno.ESTALE, e
os.close(fd)
PY
    # The others' bytes stay in the shard; ours are saved.
    cp "$data/text" "$want/c/0/0"
    in_shards --mounted
    grep -q 'c/0/0' "$log"
    local file
    file=$(saved c/0/0)
    [[ $(cat "$file") == "too late" ]]
    sleep 1.1
    settled
}
at_once "a chunk replaced by others before its commit: ESTALE, the others' counts, ours is saved" stale

# What was written to an array must not be committed to another one that has replaced it.
replaced_array() {
    local top=$TMP/replaced-$1 log=$TMP/replaced-$1.log saved
    mkdir "$top"
    "$SHARDFS" create "$top/a" --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view "$top" --rw --commit-interval 1000 --log-file "$log"
    mkdir -p "$MP/a/c/0"
    head -c 64 "$data/page" >"$MP/a/c/0/0"
    mv "$top/a" "$top/old"
    if [[ $1 == other ]]; then
        "$SHARDFS" create "$top/a" --shape 64,64 --dtype uint8 --chunk 4,4 --shard 32,32
    fi
    fails_with 'or put another one in its place' "$SHARDFS" sync "$MP"
    saved=$(sed -n 's/.*what was written is in //p' "$log")
    head -c 64 "$data/page" | cmp - "$saved"
    unmount_view
    [[ ! -e $top/a/c ]]
    # What was saved belongs to the old array.
    mv "$top/old" "$top/new"
    rm -rf "$top/a"
    mv "$top/new" "$top/a"
    "$SHARDFS" recover --unsaved "${saved%/a/c/0/0}" "$top"
    mount_view "$top"
    head -c 64 "$data/page" | cmp - "$MP/a/c/0/0"
    unmount_view
}
for what in other none; do
    at_once "an array that is replaced while chunks wait ($what): ESTALE, they are saved" replaced_array $what
done

# Only the shape may change.
grown_array() {
    local top=$TMP/grown
    mkdir "$top"
    "$SHARDFS" create "$top/a" --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view "$top" --rw --commit-interval 1000
    mkdir -p "$MP/a/c/0"
    head -c 64 "$data/page" >"$MP/a/c/0/0"
    python3 - "$top/a/zarr.json" <<'PY'
import json
import sys

with open(sys.argv[1]) as file:
    document = json.load(file)
document["shape"] = [96, 64]
with open(sys.argv[1], "w") as file:
    json.dump(document, file)
PY
    "$SHARDFS" sync "$MP"
    head -c 64 "$data/page" | cmp - "$MP/a/c/0/0"
    unmount_view
    "$SHARDFS" verify "$top"
}
at_once "an array that grows while chunks wait" grown_array

finish
