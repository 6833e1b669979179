#!/bin/bash
# Groups, unsharded arrays and whole arrays: what is passed through, moved, removed, refused.

# shellcheck disable=SC2012,SC2016 source=lib.sh
. "$(dirname "$0")/lib.sh"

# In the view and, at once, in the source.
written_through() {
    fresh_group
    mkdir "$work/plain-array"
    cat >"$work/plain-array/zarr.json" <<'JSON'
{"zarr_format": 3, "node_type": "array", "shape": [10], "data_type": "uint8", "fill_value": 0,
 "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5]}},
 "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}
JSON
    mkdir "$work/plain-array/c"
    printf 01234 >"$work/plain-array/c/0"
    both cp -r "$work/plain-array" plain
    both cp "$data/text" README
    both mkdir -p sub/deeper
    both ln -s README link
    both ln README hard
    both mv plain moved
    both cp "$data/page" moved/c/1
    both sed -i s/text/prose/ README
    both rm moved/c/0
    both cp "$data/text" moved/notes
    diff -r "$source/moved" "$MP/moved"
    [[ $(readlink "$source/link") == README && $(stat -c %i "$source/hard") != 0 ]]
    both cat README hard link
    both rm link hard
    both rmdir sub/deeper sub
    [[ ! -e $source/sub ]]
    diff "$source/moved/zarr.json" "$work/plain-array/zarr.json"
    settled
}
at_once "groups, unsharded arrays and other files are written through" written_through

remove_array() {
    fresh_group
    "$@" "$MP/waves"
    rm -r "$want/waves"
    [[ $(ls "$MP") == zarr.json ]]
    sync "$MP"
    [[ $(ls -A "$source") == zarr.json ]]
    settled
}
at_once "rm -r of an array in a group" remove_array rm -r
at_once "rm -rf of an array in a group" remove_array rm -rf
at_once "shutil.rmtree of an array in a group" remove_array python3 -c 'import shutil, sys; shutil.rmtree(sys.argv[1])'

remove_and_write() {
    fresh_group
    cp -r "$MP/waves" "$work/unsharded"
    both rm -r waves
    # What comes in its place is what was written: an unsharded array.
    both cp -r "$work/unsharded" waves
    diff -r "$work/unsharded" "$source/waves"
    settled
}
at_once "an array removed, and an unsharded one of its name copied in" remove_and_write

moved_array() {
    fresh_group --commit-interval 1000
    both rm -f waves/c/0/0/0
    both cp "$data/page" waves/c/0/0/1
    both mv waves billows
    both cp "$data/page" billows/c/0/0/2
    both ls -A
    # Its shards went along.
    [[ -e $source/billows/c/0/0/0 && ! -e $source/waves ]]
    settled
}
at_once "mv of an array in its group" moved_array

# Chunk files would be taken for shards, and shards for what is in a shard.
refused_sharded() {
    fresh_group
    cp -r "$MP/waves" "$MP/unsharded"
    cp "$source/waves/zarr.json" "$work/waves.json"
    for array in waves unsharded unsharded/c; do
        fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/$array/zarr.json"
        grep -q "$array/zarr.json" "$log"
        cp "$source/waves/zarr.json" "$MP/$array/zarr.json.tmp"
        fails_with "Invalid argument" python3 -c 'import os, sys; os.rename(sys.argv[1] + ".tmp", sys.argv[1])' \
            "$MP/$array/zarr.json"
        rm "$MP/$array/zarr.json.tmp"
    done
    cmp "$source/waves/zarr.json" "$work/waves.json"
    diff -r "$MP/waves" "$MP/unsharded"
    rm -r "$MP/unsharded"
    settled
}
at_once "a sharded zarr.json in the place of an array that is shown with its chunks: EINVAL" refused_sharded

# Shards are what the copying program goes on with; the next mount shows their chunks.
copied_sharded() {
    local source=$TMP/through.zarr options=("$@")
    rm -rf "$source" "$TMP/later"
    "$SHARDFS" create --sample "$source"
    cp -r "$source" "$TMP/later"
    mount_view "$source" --rw "${options[@]}"
    cp -r "$TMP/later" "$MP/copy"
    diff -r "$TMP/later" "$MP/copy"
    cp -r "$MP/waves" "$TMP/chunks"
    rsync -a "$TMP/later/" "$MP/other/"
    tar -C "$TMP/later" -c . | tar -C "$MP/other" -x
    mv "$MP/other" "$MP/moved"
    diff -r "$TMP/later" "$MP/moved"
    grep -q '^copy/waves: the array was made sharded through this mount' "$MP/.shardfs/not-shown.txt"
    grep -q '^moved/waves: ' "$MP/.shardfs/not-shown.txt"
    unmount_view
    diff -r "$TMP/later" "$source/copy"
    diff -r "$TMP/later" "$source/moved"
    mount_view "$source" --rw "${options[@]}"
    [[ ! -s $MP/.shardfs/not-shown.txt ]]
    for array in copy/waves moved/waves; do
        diff -r "$TMP/chunks" "$MP/$array"
    done
    # Shards are not written to the names of chunks.
    fails_with "Invalid argument" cp -r "$TMP/later/waves" "$MP/copy/"
    fails_with "Invalid argument" rsync -a "$TMP/later/" "$MP/moved/"
    grep -q '/waves/c/.*: it is a shard, and not a chunk.*-o level=0' "$MP/.shardfs/log"
    for array in copy/waves moved/waves; do
        diff -r "$TMP/chunks" "$MP/$array"
    done
    unmount_view
    mount_view "$source" --rw -o level=0 "${options[@]}"
    rsync -a "$TMP/later/" "$MP/copy/"
    cp -r "$TMP/later/." "$MP/moved"
    diff -r "$TMP/later" "$MP/copy"
    unmount_view
    diff -r "$TMP/later" "$source/moved"
    "$SHARDFS" verify "$source"
    rm -r "$TMP/chunks"
}
check "a sharded array that is copied into a mount is shown as it is stored, and with its chunks by the next one" \
    copied_sharded
check "the same in a mount with a rule for new arrays" copied_sharded --shard 1M

finish
