#!/bin/bash
# Commands that make, change and remove arrays in an object store: create, pack, unpack, repack, resize, delete; what
# was interrupted goes on; what is there is not replaced; a store that cannot keep writers apart is refused.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=../store_lib.sh
. "$repo/tests/store_lib.sh"

mkdir "$TMP/top"
cd "$TMP"
"$SHARDFS" create --sample sample.zarr >/dev/null
"$SHARDFS" unpack sample.zarr chunks.zarr >/dev/null
echo '{"zarr_format": 3, "node_type": "group", "consolidated_metadata":
    {"kind": "inline", "must_understand": false, "metadata": {}}}' >"$TMP/group.json"

# sf COMMAND ARG...: a command that finds the store.
sf() { "$SHARDFS" "$1" --endpoint "$URL" --anonymous --timeout 10 "${@:2}"; }

# keys [PREFIX]: the keys of all objects, one on each line.
keys() {
    python3 - "$URL" "${1:-}" <<'PY'
import re
import sys
import urllib.request

# Of this machine, whatever proxies there are.
urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))
url, prefix = sys.argv[1:]
after = ""
while True:
    address = f"{url}/bucket?list-type=2&prefix={prefix}" + (f"&continuation-token={after}" if after else "")
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    for key in re.findall("<Key>([^<]*)</Key>", text):
        print(key)
    more = re.search("<NextContinuationToken>([^<]*)<", text)
    if not more:
        break
    after = more[1]
PY
}

# is_empty PREFIX: no object has a key that begins so.
is_empty() { [[ -z $(keys "$1") ]]; }

# put KEY FILE: an object that is none of shardfs's.
put() {
    python3 -c 'import sys, urllib.request as it
it.install_opener(it.build_opener(it.ProxyHandler({})))
it.urlopen(it.Request(f"{sys.argv[1]}/bucket/{sys.argv[2]}", open(sys.argv[3], "rb").read(), method="PUT"))' \
        "$URL" "$1" "$2"
}

# says EXPRESSION: the JSON document on standard input, called it, is so.
says() { python3 -c 'import json, sys; it = json.load(sys.stdin); assert eval(sys.argv[1]), it' "$1"; }

# get KEY: what an object holds.
get() {
    python3 -c 'import sys, urllib.request as it
it.install_opener(it.build_opener(it.ProxyHandler({})))
sys.stdout.buffer.write(it.urlopen(sys.argv[1]).read())' "$URL/bucket/$1"
}

# like_local URL DIRECTORY: both hold the same chunks, under the same metadata.
like_local() {
    rm -rf "$TMP/one" "$TMP/other"
    sf unpack "$1" "$TMP/one" >/dev/null
    "$SHARDFS" unpack "$2" "$TMP/other" >/dev/null
    diff -r "$TMP/one" "$TMP/other"
}

start_store

# --- copies ----------------------------------------------------------------------------------------

packed() {
    local to=s3://bucket/packed.zarr
    sf pack chunks.zarr $to --shard x2,2 >out
    grep -q 'read back and equal' out
    "$SHARDFS" pack chunks.zarr packed.zarr --shard x2,2 >/dev/null
    # The same files, and nothing else.
    diff <(cd packed.zarr && find . -type f -printf '%P\n' | sort) <(keys packed.zarr/ | sed 's|^packed.zarr/||' | sort)
    like_local $to chunks.zarr
    sf verify $to
    mount_view $to -o "endpoint=$URL,anonymous"
    diff -r "$MP" "$TMP/chunks.zarr"
    unmount_view
}
check "chunk files are packed into a store: the same as in a directory" packed

