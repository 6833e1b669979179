#!/bin/bash
# Arrays that clients create through `mount --rw --shard`: what they read there is what they have written, and what
# they and others read from the source, where the arrays are sharded by the rule.
#
#     tests/clients/creating.sh
#
# The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
venvs=${SHARDFS_VENVS:-$repo/target/venvs}

# creates CLIENT ENVIRONMENT SHARDED...: the arrays that are to be sharded, of all that the client makes.
creates() {
    local client=$1 python=$venvs/$2/bin/python source
    source=$(mktemp -d "$TMP/source.XXXXXX")
    mount_view "$source" --rw --shard '**/plain*=off' --shard 1K
    "$python" "$here/creating_check.py" write "$client" "$MP/made"
    "$python" "$here/creating_check.py" read "$client" "$MP/made"
    unmount_view
    "$python" "$here/creating_check.py" read "$client" "$source/made"
    "$python" "$here/creating_check.py" shards "$source/made" "${@:3}"
    # Mounted as any other.
    mount_view "$source/made"
    "$python" "$here/creating_check.py" read "$client" "$MP"
    unmount_view
    "$SHARDFS" verify "$source/made"
}
check "zarr-python creates arrays, makes them anew, resizes them and consolidates" \
    creates zarr clients grid deep/again grown names
check "TensorStore creates an array, and in its place another one" creates tensorstore clients grid
check "xarray creates a dataset, replaces it and appends to it" creates xarray refs height time
check "zarr-python and xarray create arrays that are sharded already, among others" \
    creates sharding refs grid by/rule data/height data/time

# The same of clients that know Zarr v2 alone, through the view zarr2: CLIENT READER SHARDED... In the source, where it
# is Zarr v3, the libraries of the environment READER read it.
creates_zarr2() {
    local client=$1 reader=$venvs/$2/bin/python python=$venvs/views/bin/python source
    source=$(mktemp -d "$TMP/source.XXXXXX")
    mount_view "$source" --rw --view zarr2 --shard 1K
    "$python" "$here/creating_zarr2.py" write "$client" "$MP/made"
    "$python" "$here/creating_zarr2.py" read "$client" "$MP/made"
    unmount_view
    "$reader" "$here/creating_zarr2.py" stored "$client" "$source/made"
    "$reader" "$here/creating_check.py" shards "$source/made" "${@:3}"
    [[ -z $(find "$source" -name '.z*') ]]
    # Mounted as any other.
    mount_view "$source" --view zarr2
    "$python" "$here/creating_zarr2.py" read "$client" "$MP/made"
    unmount_view
    "$SHARDFS" verify "$source"
}
check "zarr-python 2 creates arrays, makes them anew, resizes them and consolidates" \
    creates_zarr2 zarr clients grid deep/again nested grown names texts dates
check "xarray creates a dataset of Zarr v2, replaces it and appends to it" \
    creates_zarr2 xarray refs height masked count time
check "netCDF-C creates a dataset" creates_zarr2 netcdf clients grid

# Programs that bring files of an array in any order, the chunk files before the metadata among them.
plain=$TMP/plain/made
"$venvs/clients/bin/python" "$here/creating_check.py" write zarr "$plain"
bring() {
    local view=$2 source to files sharded
    source=$(mktemp -d "$TMP/source.XXXXXX")
    mount_view "$source" --rw --view "$view" --shard '**/plain*=off' --shard 1K
    to=$MP/made
    files=$(cd "$plain" && find . -type f | sort)
    case $1 in
        cp) cp -r "$plain" "$to" ;;
        rsync) rsync -a "$plain/" "$to" ;;
        copytree) python3 -c 'import shutil, sys; shutil.copytree(*sys.argv[1:])' "$plain" "$to" ;;
        tar) mkdir "$to" && tar -C "$plain" -cf - -T - <<<"$files" | tar -C "$to" -xf - ;;
        backwards) mkdir "$to" && tac <<<"$files" | tar -C "$plain" -cf - -T - | tar -C "$to" -xf - ;;
        # Four at once, some of which write chunk files while others write metadata.
        parallel)
            (cd "$plain" && find . -type d -exec mkdir -p "$to/{}" \; && shuf <<<"$files" | xargs -P 4 -I{} cp {} "$to/{}")
            ;;
    esac
    if [[ $view == zarr2 ]]; then
        "$venvs/views/bin/python" "$here/creating_zarr2.py" read zarr "$to"
        unmount_view
        "$venvs/clients/bin/python" "$here/creating_zarr2.py" stored zarr "$source/made"
        sharded=(grid deep/again nested grown names texts dates)
    else
        "$venvs/clients/bin/python" "$here/creating_check.py" read zarr "$to"
        unmount_view
        "$venvs/clients/bin/python" "$here/creating_check.py" read zarr "$source/made"
        sharded=(grid deep/again grown names)
    fi
    "$venvs/clients/bin/python" "$here/creating_check.py" shards "$source/made" "${sharded[@]}"
    "$SHARDFS" verify "$source/made"
}
for tool in cp rsync copytree tar backwards parallel; do
    check "plain arrays that $tool brings are stored sharded" bring $tool zarr3
done
plain=$TMP/plain2/made
"$venvs/views/bin/python" "$here/creating_zarr2.py" write zarr "$plain"
for tool in cp rsync copytree tar backwards parallel; do
    check "plain arrays of Zarr v2 that $tool brings are stored sharded" bring $tool zarr2
done

# A mount is killed while it puts chunk files into shards, and the next one goes on.
"$venvs/clients/bin/python" - "$TMP/many" <<'PY'
import sys

import numpy as np
import zarr

array = zarr.create_array(sys.argv[1], shape=(64, 64), chunks=(1, 1), dtype="uint16")
array[:] = np.arange(4096, dtype="uint16").reshape(64, 64) + 1
PY
killed() {
    local round source pid wait
    for round in {1..4}; do
        source=$(mktemp -d "$TMP/source.XXXXXX")
        echo '{"zarr_format": 3, "node_type": "group"}' >"$source/zarr.json"
        mount_view "$source" --rw --shard 1K
        mkdir "$MP/many"
        cp -r "$TMP/many/c" "$MP/many/c"
        sync -f "$MP"
        pid=$(daemon_of "$MP")
        wait=0.$(printf %02d $((RANDOM % 40)))
        (cp "$TMP/many/zarr.json" "$MP/many/zarr.json" 2>/dev/null || true) &
        sleep "$wait"
        kill -KILL "$pid"
        wait $!
        within 5 umount "$MP"
        if ((round % 2)); then
            "$SHARDFS" recover "$source" || true
        fi
        mount_view "$source" --rw
        diff -r "$TMP/many/c" "$MP/many/c"
        if [[ -e $MP/many/zarr.json ]]; then
            echo "round $round, after $wait s: an array"
        else
            echo "round $round, after $wait s: chunk files"
        fi
        unmount_view
        if [[ -e $source/many/zarr.json ]]; then
            "$SHARDFS" verify "$source/many"
            "$venvs/clients/bin/python" -c 'import sys, zarr
a, b = (zarr.open_array(path, mode="r")[:] for path in sys.argv[1:])
assert (a == b).all()' "$TMP/many" "$source/many"
        else
            diff -r "$TMP/many/c" "$source/many/c"
        fi
        [[ ! -e $source/many/.shardfs/gathered ]]
    done
}
check "a mount that is killed while it puts chunk files into shards loses none" killed
