#!/bin/bash
# shardfs verify and info on real files: sound arrays of every layout, and what can stand in the place of
# a shard. Defects within shards are tested beside the code.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

here=$repo/tests/shell
mkdir "$TMP/elsewhere"

# The chunks of arrays.py are any bytes: of items without a fixed size nothing is expected of them.
sound_layout() {
    local layout=$1 array="$TMP/arrays/$1" chunks
    mkdir -p "$TMP/arrays"
    python3 "$here/arrays.py" make "$array" "$layout"
    sed -i 's/"data_type": "uint8"/"data_type": "string"/' "$array/zarr.json"
    python3 "$here/arrays.py" extract "$array" "$TMP/files/$layout"
    chunks=$(find "$TMP/files/$layout" -type f | wc -l)
    "$SHARDFS" verify "$array" --json >"$TMP/found"
    tail -n 1 "$TMP/found" | grep -q "\"chunks\":$chunks,.*\"defects\":0"
    "$SHARDFS" verify "$array" --decode >"$TMP/found"
    "$SHARDFS" info "$array" --json >"$TMP/info"
    python3 -c 'import json, sys
array, = json.load(open(sys.argv[1]))["arrays"]
assert array["chunks"]["present"] == int(sys.argv[2]), array
# Gaps are made between chunks; but those of a shard that is compressed as a whole are not seen.
compressed = array["levels"][0]["codecs_after"] == ["gzip"]
assert (array["bytes"]["dead"] > 0) != compressed, array
total = sum(array["bytes"][part] for part in ("live", "overhead", "dead"))
assert array["bytes"]["files"] == total, array' "$TMP/info" "$chunks"
}

fresh_sample() {
    rm -rf "$TMP/sample.zarr"
    "$SHARDFS" create --sample "$TMP/sample.zarr"
}

sound_sample() {
    fresh_sample
    find "$TMP/sample.zarr" -printf '%p %s %T@ %C@\n' | sort >"$TMP/before"
    [[ $("$SHARDFS" verify "$TMP/sample.zarr" --decode) == \
        '1 array, 4 shards, 192 chunks, 567.76 KiB checked: 0 defects, 0 notes' ]]
    # Nothing is written.
    find "$TMP/sample.zarr" -printf '%p %s %T@ %C@\n' | sort | cmp - "$TMP/before"
}

calls_the_source_a_dot() {
    fresh_sample
    truncate -s 1000 "$TMP/sample.zarr/waves/c/0/0/1"
    expect_exit 1 "$SHARDFS" verify --json "$TMP/sample.zarr/waves" | grep -F '"array":"."'
    expect_exit 1 "$SHARDFS" info --json "$TMP/sample.zarr/waves" | grep -F '"path": "."'
}

says_what_is_not_checked() {
    fresh_sample
    "$SHARDFS" unpack "$TMP/sample.zarr" "$TMP/unsharded"
    [[ $("$SHARDFS" verify "$TMP/unsharded") == '1 array, 192 chunk files, 192 chunks, 0 B checked; '$(
        )'without --decode only names and lengths of chunk files: 0 defects, 0 notes' ]]
    [[ $("$SHARDFS" verify "$TMP/unsharded" --decode) == \
        '1 array, 192 chunk files, 192 chunks, 563.74 KiB checked: 0 defects, 0 notes' ]]
    "$SHARDFS" verify "$TMP/unsharded" --json | grep -F '"shards":0' | grep -F '"files":192'
    truncate -s 100 "$TMP/unsharded/waves/c/0/0/1"
    expect_exit 1 "$SHARDFS" verify "$TMP/unsharded" --decode >"$TMP/found"
    grep '^file waves/c/0/0/1: it cannot be decoded' "$TMP/found"
}

# in_the_place WORDS COMMAND...: COMMAND puts something in the place of a shard.
in_the_place() {
    local words=$1
    shift
    fresh_sample
    rm "$TMP/sample.zarr/waves/c/0/0/1"
    "$@" "$TMP/sample.zarr/waves/c/0/0/1"
    expect_exit 1 "$SHARDFS" verify "$TMP/sample.zarr" --decode >"$TMP/found"
    grep -q "^shard waves/c/0/0/1: .*$words" "$TMP/found"
    grep -q ' 1 defect, 0 notes$' "$TMP/found"
    # The others were looked at.
    grep -q '1 array, 4 shards, ' "$TMP/found"
    expect_exit 1 "$SHARDFS" info "$TMP/sample.zarr" --map >"$TMP/info"
    grep -q '×' "$TMP/info"
}

