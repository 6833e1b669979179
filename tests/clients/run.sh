#!/bin/bash
# Real libraries read the corpus through the mount: the values must be those of the sharded source.
# Arrays that a library cannot read whoever stores them are listed in cases.py and shown as skipped.
# Then they write to copies of some of its arrays, and to groups, through a writable mount.
#
#     tests/clients/run.sh
#
# SHARDFS_CORPUS: where the corpus is.  The libraries come from setup.sh.

# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"

if ! corpus=$(corpus_dir); then
    skip "no corpus: set SHARDFS_CORPUS"
    exit 0
fi
here=$repo/tests/clients
"$here/setup.sh"
python=${SHARDFS_VENVS:-$repo/target/venvs}/clients/bin/python
node_dir=${SHARDFS_NODE:-$repo/target/node}
export PYTHONDONTWRITEBYTECODE=1
out=$TMP/out
mkdir "$out"

# --- mount every store ------------------------------------------------------------------------------

stores() {
    python3 - "$here" "$corpus" <<'PY'
import sys

sys.path.insert(0, sys.argv[1])
import cases

print(*dict.fromkeys(m["store"] for m in cases.manifests(sys.argv[2])), sep="\n")
PY
}

while read -r store; do
    mount_view "$corpus/$store"
    printf '%s\t%s\n' "$store" "$MP" >>"$TMP/views"
    # What a reader without sharding would stumble over, also in consolidated metadata.
    if sharded=$(grep -rl --include=zarr.json sharding_indexed "$MP"); then
        fail "no sharding_indexed in $store: ${sharded//$MP/}"
    else
        pass "no sharding_indexed in $store"
    fi
done < <(stores)

# --- one reader per library, two at a time -----------------------------------------------------------

python3 "$here/cases.py" jobs "$corpus" "$TMP/views" "$out"

# A reader that dies leaves arrays without a result: compare reports them.
read_with() {
    local library=$1
    case $library in
    zarrita.js) node "$here/read_array.mjs" "$node_dir" "$out/view-jobs" ;;
    *) "$python" "$here/read_array.py" "$library" "$out/jobs" ;;
    esac >"$out/$library.out" 2>"$out/$library.err" ||
        echo "$library ended with $?: $(tail -n 3 "$out/$library.err")"
}

pids=()
for library in zarr-python tensorstore zarrs zarrita.js; do
    if ((${#pids[@]} >= 2)); then
        wait "${pids[0]}"
        pids=("${pids[@]:1}")
    fi
    read_with "$library" &
    pids+=($!)
done
wait "${pids[@]}"

judge '' python3 "$here/cases.py" compare "$corpus" "$out"

# --- and the daemons survived ------------------------------------------------------------------------

while IFS=$'\t' read -r store mp; do
    unmount_view "$mp" || fail "unmount $store"
done <"$TMP/views"

# --- writing -----------------------------------------------------------------------------------------

mkdir "$TMP/copies"
"$python" "$here/write_array.py" prepare "$corpus" "$TMP/copies"
mount_view "$TMP/copies" --rw --log-file "$TMP/log"
judge '' "$python" "$here/write_array.py" write "$corpus" "$TMP/copies" "$MP"
check "unmount after writing" unmount_view
# Shards and metadata: no journals, lock files, temporary files.
check "nothing else is left in the sources" python3 "$repo/tests/shell/arrays.py" check --outside "$TMP/copies"

# --- at once -----------------------------------------------------------------------------------------

# An error is one line.
together() { "$python" "$here/together.py" "$@" 2>&1 | awk '/^(ok|FAIL)/ { print; next } { print "FAIL " $0 }'; }
"$python" "$here/together.py" make "$TMP/shared"
mount_view "$TMP/shared" --rw --commit-interval 0.2 --log-file "$TMP/log.1"
first=$MP
mount_view "$TMP/shared" --rw --log-file "$TMP/log.2"
judge '' together write "${SHARDFS_TOGETHER_SECONDS:-60}" "$TMP/shared" "$first" "$MP"
check "unmount after writing at once" unmount_view
check "unmount the other after writing at once" unmount_view "$first"
check "no errors were logged" bash -c '! grep -h error "$@"' _ "$TMP/log.1" "$TMP/log.2"
check "nothing else is left in the source" python3 "$repo/tests/shell/arrays.py" check --outside "$TMP/shared"
