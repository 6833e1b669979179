#!/bin/bash
# Arrays made, resized and deleted without a mount: what is on disk afterwards, what is refused, exit codes.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
cd "$TMP"

# member FILE PATH...: what stands at a path in a JSON document, as JSON
member() {
    python3 - "$@" <<'PY'
import json
import sys

value = json.load(open(sys.argv[1]))
for name in sys.argv[2:]:
    value = value[int(name)] if isinstance(value, list) else value[name]
print(json.dumps(value))
PY
}

is() { [[ $1 == "$2" ]] || { echo "$1, expected $2"; return 1; }; }
# Nothing is left behind that a listing does not show.
nothing_hidden() { [[ -z $(find . -maxdepth 1 -name '.*shardfs*') ]] || { ls -A; return 1; }; }

# --- create --------------------------------------------------------------------------------------------

layout() {
    "$SHARDFS" create layout --shape 100,200,300 --dtype float32 --chunk 10,20,30 --shard 100,100,300 \
        --codec zstd:3 --codec crc32c --dim-names z,,x --attrs '{"unit": "m"}' --fill NaN
    is "$(member layout/zarr.json chunk_grid configuration chunk_shape)" "[100, 100, 300]"
    is "$(member layout/zarr.json codecs 0 configuration chunk_shape)" "[10, 20, 30]"
    is "$(member layout/zarr.json codecs 0 configuration codecs 1 name)" '"zstd"'
    is "$(member layout/zarr.json codecs 0 configuration codecs 2 name)" '"crc32c"'
    is "$(member layout/zarr.json dimension_names)" '["z", null, "x"]'
    is "$(member layout/zarr.json attributes unit)" '"m"'
    is "$(member layout/zarr.json fill_value)" '"NaN"'
    is "$(ls -A layout)" zarr.json
    nothing_hidden
}
check "create: what is asked for is in the metadata" layout

chosen() {
    "$SHARDFS" create chosen --shape 1000,2000,3000 --dtype uint16 --aspect 2,1,1 --read-elements 2000000 \
        --write-elements 1000000000
    is "$(member chosen/zarr.json codecs 0 configuration chunk_shape)" "[200, 100, 100]"
    is "$(member chosen/zarr.json chunk_grid configuration chunk_shape)" "[1000, 1000, 1000]"
    "$SHARDFS" create soft --shape 100,100 --dtype uint8 --chunk 7,7 --soft-shard 20,20
    is "$(member soft/zarr.json chunk_grid configuration chunk_shape)" "[21, 21]"
    "$SHARDFS" create whole --shape 100,100 --dtype uint8 --write-chunk -1,10
    is "$(member whole/zarr.json codecs 0 name)" '"bytes"'
    "$SHARDFS" create turned --shape 100,100 --dtype uint8 --chunk 5,5 --shard 50,50 --order F
    is "$(member turned/zarr.json codecs 0 configuration codecs 0 configuration order)" "[1, 0]"
}
check "create: shapes are chosen, soft ones give way" chosen

by_rule() {
    "$SHARDFS" create slices --shape 5000,2048,2048 --dtype uint16 --chunk 1,512,512 --shard 256M
    is "$(member slices/zarr.json chunk_grid configuration chunk_shape)" "[32, 2048, 2048]"
    "$SHARDFS" create rows --shape 100,100 --dtype uint8 --chunk 10,-1 --shard x4,9
    is "$(member rows/zarr.json chunk_grid configuration chunk_shape)" "[40, 100]"
    "$SHARDFS" create single --shape 100,100 --dtype uint8 --chunk 10,10 --shard 50B >said
    is "$(member single/zarr.json codecs 0 name)" '"bytes"'
    grep -q '^shards *none: each would have one chunk' said
    # As pack makes them.
    "$SHARDFS" pack single packed --shard 1K
    "$SHARDFS" create made --shape 100,100 --dtype uint8 --chunk 10,10 --shard 1K
    is "$(member made/zarr.json chunk_grid)" "$(member packed/zarr.json chunk_grid)"
}
check "create: shards have so many bytes, or so many chunks" by_rule

