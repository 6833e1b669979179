#!/bin/bash
# dask writes the inner chunks of shards in parallel, with threads and with processes: straight to the source,
# where much is lost, and through one writable mount and two, where nothing may be.
#
#     tests/clients/dask.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1

dask() { "${SHARDFS_VENVS:-$repo/target/venvs}/dask/bin/python" "$here/dask_check.py" "$@"; }

# on_the_source SCHEDULER: for comparison; how much is lost is chance.
on_the_source() {
    local source=$TMP/direct-$1
    dask make "$source"
    dask store "$1" "$source"
    echo "straight to the source, $1: $(dask lost "$source") lost"
}

# through_mounts SCHEDULER NUMBER: through so many mounts of one source.
through_mounts() {
    local source=$TMP/source-$1-$2 mounts=() mount
    dask make "$source"
    for ((i = 0; i < $2; i++)); do
        mount_view "$source" --rw
        mounts+=("$MP")
    done
    dask store "$1" "${mounts[@]}"
    [[ $(dask lost "${mounts[0]}") == '0.0 %' || $2 -gt 1 ]]
    for mount in "${mounts[@]}"; do
        unmount_view "$mount"
    done
    [[ $(dask lost "$source") == '0.0 %' ]]
    # It is still sharded, and each shard is whole.
    [[ $(find "$source/end/c" -type f | wc -l) == 8 ]]
    "$SHARDFS" verify "$source"
}

for scheduler in threads processes; do
    on_the_source "$scheduler"
    check "$scheduler of dask lose nothing through a mount" through_mounts "$scheduler" 1
    check "$scheduler of dask lose nothing through two mounts of one source" through_mounts "$scheduler" 2
done
