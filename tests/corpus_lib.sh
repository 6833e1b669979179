# shellcheck shell=bash
# Common parts of the tests of the corpus: as files of this machine (corpus.sh), and on an object store
# (shell/object_store.sh).  Source it after lib.sh, with $corpus, where the corpus is:
#
#     . "$repo/tests/corpus_lib.sh"
#
# A STORE is what is mounted: a path or a URL.

: "${corpus:?where the corpus is}"
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
    local store=$1 label=$2 level=$3 options=$4 refused=$TMP/refused.$BASHPID manifest metadata=(--metadata)
    shift 4
    # No zarr.json in the source to compare with; the view makes its own.
    case $store in
    */draft2022/*) metadata=() ;;
    */bloscpack/* | */bcolz/* | */blz/* | */b2nd/* | */caterva/* | */wkw/*)
        metadata=(--allow zarr.json --allow header.json --allow metadata.json --allow vlmeta.json)
        ;;
    esac
    # shellcheck disable=SC2086 # no option, or -o and its value
    if ! mount_view "$store" $options >"$refused"; then
        if [[ $label == level=1 ]] && has_no_shards "$store" "$refused"; then
            pass "$store ($label): refused, it has no shards"
        else
            fail "mount $store $options: $(<"$refused")"
        fi
        return
    fi
    for manifest in "$@"; do
        verdict "$(basename "$(dirname "$manifest")")/$(basename "$manifest" .json) ($label)" \
            python3 "$corpus/check_mount.py" "$manifest" "$MP" "${metadata[@]}" --strict-empty-dirs --level "$level"
    done
    verdict "unmount $store ($label)" unmount_view
}

# prepare_damaged MANIFEST DIR: makes DIR, the damaged store as files of this machine.
prepare_damaged() {
    mkdir -p "$(dirname "$2")"
    python3 "$corpus/check_malformed.py" "$1" --prepare "$corpus" "$2"
}

# check_damaged MANIFEST STORE: it may be refused as a whole only where its manifest says so.
check_damaged() {
    local manifest=$1 store=$2 name label options rc
    name=malformed/$(basename "$manifest" .json)
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
    local store=$1 bad=$2 listed=$3 says=$4 name file unreadable=0 files=()
    name=${store##*/}
    if ! mount_view "$store" --log-file "$TMP/$name.log"; then
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
    local store=$1 expected=$2 words=$3 name chunk total=0 bad=0
    name=${store##*/}
    new_mount_point
    if ! timeout 30 "$SHARDFS" mount --log-file "$TMP/$name.log" "$store" "$MP" </dev/null >"$MP.log" 2>&1; then
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

# The directories among the damaged data of other formats, below WHERE.
check_damaged_drafts() {
    check_damaged_draft "$1/draft_offset_past_eof" 1 12 'a/c0/0, chunk at .* points outside the shard'
    check_damaged_draft "$1/draft_cps_zero" 4 4 'meta/root/a.array.json: chunks_per_shard must be'
    check_damaged_draft "$1/draft_extension_unknown" 4 4 'extension "https://example.org/x" must be understood'
}
check_damaged_bcolz() {
    check_damaged_foreign "$1/bcolz_two_in_one" '1 of 4' 'number of chunks is 2'
    check_damaged_foreign "$1/bcolz_chunklen_0" refused 'meta: chunklen must be a number above 0'
    check_damaged_foreign "$1/bcolz_dtype_code" refused 'meta: dtype must be'
}

# corpus_stores ROOT KIND,...  [SUBSTRING]: one line for each store below ROOT, "STORE MANIFEST...", its path below ROOT
# and the manifests of those of its arrays whose kind begins like this and whose names contain SUBSTRING.
corpus_stores() {
    python3 - "$1" "$2" "${3:-}" <<'PY'
import glob
import json
import os
import sys

root, kinds, only = sys.argv[1:]
stores = {}
for path in sorted(glob.glob(os.path.join(root, "manifests", "*", "*.json"))):
    with open(path) as f:
        manifest = json.load(f)
    if manifest["kind"].startswith(tuple(kinds.split(","))) and only in manifest["case"]:
        stores.setdefault(manifest["store"], []).append(path)
for store, manifests in stores.items():
    print(store, *manifests)
PY
}

# in_jobs FILE COMMAND...: COMMAND with the words of each line of FILE, in as many jobs as there are processors.
in_jobs() {
    local file=$1 i pid pids=()
    shift
    for ((i = $(nproc); i > 0; i--)); do
        take_jobs "$file" "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid"
    done
}

take_jobs() {
    local file=$1 n=0 words
    shift
    while read -r words; do
        n=$((n + 1))
        # Whoever makes the directory first has the job.
        mkdir "$file.$n" 2>/dev/null || continue
        # shellcheck disable=SC2086 # split on purpose: the corpus has no blanks in its names
        "$@" $words
    done <"$file"
}