others() {
    "$SHARDFS" create scalar --shape '' --dtype complex64 --fill '[1, NaN]'
    is "$(member scalar/zarr.json fill_value)" '[1, "NaN"]'
    "$SHARDFS" create keys --shape 9 --dtype bool --key-encoding v2 --chunk 3 --shard 9 --index-location start
    is "$(member keys/zarr.json chunk_key_encoding)" '{"name": "v2", "configuration": {"separator": "."}}'
    is "$(member keys/zarr.json codecs 0 configuration index_location)" '"start"'
    is "$(member keys/zarr.json fill_value)" false
    printf '{"a": [1, 2]}' >attributes.json
    "$SHARDFS" create days --shape 9 --attrs @attributes.json \
        --dtype '{"name": "numpy.datetime64", "configuration": {"unit": "D", "scale_factor": 1}}'
    is "$(member days/zarr.json attributes a)" "[1, 2]"
    is "$(member days/zarr.json fill_value)" '"NaT"'
    "$SHARDFS" info days | grep -q '^  shape  *9 numpy.datetime64 (unit D, scale_factor 1)$'
    "$SHARDFS" info --json days >said
    is "$(member said arrays 0 data_type_configuration unit)" '"D"'
}
check "create: rank 0, keys, index at the start, types with a configuration" others

plan() {
    "$SHARDFS" create --dry-run planned --shape 100,100 --dtype uint16 --chunk 5,7 --shard 10,70 >plan
    grep -q '^inner chunk  *5 x 7: 70 bytes$' plan
    grep -q '^shard  *10 x 70: 1400 bytes' plan
    grep -q '^inner chunks  *300$' plan
    grep -q '^shards  *20$' plan
    grep -q '^chunks per shard  *2 x 10: 20$' plan
    grep -q '^shard index  *324 bytes$' plan
    grep -q '"sharding_indexed"' plan
    [[ ! -e planned ]]
    "$SHARDFS" create --dry-run --json planned --shape 100,100 --dtype uint16 --chunk 5,7 --shard 10,70 >plan
    is "$(member plan chunks_per_shard)" "[2, 10]"
    is "$(member plan index_nbytes)" 324
    is "$(member plan written)" false
    local metadata
    metadata=$(member plan metadata)
    [[ ! -e planned ]]
    "$SHARDFS" create --json planned --shape 100,100 --dtype uint16 --chunk 5,7 --shard 10,70 >plan
    is "$(member plan written)" true
    is "$(member planned/zarr.json)" "$metadata"
}
check "create --dry-run says what is then made, and makes nothing" plan

refused() {
    local text=$1
    shift
    fails_with "$text" "$SHARDFS" "$@"
    expect_exit 2 "$SHARDFS" "$@"
}
bad_wishes() {
    local shape=100,100 new
    new=(create new --shape "$shape" --dtype uint8)
    refused "do not divide shards of 7 along axis 1" "${new[@]}" --chunk 5,5 --shard 10,7
    refused "is no ratio" "${new[@]}" --aspect 0,1
    refused "is no ratio" "${new[@]}" --aspect nan,1
    refused "is no ratio" "${new[@]}" --aspect inf,1
    refused "is no ratio" "${new[@]}" --read-aspect=-1,1
    refused "has 1 entry, the array has 2 dimensions" "${new[@]}" --chunk 5
    refused "cannot be -2 long" "${new[@]}" --chunk -2,1
    refused "is asked to be 5 and 6" "${new[@]}" --elements 5 --read-elements 6
    refused "a whole number from 0 to 255" "${new[@]}" --fill 256
    refused 'codec "lz5" is none of zstd' "${new[@]}" --codec lz5
    refused '"23" is no level' "${new[@]}" --codec zstd:23
    refused "no permutation" "${new[@]}" --order 0,0
    refused "1 dimension name" "${new[@]}" --dim-names x
    refused "--attrs" "${new[@]}" --attrs '[1]'
    refused "there is no index" "${new[@]}" --index-location end
    refused 'data type "uint7" is not known' create new --shape 3 --dtype uint7
    refused "have no fixed size" create new --shape 3 --dtype string
    for type in '<U5' 'datetime64[ns]' string; do
        refused "; there are bool, int8 to int64" create new --shape 3 --dtype "$type"
    done
    refused "--shard has 3 numbers, the array 2 dimensions" create new --shape 9,9 --dtype uint8 --shard x2,2,2
    refused "says all about the shards" create new --shape 9 --dtype uint8 --shard 4M --write-elements 4
    refused "such as 256M" create new --shape 9 --dtype uint8 --shard x0
    refused "the limit is 16777216" create new --shape 100000000 --dtype uint8 --chunk 1 --shard 100000000
    refused "there is no such directory; make it first" create no/new --shape 3 --dtype uint8
    refused "--dtype" create new --shape 3
    refused "is no number that can stand here" create new --shape 3,x --dtype uint8
    refused '"-5" is no number that can stand here' create new --shape -5 --dtype uint8
    refused '"-5" is no number that can stand here' resize layout --shape 3,-5
    refused "--shape" resize layout
    [[ ! -e new && ! -e no ]]
    nothing_hidden
}
check "create: what cannot be is refused, names what to write, and makes nothing" bad_wishes