unpacked() {
    sf unpack sample.zarr s3://bucket/deep/below/chunks.zarr >/dev/null
    diff <(cd chunks.zarr && find . -type f -printf '%P\n' | sort) \
        <(keys deep/below/chunks.zarr/ | sed 's|^deep/below/chunks.zarr/||' | sort)
    like_local s3://bucket/deep/below/chunks.zarr chunks.zarr
    # From one place to another one.
    sf repack s3://bucket/packed.zarr s3://bucket/again.zarr --index start --json >out
    says 'it["arrays"][0]["chunks"] > 0' <out
    like_local s3://bucket/again.zarr chunks.zarr
    sf pack gs://bucket/again.zarr gs://bucket/by-google.zarr --shard x4,4 >/dev/null
    like_local s3://bucket/by-google.zarr chunks.zarr
}
check "unpack and repack write to a store, also from one" unpacked

# Files beside arrays are copied; links are not, and it is said.
others() {
    mkdir -p tree/docs
    cp -r chunks.zarr tree/waves
    cp group.json tree/zarr.json
    echo text >tree/docs/notes.txt
    : >tree/docs/empty
    ln -s notes.txt tree/docs/link
    sf pack tree s3://bucket/tree --shard x2,2 >out 2>err
    grep -q 'docs/link: left out: it is a symbolic link' err
    [[ $(keys tree/docs/ | sort | tr '\n' ' ') == 'tree/docs/empty tree/docs/notes.txt ' ]]
    rm tree/docs/link
    like_local s3://bucket/tree tree
}
check "files beside arrays are copied to a store; of links it is said that they are not" others

refused() {
    local before
    before=$(keys | sort)
    fails_with 'is not replaced: give another name' sf pack chunks.zarr s3://bucket/packed.zarr --shard x2,2
    fails_with 'is not replaced: give another name' sf pack --force chunks.zarr s3://bucket/packed.zarr --shard x2,2
    # Neither an array nor a group.
    fails_with 'no Zarr array or group' sf pack chunks.zarr s3://bucket/deep --shard x2,2
    for to in s3://bucket/packed.zarr/inside s3://bucket s3://bucket/packed.zarr; do
        fails_with 'must not lie in each other' sf unpack s3://bucket/packed.zarr $to
    done
    fails_with 'can only be read' sf unpack sample.zarr "$URL/bucket/by-web"
    fails_with 'leave --no-list out' sf pack --no-list chunks.zarr s3://bucket/a --shard x2,2
    fails_with 'leave --no-list out' sf delete --no-list s3://bucket/packed.zarr
    fails_with 'can only be read' sf delete "$URL/bucket/packed.zarr"
    # An object would be hidden by what is below it.
    put file chunks.zarr/zarr.json
    before=$(keys | sort)
    fails_with 'no Zarr array or group' sf pack chunks.zarr s3://bucket/file --shard x2,2
    fails_with 'is none of s3' sf unpack sample.zarr ftp://host/a
    fails_with 'a URL begins with s3://' sf unpack sample.zarr s3:bucket/a
    sf unpack sample.zarr "s3://user:secret@bucket/a" >out 2>&1 && return 1
    grep -q 'holds a user name or a password' out
    grep -q secret out && return 1
    [[ $(keys | sort) == "$before" ]]
    sf unpack sample.zarr "file://$TMP/by-url.zarr"
    diff -r by-url.zarr chunks.zarr
}
check "what is there is not replaced, and what is no place in a store is refused" refused

# --- interrupted -----------------------------------------------------------------------------------

