# shellcheck shell=bash
# Common parts of the tests of a source that others change under a mount.  Source it first:
#
#     . "$(dirname "$0")/lib.sh"

# shellcheck source=../../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../lib.sh"
here=$repo/tests/shell
# The time after which a change of the source must be visible.
settle() { sleep 1.1; }

# Chunks of 512 KiB: more than the kernel reads ahead, so a descriptor has parts yet to be fetched.
size=524288
make_array() { python3 "$here/shards.py" array "$1" "${@:2}" --shards 3 --chunks 4 --bytes $size; }
make_shard() { python3 "$here/shards.py" shard "$1" "${@:2}" --chunks 4 --bytes $size; }

# shows FILE VALUE: the chunk has its size and nothing but this byte
shows() {
    python3 - "$1" "$2" $size <<'PY'
import sys

path, value, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb") as f:
    got = f.read()
found = {byte: got.count(byte) for byte in set(got)}
assert got == bytes([value]) * size, f"{path}: {len(got)} bytes, values and counts {found}, expected {value}"
PY
}

make_array "$TMP/template.zarr" 1
make_shard "$TMP/second" 2 --gap 1000
make_shard "$TMP/third" 3 --gap 77777
make_shard "$TMP/fewer" 4 --only 1,2

# fresh: a new copy of the array, mounted; sets MP and source
fresh() {
    source=$(mktemp -d "$TMP/src.XXXXXX")/a.zarr
    cp -r "$TMP/template.zarr" "$source"
    mount_view "$source" "$@"
}

# Ways to change the shard $1 to the contents of the file $2.
by_rename() {
    cp "$2" "$1.tmp"
    mv "$1.tmp" "$1"
}
in_place() { cat "$2" >"$1"; }
in_place_without_truncation() {
    dd if="$2" of="$1" bs=1M conv=notrunc status=none
    truncate -s "$(stat -c %s "$2")" "$1"
}