replaced() {
    refused "exists; --force replaces an array" create layout --shape 3 --dtype int8
    is "$(member layout/zarr.json data_type)" '"float32"'
    touch layout/something
    "$SHARDFS" create --force layout --shape 3 --dtype int8 >said
    grep -q '^replaced layout$' said
    is "$(member layout/zarr.json data_type)" '"int8"'
    is "$(ls -A layout)" zarr.json
    mkdir empty files group
    "$SHARDFS" create --force empty --shape 3 --dtype int8
    touch files/mine
    printf '{"zarr_format": 3, "node_type": "group"}' >group/zarr.json
    touch file
    for path in files group file; do
        refused "it is not replaced" create --force "$path" --shape 3 --dtype int8
        [[ -e $path ]]
    done
    is "$(ls files)" mine
    nothing_hidden
}
check "create --force replaces an array or an empty directory, and nothing else" replaced

locked_up() {
    local new=(create private --shape 8 --dtype uint8 --chunk 4)
    "$SHARDFS" "${new[@]}"
    chmod 700 private
    chmod 640 private/zarr.json
    "$SHARDFS" "${new[@]}" --force
    is "$(stat -c %a private private/zarr.json)" $'700\n640'
    [[ $EUID != 0 ]] || chown 54322:54321 private private/zarr.json
    "$SHARDFS" "${new[@]}" --force
    [[ $EUID != 0 ]] || is "$(stat -c %u:%g private private/zarr.json)" $'54322:54321\n54322:54321'
    is "$(stat -c %a private private/zarr.json)" $'700\n640'
}
check "create --force keeps owner and permissions" locked_up

used() {
    "$SHARDFS" create used --shape 64,64 --dtype uint8 --chunk 8,8 --shard 32,32
    mount_view used --rw
    is "$(ls -A "$MP")" zarr.json
    mkdir -p "$MP/c/5"
    head -c 64 /dev/urandom >"$MP/c/5/6"
    refused "is mounted on $MP" create --force used --shape 3 --dtype int8
    refused "is mounted on $MP" delete used
    refused "is mounted on $MP" delete --dry-run used
    unmount_view
    is "$(python3 "$here/shards.py" count used)" 1
}
check "an array that was made is mounted and written to; mounted it is neither replaced nor deleted" used

# --- resize --------------------------------------------------------------------------------------------

"$SHARDFS" create --sample sample >/dev/null
count() { python3 "$here/shards.py" count "$1"; }
# chunks SOURCE: content of all chunks as a mount shows them
chunks() {
    mount_view "$1"
    (cd "$MP" && find . -type f ! -name zarr.json -exec sha256sum {} + | sort -k 2)
    unmount_view
}
chunks sample/waves >"$TMP/all"

fresh() {
    rm -rf waves
    cp -r sample/waves waves
}

