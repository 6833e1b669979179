#!/bin/bash
# Writing to an object store: chunk files of several mounts reach the shards, and none is lost; other files are made,
# changed and removed; a store that cannot keep writers apart is refused; what cannot be committed is saved and put in later.
# object_store.sh has the same on a store that is none of ours.

# On a busy machine.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-2400}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=../store_lib.sh
. "$repo/tests/store_lib.sh"

# unsaved_of PID: the directory in which a mount saves what it cannot commit.
unsaved_of() { compgen -G "/var/lib/shardfs/unsaved/*-$1" || true; }

python=${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python
export PYTHONDONTWRITEBYTECODE=1
mkdir "$TMP/top"
"$SHARDFS" create --sample "$TMP/top/sample.zarr" >/dev/null
"$SHARDFS" create --shape 16,16 --dtype uint8 --chunk 1,1 --shard 8,8 "$TMP/top/bytes.zarr" >/dev/null

echo '{"zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "uint8", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}' >"$TMP/top/plain.json"

# rw URL OPTION...: a writable mount of the store.
rw() { mount_view "$1" --rw -o "endpoint=$URL,anonymous" "${@:2}"; }

start_store

# The same writes reach a bucket and a directory.
as_local() {
    local mp file n=0 files
    cp -r "$TMP/top/sample.zarr" "$TMP/local.zarr"
    mount_view "$TMP/local.zarr" --rw
    mp=$MP
    rw s3://bucket/sample.zarr
    mapfile -t files < <(cd "$mp" && find . -path '*/c/*' -type f | sort)
    ((${#files[@]} > 20))
    for file in "${files[@]}"; do
        n=$((n + 1))
        case $((n % 4)) in
        0) rm "$mp/$file" "$MP/$file" ;;
        1) tee "$mp/$file" "$MP/$file" <<<"chunk $n" >/dev/null ;;
        2)
            cp "$mp/${files[0]}" "$TMP/chunk"
            cp "$TMP/chunk" "$mp/$file.tmp"
            cp "$TMP/chunk" "$MP/$file.tmp"
            mv "$mp/$file.tmp" "$mp/$file"
            mv "$MP/$file.tmp" "$MP/$file"
            ;;
        esac
    done
    "$SHARDFS" sync "$MP"
    unmount_view "$mp"
    unmount_view
    mount_view "$TMP/local.zarr"
    mp=$MP
    mount_view s3://bucket/sample.zarr -o "endpoint=$URL,anonymous"
    diff -r "$mp" "$MP"
    unmount_view "$mp"
    unmount_view
    "$SHARDFS" verify --endpoint "$URL" --anonymous s3://bucket/sample.zarr
}
check "the same chunk files in a bucket and in a directory are the same array" as_local

# together SCHEME: four mounts, each of which writes a quarter of the chunks of each shard.
together() {
    local mps=() mp i j pids=()
    for i in 0 1 2 3; do
        rw "$1://bucket/bytes.zarr" --commit-interval 0.1
        mps+=("$MP")
        mkdir -p "$MP/c"/{0..15}
    done
    for i in 0 1 2 3; do
        (
            cd "${mps[i]}/c"
            for ((j = i; j < 256; j += 4)); do printf '%s %d' "$1" "$j" >"$((j / 16))/$((j % 16))"; done
            "$SHARDFS" sync "${mps[i]}"
        ) &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i"; done
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    for ((j = 0; j < 256; j++)); do [[ $(<"$MP/c/$((j / 16))/$((j % 16))") == "$1 $j" ]]; done
    unmount_view
    for mp in "${mps[@]}"; do unmount_view "$mp"; done
}
check "four mounts write chunks of the same shards and lose none" together s3
check "four mounts write chunks of the same shards by the protocol of Google and lose none" together gs

# What programs do with files is done to the bucket as to a directory.
files() {
    local mp both=() at
    mkdir "$TMP/plain"
    # There is nothing yet.
    rw s3://bucket/files --shard off
    mp=$MP
    mkdir "$TMP/from" "$TMP/from/d"
    for at in {1..20}; do head -c "$((at * 7001))" /dev/urandom >"$TMP/from/d/$at"; done
    : >"$TMP/from/empty"
    echo 'a file' >"$TMP/from/a file"
    both=("$TMP/plain" "$mp")
    for at in "${both[@]}"; do
        cp -r "$TMP/from" "$at/copied"
        tar -C "$TMP/from" -c . | tar -C "$at" -x --no-same-owner --one-top-level=of_tar
        rsync -rt "$TMP/from/" "$at/of_rsync/"
        rsync -rt --inplace --ignore-times "$TMP/from/d/1" "$at/of_rsync/d/2"
        mv "$at/copied/d/3" "$at/copied/moved"
        mv "$at/copied/d" "$at/copied/e"
        mv "$at/copied/e/4" "$at/copied/e/5"
        rm "$at/copied/e/6"
        rm -r "$at/of_tar/d"
        mkdir -p "$at/made/and"
        echo one >"$at/made/and/file"
        echo two >>"$at/made/and/file"
        truncate -s 5 "$at/made/and/file"
        truncate -s 9 "$at/made/and/file"
        sed -i 's/tw/TW/' "$at/made/and/file"
        dd if=/dev/zero of="$at/copied/e/7" bs=100 seek=3 count=2 conv=notrunc status=none
        fails_with 'Directory not empty' rmdir "$at/made"
        : >"$at/none"
        python3 -c 'import os, sys; os.mknod(sys.argv[1])' "$at/made/node"
        chmod 600 "$at/none"
        touch "$at/none"
    done
    diff -r "${both[@]}"
    mkdir "$mp/none yet" && rmdir "$mp/none yet"
    fails_with 'Operation not permitted' ln -s x "$mp/link"
    fails_with 'Operation not permitted' ln "$mp/none" "$mp/link"
    fails_with 'Operation not permitted' chown 4711 "$mp/none"
    fails_with 'Operation not supported' setfattr -n user.x -v y "$mp/none"
    unmount_view
    # In the bucket it is as it was in the mount.
    rmdir_empty "$TMP/plain"
    mount_view s3://bucket -o "endpoint=$URL,anonymous"
    diff -r "$TMP/plain" "$MP/files"
    unmount_view
}

# rmdir_empty DIR: directories in which there is nothing go, as a bucket has none.
rmdir_empty() { find "$1" -mindepth 1 -type d -empty -delete; }
check "programs make, change, rename and remove files as in a directory" files

# A file that others have changed since it was opened is not replaced, and that is told.
changed_meanwhile() {
    local one other
    rw s3://bucket/files --shard off -o trusted=0
    one=$MP
    rw s3://bucket/files --shard off -o trusted=0
    other=$MP
    echo one >"$one/shared"
    [[ $(<"$other/shared") == one ]]
    fails_with 'Stale file handle' python3 -c 'import os, sys
held = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(held, b"more")
with open(sys.argv[2], "w") as other:
    print("other", file=other)
os.close(held)' "$one/shared" "$other/shared"
    [[ $(<"$one/shared") == other && $(<"$other/shared") == other ]]
    # Metadata by another name, as libraries write it: the kernel asks twice where the answer is ESTALE.
    group() { printf '{"zarr_format": 3, "node_type": "group", "attributes": {"by": "%s"}}' "$1"; }
    mkdir "$one/group"
    group one >"$one/group/zarr.json"
    grep -q one "$other/group/zarr.json"
    group "one again" >"$one/group/zarr.json"
    group other >"$other/group/new"
    fails_with 'Stale file handle' mv "$other/group/new" "$other/group/zarr.json"
    grep -q one "$one/group/zarr.json"
    cat "$other/group/zarr.json" >/dev/null
    mv "$other/group/new" "$other/group/zarr.json"
    rm -r "$one/group"
    mkdir "$one/group"
    group anew >"$one/group/zarr.json"
    unmount_view "$one"
    unmount_view "$other"
}
check "a file that others have changed since is not replaced, and that is told" changed_meanwhile

# What is removed leaves nothing in the bucket.
removed_array() {
    rw s3://bucket --shard 64K
    mkdir -p "$MP/made.zarr/c/0"
    cp "$TMP/top/plain.json" "$MP/made.zarr/zarr.json"
    echo chunk >"$MP/made.zarr/c/0/0"
    "$SHARDFS" sync "$MP"
    rm -r "$MP/bytes.zarr" "$MP/made.zarr"
    [[ ! -e $MP/made.zarr ]]
    [[ ! -e $MP/bytes.zarr ]]
    unmount_view
    mount_view s3://bucket -o "endpoint=$URL,anonymous"
    [[ ! -e $MP/bytes.zarr && -z $(find "$MP" -path '*bytes.zarr*' -o -path '*made.zarr*') ]]
    unmount_view
}

# A program makes a hierarchy in the bucket as in a directory.
made() {
    local view expected
    "$python" "$repo/tests/shell/made.py" "$TMP/made"
    rw s3://bucket/made --shard off
    "$python" "$repo/tests/shell/made.py" "$MP/in"
    # What it has emptied.
    rmdir_empty "$TMP/made"
    unmount_view
    for view in zarr3 zarr2; do
        mount_view "$TMP/made" --view "$view"
        expected=$MP
        mount_view s3://bucket/made/in --view "$view" -o "endpoint=$URL,anonymous"
        diff -r "$expected" "$MP"
        unmount_view
        unmount_view "$expected"
    done
    "$SHARDFS" verify --endpoint "$URL" --anonymous s3://bucket/made/in
}
"$repo/tests/clients/setup.sh"
check "zarr-python makes and changes a hierarchy in a bucket as in a directory" made

# How a store can be written to.
tried() {
    local there=(--endpoint "$URL" --anonymous --try-writing)
    "$SHARDFS" info "${there[@]}" s3://bucket/sample.zarr | grep -q '^Writing: the store assembles shards'
    [[ $("$SHARDFS" info --json "${there[@]}" s3://bucket/sample.zarr |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["writing"])') == "{'shards': 'assembled'}" ]]
    "$SHARDFS" info --try-writing "$URL/sample.zarr/waves" | grep -q '^Writing: it can only be read'
    fails_with 'it is no URL' "$SHARDFS" info --try-writing "$TMP/top/sample.zarr"
    rw s3://bucket/sample.zarr
    [[ $(python3 -c 'import json, sys; print(json.load(sys.stdin)["store"])' <"$MP/.shardfs/stats.json") == \
        "{'shards': 'assembled'}" ]]
    unmount_view
    mount_view s3://bucket/sample.zarr -o "endpoint=$URL,anonymous"
    [[ $(python3 -c 'import json, sys; print(json.load(sys.stdin)["store"])' <"$MP/.shardfs/stats.json") == None ]]
    unmount_view
}
check "info and the statistics say how a store can be written to" tried

refusals() {
    new_mount_point
    local there=(-o "endpoint=$URL,anonymous")
    fails_with 'it can only be read' "$SHARDFS" mount --rw "$URL/sample.zarr" "$MP"
    fails_with 'immutable and writable exclude each other' \
        "$SHARDFS" mount --rw "${there[@]}" -o immutable s3://bucket/sample.zarr "$MP"
    not_mounted "$MP"
}
check "what cannot be written to is refused before it is mounted" refusals

# What waits when the store is gone is told to who asks for it to be durable, is saved in the end, and put in later.
outage() {
    local pid saved
    rw s3://bucket/bytes.zarr --commit-interval 1000 -o timeout=15
    mkdir -p "$MP/c/3"
    printf before >"$MP/c/3/3"
    "$SHARDFS" sync "$MP"
    printf later >"$MP/c/3/3"
    pid=$(daemon_of "$MP")
    stop_store
    expect_exit 2 "$SHARDFS" sync "$MP"
    [[ $(<"$MP/c/3/3") == later ]]
    # The command that puts it in finds the store.
    grep -F "recover --unsaved " "$MP/.shardfs/waiting.txt" |
        grep -F -e " --endpoint $URL --anonymous s3://bucket/bytes.zarr\`"
    # It says that not all is there.
    expect_exit 2 "$SHARDFS" umount "$MP"
    kill -CONT "$STORE"
    saved=$(unsaved_of "$pid")
    [[ $(<"$saved/c/3/3") == later ]]
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    [[ $(<"$MP/c/3/3") == before ]]
    unmount_view
    expect_exit 2 "$SHARDFS" recover --unsaved "$saved" --endpoint "$URL" --anonymous s3://bucket/sample.zarr
    [[ $("$SHARDFS" recover --endpoint "$URL" --anonymous s3://bucket/bytes.zarr) == *"$saved"*'nothing to recover' ]]
    fails_with 'it names no bucket' "$SHARDFS" recover --unsaved "$saved" s3://
    [[ $("$SHARDFS" recover s3://key:hidden@bucket/a 2>&1) != *hidden* ]]
    "$SHARDFS" recover --unsaved "$saved" --endpoint "$URL" --anonymous s3://bucket/bytes.zarr
    [[ ! -e $saved ]]
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    [[ $(<"$MP/c/3/3") == later ]]
    unmount_view
}
check "what waits when the store is gone is saved in the end, and put in later" outage

# What waits for a store that does not answer is saved before it is given up: the mount may be killed.
killed_at_the_end() {
    local pid saved
    mount_view s3://bucket/bytes.zarr --rw -o "endpoint=$URL,anonymous,timeout=60" --commit-interval 1000
    mkdir -p "$MP/c/5"
    printf 'not yet' >"$MP/c/5/5"
    pid=$(daemon_of "$MP")
    stop_store
    umount "$MP" || fusermount3 -u "$MP"
    within 30 compgen -G "/var/lib/shardfs/unsaved/*-$pid/.spool/*/c/5/5"
    kill -KILL "$pid"
    within 20 has_ended "$pid"
    kill -CONT "$STORE"
    saved=$(unsaved_of "$pid")
    "$SHARDFS" recover --unsaved "$saved" --endpoint "$URL" --anonymous s3://bucket/bytes.zarr
    [[ ! -e $saved ]]
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    [[ $(<"$MP/c/5/5") == 'not yet' ]]
    unmount_view
}
check "what waits for a slow store when the mount is killed at its end is put in later" killed_at_the_end

# A store that is away for a time, while several write: for longer than requests may take, so that some are repeated and
# arrive twice in the end. SHARDFS_AWAY_SECONDS is for how long.
away() {
    local limit=$((1 << 20))
    rw s3://bucket/bytes.zarr --commit-interval 0.5 --dirty-limit "$limit" -o timeout=15
    python3 "$repo/tests/shell/away.py" "$SHARDFS" "$MP" "$STORE" "${SHARDFS_AWAY_SECONDS:-40}" "$limit" \
        s3://bucket/bytes.zarr "endpoint=$URL,anonymous"
    unmount_view
}
check "writers see delays or errors while the store is away, and lose nothing that was accepted" away

# What a mount has begun to upload before it was killed.
uploads() {
    local there=(--endpoint "$URL" --anonymous s3://bucket/bytes.zarr) key
    for key in bytes.zarr/c/0/1 bytes.zarr/notes.txt; do
        python3 - "$URL/bucket/$key?uploads" <<'PY'
import sys
from urllib.request import Request, urlopen

urlopen(Request(sys.argv[1], method="POST"), timeout=10)
PY
    done
    # A mount that was killed at its beginning has left an object; another one has a name of its own.
    for key in .shardfs-0123456789abcdef0123456789abcdef .shardfs-notes; do
        python3 - "$URL/bucket/bytes.zarr/$key" <<'PY'
import sys
from urllib.request import Request, urlopen

urlopen(Request(sys.argv[1], b"trial", method="PUT"), timeout=10)
PY
    done
    # The store dates them some days ago.
    fails_with 'may be under way' "$SHARDFS" recover --older 87600h "${there[@]}"
    # What a mount could not commit may wait as well.
    "$SHARDFS" recover "${there[@]}" >"$TMP/uploads" || [[ $? == 1 ]]
    grep -q '^c/0/1: an upload that was not completed was removed$' "$TMP/uploads"
    grep -q '^notes.txt: an upload of something else than a shard, left as it is$' "$TMP/uploads"
    grep -q '^.shardfs-0123456789abcdef0123456789abcdef: .* was removed$' "$TMP/uploads"
    # What a killed mount of another test has saved is named as well.
    [[ $(grep -c '^\.shardfs-' "$TMP/uploads") == 1 ]]
    [[ $("$SHARDFS" recover "${there[@]}" | grep -v ' could not commit is in /') == \
        'notes.txt: an upload of something else than a shard, left as it is' ]]
}
check "uploads of shards that were not completed are removed, and no others" uploads

check "an array that is removed leaves nothing in the bucket" removed_array

start_store 0 no-conditions
unreliable() {
    new_mount_point
    fails_with 'the store cannot keep writers apart' \
        "$SHARDFS" mount --rw -o "endpoint=$URL,anonymous" s3://bucket/sample.zarr "$MP"
    not_mounted "$MP"
    "$SHARDFS" info --endpoint "$URL" --anonymous --try-writing s3://bucket/sample.zarr |
        grep -q '^Writing: the store cannot keep writers apart'
    # Nothing is left of the trial.
    mount_view s3://bucket -o "endpoint=$URL,anonymous"
    [[ -z $(find "$MP" -name '.shardfs-*') ]]
    unmount_view
}
check "a store that ignores conditions is not written to" unreliable

# The same store, whose user promises that nothing else writes there.
alone=(-o "endpoint=$URL,anonymous,single_writer,timeout=30")

# note METHOD [TEXT]: prints the status of a request for the note of a writer.
note() {
    python3 -c 'import sys, urllib.request as it
from urllib.error import HTTPError
it.install_opener(it.build_opener(it.ProxyHandler({})))
url, method, *text = sys.argv[1:]
text = text[0].encode() if text else None
try:
    print(it.urlopen(it.Request(url, text, method=method)).status)
except HTTPError as error:
    print(error.code)' "$URL/bucket/sample.zarr/.shardfs/writer" "$@"
}

only_writer() {
    mount_view s3://bucket/sample.zarr --rw "${alone[@]}"
    local one=$MP files other
    grep -Eq '"shards": ?"unconditional"' "$MP/.shardfs/stats.json"
    [[ $(note GET) == 200 ]]
    other=$(mktemp -d "$TMP/other.XXXXXX")
    fails_with 'writes there, as it has said' "$SHARDFS" mount --rw "${alone[@]}" s3://bucket/sample.zarr "$other"
    mapfile -t files < <(cd "$one" && find . -path '*/c/*' -type f | sort)
    cp "$one/${files[0]}" "$TMP/first"
    cp "$TMP/first" "$one/${files[1]}"
    "$SHARDFS" sync "$one"
    cp "$TMP/first" "$one/${files[2]}"
    unmount_view
    [[ $(note GET) == 404 ]]
    # Each view of several commits when it ends.
    mount_view s3://bucket/sample.zarr --rw --view zarr3,zarr2 "${alone[@]}"
    cp "$TMP/first" "$MP/zarr3/${files[3]}"
    cp "$TMP/first" "$MP/zarr2/${files[4]/\/c\///}"
    unmount_view
    [[ $(note GET) == 404 ]]
    mount_view s3://bucket/sample.zarr "${alone[@]}"
    for i in 1 2 3 4; do cmp "$TMP/first" "$MP/${files[i]}"; done
    unmount_view
}
check "the only writer of a store that ignores conditions writes, and another one is refused" only_writer

failed_mount() {
    new_mount_point
    # The kernel takes no name of that length.
    fails_with 'Invalid argument' "$SHARDFS" mount --rw -o "${alone[1]},fsname=$(printf '%05000d' 0)" s3://bucket/sample.zarr "$MP"
    not_mounted "$MP"
    [[ $(note GET) == 404 ]]
}
check "a mount that fails does not go on to say that it writes to the store" failed_mount

killed_writer() {
    mount_view s3://bucket/sample.zarr --rw "${alone[@]}"
    local pid
    pid=$(daemon_of "$MP")
    kill -KILL "$pid"
    within 10 has_ended "$pid"
    fusermount3 -uz "$MP"
    [[ $(note GET) == 200 ]]
    # Its note is of a process of this machine that is gone. What it has sent may still arrive.
    mount_view s3://bucket/sample.zarr --rw "${alone[@]}" --log-file "$TMP/killed.log" -v
    grep -q 'requests of a writer before this one may still arrive: nothing is changed in the next 60 s' "$TMP/killed.log"
    ls "$MP" >"$TMP/killed"
    unmount_view
    [[ $(note GET) == 200 ]]
}
check "what a writer says that was killed keeps no other from writing" killed_writer

only_command() {
    local there=(--endpoint "$URL" --anonymous)
    fails_with 'unless single_writer (--single-writer) says' \
        "$SHARDFS" create "${there[@]}" s3://bucket/made.zarr --shape 8 --dtype uint8
    "$SHARDFS" create "${there[@]}" --single-writer s3://bucket/made.zarr --shape 8 --dtype uint8
    "$SHARDFS" info "${there[@]}" --single-writer --try-writing s3://bucket/made.zarr |
        grep -q '^Writing: the store keeps to no conditions'
    "$SHARDFS" delete "${there[@]}" s3://bucket/made.zarr
    fails_with 'there is no metadata in it' "$SHARDFS" info "${there[@]}" s3://bucket/made.zarr
    # Of a process elsewhere.
    [[ $(note DELETE) == 204 ]]
    [[ $(note PUT '{"host": "other", "boot": "2", "namespace": "3", "pid": 4}') == 200 ]]
    fails_with 'process 4 of "other" writes there' "$SHARDFS" delete --recursive "${there[@]}" s3://bucket/sample.zarr
    "$SHARDFS" verify "${there[@]}" s3://bucket/sample.zarr
    [[ $(note DELETE) == 204 ]]
}
check "commands write to such a store if nothing else does" only_command
