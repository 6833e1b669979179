#!/bin/bash
# shardfs ls on real files: arrays of every layout, read by arrays.py without shardfs, and what a mount
# shows of them.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

here=$repo/tests/shell

# compare LISTING FILES ARRAY: what is listed are the files, and their bytes are where it says.
cat >"$TMP/compare.py" <<'PY'
import json
import os
import sys

here, listing, files, source = sys.argv[1:]
sys.path.insert(0, here)
from shards import crc32c

expected = {}
for base, _, names in os.walk(files):
    for name in names:
        path = os.path.join(base, name)
        with open(path, "rb") as f:
            expected[os.path.relpath(path, files)] = f.read()
with open(listing) as f:
    rows = [json.loads(line) for line in f]
found = {row["key"]: row for row in rows}
assert len(found) == len(rows), "a key is listed twice"
assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
for key, row in found.items():
    data = expected[key]
    assert row["nbytes"] == len(data), row
    assert int(row["crc32c"], 16) == crc32c(data), row
    if row["offset"] is not None:
        with open(os.path.join(source, row["shard"]), "rb") as f:
            f.seek(row["offset"])
            assert f.read(row["nbytes"]) == data, row
PY

each_layout() {
    local layout=$1 array="$TMP/arrays/$1" columns
    mkdir -p "$TMP/arrays"
    python3 "$here/arrays.py" make "$array" "$layout"
    python3 "$here/arrays.py" extract "$array" "$TMP/files/$layout"
    "$SHARDFS" ls "$array" --json -l >"$TMP/$layout.json"
    python3 "$TMP/compare.py" "$here" "$TMP/$layout.json" "$TMP/files/$layout" "$array"
    # The same in columns.
    "$SHARDFS" ls "$array" >"$TMP/$layout.txt"
    columns=$(python3 -c 'import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    offset = "-" if row["offset"] is None else row["offset"]
    print(row["key"], row["shard"], offset, row["nbytes"], sep="\t")' "$TMP/$layout.json")
    [[ $columns == "$(<"$TMP/$layout.txt")" ]]
}

# What does not exist, and what does, are the grid.
missing_ones() {
    local layout=$1 total=$2
    "$SHARDFS" ls "$TMP/arrays/$layout" | cut -f 1 >"$TMP/there"
    "$SHARDFS" ls "$TMP/arrays/$layout" --missing | cut -f 1 >"$TMP/missing"
    [[ $(sort -u "$TMP/there" "$TMP/missing" | wc -l) == "$total" ]]
    [[ $(cat "$TMP/there" "$TMP/missing" | wc -l) == "$total" ]]
    [[ -s $TMP/missing ]]
}

as_a_mount_shows_it() {
    "$SHARDFS" create --sample "$TMP/sample.zarr"
    mount_view "$TMP/sample.zarr"
    (cd "$MP" && find . -type f ! -name zarr.json -printf '%P\t%s\n') | sort >"$TMP/mounted"
    unmount_view
    "$SHARDFS" ls "$TMP/sample.zarr" | cut -f 1,4 | sort >"$TMP/listed"
    cmp "$TMP/mounted" "$TMP/listed"
    # A part of it is the same as all of it, filtered.
    "$SHARDFS" ls "$TMP/sample.zarr" waves/c/1/2 | cut -f 1,4 | sort >"$TMP/part"
    grep ^waves/c/1/2/ "$TMP/mounted" | cmp - "$TMP/part"
    [[ -s $TMP/part ]]
}

zero_bytes_end_lines() {
    "$SHARDFS" ls "$TMP/sample.zarr" -0 | tr '\0' '\n' | cmp - <("$SHARDFS" ls "$TMP/sample.zarr")
}

a_reader_that_goes_away() {
    python3 "$here/shards.py" array "$TMP/many.zarr" 7 --shards 2 --chunks 200000 --bytes 1
    local status
    set +o pipefail
    "$SHARDFS" ls "$TMP/many.zarr" 2>"$TMP/stderr" | head -n 1 >"$TMP/first"
    status=("${PIPESTATUS[@]}")
    set -o pipefail
    [[ ${status[0]} == 0 && $(<"$TMP/first") == $'c/0\tc/0\t0\t1' ]]
    [[ ! -s $TMP/stderr ]]
    [[ $("$SHARDFS" ls "$TMP/many.zarr" | wc -l) == 400000 ]]
}

damage_is_named() {
    local rc=0
    : >"$TMP/sample.zarr/waves/c/0/0/1"
    "$SHARDFS" ls "$TMP/sample.zarr" >"$TMP/rest" 2>"$TMP/stderr" || rc=$?
    [[ $rc == 1 ]]
    grep -q 'shard waves/c/0/0/1: it is empty' "$TMP/stderr"
    [[ $(wc -l <"$TMP/stderr") == 1 ]]
    cut -f 2 "$TMP/rest" | grep -qx waves/c/0/0/0
    [[ $(cut -f 2 "$TMP/rest" | sort -u | grep -cx waves/c/0/0/1) == 0 ]]
    # Who asks for others is not bothered.
    "$SHARDFS" ls "$TMP/sample.zarr" waves/c/0/0/0 >"$TMP/rest"
}

exit_codes() {
    expect_exit 2 "$SHARDFS" ls "$TMP/none.zarr"
    expect_exit 2 "$SHARDFS" ls "$TMP/sample.zarr" waves/d/0
    expect_exit 2 "$SHARDFS" ls "$TMP/sample.zarr" --missing --outside
    expect_exit 0 "$SHARDFS" ls "$TMP/sample.zarr" waves/c/99
}

while read -r layout; do
    check "$layout: chunks, their places and checksums" each_layout "$layout"
done < <(python3 "$here/arrays.py" layouts)
check 'chunks that do not exist' missing_ones slash 55
check 'chunks that do not exist, sharding inside sharding' missing_ones nested 220
check 'keys and lengths as a mount shows them' as_a_mount_shows_it
check 'lines that end with a zero byte' zero_bytes_end_lines
check 'a reader that goes away' a_reader_that_goes_away
check 'damage is named, the rest is listed' damage_is_named
check 'exit codes' exit_codes

outside_is_counted_alike() {
    local array=$TMP/kept/waves
    "$SHARDFS" create --sample "$TMP/kept"
    "$SHARDFS" resize --keep-outside "$array" --shape 40,60,60
    "$SHARDFS" info "$array" | grep -F "12 chunks outside the array's shape, in shards at its edge; 3 files outside the shard grid"
    [[ $("$SHARDFS" info --json "$array" | grep -o '"outside": [0-9]*' | sort -u | tr -dc '0-9\n') == $'12\n3' ]]
    "$SHARDFS" verify "$array" >"$TMP/kept.verify" || true
    grep -F "12 chunks outside the array's shape, in shards at its edge" "$TMP/kept.verify"
    [[ $(grep -c "outside the shard grid" "$TMP/kept.verify") == 3 ]]
    [[ $("$SHARDFS" ls --outside "$array" 2>"$TMP/kept.said" | wc -l) == 54 ]]
    grep "3 files outside the shard grid, with chunks that are not listed" "$TMP/kept.said"
}
check "info, ls and verify count what lies outside alike" outside_is_counted_alike