shrunk() {
    fresh
    "$SHARDFS" resize --dry-run waves --shape 32,80,120 >said
    grep -q '64 x 112 x 120 would be resized to 32 x 80 x 120' said
    diff -r waves sample/waves
    "$SHARDFS" resize --json waves --shape 32,80,120 >said
    is "$(member waves/zarr.json shape)" "[32, 80, 120]"
    chunks waves >"$TMP/left"
    # Inner chunks of 16: 2, 5 and 8 along the axes are left.
    grep -E ' \./c/[01]/[0-4]/[0-7]$' "$TMP/all" | diff - "$TMP/left"
    is "$(count waves)" "$(wc -l <"$TMP/left")"
    is "$(member said removed_chunks)" "$(($(wc -l <"$TMP/all") - $(wc -l <"$TMP/left")))"
    [[ ! -e waves/.shardfs ]]
    # Growing changes nothing but the metadata.
    cp -r waves before
    "$SHARDFS" resize waves --shape 64,112,120
    diff -r -x zarr.json before waves
    rm -r before
    is "$(member waves/zarr.json shape)" "[64, 112, 120]"
    chunks waves | diff - "$TMP/left"
}
check "resize: chunks outside are gone, the others as they were; grown again, nothing comes back" shrunk

whole_shards() {
    fresh
    "$SHARDFS" resize --json waves --shape 64,64,64 >said
    is "$(member said removed_shards)" 3
    is "$(cd waves && find c -type f)" c/0/0/0
    is "$(cd waves && find c -type d | wc -l)" 3
    "$SHARDFS" resize waves --shape 0,64,64
    [[ ! -e waves/c ]]
    is "$(ls -A waves)" zarr.json
}
check "resize: shards outside are removed, with their directories" whole_shards

kept() {
    fresh
    "$SHARDFS" resize --keep-outside waves --shape 32,80,60
    diff -r -x zarr.json waves sample/waves
    "$SHARDFS" resize waves --shape 64,112,120
    chunks waves | diff - "$TMP/all"
}
check "resize --keep-outside: grown again, all is there" kept

# As if it had been killed once the metadata was written; then the array's shape says nothing of the rest.
interrupted() {
    fresh
    "$SHARDFS" resize --keep-outside waves --shape 32,50,60
    "$SHARDFS" resize waves --shape 32,50,60
    "$SHARDFS" resize waves --shape 64,112,120
    grep -E ' \./c/[01]/[0-3]/[0-3]$' "$TMP/all" | diff - <(chunks waves)
    is "$(count waves)" "$(chunks waves | wc -l)"
}
check "resize: the same one again finishes what was interrupted" interrupted

while_mounted() {
    fresh
    mount_view waves --rw
    mkdir -p "$MP/c/3/6"
    printf old >"$MP/c/3/6/7"
    sync "$MP/c/3/6/7"
    "$SHARDFS" resize waves --shape 32,112,120
    gone() { [[ $(cd "$MP/c" && echo ?) == "0 1" && ! -e $MP/c/3/6/7 ]]; }
    within 5 gone
    printf new >"$MP/c/1/6/7"
    unmount_view
    is "$(chunks waves | grep ' ./c/1/6/7$' | cut -c 1-64)" "$(printf new | sha256sum | cut -c 1-64)"
}
check "resize while a writable mount is there" while_mounted
in_a_mount() {
    local options path said
    fresh
    mkdir above
    mv waves above
    for options in --rw '-o ro' '--view zarr3,npy'; do
        # shellcheck disable=SC2086
        mount_view above $options
        path=$MP/waves
        [[ $options != *,* ]] || path=$MP/zarr3/waves
        said=$(expect_exit 2 "$SHARDFS" resize "$path" --shape 32,80,120)
        is "$said" "shardfs: $path: the mount on $MP shows it: resize it in the source, $PWD/above/waves, or unmount it first"
        unmount_view
    done
    is "$(member above/waves/zarr.json shape)" "[64, 112, 120]"
    mv above/waves .
    rmdir above
}
check "resize in a mount names the array to be resized" in_a_mount

