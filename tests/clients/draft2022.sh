#!/bin/bash
# The library that wrote hierarchies of the draft of 2022 opens them through the mount, its sharding switched
# off, and writes to them; its sharding switched on, it reads the source.
#
#     tests/clients/draft2022.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/clients
"$here/setup.sh"
export PYTHONDONTWRITEBYTECODE=1

unsharded() { "${SHARDFS_VENVS:-$repo/target/venvs}/draft2022/bin/python" "$here/draft2022.py" "$@"; }
sharded() { ZARR_V3_SHARDING=1 unsharded "$@"; }
files() { (cd "$1" && find . -type f | sort); }

source=$TMP/s.zr3
sharded make "$source"

is_read() {
    mount_view "$source"
    diff <(sharded values "$source") <(unsharded values "$MP")
    # Nothing of the sharding is left in the metadata, nothing of the shards in the data.
    fails_with "" grep -r storage_transformers "$MP"
    [[ $(files "$MP" | grep -c data/root/a/) == 12 && $(files "$source" | grep -c data/root/a/) == 4 ]]
    unmount_view
}
check "what is shown is read like the source" is_read

is_written() {
    local expected
    mount_view "$source" --rw --log-file "$TMP/log"
    expected=$(unsharded write "$MP")
    diff <(echo "$expected") <(unsharded values "$MP")
    timeout 30 "$SHARDFS" sync "$MP"
    diff <(echo "$expected") <(sharded values "$source")
    grep -q '"written": "a"' "$source/meta/root/a.array.json"
    grep -q chunks_per_shard "$source/meta/root/a.array.json"
    unmount_view
    diff <(echo "$expected") <(sharded values "$source")
    [[ -z $(find "$source" -name '*shardfs*') ]]
    fails_with "" grep error "$TMP/log"
}
check "what is written through the mount is in the shards" is_written

is_resized() {
    mount_view "$source" --rw
    unsharded resize "$MP"
    # The library removes what is outside itself; what is left of the shard is still one.
    unmount_view
    mount_view "$source"
    diff <(sharded values "$source") <(unsharded values "$MP")
    [[ $(unsharded values "$MP") == *'"a": [[4, 4]'* ]]
    unmount_view
}
check "an array shrinks and stays sharded" is_resized

is_removed() {
    mount_view "$source" --rw
    rm -r "$MP/data/root/grp/dot" "$MP/meta/root/grp/dot.array.json"
    rm -r "$MP/meta/root/a.array.json" "$MP/data/root/a"
    unmount_view
    [[ ! -e $source/data/root/grp/dot && ! -e $source/meta/root/grp/dot.array.json ]]
    [[ ! -e $source/data/root/a && ! -e $source/meta/root/a.array.json ]]
    [[ -e $source/data/root/grp/line && -e $source/meta/root/grp/line.array.json ]]
}
check "arrays are removed, data first or metadata first" is_removed

none_is_made() {
    mount_view "$source" --rw
    cp "$source/meta/root/grp/line.array.json" "$TMP/line.json"
    fails_with "Invalid argument" cp "$TMP/line.json" "$MP/meta/root/new.array.json"
    unmount_view
}
check "a sharded array cannot be made through the view" none_is_made

is_recovered() {
    "$SHARDFS" recover --scan "$source" | tee "$TMP/scan"
    grep -q ' shards checked, 0 repaired' "$TMP/scan"
    fails_with "" grep -q '^0 shards' "$TMP/scan"
}
check "recover --scan looks at its shards" is_recovered