one_flipped_byte_in_a_chunk() {
    fresh_sample
    printf '\377' | dd of="$TMP/sample.zarr/waves/c/0/0/0" bs=1 seek=1000 conv=notrunc status=none
    "$SHARDFS" verify "$TMP/sample.zarr" >"$TMP/found"
    expect_exit 1 "$SHARDFS" verify "$TMP/sample.zarr" --decode >"$TMP/found"
    grep -q '^shard waves/c/0/0/0, chunk at \[0, 0, 0\]: it cannot be decoded: ' "$TMP/found"
    [[ $(wc -l <"$TMP/found") == 2 ]]
}

json_lines() {
    "$SHARDFS" verify "$TMP/sample.zarr" --decode --json >"$TMP/found" || [[ $? == 1 ]]
    python3 -c 'import json, sys
finding, last = map(json.loads, open(sys.argv[1]))
assert finding["severity"] == "defect" and finding["code"] == "undecodable", finding
assert finding["shard"] == "waves/c/0/0/0" and finding["array"] == "waves", finding
assert finding["position"] == finding["chunk"] == [0, 0, 0], finding
assert last["summary"]["defects"] == 1, last' "$TMP/found"
}

a_reader_that_goes_away() {
    local status
    set +o pipefail
    "$SHARDFS" verify "$TMP/sample.zarr" --decode 2>"$TMP/stderr" | true
    status=("${PIPESTATUS[@]}")
    set -o pipefail
    [[ ${status[0]} == 0 || ${status[0]} == 1 ]]
    [[ ! -s $TMP/stderr ]]
}

what_is_no_node() {
    local top=$TMP/others
    mkdir -p "$top/a" "$top/b" "$top/group" "$top/none"
    cp "$TMP/sample.zarr/zarr.json" "$top/a"
    # BLZ would have documents there: out of the source, this says nothing about the arrays beside it.
    ln -s / "$top/meta"
    cp -r "$TMP/sample.zarr" "$top/b/sample"
    expect_exit 1 "$SHARDFS" info "$top" >"$TMP/found" 2>"$TMP/stderr"
    grep -q '^b/sample/waves' "$TMP/found"
    # Groups of Zarr v2 are checked as those of v3.
    echo '{' >"$top/group/.zgroup"
    expect_exit 1 "$SHARDFS" verify "$top/group" >"$TMP/found"
    grep -q '1 defect' "$TMP/found"
    # A named pipe without a writer.
    mkfifo "$top/none/info"
    expect_exit 2 timeout 10 "$SHARDFS" info "$top/none"
}

bloscpack() {
    local file=$TMP/x.blp
    # Five chunks of stored bytes, each followed by its crc32.
    python3 - "$file" <<'PY'
import struct
import sys
import zlib

chunks = []
for value in range(5):
    chunk = bytes([2, 1, 2, 1]) + struct.pack("<III", 64, 64, 80) + bytes([value]) * 64
    chunks.append(chunk + struct.pack("<I", zlib.crc32(chunk)))
header = b"blpk" + bytes([3, 0, 2, 1]) + struct.pack("<iiqq", 64, 64, 5, 0)
with open(sys.argv[1], "wb") as f:
    f.write(header + b"".join(chunks))
PY
    "$SHARDFS" verify "$file" --decode | grep -q '5 chunks, .*: 0 defects, 0 notes'
    # A journal of something else is no reason to fail, but worth a word.
    mkdir "$TMP/.shardfs"
    echo "no record of a commit, but a text" >"$TMP/.shardfs/journal"
    "$SHARDFS" info "$file" >"$TMP/found" 2>"$TMP/stderr"
    grep -q '^shardfs: warning: .*\.shardfs/journal' "$TMP/stderr"
    grep -q '5 of 5 chunks' "$TMP/found"
    rm -r "$TMP/.shardfs"
    printf '\377' | dd of="$file" bs=1 seek=150 conv=notrunc status=none
    "$SHARDFS" verify "$file" >"$TMP/found"
    expect_exit 1 "$SHARDFS" verify "$file" --decode >"$TMP/found"
    grep -q '^shard x.blp, chunk at \[1\]: its checksum does not match' "$TMP/found"
}

maps() {
    fresh_sample
    # 7 x 8 chunks and 4 pictures; 32 of them are empty.
    "$SHARDFS" info "$TMP/sample.zarr" --map >"$TMP/map"
    [[ $(grep -o '█' "$TMP/map" | wc -l) == 193 ]] # and the legend
    "$SHARDFS" info "$TMP/sample.zarr" --map=waves/c/0/1/1 >"$TMP/map"
    [[ $(LC_ALL=C.UTF-8 grep -cE '^[█·]{4}$' "$TMP/map") == 12 ]]
    [[ $(<"$TMP/map") != *$'\x1b'* ]]
    expect_exit 2 "$SHARDFS" info "$TMP/sample.zarr" --map=waves/c/9/9/9
}