interrupted() {
    local to=s3://bucket/half.zarr files
    start_store 50
    "$SHARDFS" pack --endpoint "$URL" --anonymous chunks.zarr $to --shard x2,1 --threads 1 >/dev/null 2>&1 &
    local pid=$!
    more_than() { (($(keys half.zarr/ | wc -l) > $1)); }
    within 60 more_than 4
    kill -KILL $pid
    wait $pid || true
    keys half.zarr/ | grep -q 'half.zarr/zarr.json' && return 1
    fails_with 'has not completed it; run the same command again' sf info $to
    fails_with 'has not completed it' "$SHARDFS" mount $to "$TMP" -o "endpoint=$URL,anonymous"
    fails_with 'holds the unfinished result of another command' sf pack chunks.zarr $to --shard x2,2
    fails_with 'has not completed it' sf create $to --shape 4 --dtype int8
    sf pack chunks.zarr $to --shard x2,1 >out
    grep -q 'of them there before' out
    like_local $to chunks.zarr
    keys half.zarr/ | grep -q shardfs && return 1
    # What is unfinished is begun anew with --force, and nothing of before stays.
    "$SHARDFS" pack --endpoint "$URL" --anonymous chunks.zarr s3://bucket/anew.zarr --shard x2,1 --threads 1 \
        >/dev/null 2>&1 &
    pid=$!
    more_than() { (($(keys anew.zarr/ | wc -l) > $1)); }
    within 60 more_than 4
    kill -KILL $pid
    wait $pid || true
    sf pack --force chunks.zarr s3://bucket/anew.zarr --shard x4,4 >out
    grep -q 'there before' out && return 1
    like_local s3://bucket/anew.zarr chunks.zarr
    "$SHARDFS" pack chunks.zarr four.zarr --shard x4,4 >/dev/null
    files=$(cd four.zarr && find . -type f | wc -l)
    [[ $(keys anew.zarr/ | wc -l) == "$files" ]]
}
check "a copy to a store that was killed goes on, and is no array until then" interrupted

# taken COMMAND ARG...: a copy that is under way ends when another command takes its place, and completes nothing.
taken() {
    local to=s3://bucket/taken.zarr pid rc=0
    start_store 50
    "$SHARDFS" pack --endpoint "$URL" --anonymous chunks.zarr $to --shard x2,1 --threads 1 >taken.out 2>&1 &
    pid=$!
    has_some() { (($(keys taken.zarr/ | wc -l) > 4)); }
    within 60 has_some
    sf "$1" "${@:2}" >/dev/null
    wait $pid || rc=$?
    [[ $rc == 2 ]]
    grep -q 'another command has begun to write or to delete it: nothing more is put there$' taken.out
    if [[ $1 == pack ]]; then
        like_local $to chunks.zarr
        # What the first one was putting when the mark was taken is noticed, and goes with the place.
        keys taken.zarr/ | grep -q shardfs && return 1
    else
        is_empty taken.zarr/
    fi
    return 0
}
check "a copy to a store ends when its place is deleted" taken delete s3://bucket/taken.zarr
check "a copy to a store ends when another one takes its place" \
    taken pack --force chunks.zarr s3://bucket/taken.zarr --shard "x2,1" --order morton

ignoring() {
    start_store 0 no-conditions
    fails_with 'cannot keep writers apart' sf pack chunks.zarr s3://bucket/a --shard x2,2
    fails_with 'cannot keep writers apart' sf create s3://bucket/a --shape 4 --dtype int8
    [[ -z $(keys) ]]
}
check "a store that cannot keep writers apart is not written to" ignoring

# --- create, resize, delete ------------------------------------------------------------------------

created() {
    local of=(--shape "40,40" --dtype uint8 --chunk "4,4" --shard "8,8")
    put above/zarr.json group.json
    sf create --dry-run s3://bucket/above/new.zarr "${of[@]}" >/dev/null
    [[ $(keys above/) == above/zarr.json ]]
    sf create s3://bucket/above/new.zarr "${of[@]}"
    [[ $(keys above/ | sort | tr '\n' ' ') == 'above/new.zarr/zarr.json above/zarr.json ' ]]
    "$SHARDFS" create new.zarr "${of[@]}" >/dev/null
    mount_view s3://bucket/above --rw -o "endpoint=$URL,anonymous"
    diff new.zarr/zarr.json <(get above/new.zarr/zarr.json)
    says 'it["consolidated_metadata"]["metadata"]["new.zarr"]["shape"] == [40, 40]' <"$MP/zarr.json"
    mkdir -p "$MP"/new.zarr/c/{0..9}
    for i in {0..9}; do for j in {0..9}; do printf '%16s' "$i,$j" >"$MP/new.zarr/c/$i/$j"; done; done
    unmount_view
    fails_with 'is not replaced: delete it first' sf create s3://bucket/above/new.zarr "${of[@]}"
    fails_with 'is not replaced: delete it first' sf create --force s3://bucket/above/new.zarr "${of[@]}"
    fails_with '--sample makes a directory' sf create --sample s3://bucket/sample
}
check "an array is created in a store, once, and groups above list it" created

