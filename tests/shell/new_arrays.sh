#!/bin/bash
# Arrays that are created through a mount: rules of the source itself, and what others find of them.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

# array MOUNT-POINT NAME: an array of 16 chunks of 4 bytes.
array() {
    mkdir -p "$1/$2"
    cat >"$1/$2/zarr.json" <<'JSON'
{"zarr_format": 3, "node_type": "array", "shape": [64], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
 "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
 "codecs": [{"name": "bytes"}], "attributes": {}}
JSON
    local n
    mkdir -p "$1/$2/c"
    for n in {0..15}; do printf '%04d' "$n" >"$1/$2/c/$n"; done
}
files() { find "$1" -type f | wc -l; }

# --- .shardfs/mount.json --------------------------------------------------------------------------------

source=$TMP/source
mkdir -p "$source/.shardfs"
echo '{"shard": ["plain*=off", "16"], "index_location": "start"}' >"$source/.shardfs/mount.json"

by_default() {
    mount_view "$source" --rw
    array "$MP" a
    array "$MP" plain
    unmount_view
    [[ $(files "$source/a/c") == 4 && $(files "$source/plain/c") == 16 ]]
    grep -q '"index_location": "start"' "$source/a/zarr.json"
    mount_view "$source" --rw --shard 32
    array "$MP" other
    unmount_view
    [[ $(files "$source/other/c") == 2 ]]
    mount_view "$source" --rw --shard off
    array "$MP" off
    unmount_view
    [[ $(files "$source/off/c") == 16 ]]
}
check "a source says how new arrays are stored, unless the command does" by_default

shown() {
    "$SHARDFS" info "$source" | grep -Fx 'New arrays, by .shardfs/mount.json: plain*=off, 16; index at the start'
    "$SHARDFS" info --json "$source" | grep -A 8 '"new_arrays"' | grep '"plain\*=off"'
    "$SHARDFS" verify "$source"
}
check "info shows it, and verify does not mind it" shown

bad() {
    local text
    for text in '{"shards": "1M"}' '{"shard": 5}' '{"shard": "big"}' '{' ''; do
        echo "$text" >"$source/.shardfs/mount.json"
        fails_with ".shardfs/mount.json: " "$SHARDFS" mount --rw "$source" "$MP"
        "$SHARDFS" info "$source" | grep '^New arrays, by .shardfs/mount.json: '
    done
    # Where it has no effect it does not matter.
    mount_view "$source"
    unmount_view
    mount_view "$source" --rw --shard 16
    unmount_view
    # It says nothing about another place.
    echo '{"shard": "16"}' >"$TMP/elsewhere.json"
    ln -sf "$TMP/elsewhere.json" "$source/.shardfs/mount.json"
    fails_with ".shardfs/mount.json: it cannot be read" "$SHARDFS" mount --rw "$source" "$MP"
    rm "$source/.shardfs/mount.json"
}
new_mount_point
check "a rule that is none is an error of mounts that would use it" bad

in_array() {
    local top=$TMP/array
    mkdir -p "$top/.shardfs"
    echo '{"shard": "16"}' >"$top/.shardfs/mount.json"
    array "$TMP" plain-array
    "$SHARDFS" pack --shard 16 "$TMP/plain-array" "$TMP/packed"
    cp -r "$TMP/packed/." "$top"
    mount_view "$top" --rw
    printf 'abcd' >"$MP/c/3"
    unmount_view
    [[ $(<"$top/.shardfs/mount.json") == '{"shard": "16"}' ]]
    "$SHARDFS" recover "$top"
    [[ $(ls -A "$top/.shardfs") == mount.json ]]
    "$SHARDFS" delete "$top"
    [[ ! -e $top ]]
}
check "commits, recover and delete of an array with such a file" in_array

# --- arrays that are not complete -----------------------------------------------------------------------

# unplaced DIRECTORY: an interrupted mount was about to put an array there.
unplaced() {
    mkdir -p "$1/.shardfs/gathered"
    cp -r "$TMP/packed/." "$1/.shardfs/gathered"
    chmod -R go-w "$1/.shardfs"
}