pictures() {
    "$SHARDFS" info "$TMP/sample.zarr" --svg "$TMP/map.svg"
    local array word
    python3 -c 'import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
space = "{http://www.w3.org/2000/svg}"
cells = [cell for cell in root.iter(space + "rect") if cell.find(space + "title") is not None]
assert len(cells) == 4 * 7 * 8, len(cells)
full = [cell for cell in cells if cell.get("class") == "full"]
assert len(full) == 192, len(full)' "$TMP/map.svg"
    # An axis alone, which goes on in the next lines; small pictures; long names; many pictures.
    "$SHARDFS" create "$TMP/line.zarr" --shape 100000 --dtype uint8 --chunk 100 --shard 2000 --dim-names time
    "$SHARDFS" create "$TMP/plane.zarr" --shape 40,40 --dtype uint8 --chunk 20,20 --shard 20,40 \
        --dim-names "$(printf 'latitude%.0s' {1..9}),<&>"
    "$SHARDFS" create "$TMP/many.zarr" --shape 7,11,9000,8000 --dtype uint8 --chunk 1,1,10,10 --shard 1,1,1000,1000
    "$SHARDFS" create "$TMP/point.zarr" --shape '' --dtype uint8
    for array in sample.zarr line.zarr plane.zarr many.zarr point.zarr; do
        "$SHARDFS" info "$TMP/$array" --svg "$TMP/$array.svg"
        python3 "$here/picture.py" "$TMP/$array.svg"
    done
    for word in '>z = 3<' '← y<' 'x →<' 'border of shards'; do grep -F "$word" "$TMP/sample.zarr.svg"; done
    grep '>time →<' "$TMP/line.zarr.svg"
    fails_with '--force replaces it' "$SHARDFS" info "$TMP/sample.zarr" --svg "$TMP/map.svg"
    "$SHARDFS" info "$TMP/sample.zarr" --svg "$TMP/map.svg" --force
}

totals() {
    mkdir "$TMP/group"
    cp -r "$TMP/sample.zarr/waves" "$TMP/group/a"
    cp -r "$TMP/sample.zarr/waves" "$TMP/group/b"
    "$SHARDFS" info "$TMP/group" | grep -A 1 '^2 arrays together$' | grep 'present      384 of 448 chunks, 85.7 %'
    "$SHARDFS" info "$TMP/group" --json | python3 -c 'import json, sys
found = json.load(sys.stdin)
one, totals = found["arrays"][0], found["totals"]
assert totals["arrays"] == 2 and totals["chunks"]["present"] == 384
assert all(totals["bytes"][name] == 2 * one["bytes"][name] for name in one["bytes"])
assert one["dimension_names"] == ["z", "y", "x"] and one["fill_value"] == 0
assert one["attributes"] == {"unit": "counts", "voxel_size": [40.0, 4.0, 4.0]}'
    # The source itself has a name, and there is nothing to add up.
    "$SHARDFS" info "$TMP/group/a" | head -n 1 | grep -x a
    fails_with "" grep together <("$SHARDFS" info "$TMP/group/a")
}

# what_info_says ARRAY: on stdout; its counts must add up, for each array and together.
what_info_says() {
    expect_exit 1 "$SHARDFS" info "$1" --json >"$TMP/info"
    python3 -c 'import json, sys
found = json.load(open(sys.argv[1]))
for about in [*found["arrays"], found["totals"]]:
    chunks, used = about["chunks"], about["bytes"]
    assert chunks["present"] + chunks["unreadable"] + chunks["missing"] == chunks["possible"], chunks
    assert sum(used[name] for name in ("live", "overhead", "dead", "unreadable")) == used["files"], used
    print(chunks["present"], chunks["unreadable"], chunks["missing"], used["unreadable"])' "$TMP/info"
}
adds_up() {
    fresh_sample
    rm "$TMP/sample.zarr/waves/c/0/1/1"
    truncate -s 1000 "$TMP/sample.zarr/waves/c/0/0/1"
    PYTHONPATH=$here python3 - "$TMP/sample.zarr/waves/c/0/0/0" >"$TMP/unreadable" <<'PY'
import struct, sys
from shards import crc32c
data = bytearray(open(sys.argv[1], "rb").read())
index = bytearray(data[-1028:-4])
print(1000 + struct.unpack_from("<2Q", index, 16)[1])
struct.pack_into("<2Q", index, 16, 1 << 40, 9)
data[-1028:] = index + struct.pack("<I", crc32c(index))
open(sys.argv[1], "wb").write(data)
PY
    # One chunk of the first shard, and all 4 x 4 x 4 that the second may have within the array. The
    # bytes that the bad entry no longer reaches are not dead.
    what_info_says "$TMP/sample.zarr" | grep -x "95 65 64 $(<"$TMP/unreadable")"
    grep '"dead": 0,' "$TMP/info"
    grep '"shard waves/c/0/0/0, chunk at \[0, 0, 1\]: ' "$TMP/info"
    grep '"shard waves/c/0/0/1: ' "$TMP/info"
    expect_exit 1 "$SHARDFS" info "$TMP/sample.zarr" >"$TMP/info"
    grep '95 of 224 chunks' "$TMP/info"
    grep '65 cannot be read, 64 missing' "$TMP/info"
    grep -E ', dead 0 B, unreadable [0-9.]+ KiB$' "$TMP/info"
    # An inner shard without a usable index.
    python3 "$here/arrays.py" make "$TMP/inner" nested
    python3 -c 'import sys
for at in range(0, 25000, 40):
    with open(sys.argv[1], "r+b") as file:
        file.seek(at)
        file.write(b"\xff")' "$TMP/inner/c/0/0"
    what_info_says "$TMP/inner"
    grep '"unreadable": [1-9]' "$TMP/info"
}

