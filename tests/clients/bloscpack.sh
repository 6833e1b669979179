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

# 1010 doubles, 200 in a chunk; the last chunk counts as a whole one.
is_counted() {
    "$SHARDFS" info --json "$TMP/files/uneven.blp" >"$TMP/info.json"
    python3 - "$TMP/info.json" <<'PY'
import json
import sys

(array,) = json.load(open(sys.argv[1]))["arrays"]
assert (array["chunk_shape"], array["shard_shape"], array["chunk_grid"]) == ([200], [1200], [6]), array
assert array["bytes"]["decoded"] == 6 * 1600 and array["ratio"] == 9600 / array["bytes"]["live"], array
PY
}
check "info counts its elements, not its chunks" is_counted

is_written() {
    local file=$TMP/written/$1/file.blp
    mkdir -p "${file%/*}"
    cp "$TMP/files/$1" "$file"
    mount_view "$file" --rw "${@:2}"
    "$python" "$here/blosc_files.py" write "$file" "$MP"
    unmount_view
    # Nothing is left beside it, and everybody reads the same.
    [[ $(ls -A "${file%/*}") == file.blp ]]
    mount_view "$file"
    "$python" "$here/blosc_files.py" check "$file" "$MP"
    unmount_view
}
for file in "$TMP"/files/*.blp; do
    check "$(basename "$file"): bloscpack unpacks what was written through the mount" is_written "$(basename "$file")"
done
for policy in append in-place rewrite; do
    for file in crc32 None uneven adler32; do
        check "$file.blp: the same with --update=$policy" is_written $file.blp --update=$policy
    done
done
check "appended.blp: the same with -o sync" is_written appended.blp -o sync

is_changed_by_others() {
    mkdir "$TMP/others"
    cp "$TMP/files/crc32.blp" "$TMP/others/file.blp"
    mount_view "$TMP/others/file.blp" --rw --commit-interval 1000 --log-file "$TMP/others/log"
    "$python" "$here/blosc_files.py" others "$TMP/others/file.blp" "$MP"
    local saved
    saved=$(sed -n 's|.*what was written is in \(.*\)/c/2$|\1|p' "$TMP/others/log")
    [[ -f $saved/c/2 ]]
    rm -r "$saved"
    unmount_view
}
check "bloscpack appends while it is mounted, and replaces a chunk: ESTALE for that one" is_changed_by_others

longer_than() { (($(wc -l <"$2") > $1)); }

# The daemon is killed in the middle of it: what was durable is there, and nothing is half a chunk.
survives() {
    mkdir "$TMP/killed"
    local file=$TMP/killed/file.blp round daemon storm lines
    cp "$TMP/files/crc32.blp" "$file"
    : >"$TMP/killed/log"
    for round in {1..12}; do
        mount_view "$file" --rw --update="$([[ $((round % 3)) == 0 ]] && echo auto || echo in-place)"
        "$python" "$here/blosc_files.py" storm "$MP" "$TMP/killed/log" "$round" &
        storm=$!
        lines=$(wc -l <"$TMP/killed/log")
        within 120 longer_than "$((lines + 9))" "$TMP/killed/log"
        sleep "0.$((RANDOM % 5))"
        daemon=$(daemon_of "$MP")
        kill -s KILL "$daemon"
        wait "$storm"
        within 10 no_daemon_of "$MP"
        timeout 30 "$SHARDFS" umount "$MP" || true
        # By recovery, or by the next mount.
        if ((round % 2)); then
            "$SHARDFS" recover "$file"
        else
            mount_view "$file" --rw
            unmount_view
        fi
        "$python" "$here/blosc_files.py" after "$file" "$TMP/killed/log"
    done
    [[ $(wc -l <"$TMP/killed/log") -gt 100 && $(ls -A "$TMP/killed") == $'file.blp\nlog' ]]
}
check "kill -9 in the middle of writing: no durable chunk is lost, none is half written" survives

is_refused() {
    mkdir "$TMP/refused"
    cp "$TMP/files/crc32.blp" "$TMP/refused/file.blp"
    mount_view "$TMP/refused/file.blp" --rw
    "$python" "$here/blosc_files.py" refused "$TMP/refused/file.blp" "$MP"
    unmount_view
    cmp "$TMP/files/crc32.blp" "$TMP/refused/file.blp"
}
check "what is no chunk of the file is not written to it" is_refused

superchunks_are_written() {
    rm -rf "$TMP/blz"
    "$python" "$here/blosc_files.py" directory "$TMP/blz"
    mount_view "$TMP/blz" --rw "$@"
    "$python" "$here/blosc_files.py" superchunks "$TMP/blz" "$MP"
    unmount_view
    [[ $(ls -A "$TMP/blz") == $'__attrs__\ndata\nmeta' ]]
    [[ $(ls -A "$TMP/blz/data") == $'__0.blp\n__1.blp\n__2.blp\n__3.blp\n__4.blp' ]]
}
check "BLZ: chunks are replaced through the mount" superchunks_are_written
check "BLZ: the same with -o sync" superchunks_are_written -o sync

is_not_padded() {
    new_mount_point
    fails_with "pad_edge requires a read-only mount" "$SHARDFS" mount --rw -o pad_edge "$TMP/files/uneven.blp" "$MP"
    not_mounted "$MP"
}
check "chunks that are shown longer than they are cannot be written" is_not_padded
