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

refused_sharded() {
    fresh_group
    fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/waves/zarr.json"
    mkdir "$MP/new"
    fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/new/zarr.json"
    grep -q 'new/zarr.json' "$log"
    [[ ! -s $source/new/zarr.json ]]
    cp "$source/waves/zarr.json" "$MP/new/zarr.json.tmp"
    fails_with "Invalid argument" python3 -c 'import os, sys; os.rename(sys.argv[1] + ".tmp", sys.argv[1])' \
        "$MP/new/zarr.json"
    rm -r "$MP/new"
    settled
}
at_once "a sharded zarr.json is refused, for there are no shards to be written through a mount" refused_sharded

# The log says how to create what cannot be created through the mount.
sharded_array_through_the_mount() {
    local source=$TMP/through.zarr
    "$SHARDFS" create --sample "$source"
    mount_view "$source" --rw --log-file "$TMP/through.log"
    mkdir "$MP/new"
    fails_with "Invalid argument" cp "$source/waves/zarr.json" "$MP/new/zarr.json"
    grep 'new/zarr.json: a sharded array cannot be made through the view: make it in the source, with `shardfs create`.*`shardfs pack`' \
        "$MP/.shardfs/log"
    unmount_view
}
at_once "a sharded array made through the mount: EINVAL, the log says what to do" sharded_array_through_the_mount

finish
