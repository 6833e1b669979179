#!/bin/bash
# Mounts every Zarr store of the corpus and compares what is shown, file by file, with the manifests;
# then every damaged store, and stores with offsets beyond 2^40.
#
#     tests/corpus.sh [SUBSTRING]      only the cases whose name contains SUBSTRING
#
# SHARDFS_CORPUS: where the corpus is.

# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

only=${1:-}
if ! corpus=$(corpus_dir); then
    skip "no corpus: set SHARDFS_CORPUS"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1

# verdict NAME COMMAND...: like check, but cheap, and the checker's own words are enough.
verdict() {
    local name=$1 out
    shift
    if out=$("$@" 2>&1); then
        pass "$name"
    else
        fail "$name"
        echo "${out:0:2000}" | indent
    fi
}

# The daemon still answers, and lists its root.
alive() { cat "$1/.shardfs/stats.json" >/dev/null && ls "$1" >/dev/null; }

# has_no_shards STORE REFUSAL: the store has none, and the refusal says so.
has_no_shards() {
    grep -q 'level 1 of sharding: no array here is sharded$' "$2" || return 1
    "$SHARDFS" verify "$1" | tail -n 1 | grep -qv ' shards\?, '
}

# One mount for all arrays of a store: STORE NAME LEVEL "OPTIONS" MANIFEST...
check_store() {
    local store=$1 label=$2 level=$3 options=$4 manifest metadata=(--metadata)
    shift 4
    # No zarr.json in the source to compare with; the view makes its own.
    case $store in
    */draft2022/*) metadata=() ;;
    */bloscpack/* | */bcolz/* | */blz/*)
        metadata=(--allow zarr.json --allow header.json --allow metadata.json)
        ;;
    esac
    # shellcheck disable=SC2086 # no option, or -o and its value
    if ! mount_view "$store" $options >"$TMP/refused.$BASHPID"; then
        if [[ $label == level=1 ]] && has_no_shards "$store" "$TMP/refused.$BASHPID"; then
            pass "$store ($label): refused, it has no shards"
        else
            fail "mount $store $options: $(cat "$TMP/refused.$BASHPID")"
        fi
        return
    fi
    for manifest in "$@"; do
        verdict "$(basename "$(dirname "$manifest")")/$(basename "$manifest" .json) ($label)" \
            python3 "$corpus/check_mount.py" "$manifest" "$MP" "${metadata[@]}" --strict-empty-dirs --level "$level"
    done
    verdict "unmount $store ($label)" unmount_view
}

# All ways to mount one store: STORE MANIFEST...
check_all_options() {
    local store=$1
    shift
    check_store "$store" default -1 "" "$@"
    check_store "$store" immutable -1 "-o immutable" "$@"
    check_store "$store" level=1 1 "-o level=1" "$@"
}

# A damaged store may be refused as a whole only where its manifest says so.
check_damaged() {
    local manifest=$1 name store label options rc
    name=malformed/$(basename "$manifest" .json)
    store=$(mktemp -d "$TMP/damaged.XXXXXX")/store
    python3 "$corpus/check_malformed.py" "$manifest" --prepare "$corpus" "$store"
    for label in default immutable; do
        options=
        [[ $label == default ]] || options="-o $label"
        new_mount_point
        rc=0
        # shellcheck disable=SC2086
        timeout 30 "$SHARDFS" mount $options "$store" "$MP" </dev/null >"$MP.log" 2>&1 || rc=$?
        if [[ $rc == 32 && -s $MP.log ]] && grep -q '"outcome": "mount-may-fail"' "$manifest"; then
            verdict "$name ($label): refused, and nothing is left mounted" not_mounted "$MP"
        elif [[ $rc != 0 ]]; then
            fail "$name ($label): mount ended with $rc: $(cat "$MP.log")"
        else
            verdict "$name ($label)" python3 "$corpus/check_malformed.py" "$manifest" "$MP"
            verdict "$name ($label): alive afterwards" alive "$MP"
            verdict "$name ($label): unmount" unmount_view
        fi
    done
}

# A hierarchy of the draft of 2022 with one damaged array: how many files of its directory "data/root/a" cannot be read,
# of how many that are listed, and what the log says.
check_damaged_draft() {
    local name=$1 bad=$2 listed=$3 says=$4 file unreadable=0 files=()
    if ! mount_view "$corpus/data/malformed_other/$name" --log-file "$TMP/$name.log"; then
        fail "malformed_other/$name: mount"
        return
    fi
    while read -r file; do files+=("$file"); done < <(find "$MP/data/root/a" -type f)
    for file in "${files[@]}"; do
        cat "$file" >/dev/null 2>&1 || unreadable=$((unreadable + 1))
    done
    verdict "malformed_other/$name: $unreadable of ${#files[@]} files cannot be read" \
        test "$unreadable/${#files[@]}" = "$bad/$listed"
    verdict "malformed_other/$name: the log says why" grep -q "$says" "$TMP/$name.log"
    verdict "malformed_other/$name: others are read" sha256sum "$MP/data/root/r0/c0"
    verdict "malformed_other/$name: unmount" unmount_view
}

# A damaged file or directory of another format: refused with these words, or "k of n: words", the k chunks that
# cannot be read.
check_damaged_foreign() {
    local name=$1 expected=$2 words=$3 chunk total=0 bad=0
    new_mount_point
    if ! timeout 30 "$SHARDFS" mount --log-file "$TMP/$name.log" "$corpus/data/malformed_other/$name" "$MP" \
        </dev/null >"$MP.log" 2>&1; then
        verdict "malformed_other/$name: refused" test "$expected" = refused
        verdict "malformed_other/$name: the message says why" grep -q "$words" "$MP.log"
        verdict "malformed_other/$name: nothing is left mounted" not_mounted "$MP"
        return
    fi
    while read -r chunk; do
        total=$((total + 1))
        sha256sum "$chunk" >/dev/null 2>&1 || bad=$((bad + 1))
    done < <(find "$MP/c" -type f)
    verdict "malformed_other/$name: $bad of $total chunks cannot be read" test "$bad of $total" = "$expected"
    verdict "malformed_other/$name: the log says why" grep -q "$words" "$TMP/$name.log"
    verdict "malformed_other/$name: unmount" unmount_view
}

# --- what there is to do ---------------------------------------------------------------------------

# Sparse files of 1 TiB: not every filesystem takes them.
if ! python3 "$corpus/generate/gen_big_sparse.py" "$TMP/big" 2>"$TMP/big.err"; then
    skip "offsets beyond 2^40: $(tail -n 1 "$TMP/big.err")"
    rm -rf "$TMP/big"
fi

# One line per store: "store <path> <manifest>...", or "damaged <manifest>".
python3 - "$corpus" "$TMP/big" "$only" >"$TMP/work" <<'PY'
import glob
import json
import os
import sys

corpus, big, only = sys.argv[1:]
stores = {}
for root in (corpus, big):
    for path in sorted(glob.glob(os.path.join(root, "manifests", "*", "*.json"))):
        with open(path) as f:
            manifest = json.load(f)
        if manifest["kind"].startswith(("zarr3", "draft2022", "bloscpack", "bcolz")) and only in manifest["case"]:
            stores.setdefault(os.path.join(root, manifest["store"]), []).append(path)
for store, manifests in stores.items():
    print("store", store, *manifests)
for path in sorted(glob.glob(os.path.join(corpus, "manifests-malformed", "*.json"))):
    if only in "malformed/" + os.path.basename(path):
        print("damaged", path)
PY

# --- do it, in as many jobs as there are processors --------------------------------------------------

work() {
    local n=0 kind args
    while read -r kind args; do
        n=$((n + 1))
        # Whoever makes the directory first has the job.
        mkdir "$TMP/job.$n" 2>/dev/null || continue
        # shellcheck disable=SC2086 # split on purpose: the corpus has no blanks in its names
        if [[ $kind == store ]]; then check_all_options $args; else check_damaged $args; fi
    done <"$TMP/work"
}

pids=()
for ((i = $(nproc); i > 0; i--)); do
    work &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    wait "$pid"
done

if [[ draft2022 == *$only* ]]; then
    check_damaged_draft draft_offset_past_eof 1 12 'a/c0/0, chunk at .* points outside the shard'
    check_damaged_draft draft_cps_zero 4 4 'meta/root/a.array.json: chunks_per_shard must be'
    check_damaged_draft draft_extension_unknown 4 4 'extension "https://example.org/x" must be understood'
fi

if [[ bloscpack == *$only* ]]; then
    check_damaged_foreign bad_magic.blp refused 'it does not begin with "blpk"'
    check_damaged_foreign version_1.blp refused 'format version is 1'
    check_damaged_foreign checksum_9.blp refused 'checksum is 9'
    check_damaged_foreign nchunks_2_62.blp refused 'nchunks is 4611686018427387904'
    check_damaged_foreign max_app_negative.blp refused 'max-app-chunks is -1'
    check_damaged_foreign header_only.blp refused 'it has 20 bytes'
    check_damaged_foreign offset_unknown.blp '0 of 5' 'its writer has not finished it'
    check_damaged_foreign offset_into_header.blp '1 of 5' 'points into the header'
    check_damaged_foreign blosc_ctbytes_huge.blp '1 of 5' 'would end beyond the file'
    check_damaged_foreign blosc_nbytes_wrong.blp '1 of 5' 'more or fewer bytes than a chunk'
    check_damaged_foreign bcolz_two_in_one '1 of 4' 'number of chunks is 2'
    check_damaged_foreign bcolz_chunklen_0 refused 'meta: chunklen must be a number above 0'
    check_damaged_foreign bcolz_dtype_code refused 'meta: dtype must be'
fi
