#!/bin/bash
# Sources on an object store that is none of ours: Ceph's radosgw. The corpus, sound and damaged, is shown as it is from
# files; libraries read through a mount what they read from the bucket; commands say the same; access that is refused,
# objects that are replaced and a store that dies under its readers; and how many requests all that takes.
#
# Needs the packages that tests/servers/radosgw.sh names, and installs them as root. SHARDFS_CORPUS: where the corpus is.
# The libraries come from tests/clients/setup.sh.

# On a busy machine.
SHARDFS_TEST_SECONDS=${SHARDFS_TEST_SECONDS:-2400}
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
here=$repo/tests/shell
clients=$repo/tests/clients
radosgw=$repo/tests/servers/radosgw.sh
python=${SHARDFS_VENVS:-$repo/target/venvs}/s3/bin/python
node_dir=${SHARDFS_NODE:-$repo/target/node}
export PYTHONDONTWRITEBYTECODE=1

# --- the store -------------------------------------------------------------------------------------

# A port that is free, and none that the kernel gives to connections meanwhile.
free_port() {
    python3 - <<'PY'
import random
import socket

while True:
    port = random.randrange(20000, 32000)
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
            break
        except OSError:
            pass
print(port)
PY
}

export AWS_ACCESS_KEY_ID=shardfs-test AWS_SECRET_ACCESS_KEY=d0ca7b7a8e6f AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
# Nothing else of the user's own.
unset AWS_SESSION_TOKEN AWS_PROFILE AWS_DEFAULT_PROFILE AWS_ENDPOINT_URL_S3
export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_EC2_METADATA_DISABLED=true
# Both ways to spell it.
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1
store=$TMP/radosgw
port=$(free_port)
export AWS_ENDPOINT_URL=http://127.0.0.1:$port
at_end "$radosgw" stop "$store"
rc=0
"$radosgw" start "$store" "$port" "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" || rc=$?
if [[ $rc == 3 ]]; then
    skip "no radosgw, and no right to install it"
    exit 0
fi
[[ $rc == 0 ]] || exit "$rc"
"$clients/setup.sh"
# Programs behind the name python3 that look for it first cost more than what they do here.
PATH=$(dirname "$python"):$PATH

object_store() { "$python" "$here/object_store.py" "$@"; }

"$SHARDFS" create --sample "$TMP/sample.zarr" >/dev/null
object_store array "$TMP/bytes.zarr"
object_store buckets public private
for bucket in public private unlisted; do
    object_store upload $bucket sample.zarr/ "$TMP/sample.zarr"
    object_store upload $bucket bytes.zarr/ "$TMP/bytes.zarr"
done

# --- the corpus ------------------------------------------------------------------------------------

# Both ways to mount a store: PATH-IN-THE-CORPUS MANIFEST...
check_bucket() {
    local source=s3://public/$1
    shift
    check_store "$source" default -1 "" "$@"
    check_store "$source" immutable -1 "-o immutable" "$@"
}

# says_the_same PATH URL COMMAND...: each gives the same, with the files and with the bucket for the @ in it. What it makes
# is called "made".
says_the_same() {
    local path=$1 url=$2 at=$TMP/said.$BASHPID command same=0
    shift 2
    mkdir -p "$at/files" "$at/bucket"
    for command; do
        # shellcheck disable=SC2086 # a command and its arguments
        said "$at/files" ${command/@/$path}
        # shellcheck disable=SC2086
        said "$at/bucket" ${command/@/$url}
        sed -i "s|$path|$url|g" "$at/files"/{said,errors}
        diff -r "$at/files" "$at/bucket" || same=1
    done
    rm -rf "$at"
    return $same
}

# said DIR COMMAND ARG...: runs it in DIR; what it says, and how it ends, goes to files there.
said() {
    local dir=$1 rc=0
    shift
    (cd "$dir" && exec "$SHARDFS" "$@") >"$dir/said" 2>"$dir/errors" || rc=$?
    echo "$1 ends with $rc" >>"$dir/said"
}

job() {
    local kind=$1
    shift
    case $kind in
    store)
        check_bucket "$@"
        verdict "commands of $1" says_the_same "$corpus/$1" "s3://public/$1" \
            'info @' 'ls -l @' 'verify --decode @' 'refs --base-url https://example.org @' 'unpack @ made'
        ;;
    damaged)
        local name
        name=$(basename "$1" .json)
        check_damaged "$1" "s3://public/damaged/$name"
        # Links and the like cannot be in a bucket.
        [[ -n $(find "$TMP/damaged/$name" ! -type f ! -type d -print -quit) ]] ||
            verdict "malformed/$name: shardfs verify" \
                says_the_same "$TMP/damaged/$name" "s3://public/damaged/$name" 'verify --decode @'
        ;;
    esac
}