unsharded() {
    "$SHARDFS" create plain --shape 6,6 --dtype uint8 --chunk 2,2 --shard 2,2
    mkdir -p plain/c/{0,1,2}
    for chunk in 0/0 0/2 1/1 2/0 2/2; do printf %s "$chunk" >"plain/c/$chunk"; done
    "$SHARDFS" resize plain --shape 4,4 >said
    grep -q '^3 chunks outside removed, 9 bytes; 3 shards as a whole$' said
    is "$(cd plain && find c | sort | tr '\n' ' ')" "c c/0 c/0/0 c/1 c/1/1 "
    is "$(<plain/c/1/1)" 1/1
    # All chunks in one directory.
    "$SHARDFS" create flat --shape 6,6 --dtype uint8 --chunk 2,2 --shard 2,2 --separator .
    touch flat/notes
    for chunk in 0.0 0.2 2.0; do printf %s "$chunk" >"flat/c.$chunk"; done
    "$SHARDFS" resize flat --shape 4,6
    is "$(cd flat && echo ./*)" "./c.0.0 ./c.0.2 ./notes ./zarr.json"
}
check "resize: arrays without shards, and with all chunks in one directory" unsharded

no_resize() {
    mkdir -p zarr2
    printf '{"zarr_format": 2}' >zarr2/.zarray
    refused "is of another format than Zarr v3" resize zarr2 --shape 3
    refused "is a group; name one of its arrays" resize sample --shape 3
    refused "has no zarr.json" resize files --shape 3
    refused "there is no such directory" resize nowhere --shape 3
    refused "1 extent, waves has 3 dimensions" resize waves --shape 3
    fresh
    python3 - <<'PY'
import json

document = json.load(open("waves/zarr.json"))
document["codecs"].append({"name": "gzip", "configuration": {"level": 1}})
json.dump(document, open("waves/zarr.json", "w"))
PY
    find waves/c -type f -exec gzip {} \; -exec mv {}.gz {} \;
    cp waves/zarr.json before.json
    refused "--keep-outside leaves them" resize waves --shape 32,32,32
    cmp before.json waves/zarr.json
    "$SHARDFS" resize --keep-outside waves --shape 32,32,32
    is "$(member waves/zarr.json shape)" "[32, 32, 32]"
}
check "resize: what cannot be resized is refused, and stays as it is" no_resize

# grouped: a group whose consolidated metadata lists the array a, in a group that lists both
grouped() {
    rm -rf hierarchy
    mkdir -p hierarchy/sub
    "$SHARDFS" create hierarchy/sub/a --shape 4 --dtype uint8 --chunk 2 --shard 4
    python3 - <<'PY'
import json

array = json.load(open("hierarchy/sub/a/zarr.json"))
group = {"zarr_format": 3, "node_type": "group"}
for path, nodes in (
    ("hierarchy", {"sub": group, "sub/a": array}),
    ("hierarchy/sub", {"a": array}),
):
    metadata = {"kind": "inline", "must_understand": False, "metadata": nodes}
    json.dump({**group, "consolidated_metadata": metadata}, open(f"{path}/zarr.json", "w"))
PY
}
nodes() { member "$1/zarr.json" consolidated_metadata metadata; }
consolidated() {
    grouped
    "$SHARDFS" resize hierarchy/sub/a --shape 3 2>said
    cmp said /dev/null
    is "$(nodes hierarchy/sub)" "{\"a\": $(member hierarchy/sub/a/zarr.json)}"
    is "$(member hierarchy/zarr.json consolidated_metadata metadata sub/a shape)" "[3]"
    "$SHARDFS" create hierarchy/sub/b --shape 5 --dtype uint8
    is "$(member hierarchy/sub/zarr.json consolidated_metadata metadata b shape)" "[5]"
    is "$(member hierarchy/zarr.json consolidated_metadata metadata sub/b shape)" "[5]"
    "$SHARDFS" create --force hierarchy/sub/b --shape 6 --dtype uint8
    is "$(member hierarchy/zarr.json consolidated_metadata metadata sub/b shape)" "[6]"
    "$SHARDFS" delete hierarchy/sub/b
    is "$(nodes hierarchy/sub)" "{\"a\": $(member hierarchy/sub/a/zarr.json)}"
    "$SHARDFS" delete --recursive hierarchy/sub
    is "$(nodes hierarchy)" "{}"
    nothing_hidden
}
check "resize, create, delete: consolidated metadata above says what is there" consolidated

