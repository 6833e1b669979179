#!/bin/bash
# Data sets of the library of webknossos-wrap itself, raw and compressed: what is shown decoded is what the library reads.
#
#     tests/clients/wkw.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
python=${SHARDFS_VENVS:-$repo/target/venvs}/wkw/bin/python

mkdir "$TMP/sets"
"$python" "$here/wkw_files.py" make "$TMP/sets"

is_shown() {
    mount_view "$TMP/sets/$1" --view zarr3,flat
    "$python" "$here/wkw_files.py" array "$TMP/sets/$1.npy" "$MP/flat/array.npy"
    # Blocks alone are below c: of files that are not there none.
    [[ $(find "$MP/zarr3/c" -type f | wc -l) == $((64 * $(find "$TMP/sets/$1" -name 'x*.wkw' | wc -l))) ]]
    [[ $(ls "$MP/zarr3") == $'c\nheader.json\nzarr.json' ]]
    unmount_view
}
for set in "$TMP"/sets/*/; do
    set=$(basename "$set")
    check "a data set: $set" is_shown "$set"
done

is_read_as_zarr() {
    mount_view "$TMP/sets/raw-uint16"
    "${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python" - "$MP" "$TMP/sets/raw-uint16.npy" <<'PY'
import sys

import numpy
import zarr

array = zarr.open_array(sys.argv[1], mode="r")
assert (array[:] == numpy.load(sys.argv[2])).all() and array.chunks == (8, 8, 8), array
PY
    unmount_view
}
check 'zarr-python reads raw blocks' is_read_as_zarr

commands() {
    local set=$TMP/sets/lz4-uint16
    "$SHARDFS" info "$set" | grep -F 'webknossos-wrap'
    "$SHARDFS" info --json "$set" | grep -F '"present": 128'
    [[ $("$SHARDFS" ls "$set" | wc -l) == 128 ]]
    "$SHARDFS" verify --decode "$set" | grep -F '128 chunks'
    "$SHARDFS" verify --decode "$set" | grep -F ': 0 defects'
    "$SHARDFS" unpack "$set" "$TMP/unpacked"
    mount_view "$set"
    diff -r "$MP/c" "$TMP/unpacked/c"
    fails_with 'Read-only file system' touch "$MP/c/0/0/0"
    unmount_view
    mkdir -p "$TMP/group/color"
    cp -r "$TMP/sets/raw-uint8" "$TMP/group/color/1"
    chmod -R u+w "$TMP/group"
    # What is beside them and in them goes along, but for their own files.
    echo notes | tee "$TMP/group/properties.json" "$TMP/group/color/1/readme.txt" >"$TMP/notes"
    "$SHARDFS" pack "$TMP/group" "$TMP/packed" --shard 1M
    cmp "$TMP/notes" "$TMP/packed/properties.json"
    cmp "$TMP/notes" "$TMP/packed/color/1/readme.txt"
    [[ $(ls "$TMP/packed/color/1") == $'c\nreadme.txt\nzarr.json' ]]
    [[ $("$SHARDFS" info --json "$TMP/group" | grep -c '"path": "color/1"') == 1 ]]
}
check 'commands know them, in directories too' commands

damaged() {
    local set=$TMP/damaged
    cp -r "$TMP/sets/lz4-uint16" "$set"
    chmod -R u+w "$set"
    # The end of a block beyond the file; another file with another header; one that is cut off.
    printf '\377\377\377\377' | dd of="$set/z0/y0/x0.wkw" bs=1 seek=$((16 + 8 * 10)) conv=notrunc status=none
    printf '\024' | dd of="$set/z0/y0/x1.wkw" bs=1 seek=4 conv=notrunc status=none
    expect_exit 1 "$SHARDFS" verify "$set" >"$TMP/said"
    grep -F 'it would end beyond the file' "$TMP/said"
    grep -F 'its header differs from header.wkw in the length of blocks' "$TMP/said"
    mount_view "$set"
    fails_with 'Input/output error' cat "$MP/c/4/0/0"
    cat "$MP/c/0/0/0" >/dev/null
    unmount_view
    head -c 20000 "$TMP/sets/raw-uint8/z0/y0/x0.wkw" >"$TMP/cut"
    cp -r "$TMP/sets/raw-uint8" "$TMP/cut.set"
    chmod -R u+w "$TMP/cut.set"
    cp "$TMP/cut" "$TMP/cut.set/z0/y0/x0.wkw"
    # Never zeros in their place.
    mount_view "$TMP/cut.set"
    fails_with 'Input/output error' cat "$MP/c/3/3/3"
    unmount_view
    # Names that are far apart: nothing looks for all that could be between them.
    mkdir -p "$TMP/far/z9000/y9000"
    cp "$TMP/sets/raw-uint8/header.wkw" "$TMP/far"
    cp "$TMP/sets/raw-uint8/z0/y0/x0.wkw" "$TMP/far/z9000/y9000/x9000.wkw"
    fails_with 'data sets are larger than the limit' timeout 20 "$SHARDFS" info "$TMP/far"
    printf 'WKW\002' | dd of="$set/header.wkw" bs=1 conv=notrunc status=none
    fails_with 'version is 2, only 1 can be read here' "$SHARDFS" info "$set"
}
check 'damaged files are errors, never other voxels' damaged
