#!/bin/bash
# What people do with files, on a mount of the program's own sample.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell

check "create --sample" "$SHARDFS" create --sample "$TMP/sample.zarr"
mount_view "$TMP/sample.zarr" -o xattr
view=$MP
mount_view "$TMP/sample.zarr"
second=$MP

# Directories of the sample, relative to its root, that hold a sharded array.
mapfile -t arrays < <(cd "$TMP/sample.zarr" && grep -l --include=zarr.json -r '"sharding_indexed"' . |
    sed 's|/*zarr.json$||' | sort)

chunk_files() { find "$1" -type f ! -name zarr.json | sort; }
# Not head(1): who writes to it may die of its early end, and the script with it.
first_chunk() { chunk_files "$1" | sed -n 1p; }
a_chunk=$(first_chunk "$view/${arrays[-1]}")

there_is_an_array() { [[ ${#arrays[@]} -gt 0 && -n $a_chunk ]]; }
check "the sample has a sharded array" there_is_an_array

counts() {
    local array want got
    for array in "${arrays[@]}"; do
        # A group's consolidated metadata names the codec as well: not an array.
        grep -q '"node_type": *"array"' "$TMP/sample.zarr/$array/zarr.json" || continue
        want=$(python3 "$here/shards.py" count "$TMP/sample.zarr/$array")
        got=$(chunk_files "$view/$array" | wc -l)
        echo "$array: $got files, $want chunks in the indexes"
        [[ $got == "$want" && $got -gt 0 ]]
    done
}
check "find counts as many files as the indexes have entries" counts

no_sharding() {
    local file
    while read -r file; do
        python3 -m json.tool "$file" >/dev/null
        [[ $(grep -c sharding_indexed "$file") == 0 ]]
    done < <(find "$view" -name zarr.json)
}
check "every zarr.json is JSON and names no sharding" no_sharding

# The extended attributes say which bytes of which shard a file is.
ranges() {
    python3 - "$view" "$TMP/sample.zarr" <<'PY'
import os
import sys

view, source = sys.argv[1:]
n = 0
for base, _, files in os.walk(view):
    for name in files:
        path = os.path.join(base, name)
        if name == "zarr.json":
            continue
        shard, offset, size = (os.getxattr(path, f"user.shardfs.{k}").decode() for k in ("shard", "offset", "nbytes"))
        offset, size = int(offset), int(size)
        # An absolute path, or one below the source or the array.
        array = base
        while not os.path.exists(os.path.join(array, "zarr.json")):
            array = os.path.dirname(array)
        in_source = os.path.join(source, os.path.relpath(array, view))
        shard = next(p for p in (os.path.join(source, shard), os.path.join(in_source, shard)) if os.path.isfile(p))
        with open(shard, "rb") as f:
            f.seek(offset)
            want = f.read(size)
        with open(path, "rb") as f:
            got = f.read()
        assert got == want and len(got) == size == os.stat(path).st_size, path
        listed = set(os.listxattr(path))
        assert {"user.shardfs.shard", "user.shardfs.offset", "user.shardfs.nbytes"} <= listed, listed
        n += 1
assert n
print(n, "files")
PY
}
check "contents are the ranges that the extended attributes name" ranges

by_hand() {
    local shard offset nbytes
    shard=$(getfattr --only-values -n user.shardfs.shard "$a_chunk")
    offset=$(getfattr --only-values -n user.shardfs.offset "$a_chunk")
    nbytes=$(getfattr --only-values -n user.shardfs.nbytes "$a_chunk")
    [[ $shard == /* ]] || shard=$TMP/sample.zarr/$shard
    [[ $(stat -c %s "$a_chunk") == "$nbytes" ]]
    [[ $(dd if="$shard" bs=1 skip="$offset" count="$nbytes" status=none | sha256sum) == "$(sha256sum <"$a_chunk")" ]]
}
if command -v getfattr >/dev/null; then
    check "stat, sha256sum and dd agree on one chunk" by_hand
else
    skip "stat, sha256sum and dd on one chunk: no getfattr"
fi

no_xattr() { fails_with "" python3 -c 'import os, sys; os.getxattr(sys.argv[1], "user.shardfs.shard")' \
    "$(first_chunk "$second")"; }
check "no extended attributes unless asked for" no_xattr

reads() {
    local size
    size=$(stat -c %s "$a_chunk")
    cp "$a_chunk" "$TMP/chunk"
    cmp "$a_chunk" "$TMP/chunk"
    cmp <(dd if="$a_chunk" bs=7 skip=3 count=5 status=none) <(dd if="$TMP/chunk" bs=7 skip=3 count=5 status=none)
    cmp <(dd if="$a_chunk" bs=1 skip=$((size / 2)) status=none) <(tail -c +$((size / 2 + 1)) "$TMP/chunk")
    cmp <(dd if="$a_chunk" bs=4095 status=none) "$TMP/chunk"
    cmp <(tail -c 9 "$a_chunk") <(tail -c 9 "$TMP/chunk")
    # Past the end: nothing, and no error.
    [[ $(dd if="$a_chunk" bs=1 skip=$((size + 1000)) count=10 status=none | wc -c) == 0 ]]
}
check "dd at odd offsets, tail, past the end" reads

mapped() {
    python3 - "$a_chunk" "$TMP/chunk" <<'PY'
import mmap
import os
import sys

want = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "rb") as f:
    assert mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:] == want
    r, w = os.pipe()
    n = os.splice(f.fileno(), w, min(len(want), 4096), offset_src=0)
    assert os.read(r, n) == want[:n]
fd = os.open(sys.argv[1], os.O_RDONLY | getattr(os, "O_DIRECT", 0))
try:
    buffer = mmap.mmap(-1, (len(want) + 4096) // 4096 * 4096 + 4096)
    assert os.readv(fd, [buffer]) == len(want) and buffer[:len(want)] == want
finally:
    os.close(fd)
PY
}
check "mmap, splice and O_DIRECT" mapped

cat_all() {
    local a b
    a=$(chunk_files "$view" | xargs -d '\n' cat | sha256sum)
    b=$(chunk_files "$second" | xargs -d '\n' cat | sha256sum)
    [[ $a == "$b" ]]
}
check "cat of all chunks" cat_all

copies() {
    cp -r "$view" "$TMP/cp"
    diff -r "$view" "$TMP/cp"
}
check "cp -r and diff -r" copies

synchronised() {
    rsync -a "$view/" "$TMP/rsync/"
    diff -r "$view" "$TMP/rsync"
    # Sizes and times are kept, so a second run has nothing to send.
    [[ -z $(rsync -ani "$view/" "$TMP/rsync/") ]]
    [[ -z $(rsync -anci "$view/" "$TMP/rsync/") ]]
}
if command -v rsync >/dev/null; then
    check "rsync -a, twice" synchronised
else
    skip "rsync: not installed"
fi

archived() {
    mkdir "$TMP/untar"
    tar -C "$view" -cf - . 2>"$TMP/tar.err" | tar -C "$TMP/untar" -xf -
    [[ ! -s $TMP/tar.err ]]
    diff -r "$view" "$TMP/untar"
}
check "tar" archived

same_everywhere() {
    diff -r "$view" "$second"
    # Inode, size, time and mode too: the same in every mount of the source.
    diff <(cd "$view" && find . -printf '%p %i %s %T@ %m %n\n' | sort) \
        <(cd "$second" && find . -printf '%p %i %s %T@ %m %n\n' | sort)
}
check "two mounts show the same, inodes included" same_everywhere

inodes() {
    local double
    double=$(find "$view" -printf '%i\n' | sort | uniq -d)
    echo "used twice: $double"
    [[ -z $double ]]
}
check "no inode number twice" inodes

modes() {
    [[ -z $(find "$view" -type f -perm /111) ]]
    [[ $(stat -c %F "$a_chunk") == "regular file" ]]
    find "$view" -type f -printf '%h/%f\n' | xargs -d '\n' ls -l >/dev/null
    du -s "$view" >/dev/null
    df "$view" >/dev/null
}
check "modes, ls -l, du, df" modes

absent() {
    fails_with "No such file" cat "$(dirname "$a_chunk")/123456"
    fails_with "No such file" cat "$(dirname "$a_chunk")/00"
    fails_with "No such file" cat "$(dirname "$a_chunk")/.0"
    fails_with "Not a directory" cat "$a_chunk/0"
    fails_with "Is a directory" cat "$view"
}
check "names that are no chunk do not exist" absent

hidden() {
    find "$view" -name .shardfs | wc -l
    [[ $(find "$view" -name '.shardfs*' | wc -l) == 0 ]]
    python3 -m json.tool "$view/.shardfs/stats.json" >/dev/null
}
check ".shardfs answers but is not listed" hidden

check "unmount" unmount_view "$view"
check "unmount of the other" unmount_view "$second"
empty_again() { [[ -z $(ls -A "$view") ]] && not_mounted "$view"; }
check "the mount point is empty again" empty_again