# Names that begin alike are no nodes below, and what a group does not list stays unlisted.
consolidated_alike() {
    grouped
    "$SHARDFS" create hierarchy/sub/ab --shape 5 --dtype uint8
    "$SHARDFS" delete hierarchy/sub/a
    is "$(member hierarchy/sub/zarr.json consolidated_metadata metadata ab shape)" "[5]"
    sed -i 's/"ab"/"other"/' hierarchy/sub/zarr.json
    cp hierarchy/sub/zarr.json before.json
    "$SHARDFS" resize hierarchy/sub/ab --shape 6
    cmp before.json hierarchy/sub/zarr.json
}
check "resize: an array that consolidated metadata does not list stays unlisted" consolidated_alike

# What an interrupted command has left to do is done by the same command.
consolidated_later() {
    grouped
    cp hierarchy/sub/zarr.json before.json
    "$SHARDFS" resize hierarchy/sub/a --shape 3
    cp before.json hierarchy/sub/zarr.json
    "$SHARDFS" verify hierarchy >said && return 1
    grep -q '^sub/a: .*the consolidated metadata in sub/zarr.json .*shape \[4\].*\[3\]' said
    "$SHARDFS" resize hierarchy/sub/a --shape 3
    is "$(member hierarchy/sub/zarr.json consolidated_metadata metadata a shape)" "[3]"
    "$SHARDFS" verify hierarchy
    rm -r hierarchy/sub/a
    "$SHARDFS" verify --json hierarchy >said && return 1
    is "$(grep -c '"code":"consolidated"' said)" 2
}
check "verify: consolidated metadata that arrays contradict; resize repairs it" consolidated_later

# A group further up may list the node all the same.
consolidated_above_a_gap() {
    grouped
    rm hierarchy/sub/zarr.json
    "$SHARDFS" resize hierarchy/sub/a --shape 3
    is "$(member hierarchy/zarr.json consolidated_metadata metadata sub/a shape)" "[3]"
}
check "resize: consolidated metadata above a directory without a document is updated" consolidated_above_a_gap

consolidated_unreadable() {
    grouped
    echo '{' >hierarchy/sub/zarr.json
    expect_exit 2 "$SHARDFS" resize hierarchy/sub/a --shape 3 >said
    grep -q 'sub: .*its consolidated metadata .* is of before: .*zarr.json: not valid JSON.*consolidate it again' said
    is "$(member hierarchy/sub/a/zarr.json shape)" "[3]"
    is "$(member hierarchy/zarr.json consolidated_metadata metadata sub/a shape)" "[3]"
    expect_exit 2 "$SHARDFS" create hierarchy/sub/b --shape 5 --dtype uint8 >said
    grep -q 'sub: .*consolidate it again' said
    expect_exit 2 "$SHARDFS" delete hierarchy/sub/a >said
    is "$(nodes hierarchy | grep -c sub/a)" 0
}
check "resize, create, delete: a document above that cannot be read is named" consolidated_unreadable

consolidated_failing() {
    grouped
    chmod a-w hierarchy/sub
    local status=0
    as_user "$SHARDFS" resize hierarchy/sub/a --shape 3 2>said || status=$?
    chmod u+w hierarchy/sub
    is "$status" 2
    grep -q 'sub: .*its consolidated metadata .* is of before: .*Permission denied.*consolidate it again' said
    is "$(member hierarchy/sub/a/zarr.json shape)" "[3]"
}
# root may write anywhere
if [[ $EUID == 0 ]]; then
    as_user() {
        chmod 755 "$TMP"
        chown -R nobody hierarchy
        setpriv --reuid nobody --clear-groups "$@"
    }
else
    as_user() { "$@"; }
