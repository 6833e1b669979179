#!/bin/bash
# fsx: random reads, writes, truncations, mappings and reopenings of
# one chunk file, compared with what a file must hold, while its shard is committed in between.
# Installs fsx with cargo into target/tools when it is not there.

# Its operations are many.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-2400}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

tools=${SHARDFS_TOOLS:-$repo/target/tools}
fsx=$tools/bin/fsx

if [[ ! -x $fsx ]]; then
    if ! command -v cargo >/dev/null; then
        skip "no $fsx, and no cargo to install it with"
        exit 0
    fi
    "$repo/tests/cargo_tool.sh" fsx || { skip "fsx cannot be installed" && exit 0; }
fi

# config SYNC: operations and how often. Left out, since chunk files do not have them:
# - posix_fallocate, punch_hole: a chunk has no blocks of its own that could be reserved or given
#   back; fallocate(2) is refused with EOPNOTSUPP.
# copy_file_range and sendfile go through the kernel's own copying, with reads and writes.
config() {
    cat <<EOF
flen = 100000
nomsyncafterwrite = $1
[opsize]
max = 16384
[weights]
close_open = 2
invalidate = 0.5
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 5
fsync = $2
fdatasync = $2
sendfile = 1
copy_file_range = 1
posix_fadvise = 0.5
EOF
}

# stored SHARD SLOTS SLOT: the bytes of a chunk, from its shard with the index at the end.
stored() {
    python3 - "$@" <<'PY'
import struct
import sys

path, slots, slot = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb") as f:
    data = f.read()
index = data[-16 * slots - 4:]
offset, nbytes = struct.unpack_from("<QQ", index, 16 * slot)
sys.stdout.buffer.write(data[offset:offset + nbytes])
PY
}

commits() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["commits"]["commits"])' "$MP/.shardfs/stats.json"
}

# exercise POLICY OPERATIONS SEED NOMSYNC FSYNCS
exercise() {
    local array=$TMP/$1-$3
    python3 "$repo/tests/shell/shards.py" array "$array" 1 --shards 1 --chunks 4
    mount_view "$array" --rw --update="$1" --commit-interval=0.1
    config "$4" "$5" >"$TMP/fsx.toml"
    # Slot 1: it has neighbours on both sides.
    # It only ends what hangs.
    timeout 1500 "$fsx" -q -N "$2" -S "$3" -f "$TMP/fsx.toml" -P "$TMP" "$MP/c/1"
    (($(commits) >= 10))
    cat "$MP/c/1" >"$TMP/shown"
    unmount_view
    stored "$array/c/0" 4 1 | cmp "$TMP/shown" -
    # Nothing happened to the others.
    for slot in 0 2 3; do
        stored "$array/c/0" 4 "$slot" | cmp <(head -c 4096 /dev/zero | tr '\0' '\1') -
    done
    [[ ! -e $array/.shardfs ]]
}

check 'fsx, 85,000 operations, update=auto' exercise auto 85000 1 true 0.02
check 'fsx, 10,000 operations, update=append' exercise append 10000 2 true 0.02
check 'fsx, 3,000 operations, update=in-place' exercise in-place 3000 3 true 0.1
check 'fsx, 2,000 operations, every mapped write synced' exercise auto 2000 4 false 0.1