# nothing_is_listed EXPECTED PATH COMMAND [ARRAY]: COMMAND puts something in the place of a directory of shards.
nothing_is_listed() {
    local expected=$1 path=$2 command=$3 array=${4:-sample.zarr}
    rm -r "${TMP:?}/$array/$path"
    $command "$TMP/$array/$path"
    what_info_says "$TMP/$array" | grep -x "$expected"
    expect_exit 1 "$SHARDFS" info "$TMP/$array" --map >"$TMP/map"
    grep '×' "$TMP/map"
    expect_exit 1 "$SHARDFS" info "$TMP/$array" --svg "$TMP/unlisted.svg" --force
    grep 'class="damaged"' "$TMP/unlisted.svg"
}
dangling() { ln -s nowhere "$1"; }
unlisted_directories() {
    local command
    for command in touch mkfifo dangling; do
        # 4 x 7 x 8 chunks in shards of 4 x 4 x 4: all, or those of the second row of shards.
        fresh_sample
        nothing_is_listed '0 224 0 0' waves/c "$command"
        fresh_sample
        nothing_is_listed '111 96 17 0' waves/c/0/1 "$command"
        rm -rf "$TMP/single"
        "$SHARDFS" create "$TMP/single" --shape 4,6 --dtype uint8 --chunk 2,2 --shard 2,2
        mkdir -p "$TMP/single/c/0" "$TMP/single/c/1"
        printf 1234 >"$TMP/single/c/0/2"
        nothing_is_listed '1 3 2 0' c/1 "$command" single
    done
}

# A shard that lost bytes in its middle: its index is found, and the last chunks now reach into it.
overlapping_bytes() {
    rm -rf "$TMP/cut"
    "$SHARDFS" create "$TMP/cut" --shape 4,40 --dtype uint8 --chunk 2,10 --shard 4,40 --codec crc32c
    mkdir -p "$TMP/cut/c/0"
    PYTHONPATH=$here python3 - "$TMP/cut/c/0/0" <<'PY'
import struct, sys
from shards import crc32c
chunks = [bytes([n] * 20) + struct.pack("<I", crc32c(bytes([n] * 20))) for n in range(8)]
index = b"".join(struct.pack("<2Q", 24 * n, 24) for n in range(8))
data = b"".join(chunks) + index + struct.pack("<I", crc32c(index))
open(sys.argv[1], "wb").write(data[:100] + data[109:])
PY
    "$SHARDFS" info "$TMP/cut" --json >"$TMP/info"
    python3 -c 'import json, sys
array, = json.load(open(sys.argv[1]))["arrays"]
used = array["bytes"]
assert array["chunks"]["present"] == 8, array
# The index is 132 bytes of 315, of which the last chunk takes 9.
assert [used[name] for name in ("live", "overhead", "dead", "unreadable")] == [192, 123, 0, 0], used
assert used["files"] == 315, used' "$TMP/info"
}

