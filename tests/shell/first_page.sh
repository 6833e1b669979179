#!/bin/bash
# What the first lines of README.md say, as far as other tests do not: four files appear as a million. Parallel
# writers are in tests/clients/dask.sh, old tools in tests/clients/recipes.sh and views.sh.
#
#     tests/shell/first_page.sh

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
SRC=$TMP/million.zarr

# An array of 1000 x 1000 chunks of one byte in 2 x 2 shards.
python3 - "$SRC" <<'EOP'
import array, json, os, sys
source, side, chunks = sys.argv[1], 1000, 500
document = {
    "zarr_format": 3, "node_type": "array", "shape": [side, side], "data_type": "uint8", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunks, chunks]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1, 1], "codecs": [{"name": "bytes"}], "index_location": "end",
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }}],
}
number = chunks * chunks
entries = array.array("Q", (word for offset in range(number) for word in (offset, 1)))
if sys.byteorder == "big":
    entries.byteswap()
for row in range(2):
    os.makedirs(f"{source}/c/{row}")
    for column in range(2):
        with open(f"{source}/c/{row}/{column}", "wb") as file:
            file.write(bytes(1 + (row * 2 + column + i) % 255 for i in range(number)))
            entries.tofile(file)
with open(f"{source}/zarr.json", "w") as file:
    json.dump(document, file)
EOP

four_files_in_the_place_of_a_million() {
    [[ $(find "$SRC/c" -type f | wc -l) == 4 ]]
    mount_view "$SRC"
    [[ $(find "$MP/c" -type f | wc -l) == 1000000 ]]
    # Chunk [2, 3] of shard [1, 0] is its byte 2 * 500 + 3.
    cmp "$MP/c/502/3" <(dd if="$SRC/c/1/0" bs=1 skip=1003 count=1 status=none)
    unmount_view "$MP"
    "$SHARDFS" verify "$SRC" >"$TMP/verified" 2>&1
    cat "$TMP/verified"
    grep -q '^1 array, 4 shards, 1,000,000 chunks, .*: 0 defects' "$TMP/verified"
}
check "four files appear as a million" four_files_in_the_place_of_a_million