resized() {
    local at=s3://bucket/above/new.zarr
    sf resize --dry-run $at --shape 10,40 | grep -q '70 chunks outside would be removed'
    sf resize $at --shape 10,40 | grep -q '70 chunks outside removed'
    sf ls $at | wc -l | grep -qx 30
    get above/new.zarr/zarr.json | says 'it["shape"] == [10, 40]'
    sf resize $at --shape 40,40 | grep -q 'resized to'
    mount_view s3://bucket/above -o "endpoint=$URL,anonymous"
    says 'it["consolidated_metadata"]["metadata"]["new.zarr"]["shape"] == [40, 40]' <"$MP/zarr.json"
    [[ $(find "$MP/new.zarr/c" -type f | wc -l) == 30 && $(<"$MP/new.zarr/c/2/9") == *2,9 ]]
    unmount_view
    # Objects of one chunk each.
    sf unpack $at s3://bucket/plain.zarr >/dev/null
    sf resize s3://bucket/plain.zarr --shape 4,40 | grep -q '20 chunks outside removed'
    [[ $(keys plain.zarr/c/ | wc -l) == 10 ]]
    fails_with 'there is no such directory' sf resize s3://bucket/nothing --shape 4
    fails_with 'is a group' sf resize s3://bucket/above --shape 4
}
check "an array in a store is resized, and what lies outside is removed" resized

deleted() {
    local at=s3://bucket/above/new.zarr
    fails_with '--recursive deletes it' sf delete s3://bucket/above
    fails_with 'no Zarr v3 array or group' sf delete s3://bucket/deep
    fails_with 'there is no such directory' sf delete s3://bucket/nothing
    mount_view $at -o "endpoint=$URL,anonymous"
    fails_with 'unmount it first' sf delete $at
    fails_with 'unmount it first' sf delete --recursive s3://bucket/above
    unmount_view
    sf delete --dry-run $at | grep -q 'would be deleted: '
    sf info $at >/dev/null
    sf delete $at | grep -q 'deleted: '
    is_empty above/new.zarr/
    mount_view s3://bucket/above -o "endpoint=$URL,anonymous"
    says 'it["consolidated_metadata"]["metadata"] == {}' <"$MP/zarr.json"
    unmount_view
    fails_with 'there is no such directory' sf delete $at
    sf delete --recursive s3://bucket/tree >/dev/null
    is_empty tree/
    # Its neighbours stay.
    sf verify s3://bucket/packed.zarr
}
check "arrays and groups in a store are deleted, with what groups above say of them" deleted

deletion_interrupted() {
    start_store 50
    sf unpack sample.zarr s3://bucket/chunks.zarr >/dev/null
    "$SHARDFS" delete --endpoint "$URL" --anonymous --recursive s3://bucket/chunks.zarr >/dev/null 2>&1 &
    local pid=$!
    is_begun() { (($(keys chunks.zarr/waves/c/ | wc -l) < 180)); }
    within 60 is_begun
    kill -KILL $pid
    wait $pid || true
    # No array is among what is left.
    keys chunks.zarr/ | grep -q zarr.json$ && return 1
    if ! is_empty chunks.zarr/; then
        fails_with 'has not completed it' sf info s3://bucket/chunks.zarr
        fails_with 'has not completed it' sf create s3://bucket/chunks.zarr --shape 4 --dtype int8
        sf delete s3://bucket/chunks.zarr | grep -q 'left removed'
    fi
    is_empty chunks.zarr/
}
check "a deletion in a store that was killed goes on, and leaves no array" deletion_interrupted
