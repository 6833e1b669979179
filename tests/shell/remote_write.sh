#!/bin/bash
# Writing to an object store: chunk files of several mounts reach the shards, and none is lost; what is no chunk can
# only be read; a store that cannot keep writers apart is refused; what cannot be committed is saved and put in later.
# object_store.sh has the same on a store that is none of ours.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

# unsaved_of PID: the directory in which a mount saves what it cannot commit.
unsaved_of() { compgen -G "/var/lib/shardfs/unsaved/*-$1" || true; }

(cd "$repo" && cargo build --quiet --example store)
store=$repo/target/debug/examples/store
mkdir "$TMP/top"
"$SHARDFS" create --sample "$TMP/top/sample.zarr" >/dev/null
"$SHARDFS" create --shape 16,16 --dtype uint8 --chunk 1,1 --shard 8,8 "$TMP/top/bytes.zarr" >/dev/null

# start_store [LATENCY-MS [HOW]]: sets URL, and STORE, its process, which ends with this script.
start_store() {
    local out
    out=$(mktemp "$TMP/store.XXXXXX")
    mkfifo "$out.end"
    "$store" "$TMP/top" "$@" <"$out.end" >"$out" &
    STORE=$!
    # Held open until this script ends, and the store with it.
    # shellcheck disable=SC2034 # it is never written to
    exec {held}>"$out.end"
    at_end bash -c "kill -KILL $STORE 2>/dev/null || true"
    within 20 test -s "$out"
    URL=$(<"$out")
}

# rw URL OPTION...: a writable mount of the store, whose requests fail soon.
rw() { mount_view "$1" --rw -o "endpoint=$URL,anonymous,timeout=3" "${@:2}"; }

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

# Four mounts, each of which writes a quarter of the chunks of each shard.
together() {
    local mps=() mp i j pids=()
    for i in 0 1 2 3; do
        rw s3://bucket/bytes.zarr --commit-interval 0.1
        mps+=("$MP")
        mkdir -p "$MP/c"/{0..15}
    done
    for i in 0 1 2 3; do
        (
            cd "${mps[i]}/c"
            for ((j = i; j < 256; j += 4)); do printf 'chunk %d' "$j" >"$((j / 16))/$((j % 16))"; done
            "$SHARDFS" sync "${mps[i]}"
        ) &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i"; done
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    for ((j = 0; j < 256; j++)); do [[ $(<"$MP/c/$((j / 16))/$((j % 16))") == "chunk $j" ]]; done
    unmount_view
    for mp in "${mps[@]}"; do unmount_view "$mp"; done
}
check "four mounts write chunks of the same shards and lose none" together

# What is no chunk can be read.
only_chunks() {
    rw s3://bucket/sample.zarr
    local document before
    document=$(cd "$MP" && find . -mindepth 2 -name zarr.json -print -quit)
    before=$(<"$MP/$document")
    fails_with 'Read-only file system' cp "$MP/$document" "$MP/new"
    fails_with 'Read-only file system' mkdir "$MP/new"
    fails_with 'Read-only file system' rm "$MP/$document"
    fails_with 'Read-only file system' mv "$MP/$document" "$MP/new"
    fails_with 'Read-only file system' truncate -s 0 "$MP/$document"
    fails_with 'Read-only file system' ln -s x "$MP/new"
    [[ ! -e $MP/new && $(<"$MP/$document") == "$before" ]]
    df "$MP" >/dev/null
    unmount_view
}
check "what is no chunk can only be read" only_chunks

refusals() {
    new_mount_point
    local there=(-o "endpoint=$URL,anonymous")
    fails_with 'no arrays are created in a store on the network' \
        "$SHARDFS" mount --rw --shard 256M "${there[@]}" s3://bucket/sample.zarr "$MP"
    fails_with 'it can only be read' "$SHARDFS" mount --rw "${there[@]}" gs://bucket/sample.zarr "$MP"
    fails_with 'it can only be read' "$SHARDFS" mount --rw "$URL/sample.zarr" "$MP"
    fails_with 'immutable and writable exclude each other' \
        "$SHARDFS" mount --rw "${there[@]}" -o immutable s3://bucket/sample.zarr "$MP"
    not_mounted "$MP"
}
check "what cannot be written to is refused before it is mounted" refusals

# What waits when the store is gone is told to who asks for it to be durable, is saved in the end, and put in later.
outage() {
    local pid saved
    rw s3://bucket/bytes.zarr --commit-interval 1000
    mkdir -p "$MP/c/3"
    printf before >"$MP/c/3/3"
    "$SHARDFS" sync "$MP"
    printf later >"$MP/c/3/3"
    pid=$(daemon_of "$MP")
    kill -STOP "$STORE"
    expect_exit 2 "$SHARDFS" sync "$MP"
    [[ $(<"$MP/c/3/3") == later ]]
    # It says that not all is there.
    expect_exit 2 "$SHARDFS" umount "$MP"
    kill -CONT "$STORE"
    saved=$(unsaved_of "$pid")
    [[ $(<"$saved/c/3/3") == later ]]
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    [[ $(<"$MP/c/3/3") == before ]]
    unmount_view
    expect_exit 2 "$SHARDFS" recover --unsaved "$saved" --endpoint "$URL" --anonymous s3://bucket/sample.zarr
    fails_with 'without --unsaved, it is a URL' "$SHARDFS" recover s3://bucket/bytes.zarr
    fails_with 'it names no bucket' "$SHARDFS" recover --unsaved "$saved" s3://
    [[ $("$SHARDFS" recover s3://key:hidden@bucket/a 2>&1) != *hidden* ]]
    "$SHARDFS" recover --unsaved "$saved" --endpoint "$URL" --anonymous s3://bucket/bytes.zarr
    [[ ! -e $saved ]]
    mount_view s3://bucket/bytes.zarr -o "endpoint=$URL,anonymous"
    [[ $(<"$MP/c/3/3") == later ]]
    unmount_view
}
check "what waits when the store is gone is saved in the end, and put in later" outage

start_store 0 no-conditions
unreliable() {
    new_mount_point
    fails_with 'the store cannot keep writers apart' \
        "$SHARDFS" mount --rw -o "endpoint=$URL,anonymous" s3://bucket/sample.zarr "$MP"
    not_mounted "$MP"
    # Nothing is left of the trial.
    mount_view s3://bucket -o "endpoint=$URL,anonymous"
    [[ -z $(find "$MP" -name '.shardfs-*') ]]
    unmount_view
}
check "a store that ignores conditions is not written to" unreliable