if corpus=$(corpus_dir); then
    # shellcheck source=../corpus_lib.sh
    . "$repo/tests/corpus_lib.sh"
    corpus_stores "$corpus" zarr3,draft2022,bloscpack,bcolz | sed 's/^/store /' >"$TMP/work"
    for manifest in "$corpus"/manifests-malformed/*.json; do
        prepare_damaged "$manifest" "$TMP/damaged/$(basename "$manifest" .json)"
        echo "damaged $manifest"
    done >>"$TMP/work"
    object_store upload public data/ "$corpus/data"
    object_store upload public damaged/ "$TMP/damaged"
    in_jobs "$TMP/work" job
    check_damaged_drafts s3://public/data/malformed_other
    check_damaged_bcolz s3://public/data/malformed_other
else
    skip "no corpus: set SHARDFS_CORPUS"
fi

# --- libraries -------------------------------------------------------------------------------------

# read_with LIBRARY: whoever reads through the mount, and then the bucket.
read_with() {
    case $1 in
    zarrita.js) node "$clients/read_array.mjs" "$node_dir" "$TMP/web-jobs" ;;
    *) "$python" "$clients/read_array.py" "$1" "$TMP/jobs" ;;
    esac >"$TMP/$1.out" 2>"$TMP/$1.err" || echo "$1 ended with $?: $(tail -n 3 "$TMP/$1.err")"
}

if [[ -n $corpus ]]; then
    # All of them in one mount, of a bucket that is no hierarchy.
    mount_view s3://public
    object_store jobs "$corpus" public "$MP" "$TMP"
    printf '%s\n' zarr-python tensorstore zarrita.js >"$TMP/libraries"
    in_jobs "$TMP/libraries" read_with
    judge '' object_store compare "$TMP"
    check "unmount after reading" unmount_view
fi

# --- access ----------------------------------------------------------------------------------------

in_public() {
    local expected
    mount_view "$TMP/sample.zarr"
    expected=$MP
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    mount_view s3://public/sample.zarr -o anonymous
    diff -r "$expected" "$MP"
    unmount_view
    unmount_view "$expected"
}
check "a public bucket needs no credentials" in_public

# Its chunks are found by the grid.
unlisted() {
    local expected
    mount_view "$TMP/sample.zarr/waves"
    expected=$MP
    new_mount_point
    expect_exit 32 "$SHARDFS" mount -o anonymous s3://unlisted/sample.zarr/waves "$MP" >"$MP.log"
    grep -q 'a listing is refused: .*"no_list"' "$MP.log"
    expect_exit 2 "$SHARDFS" verify --anonymous --no-list s3://unlisted/sample.zarr/none >"$MP.log"
    mount_view s3://unlisted/sample.zarr/waves -o anonymous,no_list,absent=403
    diff -r "$expected" "$MP"
    unmount_view
    unmount_view "$expected"
    "$SHARDFS" verify --anonymous --no-list --absent 403 s3://unlisted/sample.zarr/waves
}
check "a bucket that may be read, but not listed, is read by the grid" unlisted

on_the_web() {
    local expected
    mount_view "$TMP/sample.zarr/waves"
    expected=$MP
    mount_view "$AWS_ENDPOINT_URL/public/sample.zarr/waves"
    diff -r "$expected" "$MP"
    unmount_view
    unmount_view "$expected"
}
check "a public bucket is a web server" on_the_web

# refused CODE URL [OPTION...]: no mount, and no command; both show the CODE of the store's answer. The options are those
# of commands.
refused() {
    local code=$1 url=$2 options=
    shift 2
    [[ $* != *--anonymous* ]] || options="-o anonymous"
    fails_with "$code" timeout 20 "$SHARDFS" info "$@" "$url"
    expect_exit 2 timeout 20 "$SHARDFS" verify "$@" "$url"
    new_mount_point
    # shellcheck disable=SC2086 # no option, or -o and its value
    expect_exit 32 timeout 20 "$SHARDFS" mount $options "$url" "$MP" >"$MP.log"
    not_mounted "$MP"
    grep -q "the last request: .*$code" "$MP.log"
    [[ $code == NoSuchBucket ]] || grep -q 'Permission denied' "$MP.log"
}
wrong_secret() {
    AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY}0 refused SignatureDoesNotMatch s3://private/sample.zarr
    # It is not tried without.
    AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY}0 refused SignatureDoesNotMatch s3://public/sample.zarr
}
unknown_key() { AWS_ACCESS_KEY_ID=nothing refused InvalidAccessKeyId s3://private/sample.zarr; }
check "a private bucket is refused to those without credentials" refused AccessDenied s3://private/sample.zarr --anonymous
check "a wrong secret is refused" wrong_secret
check "a key that the store does not know is refused" unknown_key
check "a bucket that does not exist is refused" refused NoSuchBucket s3://nothing/sample.zarr

# --- requests --------------------------------------------------------------------------------------

counted() {
    local asked
    mount_view s3://public/many.zarr "$@"
    read -r -a asked < <(asked)
    echo "${asked[*]} requests and LISTs for mounting"
    ((asked[0] - asked[2] <= 3))
    asks 1 0 stat "$MP/c/70"
    asks 0 0 stat "$MP"/c/{64..127}
    asks 1 0 cat "$MP/c/100"
    asks 1 0 cat "$MP/c/67"
    # What was read is known; what is outside of the array cannot be there.
    asks 0 0 cat "$MP/c/67"
    asks 0 0 fails_with 'No such file' stat "$MP/c/2560"
    # The index of one shard of 40 is known, and by the first listing all names below the array.
    asks 39 0 ls -l "$MP/c"
    asks 0 0 find "$MP" -type f -size +0
    unmount_view
}
python3 "$here/shards.py" array "$TMP/many.zarr" 5 --shards 40 --chunks 64 --bytes 4096
object_store upload public many.zarr/ "$TMP/many.zarr"
check "an index for one shard, a listing for one directory, a GET for one chunk" counted
check "an index for one shard, a listing for one directory, a GET for one chunk (immutable)" counted -o immutable

in_hierarchy() {
    local asked
    mount_view s3://public/sample.zarr
    read -r -a asked < <(asked)
    echo "${asked[*]} requests and LISTs for mounting"
    ((asked[0] - asked[2] <= 3))
    stat "$MP/waves/c/1/1/1"
    asks 0 0 stat "$MP"/waves/c/{0,1}/{0,1}/{0,1,2,3}
    asks 1 0 cat "$MP/waves/c/2/2/0"
    unmount_view
}
check "the same in a hierarchy" in_hierarchy

# --- objects that are replaced, a store that dies ----------------------------------------------------

replaced() {
    mount_view s3://private/bytes.zarr -o trusted=1,fetch_size=1M
    object_store replace private bytes.zarr/c/0 "$MP" 200
    unmount_view
}
check "a shard that is replaced 200 times is never shown in two versions, and in the last one in the end" replaced

# Nothing may hang, longer than any number of requests that time out one after the other.
outage() {
    local reader
    mount_view s3://public/bytes.zarr -o timeout=3,trusted=1,fetch_size=1M
    object_store watch "$MP" 60 "$TMP/stop" "$TMP/read" &
    reader=$!
    within 60 test -e "$TMP/read"
    kill -KILL "$(<"$store/run/client.rgw.a.pid")"
    sleep 8
    "$radosgw" gateway "$store"
    rm -f "$TMP/read"
    within 60 test -e "$TMP/read"
    touch "$TMP/stop"
    wait "$reader"
    object_store all "$MP"
    unmount_view
}
check "a store that is killed is an error to its readers, and is read again once it is back" outage

# --- writing ---------------------------------------------------------------------------------------

written() {
    local mp one other file n=0 files
    cp -r "$TMP/sample.zarr" "$TMP/written.zarr"
    object_store upload private written.zarr/ "$TMP/written.zarr"
    mount_view "$TMP/written.zarr" --rw
    mp=$MP
    mount_view s3://private/written.zarr --rw --commit-interval 0.5
    one=$MP
    mount_view s3://private/written.zarr --rw --commit-interval 0.5
    other=$MP
    mapfile -t files < <(cd "$mp" && find . -path '*/c/*' -type f | sort)
    ((${#files[@]} > 20))
    for file in "${files[@]}"; do
        n=$((n + 1))
        case $((n % 4)) in
        0) rm "$mp/$file" "$one/$file" ;;
        1) tee "$mp/$file" "$one/$file" <<<"chunk $n" >/dev/null ;;
        2) tee "$mp/$file" "$other/$file" <<<"chunk $n" >/dev/null ;;
        esac
    done
    "$SHARDFS" sync "$one"
    "$SHARDFS" sync "$other"
    for MP in "$mp" "$one" "$other"; do unmount_view; done
    mount_view "$TMP/written.zarr"
    mp=$MP
    mount_view s3://private/written.zarr
    diff -r "$mp" "$MP"
    unmount_view "$mp"
    unmount_view
    "$SHARDFS" verify s3://private/written.zarr
}
check "what two mounts write to a bucket is what is written to a directory" written

was_durable() { (($(cat "$TMP/durable") >= $1)); }

# What is reported as durable is there, whenever the store dies.
killed_while_written() {
    local n=0 i writer
    mount_view s3://private/bytes.zarr --rw --commit-interval 0.2 -o timeout=5
    (
        while [[ ! -e $TMP/written ]]; do
            n=$((n + 1))
            printf 'version %d' "$n" >"$MP/c/$((n % 8))" || sleep 0.2
            if "$SHARDFS" sync "$MP" >/dev/null 2>&1; then echo "$n" >"$TMP/durable"; fi
        done
    ) 2>/dev/null &
    writer=$!
    for i in 1 2 3; do
        # Some have become durable each time.
        within 120 was_durable "$((i * 8))"
        kill -KILL "$(<"$store/run/client.rgw.a.pid")"
        sleep 1
        "$radosgw" gateway "$store"
    done
    within 60 "$SHARDFS" sync "$MP"
    touch "$TMP/written"
    wait "$writer"
    "$SHARDFS" sync "$MP"
    n=$(<"$TMP/durable")
    ((n > 20))
    unmount_view
    mount_view s3://private/bytes.zarr
    # The last eight versions, one in each chunk.
    for ((i = n - 7; i <= n; i++)); do [[ $(<"$MP/c/$((i % 8))") == "version $i" ]]; done
    unmount_view
}
check "what was reported as durable is there although the store was killed again and again" killed_while_written

# Longer: SHARDFS_STORM_SECONDS=300.
storm() {
    local seconds=${SHARDFS_STORM_SECONDS:-15}
    "$SHARDFS" create --shape 32,32 --dtype uint32 --chunk 4,4 --shard 16,16 "$TMP/storm.zarr" >/dev/null
    object_store upload private storm.zarr/ "$TMP/storm.zarr"
    mkdir "$TMP/storm"
    python3 "$here/storm.py" "$SHARDFS" s3://private/storm.zarr "$TMP/storm" "$seconds" 8 "$radosgw" "$store"
    "$SHARDFS" verify s3://private/storm.zarr
    # Others read the same from the bucket as from a mount.
    local library sums
    mount_view s3://private/storm.zarr
    printf '{"id": %d, "path": "%s", "regions": null}\n' 1 s3://private/storm.zarr 2 "$MP" >"$TMP/storm.jobs"
    for library in zarr-python tensorstore; do
        "$python" "$clients/read_array.py" "$library" "$TMP/storm.jobs"
    done >"$TMP/storm.sums"
    unmount_view
    mapfile -t sums < <(grep -o '"sha256": "[0-9a-f]*"' "$TMP/storm.sums")
    ((${#sums[@]} == 4)) || cat "$TMP/storm.sums"
    [[ $(printf '%s\n' "${sums[@]}" | sort -u | wc -l) == 1 ]]
}
check "eight mounts that write to the same shards lose nothing though they and the store are killed" storm

# The program that loses a third of what it writes on a disk.
dask_of_four() {
    local venv=${SHARDFS_VENVS:-$repo/target/venvs}/dask/bin/python scheduler mounts i
    for scheduler in threads processes; do
        mounts=()
        "$venv" "$clients/dask_check.py" make "$TMP/dask-$scheduler"
        object_store upload private "dask-$scheduler/" "$TMP/dask-$scheduler"
        for ((i = 0; i < 4; i++)); do
            mount_view "s3://private/dask-$scheduler" --rw
            mounts+=("$MP")
        done
        "$venv" "$clients/dask_check.py" store "$scheduler" "${mounts[@]}"
        for MP in "${mounts[@]}"; do unmount_view; done
        mount_view "s3://private/dask-$scheduler"
        [[ $("$venv" "$clients/dask_check.py" lost "$MP") == '0.0 %' ]]
        unmount_view
        "$SHARDFS" verify "s3://private/dask-$scheduler"
    done
}
check "dask loses nothing through four mounts of one bucket" dask_of_four
