#!/bin/bash
# Files of bloscpack itself: each chunk file is decoded by python-blosc on its own.
#
#     tests/clients/bloscpack.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
python=${SHARDFS_VENVS:-$repo/target/venvs}/bloscpack/bin/python

mkdir "$TMP/files"
"$python" "$here/blosc_files.py" make "$TMP/files"

is_decoded() {
    mount_view "$@"
    "$python" "$here/blosc_files.py" check "$1" "$MP"
    # Nothing of the directory that the file is in.
    [[ $(ls "$MP") != *blp* ]]
    fails_with "Read-only file system" touch "$MP/c/0"
    unmount_view
}
for file in "$TMP"/files/*.blp; do
    check "$(basename "$file")" is_decoded "$file"
    check "$(basename "$file") (immutable)" is_decoded "$file" -o immutable
done

is_read_as_zarr() {
    mount_view "$TMP/files/uneven.blp" -o pad_edge
    "${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python" - "$MP" <<'PY'
import sys

import numpy
import zarr

array = zarr.open_array(sys.argv[1], mode="r")
assert array.chunks == (200,) and (array[:] == numpy.arange(1010)).all()
PY
    unmount_view
}
check "zarr-python reads it, its last chunk filled up" is_read_as_zarr

is_only_read() {
    new_mount_point
    fails_with "can only be read" "$SHARDFS" mount --rw "$TMP/files/array.blp" "$MP"
    not_mounted "$MP"
}
check "it is only read" is_only_read