# Eight chunks that share the same bytes, as after repack --dedup.
resize_counts_shared_bytes_once() {
    "$SHARDFS" create "$TMP/equal" --shape 4,40 --dtype uint8 --chunk 2,10 --shard 4,40 --codec crc32c
    mkdir -p "$TMP/equal/c/0"
    PYTHONPATH=$here python3 - "$TMP/equal/c/0/0" <<'PY'
import struct, sys
from shards import crc32c
chunk = bytes([7] * 20) + struct.pack("<I", crc32c(bytes([7] * 20)))
index = struct.pack("<2Q", 0, 24) * 8
open(sys.argv[1], "wb").write(chunk + index + struct.pack("<I", crc32c(index)))
PY
    "$SHARDFS" resize --dry-run "$TMP/equal" --shape 4,10 | grep '^6 chunks outside would be removed, 24 bytes'
    "$SHARDFS" resize "$TMP/equal" --shape 4,10 | grep '^6 chunks outside removed, 24 bytes'
}

exit_codes() {
    expect_exit 2 "$SHARDFS" verify "$TMP/none.zarr"
    expect_exit 2 "$SHARDFS" verify "$TMP/elsewhere"
    expect_exit 2 "$SHARDFS" verify --nonsense
    expect_exit 2 "$SHARDFS" info "$TMP/none.zarr"
    expect_exit 0 "$SHARDFS" verify --help
}

while read -r layout; do
    check "$layout: nothing is wrong with it" sound_layout "$layout"
done < <(python3 "$here/arrays.py" layouts)
check 'nothing is wrong with the sample, and nothing is written' sound_sample
check 'in JSON the source itself is a dot' calls_the_source_a_dot
check "what is not checked of arrays without shards is said" says_what_is_not_checked
check 'what info counts of damaged arrays adds up' adds_up
check 'chunks of directories that cannot be listed are unreadable, not missing' unlisted_directories
check 'bytes of an index that a chunk overlaps count once' overlapping_bytes
check 'an empty file' in_the_place 'it is empty' touch
check 'a directory' in_the_place 'it is a directory' mkdir
check 'a named pipe' in_the_place 'it is a named pipe' mkfifo
check 'a link out of the source' in_the_place 'cannot be reached' ln -s "$TMP/elsewhere"
check 'a link that leads nowhere' in_the_place 'cannot be reached' ln -s nowhere
check 'a link to itself' in_the_place 'cannot be reached' ln -s 1
check 'one flipped byte in a chunk' one_flipped_byte_in_a_chunk
check 'JSON, one object on each line' json_lines
check 'a reader that goes away' a_reader_that_goes_away
check 'what is no node, or a bad one, beside arrays' what_is_no_node
check 'a Bloscpack file and its checksums' bloscpack
check 'maps' maps
check 'maps as pictures' pictures
check 'totals, names, fill value and attributes are told' totals
check 'resize counts bytes that chunks share once' resize_counts_shared_bytes_once
check 'exit codes' exit_codes

names_the_document() {
    local said="waves/zarr.json: not valid JSON" command
    fresh_sample
    echo '{' >"$TMP/sample.zarr/waves/zarr.json"
    for command in info ls verify refs "recover --scan"; do
        # shellcheck disable=SC2086 # several words
        expect_exit 1 "$SHARDFS" $command "$TMP/sample.zarr" | grep -F "$said"
    done
    expect_exit 2 "$SHARDFS" unpack "$TMP/sample.zarr" "$TMP/no.zarr" | grep -F "$said"
    expect_exit 2 "$SHARDFS" repack "$TMP/sample.zarr" | grep -F "$said"
    expect_exit 1 "$SHARDFS" info --json "$TMP/sample.zarr" | grep -F '"document": "waves/zarr.json"'
}
check 'a document that cannot be used is named' names_the_document

# A chunk of 600 MiB of zeros. Where there is no memory for it, nothing is known about it.
no_memory_to_decode() {
    local array=$TMP/large
    python3 - "$array" <<'PY'
import json
import os
import struct
import sys
import zlib

path, nbytes = sys.argv[1], 600 << 20
os.makedirs(f"{path}/c")
packer = zlib.compressobj(1, wbits=31)
chunk = b"".join(packer.compress(bytes(1 << 20)) for _ in range(nbytes >> 20)) + packer.flush()
open(f"{path}/c/0", "wb").write(chunk + struct.pack("<QQ", 0, len(chunk)))
json.dump({
    "zarr_format": 3, "node_type": "array", "shape": [nbytes], "data_type": "uint8", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [nbytes], "index_codecs": [{"name": "bytes"}],
        "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]}}],
}, open(f"{path}/zarr.json", "w"))
PY
    (ulimit -v 500000; expect_exit 1 timeout 60 "$SHARDFS" verify --decode "$array") >"$TMP/found"
    cat "$TMP/found"
    grep 'shard c/0: .*Cannot allocate memory' "$TMP/found"
}
check 'a chunk that there is no memory to decode is reported' no_memory_to_decode
