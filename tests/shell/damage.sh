#!/bin/bash
# Damage is never shown as absence, and never spreads: whatever stands in the place of a shard or of
# a directory of shards, its chunks are listed and fail with EIO, and the others are read.

# What ls shows is what is tested; the names are numbers.
# shellcheck disable=SC2012 source=../lib.sh
. "$(dirname "$0")/../lib.sh"

mkdir "$TMP/elsewhere"

# The sample has shards 0/0/0 to 0/1/1; chunks 0 to 3 of an axis lie in shard 0, 4 to 7 in shard 1.
fresh_sample() {
    rm -rf "$TMP/sample.zarr"
    "$SHARDFS" create --sample "$TMP/sample.zarr"
    array=$TMP/sample.zarr/waves
}

good_chunks_are_read() {
    cat "$MP/waves/c/0/0/"[0-3] >/dev/null
    [[ $(ls "$MP/waves/c/3/3") == *3* ]]
}

bad_directory() {
    fresh_sample
    rm -r "$array/c/0/1"
    "$@" "$array/c/0/1"
    mount_view "$TMP/sample.zarr"
    fails_with 'Input/output error' stat "$MP/waves/c/0/4"
    fails_with 'Input/output error' ls "$MP/waves/c/0/4"
    [[ $(ls "$MP/waves/c/0" | tr "\n" " ") == '0 1 2 3 4 5 6 ' ]]
    good_chunks_are_read
    unmount_view
}

bad_shard() {
    fresh_sample
    rm "$array/c/0/0/1"
    "$@" "$array/c/0/0/1"
    mount_view "$TMP/sample.zarr"
    fails_with 'Input/output error' stat "$MP/waves/c/0/0/4"
    fails_with 'Input/output error' cat "$MP/waves/c/0/0/7"
    # Those of the good shard, and all places of the damaged one.
    [[ $(ls "$MP/waves/c/0/0" 2>/dev/null | tr "\n" " ") == '0 1 2 3 4 5 6 7 ' ]]
    good_chunks_are_read
    unmount_view
}

absent_directory() {
    fresh_sample
    rm -r "$array/c/0/1"
    mount_view "$TMP/sample.zarr"
    fails_with 'No such file' stat "$MP/waves/c/0/4"
    [[ $(ls "$MP/waves/c/0" | tr "\n" " ") == '0 1 2 3 ' ]]
    unmount_view
}

cut_short_while_immutable() {
    fresh_sample
    mount_view "$TMP/sample.zarr" -o immutable
    ls -l "$MP/waves/c/3/3" >/dev/null
    cat "$MP/waves/c/0/0/0" >/dev/null
    truncate -s 139500 "$array/c/0/0/0"
    fails_with 'Input/output error' cat "$MP/waves/c/3/3/3"
    unmount_view
}

check 'a link that leads nowhere, for a directory' bad_directory ln -s nowhere
check 'a file, for a directory' bad_directory touch
check 'a link out of the source, for a directory' bad_directory ln -s ../../../../elsewhere
check 'a link to itself, for a directory' bad_directory ln -s 1
check 'a link that leads nowhere, for a shard' bad_shard ln -s nowhere
check 'a directory, for a shard' bad_shard mkdir
check 'a named pipe, for a shard' bad_shard mkfifo
check 'an empty file, for a shard' bad_shard touch
check 'a link out of the source, for a shard' bad_shard ln -s ../../../../../elsewhere
check 'no directory at all' absent_directory
check 'a shard cut short under an immutable mount' cut_short_while_immutable

# A file that was made and could not be shown would be a damaged shard once the metadata is mended.
nothing_left() {
    fresh_sample
    cp "$array/zarr.json" "$TMP/good.json"
    sed -i '0,/"fill_value"/s//"tint": "blue", "fill_value"/' "$array/zarr.json"
    echo notes >"$TMP/sample.zarr/notes"
    mount_view "$TMP/sample.zarr" --rw
    local there
    there=$(find "$array" | sort)
    local made=$MP/waves/c/0/0/9
    fails_with 'Input/output error' cp "$MP/notes" "$made"
    fails_with 'Input/output error' dd of="$made" status=none
    fails_with 'Input/output error' ln "$MP/notes" "$made"
    fails_with 'Input/output error' ln -s elsewhere "$made"
    fails_with 'Input/output error' mkfifo "$made"
    fails_with 'Input/output error' mv "$MP/notes" "$made"
    mkdir "$MP/waves/c/0/0/empty"
    rmdir "$MP/waves/c/0/0/empty"
    [[ $(find "$array" | sort) == "$there" && -s $TMP/sample.zarr/notes ]]
    cp "$TMP/good.json" "$array/zarr.json"
    sleep 1.1
    good_chunks_are_read
    unmount_view
}
check 'what is refused in an array whose metadata cannot be used leaves nothing' nothing_left
