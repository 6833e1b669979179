#!/bin/bash
# Frames of python-blosc2 itself: each chunk file is decompressed by the library on its own, and each array that is shown
# decoded is what the library reads.
#
#     tests/clients/blosc2.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
python=${SHARDFS_VENVS:-$repo/target/venvs}/blosc2/bin/python

mkdir "$TMP/files"
"$python" "$here/blosc2_files.py" make "$TMP/files"

# They are many, and a Python takes its time to start: a check for all of a compressor.
are_shown() {
    local frame pairs=() mounts=()
    for frame in "$TMP"/files/$1; do
        mount_view "$frame" --view zarr3,flat
        [[ $(ls "$MP/zarr3") != *b2nd* ]]
        pairs+=("$frame" "$MP")
        mounts+=("$MP")
    done
    "$python" "$here/blosc2_files.py" check "${pairs[@]}"
    for MP in "${mounts[@]}"; do
        unmount_view
    done
}
for codec in BLOSCLZ LZ4- LZ4HC ZLIB ZSTD; do
    check "frames of ${codec%-}" are_shown "$codec*.b2nd"
done
for name in stored mixed updated zeros full nans new scalar records; do
    check "a frame: $name" are_shown "$name.b2nd"
done
check 'a frame without an array' are_shown plain.b2frame

# Their items are made when they are read: as they are stored they would be zeros.
without_items() {
    local frame
    for frame in "$TMP"/files/carrier-{proxy,lazy}.b2nd; do
        new_mount_point
        fails_with 'it has no items of its own, but those of others' "$SHARDFS" mount "$frame" "$MP"
        not_mounted "$MP"
        expect_exit 1 "$SHARDFS" info "$frame"
    done
}
check 'lazy arrays and proxies are refused' without_items

metadata() {
    mount_view "$TMP/files/mixed.b2nd"
    python3 - "$MP" <<'PY'
import json
import sys

header, vlmeta, zarr = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("header", "vlmeta", "zarr"))
assert header["b2nd"] == {"shape": [30, 40], "chunks": [10, 20], "blocks": [5, 10], "dtype": "<f4"}, header
assert vlmeta == {"who": {"name": "me", "list": [1, 2.5, None, True]}, "n": 5}, vlmeta
assert zarr["attributes"] == vlmeta and zarr["data_type"] == "float32" and zarr["fill_value"] == 0, zarr
PY
    fails_with 'Read-only file system' touch "$MP/c/0/0"
    unmount_view
}
check 'metadata of a frame as JSON' metadata

not_written() {
    new_mount_point
    fails_with 'a frame of Blosc2 is only read; leave out --rw' "$SHARDFS" mount --rw "$TMP/files/updated.b2nd" "$MP"
    not_mounted "$MP"
}
check 'a frame is not written to' not_written

commands() {
    local frame=$TMP/files/updated.b2nd
    "$SHARDFS" info "$frame" | grep -F 'Blosc2 frame'
    "$SHARDFS" info --json "$frame" | grep -F '"present": 6'
    [[ $("$SHARDFS" ls "$frame" | wc -l) == 6 ]]
    "$SHARDFS" verify "$frame" | grep -F ': 0 defects'
    "$SHARDFS" verify --decode "$frame" | grep -F ': 0 defects'
    "$SHARDFS" unpack "$frame" "$TMP/unpacked" 2>&1 | grep -F 'no reader of Zarr knows their codec "blosc2"'
    mount_view "$frame"
    diff -r "$MP/c" "$TMP/unpacked/c"
    unmount_view
    # A cut-off one, and one whose chunk is damaged.
    head -c 3000 "$frame" >"$TMP/cut.b2nd"
    fails_with 'the frame would end beyond the file' "$SHARDFS" info "$TMP/cut.b2nd"
    cp "$frame" "$TMP/damaged.b2nd"
    # Where its first block begins.
    printf '\377' | dd of="$TMP/damaged.b2nd" bs=1 seek=$((165 + 34)) conv=notrunc status=none
    expect_exit 1 "$SHARDFS" verify --decode "$TMP/damaged.b2nd" | grep -F 'it cannot be decoded'
}
check 'commands know them' commands

# Of a copy that readers of Zarr read: docs/formats/blosc2.md.
is_copied() {
    local from
    "$SHARDFS" create "$TMP/copy.zarr" --shape 30,40 --dtype int32 --chunk 10,20 --shard 30,40 --codec zstd
    mount_view "$TMP/files/updated.b2nd" --view npy
    from=$MP
    new_mount_point
    "$SHARDFS" mount --rw --view npy "$TMP/copy.zarr" "$MP"
    cp -r "$from/c" "$MP"
    "$SHARDFS" umount "$MP"
    "$SHARDFS" umount "$from"
    "${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python" - "$TMP/copy.zarr" "$TMP/files/updated.npy" <<'PY'
import sys

import numpy
import zarr

assert (zarr.open_array(sys.argv[1], mode="r")[:] == numpy.load(sys.argv[2])).all()
PY
}
check 'a sharded array of Zarr is made of one by cp' is_copied

