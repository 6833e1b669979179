#!/bin/bash
# Programs that write hierarchies of Zarr, through a mount that stores them sharded: there they look as in a plain
# directory, and in the source they have the same values, in Zarr v3, sharded.
#
#     tests/clients/writers.sh
#
# The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1
venvs=${SHARDFS_VENVS:-$repo/target/venvs} node=${SHARDFS_NODE:-$repo/target/node}
check_script() { "$venvs/writers/bin/python" "$here/writers_check.py" "$@"; }

# writes FORMAT VIEW COMMAND...: COMMAND is given a directory.
writes() {
    local format=$1 view=$2 source plain
    shift 2
    source=$(mktemp -d "$TMP/source.XXXXXX") plain=$(mktemp -d "$TMP/plain.XXXXXX")
    "$@" "$plain/made"
    mount_view "$source" --rw --view "$view" --shard 64K
    "$@" "$MP/made"
    check_script same "$format" "$MP/made" "$plain/made"
    unmount_view
    check_script stored "$source/made" "$plain/made"
    "$SHARDFS" verify "$source"
    # As the next mount shows it.
    mount_view "$source" --view "$view"
    check_script same "$format" "$MP/made" "$plain/made"
    unmount_view
}

for client in ome_zarr ngff_zarr anndata dask zarrs tensorstore gdal; do
    # GDAL's documents of Zarr v3 have no codec that makes bytes, which other readers refuse.
    [[ $client == gdal ]] || check "$client writes Zarr v3" writes 3 zarr3 check_script write "$client" 3
    # zarrs knows no filters and compressors of Zarr v2.
    [[ $client == zarrs ]] || check "$client writes Zarr v2" writes 2 zarr2 check_script write "$client" 2
done
check "zarrita.js writes Zarr v3" writes 3 zarr3 node "$here/write_zarrita.mjs" "$node/node_modules"