fi
check "resize: consolidated metadata that cannot be written is named" consolidated_failing

# --- delete --------------------------------------------------------------------------------------------

deleted() {
    local files nbytes
    fresh
    "$SHARDFS" delete --dry-run waves >said
    files=$(find waves -type f | wc -l)
    nbytes=$(find waves -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
    grep -q "^array waves would be deleted: $files files, $nbytes bytes" said
    diff -r waves sample/waves
    "$SHARDFS" delete --json waves >said
    is "$(member said files)" "$files"
    [[ ! -e waves ]]
    nothing_hidden
    refused "there is no such directory" delete waves
}
check "delete: says how much, and leaves nothing" deleted

above_others() {
    "$SHARDFS" create --sample above-others
    cp -r sample/waves above-others/waves/below
    refused "--recursive deletes it with everything below" delete above-others/waves
    refused "--recursive deletes it with everything below" delete --dry-run above-others/waves
    refused "below it: it is not replaced" create --force above-others/waves --shape 3 --dtype int8
    [[ -e above-others/waves/below/zarr.json && -e above-others/waves/c ]]
    "$SHARDFS" delete --recursive above-others/waves | grep -q '^array above-others/waves deleted: 10 files'
    is "$(ls above-others)" zarr.json
}
check "delete, create --force: an array with others below it goes only when asked" above_others

no_delete() {
    refused "--recursive deletes it with everything below" delete hierarchy
    refused "is no Zarr v3 array or group" delete files
    refused "is no Zarr v3 array or group" delete file
    refused "is of another format" delete zarr2
    ln -s sample/waves link
    refused "is a symbolic link" delete link
    mount_view sample
    refused "is mounted on $MP" delete sample/waves
    refused "is mounted on $MP" delete --recursive sample
    unmount_view
    [[ -e hierarchy/sub/a/zarr.json && -e files/mine && -e link && -e sample/waves/c ]]
    "$SHARDFS" delete --recursive hierarchy
    [[ ! -e hierarchy ]]
}
check "delete: groups only when asked, nothing that is no node, nothing mounted" no_delete

locked() {
    cp -r sample/waves locked
    mkdir locked/.shardfs
    touch locked/.shardfs/lock
    # An open file description lock, as a commit holds it.
    python3 - <<'PY' &
import fcntl
import struct
import time

file = open("locked/.shardfs/lock", "r+b")
fcntl.fcntl(file, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
open("is-locked", "w").close()
time.sleep(60)
PY
    local holder=$!
    within 10 test -e is-locked
    refused "is being written to: its journal is locked" delete locked
    [[ -e locked/c ]]
    kill "$holder"
    wait "$holder" || true
    "$SHARDFS" delete locked
    [[ ! -e locked ]]
}
check "delete: not what somebody commits to" locked

# As the mount of another member of the group has left it.
lock_of_group() {
    [[ $EUID == 0 ]] || return 0
    cp -r sample/waves grouped
    mkdir grouped/.shardfs
    : >grouped/.shardfs/lock
    chgrp -R 64001 grouped
    chmod -R g+rwX grouped
    chmod 620 grouped/.shardfs/lock
    chmod 755 .
    mkdir shared
    chgrp 64001 shared
    chmod 770 shared
    mv grouped shared
    setpriv --reuid=65534 --regid=64001 --clear-groups "$SHARDFS" delete shared/grouped
    [[ ! -e shared/grouped ]]
}
check "delete: whose lock members of the group can only write to" lock_of_group

# To open a pipe takes a writer, to read a device takes for ever.
no_document() {
    "$SHARDFS" create --sample documents
    local document=documents/waves/zarr.json made command
    for made in "mkfifo $document" "ln -s /dev/zero $document"; do
        rm -f "$document"
        $made
        for command in "resize documents/waves --shape 64,112,130" "delete --dry-run documents/waves" \
            "create --dry-run --force documents/waves --shape 8 --dtype uint8 --chunk 4"; do
            # shellcheck disable=SC2086
            (ulimit -v 3000000; expect_exit 2 timeout -k 1 10 "$SHARDFS" $command) >said
            grep -Eq "it is a named pipe|it cannot be read: .*cross-device|it is not replaced" said
        done
    done
}
check "resize, delete, create: metadata that is a pipe or a link to a device is not read" no_document

no_document_above() {
    rm -rf documents
    "$SHARDFS" create --sample documents
    mkfifo pipe
    mv pipe documents/zarr.json
    timeout -k 1 10 "$SHARDFS" resize documents/waves --shape 64,112,130
    timeout -k 1 10 "$SHARDFS" create documents/more --shape 8 --dtype uint8 --chunk 4
    timeout -k 1 10 "$SHARDFS" delete documents/waves
    is "$(ls documents)" "more"$'\n'"zarr.json"
}
check "resize, delete, create: a pipe in the place of a group's metadata does not stop them" no_document_above

leftovers() {
    local id=0123456789abcdef0123456789abcdef
    # note NAME: as a command leaves it that was killed
    note() { printf '{"shardfs": "unfinished", "version": 1, "id": "%s", "what": {"purpose": "delete", "name": "%s"}}' "$id" "$1"; }
    mkdir -p .gone.shardfs-$id/old/c/0 .gone.shardfs-deleted-abc124 .goner.shardfs-$id
    note gone >.gone.shardfs-$id/job.json
    note goner >.goner.shardfs-$id/job.json
    "$SHARDFS" delete gone >said
    grep -q 'what an interrupted deletion has left removed' said
    # Of another array, and of somebody else.
    is "$(echo .gone*)" ".gone.shardfs-deleted-abc124 .goner.shardfs-$id"
    rm -r .gone.shardfs-deleted-abc124 .goner.shardfs-$id
}
check "delete: the same one again removes what an interrupted one has left" leftovers

full_stdout() {
    local rc=0
    "$SHARDFS" "$@" >/dev/full 2>err || rc=$?
    cat err
    [[ $rc == 2 ]]
    is "$(<err)" "shardfs: standard output: No space left on device (os error 28)"
}
no_room_to_say_so() {
    full_stdout create full.zarr --shape 8 --dtype uint8
    full_stdout resize full.zarr --shape 9
    grep >/dev/null 9 full.zarr/zarr.json
    full_stdout delete full.zarr
    [[ ! -e full.zarr ]]
    # A reader that has left is no error.
    set -o pipefail
    "$SHARDFS" create full.zarr --shape 8 --dtype uint8 | true
    "$SHARDFS" delete full.zarr | true
}
check "create, resize, delete: a full stdout is named, not the array" no_room_to_say_so

sample_on_a_full_disk() {
    local size
    mkdir small
    mount -t tmpfs -o size=1m none small
    trap 'umount small' EXIT
    # Not all shards fit, then only the metadata, then nothing.
    for size in 60 8 4; do
        mount -o "remount,size=${size}k" small
        expect_exit 2 "$SHARDFS" create --sample small/sample.zarr | grep >/dev/null 'No space left on device'
        [[ ! -e small/sample.zarr ]]
    done
    mount -o remount,size=8m small
    "$SHARDFS" create --sample small/sample.zarr
    expect_exit 2 "$SHARDFS" create --sample small/sample.zarr | grep >/dev/null 'it exists'
    [[ -e small/sample.zarr/zarr.json ]]
}
if [[ $EUID == 0 ]]; then
    check "create --sample: what a full disk has no room for leaves nothing" sample_on_a_full_disk
else
    skip "create --sample on a full disk: not root"
fi

not_in_a_mount() {
    local source=$TMP/in-mount
    "$SHARDFS" create --sample "$source"
    mount_view "$source" --rw
    expect_exit 2 "$SHARDFS" create "$MP/new" --shape 4 --dtype uint8 | grep -F "create it in the source, as $source/new"
    expect_exit 2 "$SHARDFS" create --sample "$MP/new" | grep -F "create it in the source, as $source/new"
    unmount_view
    [[ $(ls -A "$source") == "waves"$'\n'"zarr.json" ]]
}
check 'an array is not created through a mount, but in its source' not_in_a_mount
