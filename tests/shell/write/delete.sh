#!/bin/bash
# Chunks are removed, and directories of chunks are made and removed.

# shellcheck disable=SC2016 source=lib.sh
. "$(dirname "$0")/lib.sh"

directories() {
    fresh $plane
    both mkdir -p c/0 c/3
    both mkdir c/0
    both rmdir c/0
    both rm -r c/1
    both mkdir c/1
    both ls c/1
    both rmdir c/1
    both mkdir -p c/1
    both cp "$data/page" c/1/1
    both rm c/1/1
    both rmdir c/1
    settled
}
at_once "mkdir -p and rmdir of directories of chunks" directories

# A commit creates a directory of shards, which stands for more directories of the view than have been made.
made_while_committing() {
    fresh $plane --commit-interval 0
    both rm -r c
    sync "$MP"
    script 'for directory in 0 1 2 3 4; do
        mkdir -p c/$directory && cp "$0" c/$directory/7 && sync c/$directory/7
        ls c
        [[ ! -e c/$((directory + 1)) ]]
    done' "$data/small"
    # A removed chunk leaves its directory, until that is removed as well.
    both rm c/3/7
    sync "$MP"
    both ls c c/3
    both rmdir c/3
    both ls c
    both mkdir c/3
    both cp "$data/page" c/3/7
    settled
}
at_once "directories are those that were made, whatever commits do" made_while_committing

removed() {
    fresh $plane
    both rm "${present[@]:0:5}"
    both rm "${present[0]}"
    both rm -f "${present[0]}"
    sync "$MP"
    both rm "${present[@]:5:5}"
    both rm -r c/2
    both ls c
    settled
}
at_once "rm, rm -f, rm -r of a directory of chunks" removed

# Shard c/0/0 is the chunks of 2 rows and 4 columns.
last_chunk() {
    fresh $plane
    [[ -e $source/c/0/0 ]]
    both rm -f c/{0,1}/{0..3}
    sync "$MP"
    [[ ! -e $source/c/0/0 && -e $source/c/0/1 ]]
    both cp "$data/page" c/1/2
    sync "$MP"
    [[ -e $source/c/0/0 ]]
    both find c -type f -delete
    sync "$MP"
    [[ -z $(find "$source" -type f ! -path '*/.shardfs*' ! -name zarr.json) ]]
    settled
}
at_once "the last chunk's removal removes the shard" last_chunk

removed_while_listed() {
    fresh $plane
    rm -r "$source" "$want"
    unmount_view
    python3 "$here/shards.py" array "$source" 1 --shards 3 --chunks 2000 --bytes 8
    mount_view "$source" --rw
    python3 - "$MP/c" <<'PY'
import os
import sys

seen = []
with os.scandir(sys.argv[1]) as entries:
    for n, entry in enumerate(entries):
        seen.append(entry.name)
        # Those that are left must not be passed over, nor seen twice.
        os.unlink(entry.path)
        if n % 1000 == 999:
            fd = os.open(sys.argv[1], os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
assert sorted(map(int, seen)) == list(range(6000)), len(seen)
assert os.listdir(sys.argv[1]) == []
PY
    unmount_view
    [[ $(find "$source" -type f) == "$source/zarr.json" ]]
}
at_once "a listing goes on while its entries are removed" removed_while_listed

# Directories can be made only for chunks within the shape, which may become smaller.
made_outside() {
    fresh_group
    "$SHARDFS" resize "$source/waves" --shape 640,112,120
    sleep 1.2
    mkdir -p "$MP/waves/c/39/0"
    "$SHARDFS" resize "$source/waves" --shape 64,112,120
    sleep 1.2
    timeout 20 "$@" "$MP/waves"
    [[ ! -e $MP/waves ]]
    unmount_view
    [[ ! -e $source/waves ]]
}
at_once "an array that has become smaller than the directories in it is removed" made_outside rm -r
at_once "so it is by delete" made_outside "$SHARDFS" delete

finish
