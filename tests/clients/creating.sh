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
