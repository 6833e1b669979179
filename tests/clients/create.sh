#!/bin/bash
# Arrays that `shardfs create` makes: TensorStore finds in them what it would have made itself of the same wishes,
# zarr-python opens and fills them, also through a mount; after `shardfs resize` both find what is left.
#
#     tests/clients/create.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1

checker() { "${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python" "$here/create_check.py" "$@"; }

while read -r verdict words; do
    if [[ $verdict == ok ]]; then pass "$words"; else fail "$words"; fi
done < <(checker arrays "$SHARDFS" "$TMP" 2>&1 || echo "FAIL ended with $?")

through_a_mount() {
    "$SHARDFS" create "$TMP/mounted" --shape 40,30 --dtype uint16 --chunk 4,5 --shard 20,15 --codec zstd
    mount_view "$TMP/mounted" --rw
    checker fill "$MP"
    unmount_view
    checker filled "$TMP/mounted"
    [[ $(find "$TMP/mounted/c" -type f | wc -l) == 4 ]]
}
check "zarr-python fills a new array through a mount; zarr-python and TensorStore read its shards" through_a_mount