incomplete() {
    local top=$TMP/incomplete
    unplaced "$top/a"
    "$SHARDFS" verify "$top" >"$TMP/verify.out" && return 1
    grep -F 'a: an array that is being put here is not complete' "$TMP/verify.out"
    fails_with 'is not complete' "$SHARDFS" unpack "$top" "$TMP/unpacked"
    fails_with 'is not complete' "$SHARDFS" info "$top"
    # Who can only read finds no array there, and who can write the whole one.
    mount_view "$top"
    [[ ! -e $MP/a/zarr.json && ! -e $MP/a/c ]]
    unmount_view
    mount_view "$top" --rw
    [[ $(cat "$MP/a/c/7") == 0007 ]]
    unmount_view
    "$SHARDFS" verify "$top"
    unplaced "$top/b"
    "$SHARDFS" recover "$top"
    [[ $(files "$top/b/c") == 4 && ! -e $top/b/.shardfs ]]
    "$SHARDFS" verify "$top"
}
check "commands say that an array is not complete, and mounts complete it" incomplete

# --- full disks, other users ----------------------------------------------------------------------------

[[ $EUID == 0 ]] || {
    skip 'new arrays on full disks and of other users: not root'
    exit 0
}

# large DIRECTORY: chunk files of 2 MiB, and the metadata of their array.
large() {
    python3 - "$1" <<'PY'
import json
import os
import sys

os.makedirs(f"{sys.argv[1]}/c")
for n in range(32):
    with open(f"{sys.argv[1]}/c/{n}", "wb") as f:
        f.write(bytes([n + 1]) * 65536)
json.dump({"zarr_format": 3, "node_type": "array", "shape": [32 * 65536], "data_type": "uint8", "fill_value": 0,
           "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [65536]}},
           "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
           "codecs": [{"name": "bytes"}], "attributes": {}}, open(f"{sys.argv[1]}/zarr.json", "w"))
PY
}
large "$TMP/large"

full() {
    local disk=$TMP/full
    mkdir "$disk"
    mount -t tmpfs -o size=3m tmpfs "$disk"
    echo "$disk" >>"$TMP/mounts"
    mkdir "$disk/source"
    mount_view "$disk/source" --rw --shard 1M
    mkdir "$MP/a"
    cp -r "$TMP/large/c" "$MP/a/c"
    # There is no room for them a second time: they stay what they are.
    cp "$TMP/large/zarr.json" "$MP/a/zarr.json"
    diff -r "$TMP/large/c" "$MP/a/c"
    grep -F 'a: the array is stored unsharded' "$MP/.shardfs/log"
    [[ $(files "$disk/source/a/c") == 32 && ! -e $disk/source/a/.shardfs ]]
    # With room it is another matter.
    rm -r "$MP/a"
    mount -o remount,size=8m "$disk"
    mkdir "$MP/a"
    cp -r "$TMP/large/c" "$MP/a/c"
    cp "$TMP/large/zarr.json" "$MP/a/zarr.json"
    diff -r "$TMP/large/c" "$MP/a/c"
    unmount_view
    [[ $(files "$disk/source/a/c") == 2 ]]
    "$SHARDFS" verify "$disk/source"
    umount "$disk"
}
check "chunk files that do not fit a second time stay what they are" full

one() { setpriv --reuid=21001 --regid=21001 --clear-groups "$@"; }
other() { setpriv --reuid=21002 --regid=21002 --clear-groups "$@"; }
chmod 755 "$TMP"

users() {
    local source=$TMP/users document
    mkdir "$source"
    chmod 1777 "$source"
    mount_view "$source" --rw --shard 16 -o allow_other
    export -f array
    # shellcheck disable=SC2016 # the other shell expands it.
    one bash -c 'array "$1" one' - "$MP"
    # Chunk files first.
    one mkdir "$MP/first"
    one cp -r "$MP/one/c" "$MP/first/c"
    document=$TMP/users.json
    cat "$MP/one/zarr.json" >"$document"
    fails_with 'Permission denied' other cp "$document" "$MP/first/zarr.json"
    fails_with 'Permission denied' other cp "$document" "$MP/one/zarr.json"
    fails_with 'Permission denied' other touch "$MP/one/c/3"
    one cp "$document" "$MP/first/zarr.json"
    # Files of two users are not put into one file.
    one mkdir -m 777 "$MP/both"
    one mkdir -m 777 "$MP/both/c"
    one cp "$MP/one/c/1" "$MP/both/c/1"
    other cp "$MP/one/c/2" "$MP/both/c/2"
    one cp "$document" "$MP/both/zarr.json"
    unmount_view
    [[ $(files "$source/one/c") == 4 && $(files "$source/first/c") == 4 && $(files "$source/both/c") == 2 ]]
    [[ -z $(find "$source/one" "$source/first" ! -uid 21001) ]]
    [[ $(stat -c %u "$source/both/c/2") == 21002 ]]
    "$SHARDFS" verify "$source"
}
check "an array is its maker's, and nobody else's" users
